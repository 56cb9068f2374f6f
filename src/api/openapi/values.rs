//! Schemas of single values.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

use crate::api::clock;
use crate::api::http::operate::{BY_BYTES_MAX, WHY_BYTES_MAX};
use crate::api::jobs::filters::{PATH_BYTES_MAX, PATTERN_BYTES_MAX, PATTERN_WILDCARDS_MAX};
use crate::cron::schedule::NAME_BYTES_MAX as SCHEDULE_BYTES_MAX;
use crate::throttle::name::MAX_BYTES as THROTTLE_BYTES_MAX;

pub(super) fn text(bytes: RangeInclusive<usize>) -> Value {
    json!({
        "type": "string", "minLength": bytes.start(), "maxLength": bytes.end(), "x-max-bytes": bytes.end(), "pattern": "^[^\\u0000]*$",
    })
}

/// Returns the schema of the id of a trace, or of a whole `traceparent`.
pub(super) fn trace() -> Value {
    json!({
        "type": "string", "pattern": "^([0-9a-f]{32}|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})$",
    })
}

/// Returns the schema of a path over the arguments of jobs, in the form that `flyball.read_args_path`
/// accepts.
pub(super) fn args_path() -> Value {
    let quoted = r#""[^"\\\u0000-\u001f]*""#;
    let path = format!(r"\$(\.([A-Za-z_][A-Za-z0-9_]*|{quoted})|\[(\*|0|[1-9][0-9]{{0,5}})\])*");
    let value = format!(r"(-?(0|[1-9][0-9]{{0,17}})(\.[0-9]{{1,9}})?|{quoted}|true|false|null)");
    let term = format!(
        r"({path} *(==|!=|<>|<=|<|>=|>) *{value}|{path} starts with {quoted}|exists *\({path}\))"
    );
    json!({
        "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX, "x-max-bytes": PATH_BYTES_MAX,
        "pattern": format!(r"^{term}( *(&&|\|\|) *{term})*$"),
    })
}

/// Returns the schema of a pattern of errors.
pub(super) fn error_like() -> Value {
    let mut like = or_null(text(1..=PATTERN_BYTES_MAX));
    like["pattern"] = json!(format!(
        "^[^%\\u0000]*(%[^%\\u0000]*){{0,{PATTERN_WILDCARDS_MAX}}}$"
    ));
    // A lone backslash at the end escapes nothing, so it is refused.
    like["not"] = json!({ "type": "string", "pattern": "(^|[^\\\\])(\\\\\\\\)*\\\\$" });
    like
}

/// Returns the schema of a text that only the limit of the whole body bounds.
pub(super) fn any_text() -> Value {
    json!({ "type": "string", "pattern": "^[^\\u0000]*$" })
}

pub(super) fn throttle() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": THROTTLE_BYTES_MAX, "pattern": "^[A-Za-z0-9._\\-/:{}]+$" })
}

pub(super) fn schedule() -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": SCHEDULE_BYTES_MAX, "pattern": "^[A-Za-z0-9._\\-/:]+$" })
}

pub(super) fn whole(range: RangeInclusive<i64>) -> Value {
    json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() })
}

pub(super) fn from(least: i64) -> Value {
    json!({ "minimum": least })
}

pub(super) fn number(range: RangeInclusive<f64>) -> Value {
    json!({ "type": "number", "minimum": range.start(), "maximum": range.end() })
}

pub(super) fn above_zero(most: f64) -> Value {
    json!({ "type": "number", "exclusiveMinimum": 0, "maximum": most })
}

pub(super) fn flag() -> Value {
    json!({ "type": "boolean" })
}

pub(super) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

/// Returns the schema of a time to run at: the years for which a job can wait, whatever the offset
/// is, counted from the start of this process.
pub(super) fn run_at() -> Value {
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

pub(super) fn one_of<T>(words: &[(&str, T)]) -> Value {
    json!({ "type": "string", "enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
}

/// Returns the schema of the same text in a query, where an empty one counts as absent.
pub(super) fn or_empty(mut schema: Value) -> Value {
    schema["type"] = json!("string");
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("minLength");
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        let inner = pattern.trim_start_matches('^').trim_end_matches('$');
        schema["pattern"] = json!(format!("^({inner})?$"));
    }
    schema
}

/// Adds `null` to a schema.
pub(super) fn or_null(mut schema: Value) -> Value {
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
pub(super) fn span(least: Option<f64>, most: f64) -> Value {
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

pub(super) fn by() -> Value {
    text(1..=BY_BYTES_MAX)
}

pub(super) fn why() -> Value {
    text(0..=WHY_BYTES_MAX)
}

pub(super) fn with_default(mut schema: Value, default: Value) -> Value {
    schema["default"] = default;
    schema
}
