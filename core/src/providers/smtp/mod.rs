//! Any SMTP server: pooled [`connections`], [`mail`]s built from messages, and the meaning of a
//! server's [`words`].
//!
//! Servers are specific in the enhanced code (`4.7.1`) rather than in the three digits, so the
//! enhanced code is looked up first.

mod connections;
mod driver;
mod mail;
mod words;

pub use driver::{FIELDS, build};
pub use words::CODES;

#[cfg(test)]
mod server_tests;
