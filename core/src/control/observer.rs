//! The observer: estimates our part of the load and the load per unit of our work.
//!
//! A Kalman filter of `(b, c)` in `z = b + c*phi + noise`: `z` is the de-lagged load in setpoints,
//! `phi` the mean work rate over the same time, `b` the background that is not ours, `c` the cost
//! of our work. Both follow a random walk. A surprise that noise cannot explain is split half to
//! the background and half to the cost; the next samples decide.
//!
//! The model may limit the rate or scale a gain. It never raises the rate, except at the restart
//! after a trip, which is bounded by the rate that tripped.

use super::clamp_finite;

/// The random walk of the background per 15 s, in setpoints.
const BACKGROUND_WALK: f64 = 0.05;
/// The relative random walk of the cost per 15 s.
const COST_WALK: f64 = 0.025;
/// The initial variance of a de-lagged sample at the setpoint.
const INITIAL_VARIANCE: f64 = 0.10;
/// The size of a single innovation, in sigmas, that counts as a jump.
const JUMP: f64 = 3.0;
/// The mean normalised innovation that counts as a drift.
const DRIFT: f64 = 2.0;

/// The state of the filter.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Observer {
    /// The background, in setpoints.
    pub b: f64,
    /// The load per unit of our work rate, in setpoints; `None` before the first sample with work.
    pub c: Option<f64>,
    /// The variance of `b`.
    pub bb: f64,
    /// The covariance of `b` and `c`.
    pub bc: f64,
    /// The variance of `c`.
    pub cc: f64,
    /// The variance of a de-lagged sample at the setpoint.
    pub noise: f64,
    /// The mean normalised innovation.
    pub nu: f64,
    /// The mean of `z/phi`: the value of `c` if all the load were ours.
    pub top: f64,
}

/// The variances of a model's background and cost, and their covariance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    bb: f64,
    bc: f64,
    cc: f64,
}

impl Spread {
    /// Returns the variance of the load at the work rate `phi`.
    pub(super) fn variance(self, phi: f64) -> f64 {
        self.bb + 2.0 * phi * self.bc + phi * phi * self.cc
    }

    /// Returns the spread after a surprise of `innovation` at the work rate `phi` and the cost `c`:
    /// half of it may be background, half cost.
    pub(super) fn opened(self, innovation: f64, phi: f64, c: f64) -> Self {
        let bb = self.bb + (0.5 * innovation).powi(2);
        let cc = match c * phi > 0.02 {
            true => self.cc + (0.5 * innovation / phi).powi(2),
            false => self.cc,
        };
        Self { bb, cc, ..self }
    }
}

impl Default for Observer {
    fn default() -> Self {
        Self {
            b: 0.0,
            c: None,
            bb: 0.0,
            bc: 0.0,
            cc: 0.0,
            noise: INITIAL_VARIANCE,
            nu: 0.0,
            top: 0.0,
        }
    }
}

impl Observer {
    /// Returns false if any number is infinite or NaN.
    pub fn is_sound(&self) -> bool {
        let model = [self.b, self.c.unwrap_or(0.0), self.bb, self.bc, self.cc];
        let noise = [self.noise, self.nu, self.top];
        model.into_iter().chain(noise).all(f64::is_finite)
    }

    /// Learns from one de-lagged sample `z` that covers `dt_s` seconds of work at the mean rate
    /// `phi`.
    pub fn update(&mut self, z: f64, phi: f64, dt_s: f64) {
        let Some(c) = self.c else {
            if phi > 0.0 {
                let z = z.max(0.02);
                self.b = 0.4 * z;
                let c = 0.6 * z / phi;
                (self.c, self.bb, self.bc, self.cc) = (Some(c), 0.09, 0.0, c * c);
            }
            return;
        };

        // Predict: both follow a random walk.
        let n = dt_s / 15.0;
        if phi > 0.0 {
            // A rate near zero carries no information about the cost.
            let top = (z.max(0.1) / phi).min(1e12);
            self.top = if self.top == 0.0 {
                top
            } else {
                self.top + (n / 8.0).min(1.0) * (top - self.top)
            };
        }
        let scale = c.max(0.3 * self.top.min(20.0 * c));
        let mut bb = (self.bb + BACKGROUND_WALK.powi(2) * n).min(9.0);
        let mut cc = (self.cc + (COST_WALK * scale).powi(2) * n).min((10.0 * scale).powi(2));
        let bc = covariance(self.bc, bb, cc);
        let load = self.b + c * phi;
        let innovation = z - load;
        let noise = self.noise * load.max(0.2) + 1e-4;
        let model = bb + 2.0 * phi * bc + phi * phi * cc;
        let total = model + noise;

        // Handle a surprise, or learn the noise from one more sample.
        self.nu += 0.5 * (clamp_finite(innovation / total.sqrt(), -3.0, 3.0) - self.nu);
        if innovation * innovation > JUMP.powi(2) * total || self.nu.abs() > DRIFT {
            bb += (0.5 * innovation).powi(2);
            if c * phi > 0.02 {
                cc += (0.5 * innovation / phi).powi(2);
            }
        } else {
            let seen = (innovation * innovation - model) / load.max(0.2);
            self.noise = clamp_finite(self.noise + 0.03 * (seen - self.noise), 0.003, 3.0);
        }

        self.correct(Spread { bb, bc, cc }, phi, innovation, noise);
    }

    /// Returns the spread of the model `n` steps later, with the variances `(background, cost)` of
    /// one step of its random walk.
    pub(super) fn predict(&self, (background, cost): (f64, f64), n: f64) -> Spread {
        let bb = (self.bb + background * n).min(9.0);
        let cc = self.cc + cost * n;
        let bc = covariance(self.bc, bb, cc);
        Spread { bb, bc, cc }
    }

    /// Corrects the model, of the spread `prior`, by a sample that is `innovation` above it and has
    /// the variance `noise`. The cost may at most halve in one step.
    pub(super) fn correct(&mut self, prior: Spread, phi: f64, innovation: f64, noise: f64) {
        let Some(c) = self.c else { return };
        let Spread { bb, bc, cc } = prior;
        let total = prior.variance(phi) + noise;
        let (gain_b, gain_c) = (bb + phi * bc, bc + phi * cc);
        self.b += gain_b / total * innovation;
        let mut c = (c + gain_c / total * innovation).max(0.5 * c);
        self.bb = (bb - gain_b * gain_b / total).max(1e-5);
        self.cc = (cc - gain_c * gain_c / total).max((0.01 * c).powi(2));
        self.bc = covariance(bc - gain_b * gain_c / total, self.bb, self.cc);
        if self.b < 0.0 {
            // The background cannot be negative: the excess belongs to our work.
            if c * phi > 0.02 {
                c = (c + self.b / phi).max(0.5 * c);
            }
            self.b = 0.0;
        }
        self.c = Some(c.max(f64::MIN_POSITIVE));
        self.forget_nonsense();
    }

    /// Returns the next de-lagged sample that it expects at the mean rate `phi`, and the variance
    /// of that; `None` before the first sample with work.
    pub fn forecast(&self, phi: f64) -> Option<(f64, f64)> {
        let load = self.b + self.c? * phi;
        let model = self.bb + 2.0 * phi * self.bc + phi * phi * self.cc;
        Some((load, model.max(0.0) + self.noise * load.max(0.2) + 1e-4))
    }

    /// Returns the work rate at which the load reaches the setpoint, `k` sigmas optimistic; `None`
    /// before the first sample with work.
    pub fn room(&self, k: f64) -> Option<f64> {
        let c = self.c?;
        let v = (1.0 - self.b).max(0.0) / c;
        let sigma = if k == 0.0 {
            0.0
        } else {
            (self.bb + 2.0 * v * self.bc + v * v * self.cc)
                .max(0.0)
                .sqrt()
        };
        Some((1.0 - self.b + k * sigma).max(0.0) / c)
    }

    /// Returns our part of the load at work rate `v`, with the cost `k` sigmas high; 1 before the
    /// first sample with work.
    pub fn share(&self, v: f64, k: f64) -> f64 {
        let Some(c) = self.c else { return 1.0 };
        (c + k * self.cc.max(0.0).sqrt()) * v / (c * v + self.b).max(1e-9)
    }

    /// Changes the unit of work: rates become `factor` times larger and costs smaller by the same
    /// factor.
    pub fn scale(&mut self, factor: f64) {
        self.c = self.c.map(|c| c / factor);
        self.bc /= factor;
        self.cc /= factor * factor;
        self.top /= factor;
    }

    /// Changes the unit of loads: they become `factor` times larger.
    pub fn rescale(&mut self, factor: f64) {
        self.c = self.c.map(|c| c * factor);
        for load in [&mut self.b, &mut self.noise, &mut self.top] {
            *load *= factor;
        }
        for square in [&mut self.bb, &mut self.bc, &mut self.cc] {
            *square *= factor * factor;
        }
    }

    /// Resets the filter if absurd input made any number infinite or NaN.
    fn forget_nonsense(&mut self) {
        let numbers = [
            self.b,
            self.c.unwrap_or(0.0),
            self.bb,
            self.bc,
            self.cc,
            self.noise,
            self.nu,
            self.top,
        ];
        if numbers.iter().any(|x| !x.is_finite()) {
            *self = Self::default();
        }
    }
}

/// Returns `bc` limited to the range that the two variances allow.
fn covariance(bc: f64, bb: f64, cc: f64) -> f64 {
    let limit = 0.999 * (bb * cc).max(0.0).sqrt();
    clamp_finite(bc, -limit, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_and_cost_are_told_apart_when_the_rate_moves() {
        let (b, c) = (0.3, 0.02);
        let mut observer = Observer::default();
        for n in 0..400 {
            let phi = if n / 20 % 2 == 0 { 10.0 } else { 25.0 };
            observer.update(b + c * phi, phi, 15.0);
        }
        assert!((observer.b - b).abs() < 0.05, "{observer:?}");
        assert!((observer.c.unwrap() / c - 1.0).abs() < 0.1, "{observer:?}");
        assert!((observer.room(0.0).unwrap() / 35.0 - 1.0).abs() < 0.1);
    }

    #[test]
    fn absurd_samples_leave_a_usable_filter() {
        let mut observer = Observer::default();
        for (z, phi) in [
            (20.0, 1e9),
            (0.0, 0.0),
            (20.0, 1e-12),
            (1.0, 1e300),
            (20.0, 1e-300),
            (0.5, 3.0),
        ] {
            observer.update(z, phi, 15.0);
            assert!(
                observer.share(5.0, 2.0).is_finite()
                    && observer.room(1.0).is_none_or(|r| !r.is_nan()),
                "{observer:?}"
            );
        }
    }
}
