//! The count of jobs that remote workers hold, towards the limits of concurrency: follows what other
//! processes end, and takes over what a process that is gone had counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::broker_state::AdoptedJob;
use crate::jobs::Error;
use crate::jobs::postgres::CountedJob;
use crate::runner::shared::{WorkerContext, bounded};
use crate::runner::tallies::AttemptOutcome;
use crate::service::{LoopOptions, periodic};
use crate::throttle::Name;

const COUNT_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn count(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "count remote jobs",
        every: COUNT_EVERY,
        wake: None,
    };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move { count_once(&shared).await }
    })
    .await;
}

/// Takes over the count of jobs whose broker is gone, and forgets jobs that are gone.
pub(super) async fn count_once(shared: &WorkerContext) -> Result<(), Error> {
    let Some(broker) = &shared.broker else {
        return Ok(());
    };
    let snapshot = broker.snapshot();
    let broker_id = shared.worker_id.load(Ordering::Acquire);
    let stored = bounded(shared, shared.queue.counted_jobs(broker_id)).await?;
    let changes = broker.compare(&snapshot, &stored);
    for job in changes.gone {
        shared
            .tallies
            .end(&job.throttle, AttemptOutcome::Otherwise, None, 0);
        shared.running.ended_elsewhere(job.lane_id);
    }
    adopt(shared, changes.unknown).await
}

/// Counts jobs that another broker counted. One that was handed over while the store was read is
/// known by now.
async fn adopt(shared: &WorkerContext, unknown: Vec<CountedJob>) -> Result<(), Error> {
    let Some(broker) = shared.broker.as_ref().filter(|_| !unknown.is_empty()) else {
        return Ok(());
    };
    let lanes: Vec<i64> = unknown.iter().map(|one| one.lane_id).collect();
    let named = bounded(shared, shared.queue.name_lanes(&lanes)).await?;
    let known = broker.snapshot();
    for one in unknown {
        let run = (one.job_id, one.fence);
        let lane = named.iter().find(|lane| lane.lane_id == one.lane_id);
        let Some(lane) = lane.filter(|_| !known.contains(&run)) else {
            continue;
        };
        let Ok(throttle) = Name::new(lane.throttle.clone()) else {
            continue;
        };
        shared.tallies.begin(&lane.throttle);
        broker.adopt(
            run,
            AdoptedJob {
                lane_id: one.lane_id,
                throttle,
                key: lane.key.clone(),
            },
        );
    }
    shared.running.ended.notify_one();
    Ok(())
}
