//! Fake providers: they speak the providers' own formats over sockets (HTTP/1, HTTP/2, SMTP), keep real quotas, and go wrong by a
//! seeded plan. Tests, the demo and a benchmark send to them; nothing else of Flyball knows them, and they know nothing of it.
//!
//! One [`Fake`] is one provider with any number of accounts, told apart by what the provider itself tells them apart by:
//! Twilio's SID in the path, SendGrid's key, SES's access key id, Mailgun's domain, Telegram's bot token, Slack's webhook path or
//! bot token, FCM's project, APNs's team, the SMTP user, and for webhooks the header `x-account` or else the path.

pub mod apns;
pub mod clock;
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

pub use events::{Events, Fate};
pub use fake::Fake;
pub use latency::Latency;
pub use ledger::{Received, Second, Totals};
pub use options::{Options, Speaks};
pub use plan::{Fault, Rule, When, Whom};
pub use quota::Quota;
