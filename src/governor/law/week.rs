//! Feed-forward by the hour of the week: the rate that this hour has sustained, as the start value
//! after a stop.
//!
//! The load of others follows the week: shops are busy by day, backups run on Sunday. While work
//! flows and the load is at its setpoint, the rate *is* the capacity of the hour, so it is stored:
//! one mean per hour of the week, with the number of weeks in it. Each new week counts half, so
//! that a change is adopted within two or three.
//!
//! It has a single use. While no job waits for tokens, the knob moves to most of the rate that this
//! hour has sustained, as fast as any rate may grow; the next hour stands in for an unknown one.
//! New work then starts at that rate instead of the rate at which it stopped. All
//! bounds of an unused knob still apply, above all that of the model, which has seen the background
//! of this day. The law and the breaker act from the first sample on. A manual rate, a hand-over, a
//! restart after a trip and stale signals have their own rules and ignore the hour.
//!
//! Hours are in UTC: after a change of local time, an hour is relearned within a week or two.

use super::part::{StatePart, all_finite};
use super::signal::Signal;
use crate::control::clamp_finite;
use crate::governor::observation::Observation;
use crate::governor::plan::Plan;
use crate::governor::policy::Policy;

/// The hours of a week.
const HOURS: i64 = 168;
/// The hours before the first Monday of 1970, modulo a week: 1970-01-01 was a Thursday.
const THURSDAY: i64 = 72;
/// The time near the setpoint from which an hour counts, in seconds.
const ENOUGH_S: f64 = 300.0;
/// The largest distance from the setpoint that counts as near, in setpoints.
const NEAR_SETPOINT: f64 = 0.2;
/// The weight of the newest week in the mean.
const NEWEST_WEEK_WEIGHT: f64 = 0.5;
/// The observation time before anything is used, in seconds: a whole week.
const WEEK_S: f64 = 168.0 * 3600.0;
/// The pause of work that counts as a stop, in seconds.
const STOP_S: f64 = 600.0;
/// The start rate as a share of the rate that the hour has sustained: days differ, and the law soon
/// adds the rest.
const START: f64 = 0.65;

/// The rate that each hour of the week has sustained.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Week {
    /// The log work rate and its number of weeks, by hour, Monday 0:00 UTC first; empty until the
    /// first hour is known.
    hours: Vec<(f64, u32)>,
    /// The start of observation, in unix seconds.
    began_at: Option<f64>,
    /// The current hour, counted from 1970.
    hour: i64,
    /// The sum of the current hour's good log work rates, each times its seconds.
    sum: f64,
    /// The seconds of the current hour near the setpoint.
    good_s: f64,
    /// The time since which no job waits for tokens, in unix seconds.
    idle_since: Option<f64>,
}

impl Week {
    /// Learns from the `dt` seconds before `now`: `good` is the log work rate, if it kept the load
    /// near its setpoint.
    pub fn learn(&mut self, now: f64, dt: f64, good: Option<f64>, is_idle: bool) {
        self.began_at.get_or_insert(now);
        let hour = hour(now);
        if hour != self.hour {
            self.close();
            self.hour = hour;
        }
        if let Some(u) = good.filter(|u| u.is_finite()) {
            self.sum += u * dt;
            self.good_s += dt;
        }
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(now));
    }

    /// Learns from a decision: the log work rate `u` that it set, its time and the seconds before
    /// it.
    pub(in crate::governor) fn learn_from(
        &mut self,
        plan: &Plan,
        signals: &[Signal],
        seen: &Observation,
        (u, now, dt): (f64, f64, f64),
    ) {
        // A decision caused by stale signals, a person, a bound or the breaker carries no
        // information about the hour.
        let decider = signals.iter().find(|signal| signal.name == plan.limiting);
        let near = decider
            .and_then(Signal::predicted)
            .is_some_and(|x| clamp_finite(x, 1.0 - NEAR_SETPOINT, 1.0 + NEAR_SETPOINT) == x);
        let used = seen.is_limited();
        let is_idle = !used
            && seen.limiting_share.is_some()
            && matches!(plan.limiting.as_str(), "idle" | "week");
        self.learn(now, dt, (used && near).then_some(u), is_idle);
    }

    /// Returns the log work rate to start at after a stop; `None` without a recommendation.
    pub fn start(&self, policy: &Policy, now: f64) -> Option<f64> {
        let stopped = self.idle_since.is_some_and(|since| now - since >= STOP_S);
        let seen_a_week = self.began_at.is_some_and(|began| now - began >= WEEK_S);
        if !(policy.law.feed_forward && stopped && seen_a_week) {
            return None;
        }
        let known = |hour: i64| {
            self.hours
                .get(slot(hour))
                .filter(|(_, weeks)| *weeks > 0)
                .map(|(u, _)| *u)
        };
        Some(known(hour(now)).or_else(|| known(hour(now) + 1))? + START.ln())
    }

    /// Multiplies rates by `factor` after the unit of work changed.
    pub fn scale(&mut self, factor: f64) {
        self.hours
            .iter_mut()
            .filter(|(_, weeks)| *weeks > 0)
            .for_each(|(u, _)| *u += factor.ln());
        self.sum += factor.ln() * self.good_s;
    }

    /// Adds the hour that ends to the mean of its slot.
    fn close(&mut self) {
        if self.good_s >= ENOUGH_S {
            self.hours.resize(HOURS as usize, (0.0, 0));
            // Four digits suffice, and the state is stored every tick.
            let u = (self.sum / self.good_s * 1e4).round() / 1e4;
            let (mean, weeks) = &mut self.hours[slot(self.hour)];
            *mean = if *weeks == 0 {
                u
            } else {
                ((*mean + NEWEST_WEEK_WEIGHT * (u - *mean)) * 1e4).round() / 1e4
            };
            *weeks = weeks.saturating_add(1);
        }
        (self.sum, self.good_s) = (0.0, 0.0);
    }
}

fn hour(now: f64) -> i64 {
    (now / 3600.0).floor() as i64
}

/// Returns the index of an hour in its week.
fn slot(hour: i64) -> usize {
    (hour + THURSDAY).rem_euclid(HOURS) as usize
}

impl StatePart for Week {
    // Hours stay unchanged: the clock was wrong, not the week.
    fn shift(&mut self, by_s: f64) {
        self.began_at = self.began_at.map(|at| at + by_s);
        self.idle_since = self.idle_since.map(|at| at + by_s);
    }

    fn is_sound(&self) -> bool {
        all_finite(
            self.hours
                .iter()
                .map(|(u, _)| *u)
                .chain([self.sum, self.good_s]),
        )
    }
}

#[cfg(test)]
#[path = "week_tests.rs"]
mod tests;
