//! The explanation of a throttle's rate: one sentence for a tired operator.
//!
//! The rate comes first, then the limiting signal with its value, its setpoint and the sample's
//! age, then further facts: the rate by the next signal, the recent trend, the last trip, the last
//! manual change.
//!
//! ```text
//! 34.2 rps, held by search-load 1.96 of 2.00 (sample 14 s old); would be 51 by mongo-load; grew 3 %/min; last trip 12 min ago.
//! ```

use jiff::Timestamp;

use super::format::{number, seconds, tripped};
use super::limits::{besides_rate, by_windows};
use super::readings::{blind, keep_open, late, reads, unread};
use super::remedy;
use super::view::{FindingView, GovernorView, OverrideView, SignalView};
use crate::governor::actuator::{Actuator, is_breakers_zero};
use crate::governor::decision::Decision;
use crate::governor::law::{LearnedQuota, Phase, Verdict};
use crate::governor::manual_override::GOVERNOR;
use crate::governor::time::unix_s;
use crate::throttle::direct_change::is_changed_directly;
use crate::throttle::{Knobs, Mode, RateLimit, Status, made_from, no_throttle_of_job};

/// The time span of the trend, in seconds.
const TREND_S: f64 = 300.0;
/// The shortest time span for which a trend is reported, in seconds.
const MIN_TREND_S: f64 = 60.0;
/// The relative change per minute below which a rate is steady.
const STEADY_CHANGE: f64 = 0.01;
/// The age up to which a trip is reported, in seconds.
const TRIP_S: f64 = 7.0 * 86_400.0;
/// The age of a governor's last check from which it is gone, in seconds: more than three of the
/// longest ticks.
const GONE_S: f64 = 200.0;
/// The remedy for a governor that is gone.
const START_A_GOVERNOR: &str = "check that a process with the role governor is running, and that \
                                the one that leads has the throttle's knobs file";

/// The facts about a throttle from which the sentence is built.
#[derive(Clone, Copy, Debug)]
pub struct WhyInput<'a> {
    /// The name of the throttle.
    pub name: &'a str,
    /// The throttle's status; `None` if there is no throttle of that name.
    pub status: Option<&'a Status>,
    /// The view of its governor; `None` without a governor or before its first decision.
    pub view: Option<&'a GovernorView>,
    /// The decisions in the journal, newest first; those of the last minutes suffice.
    pub decisions: &'a [Decision],
    /// The pattern from which the first request for its tokens makes it.
    pub pattern: Option<&'a str>,
    /// The number of jobs that wait for it.
    pub ready: Option<u64>,
    /// The time of the query, in unix seconds.
    pub now: f64,
}

/// Returns the sentence that explains the throttle's rate.
pub fn sentence(requested: WhyInput) -> String {
    let Some(status) = requested.status else {
        let waiting =
            waiting(requested.ready).map_or_else(String::new, |waiting| format!("; {waiting}"));
        let name = requested.name;
        let how = match requested.pattern {
            Some(pattern) => made_from(pattern),
            None => format!("; create it with: flyball throttle set {name} rps=10"),
        };
        return no_throttle_of_job(name, &how) + &waiting;
    };
    let mut parts = because(&requested, status);
    parts.extend(waiting(requested.ready));
    let found = if matches!(status.knobs.mode, Mode::Auto | Mode::Shadow) {
        found(&requested)
    } else {
        String::new()
    };
    parts.join("; ") + "." + &found
}

/// Returns the findings of the watchdogs, one sentence each.
fn found(requested: &WhyInput) -> String {
    let each = requested.view.into_iter().flat_map(|view| &view.findings);
    let tell = |f: &FindingView| {
        format!(
            " Watchdog, {} for {}: {}.",
            f.finding.as_str(),
            seconds(requested.now - unix_s(f.since)),
            f.sentence
        )
    };
    each.map(tell).collect()
}

fn because(requested: &WhyInput, status: &Status) -> Vec<String> {
    let knobs = &status.knobs;
    if knobs.paused {
        return vec![
            format!("paused{}", writer(requested, status, " by")),
            remedy::resume(requested.name),
        ];
    }
    let actuator = actuator(requested);
    let field = actuator.field();
    let windows = by_windows(requested.name, knobs).filter(|_| actuator == Actuator::Rps);
    let rate = match (actuator.in_force(status), windows) {
        (RateLimit::Unlimited, Some(windows)) => windows,
        (knob, Some(windows)) => format!("{} and {windows}", rate(actuator, knob)),
        (knob @ RateLimit::Unlimited, None) => {
            besides_rate(requested.name, knobs).unwrap_or_else(|| rate(actuator, knob))
        }
        (knob, None) => rate(actuator, knob),
    };
    if let Some(problem) = status.problems.iter().find(|p| p.field == field) {
        return vec![format!(
            "{rate}, because its knob {field} {}",
            problem.message
        )];
    }
    if knobs.is_limited_by_capacity(status.at_us) {
        let why = if knobs.capacity_reason.is_empty() {
            String::new()
        } else {
            format!(": {}", knobs.capacity_reason)
        };
        let most = if status.effective_rps.is_stopped() {
            "nothing"
        } else {
            "no more"
        };
        return vec![format!(
            "{rate}, because the system behind it can take {most}{why}"
        )];
    }
    // A person's stop holds with and without a governor.
    let is_stopped_by_hand = knobs.rps.is_stopped() && !is_breakers_zero(&status.raw, field);
    if status.lease_expired && actuator == Actuator::Rps && !is_stopped_by_hand {
        return lapsed(requested, knobs, &rate);
    }
    match knobs.mode {
        Mode::Auto => governed(requested, status, &rate),
        Mode::Manual => {
            let ends = knobs
                .manual_until_ms
                .map(|ms| ms as f64 / 1e3 - requested.now);
            let ends = ends.map_or_else(String::new, |left| match left {
                _ if requested.view.is_none() && requested.decisions.is_empty() => {
                    " (its end is ignored, because the throttle has no governor)".to_owned()
                }
                left if left > 0.0 => format!(" for {} more", seconds(left)),
                _ => " until the governor's next tick".to_owned(),
            });
            let ending = requested.view.filter(|_| !ends.is_empty());
            let gone = ending.and_then(|view| gone(requested, view, "so nothing ends this mode"));
            let mut parts = vec![
                by_hand(requested, status, &rate),
                format!("mode manual: the governor changes nothing{ends}"),
            ];
            parts.extend(gone);
            parts
        }
        Mode::Off => vec![
            by_hand(requested, status, &rate),
            "mode off: no governor controls it".to_owned(),
        ],
        Mode::Shadow => {
            let mut parts = vec![by_hand(requested, status, &rate)];
            let Some(view) = requested.view else {
                let decided = last_decision(requested);
                parts.push(decided.map_or_else(
                    || "mode shadow: the governor has not decided yet".to_owned(),
                    |decided| format!("mode shadow: {decided}"),
                ));
                return parts;
            };
            parts.push(format!(
                "mode shadow: the governor would set {}, {}",
                self::rate(view.actuator, RateLimit::new(view.rps)),
                holds(requested, view)
            ));
            parts.extend(runner_up(view));
            parts.extend(view.shadow.as_ref().map(|shadow| shadow.sentence.clone()));
            parts.extend(gone(requested, view, "so this is out of date"));
            parts
        }
    }
}

/// Returns the phrases for a rate whose lease has lapsed.
fn lapsed(requested: &WhyInput, knobs: &Knobs, rate: &str) -> Vec<String> {
    let since = knobs.valid_until_ms.map_or_else(String::new, |ms| {
        format!(" for {}", seconds(requested.now - ms as f64 / 1e3))
    });
    // The breaker's zero is below safe_rps and stays.
    let stands = if knobs.rps.is_stopped() {
        format!("{}, and nothing restarts it", by_breaker(requested))
    } else {
        format!(
            "{rate}, limited to safe_rps {}",
            number(knobs.safe_rps.number())
        )
    };
    let policy = match requested.view {
        Some(_) => "",
        // A removed or renamed file leaves the throttle without a governor, whatever runs.
        None => " with a [[signal]], or set mode=manual",
    };
    vec![
        format!("{stands}, because no governor has renewed its lease{since}"),
        format!("{START_A_GOVERNOR}{policy}"),
    ]
}

/// Returns the phrase for a stop by the breaker, with its last trip if that is known.
fn by_breaker(requested: &WhyInput) -> String {
    let trip = requested.view.and_then(|view| view.last_trip.as_ref());
    let told = trip.map_or_else(String::new, |trip| {
        let ago = seconds(requested.now - unix_s(trip.at));
        format!(" ({} {ago} ago)", tripped(&trip.by, trip.height))
    });
    format!("stopped by the breaker{told}")
}

/// Returns the phrase for a manual rate, or for a stop by the breaker that a person left.
fn by_hand(requested: &WhyInput, status: &Status, rate: &str) -> String {
    let field = actuator(requested).field();
    if is_breakers_zero(&status.raw, field) {
        return format!(
            "{}, and in mode {} nothing restarts it: set {field}, or mode=auto",
            by_breaker(requested),
            status.knobs.mode.as_str()
        );
    }
    let set = writer(requested, status, " by");
    let set = if set.is_empty() { " manually" } else { &set };
    let remedy = remedy::of_zero(requested.name, &status.knobs);
    format!("{rate}, set{set}{remedy}")
}

/// Returns the phrases for a governed rate.
fn governed(requested: &WhyInput, status: &Status, rate: &str) -> Vec<String> {
    let Some(view) = requested.view else {
        let Some(decided) = last_decision(requested) else {
            return vec![
                rate.to_owned(),
                "its mode is auto, but no governor has decided yet: that takes a [[signal]] in its \
                 knobs file, and a process with the role governor that has this file"
                    .to_owned(),
            ];
        };
        let slots = status.knobs.concurrency.filter(|slots| *slots > 0);
        let slots = slots.map_or_else(String::new, |slots| {
            let slots = Actuator::Concurrency.amount(&slots.to_string());
            format!(", and at most {slots}")
        });
        return vec![format!("{rate}{slots}"), decided];
    };
    if view.breaker == Phase::Open {
        let mut parts = vec![format!("{rate} by the breaker: {}", view.reason)];
        match gone(requested, view, "so nothing restarts it") {
            Some(gone) => parts.push(gone),
            None => parts.extend(keep_open(view)),
        }
        return parts;
    }
    if view.actuator.in_force(status).is_stopped() {
        let who = writer(requested, status, " by");
        let field = if status.effective_rps.is_stopped() {
            "rps"
        } else {
            view.actuator.field()
        };
        return vec![
            format!("{rate}{who} ({field} 0)"),
            "the governor leaves it stopped".to_owned(),
            remedy::set(requested.name, field),
        ];
    }
    let mut parts = vec![format!("{rate}, {}", holds(requested, view))];
    parts.extend(gone(requested, view, "so its knob stays as it is"));
    if view.breaker == Phase::HalfOpen && view.limiting != "confirm" {
        parts.push("probing after a trip (breaker half open)".to_owned());
    }
    parts.extend(runner_up(view));
    parts.extend(quotas(requested, view));
    parts.extend(durations(requested, view));
    parts.extend(trend(requested, status));
    if let Some(trip) = view
        .last_trip
        .as_ref()
        .filter(|trip| requested.now - unix_s(trip.at) < TRIP_S)
    {
        let by = if trip.by.is_empty() || view.signal.as_ref() == Some(&trip.by) {
            String::new()
        } else {
            format!(" by {}", trip.by)
        };
        parts.push(format!(
            "last trip {} ago{by}",
            seconds(requested.now - unix_s(trip.at))
        ));
    }
    parts
}

/// Returns the phrase for a governor that has not looked for long, with what follows; `None` while
/// one is at work.
fn gone(requested: &WhyInput, view: &GovernorView, so: &str) -> Option<String> {
    gone_s(view.at, requested.now).map(|age_s| {
        format!(
            "no governor has looked at it for {}, {so}; {START_A_GOVERNOR}",
            seconds(age_s)
        )
    })
}

/// Returns for how long a governor that is gone has not looked, in seconds; `None` while one is at
/// work.
pub fn gone_s(looked_at: Timestamp, now: f64) -> Option<f64> {
    Some(now - unix_s(looked_at)).filter(|age_s| *age_s > GONE_S)
}

/// Returns the phrase for the last decision in the journal, for a process that lacks the policy and
/// so knows no signals; `None` without a decision.
fn last_decision(requested: &WhyInput) -> Option<String> {
    let last = requested.decisions.first()?;
    let age_s = requested.now - unix_s(last.at);
    let then = if age_s > GONE_S {
        START_A_GOVERNOR
    } else {
        "its signals are unknown here, because its policy is not in the knobs files of this process"
    };
    Some(format!(
        "its governor decided {} ago: {}; {then}",
        seconds(age_s),
        last.reason
    ))
}

/// Returns the phrase for what holds the rate, and the reason.
fn holds(requested: &WhyInput, view: &GovernorView) -> String {
    let stale: Vec<&str> = view
        .signals
        .iter()
        .filter(|s| s.stale)
        .map(|s| s.name.as_str())
        .collect();
    if !stale.is_empty() {
        return blind(view, &stale);
    }
    let signal = view
        .signal
        .as_ref()
        .and_then(|name| view.signals.iter().find(|s| s.name == *name));
    let reads = signal.map_or_else(String::new, |signal| format!(", {}", reads(signal)));
    let reported = match view.limiting.as_str() {
        "idle" if view.actuator == Actuator::Concurrency => {
            "not raised, because no job waits for its slots"
        }
        "idle" => "not raised, because no job waits for its tokens",
        "max" if view.actuator == Actuator::Concurrency => "the most slots allowed (max)",
        "min" if view.actuator == Actuator::Concurrency => "the fewest slots allowed (min)",
        // A calibration sets the rate, or the governor has just taken over.
        "person" if view.held_until.is_none() => return view.reason.clone(),
        "person" => {
            let left = view.held_until.map_or_else(String::new, |at| {
                format!(" for {} more", seconds(unix_s(at) - requested.now))
            });
            let who = view
                .manual_override
                .as_ref()
                .map_or("a person", OverrideView::who);
            return format!(
                "set by {who}{} and not raised{left}{reads}",
                reason_of(view.manual_override.as_ref())
            );
        }
        "max" => "the highest rate allowed (max or capacity)",
        "min" => "the lowest rate allowed (min)",
        "slew" => "rising at the fastest allowed rate",
        "soft" => {
            let above = view
                .signals
                .iter()
                .find_map(|s| Some((s, s.soft.filter(|soft| s.value.is_some_and(|v| v > *soft))?)));
            let above = above.map_or_else(
                || "a signal is above its soft level".to_owned(),
                |(s, soft)| format!("{} is above its soft level {}", s.name, number(soft)),
            );
            return format!("not raised, because {above}{reads}");
        }
        "week" => "ready at the usual rate of this hour of the week, because no job waits",
        "late" => return format!("not raised, because {}{reads}", late(view, requested.now)),
        "confirm" => "restarted after a trip, and not raised until a sample confirms it",
        "floor" => "at the floor below its usual rate",
        "start" => return format!("held, because no signal has been read yet{}", unread(view)),
        _ => {
            return signal.map_or_else(
                || view.reason.clone(),
                |signal| format!("held by {}", self::reads(signal)),
            );
        }
    };
    format!("{reported}{reads}")
}

/// Returns the rate that the next signal would allow if the limiting signal did not limit.
fn runner_up(view: &GovernorView) -> Option<String> {
    let others = view
        .signals
        .iter()
        .filter(|s| Some(&s.name) != view.signal.as_ref() && !s.stale);
    let (name, rps) = others
        .filter_map(|s| Some((&s.name, s.proposed_rps?)))
        .filter(|(_, rps)| *rps > view.rps)
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    view.signal
        .is_some()
        .then(|| format!("would be {} by {name}", number(rps)))
}

/// Returns the phrases for the quotas learned from refusals.
fn quotas(requested: &WhyInput, view: &GovernorView) -> Option<String> {
    let each = view
        .signals
        .iter()
        .filter_map(|s| Some((s, s.learned_quota?)));
    let tell = |(signal, quota): (&SignalView, LearnedQuota)| {
        let ago = seconds(requested.now - unix_s(quota.at));
        let refused = number(100.0 * quota.refused_share);
        let quota = view.actuator.amount(&number(quota.rps));
        format!(
            "{} learned a quota of {quota} {ago} ago, when {refused} % were refused",
            signal.name
        )
    };
    let reported: Vec<String> = each.map(tell).collect();
    (!reported.is_empty()).then(|| reported.join("; "))
}

/// Returns the phrase for durations that do not count.
fn durations(requested: &WhyInput, view: &GovernorView) -> Option<String> {
    let found = view.durations.as_ref()?;
    let ago = found.since.map_or_else(String::new, |at| {
        format!(", found {} ago", seconds(requested.now - unix_s(at)))
    });
    (found.verdict == Verdict::Uninformative)
        .then(|| format!("job durations do not reflect the load{ago}, so jobs are counted"))
}

/// Returns the trend of the rate in the last minutes.
fn trend(requested: &WhyInput, status: &Status) -> Option<String> {
    let recent = requested
        .decisions
        .iter()
        .take_while(|d| requested.now - unix_s(d.at) <= TREND_S && d.mode == Mode::Auto);
    let oldest = recent.last()?;
    let from = oldest.previous_rps.rate()?;
    let to = actuator(requested).in_force(status).rate()?;
    let passed_s = requested.now - unix_s(oldest.at);
    if passed_s < MIN_TREND_S {
        return None;
    }
    let a_minute = (to / from).powf(60.0 / passed_s) - 1.0;
    Some(match a_minute {
        g if g >= STEADY_CHANGE => format!("grew {:.0} %/min", 100.0 * g),
        g if g <= -STEADY_CHANGE => format!("fell {:.0} %/min", -100.0 * g),
        _ => format!("steady for {}", seconds(passed_s)),
    })
}

/// Returns the author, age and reason of the last manual change, as the governor saw it or else as
/// the hash records it; that it was made in Redis if nobody is named; empty if unknown.
fn writer(requested: &WhyInput, status: &Status, word: &str) -> String {
    let knobs = &status.knobs;
    let seen = requested
        .view
        .and_then(|view| view.manual_override.as_ref());
    let recorded_at = knobs.at_ms as f64 / 1e3;
    // A change recorded after the governor's last check is newer than the one it saw.
    let is_newest = |last: &&OverrideView| unix_s(last.at) >= recorded_at || knobs.by == GOVERNOR;
    // A change that was made in Redis without an author, or with another, is newer as well.
    let is_other = |last: &&OverrideView| last.by.as_ref().is_some_and(|by| *by != knobs.by);
    let is_direct = is_changed_directly(&status.raw);
    let is_told = |last: &&OverrideView| is_newest(last) && !(is_direct && is_other(last));
    if let Some(last) = seen.filter(is_told) {
        return format!(
            "{word} {} {} ago{}",
            last.who(),
            seconds(requested.now - unix_s(last.at)),
            reason_of(Some(last))
        );
    }
    if knobs.by.is_empty() {
        let place = if is_direct { " in Redis directly" } else { "" };
        return place.to_owned();
    }
    let ago = if knobs.at_ms > 0 {
        format!(" {} ago", seconds(requested.now - recorded_at))
    } else {
        String::new()
    };
    let why = if knobs.why.is_empty() {
        String::new()
    } else {
        format!(" (\"{}\")", knobs.why)
    };
    format!("{word} {}{ago}{why}", knobs.by)
}

fn reason_of(last: Option<&OverrideView>) -> String {
    last.filter(|last| !last.why.is_empty())
        .map_or_else(String::new, |last| format!(" (\"{}\")", last.why))
}

/// Returns the kind of knob that its governor sets; the rate without a governor.
fn actuator(requested: &WhyInput) -> Actuator {
    requested.view.map_or(Actuator::Rps, |view| view.actuator)
}

fn rate(actuator: Actuator, knob: RateLimit) -> String {
    match knob {
        RateLimit::Stopped => "stopped".to_owned(),
        RateLimit::Unlimited => "no limit".to_owned(),
        RateLimit::PerSecond(rps) => actuator.amount(&number(rps)),
    }
}

fn waiting(ready: Option<u64>) -> Option<String> {
    Some(match ready? {
        0 => "nothing waits".to_owned(),
        1 => "1 job waits".to_owned(),
        n => format!("{n} jobs wait"),
    })
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
