//! The rotation: round robin over the accounts that may be asked now. It never waits for a resting
//! one.

/// The accounts of a pool in their order of rotation, with the time from which each may be asked.
/// Times are microseconds of any one clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Ring {
    free_at_us: Vec<i64>,
    /// The next account in rotation.
    cursor: usize,
}

/// The result of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The account to use.
    Account(usize),
    /// All eligible accounts are resting.
    Wait {
        /// The time at which the first of them may be asked.
        until_us: i64,
    },
    /// Every account is excluded.
    NoAccount,
}

impl Ring {
    /// Creates a rotation of the given number of accounts, all of which may be asked.
    pub fn new(accounts: usize) -> Self {
        Self {
            free_at_us: vec![i64::MIN; accounts],
            cursor: 0,
        }
    }

    /// Returns the next account that may be asked at `now_us` and is not in `excluded`; the one
    /// after it becomes the next in rotation.
    pub fn next(&mut self, now_us: i64, excluded: &[usize]) -> Choice {
        let accounts = self.free_at_us.len();
        let mut soonest: Option<i64> = None;
        for step in 0..accounts {
            let at = (self.cursor + step) % accounts;
            if excluded.contains(&at) {
                continue;
            }
            let free_at = self.free_at_us[at];
            if free_at <= now_us {
                self.cursor = (at + 1) % accounts;
                return Choice::Account(at);
            }
            soonest = Some(soonest.map_or(free_at, |soonest| soonest.min(free_at)));
        }
        soonest.map_or(Choice::NoAccount, |until_us| Choice::Wait { until_us })
    }

    /// Lets an account rest until `until_us`.
    pub fn rest(&mut self, account: usize, until_us: i64) {
        if let Some(free_at) = self.free_at_us.get_mut(account) {
            *free_at = until_us;
        }
    }

    /// Returns the time from which an account may be asked.
    pub fn free_at_us(&self, account: usize) -> i64 {
        self.free_at_us.get(account).copied().unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000_000;

    /// The examples number accounts from 1.
    fn pool() -> Ring {
        let mut ring = Ring::new(500);
        ring.cursor = 40;
        ring
    }

    fn numbers(ring: &mut Ring, now_us: i64, many: usize) -> Vec<usize> {
        let next = |_| match ring.next(now_us, &[]) {
            Choice::Account(at) => at + 1,
            other => panic!("{other:?}"),
        };
        (0..many).map(next).collect()
    }

    #[test]
    fn blocked_accounts_are_skipped_in_their_turn_and_are_back_when_their_time_is_over() {
        let mut ring = pool();
        ring.rest(41, 5 * SECOND);
        ring.rest(106, 2 * SECOND);

        let order = numbers(&mut ring, 0, 68);

        assert_eq!(&order[..3], [41, 43, 44]);
        assert_eq!(&order[63..67], [105, 106, 108, 109]);
        ring.cursor = 105;
        assert_eq!(numbers(&mut ring, 2 * SECOND, 3), [106, 107, 108]);
        ring.cursor = 40;
        assert_eq!(numbers(&mut ring, 2 * SECOND, 2), [41, 43]);
        ring.cursor = 40;
        assert_eq!(numbers(&mut ring, 5 * SECOND, 2), [41, 42]);
    }

    #[test]
    fn a_message_goes_past_those_that_it_has_been_at() {
        let mut ring = Ring::new(3);
        assert_eq!(ring.next(0, &[0]), Choice::Account(1));
        assert_eq!(ring.next(0, &[2, 0]), Choice::Account(1));
        assert_eq!(ring.next(0, &[0, 1, 2]), Choice::NoAccount);
        assert_eq!(Ring::new(0).next(0, &[]), Choice::NoAccount);
    }

    #[test]
    fn where_all_rest_it_is_known_until_when() {
        let mut ring = Ring::new(3);
        (0..3).for_each(|at| ring.rest(at, [9, 4, 7][at]));
        assert_eq!(ring.next(0, &[]), Choice::Wait { until_us: 4 });
        assert_eq!(ring.next(0, &[1]), Choice::Wait { until_us: 7 });
        assert_eq!(ring.next(4, &[]), Choice::Account(1));
    }

    proptest! {
        /// Over any state of 500 accounts: the chosen one may be asked and is not excluded, no
        /// account between the last turn and this one was eligible, and a wait is the shortest
        /// possible.
        #[test]
        fn the_choice_is_the_next_in_turn_of_those_that_may_be_asked(
            free in prop::collection::vec(prop_oneof![Just(i64::MIN), 0_i64..10_000], 500),
            excluded in prop::collection::vec(0_usize..500, 0..20),
            cursor in 0_usize..500,
            now in 0_i64..10_000,
        ) {
            let mut ring = Ring { free_at_us: free.clone(), cursor };
            let may = |at: usize| free[at] <= now && !excluded.contains(&at);
            match ring.next(now, &excluded) {
                Choice::Account(at) => {
                    prop_assert!(may(at));
                    let passed = (0..500).map(|step| (cursor + step) % 500).take_while(|passed| *passed != at);
                    prop_assert!(passed.into_iter().all(|passed| !may(passed)));
                    prop_assert_eq!(ring.cursor, (at + 1) % 500);
                }
                Choice::Wait { until_us } => {
                    prop_assert!((0..500).all(|at| !may(at)));
                    let least = (0..500).filter(|at| !excluded.contains(at)).map(|at| free[at]).min();
                    prop_assert_eq!(Some(until_us), least);
                }
                Choice::NoAccount => prop_assert!((0..500).all(|at| excluded.contains(&at))),
            }
        }

        /// Turns are fair: among the accounts that may always be asked, none is chosen twice before
        /// every other was chosen once.
        #[test]
        fn nobody_has_two_turns_before_everybody_has_had_one(resting in prop::collection::btree_set(0_usize..500, 0..400)) {
            let mut ring = Ring::new(500);
            resting.iter().for_each(|at| ring.rest(*at, 1));
            let round: Vec<Choice> = (0..500 - resting.len()).map(|_| ring.next(0, &[])).collect();
            let distinct: std::collections::BTreeSet<usize> =
                round.iter().filter_map(|choice| match choice { Choice::Account(at) => Some(*at), _ => None }).collect();
            prop_assert_eq!(distinct.len(), 500 - resting.len());
        }
    }
}
