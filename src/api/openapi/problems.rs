//! The problems of each operation, for `/openapi.json`: by status, with the codes of
//! `docs/reference/errors.md`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::operation_id::id_of;
use crate::api::http::limits::Group;
use crate::api::http::problem::{Code, MEDIA_TYPE};
use crate::api::http::scopes::{RequiredAccess, need};
use Code::{
    AccountNotFound, BadRequest, Conflict, InUse, InvalidHeader, JobNotFound, LaneFull, NotAllowed,
    NotReady, NotificationNotFound, PoolNotFound, QueueUnavailable, ScheduleNotFound,
    ThrottleNotFound, ThrottlesUnavailable, TooManyStreams, WrongState,
};

/// The codes that only some operations answer: something does not exist, is forbidden, or is in a
/// store that does not answer. The other codes follow from the input of an operation.
const OWN: &[(&str, &[Code])] = &[
    ("list_jobs", &[QueueUnavailable]),
    (
        "enqueue_job",
        &[
            InvalidHeader,
            NotAllowed,
            JobNotFound,
            Code::RequestRunning,
            Code::IdempotencyKeyReused,
            QueueUnavailable,
            LaneFull,
            Code::QueueFull,
        ],
    ),
    (
        "enqueue_jobs",
        &[
            InvalidHeader,
            NotAllowed,
            QueueUnavailable,
            LaneFull,
            Code::QueueFull,
        ],
    ),
    ("cancel_jobs", &[QueueUnavailable]),
    (
        "create_group",
        &[
            InvalidHeader,
            NotAllowed,
            QueueUnavailable,
            LaneFull,
            Code::QueueFull,
        ],
    ),
    ("list_groups", &[QueueUnavailable]),
    ("show_group", &[Code::GroupNotFound, QueueUnavailable]),
    ("seal_group", &[Code::GroupNotFound, QueueUnavailable]),
    ("cancel_group", &[Code::GroupNotFound, QueueUnavailable]),
    ("show_job", &[JobNotFound, QueueUnavailable]),
    ("cancel_job", &[JobNotFound, WrongState, QueueUnavailable]),
    ("list_attempts", &[JobNotFound, QueueUnavailable]),
    ("claim_jobs", &[NotAllowed, QueueUnavailable, NotReady]),
    (
        "heartbeat_job",
        &[Code::LeaseLost, QueueUnavailable, NotReady],
    ),
    (
        "complete_job",
        &[Code::LeaseLost, QueueUnavailable, NotReady],
    ),
    ("fail_job", &[Code::LeaseLost, QueueUnavailable, NotReady]),
    ("snooze_job", &[Code::LeaseLost, QueueUnavailable, NotReady]),
    (
        "throttle_job",
        &[Code::LeaseLost, QueueUnavailable, NotReady],
    ),
    (
        "release_job",
        &[Code::LeaseLost, QueueUnavailable, NotReady],
    ),
    ("retry_job", &[JobNotFound, WrongState, QueueUnavailable]),
    (
        "reschedule_job",
        &[JobNotFound, WrongState, QueueUnavailable],
    ),
    ("discard_job", &[JobNotFound, WrongState, QueueUnavailable]),
    (
        "update_job",
        &[
            NotAllowed,
            JobNotFound,
            WrongState,
            QueueUnavailable,
            LaneFull,
        ],
    ),
    ("requeue_dead", &[QueueUnavailable]),
    ("discard_dead", &[QueueUnavailable]),
    ("show_pause", &[QueueUnavailable]),
    ("pause_all", &[QueueUnavailable]),
    ("resume_all", &[QueueUnavailable]),
    ("list_throttles", &[ThrottlesUnavailable]),
    ("show_throttle", &[ThrottleNotFound, ThrottlesUnavailable]),
    (
        "edit_throttle",
        &[
            InvalidHeader,
            ThrottleNotFound,
            Conflict,
            ThrottlesUnavailable,
        ],
    ),
    (
        "delete_throttle",
        &[
            ThrottleNotFound,
            InUse,
            QueueUnavailable,
            ThrottlesUnavailable,
        ],
    ),
    (
        "explain_throttle",
        &[ThrottleNotFound, QueueUnavailable, ThrottlesUnavailable],
    ),
    ("show_throttle_history", &[ThrottleNotFound]),
    (
        "pause_throttle",
        &[NotAllowed, ThrottleNotFound, Conflict, ThrottlesUnavailable],
    ),
    (
        "resume_throttle",
        &[NotAllowed, ThrottleNotFound, Conflict, ThrottlesUnavailable],
    ),
    ("list_lanes", &[QueueUnavailable]),
    (
        "acquire_tokens",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    (
        "peek_tokens",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    ("check_request", &[]),
    (
        "settle_tokens",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    (
        "report_refusal",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    (
        "report_ends",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    ("requeue_unsent", &[PoolNotFound, QueueUnavailable]),
    ("list_kinds", &[QueueUnavailable]),
    ("register_kind", &[QueueUnavailable]),
    ("preview_expression", &[QueueUnavailable]),
    (
        "return_tokens",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    ("show_lane", &[QueueUnavailable]),
    ("edit_lane", &[QueueUnavailable]),
    ("purge_lane", &[QueueUnavailable]),
    (
        "pause_key",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    (
        "resume_key",
        &[NotAllowed, ThrottleNotFound, ThrottlesUnavailable],
    ),
    ("list_pools", &[]),
    ("show_pool", &[PoolNotFound, QueueUnavailable]),
    (
        "resume_account",
        &[PoolNotFound, AccountNotFound, ThrottlesUnavailable],
    ),
    ("list_schedules", &[QueueUnavailable]),
    ("show_schedule", &[ScheduleNotFound, QueueUnavailable]),
    ("set_schedule", &[NotAllowed, QueueUnavailable]),
    ("delete_schedule", &[ScheduleNotFound, QueueUnavailable]),
    (
        "run_schedule",
        &[ScheduleNotFound, QueueUnavailable, LaneFull],
    ),
    ("pause_schedule", &[ScheduleNotFound, QueueUnavailable]),
    ("resume_schedule", &[ScheduleNotFound, QueueUnavailable]),
    ("list_notifications", &[QueueUnavailable]),
    (
        "notify",
        &[
            InvalidHeader,
            NotAllowed,
            Code::RequestRunning,
            Code::RecipientCapped,
            Code::IdempotencyKeyReused,
            Code::RateLimitExceeded,
            QueueUnavailable,
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
            QueueUnavailable,
            LaneFull,
            Code::QueueFull,
        ],
    ),
    (
        "open_connection",
        &[
            BadRequest,
            NotAllowed,
            Code::OriginNotAllowed,
            Code::TooManyConnections,
            Code::Overloaded,
            QueueUnavailable,
        ],
    ),
    ("list_channel_usage", &[NotAllowed, QueueUnavailable]),
    ("create_ticket", &[NotAllowed, QueueUnavailable]),
    (
        "publish_message",
        &[NotAllowed, QueueUnavailable, Code::QueueFull],
    ),
    (
        "stream_channel",
        &[
            NotAllowed,
            Code::TooManyConnections,
            Code::Overloaded,
            QueueUnavailable,
        ],
    ),
    ("list_tenants", &[QueueUnavailable]),
    ("list_modules", &[Code::TenantNotFound, QueueUnavailable]),
    ("list_batches", &[QueueUnavailable]),
    ("show_batch", &[Code::BatchNotFound, QueueUnavailable]),
    (
        "pause_batch",
        &[Code::BatchNotFound, WrongState, QueueUnavailable],
    ),
    (
        "resume_batch",
        &[
            NotAllowed,
            Code::BatchNotFound,
            WrongState,
            QueueUnavailable,
        ],
    ),
    ("cancel_batch", &[Code::BatchNotFound, QueueUnavailable]),
    (
        "show_notification",
        &[NotificationNotFound, QueueUnavailable],
    ),
    (
        "cancel_notification",
        &[NotificationNotFound, WrongState, QueueUnavailable],
    ),
    ("list_recipients", &[NotAllowed, QueueUnavailable]),
    ("import_recipients", &[NotAllowed, QueueUnavailable]),
    (
        "show_recipient",
        &[NotAllowed, Code::RecipientNotFound, QueueUnavailable],
    ),
    ("set_recipient", &[NotAllowed, QueueUnavailable]),
    ("delete_recipient", &[NotAllowed, QueueUnavailable]),
    ("show_recipient_defaults", &[NotAllowed, QueueUnavailable]),
    ("set_recipient_defaults", &[NotAllowed, QueueUnavailable]),
    ("list_inbox", &[NotAllowed, QueueUnavailable]),
    ("count_inbox", &[NotAllowed, QueueUnavailable]),
    ("mark_inbox", &[NotAllowed, QueueUnavailable]),
    (
        "explain_notification",
        &[NotificationNotFound, QueueUnavailable],
    ),
    ("check_recipient", &[NotAllowed, QueueUnavailable]),
    ("replan_recipient", &[NotAllowed, QueueUnavailable]),
    ("list_digests", &[QueueUnavailable]),
    (
        "withdraw_item",
        &[Code::DigestItemNotFound, QueueUnavailable],
    ),
    ("show_gates", &[QueueUnavailable]),
    ("list_suppressions", &[QueueUnavailable]),
    ("suppress", &[QueueUnavailable]),
    ("unsuppress", &[QueueUnavailable]),
    (
        "receive_provider_events",
        &[
            BadRequest,
            Code::Unauthorized,
            AccountNotFound,
            Code::TooManyRequests,
            QueueUnavailable,
        ],
    ),
    ("list_decisions", &[QueueUnavailable]),
    ("list_failures", &[QueueUnavailable]),
    ("list_audit", &[QueueUnavailable]),
    ("list_workers", &[QueueUnavailable]),
    ("stream_events", &[NotAllowed, TooManyStreams]),
    ("show_metrics", &[]),
    ("show_liveness", &[]),
    ("show_readiness", &[NotReady]),
    ("show_openapi", &[]),
    ("show_asyncapi", &[]),
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
    if need(&method, path) != RequiredAccess::Open {
        codes.push(Code::InvalidQuery);
        let is_change = method != axum::http::Method::GET;
        if has_tokens {
            codes.extend([Code::Unauthorized, Code::TooManyRequests]);
            if matches!(need(&method, path), RequiredAccess::Scope(_)) {
                codes.push(Code::ScopeMissing);
            }
        } else {
            codes.push(Code::HostNotAllowed);
        }
        if is_change {
            codes.push(Code::OriginNotAllowed);
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
