//! The pace at which one connection may ask Postgres.
//!
//! Publications have the limit of their tenant. Every other request costs Postgres a statement, so
//! a client that asks without end would slow all others down. A frame that is refused counts as
//! well, because nothing else slows a client whose frames are all wrong.
//!
//! Frames that ask nothing cost little, but without end they take all CPU. So all frames of a tenant
//! have a pace too. A few of each connection do not count: the acknowledgements of a tenant with
//! many connections are more than that pace, and would wait ever longer.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The requests of a connection per second.
pub const ASKS_PER_SECOND: u32 = 20;

/// The requests that may come at once after a pause: all subscriptions of a connection that comes
/// back, and as many others.
pub const ASKS_AT_ONCE: u32 = 100;

/// The frames of all clients of a tenant per second, in one process.
pub const FRAMES_PER_SECOND: u32 = 10_000;

/// The frames of a tenant that may come at once after a pause.
pub const FRAMES_AT_ONCE: u32 = 10_000;

/// The frames of a connection per second that do not count for its tenant.
pub const OWN_FRAMES_PER_SECOND: u32 = 5;

/// The number of such frames that may come at once after a pause.
pub const OWN_FRAMES_AT_ONCE: u32 = 10;

/// A bucket of requests of one connection, and one of its own frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskPace {
    /// The time at which the bucket is full.
    full_at: Option<Instant>,
    /// The time at which that of its own frames is full.
    own_full_at: Option<Instant>,
}

impl AskPace {
    /// Takes a request; returns the time before which the next must not be read, if it must wait.
    pub fn take(&mut self, now: Instant) -> Option<Instant> {
        take_from(&mut self.full_at, ASKS_PER_SECOND, ASKS_AT_ONCE, now)
    }

    /// Takes a frame, from the bucket of the tenant if the connection has sent its own; returns the
    /// time before which the next must not be read, if it must wait.
    pub fn frame(&mut self, tenant: &FramePace, now: Instant) -> Option<Instant> {
        let interval = Duration::from_secs(1) / OWN_FRAMES_PER_SECOND;
        let next_full = self.own_full_at.map_or(now, |at| at.max(now)) + interval;
        if next_full.duration_since(now) > interval * OWN_FRAMES_AT_ONCE {
            return tenant.take(now);
        }
        self.own_full_at = Some(next_full);
        None
    }
}

/// A bucket of frames of one tenant.
#[derive(Debug, Default)]
pub struct FramePace(Mutex<Option<Instant>>);

impl FramePace {
    /// Takes a frame; returns the time before which the client that sent it is not read again, if
    /// it must wait.
    pub fn take(&self, now: Instant) -> Option<Instant> {
        take_from(&mut self.0.lock(), FRAMES_PER_SECOND, FRAMES_AT_ONCE, now)
    }
}

fn take_from(
    full_at: &mut Option<Instant>,
    per_second: u32,
    at_once: u32,
    now: Instant,
) -> Option<Instant> {
    let interval = Duration::from_secs(1) / per_second;
    let next_full = full_at.map_or(now, |at| at.max(now)) + interval;
    *full_at = Some(next_full);
    let next_at = next_full.checked_sub(interval * (at_once - 1))?;
    (next_at > now).then_some(next_at)
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

    #[test]
    fn the_clients_of_a_tenant_share_one_pace() {
        let (pace, begun) = (FramePace::default(), Instant::now());
        let at_once = std::iter::repeat_with(|| pace.take(begun));
        let count = at_once.take_while(Option::is_none).count();
        assert_eq!(count as u32, FRAMES_AT_ONCE - 1);
        let mut now = begun;
        for _ in 0..FRAMES_PER_SECOND {
            now = pace.take(now).expect("the bucket is empty");
        }
        assert!(now >= begun + Duration::from_secs(1));
    }

    #[test]
    fn a_connection_that_sends_little_does_not_wait_for_others_of_its_tenant() {
        let (tenant, begun) = (FramePace::default(), Instant::now());
        for _ in 0..60 * FRAMES_PER_SECOND {
            tenant.take(begun);
        }
        let mut pace = AskPace::default();
        for second in 0..30 {
            let now = begun + Duration::from_secs(second);
            for _ in 0..OWN_FRAMES_PER_SECOND {
                assert_eq!(pace.frame(&tenant, now), None);
            }
        }
        let mut pace = AskPace::default();
        let at_once = std::iter::repeat_with(|| pace.frame(&tenant, begun));
        let count = at_once.take_while(Option::is_none).count();
        assert_eq!(count as u32, OWN_FRAMES_AT_ONCE);
    }
}
