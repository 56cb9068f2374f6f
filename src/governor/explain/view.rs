//! The governor of one throttle as people, pages and the API see it.
//!
//! It is built from the state, so that a process that does not lead can build the same view from
//! the stored one.

use jiff::Timestamp;
use serde_json::Value;

use crate::governor::actuator::Actuator;
use crate::governor::law::{DurationEvidence, LearnedQuota, Phase, Signal, Verdict};
use crate::governor::policy::{Policy, SignalKind, SignalSource};
use crate::governor::score::Score;
use crate::governor::state::ControlState;
use crate::governor::time::{timestamp, unix_s};
use crate::governor::watchdogs::Finding;

/// The state of a governor.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", schema(as = GovernorState))]
pub struct GovernorView {
    /// The knob that the governor sets: `rps` or `concurrency`.
    #[cfg_attr(feature = "api", schema(value_type = String, example = "rps"))]
    pub actuator: Actuator,
    /// The unit of that knob: `rps` (tokens per second) or `slots` (jobs at once). Every rate here
    /// is in this unit.
    #[cfg_attr(feature = "api", schema(example = "rps"))]
    pub unit: &'static str,
    /// The value that the governor chose; in shadow mode the value that it would set.
    pub rps: f64,
    /// The state of the breaker: `closed`, `half_open` or `open`.
    #[cfg_attr(feature = "api", schema(value_type = String, example = "closed"))]
    pub breaker: Phase,
    /// The time since which the breaker is in that state; `null` if it never changed.
    pub breaker_since: Option<Timestamp>,
    /// The signal or the bound that limits.
    pub limiting: String,
    /// The signal that asked for the lowest rate, even if a bound limited it further.
    pub signal: Option<String>,
    /// The reason for the rate, in one sentence.
    pub reason: String,
    /// The time of the last decision.
    pub at: Timestamp,
    /// The time until which a rate that a person set is not exceeded.
    pub held_until: Option<Timestamp>,
    /// The last trip of the breaker; in shadow mode the last simulated one.
    pub last_trip: Option<TripView>,
    /// The last edit of the mode or the rate outside the governor.
    pub manual_override: Option<OverrideView>,
    /// The comparison of the governor's own rate with the actual one, in shadow mode.
    pub shadow: Option<ShadowView>,
    /// The findings of the watchdogs that still hold.
    pub findings: Vec<FindingView>,
    /// The factor that the watchdogs apply to the gain: 1, 0.5 or 0.25.
    pub gain_factor: f64,
    /// The finding about the durations of jobs; `null` if the policy does not use them.
    pub durations: Option<DurationsView>,
    /// The signals that the governor reads, in the order of the policy.
    pub signals: Vec<SignalView>,
}

/// The finding about the durations of jobs.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", schema(as = DurationsState))]
pub struct DurationsView {
    /// The finding: `unknown` (they count), `informative` (they follow the load that jobs cause,
    /// and count) or `uninformative` (they do not reflect the load, and jobs are counted instead).
    #[cfg_attr(feature = "api", schema(value_type = String, example = "informative"))]
    pub verdict: Verdict,
    /// The time of the finding; `null` before the first one.
    pub since: Option<Timestamp>,
    /// The log odds that durations show the load, from -6 to 6.
    pub score: f64,
}

/// A trip of a breaker.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", schema(as = Trip))]
pub struct TripView {
    /// The time of the trip.
    pub at: Timestamp,
    /// The signal that tripped it; empty if the leader ended before it could record it.
    pub by: String,
    /// The reading, in multiples of the setpoint.
    pub height: f64,
}

/// An edit of the mode or the rate outside the governor.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", schema(as = ManualOverride))]
pub struct OverrideView {
    /// The knobs that were edited, with their new values.
    #[cfg_attr(feature = "api", schema(example = "mode manual, rps 30"))]
    pub what: String,
    /// The author of the edit, if known.
    pub by: Option<String>,
    /// The time of the edit.
    pub at: Timestamp,
    /// The reason for the edit; empty if none was given.
    pub why: String,
}

/// The comparison of the governor's own rate with the actual one since shadow mode began. The `own`
/// figures come from the governor's model.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", schema(as = Shadow))]
pub struct ShadowView {
    /// The time at which shadow mode began.
    pub since: Timestamp,
    /// The time that was compared, in seconds.
    pub seconds: f64,
    /// Jobs that were granted.
    pub jobs: f64,
    /// Jobs that its own rate would have granted.
    pub own_jobs: f64,
    /// The load above its setpoint over time, in setpoints times seconds.
    pub overload_s: f64,
    /// The overload at its own rate, in setpoints times seconds.
    pub own_overload_s: f64,
    /// The highest load, in multiples of the setpoint.
    pub peak: f64,
    /// The highest load at its own rate, in multiples of the setpoint.
    pub own_peak: f64,
    /// The load now, in multiples of the setpoint; `null` while nothing is read.
    pub load: Option<f64>,
    /// The load now at its own rate, in multiples of the setpoint.
    pub own_load: Option<f64>,
    /// Seconds in which it would have granted fewer jobs.
    pub lower_s: f64,
    /// Seconds in which it would have granted more jobs.
    pub higher_s: f64,
    /// Seconds in which its breaker would have been open.
    pub stopped_s: f64,
    /// Share of the time above the setpoint in which it would have reduced the rate; `null` without
    /// such a time.
    pub braked_share: Option<f64>,
    /// The comparison in one sentence.
    pub sentence: String,
}

/// A finding of a watchdog of a governor.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", schema(as = FindingState))]
pub struct FindingView {
    /// The kind of the finding: `oscillating`, `shared`, `unresponsive`, `unreachable` or `idle`.
    #[cfg_attr(feature = "api", schema(value_type = String, example = "unresponsive"))]
    pub finding: Finding,
    /// The time since which the finding holds.
    pub since: Timestamp,
    /// The finding, its evidence and its remedy, in one sentence.
    pub sentence: String,
}

/// One signal of a governor, in its own unit.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "api", schema(as = SignalState))]
pub struct SignalView {
    /// The name of the signal.
    pub name: String,
    /// The kind of the signal: `load`, `latency` or `ratio`.
    #[cfg_attr(feature = "api", schema(value_type = String, example = "load"))]
    pub kind: SignalKind,
    /// The last reading; `null` if there was none.
    pub value: Option<f64>,
    /// The target of the reading.
    pub setpoint: f64,
    /// The reading above which the rate is not raised; `null` without such a level.
    pub soft: Option<f64>,
    /// The threshold of the breaker: that of the policy, higher for a noisy signal.
    pub trip: f64,
    /// The rate for which the signal asks; `null` before its first reading.
    pub proposed_rps: Option<f64>,
    /// The unpublished quota that refusals have revealed; `null` for other signals and before the
    /// first refusal.
    pub learned_quota: Option<LearnedQuota>,
    /// The time of the reading itself.
    pub at: Option<Timestamp>,
    /// Age of the reading at the time of this answer, in seconds.
    pub age_s: Option<f64>,
    /// True if the reading is too old or unusable.
    pub stale: bool,
    /// The reason why the last reading failed; `null` if it did not, and for tenants.
    pub problem: Option<String>,
    /// The time at which the newest sample became visible, in unix seconds.
    #[serde(skip)]
    pub(crate) sampled_at: f64,
    /// The silence after which it is stale, in seconds.
    #[serde(skip)]
    pub(crate) stale_after_s: f64,
    /// The silence after which its next sample is late, in seconds.
    #[serde(skip)]
    pub(crate) late_after_s: f64,
    /// The time of the newest direct look in unix seconds, and its value.
    #[serde(skip)]
    pub(crate) looked: Option<(f64, f64)>,
    /// True if a high reading keeps an open breaker open.
    #[serde(skip)]
    pub(crate) keeps_open: bool,
}

impl GovernorView {
    /// Creates the view of `state` at `now`, unix seconds; `None` before the first plan.
    pub fn new(state: &ControlState, policy: &Policy, now: f64) -> Option<Self> {
        let plan = state.plan.as_ref()?;
        // In shadow mode the readings are real and the decisions simulated.
        let decides = state.shadow.as_ref().map_or(state, |shadow| &shadow.own);
        let asks: Vec<Option<f64>> = decides
            .signals
            .iter()
            .map(|signal| ask(decides, signal))
            .collect();
        let signals = state.signals.iter().zip(&policy.signals).zip(asks).map(
            |((signal, about), proposed_rps)| SignalView {
                name: signal.name.clone(),
                kind: about.kind,
                value: signal.value,
                setpoint: about.setpoint,
                soft: about.soft,
                trip: signal.trip_x * about.setpoint,
                proposed_rps,
                learned_quota: signal
                    .controller
                    .quota()
                    .and_then(|quota| quota.learned_quota(state.work.w)),
                at: signal.front.at.map(timestamp),
                age_s: None,
                stale: false,
                problem: signal.problem.clone(),
                sampled_at: signal.front.seen.unwrap_or(state.began_at),
                stale_after_s: signal.stale_after_s(about, &policy.law),
                late_after_s: policy.law.late_gaps * signal.front.gap_s,
                looked: signal.looked.map(|(at, x)| (at, x * about.setpoint)),
                keeps_open: about.trips && about.source != SignalSource::Feedback,
            },
        );
        let mut view = Self {
            actuator: policy.law.actuator,
            unit: policy.law.actuator.unit(),
            rps: plan.rps,
            breaker: plan.breaker,
            breaker_since: (decides.breaker.since > 0.0).then(|| timestamp(decides.breaker.since)),
            limiting: plan.limiting.clone(),
            signal: plan
                .terms
                .get("signal")
                .and_then(|name| name.as_str())
                .map(str::to_owned),
            reason: plan.reason.clone(),
            at: timestamp(state.at.unwrap_or(now)),
            held_until: state
                .hold
                .filter(|hold| now < hold.until)
                .map(|hold| timestamp(hold.until)),
            last_trip: decides.last_trip.as_ref().map(|trip| TripView {
                at: timestamp(trip.at),
                by: trip.by.clone(),
                height: trip.height,
            }),
            manual_override: state.overrides.last.as_ref().map(|last| OverrideView {
                what: last.what.clone(),
                by: last.by.clone(),
                at: timestamp(last.at),
                why: last.why.clone(),
            }),
            shadow: state
                .shadow
                .as_ref()
                .map(|shadow| ShadowView::of(&shadow.score)),
            findings: state
                .watchdogs
                .found
                .iter()
                .map(|f| FindingView {
                    finding: f.finding,
                    since: timestamp(f.since),
                    sentence: f.sentence.clone(),
                })
                .collect(),
            gain_factor: state.watchdogs.oscillation.gain_factor(),
            durations: policy
                .checks_durations()
                .then(|| DurationsView::of(&decides.work.evidence)),
            signals: signals.collect(),
        };
        view.age(now);
        Some(view)
    }

    /// Creates the view of a state as the journal stores it.
    pub fn of_stored(stored: Value, policy: &Policy, now: f64) -> Option<Self> {
        Self::new(&crate::governor::stored::read(stored, policy)?, policy, now)
    }

    /// Updates the ages to `now`, unix seconds.
    pub fn age(&mut self, now: f64) {
        for signal in &mut self.signals {
            signal.age_s = signal.at.map(|at| (now - unix_s(at)).max(0.0));
            signal.stale = now - signal.sampled_at > signal.stale_after_s;
        }
    }

    /// Removes the reasons of missing readings, which have addresses of servers and their words.
    pub fn without_problems(mut self) -> Self {
        for signal in &mut self.signals {
            signal.problem = None;
        }
        self
    }
}

impl DurationsView {
    fn of(evidence: &DurationEvidence) -> Self {
        Self {
            verdict: evidence.verdict,
            since: evidence.since.map(timestamp),
            score: evidence.score,
        }
    }
}

impl OverrideView {
    /// Returns the author, for a sentence.
    pub fn who(&self) -> &str {
        self.by.as_deref().unwrap_or("somebody")
    }
}

impl ShadowView {
    /// Creates the view of a score.
    pub fn of(score: &Score) -> Self {
        Self {
            since: timestamp(score.since),
            seconds: score.seconds,
            jobs: score.real.jobs,
            own_jobs: score.own.jobs,
            overload_s: score.real.overload_s,
            own_overload_s: score.own.overload_s,
            peak: score.real.peak,
            own_peak: score.own.peak,
            load: score.real.load,
            own_load: score.own.load,
            lower_s: score.lower_s,
            higher_s: score.higher_s,
            stopped_s: score.stopped_s,
            braked_share: score.braked_share(),
            sentence: score.sentence(),
        }
    }
}

/// Returns the knob that a signal asks for, in jobs per second or slots.
fn ask(state: &ControlState, signal: &Signal) -> Option<f64> {
    signal.front.at.filter(|_| signal.controller.has_rate())?;
    let rps = signal.u.exp() / state.work.w;
    rps.is_finite().then_some(rps)
}
