//! The problems of each operation, for `/openapi.json`: by status, with the codes of
//! `docs/reference/errors.md`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::operation_id::id_of;
use crate::api::http::limits::Group;
use crate::api::http::problem::{Code, MEDIA_TYPE};
use crate::api::http::scopes::{Need, need};
use Code::{
    AccountNotFound, BadRequest, Conflict, InUse, InvalidHeader, JobNotFound, LaneFull, NotAllowed,
    NotReady, NotificationNotFound, PoolNotFound, QueueLost, ScheduleNotFound, ThrottleNotFound,
    ThrottlesLost, TooManyStreams, WrongState,
};

/// The codes that only some operations answer: something does not exist, is forbidden, or is in a
/// store that does not answer. The other codes follow from the input of an operation.
const OWN: &[(&str, &[Code])] = &[
    ("list_jobs", &[QueueLost]),
    (
        "enqueue_job",
        &[NotAllowed, QueueLost, LaneFull, Code::QueueFull],
    ),
    (
        "enqueue_jobs",
        &[NotAllowed, QueueLost, LaneFull, Code::QueueFull],
    ),
    ("cancel_jobs", &[QueueLost]),
    ("show_job", &[JobNotFound, QueueLost]),
    ("cancel_job", &[JobNotFound, WrongState, QueueLost]),
    ("list_attempts", &[JobNotFound, QueueLost]),
    ("retry_job", &[JobNotFound, WrongState, QueueLost]),
    ("reschedule_job", &[JobNotFound, WrongState, QueueLost]),
    ("discard_job", &[JobNotFound, WrongState, QueueLost]),
    ("requeue_dead", &[QueueLost]),
    ("discard_dead", &[QueueLost]),
    ("show_pause", &[QueueLost]),
    ("pause_all", &[QueueLost]),
    ("resume_all", &[QueueLost]),
    ("list_throttles", &[ThrottlesLost]),
    ("show_throttle", &[ThrottleNotFound, ThrottlesLost]),
    (
        "edit_throttle",
        &[InvalidHeader, ThrottleNotFound, Conflict, ThrottlesLost],
    ),
    (
        "delete_throttle",
        &[ThrottleNotFound, InUse, QueueLost, ThrottlesLost],
    ),
    (
        "explain_throttle",
        &[ThrottleNotFound, QueueLost, ThrottlesLost],
    ),
    ("show_throttle_history", &[]),
    ("pause_throttle", &[ThrottleNotFound, ThrottlesLost]),
    ("resume_throttle", &[ThrottleNotFound, ThrottlesLost]),
    ("list_lanes", &[QueueLost]),
    (
        "acquire_tokens",
        &[NotAllowed, ThrottleNotFound, ThrottlesLost],
    ),
    (
        "peek_tokens",
        &[NotAllowed, ThrottleNotFound, ThrottlesLost],
    ),
    ("check_request", &[InvalidHeader]),
    (
        "return_tokens",
        &[NotAllowed, ThrottleNotFound, ThrottlesLost],
    ),
    ("show_lane", &[QueueLost]),
    ("weigh_lane", &[QueueLost]),
    ("purge_lane", &[QueueLost]),
    ("pause_key", &[ThrottleNotFound, ThrottlesLost]),
    ("resume_key", &[ThrottleNotFound, ThrottlesLost]),
    ("list_pools", &[]),
    ("show_pool", &[PoolNotFound, QueueLost]),
    (
        "resume_account",
        &[PoolNotFound, AccountNotFound, ThrottlesLost],
    ),
    ("list_schedules", &[QueueLost]),
    ("show_schedule", &[ScheduleNotFound, QueueLost]),
    ("set_schedule", &[NotAllowed, QueueLost]),
    ("delete_schedule", &[ScheduleNotFound, QueueLost]),
    ("run_schedule", &[ScheduleNotFound, QueueLost, LaneFull]),
    ("pause_schedule", &[ScheduleNotFound, QueueLost]),
    ("resume_schedule", &[ScheduleNotFound, QueueLost]),
    ("list_notifications", &[QueueLost]),
    (
        "notify",
        &[
            InvalidHeader,
            NotAllowed,
            Code::RequestRunning,
            Code::IdempotencyKeyReused,
            Code::RateLimitExceeded,
            QueueLost,
            LaneFull,
            Code::QueueFull,
        ],
    ),
    (
        "notify_many",
        &[
            Code::BatchLimitExceeded,
            InvalidHeader,
            NotAllowed,
            Code::RequestRunning,
            Code::IdempotencyKeyReused,
            QueueLost,
            LaneFull,
            Code::QueueFull,
        ],
    ),
    ("list_tenants", &[QueueLost]),
    ("list_modules", &[Code::TenantNotFound, QueueLost]),
    ("list_batches", &[QueueLost]),
    ("show_batch", &[Code::BatchNotFound, QueueLost]),
    ("pause_batch", &[Code::BatchNotFound, WrongState, QueueLost]),
    (
        "resume_batch",
        &[Code::BatchNotFound, WrongState, QueueLost],
    ),
    ("cancel_batch", &[Code::BatchNotFound, QueueLost]),
    ("show_notification", &[NotificationNotFound, QueueLost]),
    ("list_suppressions", &[QueueLost]),
    ("suppress", &[QueueLost]),
    ("unsuppress", &[QueueLost]),
    (
        "tell_provider_events",
        &[
            BadRequest,
            Code::Unauthorized,
            AccountNotFound,
            Code::TooManyRequests,
            QueueLost,
        ],
    ),
    ("list_decisions", &[QueueLost]),
    ("list_failures", &[QueueLost]),
    ("list_audit", &[QueueLost]),
    ("list_workers", &[QueueLost]),
    ("stream_events", &[TooManyStreams]),
    ("show_metrics", &[]),
    ("show_liveness", &[]),
    ("show_readiness", &[NotReady]),
    ("show_openapi", &[]),
];

/// Returns the operations for which a row of [`OWN`] is missing, and the rows without an operation.
#[cfg(test)]
pub(super) fn unmatched(operations: &[String]) -> Vec<String> {
    let missing = operations
        .iter()
        .filter(|id| !OWN.iter().any(|(own, _)| own == id))
        .cloned();
    let left = OWN
        .iter()
        .filter(|(own, _)| !operations.iter().any(|id| id == own))
        .map(|(own, _)| (*own).to_owned());
    missing.chain(left).collect()
}

/// Declares the problems of an operation by status, and `default` for those that no row lists.
pub(super) fn apply(
    path: &str,
    method: &str,
    operation: &mut Map<String, Value>,
    has_tokens: bool,
) {
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in codes(path, method, operation, has_tokens) {
        let of_status = by_status.entry(code.status().as_u16()).or_default();
        if !of_status.contains(&code) {
            of_status.push(code);
        }
    }
    let Some(answers) = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    for (status, codes) in by_status {
        let reported: Vec<String> = codes
            .iter()
            .map(|code| format!("`{}`: {}.", code.slug(), code.title()))
            .collect();
        answers.insert(status.to_string(), problem(&reported.join(" "), status));
    }
    answers.insert(
        "default".to_owned(),
        problem("An error; docs/reference/errors.md lists the codes.", 0),
    );
}

fn problem(description: &str, status: u16) -> Value {
    let mut answer = json!({
        "description": description,
        "content": { MEDIA_TYPE: { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let (name, header) = match status {
        401 => (
            "WWW-Authenticate",
            json!({ "description": "The scheme: Bearer.", "schema": { "type": "string" } }),
        ),
        429 | 503 => (
            "Retry-After",
            json!({ "description": "Seconds after which to try again, if a retry can succeed.",
                "schema": { "type": "integer", "minimum": 0 } }),
        ),
        _ => return answer,
    };
    answer["headers"] = json!({ name: header });
    answer
}

fn codes(path: &str, method: &str, operation: &Map<String, Value>, has_tokens: bool) -> Vec<Code> {
    let own = OWN
        .iter()
        .find(|(id, _)| *id == id_of(operation))
        .map_or(&[][..], |(_, own)| own);
    let mut codes = own.to_vec();
    let parameters = operation
        .get("parameters")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let method: axum::http::Method = method.to_uppercase().parse().unwrap_or_default();
    if need(&method, path) != Need::Open {
        codes.push(Code::InvalidQuery);
        let is_change = method != axum::http::Method::GET;
        if has_tokens {
            codes.extend([Code::Unauthorized, Code::TooManyRequests]);
            if matches!(need(&method, path), Need::Scope(_)) {
                codes.push(Code::ScopeMissing);
            }
        } else {
            codes.push(Code::ForeignHost);
        }
        if is_change {
            codes.push(Code::ForeignOrigin);
        }
        if Group::of(&method, path, false).is_some() {
            codes.push(Code::TooManyRequests);
        }
    }
    if !has_tokens {
        // Without tokens every caller is unrestricted.
        codes.retain(|code| !matches!(code, NotAllowed));
    }
    let checked = |parameter: &Value| {
        parameter["in"] == "path" && parameter["schema"].get("pattern").is_some()
            || parameter["name"] == "id"
    };
    if parameters.iter().any(checked) {
        codes.push(Code::InvalidPath);
    }
    if parameters.iter().any(|parameter| parameter["in"] == "path") {
        codes.push(Code::BadRequest);
    }
    if let Some(body) = operation.get("requestBody") {
        codes.extend([
            Code::BadRequest,
            Code::RequestTimeout,
            Code::TooLarge,
            Code::Overloaded,
        ]);
        if body["content"].get("application/json").is_some() {
            codes.extend([
                Code::MalformedJson,
                Code::UnsupportedMediaType,
                Code::InvalidFields,
            ]);
        }
    }
    codes.push(Code::Internal);
    codes
}
