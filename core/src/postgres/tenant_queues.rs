//! The requests of each tenant that wait for something that all tenants share, such as connections.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The requests of each tenant. A tenant with many requests waits here for its own, and delays no
/// other tenant. Cheap to clone.
#[derive(Clone)]
pub struct TenantQueues {
    /// The requests of one tenant that may go at once.
    places: usize,
    tenants: Arc<Mutex<HashMap<String, TenantRequests>>>,
}

struct TenantRequests {
    places: Arc<Semaphore>,
    /// The requests that have or want a place.
    requests: usize,
}

/// A request of a tenant; it leaves the queue when dropped.
struct QueuedRequest {
    queues: TenantQueues,
    tenant: String,
}

/// The place of a request that may go; it is given back when dropped.
pub struct TenantPlace {
    _place: Option<OwnedSemaphorePermit>,
    _request: QueuedRequest,
}

impl TenantQueues {
    /// Creates queues of which each lets so many requests go at once.
    pub fn new(places: usize) -> Self {
        Self {
            places,
            tenants: Arc::default(),
        }
    }

    /// Waits until a request of a tenant may go.
    pub async fn enter(&self, tenant: &str) -> TenantPlace {
        self.enter_as(tenant, 1).await
    }

    /// Waits until a request may go that takes the places of so many, or all places if it is larger.
    pub async fn enter_as(&self, tenant: &str, requests: usize) -> TenantPlace {
        let taken = requests.clamp(1, self.places.max(1));
        let places = {
            let mut tenants = self.tenants.lock();
            let queue = tenants
                .entry(tenant.to_owned())
                .or_insert_with(|| TenantRequests {
                    places: Arc::new(Semaphore::new(self.places)),
                    requests: 0,
                });
            queue.requests += 1;
            queue.places.clone()
        };
        let request = QueuedRequest {
            queues: self.clone(),
            tenant: tenant.to_owned(),
        };
        TenantPlace {
            // Places are not closed.
            _place: places.acquire_many_owned(taken as u32).await.ok(),
            _request: request,
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut tenants = self.queues.tenants.lock();
        if let Some(queue) = tenants.get_mut(&self.tenant) {
            queue.requests -= 1;
            if queue.requests == 0 {
                tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_tenant_with_many_requests_holds_up_its_own_only() {
        let queues = TenantQueues::new(3);
        let mut places = Vec::new();
        for _ in 0..3 {
            places.push(queues.enter("many").await);
        }
        assert!(queues.enter("many").now_or_never().is_none());
        assert!(queues.enter("other").now_or_never().is_some());
        places.pop();
        assert!(queues.enter("many").now_or_never().is_some());
        drop(places);
        assert!(queues.tenants.lock().is_empty());
    }

    #[tokio::test]
    async fn a_large_request_takes_the_places_of_several() {
        let queues = TenantQueues::new(3);
        let large = queues.enter_as("many", 2).await;
        assert!(queues.enter("many").now_or_never().is_some());
        assert!(queues.enter_as("many", 2).now_or_never().is_none());
        assert!(queues.enter_as("other", 9).now_or_never().is_some());
        drop(large);
        assert!(queues.enter_as("many", 9).now_or_never().is_some());
    }
}
