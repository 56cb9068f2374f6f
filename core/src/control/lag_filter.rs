//! The front end of one signal: orders and de-duplicates samples, undoes the exporter's averaging,
//! learns noise and lag.
//!
//! All values are relative to the setpoint. With `a = exp(-dt/tau)` the averaging is undone by
//!
//! ```text
//! z = max((x - a*x_prev) / (1 - a), 0)
//! ```
//!
//! which amplifies noise. It is therefore used where early detection counts (breaker, observer),
//! while the PID uses `xf`, the sample averaged as far as its own noise demands. A wrong lag hint
//! is corrected downwards: no signal has more lag than its autocorrelation shows.

use super::clamp_finite;
use super::ewma::smooth;

/// The spacing assumed for the first sample, in seconds: Prometheus' usual scrape interval.
const FIRST_GAP_S: f64 = 15.0;

/// The number of samples over which noise is learned.
const LEARN_OVER: f64 = 40.0;

/// The noise at which a signal is averaged, and the longest such average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// The sample-to-sample noise, relative to the setpoint, above which samples are averaged.
    pub noise_max: f64,
    /// The longest averaging time, in seconds.
    pub filter_max_s: f64,
}

/// The learned state of one signal; times are unix seconds, values multiples of the setpoint.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LagFilter {
    /// The time of the newest sample.
    pub at: Option<f64>,
    /// The time at which the newest sample became visible here.
    pub seen: Option<f64>,
    /// The newest sample.
    pub x: f64,
    /// The newest sample without the exporter's averaging.
    pub z: f64,
    /// The samples averaged as far as their noise demands.
    pub xf: f64,
    /// The usual spacing of samples, in seconds.
    pub gap_s: f64,
    /// The spacing of the newest sample, in seconds.
    pub span_s: f64,
    /// The number of samples learned from.
    pub n: u32,
    /// The learned mean.
    pub mean: f64,
    /// The learned variance.
    pub var: f64,
    /// The learned mean square of the step from sample to sample.
    pub dif: f64,
    /// The estimated lag of the exporter, in seconds; at most the hint.
    pub tau_s: f64,
    /// The time constant of our own averaging, in seconds.
    pub filter_s: f64,
    /// The sum of `tau_s` and `filter_s`, in seconds.
    pub lag_s: f64,
}

impl LagFilter {
    /// Creates a front end without samples; `hint_s` is the configured averaging time of the
    /// exporter, in seconds.
    pub fn new(hint_s: f64) -> Self {
        Self {
            gap_s: FIRST_GAP_S,
            span_s: FIRST_GAP_S,
            tau_s: hint_s,
            lag_s: hint_s,
            ..Self::default()
        }
    }

    /// Returns true if `at` is later than the newest sample.
    pub fn is_news(&self, at: f64) -> bool {
        at.is_finite() && self.at.is_none_or(|newest| at > newest)
    }

    /// Returns the seconds from the newest sample to a sample of time `at`.
    pub fn spacing_s(&self, at: f64) -> f64 {
        self.at.map_or(FIRST_GAP_S, |newest| at - newest)
    }

    /// Records that a sample of time `at` is visible at `now`, and updates the spacing of samples.
    pub fn stamp(&mut self, now: f64, at: f64) {
        let span_s = self.spacing_s(at);
        if self.at.is_some() {
            self.gap_s += 0.2 * (span_s.min(2.0 * self.gap_s) - self.gap_s);
        }
        (self.at, self.seen, self.span_s) = (Some(at), Some(now), span_s);
    }

    /// Ingests a sample `x` of time `at`, visible at `now`; `hint_s` is the configured lag of the
    /// exporter, in seconds.
    ///
    /// The caller has checked [`Front::is_news`].
    pub fn ingest(&mut self, now: f64, at: f64, x: f64, hint_s: f64, tuning: Tuning) {
        let (first, dt) = (self.at.is_none(), self.spacing_s(at));
        if !first {
            self.learn(x, dt, hint_s);
        }
        self.z = if first { x } else { self.delag(x, self.x, dt) };
        self.filter_s += 0.2 * (self.filter_wanted_s(dt, tuning) - self.filter_s);
        self.xf = if first {
            x
        } else {
            smooth(self.xf, x, dt, self.filter_s)
        };
        self.lag_s = self.tau_s + self.filter_s;
        self.x = x;
        self.stamp(now, at);
    }

    /// Adopts a lag that has been learned elsewhere, for the samples to come.
    pub fn adopt_lag(&mut self, tau_s: f64) {
        self.tau_s = tau_s;
        self.lag_s = tau_s + self.filter_s;
    }

    /// Changes the unit of samples: they become `factor` times larger.
    pub fn rescale(&mut self, factor: f64) {
        for sample in [&mut self.x, &mut self.z, &mut self.xf, &mut self.mean] {
            *sample *= factor;
        }
        for square in [&mut self.var, &mut self.dif] {
            *square *= factor * factor;
        }
    }

    /// Returns `x` without the exporter's averaging, given the value `dt_s` before.
    pub fn delag(&self, x: f64, before: f64, dt_s: f64) -> f64 {
        delag(x, before, dt_s, self.tau_s)
    }

    /// Returns the seconds of silence after which the signal is stale: `hold_s`, or `gaps` usual
    /// spacings if that is longer.
    pub fn stale_after_s(&self, hold_s: f64, gaps: f64) -> f64 {
        hold_s.max(gaps * self.gap_s)
    }

    /// Shifts every time by `by_s` after the clock was set back.
    pub fn shift(&mut self, by_s: f64) {
        self.at = self.at.map(|t| t + by_s);
        self.seen = self.seen.map(|t| t + by_s);
    }

    /// Returns false if any number is infinite or NaN.
    pub fn is_sound(&self) -> bool {
        let samples = [self.x, self.z, self.xf, self.gap_s, self.span_s];
        let learned = [self.mean, self.var, self.dif, self.lag_s, self.tau_s];
        samples.into_iter().chain(learned).all(f64::is_finite)
    }

    fn learn(&mut self, x: f64, dt: f64, hint_s: f64) {
        self.n = self.n.saturating_add(1);
        let k = 1.0 / f64::from(self.n).min(LEARN_OVER);
        // Overloads are not noise: they count as two setpoints at most.
        let (new, old) = (x.min(2.0), self.x.min(2.0));
        let off = new - self.mean;
        self.mean += k * off;
        self.var += k * (off * off - self.var);
        self.dif += k * ((new - old).powi(2) - self.dif);
        if self.n >= 20 && self.var > 1e-9 {
            let rho = clamp_finite(1.0 - 0.5 * self.dif / self.var, 0.02, 0.98);
            self.tau_s = hint_s.min(1.3 * dt / -rho.ln());
        }
    }

    fn filter_wanted_s(&self, dt: f64, tuning: Tuning) -> f64 {
        if self.n < 8 {
            return 0.0;
        }
        clamp_finite(
            0.5 * dt * (0.5 * self.dif / tuning.noise_max.powi(2) - 1.0),
            0.0,
            tuning.filter_max_s,
        )
    }
}

/// Returns `x` without a first-order average of `tau_s`, given the value `dt_s` before; a lag of at
/// most one second counts as none.
pub fn delag(x: f64, before: f64, dt_s: f64, tau_s: f64) -> f64 {
    if tau_s <= 1.0 {
        return x;
    }
    let a = (-dt_s / tau_s).exp();
    ((x - a * before) / (1.0 - a).max(1e-9)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNING: Tuning = Tuning {
        noise_max: 0.12,
        filter_max_s: 60.0,
    };

    #[test]
    fn samples_that_are_not_newer_are_no_news() {
        let mut front = LagFilter::new(60.0);
        front.ingest(20.0, 10.0, 0.5, 60.0, TUNING);
        assert!(!front.is_news(10.0) && !front.is_news(9.0) && !front.is_news(f64::NAN));
        assert!(front.is_news(10.001));
    }

    #[test]
    fn a_step_seen_through_a_lag_is_recovered_by_its_first_sample() {
        let mut front = LagFilter::new(60.0);
        front.ingest(0.0, 0.0, 1.0, 60.0, TUNING);
        let after = 5.0 + (1.0 - 5.0) * (-15f64 / 60.0).exp();
        front.ingest(15.0, 15.0, after, 60.0, TUNING);
        assert!((front.z - 5.0).abs() < 1e-9, "{}", front.z);
    }

    #[test]
    fn a_hint_that_is_too_long_is_corrected_by_the_samples_themselves() {
        let mut front = LagFilter::new(60.0);
        for n in 0..200u32 {
            // A deterministic, uncorrelated series: nothing averages it.
            let x = 1.0 + 0.2 * (f64::from(n * 7919 % 101) / 50.0 - 1.0);
            front.ingest(f64::from(n) * 15.0, f64::from(n) * 15.0, x, 60.0, TUNING);
        }
        assert!(front.tau_s < 15.0, "{}", front.tau_s);
    }
}
