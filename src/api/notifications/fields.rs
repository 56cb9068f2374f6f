//! The fields that a message and a batch have in common, for the description of the API.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::providers::Channel;

/// The fields of a message, apart from its recipient.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct MessageFields {
    /// The channel: `sms`, `email`, `push`, `chat`, `webhook` or `inapp`.
    #[schema(value_type = String)]
    channel: Channel,
    /// The sender, if it is not the account's own.
    from: Option<String>,
    /// Subject of a mail, or title of a push notification.
    subject: Option<String>,
    /// The text.
    body: Option<String>,
    /// The body as HTML, for mails.
    html: Option<String>,
    /// A template in place of the body.
    template: Option<Value>,
    /// The values of the template's variables.
    data: Option<Map<String, Value>>,
    /// The priority: `critical`, `high`, `normal` or `low`; `normal` if absent.
    priority: Option<String>,
    /// The category of the message, such as `marketing`.
    category: Option<String>,
    /// The pool or the provider that sends the message.
    provider: Option<String>,
    /// Fields that only one provider knows.
    extra: Option<Map<String, Value>>,
    /// Seconds for which the message may wait: for the limits of its tenant, and for an account.
    valid_for_s: Option<f64>,
    /// The treatment of a message that was sent without an answer: `retry` or `dead`.
    on_ambiguous: Option<String>,
    /// The id of the recipient, whose profile has its address, quiet hours and preferences.
    recipient: Option<String>,
    /// The name of the template, for preferences, dedup and digests.
    template_id: Option<String>,
    /// The person or thing whose action the message reports.
    actor: Option<String>,
    /// The type of digest that collects the message.
    digest: Option<String>,
    /// A cap for messages of this template to this recipient, such as `1 per 24h`; its time is at
    /// most 31 days.
    at_most: Option<String>,
    /// The key by which messages are the same, in place of their content.
    dedup_key: Option<String>,
    /// The time of the recipient's clock at which the message goes: `09:00` for the next one, or
    /// `2026-12-01T09:00` for that of a date.
    local_time: Option<String>,
    /// The rate-limit key: a lane of its own in the pool's throttle.
    key: Option<String>,
    /// The earliest time at which the message may be sent.
    run_at: Option<Timestamp>,
}
