//! A store in front of another: asks for tokens alone are answered from leases if possible,
//! everything else passes through.
//!
//! Asks of a holder, which runs jobs, always pass, because a dispatcher asks for many lanes at once
//! and would gain nothing. A pause, a stop or a cut by another process thereby takes effect within
//! the horizon; one that goes through here, at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, ready};
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::lease::{Holding, LeaseRemainder, MAX_HORIZON, PendingLease};
use super::rolling_window::WindowUsage;
use super::{
    AcquireRequest, AcquireResponse, Change, Error, Grant, Holder, KeyOutcomes, KeyState,
    LaneRequest, Name, RateLimit, Refund, RefusalEffect, Status, Store, UpstreamRefusal,
    WrittenKnobs,
};

/// The number of throttles that are remembered.
const MAX_THROTTLES: usize = 10_000;

/// The source of the answers to asks for tokens alone.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReplySource {
    source: &'static str,
}

/// A store that answers asks from leases on another store.
pub struct LeasedStore {
    cache: Arc<LeaseCache>,
    asks: Family<ReplySource, Counter>,
    from_lease: Counter,
    from_store: Counter,
}

/// A clock of this process that only goes forward.
pub type Monotonic = Arc<dyn Fn() -> Instant + Send + Sync>;

/// The shared state, which outlives an ask, so that a lease is given back even after the last ask.
struct LeaseCache {
    store: Arc<dyn Store>,
    horizon: Duration,
    clock: Option<Monotonic>,
    workers: AtomicU32,
    holdings: Mutex<HashMap<Name, Holding>>,
}

impl LeasedStore {
    /// Wraps `store` and holds its tokens for `horizon`, at most [`MAX_HORIZON`]; zero leases
    /// nothing.
    pub fn new(store: Arc<dyn Store>, horizon: Duration) -> Self {
        Self::at(store, horizon, None)
    }

    /// Wraps `store` with the time from `clock`, for tests.
    pub fn with_clock(store: Arc<dyn Store>, horizon: Duration, clock: Monotonic) -> Self {
        Self::at(store, horizon, Some(clock))
    }

    fn at(store: Arc<dyn Store>, horizon: Duration, clock: Option<Monotonic>) -> Self {
        let cache = LeaseCache {
            store,
            horizon: horizon.min(MAX_HORIZON),
            clock,
            workers: AtomicU32::new(1),
            holdings: Mutex::default(),
        };
        let asks = Family::<ReplySource, Counter>::default();
        let by = |source| asks.get_or_create_owned(&ReplySource { source });
        Self {
            cache: Arc::new(cache),
            from_lease: by("lease"),
            from_store: by("store"),
            asks,
        }
    }

    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Token requests of this process without a job to run, by source of the answer";
        registry.register("flyball_token_requests", help, self.asks.clone());
    }

    /// Gives back everything held, for instance because the process ends.
    pub async fn give_back_all(&self) {
        for (throttle, rest) in self.cache.take_all() {
            self.cache.return_all(&throttle, &[rest]).await;
        }
    }
}

impl LeaseCache {
    fn locked(&self) -> MutexGuard<'_, HashMap<Name, Holding>> {
        self.holdings.lock()
    }

    fn now(&self) -> Instant {
        self.clock
            .as_ref()
            .map_or_else(Instant::now, |clock| clock())
    }

    fn spend(&self, ask: &AcquireRequest) -> Option<AcquireResponse> {
        let now = self.now();
        self.locked().get_mut(&ask.throttle)?.spend(&ask.lanes, now)
    }

    /// Takes tokens from the store, and looks at one more lane.
    async fn take(
        &self,
        ask: &AcquireRequest,
        peeked: Option<&LaneRequest>,
    ) -> (AcquireResponse, Option<Grant>) {
        let Some(peeked) = peeked else {
            return (self.store.acquire(ask).await, None);
        };
        let mut both = ask.clone();
        both.lanes.push(peeked.clone());
        let mut answer = self.store.acquire_and_peek(&both).await;
        let grant = answer.lanes.pop();
        (answer, grant)
    }

    /// Asks the store, and for a lease as well if one is due. Then the lane that is only to be
    /// looked at is left to the caller.
    async fn ask(
        self: &Arc<Self>,
        ask: &AcquireRequest,
        peeked: Option<&LaneRequest>,
    ) -> (AcquireResponse, Option<Grant>) {
        let begun = self.now();
        let Some(asking) = self.begin(ask, begun) else {
            return self.take(ask, peeked).await;
        };
        let mut under_way = PendingRequest {
            cache: self,
            throttle: &ask.throttle,
            asking,
            is_over: false,
        };
        let (mut answer, grant) = if asking.leased > 0 {
            let more = LaneRequest {
                want: asking.leased,
                ..LaneRequest::default()
            };
            let lanes = ask.lanes.iter().cloned().chain([more]).collect();
            let with_lease = AcquireRequest {
                throttle: ask.throttle.clone(),
                lanes,
                holder: None,
            };
            (self.store.acquire(&with_lease).await, None)
        } else {
            self.take(ask, peeked).await
        };
        under_way.is_over = true;
        let now = self.now();
        let rests = self
            .locked()
            .get_mut(&ask.throttle)
            .map(|one| one.answered(&asking, &ask.lanes, &mut answer, now));
        self.return_beside(&ask.throttle, rests.unwrap_or_default());
        if asking.leased > 0 {
            self.watch(ask.throttle.clone());
        }
        (answer, grant)
    }

    /// Begins an ask; returns `None` if nothing is leased, or no more throttles can be remembered.
    fn begin(&self, ask: &AcquireRequest, now: Instant) -> Option<PendingLease> {
        if self.horizon.is_zero() {
            return None;
        }
        let mut holdings = self.locked();
        let workers = self.workers.load(Ordering::Relaxed);
        if let Some(holding) = holdings.get_mut(&ask.throttle) {
            return Some(holding.ask(&ask.lanes, workers, now));
        }
        if holdings.len() >= MAX_THROTTLES {
            holdings.retain(|_, holding| !holding.is_idle(now));
        }
        if holdings.len() >= MAX_THROTTLES {
            return None;
        }
        let holding = holdings
            .entry(ask.throttle.clone())
            .or_insert_with(|| Holding::new(self.horizon, now));
        Some(holding.ask(&ask.lanes, workers, now))
    }

    /// Gives back the rest of a lease when its time is over.
    fn watch(self: &Arc<Self>, throttle: Name) {
        let cache = self.clone();
        let give_back = async move {
            tokio::time::sleep(cache.horizon).await;
            let now = cache.now();
            let rest = cache
                .locked()
                .get_mut(&throttle)
                .and_then(|holding| holding.over(now));
            if let Some(rest) = rest {
                cache.return_all(&throttle, &[rest]).await;
            }
        };
        tokio::spawn(give_back.boxed());
    }

    /// Gives back everything held, because a change concerns this process before others.
    fn let_all_go(self: &Arc<Self>) {
        for (throttle, rest) in self.take_all() {
            self.return_beside(&throttle, vec![rest]);
        }
    }

    fn take_all(&self) -> Vec<(Name, LeaseRemainder)> {
        self.locked()
            .iter_mut()
            .filter_map(|(name, holding)| Some((name.clone(), holding.let_go()?)))
            .collect()
    }

    /// Gives rests back in the background, so that no caller waits.
    fn return_beside(self: &Arc<Self>, throttle: &Name, rests: Vec<LeaseRemainder>) {
        if !rests.is_empty() {
            let (cache, throttle) = (self.clone(), throttle.clone());
            let give_back = async move { cache.return_all(&throttle, &rests).await };
            tokio::spawn(give_back.boxed());
        }
    }

    async fn return_all(&self, throttle: &Name, rests: &[LeaseRemainder]) {
        let refunds: Vec<Refund<'_>> = rests.iter().map(LeaseRemainder::refund).collect();
        // A lost rest only makes the throttle slower for a moment.
        if let Err(error) = self.store.refund_many(throttle, &refunds).await {
            tracing::debug!(throttle.name = %throttle, %error, "returning the rest of a lease failed");
        }
    }
}

/// A pending request; if it is abandoned, others may request a lease again.
struct PendingRequest<'a> {
    cache: &'a LeaseCache,
    throttle: &'a Name,
    asking: PendingLease,
    is_over: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.is_over
            && let Some(holding) = self.cache.locked().get_mut(self.throttle)
        {
            holding.given_up(&self.asking);
        }
    }
}

impl Store for LeasedStore {
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        if ask.holder.is_some() {
            return self.cache.store.acquire(ask);
        }
        if let Some(answer) = self.cache.spend(ask) {
            self.from_lease.inc();
            return ready(answer).boxed();
        }
        self.from_store.inc();
        async move { self.cache.ask(ask, None).await.0 }.boxed()
    }

    fn hold<'a>(
        &'a self,
        throttle: &'a Name,
        holder: &'a Holder,
        lanes: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.cache.store.hold(throttle, holder, lanes)
    }

    fn refund_many<'a>(
        &'a self,
        throttle: &'a Name,
        refunds: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.cache.store.refund_many(throttle, refunds)
    }

    fn settle_many<'a>(
        &'a self,
        throttle: &'a Name,
        tokens: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.cache.store.settle_many(throttle, tokens)
    }

    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        async move {
            let paused = self.cache.store.pause_key(throttle, key, delay, why).await;
            let rest = self
                .cache
                .locked()
                .get_mut(throttle)
                .and_then(Holding::let_go);
            self.cache
                .return_beside(throttle, rest.into_iter().collect());
            paused
        }
        .boxed()
    }

    fn resume_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.cache.store.resume_key(throttle, key)
    }

    fn refused<'a>(
        &'a self,
        throttle: &'a Name,
        refused: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        async move {
            let paused = self.cache.store.refused(throttle, refused).await;
            // The refusal may concern a throttle above this one, from which others draw.
            self.cache.let_all_go();
            paused
        }
        .boxed()
    }

    fn ended<'a>(
        &'a self,
        throttle: &'a Name,
        ended: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.cache.store.ended(throttle, ended)
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.cache.store.peek(ask)
    }

    fn acquire_and_peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        let Some((peeked, taken)) = ask.lanes.split_last() else {
            return self.acquire(ask);
        };
        let part = |lanes: &[LaneRequest]| AcquireRequest {
            throttle: ask.throttle.clone(),
            lanes: lanes.to_vec(),
            holder: None,
        };
        let (taken, looked) = (part(taken), part(std::slice::from_ref(peeked)));
        async move {
            let (mut answer, grant) = if let Some(answer) = self.cache.spend(&taken) {
                self.from_lease.inc();
                (answer, None)
            } else {
                self.from_store.inc();
                self.cache.ask(&taken, Some(peeked)).await
            };
            if let Some(grant) = grant {
                answer.lanes.push(grant);
            } else {
                let looked = self.cache.store.peek(&looked).await;
                answer.lanes.extend(looked.lanes);
                // A store that is lost by now has told nothing of that lane.
                answer.at_us = answer.at_us.min(looked.at_us);
            }
            answer
        }
        .boxed()
    }

    fn written_knobs<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<WrittenKnobs>, Error>>> {
        self.cache.store.written_knobs(names)
    }

    fn statuses<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<Status>, Error>>> {
        self.cache.store.statuses(names)
    }

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        self.cache.store.status(throttle)
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        self.cache.store.names()
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.cache.store.takes_writes()
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.cache.store.search()
    }

    fn persist<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        self.cache.store.persist(throttle)
    }

    fn is_kept<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        self.cache.store.is_kept(throttle)
    }

    fn set<'a>(
        &'a self,
        throttle: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        async move {
            let set = self.cache.store.set(throttle, change).await;
            // Other throttles may draw from this one, and their names are unknown here.
            self.cache.let_all_go();
            set
        }
        .boxed()
    }

    fn set_capacity<'a>(
        &'a self,
        throttle: &'a Name,
        capacity: RateLimit,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let set = self.cache.store.set_capacity(throttle, capacity, why).await;
            // The capacity is set every second or so: a stop takes effect at once, anything else
            // within the horizon.
            if capacity.is_stopped() {
                self.cache.let_all_go();
            }
            set
        }
        .boxed()
    }

    fn look<'a>(
        &'a self,
        throttle: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>> {
        self.cache.store.look(throttle, keys)
    }

    fn window_usage<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<WindowUsage>, Error>> {
        self.cache.store.window_usage(throttle, key)
    }

    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            let deleted = self.cache.store.delete(throttle).await;
            self.cache.let_all_go();
            deleted
        }
        .boxed()
    }

    fn set_workers(&self, workers: u32) {
        self.cache.workers.store(workers, Ordering::Relaxed);
        self.cache.store.set_workers(workers);
    }
}
