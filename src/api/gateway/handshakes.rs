//! The rate at which one process opens connections.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The handshakes that may come at once after a pause, in seconds of the rate.
const BURST_S: f64 = 1.0;

/// The handshakes of a process: a bucket as deep as one second of its rate.
pub struct Handshakes {
    interval: Duration,
    /// The time at which the bucket is full.
    full_at: Mutex<Option<Instant>>,
}

impl Handshakes {
    /// Creates a bucket that admits `per_s` handshakes per second.
    pub fn new(per_s: u32) -> Self {
        Self {
            interval: Duration::from_secs_f64(1.0 / f64::from(per_s.max(1))),
            full_at: Mutex::new(None),
        }
    }

    /// Admits a handshake at `now`, or refuses it.
    pub fn admit(&self, now: Instant) -> bool {
        let mut full_at = self.full_at.lock();
        let next = full_at.map_or(now, |at| at.max(now)) + self.interval;
        let fits = next.duration_since(now) <= Duration::from_secs_f64(BURST_S);
        if fits {
            *full_at = Some(next);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_the_rate_fits_at_once_and_the_rest_later() {
        let handshakes = Handshakes::new(10);
        let now = Instant::now();
        let admitted = (0..20).filter(|_| handshakes.admit(now)).count();
        assert_eq!(admitted, 10);
        let later = now + Duration::from_millis(350);
        assert_eq!((0..20).filter(|_| handshakes.admit(later)).count(), 3);
    }
}
