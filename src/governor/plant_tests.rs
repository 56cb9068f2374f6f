//! A small deterministic plant to close the loop on: load = background + cost x rate, seen through
//! the exporter's average, scraped at intervals and visible after a delay; a probe sees the average
//! at once.

use super::bounds::Bounds;
use super::law::Phase;
use super::policy::{ControllerTuning, Extractor, Policy, ProbeTarget, SignalKind, SignalPolicy};
use super::shadow;
use super::{ControlState, Observation, Plan, SignalSample};
use crate::control::ewma::smooth;
use crate::throttle::RateLimit;

/// The plant and its governor.
///
/// Change its fields between calls of [`Plant::run`].
pub struct Plant {
    pub policy: Policy,
    pub bounds: Bounds,
    pub state: ControlState,
    pub now: f64,
    /// The load that is not ours, in setpoints (the setpoint is 1).
    pub background: f64,
    /// The load per job per second.
    pub cost: f64,
    /// The number of jobs per second available.
    pub demand: f64,
    /// The averaging time of the exporter, in seconds.
    pub lag_s: f64,
    /// The interval between scrapes, in seconds.
    pub scrape_s: u64,
    /// The delay until a scrape is visible, in seconds.
    pub visible_s: f64,
    /// The delay until released work makes its load, in seconds; the law does not know it.
    pub hidden_s: usize,
    /// The mean duration of a job, in seconds, if workers report it.
    pub job_s: Option<f64>,
    /// The number of waiting jobs, if known.
    pub waiting: Option<f64>,
    /// The relative noise of a sample.
    pub noise: f64,
    /// True if Prometheus responds.
    pub sighted: bool,
    /// True if the page of the exporter is read every second.
    pub probed: bool,
    /// The manual rate that the next tick adopts.
    pub person: Option<f64>,
    pub load: f64,
    pub average: f64,
    pub knob: f64,
    pub plan: Plan,
    pub record: Vec<PlantSecond>,
    scraped: Vec<(f64, f64)>,
    seed: u32,
}

/// The record of one second.
#[derive(Clone, Copy, Debug)]
pub struct PlantSecond {
    pub t: f64,
    pub knob: f64,
    /// The throughput, in jobs per second.
    pub rate: f64,
    pub load: f64,
    pub average: f64,
    pub phase: Phase,
    /// True if the newest decision raised the rate.
    pub raised: bool,
    /// The newest reading.
    pub reading: Option<f64>,
}

impl Plant {
    /// Creates the plant of the demo: an average of 5 s, scrapes every 2 s, visible after 1 s, and
    /// a probe.
    pub fn quick() -> Self {
        let law = ControllerTuning {
            tick_s: 2.0,
            gain: 4.0,
            integral_min_s: 6.0,
            derivative_s: 1.0,
            open_min_s: 4.0,
            close_wait_s: 20.0,
            confirm_s: 10.0,
            retrip_s: 60.0,
            stale_hold_s: 20.0,
            stale_half_s: 20.0,
            ..ControllerTuning::default()
        };
        Self::new(law, 5.0, 2, 1.0, true)
    }

    /// Creates the plant of a usual installation: an average of 60 s, scrapes every 15 s, visible
    /// after 20 s, no probe; defaults.
    pub fn usual() -> Self {
        Self::new(ControllerTuning::default(), 60.0, 15, 20.0, false)
    }

    pub fn new(
        law: ControllerTuning,
        lag_s: f64,
        scrape_s: u64,
        visible_s: f64,
        probed: bool,
    ) -> Self {
        let probe = probed.then(|| ProbeTarget {
            url: "http://x".to_owned(),
            place: Extractor::Metric("load".to_owned()),
        });
        let signal = SignalPolicy {
            probe,
            ..SignalPolicy::of_prometheus("load", SignalKind::Load, "load", 1.0, lag_s)
        };
        let policy = Policy {
            signals: vec![signal],
            law,
        };
        let bounds = Bounds {
            min: 1.0,
            max: 2000.0,
            safe_rps: 5.0,
        };
        let state = ControlState::new(&policy, bounds, RateLimit::PerSecond(20.0), 0.0);
        Self {
            policy,
            bounds,
            state,
            now: 0.0,
            background: 0.2,
            cost: 0.01,
            demand: f64::INFINITY,
            lag_s,
            scrape_s,
            visible_s,
            hidden_s: 0,
            job_s: None,
            waiting: None,
            noise: 0.0,
            sighted: true,
            probed,
            person: None,
            load: 0.2,
            average: 0.2,
            knob: 20.0,
            plan: Plan::default(),
            record: Vec::new(),
            scraped: Vec::new(),
            seed: 1,
        }
    }

    /// Returns the rate at which the load reaches the setpoint.
    pub fn room(&self) -> f64 {
        (1.0 - self.background).max(0.0) / self.cost
    }

    pub fn run(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..seconds {
            self.second();
        }
        self
    }

    /// Returns the seconds from `t` on.
    pub fn since(&self, t: f64) -> impl Iterator<Item = &PlantSecond> {
        self.record.iter().filter(move |s| s.t > t)
    }

    /// Returns the mean load from `t` on.
    pub fn mean_load(&self, t: f64) -> f64 {
        self.since(t).map(|s| s.load).sum::<f64>() / self.since(t).count() as f64
    }

    fn second(&mut self) {
        self.now += 1.0;
        let rate = self.knob.min(self.demand);
        let measured = self.measure(rate);
        if self.probed {
            let look = SignalSample {
                signal: "load".to_owned(),
                value: Some(measured),
                at: self.now,
            };
            if let Some(plan) =
                self.state
                    .fast(&self.policy, self.bounds, self.now, Some(rate), &[look])
            {
                (self.knob, self.plan) = (plan.rps, plan);
            }
        }
        if (self.now as u64).is_multiple_of(self.policy.law.tick_s as u64) {
            self.tick(rate);
        }
        self.record_second(rate);
    }

    /// Updates the load for this rate, and returns it as the exporter shows it now and the scraper
    /// reads it.
    fn measure(&mut self, rate: f64) -> f64 {
        let earlier = self
            .record
            .len()
            .checked_sub(self.hidden_s)
            .map_or(20.0, |n| self.record.get(n).map_or(rate, |s| s.rate));
        self.load = self.background + self.cost * earlier;
        self.average = smooth(self.average, self.load, 1.0, self.lag_s);
        let measured = (self.average * (1.0 + self.noise * self.random())).max(0.0);
        if (self.now as u64).is_multiple_of(self.scrape_s) {
            self.scraped.push((self.now, measured));
        }
        measured
    }

    fn record_second(&mut self, rate: f64) {
        let (t, knob, load, average) = (self.now, self.knob, self.load, self.average);
        self.record.push(PlantSecond {
            t,
            knob,
            rate,
            load,
            average,
            phase: self.plan.breaker,
            raised: self.plan.reason.contains(": raising "),
            reading: self.state.signals[0].value,
        });
    }

    /// Runs one second in shadow mode beside a manual rate of `rps`.
    pub fn shadow_second(&mut self, rps: f64) {
        self.now += 1.0;
        self.knob = rps;
        let rate = rps.min(self.demand);
        let measured = self.measure(rate);
        if self.probed {
            let look = SignalSample {
                signal: "load".to_owned(),
                value: Some(measured),
                at: self.now,
            };
            shadow::fast(
                &mut self.state,
                &self.policy,
                self.bounds,
                self.now,
                &[look],
            );
        }
        if (self.now as u64).is_multiple_of(self.policy.law.tick_s as u64) {
            let seen = self.seen(rate);
            shadow::tick(
                &mut self.state,
                &self.policy,
                self.bounds,
                &seen,
                RateLimit::new(rps),
            );
        }
        self.record_second(rate);
    }

    fn tick(&mut self, rate: f64) {
        let seen = self.seen(rate);
        self.plan = self.state.tick(&self.policy, self.bounds, &seen);
        self.knob = self.plan.rps;
    }

    fn seen(&mut self, rate: f64) -> Observation {
        let visible = self
            .scraped
            .iter()
            .filter(|(at, _)| self.sighted && at + self.visible_s <= self.now);
        let readings = visible.rev().take(12).map(|&(at, value)| SignalSample {
            signal: "load".to_owned(),
            value: Some(value),
            at,
        });
        let recent = self
            .record
            .iter()
            .rev()
            .take(self.policy.law.tick_s as usize - 1);
        let sum: f64 = recent.clone().map(|s| s.knob.min(self.demand)).sum::<f64>() + rate;
        Observation {
            now: self.now,
            readings: readings.collect(),
            achieved_rps: Some(sum / (recent.count() + 1) as f64),
            limiting_share: Some(if self.demand < self.knob { 0.0 } else { 1.0 }),
            knob_rps: self.person.take().map(RateLimit::new),
            mean_duration_s: self.job_s,
            waiting: self.waiting,
            ..Observation::default()
        }
    }

    /// Returns uniform noise from -1 to 1, the same in every run.
    fn random(&mut self) -> f64 {
        self.seed = self
            .seed
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        f64::from(self.seed >> 8) / f64::from(1u32 << 23) - 1.0
    }
}
