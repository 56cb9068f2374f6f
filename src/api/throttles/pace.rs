//! The actual rate of a throttle: the slope of its own counters over the last seconds.

use std::collections::VecDeque;

use crate::throttle::Status;

/// The approximate time over which the slope is taken, in microseconds: long enough to be smooth at
/// one token per second, short enough that an edit of the knob shows within two seconds.
const WINDOW_US: i64 = 3_000_000;

/// The counters of one throttle over the last window.
#[derive(Clone, Debug, Default)]
pub struct RateWindow(VecDeque<Point>);

#[derive(Clone, Copy, Debug)]
struct Point {
    at_us: i64,
    used: f64,
    limited_us: f64,
}

/// The slope of the counters over the last window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Tokens taken per second, net of those returned.
    pub achieved_rps: f64,
    /// The share of the time in which a job or a request waited for tokens, 0 to 1.
    pub limiting_share: f64,
}

impl RateWindow {
    /// Adds a reading of the counters.
    pub fn observe(&mut self, status: &Status) {
        self.push(Point {
            at_us: status.at_us,
            used: status.used,
            limited_us: status.limited_us,
        });
    }

    fn push(&mut self, point: Point) {
        if self.0.back().is_some_and(|last| began_again(last, &point)) {
            self.0.clear();
        }
        self.0.push_back(point);
        // One point at or before the start of the window is kept, so that the slope spans the whole
        // window.
        while self.0.len() > 2 && self.0[1].at_us <= point.at_us - WINDOW_US {
            self.0.pop_front();
        }
    }

    /// Returns the slope over the window; `None` until two readings are known.
    pub fn slope(&self) -> Option<Slope> {
        let (first, last) = (self.0.front()?, self.0.back()?);
        let span_us = (last.at_us - first.at_us) as f64;
        if span_us <= 0.0 {
            return None;
        }
        Some(Slope {
            achieved_rps: ((last.used - first.used) * 1e6 / span_us).max(0.0),
            limiting_share: ((last.limited_us - first.limited_us) / span_us).clamp(0.0, 1.0),
        })
    }
}

/// Returns true if the counters restarted: they do so from zero when the store is emptied, and its
/// clock may step back with it. Returned tokens lower `used` slightly, which is not a restart.
fn began_again(last: &Point, now: &Point) -> bool {
    now.at_us <= last.at_us || now.limited_us < last.limited_us || now.used < last.used / 2.0 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(points: &[(i64, f64, f64)]) -> Option<Slope> {
        let mut pace = RateWindow::default();
        for (at_s, used, limited_s) in points {
            pace.push(Point {
                at_us: at_s * 1_000_000,
                used: *used,
                limited_us: limited_s * 1e6,
            });
        }
        pace.slope()
    }

    #[test]
    fn one_reading_says_nothing() {
        assert_eq!(pace(&[(1, 5.0, 0.0)]), None);
    }

    #[test]
    fn a_steady_rate_is_exact_and_the_window_forgets_what_was_before() {
        let slope = pace(&[
            (0, 0.0, 0.0),
            (1, 1000.0, 1.0),
            (2, 1005.0, 1.0),
            (3, 1010.0, 1.5),
            (4, 1015.0, 2.0),
        ])
        .unwrap();
        assert_eq!(
            slope,
            Slope {
                achieved_rps: 5.0,
                limiting_share: 1.0 / 3.0
            }
        );
    }

    #[test]
    fn tokens_given_back_are_no_restart_and_an_emptied_store_is() {
        assert_eq!(
            pace(&[(0, 10.0, 0.0), (1, 9.0, 0.0)]).unwrap().achieved_rps,
            0.0
        );
        assert_eq!(pace(&[(0, 10_000.0, 9.0), (1, 3.0, 0.0)]), None);
        assert_eq!(
            pace(&[(0, 10_000.0, 9.0), (1, 3.0, 0.0), (2, 7.0, 0.0)])
                .unwrap()
                .achieved_rps,
            4.0
        );
    }
}
