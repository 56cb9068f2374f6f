//! The schedule of the rate: up until the load is at a part of its setpoint, then up and down
//! around that.

use super::fit::LoadSample;

/// Range of loads that ends the search, as multiples of the target; wider than one step.
const TARGET_RANGE: (f64, f64) = (0.9, 1.25);
/// Largest factor between the rate and the one at which the test began.
const RATE_SPAN_MAX: f64 = 10.0;
/// Longest duration of a search step without a sample in its second half, as a multiple of its
/// usual length.
const MAX_STEP_STRETCH: f64 = 4.0;

/// Parameters of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Length of a step of the search, in seconds.
    pub climb_s: f64,
    /// Factor of the rate per step of the search.
    pub climb: f64,
    /// Load that the search aims for, in setpoints.
    pub target: f64,
    /// Length of a half, in seconds.
    pub pulse_s: f64,
    /// Factor by which the rate is above or below the one found.
    pub pulse: f64,
    /// Number of halves; the first one is above.
    pub halves: u32,
    /// Load that ends the test, in setpoints.
    pub abort: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            climb_s: 90.0,
            climb: 1.25,
            target: 0.6,
            pulse_s: 240.0,
            pulse: 1.4,
            halves: 6,
            abort: 1.5,
        }
    }
}

impl Shape {
    /// Returns a shape with as many halves of this length, in seconds; the steps of the search keep
    /// their proportion.
    pub fn of(pulse_s: f64, halves: u32) -> Self {
        let plain = Self::default();
        Self {
            climb_s: plain.climb_s * pulse_s / plain.pulse_s,
            pulse_s,
            halves,
            ..plain
        }
    }
}

/// The next action of a test.
#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    /// Keeps the rate.
    Stay,
    /// Sets another rate, in jobs per second.
    Set(f64),
    /// Ends the complete test.
    Done,
    /// Ends the test early, for the given reason.
    Abort(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Search,
    Half(u32),
    Over,
}

/// A test in progress.
#[derive(Clone, Debug)]
pub struct Pulse {
    shape: Shape,
    least: f64,
    most: f64,
    rate: f64,
    base: f64,
    phase: Phase,
    since: f64,
    samples: Vec<LoadSample>,
}

impl Pulse {
    /// Returns a test that begins `now` at `rate`, within the bounds `min` and `max` (all rates in
    /// jobs per second). Fails if the bounds leave no room for it.
    pub fn new(shape: Shape, rate: f64, (min, max): (f64, f64), now: f64) -> Result<Self, String> {
        let (least, most) = (min.max(rate / RATE_SPAN_MAX), max.min(rate * RATE_SPAN_MAX));
        let wanted = shape.pulse * shape.pulse;
        if most < wanted * least {
            return Err(format!(
                "min {min} and max {max} leave no room: the rate must be able to change by a factor of {wanted:.2}"
            ));
        }
        Ok(Self {
            shape,
            least,
            most,
            rate,
            base: rate,
            phase: Phase::Search,
            since: now,
            samples: Vec::new(),
        })
    }

    /// Returns the highest rate that the test may set, in jobs per second.
    pub fn most(&self) -> f64 {
        self.most
    }

    /// Returns the rate around which the halves turn, as far as it is known, in jobs per second.
    pub fn base(&self) -> f64 {
        self.base
    }

    /// Returns the shortest and the longest duration of the test, in seconds.
    pub fn lengths_s(&self) -> (f64, f64) {
        let halves = f64::from(self.shape.halves) * self.shape.pulse_s;
        let steps =
            (self.most / self.rate).max(self.rate / self.least).ln() / self.shape.climb.ln();
        (
            halves + self.shape.climb_s,
            halves + (steps.ceil() + 1.0) * self.shape.climb_s,
        )
    }

    /// Returns the action at `now`, with the `fresh` samples of the load since the last call.
    pub fn next(&mut self, now: f64, fresh: &[LoadSample]) -> Move {
        if let Some(high) = fresh.iter().find(|sample| sample.x > self.shape.abort) {
            self.phase = Phase::Over;
            return Move::Abort(format!(
                "the load reached {:.2} of its setpoint; at most {} are allowed",
                high.x, self.shape.abort
            ));
        }
        self.samples.extend(fresh);
        match self.phase {
            Phase::Search if now - self.since >= self.shape.climb_s => self.search(now),
            Phase::Half(n) if now - self.since >= self.shape.pulse_s => self.half(now, n + 1),
            Phase::Over => Move::Done,
            _ => Move::Stay,
        }
    }

    /// Ends a step of the search.
    fn search(&mut self, now: f64) -> Move {
        let settled = self.since + 0.5 * self.shape.climb_s;
        let late: Vec<f64> = self
            .samples
            .iter()
            .filter(|s| s.at > settled)
            .map(|s| s.x)
            .collect();
        if late.is_empty() {
            let lost = now - self.since > MAX_STEP_STRETCH * self.shape.climb_s;
            return if lost {
                self.abort("the load has no new samples".to_owned())
            } else {
                Move::Stay
            };
        }
        let load = late.iter().sum::<f64>() / late.len() as f64;
        let (target, climb) = (self.shape.target, self.shape.climb);
        if load > TARGET_RANGE.1 * target {
            if self.rate / climb < self.least {
                let low = self.rate;
                return self.abort(format!(
                    "the load stays at {load:.2} of its setpoint even at {low:.3} jobs per second: \
                     most of it is caused by other callers"
                ));
            }
            return self.set(now, self.rate / climb);
        }
        if load < TARGET_RANGE.0 * target && self.rate * climb <= self.most {
            return self.set(now, self.rate * climb);
        }
        // Bounds that leave just enough room may be out of order by a rounding error.
        self.base = self
            .rate
            .max(self.shape.pulse * self.least)
            .min(self.most / self.shape.pulse);
        self.half(now, 0)
    }

    /// Begins half `n`, or ends the test after the last one.
    fn half(&mut self, now: f64, n: u32) -> Move {
        if n >= self.shape.halves {
            self.phase = Phase::Over;
            return Move::Done;
        }
        self.phase = Phase::Half(n);
        let factor = if n.is_multiple_of(2) {
            self.shape.pulse
        } else {
            1.0 / self.shape.pulse
        };
        self.set(now, self.base * factor)
    }

    fn set(&mut self, now: f64, rate: f64) -> Move {
        (self.rate, self.since) = (rate, now);
        if self.phase == Phase::Search {
            self.base = rate;
        }
        Move::Set(rate)
    }

    fn abort(&mut self, why: String) -> Move {
        self.phase = Phase::Over;
        Move::Abort(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a test on a load that follows the rate at once; returns the rates and the last action.
    fn play(start: f64, bounds: (f64, f64), load: impl Fn(f64) -> Option<f64>) -> (Vec<f64>, Move) {
        let mut pulse = Pulse::new(Shape::default(), start, bounds, 0.0).unwrap();
        let (mut rate, mut rates) = (start, Vec::new());
        for second in 1..20_000 {
            let now = f64::from(second);
            let fresh: Vec<LoadSample> = load(rate)
                .filter(|_| second % 15 == 0)
                .map(|x| LoadSample { at: now, x })
                .into_iter()
                .collect();
            match pulse.next(now, &fresh) {
                Move::Stay => {}
                Move::Set(wanted) => {
                    rate = wanted;
                    rates.push(rate);
                }
                end => {
                    assert!(now <= pulse.lengths_s().1 + 400.0, "{now}");
                    return (rates, end);
                }
            }
        }
        panic!("it did not end: {rates:?}")
    }

    #[test]
    fn the_rate_climbs_to_the_target_and_then_turns_around_it() {
        let (rates, end) = play(20.0, (1.0, 1000.0), |rate| Some(0.2 + 0.01 * rate));
        assert_eq!(end, Move::Done);
        let (climb, halves) = rates.split_at(rates.len() - 6);
        let base = *climb.last().unwrap();
        assert!((0.54..=0.75).contains(&(0.2 + 0.01 * base)), "{rates:?}");
        assert!(
            climb
                .windows(2)
                .all(|pair| (pair[1] / pair[0] - 1.25).abs() < 1e-9),
            "{rates:?}"
        );
        assert_eq!(
            halves,
            [1.4, 1.0 / 1.4, 1.4, 1.0 / 1.4, 1.4, 1.0 / 1.4].map(|factor| factor * base)
        );
    }

    #[test]
    fn a_load_at_its_setpoint_is_brought_down_first() {
        let (rates, end) = play(100.0, (1.0, 1000.0), |rate| Some(0.01 * rate));
        assert_eq!(end, Move::Done);
        assert!(
            rates[0] == 80.0 && rates.iter().all(|rate| *rate <= 105.0),
            "{rates:?}"
        );
    }

    #[test]
    fn the_bounds_are_kept() {
        let (rates, end) = play(20.0, (1.0, 30.0), |_| Some(0.3));
        assert_eq!(end, Move::Done);
        assert!(
            rates.iter().all(|rate| (1.0..=30.000_001).contains(rate)),
            "{rates:?}"
        );
        assert!(
            Pulse::new(Shape::default(), 20.0, (15.0, 25.0), 0.0)
                .unwrap_err()
                .contains("leave no room")
        );
    }

    #[test]
    fn bounds_that_leave_just_enough_room_are_used_in_full() {
        // 4.9 x 1.4 is a rounding error above 9.604 / 1.4.
        let (rates, end) = play(5.0, (4.9, 9.604), |_| Some(0.6));
        assert_eq!((rates.len(), end), (6, Move::Done));
        let inside = |rate: &f64| (4.9 - 1e-9..=9.604 + 1e-9).contains(rate);
        assert!(rates.iter().all(inside), "{rates:?}");
    }

    #[test]
    fn it_ends_where_the_load_runs_away_is_not_ours_or_is_not_seen() {
        let why = |(_, end): (Vec<f64>, Move)| match end {
            Move::Abort(why) => why,
            other => panic!("{other:?}"),
        };
        let steep = why(play(20.0, (1.0, 1000.0), |rate| {
            Some(if rate > 30.0 { 1.6 } else { 0.3 })
        }));
        assert!(
            steep.contains("reached 1.60 of its setpoint; at most 1.5"),
            "{steep}"
        );
        let others = why(play(20.0, (1.0, 1000.0), |_| Some(0.9)));
        assert!(
            others.contains("most of it is caused by other callers"),
            "{others}"
        );
        let unseen = why(play(20.0, (1.0, 1000.0), |_| None));
        assert!(unseen.contains("no new samples"), "{unseen}");
    }
}
