//! The filters that lists and bulk changes of jobs share, in queries and in bodies.

use serde_json::Value;

use super::input::{GROUP_IDS, KEY_BYTES_MAX, tags};
use crate::api::http::caller::Caller;
use crate::api::http::fields::{ObjectReader, clipped};
use crate::api::http::query::Query;
use crate::api::tenants::NAME_BYTES_MAX;
use crate::input::json::parse_short;
use crate::jobs::{JobSearch, TAGS_MAX};

/// The longest `args`, in bytes of JSON.
pub(in crate::api) const ARGS_BYTES_MAX: usize = 2000;
/// The longest `args_path`, in bytes.
pub(in crate::api) const PATH_BYTES_MAX: usize = 500;
/// The longest trace: a whole `traceparent`.
pub(in crate::api) const TRACE_BYTES_MAX: usize = 55;
/// The longest `tags` of a query, in bytes.
pub(in crate::api) const TAGS_BYTES_MAX: usize = 2000;
/// The longest pattern of an error, in bytes.
pub(in crate::api) const PATTERN_BYTES_MAX: usize = 500;
/// The most `%` of a pattern, because each multiplies the time that a match may take.
pub(in crate::api) const PATTERN_WILDCARDS_MAX: usize = 5;

/// The values of the filters of this file.
#[derive(Default)]
pub(in crate::api) struct Searched {
    pub(in crate::api) tenant: Option<String>,
    pub(in crate::api) group: Option<i64>,
    pub(in crate::api) search: JobSearch,
}

/// Takes the filters from a body.
pub(in crate::api) fn search_of_body(fields: &mut ObjectReader<'_>, caller: &Caller) -> Searched {
    let tenant = fields.text_or_null("tenant", 1..=NAME_BYTES_MAX);
    if let Some(message) = wrong_tenant(tenant.as_deref(), caller) {
        fields.wrong("tenant", message);
    }
    let group = fields
        .has("group")
        .then(|| fields.whole("group", GROUP_IDS, ", the number of a group"));
    let tags = match fields.take_nullable("tags") {
        Some(value) if value.as_array().is_some_and(Vec::is_empty) => {
            fields.wrong("tags", format!("must have 1 to {TAGS_MAX} tags, not none"));
            Vec::new()
        }
        Some(value) => tags(fields, value),
        None => Vec::new(),
    };
    let args = fields.take_nullable("args");
    if let Some(message) = args.as_ref().and_then(wrong_args) {
        fields.wrong("args", message);
    }
    Searched {
        tenant,
        group: group.flatten(),
        search: JobSearch {
            trace: fields.text_or_null("trace", 1..=TRACE_BYTES_MAX),
            unique_key: fields.text_or_null("unique_key", 1..=KEY_BYTES_MAX),
            key_owners: Vec::new(),
            args,
            args_path: fields.text_or_null("args_path", 1..=PATH_BYTES_MAX),
            tags,
        },
    }
}

/// Takes the filters from a query.
pub(in crate::api) fn search_of_query(query: &mut Query, caller: &Caller) -> Searched {
    let tenant = query.text("tenant", NAME_BYTES_MAX);
    if let Some(message) = wrong_tenant(tenant.as_deref(), caller) {
        query.wrong("tenant", message);
    }
    let args = query.text("args", ARGS_BYTES_MAX).and_then(|text| {
        let read = serde_json::from_str::<Value>(&text);
        let problem = match &read {
            Ok(args) => wrong_args(args).or_else(|| lost(&text)),
            Err(error) => Some(format!("is not JSON ({error}); allowed is {OBJECT}")),
        };
        if let Some(message) = problem {
            query.wrong("args", message);
        }
        read.ok()
    });
    Searched {
        tenant,
        group: query.whole("group", GROUP_IDS),
        search: JobSearch {
            trace: query.text("trace", TRACE_BYTES_MAX),
            unique_key: query.text("unique_key", KEY_BYTES_MAX),
            key_owners: Vec::new(),
            args,
            args_path: query.text("args_path", PATH_BYTES_MAX),
            tags: tags_of_query(query),
        },
    }
}

/// Takes one tag, or a JSON array of several.
fn tags_of_query(query: &mut Query) -> Vec<String> {
    let Some(text) = query.text("tags", TAGS_BYTES_MAX) else {
        return Vec::new();
    };
    if !text.starts_with('[') {
        return vec![text];
    }
    let read = serde_json::from_str::<Vec<String>>(&text);
    let tags = read
        .ok()
        .filter(|tags| (1..=TAGS_MAX).contains(&tags.len()));
    tags.unwrap_or_else(|| {
        let allowed = format!("must be a tag, or a JSON array of 1 to {TAGS_MAX} tags");
        query.wrong("tags", allowed);
        Vec::new()
    })
}

const OBJECT: &str =
    "a JSON object with what the arguments must contain, such as {\"customer\": {\"id\": 17}}";

fn wrong_args(args: &Value) -> Option<String> {
    let is_object = args.as_object().is_some_and(|fields| !fields.is_empty());
    if !is_object {
        return Some(format!("must be {OBJECT}"));
    }
    let bytes = args.to_string().len();
    (bytes > ARGS_BYTES_MAX)
        .then(|| format!("is {bytes} bytes long; at most {ARGS_BYTES_MAX} are allowed"))
}

/// Returns the problem of a valid JSON text of which a part would be lost, because without it the
/// filter would find other jobs.
fn lost(text: &str) -> Option<String> {
    let (pointer, problem) = parse_short(text).err()?.into_problem();
    Some(match pointer.as_str() {
        "" => problem,
        pointer => format!("{pointer} {problem}"),
    })
}

/// Returns the error of a tenant that is not the caller's.
fn wrong_tenant(tenant: Option<&str>, caller: &Caller) -> Option<String> {
    let (tenant, own) = (tenant?, caller.tenant.as_deref()?);
    (tenant != own).then(|| {
        format!(
            "{:?} is not the tenant of this token, {own:?}",
            clipped(tenant)
        )
    })
}

/// Returns the error of a pattern that Postgres would refuse, or match too slowly.
pub(in crate::api) fn wrong_pattern(pattern: &str) -> Option<String> {
    let trailing = pattern.chars().rev().take_while(|c| *c == '\\').count();
    if trailing % 2 == 1 {
        return Some(
            "the pattern ends with a lone backslash; write two for a backslash itself".to_owned(),
        );
    }
    let wildcards = pattern.matches('%').count();
    (wildcards > PATTERN_WILDCARDS_MAX)
        .then(|| format!("the pattern has {wildcards} %; allowed: at most {PATTERN_WILDCARDS_MAX}"))
}

/// Takes a pattern of an error from a body.
pub(in crate::api) fn pattern_of_body(fields: &mut ObjectReader<'_>) -> Option<String> {
    let pattern = fields.text_or_null("error_like", 1..=PATTERN_BYTES_MAX);
    if let Some(message) = pattern.as_deref().and_then(wrong_pattern) {
        fields.wrong("error_like", message);
    }
    pattern
}

/// Takes a pattern of an error from a query.
pub(in crate::api) fn pattern_of_query(query: &mut Query) -> Option<String> {
    let pattern = query.text("error_like", PATTERN_BYTES_MAX);
    if let Some(message) = pattern.as_deref().and_then(wrong_pattern) {
        query.wrong("error_like", message);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::wrong_pattern;

    #[test]
    fn a_pattern_may_not_end_in_a_lone_backslash_nor_have_many_wildcards() {
        for good in ["%", "timeout%", "%a%b%c%", r"100\%", r"a\\"] {
            assert_eq!(wrong_pattern(good), None, "{good}");
        }
        for bad in [r"a\", r"a\\\", "%a%b%c%d%e%f"] {
            assert!(wrong_pattern(bad).is_some(), "{bad}");
        }
    }
}
