//! The connections that have not sent a credential yet, of one process.
//!
//! Nothing is known of such a client but its address, and behind a proxy all clients have that of
//! the proxy. So an address has few places, and more only while half of all are free: alone it takes
//! at most half of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::api::http::denied::{Origin, origin};

/// The most connections without a credential.
const PLACES: usize = 256;

/// The connections of one address that are admitted while fewer than half of the places are free.
const OF_ONE_ADDRESS: usize = 16;

/// The places of connections without a credential.
#[derive(Default)]
pub struct PendingPlaces(Arc<Mutex<Pending>>);

#[derive(Default)]
struct Pending {
    all: usize,
    origins: HashMap<Origin, usize>,
}

/// A place; it is given back when dropped.
pub struct PendingPlace {
    places: Arc<Mutex<Pending>>,
    origin: Origin,
}

impl PendingPlaces {
    /// Takes a place for a client; `None` if there is none for its address. Clients whose address is
    /// not known share one.
    pub fn admit(&self, address: Option<IpAddr>) -> Option<PendingPlace> {
        let origin = origin(address);
        let mut pending = self.0.lock();
        let own = pending.origins.get(&origin).copied().unwrap_or(0);
        let has_room = pending.all < PLACES && own < OF_ONE_ADDRESS || pending.all < PLACES / 2;
        if !has_room {
            return None;
        }
        pending.all += 1;
        pending.origins.insert(origin, own + 1);
        drop(pending);
        Some(PendingPlace {
            places: self.0.clone(),
            origin,
        })
    }
}

impl Drop for PendingPlace {
    fn drop(&mut self) {
        let mut pending = self.places.lock();
        pending.all -= 1;
        let left = pending.origins.get(&self.origin).map_or(0, |own| own - 1);
        match left {
            0 => pending.origins.remove(&self.origin),
            left => pending.origins.insert(self.origin, left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, n]))
    }

    #[test]
    fn one_address_takes_half_of_the_places_and_leaves_the_others_theirs() {
        let places = PendingPlaces::default();
        let taken = |n| std::iter::from_fn(|| places.admit(address(n))).collect::<Vec<_>>();
        let hoard = taken(1);
        assert_eq!(hoard.len(), PLACES / 2);
        let others: Vec<_> = (2..=9).map(taken).collect();
        assert!(others.iter().all(|own| own.len() == OF_ONE_ADDRESS));
        assert!(places.admit(address(10)).is_none() && places.admit(None).is_none());
    }

    #[test]
    fn a_place_that_is_given_back_is_free_again_and_nothing_is_left_of_its_address() {
        let places = PendingPlaces::default();
        for _ in 0..3 {
            let held: Vec<_> = std::iter::from_fn(|| places.admit(None)).collect();
            assert_eq!(held.len(), PLACES / 2);
        }
        let pending = places.0.lock();
        assert!(pending.all == 0 && pending.origins.is_empty());
    }
}
