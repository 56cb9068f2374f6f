//! The tenants of a round, their messages, and the admission as a process of the API has it.

use std::sync::Arc;
use std::time::Duration;

use flyball::admission::{Admission, Digests};
use flyball::jobs::NewJob;
use flyball::throttle::admission::TenantLimits;
use flyball::throttle::seed::seed_patterns;
use flyball::throttle::{LeasedStore, PatternStore};
use serde_json::json;

use crate::world::{NotifyServers, POOL};

/// The horizon of leases in the settings.
const LEASES: Duration = Duration::from_millis(250);

/// Creates the admission with all layers of the store that a process has, and the patterns of the
/// tenants' throttles.
pub async fn admission(world: &NotifyServers) -> anyhow::Result<Admission> {
    let limits = TenantLimits::default();
    let patterns = PatternStore::new(Arc::new(world.store()?), 10_000);
    let store = Arc::new(LeasedStore::new(Arc::new(patterns), LEASES));
    seed_patterns(&*store, &limits).await?;
    Ok(Admission::new(store, world.queue.clone(), limits))
}

/// Returns the job of message `number`.
pub fn message(number: usize) -> NewJob {
    let args = json!({
        "channel": "sms",
        "to": format!("+1555{number:07}"),
        "body": format!("Your code is {number:06}. It is valid for ten minutes."),
    });
    NewJob::new("notification", args).throttle(POOL)
}

/// Returns digests of a request that no other request shares; `has_key` as for one with an
/// `Idempotency-Key`.
pub fn digests(number: usize, has_key: bool) -> Digests {
    let digest: Vec<u8> = (number as u64).to_be_bytes().repeat(4);
    Digests {
        request: Some(digest.clone()),
        body: digest,
        has_key,
    }
}
