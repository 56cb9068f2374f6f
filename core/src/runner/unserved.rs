//! Counts the ready jobs that no live worker serves: one process at a time, and only while a worker
//! has met one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::shared::WorkerContext;
use crate::jobs::Error;
use crate::jobs::postgres::UnservedSweeper;
use crate::service::{Leader, LoopOptions, periodic};

/// Interval of pages, and of checks whether there is anything to count.
const PAGE_INTERVAL: Duration = Duration::from_secs(1);

/// Inverse of the largest share of time spent counting.
const DUTY: u32 = 20;

/// Longest rest between two pages, however long a page took.
const MAX_REST: Duration = Duration::from_secs(10);

/// Shortest time between the beginnings of two walks, and between two updates of the metric.
const WALK_EVERY: Duration = Duration::from_secs(5);

/// The same while nothing happens in the queue, where no job is ready, once none is shown.
const QUIET_EVERY: Duration = Duration::from_secs(30);

/// Time for which the counting process may be silent before another one counts.
const LEASE: Duration = Duration::from_secs(15);

struct UnservedTurn {
    leader: Leader,
    sweeper: UnservedSweeper,
    next_walk: Instant,
    next_metric: Instant,
    is_cleared: bool,
    /// The last time at which nothing was found to be shown.
    found_none: Option<Instant>,
}

pub(super) async fn count_unserved(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let pool = shared.queue.pool.clone();
    let leader = Leader::sharing(pool, "unserved", shared.holder.clone(), LEASE);
    let turn = Arc::new(Mutex::new(UnservedTurn {
        leader: leader.clone(),
        sweeper: UnservedSweeper::new(shared.queue.clone()),
        next_walk: Instant::now(),
        next_metric: Instant::now(),
        is_cleared: false,
        found_none: None,
    }));
    let pace = LoopOptions {
        name: "unserved",
        every: PAGE_INTERVAL,
        wake: None,
    };
    periodic(pace, cancel, || {
        let (shared, turn) = (shared.clone(), turn.clone());
        async move { tick(&shared, &mut *turn.lock().await).await }
    })
    .await;
    let _ = tokio::time::timeout(Duration::from_secs(1), leader.release()).await;
}

async fn tick(shared: &WorkerContext, turn: &mut UnservedTurn) -> Result<(), Error> {
    let now = Instant::now();
    let is_shown_none = turn
        .found_none
        .is_some_and(|at| now.saturating_duration_since(at) < QUIET_EVERY);
    if is_shown_none && turn.sweeper.is_done() && shared.is_quiet() {
        return Ok(());
    }
    if now >= turn.next_metric {
        turn.next_metric = now + WALK_EVERY;
        let unserved = shared.queue.unserved().await?;
        shared.metrics.show_unserved(&unserved);
        turn.found_none = unserved.is_empty().then_some(now);
    }
    if turn.sweeper.is_done() && now < turn.next_walk {
        return Ok(());
    }
    if turn.sweeper.is_done() {
        turn.next_walk = now + WALK_EVERY;
        if !shared.queue.has_met_unserved().await? {
            if !turn.is_cleared && turn.leader.hold().await?.is_some() {
                turn.sweeper.clear().await?;
                turn.is_cleared = true;
            }
            return Ok(());
        }
    }
    if turn.leader.hold().await?.is_none() {
        turn.sweeper = UnservedSweeper::new(shared.queue.clone());
        return Ok(());
    }
    turn.is_cleared = false;
    let begun = Instant::now();
    let needs = |kind: &str, args: &serde_json::Value| shared.needs(kind, args);
    turn.sweeper.page(shared.runs.names(), needs).await?;
    let rest = begun.elapsed() * (DUTY - 1);
    tokio::time::sleep(rest.min(MAX_REST).saturating_sub(PAGE_INTERVAL)).await;
    Ok(())
}
