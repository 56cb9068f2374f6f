//! Message providers: the drivers, the outcome of an attempt, and the pool of accounts.
//!
//! A [`Driver`] speaks one provider's wire format for one account and maps every answer to one
//! [`Sent`] through a table of [`Code`]s. Out of scope: retries (the queue retries), tenants, and
//! the choice of recipients.

pub mod account;
pub mod apns;
pub mod arguments;
pub mod build;
pub mod capture;
pub mod channel;
pub mod clock;
pub mod code;
pub mod driver;
pub mod event;
pub mod events;
pub mod exchange;
pub mod fcm;
pub mod http;
mod invalid_account;
pub mod mailbox;
pub mod mailgun;
pub mod mask;
pub mod message;
pub mod metrics;
mod oauth;
mod outcome;
pub mod pool;
pub mod provider;
pub mod recipient;
pub mod sendgrid;
pub mod sent;
pub mod ses;
pub mod settings;
pub mod slack;
pub mod smtp;
pub mod telegram;
pub mod twilio;
pub mod webhook;
pub mod words;

pub use account::{Account, AccountSecret};
pub use channel::Channel;
pub use clock::now_s;
pub use code::{Class, Code};
pub use driver::{Driver, DriverClients, Field, ProviderResponse, SendContext};
pub use event::{EventKind, ProviderEvent, RejectedWebhook, WebhookRequest};
pub use http::{Call, ExchangeError, Http, HttpAnswer};
pub use invalid_account::InvalidAccount;
pub use mailbox::Mailbox;
pub use message::Message;
pub use metrics::PoolMetrics;
pub use provider::Provider;
pub use recipient::{RESERVED_IDS, Recipient};
pub use sent::{Scope, Sent};
pub use settings::{INBOX_POOL, Limited, Pool, Pools};

#[cfg(test)]
mod examples;
#[cfg(test)]
mod fcm_tests;
#[cfg(test)]
mod wire_tests;
