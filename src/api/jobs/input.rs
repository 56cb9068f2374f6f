//! Requests to enqueue, checked field by field: a valid job, or every error in it.

use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use serde_json::{Value, json};

use crate::api::http::fields::{Errors, ObjectReader, TIME, must_be, pointer};
use crate::input::wording::{any_of, must_be_one_of};
use crate::jobs::check::{OF_SCHEDULES, SCHEDULES_ONLY};
use crate::jobs::{
    AFTER_MAX, AfterFailure, JobRetry, Kinds, NewJob, TAG_BYTES_MAX, TAGS_MAX, webhook,
};
use crate::throttle::Name;

/// The fields of a job, as in SQL.
pub const FIELDS: [&str; 23] = [
    "kind",
    "args",
    "throttle",
    "key",
    "priority",
    "run_at",
    "max_attempts",
    "unique_key",
    "unique_for",
    "cost",
    "traceparent",
    "timeout",
    "debounce",
    "debounce_max",
    "replace",
    "group",
    "tags",
    "after",
    "after_failure",
    "on_complete",
    "on_dead",
    "webhook_secret",
    "retry",
];

/// The longest kind, in bytes.
pub const KIND_BYTES_MAX: usize = 128;
/// The longest key or unique key, in bytes.
pub const KEY_BYTES_MAX: usize = crate::throttle::MAX_KEY_BYTES;
/// The largest arguments, in bytes of JSON text.
pub const ARGS_BYTES_MAX: usize = 256 * 1024;
/// The highest cost of a job, in tokens.
pub const COST_MAX: f64 = 1e9;
/// The longest time of a taken unique key, of an attempt or of a delay of a job: 366 days, in
/// seconds.
pub const SPAN_MAX_S: f64 = 366.0 * 86_400.0;
/// The shortest timeout of an attempt, in seconds: the smallest interval that Postgres can tell
/// from zero.
pub const TIMEOUT_MIN_S: f64 = 1e-6;
/// The longest time for which further jobs may postpone a debounced job: 3660 days, in seconds.
pub const DEBOUNCE_MAX_MAX_S: f64 = 10.0 * SPAN_MAX_S;
/// The priorities: 0 runs first.
pub const PRIORITIES: std::ops::RangeInclusive<i64> = 0..=3;
/// The attempts that a job may have before it is dead.
pub const MAX_ATTEMPTS: std::ops::RangeInclusive<i64> = 1..=1000;
/// An example of a trace parent, for messages.
const TRACEPARENT_EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// The numbers of groups.
pub const GROUP_IDS: std::ops::RangeInclusive<i64> = 1..=1_000_000_000_000_000;
/// The numbers of jobs: whole numbers that JavaScript reads exactly.
pub const JOB_IDS: std::ops::RangeInclusive<i64> = 1..=(1 << 53) - 1;
/// The most jobs of one batch.
pub const BATCH_MAX: usize = 10_000;

/// The kinds that can run: those of this process, and those that live workers elsewhere have
/// announced.
pub struct KnownKinds<'a> {
    /// The handlers of this process; their `check` validates the arguments.
    pub here: &'a Kinds,
    /// The kinds that only other processes run.
    pub elsewhere: &'a [String],
}

impl KnownKinds<'_> {
    fn names(&self) -> Vec<String> {
        let mut names = self.here.names();
        names.extend(self.elsewhere.iter().cloned());
        names.sort();
        names.dedup();
        names
    }
}

/// Returns the kinds that a request names, before any other check, so that other processes can be
/// asked about them.
pub fn kinds_named(body: &Value) -> impl Iterator<Item = &str> {
    let jobs = match body {
        Value::Array(jobs) => jobs.as_slice(),
        one => std::slice::from_ref(one),
    };
    jobs.iter()
        .filter_map(|job| job.get("kind").and_then(Value::as_str))
}

/// Reads one job, or lists every error in it.
pub fn one(body: Value, known: &KnownKinds<'_>) -> Result<NewJob, Errors> {
    let mut errors = Errors::default();
    if body.is_array() {
        errors.body(
            "",
            "must be one job as an object; a list of jobs goes to /api/v1/jobs/batch",
        );
        return Err(errors);
    }
    match job(body, "", known, &mut errors) {
        Some(job) if errors.is_empty() => Ok(job),
        _ => Err(errors),
    }
}

/// Reads a batch of jobs, or lists every error in them.
pub fn batch(body: Value, known: &KnownKinds<'_>) -> Result<Vec<NewJob>, Errors> {
    let mut errors = Errors::default();
    let Value::Array(items) = body else {
        errors.body(
            "",
            must_be("a list of jobs", &body) + "; one job goes to /api/v1/jobs",
        );
        return Err(errors);
    };
    if items.len() > BATCH_MAX {
        errors.body(
            "",
            format!("must be at most {BATCH_MAX} jobs, not {}", items.len()),
        );
        return Err(errors);
    }
    let jobs: Vec<NewJob> = items
        .into_iter()
        .enumerate()
        .filter_map(|(i, item)| job(item, &format!("/{i}"), known, &mut errors))
        .collect();
    if errors.is_empty() {
        Ok(jobs)
    } else {
        Err(errors)
    }
}

/// Reads one job and adds its errors to `errors`; only with errors the result may be `None` or
/// unusable.
pub(in crate::api) fn job(
    value: Value,
    at: &str,
    known: &KnownKinds<'_>,
    errors: &mut Errors,
) -> Option<NewJob> {
    let mut fields = ObjectReader::open(value, at, &FIELDS, errors)?;
    let kind = kind(&mut fields, known);
    let mut job = NewJob::new(kind.clone().unwrap_or_default(), json!({}));
    if let Some(value) = fields.take("args") {
        job.args = value;
    }
    args(&mut fields, kind.as_deref(), &job.args, known);
    if let Some(name) = throttle(&mut fields) {
        job.throttle = name;
    }
    if let Some(key) = fields.text("key", 0..=KEY_BYTES_MAX) {
        job.key = key;
    }
    if let Some(priority) = fields.whole("priority", PRIORITIES, " (0 runs first)") {
        job.priority = priority as i32;
    }
    if let Some(value) = fields.take_nullable("run_at") {
        job.run_at = run_at(&mut fields, &value);
    }
    if let Some(attempts) = fields.whole("max_attempts", MAX_ATTEMPTS, "") {
        job.max_attempts = attempts as i32;
    }
    let unique_key = fields.take_nullable("unique_key");
    let is_unique = unique_key.is_some();
    if let Some(value) = unique_key {
        job.unique_key = fields.text_of("unique_key", value, 1..=KEY_BYTES_MAX);
        if job
            .unique_key
            .as_ref()
            .is_some_and(|key| key.starts_with(OF_SCHEDULES))
        {
            fields.wrong("unique_key", SCHEDULES_ONLY);
        }
    }
    job.unique_for = span(&mut fields, "unique_for", SPAN_MAX_S);
    if let Some(cost) = fields.positive("cost", COST_MAX, " tokens") {
        job.cost = cost;
    }
    if let Some(value) = fields.take_nullable("traceparent") {
        job.traceparent = traceparent(&mut fields, &value);
    }
    job.timeout_s = timeout(&mut fields);
    job.debounce_s = span(&mut fields, "debounce", SPAN_MAX_S);
    job.debounce_max_s = span(&mut fields, "debounce_max", DEBOUNCE_MAX_MAX_S);
    if let Some(replace) = fields.flag("replace") {
        job.replace = replace;
    }
    if fields.has("group") {
        job.group = fields.whole("group", GROUP_IDS, ", the number of a group");
    }
    if let Some(value) = fields.take_nullable("tags") {
        job.tags = tags(&mut fields, value);
    }
    if let Some(value) = fields.take_nullable("after") {
        job.after = after(&mut fields, value);
    }
    let has_fate = fields.has("after_failure");
    job.after_failure = fields.choice("after_failure", &AfterFailure::WORDS);
    if has_fate && job.after.is_empty() {
        fields.wrong("after_failure", "must be left out without after");
    }
    webhooks(&mut fields, &mut job);
    job.retry = retry(&mut fields);
    together(&mut fields, &job, is_unique);
    Some(job)
}

pub(super) fn tags(fields: &mut ObjectReader<'_>, value: Value) -> Vec<String> {
    let Value::Array(items) = value else {
        let allowed = format!("a list of at most {TAGS_MAX} texts of 1 to {TAG_BYTES_MAX} bytes");
        fields.refuse("tags", &allowed, &value);
        return Vec::new();
    };
    if items.len() > TAGS_MAX {
        let count = items.len();
        fields.wrong(
            "tags",
            format!("must be at most {TAGS_MAX} texts, not {count}"),
        );
        return Vec::new();
    }
    let mut tags: Vec<String> = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        match item {
            Value::String(tag) if is_tag(&tag) => {
                if !tags.contains(&tag) {
                    tags.push(tag);
                }
            }
            other => {
                let allowed =
                    format!("a text of 1 to {TAG_BYTES_MAX} bytes without control characters");
                fields.wrong_below("tags", &format!("/{index}"), must_be(&allowed, &other));
            }
        }
    }
    tags
}

fn after(fields: &mut ObjectReader<'_>, value: Value) -> Vec<i64> {
    let Value::Array(items) = value else {
        let allowed = format!("a list of at most {AFTER_MAX} numbers of jobs");
        fields.refuse("after", &allowed, &value);
        return Vec::new();
    };
    if items.len() > AFTER_MAX {
        let count = items.len();
        fields.wrong(
            "after",
            format!("must be at most {AFTER_MAX} numbers of jobs, not {count}"),
        );
    }
    let mut ids = Vec::new();
    for (index, item) in items.iter().enumerate().take(AFTER_MAX) {
        match item.as_i64().filter(|id| JOB_IDS.contains(id)) {
            Some(id) => ids.push(id),
            None => {
                let below = format!("/{index}");
                fields.wrong_below("after", &below, must_be("the number of a job", item));
            }
        }
    }
    ids
}

/// Returns the field of a job with webhooks that errors about them name.
pub(super) fn webhook_field(job: &NewJob) -> &'static str {
    if job.on_complete.is_some() {
        "on_complete"
    } else {
        "on_dead"
    }
}

/// Reads the webhooks of a job.
fn webhooks(fields: &mut ObjectReader<'_>, job: &mut NewJob) {
    job.webhook_secret = fields.text_or_null("webhook_secret", 1..=webhook::SECRET_BYTES_MAX);
    for name in ["on_complete", "on_dead"] {
        let Some(url) = fields.text_or_null(name, 1..=webhook::URL_BYTES_MAX) else {
            continue;
        };
        if let Some(message) = webhook::url_problem(&url) {
            fields.wrong(name, message);
        }
        let place = match name {
            "on_complete" => &mut job.on_complete,
            _ => &mut job.on_dead,
        };
        *place = Some(url);
    }
    let Some(secret) = &job.webhook_secret else {
        return;
    };
    if !job.has_webhooks() {
        fields.wrong(
            "webhook_secret",
            "must be left out without on_complete and on_dead",
        );
    } else if let Some(message) = webhook::secret_problem(secret) {
        fields.wrong("webhook_secret", message);
    }
}

fn is_tag(text: &str) -> bool {
    (1..=TAG_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn kind(fields: &mut ObjectReader<'_>, known: &KnownKinds<'_>) -> Option<String> {
    let names = known.names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(value) = fields.take("kind") else {
        fields.missing("kind", &any_of(&names));
        return None;
    };
    let kind = fields.text_of("kind", value, 1..=KIND_BYTES_MAX)?;
    if !names.contains(&kind.as_str()) {
        fields.wrong("kind", must_be_one_of(&names, &kind.into()));
        return None;
    }
    Some(kind)
}

pub(super) fn args(
    fields: &mut ObjectReader<'_>,
    kind: Option<&str>,
    args: &Value,
    known: &KnownKinds<'_>,
) {
    let bytes = serde_json::to_string(args).map_or(usize::MAX, |text| text.len());
    if bytes > ARGS_BYTES_MAX {
        fields.wrong("args", format!("must be at most {ARGS_BYTES_MAX} bytes (256 KiB), not {bytes}; keep large data elsewhere and pass a reference"));
        return;
    }
    let mut nuls = Vec::new();
    find_nul(args, "", &mut nuls);
    for at in nuls {
        fields.wrong_below("args", &at, "must be without the character NUL (\\u0000), which cannot be stored; remove it or encode the data, for instance as base64");
    }
    if let Some(kind) = kind {
        for issue in known.here.check(kind, args) {
            fields.wrong_below("args", &issue.pointer, issue.message);
        }
    }
}

/// Collects pointers to every text and every field name in `value` that holds a NUL.
pub fn find_nul(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.contains('\0') => found.push(at.to_owned()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(i, item)| find_nul(item, &format!("{at}/{i}"), found)),
        Value::Object(map) => {
            for (name, item) in map {
                let below = pointer(at, &name.replace('\0', "\\u0000"));
                if name.contains('\0') {
                    found.push(below.clone());
                }
                find_nul(item, &below, found);
            }
        }
        _ => {}
    }
}

pub(super) fn throttle(fields: &mut ObjectReader<'_>) -> Option<String> {
    let text = fields.text("throttle", 1..=crate::throttle::name::MAX_BYTES)?;
    let name = Name::new(text).map_err(|error| fields.wrong("throttle", error.to_string()));
    name.ok().map(|name| name.to_string())
}

/// Reads the time of a run.
pub fn run_at(fields: &mut ObjectReader<'_>, value: &Value) -> Option<Timestamp> {
    let parsed = value
        .as_str()
        .and_then(|text| text.parse::<Timestamp>().ok())
        .filter(|at| (0..7_289_654_400).contains(&at.as_second()));
    if parsed.is_none() {
        let allowed = format!("{TIME}, from 1970 to ten years from now");
        fields.refuse("run_at", &allowed, value);
    }
    parsed
}

/// Reads the waits of a job after failed attempts.
pub(super) fn retry(fields: &mut ObjectReader<'_>) -> Option<JobRetry> {
    if !fields.has("retry") {
        return None;
    }
    let mut waits = fields.part("retry", &["delay_s", "factor", "max_delay_s"])?;
    if !waits.has("delay_s") {
        let (least, most) = (JobRetry::DELAYS_S.start(), JobRetry::DELAYS_S.end());
        waits.missing(
            "delay_s",
            &format!("a number from {least} to {most} seconds"),
        );
    }
    let mut given = |name: &str, range, unit: &str| {
        let is_given = waits.has(name);
        is_given.then(|| waits.number(name, range, unit)).flatten()
    };
    let delay_s = given("delay_s", JobRetry::DELAYS_S, " seconds");
    let factor = given("factor", JobRetry::FACTORS, "");
    let max_delay_s = given("max_delay_s", JobRetry::DELAYS_S, " seconds");
    Some(JobRetry {
        delay_s: delay_s?,
        factor: factor.unwrap_or(JobRetry::USUAL_FACTOR),
        max_delay_s,
    })
}

/// Reads the timeout of an attempt.
pub(super) fn timeout(fields: &mut ObjectReader<'_>) -> Option<f64> {
    let seconds = span(fields, "timeout", SPAN_MAX_S)?;
    if seconds < TIMEOUT_MIN_S {
        fields.wrong(
            "timeout",
            format!("must be at least {TIMEOUT_MIN_S} seconds, not {seconds}"),
        );
    }
    Some(seconds)
}

/// Reads a length of time in seconds, given as a number or as a text.
fn span(fields: &mut ObjectReader<'_>, name: &str, max_s: f64) -> Option<f64> {
    let value = fields.take_nullable(name)?;
    let Some(text) = value.as_str() else {
        return fields.positive_of(
            name,
            &value,
            max_s,
            " seconds, or a text such as \"10 minutes\" or \"PT10M\"",
        );
    };
    let days_have_24_hours = SpanRelativeTo::days_are_24_hours();
    let seconds = text
        .parse::<Span>()
        .and_then(|span| span.to_duration(days_have_24_hours))
        .or_else(|_| text.parse::<SignedDuration>())
        .ok()
        .map(|duration| duration.as_secs_f64())
        .filter(|seconds| *seconds > 0.0 && *seconds <= max_s);
    if seconds.is_none() {
        let days = max_s / 86_400.0;
        let allowed = format!(
            "seconds as a number, or a text such as \"10 minutes\", \"1 hour 30 minutes\", \"7 days\" or \"PT10M\", above 0 and at most {days} days (no months or years)"
        );
        fields.refuse(name, &allowed, &value);
    }
    seconds
}

fn traceparent(fields: &mut ObjectReader<'_>, value: &Value) -> Option<String> {
    let text = value.as_str().filter(|text| NewJob::is_traceparent(text));
    if text.is_none() {
        let allowed = format!("a W3C trace parent such as \"{TRACEPARENT_EXAMPLE}\"");
        fields.refuse("traceparent", &allowed, value);
    }
    text.map(str::to_owned)
}

/// Checks fields that are valid only together with others, or only without them.
fn together(fields: &mut ObjectReader<'_>, job: &NewJob, is_unique: bool) {
    for (name, given) in [
        ("unique_for", job.unique_for.is_some()),
        ("debounce", job.debounce_s.is_some()),
        ("replace", job.replace),
    ] {
        if given && !is_unique {
            fields.wrong(name, "must be left out without unique_key");
        } else if given && name != "unique_for" && job.unique_for.is_some() {
            fields.wrong(
                name,
                "must be left out beside unique_for: the key is free when the job has ended",
            );
        }
    }
    if job.debounce_s.is_some() && job.run_at.is_some() {
        fields.wrong(
            "debounce",
            "must be left out beside run_at: it names the time itself",
        );
    }
    if job.group.is_some() && (job.replace || job.debounce_s.is_some()) {
        fields.wrong(
            "group",
            "must be left out beside replace and debounce: the job may take the place of one outside of the group",
        );
    }
    if !job.after.is_empty() && (job.replace || job.debounce_s.is_some()) {
        fields.wrong(
            "after",
            "must be left out beside replace and debounce: the job may take the place of one that waits for no other",
        );
    }
    if job.has_webhooks() && (job.replace || job.debounce_s.is_some()) {
        fields.wrong(
            webhook_field(job),
            "must be left out beside replace and debounce: the job may take the place of one without webhooks",
        );
    }
    match (job.debounce_s, job.debounce_max_s) {
        (None, Some(_)) => fields.wrong("debounce_max", "must be left out without debounce"),
        (Some(debounce), Some(max)) if max < debounce => {
            fields.wrong(
                "debounce_max",
                format!("must be at least the debounce of {debounce} seconds, not {max}"),
            );
        }
        _ => {}
    }
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
