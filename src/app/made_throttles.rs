//! Keeps the throttles that were made on first use: they follow their patterns, and those that
//! are no longer used are deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::service::{LoopOptions, periodic};
use crate::throttle::admission::TenantLimits;
use crate::throttle::on_demand::{self, CALLER, MADE_FROM};
use crate::throttle::postgres::KnobRecord;
use crate::throttle::seed::seed_patterns;
use crate::throttle::{self, Name, Status, Store};

/// The longest time until a change of a pattern reaches the throttles that were made from it.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The number of rounds between checks of the throttles while there is no pattern.
const ROUNDS_WITHOUT_PATTERN: u64 = 60;

pub(super) async fn run(
    store: Arc<dyn Store>,
    record: KnobRecord,
    limits: TenantLimits,
    cancel: CancellationToken,
) {
    let options = LoopOptions {
        name: "made throttles",
        every: SWEEP_INTERVAL,
        wake: None,
    };
    let rounds = Arc::new(AtomicU64::new(0));
    periodic(options, cancel, || {
        let (store, record) = (store.clone(), record.clone());
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        async move {
            let names = store.names().await?;
            if !is_being_restored(&record, &limits, &names).await? {
                // Without its pattern a tenant's messages would wait for ever.
                seed_patterns(&*store, &limits).await?;
            }
            let is_due = round.is_multiple_of(ROUNDS_WITHOUT_PATTERN);
            if is_due || names.iter().any(Name::is_pattern) {
                sweep(&*store, &record, names).await?;
            }
            anyhow::Ok(())
        }
    })
    .await;
}

/// Returns true if a pattern is missing in the store and recorded: it is restored after the
/// throttles that were made from it.
async fn is_being_restored(
    record: &KnobRecord,
    limits: &TenantLimits,
    names: &[Name],
) -> anyhow::Result<bool> {
    let patterns = limits.patterns().into_iter().map(|(pattern, _)| pattern);
    let missing: Vec<Name> = patterns
        .filter(|pattern| !names.contains(pattern))
        .collect();
    if missing.is_empty() {
        return Ok(false);
    }
    let recorded = record.load().await?;
    Ok(recorded.iter().any(|(name, _)| missing.contains(name)))
}

/// Brings every made throttle to the knobs of its pattern, and deletes those without use.
async fn sweep(store: &dyn Store, record: &KnobRecord, names: Vec<Name>) -> anyhow::Result<()> {
    let statuses = store.statuses(&names).await.into_iter();
    let statuses: Vec<Status> = statuses
        .filter_map(|status| status.ok().flatten())
        .collect();
    let patterns: BTreeMap<&str, &Status> = statuses
        .iter()
        .filter(|status| status.name.is_pattern())
        .map(|status| (status.name.as_str(), status))
        .collect();
    for status in &statuses {
        let Some(from) = status.raw.get(MADE_FROM) else {
            continue;
        };
        if on_demand::is_unused(status) && !status.name.is_pattern() {
            delete(store, record, &status.name).await?;
            continue;
        }
        // The throttles of a deleted pattern stay as they are until they are unused.
        let pattern = patterns.get(from.as_str()).filter(|_| from != CALLER);
        let change = pattern.and_then(|pattern| {
            on_demand::follow(
                &status.raw,
                &on_demand::inherited_by(&status.name, &pattern.raw),
            )
        });
        if let Some(change) = change {
            match store.set(&status.name, &change).await {
                // A knob was changed in the meantime; the next round sees it.
                Ok(_) | Err(throttle::Error::Conflict { .. }) => {}
                Err(error @ throttle::Error::Lost(_)) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(throttle.name = %status.name, %error, "a throttle cannot follow its pattern");
                }
            }
        }
    }
    Ok(())
}

/// Deletes a throttle with its record. The record is deleted first, or the throttle would be
/// restored.
async fn delete(store: &dyn Store, record: &KnobRecord, name: &Name) -> anyhow::Result<()> {
    record.forget(name).await?;
    store.delete(name).await?;
    tracing::info!(throttle.name = %name, "a throttle created on first use was deleted: it was unused for a week");
    Ok(())
}
