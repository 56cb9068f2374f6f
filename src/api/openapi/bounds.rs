//! Limits of values, for `/openapi.json`: those with which requests are read, and those of answers.
//!
//! A body accepts no field but its own. Lengths are in bytes; the document gives them as lengths,
//! which they are for ASCII, and as `x-max-bytes`.

use std::ops::{Not as _, RangeInclusive};

use serde_json::{Map, Value, json};

use super::bodies::{Body, bodies};
use super::operation_id::id_of;
use super::report_bodies::report_bodies;
use super::values::{
    args_path, error_like, flag, from, one_of, or_empty, schedule, text, throttle, time, trace,
    whole, with_default,
};
use super::work_bodies::work_bodies;
use crate::api::crons::{EXPRESSION_BYTES_MAX, ZONE_BYTES_MAX};
use crate::api::gates::digests;
use crate::api::gateway::connect::{self, TICKET_BYTES};
use crate::api::gateway::events::EVENT_ID_PATTERN;
use crate::api::http::operate::{BY_BYTES_MAX, START_BYTES_MAX, WHY_BYTES_MAX};
use crate::api::http::query::PAGE_MAX;
use crate::api::jobs::filters::{ARGS_BYTES_MAX, TAGS_BYTES_MAX};
use crate::api::jobs::input::{
    BATCH_MAX, COST_MAX, GROUP_IDS, KEY_BYTES_MAX, KIND_BYTES_MAX, MAX_ATTEMPTS, PRIORITIES,
    SPAN_MAX_S, TIMEOUT_MIN_S,
};
use crate::api::jobs::show::WAIT_S_MAX;
use crate::api::lanes::lane::{WEIGHT_MAX, WEIGHT_MIN};
use crate::api::notifications::batch_list;
use crate::api::notifications::suppressions::{CURSOR_BYTES_MAX, RECIPIENT_BYTES_MAX};
use crate::api::tenants;
use crate::api::throttles::acquire::WANT_MAX;
use crate::inbox::request as inbox;
use crate::input::patterns::CHANNEL_BYTES;
use crate::jobs::{BATCH_JOBS_MAX, GroupState, JobRetry};
use crate::notify::DeliveryState;
use crate::notify::args::CATEGORY_BYTES;
use crate::providers::Channel;
use crate::recipient::fields::GATE_FIELD_BYTES;
use crate::recipient::new_recipient::ID_BYTES;
use crate::throttle::name::MAX_BYTES as THROTTLE_BYTES_MAX;
use crate::throttle::rules::knob;

/// The ids of recipients in paths; a path cannot hold the others as they are.
const ID_PATTERN: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]+$";

/// The names of tenants; an empty one counts as absent.
const TENANT_PATTERN: &str = "^[A-Za-z0-9._\\-/:{}]*$";

/// The names of channels; a path can hold those of inboxes as well.
const CHANNEL_PATTERN: &str = "^[A-Za-z0-9._/{}@=+~-]+$";

/// The HTTP statuses of errors.
const ERRORS: RangeInclusive<i64> = 400..=599;

/// The figures without limits: readings of external sources, in their own units.
#[cfg(test)]
pub(super) const ANYTHING: [(&str, &str); 10] = [
    ("SignalState", "value"),
    ("SignalState", "setpoint"),
    ("SignalState", "soft"),
    ("SignalState", "trip"),
    ("TickSignal", "value"),
    ("TickSignal", "setpoint"),
    ("TickSignal", "trip"),
    ("Shadow", "load"),
    ("Shadow", "own_load"),
    ("Trip", "height"),
];

/// Adds the limits to the schemas.
pub(super) fn apply(document: &mut Value) {
    let Some(schemas) = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    let all = || {
        bodies()
            .into_iter()
            .chain(work_bodies())
            .chain(report_bodies())
    };
    for body in all() {
        if let Some(schema) = schemas.get_mut(body.name) {
            close(schema, body);
        }
    }
    let bodies: Vec<&str> = all().map(|body| body.name).collect();
    for (name, schema) in schemas
        .iter_mut()
        .filter(|(name, _)| !bodies.contains(&name.as_str()))
    {
        let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
            continue;
        };
        for (field, property) in properties {
            let is_figure = property["type"] == "integer"
                || property["type"] == "number"
                || property["type"].as_array().is_some_and(|kinds| {
                    kinds
                        .iter()
                        .any(|kind| kind == "integer" || kind == "number")
                });
            let is_text = property["type"] == "string";
            // Lists of whole numbers are lists of ids.
            let is_ids = property["type"] == "array" && property["items"]["type"] == "integer";
            if is_ids && let Some(limits) = answered(name, "id") {
                let items = property["items"].as_object_mut();
                items.into_iter().for_each(|items| {
                    items.extend(limits.as_object().cloned().unwrap_or_default())
                });
            }
            let limits = if is_figure {
                answered(name, field)
            } else {
                named(field).filter(|_| is_text)
            };
            if let (Some(limits), Some(property)) = (limits, property.as_object_mut()) {
                property.extend(limits.as_object().cloned().unwrap_or_default());
            }
        }
    }
    if let Some(code) = schemas
        .get_mut("Problem")
        .and_then(|schema| schema.pointer_mut("/properties/code"))
    {
        code["enum"] = json!(
            crate::api::http::problem::Code::ALL
                .map(crate::api::http::problem::Code::slug)
                .as_slice()
        );
    }
}

/// Adds the limits of an operation's parameters and body.
pub(super) fn apply_to_operation(operation: &mut Map<String, Value>) {
    let id = id_of(operation).to_owned();
    let parameters = operation
        .get_mut("parameters")
        .and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let (name, place) = (
            parameter["name"].as_str().unwrap_or_default(),
            parameter["in"].as_str().unwrap_or_default(),
        );
        if let Some(schema) = parameter_of(&id, place, name) {
            parameter["schema"] = schema;
        }
    }
    let Some(body) = operation.get_mut("requestBody") else {
        return;
    };
    let may_be_empty = MAY_BE_EMPTY.contains(&id.as_str());
    body["required"] = json!(may_be_empty.not());
    // An empty body may be `null`, except for requests of tokens: a body that was lost on the way
    // would cost its sender a token.
    if may_be_empty
        && !["acquire_tokens", "peek_tokens"].contains(&id.as_str())
        && let Some(schema) = body.pointer_mut("/content/application~1json/schema")
    {
        *schema = json!({ "anyOf": [schema.take(), { "type": "null" }] });
    }
    if let Some(schema) = body
        .pointer_mut("/content/application~1json/schema")
        .filter(|schema| schema["type"] == "array")
    {
        schema["maxItems"] = json!(BATCH_MAX);
    }
}

/// The operations that read a missing body as an empty object.
const MAY_BE_EMPTY: [&str; 21] = [
    "register_kind",
    "requeue_unsent",
    "create_ticket",
    "acquire_tokens",
    "peek_tokens",
    "pause_all",
    "resume_all",
    "pause_throttle",
    "resume_throttle",
    "resume_key",
    "resume_account",
    "run_schedule",
    "pause_schedule",
    "resume_schedule",
    "retry_job",
    "discard_job",
    "pause_batch",
    "resume_batch",
    "cancel_batch",
    "cancel_notification",
    "cancel_group",
];

fn close(schema: &mut Value, body: Body) {
    let reported = schema
        .get("properties")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let described = |(name, mut limits): (&str, Value)| {
        // The description of a field with several types, or with `null`, is at the other type.
        let words = |field: &Value| {
            field
                .get("description")
                .or_else(|| field.pointer("/oneOf/0/description"))
                .cloned()
        };
        if let (Some(words), Some(limits)) =
            (reported.get(name).and_then(words), limits.as_object_mut())
        {
            limits.insert("description".to_owned(), words);
        }
        (name.to_owned(), limits)
    };
    let properties: Map<String, Value> = body.fields.into_iter().map(described).collect();
    schema["type"] = json!("object");
    schema["properties"] = Value::Object(properties);
    schema["additionalProperties"] = json!(false);
    schema["required"] = json!(body.required);
    if let (Some(schema), Value::Object(more)) = (schema.as_object_mut(), body.more) {
        if body.required.is_empty() {
            schema.remove("required");
        }
        schema.extend(more);
    }
}

// === parameters ===

fn parameter_of(operation: &str, place: &str, name: &str) -> Option<Value> {
    let limit = || whole(1..=PAGE_MAX);
    Some(match (operation, place, name) {
        (_, "path", "recipient") => json!({
            "type": "string", "minLength": 1, "maxLength": ID_BYTES, "pattern": ID_PATTERN,
        }),
        ("list_recipients", _, "after") => text(0..=ID_BYTES),
        (
            "list_recipients"
            | "import_recipients"
            | "show_recipient"
            | "set_recipient"
            | "delete_recipient"
            | "show_recipient_defaults"
            | "set_recipient_defaults"
            | "list_inbox"
            | "count_inbox"
            | "mark_inbox",
            _,
            "tenant",
        ) => {
            json!({ "type": "string", "maxLength": tenants::NAME_BYTES_MAX, "pattern": TENANT_PATTERN })
        }
        (_, "path", "channel") => {
            json!({ "type": "string", "minLength": 1, "maxLength": CHANNEL_BYTES, "pattern": CHANNEL_PATTERN })
        }
        ("open_connection" | "stream_channel", _, "ticket") => text(0..=TICKET_BYTES),
        ("stream_channel", _, "since") => {
            json!({ "type": "string", "maxLength": 34, "pattern": EVENT_ID_PATTERN })
        }
        ("open_connection", _, "refuse") => one_of(&connect::REFUSALS),
        ("replan_recipient", "path", "id") => text(1..=RECIPIENT_BYTES_MAX),
        (_, "path", "id") => whole(1..=i64::MAX),
        // The document omits the minus behind a key of minuses or dots.
        (_, "path", "key") => text(1..=KEY_BYTES_MAX),
        (
            "show_schedule" | "set_schedule" | "delete_schedule" | "run_schedule"
            | "pause_schedule" | "resume_schedule",
            "path",
            _,
        ) => schedule(),
        (_, "path", "account") => {
            json!({ "type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX })
        }
        ("register_kind", "path", _) => text(1..=KIND_BYTES_MAX),
        (
            "show_pool" | "resume_account" | "requeue_unsent" | "receive_provider_events",
            "path",
            _,
        ) => {
            json!({ "type": "string", "minLength": 1, "maxLength": THROTTLE_BYTES_MAX })
        }
        (_, "path", "name") => throttle(),
        (_, "header", "If-Match") => {
            json!({ "type": "string", "pattern": "^(\\*|(W/)?\"?[0-9]{1,19}\"?)$" })
        }
        (_, "header", _) => json!({ "type": "string" }),
        ("show_job", _, "wait_s") => with_default(whole(0..=WAIT_S_MAX), json!(0)),
        ("purge_lane", _, "limit") => whole(1..=BATCH_JOBS_MAX),
        ("list_tenants" | "list_modules" | "list_channel_usage", _, "limit") => {
            with_default(whole(1..=tenants::LIMIT_MAX), json!(50))
        }
        ("list_inbox", _, "limit") => {
            with_default(whole(1..=inbox::PAGE_MAX), json!(inbox::PAGE_USUAL))
        }
        ("list_inbox", _, "cursor") => {
            json!({ "type": "string", "maxLength": inbox::ID_BYTES, "pattern": "^([1-9][0-9]{0,17})?$" })
        }
        ("list_inbox", _, "state") => one_of(&inbox::words(inbox::FILTERS)),
        ("list_inbox", _, "category") => text(0..=inbox::CATEGORY_BYTES),
        ("list_batches", _, "limit") => with_default(whole(1..=batch_list::LIMIT_MAX), json!(20)),
        (_, _, "limit") => with_default(
            limit(),
            json!(if operation == "explain_throttle" {
                20
            } else {
                100
            }),
        ),
        ("show_throttle_history", _, "range") => {
            json!({ "type": "string", "enum": ["1h", "6h", "24h"] })
        }
        (_, _, "by") => text(0..=BY_BYTES_MAX),
        (_, _, "why") => text(0..=WHY_BYTES_MAX),
        (_, _, "start") => text(0..=START_BYTES_MAX),
        (_, _, "create" | "dry_run" | "force") => flag(),
        ("preview_expression", _, "expression") => text(1..=EXPRESSION_BYTES_MAX),
        ("preview_expression", _, "time_zone") => text(0..=ZONE_BYTES_MAX),
        ("list_attempts", _, "before") | (_, _, "created_after" | "created_before") => time(),
        ("list_jobs", _, "before") | ("list_notifications", _, "cursor") => whole(1..=i64::MAX),
        ("list_suppressions", _, "cursor") => {
            let channels = Channel::WORDS.map(|(word, _)| word).join("|");
            json!({ "type": "string", "maxLength": CURSOR_BYTES_MAX, "pattern": format!("^(({channels}):[0-9a-f]{{64}})?$") })
        }
        ("list_digests", _, "cursor") => {
            json!({ "type": "string", "maxLength": digests::CURSOR_BYTES_MAX, "pattern": "^([0-9]{1,18}-[1-9][0-9]{0,17})?$" })
        }
        ("check_recipient", _, "to") => text(0..=RECIPIENT_BYTES_MAX),
        ("check_recipient", _, "recipient" | "actor" | "template_id") => text(0..=GATE_FIELD_BYTES),
        ("check_recipient", _, "category") => text(0..=CATEGORY_BYTES),
        ("stream_events", _, "job") => whole(1..=i64::MAX),
        ("stream_events" | "list_jobs", _, "group") => whole(GROUP_IDS),
        ("list_jobs", _, "error_like") => or_empty(error_like()),
        ("list_jobs", _, "trace") => or_empty(trace()),
        ("list_jobs", _, "unique_key") => text(0..=KEY_BYTES_MAX),
        ("list_jobs", _, "args") => {
            json!({ "type": "string", "maxLength": ARGS_BYTES_MAX, "contentMediaType": "application/json" })
        }
        ("list_jobs", _, "tags") => text(0..=TAGS_BYTES_MAX),
        ("list_jobs", _, "args_path") => or_empty(args_path()),
        ("list_jobs", _, "state") => one_of(&crate::api::jobs::show::SEARCHED),
        ("list_notifications", _, "state") => one_of(&DeliveryState::WORDS),
        (_, _, "channel") => one_of(&Channel::WORDS),
        (_, _, "recipient") => {
            text(if operation == "unsuppress" { 1 } else { 0 }..=RECIPIENT_BYTES_MAX)
        }
        ("list_batches" | "list_groups", _, "before") => whole(1..=i64::MAX),
        ("list_batches", _, "state") => one_of(&batch_list::STATES),
        ("list_groups", _, "state") => one_of(&GroupState::WORDS),
        (_, "path", "tenant") => {
            json!({ "type": "string", "minLength": 1, "maxLength": tenants::NAME_BYTES_MAX })
        }
        (_, _, "tenant" | "module") | ("list_tenants" | "list_channel_usage", _, "after") => {
            text(0..=tenants::NAME_BYTES_MAX)
        }
        ("list_modules", _, "after") => text(0..=KEY_BYTES_MAX + 1),
        ("list_lanes" | "list_modules", _, "order") => one_of(&crate::api::lanes::list::ORDERS),
        ("list_lanes", _, "key" | "after") => text(0..=KEY_BYTES_MAX + 1),
        (_, _, "kind") => text(0..=KIND_BYTES_MAX),
        (_, _, "throttle" | "pool") => text(0..=THROTTLE_BYTES_MAX),
        (_, _, "key" | "account") => text(0..=KEY_BYTES_MAX),
        _ => return None,
    })
}

// === answers ===

/// Returns the limits of names and keys in answers. A throttle in an answer has the name that its
/// jobs use, even if the throttle was never created.
fn named(field: &str) -> Option<Value> {
    Some(match field {
        "throttle" | "pool" => json!({ "maxLength": THROTTLE_BYTES_MAX }),
        "kind" => json!({ "maxLength": KIND_BYTES_MAX }),
        "key" => json!({ "maxLength": KEY_BYTES_MAX }),
        _ => return None,
    })
}

/// Returns the limits of a figure in an answer; the rest of its schema stays.
fn answered(schema: &str, field: &str) -> Option<Value> {
    if schema == "Knobs"
        && let Some(knob) = knob(field)
    {
        // An answer keeps its own type: a knob in use has a value even if the knob itself may be
        // absent.
        let mut limits = knob.schema();
        let kept = ["minimum", "maximum", "anyOf"];
        limits
            .as_object_mut()?
            .retain(|word, _| kept.contains(&word.as_str()));
        return Some(limits);
    }
    Some(match (schema, field) {
        ("Problem", "status") => json!({ "minimum": ERRORS.start(), "maximum": ERRORS.end() }),
        ("KnobProblem" | "KnobsEdit", _) | ("InboxMessage", "id") => return None,
        (
            _,
            "id" | "job_id" | "worker_id" | "notification_id" | "last_job_id" | "digest_id"
            | "duplicate_of" | "carried_by" | "callback_job_id" | "group",
        ) => {
            json!({ "minimum": 1, "maximum": i64::MAX })
        }
        ("AcceptedNotification" | "AcceptedBatchOfMessages", "priority") => {
            let words = crate::notify::args::PRIORITIES.map(|(word, _)| word);
            json!({ "enum": words })
        }
        (_, "priority") => json!({ "minimum": PRIORITIES.start(), "maximum": PRIORITIES.end() }),
        (_, "max_attempts") => {
            json!({ "minimum": MAX_ATTEMPTS.start(), "maximum": MAX_ATTEMPTS.end() })
        }
        (_, "cost") => json!({ "exclusiveMinimum": 0, "maximum": COST_MAX }),
        ("Lane" | "LaneDetail", "weight") => {
            json!({ "minimum": WEIGHT_MIN, "maximum": WEIGHT_MAX })
        }
        ("JobRetry", "factor") => {
            json!({ "minimum": JobRetry::FACTORS.start(), "maximum": JobRetry::FACTORS.end() })
        }
        (_, "percent") => json!({ "minimum": 0, "maximum": 100 }),
        (_, "limiting_share" | "refused_share" | "braked_share" | "gain_factor") => {
            json!({ "minimum": 0, "maximum": 1 })
        }
        ("DurationsState", "score") => json!({ "minimum": -6, "maximum": 6 }),
        // -1 means no limit.
        (
            _,
            "effective_rps" | "rps" | "previous_rps" | "concurrency" | "limit_rps"
            | "configured_rps" | "capacity_rps",
        ) => from(-1),
        ("Granted", "granted") => whole(0..=WANT_MAX)
            .as_object()
            .map(|all| json!({ "minimum": all["minimum"], "maximum": all["maximum"] }))?,
        (_, "timeout" | "timeout_s") => json!({ "minimum": TIMEOUT_MIN_S, "maximum": SPAN_MAX_S }),
        // Our own counts, ages, rates and times are never below zero.
        (
            _,
            "depth" | "max" | "max_backlog" | "ready" | "held_ready" | "scheduled" | "running"
            | "dead" | "jobs" | "requested" | "attempt" | "attempts" | "done" | "total"
            | "attempt_count" | "ms" | "seq" | "errors_omitted" | "workers" | "running_total"
            | "at" | "remaining" | "granted" | "retry_after_ms" | "wait_s" | "returned"
            | "available" | "failures" | "refused" | "mean_cost" | "requested_rps" | "granted_rps"
            | "growth_per_min" | "achieved_rps" | "learned_rps" | "proposed_rps" | "seconds"
            | "own_jobs" | "overload_s" | "own_overload_s" | "peak" | "own_peak" | "lower_s"
            | "higher_s" | "stopped_s" | "parked_jobs" | "recipients" | "recipient" | "sent"
            | "cancelled" | "too_late" | "accepted" | "bounced" | "complained" | "unsubscribed"
            | "place" | "limit" | "used" | "waiting" | "pending" | "pending_max" | "created"
            | "changed" | "caps" | "reservations" | "claims" | "digests" | "items" | "messages"
            | "arguments" | "inbox" | "unseen" | "unread" | "completed" | "succeeded" | "failed",
        ) => return Some(from(0)),
        ("SettledTokens", "settled") => json!({ "minimum": -COST_MAX, "maximum": COST_MAX }),
        ("HistoryPoint", "value") => from(0),
        ("ChannelTenant", _) => from(0),
        ("CheckedCap", "reserved") => from(0),
        (_, name) if name.ends_with("_s") || name.ends_with("_ms") => from(0),
        _ => return None,
    })
}
