//! Maintenance of the record: matches late events with messages and deletes old rows.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Deliveries;
use crate::jobs::Error;
use crate::service::{LoopOptions, housekeeping};

const SWEEP_EVERY: Duration = Duration::from_secs(15);
const FORGET_EVERY: Duration = Duration::from_secs(300);

/// Runs until `cancel` fires.
///
/// `days` is the retention of messages whose jobs are gone. `dead_days` is the retention of dead
/// letters that are messages; 0 leaves them to the retention of all dead letters.
pub async fn maintain(
    deliveries: Deliveries,
    days: u32,
    dead_days: u32,
    cancel: CancellationToken,
) {
    let sweep = housekeeping(
        LoopOptions {
            name: "match_events",
            every: SWEEP_EVERY,
            wake: None,
        },
        cancel.clone(),
        || {
            let deliveries = deliveries.clone();
            async move {
                let applied = deliveries.sweep_events().await?;
                if applied > 0 {
                    tracing::debug!(
                        events = applied,
                        "matched events with messages recorded at the same time"
                    );
                }
                Ok::<(), Error>(())
            }
        },
    );
    let forget = housekeeping(
        LoopOptions {
            name: "forget_deliveries",
            every: FORGET_EVERY,
            wake: None,
        },
        cancel.clone(),
        || {
            let deliveries = deliveries.clone();
            async move {
                deliveries.forget_dead(dead_days).await?;
                deliveries.forget(days).await.map(drop)
            }
        },
    );
    tokio::join!(sweep, forget);
}
