//! Keeps the figures of depth: one process at a time walks the waiting jobs, a page at a time, and rests between the pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::jobs::postgres::Sweeper;
use crate::jobs::{Error, Queue};
use crate::service::{Leader, Pace, periodic};

/// Pages come no faster than this.
const EVERY: Duration = Duration::from_millis(200);

/// Walking takes at most one part in this many of the time.
const DUTY: u32 = 50;

/// The same while there are no figures yet.
const FIRST_DUTY: u32 = 10;

/// However long a page took, the next begins after this time.
const MAX_REST: Duration = Duration::from_secs(10);

/// How long the one who walks may be silent before another walks.
const LEASE: Duration = Duration::from_secs(30);

/// How often the lease is renewed, and asked for by the others.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Two who walk at once would write the same figures, so the lease only spares work.
struct Turn {
    leader: Leader,
    asked: Option<Instant>,
    sweeper: Option<Sweeper>,
}

/// Walks whenever it is this process' turn, until `cancel` fires; then lets another have the turn.
pub async fn keep_depth(queue: Queue, cancel: CancellationToken) {
    let holder = format!("{}-{:016x}", std::process::id(), rand::random::<u64>());
    let leader = Leader::sharing(queue.pool.clone(), "depth", holder, LEASE);
    let turn = Arc::new(Mutex::new(Turn { leader: leader.clone(), asked: None, sweeper: None }));
    let pace = Pace { name: "depth", every: EVERY, wake: None };
    periodic(pace, cancel, || {
        let (queue, turn) = (queue.clone(), turn.clone());
        async move { tick(&queue, &mut *turn.lock().await).await }
    })
    .await;
    let _ = tokio::time::timeout(Duration::from_secs(1), leader.release()).await;
}

async fn tick(queue: &Queue, turn: &mut Turn) -> Result<(), Error> {
    if turn.asked.is_none_or(|asked| asked.elapsed() >= RENEW_EVERY) {
        turn.asked = Some(Instant::now());
        if turn.leader.hold().await?.is_none() {
            turn.sweeper = None;
        } else if turn.sweeper.is_none() {
            turn.sweeper = Some(Sweeper::new(queue.clone()));
        }
    }
    // What a failed statement should have written is not known any more: whoever walks next begins anew.
    let Some(mut sweeper) = turn.sweeper.take() else { return Ok(()) };
    let took = match sweeper.step().await {
        Ok(took) => took,
        Err(error) => {
            turn.asked = None;
            return Err(error);
        }
    };
    let duty = if sweeper.is_whole() { DUTY } else { FIRST_DUTY };
    turn.sweeper = Some(sweeper);
    tokio::time::sleep((took * (duty - 1)).min(MAX_REST).saturating_sub(EVERY)).await;
    Ok(())
}
