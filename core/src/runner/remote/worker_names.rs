//! The names of the workers of tenants. Each new one is a row in Postgres, which every poll for due
//! work passes, so a tenant brings new ones only slowly.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The new names that a tenant may bring at once.
const NEW_NAMES_AT_ONCE: u32 = 1000;

/// The time after which it may bring another one.
const NEW_NAME_INTERVAL: Duration = Duration::from_secs(1);

/// The names that workers of tenants have in this process.
#[derive(Debug, Default)]
pub(super) struct WorkerNames(HashMap<String, NamesOfTenant>);

#[derive(Debug)]
struct NamesOfTenant {
    /// The time at which the whole burst is free again.
    free_at: Instant,
    /// The names, each with the time until which it lives without a further claim.
    names: HashMap<String, Instant>,
}

impl WorkerNames {
    /// Admits the claim of a worker whose name then lives until this time; false for a new name of a
    /// tenant that has brought too many.
    pub(super) fn admit(
        &mut self,
        tenant: &str,
        worker: &str,
        now: Instant,
        until: Instant,
    ) -> bool {
        let known = self.0.get_mut(tenant);
        if let Some(lives) = known.and_then(|own| own.names.get_mut(worker))
            && *lives > now
        {
            *lives = until.max(*lives);
            return true;
        }
        self.forget(now);
        let own = self
            .0
            .entry(tenant.to_owned())
            .or_insert_with(|| NamesOfTenant {
                free_at: now,
                names: HashMap::new(),
            });
        let free_at = own.free_at.max(now);
        if free_at - now > NEW_NAME_INTERVAL * (NEW_NAMES_AT_ONCE - 1) {
            return false;
        }
        own.free_at = free_at + NEW_NAME_INTERVAL;
        own.names.insert(worker.to_owned(), until);
        true
    }

    /// Forgets the names that live no more, and the tenants without any.
    fn forget(&mut self, now: Instant) {
        self.0.retain(|_, own| {
            own.names.retain(|_, lives| *lives > now);
            own.free_at > now || !own.names.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_brings_new_names_slowly_and_keeps_those_that_it_has() {
        let mut names = WorkerNames::default();
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        for n in 0..NEW_NAMES_AT_ONCE {
            assert!(names.admit("acme", &format!("w{n}"), begin, after(60)));
        }
        assert!(!names.admit("acme", "one more", begin, after(60)));
        assert!(names.admit("zeta", "w", begin, after(60)), "another tenant");
        assert!(names.admit("acme", "w7", begin, after(90)), "a known name");

        assert!(names.admit("acme", "one more", after(1), after(60)));
        assert!(!names.admit("acme", "two more", after(1), after(60)));

        // The rows of the first have ended, so a claim of one of them makes another.
        let late = after(61);
        assert!(names.admit("acme", "w8", late, after(9000)));
        let more = (0..100).filter(|n| names.admit("acme", &format!("late{n}"), late, after(9000)));
        assert_eq!(more.count(), 59);
    }

    #[test]
    fn names_that_live_no_more_are_forgotten() {
        let mut names = WorkerNames::default();
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        names.admit("acme", "w", begin, after(10));
        assert!(names.admit("zeta", "w", after(20), after(30)));
        assert_eq!(names.0.len(), 1, "{names:?}");
    }
}
