//! An entry of the audit log.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::api::http::caller::Caller;
use crate::jobs::TokenIdentity;
use crate::throttle::{Change, Status};

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = AuditEntry)]
pub struct AuditEntry {
    /// The number of the entry; later entries have higher numbers.
    pub id: i64,
    /// The time of the change.
    pub at: Timestamp,
    /// The author of the change, as the request names it.
    #[schema(example = "alice")]
    pub actor: String,
    /// The name in the settings of the API token that was sent; `null` for changes without a token.
    /// Unlike `actor`, a client cannot choose it.
    pub token: Option<String>,
    /// The tenant of that token.
    pub tenant: Option<String>,
    /// The action, for example `throttle.set`.
    pub action: String,
    /// The subject of the action, for example the name of a throttle.
    pub subject: String,
    /// The changed fields before the change.
    pub before: Option<Value>,
    /// The changed fields after the change.
    pub after: Option<Value>,
    /// The reason for the change.
    pub why: String,
}

/// The longest text of a knob that an entry stores, in characters.
const TEXT_CHARS_MAX: usize = 1000;

impl AuditEntry {
    /// Creates an entry for a change that happens now; Postgres sets its number and time.
    pub fn now(actor: String, action: &str, subject: String, why: String) -> Self {
        let at = Timestamp::UNIX_EPOCH;
        let (token, tenant, before, after) = (None, None, None, None);
        Self {
            id: 0,
            at,
            actor,
            token,
            tenant,
            action: action.to_owned(),
            subject,
            before,
            after,
            why,
        }
    }

    /// Records the token that was sent.
    pub fn by(self, caller: &Caller) -> Self {
        let TokenIdentity { token, tenant } = caller.identity();
        Self {
            token,
            tenant,
            ..self
        }
    }

    /// Creates an entry for a change of knobs: the edited fields as they were and are in the hash.
    pub fn turned(action: &str, change: &Change, before: Option<&Status>, after: &Status) -> Self {
        let fields = |status: &Status| {
            // Postgres cannot store NUL, and a text that a person wrote may be megabytes long.
            let reported = |text: &String| {
                text.chars()
                    .filter(|c| *c != '\0')
                    .take(TEXT_CHARS_MAX)
                    .collect::<String>()
            };
            let text = |field: &String| {
                status
                    .raw
                    .get(field)
                    .map(reported)
                    .map_or(Value::Null, Value::String)
            };
            change
                .fields
                .keys()
                .map(|field| (field.clone(), text(field)))
                .collect()
        };
        Self {
            before: before.map(fields),
            after: Some(fields(after)),
            ..Self::now(
                change.by.clone(),
                action,
                after.name.to_string(),
                change.why.clone(),
            )
        }
    }
}
