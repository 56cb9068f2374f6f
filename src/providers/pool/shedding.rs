//! What a pool can bear when some of its accounts are away.
//!
//! ```text
//!   with shedding       capacity = sum of the limits of those that are there; each keeps to its own
//!   without shedding    capacity = sum of all limits; each that is there takes  limit * all / there
//! ```
//!
//! Without it one blocked account of 500 at 1,000 a second puts 1,002.004 on each of the others: over the limit, so they are
//! blocked as well, and so on until none is left. That is why it is on unless somebody turns it off.

/// An account, as far as capacity goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// What it may send each second; below 0 for no limit.
    pub rps: f64,
    /// It is neither blocked nor is its breaker open.
    pub is_there: bool,
}

/// What a pool can bear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Messages each second that the pool as a whole may send; `None` for no limit.
    pub rps: Option<f64>,
    /// What each account's own limit is multiplied by: 1 with shedding, more without it where some are away.
    pub load: f64,
    /// Accounts that are there.
    pub there: usize,
}

impl Capacity {
    /// The capacity of `parts`.
    pub fn of(parts: &[Part], shedding: bool) -> Self {
        let there = parts.iter().filter(|part| part.is_there).count();
        let sum = |only_there: bool| {
            let counted = parts.iter().filter(|part| part.is_there || !only_there);
            let is_limited = counted.clone().all(|part| part.rps >= 0.0);
            is_limited.then(|| counted.map(|part| part.rps).sum::<f64>())
        };
        let (all, present) = (sum(false), sum(true));
        if there == 0 {
            return Self { rps: Some(0.0), load: 1.0, there };
        }
        match (shedding, all, present) {
            (false, Some(all), Some(present)) if present > 0.0 => Self { rps: Some(all), load: all / present, there },
            _ => Self { rps: present, load: 1.0, there },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(accounts: usize, away: usize) -> Vec<Part> {
        (0..accounts).map(|at| Part { rps: 1000.0, is_there: at >= away }).collect()
    }

    #[test]
    fn a_tenth_of_the_accounts_away_is_a_tenth_less_and_nobody_gets_more() {
        let capacity = Capacity::of(&pool(500, 50), true);
        assert_eq!((capacity.rps, capacity.load, capacity.there), (Some(450_000.0), 1.0, 450));
    }

    #[test]
    fn without_shedding_the_others_are_overloaded() {
        let one = Capacity::of(&pool(500, 1), false);
        assert_eq!(one.rps, Some(500_000.0));
        assert!((1000.0 * one.load - 1002.004).abs() < 1e-3, "{}", one.load);
    }

    #[test]
    fn with_nobody_there_nothing_flows_and_without_limits_there_is_no_capacity() {
        assert_eq!(Capacity::of(&pool(3, 3), true).rps, Some(0.0));
        assert_eq!(Capacity::of(&pool(3, 3), false).rps, Some(0.0));
        let free = [Part { rps: -1.0, is_there: true }, Part { rps: 5.0, is_there: true }];
        assert_eq!(Capacity::of(&free, true).rps, None);
        assert_eq!(Capacity::of(&free[1..], true).rps, Some(5.0));
    }

    proptest! {
        #[test]
        fn the_whole_is_the_sum_of_those_that_are_there(
            parts in prop::collection::vec((0.0_f64..2000.0, any::<bool>()), 1..500),
        ) {
            let parts: Vec<Part> = parts.into_iter().map(|(rps, is_there)| Part { rps, is_there }).collect();
            let capacity = Capacity::of(&parts, true);
            let sum: f64 = parts.iter().filter(|part| part.is_there).map(|part| part.rps).sum();
            prop_assert!((capacity.rps.unwrap() - sum).abs() < 1e-6);
            prop_assert_eq!(capacity.load, 1.0);
        }
    }
}
