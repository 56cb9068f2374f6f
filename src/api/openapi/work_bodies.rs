//! The bodies of workers' requests, with the limits with which they are read.

use serde_json::{Value, json};

use super::bodies::{Body, body};
use super::values::{flag, number, one_of, or_null, text, time, whole, with_default};
use crate::api::jobs::input::{COST_MAX, KIND_BYTES_MAX, SPAN_MAX_S};
use crate::api::work::claim::{
    LEASE_S, LEASE_S_USUAL, LIMIT_MAX, NAMES_MAX, WAIT_S, WAIT_S_MAX, WORKER_BYTES_MAX,
};
use crate::api::work::endings::{ERROR_BYTES_MAX, KEEP_S_MAX};
use crate::api::work::heartbeat::{NOTE_BYTES_MAX, UNITS_MAX};
use crate::api::work::input::LEASE_DIGITS;
use crate::throttle::name::MAX_BYTES as THROTTLE_BYTES_MAX;
use crate::throttle::{MAX_PAUSE, Scope};

pub(super) fn work_bodies() -> Vec<Body> {
    vec![
        body("NewClaim", claim(), &["worker", "kinds"]),
        body(
            "Heartbeat",
            of_lease(vec![
                ("checkpoint", without_nul()),
                ("progress", progress()),
            ]),
            &["lease"],
        ),
        body(
            "Completion",
            of_lease(vec![
                ("result", without_nul()),
                ("keep_s", number(0.0..=KEEP_S_MAX)),
            ]),
            &["lease"],
        ),
        body(
            "Failure",
            of_lease(vec![
                ("error", text(1..=ERROR_BYTES_MAX)),
                ("retry", flag()),
                ("retry_after_s", number(0.0..=SPAN_MAX_S)),
            ]),
            &["lease", "error"],
        ),
        Body {
            more: json!({ "oneOf": [
                { "required": ["for_s"], "properties": { "until": { "type": "null" } } },
                { "required": ["until"], "properties": { "until": { "type": "string" } }, "not": { "required": ["for_s"] } },
            ] }),
            ..body(
                "Snooze",
                of_lease(vec![
                    ("for_s", number(0.0..=SPAN_MAX_S)),
                    ("until", or_null(time())),
                ]),
                &["lease"],
            )
        },
        body(
            "Refusal",
            of_lease(vec![
                ("retry_after_s", number(0.0..=MAX_PAUSE.as_secs_f64())),
                ("scope", or_null(one_of(&Scope::WORDS))),
                ("overloaded", flag()),
                ("error", text(0..=ERROR_BYTES_MAX)),
            ]),
            &["lease"],
        ),
        body("GivenBack", of_lease(Vec::new()), &["lease"]),
    ]
}

/// Returns the schema of any JSON; Postgres keeps no text with a NUL.
fn without_nul() -> Value {
    json!({ "pattern": "^[^\\u0000]*$" })
}

/// Returns the fields of a call for one job: its lease and cost, and others.
fn of_lease(more: Vec<(&'static str, Value)>) -> Vec<(&'static str, Value)> {
    let lease = json!({
        "type": "string", "minLength": LEASE_DIGITS, "maxLength": LEASE_DIGITS, "pattern": "^[0-7][0-9a-f]{15}$",
    });
    let own = [("lease", lease), ("cost", number(0.0..=COST_MAX))];
    own.into_iter().chain(more).collect()
}

fn claim() -> Vec<(&'static str, Value)> {
    let pattern = json!({
        "type": "string", "minLength": 1, "maxLength": THROTTLE_BYTES_MAX, "pattern": "^([A-Za-z0-9._\\-/:{}]+\\*?|\\*)$",
    });
    let list = |items: Value| json!({ "type": "array", "minItems": 1, "maxItems": NAMES_MAX, "items": items });
    vec![
        ("worker", text(1..=WORKER_BYTES_MAX)),
        ("host", text(0..=WORKER_BYTES_MAX)),
        ("kinds", list(text(1..=KIND_BYTES_MAX))),
        ("throttles", list(pattern)),
        ("limit", with_default(whole(1..=LIMIT_MAX), json!(1))),
        (
            "wait_s",
            with_default(number(0.0..=WAIT_S_MAX), json!(WAIT_S)),
        ),
        (
            "lease_s",
            with_default(number(LEASE_S), json!(LEASE_S_USUAL)),
        ),
    ]
}

fn progress() -> Value {
    json!({
        "type": ["object", "null"],
        "properties": {
            "done": whole(0..=UNITS_MAX), "total": whole(0..=UNITS_MAX), "note": text(0..=NOTE_BYTES_MAX),
        },
        "required": ["done"], "additionalProperties": false,
    })
}
