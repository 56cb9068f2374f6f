//! Apple Push Notification service: HTTP/2 with connections of its own, and tokens signed by the account's key.
//!
//! How many streams are open at once is what a governor turns here, so this driver keeps its own connections: [`lines`] says
//! which one takes the next push, `connections` is the wire. [`push`] is what is sent, [`reasons`] what the answers mean.

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
