//! Validation of jobs.
//!
//! The authority is `flyball.check_job` in the database. This module has the same rules for a queue
//! without a database, and the check for NUL characters, which Postgres cannot make because it
//! accepts no text with one.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::NewJob;
use super::retry::MAX_DELAY;
use super::{TAG_BYTES_MAX, TAGS_MAX};
use crate::throttle::{MAX_KEY_BYTES, Name};

/// The largest arguments, in bytes of JSON text.
pub(crate) const MAX_ARGS_BYTES: usize = 256 * 1024;
/// The highest cost of a job, in tokens.
const MAX_COST: f64 = 1e9;
/// The longest unique window, timeout or debounce, in seconds.
const MAX_SPAN_S: f64 = 366.0 * 86_400.0;
/// The shortest timeout, in seconds.
const MIN_TIMEOUT_S: f64 = 1e-6;
/// The longest `debounce_max`, in seconds, which is as far ahead as a job can be scheduled.
const MAX_AHEAD_S: f64 = MAX_DELAY.as_secs_f64();

/// The prefix of unique keys reserved for the jobs of schedules.
pub const OF_SCHEDULES: &str = "cron:";
/// The error message for a unique key with the reserved prefix on any other job.
pub const SCHEDULES_ONLY: &str =
    "begins with \"cron:\", which is kept for the jobs of schedules; begin it with anything else";

/// Returns the first text field of a job that contains a NUL.
///
/// Postgres accepts no such text, and does not report the field.
pub(crate) fn nul(job: &NewJob) -> Option<&'static str> {
    let texts = [
        ("kind", Some(&job.kind)),
        ("throttle", Some(&job.throttle)),
        ("key", Some(&job.key)),
        ("unique_key", job.unique_key.as_ref()),
        ("traceparent", job.traceparent.as_ref()),
        ("on_complete", job.on_complete.as_ref()),
        ("on_dead", job.on_dead.as_ref()),
        ("webhook_secret", job.webhook_secret.as_ref()),
    ];
    let tags = job.tags.iter().map(|tag| ("tags", Some(tag)));
    texts
        .into_iter()
        .chain(tags)
        .find(|(_, text)| text.is_some_and(|text| text.contains('\0')))
        .map(|(field, _)| field)
}

/// The error message for a NUL.
pub(crate) const NUL: &str = "contains the character \\u0000, which Postgres cannot store";

/// Returns the first problem with a job at this time, apart from its kind: the field and the error
/// message.
pub(crate) fn problem(job: &NewJob, now: Timestamp) -> Option<(&'static str, String)> {
    nul(job)
        .map(|field| (field, NUL.to_owned()))
        .or_else(|| own(job, now))
        .or_else(|| together(job))
}

/// Returns the first problem with a single field.
fn own(job: &NewJob, now: Timestamp) -> Option<(&'static str, String)> {
    let is_span = |seconds: f64| seconds > 0.0 && seconds <= MAX_SPAN_S;
    let args = job.args.to_string();
    let ahead = job.run_at.map(|at| at.duration_since(now));
    let span = "allowed is more than 0 and at most 366 days";
    if args.len() > MAX_ARGS_BYTES {
        return wrong(
            "args",
            format!(
                "is {} bytes long; at most {MAX_ARGS_BYTES} (256 KiB) are allowed",
                args.len()
            ),
        );
    }
    if holds_nul(&job.args) {
        return wrong("args", NUL);
    }
    if let Err(error) = Name::new(job.throttle.as_str()) {
        return wrong("throttle", error.to_string());
    }
    if job.key.len() > MAX_KEY_BYTES {
        return wrong(
            "key",
            format!(
                "is {} bytes long; at most {MAX_KEY_BYTES} are allowed",
                job.key.len()
            ),
        );
    }
    if !(0..=3).contains(&job.priority) {
        return wrong(
            "priority",
            format!(
                "is {}; allowed are 0 (runs first), 1, 2 and 3 (runs last)",
                job.priority
            ),
        );
    }
    if !(1..=1000).contains(&job.max_attempts) {
        return wrong(
            "max_attempts",
            format!("is {}; allowed are 1 to 1000", job.max_attempts),
        );
    }
    if let Some(key) = job
        .unique_key
        .as_ref()
        .filter(|key| !(1..=MAX_KEY_BYTES).contains(&key.len()))
    {
        return wrong(
            "unique_key",
            format!(
                "is {} bytes long; allowed are 1 to {MAX_KEY_BYTES}",
                key.len()
            ),
        );
    }
    if job
        .unique_key
        .as_ref()
        .is_some_and(|key| key.starts_with(OF_SCHEDULES))
    {
        return wrong("unique_key", SCHEDULES_ONLY);
    }
    if let Some(window) = job
        .unique_for
        .filter(|seconds| job.unique_key.is_some() && !is_span(*seconds))
    {
        return wrong("unique_for", format!("is {window}; {span}"));
    }
    if !(job.cost > 0.0 && job.cost <= MAX_COST) {
        return wrong(
            "cost",
            format!(
                "is {}; allowed is more than 0 and at most 1e9 tokens",
                job.cost
            ),
        );
    }
    if let Some(at) = job.run_at
        && (at < Timestamp::UNIX_EPOCH
            || ahead > Some(SignedDuration::from_secs(MAX_AHEAD_S as i64)))
    {
        return wrong(
            "run_at",
            format!("is {at}; allowed are times from 1970 (at once) to ten years from now"),
        );
    }
    if let Some(trace) = job
        .traceparent
        .as_ref()
        .filter(|trace| !NewJob::is_traceparent(trace))
    {
        return wrong(
            "traceparent",
            format!("{trace:?} is not a W3C trace parent"),
        );
    }
    let timeout = job
        .timeout_s
        .filter(|seconds| !(MIN_TIMEOUT_S..=MAX_SPAN_S).contains(seconds));
    let allowed = "allowed is at least a microsecond (0.000001 s) and at most 366 days";
    timeout
        .and_then(|seconds| wrong("timeout", format!("is {seconds}; {allowed}")))
        .or_else(|| tags(&job.tags))
        .or_else(|| wrong("retry", job.retry?.problem()?))
}

fn tags(tags: &[String]) -> Option<(&'static str, String)> {
    if tags.len() > TAGS_MAX {
        let count = tags.len();
        return wrong(
            "tags",
            format!("has {count} elements; at most {TAGS_MAX} are allowed"),
        );
    }
    tags.iter().find_map(|tag| {
        if !(1..=TAG_BYTES_MAX).contains(&tag.len()) {
            let bytes = tag.len();
            let allowed = format!("allowed are texts of 1 to {TAG_BYTES_MAX} bytes");
            wrong(
                "tags",
                format!("has an element of {bytes} bytes; {allowed}"),
            )
        } else if tag.chars().any(char::is_control) {
            wrong(
                "tags",
                format!("{tag:?} has a control character, which no tag may have"),
            )
        } else {
            None
        }
    })
}

fn holds_nul(args: &Value) -> bool {
    match args {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || holds_nul(value)),
        _ => false,
    }
}

/// Returns the first problem with fields that require or exclude each other.
fn together(job: &NewJob) -> Option<(&'static str, String)> {
    const FREE: &str =
        "cannot be used together with unique_for: the key is free when the job has ended";
    let (unique, window) = (job.unique_key.is_some(), job.unique_for.is_some());
    match (job.debounce_s, job.debounce_max_s) {
        _ if window && !unique => wrong("unique_for", "needs a unique_key"),
        (Some(_), _) if !unique => wrong("debounce", "needs a unique_key"),
        (Some(_), _) if window => wrong("debounce", FREE),
        (Some(_), _) if job.run_at.is_some() => wrong(
            "debounce",
            "cannot be used together with run_at: it names the time itself",
        ),
        (Some(quiet), _) if !(quiet > 0.0 && quiet <= MAX_SPAN_S) => wrong(
            "debounce",
            format!("is {quiet}; allowed is more than 0 and at most 366 days"),
        ),
        (None, Some(_)) => wrong("debounce_max", "needs a debounce"),
        (Some(quiet), Some(longest)) if !(longest >= quiet && longest <= MAX_AHEAD_S) => wrong(
            "debounce_max",
            format!(
                "is {longest}; allowed is at least the debounce of {quiet} and at most 3660 days"
            ),
        ),
        _ if job.replace && !unique => wrong("replace", "needs a unique_key"),
        _ if job.replace && window => wrong("replace", FREE),
        _ if job.group.is_some() => wrong(
            "group",
            "cannot be used with a queue in memory, which has no groups; use one on a database",
        ),
        _ if !job.after.is_empty() || job.after_failure.is_some() => wrong(
            "after",
            "cannot be used with a queue in memory, which keeps no ends; use one on a database",
        ),
        _ if job.has_webhooks() || job.webhook_secret.is_some() => wrong(
            "on_complete",
            "cannot be used with a queue in memory, nor can on_dead: it calls no webhooks; use one on a database",
        ),
        _ => None,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is what every rule returns")]
fn wrong(field: &'static str, message: impl Into<String>) -> Option<(&'static str, String)> {
    Some((field, message.into()))
}
