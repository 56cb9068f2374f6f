//! The survey for operators: tenants, modules and batches, page by page, with their standing. Once the
//! store has not answered, it is asked no further in the same survey, which would wait each time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::door::Admission;
use super::postgres::{
    Batch, BatchPage, Batches, BatchesWanted, TenantQueue, TenantsWanted, list_tenants,
};
use super::standing::{Standing, TenantStanding};
use crate::jobs::Error;
use crate::throttle::admission::throttle_of;

/// The most questions to Redis at a time.
const CONCURRENCY: usize = 16;
/// The most estimates at a time, each of which counts in Postgres.
const ESTIMATES: usize = 4;

impl Admission {
    /// Returns a page of tenants, by name; the standing is `None` while the store is away.
    pub async fn tenants(
        &self,
        wanted: TenantsWanted<'_>,
        now_s: i64,
    ) -> Result<Vec<(TenantQueue, Option<TenantStanding>)>, Error> {
        let found = list_tenants(&self.queue, wanted).await?;
        let away = &AtomicBool::new(false);
        let looked = stream::iter(found).map(|queue| async move {
            let standing = match away.load(Relaxed) {
                true => None,
                false => self.tenant_standing(&queue.tenant, now_s).await,
            };
            away.fetch_or(standing.is_none(), Relaxed);
            (queue, standing)
        });
        Ok(looked.buffered(CONCURRENCY).collect().await)
    }

    /// Returns the standing of a tenant. A tenant without a throttle has used nothing, and is shown
    /// with the limits of the settings, because looking makes no throttle.
    async fn tenant_standing(&self, tenant: &str, now_s: i64) -> Option<TenantStanding> {
        let Some(throttle) = throttle_of(tenant) else {
            return Some(TenantStanding::default());
        };
        let (usage, status) = tokio::join!(
            self.store.window_usage(&throttle, ""),
            self.store.status(&throttle)
        );
        let is_paused = status
            .ok()?
            .is_some_and(|status| status.effective_rps.is_stopped());
        match usage.ok()? {
            Some(usage) => Some(TenantStanding::of(&usage, is_paused)),
            None => Some(TenantStanding::unused(&self.limits, now_s)),
        }
    }

    /// Returns the standings of modules of one tenant, in their order; `None` while the store is
    /// away.
    pub async fn modules(
        &self,
        tenant: &str,
        modules: &[String],
        now_s: i64,
    ) -> Vec<Option<Standing>> {
        let Some(throttle) = throttle_of(tenant) else {
            return vec![None; modules.len()];
        };
        let (throttle, limits) = (&throttle, &self.limits);
        let away = &AtomicBool::new(false);
        let looked = stream::iter(modules.to_vec()).map(|module| async move {
            if away.load(Relaxed) {
                return None;
            }
            match self.store.window_usage(throttle, &module).await {
                Ok(Some(usage)) => Some(Standing::of(&usage, false)),
                Ok(None) => Some(Standing::unused(limits, now_s)),
                Err(_) => {
                    away.store(true, Relaxed);
                    None
                }
            }
        });
        looked.buffered(CONCURRENCY).collect().await
    }

    /// Returns a page of batches, newest first, each with its estimate.
    pub async fn list_batches(
        &self,
        batches: &Batches,
        wanted: BatchesWanted<'_>,
    ) -> Result<BatchPage, Error> {
        let page = batches.list(wanted).await?;
        let estimated = stream::iter(page.batches).map(|batch| self.estimated(batch));
        Ok(BatchPage {
            batches: estimated
                .buffered(ESTIMATES)
                .try_collect::<Vec<Batch>>()
                .await?,
            next: page.next,
        })
    }
}
