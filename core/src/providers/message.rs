//! A message as drivers receive it: rendered, checked for its channel, and ready to be sent.

use std::fmt;

use serde_json::{Map, Value};

use super::{Channel, Recipient};

/// A message. Its debug text shows neither address nor body.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// The id `job_<id>`, unique for the message and the same for all its attempts. Drivers pass it
    /// on if the provider accepts such an id.
    pub id: String,
    pub channel: Channel,
    pub to: Recipient,
    /// The sender, if it is not the account's own `from`.
    pub from: Option<String>,
    /// The subject of a mail, or the title of a push notification.
    pub subject: Option<String>,
    /// The text; for a webhook, a JSON body.
    pub body: String,
    /// The HTML version of a mail.
    pub html: Option<String>,
    /// Arguments for one provider only, such as `collapse_id` or `media_url`; each driver's
    /// documentation lists its own.
    pub extra: Map<String, Value>,
    /// The time of expiry, in unix seconds; `None` for a message that does not expire.
    pub expires_at_s: Option<i64>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("channel", &self.channel)
            .finish_non_exhaustive()
    }
}
