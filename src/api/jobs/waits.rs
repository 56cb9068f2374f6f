//! The requests that wait for the end of a job: each looks at its job about once a second.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The most requests of one process that may wait at once; further ones are answered without
/// waiting.
const WAITING_MAX: usize = 256;

/// The most of them that requests without `admin` take; the rest is for administrators.
const WAITING_OF_OTHERS: usize = 192;

/// The most of them that requests of the tokens of one tenant take.
const WAITING_OF_TENANT: usize = 96;

/// The most of them that requests of one token without `admin` take.
const WAITING_OF_ONE: usize = 64;

/// The one for whom a request waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitHolder {
    is_admin: bool,
    tenant: Option<Arc<str>>,
    /// The digest of the token.
    token: Arc<str>,
}

/// The waiting requests of a process. A clone is another handle to the same ones.
#[derive(Clone, Debug, Default)]
pub struct JobWaits(Arc<Mutex<BTreeMap<WaitHolder, usize>>>);

/// A place among the waiting requests, released when dropped.
#[derive(Debug)]
pub struct WaitPermit {
    waits: JobWaits,
    of: WaitHolder,
}

impl JobWaits {
    /// Takes a place for a request of a token; `None` if the most requests wait already, or the
    /// most of the token, of its tenant or of those that are not administrators.
    pub fn place(
        &self,
        token: &Arc<str>,
        tenant: Option<&Arc<str>>,
        is_admin: bool,
    ) -> Option<WaitPermit> {
        let of = WaitHolder {
            is_admin,
            tenant: tenant.cloned(),
            token: token.clone(),
        };
        let mut waits = self.0.lock();
        let (mut all, mut of_others, mut of_tenant) = (0_usize, 0_usize, 0_usize);
        for (holder, waiting) in &*waits {
            all += *waiting;
            if !holder.is_admin {
                of_others += *waiting;
                if holder.tenant.is_some() && holder.tenant == of.tenant {
                    of_tenant += *waiting;
                }
            }
        }
        let own = waits.get(&of).copied().unwrap_or(0);
        let has_share =
            own < WAITING_OF_ONE && of_tenant < WAITING_OF_TENANT && of_others < WAITING_OF_OTHERS;
        if all >= WAITING_MAX || !is_admin && !has_share {
            return None;
        }
        waits.insert(of.clone(), own + 1);
        Some(WaitPermit {
            waits: self.clone(),
            of,
        })
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let mut waits = self.waits.0.lock();
        if let Some(waiting) = waits.get_mut(&self.of) {
            *waiting -= 1;
            if *waiting == 0 {
                waits.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(waits: &JobWaits, token: &str, tenant: Option<&str>, admin: bool) -> Vec<WaitPermit> {
        let token: Arc<str> = Arc::from(token);
        let tenant: Option<Arc<str>> = tenant.map(Arc::from);
        std::iter::from_fn(|| waits.place(&token, tenant.as_ref(), admin))
            .take(1000)
            .collect()
    }

    #[test]
    fn nobody_takes_the_places_of_all_and_nothing_is_left_behind() {
        let waits = JobWaits::default();
        let of_acme = ["a", "b"].map(|token| take(&waits, token, Some("acme"), false));
        let held: Vec<usize> = of_acme.iter().map(Vec::len).collect();
        assert_eq!(held, [WAITING_OF_ONE, WAITING_OF_TENANT - WAITING_OF_ONE]);
        let others = ["c", "d"].map(|token| take(&waits, token, None, false));
        let held: Vec<usize> = others.iter().map(Vec::len).collect();
        let rest = WAITING_OF_OTHERS - WAITING_OF_TENANT - WAITING_OF_ONE;
        assert_eq!(held, [WAITING_OF_ONE, rest]);
        let admins = take(&waits, "admin", None, true);
        assert_eq!(admins.len(), WAITING_MAX - WAITING_OF_OTHERS);

        drop((of_acme, others, admins));

        assert!(waits.0.lock().is_empty());
        assert_eq!(take(&waits, "admin", None, true).len(), WAITING_MAX);
    }
}
