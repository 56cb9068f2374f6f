//! A worker: the loops that run jobs in this process, from start to orderly stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::doubts::Doubts;
use super::running::{Running, Stop};
use super::{Metrics, dispatch, finisher, heartbeat, upkeep};
use crate::jobs::postgres::{Finish, NewWorker, PgCheckpoints};
use crate::jobs::{Checkpoints, Error, Kinds, Queue};
use crate::service::Vital;
use crate::throttle;

/// How many ends may wait to be written before handlers wait for them.
const ENDS_IN_HAND: usize = 10_000;

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// A name for people; a number is added that makes it unique.
    pub name: String,
    /// Jobs that may run at once.
    pub concurrency: usize,
    /// Time without a heartbeat after which the worker counts as dead.
    pub ttl: Duration,
    /// How long running jobs may go on after the worker was asked to stop.
    pub grace: Duration,
    /// Days of history that are kept.
    pub retention_days: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "worker".to_owned(),
            concurrency: 64,
            ttl: Duration::from_secs(30),
            grace: Duration::from_secs(20),
            retention_days: 7,
        }
    }
}

/// What the loops of one worker share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) queue: Queue,
    pub(super) throttles: Arc<dyn throttle::Store>,
    pub(super) checkpoints: Arc<dyn Checkpoints>,
    pub(super) kinds: Kinds,
    pub(super) metrics: Metrics,
    pub(super) running: Running,
    pub(super) doubts: Doubts,
    pub(super) worker_id: AtomicI32,
    pub(super) bell: Arc<Notify>,
    pub(super) ends: mpsc::Sender<Finish>,
    pub(super) tasks: TaskTracker,
}

impl Shared {
    /// Takes a fresh identity.
    pub(super) async fn register(&self) -> Result<(), Error> {
        let worker = NewWorker {
            name: self.config.name.clone(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id() as i32,
            ttl: self.config.ttl,
            kinds: self.kinds.names(),
        };
        self.worker_id.store(self.queue.register(&worker).await?, Ordering::Release);
        Ok(())
    }
}

/// A running worker.
pub struct Worker {
    shared: Arc<Shared>,
    dispatching: CancellationToken,
    living: CancellationToken,
    vital: Vital,
    dispatcher: JoinHandle<()>,
    loops: Vec<JoinHandle<()>>,
    finisher: JoinHandle<()>,
}

impl Worker {
    /// Registers the worker and starts its loops.
    pub async fn start(
        config: Config,
        queue: Queue,
        throttles: Arc<dyn throttle::Store>,
        kinds: Kinds,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        let (ends, receiver) = mpsc::channel(ENDS_IN_HAND);
        metrics.permits.set(config.concurrency as i64);
        let shared = Arc::new(Shared {
            checkpoints: Arc::new(PgCheckpoints::new(queue.pool.clone())),
            config,
            queue: queue.clone(),
            throttles,
            kinds,
            metrics: metrics.clone(),
            running: Running::default(),
            doubts: Doubts::default(),
            worker_id: AtomicI32::new(0),
            bell: Arc::new(Notify::new()),
            ends,
            tasks: TaskTracker::new(),
        });
        shared.register().await?;
        let dispatching = CancellationToken::new();
        let living = CancellationToken::new();
        let vital = Vital::default();
        let asked = || dispatching.clone();
        let dispatcher = vital.spawn("dispatch", asked(), dispatch::dispatch(shared.clone(), asked()));
        let loops = vec![
            vital.spawn("listen", asked(), listen(queue.clone(), shared.bell.clone(), asked())),
            vital.spawn("promote", asked(), upkeep::promote(shared.clone(), asked())),
            vital.spawn("rescue", asked(), upkeep::rescue(shared.clone(), asked())),
            vital.spawn("maintain", asked(), upkeep::maintain(shared.clone(), asked())),
            vital.spawn("heartbeat", living.clone(), heartbeat::beat(shared.clone(), living.clone())),
        ];
        let finisher = vital.spawn("finish", living.clone(), finisher::finish_all(queue, metrics, receiver));
        tracing::info!(worker.id = shared.worker_id.load(Ordering::Relaxed), "worker started");
        Ok(Self { shared, dispatching, living, vital, dispatcher, loops, finisher })
    }

    /// The worker's number in `flyball.worker`.
    pub fn id(&self) -> i32 {
        self.shared.worker_id.load(Ordering::Acquire)
    }

    /// Waits until one of the worker's loops has died of a defect, and names it. Such a worker should be stopped.
    pub async fn lost(&self) -> &'static str {
        self.vital.lost().await
    }

    /// Stops in order: claims nothing more, lets running jobs finish within the grace time, asks the rest to stop, writes
    /// every end, and gives back what is left, without using an attempt. Answers how many jobs were given back.
    pub async fn stop(mut self) -> u64 {
        self.dispatching.cancel();
        let id = self.id();
        let grace_over = tokio::time::Instant::now() + self.shared.config.grace;
        // The dispatcher goes first: a claim that is under way must end before the running jobs are counted. One that waits
        // for a Postgres that is away is broken off; should it have claimed after all, signing off gives that back.
        if tokio::time::timeout_at(grace_over, &mut self.dispatcher).await.is_err() {
            self.dispatcher.abort();
        }
        self.shared.tasks.close();
        if tokio::time::timeout_at(grace_over, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!(jobs = self.shared.running.len(), "the grace time is over; asking running jobs to stop");
            self.shared.running.stop_all(Stop::Draining);
            let _ = tokio::time::timeout(Duration::from_secs(12), self.shared.tasks.wait()).await;
        }
        self.living.cancel();
        for one in self.loops {
            let _ = one.await;
        }
        let queue = self.shared.queue.clone();
        // The finisher ends when the last sender is gone; a handler that would not stop must not keep it waiting for ever.
        drop(self.shared);
        let _ = tokio::time::timeout(Duration::from_secs(5), self.finisher).await;
        let handed = match tokio::time::timeout(Duration::from_secs(5), queue.retire(id)).await {
            Ok(Ok(handed)) => handed,
            _ => {
                tracing::warn!("the worker could not sign off; its jobs are given back when its time to live has passed");
                0
            }
        };
        tracing::info!(worker.id = id, handed_back = handed, "worker stopped");
        handed
    }
}

async fn listen(queue: Queue, bell: Arc<Notify>, cancel: CancellationToken) {
    queue.listen(bell, cancel).await;
}
