//! The breaker: stops the work at once when a load runs away, waits until the load is gone,
//! restarts gently.
//!
//! ```text
//!            a load above its trip level
//!   ┌────────┐ ───────────────────────▶ ┌──────┐
//!   │ closed │                          │ open │ ◀─┐ above the trip level again
//!   └────────┘ ◀───── ┌───────────┐ ◀── └──────┘   │
//!     a sample taken  │ half open │  load gone     │
//!     after restart   └───────────┘ ───────────────┘
//! ```
//!
//! Half open means the restarted rate, which may fall but not rise until a sample taken wholly
//! after the restart has been seen. Two paths can trip the breaker: the tick, on samples from
//! Prometheus, and the fast path, twice a second, on raw probes.
//!
//! While it is open no job starts and running jobs finish. They are not counted here: the load
//! shows when they are done, and a load that was never ours keeps the breaker open too.

use super::explain::Cause;
use super::limits::Bounds;
use super::plan::{ControlState, Plan, SignalSample, is_time};
use super::policy::{Policy, SignalKind, SignalSource};
use crate::control::{clamp_finite, trip};

/// The raw value that must also be exceeded for a de-lagged value to trip, in setpoints.
const CONFIRM: f64 = 1.1;
/// The time after the last action from which samples may trip again, in seconds: earlier ones show
/// the state before it.
const SETTLE_S: f64 = 5.0;
/// The time after the last action from which the fast path may trip again, in seconds; shorter,
/// because its looks are not delayed.
const SETTLE_FAST_S: f64 = 2.0;
/// The predicted load below which the breaker closes, in setpoints.
const CLOSE_BELOW: f64 = 1.1;
/// The time after a trip in which the fast path still records the peak, in seconds.
const PEAK_S: f64 = 3.0;
/// The time for which a look of the fast path is current, in seconds.
const LOOK_S: f64 = 5.0;
/// A time before any time that occurs.
const NEVER: f64 = -1e9;

/// The phase of the breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Work flows.
    #[default]
    Closed,
    /// Work is stopped.
    Open,
    /// Work flows again, but no sample has confirmed the restart.
    HalfOpen,
}

/// The state of the breaker.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Breaker {
    pub phase: Phase,
    /// The start of the phase, in unix seconds.
    pub since: f64,
    /// The time of the last trip or restart, in unix seconds.
    pub acted_at: f64,
    /// The work rate that tripped it.
    pub v_trip: f64,
    /// The number of consecutive re-trips.
    pub trips: u32,
    /// The signal that tripped it last.
    pub by: Option<String>,
    /// The height of the signal that tripped it last, in setpoints.
    pub height: f64,
    /// The highest de-lagged look of the fast path around the trip, in setpoints.
    pub peak: f64,
    /// The log work rate of the restart.
    pub restart_u: f64,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            phase: Phase::Closed,
            since: NEVER,
            acted_at: NEVER,
            v_trip: 0.0,
            trips: 0,
            by: None,
            height: 0.0,
            peak: 0.0,
            restart_u: 0.0,
        }
    }
}

impl Breaker {
    /// Returns false if any number is infinite or NaN.
    pub(super) fn is_sound(&self) -> bool {
        let numbers = [
            self.since,
            self.acted_at,
            self.v_trip,
            self.height,
            self.peak,
            self.restart_u,
        ];
        numbers.into_iter().all(f64::is_finite)
    }

    /// Limits its times to `now`: a later one comes from a clock that has since been corrected, and
    /// the breaker would wait for it.
    pub(super) fn not_after(&mut self, now: f64) {
        (self.since, self.acted_at) = (self.since.min(now), self.acted_at.min(now));
    }

    /// Shifts every time by `by_s` after the clock was set back.
    pub fn shift(&mut self, by_s: f64) {
        self.since += by_s;
        self.acted_at += by_s;
    }
}

impl ControlState {
    /// Runs the fast path, twice a second, on one raw look per signal that can trip the breaker.
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
        let mut tripped = None;
        for (n, (signal, about)) in self.signals.iter_mut().zip(&policy.signals).enumerate() {
            let look = looks
                .iter()
                .find(|l| l.signal == about.name)
                .and_then(|l| Some((l.at, l.value?)));
            let Some((at, value)) =
                look.filter(|(at, v)| at.is_finite() && v.is_finite() && *v >= 0.0)
            else {
                continue;
            };
            if !about.trips {
                continue;
            }
            let (x, z) = signal.look(at, value, about.setpoint);
            if self.breaker.phase == Phase::Open {
                if now <= self.breaker.since + PEAK_S {
                    self.breaker.peak = self.breaker.peak.max(z);
                }
                continue;
            }
            let high = x > signal.trip_x || (z > signal.trip_z && x > CONFIRM);
            signal.alarms = if high && at >= self.breaker.acted_at + SETTLE_FAST_S {
                signal.alarms + 1
            } else {
                0
            };
            if signal.alarms >= 2 || (signal.alarms == 1 && x > 1.5 * signal.trip_x) {
                tripped = tripped.or(Some((n, x, z)));
            }
        }
        let (n, x, z) = tripped.filter(|_| !self.stopped)?;
        let before = self.knob;
        let recent = self.history.mean(now - policy.law.tick_s, now);
        let achieved = achieved_rps
            .filter(|a| a.is_finite())
            .map_or(0.0, |a| a * self.work.w);
        let (rate, ceiling) = (recent.max(achieved), self.u.exp());
        self.trip(
            policy,
            now,
            n,
            x,
            if rate > 0.0 {
                rate.min(ceiling)
            } else {
                ceiling
            },
        );
        self.breaker.peak = z;
        self.u = self.lowest(bounds.sound());
        self.rebase(policy, now);
        Some(self.finish(policy, bounds, now, before, Cause::Open))
    }

    /// Runs one tick of the breaker; returns true while it is open.
    pub(super) fn breaker_holds(&mut self, policy: &Policy, bounds: Bounds, now: f64) -> bool {
        if self.breaker.phase == Phase::Open {
            return !self.may_close(policy, now) || !self.restart(policy, bounds, now);
        }
        if let Some((n, height, v)) = self.overloaded(policy, now) {
            self.trip(policy, now, n, height, v);
            return true;
        }
        if self.breaker.phase == Phase::HalfOpen && self.confirmed(policy, now) {
            (self.breaker.phase, self.breaker.since) = (Phase::Closed, now);
        }
        false
    }

    /// Returns the name and the height, in setpoints, of a signal whose newest sample, first seen
    /// at `now`, is above its trip level.
    pub fn alarm(&self, policy: &Policy, now: f64) -> Option<(String, f64)> {
        self.overloaded(policy, now)
            .map(|(n, height, _)| (self.signals[n].name.clone(), height))
    }

    /// Returns a signal whose newest sample shows an overload: its index, its height in setpoints,
    /// and the work rate when the sample was taken.
    fn overloaded(&self, policy: &Policy, now: f64) -> Option<(usize, f64, f64)> {
        self.guards(policy).find_map(|n| {
            let (signal, about) = (&self.signals[n], &policy.signals[n]);
            let at = signal.front.at?;
            // Only samples count that became visible now and were taken after the last action.
            if signal.front.seen != Some(now) || at < self.breaker.acted_at + SETTLE_S {
                return None;
            }
            let x = signal.height(about);
            // A share is no average of a load, so there is no averaging to undo.
            let rises = about.kind != SignalKind::Ratio && signal.front.z > signal.trip_z;
            let high = x > signal.trip_x || (rises && x > CONFIRM);
            high.then(|| (n, x, self.history.mean(at - signal.front.span_s, at)))
        })
    }

    fn trip(&mut self, policy: &Policy, now: f64, n: usize, height: f64, v: f64) {
        let breaker = &mut self.breaker;
        let again = now - breaker.acted_at < policy.law.retrip_s;
        let v = v.max(1e-12);
        breaker.trips = if again {
            breaker.trips.saturating_add(1)
        } else {
            0
        };
        breaker.v_trip = if again { v.min(breaker.v_trip) } else { v };
        breaker.phase = Phase::Open;
        (breaker.since, breaker.acted_at) = (now, now);
        (breaker.by, breaker.height, breaker.peak) =
            (Some(self.signals[n].name.clone()), height, 0.0);
        self.signals.iter_mut().for_each(|signal| signal.alarms = 0);
    }

    /// Returns true if every load has a sample well after the trip that shows it gone, and its
    /// average has decayed or the longest wait is over.
    ///
    /// Other signals may be silent while the work is stopped; their samples must not show an
    /// overload.
    fn may_close(&mut self, policy: &Policy, now: f64) -> bool {
        let (law, since) = (&policy.law, self.breaker.since);
        let open_s = now - since;
        if open_s < trip::open_s(law.open_min_s, self.breaker.trips) {
            return false;
        }
        let still_high = |n: usize| {
            let (signal, about) = (&self.signals[n], &policy.signals[n]);
            about.kind != SignalKind::Load
                && about.source != SignalSource::Feedback
                && signal.front.at.is_some_and(|at| at > since)
                && signal.height(about) > signal.trip_x
        };
        if self.guards(policy).any(still_high)
            || self.guards(policy).any(|n| !self.looks_gone(n, now))
        {
            return false;
        }
        let loads: Vec<usize> = self
            .loads(policy)
            .filter(|&n| self.signals[n].front.at.is_some())
            .collect();
        loads.into_iter().all(|n| {
            let signal = &mut self.signals[n];
            signal.memory.0 = 0.0;
            let after_trip = signal
                .front
                .at
                .is_some_and(|at| at >= since + law.open_min_s / 2.0);
            let forgotten = || signal.predict(law, now, &self.history) < CLOSE_BELOW;
            after_trip && signal.front.z < 1.0 && (open_s >= law.close_wait_s || forgotten())
        })
    }

    /// Returns false if the fast path's newest look since the trip is above the trip level.
    ///
    /// If only the fast path ever saw the signal that tripped, it must also have seen it below its
    /// setpoint: samples are late, and the first may come after the restart.
    fn looks_gone(&self, n: usize, now: f64) -> bool {
        let signal = &self.signals[n];
        // A look that is old, or from a wrong clock, does not show the present load.
        let recent = |look: &(f64, f64)| {
            look.0 > self.breaker.since && look.0 <= now && now - look.0 <= LOOK_S
        };
        let newest = signal
            .looked
            .filter(recent)
            .map(|(at, x)| signal.clean_of(at, x));
        if signal.front.at.is_none() && self.breaker.by.as_ref() == Some(&signal.name) {
            return newest.is_some_and(|x| x < 1.0);
        }
        newest.is_none_or(|x| x <= signal.trip_x)
    }

    /// Restarts at the modelled rate, bounded by the one that tripped, and returns true.
    fn restart(&mut self, policy: &Policy, bounds: Bounds, now: f64) -> bool {
        let law = &policy.law;
        let loads: Vec<usize> = self
            .loads(policy)
            .filter(|&n| self.signals[n].front.at.is_some())
            .collect();
        let (v_trip, peak) = (self.breaker.v_trip, self.breaker.peak);
        let mut room: Option<f64> = None;
        for &n in &loads {
            let signal = &mut self.signals[n];
            if law.observer && signal.observer.c.is_some() {
                // None of our work was running: the remaining load is the background.
                signal.observer.b = signal.observer.b.min(signal.front.z);
                room = room
                    .into_iter()
                    .chain(signal.observer.room(0.0))
                    .reduce(f64::min);
            }
            if peak > 1.0 && self.breaker.by.as_ref() == Some(&signal.name) {
                // The peak at this rate is a measurement of the cost.
                let b = signal.observer.b.min(signal.front.z).min(0.9);
                room = room
                    .into_iter()
                    .chain([v_trip * (1.0 - b) / (peak - b)])
                    .reduce(f64::min);
            }
        }
        let v = trip::restart(v_trip, room, law.restart, self.breaker.trips);
        for &n in &loads {
            let signal = &mut self.signals[n];
            let level = match signal.observer.c {
                Some(c) if law.observer => (signal.observer.b + c * v).min(1.0),
                _ => signal.front.z,
            };
            signal.forget(law, now, &self.history, level);
        }
        self.u = clamp_finite(
            v.max(1e-12).ln(),
            self.lowest(bounds),
            (bounds.max * self.work.w).ln(),
        );
        self.rebase(policy, now);
        let confirm = law.confirm_s > 0.0;
        let breaker = &mut self.breaker;
        breaker.phase = if confirm {
            Phase::HalfOpen
        } else {
            Phase::Closed
        };
        (breaker.since, breaker.acted_at, breaker.restart_u) = (now, now, self.u);
        self.usual = self.u.exp();
        true
    }

    /// Returns true if every signal that can trip has a sample that covers only time after the
    /// restart, or the longest wait is over.
    fn confirmed(&self, policy: &Policy, now: f64) -> bool {
        let restarted = self.breaker.acted_at;
        let covered = |n: usize| {
            self.signals[n]
                .front
                .at
                .is_some_and(|at| at - self.signals[n].front.span_s >= restarted)
        };
        now - restarted >= policy.law.confirm_s || self.guards(policy).all(covered)
    }

    /// Returns the indexes of the signals that can trip the breaker.
    fn guards<'a>(&self, policy: &'a Policy) -> impl Iterator<Item = usize> + use<'a> {
        policy
            .signals
            .iter()
            .enumerate()
            .filter(|(_, about)| about.trips)
            .map(|(n, _)| n)
    }

    /// Returns the indexes of the load signals.
    fn loads<'a>(&self, policy: &'a Policy) -> impl Iterator<Item = usize> + use<'a> {
        policy
            .signals
            .iter()
            .enumerate()
            .filter(|(_, about)| about.kind == SignalKind::Load)
            .map(|(n, _)| n)
    }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
