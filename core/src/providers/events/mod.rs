//! Event webhooks of providers: authentication of requests and parsing of events.
//!
//! No part of a request is trusted unless its signature is valid. One request may report on many
//! messages and recipients. Reports of further delivery attempts, and of opened mails and clicked
//! links, are ignored.

pub mod age;
mod certificate;
pub mod chain;
pub mod envelope;
pub mod mailgun;
mod once;
mod read;
pub mod sendgrid;
pub mod ses;
pub mod sns;
pub mod twilio;

pub use once::ReplayGuard;
pub use read::{once, read};
