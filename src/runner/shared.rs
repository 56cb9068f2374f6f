//! What the loops of one worker share, and how a worker behaves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::Metrics;
use super::answers::Answers;
use super::bell::Bell;
use super::doubts::Doubts;
use super::running::Running;
use super::runs::Runs;
use super::settle::Difference;
use super::strangers::Strangers;
use super::tallies::Tallies;
use crate::jobs::postgres::{Finish, NewWorker, Retention};
use crate::jobs::{Checkpoints, Error, Queue};
use crate::throttle;

/// How long a worker's part of the shards is its own without a word from it.
pub(super) const SHARD_TTL: Duration = Duration::from_secs(10);

/// Longest wait for an answer of Postgres; at most half the worker's time to live.
const PATIENCE: Duration = Duration::from_secs(15);

/// A worker that could not serve any lane for so long lets its shards go.
const UNABLE_AFTER: Duration = Duration::from_secs(2);

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// A name for people; a number is added that makes it unique.
    pub name: String,
    /// Jobs that may run at once.
    pub concurrency: usize,
    /// Most jobs that are claimed at once.
    pub batch: usize,
    /// Time without a heartbeat after which the worker counts as dead.
    pub ttl: Duration,
    /// How long running jobs may go on after the worker was asked to stop.
    pub grace: Duration,
    /// How long finished jobs and dead letters are kept.
    pub retention: Retention,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "worker".to_owned(),
            concurrency: 64,
            batch: 500,
            ttl: Duration::from_secs(30),
            grace: Duration::from_secs(20),
            retention: Retention::days(7),
        }
    }
}

/// An end, and the lane that its job goes back to if it is not over.
pub(super) struct End {
    pub(super) finish: Finish,
    pub(super) lane_id: i64,
}

/// What the loops of one worker share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) queue: Queue,
    pub(super) throttles: Arc<dyn throttle::Store>,
    pub(super) checkpoints: Arc<dyn Checkpoints>,
    pub(super) runs: Runs,
    /// What this worker can run besides its kinds.
    pub(super) offers: BTreeMap<String, String>,
    pub(super) metrics: Metrics,
    pub(super) running: Running,
    pub(super) doubts: Doubts,
    pub(super) strangers: Strangers,
    pub(super) worker_id: AtomicI32,
    /// Names this start of the worker where running jobs are counted.
    pub(super) holder: String,
    /// The shards that this worker looks after, as a set of bits.
    pub(super) shards: AtomicU64,
    /// A person has stopped everything.
    pub(super) paused: AtomicBool,
    /// This worker must be taken for dead: it begins nothing until a heartbeat gets through.
    pub(super) fenced: AtomicBool,
    /// When it last could have served a lane: a permit was free, and the throttles answered.
    pub(super) able_at: Mutex<Instant>,
    /// Jobs that were claimed and whose end is not written yet.
    pub(super) unwritten: Arc<AtomicUsize>,
    pub(super) bell: Arc<Bell>,
    /// What other people's servers answered and the throttles do not know yet.
    pub(super) answers: Answers,
    /// How the jobs of each throttle ended, for its governor.
    pub(super) tallies: Tallies,
    pub(super) ends: mpsc::Sender<End>,
    pub(super) differences: mpsc::Sender<Difference>,
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
            kinds: self.runs.names(),
        };
        self.queue.declare_kinds(&self.runs.public()).await?;
        let id = self.queue.register(&worker).await?;
        self.queue.offer(id, &self.offers).await?;
        self.worker_id.store(id, Ordering::Release);
        self.tallies.begin_again();
        Ok(())
    }

    /// Takes note that this worker can serve lanes.
    pub(super) fn able(&self) {
        *self.able_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_able(&self) -> bool {
        // While everything is paused there is nothing to serve, and nobody can do it better.
        let able_at = *self.able_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.paused.load(Ordering::Relaxed) || able_at.elapsed() < UNABLE_AFTER
    }

    /// True while leases of this identity are this worker's to run.
    pub(super) fn is_in_force(&self, worker_id: i32) -> bool {
        !self.fenced.load(Ordering::SeqCst) && self.worker_id.load(Ordering::Acquire) == worker_id
    }

    /// Renews this worker's part of the shards; or lets it go, where it cannot serve lanes and another worker can.
    pub(super) async fn hold_shards(&self) -> Result<(), Error> {
        let id = self.worker_id.load(Ordering::Acquire);
        let held = if !self.is_able() && self.queue.let_shards_go(id).await? {
            0
        } else {
            self.queue.hold_shards(id, SHARD_TTL).await?
        };
        if self.shards.swap(held, Ordering::Relaxed) != held {
            tracing::debug!(shards = held.count_ones(), "this worker's part of the shards has changed");
        }
        Ok(())
    }
}

/// What the finisher needs, apart from what must be gone before it ends.
pub(super) struct Backlog {
    pub(super) queue: Queue,
    pub(super) metrics: Metrics,
    pub(super) bell: Arc<Bell>,
    pub(super) unwritten: Arc<AtomicUsize>,
    pub(super) running: Running,
}

impl Backlog {
    /// Takes note that ends were written; the dispatcher may be waiting for that.
    pub(super) fn wrote(&self, ends: &[Finish]) {
        self.running.written(ends.iter().map(|end| (end.job_id, end.fence)));
        self.unwritten.fetch_sub(ends.len(), Ordering::AcqRel);
        self.running.ended.notify_one();
    }
}

/// Longest wait for an answer to whatever is asked of Postgres.
pub(super) fn patience(shared: &Shared) -> Duration {
    PATIENCE.min(shared.config.ttl / 2)
}

/// A connection can hang without a word, and whoever asked must not hang with it.
pub(super) async fn bounded<T>(shared: &Shared, asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let patience = patience(shared);
    let answer = tokio::time::timeout(patience, asked).await;
    answer.unwrap_or_else(|_| Err(Error::Lost(format!("no answer within {} s", patience.as_secs_f64()))))
}
