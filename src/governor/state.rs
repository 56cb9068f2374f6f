//! The state of one governor, and its ticks.
//!
//! The knob is `r` jobs per second, or `r` concurrent jobs ([`super::actuator`]): rates are then
//! slots. Internally everything uses the *work rate* `v = r*w` (`w`: mean duration of a job, 1 if
//! unknown) and the controllers work on `u = ln v` with the error `e = 1 - load/setpoint`: the
//! loop's gain is then our share of the load, between 0 and 1, whatever a job costs. One tuning
//! fits every plant.
//!
//! A tick runs these steps in order, each in its own file:
//!
//! 1. durations ([`super::work_unit`]), history, samples ([`super::law::signal`]);
//! 2. a manual change of the knob;
//! 3. the breaker ([`super::law::breaker`]);
//! 4. stale signals: hold, then decay to `safe_rps`;
//! 5. every signal's controller, and the lowest of the rates that they ask for;
//! 6. limits ([`super::law::limits`]), and the reason in one sentence ([`super::explain`]);
//! 7. learning for the hour ([`super::law::week`]), and the watchdogs ([`super::watchdogs`]).
//!
//! All of it is pure; the same code runs in `flyball serve`, in the tests' plants and as a filter
//! on the command line.

use crate::throttle::RateLimit;
use std::collections::BTreeMap;

use super::actuator::Actuator;
use super::bounds::Bounds;
use super::explain::cause::Cause;
use super::explain::reason;
use super::law::breaker::{BreakerStep, Overload};
use super::law::limits::LimitInput;
use super::law::part::StatePart;
use super::law::signals;
use super::law::{Breaker, Hold, Phase, Signal, TripRecord, Week, WorkEstimate};
use super::manual_override::OverrideWatch;
use super::observation::{Observation, SignalSample};
use super::plan::Plan;
use super::policy::Policy;
use super::score::Score;
use super::snapshot::Snapshot;
use super::watchdogs::Watchdogs;
use super::watchdogs::sharing::{self, FollowerRatio};
use super::written::WrittenTexts;
use crate::control::{History, clamp_finite, ewma, slew};

/// The form of a stored state; it changes with the names and the meaning of its fields.
pub(super) const FORM: u32 = 2;
/// The averaging time of the usual work rate, in seconds.
const USUAL_S: f64 = 900.0;

/// The state between ticks; all of it is stored, so that a successor continues without a jump.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ControlState {
    pub(super) form: u32,
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
    pub wrote: WrittenTexts,
    /// The last trip, for people: the breaker's own record is reset when a person takes over.
    #[serde(default)]
    pub last_trip: Option<TripRecord>,
    /// The last manual change of mode or rate.
    #[serde(default)]
    pub overrides: OverrideWatch,
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

/// The second governor of shadow mode, in a simulation of its own ([`super::shadow`]).
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Shadow {
    /// The governor in the simulation.
    pub own: ControlState,
    /// The score against the real rate.
    pub score: Score,
}

impl ControlState {
    /// Creates a governor that takes over at `limit`, in jobs per second or slots, without samples.
    pub fn new(policy: &Policy, bounds: Bounds, limit: RateLimit, now: f64) -> Self {
        let bounds = bounds.sound();
        let u = limit
            .rate()
            .map_or(bounds.min, |rps| rps.clamp(bounds.min, bounds.max))
            .ln();
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
            stopped: limit.is_stopped(),
            signals: signals::fresh(policy, u),
            plan: None,
            wrote: WrittenTexts::default(),
            last_trip: None,
            overrides: OverrideWatch::default(),
            shadow: None,
            links: BTreeMap::new(),
            watchdogs: Watchdogs::default(),
            week: Week::default(),
        }
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
            let plan = self.plan.clone().unwrap_or_else(Plan::start);
            return Plan { rps, ..plan };
        };
        let before = self.knob;
        let cause = self.decide(policy, bounds.sound(), seen, now, dt);
        self.finish(policy, bounds, now, before, cause);
        if let Some(plan) = &self.plan {
            let step = (self.u, now, dt);
            self.week.learn_from(plan, &self.signals, seen, step);
        }
        self.run_watchdogs(policy, bounds, seen, now)
    }

    /// Runs the breaker's fast path, twice a second, on one raw look per signal that can trip it.
    ///
    /// It trips on two consecutive looks above the trip level, or on one far above it.
    /// `achieved_rps` is the throughput since the previous call, if known.
    pub fn fast(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        now: f64,
        achieved_rps: Option<f64>,
        looks: &[SignalSample],
    ) -> Option<Plan> {
        if !policy.law.breaker || !is_time(now) {
            return None;
        }
        let look = self
            .breaker
            .look(&mut self.signals, policy, now, looks)
            .filter(|_| !self.stopped)?;
        let before = self.knob;
        let recent = self.history.mean(now - policy.law.tick_s, now);
        let achieved = achieved_rps
            .filter(|a| a.is_finite())
            .map_or(0.0, |a| a * self.work.w);
        let (rate, ceiling) = (recent.max(achieved), self.u.exp());
        let overload = Overload {
            signal: look.signal,
            height: look.height,
            peak: look.peak,
            v: if rate > 0.0 {
                rate.min(ceiling)
            } else {
                ceiling
            },
        };
        let retrip_s = policy.law.retrip_s;
        self.breaker
            .trip(&mut self.signals, retrip_s, now, overload);
        self.u = self.lowest(bounds.sound());
        self.rebase(policy, now);
        Some(self.finish(policy, bounds, now, before, Cause::Open))
    }

    /// Follows the knob without setting it, because of `cause`: a person controls it (manual mode),
    /// the throttle is paused, or the governor continues from there.
    ///
    /// The signals are still learned, so that the hand-back is bumpless. A breaker whose stop is
    /// still in the knob stays open, because nobody else would restart the work.
    pub fn follow(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        limit: RateLimit,
        cause: Cause,
    ) -> Plan {
        if let Some((now, _)) = self.advance(policy, bounds, seen) {
            if !seen.is_breakers_stop {
                self.breaker = Breaker::default();
            }
            self.hold = None;
            self.stopped = limit.is_stopped() && !seen.is_breakers_stop;
            self.links.clear();
            self.watchdogs.rest();
            self.set_rate(bounds.sound(), limit);
            self.rebase(policy, now);
            self.mend(policy, bounds);
        }
        self.knob = limit.number().min(Bounds::MAX_RATE);
        let now = self.at.unwrap_or(seen.now);
        let plan = reason::plan(&self.snapshot(), policy, now, self.knob, &cause);
        self.plan = Some(plan.clone());
        plan
    }

    /// Takes over at `limit`, the rate really in force after a lease lapsed, without treating it as
    /// a manual rate; after a stop, at the lowest rate.
    pub fn restart_from(&mut self, policy: &Policy, bounds: Bounds, limit: RateLimit, now: f64) {
        let bounds = bounds.sound();
        let in_force = (bounds.rate_of(limit) * self.work.w).ln();
        if !limit.is_unlimited() && in_force < self.u {
            self.set_rate(bounds, limit);
            self.rebase(policy, now);
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
        signals::adopt(&mut self.signals, policy, self.u);
        let bounds = bounds.sound();
        let dt = elapsed.min(tick_s);
        let achieved = seen
            .achieved_rps
            .filter(|a| a.is_finite())
            .map(|a| a.clamp(0.0, Bounds::MAX_RATE));
        self.learn_work(policy, seen, achieved, dt);
        if let Some(achieved) = achieved {
            self.push_work(seen, now, (elapsed.min(4.0 * tick_s), dt), achieved);
        }
        signals::ingest(
            &mut self.signals,
            policy,
            &self.history,
            seen,
            self.work.w,
            now,
        );
        self.judge_durations(policy, seen, now, dt);
        if let Some(limit) = seen.knob_rps {
            self.obey(policy, bounds, now, limit);
        }
        Some((now, dt))
    }

    /// Adopts a manual rate as the new starting point.
    pub(super) fn obey(&mut self, policy: &Policy, bounds: Bounds, now: f64, limit: RateLimit) {
        self.stopped = limit.is_stopped();
        self.hold = None;
        self.links.clear();
        if let Some(rps) = limit.rate() {
            let until = now + policy.law.hold_s;
            self.hold = Some(Hold {
                rps: rps.min(bounds.max),
                from: now,
                until,
            });
            self.breaker.v_trip = self.breaker.v_trip.min(rps * self.work.w);
        }
        self.set_rate(bounds, limit);
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
        if !law.breaker {
            // A stop from before the policy switched the breaker off would never end.
            self.breaker = Breaker::default();
        }
        let stale = signals::stale(&self.signals, policy, now, self.began_at);
        // An open breaker waits for the loads; the others may have no value while nothing runs.
        let was_open = self.breaker.phase == Phase::Open;
        let waits = was_open && signals::any_load(&stale, policy);
        if law.breaker && !waits && self.is_stopped_by_breaker(policy, bounds, seen, now) {
            self.u = self.lowest(bounds);
            self.rebase(policy, now);
            return Cause::Open;
        }
        if !stale.is_empty() {
            let floor = (bounds.safe_rps.max(bounds.min) * self.work.w).ln();
            // A restart with a silent signal is no faster than any blind rate.
            self.u = if was_open && !waits {
                self.u.min(floor)
            } else {
                slew::decay(self.u, floor, law.stale_half_s, dt)
            };
            self.rebase(policy, now);
            return Cause::Stale { names: stale };
        }
        let Some((wanted, index)) = self.lowest_ask(policy, seen, now, dt) else {
            return Cause::NoReading;
        };
        self.hold = self.hold.filter(|hold| now < hold.until);
        let limits = LimitInput {
            policy,
            signals: &self.signals,
            breaker: &self.breaker,
            week: &self.week,
            now,
            dt,
            in_force: self.u,
            usual: self.usual,
            is_used: seen.is_limited(),
            lowest: self.lowest(bounds),
            held: self.hold.map(|hold| (hold.rps * self.work.w).ln()),
            highest: (bounds.max * self.work.w).ln(),
        };
        let (u, clamps) = limits.limit(wanted);
        self.u = u;
        let v = self.u.exp();
        self.usual = if self.usual <= 0.0 {
            v
        } else {
            ewma::toward(self.usual, v, dt, USUAL_S)
        };
        Cause::Signal { index, clamps }
    }

    /// Runs one tick of the breaker; returns true while work is stopped.
    fn is_stopped_by_breaker(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        now: f64,
    ) -> bool {
        // A follower restarts after its leader.
        let waits = self.breaker.phase == Phase::Open
            && seen
                .shared
                .as_ref()
                .zip(self.breaker.by.as_deref())
                .is_some_and(|(role, by)| role.leader_is_open(by));
        if waits {
            return true;
        }
        let range = (self.lowest(bounds), (bounds.max * self.work.w).ln());
        match self
            .breaker
            .step(&mut self.signals, policy, &self.history, now, range)
        {
            BreakerStep::Stopped => true,
            BreakerStep::Flows => false,
            BreakerStep::Restarts(u) => {
                self.u = u;
                self.usual = u.exp();
                self.rebase(policy, now);
                false
            }
        }
    }

    /// Returns the lowest log work rate that the signals ask for, and the index of that signal.
    fn lowest_ask(
        &mut self,
        policy: &Policy,
        seen: &Observation,
        now: f64,
        dt: f64,
    ) -> Option<(f64, usize)> {
        let (links, u, ln_w) = (&mut self.links, self.u, self.work.w.ln());
        let follow = |signal: &str, own: f64| {
            sharing::followed(links, seen.shared.as_ref(), signal, own, u, ln_w)
        };
        signals::lowest_ask(
            &mut self.signals,
            policy,
            &self.history,
            (now, dt),
            u,
            follow,
        )
    }

    pub(super) fn rebase(&mut self, policy: &Policy, now: f64) {
        signals::rebase(&mut self.signals, policy, &self.history, now, self.u);
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
        TripRecord::update(&mut self.last_trip, &self.breaker);
        self.knob = self.rate(bounds.sound(), now);
        let plan = reason::plan(&self.snapshot(), policy, now, before, &cause);
        self.plan = Some(plan.clone());
        plan
    }

    /// Shifts every time by `by_s` after the clock was set back.
    fn shift(&mut self, by_s: f64) {
        self.at = self.at.map(|t| t + by_s);
        self.began_at += by_s;
        self.history.shift(by_s);
        if let Some(trip) = &mut self.last_trip {
            trip.at += by_s;
        }
        let parts: [&mut dyn StatePart; 5] = [
            &mut self.work.evidence,
            &mut self.breaker,
            &mut self.watchdogs,
            &mut self.week,
            &mut self.overrides,
        ];
        parts.into_iter().for_each(|part| part.shift(by_s));
        self.hold.iter_mut().for_each(|hold| hold.shift(by_s));
        self.signals
            .iter_mut()
            .for_each(|signal| signal.shift(by_s));
    }

    /// Returns the state, to be read by explanations and watchdogs.
    pub(super) fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            actuator: self.actuator,
            u: self.u,
            knob: self.knob,
            work: &self.work,
            history: &self.history,
            breaker: &self.breaker,
            hold: self.hold,
            stopped: self.stopped,
            signals: &self.signals,
            plan: self.plan.as_ref(),
            manual_override: self.overrides.last.as_ref(),
            links: &self.links,
            week: &self.week,
        }
    }

    /// Returns the name and the height, in setpoints, of a signal whose newest sample, first seen
    /// at `now`, is above its trip level.
    pub fn alarm(&self, policy: &Policy, now: f64) -> Option<(String, f64)> {
        let overload = self
            .breaker
            .overloaded(&self.signals, policy, &self.history, now)?;
        Some((self.signals[overload.signal].name.clone(), overload.height))
    }

    /// Returns the lowest log work rate: the knob `min`, or a lower manual rate while that is held.
    fn lowest(&self, bounds: Bounds) -> f64 {
        (bounds.lowest(self.hold.map(|hold| hold.rps)) * self.work.w).ln()
    }

    /// Returns the knob for the current state, in its own unit.
    pub(super) fn rate(&self, bounds: Bounds, now: f64) -> f64 {
        if self.stopped || self.breaker.phase == Phase::Open {
            return 0.0;
        }
        let hold = self.hold.filter(|hold| now < hold.until);
        let held = hold.map(|hold| hold.rps);
        let (least, most) = (bounds.lowest(held), bounds.highest(held));
        let wanted = clamp_finite(self.u.exp() / self.work.w, least, most);
        self.actuator.rounded(wanted, self.knob, least, most)
    }

    /// Sets `u` to a rate in jobs per second or slots; a stop is the lowest, no limit the highest.
    pub(super) fn set_rate(&mut self, bounds: Bounds, limit: RateLimit) {
        self.u = (bounds.rate_of(limit) * self.work.w).ln();
    }

    /// Runs the watchdogs on the newest plan and adds their findings to it.
    fn run_watchdogs(
        &mut self,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        now: f64,
    ) -> Plan {
        let mut watchdogs = std::mem::take(&mut self.watchdogs);
        let findings = watchdogs.look(&self.snapshot(), policy, bounds, seen, now);
        let mut plan = self.plan.take().unwrap_or_default();
        watchdogs.update_findings(findings, now, &mut plan);
        self.watchdogs = watchdogs;
        self.plan = Some(plan.clone());
        plan
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
            self.set_rate(bounds.sound(), RateLimit::new(knob.max(0.0)));
        }
        if !self.usual.is_finite() {
            self.usual = 0.0;
        }
        if !self.breaker.is_sound() {
            self.breaker = Breaker::default();
        }
        if !self.week.is_sound() {
            self.week = Week::default();
        }
        signals::mend(&mut self.signals, policy, self.u);
    }
}

/// Returns true for unix seconds that can be computed with.
fn is_time(now: f64) -> bool {
    now.abs() <= 1e12
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
