//! What providers tell by their event webhooks: whether a request is really theirs, and what it says.
//!
//! A request whose signature cannot be checked is believed in nothing. One request may tell of many messages and recipients. What
//! only says that a provider goes on trying, and what people do with a mail, is left out.

pub mod age;
pub mod chain;
pub mod envelope;
pub mod mailgun;
mod read;
pub mod sendgrid;
pub mod ses;
pub mod sns;
pub mod twilio;

pub use read::{Once, once, read};
