//! The brokers of a process, one for each set of jobs that remote workers ask for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::broker_state::BrokerState;
use super::kind;
use super::leases::{self, EndingLeases};
use super::worker_names::WorkerNames;
use crate::jobs::postgres::{HeldLease, RemoteRow};
use crate::jobs::remote::{
    LeaseState, PresentedLease, RemoteBeat, RemoteClaim, RemoteEnd, RemoteError, RemoteJob,
    RemoteOffer, RemoteWorkers,
};
use crate::jobs::{Queue, State, Tuning};
use crate::runner::WorkerMetrics;
use crate::runner::shared::{Config, WorkerContext, bounded};
use crate::service::TaskSupervisor;
use crate::throttle::Store;

/// The most brokers of a process. Each costs about as much as an idle worker.
const BROKERS_MAX: usize = 64;

/// The most brokers of one tenant, so that it leaves some to the others.
const BROKERS_OF_TENANT_MAX: usize = 16;

/// The time after which a broker without claims and jobs makes room for another one, although its
/// workers may come back. Their next claim starts it again.
const UNUSED: Duration = Duration::from_secs(10);

/// The time that a claim waits at least, so that jobs can be looked for.
const WAIT_MIN: Duration = Duration::from_millis(500);

/// The time by which a worker may exceed its own times before it counts as gone.
const SLACK: Duration = Duration::from_secs(10);

/// The interval at which idle brokers are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// The longest wait for jobs that are on their way when the wait of a claim is over.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(20);

/// The brokers of a process.
pub struct Brokers {
    config: Config,
    queue: Queue,
    throttles: Arc<dyn Store>,
    metrics: WorkerMetrics,
    tunings: BTreeMap<String, Tuning>,
    own_kinds: Vec<String>,
    brokers: Mutex<HashMap<RemoteOffer, Broker>>,
    /// Held while a broker starts, so that no two start for one offer.
    starting: tokio::sync::Mutex<()>,
    ending: EndingLeases,
    names: Mutex<WorkerNames>,
    vital: TaskSupervisor,
    cancel: CancellationToken,
}

impl Brokers {
    /// Creates the service without a broker. `own_kinds` are those that are never handed out.
    pub fn new(
        config: Config,
        (queue, throttles): (Queue, Arc<dyn Store>),
        metrics: WorkerMetrics,
        tunings: BTreeMap<String, Tuning>,
        own_kinds: Vec<String>,
        cancel: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            queue,
            throttles,
            metrics,
            tunings,
            own_kinds,
            brokers: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
            ending: EndingLeases::default(),
            names: Mutex::default(),
            vital: TaskSupervisor::default(),
            cancel,
        })
    }

    /// Stops brokers that nobody needs any more, and all of them when the process stops. Ends early
    /// if a loop of a broker dies.
    pub async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => break,
                name = self.vital.lost() => {
                    tracing::error!(service = name, "a loop for remote workers died");
                    return;
                }
                () = tokio::time::sleep(TIDY_EVERY) => {}
            }
            self.show();
            self.stop_brokers(false).await;
        }
        let _starting = self.starting.lock().await;
        self.stop_brokers(true).await;
    }

    fn show(&self) {
        let brokers = self.brokers.lock();
        let states = || {
            brokers
                .values()
                .filter_map(|broker| broker.shared.broker.as_ref())
        };
        let jobs: usize = states().map(BrokerState::counted).sum();
        let waiting: usize = states().map(|state| state.polls.len()).sum();
        self.metrics.remote.jobs.set(jobs as i64);
        self.metrics.remote.waiting.set(waiting as i64);
    }

    /// Stops the brokers without workers and jobs, or `all`.
    async fn stop_brokers(&self, all: bool) {
        let now = Instant::now();
        let is_over = |broker: &Broker| {
            broker
                .shared
                .broker
                .as_ref()
                .is_none_or(|state| (all || state.is_idle(now)) && state.polls.close(all))
        };
        let over: Vec<Broker> = {
            let mut brokers = self.brokers.lock();
            brokers
                .extract_if(|_, broker| is_over(&*broker))
                .map(|(_, broker)| broker)
                .collect()
        };
        join_all(over.into_iter().map(Broker::stop)).await;
    }

    /// Returns the broker of an offer, and starts it if there is none.
    async fn broker(&self, offer: &RemoteOffer) -> Result<Arc<WorkerContext>, RemoteError> {
        let known = || {
            let brokers = self.brokers.lock();
            brokers.get(offer).map(|broker| broker.shared.clone())
        };
        if let Some(broker) = known() {
            return Ok(broker);
        }
        let _starting = self.starting.lock().await;
        if let Some(broker) = known() {
            return Ok(broker);
        }
        if self.cancel.is_cancelled() {
            return Err(stopping());
        }
        self.make_room(offer.tenant.as_deref()).await?;
        let kinds = kind::kinds(&offer.kinds, &self.tunings);
        let broker = Broker::start(
            offer.clone(),
            kinds,
            (self.config.clone(), self.queue.clone()),
            self.throttles.clone(),
            self.metrics.clone(),
            &self.vital,
        )
        .await?;
        let shared = broker.shared.clone();
        if let Some(state) = &shared.broker {
            let now = Instant::now();
            state.seen(now, now + SLACK);
        }
        self.brokers.lock().insert(offer.clone(), broker);
        Ok(shared)
    }

    /// Makes room for another broker of a tenant. If the process or the tenant has as many as it may,
    /// the one that has been unused for longest is stopped.
    async fn make_room(&self, tenant: Option<&str>) -> Result<(), RemoteError> {
        let (spare, has_share) = {
            let mut brokers = self.brokers.lock();
            let is_own = |offer: &RemoteOffer| offer.tenant.as_deref() == tenant;
            let own = brokers.keys().filter(|offer| is_own(offer)).count();
            let has_share = tenant.is_some() && own >= BROKERS_OF_TENANT_MAX;
            if !has_share && brokers.len() < BROKERS_MAX {
                return Ok(());
            }
            let longest = brokers
                .iter()
                .filter(|(offer, _)| !has_share || is_own(offer))
                .filter_map(|(offer, broker)| {
                    let state = broker.shared.broker.as_ref()?;
                    let since = state.unused_since()?;
                    (since.elapsed() >= UNUSED).then_some((since, offer, state))
                })
                .min_by_key(|(since, _, _)| *since)
                // A claim may have come in between.
                .filter(|(_, _, state)| state.polls.close(false))
                .map(|(_, offer, _)| offer.clone());
            (longest.and_then(|offer| brokers.remove(&offer)), has_share)
        };
        let Some(spare) = spare else {
            let (most, whose) = match has_share {
                true => (BROKERS_OF_TENANT_MAX, " of this tenant"),
                false => (BROKERS_MAX, ""),
            };
            return Err(RemoteError::Unavailable(format!(
                "this process serves {most} different sets of kinds and throttles{whose} already; ask for the same in all workers of one program"
            )));
        };
        spare.stop().await;
        Ok(())
    }

    /// Returns the broker of an offer or, if this process has as many as it can, another one: a
    /// heartbeat or an ending is never refused for that.
    async fn any_broker(&self, offer: &RemoteOffer) -> Result<Arc<WorkerContext>, RemoteError> {
        match self.broker(offer).await {
            Err(RemoteError::Unavailable(reason)) => {
                let other = self
                    .brokers
                    .lock()
                    .values()
                    .next()
                    .map(|broker| broker.shared.clone());
                other.ok_or(RemoteError::Unavailable(reason))
            }
            broker => broker,
        }
    }

    /// Returns the broker under which a job ends: the one that counts it, if it is in this process,
    /// or else that of the last claim of its worker, which may have asked for other jobs since.
    async fn broker_of(&self, held: &HeldLease) -> Result<Arc<WorkerContext>, RemoteError> {
        let run = (held.job.id, held.job.fence);
        let counting = {
            let brokers = self.brokers.lock();
            let mut contexts = brokers.values().map(|broker| &broker.shared);
            let counts = |shared: &&Arc<WorkerContext>| {
                let state = shared.broker.as_ref();
                state.is_some_and(|state| state.counts(run))
            };
            contexts.find(counts).cloned()
        };
        match counting {
            Some(shared) => Ok(shared),
            None => self.any_broker(&held.offer).await,
        }
    }

    async fn claim_now(&self, claim: RemoteClaim) -> Result<(i32, Vec<RemoteJob>), RemoteError> {
        let wait = claim.wait.max(WAIT_MIN);
        let ttl = claim.lease.max(wait) + SLACK;
        if let Some(tenant) = &claim.offer.tenant {
            let now = Instant::now();
            let mut names = self.names.lock();
            if !names.admit(tenant, &claim.worker, now, now + ttl) {
                return Err(RemoteError::Unavailable(
                    "the workers of this tenant have had too many names lately; a process keeps its own for all of its claims"
                        .to_owned(),
                ));
            }
        }
        let row = RemoteRow {
            name: &claim.worker,
            host: &claim.host,
            offer: &claim.offer,
            ttl,
        };
        let (shared, worker_id, waiting) = loop {
            let shared = self.broker(&claim.offer).await?;
            let worker_id = bounded(&shared, self.queue.register_remote(row)).await?;
            let Some(state) = &shared.broker else {
                return Err(stopping());
            };
            let now = Instant::now();
            state.seen(now, now + ttl);
            let limit = claim.limit as usize;
            if let Some(waiting) = state.polls.push(worker_id, claim.lease, limit) {
                break (shared.clone(), worker_id, waiting);
            }
            if self.cancel.is_cancelled() {
                return Err(stopping());
            }
            // The broker is being stopped, and the next round starts another.
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        shared.running.ended.notify_one();
        let (number, mut jobs) = (waiting.number, waiting.jobs);
        let in_time = tokio::select! {
            jobs = &mut jobs => Some(jobs),
            () = tokio::time::sleep(wait) => None,
            () = self.cancel.cancelled() => None,
        };
        let answer = match (in_time, &shared.broker) {
            (Some(jobs), _) => jobs,
            (None, Some(state)) if state.polls.remove(number) => Ok(Vec::new()),
            (None, _) => {
                let late = tokio::time::timeout(HAND_OVER_TIMEOUT, jobs).await;
                late.unwrap_or_else(|_| Ok(Vec::new()))
            }
        };
        if let Some(state) = &shared.broker {
            let now = Instant::now();
            state.seen(now, now);
        }
        // A broker that stops answers nobody.
        Ok((worker_id, answer.unwrap_or_default()))
    }

    async fn beat_now(
        &self,
        lease: PresentedLease,
        beat: RemoteBeat,
    ) -> Result<LeaseState, RemoteError> {
        let Some((state, is_counted)) = self.queue.beat_lease(&lease, &beat).await? else {
            return Err(self.lost());
        };
        if !is_counted && let Some(held) = self.queue.held_lease(&lease).await? {
            // Its broker is gone; one of this process takes over the count.
            self.any_broker(&held.offer).await?;
        }
        Ok(state)
    }

    async fn end_now(&self, lease: PresentedLease, end: RemoteEnd) -> Result<State, RemoteError> {
        let Some(_judged) = self.ending.begin((lease.job_id, lease.fence)) else {
            return Err(RemoteError::Unavailable(
                "another report that ends this lease is being carried out; send this one again"
                    .to_owned(),
            ));
        };
        let Some(held) = self.queue.held_lease(&lease).await? else {
            return Err(self.lost());
        };
        let shared = self.broker_of(&held).await?;
        let kinds = kind::kinds(std::slice::from_ref(&held.job.kind), &self.tunings);
        let ended = leases::end(&shared, held, &kinds, end, lease.tenant.as_deref()).await;
        match ended {
            Err(RemoteError::LeaseLost) => Err(self.lost()),
            ended => ended,
        }
    }

    fn lost(&self) -> RemoteError {
        self.metrics.remote.lost.inc();
        RemoteError::LeaseLost
    }
}

fn stopping() -> RemoteError {
    RemoteError::Unavailable("this process is stopping; ask again".to_owned())
}

impl RemoteWorkers for Brokers {
    fn own_kinds(&self) -> &[String] {
        &self.own_kinds
    }

    fn claim(
        &self,
        claim: RemoteClaim,
    ) -> BoxFuture<'_, Result<(i32, Vec<RemoteJob>), RemoteError>> {
        Box::pin(self.claim_now(claim))
    }

    fn beat(
        &self,
        lease: PresentedLease,
        beat: RemoteBeat,
    ) -> BoxFuture<'_, Result<LeaseState, RemoteError>> {
        Box::pin(self.beat_now(lease, beat))
    }

    fn end(
        &self,
        lease: PresentedLease,
        end: RemoteEnd,
    ) -> BoxFuture<'_, Result<State, RemoteError>> {
        Box::pin(self.end_now(lease, end))
    }
}
