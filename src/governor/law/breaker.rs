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

use super::controller::Controller;
use super::part::{StatePart, all_finite};
use super::signal::Signal;
use crate::control::{History, clamp_finite, trip};
use crate::governor::observation::SignalSample;
use crate::governor::policy::{Policy, SignalKind, SignalPolicy, SignalSource};

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
/// The highest sample from which the cost is read, in setpoints: above it a resource is saturated,
/// and its load says more about the queue than about the work.
const PEAK_MAX: f64 = 8.0;
/// The time for which a sample of the fast path is current, in seconds.
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
    /// The signal that tripped it last; `None` if that was not recorded.
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

/// A sample of the fast path that trips the breaker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::governor) struct TripLook {
    /// The index of the signal.
    pub signal: usize,
    /// The height of the sample, in setpoints.
    pub height: f64,
    /// The height with the averaging undone, in setpoints.
    pub peak: f64,
}

/// A signal whose newest sample is above its trip level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::governor) struct Overload {
    /// The index of the signal.
    pub signal: usize,
    /// Its height, in setpoints.
    pub height: f64,
    /// The height with the averaging undone, if the cost is to be read from it; 0 otherwise.
    pub peak: f64,
    /// The work rate at the time of the sample.
    pub v: f64,
}

/// The result of one tick of the breaker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::governor) enum BreakerStep {
    /// Work flows.
    Flows,
    /// Work restarts at this log work rate.
    Restarts(f64),
    /// Work is stopped.
    Stopped,
}

impl Breaker {
    /// Limits its times to `now`: a later one comes from a clock that has since been corrected, and
    /// the breaker would wait for it.
    pub(in crate::governor) fn not_after(&mut self, now: f64) {
        (self.since, self.acted_at) = (self.since.min(now), self.acted_at.min(now));
    }

    /// Records one raw look per signal, and returns the one that trips, if any: the second in a row
    /// above the trip level, or one far above it.
    pub(in crate::governor) fn look(
        &mut self,
        signals: &mut [Signal],
        policy: &Policy,
        now: f64,
        looks: &[SignalSample],
    ) -> Option<TripLook> {
        let mut tripped = None;
        for (n, (signal, about)) in signals.iter_mut().zip(&policy.signals).enumerate() {
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
            if self.phase == Phase::Open {
                if now <= self.since + PEAK_S {
                    self.peak = self.peak.max(z);
                }
                continue;
            }
            let high = x > signal.trip_x || (z > signal.trip_z && x > CONFIRM);
            signal.alarms = if high && at >= self.acted_at + SETTLE_FAST_S {
                signal.alarms + 1
            } else {
                0
            };
            if signal.alarms >= 2 || (signal.alarms == 1 && x > 1.5 * signal.trip_x) {
                tripped = tripped.or(Some(TripLook {
                    signal: n,
                    height: x,
                    peak: z,
                }));
            }
        }
        tripped
    }

    /// Runs one tick; a restart stays between the log work rates `lowest` and `highest`.
    pub(in crate::governor) fn step(
        &mut self,
        signals: &mut [Signal],
        policy: &Policy,
        history: &History,
        now: f64,
        (lowest, highest): (f64, f64),
    ) -> BreakerStep {
        if self.phase == Phase::Open {
            if !self.may_close(signals, policy, history, now) {
                return BreakerStep::Stopped;
            }
            let v = self.restart_rate(signals, policy, history, now);
            let u = clamp_finite(v.max(1e-12).ln(), lowest, highest);
            self.phase = if policy.law.confirm_s > 0.0 {
                Phase::HalfOpen
            } else {
                Phase::Closed
            };
            (self.since, self.acted_at, self.restart_u) = (now, now, u);
            return BreakerStep::Restarts(u);
        }
        if let Some(overload) = self.overloaded(signals, policy, history, now) {
            self.trip(signals, policy.law.retrip_s, now, overload);
            return BreakerStep::Stopped;
        }
        if self.phase == Phase::HalfOpen && self.confirmed(signals, policy, now) {
            (self.phase, self.since) = (Phase::Closed, now);
        }
        BreakerStep::Flows
    }

    /// Returns a signal whose newest sample, first seen at `now`, shows an overload.
    pub(in crate::governor) fn overloaded(
        &self,
        signals: &[Signal],
        policy: &Policy,
        history: &History,
        now: f64,
    ) -> Option<Overload> {
        guards(policy).find_map(|n| {
            let (signal, about) = (&signals[n], &policy.signals[n]);
            let at = signal.front.at?;
            // Only samples count that became visible now and were taken after the last action.
            if signal.front.seen != Some(now) || at < self.acted_at + SETTLE_S {
                return None;
            }
            let x = signal.height(about);
            // A share is not an average of a load, so there is no averaging to undo.
            let rises = about.kind != SignalKind::Ratio && signal.front.z > signal.trip_z;
            let high = x > signal.trip_x || (rises && x > CONFIRM);
            let has_peak = rises && about.has_model(&policy.law);
            high.then(|| Overload {
                signal: n,
                height: x,
                peak: if has_peak {
                    signal.front.z.min(PEAK_MAX)
                } else {
                    0.0
                },
                v: history.mean(at - signal.front.span_s, at),
            })
        })
    }

    /// Opens because of an overload.
    pub(in crate::governor) fn trip(
        &mut self,
        signals: &mut [Signal],
        retrip_s: f64,
        now: f64,
        overload: Overload,
    ) {
        self.open(signals, retrip_s, now, overload.v);
        let by = signals[overload.signal].name.clone();
        (self.by, self.height, self.peak) = (Some(by), overload.height, overload.peak);
    }

    /// Opens because of a trip of which only the stop of the work at the rate `v` is known.
    pub(in crate::governor) fn reopen(
        &mut self,
        signals: &mut [Signal],
        retrip_s: f64,
        now: f64,
        v: f64,
    ) {
        self.open(signals, retrip_s, now, v);
        (self.by, self.height, self.peak) = (None, 0.0, 0.0);
    }

    /// Opens; a trip within `retrip_s` of the last action counts as a re-trip.
    fn open(&mut self, signals: &mut [Signal], retrip_s: f64, now: f64, v: f64) {
        let again = now - self.acted_at < retrip_s;
        let v = v.max(1e-12);
        self.trips = if again {
            self.trips.saturating_add(1)
        } else {
            0
        };
        self.v_trip = if again { v.min(self.v_trip) } else { v };
        self.phase = Phase::Open;
        (self.since, self.acted_at) = (now, now);
        signals.iter_mut().for_each(|signal| signal.alarms = 0);
    }

    /// Returns true if every load has a sample well after the trip that shows it gone, and its
    /// average has decayed or the longest wait is over.
    ///
    /// Other signals may be silent while the work is stopped; their samples must not show an
    /// overload, until they are stale: a latency may end at its highest, and has no value without
    /// work.
    fn may_close(
        &self,
        signals: &mut [Signal],
        policy: &Policy,
        history: &History,
        now: f64,
    ) -> bool {
        let (law, since) = (&policy.law, self.since);
        let open_s = now - since;
        if open_s < trip::open_s(law.open_min_s, self.trips) {
            return false;
        }
        let still_high = |n: usize| {
            let (signal, about) = (&signals[n], &policy.signals[n]);
            let is_stale = |seen: f64| now - seen > signal.stale_after_s(about, law);
            about.kind != SignalKind::Load
                && about.source != SignalSource::Feedback
                && signal.front.at.is_some_and(|at| at > since)
                && !signal.front.seen.is_some_and(is_stale)
                && signal.height(about) > signal.trip_x
        };
        if guards(policy).any(still_high)
            || guards(policy).any(|n| !self.looks_gone(&signals[n], now))
        {
            return false;
        }
        loads(signals, policy).all(|signal| {
            let Controller::Pid(pid) = &mut signal.controller else {
                return true;
            };
            pid.drop_memory();
            let after_trip = signal
                .front
                .at
                .is_some_and(|at| at >= since + law.open_min_s / 2.0);
            let forgotten = || pid.predict(&signal.front, law, now, history) < CLOSE_BELOW;
            after_trip && signal.front.z < 1.0 && (open_s >= law.close_wait_s || forgotten())
        })
    }

    /// Returns false if the fast path's newest look since the trip is above the trip level.
    ///
    /// If only the fast path ever saw the signal that tripped, it must also have seen it below its
    /// setpoint: samples are late, and the first may come after the restart.
    fn looks_gone(&self, signal: &Signal, now: f64) -> bool {
        // A sample that is old, or from a wrong clock, does not show the present load.
        let recent =
            |look: &(f64, f64)| look.0 > self.since && look.0 <= now && now - look.0 <= LOOK_S;
        let newest = signal
            .looked
            .filter(recent)
            .map(|(at, x)| signal.clean_of(at, x));
        if signal.front.at.is_none() && self.by.as_ref() == Some(&signal.name) {
            return newest.is_some_and(|x| x < 1.0);
        }
        newest.is_none_or(|x| x <= signal.trip_x)
    }

    /// Returns the work rate of a restart: the modelled one, bounded by the one that tripped.
    ///
    /// The loads' controllers leave out what their averages remember of the incident.
    fn restart_rate(
        &self,
        signals: &mut [Signal],
        policy: &Policy,
        history: &History,
        now: f64,
    ) -> f64 {
        let law = &policy.law;
        let (v_trip, peak) = (self.v_trip, self.peak);
        let mut room: Option<f64> = None;
        for signal in loads(signals, policy) {
            let has_model = policy
                .signal(&signal.name)
                .is_some_and(|about| about.has_model(law));
            let Controller::Pid(pid) = &mut signal.controller else {
                continue;
            };
            if let (true, Some(modelled)) = (has_model, pid.restart_room(&signal.front)) {
                room = room.into_iter().chain([modelled]).reduce(f64::min);
            } else if law.observer && pid.observer.c.is_some() {
                // None of our work was running: the remaining load is the background.
                pid.observer.b = pid.observer.b.min(signal.front.z);
                room = room
                    .into_iter()
                    .chain(pid.observer.room(0.0))
                    .reduce(f64::min);
            }
            if peak > 1.0 && self.by.as_ref() == Some(&signal.name) {
                // The peak at this rate is a measurement of the cost.
                let b = pid.observer.b.min(signal.front.z).min(0.9);
                room = room
                    .into_iter()
                    .chain([v_trip * (1.0 - b) / (peak - b)])
                    .reduce(f64::min);
            }
        }
        let v = trip::restart(v_trip, room, law.restart, self.trips);
        for signal in loads(signals, policy) {
            let Controller::Pid(pid) = &mut signal.controller else {
                continue;
            };
            let level = match pid.observer.c {
                Some(c) if law.observer => (pid.observer.b + c * v).min(1.0),
                _ => signal.front.z,
            };
            pid.forget(&signal.front, law, now, history, level);
        }
        v
    }

    /// Returns true if every signal that can trip has a sample that covers only time after the
    /// restart, or the longest wait is over.
    fn confirmed(&self, signals: &[Signal], policy: &Policy, now: f64) -> bool {
        let restarted = self.acted_at;
        let covered = |n: usize| {
            let front = &signals[n].front;
            front.at.is_some_and(|at| at - front.span_s >= restarted)
        };
        now - restarted >= policy.law.confirm_s || guards(policy).all(covered)
    }
}

/// A trip of the breaker, as stored for people.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TripRecord {
    /// The time in unix seconds.
    pub at: f64,
    /// The signal that tripped it; empty if that was not recorded.
    pub by: String,
    /// The height of the signal that tripped it, in setpoints.
    pub height: f64,
}

impl TripRecord {
    /// Records the trip if the breaker is open because of a trip later than `last`.
    pub(in crate::governor) fn update(last: &mut Option<Self>, breaker: &Breaker) {
        let is_known = |known: &Self| known.at >= breaker.since;
        if breaker.phase == Phase::Open && !last.as_ref().is_some_and(is_known) {
            *last = Some(Self {
                at: breaker.since,
                by: breaker.by.clone().unwrap_or_default(),
                height: breaker.height,
            });
        }
    }
}

impl StatePart for Breaker {
    fn shift(&mut self, by_s: f64) {
        self.since += by_s;
        self.acted_at += by_s;
    }

    fn is_sound(&self) -> bool {
        let times = [self.since, self.acted_at];
        let heights = [self.v_trip, self.height, self.peak, self.restart_u];
        all_finite(times.into_iter().chain(heights))
    }
}

/// Returns the indexes of the signals that can trip the breaker.
fn guards(policy: &Policy) -> impl Iterator<Item = usize> + use<'_> {
    let trips = |(n, about): (usize, &SignalPolicy)| about.trips.then_some(n);
    policy.signals.iter().enumerate().filter_map(trips)
}

/// Returns the load signals that have a sample.
fn loads<'a>(
    signals: &'a mut [Signal],
    policy: &'a Policy,
) -> impl Iterator<Item = &'a mut Signal> + use<'a> {
    signals
        .iter_mut()
        .zip(&policy.signals)
        .filter(|(signal, about)| about.kind == SignalKind::Load && signal.front.at.is_some())
        .map(|(signal, _)| signal)
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;
