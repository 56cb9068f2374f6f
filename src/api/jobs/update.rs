//! Changes of the fields of a waiting job.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use serde_json::Value;

use super::input::{self, KEY_BYTES_MAX, KnownKinds, MAX_ATTEMPTS, PRIORITIES};
use super::moves::after_move;
use super::permissions;
use super::show::{JobView, id_of};
use super::state::JobsState;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::ObjectReader;
use crate::api::http::operate::from_body;
use crate::api::http::problem::Problem;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::{JobRetry, JobUpdate};

/// The fields of a job that can change while it waits.
pub const UPDATABLE: [&str; 9] = [
    "args",
    "throttle",
    "key",
    "priority",
    "max_attempts",
    "cost",
    "timeout",
    "tags",
    "retry",
];

/// The body of a change of a job. Fields that are absent stay as they are.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct JobChange {
    /// The arguments, as a whole. A checkpoint of the old ones is forgotten.
    args: Option<Value>,
    /// The name of the throttle.
    throttle: Option<String>,
    /// The rate-limit key; empty for none.
    key: Option<String>,
    /// The priority: 0 runs first, 3 last.
    priority: Option<i32>,
    /// Attempts before the job is dead. A job that has used more gets one more.
    max_attempts: Option<i32>,
    /// Tokens that the job takes from its throttle.
    cost: Option<f64>,
    /// The timeout of one attempt; `null` for that of the kind.
    timeout: Option<f64>,
    /// All tags of the job; `null` for none.
    tags: Option<Vec<String>>,
    /// The waits after failed attempts; `null` for those of the kind.
    retry: Option<JobRetry>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// Changes fields of a waiting job, which keeps its number, its time, its attempts and its unique
/// key.
#[utoipa::path(patch, path = "/api/v1/jobs/{id}", operation_id = "update_job", tag = "jobs",
    params(("id" = i64, Path, description = "Its number.")),
    request_body = JobChange,
    responses((status = 200, body = JobView)))]
pub async fn update(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<JobView>, Problem> {
    let id = id_of(&id)?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let read = state.queue.kind_of(id, caller.tenant.as_deref());
    let found = with_timeout(ROW_TIMEOUT, read).await?;
    let kind = found.as_deref();
    let known = KnownKinds {
        here: &state.kinds,
        elsewhere: &[],
    };
    let read = |fields: &mut ObjectReader<'_>| changes(fields, kind, &known);
    let (changes, signed) = from_body(value, &caller, &UPDATABLE, read)?;
    let Some(kind) = kind else {
        return Err(Problem::job_not_found(id));
    };
    let (args, throttle) = (changes.args.as_ref(), changes.throttle.as_deref());
    permissions::check_update(&state, &caller, kind, args, throttle).await?;
    let answer = with_timeout(ROW_TIMEOUT, state.queue.update(id, &changes, &signed)).await?;
    let rule = "only scheduled, ready and retryable jobs can be updated";
    after_move(&state, &caller, id, answer, rule).await
}

/// Reads the changes of a job; `kind` is absent if there is no such job.
fn changes(fields: &mut ObjectReader<'_>, kind: Option<&str>, known: &KnownKinds<'_>) -> JobUpdate {
    let mut changes = JobUpdate::default();
    if !UPDATABLE.iter().any(|name| fields.contains(name)) {
        let names = UPDATABLE.join(", ");
        fields.wrong_whole(format!("must have at least one of {names}"));
    }
    for name in ["timeout", "retry"] {
        if fields.contains(name) && !fields.has(name) {
            changes.clear.push(name.to_owned());
        }
    }
    if let Some(value) = fields.take("args") {
        input::args(fields, kind, &value, known);
        changes.args = Some(value);
    }
    changes.throttle = input::throttle(fields);
    changes.key = fields.text("key", 0..=KEY_BYTES_MAX);
    let priority = fields.whole("priority", PRIORITIES, " (0 runs first)");
    changes.priority = priority.map(|priority| priority as i32);
    let attempts = fields.whole("max_attempts", MAX_ATTEMPTS, "");
    changes.max_attempts = attempts.map(|attempts| attempts as i32);
    changes.cost = fields.positive("cost", input::COST_MAX, " tokens");
    changes.timeout_s = input::timeout(fields);
    changes.retry = input::retry(fields);
    changes.tags = match fields.take("tags") {
        None => None,
        Some(Value::Null) => Some(Vec::new()),
        Some(tags) => Some(input::tags(fields, tags)),
    };
    changes
}
