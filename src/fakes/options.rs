//! How a fake is started.

use std::collections::BTreeMap;

use super::{Events, Latency, Quota, Rule};

/// Which provider a fake speaks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Speaks {
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

/// How a fake is started. The default lets everything through that is well-formed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where it listens on the loopback address; 0 for any free port.
    pub port: u16,
    /// Decides what the plan and the events leave to chance.
    pub seed: u64,
    /// What goes wrong.
    pub plan: Vec<Rule>,
    /// Accounts and their secrets. Where it is empty, any secret is right; otherwise only these are known. For SendGrid, Telegram and
    /// Slack the account is its secret, so the value does not count.
    pub secrets: BTreeMap<String, String>,
    /// A limit for each recipient of each account.
    pub per_recipient: Option<Quota>,
    /// A limit for each sender of each account.
    pub per_sender: Option<Quota>,
    /// Answers past a quota say how long to wait, where the provider has a place for it.
    pub tells_delay: bool,
    /// Answers to accepted requests say what is left of the quota, where the provider has a place for it.
    pub tells_quota: bool,
    /// How long answers take; at once by default.
    pub latency: Option<Latency>,
    /// Whether and which events are posted back.
    pub events: Option<Events>,
}
