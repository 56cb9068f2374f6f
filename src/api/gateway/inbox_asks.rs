//! The frames that read or mark an inbox and use a connection to Postgres.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::postgres::{TenantPlace, TenantQueues};

/// The permits of frames that read or mark an inbox. There are so few that claims of jobs and the
/// messages of channels always find connections to Postgres, and a tenant has at most half of them:
/// the devices of one that ask without end wait for each other, and those of others do not.
pub struct InboxAsks {
    all: Semaphore,
    tenants: TenantQueues,
}

/// The permit of one frame; it is given back when dropped.
pub struct InboxAsk<'a> {
    _permit: Option<SemaphorePermit<'a>>,
    _place: TenantPlace,
}

impl InboxAsks {
    /// Creates so many permits, at least one.
    pub fn new(permits: usize) -> Self {
        let permits = permits.max(1);
        Self {
            all: Semaphore::new(permits),
            tenants: TenantQueues::new((permits / 2).max(1)),
        }
    }

    /// Waits for a permit.
    pub async fn enter(&self, tenant: &str) -> InboxAsk<'_> {
        let place = self.tenants.enter(tenant).await;
        InboxAsk {
            // Permits are not closed.
            _permit: self.all.acquire().await.ok(),
            _place: place,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_devices_of_one_tenant_leave_permits_to_those_of_others() {
        let asks = InboxAsks::new(4);
        let mut held = vec![asks.enter("many").await, asks.enter("many").await];
        assert!(asks.enter("many").now_or_never().is_none());
        for _ in 0..2 {
            assert!(asks.enter("other").now_or_never().is_some());
        }
        held.pop();
        assert!(asks.enter("many").now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_single_permit_is_for_every_tenant() {
        let asks = InboxAsks::new(0);
        let held = asks.enter("many").await;
        assert!(asks.enter("other").now_or_never().is_none());
        drop(held);
        assert!(asks.enter("other").now_or_never().is_some());
    }
}
