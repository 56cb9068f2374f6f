//! The audit log: the author, the time, the content and the reason of each change.

use axum::Json;
use axum::extract::{Query as Pairs, State};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::jobs::Via;
use crate::throttle::{Change, Status};

use super::auth::Caller;
use super::postgres;
use super::problem::{Code, Problem};
use super::query::{PAGE_MAX, Query};
use super::state::ApiState;
use super::timeout::{ROW_TIMEOUT, with_timeout};

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

/// The last changes.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Audit {
    /// The entries, newest first.
    entries: Vec<AuditEntry>,
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
        let Via { token, tenant } = caller.via();
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
            let told = |text: &String| {
                text.chars()
                    .filter(|c| *c != '\0')
                    .take(TEXT_CHARS_MAX)
                    .collect::<String>()
            };
            let text = |field: &String| {
                status
                    .raw
                    .get(field)
                    .map(told)
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

/// Writes an entry. A change that is already made is not undone if its entry cannot be written, so
/// the failure is returned as a warning.
pub async fn note(app: &ApiState, entry: &AuditEntry) -> Option<String> {
    let problem = with_timeout(
        ROW_TIMEOUT,
        postgres::write_audit(&app.deps.queue.pool, entry),
    )
    .await
    .err()?;
    tracing::error!(
        reason = problem.detail,
        actor = entry.actor,
        action = entry.action,
        subject = entry.subject,
        "a change was made but not written to the audit log"
    );
    Some("the change was made, but writing it to the audit log failed".to_owned())
}

/// Lists the last changes.
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "list_audit", tag = "audit",
    params(("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent.")),
    responses((status = 200, body = Audit)))]
pub async fn list(
    State(app): State<ApiState>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Audit>, Problem> {
    let mut query = Query::open(pairs, &["limit"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let entries = with_timeout(
        ROW_TIMEOUT,
        postgres::read_audit(&app.deps.queue.pool, limit),
    )
    .await?;
    Ok(Json(Audit { entries }))
}
