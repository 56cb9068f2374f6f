//! The bodies of requests: their fields, with the limits with which they are read.

use serde_json::{Value, json};

use super::job_bodies::{job, of_group, of_update, tags, together};
use super::values::{
    above_zero, any_text, args_path, by, error_like, flag, one_of, or_null, run_at, text, time,
    trace, whole, why, with_default,
};
use crate::admission::RECIPIENTS_MAX;
use crate::api::crons::{EXPRESSION_BYTES_MAX, SET_BY_SCHEDULE, ZONE_BYTES_MAX};
use crate::api::gateway::tickets::CHANNELS_MAX;
use crate::api::http::operate::START_BYTES_MAX;
use crate::api::jobs::input::{COST_MAX, GROUP_IDS, KEY_BYTES_MAX, KIND_BYTES_MAX};
use crate::api::jobs::many::{CANCEL_FILTERS, DEAD_FILTERS, LIVE};
use crate::api::jobs::update::UPDATABLE;
use crate::api::lanes::lane::{WEIGHT_MAX, WEIGHT_MIN};
use crate::api::notifications::batch_input::OF_RECIPIENT;
use crate::api::notifications::suppressions::RECIPIENT_BYTES_MAX;
use crate::api::tenants::NAME_BYTES_MAX;
use crate::api::throttles::acquire::{
    HELD_MAX, HOLDER_BYTES_MAX, TTL_S_MAX, WAIT_MS_MAX, WANT_MAX,
};
use crate::api::throttles::check::{API_BYTES_MAX, METHOD_BYTES_MAX, PATH_BYTES_MAX};
use crate::cron::schedule::{CATCH_UPS, OVERLAPS};
use crate::inbox::request::{IDS_MAX, MARKS, words};
use crate::input::patterns::CHANNEL_BYTES;
use crate::jobs::BATCH_JOBS_MAX;
use crate::notify::args::{
    CATEGORY_BYTES, EXTRA_MAX, FROM_BYTES, ON_AMBIGUOUS, PRIORITIES as WORDS_OF_PRIORITY,
    PROVIDER_BYTES, TO_BYTES, VALID_FOR_MAX_S,
};
use crate::providers::Channel;
use crate::providers::RESERVED_IDS;
use crate::recipient::new_recipient::{ID_BYTES, IMPORT_MAX};
use crate::recipient::profile::{ADDRESS_BYTES, CHOICES_MAX, NAME_BYTES};
use crate::recipient::quiet::DATES_MAX;
use crate::throttle::MAX_PAUSE;
use crate::throttle::name::MAX_BYTES as THROTTLE_BYTES_MAX;
use crate::throttle::rules::{knob, settable};

/// A body as it is read: its fields and further constraints.
pub(super) struct Body {
    pub(super) name: &'static str,
    pub(super) fields: Vec<(&'static str, Value)>,
    pub(super) required: &'static [&'static str],
    pub(super) more: Value,
}

/// Returns a body without further constraints.
pub(super) fn body(
    name: &'static str,
    fields: Vec<(&'static str, Value)>,
    required: &'static [&'static str],
) -> Body {
    Body {
        name,
        fields,
        required,
        more: Value::Null,
    }
}

/// Returns the fields with those of the author and the reason behind them.
pub(super) fn with_signed(fields: Vec<(&'static str, Value)>) -> Vec<(&'static str, Value)> {
    let signed = [("by", or_null(by())), ("why", or_null(why()))];
    fields.into_iter().chain(signed).collect()
}

/// Returns the limits of the channels of a ticket.
fn channels() -> Value {
    json!({
        "type": "array", "maxItems": CHANNELS_MAX,
        "items": { "type": "string", "minLength": 1, "maxLength": CHANNEL_BYTES, "pattern": "^([A-Za-z0-9._/{}@=+~-]+\\*?|\\*)$" },
    })
}

/// Returns the limits of the recipient of a ticket: an id that messages can name.
fn recipient() -> Value {
    let (control, blank) = (r"\u0000-\u001f\u007f-\u009f", r"\u0020");
    json!({
        "type": "string", "minLength": 1, "maxLength": ID_BYTES,
        "pattern": format!("^[^{control}{blank}]([^{control}]*[^{control}{blank}])?$"),
        "not": { "enum": RESERVED_IDS },
    })
}

/// Returns the bodies, those of workers left out, each as its reader reads it.
pub(super) fn bodies() -> Vec<Body> {
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
            ..body("KnobsEdit", edit(), &[])
        },
        body("GroupBody", of_group(), &[]),
        body("Reason", with_signed(Vec::new()), &[]),
        body(
            "NewPlan",
            with_signed(vec![("tenant", or_null(text(0..=NAME_BYTES_MAX)))]),
            &[],
        ),
        body(
            "NewTicket",
            vec![
                ("channels", or_null(channels())),
                ("recipient", or_null(recipient())),
                ("publish", or_null(flag())),
                ("tenant", or_null(text(0..=NAME_BYTES_MAX))),
            ],
            &[],
        ),
        body("NewChannelMessage", vec![("data", json!({}))], &["data"]),
        Body {
            more: json!({ "oneOf": [{ "required": ["ids"] }, { "required": ["all_up_to"] }] }),
            ..body(
                "NewMark",
                vec![
                    ("ids", mark_ids()),
                    ("all_up_to", mark_bound()),
                    ("as", one_of(&words(MARKS))),
                ],
                &["as"],
            )
        },
        body("Retry", with_signed(vec![("keep_attempts", flag())]), &[]),
        Body {
            more: json!({ "anyOf": any_of(&UPDATABLE) }),
            ..body("JobChange", with_signed(of_update()), &[])
        },
        body(
            "Reschedule",
            with_signed(vec![("run_at", run_at())]),
            &["run_at"],
        ),
        Body {
            more: at_least_one(&CANCEL_FILTERS),
            ..body("CancelMany", with_signed(cancel_many()), &[])
        },
        Body {
            more: at_least_one(&DEAD_FILTERS),
            ..body("DeadMany", with_signed(dead_many(true)), &[])
        },
        Body {
            more: at_least_one(&DEAD_FILTERS),
            ..body("DeadDiscard", with_signed(dead_many(false)), &[])
        },
        Body {
            more: tokens_alone(),
            ..body("AcquireBody", wanted(true), &[])
        },
        Body {
            more: tokens_alone(),
            ..body("Peek", wanted(false), &[])
        },
        body(
            "CheckedRequest",
            vec![
                ("method", text(1..=METHOD_BYTES_MAX)),
                ("path", text(1..=PATH_BYTES_MAX)),
                ("key", text(0..=KEY_BYTES_MAX)),
                ("customer", text(0..=KEY_BYTES_MAX)),
                ("api", text(0..=API_BYTES_MAX)),
            ],
            &["method", "path"],
        ),
        body(
            "UnusedTokens",
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
            "LaneWeight",
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
        body("NewProfile", with_signed(profile()), &[]),
        body("NewDefaults", with_signed(defaults()), &[]),
        body(
            "NewRecipients",
            with_signed(vec![("recipients", recipients())]),
            &["recipients"],
        ),
        Body {
            more: contents(),
            ..body("NewNotification", message(), &["channel", "to"])
        },
        Body {
            more: contents(),
            ..body("NewBatch", batch(), &["channel", "recipients"])
        },
    ]
}

/// Returns the fields of a profile. The reader knows more: the form of each address, the names of
/// time zones, and the fields of quiet hours that go together.
fn profile() -> Vec<(&'static str, Value)> {
    let address = text(1..=ADDRESS_BYTES);
    let zone = || or_null(text(1..=NAME_BYTES));
    let own = vec![
        ("addresses", addresses(&address)),
        ("device_time_zone", zone()),
    ];
    [own, defaults()].concat()
}

fn defaults() -> Vec<(&'static str, Value)> {
    let day =
        json!({ "type": "string", "enum": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"] });
    let clock = json!({ "type": ["string", "null"], "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$" });
    let hours = json!({
        "type": "object",
        "properties": {
            "start": clock, "end": clock, "all_day": or_null(flag()),
            "weekdays": { "type": ["array", "null"], "minItems": 1, "items": day },
            "dates": { "type": ["array", "null"], "maxItems": DATES_MAX, "items": { "type": "string", "format": "date" } },
        },
        "additionalProperties": false,
    });
    let mut choice = of_each_channel(&flag());
    choice["type"] = json!(["boolean", "object"]);
    let named = json!({
        "type": ["object", "null"], "maxProperties": CHOICES_MAX,
        "propertyNames": text(1..=NAME_BYTES), "additionalProperties": choice,
    });
    let mut all = choice.clone();
    all["type"] = json!(["boolean", "object", "null"]);
    let preferences = json!({
        "type": ["object", "null"],
        "properties": { "all": all, "categories": named, "templates": named },
        "additionalProperties": false,
    });
    vec![
        ("time_zone", or_null(text(1..=NAME_BYTES))),
        ("quiet_hours", of_each_channel(&hours)),
        ("preferences", preferences),
    ]
}

/// The inbox of a recipient is found by its id, so it has no address there.
fn addresses(schema: &Value) -> Value {
    let mut addresses = of_each_channel(schema);
    if let Some(each) = addresses["properties"].as_object_mut() {
        each.remove(Channel::InApp.as_str());
    }
    addresses
}

fn of_each_channel(schema: &Value) -> Value {
    let each: serde_json::Map<String, Value> = Channel::WORDS
        .iter()
        .map(|(word, _)| ((*word).to_owned(), schema.clone()))
        .collect();
    json!({ "type": ["object", "null"], "properties": each, "additionalProperties": false })
}

fn mark_ids() -> Value {
    json!({
        "type": "array", "minItems": 1, "maxItems": IDS_MAX,
        "items": { "type": "string", "pattern": "^[1-9][0-9]{0,17}$" },
    })
}

/// The id of a message or a time.
fn mark_bound() -> Value {
    let id = json!({ "type": "string", "pattern": "^[1-9][0-9]{0,17}$" });
    json!({ "type": "string", "maxLength": 40, "oneOf": [id, time()] })
}

fn recipients() -> Value {
    let fields = profile().into_iter().chain([("id", text(1..=ID_BYTES))]);
    let fields: serde_json::Map<String, Value> = fields
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect();
    let one = json!({
        "type": "object", "properties": fields, "required": ["id"], "additionalProperties": false,
    });
    json!({ "type": "array", "minItems": 1, "maxItems": IMPORT_MAX, "items": one })
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
        ("error_like", error_like()),
    ];
    [place(), own, search(), walk()].concat()
}

/// The filters that all bulk changes share.
fn search() -> Vec<(&'static str, Value)> {
    let mut some_tags = tags();
    some_tags["minItems"] = json!(1);
    vec![
        ("tenant", or_null(text(1..=NAME_BYTES_MAX))),
        ("group", or_null(whole(GROUP_IDS))),
        ("trace", or_null(trace())),
        ("unique_key", or_null(text(1..=KEY_BYTES_MAX))),
        (
            "args",
            json!({ "type": ["object", "null"], "minProperties": 1 }),
        ),
        ("args_path", or_null(args_path())),
        ("tags", or_null(some_tags)),
    ]
}

fn dead_many(requeues: bool) -> Vec<(&'static str, Value)> {
    let mut own = vec![
        ("error_like", error_like()),
        ("died_after", or_null(time())),
        ("died_before", or_null(time())),
    ];
    if requeues {
        own.push(("keep_attempts", flag()));
    }
    [place(), own, search(), walk()].concat()
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

/// Returns the fields of a message without those of its recipient, which are in a list.
fn batch() -> Vec<(&'static str, Value)> {
    let of_message = message();
    let own: serde_json::Map<String, Value> = of_message
        .iter()
        .filter(|(name, _)| OF_RECIPIENT.contains(name))
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    let mut recipient = text(1..=TO_BYTES);
    recipient["type"] = json!(["string", "object"]);
    recipient["properties"] = Value::Object(own);
    recipient["required"] = json!(["to"]);
    recipient["additionalProperties"] = json!(false);
    let recipients = json!({
        "type": "array", "minItems": 1, "maxItems": RECIPIENTS_MAX, "items": recipient,
    });
    let shared = of_message
        .into_iter()
        .filter(|(name, _)| !["to", "unique_key"].contains(name));
    shared
        .chain([
            ("recipients", recipients),
            ("partial", or_null(with_default(flag(), json!(false)))),
        ])
        .collect()
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
            "data": { "anyOf": [has_template, { "required": ["channel"], "properties": { "channel": { "const": "inapp" } } }] },
            "body": { "if": { "not": { "properties": { "channel": { "const": "webhook" } } } },
                "then": { "properties": { "body": { "type": ["string", "null"] } } } },
        },
    })
}

fn is_text(field: &str, least: usize) -> Value {
    json!({ "required": [field], "properties": { field: { "type": "string", "minLength": least } } })
}
