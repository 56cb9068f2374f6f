//! A message in an inbox, its state, and the counts of the inbox.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The state of a message. A message that is read was seen; one that is archived counts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum InboxState {
    Unseen,
    Seen,
    Read,
    Archived,
}

/// A message in an inbox.
///
/// Its debug text shows nothing of the content.
#[derive(Clone, PartialEq, Deserialize, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct InboxMessage {
    /// The id within all inboxes; the messages of one inbox have growing ids.
    #[cfg_attr(feature = "api", schema(pattern = "^[0-9]+$"))]
    pub id: String,
    /// The number of its notification.
    pub notification_id: i64,
    /// The category of the message.
    pub category: String,
    /// The name of its template, if the sender named one.
    pub template_id: Option<String>,
    /// The person or thing whose action it reports.
    pub actor: Option<String>,
    /// The title.
    pub subject: Option<String>,
    /// The text.
    pub body: String,
    /// The data that the sender gave for the page that shows it.
    #[cfg_attr(feature = "api", schema(value_type = Object))]
    pub data: Value,
    /// The state.
    pub state: InboxState,
    /// The time at which it came into the inbox.
    pub created_at: Timestamp,
    /// The time at which it was seen.
    pub seen_at: Option<Timestamp>,
    /// The time at which it was read.
    pub read_at: Option<Timestamp>,
    /// The time at which it was archived.
    pub archived_at: Option<Timestamp>,
}

impl std::fmt::Debug for InboxMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxMessage")
            .field("id", &self.id)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// The counts of an inbox, without archived messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct InboxCounts {
    /// Messages that were not seen.
    pub unseen: i64,
    /// Messages that were not read.
    pub unread: i64,
}

/// A page of an inbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InboxPage {
    /// The messages, newest first.
    pub messages: Vec<InboxMessage>,
    /// The cursor of the next page; `None` after the last message.
    pub next: Option<String>,
}

/// The result of a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkedMessages {
    /// Messages whose state changed.
    pub changed: i64,
    /// The counts after it.
    pub counts: InboxCounts,
}
