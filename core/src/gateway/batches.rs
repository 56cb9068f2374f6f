//! The batching of concurrent requests of connections into one statement.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::jobs::Error;
use crate::postgres::Db;
use crate::service::{BatchBroken, Batcher};

/// The most requests in one statement.
const BATCH_MAX: usize = 128;

/// The shortest time between statements while requests keep coming.
const BATCH_EVERY: Duration = Duration::from_millis(2);

/// The requests of one tenant among those that wait for a statement: half of what one takes, so that
/// those of others find room in the next.
const TENANT_MAX: usize = BATCH_MAX / 2;

/// The call that answers a batch.
type BatchCall<T, R> =
    fn(Db, Arc<Vec<T>>) -> futures_util::future::BoxFuture<'static, Result<Vec<R>, Error>>;

/// Returns a batcher of one kind of requests. One that Postgres cannot read fails alone.
pub(super) fn batcher<T, R>(db: &Db, call: BatchCall<T, R>) -> Batcher<T, Result<R, Error>>
where
    T: Clone + Send + Sync + 'static,
    R: Send + 'static,
{
    let db = db.clone();
    Batcher::paced(BATCH_MAX, BATCH_EVERY, move |items: Vec<T>| {
        let db = db.clone();
        Box::pin(async move {
            let items = Arc::new(items);
            match call(db.clone(), items.clone()).await {
                Ok(results) => results.into_iter().map(Ok).collect(),
                Err(error) if error.blames_a_row() && items.len() > 1 => {
                    each_alone(&db, call, &items).await
                }
                Err(error) => items
                    .iter()
                    .map(|_| Err(Error::Lost(error.to_string())))
                    .collect(),
            }
        })
    })
}

/// Asks again for each request of a batch of which one cannot be answered, so that the others, which
/// may be of other tenants, are. Nothing of the batch was committed.
async fn each_alone<T: Clone, R>(
    db: &Db,
    call: BatchCall<T, R>,
    items: &[T],
) -> Vec<Result<R, Error>> {
    let mut results = Vec::with_capacity(items.len());
    for item in items {
        let answer = call(db.clone(), Arc::new(vec![item.clone()])).await;
        let first = |found: Vec<R>| found.into_iter().next();
        let none = || Error::Lost("the statement has no answer".to_owned());
        results.push(answer.and_then(|found| first(found).ok_or_else(none)));
    }
    results
}

/// Returns the answer to a request whose batch broke off.
pub(super) fn lost<R>(broken: BatchBroken) -> Result<R, Error> {
    Err(Error::Lost(broken.to_string()))
}

/// The requests of each tenant that wait for a statement. Those of a tenant with many wait here for
/// each other, and not before those of other tenants. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct TenantQueues {
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

/// The place of a request that may go.
pub(super) struct TenantPlace {
    _place: Option<OwnedSemaphorePermit>,
    _request: QueuedRequest,
}

impl TenantQueues {
    /// Waits until a request of a tenant may go.
    pub(super) async fn enter(&self, tenant: &str) -> TenantPlace {
        let places = {
            let mut tenants = self.tenants.lock();
            let queue = tenants
                .entry(tenant.to_owned())
                .or_insert_with(|| TenantRequests {
                    places: Arc::new(Semaphore::new(TENANT_MAX)),
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
            _place: places.acquire_owned().await.ok(),
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
        let queues = TenantQueues::default();
        let mut places = Vec::new();
        for _ in 0..TENANT_MAX {
            places.push(queues.enter("many").await);
        }
        assert!(queues.enter("many").now_or_never().is_none());
        assert!(queues.enter("other").now_or_never().is_some());
        places.pop();
        assert!(queues.enter("many").now_or_never().is_some());
        drop(places);
        assert!(queues.tenants.lock().is_empty());
    }
}
