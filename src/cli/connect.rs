//! Connections for commands: a short patience, and an error that names the setting.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::config::Settings;
use crate::jobs::Queue;
use crate::throttle::Store;
use crate::throttle::redis::RedisStore;

/// Connects to the queue.
pub(super) async fn queue(settings: &Settings) -> anyhow::Result<Queue> {
    Queue::connect(settings.database(), 2, Duration::from_secs(5))
        .await
        .context("cannot reach Postgres; set DATABASE_URL or database_url")
}

/// Connects to the throttles.
pub(super) async fn throttles(settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    let store = RedisStore::connect(&settings.redis_url, &settings.redis_prefix)?;
    store.names().await.context("cannot reach Redis; set REDIS_URL or redis_url")?;
    Ok(Arc::new(store))
}
