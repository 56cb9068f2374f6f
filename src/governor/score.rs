//! The score of shadow mode: the simulated outcome beside the real one.
//!
//! Both are sums over the time in shadow mode. The real outcome is measured; the simulated one at
//! the governor's own rate comes from its model ([`super::shadow`]) and is only as good as that.

use super::explain::format::{number, seconds};

/// The relative difference below which rates count as the same.
const SAME_RATE_TOLERANCE: f64 = 0.01;

/// The score of a shadow governor.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Score {
    /// The start of shadow mode, in unix seconds.
    pub since: f64,
    /// The evaluated time, in seconds.
    pub seconds: f64,
    /// The real outcome.
    pub real: Side,
    /// The simulated outcome at the governor's own rate.
    pub own: Side,
    /// The time in which it would have let fewer jobs through, in seconds.
    pub lower_s: f64,
    /// The time in which it would have let more jobs through, in seconds.
    pub higher_s: f64,
    /// The time in which its breaker would have been open, in seconds.
    pub stopped_s: f64,
    /// The time in which the real load was above a setpoint, in seconds.
    pub over_s: f64,
    /// The part of `over_s` in which it would have let fewer jobs through, in seconds.
    pub braked_s: f64,
}

/// One of the two outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Side {
    /// The number of jobs let through.
    pub jobs: f64,
    /// The integral of the highest signal's excess over its setpoint, in setpoint seconds.
    pub overload_s: f64,
    /// The highest load, in setpoints.
    pub peak: f64,
    /// The current load of the highest signal, in setpoints; `None` without a fresh reading.
    pub load: Option<f64>,
    /// The current knob, in jobs per second or slots: 0 stopped, -1 unlimited.
    pub rps: f64,
}

impl Score {
    /// Creates a score that begins at `now`.
    pub fn begin(now: f64) -> Self {
        Self {
            since: now,
            ..Self::default()
        }
    }

    /// Adds `dt` seconds with the flow, load and rate of both outcomes.
    pub(super) fn add(&mut self, dt: f64, real: ScoreStep, own: ScoreStep) {
        self.seconds += dt;
        self.real.add(dt, real);
        self.own.add(dt, own);
        let margin = SAME_RATE_TOLERANCE * real.flow.abs().max(own.flow.abs());
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

    /// Returns the share of the time above the setpoint in which it would have braked; `None`
    /// without such time.
    pub fn braked_share(&self) -> Option<f64> {
        (self.over_s > 0.0).then(|| self.braked_s / self.over_s)
    }

    /// Returns false if any number is infinite or NaN.
    pub(super) fn is_sound(&self) -> bool {
        let side = |side: &Side| {
            [
                side.jobs,
                side.overload_s,
                side.peak,
                side.load.unwrap_or(0.0),
                side.rps,
            ]
        };
        let own = [
            self.since,
            self.seconds,
            self.lower_s,
            self.higher_s,
            self.stopped_s,
            self.over_s,
            self.braked_s,
        ];
        own.into_iter()
            .chain(side(&self.real))
            .chain(side(&self.own))
            .all(f64::is_finite)
    }

    /// Returns the score as a sentence.
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
        text += &format!(
            "; slower for {}, faster for {}",
            seconds(self.lower_s),
            seconds(self.higher_s)
        );
        if self.stopped_s > 0.0 {
            text += &format!(", stopped for {}", seconds(self.stopped_s));
        }
        if let Some(share) = self.braked_share() {
            text += &format!(
                "; it would have braked in {:.0} % of the time above the setpoint",
                100.0 * share
            );
        }
        text
    }
}

/// One step of one outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ScoreStep {
    /// The throughput, in jobs per second.
    pub flow: f64,
    /// The highest load, in setpoints.
    pub load: Option<f64>,
    /// The knob in force, in jobs per second or slots.
    pub rps: f64,
}

impl Side {
    fn add(&mut self, dt: f64, moment: ScoreStep) {
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

    fn moment(flow: f64, load: f64) -> ScoreStep {
        ScoreStep {
            flow,
            load: Some(load),
            rps: flow,
        }
    }

    #[test]
    fn a_score_adds_up_jobs_overload_and_who_would_have_braked() {
        let mut score = Score::begin(100.0);
        score.add(10.0, moment(50.0, 1.5), moment(30.0, 0.9));
        score.add(10.0, moment(50.0, 1.2), moment(50.1, 1.2));
        score.add(20.0, moment(20.0, 0.5), moment(60.0, 1.0));
        score.add(
            5.0,
            ScoreStep {
                load: None,
                ..moment(20.0, 0.0)
            },
            moment(0.0, 0.2),
        );

        assert_eq!(
            (
                score.seconds,
                score.lower_s,
                score.higher_s,
                score.stopped_s
            ),
            (45.0, 15.0, 20.0, 5.0)
        );
        assert_eq!((score.real.jobs, score.own.jobs), (1500.0, 2001.0));
        assert!(
            (score.real.overload_s - 7.0).abs() < 1e-9 && (score.own.overload_s - 2.0).abs() < 1e-9,
            "{score:?}"
        );
        assert_eq!(
            (
                score.real.peak,
                score.own.peak,
                score.real.load,
                score.own.load
            ),
            (1.5, 1.2, None, Some(0.2))
        );
        assert_eq!(score.braked_share(), Some(0.5));
        assert_eq!(
            score.sentence(),
            "in 45 s of shadow mode it would have let 2001 jobs through instead of 1500, with an overload of 2 setpoint seconds \
             instead of 7, peak 1.2 instead of 1.5; slower for 15 s, faster for 20 s, stopped for 5 s; it would have braked in \
             50 % of the time above the setpoint"
        );
    }
}
