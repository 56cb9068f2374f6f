//! Feed-forward by the hour of the week: the rate that this hour has borne, as the start value after a stop.
//!
//! What is not ours has its week: shops are busy by day, backups run on Sunday. While work flows and the load stands at its
//! setpoint, the rate *is* what the hour bears, so it is kept: one mean per hour of the week, and how many weeks are in it.
//! Each new week counts half, so that a change is believed within two or three.
//!
//! It is used at one place only: while nobody waits for tokens (an empty queue), the knob is put, as fast as any rate may grow,
//! to most of what this hour has borne, or the next one if this one is not known. When work comes, it starts there
//! instead of where it stopped. All bounds of an unused knob hold as before, above all that of the model, which has seen the background of
//! this day. The law and the breaker act from the first sample on. A person's rate, a hand-over, a restart after a
//! trip and blindness have rules of their own and know nothing of the hour.
//!
//! Hours are of UTC: where clocks are changed, an hour is learned anew within a week or two.

use super::limits::BOTTLENECK;
use super::plan::{Observation, State};
use super::policy::{Kind, Policy};
use crate::control::within;

/// Hours of a week, and of the time before the first Monday of 1970.
const HOURS: i64 = 168;
const THURSDAY: i64 = 72;
/// An hour is believed if the load stood near its setpoint for this long in it, in seconds.
const ENOUGH_S: f64 = 300.0;
/// Near: within this of the setpoint, in setpoints.
const NEAR: f64 = 0.2;
/// The newest week's part of the mean.
const NEWEST: f64 = 0.5;
/// Nothing is used before this much has been seen, in seconds: a whole week.
const WEEK_S: f64 = 168.0 * 3600.0;
/// A pause of work is a stop after this long, in seconds.
const STOP_S: f64 = 600.0;
/// The start is this share of what the hour has borne: days differ, and the law soon adds what is missing.
const START: f64 = 0.65;

/// What each hour of the week has borne.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Week {
    /// Log work rate, and weeks that are in it; Monday 0:00 UTC first. Empty until the first hour is known.
    hours: Vec<(f64, u32)>,
    /// When this began to look, in unix seconds.
    began_at: Option<f64>,
    /// The hour that runs, counted from 1970, with the sum of its good log work rates and their seconds.
    hour: i64,
    sum: f64,
    good_s: f64,
    /// Since when nobody waits for tokens.
    idle_since: Option<f64>,
}

impl Week {
    /// Learns from `dt` seconds before `now`: the log work rate `good`, if the load stood near its setpoint because of it.
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

    /// The log work rate to stand ready at, `now`, after a stop; `None` where nothing is to be said.
    pub fn start(&self, policy: &Policy, now: f64) -> Option<f64> {
        let stopped = self.idle_since.is_some_and(|since| now - since >= STOP_S);
        let seen_a_week = self.began_at.is_some_and(|began| now - began >= WEEK_S);
        if !(policy.law.feed_forward && stopped && seen_a_week) {
            return None;
        }
        let known = |hour: i64| self.hours.get(slot(hour)).filter(|(_, weeks)| *weeks > 0).map(|(u, _)| *u);
        Some(known(hour(now)).or_else(|| known(hour(now) + 1))? + START.ln())
    }

    /// The unit of work changed: rates become `factor` times larger.
    pub fn scale(&mut self, factor: f64) {
        self.hours.iter_mut().filter(|(_, weeks)| *weeks > 0).for_each(|(u, _)| *u += factor.ln());
        self.sum += factor.ln() * self.good_s;
    }

    /// Moves every time by `by_s`, when the clock was set back. Hours stay what they were: the clock was wrong, not the week.
    pub fn shift(&mut self, by_s: f64) {
        self.began_at = self.began_at.map(|at| at + by_s);
        self.idle_since = self.idle_since.map(|at| at + by_s);
    }

    /// Puts the hour that ends into the mean of its slot.
    fn close(&mut self) {
        if self.good_s >= ENOUGH_S {
            self.hours.resize(HOURS as usize, (0.0, 0));
            // Four digits are plenty, and the state is stored every tick.
            let u = (self.sum / self.good_s * 1e4).round() / 1e4;
            let (mean, weeks) = &mut self.hours[slot(self.hour)];
            *mean = if *weeks == 0 { u } else { ((*mean + NEWEST * (u - *mean)) * 1e4).round() / 1e4 };
            *weeks = weeks.saturating_add(1);
        }
        (self.sum, self.good_s) = (0.0, 0.0);
    }
}

fn hour(now: f64) -> i64 {
    (now / 3600.0).floor() as i64
}

/// The place of an hour in its week.
fn slot(hour: i64) -> usize {
    (hour + THURSDAY).rem_euclid(HOURS) as usize
}

impl State {
    /// Learns what this hour bears, after a decision.
    pub(super) fn learn_week(&mut self, policy: &Policy, seen: &Observation, now: f64, dt: f64) {
        let Some(plan) = &self.plan else { return };
        let used = seen.limiting_share.is_some_and(|share| share > BOTTLENECK);
        // What was decided by blindness, a person, a bound or a breaker says nothing of the hour.
        let decider = policy.signals.iter().position(|about| about.name == plan.limiting && about.kind != Kind::Ratio);
        let near = decider.is_some_and(|n| self.signals[n].xp.is_some_and(|xp| within(xp, 1.0 - NEAR, 1.0 + NEAR) == xp));
        let good = (used && near).then_some(self.u);
        let is_idle = !used && seen.limiting_share.is_some() && matches!(plan.limiting.as_str(), "idle" | "week");
        self.week.learn(now, dt, good, is_idle);
    }
}

#[cfg(test)]
#[path = "week_tests.rs"]
mod tests;
