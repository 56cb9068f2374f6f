//! What shadow mode would have done, beside what was done.
//!
//! Both are sums over the time in shadow mode. What really happened was measured; what would have happened at the governor's
//! own rate is what its model says ([`super::shadow`]), and so no better than that.

use super::explain::{number, seconds};

/// Rates that differ by less than this share are the same.
const SAME: f64 = 0.01;

/// A shadow's score.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Score {
    /// When shadow mode began, in unix seconds.
    pub since: f64,
    /// The time that was looked at, in seconds.
    pub seconds: f64,
    /// What really happened.
    pub real: Side,
    /// What would have happened at the governor's own rate.
    pub own: Side,
    /// Seconds in which it would have let fewer jobs through.
    pub lower_s: f64,
    /// Seconds in which it would have let more jobs through.
    pub higher_s: f64,
    /// Seconds in which its breaker would have been open.
    pub stopped_s: f64,
    /// Seconds in which the load was really above a setpoint, and of those the ones in which it would have let fewer through.
    pub over_s: f64,
    /// See `over_s`.
    pub braked_s: f64,
}

/// One of the two worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Side {
    /// Jobs let through.
    pub jobs: f64,
    /// The load above its setpoint, in setpoints, over time: the sum of the excess of the highest signal, in setpoint seconds.
    pub overload_s: f64,
    /// The highest load, in setpoints.
    pub peak: f64,
    /// The load of the highest signal now, in setpoints; `None` while nothing is read.
    pub load: Option<f64>,
    /// The rate now, in jobs per second: 0 stopped, -1 unlimited.
    pub rps: f64,
}

impl Score {
    /// A score that begins at `now`.
    pub fn begin(now: f64) -> Self {
        Self { since: now, ..Self::default() }
    }

    /// Adds `dt` seconds in which `real` and `own` let so many jobs through per second (`None` where it is not known), with
    /// these loads in setpoints.
    pub(super) fn add(&mut self, dt: f64, real: Moment, own: Moment) {
        self.seconds += dt;
        self.real.add(dt, real);
        self.own.add(dt, own);
        let margin = SAME * real.flow.abs().max(own.flow.abs());
        let lower = own.flow < real.flow - margin;
        if lower {
            self.lower_s += dt;
        } else if own.flow > real.flow + margin {
            self.higher_s += dt;
        }
        if own.rps == 0.0 {
            self.stopped_s += dt;
        }
        if real.load.is_some_and(|x| x > 1.0) {
            self.over_s += dt;
            self.braked_s += if lower { dt } else { 0.0 };
        }
    }

    /// The share of the time above the setpoint in which it would have braked; `None` if there was no such time.
    pub fn braked_share(&self) -> Option<f64> {
        (self.over_s > 0.0).then(|| self.braked_s / self.over_s)
    }

    /// False if some number cannot be computed with or stored.
    pub(super) fn is_sound(&self) -> bool {
        let side = |side: &Side| [side.jobs, side.overload_s, side.peak, side.load.unwrap_or(0.0), side.rps];
        let own = [self.since, self.seconds, self.lower_s, self.higher_s, self.stopped_s, self.over_s, self.braked_s];
        own.into_iter().chain(side(&self.real)).chain(side(&self.own)).all(f64::is_finite)
    }

    /// The score in words.
    pub fn sentence(&self) -> String {
        let (real, own) = (&self.real, &self.own);
        let mut text = format!(
            "in {} of shadow mode it would have let {} jobs through instead of {}, with an overload of {} setpoint seconds instead of {}, \
             peak {} instead of {}",
            seconds(self.seconds),
            number(own.jobs),
            number(real.jobs),
            number(own.overload_s),
            number(real.overload_s),
            number(own.peak),
            number(real.peak),
        );
        text += &format!("; slower for {}, faster for {}", seconds(self.lower_s), seconds(self.higher_s));
        if self.stopped_s > 0.0 {
            text += &format!(", stopped for {}", seconds(self.stopped_s));
        }
        if let Some(share) = self.braked_share() {
            text += &format!("; it would have braked in {:.0} % of the time above the setpoint", 100.0 * share);
        }
        text
    }
}

/// One step of one world.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moment {
    /// Jobs let through per second.
    pub flow: f64,
    /// The highest load, in setpoints.
    pub load: Option<f64>,
    /// The rate in force.
    pub rps: f64,
}

impl Side {
    fn add(&mut self, dt: f64, moment: Moment) {
        self.jobs += moment.flow * dt;
        (self.load, self.rps) = (moment.load, moment.rps);
        if let Some(x) = moment.load {
            self.overload_s += (x - 1.0).max(0.0) * dt;
            self.peak = self.peak.max(x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(flow: f64, load: f64) -> Moment {
        Moment { flow, load: Some(load), rps: flow }
    }

    #[test]
    fn a_score_adds_up_jobs_overload_and_who_would_have_braked() {
        let mut score = Score::begin(100.0);
        score.add(10.0, moment(50.0, 1.5), moment(30.0, 0.9));
        score.add(10.0, moment(50.0, 1.2), moment(50.1, 1.2));
        score.add(20.0, moment(20.0, 0.5), moment(60.0, 1.0));
        score.add(5.0, Moment { load: None, ..moment(20.0, 0.0) }, moment(0.0, 0.2));

        assert_eq!((score.seconds, score.lower_s, score.higher_s, score.stopped_s), (45.0, 15.0, 20.0, 5.0));
        assert_eq!((score.real.jobs, score.own.jobs), (1500.0, 2001.0));
        assert!((score.real.overload_s - 7.0).abs() < 1e-9 && (score.own.overload_s - 2.0).abs() < 1e-9, "{score:?}");
        assert_eq!((score.real.peak, score.own.peak, score.real.load, score.own.load), (1.5, 1.2, None, Some(0.2)));
        assert_eq!(score.braked_share(), Some(0.5));
        assert_eq!(
            score.sentence(),
            "in 45 s of shadow mode it would have let 2001 jobs through instead of 1500, with an overload of 2 setpoint seconds \
             instead of 7, peak 1.2 instead of 1.5; slower for 15 s, faster for 20 s, stopped for 5 s; it would have braked in \
             50 % of the time above the setpoint"
        );
    }
}
