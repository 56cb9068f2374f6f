//! State shared by the loops of one worker, and the configuration of a worker.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::TaskTracker;

use super::WorkerMetrics;
use super::completions::Completions;
use super::lane_scheduler::LaneScheduler;
use super::notifier::Notifier;
use super::remote::BrokerState;
use super::running::RunningJobs;
use super::runs::Runs;
use super::served::{Served, shards_of};
use super::settle::Difference;
use super::slots::RunSlots;
use super::tallies::Tallies;
use super::uncertain_claims::UncertainClaims;
use crate::jobs::postgres::{KindRetention, NewWorker, PgCheckpoints, Retention, within};
use crate::jobs::serving::{Serves, SharedSettings, differing_settings};
use crate::jobs::{Checkpoints, Error, Finish, Kinds, Queue, secret};
use crate::service::{DueWork, FailureLog};
use crate::throttle;
use crate::trace::Tracer;

/// Time for which a worker keeps its part of the shards without renewing it.
pub(super) const SHARD_TTL: Duration = Duration::from_secs(10);

/// Longest wait for an answer of Postgres; half of the worker's time to live, if that is less.
const POSTGRES_TIMEOUT: Duration = Duration::from_secs(15);

/// Time without the ability to serve any lane after which a worker releases its shards.
const UNABLE_AFTER: Duration = Duration::from_secs(2);

/// The remedy for settings that differ.
const DIFFERS: &str =
    "make them the same, or stop the other worker first; settings_may_differ = true lets both run";

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name for people; a number makes it unique.
    pub name: String,
    /// Most jobs that run at once. Jobs that end within milliseconds are claimed before one of them
    /// has ended.
    pub concurrency: usize,
    /// Most jobs claimed at once.
    pub batch: usize,
    /// Time without a heartbeat after which the worker counts as dead.
    pub ttl: Duration,
    /// Time for which running jobs may go on after the worker was asked to stop.
    pub grace: Duration,
    /// Retention of finished jobs and dead letters.
    pub retention: Retention,
    /// Kinds with a retention of their own: of finished jobs, and of dead letters.
    pub kind_retentions: Vec<KindRetention>,
    /// The jobs that the worker was told to serve. Kinds and pools are the handlers' to leave out.
    pub serves: Serves,
    /// Permission to start although settings differ from those of a live worker.
    pub may_differ: bool,
    /// The loops beside the worker that it wakes when there is work for them.
    pub due: DueWork,
    /// The maker of spans for attempts.
    pub tracer: Tracer,
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
            kind_retentions: Vec::new(),
            serves: Serves::default(),
            may_differ: false,
            due: DueWork::default(),
            tracer: Tracer::default(),
        }
    }
}

/// Most ended jobs that are kept for those that wait for them.
const ENDED_MAX: usize = 50_000;

/// The end of an attempt, with the lane to which its job returns if it is not over.
pub(super) struct FinishedRun {
    pub(super) finish: Finish,
    pub(super) lane_id: i64,
}

/// State shared by the loops of one worker.
pub(super) struct WorkerContext {
    pub(super) config: Config,
    pub(super) queue: Queue,
    pub(super) throttles: Arc<dyn throttle::Store>,
    pub(super) checkpoints: Arc<dyn Checkpoints>,
    pub(super) runs: Runs,
    /// Capabilities of this worker besides its kinds.
    pub(super) capabilities: BTreeMap<String, String>,
    /// Settings that all workers must share.
    pub(super) settings: SharedSettings,
    pub(super) served: Served,
    pub(super) metrics: WorkerMetrics,
    pub(super) running: RunningJobs,
    pub(super) slots: RunSlots,
    pub(super) uncertain_claims: UncertainClaims,
    pub(super) worker_id: AtomicI32,
    /// Identity of this start of the worker in the throttles' counts of running jobs.
    pub(super) holder: String,
    /// The shards that this worker looks after, as a bit set.
    pub(super) shards: AtomicU64,
    /// The mark of the live workers at the last poll, 0 before the first one.
    pub(super) workers_mark: AtomicI64,
    /// True while a person has paused everything.
    pub(super) paused: AtomicBool,
    /// True while other workers may take this one for dead: it begins nothing until a heartbeat
    /// gets through.
    pub(super) fenced: AtomicBool,
    /// The last time at which a lane could be served: a permit was free, and the throttles
    /// answered.
    pub(super) able_at: Mutex<Instant>,
    /// Claimed jobs whose end is not written yet.
    pub(super) unwritten: Arc<AtomicUsize>,
    /// Rings when the dispatcher can claim nothing before ends are written.
    pub(super) room_wanted: Arc<Notify>,
    pub(super) notifier: Arc<Notifier>,
    /// Answers of receivers that are not reported to the throttles yet.
    pub(super) answers: Completions,
    /// The lanes in which messages wait for admission.
    pub(super) admissions: Mutex<LaneScheduler>,
    /// Rings when messages may wait for admission.
    pub(super) admission_work: Notify,
    /// Counts of ended jobs by throttle, for the governor.
    pub(super) tallies: Tallies,
    pub(super) ends: mpsc::Sender<FinishedRun>,
    pub(super) differences: mpsc::Sender<Difference>,
    pub(super) tasks: TaskTracker,
    /// The state of a broker, which hands its jobs to remote workers; `None` for a worker that runs
    /// them.
    pub(super) broker: Option<BrokerState>,
}

impl WorkerContext {
    /// Creates the state of a worker that is not registered yet.
    pub(super) fn new(
        config: Config,
        queue: Queue,
        throttles: Arc<dyn throttle::Store>,
        kinds: Kinds,
        metrics: WorkerMetrics,
        (ends, differences): (mpsc::Sender<FinishedRun>, mpsc::Sender<Difference>),
    ) -> Self {
        let mut capabilities = kinds.capabilities();
        let keys = queue.secret_keys().capabilities();
        capabilities.extend(keys.map(|capability| (capability, String::new())));
        Self {
            checkpoints: Arc::new(PgCheckpoints::new(queue.pool.clone())),
            notifier: Arc::new(Notifier::new(queue.activity().clone())),
            queue,
            throttles,
            capabilities,
            settings: kinds.settings(),
            served: Served::new(config.serves.clone()),
            runs: Runs::new(kinds, &metrics),
            metrics,
            running: RunningJobs::default(),
            slots: RunSlots::new(config.concurrency),
            uncertain_claims: UncertainClaims::default(),
            worker_id: AtomicI32::new(0),
            holder: format!("{:016x}", rand::random::<u64>()),
            shards: AtomicU64::new(0),
            workers_mark: AtomicI64::new(0),
            paused: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            able_at: Mutex::new(Instant::now()),
            unwritten: Arc::default(),
            room_wanted: Arc::default(),
            answers: Completions::default(),
            admissions: Mutex::new(LaneScheduler::new(String::new(), config.ttl)),
            admission_work: Notify::new(),
            tallies: Tallies::default(),
            ends,
            differences,
            tasks: TaskTracker::new(),
            broker: None,
            config,
        }
    }

    /// Registers the worker under a fresh identity.
    pub(super) async fn register(&self) -> Result<(), Error> {
        let host = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        let pid = std::process::id() as i32;
        if let Some(broker) = &self.broker {
            let (name, ttl) = (&self.config.name, self.config.ttl);
            let id = self
                .queue
                .register_broker(name, (&host, pid), ttl, &broker.offer, &self.capabilities)
                .await?;
            self.worker_id.store(id, Ordering::Release);
            self.tallies.begin_again();
            return Ok(());
        }
        let worker = NewWorker {
            name: self.config.name.clone(),
            host,
            pid,
            ttl: self.config.ttl,
            kinds: self.runs.names().to_vec(),
        };
        self.queue.declare_kinds(&self.runs.public()).await?;
        for kept in &self.config.kind_retentions {
            self.queue
                .set_retention(&kept.kind, kept.finished, kept.dead)
                .await?;
        }
        let id = self.queue.register(&worker).await?;
        let told = &self.config.serves.throttles;
        self.queue
            .offer(id, &self.capabilities, &self.settings, told)
            .await?;
        self.worker_id.store(id, Ordering::Release);
        self.tallies.begin_again();
        Ok(())
    }

    /// Returns the settings of which a live worker has another value, one phrase each.
    pub(super) async fn differing_settings(&self) -> Result<Vec<String>, Error> {
        let worker_id = self.worker_id.load(Ordering::Acquire);
        let subjects: Vec<String> = self.settings.keys().cloned().collect();
        let others = self.queue.settings_of_others(worker_id, &subjects).await?;
        Ok(differing_settings(&self.settings, &others))
    }

    /// Refuses to start, or warns, if settings differ from those of a live worker.
    pub(super) async fn refuse_to_differ(&self) -> Result<(), Error> {
        let differing = self.differing_settings().await?;
        if differing.is_empty() {
            return Ok(());
        }
        let differing = differing.join("; ");
        if self.config.may_differ {
            tracing::warn!("settings differ from those of other workers: {differing}");
            return Ok(());
        }
        let worker_id = self.worker_id.load(Ordering::Acquire);
        self.queue.retire(worker_id).await?;
        Err(Error::Refused {
            index: None,
            field: "settings".to_owned(),
            message: format!("{differing}; {DIFFERS}"),
        })
    }

    /// Returns the capabilities that a job of a kind of this worker needs.
    pub(super) fn needs(&self, kind: &str, args: &Value) -> Vec<String> {
        let Some(known) = self.runs.get(kind) else {
            return Vec::new();
        };
        // A panic here is expected to happen again in the run, where it is recorded.
        let needs = AssertUnwindSafe(|| known.handler.needs(args));
        let mut needs = std::panic::catch_unwind(needs).unwrap_or_default();
        needs.extend(secret::needs(args));
        needs
    }

    /// Returns true if this worker serves a job of the throttle and kind; notes it otherwise.
    pub(super) fn serves_job(&self, throttle: &str, kind: &str, args: Option<&Value>) -> bool {
        let needs = args.map_or_else(Vec::new, |args| self.needs(kind, args));
        let has = |need: &String| self.capabilities.contains_key(need);
        let serves = self.runs.get(kind).is_some() && needs.iter().all(has);
        if !serves {
            self.served.met(throttle, kind, &needs, Instant::now());
        }
        serves
    }

    /// Returns true while this worker must begin nothing, because a person has paused everything or
    /// because others may take it for dead.
    pub(super) fn is_halted(&self) -> bool {
        self.paused.load(Ordering::Relaxed) || self.fenced.load(Ordering::SeqCst)
    }

    /// Returns true while nothing happens in the queue. A broker hears no rings, so it never knows.
    pub(super) fn is_quiet(&self) -> bool {
        self.broker.is_none() && self.queue.activity().is_quiet(Instant::now())
    }

    /// Records that this worker can serve lanes.
    pub(super) fn able(&self) {
        *self.able_at.lock() = Instant::now();
    }

    fn is_able(&self) -> bool {
        // While everything is paused there is nothing to serve, and no other worker could do
        // better.
        let able_at = *self.able_at.lock();
        self.paused.load(Ordering::Relaxed) || able_at.elapsed() < UNABLE_AFTER
    }

    /// Returns true while this worker may run jobs leased under this identity.
    pub(super) fn is_in_force(&self, worker_id: i32) -> bool {
        !self.fenced.load(Ordering::SeqCst) && self.worker_id.load(Ordering::Acquire) == worker_id
    }

    /// Renews this worker's part of the shards, or releases it if this worker cannot serve lanes
    /// and another one can. A worker that serves only some of the jobs divides all lanes with those
    /// that serve the same.
    pub(super) async fn hold_shards(&self) -> Result<(), Error> {
        let id = self.worker_id.load(Ordering::Acquire);
        let now = Instant::now();
        if self.served.take_note(now) {
            self.queue.note_met_unserved(id).await?;
        }
        let mark = self.workers_mark.load(Ordering::Relaxed);
        let rank = match self.served.rank_of(id, mark, now) {
            Some(rank) => rank,
            None => {
                let live = self.queue.serving().await?;
                self.served.compare(id, live, mark, now)
            }
        };
        let held = if let Some(rank) = rank {
            self.queue.leave_shards(id).await?;
            shards_of(rank)
        } else if !self.is_able() && self.queue.let_shards_go(id).await? {
            0
        } else {
            self.queue.hold_shards(id, SHARD_TTL).await?
        };
        if self.shards.swap(held, Ordering::Relaxed) != held {
            tracing::debug!(
                shards = held.count_ones(),
                "the shards of this worker changed"
            );
        }
        Ok(())
    }
}

/// The finisher's part of the shared state, without the senders that must be dropped before it
/// ends.
pub(super) struct Backlog {
    pub(super) queue: Queue,
    pub(super) metrics: WorkerMetrics,
    pub(super) notifier: Arc<Notifier>,
    pub(super) unwritten: Arc<AtomicUsize>,
    pub(super) room_wanted: Arc<Notify>,
    pub(super) running: RunningJobs,
    /// Wakes the loop that settles groups.
    pub(super) members_ended: Arc<Notify>,
    /// The jobs that ended, for the loop that frees those that wait for them.
    pub(super) ended: Arc<EndedJobs>,
    /// The failures to write ends, of all writers.
    pub(super) failures: Mutex<FailureLog>,
}

/// Jobs that ended here, while jobs wait for others at all.
#[derive(Default)]
pub(super) struct EndedJobs {
    is_awaited: AtomicBool,
    ids: Mutex<Vec<i64>>,
    pub(super) wake: Arc<Notify>,
}

impl EndedJobs {
    /// Notes jobs whose attempts ended. Those beyond a bound are found by the check of all.
    pub(super) fn note(&self, ids: &[i64]) {
        if !self.is_awaited() {
            return;
        }
        let mut noted = self.ids.lock();
        let room = ENDED_MAX.saturating_sub(noted.len());
        noted.extend(ids.iter().take(room));
        self.wake.notify_one();
    }

    /// Returns the jobs noted since the last call.
    pub(super) fn take(&self) -> Vec<i64> {
        std::mem::take(&mut *self.ids.lock())
    }

    /// Returns true while jobs wait for others.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    /// Records whether jobs wait for others at all.
    pub(super) fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.store(is_awaited, Ordering::Relaxed);
    }
}

impl Backlog {
    /// Records that ends were written, and wakes the dispatcher, which may wait for that.
    pub(super) fn wrote(&self, ends: &[Finish]) {
        self.running
            .written(ends.iter().map(|end| (end.job_id, end.fence)));
        self.unwritten.fetch_sub(ends.len(), Ordering::AcqRel);
        self.queue.activity().note(Instant::now());
        self.running.ended.notify_one();
    }
}

/// Returns the longest wait for an answer of Postgres.
pub(super) fn postgres_timeout(shared: &WorkerContext) -> Duration {
    POSTGRES_TIMEOUT.min(shared.config.ttl / 2)
}

/// Bounds a request to Postgres by the longest wait of this worker.
pub(super) async fn bounded<T>(
    shared: &WorkerContext,
    requested: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    within(postgres_timeout(shared), requested).await
}
