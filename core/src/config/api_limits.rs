//! Limits of an API's requests: `[[api_limits]]` of the settings file.

use std::collections::BTreeSet;

use toml::Table;

use crate::input::toml::json_of;
use crate::input::{Issue, Reader};
use crate::throttle::api_limit::{API_PREFIX, plain_path};
use crate::throttle::{ApiLimit, Name, OWN_API};

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
    let mut limits: Vec<ApiLimit> = Vec::new();
    for (place, table) in tables.iter().enumerate() {
        let value = json_of(table);
        let at = format!("/api_limits/{place}");
        let Some(mut fields) = Reader::of(&value, &at, &API_LIMIT_KEYS, &mut issues) else {
            continue;
        };
        let limit = limit(&mut fields);
        if !limit.name.is_empty() && !names.insert(limit.name.clone()) {
            fields.wrong("name", "must be another one: a limit of this name is above");
        } else if let Some((above, throttle)) = limits
            .iter()
            .find_map(|above| Some((above, shared_throttle(above, &limit)?)))
        {
            let clash = format!(
                "must be another one: {throttle} would be a throttle of limit {} above as well",
                above.name
            );
            fields.wrong("name", clash);
        }
        limits.push(limit);
    }
    if issues.is_empty() {
        Ok(limits)
    } else {
        Err(issues)
    }
}

/// Returns the throttle that two limits of different names share: that of the customers of the one
/// and of the keys of the other, or of our own API that of a tenant, whose name follows a colon.
fn shared_throttle(one: &ApiLimit, other: &ApiLimit) -> Option<String> {
    let of_tenant = |longer: &ApiLimit, shorter: &ApiLimit| {
        is_below(&longer.name, &shorter.name).then(|| format!("{API_PREFIX}{}", longer.name))
    };
    let of_customers = |longer: &ApiLimit, shorter: &ApiLimit| {
        let keys = longer.of_keys().ok()?;
        (keys == shorter.of_customers().ok()?).then(|| keys.to_string())
    };
    match (one.api == OWN_API, other.api == OWN_API) {
        (true, true) => of_tenant(one, other).or_else(|| of_tenant(other, one)),
        (false, false) => of_customers(one, other).or_else(|| of_customers(other, one)),
        // The names of their throttles begin otherwise.
        _ => None,
    }
}

/// Returns true if `name` is `above`, a colon and more.
fn is_below(name: &str, above: &str) -> bool {
    !above.is_empty()
        && name
            .strip_prefix(above)
            .is_some_and(|rest| rest.starts_with(':'))
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
    let api = fields.text("api", 1..=64).unwrap_or_default();
    if !name.is_empty() && Name::new(format!("limit:{name}:customer")).is_err() {
        fields.wrong("name", "must be letters, digits or any of . _ - / :");
    } else if TAKEN.contains(&name.as_str()) {
        fields.wrong(
            "name",
            "must be another one: the API has a group of this name",
        );
    } else if let Some(group) = TAKEN.iter().find(|group| is_below(&name, group))
        && api == OWN_API
    {
        let clash = format!(
            "must be another one: {API_PREFIX}{name} is a throttle of the API's group {group}"
        );
        fields.wrong("name", clash);
    }
    let prefix = fields.text("prefix", 1..=1024).unwrap_or_default();
    let plain = plain_path(&prefix);
    if !prefix.is_empty() && !prefix.starts_with('/') {
        fields.wrong("prefix", "must begin with /");
    } else if !prefix.is_empty() && plain != prefix {
        let other = format!(
            "would hold no request, because it is compared with the path that is served; allowed: {plain}"
        );
        fields.wrong("prefix", other);
    }
    let number = |fields: &mut Reader<'_>, key: &str, (low, high): (f64, f64), default: f64| {
        fields.number(key, low..=high, "").unwrap_or(default)
    };
    ApiLimit {
        methods: methods(fields),
        api,
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
            fields.refuse_items("methods", &allowed, &value, |one| {
                let method = one.as_str().map(str::to_ascii_uppercase);
                method.is_some_and(|method| METHODS.contains(&method.as_str()))
            });
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is wrong with limits of these names and APIs.
    fn issues(limits: [(&str, &str); 2]) -> Vec<(String, String)> {
        let tables = limits.map(|(name, api)| {
            let text = format!("name = \"{name}\"\napi = \"{api}\"\nprefix = \"/\"\nkey_rps = 1");
            toml::from_str::<Table>(&text).unwrap()
        });
        let issues = read(&tables).err().unwrap_or_default();
        issues
            .into_iter()
            .map(|issue| (issue.pointer, issue.message))
            .collect()
    }

    #[test]
    fn a_method_that_is_not_known_is_named() {
        let text = "name = \"a\"\nprefix = \"/\"\nkey_rps = 1\nmethods = [\"get\", \"FETCH\"]";
        let issues = read(&[toml::from_str(text).unwrap()]).unwrap_err();
        let message = &issues[0].message;
        assert!(message.ends_with("OPTIONS, not \"FETCH\""), "{message}");
    }

    #[test]
    fn two_limits_that_would_share_a_throttle_are_refused() {
        for (limits, clash) in [
            (
                [("lead", "shop"), ("lead:customer", "shop")],
                "limit:lead:customer would be a throttle of limit lead",
            ),
            (
                [("lead:customer", "shop"), ("lead", "other")],
                "limit:lead:customer would be a throttle of limit lead:customer",
            ),
            (
                [("jobs", OWN_API), ("jobs:acme", OWN_API)],
                "api:jobs:acme would be a throttle of limit jobs",
            ),
            (
                [("jobs", OWN_API), ("read:acme", OWN_API)],
                "api:read:acme is a throttle of the API's group read",
            ),
        ] {
            let issues = issues(limits);
            let [(at, message)] = issues.as_slice() else {
                panic!("{limits:?}: {issues:?}")
            };
            assert_eq!(at, "/api_limits/1/name");
            assert!(message.contains(clash), "{message}");
        }
    }

    #[test]
    fn a_prefix_is_the_beginning_of_a_path_as_it_is_served() {
        for (prefix, allowed) in [
            ("/api//v1/", Some("/api/v1/")),
            ("/api/%6cead", Some("/api/lead")),
            ("/api/../v1", Some("/v1")),
            ("/api?x=1", Some("/api")),
            ("/api/v1/lead/", None),
            ("/", None),
        ] {
            let text = format!("name = \"a\"\nprefix = \"{prefix}\"\nkey_rps = 1");
            let issues = read(&[toml::from_str::<Table>(&text).unwrap()]).err();
            let message = issues.map(|issues| issues[0].message.clone());
            let end = allowed.map(|allowed| format!("allowed: {allowed}"));
            let is_as_expected = match (&message, &end) {
                (Some(message), Some(end)) => message.ends_with(end),
                (message, end) => message.is_none() && end.is_none(),
            };
            assert!(is_as_expected, "{prefix}: {message:?}");
        }
    }

    #[test]
    fn limits_with_throttles_of_their_own_are_accepted() {
        for limits in [
            [("lead", "shop"), ("lead:eu", "shop")],
            [("jobs", OWN_API), ("jobs:customer", "shop")],
            [("jobs", OWN_API), ("jobs2:acme", OWN_API)],
            [("read:acme", "shop"), ("lead:customer", "shop")],
        ] {
            assert!(issues(limits).is_empty(), "{limits:?}");
        }
    }
}
