//! Apple Push Notification service over HTTP/2, with tokens signed by the account's key.
//!
//! A governor limits the number of concurrent streams here, so this driver keeps its own
//! connections: [`lines`] chooses the connection for each push, `connections` does the I/O.
//! [`push`] builds the requests, [`reasons`] maps the answers.

mod connections;
mod driver;
mod lines;
mod push;
mod reasons;
mod token;

pub use driver::{FIELDS, build};
pub use reasons::CODES;

#[cfg(test)]
mod server_tests;
