//! Background and cost at every time of a recording, estimated by the governor's own observer, run
//! forwards and backwards.
//!
//! The forward pass knows the past of each sample and the backward pass its future; the two
//! estimates are weighted by their certainty (two-filter smoothing, Fraser and Potter 1969). A step
//! in cost is thus found at its own time, not at the time of its detection.

use super::record::Recording;
use crate::control::lag_filter::{Tuning, delag};
use crate::control::{LagFilter, Observer, clamp_finite};
use crate::governor::policy::{self, ControllerTuning};

/// Upper limit of de-lagged samples, in setpoints; a higher value only shows that the load ran
/// away.
const Z_MAX: f64 = 20.0;
/// Longest step between samples that counts, in seconds.
const SPAN_MAX_S: f64 = 120.0;
/// Number of samples whose mean is the reference load for a given share.
const SEED: usize = 20;

/// A sample, with the rate that was let through since the one before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmoothedSample {
    /// Time, in unix seconds.
    pub at: f64,
    /// Time since the sample before, in seconds.
    pub span_s: f64,
    /// Value, in setpoints.
    pub x: f64,
    /// Value with the exporter's averaging undone, in setpoints.
    pub z: f64,
    /// Mean rate since the sample before, in jobs per second.
    pub phi: f64,
}

/// One signal of a recording, ready to be split into background and cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// Name of the signal.
    pub name: String,
    /// Setpoint, in the signal's own unit.
    pub setpoint: f64,
    /// Averaging time of its exporter, in seconds, as far as the samples confirm it.
    pub lag_s: f64,
    pub samples: Vec<SmoothedSample>,
}

/// The composition of a load: `load = b + c * rate`, in setpoints, at every time of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Time, background, and load per job per second.
    points: Vec<(f64, f64, f64)>,
}

impl Track {
    /// Returns the samples of one signal between two times.
    pub fn new(
        record: &Recording,
        about: &policy::SignalPolicy,
        law: &ControllerTuning,
        from: f64,
        to: f64,
    ) -> Self {
        let tuning = Tuning {
            noise_max: law.noise_max,
            filter_max_s: law.filter_max_s,
        };
        let mut front = LagFilter::new(about.lag_s);
        let readings = record
            .signals
            .get(&about.name)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let readings: Vec<(f64, f64)> = readings
            .iter()
            .filter(|r| (from..=to).contains(&r.at))
            .map(|r| (r.at, r.value / about.setpoint))
            .collect();
        for &(at, x) in &readings {
            front.ingest(at, at, x, about.lag_s, tuning);
        }
        let lag_s = front.tau_s;
        let first = readings
            .first()
            .map_or((from, 0.0), |&(at, x)| (at - front.gap_s, x));
        let before = std::iter::once(first).chain(readings.iter().copied());
        let samples = before.zip(&readings).map(|((then, old), &(at, x))| {
            let span_s = at - then;
            SmoothedSample {
                at,
                span_s,
                x,
                z: delag(x, old, span_s, lag_s).min(Z_MAX),
                phi: record.mean_rate(then, at),
            }
        });
        Self {
            name: about.name.clone(),
            setpoint: about.setpoint,
            lag_s,
            samples: samples.collect(),
        }
    }
}

impl Model {
    /// Separates background and cost. A given `share` is taken as our part of the load at the
    /// beginning and the end of the recording.
    pub fn new(track: &Track, share: Option<f64>) -> Self {
        let samples = &track.samples;
        let reversed: Vec<SmoothedSample> = samples.iter().rev().copied().collect();
        let (forwards, backwards) = match share {
            Some(share) => (
                pass(seed(samples, share), samples),
                pass(seed(&reversed, share), &reversed),
            ),
            None => {
                // The first backward pass only estimates the beginning of the recording.
                let end = pass(Observer::default(), samples);
                let start = pass(open(end.last()), &reversed);
                let forwards = pass(open(start.last()), samples);
                let backwards = pass(open(forwards.last()), &reversed);
                (forwards, backwards)
            }
        };
        let n = samples.len();
        let points = samples.iter().enumerate().map(|(k, sample)| {
            // The backward estimate is the one before this sample, so that no sample counts twice.
            let later = (k + 1 < n).then(|| &backwards[n - 2 - k]);
            let (b, c) = weighted(&forwards[k], later);
            (sample.at, b, c)
        });
        Self {
            points: points.collect(),
        }
    }

    /// Returns the background and the load per job per second at a time, in setpoints.
    pub fn at(&self, t: f64) -> (f64, f64) {
        let after = self.points.partition_point(|p| p.0 < t);
        match (
            after.checked_sub(1).and_then(|n| self.points.get(n)),
            self.points.get(after),
        ) {
            (Some(&(t0, b0, c0)), Some(&(t1, b1, c1))) => {
                let part = clamp_finite((t - t0) / (t1 - t0), 0.0, 1.0);
                (b0 + part * (b1 - b0), c0 + part * (c1 - c0))
            }
            (Some(&(_, b, c)), None) | (None, Some(&(_, b, c))) => (b, c),
            (None, None) => (0.0, 0.0),
        }
    }
}

/// Returns the observer after every sample.
fn pass(mut observer: Observer, samples: &[SmoothedSample]) -> Vec<Observer> {
    let after = samples.iter().map(|sample| {
        observer.update(sample.z, sample.phi, sample.span_s.abs().min(SPAN_MAX_S));
        observer.clone()
    });
    after.collect()
}

/// Returns an observer that begins at the end of another one, without its certainty, because the
/// same samples follow.
fn open(ended: Option<&Observer>) -> Observer {
    let mut observer = ended.cloned().unwrap_or_default();
    observer.nu = 0.0;
    (observer.bb, observer.bc) = (observer.bb.max(0.01), 0.0);
    if let Some(c) = observer.c {
        observer.cc = observer.cc.max((0.3 * c).powi(2));
    }
    observer
}

/// Returns an observer that assumes a share of the load at the beginning of these samples.
fn seed(samples: &[SmoothedSample], share: f64) -> Observer {
    let first = &samples[..samples.len().min(SEED)];
    let mean = |of: fn(&SmoothedSample) -> f64| {
        first.iter().map(of).sum::<f64>() / first.len().max(1) as f64
    };
    let (z, phi) = (mean(|s| s.z).max(0.02), mean(|s| s.phi));
    if phi <= 0.0 {
        return Observer::default();
    }
    let c = share * z / phi;
    Observer {
        b: (1.0 - share) * z,
        c: Some(c),
        bb: 0.01,
        cc: (0.1 * c).powi(2),
        top: z / phi,
        ..Observer::default()
    }
}

/// Returns the mean of two estimates, weighted by the inverse of their covariances.
fn weighted(past: &Observer, future: Option<&Observer>) -> (f64, f64) {
    let of = |o: &Observer| Some((o.b, o.c?, o.bb, o.bc, o.cc));
    let ((b, c, bb, bc, cc), later) = match (of(past), future.and_then(of)) {
        (Some(past), later) => (past, later),
        (None, Some(later)) => (later, None),
        (None, None) => return (past.b, 0.0),
    };
    let Some((b2, c2, bb2, bc2, cc2)) = later else {
        return (b.max(0.0), c);
    };
    // In units of the cost, so that both numbers are of one size.
    let unit = c.max(c2).max(1e-300);
    let inverse = |bb: f64, bc: f64, cc: f64| {
        let (bc, cc) = (bc / unit, cc / (unit * unit));
        let det = (bb * cc - bc * bc).max(1e-12);
        (cc / det, -bc / det, bb / det)
    };
    let (p, q) = (inverse(bb, bc, cc), inverse(bb2, bc2, cc2));
    let (s0, s1, s2) = (p.0 + q.0, p.1 + q.1, p.2 + q.2);
    let right =
        |(i, j, k): (f64, f64, f64), b: f64, c: f64| (i * b + j * c / unit, j * b + k * c / unit);
    let (r, t) = (right(p, b, c), right(q, b2, c2));
    let (r0, r1) = (r.0 + t.0, r.1 + t.1);
    let det = s0 * s2 - s1 * s1;
    let (mut b, mut k) = ((s2 * r0 - s1 * r1) / det, (s0 * r1 - s1 * r0) / det);
    if !(b.is_finite() && k.is_finite()) {
        return (0.5 * (past.b + b2), 0.5 * (c + c2));
    }
    // Neither background nor cost is negative, and the mean of two estimates is not far outside of
    // both.
    b = b.max(0.0);
    k = clamp_finite(k, 0.5 * c.min(c2) / unit, 2.0);
    (b, k * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(rate: impl Fn(usize) -> f64, load: impl Fn(usize, f64) -> f64) -> Track {
        let sample = |n: usize| {
            let (phi, at) = (rate(n), n as f64 * 15.0);
            let z = load(n, phi);
            SmoothedSample {
                at,
                span_s: 15.0,
                x: z,
                z,
                phi,
            }
        };
        Track {
            name: "load".to_owned(),
            setpoint: 1.0,
            lag_s: 0.0,
            samples: (0..400).map(sample).collect(),
        }
    }

    #[test]
    fn a_step_in_cost_is_found_where_it_happened() {
        let rate = |n: usize| {
            if (n / 8).is_multiple_of(2) {
                20.0
            } else {
                30.0
            }
        };
        let cost = |n: usize| if n < 200 { 0.01 } else { 0.03 };
        let model = Model::new(&track(rate, |n, r| 0.3 + cost(n) * r), None);

        for (n, allowed) in [(20, 0.1), (180, 0.15), (220, 0.15), (380, 0.1)] {
            let (b, c) = model.at(n as f64 * 15.0);
            assert!(
                (c / cost(n) - 1.0).abs() < allowed && (b - 0.3).abs() < 0.1,
                "{n}: {b} {c}"
            );
        }
    }

    #[test]
    fn a_rate_that_stood_still_is_distinguished_by_the_share_that_is_given_alone() {
        let still = track(|_| 20.0, |_, r| 0.3 + 0.01 * r);
        for share in [0.2, 0.6, 0.95] {
            let model = Model::new(&still, Some(share));
            for t in [0.0, 3000.0, 5985.0] {
                let (b, c) = model.at(t);
                assert!((b + 20.0 * c - 0.5).abs() < 0.01, "{share}: {b} {c}");
                assert!((20.0 * c / 0.5 - share).abs() < 0.08, "{share}: {b} {c}");
            }
        }
    }
}
