//! Limits of values, for `/openapi.json`: those with which requests are read, and those of answers.
//!
//! A body accepts no field but its own. Lengths are in bytes; the document gives them as lengths,
//! which they are for ASCII, and as `x-max-bytes`.

use std::ops::{Not as _, RangeInclusive};

use serde_json::{Map, Value, json};

use super::acquire::{HELD_MAX, HOLDER_BYTES_MAX, TTL_S_MAX, WAIT_MS_MAX, WANT_MAX};
use super::clock;
use super::crons::{EXPRESSION_BYTES_MAX, SET_BY_SCHEDULE, ZONE_BYTES_MAX};
use super::jobs_input::{
    BATCH_MAX, COST_MAX, DEBOUNCE_MAX_MAX_S, KEY_BYTES_MAX, KIND_BYTES_MAX, MAX_ATTEMPTS,
    PRIORITIES, SPAN_MAX_S, TIMEOUT_MIN_S,
};
use super::lanes::{WEIGHT_MAX, WEIGHT_MIN};
use super::many::{LIVE, PATTERN_BYTES_MAX, PATTERN_WILDCARDS_MAX};
use super::operate::{BY_BYTES_MAX, START_BYTES_MAX, WHY_BYTES_MAX};
use super::operation_id::id_of;
use super::query::PAGE_MAX;
use super::suppressions::{CURSOR_BYTES_MAX, RECIPIENT_BYTES_MAX};
use crate::cron::schedule::{CATCH_UPS, NAME_BYTES_MAX as SCHEDULE_BYTES_MAX, OVERLAPS};
use crate::jobs::BATCH_JOBS_MAX;
use crate::jobs::check::OF_SCHEDULES;
use crate::notify::DeliveryState;
use crate::notify::args::{
    CATEGORY_BYTES, EXTRA_MAX, FROM_BYTES, ON_AMBIGUOUS, PRIORITIES as WORDS_OF_PRIORITY,
    PROVIDER_BYTES, TO_BYTES, VALID_FOR_MAX_S,
};
use crate::providers::Channel;
use crate::throttle::MAX_PAUSE;
use crate::throttle::name::MAX_BYTES as THROTTLE_BYTES_MAX;
use crate::throttle::rules::{knob, settable};

/// The HTTP statuses of errors.
const ERRORS: RangeInclusive<i64> = 400..=599;

/// The figures without limits: readings of external sources, in their own units.
#[cfg(test)]
pub(super) const ANYTHING: [(&str, &str); 9] = [
    ("SignalState", "value"),
    ("SignalState", "setpoint"),
    ("SignalState", "trip"),
    ("TickSignal", "value"),
    ("TickSignal", "setpoint"),
    ("TickSignal", "trip"),
    ("Shadow", "load"),
    ("Shadow", "own_load"),
    ("Trip", "height"),
];

/// A body as it is read: its fields and further constraints.
struct Body {
    name: &'static str,
    fields: Vec<(&'static str, Value)>,
    required: &'static [&'static str],
    more: Value,
}

/// Adds the limits to the schemas.
pub(super) fn apply(document: &mut Value) {
    let Some(schemas) = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    for body in bodies() {
        if let Some(schema) = schemas.get_mut(body.name) {
            close(schema, body);
        }
    }
    let bodies: Vec<&str> = bodies().iter().map(|body| body.name).collect();
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
            super::problem::Code::ALL
                .map(super::problem::Code::slug)
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
const MAY_BE_EMPTY: [&str; 13] = [
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
];

fn close(schema: &mut Value, body: Body) {
    let told = schema
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
            (told.get(name).and_then(words), limits.as_object_mut())
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

// === values ===

fn text(bytes: RangeInclusive<usize>) -> Value {
    json!({
        "type": "string", "minLength": bytes.start(), "maxLength": bytes.end(), "x-max-bytes": bytes.end(), "pattern": "^[^\\u0000]*$",
    })
}

/// Returns the schema of a text that only the limit of the whole body bounds.
fn any_text() -> Value {
    json!({ "type": "string", "pattern": "^[^\\u0000]*$" })
}

fn throttle() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": THROTTLE_BYTES_MAX, "pattern": "^[A-Za-z0-9._\\-/:{}]+$" })
}

fn schedule() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": SCHEDULE_BYTES_MAX, "pattern": "^[A-Za-z0-9._\\-/:]+$" })
}

fn whole(range: RangeInclusive<i64>) -> Value {
    json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
}

fn from(least: i64) -> Value {
    json!({ "minimum": least })
}

fn above_zero(most: f64) -> Value {
    json!({ "type": "number", "exclusiveMinimum": 0, "maximum": most })
}

fn flag() -> Value {
    json!({ "type": "boolean" })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

/// Returns the schema of a time to run at: the years for which a job can wait, whatever the offset
/// is, counted from the start of this process.
fn run_at() -> Value {
    let last = clock::now().to_zoned(jiff::tz::TimeZone::UTC).year() + 9;
    let of_decade = |decade: i16| {
        format!(
            "{decade}[{}-{}]",
            if decade == 197 { 1 } else { 0 },
            (last - decade * 10).min(9)
        )
    };
    let decades: Vec<String> = (197..=last / 10).map(of_decade).collect();
    json!({ "type": "string", "format": "date-time", "pattern": format!("^({})-", decades.join("|")) })
}

fn one_of<T>(words: &[(&str, T)]) -> Value {
    json!({ "type": "string", "enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
}

/// Adds `null` to a schema.
fn or_null(mut schema: Value) -> Value {
    let kinds = match schema["type"].take() {
        Value::Array(kinds) => [kinds, vec![json!("null")]].concat(),
        kind => vec![kind, json!("null")],
    };
    schema["type"] = json!(kinds);
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    }
    schema
}

/// Returns the schema of a length of time: seconds, or a text. The pattern holds the plain
/// spellings; others with the same meaning are accepted as well.
fn span(least: Option<f64>, most: f64) -> Value {
    const DAYS: &str = "([1-9]|[1-9][0-9]|[12][0-9]{2}|3[0-5][0-9]|36[0-6])";
    let text = format!(
        "^({DAYS} days?|[1-9][0-9]{{0,2}} hours?( [1-9][0-9]? minutes?)?|[1-9][0-9]{{0,4}} minutes?|[1-9][0-9]{{0,6}} seconds?|\
         P{DAYS}D|PT[1-9][0-9]{{0,2}}H|PT[1-9][0-9]{{0,4}}M|PT[1-9][0-9]{{0,6}}S)$"
    );
    let mut schema =
        json!({ "type": ["number", "string", "null"], "maximum": most, "pattern": text });
    match least {
        Some(least) => schema["minimum"] = json!(least),
        None => schema["exclusiveMinimum"] = json!(0),
    }
    schema
}

fn by() -> Value {
    text(1..=BY_BYTES_MAX)
}

fn why() -> Value {
    text(0..=WHY_BYTES_MAX)
}

// === bodies ===

/// Returns all bodies, each as its reader reads it.
fn bodies() -> Vec<Body> {
    let body = |name, fields, required| Body {
        name,
        fields,
        required,
        more: Value::Null,
    };
    let signed = || [("by", or_null(by())), ("why", or_null(why()))];
    let with_signed =
        |fields: Vec<(&'static str, Value)>| fields.into_iter().chain(signed()).collect::<Vec<_>>();
    vec![
        Body {
            more: together(),
            ..body("NewJob", job(), &["kind"])
        },
        Body {
            more: overlap(),
            ..body("ScheduleBody", of_schedule(), &["expression", "kind"])
        },
        Body {
            more: json!({ "anyOf": any_of(&settable()) }),
            ..body("Edit", edit(), &[])
        },
        body("Reason", with_signed(Vec::new()), &[]),
        body("Retry", with_signed(vec![("keep_attempts", flag())]), &[]),
        body(
            "Reschedule",
            with_signed(vec![("run_at", run_at())]),
            &["run_at"],
        ),
        Body {
            more: at_least_one(&[
                "kind",
                "throttle",
                "key",
                "state",
                "created_after",
                "created_before",
            ]),
            ..body("CancelMany", with_signed(cancel_many()), &[])
        },
        Body {
            more: at_least_one(&DEAD),
            ..body("DeadMany", with_signed(dead_many(true)), &[])
        },
        Body {
            more: at_least_one(&DEAD),
            ..body("DeadDiscard", with_signed(dead_many(false)), &[])
        },
        Body {
            more: tokens_alone(),
            ..body("Wanted", wanted(true), &[])
        },
        Body {
            more: tokens_alone(),
            ..body("Peek", wanted(false), &[])
        },
        body(
            "Unused",
            vec![
                ("key", text(0..=KEY_BYTES_MAX)),
                ("tokens", above_zero(COST_MAX)),
            ],
            &["tokens"],
        ),
        body(
            "KeyPause",
            with_signed(vec![("seconds", above_zero(MAX_PAUSE.as_secs_f64()))]),
            &["seconds"],
        ),
        body(
            "Weigh",
            with_signed(vec![(
                "weight",
                json!({ "type": "number", "minimum": WEIGHT_MIN, "maximum": WEIGHT_MAX }),
            )]),
            &["weight"],
        ),
        body(
            "NewSuppression",
            with_signed(vec![
                ("channel", one_of(&Channel::WORDS)),
                ("recipient", text(1..=RECIPIENT_BYTES_MAX)),
                ("reason", or_null(why())),
            ]),
            &["channel", "recipient"],
        ),
        Body {
            more: contents(),
            ..body("NewNotification", message(), &["channel", "to"])
        },
    ]
}

fn job() -> Vec<(&'static str, Value)> {
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
    ]
}

fn with_default(mut schema: Value, default: Value) -> Value {
    schema["default"] = default;
    schema
}

/// Returns the constraints of job fields that are valid only together with others, or only without
/// them. A schema cannot express that `debounce_max` is not below `debounce`.
fn together() -> Value {
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
        },
    })
}

fn is_given(field: &str) -> Value {
    json!({ "properties": { field: { "not": { "type": "null" } } } })
}

fn of_schedule() -> Vec<(&'static str, Value)> {
    let own = [
        ("expression", text(1..=EXPRESSION_BYTES_MAX)),
        (
            "time_zone",
            with_default(text(1..=ZONE_BYTES_MAX), json!("UTC")),
        ),
        ("catch_up", with_default(one_of(&CATCH_UPS), json!("one"))),
        ("overlap", with_default(one_of(&OVERLAPS), json!("skip"))),
        ("paused", or_null(flag())),
        ("by", by()),
        ("why", why()),
    ];
    own.into_iter()
        .chain(
            job()
                .into_iter()
                .filter(|(field, _)| !SET_BY_SCHEDULE.contains(field)),
        )
        .collect()
}

/// Requires `overlap: allow` with `catch_up: all`, because all missed occurrences then run in
/// parallel.
fn overlap() -> Value {
    json!({
        "if": { "required": ["catch_up"], "properties": { "catch_up": { "const": "all" } } },
        "then": { "required": ["overlap"], "properties": { "overlap": { "const": "allow" } } },
    })
}

fn edit() -> Vec<(&'static str, Value)> {
    let knobs = settable()
        .into_iter()
        .filter_map(|name| Some((name, knob(name)?.schema())));
    knobs.chain([("by", by()), ("why", why())]).collect()
}

fn place() -> Vec<(&'static str, Value)> {
    vec![
        ("kind", or_null(text(1..=KIND_BYTES_MAX))),
        ("throttle", or_null(text(1..=THROTTLE_BYTES_MAX))),
        ("key", or_null(text(0..=KEY_BYTES_MAX))),
    ]
}

fn walk() -> Vec<(&'static str, Value)> {
    vec![
        ("limit", whole(1..=BATCH_JOBS_MAX)),
        ("dry_run", flag()),
        ("start", or_null(text(1..=START_BYTES_MAX))),
    ]
}

fn cancel_many() -> Vec<(&'static str, Value)> {
    let own = vec![
        ("state", or_null(one_of(&LIVE))),
        ("created_after", or_null(time())),
        ("created_before", or_null(time())),
    ];
    [place(), own, walk()].concat()
}

const DEAD: [&str; 6] = super::many::DEAD_FILTERS;

fn dead_many(requeues: bool) -> Vec<(&'static str, Value)> {
    let mut like = or_null(text(1..=PATTERN_BYTES_MAX));
    like["pattern"] = json!(format!(
        "^[^%\\u0000]*(%[^%\\u0000]*){{0,{PATTERN_WILDCARDS_MAX}}}$"
    ));
    // A lone backslash at the end escapes nothing, so it is refused.
    like["not"] = json!({ "type": "string", "pattern": "(^|[^\\\\])(\\\\\\\\)*\\\\$" });
    let mut own = vec![
        ("error_like", like),
        ("died_after", or_null(time())),
        ("died_before", or_null(time())),
    ];
    if requeues {
        own.push(("keep_attempts", flag()));
    }
    [place(), own, walk()].concat()
}

/// Requires one of the fields, because an edit of no knob is a mistake.
fn any_of(fields: &[&str]) -> Value {
    fields
        .iter()
        .map(|field| json!({ "required": [field] }))
        .collect()
}

/// Requires one of the filters, because a change without any would apply to all jobs.
fn at_least_one(filters: &[&str]) -> Value {
    let given = |field: &&str| json!({ "required": [field], "properties": { *field: { "type": "string" } } });
    json!({ "anyOf": filters.iter().map(given).collect::<Vec<_>>() })
}

fn wanted(may_wait: bool) -> Vec<(&'static str, Value)> {
    let mut fields = vec![
        ("key", text(0..=KEY_BYTES_MAX)),
        ("tokens", above_zero(COST_MAX)),
        ("cost", above_zero(COST_MAX)),
        ("want", whole(0..=WANT_MAX)),
        ("holder", text(1..=HOLDER_BYTES_MAX)),
        ("held", whole(0..=HELD_MAX)),
        ("key_held", whole(0..=HELD_MAX)),
        ("ttl_s", above_zero(TTL_S_MAX)),
    ];
    if may_wait {
        fields.push(("wait_ms", whole(0..=WAIT_MS_MAX)));
    }
    fields
}

fn tokens_alone() -> Value {
    json!({ "dependentSchemas": { "tokens": { "properties": { "cost": false, "want": false } } } })
}

fn message() -> Vec<(&'static str, Value)> {
    let object = || json!({ "type": "object" });
    vec![
        ("channel", one_of(&Channel::WORDS)),
        ("to", text(1..=TO_BYTES)),
        ("from", or_null(text(1..=FROM_BYTES))),
        ("subject", or_null(any_text())),
        ("body", json!({ "pattern": "^[^\\u0000]*$" })),
        ("html", or_null(any_text())),
        (
            "template",
            json!({
                "type": ["string", "object", "null"],
                "properties": { "subject": or_null(any_text()), "body": or_null(any_text()), "html": or_null(any_text()) },
                "additionalProperties": false,
                "if": { "type": "object" },
                "then": { "anyOf": [is_text("body", 0), is_text("html", 0)] },
            }),
        ),
        ("data", object()),
        ("priority", or_null(one_of(&WORDS_OF_PRIORITY))),
        ("category", or_null(text(1..=CATEGORY_BYTES))),
        ("provider", or_null(text(1..=PROVIDER_BYTES))),
        (
            "extra",
            json!({ "type": ["object", "null"], "maxProperties": EXTRA_MAX }),
        ),
        (
            "valid_for_s",
            json!({ "type": ["number", "null"], "minimum": 1, "maximum": VALID_FOR_MAX_S }),
        ),
        ("on_ambiguous", or_null(one_of(&ON_AMBIGUOUS))),
        ("key", text(0..=KEY_BYTES_MAX)),
        ("run_at", or_null(run_at())),
        ("unique_key", or_null(text(1..=KEY_BYTES_MAX))),
    ]
}

/// Requires the contents of a message: its own texts, a template, or fields that only its provider
/// knows. Only a webhook accepts a body that is not text.
fn contents() -> Value {
    let has_template = json!({ "required": ["template"], "properties": { "template": { "type": ["string", "object"] } } });
    json!({
        "if": has_template,
        "then": { "properties": { "subject": false, "body": false, "html": false } },
        "else": { "anyOf": [
            is_text("body", 1),
            is_text("html", 1),
            { "required": ["extra"], "properties": { "extra": { "type": "object", "minProperties": 1 } } },
            { "required": ["body"], "properties": { "channel": { "const": "webhook" }, "body": { "not": { "type": ["string", "null"] } } } },
        ] },
        "dependentSchemas": {
            "data": has_template,
            "body": { "if": { "not": { "properties": { "channel": { "const": "webhook" } } } },
                "then": { "properties": { "body": { "type": ["string", "null"] } } } },
        },
    })
}

fn is_text(field: &str, least: usize) -> Value {
    json!({ "required": [field], "properties": { field: { "type": "string", "minLength": least } } })
}

// === parameters ===

fn parameter_of(operation: &str, place: &str, name: &str) -> Option<Value> {
    let limit = || whole(1..=PAGE_MAX);
    Some(match (operation, place, name) {
        (_, "path", "id") => whole(1..=i64::MAX),
        // The document omits that a key of minuses only is written with one more.
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
        ("show_pool" | "resume_account" | "tell_provider_events", "path", _) => {
            json!({ "type": "string", "minLength": 1, "maxLength": THROTTLE_BYTES_MAX })
        }
        (_, "path", "name") => throttle(),
        (_, "header", "If-Match") => {
            json!({ "type": "string", "pattern": "^(\\*|(W/)?\"?[0-9]{1,19}\"?)$" })
        }
        (_, "header", _) => json!({ "type": "string" }),
        ("purge_lane", _, "limit") => whole(1..=BATCH_JOBS_MAX),
        (_, _, "limit") => with_default(
            limit(),
            json!(if operation == "explain_throttle" {
                20
            } else {
                100
            }),
        ),
        (_, _, "by") => text(0..=BY_BYTES_MAX),
        (_, _, "why") => text(0..=WHY_BYTES_MAX),
        (_, _, "start") => text(0..=START_BYTES_MAX),
        (_, _, "create" | "dry_run") => flag(),
        ("list_attempts", _, "before") | (_, _, "created_after" | "created_before") => time(),
        ("list_jobs", _, "before") | ("list_notifications", _, "cursor") => whole(1..=i64::MAX),
        ("list_suppressions", _, "cursor") => {
            let channels = Channel::WORDS.map(|(word, _)| word).join("|");
            json!({ "type": "string", "maxLength": CURSOR_BYTES_MAX, "pattern": format!("^(({channels}):[0-9a-f]{{64}})?$") })
        }
        ("list_jobs", _, "state") => one_of(&super::jobs::SEARCHED),
        ("list_notifications", _, "state") => one_of(&DeliveryState::WORDS),
        (_, _, "channel") => one_of(&Channel::WORDS),
        (_, _, "recipient") => {
            text(if operation == "unsuppress" { 1 } else { 0 }..=RECIPIENT_BYTES_MAX)
        }
        ("list_lanes", _, "order") => one_of(&super::lane_list::ORDERS),
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
        ("KnobProblem" | "Edit", _) => return None,
        (_, "id" | "job_id" | "last_job_id") => json!({ "minimum": 1, "maximum": i64::MAX }),
        (_, "priority") => json!({ "minimum": PRIORITIES.start(), "maximum": PRIORITIES.end() }),
        (_, "max_attempts") => {
            json!({ "minimum": MAX_ATTEMPTS.start(), "maximum": MAX_ATTEMPTS.end() })
        }
        (_, "cost") => json!({ "exclusiveMinimum": 0, "maximum": COST_MAX }),
        ("Lane" | "LaneNow", "weight") => json!({ "minimum": WEIGHT_MIN, "maximum": WEIGHT_MAX }),
        (_, "percent") => json!({ "minimum": 0, "maximum": 100 }),
        (_, "limiting_share" | "refused_share" | "braked_share" | "gain_factor") => {
            json!({ "minimum": 0, "maximum": 1 })
        }
        // -1 is no limit.
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
            | "dead" | "jobs" | "requested" | "attempt" | "attempts" | "done" | "total" | "tries"
            | "ms" | "seq" | "errors_omitted" | "workers" | "running_total" | "at" | "remaining"
            | "granted" | "retry_after_ms" | "wait_s" | "returned" | "available" | "failures"
            | "refused" | "mean_cost" | "achieved_rps" | "learned_rps" | "ask_rps" | "seconds"
            | "own_jobs" | "overload_s" | "own_overload_s" | "peak" | "own_peak" | "lower_s"
            | "higher_s" | "stopped_s" | "parked_jobs",
        ) => return Some(from(0)),
        (_, name) if name.ends_with("_s") || name.ends_with("_ms") => from(0),
        _ => return None,
    })
}
