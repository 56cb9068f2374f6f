//! A model of one load that learns its own lag: several observers, each with another averaging
//! time, weighted by how well they predicted the samples.
//!
//! A policy's `lag_s` is often wrong, and a wrong one spoils everything that undoes the averaging.
//! Each candidate undoes it with its own time `tau` (`a = exp(-dt/tau)`, as in
//! [`super::lag_filter`]) and keeps an [`Observer`] of background and cost on the result:
//!
//! ```text
//! z = (x - a*x_prev) / (1 - a),      z = b + c*phi + noise * (1 + a)/(1 - a)
//! ```
//!
//! `phi` is the mean of our work since the previous sample as an average of `tau` weighs it. The
//! noise belongs to the published average, so all candidates are judged in its unit: the score is
//! the log likelihood of the samples, with the newest [`MEMORY`] of them counting most, and a prior
//! around the hint. Only a lag that fits the response to *our* changes of the rate and the
//! correlation of the noise keeps a high score.
//!
//! Each averaging time is tried with three random walks: one that hardly moves, a small one and a
//! large one. A calm plant is thus averaged longer than a restless one. Without the three, a calm
//! plant would look like one with a slow average.
//!
//! One surprising sample is noise: a count of few tasks has long tails, and a burst is gone before
//! its sample is seen. It moves the model as far as its noise allows. Several on the same side are
//! a change, and the model opens for it.

use super::ewma::smooth;
use super::observer::Observer;
use super::{History, clamp_finite};

/// The averaging times of the candidates, as powers of two of the hint; one more has none.
const HINT_POWERS: [i32; 6] = [-3, -2, -1, 0, 1, 2];
/// The power of two that means no averaging in the prior.
const NO_AVERAGING: i32 = -4;
/// The shortest hint that is multiplied, in seconds.
const HINT_MIN_S: f64 = 5.0;
/// The standard deviation of the prior: a hint is right within a factor of three.
const PRIOR_DEVIATION: f64 = 1.1;
/// The variance of a published average at the setpoint before it is learned: 11 %.
const INITIAL_VARIANCE: f64 = 0.0125;
/// The smallest variance of a published average at the setpoint that is learned.
const NOISE_MIN: f64 = 1e-5;
/// The variance of a published average about any forecast: no plant is forecast better than within
/// 2 % of the setpoint.
///
/// Without it a load that stands still would have the slowest average that is tried: that one
/// expects the smallest steps.
const FLOOR: f64 = 4e-4;
/// The number of samples that count for the score of a candidate.
const MEMORY: f64 = 200.0;
/// The weight of the newest sample for the noise, once it is known.
const NOISE_STEP: f64 = 0.01;
/// The number of samples for which the first guess of the noise counts.
const NOISE_PRIOR: f64 = 5.0;
/// The random walk of the background per 15 s, in setpoints.
const BACKGROUND_WALK: f64 = 0.035;
/// The relative random walk of the cost per 15 s.
const COST_WALK: f64 = 0.08;
/// The random walks that are tried, as multiples of these: a plant that is calmer than the calmest
/// would be taken for one with a slower average.
const WALKS: [f64; 3] = [0.1, 0.625, 1.6];
/// The size of a single innovation, in sigmas, beyond which it is not noise.
const JUMP: f64 = 5.0;
/// The mean normalised innovation that counts as a change.
const DRIFT: f64 = 2.0;
/// The largest squared innovation that counts against a candidate, in variances.
const OUTLIER: f64 = 12.0;
/// The load above which a sample only means "too much", in setpoints: near saturation it
/// is not linear in our work.
pub const LINEAR_MAX: f64 = 3.0;
/// The relative error of a candidate's time that is allowed for.
const TIME_ERROR: f64 = 0.2;
/// The least room, in setpoints: the rate is lowered step by step, not to nothing at once.
const ROOM_MIN: f64 = 0.02;
/// The number of samples before it is used: the first has no predecessor.
const ROOM_AFTER: u32 = 2;
/// The number of samples before its lag is used.
const LAG_AFTER: u32 = 4;
/// The time in which the room follows the mean of the candidates without a sample, in seconds.
const SETTLE_S: f64 = 60.0;

/// The state of all candidates.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LoadModel {
    /// The hint for which the candidates were made, in seconds.
    hint_s: f64,
    /// The number of samples learned from.
    samples: u32,
    /// The logarithm of the work rate at which the load reaches the setpoint.
    room: Option<f64>,
    candidates: Vec<LagCandidate>,
}

/// One averaging time, with its observer.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct LagCandidate {
    /// The averaging time, in seconds; 0 for none.
    tau_s: f64,
    /// The log prior of this time.
    prior: f64,
    /// The size of its random walk, in the usual ones.
    walk: f64,
    /// The log likelihood of the samples, relative to the best candidate's.
    score: f64,
    /// The newest sample without the averaging.
    z: f64,
    /// The background, the cost, and the variance of the published average as its noise.
    observer: Observer,
}

/// One sample of a load average, with the one before.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LoadSample {
    /// The time of the sample, in unix seconds.
    pub at: f64,
    /// The time since the sample before, in seconds.
    pub dt_s: f64,
    /// The value, in setpoints.
    pub x: f64,
    /// The value before, in setpoints; `None` for the first sample.
    pub before: Option<f64>,
}

impl LoadModel {
    /// Learns one sample; `hint_s` is the configured averaging time, in seconds.
    ///
    /// A sample above its forecast never raises the room, and one below never lowers it.
    pub fn learn(&mut self, hint_s: f64, sample: LoadSample, history: &History) {
        if self.candidates.is_empty() || self.hint_s != hint_s {
            *self = Self::with_hint(hint_s);
        }
        let samples = f64::from(self.samples);
        let top = highest(self.candidates.iter().map(LagCandidate::belief));
        let mut surprise = 0.0;
        for candidate in &mut self.candidates {
            let share = (candidate.belief() - top).exp();
            surprise += share * candidate.learn(sample, samples, history);
        }
        let top = highest(self.candidates.iter().map(|one| one.score));
        self.candidates.iter_mut().for_each(|one| one.score -= top);
        self.samples = self.samples.saturating_add(1);
        self.room = match (self.room, self.mixed_room()) {
            (Some(old), Some(new)) if surprise > 0.0 => Some(old.min(new)),
            (Some(old), Some(new)) => Some(old.max(new)),
            (_, new) => new,
        };
        if !self.is_sound() {
            *self = Self::default();
        }
    }

    fn with_hint(hint_s: f64) -> Self {
        let candidate = |power: i32, walk: f64| {
            let off = f64::from(power) * std::f64::consts::LN_2;
            LagCandidate {
                tau_s: match power {
                    NO_AVERAGING => 0.0,
                    _ => hint_s.max(HINT_MIN_S) * 2f64.powi(power),
                },
                prior: -0.5 * (off / PRIOR_DEVIATION).powi(2),
                walk,
                score: 0.0,
                z: 0.0,
                observer: Observer {
                    noise: INITIAL_VARIANCE,
                    ..Observer::default()
                },
            }
        };
        Self {
            hint_s,
            samples: 0,
            room: None,
            candidates: [NO_AVERAGING]
                .into_iter()
                .chain(HINT_POWERS)
                .flat_map(|power| WALKS.map(|walk| candidate(power, walk)))
                .collect(),
        }
    }

    /// Returns the logarithm of the work rate at which the load reaches the setpoint, the mean of
    /// the candidates by their probability; `None` before there are enough samples.
    pub fn room(&self) -> Option<f64> {
        self.room
    }

    /// Lets `dt_s` seconds pass: what a sample was not allowed to move comes by and by.
    pub fn settle(&mut self, dt_s: f64) {
        if let (Some(old), Some(mixed)) = (self.room, self.mixed_room()) {
            self.room = Some(smooth(old, mixed, dt_s, SETTLE_S));
        }
    }

    /// Returns the logarithm of the room, the mean of the candidates by their probability.
    fn mixed_room(&self) -> Option<f64> {
        if self.samples < ROOM_AFTER {
            return None;
        }
        let top = highest(self.candidates.iter().map(LagCandidate::belief));
        let (mut sum, mut weight) = (0.0, 0.0);
        for candidate in &self.candidates {
            let share = (candidate.belief() - top).exp();
            sum +=
                share * ((1.0 - candidate.observer.b).max(ROOM_MIN) / candidate.observer.c?).ln();
            weight += share;
        }
        Some(sum / weight)
    }

    /// Returns the observer of the most probable lag; its noise is that of the published average.
    pub fn observer(&self) -> Option<&Observer> {
        self.best().map(|best| &best.observer)
    }

    /// Returns the most probable averaging time, in seconds; `None` before it has been learned.
    pub fn lag_s(&self) -> Option<f64> {
        self.best()
            .filter(|_| self.samples >= LAG_AFTER)
            .map(|best| best.tau_s)
    }

    /// Returns the variances, at the setpoint, of a published sample and of one without its
    /// averaging that is `dt_s` later than the one before.
    pub fn noise(&self, dt_s: f64) -> Option<(f64, f64)> {
        let best = self.best()?;
        let noise = best.observer.noise;
        Some((noise, noise * amplification(best.kept(dt_s))))
    }

    /// Learns that none of our work ran when the newest sample, `x` setpoints, was taken: all of it
    /// is background.
    pub fn only_background(&mut self, x: f64) {
        for candidate in &mut self.candidates {
            let most = candidate.z.max(0.0).min(x.max(0.0));
            candidate.observer.b = candidate.observer.b.min(most);
        }
        self.room = self.mixed_room();
    }

    /// Changes the unit of work: rates become `factor` times larger.
    pub fn scale(&mut self, factor: f64) {
        for candidate in &mut self.candidates {
            candidate.observer.scale(factor);
        }
        self.room = self.room.map(|room| room + factor.ln());
    }

    /// Changes the unit of loads: they become `factor` times larger.
    pub fn rescale(&mut self, factor: f64) {
        for candidate in &mut self.candidates {
            candidate.z *= factor;
            candidate.observer.rescale(factor);
        }
        self.room = self.mixed_room();
    }

    /// Returns false if any number is infinite or NaN.
    pub fn is_sound(&self) -> bool {
        let numbers = |one: &LagCandidate| [one.tau_s, one.prior, one.walk, one.score, one.z];
        self.hint_s.is_finite()
            && self.room.is_none_or(f64::is_finite)
            && self
                .candidates
                .iter()
                .all(|one| numbers(one).into_iter().all(f64::is_finite) && one.observer.is_sound())
    }

    fn best(&self) -> Option<&LagCandidate> {
        let begun = self
            .candidates
            .iter()
            .filter(|one| one.observer.c.is_some());
        begun.max_by(|a, b| a.belief().total_cmp(&b.belief()))
    }
}

impl LagCandidate {
    /// Returns the log probability of this time, up to a constant.
    fn belief(&self) -> f64 {
        self.score + self.prior
    }

    /// Returns the part of a sample that an average still holds `dt_s` later.
    fn kept(&self, dt_s: f64) -> f64 {
        if self.tau_s <= 1.0 {
            0.0
        } else {
            (-dt_s / self.tau_s).exp()
        }
    }

    /// Returns the variance of a sample without its averaging, where `load` is expected and the
    /// average was `before`.
    fn noise_of(&self, load: f64, a: f64, dt_s: f64, before: f64) -> f64 {
        // An average that is a little slower or faster than this one leaves a part of the old
        // value.
        let slip = match self.tau_s > 1.0 {
            true => TIME_ERROR * a * dt_s / self.tau_s / (1.0 - a) * (before - load),
            false => 0.0,
        };
        let floor = FLOOR / (1.0 - a).powi(2);
        self.observer.noise * load.max(0.2) * amplification(a) + slip * slip + floor
    }

    /// Learns the sample after `samples` others; returns by how much the published average was
    /// above its forecast.
    fn learn(&mut self, sample: LoadSample, samples: f64, history: &History) -> f64 {
        let LoadSample { at, dt_s, x, .. } = sample;
        let phi = history.weighted(at - dt_s, at, self.tau_s);
        let (Some(before), Some(c)) = (sample.before, self.observer.c) else {
            self.z = x;
            self.begin(x, phi);
            return 0.0;
        };
        let a = self.kept(dt_s);
        self.z = (x - a * before) / (1.0 - a);
        let walk = |size: f64| (self.walk * size).powi(2);
        let walks = (walk(BACKGROUND_WALK), walk(COST_WALK * c));
        let prior = self.observer.predict(walks, dt_s / 15.0);
        let load = self.observer.b + c * phi;
        let surprise = self.z - load;
        // A sample beyond the linear range raises the model only to the end of that range.
        let innovation = if self.z > LINEAR_MAX {
            surprise.min((LINEAR_MAX - load).max(0.0))
        } else {
            surprise
        };
        let scale = load.max(0.2) * amplification(a);
        let noise = self.noise_of(load, a, dt_s, before);
        let model = prior.variance(phi);
        let total = model + noise;
        let misses = (surprise * surprise / total).min(OUTLIER);
        let likelihood = -0.5 * (misses + (total * (1.0 - a).powi(2)).ln());
        self.score = (1.0 - 1.0 / MEMORY) * self.score + likelihood;

        // The noise is learned from every sample, but no sample counts for more than three sigmas.
        let step = (1.0 / (samples + NOISE_PRIOR)).max(NOISE_STEP);
        let seen = ((innovation * innovation).min(9.0 * total) - model) / scale;
        let old = self.observer.noise;
        self.observer.noise = clamp_finite(old + step * (seen - old), NOISE_MIN, 3.0);

        let height = clamp_finite(innovation / total.sqrt(), -3.0, 3.0);
        self.observer.nu += 0.5 * (height - self.observer.nu);
        let is_change = misses_by(surprise, total) > JUMP || self.observer.nu.abs() > DRIFT;
        let prior = match is_change {
            true => prior.opened(innovation, phi, c),
            false => prior,
        };
        self.observer.correct(prior, phi, innovation, noise);
        surprise * (1.0 - a)
    }

    /// Begins with the first sample `x`: two fifths are background, both parts uncertain.
    fn begin(&mut self, x: f64, phi: f64) {
        let noise = self.observer.noise;
        self.observer.update(x, phi, 0.0);
        self.observer.noise = noise;
    }
}

/// Returns the size of a surprise in sigmas.
fn misses_by(surprise: f64, total: f64) -> f64 {
    surprise.abs() / total.sqrt()
}

/// Returns the variance of a sample without its averaging, in variances of the average itself, if
/// the average keeps `a` of the sample before.
fn amplification(a: f64) -> f64 {
    (1.0 + a) / (1.0 - a)
}

fn highest(all: impl Iterator<Item = f64>) -> f64 {
    all.fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plant with a load average of `tau_s`, sampled every 15 s, and its model with the hint
    /// `hint_s`.
    struct Plant {
        tau_s: f64,
        hint_s: f64,
        t: f64,
        x: f64,
        history: History,
        model: LoadModel,
    }

    impl Plant {
        fn new(tau_s: f64, hint_s: f64) -> Self {
            Self {
                tau_s,
                hint_s,
                t: 0.0,
                x: 0.3,
                history: History::default(),
                model: LoadModel::default(),
            }
        }

        /// Runs 15 s at the rate `v` with the background `b` and a cost of 0.02; `noise` is added
        /// to what is averaged.
        fn run(&mut self, v: f64, b: f64, noise: f64) {
            let (before, first) = (self.x, self.t == 0.0);
            let keep = (-15.0 / self.tau_s.max(1e-3)).exp();
            self.t += 15.0;
            self.x = keep * self.x + (1.0 - keep) * (b + 0.02 * v + noise).max(0.0);
            self.history.push(self.t, 15.0, v);
            let sample = LoadSample {
                at: self.t,
                dt_s: 15.0,
                x: self.x,
                before: (!first).then_some(before),
            };
            self.model.learn(self.hint_s, sample, &self.history);
        }

        fn noise(n: u32) -> f64 {
            f64::from(n * 7919 % 101) / 50.0 - 1.0
        }
    }

    #[test]
    fn a_lag_told_wrong_is_found_from_the_response_to_our_own_rate() {
        for (tau_s, hint_s) in [(60.0, 240.0), (60.0, 15.0), (120.0, 60.0), (0.0, 60.0)] {
            let mut plant = Plant::new(tau_s, hint_s);
            for n in 0..160 {
                let v = if n / 8 % 2 == 0 { 20.0 } else { 35.0 };
                plant.run(v, 0.3, 0.05 * Plant::noise(n));
            }
            let found = plant.model.lag_s().unwrap();
            assert!(
                (found - tau_s).abs() <= 0.3 * tau_s.max(25.0),
                "{tau_s} stated as {hint_s}: {found}"
            );
            let room = plant.model.room().unwrap().exp();
            assert!(
                (room / 35.0 - 1.0).abs() < 0.15,
                "{tau_s}, {hint_s}: {room}"
            );
        }
    }

    #[test]
    fn a_load_that_stands_still_is_not_taken_for_a_slow_one() {
        let mut plant = Plant::new(60.0, 60.0);
        (0..300).for_each(|_| plant.run(35.0, 0.3, 0.0));
        let lag_s = plant.model.lag_s().unwrap();
        assert!((30.0..=60.0).contains(&lag_s), "{lag_s}");
    }

    #[test]
    fn what_a_sample_may_not_move_comes_by_and_by() {
        let mut plant = Plant::new(60.0, 60.0);
        (0..100).for_each(|n| plant.run(35.0, 0.3, 0.05 * Plant::noise(n)));
        let mixed = plant.model.mixed_room().unwrap();
        plant.model.room = Some(mixed - 0.3);
        (0..12).for_each(|_| plant.model.settle(5.0));
        let moved = plant.model.room().unwrap();
        assert!((mixed - 0.3 * (-1f64).exp() - moved).abs() < 1e-9);
    }

    #[test]
    fn noise_is_learned() {
        let mut plant = Plant::new(0.0, 5.0);
        for n in 0..400 {
            plant.run(30.0, 0.4, 0.9 * Plant::noise(n));
        }
        let (noise, _) = plant.model.noise(15.0).unwrap();
        assert!((0.1..0.5).contains(&noise), "{noise}");
    }

    #[test]
    fn one_burst_is_forgotten_and_a_lasting_change_is_followed() {
        let mut plant = Plant::new(0.0, 5.0);
        for n in 0..60 {
            plant.run(
                if n % 4 < 2 { 25.0 } else { 35.0 },
                0.3,
                0.02 * Plant::noise(n),
            );
        }
        plant.run(30.0, 20.0, 0.0);
        for n in 0..6 {
            plant.run(
                if n % 4 < 2 { 25.0 } else { 35.0 },
                0.3,
                0.02 * Plant::noise(n),
            );
        }
        let room = plant.model.room().unwrap().exp();
        assert!((room / 35.0 - 1.0).abs() < 0.2, "after a burst: {room}");
        for n in 0..6 {
            plant.run(
                if n % 4 < 2 { 15.0 } else { 20.0 },
                0.6,
                0.02 * Plant::noise(n),
            );
        }
        let room = plant.model.room().unwrap().exp();
        assert!((room / 20.0 - 1.0).abs() < 0.2, "after a step: {room}");
    }

    #[test]
    fn a_sample_above_its_forecast_never_raises_the_room_and_one_below_never_lowers_it() {
        let mut plant = Plant::new(60.0, 30.0);
        for n in 0..300 {
            let load = 0.3 + 0.02 * 30.0 * if n > 150 { 2.0 } else { 1.0 };
            plant.run(30.0, load - 0.6, 0.6 * Plant::noise(n));
            let (forked, room) = (plant.model.clone(), plant.model.room());
            let Some(room) = room.filter(|_| n > 3) else {
                continue;
            };
            for (x, goes) in [(6.0, -1.0), (2.5, -1.0), (0.0, 1.0)] {
                let sample = LoadSample {
                    at: plant.t + 15.0,
                    dt_s: 15.0,
                    x,
                    before: Some(plant.x),
                };
                let mut model = forked.clone();
                model.learn(plant.hint_s, sample, &plant.history);
                let moved = model.room().unwrap() - room;
                assert!(moved * goes >= 0.0, "{n}: {x} moved it by {moved}");
            }
        }
    }

    #[test]
    fn another_unit_of_loads_is_the_same_model() {
        let mut plant = Plant::new(60.0, 60.0);
        for n in 0..100 {
            plant.run(20.0 + f64::from(n % 10), 0.3, 0.05 * Plant::noise(n));
        }
        let (b, c) = plant.model.observer().map(|o| (o.b, o.c.unwrap())).unwrap();
        plant.model.rescale(0.5);
        let half = plant.model.observer().unwrap();
        assert!((half.b / b - 0.5).abs() < 1e-9 && (half.c.unwrap() / c - 0.5).abs() < 1e-9);
        let room = plant.model.room().unwrap().exp();
        assert!(
            (room / ((1.0 - half.b) / half.c.unwrap()) - 1.0).abs() < 0.3,
            "{room}"
        );
    }

    #[test]
    fn absurd_samples_leave_a_usable_model() {
        let mut plant = Plant::new(60.0, 60.0);
        for v in [0.0, 1e-300, 1e9, 1e300, 0.0, 5.0] {
            plant.run(v, 0.2, 0.0);
            assert!(plant.model.is_sound());
            assert!(plant.model.room().is_none_or(|room| !room.is_nan()));
        }
    }
}
