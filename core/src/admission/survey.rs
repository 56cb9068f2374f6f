//! The survey for operators: tenants, modules and batches, page by page, with their usage. Once the
//! store has not answered, it is asked no further in the same survey, which would wait each time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::postgres::{
    Batch, BatchFilter, BatchPage, Batches, TenantFilter, TenantQueue, list_tenants,
};
use super::service::{Admission, of_module};
use super::usage::{AdmissionUsage, TenantUsage};
use crate::jobs::{Error, Queue};
use crate::throttle::admission::throttle_of;

/// The most questions to Redis at a time.
const CONCURRENCY: usize = 16;
/// The most estimates at a time, each of which counts in Postgres.
const ESTIMATES: usize = 4;

impl Admission {
    /// Returns a page of tenants, by name; the usage is `None` while the store is away.
    pub async fn tenants(
        &self,
        wanted: TenantFilter<'_>,
        now_s: i64,
    ) -> Result<Vec<(TenantQueue, Option<TenantUsage>)>, Error> {
        let read = |queue: Queue| async move { list_tenants(&queue, wanted).await };
        let found = self.queue.read_lagging(read).await?;
        let away = &AtomicBool::new(false);
        let looked = stream::iter(found).map(|queue| async move {
            let usage = match away.load(Relaxed) {
                true => None,
                false => self.tenant_usage(&queue.tenant, now_s).await,
            };
            away.fetch_or(usage.is_none(), Relaxed);
            (queue, usage)
        });
        Ok(looked.buffered(CONCURRENCY).collect().await)
    }

    /// Returns the usage of a tenant. A tenant without a throttle has used nothing, and is shown
    /// with the limits of the settings, because looking makes no throttle.
    async fn tenant_usage(&self, tenant: &str, now_s: i64) -> Option<TenantUsage> {
        let Some(throttle) = throttle_of(tenant) else {
            return Some(TenantUsage::default());
        };
        let (usage, status) = tokio::join!(
            self.store.window_usage(&throttle, ""),
            self.store.status(&throttle)
        );
        let is_paused = status
            .ok()?
            .is_some_and(|status| status.effective_rps.is_stopped());
        match usage.ok()? {
            Some(usage) => Some(TenantUsage::of(&usage, is_paused)),
            None => Some(TenantUsage::unused(&self.limits, now_s)),
        }
    }

    /// Returns the usages of modules of one tenant, in their order; `None` while the store is
    /// away.
    pub async fn modules(
        &self,
        tenant: &str,
        modules: &[String],
        now_s: i64,
    ) -> Vec<Option<AdmissionUsage>> {
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
                Ok(Some(usage)) => Some(AdmissionUsage::of(&of_module(usage, &module), false)),
                Ok(None) => Some(AdmissionUsage::unused(limits, now_s)),
                Err(_) => {
                    away.store(true, Relaxed);
                    None
                }
            }
        });
        looked.buffered(CONCURRENCY).collect().await
    }

    /// Returns a page of batches, newest first, each with its estimate.
    pub async fn list_batches(&self, wanted: BatchFilter<'_>) -> Result<BatchPage, Error> {
        let read = |queue: Queue| async move { Batches::new(queue).list(wanted).await };
        let page = self.queue.read_lagging(read).await?;
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
