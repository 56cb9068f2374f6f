//! Limits of an API's requests: `[[api_limits]]` of the settings file.

use std::collections::BTreeSet;

use toml::Table;

use crate::input::toml::json_of;
use crate::input::{Issue, Reader};
use crate::throttle::{ApiLimit, Name};

/// Keys of `[[api_limits]]`.
pub const API_LIMIT_KEYS: [&str; 8] = [
    "name",
    "api",
    "methods",
    "prefix",
    "key_rps",
    "key_burst",
    "window",
    "customer_multiple",
];

/// The methods of HTTP that a limit may name.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// The bounds of a rate in requests per second, of a burst in windows, of a window in seconds, and
/// of the customer's multiple.
const RPS: (f64, f64) = (0.001, 1_000_000.0);
const BURST: (f64, f64) = (0.0, 10_000.0);
const WINDOW_S: (f64, f64) = (0.01, 86_400.0);
const MULTIPLE: (f64, f64) = (1.0, 1_000_000.0);

/// The names of the groups that the API has anyway.
const TAKEN: [&str; 6] = ["read", "write", "enqueue", "acquire", "dashboard", "denied"];

/// Reads all limits, or lists everything that is wrong with them.
pub(super) fn read(tables: &[Table]) -> Result<Vec<ApiLimit>, Vec<Issue>> {
    let mut issues = Vec::new();
    let mut names = BTreeSet::new();
    let mut limits = Vec::new();
    for (place, table) in tables.iter().enumerate() {
        let value = json_of(table);
        let at = format!("/api_limits/{place}");
        let Some(mut fields) = Reader::of(&value, &at, &API_LIMIT_KEYS, &mut issues) else {
            continue;
        };
        let limit = limit(&mut fields);
        if !limit.name.is_empty() && !names.insert(limit.name.clone()) {
            fields.wrong("name", "must be another one: a limit of this name is above");
        }
        limits.push(limit);
    }
    if issues.is_empty() {
        Ok(limits)
    } else {
        Err(issues)
    }
}

fn limit(fields: &mut Reader<'_>) -> ApiLimit {
    for required in ["name", "prefix", "key_rps"] {
        if !fields.has(required) {
            fields.missing(
                required,
                if required == "key_rps" {
                    "a number"
                } else {
                    "a text"
                },
            );
        }
    }
    let name = fields.text("name", 1..=64).unwrap_or_default();
    if !name.is_empty() && Name::new(format!("limit:{name}:customer")).is_err() {
        fields.wrong("name", "must be letters, digits or any of . _ - / :");
    } else if TAKEN.contains(&name.as_str()) {
        fields.wrong(
            "name",
            "must be another one: the API has a group of this name",
        );
    }
    let prefix = fields.text("prefix", 1..=1024).unwrap_or_default();
    if !prefix.is_empty() && !prefix.starts_with('/') {
        fields.wrong("prefix", "must begin with /");
    }
    let number = |fields: &mut Reader<'_>, key: &str, (low, high): (f64, f64), default: f64| {
        fields.number(key, low..=high, "").unwrap_or(default)
    };
    ApiLimit {
        methods: methods(fields),
        api: fields.text("api", 1..=64).unwrap_or_default(),
        key_rps: number(fields, "key_rps", RPS, 1.0),
        key_burst: number(fields, "key_burst", BURST, 1.0),
        window: number(fields, "window", WINDOW_S, 1.0),
        customer_multiple: number(fields, "customer_multiple", MULTIPLE, 3.0),
        name,
        prefix,
    }
}

fn methods(fields: &mut Reader<'_>) -> Vec<String> {
    let Some(value) = fields.take("methods") else {
        return Vec::new();
    };
    let given: Option<Vec<String>> = value.as_array().and_then(|all| {
        all.iter()
            .map(|one| Some(one.as_str()?.to_ascii_uppercase()))
            .collect()
    });
    match given {
        Some(given) if given.iter().all(|one| METHODS.contains(&one.as_str())) => given,
        _ => {
            let allowed = format!("a list of {}", METHODS.join(", "));
            fields.refuse("methods", &allowed, &value);
            Vec::new()
        }
    }
}
