//! How long a fake takes to answer.

use std::time::Duration;

/// So many requests are worked on at once, each for the base time, and the others wait: beyond `at_once` under way, latency really
/// grows with their number. The most that is answered each second is `at_once / base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// How long one request takes that waits for no other.
    pub base: Duration,
    /// How many are worked on at once; at least 1.
    pub at_once: usize,
}

impl Latency {
    /// What to expect with so many under way.
    pub fn expected(&self, under_way: usize) -> Duration {
        self.base * u32::try_from(under_way.div_ceil(self.at_once.max(1)).max(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_flat_up_to_the_knee_and_grows_behind_it() {
        let latency = Latency { base: Duration::from_millis(20), at_once: 50 };
        let at = |under_way| latency.expected(under_way).as_millis();
        assert_eq!([at(0), at(1), at(50), at(51), at(100), at(500)], [20, 20, 20, 40, 40, 200]);
    }
}
