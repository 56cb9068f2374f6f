//! The observed load: a load average of a noisy run queue, scraped now and then, visible a while
//! later.

use super::disturbance::{Disturbance, SAMPLE_S};
use super::scenario::{Exporter, Scenario};
use crate::control::ewma::smooth;

/// Relative noise of a percentile over a minute of jobs.
const P99_NOISE: f64 = 0.07;

/// Mean above which a normal draw replaces a Poisson draw.
const NORMAL_ABOVE_MEAN: f64 = 100.0;

/// The published series of one resource.
#[derive(Clone, Debug)]
pub struct Series {
    /// The load average.
    pub load: f64,
    /// The 99th percentile of the jobs' duration, in seconds.
    pub p99_s: f64,
}

/// All series, with their scrapes.
pub struct ExporterPage<'a> {
    exporter: &'a Exporter,
    disturbance: &'a Disturbance,
    /// Published series, by resource.
    pub series: Vec<Series>,
    /// Scrapes that are not visible yet: `(visible at, sampled at, series)`.
    coming: Vec<(f64, f64, Vec<Series>)>,
    next: usize,
}

impl<'a> ExporterPage<'a> {
    /// Returns a page on which the series have their values of the first second.
    pub fn new(scenario: &'a Scenario, disturbance: &'a Disturbance, first: Vec<Series>) -> Self {
        Self {
            exporter: &scenario.exporter,
            disturbance,
            series: first,
            coming: Vec::new(),
            next: 0,
        }
    }

    /// Advances by one second; `now` are the true values of each resource.
    pub fn second(&mut self, t: u64, now: &[Series]) {
        for (n, (shown, real)) in self.series.iter_mut().zip(now).enumerate() {
            if t.is_multiple_of(SAMPLE_S) {
                let draw = self.disturbance.days[n]
                    .noise
                    .get((t / SAMPLE_S) as usize)
                    .copied()
                    .unwrap_or((0.5, 0.0));
                let counted = counted(real.load, self.exporter.noise, draw);
                shown.load = smooth(
                    shown.load,
                    counted,
                    SAMPLE_S as f64,
                    self.exporter.average_s,
                );
                let measured =
                    real.p99_s * (1.0 + P99_NOISE * self.exporter.noise * draw.1).max(0.1);
                shown.p99_s = smooth(
                    shown.p99_s,
                    measured,
                    SAMPLE_S as f64,
                    0.5 * self.exporter.average_s,
                );
            }
        }
        while let Some(&(at, visible)) = self
            .disturbance
            .scrapes
            .get(self.next)
            .filter(|scrape| scrape.0 <= t as f64)
        {
            if let Some(visible) = visible {
                self.coming.push((visible, at, self.series.clone()));
            }
            self.next += 1;
        }
    }

    /// Returns the scrapes that became visible by `t`, in the order of their times.
    pub fn visible(&mut self, t: f64) -> Vec<(f64, Vec<Series>)> {
        let (ready, coming): (Vec<_>, Vec<_>) =
            self.coming.drain(..).partition(|scrape| scrape.0 <= t);
        self.coming = coming;
        let mut ready: Vec<_> = ready
            .into_iter()
            .map(|(_, at, series)| (at, series))
            .collect();
        ready.sort_by(|a, b| a.0.total_cmp(&b.0));
        ready
    }
}

/// Returns the runnable tasks counted at one moment, with `load` as their mean.
///
/// Tasks come in clumps of `noise` squared, so that the variance is `noise` squared times the mean
/// (a Poisson draw; a large one by its normal limit).
fn counted(load: f64, noise: f64, (uniform, normal): (f64, f64)) -> f64 {
    let clump = noise * noise;
    if clump <= 0.0 {
        return load;
    }
    let mean = load / clump;
    if mean > NORMAL_ABOVE_MEAN {
        return (load + (load * clump).sqrt() * normal).max(0.0);
    }
    // Inversion: the least count whose distribution function is not below the uniform draw.
    let (mut count, mut term) = (0.0, (-mean).exp());
    let mut below = term;
    while below < uniform && count < 20.0 * NORMAL_ABOVE_MEAN {
        count += 1.0;
        term *= mean / count;
        below += term;
    }
    count * clump
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_the_mean_and_the_variance_that_they_are_said_to_have() {
        for (load, noise) in [(2.0, 0.75), (1.2, 1.5)] {
            let counts: Vec<f64> = (0..20_000)
                .map(|n| counted(load, noise, ((f64::from(n) + 0.5) / 20_000.0, 0.0)))
                .collect();
            let mean = counts.iter().sum::<f64>() / counts.len() as f64;
            let variance = counts
                .iter()
                .map(|count| (count - mean).powi(2))
                .sum::<f64>()
                / counts.len() as f64;
            assert!((mean / load - 1.0).abs() < 0.01, "{mean}");
            assert!(
                (variance / (noise * noise * load) - 1.0).abs() < 0.02,
                "{variance}"
            );
        }
        assert_eq!(counted(2.0, 0.0, (0.9, 3.0)), 2.0);
        assert!((counted(400.0, 0.5, (0.9, 1.0)) - 410.0).abs() < 1e-9);
    }
}
