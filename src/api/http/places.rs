//! Places of a process that its clients share: nobody takes those of all others.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The most places that are taken at once, of all and of some.
#[derive(Clone, Copy, Debug)]
pub struct PlaceShares {
    /// The most of all.
    pub all: usize,
    /// The most of tokens without `admin`; the rest is for administrators.
    pub others: usize,
    /// The most of the tokens of one tenant without `admin`.
    pub tenant: usize,
    /// The most of one token without `admin`.
    pub one: usize,
}

/// The holder of places.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceHolder {
    is_admin: bool,
    /// The tenant to which the token is bound.
    tenant: Option<String>,
    /// The digest of the token.
    token: String,
}

/// The places and their holders. A clone is another handle to the same ones.
#[derive(Clone, Debug)]
pub struct Places {
    shares: PlaceShares,
    taken: Arc<Mutex<BTreeMap<PlaceHolder, usize>>>,
}

/// A place, released when dropped.
#[derive(Debug)]
pub struct PlacePermit {
    places: Places,
    of: PlaceHolder,
}

impl Places {
    /// Shares places in this way.
    pub fn with(shares: PlaceShares) -> Self {
        Self {
            shares,
            taken: Arc::default(),
        }
    }

    /// Takes a place for a token; `None` if all are taken, or the share of the token, of its tenant
    /// or of those that are not administrators.
    pub fn take(&self, token: &str, tenant: Option<&str>, is_admin: bool) -> Option<PlacePermit> {
        let of = PlaceHolder {
            is_admin,
            tenant: tenant.map(str::to_owned),
            token: token.to_owned(),
        };
        let mut taken = self.taken.lock();
        let (mut all, mut of_others, mut of_tenant) = (0_usize, 0_usize, 0_usize);
        for (holder, places) in &*taken {
            all += *places;
            if !holder.is_admin {
                of_others += *places;
                if holder.tenant.is_some() && holder.tenant == of.tenant {
                    of_tenant += *places;
                }
            }
        }
        let own = taken.get(&of).copied().unwrap_or(0);
        let shares = &self.shares;
        let has_share = own < shares.one && of_tenant < shares.tenant && of_others < shares.others;
        if all >= shares.all || !is_admin && !has_share {
            return None;
        }
        taken.insert(of.clone(), own + 1);
        let places = self.clone();
        Some(PlacePermit { places, of })
    }
}

impl Drop for PlacePermit {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(places) = taken.get_mut(&self.of) {
            *places -= 1;
            if *places == 0 {
                taken.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: PlaceShares = PlaceShares {
        all: 256,
        others: 192,
        tenant: 96,
        one: 64,
    };

    fn take(places: &Places, token: &str, tenant: Option<&str>, admin: bool) -> Vec<PlacePermit> {
        std::iter::from_fn(|| places.take(token, tenant, admin))
            .take(1000)
            .collect()
    }

    #[test]
    fn nobody_takes_the_places_of_all_and_nothing_is_left_behind() {
        let places = Places::with(SHARES);
        let of_acme = ["a", "b"].map(|token| take(&places, token, Some("acme"), false));
        let held: Vec<usize> = of_acme.iter().map(Vec::len).collect();
        assert_eq!(held, [SHARES.one, SHARES.tenant - SHARES.one]);
        let others = ["c", "d"].map(|token| take(&places, token, None, false));
        let held: Vec<usize> = others.iter().map(Vec::len).collect();
        let rest = SHARES.others - SHARES.tenant - SHARES.one;
        assert_eq!(held, [SHARES.one, rest]);
        let admins = take(&places, "admin", None, true);
        assert_eq!(admins.len(), SHARES.all - SHARES.others);

        drop((of_acme, others, admins));

        assert!(places.taken.lock().is_empty());
        assert_eq!(take(&places, "admin", None, true).len(), SHARES.all);
    }
}
