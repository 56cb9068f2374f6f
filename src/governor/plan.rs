//! The decision of one tick: `State + Observation -> Plan`. Pure; the same code runs in `flyball
//! serve`, in the tests' plants and as a filter on the command line.
//!
//! The knob is `r` jobs per second, or `r` concurrent jobs ([`super::actuator`]): rates are then
//! slots. Internally everything uses the *work rate* `v = r*w` (`w`: mean duration of a job, 1 if
//! unknown) and the controllers work on `u = ln v` with the error `e = 1 - load/setpoint`: the
//! loop's gain is then our share of the load, between 0 and 1, whatever a job costs. One tuning
//! fits every plant.
//!
//! A tick runs these steps in order, each in its own file:
//!
//! 1. durations ([`super::work`]), history, samples ([`super::signal`]);
//! 2. a manual change of the knob;
//! 3. stale signals: hold, then decay to `safe_rps`;
//! 4. the breaker ([`super::breaker`]);
//! 5. every signal's PID, and the lowest of the rates that they ask for;
//! 6. limits ([`super::limits`]), and the reason in one sentence ([`super::explain`]);
//! 7. learning for the hour ([`super::week`]), and the watchdogs ([`super::watchdogs`]).

use std::collections::BTreeMap;

use serde_json::Value;

use super::actuator::Actuator;
use super::breaker::{Breaker, Phase};
use super::explain::{self, Cause};
use super::limits::{BOTTLENECK, Bounds, Hold};
use super::manual_override::OverrideWatch;
use super::policy::{Heard, Policy, SignalSource};
use super::shadow::Shadow;
use super::signal::Signal;
use super::tripped::Tripped;
use super::watchdogs::{SharingRole, Watchdogs, sharing::FollowerRatio};
use super::week::Week;
use super::work::WorkEstimate;
use crate::control::{History, ewma, slew};

/// The version of the stored state's format; other versions are not read.
const FORM: u32 = 1;
/// The patience with a silent signal, in usual spacings of its samples.
const STALE_GAPS: f64 = 3.5;
/// The averaging time of the usual work rate, in seconds.
const USUAL_S: f64 = 900.0;

/// The observations since the last tick; times are unix seconds of one clock.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// The time of this tick.
    pub now: f64,
    /// The new samples; earlier ones may be repeated, as a sample of the same time is ignored.
    #[serde(default)]
    pub readings: Vec<SignalSample>,
    /// The jobs let through per second since the last tick, or the slots in use; `None` if the
    /// counter restarted.
    #[serde(default)]
    pub achieved_rps: Option<f64>,
    /// The share of the time since the last tick with waiters for this throttle's tokens or slots,
    /// 0 to 1.
    #[serde(default)]
    pub limiting_share: Option<f64>,
    /// The mean duration of the jobs that succeeded since the last tick, in seconds.
    #[serde(default)]
    pub mean_duration_s: Option<f64>,
    /// The number of jobs that succeeded since the last tick.
    #[serde(default)]
    pub completed: f64,
    /// The number of jobs that were refused since the last tick.
    #[serde(default)]
    pub rejected: f64,
    /// True if no job ran since the last tick: missing feedback is then not silence.
    #[serde(default)]
    pub idle: bool,
    /// True if jobs succeeded since the last tick, but too few had a usable duration.
    ///
    /// A duration signal without a new sample is then not stale; its last sample stays valid.
    #[serde(default)]
    pub discounted: bool,
    /// The knob, if it was changed by anyone else since the last tick: 0 stops, -1 is unlimited.
    #[serde(default)]
    pub knob_rps: Option<f64>,
    /// The number of jobs that wait for this throttle, if known.
    #[serde(default)]
    pub waiting: Option<f64>,
    /// The role of this governor among those that control the same signals.
    #[serde(skip)]
    pub shared: Option<SharingRole>,
    /// The current capacity of a pool of accounts behind the throttle, in jobs per second; such a
    /// pool routes around refusals by itself.
    #[serde(skip)]
    pub capacity_rps: Option<f64>,
}

/// A sample of a signal; without a value it is no sample.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SignalSample {
    /// The name of the signal in the policy.
    pub signal: String,
    /// The value, in the signal's own unit.
    pub value: Option<f64>,
    /// The time of the sample, in unix seconds.
    pub at: f64,
}

/// The action to take, and its reason.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// The knob to set, in jobs per second or slots; 0 stops.
    pub rps: f64,
    pub breaker: Phase,
    /// The deciding signal's name, or `start`, `stale`, `breaker`, `person`, `idle`, `slew`,
    /// `late`, `soft`, `week`, `confirm`, `floor`, `min`, `max`.
    pub limiting: String,
    /// The reason, one sentence for a person.
    pub reason: String,
    /// The numbers behind the reason, by name.
    pub terms: BTreeMap<String, Value>,
}

/// The state between ticks; all of it is stored, so that a successor continues without a jump.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ControlState {
    form: u32,
    /// The kind of knob that is set.
    #[serde(default)]
    pub actuator: Actuator,
    /// The log work rate in force.
    pub u: f64,
    /// The knob of the newest plan, in jobs per second or slots.
    pub knob: f64,
    /// The start of observation, in unix seconds.
    pub began_at: f64,
    /// The time of the newest tick.
    pub at: Option<f64>,
    /// The unit of work, from the durations of jobs.
    pub work: WorkEstimate,
    /// The work rate that was let through.
    pub history: History,
    pub breaker: Breaker,
    /// The usual work rate, since the last restart.
    pub usual: f64,
    /// The manual rate that is not exceeded, and its end.
    pub hold: Option<Hold>,
    /// True if a person wrote 0.
    pub stopped: bool,
    /// The signals, in the order of the policy.
    pub signals: Vec<Signal>,
    /// The newest plan; `None` before the first tick.
    pub plan: Option<Plan>,
    /// The last texts that this governor wrote into the knob, newest first; any other text is
    /// manual.
    #[serde(default)]
    pub wrote: Vec<String>,
    /// The last trip, for people.
    #[serde(default)]
    pub tripped: Option<Tripped>,
    /// The last manual change of mode or rate.
    #[serde(default)]
    pub watch: OverrideWatch,
    /// The simulated governor, in shadow mode.
    #[serde(default)]
    pub shadow: Option<Box<Shadow>>,
    /// The ratio to each leader's rate that this governor keeps, by signal.
    #[serde(default)]
    pub links: BTreeMap<String, FollowerRatio>,
    /// The watchdogs and their findings.
    #[serde(default)]
    pub watchdogs: Watchdogs,
    /// The rate that each hour of the week has sustained.
    #[serde(default)]
    pub week: Week,
}

impl ControlState {
    /// Creates a governor that takes over at `rps` jobs per second or slots, without samples.
    pub fn new(policy: &Policy, bounds: Bounds, rps: f64, now: f64) -> Self {
        let bounds = bounds.sound();
        let u = if rps > 0.0 {
            rps.clamp(bounds.min, bounds.max).ln()
        } else {
            bounds.min.ln()
        };
        Self {
            form: FORM,
            actuator: policy.law.actuator,
            u,
            knob: policy
                .law
                .actuator
                .rounded(u.exp(), 0.0, bounds.min, bounds.max),
            began_at: now,
            at: None,
            work: WorkEstimate::default(),
            history: History::default(),
            breaker: Breaker::default(),
            usual: 0.0,
            hold: None,
            stopped: rps == 0.0,
            signals: policy
                .signals
                .iter()
                .map(|s| Signal::new(s, &policy.law, u))
                .collect(),
            plan: None,
            wrote: Vec::new(),
            tripped: None,
            watch: OverrideWatch::default(),
            shadow: None,
            links: BTreeMap::new(),
            watchdogs: Watchdogs::default(),
            week: Week::default(),
        }
    }

    /// Resumes a stored state at `now`, with signals silent for at most half of the holding time;
    /// `None` if its format differs or it cannot be used.
    pub fn resume(stored: Value, policy: &Policy, now: f64) -> Option<Self> {
        let mut state = Self::stored(stored, policy)?;
        state.be_patient(policy, now);
        if let Some(shadow) = &mut state.shadow {
            shadow.own.be_patient(policy, now);
        }
        Some(state)
    }

    fn be_patient(&mut self, policy: &Policy, now: f64) {
        for (signal, about) in self.signals.iter_mut().zip(&policy.signals) {
            let hold_s = about.stale_s.unwrap_or(policy.law.stale_hold_s);
            signal.front.seen = signal.front.seen.map(|seen| seen.max(now - hold_s / 2.0));
        }
        self.began_at = now;
    }

    /// Reads a stored state for inspection.
    pub fn stored(stored: Value, policy: &Policy) -> Option<Self> {
        let mut state: Self = serde_json::from_value(stored).ok()?;
        if state.form != FORM
            || state.actuator != policy.law.actuator
            || !state.u.is_finite()
            || !state.work.is_sound()
        {
            return None;
        }
        state.adopt(policy);
        Some(state)
    }

    /// Runs one tick.
    ///
    /// Call it every `tick_s`; earlier calls take shorter steps, and a time that does not advance
    /// changes nothing.
    pub fn tick(&mut self, policy: &Policy, bounds: Bounds, seen: &Observation) -> Plan {
        let policy = &*self.watchdogs.detuned(policy);
        let Some((now, dt)) = self.advance(policy, bounds, seen) else {
            // The last decision within the current bounds: a rate that was only followed may lie
            // outside.
            let rps = self.rate(bounds.sound(), self.at.unwrap_or(self.began_at));
            let plan = self.plan.clone().unwrap_or_else(|| Plan {
                limiting: "start".into(),
                ..Plan::default()
            });
            return Plan { rps, ..plan };
        };
        let before = self.knob;
        let cause = self.decide(policy, bounds.sound(), seen, now, dt);
        self.finish(policy, bounds, now, before, cause);
        self.learn_week(policy, seen, now, dt);
        self.watched(policy, bounds, seen, now)
    }

    /// Follows the knob without setting it, because of `why`: a person controls it (manual mode),
    /// or the throttle is paused.
    ///
    /// The signals are still learned, so that the hand-back is bumpless.
    pub fn follow(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        rps: f64,
        why: &str,
    ) -> Plan {
        self.track(
            policy,
            bounds,
            seen,
            rps,
            Cause::Followed {
                why: why.to_owned(),
            },
        )
    }

    /// Follows the knob for the last time, like [`State::follow`]; the governor continues from
    /// there, because of `why`.
    pub fn hand_back(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        rps: f64,
        why: &str,
    ) -> Plan {
        self.track(
            policy,
            bounds,
            seen,
            rps,
            Cause::HandedBack {
                why: why.to_owned(),
            },
        )
    }

    fn track(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        rps: f64,
        cause: Cause,
    ) -> Plan {
        if let Some((now, _)) = self.advance(policy, bounds, seen) {
            self.breaker = Breaker::default();
            self.hold = None;
            self.stopped = rps == 0.0;
            self.links.clear();
            self.watchdogs.rest();
            self.set_rate(bounds.sound(), rps);
            self.rebase(policy, now);
            self.mend(policy, bounds);
        }
        self.knob = match rps {
            r if !r.is_finite() => 0.0,
            r if r < 0.0 => -1.0,
            r => r.min(Bounds::MAX_RATE),
        };
        let plan = explain::plan(self, policy, self.at.unwrap_or(seen.now), self.knob, &cause);
        self.plan = Some(plan.clone());
        plan
    }

    /// Takes over at `rps`, the rate really in force after a lease lapsed, without treating it as a
    /// manual rate.
    pub fn restart_from(&mut self, policy: &Policy, bounds: Bounds, rps: f64, now: f64) {
        if rps > 0.0 && rps.ln() + self.work.w.ln() < self.u {
            self.set_rate(bounds.sound(), rps);
            self.rebase(policy, now);
        }
    }

    /// Returns true if this governor wrote `text` into the knob.
    pub fn is_ours(&self, text: &str) -> bool {
        self.wrote.iter().any(|wrote| wrote == text)
    }

    /// Records that `text` is about to be written into the knob; two texts are kept, because the
    /// writer may die in between.
    pub fn will_write(&mut self, text: &str) {
        if self.wrote.first().is_none_or(|newest| newest != text) {
            self.wrote.insert(0, text.to_owned());
            self.wrote.truncate(2);
        }
    }

    /// Runs steps 1 and 2 of the order above: time, work, history, samples.
    ///
    /// Returns `None` if the time did not advance.
    fn advance(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
    ) -> Option<(f64, f64)> {
        let (now, tick_s) = (seen.now, policy.law.tick_s);
        if !is_time(now) {
            return None;
        }
        if let Some(last) = self.at
            && now < last - 2.0 * tick_s
        {
            // The clock was set back: the state is kept, at the new times.
            self.shift(now - last - tick_s);
        }
        let elapsed = self.at.map_or(tick_s, |last| now - last);
        if elapsed <= 0.0 {
            return None;
        }
        self.at = Some(now);
        self.breaker.not_after(now);
        self.adopt(policy);
        let bounds = bounds.sound();
        let dt = elapsed.min(tick_s);
        let achieved = seen
            .achieved_rps
            .filter(|a| a.is_finite())
            .map(|a| a.clamp(0.0, Bounds::MAX_RATE));
        if policy.law.durations
            && let (Some(factor), _) = self.work.learn(
                ended(seen, achieved, dt),
                seen.mean_duration_s,
                dt,
                policy.law.duration_step,
            )
        {
            self.scale(factor);
        }
        if let Some(achieved) = achieved {
            self.history
                .push(now, elapsed.min(4.0 * tick_s), achieved * self.work.w);
        }
        self.ingest(policy, seen, now);
        if let Some(rps) = seen.knob_rps.filter(|rps| rps.is_finite()) {
            self.obey(policy, bounds, now, rps);
        }
        Some((now, dt))
    }

    fn ingest(&mut self, policy: &Policy, seen: &Observation, now: f64) {
        let mut samples: Vec<&SignalSample> =
            seen.readings.iter().filter(|r| r.at.is_finite()).collect();
        samples.sort_by(|a, b| a.at.total_cmp(&b.at));
        for (signal, about) in self.signals.iter_mut().zip(&policy.signals) {
            let hears_durations = matches!(about.heard, Some(Heard::Latency | Heard::LatencyP99));
            signal.capacity = seen
                .capacity_rps
                .filter(|rps| rps.is_finite())
                .map(|rps| rps * self.work.w);
            // A paused throttle lets nothing through, so it is not in use.
            let flows = seen.achieved_rps.is_none_or(|rps| rps > 0.0);
            let is_used = flows && seen.limiting_share.is_none_or(|share| share > BOTTLENECK);
            signal.used_from = is_used.then(|| signal.used_from.unwrap_or(now));
            for sample in samples.iter().filter(|r| r.signal == about.name) {
                if let Some(value) = sample.value {
                    signal.ingest(about, &policy.law, now, sample.at, value, &self.history);
                    signal.discounted = false;
                } else if seen.discounted && hears_durations {
                    signal.front.seen = Some(now);
                    signal.discounted = true;
                }
            }
            if about.source == SignalSource::Feedback {
                let is_read = samples.iter().any(|r| r.signal == about.name);
                if let Some(value) = feedback(about.heard, seen).filter(|_| !is_read) {
                    signal.ingest(
                        about,
                        &policy.law,
                        now,
                        now,
                        value * about.scale,
                        &self.history,
                    );
                }
                if seen.idle {
                    signal.front.seen = Some(now);
                }
            }
        }
    }

    /// Adopts a manual rate as the new starting point.
    fn obey(&mut self, policy: &Policy, bounds: Bounds, now: f64, rps: f64) {
        self.stopped = rps == 0.0;
        self.hold = None;
        self.links.clear();
        if rps > 0.0 {
            let until = now + policy.law.hold_s;
            self.hold = Some(Hold {
                rps: rps.min(bounds.max),
                from: now,
                until,
            });
            self.breaker.v_trip = self.breaker.v_trip.min(rps * self.work.w);
        }
        self.set_rate(bounds, rps);
        self.rebase(policy, now);
    }

    /// Runs steps 3 to 6: sets `u` and returns the cause.
    fn decide(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        now: f64,
        dt: f64,
    ) -> Cause {
        let law = &policy.law;
        if self.stopped {
            self.rebase(policy, now);
            return Cause::StoppedByHand;
        }
        let stale = self.stale(policy, now);
        if !stale.is_empty() {
            let floor = (bounds.safe_rps.max(bounds.min) * self.work.w).ln();
            self.u = slew::decay(self.u, floor, law.stale_half_s, dt);
            self.rebase(policy, now);
            return Cause::Stale { names: stale };
        }
        if law.breaker && (self.waits_for_leader(seen) || self.breaker_holds(policy, bounds, now)) {
            self.u = self.lowest(bounds);
            self.rebase(policy, now);
            return Cause::Open;
        }
        let Some((asked, who)) = self.lowest_ask(policy, seen, now, dt) else {
            return Cause::NoReading;
        };
        let clamps = self.limit(policy, bounds, seen, now, dt, asked);
        let v = self.u.exp();
        self.usual = if self.usual <= 0.0 {
            v
        } else {
            ewma::toward(self.usual, v, dt, USUAL_S)
        };
        Cause::Signal { index: who, clamps }
    }

    /// Returns the lowest rate that the signals ask for, and the index of that signal; signals far
    /// from their limit abstain.
    fn lowest_ask(
        &mut self,
        policy: &Policy,
        seen: &Observation,
        now: f64,
        dt: f64,
    ) -> Option<(f64, usize)> {
        let (history, applied, law) = (&self.history, self.u, &policy.law);
        let asks: Vec<(usize, f64)> = self
            .signals
            .iter_mut()
            .zip(&policy.signals)
            .enumerate()
            .filter_map(|(n, (signal, about))| {
                Some((n, signal.ask(about, law, now, dt, history, applied)?))
            })
            .collect();
        let asks: Vec<(usize, f64)> = asks
            .into_iter()
            .map(|(n, own)| (n, self.led(&policy.signals[n].name, own, seen)))
            .collect();
        let lead = asks
            .iter()
            .filter_map(|&(n, _)| self.signals[n].xp)
            .fold(0.0, f64::max);
        let counts = |n: usize| {
            asks.len() == 1 || !self.signals[n].abstains(&policy.signals[n], law, now, lead)
        };
        let lower = |a: &&(usize, f64), b: &&(usize, f64)| a.1.total_cmp(&b.1);
        let lowest = asks.iter().filter(|&&(n, _)| counts(n)).min_by(lower);
        // If every signal abstains, all count: one must set the rate.
        lowest
            .or_else(|| asks.iter().min_by(lower))
            .map(|&(n, u)| (u, n))
    }

    /// Returns the signals without a new sample for too long.
    fn stale(&self, policy: &Policy, now: f64) -> Vec<String> {
        let late = |signal: &&Signal| {
            now - signal.front.seen.unwrap_or(self.began_at) > self.stale_after_s(policy, signal)
        };
        self.signals
            .iter()
            .filter(late)
            .map(|s| s.name.clone())
            .collect()
    }

    /// Returns the silence after which a signal is stale, in seconds.
    pub(super) fn stale_after_s(&self, policy: &Policy, signal: &Signal) -> f64 {
        let own_s = policy.signal(&signal.name).and_then(|about| about.stale_s);
        own_s.unwrap_or_else(|| {
            signal
                .front
                .stale_after_s(policy.law.stale_hold_s, STALE_GAPS)
        })
    }

    pub(super) fn rebase(&mut self, policy: &Policy, now: f64) {
        for (signal, about) in self.signals.iter_mut().zip(&policy.signals) {
            signal.rebase(about, &policy.law, now, &self.history, self.u);
        }
    }

    /// Computes the knob from `u`, the reason, and numbers that can be stored.
    pub(super) fn finish(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        now: f64,
        before: f64,
        cause: Cause,
    ) -> Plan {
        self.mend(policy, bounds);
        self.remember_trip();
        self.knob = self.rate(bounds.sound(), now);
        let plan = explain::plan(self, policy, now, before, &cause);
        self.plan = Some(plan.clone());
        plan
    }

    /// Brings the signals into the policy's order; new ones start from the rate in force, removed
    /// ones are dropped.
    fn adopt(&mut self, policy: &Policy) {
        if self
            .signals
            .iter()
            .map(|s| &s.name)
            .eq(policy.signals.iter().map(|s| &s.name))
        {
            return;
        }
        let mut known: BTreeMap<String, Signal> = self
            .signals
            .drain(..)
            .map(|s| (s.name.clone(), s))
            .collect();
        let fresh = |about| Signal::new(about, &policy.law, self.u);
        self.signals = policy
            .signals
            .iter()
            .map(|s| known.remove(&s.name).unwrap_or_else(|| fresh(s)))
            .collect();
    }

    /// Multiplies rates by `factor` after the unit of work changed.
    fn scale(&mut self, factor: f64) {
        self.u += factor.ln();
        self.breaker.v_trip *= factor;
        self.usual *= factor;
        self.history.scale(factor);
        self.week.scale(factor);
        for signal in &mut self.signals {
            signal.u += factor.ln();
            signal.pid.integral += factor.ln();
            signal.observer.scale(factor);
            signal.quota = signal.quota.map(|q| q * factor);
        }
    }

    fn shift(&mut self, by_s: f64) {
        self.at = self.at.map(|t| t + by_s);
        self.began_at += by_s;
        self.history.shift(by_s);
        self.breaker.shift(by_s);
        self.watchdogs.shift(by_s);
        self.tripped.iter_mut().for_each(|trip| trip.at += by_s);
        self.week.shift(by_s);
        if let Some(hold) = &mut self.hold {
            hold.from += by_s;
            hold.until += by_s;
        }
        self.signals
            .iter_mut()
            .for_each(|signal| signal.shift(by_s));
    }

    /// Repairs numbers that absurd input made infinite or NaN; a signal with such a number starts
    /// over.
    fn mend(&mut self, policy: &Policy, bounds: Bounds) {
        if !self.u.is_finite() {
            let knob = if self.knob.is_finite() {
                self.knob
            } else {
                0.0
            };
            self.work = WorkEstimate::default();
            self.set_rate(bounds.sound(), knob.max(0.0));
        }
        if !self.usual.is_finite() {
            self.usual = 0.0;
        }
        if !self.breaker.is_sound() {
            self.breaker = Breaker::default();
        }
        for (signal, about) in self.signals.iter_mut().zip(&policy.signals) {
            if !signal.is_sound() {
                *signal = Signal::new(about, &policy.law, self.u);
            }
        }
    }
}

/// Returns the number of jobs behind a mean duration: the reported successes, or else all jobs let
/// through.
///
/// A job that takes tokens throughout its life is one job, however many it takes.
fn ended(seen: &Observation, achieved: Option<f64>, dt: f64) -> f64 {
    if seen.completed > 0.0 {
        seen.completed.min(1e12)
    } else {
        achieved.unwrap_or(0.0) * dt
    }
}

/// Returns true for unix seconds that can be computed with.
pub(super) fn is_time(now: f64) -> bool {
    now.abs() <= 1e12
}

/// Returns the feedback of the throttle's own work for signals without a reading: the refused
/// share, or the mean duration.
fn feedback(heard: Option<Heard>, seen: &Observation) -> Option<f64> {
    let all = seen.completed + seen.rejected;
    match heard? {
        Heard::Refused if all > 0.0 => Some(seen.rejected / all),
        Heard::Refused => Some(0.0),
        Heard::Latency => seen.mean_duration_s,
        Heard::Errors | Heard::LatencyP99 => None,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
