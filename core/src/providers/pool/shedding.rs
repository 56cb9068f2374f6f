//! The capacity of a pool while some of its accounts are unavailable.
//!
//! ```text
//!   with shedding       capacity = sum of available limits; each account keeps to its own limit
//!   without shedding    capacity = sum of all limits; each takes  limit * all / available
//! ```
//!
//! Without shedding, one blocked account of 500 at 1,000 messages per second puts 1,002.004 on each
//! of the others: they exceed their limit, are blocked as well, and so on until none is left.
//! Therefore shedding is on by default.

use crate::throttle::RateLimit;

/// The contribution of an account to the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccountCapacity {
    /// The account's limit, in messages per second.
    pub rps: RateLimit,
    /// The account is neither blocked nor has an open breaker.
    pub is_available: bool,
}

/// The capacity of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// The maximum rate of the whole pool, in messages per second.
    pub rps: RateLimit,
    /// The factor on each account's own limit: 1 with shedding, above 1 without it while some are
    /// unavailable.
    pub load: f64,
    /// The number of available accounts.
    pub available: usize,
}

impl Capacity {
    /// Computes the capacity of `parts`.
    pub fn of(parts: &[AccountCapacity], shedding: bool) -> Self {
        let available = parts.iter().filter(|part| part.is_available).count();
        let sum = |only_available: bool| -> Option<f64> {
            parts
                .iter()
                .filter(|part| part.is_available || !only_available)
                .map(|part| part.rps.tokens())
                .sum()
        };
        let (all, present) = (sum(false), sum(true));
        if available == 0 {
            return Self {
                rps: RateLimit::Stopped,
                load: 1.0,
                available,
            };
        }
        match (shedding, all, present) {
            (false, Some(all), Some(present)) if present > 0.0 => Self {
                rps: RateLimit::new(all),
                load: all / present,
                available,
            },
            _ => Self {
                rps: present.map_or(RateLimit::Unlimited, RateLimit::new),
                load: 1.0,
                available,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pool(accounts: usize, away: usize) -> Vec<AccountCapacity> {
        (0..accounts)
            .map(|at| AccountCapacity {
                rps: RateLimit::PerSecond(1000.0),
                is_available: at >= away,
            })
            .collect()
    }

    #[test]
    fn a_tenth_of_the_accounts_away_is_a_tenth_less_and_nobody_gets_more() {
        let capacity = Capacity::of(&pool(500, 50), true);
        assert_eq!(
            (capacity.rps.tokens(), capacity.load, capacity.available),
            (Some(450_000.0), 1.0, 450)
        );
    }

    #[test]
    fn without_shedding_the_others_are_overloaded() {
        let one = Capacity::of(&pool(500, 1), false);
        assert_eq!(one.rps, RateLimit::PerSecond(500_000.0));
        assert!((1000.0 * one.load - 1002.004).abs() < 1e-3, "{}", one.load);
    }

    #[test]
    fn with_nobody_there_nothing_flows_and_without_limits_there_is_no_capacity() {
        assert_eq!(Capacity::of(&pool(3, 3), true).rps, RateLimit::Stopped);
        assert_eq!(Capacity::of(&pool(3, 3), false).rps, RateLimit::Stopped);
        let free = [
            AccountCapacity {
                rps: RateLimit::Unlimited,
                is_available: true,
            },
            AccountCapacity {
                rps: RateLimit::PerSecond(5.0),
                is_available: true,
            },
        ];
        assert_eq!(Capacity::of(&free, true).rps, RateLimit::Unlimited);
        assert_eq!(
            Capacity::of(&free[1..], true).rps,
            RateLimit::PerSecond(5.0)
        );
    }

    proptest! {
        #[test]
        fn the_whole_is_the_sum_of_those_that_are_there(
            parts in prop::collection::vec((0.0_f64..2000.0, any::<bool>()), 1..500),
        ) {
            let parts: Vec<AccountCapacity> = parts.into_iter().map(|(rps, is_available)| AccountCapacity { rps: RateLimit::new(rps), is_available }).collect();
            let capacity = Capacity::of(&parts, true);
            let sum: f64 = parts.iter().filter(|part| part.is_available).map(|part| part.rps.number()).sum();
            prop_assert!((capacity.rps.number() - sum).abs() < 1e-6);
            prop_assert_eq!(capacity.load, 1.0);
        }
    }
}
