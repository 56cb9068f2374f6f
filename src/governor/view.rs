//! The governor of one throttle as people and pages see it. Made from the state, so that a process that does not lead can
//! make the same from the stored one.

use jiff::Timestamp;
use serde_json::Value;

use super::actuator::Actuator;
use super::breaker::Phase;
use super::decision::timestamp;
use super::hand::Hand;
use super::plan::State;
use super::policy::{Kind, Policy};
use super::score::Score;
use super::signal::Signal;
use super::watchdogs::Finding;

/// A governor at a glance.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct View {
    /// The knob that it turns.
    pub actuator: Actuator,
    /// The knob of its newest plan, in jobs per second or slots.
    pub rps: f64,
    /// The breaker.
    pub breaker: Phase,
    /// Since when the breaker stands there; `None` if it never moved.
    pub breaker_since: Option<Timestamp>,
    /// Who decided: a signal, or a word of [`super::Plan::limiting`].
    pub limiting: String,
    /// The signal that asked for the lowest rate, whoever limited it further.
    pub signal: Option<String>,
    /// The reason, one sentence.
    pub reason: String,
    /// When.
    pub at: Timestamp,
    /// Until when a person's rate is not exceeded.
    pub held_until: Option<Timestamp>,
    /// The last trip; in shadow mode the last one on paper.
    pub last_trip: Option<TripView>,
    /// The last hand on the mode or the rate, if the governor saw one.
    pub hand: Option<Hand>,
    /// The score of shadow mode, while it lasts.
    pub shadow: Option<Score>,
    /// What the watchdogs have found and still holds.
    pub findings: Vec<FindingView>,
    /// What the watchdogs leave of the gain: 1, 1/2 or 1/4.
    pub gain_factor: f64,
    /// The signals, in the order of the policy.
    pub signals: Vec<SignalView>,
}

/// A trip at a glance.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TripView {
    /// When.
    pub at: Timestamp,
    /// The signal that tripped the breaker.
    pub by: String,
    /// How high it was, in setpoints.
    pub height: f64,
}

/// What a watchdog has found.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FindingView {
    /// What.
    pub finding: Finding,
    /// Since when.
    pub since: Timestamp,
    /// One sentence: what, the evidence, what to do.
    pub sentence: String,
}

/// A signal at a glance, in its own unit.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SignalView {
    /// Its name.
    pub name: String,
    /// How it answers to the rate.
    pub kind: Kind,
    /// The newest value.
    pub value: Option<f64>,
    /// The value to hold.
    pub setpoint: f64,
    /// The value above which the rate is not raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soft: Option<f64>,
    /// The value that trips the breaker now; the policy's, raised for a noisy signal.
    pub trip: f64,
    /// The knob that it asks for, in jobs per second or slots; `None` before its first sample.
    pub ask_rps: Option<f64>,
    /// What refusals have taught of a quota; a ratio signal's alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learned_quota: Option<QuotaView>,
    /// The newest sample's own time.
    pub at: Option<Timestamp>,
    /// Its age in seconds.
    pub age_s: Option<f64>,
    /// Nothing new became visible for too long.
    pub stale: bool,
    /// Why it could not be read the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When it was last heard of, and how long silence is borne.
    #[serde(skip)]
    heard_at: f64,
    #[serde(skip)]
    patience_s: f64,
}

/// A quota that nobody told.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct QuotaView {
    /// What was let through of it, in tokens per second or slots.
    pub rps: f64,
    /// When it was learned: the newest refusal.
    pub at: Timestamp,
    /// The share that was refused then.
    pub refused_share: f64,
}

impl QuotaView {
    /// What `signal` has learned, where a job takes `w` of work.
    pub(super) fn of(signal: &Signal, w: f64) -> Option<Self> {
        let (quota, learned) = (signal.quota?, signal.learned?);
        let rps = quota / w;
        rps.is_finite().then(|| Self { rps, at: timestamp(learned.at), refused_share: learned.share })
    }
}

impl View {
    /// The view of `state` at `now`, unix seconds; `None` before the first plan.
    pub fn new(state: &State, policy: &Policy, now: f64) -> Option<Self> {
        let plan = state.plan.as_ref()?;
        // In shadow mode the readings are what is really there, and the decisions those on paper.
        let decides = state.shadow.as_ref().map_or(state, |shadow| &shadow.own);
        let asks: Vec<Option<f64>> = decides.signals.iter().map(|signal| ask(decides, signal)).collect();
        let signals = state.signals.iter().zip(&policy.signals).zip(asks).map(|((signal, about), ask_rps)| SignalView {
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
            patience_s: state.patience_s(policy, signal),
        });
        let mut view = Self {
            actuator: policy.law.actuator,
            rps: plan.rps,
            breaker: plan.breaker,
            breaker_since: (decides.breaker.since > 0.0).then(|| timestamp(decides.breaker.since)),
            limiting: plan.limiting.clone(),
            signal: plan.terms.get("signal").and_then(|name| name.as_str()).map(str::to_owned),
            reason: plan.reason.clone(),
            at: timestamp(state.at.unwrap_or(now)),
            held_until: state.hold.filter(|hold| now < hold.until).map(|hold| timestamp(hold.until)),
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
                .map(|f| FindingView { finding: f.finding, since: timestamp(f.since), sentence: f.sentence.clone() })
                .collect(),
            gain_factor: state.watchdogs.oscillation.gain_factor(),
            signals: signals.collect(),
        };
        view.age(now);
        Some(view)
    }

    /// The view of a state as the journal keeps it.
    pub fn of_stored(stored: Value, policy: &Policy, now: f64) -> Option<Self> {
        Self::new(&State::stored(stored, policy)?, policy, now)
    }

    /// Brings ages up to `now`, unix seconds.
    pub fn age(&mut self, now: f64) {
        for signal in &mut self.signals {
            signal.age_s = signal.at.map(|at| (now - super::decision::unix_s(at)).max(0.0));
            signal.stale = now - signal.heard_at > signal.patience_s;
        }
    }
}

/// What a signal asks for, in jobs per second.
fn ask(state: &State, signal: &Signal) -> Option<f64> {
    signal.front.at.filter(|_| signal.started || signal.quota.is_some())?;
    let rps = signal.u.exp() / state.work.w;
    rps.is_finite().then_some(rps)
}
