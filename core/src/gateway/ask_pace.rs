//! The pace at which one connection may ask Postgres.
//!
//! Publications have the limit of their tenant. Whatever else a client asks costs Postgres a
//! statement, and one that asks without end takes it from all others. A frame that is refused
//! counts as well, because nothing else slows a client whose frames are all wrong.

use std::time::{Duration, Instant};

/// The requests of a connection per second.
pub const ASKS_PER_SECOND: u32 = 20;

/// The requests that may come at once after a pause: all subscriptions of a connection that comes
/// back, and as many others.
pub const ASKS_AT_ONCE: u32 = 100;

/// A bucket of requests of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskPace {
    /// The time at which the bucket is full.
    full_at: Option<Instant>,
}

impl AskPace {
    /// Takes a request; returns the time before which the next must not be read, if it must wait.
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        let interval = Duration::from_secs(1) / ASKS_PER_SECOND;
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + interval;
        self.full_at = Some(full_at);
        let next_at = full_at.checked_sub(interval * (ASKS_AT_ONCE - 1))?;
        (next_at > now).then_some(next_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_requests_come_at_once_and_further_ones_at_the_pace() {
        let (mut pace, begun) = (AskPace::default(), Instant::now());
        for n in 1..ASKS_AT_ONCE {
            assert_eq!(pace.take(begun), None, "{n}");
        }
        let mut now = begun;
        for _ in 0..2 * ASKS_PER_SECOND {
            now = pace.take(now).expect("the bucket is empty");
        }
        assert_eq!(now, begun + Duration::from_secs(2));
        let later = now + Duration::from_secs(5);
        let at_once = std::iter::repeat_with(|| pace.take(later));
        assert_eq!(
            at_once.take_while(Option::is_none).count() as u32,
            ASKS_AT_ONCE - 1
        );
    }
}
