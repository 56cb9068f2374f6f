//! Throttles as text: the table of all of them, and one with its knobs.

use std::sync::Arc;

use serde_json::json;

use crate::cli::output::{self, say};
use crate::governor::explain::limits::{besides_rate, by_windows};
use crate::throttle::direct_change::{WRITTEN, is_author_unknown, is_changed_directly};
use crate::throttle::{Name, RateLimit, Status, Store};

/// Prints all throttles, with the limits of the API only if asked for.
pub(super) async fn list(
    store: &Arc<dyn Store>,
    with_limits: bool,
    json: bool,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for name in store.names().await? {
        all.extend(store.status(&name).await?);
    }
    if json {
        return output::json(&json!({ "throttles": all }));
    }
    let header = [
        "THROTTLE", "RPS", "BURST", "WINDOW", "MODE", "PARENT", "BY", "NOTE",
    ];
    let (limits, work): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|status| !with_limits && status.name.as_str().starts_with("api:"));
    output::table(&header, work.into_iter().map(row))?;
    if !limits.is_empty() {
        say!(
            "and {} limits of the API, api:*; --all lists them",
            limits.len()
        );
    }
    Ok(())
}

fn row(status: &Status) -> Vec<String> {
    let knobs = &status.knobs;
    vec![
        status.name.to_string(),
        output::rate(status.effective_rps),
        knobs.burst.to_string(),
        format!("{} s", knobs.window),
        mode(status),
        knobs
            .parent
            .as_ref()
            .map(Name::to_string)
            .unwrap_or_default(),
        knobs.by.clone(),
        note(status),
    ]
}

fn mode(status: &Status) -> String {
    serde_json::to_value(status.knobs.mode)
        .ok()
        .and_then(|mode| mode.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Returns the pause, the expired lease and the problems of a throttle as one text.
pub(super) fn note(status: &Status) -> String {
    let mut notes = Vec::new();
    if status.knobs.paused {
        notes.push("paused".to_owned());
    }
    if is_changed_directly(&status.raw) {
        notes.push("changed in Redis directly".to_owned());
    }
    if status.lease_expired {
        notes.push("the governor's lease has expired; safe_rps is in force".to_owned());
    }
    notes.extend(
        status
            .problems
            .iter()
            .map(|problem| format!("{}: {}", problem.field, problem.message)),
    );
    notes.join("; ")
}

/// Prints one throttle with all of its knobs.
pub(super) fn show(status: &Status) -> anyhow::Result<()> {
    say!("{:<15} {}", "throttle", status.name);
    say!("{:<15} {}", "in force", in_force(status));
    // Fields of an edit through Flyball do not tell of one in Redis after it.
    let is_outdated = |field: &str| match field {
        "at" => is_changed_directly(&status.raw),
        "by" | "why" => is_author_unknown(&status.raw),
        _ => false,
    };
    let (edit, knobs): (Vec<_>, Vec<_>) = status
        .raw
        .iter()
        .filter(|(field, _)| *field != WRITTEN && !is_outdated(field.as_str()))
        .partition(|(field, _)| EDIT.contains(&field.as_str()));
    for (field, value) in knobs.into_iter().chain(edit) {
        let time = value
            .parse()
            .ok()
            .filter(|_| TIMES.contains(&field.as_str()))
            .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        match time {
            Some(time) => say!("{field:<15} {time:.0}"),
            None => say!("{field:<15} {value}"),
        }
    }
    if !note(status).is_empty() {
        say!("{:<15} {}", "note", note(status));
    }
    Ok(())
}

/// Returns the rate in force; of a throttle without one its other limits.
fn in_force(status: &Status) -> String {
    let (name, knobs) = (status.name.as_str(), &status.knobs);
    let others = by_windows(name, knobs).or_else(|| besides_rate(name, knobs));
    match (status.effective_rps, others) {
        (RateLimit::Unlimited, Some(others)) => others,
        (rate, _) => output::rate(rate),
    }
}

/// Fields about the last edit of the knobs, shown behind them.
const EDIT: [&str; 6] = ["at", "by", "why", "seq", "term", "valid_until"];

/// Fields that hold times, in unix milliseconds.
const TIMES: [&str; 3] = ["at", "valid_until", "manual_until_ms"];
