//! The governor of one throttle as people and pages see it.
//!
//! It is built from the state, so that a process that does not lead can build the same view from
//! the stored one.

use jiff::Timestamp;
use serde_json::Value;

use super::actuator::Actuator;
use super::breaker::Phase;
use super::decision::timestamp;
use super::manual_override::ManualOverride;
use super::plan::ControlState;
use super::policy::{Policy, SignalKind};
use super::score::Score;
use super::signal::Signal;
use super::watchdogs::Finding;

/// A summary of a governor.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct View {
    /// The kind of knob that it sets.
    pub actuator: Actuator,
    /// The knob of the newest plan, in jobs per second or slots.
    pub rps: f64,
    /// The phase of the breaker.
    pub breaker: Phase,
    /// The start of the breaker's phase; `None` if it never changed.
    pub breaker_since: Option<Timestamp>,
    /// The deciding signal, or another value of [`super::Plan::limiting`].
    pub limiting: String,
    /// The signal that asked for the lowest rate, even if a bound limited it further.
    pub signal: Option<String>,
    /// The reason, one sentence.
    pub reason: String,
    /// The time of the newest tick.
    pub at: Timestamp,
    /// The end of a manual rate's hold, until which it is not exceeded.
    pub held_until: Option<Timestamp>,
    /// The last trip; in shadow mode the last simulated one.
    pub last_trip: Option<TripView>,
    /// The last manual change of mode or rate, if the governor saw one.
    pub hand: Option<ManualOverride>,
    /// The score of shadow mode; `None` in other modes.
    pub shadow: Option<Score>,
    /// The current findings of the watchdogs.
    pub findings: Vec<FindingView>,
    /// The gain left by the watchdogs as a factor: 1, 1/2 or 1/4.
    pub gain_factor: f64,
    /// The signals, in the order of the policy.
    pub signals: Vec<SignalView>,
}

/// A summary of a trip.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TripView {
    /// The time of the trip.
    pub at: Timestamp,
    /// The signal that tripped the breaker.
    pub by: String,
    /// The height of the signal that tripped the breaker, in setpoints.
    pub height: f64,
}

/// A finding of a watchdog.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FindingView {
    pub finding: Finding,
    /// The time at which the finding began.
    pub since: Timestamp,
    /// One sentence: the finding, the evidence, the remedy.
    pub sentence: String,
}

/// A summary of a signal, in its own unit.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SignalView {
    /// The name in the policy.
    pub name: String,
    /// The way in which it responds to the rate.
    pub kind: SignalKind,
    /// The newest value, in the signal's own unit.
    pub value: Option<f64>,
    /// The value to hold, in the signal's own unit.
    pub setpoint: f64,
    /// The value above which the rate is not raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soft: Option<f64>,
    /// The value that trips the breaker now; the policy's, raised for a noisy signal.
    pub trip: f64,
    /// The knob that the signal asks for, in jobs per second or slots; `None` before its first
    /// sample.
    pub ask_rps: Option<f64>,
    /// The quota learned from refusals; for ratio signals only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned_quota: Option<QuotaView>,
    /// The time of the newest sample.
    pub at: Option<Timestamp>,
    /// The age of the newest sample, in seconds.
    pub age_s: Option<f64>,
    /// True if there has been no new sample for too long.
    pub stale: bool,
    /// The reason why the last reading failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The time at which the newest sample became visible, in unix seconds.
    #[serde(skip)]
    heard_at: f64,
    #[serde(skip)]
    /// The silence after which it is stale, in seconds.
    stale_after_s: f64,
}

/// A quota learned from refusals.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct QuotaView {
    /// The throughput within the quota, in tokens per second or slots.
    pub rps: f64,
    /// The time of the newest refusal, which measured it.
    pub at: Timestamp,
    /// The share refused at the newest refusal.
    pub refused_share: f64,
}

impl QuotaView {
    /// Returns the quota that `signal` has learned, for `w` of work per job.
    pub(super) fn of(signal: &Signal, w: f64) -> Option<Self> {
        let (quota, learned) = (signal.quota?, signal.learned?);
        let rps = quota / w;
        rps.is_finite().then(|| Self {
            rps,
            at: timestamp(learned.at),
            refused_share: learned.share,
        })
    }
}

impl View {
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
            |((signal, about), ask_rps)| SignalView {
                name: signal.name.clone(),
                kind: about.kind,
                value: signal.value,
                setpoint: about.setpoint,
                soft: about.soft,
                trip: signal.trip_x * about.setpoint,
                ask_rps,
                learned_quota: QuotaView::of(signal, state.work.w),
                at: signal.front.at.map(timestamp),
                age_s: None,
                stale: false,
                problem: None,
                heard_at: signal.front.seen.unwrap_or(state.began_at),
                stale_after_s: state.stale_after_s(policy, signal),
            },
        );
        let mut view = Self {
            actuator: policy.law.actuator,
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
            last_trip: decides.tripped.as_ref().map(|trip| TripView {
                at: timestamp(trip.at),
                by: trip.by.clone(),
                height: trip.height,
            }),
            hand: state.watch.hand.clone(),
            shadow: state.shadow.as_ref().map(|shadow| shadow.score.clone()),
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
            signals: signals.collect(),
        };
        view.age(now);
        Some(view)
    }

    /// Creates the view of a state as the journal stores it.
    pub fn of_stored(stored: Value, policy: &Policy, now: f64) -> Option<Self> {
        Self::new(&ControlState::stored(stored, policy)?, policy, now)
    }

    /// Updates the ages to `now`, unix seconds.
    pub fn age(&mut self, now: f64) {
        for signal in &mut self.signals {
            signal.age_s = signal
                .at
                .map(|at| (now - super::decision::unix_s(at)).max(0.0));
            signal.stale = now - signal.heard_at > signal.stale_after_s;
        }
    }
}

/// Returns the knob that a signal asks for, in jobs per second or slots.
fn ask(state: &ControlState, signal: &Signal) -> Option<f64> {
    signal
        .front
        .at
        .filter(|_| signal.started || signal.quota.is_some())?;
    let rps = signal.u.exp() / state.work.w;
    rps.is_finite().then_some(rps)
}
