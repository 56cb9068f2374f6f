//! The fields of a job in requests, and of a group with its jobs.

use serde_json::{Map, Value, json};

use super::values::{
    above_zero, flag, number, one_of, or_null, run_at, span, text, throttle, whole, with_default,
};
use crate::api::jobs::input::{
    COST_MAX, DEBOUNCE_MAX_MAX_S, GROUP_IDS, JOB_IDS, KEY_BYTES_MAX, KIND_BYTES_MAX, MAX_ATTEMPTS,
    PRIORITIES, SPAN_MAX_S, TIMEOUT_MIN_S,
};
use crate::api::jobs::update::UPDATABLE;
use crate::jobs::check::OF_SCHEDULES;
use crate::jobs::{
    AFTER_MAX, AfterFailure, GROUP_JOBS_MAX, GROUP_NAME_BYTES_MAX, JobRetry, TAG_BYTES_MAX,
    TAGS_MAX, webhook,
};

/// Returns the fields of a job.
pub(super) fn job() -> Vec<(&'static str, Value)> {
    let mut unique_key = or_null(text(1..=KEY_BYTES_MAX));
    unique_key["not"] = json!({ "type": "string", "pattern": format!("^{OF_SCHEDULES}") });
    let trace = "^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$";
    vec![
        ("kind", text(1..=KIND_BYTES_MAX)),
        ("args", json!({ "default": {} })),
        (
            "throttle",
            with_default(throttle(), json!(crate::throttle::Name::DEFAULT)),
        ),
        ("key", with_default(text(0..=KEY_BYTES_MAX), json!(""))),
        ("priority", with_default(whole(PRIORITIES), json!(1))),
        ("run_at", or_null(run_at())),
        ("max_attempts", with_default(whole(MAX_ATTEMPTS), json!(10))),
        ("unique_key", unique_key),
        ("unique_for", span(None, SPAN_MAX_S)),
        ("cost", with_default(above_zero(COST_MAX), json!(1))),
        (
            "traceparent",
            json!({ "type": ["string", "null"], "pattern": trace }),
        ),
        ("timeout", span(Some(TIMEOUT_MIN_S), SPAN_MAX_S)),
        ("debounce", span(None, SPAN_MAX_S)),
        ("debounce_max", span(None, DEBOUNCE_MAX_MAX_S)),
        ("replace", with_default(flag(), json!(false))),
        ("group", or_null(whole(GROUP_IDS))),
        ("tags", or_null(tags())),
        (
            "after",
            json!({ "type": ["array", "null"], "maxItems": AFTER_MAX, "items": whole(JOB_IDS) }),
        ),
        ("after_failure", or_null(one_of(&AfterFailure::WORDS))),
        ("on_complete", or_null(call_url())),
        ("on_dead", or_null(call_url())),
        ("webhook_secret", or_null(secret())),
        ("retry", or_null(retry())),
    ]
}

/// Returns the limits of the URL of a webhook, without a name and a password.
fn call_url() -> Value {
    let mut url = text(1..=webhook::URL_BYTES_MAX);
    url["pattern"] = json!(r##"^[hH][tT][tT][pP][sS]?://[!-"$-.0->A-\[\]-~]+([/?#][!-~]*)?$"##);
    url
}

/// Returns the limits of the waits of a job after failed attempts.
fn retry() -> Value {
    json!({
        "type": "object", "required": ["delay_s"], "additionalProperties": false, "properties": {
            "delay_s": number(JobRetry::DELAYS_S), "factor": or_null(number(JobRetry::FACTORS)),
            "max_delay_s": or_null(number(JobRetry::DELAYS_S)),
        },
    })
}

fn secret() -> Value {
    let mut name = text(1..=webhook::SECRET_BYTES_MAX);
    name["pattern"] = json!("^[A-Za-z0-9_]*$");
    name
}

pub(super) fn tags() -> Value {
    let mut tag = text(1..=TAG_BYTES_MAX);
    tag["pattern"] = json!("^[^\\u0000-\\u001f\\u007f-\\u009f]*$");
    json!({ "type": "array", "maxItems": TAGS_MAX, "items": tag })
}

/// Returns the fields of a job that can change while it waits.
pub(super) fn of_update() -> Vec<(&'static str, Value)> {
    let mut fields = job();
    fields.retain(|(field, _)| UPDATABLE.contains(field));
    for limits in fields
        .iter_mut()
        .filter_map(|(_, limits)| limits.as_object_mut())
    {
        limits.remove("default");
    }
    fields
}

/// Returns the fields of a group, whose jobs and whose callback name no group of their own.
pub(super) fn of_group() -> Vec<(&'static str, Value)> {
    let fields: Map<String, Value> = job()
        .into_iter()
        .filter(|(field, _)| *field != "group")
        .map(|(field, limits)| (field.to_owned(), limits))
        .collect();
    let mut of_job = together();
    of_job["type"] = json!("object");
    of_job["properties"] = Value::Object(fields);
    of_job["required"] = json!(["kind"]);
    of_job["additionalProperties"] = json!(false);
    // Nobody names jobs after which the callback runs: it runs after the group.
    let mut callback = of_job.clone();
    if let Some(fields) = callback["properties"].as_object_mut() {
        fields.retain(|field, _| !["after", "after_failure"].contains(&field.as_str()));
    }
    // The jobs take the place of no other, so that none of them is outside of the group.
    let mut member = of_job.clone();
    if let Some(fields) = member["properties"].as_object_mut() {
        fields
            .retain(|field, _| !["replace", "debounce", "debounce_max"].contains(&field.as_str()));
    }
    vec![
        ("name", or_null(text(0..=GROUP_NAME_BYTES_MAX))),
        ("callback", or_null(callback)),
        (
            "jobs",
            json!({ "type": ["array", "null"], "maxItems": GROUP_JOBS_MAX, "items": member }),
        ),
    ]
}

/// Returns the constraints of job fields that are valid only together with others, or only without
/// them. A schema cannot express that `debounce_max` is not below `debounce`.
pub(super) fn together() -> Value {
    let unique =
        json!({ "required": ["unique_key"], "properties": { "unique_key": { "type": "string" } } });
    let unique_alone = json!({
        "required": ["unique_key"], "properties": { "unique_key": { "type": "string" }, "unique_for": { "type": "null" } },
    });
    json!({
        "dependentSchemas": {
            "unique_for": { "if": is_given("unique_for"), "then": unique },
            "debounce": { "if": is_given("debounce"), "then": {
                "required": ["unique_key"],
                "properties": { "unique_key": { "type": "string" }, "unique_for": { "type": "null" }, "run_at": { "type": "null" } },
            } },
            "debounce_max": { "if": is_given("debounce_max"), "then": {
                "required": ["debounce"], "properties": { "debounce": { "not": { "type": "null" } } },
            } },
            "replace": { "if": { "properties": { "replace": { "const": true } } }, "then": unique_alone },
            "group": { "if": is_given("group"), "then": {
                "properties": { "replace": { "const": false }, "debounce": { "type": "null" } },
            } },
            "after": { "if": { "properties": { "after": { "type": "array", "minItems": 1 } } }, "then": {
                "properties": { "replace": { "const": false }, "debounce": { "type": "null" } },
            } },
            "on_complete": { "if": is_given("on_complete"), "then": {
                "properties": { "replace": { "const": false }, "debounce": { "type": "null" } },
            } },
            "on_dead": { "if": is_given("on_dead"), "then": {
                "properties": { "replace": { "const": false }, "debounce": { "type": "null" } },
            } },
            "webhook_secret": { "if": is_given("webhook_secret"), "then": { "anyOf": [
                { "required": ["on_complete"], "properties": { "on_complete": { "type": "string" } } },
                { "required": ["on_dead"], "properties": { "on_dead": { "type": "string" } } },
            ] } },
            "after_failure": { "if": is_given("after_failure"), "then": {
                "required": ["after"], "properties": { "after": { "type": "array", "minItems": 1 } },
            } },
        },
    })
}

pub(super) fn is_given(field: &str) -> Value {
    json!({ "properties": { field: { "not": { "type": "null" } } } })
}
