//! The audit log: who changed what, when and why.

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
use super::state::App;
use super::within::{ONE, within};

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = AuditEntry)]
pub struct Entry {
    /// Ascending.
    pub id: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    #[schema(example = "alice")]
    pub who: String,
    /// The token of the API that was shown, by its name in the settings; `null` for other doors. Unlike `who`, nobody can choose it.
    pub token: Option<String>,
    /// Whose token that is.
    pub tenant: Option<String>,
    /// What was done, e.g. `throttle.set`.
    pub action: String,
    /// To what, e.g. the throttle's name.
    pub subject: String,
    /// The changed fields before.
    pub before: Option<Value>,
    /// The changed fields after.
    pub after: Option<Value>,
    /// Why.
    pub why: String,
}

/// The last changes.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Audit {
    /// Newest first.
    entries: Vec<Entry>,
}

/// The longest text of a knob that an entry keeps, in characters.
const TEXT_CHARS_MAX: usize = 1000;

impl Entry {
    /// A change that happens now; Postgres gives it its number and time.
    pub fn now(who: String, action: &str, subject: String, why: String) -> Self {
        let at = Timestamp::UNIX_EPOCH;
        let (token, tenant, before, after) = (None, None, None, None);
        Self {
            id: 0,
            at,
            who,
            token,
            tenant,
            action: action.to_owned(),
            subject,
            before,
            after,
            why,
        }
    }

    /// Names the token that was shown.
    pub fn by(self, caller: &Caller) -> Self {
        let Via { token, tenant } = caller.via();
        Self {
            token,
            tenant,
            ..self
        }
    }

    /// A change of knobs that has been made: the fields that it turned, as they stood and stand in the hash.
    pub fn turned(action: &str, change: &Change, before: Option<&Status>, after: &Status) -> Self {
        let fields = |status: &Status| {
            // Postgres keeps no NUL, and a person may have written megabytes.
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

/// Writes an entry; a change that was made already is not undone for the lack of its line, so the failure is a warning.
pub async fn note(app: &App, entry: &Entry) -> Option<String> {
    let problem = within(ONE, postgres::write_audit(&app.deps.queue.pool, entry))
        .await
        .err()?;
    tracing::error!(
        reason = problem.detail,
        who = entry.who,
        action = entry.action,
        subject = entry.subject,
        "a change was made but not written to the audit log"
    );
    Some("the change is made, but Postgres did not take its line in the audit log".to_owned())
}

/// Lists the last changes.
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "list_audit", tag = "audit",
    params(("limit" = Option<i64>, Query, description = "At most so many, 1 to 1000; 100 if absent.")),
    responses((status = 200, body = Audit)))]
pub async fn list(
    State(app): State<App>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Audit>, Problem> {
    let mut query = Query::open(pairs, &["limit"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let entries = within(ONE, postgres::read_audit(&app.deps.queue.pool, limit)).await?;
    Ok(Json(Audit { entries }))
}
