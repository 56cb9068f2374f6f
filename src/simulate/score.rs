//! The score of a run.

use super::run::{SimulatedSecond, SimulationRecord};
use super::scenario::Scenario;

/// Load below which it counts as back, once it stays there for [`RECOVERED_FOR_S`], in
/// setpoints.
const RECOVERED_LOAD: f64 = 1.1;
/// Time for which the load must stay below [`RECOVERED_LOAD`], in seconds.
const RECOVERED_FOR_S: usize = 30;
/// Share of the oracle's rate over a minute from which work counts as recovered, if the mean load
/// of the minute is below [`CALM`].
const RECOVERED: f64 = 0.8;
/// Mean load of a minute below which work can count as recovered, in setpoints.
const CALM: f64 = 1.15;
/// Smallest change of the knob's logarithm that counts as a reversal.
const REVERSAL: f64 = 0.2;

/// The figures of one run, or the means of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Score {
    /// Integral of (published load / setpoint - 1) where that is positive, in seconds; of the
    /// refused share if a provider refuses.
    pub overload_s: f64,
    /// Integral of (true load / setpoint - 1) where that is positive, in seconds; of the refused
    /// share if a provider refuses.
    pub true_overload_s: f64,
    /// The highest published load from the step on, in setpoints.
    pub peak: f64,
    /// Seconds from the step until the load was below 1.1 setpoints and stayed there for half a
    /// minute.
    pub back_s: Option<f64>,
    /// Seconds from the step until a minute began with 80 % of the oracle's rate and a load below
    /// 1.15 setpoints.
    pub recovered_s: Option<f64>,
    /// Share of the oracle's jobs that ran, with no more than the oracle's own counted in any
    /// second.
    pub throughput: f64,
    /// Jobs over the oracle's jobs; a value above 1 is bought with overload.
    pub raw: f64,
    /// Standard deviation of the knob's logarithm around its own mean of five minutes.
    pub oscillation: f64,
    /// Reversals of the knob by more than a fifth, per hour.
    pub reversals: f64,
}

impl Score {
    /// Returns the score of a run.
    pub fn of(scenario: &Scenario, record: &SimulationRecord) -> Self {
        let seconds = &record.seconds;
        let sum = |f: &dyn Fn(&SimulatedSecond) -> f64| seconds.iter().map(f).sum::<f64>();
        let refuses = scenario.quota.is_some();
        let over = |x: f64| (x - 1.0).max(0.0);
        let oracle = sum(&|s| s.oracle).max(f64::MIN_POSITIVE);
        let from = scenario.step_s.unwrap_or(0.0);
        let after: Vec<&SimulatedSecond> = seconds.iter().filter(|s| s.t >= from).collect();
        Self {
            overload_s: sum(&|s| if refuses { s.refused } else { over(s.x) }),
            true_overload_s: sum(&|s| if refuses { s.refused } else { over(s.true_x) }),
            peak: after.iter().map(|s| s.x).fold(0.0, f64::max),
            back_s: scenario.step_s.map(|_| back_s(&after)),
            recovered_s: scenario.step_s.map(|_| recovered_s(&after)),
            throughput: sum(&|s| s.achieved.min(s.oracle)) / oracle,
            raw: sum(&|s| s.achieved) / oracle,
            oscillation: oscillation(seconds),
            reversals: reversals(seconds) / (seconds.len() as f64 / 3600.0).max(f64::MIN_POSITIVE),
        }
    }

    /// Returns the mean of several scores; its peak too is a mean.
    pub fn mean(scores: &[Self]) -> Self {
        let mean = |f: &dyn Fn(&Self) -> f64| {
            scores.iter().map(f).sum::<f64>() / scores.len().max(1) as f64
        };
        let maybe = |f: &dyn Fn(&Self) -> Option<f64>| {
            scores
                .first()
                .and_then(f)
                .map(|_| mean(&|score| f(score).unwrap_or(0.0)))
        };
        Self {
            overload_s: mean(&|s| s.overload_s),
            true_overload_s: mean(&|s| s.true_overload_s),
            peak: mean(&|s| s.peak),
            back_s: maybe(&|s| s.back_s),
            recovered_s: maybe(&|s| s.recovered_s),
            throughput: mean(&|s| s.throughput),
            raw: mean(&|s| s.raw),
            oscillation: mean(&|s| s.oscillation),
            reversals: mean(&|s| s.reversals),
        }
    }
}

/// Returns the seconds until the load had been high and was back; 0 if it never was high.
fn back_s(after: &[&SimulatedSecond]) -> f64 {
    let Some(high) = after.iter().position(|s| s.x >= RECOVERED_LOAD) else {
        return 0.0;
    };
    let calm = |n: &usize| {
        after[*n..(*n + RECOVERED_FOR_S).min(after.len())]
            .iter()
            .all(|s| s.x < RECOVERED_LOAD)
    };
    (high..after.len()).find(calm).unwrap_or(after.len()) as f64
}

fn recovered_s(after: &[&SimulatedSecond]) -> f64 {
    let recovered = |minute: &[&SimulatedSecond]| {
        let of = |f: &dyn Fn(&SimulatedSecond) -> f64| {
            minute.iter().map(|s| f(s)).sum::<f64>() / minute.len() as f64
        };
        of(&|s| s.achieved.min(s.oracle)) >= RECOVERED * of(&|s| s.oracle) && of(&|s| s.x) < CALM
    };
    // Before the event is visible, everything looks recovered, so the search begins at the first
    // overload within ten minutes, if there is one.
    let seen = after
        .iter()
        .take(600)
        .position(|s| s.x >= RECOVERED_LOAD)
        .unwrap_or(0);
    after
        .windows(60)
        .enumerate()
        .skip(seen)
        .find(|(_, minute)| recovered(minute))
        .map_or(after.len(), |(n, _)| n) as f64
}

fn oscillation(seconds: &[SimulatedSecond]) -> f64 {
    let logs: Vec<f64> = seconds.iter().map(|s| s.knob.max(1e-9).ln()).collect();
    let mut squares = 0.0;
    let mut n = 0.0;
    for (around, second) in logs.windows(300).zip(&seconds[150.min(seconds.len())..]) {
        // A stop is not an oscillation; other figures measure it.
        if seconds.is_empty() || around.iter().any(|log| *log < -20.0) || second.knob <= 0.0 {
            continue;
        }
        let mean = around.iter().sum::<f64>() / around.len() as f64;
        squares += (second.knob.ln() - mean).powi(2);
        n += 1.0;
    }
    if n > 0.0 { f64::sqrt(squares / n) } else { 0.0 }
}

fn reversals(seconds: &[SimulatedSecond]) -> f64 {
    let (mut extreme, mut up, mut count) = (None::<f64>, None::<bool>, 0.0);
    for second in seconds.iter().filter(|s| s.knob > 0.0) {
        let log = second.knob.ln();
        let Some(last) = extreme else {
            extreme = Some(log);
            continue;
        };
        match up {
            Some(true) if log > last => extreme = Some(log),
            Some(false) if log < last => extreme = Some(log),
            _ if (log - last).abs() > REVERSAL => {
                count += if up.is_some() { 1.0 } else { 0.0 };
                (up, extreme) = (Some(log > last), Some(log));
            }
            _ => {}
        }
    }
    count
}
