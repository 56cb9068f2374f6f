//! Any SMTP server: [`connections`] that are kept, [`mail`]s built from messages, and what a server's [`words`] mean.
//!
//! Servers put their meaning into the enhanced code (`4.7.1`) rather than into the three digits, so that is looked at first.

mod connections;
mod driver;
mod mail;
mod words;

pub use driver::{FIELDS, build};
pub use words::CODES;

#[cfg(test)]
mod server_tests;
