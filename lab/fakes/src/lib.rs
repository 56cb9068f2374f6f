//! Fake providers for tests, the demo and a benchmark.
//!
//! They speak the providers' own formats over sockets (HTTP/1, HTTP/2, SMTP), keep real quotas, and
//! fail by a seeded plan. The product itself does not use them, and they use nothing of it.
//!
//! One [`Fake`] is one provider with any number of accounts. It identifies an account by the same
//! part of a request as the provider: Twilio's SID in the path, SendGrid's key, SES's access key
//! id, Mailgun's domain, Telegram's bot token, Slack's webhook path or bot token, FCM's project,
//! APNs's team, the SMTP user, and for webhooks the header `x-account` or else the path.

pub mod apns;
pub mod clock;
#[cfg(feature = "collector")]
pub mod collector;
mod connection;
pub mod crypt;
mod event_forms;
pub mod events;
pub mod fake;
pub mod fcm;
mod http;
pub mod latency;
pub mod ledger;
pub mod mailgun;
mod open_connection;
pub mod options;
pub mod plan;
mod poster;
pub mod quota;
pub mod sendgrid;
mod server;
pub mod ses;
pub mod sigv4;
pub mod slack;
pub mod smtp;
pub mod sns;
pub mod telegram;
pub mod twilio;
pub mod webhook;
pub mod wire;

pub use events::{Events, PlannedEvent};
pub use fake::Fake;
pub use latency::Latency;
pub use ledger::{Received, SecondTotals, Totals};
pub use options::{FakeOptions, FakeProvider};
pub use plan::{Fault, Rule, RuleMatch, ThrottleScope};
pub use quota::WindowQuota;
