//! Least-squares fit of a load's response to a rate.
//!
//! For every lag and dead time of a grid the load is modelled as
//!
//! ```text
//! x(t) = b + drift*(t - middle) + c*m(t - dead),   m: the rate behind a first-order lag
//! ```
//!
//! The model with the smallest residuals wins. Neighbouring residuals of a load average resemble
//! each other, so their correlation is taken out of both sides first (Cochrane and Orcutt 1949).

/// Candidate lags, in seconds.
const LAGS_S: [f64; 24] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 75.0,
    90.0, 110.0, 130.0, 150.0, 180.0, 220.0, 300.0,
];
/// Candidate dead times, in seconds.
const DEAD_S: [f64; 14] = [
    0.0, 1.0, 2.0, 4.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 50.0, 60.0,
];
/// Fewest samples from which five numbers can be estimated.
const SAMPLES_MIN: usize = 12;
/// Smallest part of the load that counts as a response, in setpoints.
const OURS_MIN: f64 = 1e-3;
/// Largest correlation assumed between neighbouring residuals.
const RESEMBLANCE_MAX: f64 = 0.95;

/// A sample of the load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadSample {
    /// Time, in unix seconds.
    pub at: f64,
    /// Value, in setpoints.
    pub x: f64,
}

/// A stretch of time, with the rate that was let through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// End, in unix seconds; a stretch begins at the end of the one before.
    pub until: f64,
    /// Rate, in jobs per second.
    pub rps: f64,
}

/// The fitted response of a load to a rate.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Fit {
    /// Averaging time of the exporter, in seconds.
    pub lag_s: f64,
    /// Dead time, in seconds; noise of this size hardly distinguishes it from a lag.
    pub dead_time_s: f64,
    /// Background in the middle of the test, in setpoints.
    pub background: f64,
    /// Drift of the background, in setpoints per hour.
    pub drift_per_hour: f64,
    /// Load per job a second, in setpoints.
    pub cost: f64,
    /// Standard error of the cost, as a share of it.
    pub cost_error: f64,
    /// Our share of the load at the rates of the test, from 0 to 1.
    pub share: f64,
    /// Rate at which the load reaches its setpoint, in jobs per second.
    pub rate_at_setpoint: f64,
    /// Standard deviation of the residuals, in setpoints.
    pub noise: f64,
    /// Number of samples.
    pub samples: usize,
}

/// Fits the response of the load to the rate; returns `None` if the samples do not determine it.
/// `rate` is in the order of time; before its first stretch the first rate is taken to have held.
pub fn fit(samples: &[LoadSample], rate: &[Stretch]) -> Option<Fit> {
    let (first, last) = (rate.first()?, samples.last()?);
    if samples.len() < SAMPLES_MIN {
        return None;
    }
    let begin = first.until.min(samples[0].at) - DEAD_S[DEAD_S.len() - 1];
    let middle = 0.5 * (samples[0].at + last.at);
    let mut best: Option<(f64, Fit)> = None;
    for lag_s in LAGS_S {
        let behind = lagged(rate, begin, last.at, lag_s);
        for dead_s in DEAD_S {
            let at = |t: f64| {
                behind[((t - dead_s - begin).round().max(0.0) as usize).min(behind.len() - 1)]
            };
            let rows: Vec<[f64; 3]> = samples
                .iter()
                .map(|s| [1.0, (s.at - middle) / 3600.0, at(s.at)])
                .collect();
            let Some((squares, found)) = solve(samples, &rows) else {
                continue;
            };
            if best.as_ref().is_none_or(|(least, _)| squares < *least) {
                best = Some((
                    squares,
                    Fit {
                        lag_s,
                        dead_time_s: dead_s,
                        ..found
                    },
                ));
            }
        }
    }
    best.map(|(_, fit)| fit)
}

/// Returns the rate behind a first-order lag, at every second from `begin` to `end`.
fn lagged(rate: &[Stretch], begin: f64, end: f64, lag_s: f64) -> Vec<f64> {
    let share = if lag_s < 1.0 {
        1.0
    } else {
        1.0 - (-1.0 / lag_s).exp()
    };
    let mut stretches = rate.iter().peekable();
    let mut value = rate[0].rps;
    let seconds = (end - begin).ceil().max(0.0) as usize;
    let after = (0..=seconds).map(|n| {
        let t = begin + n as f64;
        while stretches.peek().is_some_and(|stretch| stretch.until < t) {
            stretches.next();
        }
        let rps = stretches
            .peek()
            .map_or(rate[rate.len() - 1].rps, |stretch| stretch.rps);
        value += share * (rps - value);
        value
    });
    after.collect()
}

/// Solves the least squares for one lag and dead time; returns the sum of squared residuals, and
/// the fit with lag and dead time unset.
fn solve(samples: &[LoadSample], rows: &[[f64; 3]]) -> Option<(f64, Fit)> {
    let y: Vec<f64> = samples.iter().map(|s| s.x).collect();
    let plain = least_squares(rows, &y)?.0;
    let left: Vec<f64> = rows
        .iter()
        .zip(&y)
        .map(|(row, y)| y - dot(row, &plain))
        .collect();
    let (own, next): (f64, f64) = left.windows(2).fold((0.0, 0.0), |(own, next), pair| {
        (own + pair[0] * pair[0], next + pair[0] * pair[1])
    });
    let alike = if own > 0.0 {
        (next / own).clamp(0.0, RESEMBLANCE_MAX)
    } else {
        0.0
    };
    let white_rows: Vec<[f64; 3]> = rows
        .windows(2)
        .map(|pair| [0, 1, 2].map(|i| pair[1][i] - alike * pair[0][i]))
        .collect();
    let white_y: Vec<f64> = y.windows(2).map(|pair| pair[1] - alike * pair[0]).collect();
    let (found, unit_variance) = least_squares(&white_rows, &white_y)?;
    let squares: f64 = white_rows
        .iter()
        .zip(&white_y)
        .map(|(row, y)| (y - dot(row, &found)).powi(2))
        .sum();
    let [background, drift_per_hour, cost] = found;
    let freedom = (samples.len() - 5).max(1) as f64;
    let cost_error = (squares / freedom * unit_variance).sqrt() / cost;
    let noise = (squares / freedom / (1.0 - alike * alike)).sqrt();
    let ours = cost * rows.iter().map(|row| row[2]).sum::<f64>() / rows.len() as f64;
    // A load does not respond if it does not grow with the rate, or only by chance, or only by a
    // negligible amount.
    if cost <= 0.0 || ours < OURS_MIN || cost_error.is_nan() || cost_error >= 1.0 {
        return None;
    }
    let fit = Fit {
        lag_s: 0.0,
        dead_time_s: 0.0,
        background: background.max(0.0),
        drift_per_hour,
        cost,
        cost_error,
        share: ours / (ours + background.max(0.0)),
        rate_at_setpoint: (1.0 - background.max(0.0)).max(0.0) / cost,
        noise,
        samples: samples.len(),
    };
    Some((squares, fit))
}

fn dot(row: &[f64; 3], by: &[f64; 3]) -> f64 {
    row.iter().zip(by).map(|(a, b)| a * b).sum()
}

/// Returns the three numbers with the least squares, and the variance of the last one per unit of
/// the residuals' variance.
fn least_squares(rows: &[[f64; 3]], y: &[f64]) -> Option<([f64; 3], f64)> {
    // Columns are scaled to one size, or the equations could not be solved.
    let size = [0, 1, 2].map(|i| rows.iter().map(|row| row[i] * row[i]).sum::<f64>().sqrt());
    if size.iter().any(|size| *size <= 0.0 || !size.is_finite()) {
        return None;
    }
    let mut normal = [[0.0; 3]; 3];
    let mut right = [0.0; 3];
    for (row, y) in rows.iter().zip(y) {
        for i in 0..3 {
            right[i] += row[i] / size[i] * y;
            for j in 0..3 {
                normal[i][j] += row[i] / size[i] * (row[j] / size[j]);
            }
        }
    }
    let minor = |i: usize, j: usize| {
        let (a, b, c, d) = ((i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3);
        normal[a][c] * normal[b][d] - normal[a][d] * normal[b][c]
    };
    let determinant = (0..3).map(|j| normal[0][j] * minor(0, j)).sum::<f64>();
    // Below this the rate did not change independently of the drift.
    if determinant.abs() < 1e-9 {
        return None;
    }
    let found = [0, 1, 2]
        .map(|i| (0..3).map(|j| minor(j, i) * right[j]).sum::<f64>() / determinant / size[i]);
    Some((found, minor(2, 2) / determinant / (size[2] * size[2])))
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
