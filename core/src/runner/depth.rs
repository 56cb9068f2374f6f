//! Keeps the figures of depth: one process at a time walks the waiting jobs, a page at a time, and
//! rests between the pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::jobs::postgres::Sweeper;
use crate::jobs::{Error, Queue};
use crate::service::{Leader, LoopOptions, periodic};

/// Shortest interval between pages.
const MIN_PAGE_INTERVAL: Duration = Duration::from_millis(200);

/// Inverse of the largest share of time spent walking.
const DUTY: u32 = 50;

/// Inverse of the largest share of time spent walking while there are no figures yet.
const FIRST_DUTY: u32 = 10;

/// Longest rest between pages, however long a page took.
const MAX_REST: Duration = Duration::from_secs(10);

/// Time for which the walking process may be silent before another one walks.
const LEASE: Duration = Duration::from_secs(30);

/// Interval at which the lease is requested by processes that do not walk.
const REQUEST_EVERY: Duration = Duration::from_secs(5);

/// Interval at which the walking process renews the lease.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// The turn of this process to walk. Two processes that walk at once would write the same figures,
/// so the lease only spares work.
struct Turn {
    leader: Leader,
    requested_at: Option<Instant>,
    sweeper: Option<Sweeper>,
}

/// Walks the waiting jobs whenever this process holds the lease, until `cancel` fires; then
/// releases the lease.
pub async fn keep_depth(queue: Queue, cancel: CancellationToken) {
    let holder = format!("{}-{:016x}", std::process::id(), rand::random::<u64>());
    let leader = Leader::sharing(queue.pool.clone(), "depth", holder, LEASE);
    let turn = Arc::new(Mutex::new(Turn {
        leader: leader.clone(),
        requested_at: None,
        sweeper: None,
    }));
    let pace = LoopOptions {
        name: "depth",
        every: MIN_PAGE_INTERVAL,
        wake: None,
    };
    periodic(pace, cancel, || {
        let (queue, turn) = (queue.clone(), turn.clone());
        async move { tick(&queue, &mut *turn.lock().await).await }
    })
    .await;
    let _ = tokio::time::timeout(Duration::from_secs(1), leader.release()).await;
}

async fn tick(queue: &Queue, turn: &mut Turn) -> Result<(), Error> {
    let every = match turn.sweeper {
        Some(_) => RENEW_EVERY,
        None => REQUEST_EVERY,
    };
    if turn
        .requested_at
        .is_none_or(|requested_at| requested_at.elapsed() >= every)
    {
        turn.requested_at = Some(Instant::now());
        if turn.leader.hold().await?.is_none() {
            turn.sweeper = None;
        } else if turn.sweeper.is_none() {
            turn.sweeper = Some(Sweeper::new(queue.clone()));
        }
    }
    // The effect of a failed statement is unknown, so the next walk starts over.
    let Some(mut sweeper) = turn.sweeper.take() else {
        return Ok(());
    };
    let took = match sweeper.step().await {
        Ok(took) => took,
        Err(error) => {
            turn.requested_at = None;
            return Err(error);
        }
    };
    let duty = if sweeper.is_whole() { DUTY } else { FIRST_DUTY };
    turn.sweeper = Some(sweeper);
    tokio::time::sleep(
        (took * (duty - 1))
            .min(MAX_REST)
            .saturating_sub(MIN_PAGE_INTERVAL),
    )
    .await;
    Ok(())
}
