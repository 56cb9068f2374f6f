//! The latency of a fake's answers.

use std::time::Duration;

/// The latency of a server with limited parallelism.
///
/// The server works on `at_once` requests at a time, each for the base time, and all others wait.
/// With more than `at_once` requests in flight, latency therefore grows with their number. The
/// maximum throughput is `at_once / base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The time for one request that waits for no other.
    pub base: Duration,
    /// The number of requests that are worked on at a time; at least 1.
    pub at_once: usize,
}

impl Latency {
    /// Returns the expected latency with `under_way` requests in flight.
    pub fn expected(&self, under_way: usize) -> Duration {
        self.base
            * u32::try_from(under_way.div_ceil(self.at_once.max(1)).max(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_flat_up_to_the_knee_and_grows_behind_it() {
        let latency = Latency {
            base: Duration::from_millis(20),
            at_once: 50,
        };
        let at = |under_way| latency.expected(under_way).as_millis();
        assert_eq!(
            [at(0), at(1), at(50), at(51), at(100), at(500)],
            [20, 20, 20, 40, 40, 200]
        );
    }
}
