//! An unresponsive signal: one that does not react to the rate, because its query measures
//! something else, its exporter repeats itself, or others make the load.
//!
//! While the load is at its setpoint an unresponsive signal cannot be detected: the rate moves just
//! enough to keep it there. So only excursions count, times in which the load is well off its
//! setpoint and the rate was moved to bring it back. If the rate has been moved by a large factor,
//! for long enough to be visible, and the load has not come nearer, the signal is unresponsive. A
//! reaction of about a sixth of the setpoint is enough.

use crate::control::ewma::smooth;
use crate::governor::explain::format::{number, seconds};
use crate::governor::policy::SignalPolicy;

/// The distance from the setpoint within which nothing is learned, in setpoints.
const BAND: f64 = 0.25;
/// The factor by which the rate must have fallen.
const FELL: f64 = 4.0;
/// The factor by which the rate must have risen; larger, because the way up may begin with next to
/// nothing.
const ROSE: f64 = 30.0;
/// The shortest excursion, in seconds.
const MIN_EXCURSION_S: f64 = 600.0;
/// The shortest excursion, in loop times.
const LAST_LOOPS: f64 = 6.0;
/// The shortest time for which the rate must stay moved, in loop times.
const MOVED_LOOPS: f64 = 3.0;
/// The smallest reaction, in setpoints; for a load far above its setpoint, the smallest as a share
/// of the load.
const MIN_REACTION: f64 = 0.15;

/// An excursion of one signal.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Excursion {
    /// The start of the excursion; `None` while the load is near its setpoint.
    since: Option<f64>,
    /// True if the load is above its setpoint.
    over: bool,
    /// The load in setpoints, smoothed over half a loop time.
    quick: f64,
    /// The load in setpoints, smoothed over two loop times.
    x: f64,
    /// The value of `quick` furthest from the setpoint.
    furthest: f64,
    /// The work rate at the start: the largest if the load is above its setpoint, the smallest if
    /// below.
    from: Option<f64>,
    /// The current work rate.
    to: f64,
    /// The time since which the rate has been moved by enough.
    moved_at: Option<f64>,
    /// The time of the newest sample.
    at: f64,
    /// True if the signal does not react.
    is_unresponsive: bool,
}

impl Excursion {
    /// Ingests a sample of time `at`, in setpoints: `x` as received, `z` with its averaging undone,
    /// with `v` the mean work rate of the `loop_s` seconds before it.
    ///
    /// Above the setpoint the law acts before an average has risen in full, so there `z` shows the
    /// distance.
    pub fn step(&mut self, at: f64, x: f64, z: f64, v: f64, loop_s: f64) {
        if ![x, z, v].into_iter().all(f64::is_finite) {
            return;
        }
        let over = x > 1.0;
        let x = if self.since.is_some() && self.over {
            z
        } else {
            x
        };
        let dt = (at - self.at).max(0.0);
        let (quick, x) = match self.since {
            Some(_) => (
                smooth(self.quick, x, dt, 0.5 * loop_s),
                smooth(self.x, x, dt, 2.0 * loop_s),
            ),
            None => (x, x),
        };
        if (x - 1.0).abs() < BAND || (self.since.is_some() && over != self.over) {
            *self = Self {
                at,
                ..Self::default()
            };
            return;
        }
        self.at = at;
        let Some(since) = self.since else {
            // Below the setpoint the excursion may have begun with no work: its start rate is read
            // a loop later.
            let from = over.then_some(v);
            *self = Self {
                since: Some(at),
                over,
                quick,
                x,
                furthest: x,
                from,
                to: v,
                at,
                ..Self::default()
            };
            return;
        };
        (self.quick, self.x, self.to) = (quick, x, v);
        self.furthest = if self.over {
            self.furthest.max(quick)
        } else {
            self.furthest.min(quick)
        };
        if at - since < loop_s {
            return;
        }
        let from = self
            .from
            .map_or(v, |from| if self.over { from.max(v) } else { from.min(v) });
        self.from = Some(from);
        let moved = from > 0.0
            && if self.over {
                v * FELL <= from
            } else {
                v >= from * ROSE
            };
        self.moved_at = moved.then(|| self.moved_at.unwrap_or(at));
        let long = at - since >= MIN_EXCURSION_S.max(LAST_LOOPS * loop_s);
        let stood = self
            .moved_at
            .is_some_and(|moved_at| at - moved_at >= MOVED_LOOPS * loop_s);
        let reacted = (self.furthest - x).abs() >= MIN_REACTION * x.max(1.0);
        self.is_unresponsive = long && stood && !reacted;
    }

    /// Returns the sentence for a person about the signal `about`; `w` is the work of a job.
    pub fn sentence(&self, about: &SignalPolicy, w: f64, unit: &str) -> Option<String> {
        let (since, from) = (self.since?, self.from?);
        self.is_unresponsive.then(|| {
            format!(
                "{} does not react: in {} the rate went from {} to {} {unit} and it stayed near {} \
                 (setpoint {}); check that the query measures what this work affects, and that its \
                 exporter is running",
                about.name,
                seconds(self.at - since),
                number((from / w).min(1e12)),
                number((self.to / w).min(1e12)),
                number(self.x * about.setpoint),
                number(about.setpoint)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds samples 15 s apart for `minutes`; returns whether it was unresponsive at any time, and
    /// at the end.
    fn feed(minutes: u32, x: impl Fn(f64) -> f64, v: impl Fn(f64) -> f64) -> (bool, bool) {
        let (mut excursion, mut ever) = (Excursion::default(), false);
        for n in 1..=4 * minutes {
            let at = f64::from(n) * 15.0;
            excursion.step(at, x(at), x(at), v(at), 95.0);
            ever |= excursion.is_unresponsive;
        }
        (ever, excursion.is_unresponsive)
    }

    /// Returns a rate that is lowered tenfold in five minutes.
    fn lowered(t: f64) -> f64 {
        50.0 * (-t / 130.0).exp().max(0.1)
    }

    #[test]
    fn a_load_that_stands_while_the_rate_falls_is_unresponsive() {
        assert_eq!(feed(30, |_| 1.6, lowered), (true, true));
        // Above its trip level with everything stopped.
        assert_eq!(
            feed(30, |_| 3.0, |t| if t < 200.0 { 50.0 } else { 0.0 }),
            (true, true)
        );
    }

    #[test]
    fn a_load_that_stands_while_the_rate_grows_without_end_is_unresponsive() {
        assert_eq!(
            feed(30, |_| 0.3, |t| (t / 60.0).exp().min(2000.0)),
            (true, true)
        );
    }

    #[test]
    fn a_load_that_others_raise_and_that_falls_by_our_part_is_not() {
        // 0.8 ours, 0.2 others'; then others make 1.5.
        let load = |t: f64| {
            if t < 300.0 {
                1.0
            } else {
                1.5 + 0.016 * lowered(t - 300.0)
            }
        };
        assert!(!feed(60, load, |t| lowered((t - 300.0).max(0.0))).0);
    }

    #[test]
    fn a_load_that_comes_back_or_a_rate_that_stands_says_nothing() {
        assert!(!feed(60, |_| 1.1, lowered).0);
        assert!(!feed(60, |_| 1.6, |_| 50.0).0);
        assert!(!feed(60, |t| 1.6 + 0.4 * (t / 40.0).sin(), |_| 50.0).0);
        assert!(
            !feed(
                60,
                |t| 0.2 + 0.0004 * (t / 60.0).exp().min(2000.0),
                |t| (t / 60.0).exp().min(2000.0)
            )
            .1
        );
    }
}
