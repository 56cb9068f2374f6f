//! Who runs how many jobs of a throttle or of a key: the law of the limits of concurrency.
//!
//! Nobody counts up or down. Each process says with every ask, and every second besides, how many jobs it runs, and that number
//! stands until its next word or until it lapses. Whatever gets lost on the way is made good by the next word, and what a dead
//! process held is free as soon as its last word has lapsed.

use std::collections::BTreeMap;

use super::store::Holder;

/// What somebody who is refused by a limit of concurrency is told to wait, in microseconds: a release cannot be foreseen.
pub const CROWDED_WAIT_US: f64 = 50_000.0;

/// Longest that a word may stand, in milliseconds. One that would stand longer was said before the clock stepped back.
pub const MAX_TTL_MS: i64 = 3_600_000;

/// The last words of those who run jobs under one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    words: BTreeMap<String, Word>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    jobs: i64,
    expires_ms: i64,
}

impl Word {
    fn stands(self, now_ms: i64) -> bool {
        self.expires_ms > now_ms && self.expires_ms <= now_ms + MAX_TTL_MS
    }
}

impl Holds {
    /// How many jobs `who` may run in all besides those of others; drops what has lapsed. Never below 0.
    pub fn share_of(&mut self, who: &str, limit: i64, now_ms: i64) -> i64 {
        self.words.retain(|_, word| word.stands(now_ms));
        let others = self.words.iter().filter(|(other, _)| other.as_str() != who).map(|(_, word)| word.jobs).sum::<i64>();
        (limit - others).max(0)
    }

    /// Keeps the word of `who`: it runs so many jobs, which stands for `ttl_ms`.
    pub fn say(&mut self, who: &str, jobs: i64, now_ms: i64, ttl_ms: i64) {
        if jobs > 0 {
            self.words.insert(who.to_owned(), Word { jobs, expires_ms: now_ms + ttl_ms });
        } else {
            self.words.remove(who);
        }
    }
}

/// How many more jobs may be begun by somebody who runs `held` of its share.
pub fn room(share: i64, held: u32) -> f64 {
    (share - i64::from(held)).max(0) as f64
}

impl Holder {
    /// The time that a word stands, in whole milliseconds.
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
        holds.say("a", 3, 0, 1000);
        holds.say("a", 2, 10, 1000);
        holds.say("b", 4, 10, 1000);

        assert_eq!(holds.share_of("a", 10, 20), 6);
        assert_eq!(holds.share_of("c", 10, 20), 4);
        assert_eq!(holds.share_of("c", 5, 20), 0, "more run than may, since the knob was turned down");
    }

    #[test]
    fn a_word_lapses_and_a_zero_is_no_word() {
        let mut holds = Holds::default();
        holds.say("a", 3, 0, 1000);
        holds.say("b", 1, 0, 1000);
        holds.say("b", 0, 1, 1000);

        assert_eq!(holds.clone().share_of("c", 10, 999), 7);
        assert_eq!(holds.share_of("c", 10, 1000), 10);
        assert_eq!(holds, Holds::default(), "what has lapsed is dropped");
    }

    #[test]
    fn a_word_from_before_the_clock_stepped_back_does_not_stand_for_ever() {
        let mut holds = Holds::default();
        holds.say("a", 3, 2 * MAX_TTL_MS, 1000);

        assert_eq!(holds.share_of("c", 10, 0), 10);
    }

    #[test]
    fn room_is_what_is_left_of_the_share() {
        assert_eq!((room(5, 2), room(5, 9)), (3.0, 0.0));
    }
}
