//! Oscillation: the rate swings by itself, because the loop is slower than assumed. The remedy is a
//! lower gain.
//!
//! The log work rate is read as a zigzag: a turn is a point from which it went back by [`SWING`] or
//! more. Seven turns in a row, of similar size and at a steady pace that the loop can have, are
//! neither noise nor an incident. Trips of the breaker count: a loop that is far too slow goes from
//! trip to trip. The gain is then halved, and halved again if that does not calm it. Once calm, one
//! halving is undone after an hour, and after twice as long following each relapse.
//!
//! A background that itself swings with such a period looks the same; the lower gain then costs
//! some throughput.

use std::collections::VecDeque;

use crate::governor::explain::format::{number, seconds};

/// The smallest swing, in nats: up by half, or down by a third.
const SWING: f64 = 0.4;
/// The smallest ratio of the smallest swing to the largest: a decaying swing is not an oscillation.
const SUSTAINED: f64 = 0.3;
/// The number of turns in a row that make an oscillation.
const MIN_TURNS: usize = 7;
/// The shortest and the longest period, in loop times: faster is noise, slower has an external
/// cause.
const SWING_LOOPS: (f64, f64) = (1.0, 30.0);
/// The lower bound of the longest accepted period, in seconds, for loops that seem fast.
const SWING_S: f64 = 600.0;
/// The shortest leg, in loop times; a shorter one belongs to the swing around it.
const WIGGLE_LOOPS: f64 = 0.15;
/// The largest ratio of the longest period to the shortest.
const MAX_PERIOD_RATIO: f64 = 1.6;
/// The time without a turn after which it counts as calm, in loop times.
const CALM_LOOPS: f64 = 20.0;
/// The largest number of halvings of the gain.
const HALVINGS_MAX: u32 = 2;
/// The calm time after which one halving is undone, in seconds; doubled by each relapse.
const RECOVER_S: f64 = 3600.0;
/// The largest number of relapses that double the calm time: it grows to sixteen times.
const RELAPSES_MAX: u32 = 4;
/// The time at full gain after which relapses are forgotten, in seconds.
const FORGIVEN_S: f64 = 86_400.0;

/// The oscillation state of one rate.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Oscillation {
    /// The newest turns `(time, log work rate)`, oldest first.
    turns: VecDeque<(f64, f64)>,
    /// The lowest point since the newest turn.
    low: Option<(f64, f64)>,
    /// The highest point since the newest turn.
    high: Option<(f64, f64)>,
    /// The direction after the newest turn: true for upwards.
    rising: Option<bool>,
    /// The number of halvings in force.
    halvings: u32,
    /// The number of times that an oscillation began.
    relapses: u32,
    /// The oscillation as detected; `None` while it is calm.
    swing: Option<Swing>,
    /// The time of the newest turn, halving or undoing, in unix seconds.
    moved_at: f64,
}

/// An oscillation as detected.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Swing {
    /// The lowest log work rate of the swing.
    low: f64,
    high: f64,
    /// The period, in seconds.
    period_s: f64,
}

impl Oscillation {
    /// Returns the remaining share of the gain: 1, 1/2 or 1/4.
    pub fn gain_factor(&self) -> f64 {
        0.5f64.powi(self.halvings.min(HALVINGS_MAX) as i32)
    }

    /// Returns true if no oscillation has been found, or the last one is forgotten.
    pub fn is_forgiven(&self) -> bool {
        self.relapses == 0 && self.halvings == 0
    }

    /// Runs one tick of a rate that only the law changes; `loop_s` is the time until a change of
    /// the knob is visible.
    pub fn step(&mut self, now: f64, u: f64, loop_s: f64) {
        if !u.is_finite() {
            return;
        }
        let here = (now, u);
        let (low, high) = (self.low.unwrap_or(here), self.high.unwrap_or(here));
        self.low = Some(if u <= low.1 { here } else { low });
        self.high = Some(if u >= high.1 { here } else { high });
        if self.rising != Some(false) && u < high.1 - SWING {
            self.turn(high, false, now, loop_s);
            (self.low, self.high) = (Some(here), Some(here));
        } else if self.rising != Some(true) && u > low.1 + SWING {
            self.turn(low, true, now, loop_s);
            (self.low, self.high) = (Some(here), Some(here));
        }
    }

    /// Discards the turns, because something other than an oscillation moved the rate: a person,
    /// stale signals, an empty queue.
    pub fn interrupt(&mut self) {
        self.turns.clear();
        (self.low, self.high, self.rising) = (None, None, None);
    }

    /// Detects calm and undoes halvings.
    pub fn rest(&mut self, now: f64, loop_s: f64) {
        let calm_s = now - self.moved_at;
        if calm_s >= (CALM_LOOPS * loop_s).max(SWING_S) {
            self.swing = None;
        }
        let wait_s = RECOVER_S * f64::from(1 << self.relapses.saturating_sub(1).min(RELAPSES_MAX));
        if self.halvings > 0 && self.swing.is_none() && calm_s >= wait_s {
            (self.halvings, self.moved_at) = (self.halvings - 1, now);
        } else if self.halvings == 0 && calm_s >= FORGIVEN_S {
            self.relapses = 0;
        }
    }

    /// Returns the sentence for a person; `w` is the work of a job.
    pub fn sentence(&self, w: f64, unit: &str) -> Option<String> {
        let swing = self.swing?;
        let rps = |u: f64| number((u.exp() / w).min(1e12));
        let gain = if self.halvings >= HALVINGS_MAX {
            "a quarter"
        } else {
            "half"
        };
        Some(format!(
            "the rate swings between {} and {} {unit} with a period of {}, so the gain is lowered \
             to {gain} until it is calm; set lag_s to the signal's averaging time, or lower gain",
            rps(swing.low),
            rps(swing.high),
            seconds(swing.period_s)
        ))
    }

    /// Shifts every time by `by_s` after the clock was set back.
    pub fn shift(&mut self, by_s: f64) {
        self.interrupt();
        self.moved_at += by_s;
    }

    fn turn(&mut self, place: (f64, f64), rising: bool, now: f64, loop_s: f64) {
        let began = self.rising.is_none();
        self.rising = Some(rising);
        if began {
            // The first leg may have begun long before the observation.
            return;
        }
        if self
            .turns
            .back()
            .is_some_and(|last| place.0 - last.0 < WIGGLE_LOOPS * loop_s)
        {
            // A short reversal, as at a restart, belongs to the larger swing.
            self.turns.pop_back();
            return;
        }
        self.turns.push_back(place);
        let swing_s = self
            .turns
            .iter()
            .rev()
            .nth(2)
            .map(|before| place.0 - before.0);
        let longest_s = (SWING_LOOPS.1 * loop_s).max(SWING_S);
        if swing_s.is_some_and(|s| s < SWING_LOOPS.0 * loop_s || s > longest_s) {
            self.turns.drain(..self.turns.len() - 2);
        }
        self.moved_at = now;
        if self.turns.len() < MIN_TURNS {
            return;
        }
        // Whole periods are compared, because the way up and the way down differ.
        let swings: Vec<f64> = self
            .turns
            .iter()
            .zip(self.turns.iter().skip(2))
            .map(|(a, b)| b.0 - a.0)
            .collect();
        let (shortest, longest) = swings
            .iter()
            .fold((f64::INFINITY, 0.0f64), |(s, l), &x| (s.min(x), l.max(x)));
        let sizes = self
            .turns
            .iter()
            .zip(self.turns.iter().skip(1))
            .map(|(a, b)| (b.1 - a.1).abs());
        let (smallest, largest) =
            sizes.fold((f64::INFINITY, 0.0f64), |(s, l), x| (s.min(x), l.max(x)));
        if longest > MAX_PERIOD_RATIO * shortest || smallest < SUSTAINED * largest {
            self.turns.pop_front();
            return;
        }
        let (low, high) = self
            .turns
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), t| {
                (l.min(t.1), h.max(t.1))
            });
        let period_s = swings.iter().sum::<f64>() / swings.len() as f64;
        if self.swing.is_none() {
            self.relapses = self.relapses.saturating_add(1);
        }
        self.swing = Some(Swing {
            low,
            high,
            period_s,
        });
        self.halvings = (self.halvings + 1).min(HALVINGS_MAX);
        // The next halving needs evidence of its own.
        self.turns.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP_S: f64 = 100.0;

    /// Steps through `hours` of `u(t)` and returns the lowest gain factor.
    fn watch(oscillation: &mut Oscillation, from: f64, hours: f64, u: impl Fn(f64) -> f64) -> f64 {
        let mut least = 1.0f64;
        for n in 1..=(hours * 720.0) as u32 {
            let now = from + f64::from(n) * 5.0;
            oscillation.step(now, u(now), LOOP_S);
            oscillation.rest(now, LOOP_S);
            least = least.min(oscillation.gain_factor());
        }
        least
    }

    fn wave(size: f64, period_s: f64) -> impl Fn(f64) -> f64 {
        move |t| 4.0 + size * (t / period_s * std::f64::consts::TAU).sin()
    }

    #[test]
    fn a_steady_swing_halves_the_gain_twice_and_no_further() {
        let mut oscillation = Oscillation::default();
        assert_eq!(watch(&mut oscillation, 0.0, 0.5, wave(0.4, 400.0)), 0.5);
        assert!(oscillation.swing.is_some());
        assert_eq!(watch(&mut oscillation, 1800.0, 3.0, wave(0.4, 400.0)), 0.25);
        let reported = oscillation.sentence(1.0, "rps").unwrap();
        assert!(
            reported.contains("swings between 36.6 and 81.5 rps with a period of 7 min")
                && reported.contains("a quarter"),
            "{reported}"
        );
    }

    #[test]
    fn small_fast_slow_single_and_dying_swings_are_none() {
        for (size, period_s) in [(0.19, 400.0), (0.4, 60.0), (0.4, 4000.0)] {
            assert_eq!(
                watch(&mut Oscillation::default(), 0.0, 12.0, wave(size, period_s)),
                1.0,
                "{size} in {period_s} s"
            );
        }
        let step = |t: f64| {
            if (3600.0..4200.0).contains(&t) {
                2.0
            } else {
                4.0
            }
        };
        assert_eq!(watch(&mut Oscillation::default(), 0.0, 3.0, step), 1.0);
        let dying =
            |t: f64| 4.0 + 2.0 * (-t / 500.0).exp() * (t / 400.0 * std::f64::consts::TAU).sin();
        assert_eq!(watch(&mut Oscillation::default(), 0.0, 3.0, dying), 1.0);
    }

    #[test]
    fn from_trip_to_trip_is_a_swing_too() {
        // Stopped for 20 s of each 600, and growing to the next trip.
        let trips = |t: f64| {
            if t % 600.0 < 20.0 {
                0.0
            } else {
                3.0 + (t % 600.0) / 200.0
            }
        };
        assert_eq!(watch(&mut Oscillation::default(), 0.0, 1.0, trips), 0.5);
    }

    #[test]
    fn the_gain_comes_back_once_it_is_calm_and_later_after_each_relapse() {
        let mut oscillation = Oscillation::default();
        watch(&mut oscillation, 0.0, 0.5, wave(0.4, 400.0));
        watch(&mut oscillation, 1800.0, 0.75, |_| 4.0);
        assert!(oscillation.swing.is_none() && oscillation.gain_factor() == 0.5);
        watch(&mut oscillation, 4500.0, 0.5, |_| 4.0);
        assert_eq!(oscillation.gain_factor(), 1.0);

        watch(&mut oscillation, 6300.0, 0.5, wave(0.4, 400.0));
        watch(&mut oscillation, 8100.0, 1.75, |_| 4.0);
        assert_eq!(
            oscillation.gain_factor(),
            0.5,
            "the second time it waits for two hours"
        );
        watch(&mut oscillation, 14_400.0, 0.5, |_| 4.0);
        assert_eq!(oscillation.gain_factor(), 1.0);
    }

    #[test]
    fn what_interrupts_it_starts_the_count_anew() {
        let mut oscillation = Oscillation::default();
        for n in 0..6 {
            watch(
                &mut oscillation,
                f64::from(n) * 900.0,
                0.25,
                wave(0.4, 400.0),
            );
            oscillation.interrupt();
        }
        assert_eq!(oscillation.gain_factor(), 1.0);
    }
}
