//! The options of a fake.

use std::collections::BTreeMap;

use super::{Events, Latency, Rule, WindowQuota};

/// The provider that a fake imitates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FakeProvider {
    /// Twilio Messages.
    Twilio,
    /// SendGrid v3 mail/send.
    Sendgrid,
    /// Amazon SES v2.
    Ses,
    /// Mailgun messages.
    Mailgun,
    /// Telegram bots.
    Telegram,
    /// Slack, incoming webhooks and Web API.
    Slack,
    /// A recipient's own webhook.
    Webhook,
    /// Firebase Cloud Messaging HTTP v1, with its token endpoint at `/token`.
    Fcm,
    /// Apple Push Notification service, HTTP/2 with prior knowledge.
    Apns,
    /// An SMTP server.
    Smtp,
}

/// The options of a fake; the default accepts every well-formed request.
#[derive(Clone, Debug, Default)]
pub struct FakeOptions {
    /// The port on the loopback address; 0 for any free port.
    pub port: u16,
    /// The seed of all random choices of the plan and the events.
    pub seed: u64,
    /// The rules by which requests fail.
    pub plan: Vec<Rule>,
    /// The known accounts and their secrets; if empty, every account and secret is valid.
    ///
    /// For SendGrid, Telegram and Slack the account is its secret, so the value does not count.
    pub secrets: BTreeMap<String, String>,
    /// A limit for each recipient of each account.
    pub per_recipient: Option<WindowQuota>,
    /// A limit for each sender of each account.
    pub per_sender: Option<WindowQuota>,
    /// Answers beyond a quota report how long to wait, if the provider has a place for it.
    pub tells_delay: bool,
    /// Answers to accepted requests report the rest of the quota, if the provider has a place for
    /// it.
    pub tells_quota: bool,
    /// The latency of answers; `None` for none.
    pub latency: Option<Latency>,
    /// The plan of the events that are posted back; `None` for none.
    pub events: Option<Events>,
}
