//! The rate at which one process opens connections.
//!
//! Clients with a credential share all of it, and a tenant that uses more than half leaves others a
//! part. Of clients without one nothing is known but their address: they take at most half of it
//! together, and those of one address an eighth.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::api::http::denied::Origin;

/// The handshakes that may come at once after a pause, in seconds of the rate.
const BURST: Duration = Duration::from_secs(1);

/// The part of the rate that a tenant always has, as far as others leave it.
const TENANT_PART: u32 = 2;

/// The part of the handshakes at once that a tenant which uses more leaves to others.
const LEFT_PART: u32 = 4;

/// The part of the rate for clients without a credential.
const UNKNOWN_PART: u32 = 2;

/// The part of the rate for those of one address.
const ORIGIN_PART: u32 = 8;

/// The most addresses that are remembered, and the most tenants. One that is not has the limit of
/// all of them alone.
const REMEMBERED_MAX: usize = 4096;

/// The handshakes of a process: a bucket as deep as one second of its rate, and those of clients
/// without a credential.
pub struct Handshakes {
    interval: Duration,
    buckets: Mutex<HandshakeBuckets>,
}

#[derive(Default)]
struct HandshakeBuckets {
    all: Bucket,
    unknown: Bucket,
    origins: HashMap<Origin, Bucket>,
    tenants: HashMap<Arc<str>, Bucket>,
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    /// The time at which it is full.
    full_at: Option<Instant>,
}

impl Bucket {
    /// Returns the time at which the bucket is full again after one more; `None` if that does not
    /// fit.
    fn next(&self, interval: Duration, now: Instant) -> Option<Instant> {
        let next = self.full_at.map_or(now, |at| at.max(now)) + interval;
        (next.duration_since(now) <= BURST.max(interval)).then_some(next)
    }
}

impl Handshakes {
    /// Creates a bucket that admits `per_s` handshakes per second.
    pub fn new(per_s: u32) -> Self {
        Self {
            interval: Duration::from_secs_f64(1.0 / f64::from(per_s.max(1))),
            buckets: Mutex::default(),
        }
    }

    /// Returns true if a handshake would be admitted at `now`.
    pub fn has_room(&self, now: Instant) -> bool {
        self.buckets.lock().all.next(self.interval, now).is_some()
    }

    /// Admits a handshake of a client of a tenant at `now`, or refuses it.
    pub fn admit(&self, tenant: &Arc<str>, now: Instant) -> bool {
        let mut buckets = self.buckets.lock();
        let Some(all) = buckets.all.next(self.interval, now) else {
            return false;
        };
        let own = buckets.tenants.get(tenant).copied().unwrap_or_default();
        let own = own.next(self.interval * TENANT_PART, now);
        let free_for_all = (BURST - BURST / LEFT_PART).max(self.interval);
        if own.is_none() && all.duration_since(now) > free_for_all {
            return false;
        }
        buckets.all.full_at = Some(all);
        if let Some(own) = own {
            remember(&mut buckets.tenants, tenant.clone(), own, now);
        }
        true
    }

    /// Admits a handshake of a client without one.
    pub fn admit_unknown(&self, origin: &Origin, now: Instant) -> bool {
        let mut buckets = self.buckets.lock();
        let own = buckets.origins.get(origin).copied().unwrap_or_default();
        let next = (
            buckets.all.next(self.interval, now),
            buckets.unknown.next(self.interval * UNKNOWN_PART, now),
            own.next(self.interval * ORIGIN_PART, now),
        );
        let (Some(all), Some(unknown), Some(own)) = next else {
            return false;
        };
        buckets.all.full_at = Some(all);
        buckets.unknown.full_at = Some(unknown);
        remember(&mut buckets.origins, *origin, own, now);
        true
    }
}

/// Notes the time at which a bucket is full; those that are full by now make room.
fn remember<K: Eq + Hash>(known: &mut HashMap<K, Bucket>, key: K, full_at: Instant, now: Instant) {
    if known.len() >= REMEMBERED_MAX {
        known.retain(|_, bucket| bucket.full_at.is_some_and(|at| at > now));
    }
    if known.len() < REMEMBERED_MAX || known.contains_key(&key) {
        let full_at = Some(full_at);
        known.insert(key, Bucket { full_at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(number: u32) -> Origin {
        let mut origin = [0; 8];
        origin[4..].copy_from_slice(&number.to_be_bytes());
        origin
    }

    fn tenant(number: u32) -> Arc<str> {
        format!("tenant-{number}").into()
    }

    #[test]
    fn a_second_of_the_rate_fits_at_once_and_the_rest_later() {
        let handshakes = Handshakes::new(10);
        let now = Instant::now();
        let admitted = |at| {
            (0..20)
                .filter(|n| handshakes.admit(&tenant(*n), at))
                .count()
        };
        assert_eq!((admitted(now), handshakes.has_room(now)), (10, false));
        let later = now + Duration::from_millis(350);
        assert!(handshakes.has_room(later));
        assert_eq!(admitted(later), 3);
    }

    #[test]
    fn a_tenant_that_opens_without_end_leaves_a_part_to_others() {
        let (handshakes, now) = (Handshakes::new(40), Instant::now());
        let opened = |n, at| {
            (0..200)
                .filter(|_| handshakes.admit(&tenant(n), at))
                .count()
        };
        assert_eq!((opened(1, now), opened(2, now)), (30, 10));
        // It has the whole rate while nobody else opens any.
        let later = now + Duration::from_secs(10);
        let steps = (0..160).map(|step| later + Duration::from_millis(25) * step);
        assert!(steps.map(|at| opened(1, at)).sum::<usize>() > 180);
        assert!(opened(2, later + Duration::from_secs(4)) >= 10);
    }

    #[test]
    fn clients_without_a_credential_leave_half_of_it_and_one_address_most() {
        let (handshakes, now) = (Handshakes::new(80), Instant::now());
        let unknown = |n| {
            (0..200)
                .filter(|_| handshakes.admit_unknown(&from(n), now))
                .count()
        };
        assert_eq!(unknown(1), 10);
        assert_eq!((2..9).map(unknown).sum::<usize>(), 30);
        let known = (0..200).filter(|_| handshakes.admit(&tenant(1), now));
        let known = known.count();
        assert_eq!(known, 40);
    }

    #[test]
    fn one_a_second_is_one_for_an_address_too() {
        let (handshakes, now) = (Handshakes::new(1), Instant::now());
        assert!(handshakes.admit_unknown(&from(1), now));
        assert!(!handshakes.admit_unknown(&from(1), now + Duration::from_secs(1)));
        assert!(handshakes.admit_unknown(&from(2), now + Duration::from_secs(2)));
    }

    #[test]
    fn the_memory_of_addresses_is_bounded_and_those_at_rest_make_room() {
        let (handshakes, now) = (Handshakes::new(1_000_000), Instant::now());
        let admitted = |at| (0..10_000).all(|n| handshakes.admit_unknown(&from(n), at));
        assert!(admitted(now));
        assert_eq!(handshakes.buckets.lock().origins.len(), REMEMBERED_MAX);
        let later = now + Duration::from_secs(2);
        assert!(handshakes.admit_unknown(&from(20_000), later));
        assert_eq!(handshakes.buckets.lock().origins.len(), 1);
    }
}
