//! Maintenance of pools: reports changes of breakers, ends messages whose deadline passed, and
//! requeues those that died for lack of an account once one is available.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::deliver::PoolHandle;
use super::{Alarms, Deliveries, StepResult};
use crate::jobs::postgres::within;
use crate::jobs::{Attribution, Error};
use crate::providers::PoolMetrics;
use crate::providers::pool::{BreakerState, Change};
use crate::service::{FailureLog, LoopOptions, periodic};

/// Interval between checks of waiting messages.
const WAITING_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Longest wait for the record of a change. A longer one hangs, on a silently lost connection for
/// example, and the changes behind it would be told to nobody.
const RECORDED_WITHIN: Duration = Duration::from_secs(15);

/// Most messages that end or are requeued in one step.
const MAX_MESSAGES_PER_STEP: u32 = 1000;

/// Checks for dead messages after accounts come back.
///
/// One check is not enough: some messages are just about to die, and some die once more before
/// their turn comes.
const REQUEUE_ROUNDS: u32 = 15;

/// Reports each change of a breaker to the log, the metrics, the database and the pool's address
/// for alerts, until the last pool is gone.
///
/// No change is lost while Postgres is unreachable, as long as the process lives. Those that wait
/// when `cancel` fires are reported before the end, once each.
pub async fn publish_changes(
    handles: BTreeMap<String, PoolHandle>,
    alarms: Alarms,
    metrics: PoolMetrics,
    mut changes: mpsc::UnboundedReceiver<(String, Change)>,
    cancel: CancellationToken,
) {
    loop {
        let (pool, change) = tokio::select! {
            biased;
            change = changes.recv() => match change {
                Some(change) => change,
                None => return,
            },
            () = cancel.cancelled() => return,
        };
        let (account, from, to) = (
            change.account.as_str(),
            change.from.as_str(),
            change.to.as_str(),
        );
        match change.to {
            BreakerState::Open => {
                tracing::warn!(
                    pool,
                    account,
                    from,
                    to,
                    why = change.why,
                    "an account's breaker opened"
                )
            }
            BreakerState::HalfOpen => {
                tracing::info!(pool, account, from, to, "one message tests an account")
            }
            BreakerState::Closed => {
                tracing::info!(pool, account, from, to, "an account's breaker closed")
            }
        }
        metrics.changed(&pool, &change);
        let Some(handle) = handles.get(&pool) else {
            continue;
        };
        let accounts = handle.accounts.pool();
        let mut failures = FailureLog::default();
        while let Err(error) =
            within(RECORDED_WITHIN, alarms.record_change(accounts, &change)).await
        {
            if matches!(
                error,
                Error::Refused { .. }
                    | Error::Full { .. }
                    | Error::QueueFull { .. }
                    | Error::Capped { .. }
            ) {
                // It would be refused again and would block the changes behind it.
                tracing::error!(pool, account, %error, "alerting about a breaker change failed");
                break;
            }
            if failures.failed(Instant::now()) {
                tracing::warn!(pool, account, %error, "recording a breaker change failed; retrying");
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(WAITING_CHECK_INTERVAL) => {}
            }
        }
    }
}

/// Returns the number of polls for messages to requeue that follow one. Messages that were skipped
/// may be free at any time, so the polls do not end before.
fn looks_after(left: u32, is_away: bool, has_skipped: bool) -> u32 {
    match is_away {
        true => REQUEUE_ROUNDS,
        false => left.saturating_sub(1).max(u32::from(has_skipped)),
    }
}

/// Maintains the waiting messages of a pool until `cancel` fires.
pub async fn watch(handle: PoolHandle, deliveries: Deliveries, cancel: CancellationToken) {
    let pool = handle.accounts.pool().clone();
    // A new process does not know about earlier outages, so it checks for messages to requeue.
    let looks_left = AtomicU32::new(REQUEUE_ROUNDS);
    let pace = LoopOptions {
        name: "watch pool",
        every: WAITING_CHECK_INTERVAL,
        wake: None,
    };
    let signed = Attribution {
        by: "flyball".to_owned(),
        why: "accounts are available again".to_owned(),
        ..Attribution::default()
    };
    periodic(pace, cancel, || async {
        let view = handle.accounts.view();
        if view.at_ms == 0 {
            return Ok(());
        }
        let is_away = view.unavailable_at_ms == Some(view.at_ms);
        // While accounts are available, a message past its deadline ends when its turn comes.
        let expired = match is_away {
            true => deliveries.expire(&pool.name, pool.valid_for, MAX_MESSAGES_PER_STEP).await?,
            false => StepResult::default(),
        };
        // They use no slots of their tenants.
        let late = deliveries.expire_waiting(&pool.name, pool.valid_for, MAX_MESSAGES_PER_STEP).await?;
        if late.jobs > 0 {
            tracing::info!(pool = %pool.name, messages = late.jobs, "messages became dead letters: their deadline passed while they waited for the limits of their tenants");
        }
        if expired.jobs > 0 {
            tracing::warn!(pool = %pool.name, messages = expired.jobs, "messages became dead letters: no account was available before their deadline");
        }
        let left = if is_away { REQUEUE_ROUNDS } else { looks_left.load(Ordering::Relaxed) };
        let mut has_skipped = false;
        if !is_away && left > 0 && pool.requeue_on_recovery {
            let mut all = 0;
            loop {
                let requeued = deliveries.requeue_unsent(&pool.name, MAX_MESSAGES_PER_STEP, &signed).await?;
                all += requeued.jobs;
                has_skipped |= requeued.skipped > 0;
                if !requeued.more || requeued.jobs == 0 {
                    break;
                }
            }
            if all > 0 {
                tracing::info!(pool = %pool.name, messages = all, "accounts are available again; requeued messages that had found none");
            }
        }
        looks_left.store(looks_after(left, is_away, has_skipped), Ordering::Relaxed);
        Ok::<(), Error>(())
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_for_messages_to_requeue_go_on_while_an_open_transaction_has_some() {
        assert_eq!(looks_after(0, true, false), REQUEUE_ROUNDS);
        assert_eq!(looks_after(3, false, false), 2);
        assert_eq!(looks_after(3, false, true), 2);
        assert_eq!(looks_after(1, false, true), 1);
        assert_eq!(looks_after(1, false, false), 0);
        assert_eq!(looks_after(0, false, false), 0);
    }
}
