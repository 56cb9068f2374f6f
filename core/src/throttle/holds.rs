//! The law of the concurrency limits: the jobs of a throttle or a key that each process runs.
//!
//! Nothing is counted up or down. With every ask, and every second besides, each process reports
//! the number of jobs it runs, which is valid until its next report or until it lapses. The next
//! report corrects anything lost on the way, and the jobs of a dead process are free as soon as its
//! last report has lapsed.

use std::collections::BTreeMap;

use super::acquire::Holder;

/// The wait reported by a concurrency limit, in microseconds, because a release cannot be foreseen.
pub const CROWDED_WAIT_US: f64 = 50_000.0;

/// The longest validity of a report, in milliseconds. A report valid for longer was made before the
/// clock stepped back.
pub const MAX_TTL_MS: i64 = 3_600_000;

/// The number of holders recorded under one limit.
pub const MAX_HOLDERS: usize = 1000;

/// The prefix of the ids of external callers, which count as running no more jobs than they were
/// granted. Every other holder reports what it runs, so that an emptied store is filled again.
pub const GUEST: &str = "http:";

/// The jobs that a holder may run under one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSlots {
    /// The jobs that it may still begin.
    pub left: i64,
    /// The jobs that it counts as running.
    pub held: i64,
    /// True if the limit records [`MAX_HOLDERS`] holders and this one is not among them.
    pub is_full: bool,
}

/// The last reports of the holders under one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    words: BTreeMap<String, HolderReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HolderReport {
    jobs: i64,
    expires_ms: i64,
}

impl HolderReport {
    fn stands(self, now_ms: i64) -> bool {
        self.expires_ms > now_ms && self.expires_ms <= now_ms + MAX_TTL_MS
    }
}

impl Holds {
    /// Returns the jobs that `who` may begin beside those of others if it reports `held` running;
    /// drops lapsed reports.
    pub fn room(&mut self, who: &str, limit: i64, held: u32, now_ms: i64) -> FreeSlots {
        self.words.retain(|_, word| word.stands(now_ms));
        let held = self.believed(who, i64::from(held), now_ms);
        if self.words.len() >= MAX_HOLDERS && !self.words.contains_key(who) {
            return FreeSlots {
                left: 0,
                held,
                is_full: true,
            };
        }
        let others = self
            .words
            .iter()
            .filter(|(other, _)| other.as_str() != who)
            .map(|(_, word)| word.jobs)
            .sum::<i64>();
        FreeSlots {
            left: room((limit - others).max(0), held),
            held,
            is_full: false,
        }
    }

    /// Returns the number of jobs that `who` counts as running.
    pub fn believed(&self, who: &str, held: i64, now_ms: i64) -> i64 {
        if !who.starts_with(GUEST) {
            return held;
        }
        held.min(
            self.words
                .get(who)
                .filter(|word| word.stands(now_ms))
                .map_or(0, |word| word.jobs),
        )
    }

    /// Records the report of `who`: it runs `jobs` jobs, valid for `ttl_ms`.
    pub fn report(&mut self, who: &str, jobs: i64, now_ms: i64, ttl_ms: i64) {
        if jobs > 0 {
            if self.words.len() >= MAX_HOLDERS && !self.words.contains_key(who) {
                return;
            }
            self.words.insert(
                who.to_owned(),
                HolderReport {
                    jobs,
                    expires_ms: now_ms + ttl_ms,
                },
            );
        } else {
            self.words.remove(who);
        }
    }
}

/// Returns the number of jobs that a holder may still begin if it runs `held` of its share.
pub fn room(share: i64, held: i64) -> i64 {
    (share - held).max(0)
}

impl Holder {
    /// Returns the validity of a report, in whole milliseconds.
    pub(super) fn ttl_ms(&self) -> i64 {
        self.ttl.as_millis().clamp(1, MAX_TTL_MS as u128) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_each_counts_and_ones_own_does_not() {
        let mut holds = Holds::default();
        holds.report("a", 3, 0, 1000);
        holds.report("a", 2, 10, 1000);
        holds.report("b", 4, 10, 1000);

        assert_eq!(holds.room("a", 10, 0, 20).left, 6);
        assert_eq!(holds.room("c", 10, 0, 20).left, 4);
        assert_eq!(
            holds.room("c", 5, 0, 20).left,
            0,
            "more run than may, since the knob was turned down"
        );
    }

    #[test]
    fn a_word_lapses_and_a_zero_is_no_word() {
        let mut holds = Holds::default();
        holds.report("a", 3, 0, 1000);
        holds.report("b", 1, 0, 1000);
        holds.report("b", 0, 1, 1000);

        assert_eq!(holds.clone().room("c", 10, 0, 999).left, 7);
        assert_eq!(holds.room("c", 10, 0, 1000).left, 10);
        assert_eq!(holds, Holds::default(), "what has lapsed is dropped");
    }

    #[test]
    fn a_word_from_before_the_clock_stepped_back_does_not_stand_for_ever() {
        let mut holds = Holds::default();
        holds.report("a", 3, 2 * MAX_TTL_MS, 1000);

        assert_eq!(holds.room("c", 10, 0, 0).left, 10);
    }

    #[test]
    fn room_is_what_is_left_of_the_share() {
        assert_eq!((room(5, 2), room(5, 9)), (3, 0));
    }

    #[test]
    fn a_guest_is_believed_to_run_no_more_than_it_was_granted() {
        let (mut holds, guest) = (Holds::default(), "http:me/mail");
        assert_eq!(
            holds.room(guest, 10, 1_000_000, 0),
            FreeSlots {
                left: 10,
                held: 0,
                is_full: false
            }
        );

        holds.report(guest, 3, 0, 1000);

        assert_eq!(holds.believed(guest, 1_000_000, 0), 3);
        assert_eq!(holds.believed(guest, 2, 0), 2);
        assert_eq!(holds.believed(guest, 2, 1000), 0, "it has lapsed");
        assert_eq!(
            holds.room("worker/mail", 10, 8, 0),
            FreeSlots {
                left: 0,
                held: 8,
                is_full: false
            }
        );
    }

    #[test]
    fn no_more_than_a_thousand_names_are_kept_and_a_new_one_gets_nothing_until_one_has_lapsed() {
        let mut holds = Holds::default();
        for who in 0..2 * MAX_HOLDERS {
            holds.report(&who.to_string(), 1, 0, 1000);
        }

        assert_eq!(holds.words.len(), MAX_HOLDERS);
        assert_eq!(
            holds.room("new", 1_000_000, 0, 0),
            FreeSlots {
                left: 0,
                held: 0,
                is_full: true
            }
        );
        assert!(
            holds.room("0", 1_000_000, 1, 0).left > 0,
            "who is known goes on"
        );
        assert_eq!(
            holds.room("new", 1_000_000, 0, 1000),
            FreeSlots {
                left: 1_000_000,
                held: 0,
                is_full: false
            }
        );
    }
}
