//! Background and cost at every time of a recording: the governor's own observer, run forwards and back.
//!
//! Forwards it knows the past of each sample and backwards its future; the two estimates are weighted by how sure each of them
//! is (two-filter smoothing, Fraser and Potter 1969). A step in cost is then found where it happened, not when it was noticed.

use super::record::Record;
use crate::control::front::{Tuning, delag};
use crate::control::{Front, Observer, within};
use crate::governor::policy::{self, Law};

/// De-lagged samples above this many setpoints say no more than that the load ran away.
const Z_MAX: f64 = 20.0;
/// A step between samples counts as this long at most, in seconds.
const SPAN_MAX_S: f64 = 120.0;
/// Samples whose mean is the load that a given share is taken of.
const SEED: usize = 20;

/// A sample with what was let through while it came about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Its time, in unix seconds.
    pub at: f64,
    /// Seconds since the one before.
    pub span_s: f64,
    /// Its value, in setpoints.
    pub x: f64,
    /// The same with the exporter's averaging undone.
    pub z: f64,
    /// Mean rate since the one before, in jobs per second.
    pub phi: f64,
}

/// One signal of a recording, ready to be told apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// Its name.
    pub name: String,
    /// The value to hold, in its own unit.
    pub setpoint: f64,
    /// What its exporter averages over, in seconds, as far as the samples bear it out.
    pub lag_s: f64,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// What a load is made of: `load = b + c * rate`, in setpoints, at every time of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Time, background, and load per job a second.
    points: Vec<(f64, f64, f64)>,
}

impl Track {
    /// The samples of one signal between two times.
    pub fn new(record: &Record, about: &policy::Signal, law: &Law, from: f64, to: f64) -> Self {
        let tuning = Tuning { noise_max: law.noise_max, filter_max_s: law.filter_max_s };
        let mut front = Front::new(about.lag_s);
        let readings = record.signals.get(&about.name).map(Vec::as_slice).unwrap_or_default();
        let readings: Vec<(f64, f64)> =
            readings.iter().filter(|r| (from..=to).contains(&r.at)).map(|r| (r.at, r.value / about.setpoint)).collect();
        for &(at, x) in &readings {
            front.ingest(at, at, x, about.lag_s, tuning);
        }
        let lag_s = front.tau_s;
        let first = readings.first().map_or((from, 0.0), |&(at, x)| (at - front.gap_s, x));
        let before = std::iter::once(first).chain(readings.iter().copied());
        let samples = before.zip(&readings).map(|((then, old), &(at, x))| {
            let span_s = at - then;
            Sample { at, span_s, x, z: delag(x, old, span_s, lag_s).min(Z_MAX), phi: record.mean_rate(then, at) }
        });
        Self { name: about.name.clone(), setpoint: about.setpoint, lag_s, samples: samples.collect() }
    }
}

impl Model {
    /// Tells background and cost apart; with a `share` given, our part of the load is taken to be that where the recording
    /// begins and ends.
    pub fn new(track: &Track, share: Option<f64>) -> Self {
        let samples = &track.samples;
        let reversed: Vec<Sample> = samples.iter().rev().copied().collect();
        let (forwards, backwards) = match share {
            Some(share) => (pass(seed(samples, share), samples), pass(seed(&reversed, share), &reversed)),
            None => {
                // The first pass back only finds out how the recording begins.
                let end = pass(Observer::default(), samples);
                let start = pass(open(end.last()), &reversed);
                let forwards = pass(open(start.last()), samples);
                let backwards = pass(open(forwards.last()), &reversed);
                (forwards, backwards)
            }
        };
        let n = samples.len();
        let points = samples.iter().enumerate().map(|(k, sample)| {
            // Backwards as it stood before this sample, so that none counts twice.
            let later = (k + 1 < n).then(|| &backwards[n - 2 - k]);
            let (b, c) = weighted(&forwards[k], later);
            (sample.at, b, c)
        });
        Self { points: points.collect() }
    }

    /// Background and load per job a second at a time, in setpoints.
    pub fn at(&self, t: f64) -> (f64, f64) {
        let after = self.points.partition_point(|p| p.0 < t);
        match (after.checked_sub(1).and_then(|n| self.points.get(n)), self.points.get(after)) {
            (Some(&(t0, b0, c0)), Some(&(t1, b1, c1))) => {
                let part = within((t - t0) / (t1 - t0), 0.0, 1.0);
                (b0 + part * (b1 - b0), c0 + part * (c1 - c0))
            }
            (Some(&(_, b, c)), None) | (None, Some(&(_, b, c))) => (b, c),
            (None, None) => (0.0, 0.0),
        }
    }
}

/// The observer after every sample.
fn pass(mut observer: Observer, samples: &[Sample]) -> Vec<Observer> {
    let after = samples.iter().map(|sample| {
        observer.update(sample.z, sample.phi, sample.span_s.abs().min(SPAN_MAX_S));
        observer.clone()
    });
    after.collect()
}

/// An observer that begins where another one ended, without its certainty: the samples to come are the same ones.
fn open(ended: Option<&Observer>) -> Observer {
    let mut observer = ended.cloned().unwrap_or_default();
    observer.nu = 0.0;
    (observer.bb, observer.bc) = (observer.bb.max(0.01), 0.0);
    if let Some(c) = observer.c {
        observer.cc = observer.cc.max((0.3 * c).powi(2));
    }
    observer
}

/// An observer that believes in a share of the load where these samples begin.
fn seed(samples: &[Sample], share: f64) -> Observer {
    let first = &samples[..samples.len().min(SEED)];
    let mean = |of: fn(&Sample) -> f64| first.iter().map(of).sum::<f64>() / first.len().max(1) as f64;
    let (z, phi) = (mean(|s| s.z).max(0.02), mean(|s| s.phi));
    if phi <= 0.0 {
        return Observer::default();
    }
    let c = share * z / phi;
    Observer { b: (1.0 - share) * z, c: Some(c), bb: 0.01, cc: (0.1 * c).powi(2), top: z / phi, ..Observer::default() }
}

/// The mean of two estimates by the inverse of their covariances.
fn weighted(past: &Observer, future: Option<&Observer>) -> (f64, f64) {
    let of = |o: &Observer| Some((o.b, o.c?, o.bb, o.bc, o.cc));
    let ((b, c, bb, bc, cc), later) = match (of(past), future.and_then(of)) {
        (Some(past), later) => (past, later),
        (None, Some(later)) => (later, None),
        (None, None) => return (past.b, 0.0),
    };
    let Some((b2, c2, bb2, bc2, cc2)) = later else { return (b.max(0.0), c) };
    // In units of the cost, so that both numbers are of one size.
    let unit = c.max(c2).max(1e-300);
    let inverse = |bb: f64, bc: f64, cc: f64| {
        let (bc, cc) = (bc / unit, cc / (unit * unit));
        let det = (bb * cc - bc * bc).max(1e-12);
        (cc / det, -bc / det, bb / det)
    };
    let (p, q) = (inverse(bb, bc, cc), inverse(bb2, bc2, cc2));
    let (s0, s1, s2) = (p.0 + q.0, p.1 + q.1, p.2 + q.2);
    let right = |(i, j, k): (f64, f64, f64), b: f64, c: f64| (i * b + j * c / unit, j * b + k * c / unit);
    let (r, t) = (right(p, b, c), right(q, b2, c2));
    let (r0, r1) = (r.0 + t.0, r.1 + t.1);
    let det = s0 * s2 - s1 * s1;
    let (mut b, mut k) = ((s2 * r0 - s1 * r1) / det, (s0 * r1 - s1 * r0) / det);
    if !(b.is_finite() && k.is_finite()) {
        return (0.5 * (past.b + b2), 0.5 * (c + c2));
    }
    // No background and no cost is negative, and the mean of two estimates is not far outside of both.
    b = b.max(0.0);
    k = within(k, 0.5 * c.min(c2) / unit, 2.0);
    (b, k * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(rate: impl Fn(usize) -> f64, load: impl Fn(usize, f64) -> f64) -> Track {
        let sample = |n: usize| {
            let (phi, at) = (rate(n), n as f64 * 15.0);
            let z = load(n, phi);
            Sample { at, span_s: 15.0, x: z, z, phi }
        };
        Track { name: "load".to_owned(), setpoint: 1.0, lag_s: 0.0, samples: (0..400).map(sample).collect() }
    }

    #[test]
    fn a_step_in_cost_is_found_where_it_happened() {
        let rate = |n: usize| if (n / 8).is_multiple_of(2) { 20.0 } else { 30.0 };
        let cost = |n: usize| if n < 200 { 0.01 } else { 0.03 };
        let model = Model::new(&track(rate, |n, r| 0.3 + cost(n) * r), None);

        for (n, allowed) in [(20, 0.1), (180, 0.15), (220, 0.15), (380, 0.1)] {
            let (b, c) = model.at(n as f64 * 15.0);
            assert!((c / cost(n) - 1.0).abs() < allowed && (b - 0.3).abs() < 0.1, "{n}: {b} {c}");
        }
    }

    #[test]
    fn a_rate_that_stood_still_is_told_apart_by_the_share_that_is_given_alone() {
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
