//! The work rate actually let through in the last twenty minutes, with its mean and lagged value at
//! any time.

use std::collections::VecDeque;

/// The age at which records are dropped, in seconds.
pub const KEEP_S: f64 = 1200.0;

/// The maximum number of records, whatever the tick.
const KEEP_MAX: usize = 1200;

/// A stretch of constant work rate: the seconds after `end - span`, up to and including `end`.
///
/// It is stored as a list of the three numbers, because a governor's state has many.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(from = "(f64, f64, f64)", into = "(f64, f64, f64)")]
struct RateSegment {
    end: f64,
    /// The length, in seconds.
    span: f64,
    rate: f64,
}

impl From<(f64, f64, f64)> for RateSegment {
    fn from((end, span, rate): (f64, f64, f64)) -> Self {
        Self { end, span, rate }
    }
}

impl From<RateSegment> for (f64, f64, f64) {
    fn from(segment: RateSegment) -> Self {
        (segment.end, segment.span, segment.rate)
    }
}

/// The work rate let through, oldest record first.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct History {
    records: VecDeque<RateSegment>,
}

impl History {
    /// Adds the rate of the `span_s` seconds that end at `t`; records out of order or without
    /// length are ignored.
    pub fn push(&mut self, t: f64, span_s: f64, rate: f64) {
        let in_order = self.records.back().is_none_or(|last| t > last.end);
        if !(t.is_finite() && span_s > 0.0 && rate.is_finite() && in_order) {
            return;
        }
        self.records.push_back(RateSegment {
            end: t,
            span: span_s,
            rate,
        });
        while self.records.len() > KEEP_MAX
            || self
                .records
                .front()
                .is_some_and(|first| first.end < t - KEEP_S)
        {
            self.records.pop_front();
        }
    }

    /// Returns the mean rate over `(from, to]`; without a record there, the oldest rate; 0 without
    /// any record.
    pub fn mean(&self, from: f64, to: f64) -> f64 {
        let (mut sum, mut weight) = (0.0, 0.0);
        for &RateSegment { end, span, rate } in self.records.iter().rev() {
            if end <= from {
                break;
            }
            let overlap = end.min(to) - (end - span).max(from);
            if overlap > 0.0 {
                sum += overlap * rate;
                weight += overlap;
            }
        }
        if weight > 0.0 {
            sum / weight
        } else {
            self.oldest()
        }
    }

    /// Returns the rate at time `at` as a load average with a first-order lag of `tau_s` shows it.
    pub fn lagged(&self, at: f64, tau_s: f64) -> f64 {
        if tau_s <= 1.0 {
            let span = self.records.back().map_or(5.0, |last| last.span);
            return self.mean(at - span, at);
        }
        let (mut sum, mut weight) = (0.0, 0.0);
        for &RateSegment { end, span, rate } in self.records.iter().rev() {
            let (high, low) = (end.min(at), end - span);
            if high <= low {
                continue;
            }
            let share = ((high - at) / tau_s).exp() - ((low - at) / tau_s).exp();
            sum += share * rate;
            weight += share;
            if at - low > 6.0 * tau_s {
                break;
            }
        }
        if weight > 0.0 {
            sum / weight
        } else {
            self.oldest()
        }
    }

    /// Returns the mean rate over `(from, to]` as a first-order lag of `tau_s` weighs it: later
    /// rates count more.
    pub fn weighted(&self, from: f64, to: f64, tau_s: f64) -> f64 {
        if tau_s <= 1.0 {
            let span = self.records.back().map_or(5.0, |last| last.span);
            return self.mean(from.max(to - span), to);
        }
        let (mut sum, mut weight) = (0.0, 0.0);
        for &RateSegment { end, span, rate } in self.records.iter().rev() {
            if end <= from {
                break;
            }
            let (high, low) = (end.min(to), (end - span).max(from));
            if high <= low {
                continue;
            }
            let share = ((high - to) / tau_s).exp() - ((low - to) / tau_s).exp();
            sum += share * rate;
            weight += share;
        }
        if weight > 0.0 {
            sum / weight
        } else {
            self.oldest()
        }
    }

    /// Multiplies every rate by `factor` after the unit of work changed.
    pub fn scale(&mut self, factor: f64) {
        self.records
            .iter_mut()
            .for_each(|record| record.rate *= factor);
    }

    /// Multiplies the rate of each record by the factor of its end, after the unit of work changed
    /// in the past too.
    pub fn convert(&mut self, factor: impl Fn(f64) -> f64) {
        self.records
            .iter_mut()
            .for_each(|record| record.rate *= factor(record.end));
    }

    /// Shifts every record by `by_s` after the clock was set back.
    pub fn shift(&mut self, by_s: f64) {
        self.records
            .iter_mut()
            .for_each(|record| record.end += by_s);
    }

    /// Returns true before the first record.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn oldest(&self) -> f64 {
        self.records.front().map_or(0.0, |first| first.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_records_leave_and_bad_ones_never_enter() {
        let mut history = History::default();
        for t in 0..1000 {
            history.push(f64::from(t) * 5.0, 5.0, 1.0);
        }
        history.push(f64::NAN, 5.0, 1.0);
        history.push(10.0, 5.0, 9.0);
        history.push(1e6, 5.0, f64::INFINITY);
        assert_eq!(history.records.len(), 241);
        assert_eq!(history.mean(0.0, 5000.0), 1.0);
    }

    #[test]
    fn an_empty_history_has_let_nothing_through() {
        let history = History::default();
        assert_eq!(
            (history.mean(0.0, 60.0), history.lagged(60.0, 60.0)),
            (0.0, 0.0)
        );
    }
}
