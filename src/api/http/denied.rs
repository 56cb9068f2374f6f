//! The clients that were refused because they sent no valid token, and the time until Redis must be
//! asked about them again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// The most origins that are remembered. A client with more addresses is limited by the rate of all
/// of them together.
const REMEMBERED_MAX: usize = 4096;

/// A client by its address: an IPv6 client usually has a whole /64, so that the network counts.
pub type Origin = [u8; 8];

/// Returns the origin of an address; requests without an address share one.
pub fn origin(address: Option<IpAddr>) -> Origin {
    match address.map(|address| address.to_canonical()) {
        None => [0; 8],
        Some(IpAddr::V4(v4)) => {
            let [a, b, c, d] = v4.octets();
            [0, 0, 0, 4, a, b, c, d]
        }
        Some(IpAddr::V6(v6)) => {
            let mut origin = [0; 8];
            origin.copy_from_slice(&v6.octets()[..8]);
            origin
        }
    }
}

/// A bounded memory of refusals.
#[derive(Debug, Default)]
pub struct DenialCache(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    origins: HashMap<Origin, Instant>,
    all: Option<Instant>,
}

impl DenialCache {
    /// Returns the time for which an origin is still refused without asking Redis; zero if it is
    /// not.
    pub fn left(&self, origin: &Origin, now: Instant) -> Duration {
        let memory = self.locked();
        let until = memory.origins.get(origin).copied().max(memory.all);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Refuses an origin, or every origin, for a time of at most an hour.
    pub fn refuse(&self, origin: Option<&Origin>, wait: Duration, now: Instant) {
        let until = now + wait.min(Duration::from_secs(3600));
        let mut memory = self.locked();
        let Some(origin) = origin else {
            memory.all = Some(until);
            return;
        };
        if memory.origins.len() >= REMEMBERED_MAX {
            memory.origins.retain(|_, until| *until > now);
        }
        if memory.origins.len() < REMEMBERED_MAX {
            memory.origins.insert(*origin, until);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Memory> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_refused_until_its_time_and_others_are_not() {
        let (denied, now) = (DenialCache::default(), Instant::now());
        let [bad, good] =
            ["192.0.2.1", "192.0.2.2"].map(|text| origin(Some(text.parse().unwrap())));

        denied.refuse(Some(&bad), Duration::from_secs(2), now);

        assert_eq!(
            denied.left(&bad, now + Duration::from_secs(1)),
            Duration::from_secs(1)
        );
        assert_eq!(
            denied.left(&bad, now + Duration::from_secs(2)),
            Duration::ZERO
        );
        assert_eq!(denied.left(&good, now), Duration::ZERO);
        denied.refuse(None, Duration::from_secs(1), now);
        assert_eq!(denied.left(&good, now), Duration::from_secs(1));
    }

    #[test]
    fn the_memory_is_bounded_and_what_has_lapsed_makes_room() {
        let (denied, now) = (DenialCache::default(), Instant::now());
        let number = |i: u32| origin(Some(IpAddr::from(i.to_be_bytes())));
        (0..10_000).for_each(|i| denied.refuse(Some(&number(i)), Duration::from_secs(1), now));
        assert_eq!(denied.locked().origins.len(), REMEMBERED_MAX);

        let later = now + Duration::from_secs(2);
        denied.refuse(Some(&number(20_000)), Duration::from_secs(1), later);

        assert_eq!(denied.left(&number(20_000), later), Duration::from_secs(1));
        assert_eq!(denied.locked().origins.len(), 1);
    }

    #[test]
    fn a_network_of_ipv6_is_one_origin_and_a_mapped_address_is_its_ipv4() {
        let of = |text: &str| origin(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
