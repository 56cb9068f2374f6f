//! Turns of the tenants at the connections. A producer's open transaction may hold what requests of
//! its tenant need, such as a unique key, and each of them that waits for it keeps a connection.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The requests of each tenant that enqueue at the same time, in one process.
pub(super) struct TenantTurns {
    /// The most of one tenant.
    most: usize,
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl TenantTurns {
    /// Lets one tenant have half of this many connections, and one at least.
    pub(super) fn new(connections: u32) -> Self {
        Self {
            most: (connections as usize / 2).max(1),
            tenants: Mutex::default(),
        }
    }

    /// Waits until a tenant may enqueue, and lets it until the turn is dropped; `None` for callers
    /// without a tenant, who need none.
    pub(super) async fn enter(&self, tenant: &str) -> Option<OwnedSemaphorePermit> {
        if tenant.is_empty() {
            return None;
        }
        // Turns are not closed.
        self.of(tenant).acquire_owned().await.ok()
    }

    fn of(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock();
        if let Some(turns) = tenants.get(tenant).and_then(Weak::upgrade) {
            return turns;
        }
        tenants.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(self.most));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_half_of_the_connections_and_is_forgotten_when_it_has_none() {
        let turns = TenantTurns::new(5);
        let (one, two) = (turns.of("acme"), turns.of("acme"));
        let held = [one.try_acquire_owned(), two.try_acquire_owned()];
        assert!(held.iter().all(Result::is_ok));
        assert!(turns.of("acme").try_acquire_owned().is_err());
        assert!(turns.of("other").try_acquire_owned().is_ok());
        assert_eq!(TenantTurns::new(1).most, 1);

        drop(held);
        drop(turns.of("third"));
        assert_eq!(turns.tenants.lock().len(), 1, "only the last one");
    }
}
