//! A worker: the loops that run jobs in this process, from start to orderly stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::dispatch::Stopping;
use super::maintenance::OwnWork;
use super::notifier::Notifier;
use super::report_completions;
use super::running::StopReason;
use super::shared::{Backlog, Config, WorkerContext};
use super::{
    WorkerMetrics, depth, dispatch, finisher, heartbeat, maintenance, release, settle, unserved,
};
use crate::jobs::{Error, Kinds, Queue};
use crate::service::TaskSupervisor;
use crate::throttle;

/// Most ends that may wait to be written before handlers wait for them.
const ENDS_IN_HAND: usize = 10_000;

/// Longest wait for the last reports to the throttles, besides counts that lapse by themselves.
const FAREWELL: Duration = Duration::from_secs(2);

/// Time in which the last ends are written, if no more of the grace time is left.
const LAST_ENDS: Duration = Duration::from_secs(5);

/// A running worker.
pub struct Worker {
    shared: Arc<WorkerContext>,
    stopping: Stopping,
    living: CancellationToken,
    vital: TaskSupervisor,
    dispatcher: JoinHandle<()>,
    loops: Vec<JoinHandle<()>>,
    finisher: JoinHandle<()>,
    settler: JoinHandle<()>,
}

impl Worker {
    /// Registers the worker and starts its loops.
    pub async fn start(
        config: Config,
        queue: Queue,
        throttles: Arc<dyn throttle::Store>,
        kinds: Kinds,
        metrics: WorkerMetrics,
    ) -> Result<Self, Error> {
        let (ends, receiver) = mpsc::channel(ENDS_IN_HAND);
        let (differences, to_settle) = mpsc::channel(settle::IN_HAND);
        metrics.permits.set(config.concurrency as i64);
        let shared = Arc::new(WorkerContext::new(
            config,
            queue.clone(),
            throttles.clone(),
            kinds,
            metrics.clone(),
            (ends, differences),
        ));
        shared.register().await?;
        shared.refuse_to_differ().await?;
        shared.hold_shards().await?;
        let own = OwnWork::default();
        let backlog = Backlog {
            queue,
            metrics,
            notifier: shared.notifier.clone(),
            unwritten: shared.unwritten.clone(),
            room_wanted: shared.room_wanted.clone(),
            running: shared.running.clone(),
            members_ended: own.groups.clone(),
            ended: own.ended.clone(),
            failures: Mutex::default(),
        };
        let stopping = Stopping::default();
        let living = CancellationToken::new();
        let vital = TaskSupervisor::default();
        let dispatcher = vital.spawn(
            "dispatch",
            stopping.requested.clone(),
            dispatch::dispatch(shared.clone(), stopping.clone()),
        );
        let mut loops = loops_of_work(&vital, &shared, &own, &stopping.requested);
        loops.extend(loops_of_housekeeping(&vital, &shared, &stopping.requested));
        loops.extend(loops_of_reports(&vital, &shared, &living));
        let finisher = vital.spawn(
            "finish",
            living.clone(),
            finisher::finish_all(backlog, receiver),
        );
        let settler = vital.spawn(
            "settle",
            living.clone(),
            settle::settle_all(throttles, to_settle),
        );
        tracing::info!(
            worker.id = shared.worker_id.load(Ordering::Relaxed),
            "worker started"
        );
        Ok(Self {
            shared,
            stopping,
            living,
            vital,
            dispatcher,
            loops,
            finisher,
            settler,
        })
    }

    /// Returns the worker's number in `flyball.worker`.
    pub fn id(&self) -> i32 {
        self.shared.worker_id.load(Ordering::Acquire)
    }

    /// Waits until one of the worker's loops has died of a defect, and returns its name. Such a
    /// worker should be stopped.
    pub async fn lost(&self) -> &'static str {
        self.vital.lost().await
    }

    /// Stops the worker in order; returns the number of jobs given back.
    ///
    /// It claims nothing more, lets running jobs finish within the grace time, asks the rest to
    /// stop, writes every end, and gives back the remaining jobs without using an attempt. While
    /// Postgres is away, ends are tried again for the rest of the grace time, or for half of the
    /// time to live if that is less, and for five seconds at least.
    pub async fn stop(mut self) -> u64 {
        self.stopping.requested.cancel();
        let id = self.id();
        let grace_over = tokio::time::Instant::now() + self.shared.config.grace;
        // Claims go first: one under way must end before the running jobs are counted. A claim that
        // waits for a Postgres that is away is aborted; if it was carried out after all, signing
        // off gives its jobs back.
        if tokio::time::timeout_at(grace_over, self.stopping.settled.cancelled())
            .await
            .is_err()
        {
            self.stopping.hurried.cancel();
            self.stopping.settled.cancelled().await;
        }
        self.shared.tasks.close();
        if tokio::time::timeout_at(grace_over, self.shared.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                jobs = self.shared.running.len(),
                "the grace time is over; asking running jobs to stop"
            );
            self.shared.running.stop_all(StopReason::Draining);
            let _ = tokio::time::timeout(Duration::from_secs(12), self.shared.tasks.wait()).await;
        }
        self.stopping.over.cancel();
        if tokio::time::timeout(FAREWELL, &mut self.dispatcher)
            .await
            .is_err()
        {
            self.dispatcher.abort();
        }
        self.living.cancel();
        for one in self.loops {
            let _ = one.await;
        }
        let (queue, ttl) = (self.shared.queue.clone(), self.shared.config.ttl);
        // A worker that was declared dead while it stopped has registered anew.
        let last_id = self.shared.worker_id.load(Ordering::Acquire);
        let unwritten = self.shared.unwritten.clone();
        // These loops end when the last sender is dropped; a handler that does not stop must not
        // keep them waiting for ever.
        drop(self.shared);
        // A job whose end is lost runs again although it is done. Heartbeats have ended, so others
        // may take this worker for dead when its time to live is over.
        let now = tokio::time::Instant::now();
        let written_until = grace_over.min(now + ttl / 2).max(now + LAST_ENDS);
        if tokio::time::timeout_at(written_until, self.finisher)
            .await
            .is_err()
        {
            tracing::warn!(
                jobs = unwritten.load(Ordering::Acquire),
                "the results of jobs were not written in time; these jobs run again"
            );
        }
        let _ = tokio::time::timeout(FAREWELL, self.settler).await;
        let signed_off = async {
            let mut handed = queue.retire(id).await?;
            if last_id != id {
                handed += queue.retire(last_id).await?;
            }
            Ok::<u64, Error>(handed)
        };
        let handed = match tokio::time::timeout(Duration::from_secs(5), signed_off).await {
            Ok(Ok(handed)) => handed,
            _ => {
                tracing::warn!(
                    "signing off the worker failed; its jobs are returned when its time to live \
                     has passed"
                );
                0
            }
        };
        tracing::info!(worker.id = id, handed_back = handed, "worker stopped");
        handed
    }
}

/// Starts the loops that bring jobs to their lanes. They end when the worker is asked to stop.
fn loops_of_work(
    vital: &TaskSupervisor,
    shared: &Arc<WorkerContext>,
    own: &OwnWork,
    stop: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    let stop = || stop.clone();
    vec![
        vital.spawn(
            "listen",
            stop(),
            listen(shared.queue.clone(), shared.notifier.clone(), stop()),
        ),
        vital.spawn("release", stop(), release::release(shared.clone(), stop())),
        vital.spawn(
            "promote",
            stop(),
            maintenance::promote(shared.clone(), own.clone(), stop()),
        ),
        vital.spawn(
            "groups",
            stop(),
            maintenance::settle_groups(shared.clone(), own.groups.clone(), stop()),
        ),
        vital.spawn(
            "waiting",
            stop(),
            maintenance::release_waiting(shared.clone(), own.ended.clone(), stop()),
        ),
        vital.spawn(
            "rescue",
            stop(),
            maintenance::rescue(shared.clone(), own.clone(), stop()),
        ),
        vital.spawn(
            "rescue_orphans",
            stop(),
            maintenance::rescue_orphans(shared.clone(), stop()),
        ),
        vital.spawn(
            "hold_shards",
            stop(),
            maintenance::hold_shards(shared.clone(), Some(own.workers.clone()), stop()),
        ),
    ]
}

/// Starts the loops that count, clean up and learn. They end when the worker is asked to stop.
fn loops_of_housekeeping(
    vital: &TaskSupervisor,
    shared: &Arc<WorkerContext>,
    stop: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    let stop = || stop.clone();
    vec![
        vital.spawn(
            "group counts",
            stop(),
            maintenance::count_groups(shared.clone(), stop()),
        ),
        vital.spawn(
            "maintain",
            stop(),
            maintenance::maintain(shared.clone(), stop()),
        ),
        vital.spawn(
            "differences",
            stop(),
            maintenance::log_differences(shared.clone(), stop()),
        ),
        vital.spawn(
            "unserved",
            stop(),
            unserved::count_unserved(shared.clone(), stop()),
        ),
        vital.spawn(
            "learn costs",
            stop(),
            maintenance::learn_costs(shared.clone(), stop()),
        ),
        vital.spawn(
            "depth",
            stop(),
            depth::keep_depth(shared.queue.clone(), stop()),
        ),
    ]
}

/// Starts the loops that speak for running jobs. They end after the last of these.
fn loops_of_reports(
    vital: &TaskSupervisor,
    shared: &Arc<WorkerContext>,
    living: &CancellationToken,
) -> Vec<JoinHandle<()>> {
    vec![
        vital.spawn(
            "answers",
            living.clone(),
            report_completions::report_completions(shared.clone(), living.clone()),
        ),
        vital.spawn(
            "heartbeat",
            living.clone(),
            heartbeat::beat(shared.clone(), living.clone()),
        ),
    ]
}

async fn listen(queue: Queue, notifier: Arc<Notifier>, cancel: CancellationToken) {
    queue.listen(|lanes| notifier.notify(lanes), cancel).await;
}
