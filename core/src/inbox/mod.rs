//! The inbox: messages of the channel `inapp`, kept for each recipient of a tenant.
//!
//! The driver writes a message once for its job and publishes it on the channel of the inbox in the
//! same transaction; marks are told on it too. The counts of an inbox are a row of their own, so
//! reading them costs the same for any number of messages. Gates, admission and attempts are those
//! of all messages; connections are the gateway's.

pub mod driver;
pub mod keep;
pub mod message;
pub mod postgres;
pub mod request;

pub use driver::InboxDriver;
pub use message::{InboxCounts, InboxMessage};
pub use postgres::{INBOX_STATEMENTS, Inbox};
