//! Seeds Redis at start: lost knobs, those of the files, the limits of the API, the throttles of
//! pools.
//!
//! If Redis is unreachable the process starts without it, and this is done when it is back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::http_api::ApiSeeds;
use super::knob_backup::{self, RecordedKnobs};
use super::messaging::MessageSeeds;
use crate::throttle::admission::TenantLimits;
use crate::throttle::postgres::KnobRecord;
use crate::throttle::seed::seed_patterns;
use crate::throttle::{self, Change, KnobsFile, Name, Store, seed};

/// Longest wait for Postgres at start.
pub(super) const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for a Redis that may be starting too.
const REDIS_TIMEOUT: Duration = Duration::from_secs(3);

/// Delay before a retry during the start.
const SEED_RETRY_DELAY: Duration = Duration::from_millis(200);
const AWAY_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The data to put into Redis.
pub(super) struct Seeding {
    pub(super) store: Arc<dyn Store>,
    pub(super) record: KnobRecord,
    pub(super) files: Vec<KnobsFile>,
    /// The throttles of the program itself.
    pub(super) own: Vec<(Name, Change)>,
    pub(super) tenant_limits: TenantLimits,
    pub(super) api: ApiSeeds,
    pub(super) messages: MessageSeeds,
}

impl Seeding {
    /// Seeds, or starts a task that will if Redis is unreachable.
    pub(super) async fn start(
        self,
        cancel: CancellationToken,
    ) -> anyhow::Result<Option<JoinHandle<()>>> {
        let begun = Instant::now();
        loop {
            let Err(error) = self.once().await else {
                return Ok(None);
            };
            // Knobs that this Redis cannot hold will not become valid with time.
            if matches!(cause(&error), Some(throttle::Error::Invalid(_))) {
                return Err(error.context("the recorded knobs cannot be restored"));
            }
            let is_away = matches!(cause(&error), Some(throttle::Error::Lost(_)));
            if is_away && begun.elapsed() >= REDIS_TIMEOUT {
                tracing::warn!(
                    "{}: starting without it; jobs are accepted and wait, and knobs are seeded when \
                     it is back",
                    why_away(&error)
                );
                return Ok(Some(tokio::spawn(self.later(cancel).boxed())));
            }
            if begun.elapsed() >= STARTUP_TIMEOUT {
                return Err(error.context("seeding the knobs failed"));
            }
            tokio::time::sleep(SEED_RETRY_DELAY).await;
        }
    }

    async fn later(self, cancel: CancellationToken) {
        let mut reported = String::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(AWAY_AGAIN_AFTER) => {}
            }
            match self.once().await {
                Ok(()) => {
                    tracing::info!("Redis is back and the knobs are seeded");
                    return;
                }
                Err(error) if matches!(cause(&error), Some(throttle::Error::Lost(_))) => {}
                Err(error) => {
                    let error = format!("{error:#}");
                    if error != reported {
                        tracing::error!(%error, "seeding the knobs failed; retrying");
                        reported = error;
                    }
                }
            }
        }
    }

    async fn once(&self) -> anyhow::Result<()> {
        let store = &*self.store;
        let odd = knob_backup::tick(store, &self.record, &mut RecordedKnobs::default()).await?;
        odd.iter().for_each(knob_backup::log_failure);
        // Patterns come first: a throttle of a file gets the other knobs of the one that fits it.
        let files = self.files.iter().cloned();
        let (patterns, others): (Vec<_>, Vec<_>) = files.partition(|file| file.name.is_pattern());
        let mut seeded = seed(store, &patterns).await?;
        seed_patterns(store, &self.tenant_limits).await?;
        seeded.extend(seed(store, &others).await?);
        for (name, change) in &self.own {
            match store.set(name, change).await {
                Ok((None, _)) => seeded.push(name.clone()),
                Ok(_) => {}
                // As with those of files, a live edit stays.
                Err(throttle::Error::Invalid(problems)) => {
                    let reason = throttle::Error::Invalid(problems).to_string();
                    tracing::warn!(throttle.name = %name, reason, "the knobs of the program conflict with those in the store");
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.api.seed(store).await?;
        self.messages.seed(store).await?;
        for name in seeded {
            tracing::info!(throttle.name = %name, "knobs seeded");
        }
        Ok(())
    }
}

/// Describes a Redis that is away, or that refuses.
fn why_away(error: &anyhow::Error) -> String {
    let meaning = match cause(error) {
        Some(throttle::Error::Lost(reason)) => throttle::reason_meaning(reason),
        _ => None,
    };
    meaning.map_or_else(
        || "Redis does not answer".to_owned(),
        |meaning| format!("Redis refuses: {meaning}"),
    )
}

fn cause(error: &anyhow::Error) -> Option<&throttle::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_refuses_is_told_from_one_that_is_away() {
        let lost = |reason: &str| anyhow::Error::new(throttle::Error::Lost(reason.to_owned()));
        assert_eq!(
            why_away(&lost(
                "WRONGPASS: it refuses the user or password of REDIS_URL"
            )),
            "Redis refuses: WRONGPASS: it refuses the user or password of REDIS_URL"
        );
        assert_eq!(
            why_away(&lost("Connection refused")),
            "Redis does not answer"
        );
    }
}
