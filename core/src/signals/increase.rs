//! The rate of counters, from readings of their totals.

use std::collections::{BTreeMap, VecDeque};

/// The span over which the rate is taken, in seconds.
const SPAN_S: f64 = 10.0;

/// Totals of some counters over the last seconds.
#[derive(Debug, Default)]
pub(super) struct Increase {
    totals: VecDeque<(f64, BTreeMap<String, f64>)>,
}

impl Increase {
    /// Adds the totals at `now`, and returns the rate of their sum per second; `None` for the
    /// first.
    ///
    /// A counter that is less than before has restarted: all of it is new. A counter that was not
    /// there before counts from now on. After a clock that was set back it begins again.
    pub(super) fn rate(&mut self, now: f64, totals: BTreeMap<String, f64>) -> Option<f64> {
        // A clock that was set back: nothing is known about the time between.
        if self.totals.back().is_some_and(|(last, _)| *last > now) {
            self.totals.clear();
        }
        while self.totals.len() > 1 && self.totals[1].0 <= now - SPAN_S {
            self.totals.pop_front();
        }
        self.totals.push_back((now, totals));
        let (began, _) = self.totals.front()?;
        let span_s = now - began;
        let steps = self.totals.iter().zip(self.totals.iter().skip(1));
        let increase: f64 = steps.map(|((_, was), (_, is))| step(was, is)).sum();
        (span_s > 0.0).then(|| increase / span_s)
    }
}

fn step(was: &BTreeMap<String, f64>, is: &BTreeMap<String, f64>) -> f64 {
    let known = is
        .iter()
        .filter_map(|(name, is)| Some((was.get(name)?, is)));
    known
        .map(|(was, is)| if is < was { *is } else { is - was })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        pairs
            .iter()
            .map(|(name, total)| ((*name).to_owned(), *total))
            .collect()
    }

    #[test]
    fn a_rate_is_the_increase_over_ten_seconds_also_over_a_restart() {
        let mut increase = Increase::default();
        assert_eq!(increase.rate(100.0, totals(&[("a", 1000.0)])), None);
        assert_eq!(increase.rate(105.0, totals(&[("a", 1010.0)])), Some(2.0));
        assert_eq!(
            increase.rate(110.0, totals(&[("a", 10.0), ("b", 500.0)])),
            Some(2.0)
        );
        // The first reading is out of the span now.
        assert_eq!(
            increase.rate(115.0, totals(&[("a", 10.0), ("b", 520.0)])),
            Some(3.0)
        );
        assert_eq!(
            increase.rate(115.0, totals(&[("a", 10.0), ("b", 520.0)])),
            Some(3.0)
        );
    }

    #[test]
    fn a_clock_that_is_set_back_costs_one_reading() {
        let mut increase = Increase::default();
        for n in 0..20 {
            let n = f64::from(n);
            increase.rate(5000.0 + n, totals(&[("a", 10.0 * n)]));
        }
        assert_eq!(increase.rate(1000.0, totals(&[("a", 200.0)])), None);
        assert_eq!(increase.rate(1005.0, totals(&[("a", 250.0)])), Some(10.0));
    }
}
