//! Why a throttle runs as it does: one sentence for a tired operator.

use super::breaker::Phase;
use super::decision::{Decision, unix_s};
use super::explain::{number, seconds};
use super::view::{FindingView, SignalView, View};
use crate::throttle::{Mode, Status};

/// What is known about a throttle when somebody asks.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Its name.
    pub name: &'a str,
    /// The throttle; `None` if there is none of that name.
    pub status: Option<&'a Status>,
    /// Its governor; `None` if it has none or it has not decided yet.
    pub view: Option<&'a View>,
    /// The newest decision in the journal.
    pub decision: Option<&'a Decision>,
    /// Jobs that wait for it.
    pub ready: Option<u64>,
    /// Unix seconds.
    pub now: f64,
}

/// The sentence.
pub fn sentence(asked: Asked) -> String {
    let Some(status) = asked.status else {
        let waiting = waiting(asked.ready).unwrap_or_default();
        return format!("there is no throttle {0}; create it with: flyball throttle set {0} rps=10{waiting}", asked.name);
    };
    let mut text = format!("{} {}", asked.name, because(&asked, status));
    text += &waiting(asked.ready).unwrap_or_default();
    text.push('.');
    if matches!(status.knobs.mode, Mode::Auto | Mode::Shadow) {
        text += &found(&asked);
    }
    text
}

/// What the watchdogs have found, a sentence each.
fn found(asked: &Asked) -> String {
    let each = asked.view.into_iter().flat_map(|view| &view.findings);
    let tell = |f: &FindingView| {
        format!(" Watchdog, {} for {}: {}.", f.finding.word(), seconds(asked.now - unix_s(f.since)), f.sentence)
    };
    each.map(tell).collect()
}

fn because(asked: &Asked, status: &Status) -> String {
    let knobs = &status.knobs;
    if knobs.paused {
        return format!("is paused{}", writer(asked, status, "by"));
    }
    if let Some(problem) = status.problems.iter().find(|p| p.field == "rps") {
        return format!("runs at {} rps because its knob rps {}", number(status.effective_rps), problem.message);
    }
    if status.lease_lapsed {
        let since = knobs.valid_until_ms.map_or_else(String::new, |ms| format!(" for {}", seconds(asked.now - ms as f64 / 1e3)));
        let runs = if status.effective_rps == 0.0 {
            "is stopped (rps 0)".to_owned()
        } else {
            format!("runs at {} rps", number(status.effective_rps))
        };
        return format!(
            "{runs}, no faster than safe_rps {}, because no governor has renewed its knob{since}; is a process with the governor role running?",
            number(knobs.safe_rps)
        );
    }
    match knobs.mode {
        Mode::Auto => governed(asked, status),
        Mode::Manual => format!("{} (manual: the governor keeps its hands off)", by_hand(asked, status)),
        Mode::Off => format!("{} (off: nothing governs it)", by_hand(asked, status)),
        Mode::Shadow => {
            let would = asked.view.map_or_else(
                || "the governor has not decided yet".to_owned(),
                |view| format!("the governor would set {} rps: {}", number(view.rps), view.reason),
            );
            format!("{} (shadow: {would})", by_hand(asked, status))
        }
    }
}

/// A rate that a person set.
fn by_hand(asked: &Asked, status: &Status) -> String {
    match status.effective_rps {
        0.0 => format!("is stopped: rps 0 was set{}", writer(asked, status, "by")),
        r if r < 0.0 => format!("runs without a limit: rps -1 was set{}", writer(asked, status, "by")),
        r => format!("runs at {} rps because that was set{}", number(r), writer(asked, status, "by")),
    }
}

/// A rate that the governor set.
fn governed(asked: &Asked, status: &Status) -> String {
    let Some(view) = asked.view else {
        return format!("runs at {} rps; its mode is auto, but no governor has decided yet", number(status.effective_rps));
    };
    if view.breaker == Phase::Open {
        return format!("is stopped by its breaker: {}", view.reason);
    }
    if status.effective_rps == 0.0 {
        return format!(
            "is stopped: somebody set rps 0, and the governor leaves it so until somebody sets a rate{}",
            writer(asked, status, "; last written by")
        );
    }
    let runs = if status.effective_rps < 0.0 {
        "runs without a limit".to_owned()
    } else {
        format!("runs at {} rps", number(status.effective_rps))
    };
    let signal = view.signal.as_ref().and_then(|name| view.signals.iter().find(|s| s.name == *name));
    let reads = signal.map_or_else(|| view.reason.clone(), reads);
    let stale: Vec<&str> = view.signals.iter().filter(|s| s.stale).map(|s| s.name.as_str()).collect();
    let cause = match view.limiting.as_str() {
        _ if !stale.is_empty() => format!("{}{}", blind(view, &stale), problem(view, &stale)),
        "idle" => format!("nobody waits for its tokens, so it is not raised ({reads})"),
        "week" => format!("nobody waits for its tokens, and it stands ready at what this hour of the week has borne ({reads})"),
        "person" => {
            let left = view.held_until.map_or_else(String::new, |at| format!(" for {} more", seconds(unix_s(at) - asked.now)));
            format!("a person set it, and it is not raised{left} ({reads})")
        }
        "max" => format!("that is the highest rate allowed, max ({reads})"),
        "min" => format!("that is the lowest rate allowed, min ({reads})"),
        "slew" => format!("it grows as fast as is allowed ({reads})"),
        "late" => format!("the next reading is late and it is not raised without one ({reads})"),
        "confirm" => format!("it restarted after a trip and waits for a sample to confirm the rate ({reads})"),
        "floor" => format!("it is at the floor below its usual rate ({reads})"),
        _ => reads,
    };
    format!("{runs} because {cause}{}", moved(asked))
}

fn reads(signal: &SignalView) -> String {
    let Some(value) = signal.value else { return format!("{} has not been read yet", signal.name) };
    let age = signal.age_s.map_or_else(String::new, |age| format!(" ({} old)", seconds(age)));
    format!("{} is at {} of its setpoint {}{age}", signal.name, number(value), number(signal.setpoint))
}

fn blind(view: &View, stale: &[&str]) -> String {
    let ages = view.signals.iter().filter(|s| s.stale).filter_map(|s| s.age_s);
    let oldest = ages.fold(None, |most: Option<f64>, age| Some(most.map_or(age, |m| m.max(age))));
    match oldest {
        Some(age) => format!(
            "there has been no new reading of {} for {}: it is lowered towards safe_rps and not raised",
            stale.join(", "),
            seconds(age)
        ),
        None => format!("{} has never been read: it is lowered towards safe_rps and not raised", stale.join(", ")),
    }
}

fn problem(view: &View, stale: &[&str]) -> String {
    let told = view.signals.iter().filter(|s| stale.contains(&s.name.as_str())).find_map(|s| s.problem.as_ref());
    told.map_or_else(String::new, |problem| format!(" ({problem})"))
}

/// When the governor last moved the rate.
fn moved(asked: &Asked) -> String {
    asked.decision.map_or_else(String::new, |d| {
        let ago = seconds(asked.now - unix_s(d.at));
        let from = if d.previous_rps < 0.0 { "unlimited".to_owned() } else { format!("{} rps", number(d.previous_rps)) };
        if (d.rps - d.previous_rps).abs() <= 0.005 * d.rps.abs() {
            format!("; the governor looked {ago} ago and left it")
        } else {
            format!("; the governor last moved it {ago} ago from {from}")
        }
    })
}

/// Who wrote the knobs last, when and why, as far as it is known. A person's own `HSET` leaves no name.
fn writer(asked: &Asked, status: &Status, word: &str) -> String {
    let knobs = &status.knobs;
    if knobs.by.is_empty() {
        return String::new();
    }
    let ago = if knobs.at_ms > 0 { format!(" {} ago", seconds(asked.now - knobs.at_ms as f64 / 1e3)) } else { String::new() };
    let why = if knobs.why.is_empty() { String::new() } else { format!(" (\"{}\")", knobs.why) };
    format!(" {word} {}{ago}{why}", knobs.by)
}

fn waiting(ready: Option<u64>) -> Option<String> {
    Some(match ready? {
        0 => "; nothing waits".to_owned(),
        1 => "; 1 job waits".to_owned(),
        n => format!("; {n} jobs wait"),
    })
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
