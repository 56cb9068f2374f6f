//! A store of throttles that shows the test what workers ask and how they are answered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::throttle::rolling_window::WindowUsage;
use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Error, Holder, KeyOutcomes, KeyState, Name, RateLimit,
    Refund, RefusalEffect, Status, Store, UpstreamRefusal, WrittenKnobs,
};
use futures_util::future::BoxFuture;

use super::eventually;

const SOON: Duration = Duration::from_secs(60);

/// A call before a change of knobs.
type BeforeSet = Box<dyn Fn(&Change) + Send + Sync>;

/// A store that passes every call on, and calls `observe` with each ask for tokens and its answer.
pub struct ObservedStore<F> {
    store: Arc<dyn Store>,
    observe: F,
    lists: AtomicUsize,
    before_set: Option<BeforeSet>,
    upstream: Arc<AtomicUsize>,
    away: Option<Name>,
}

impl<F> ObservedStore<F>
where
    F: Fn(&AcquireRequest, &AcquireResponse) + Send + Sync + 'static,
{
    pub fn new(store: Arc<dyn Store>, observe: F) -> Self {
        Self {
            store,
            observe,
            lists: AtomicUsize::new(0),
            before_set: None,
            upstream: Arc::default(),
            away: None,
        }
    }

    /// Returns the number of lists of all throttles that were asked for so far.
    pub fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }

    /// Calls `act` with each change of knobs before it is passed on, as if somebody else were
    /// faster.
    #[must_use]
    pub fn before_set(mut self, act: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.before_set = Some(Box::new(act));
        self
    }

    /// Fails each look at the status of `throttle`, as if its server were away.
    pub fn without(mut self, throttle: &Name) -> Self {
        self.away = Some(throttle.clone());
        self
    }
}

/// A worker, a throttle, and a key.
type Asked = (usize, String, String);

/// Counts of the asks for a lane that were refused, by worker, throttle and key.
#[derive(Clone, Default)]
pub struct Refusals {
    counts: Arc<Mutex<HashMap<Asked, usize>>>,
    workers: Arc<AtomicUsize>,
    /// The refusals by receivers that were reported.
    pub upstream: Arc<AtomicUsize>,
}

impl Refusals {
    /// Returns the store of one worker, whose refused asks are counted.
    pub fn of(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let (worker, counts) = (
            self.workers.fetch_add(1, Ordering::SeqCst),
            self.counts.clone(),
        );
        let mut observed = ObservedStore::new(
            store,
            move |ask: &AcquireRequest, answer: &AcquireResponse| {
                let mut counts = counts.lock().expect("the counts");
                let lanes = ask.lanes.iter().zip(&answer.lanes);
                for (lane, _) in lanes.filter(|(_, grant)| grant.granted == 0) {
                    let asked = (worker, ask.throttle.to_string(), lane.key.clone());
                    *counts.entry(asked).or_default() += 1;
                }
            },
        );
        observed.upstream = self.upstream.clone();
        Arc::new(observed)
    }

    /// Returns the number of asks for a lane that were refused so far.
    pub fn count(&self, throttle: &str, key: &str) -> usize {
        let counts = self.counts.lock().expect("the counts");
        let of_lane = counts
            .iter()
            .filter(|(asked, _)| &*asked.1 == throttle && &*asked.2 == key);
        of_lane.map(|(_, count)| count).sum()
    }

    /// Waits until a worker has been refused the lane twice more. It sent the second ask after this
    /// call, so a job that it could begin by now has begun.
    pub async fn again(&self, throttle: &str, key: &str) {
        self.again_one_of(throttle, &[key]).await;
    }

    /// Waits as [`again`](Self::again) does for one of these lanes. A throttle that has no token left
    /// is asked for the lane whose turn it is alone.
    pub async fn again_one_of(&self, throttle: &str, keys: &[&str]) {
        let counts = || self.counts.lock().expect("the counts").clone();
        let before = counts();
        let what = format!("{throttle} {keys:?} is asked for in vain");
        eventually(&what, SOON, || async {
            counts()
                .into_iter()
                .any(|(asked, count)| {
                    &*asked.1 == throttle
                        && keys.contains(&&*asked.2)
                        && count >= before.get(&asked).unwrap_or(&0) + 2
                })
                .then_some(())
        })
        .await;
    }
}

impl<F> Store for ObservedStore<F>
where
    F: Fn(&AcquireRequest, &AcquireResponse) + Send + Sync + 'static,
{
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        Box::pin(async move {
            let answer = self.store.acquire(ask).await;
            (self.observe)(ask, &answer);
            answer
        })
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.store.peek(ask)
    }

    fn acquire_and_peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.store.acquire_and_peek(ask)
    }

    fn written_knobs<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<WrittenKnobs>, Error>>> {
        self.store.written_knobs(names)
    }

    fn statuses<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<Status>, Error>>> {
        self.store.statuses(names)
    }

    fn hold<'a>(
        &'a self,
        throttle: &'a Name,
        holder: &'a Holder,
        lanes: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.hold(throttle, holder, lanes)
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.store.takes_writes()
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.store.search()
    }

    fn persist<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        self.store.persist(throttle)
    }

    fn is_kept<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.is_kept(throttle)
    }

    fn refused<'a>(
        &'a self,
        throttle: &'a Name,
        refused: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        self.upstream.fetch_add(1, Ordering::SeqCst);
        self.store.refused(throttle, refused)
    }

    fn ended<'a>(
        &'a self,
        throttle: &'a Name,
        ended: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.ended(throttle, ended)
    }

    fn refund_many<'a>(
        &'a self,
        throttle: &'a Name,
        refunds: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.refund_many(throttle, refunds)
    }

    fn settle_many<'a>(
        &'a self,
        throttle: &'a Name,
        tokens: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.settle_many(throttle, tokens)
    }

    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        self.store.pause_key(throttle, key, delay, why)
    }

    fn resume_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.resume_key(throttle, key)
    }

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        if self.away.as_ref() == Some(throttle) {
            return Box::pin(async { Err(Error::Lost("the server is away".to_owned())) });
        }
        self.store.status(throttle)
    }

    fn window_usage<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<WindowUsage>, Error>> {
        self.store.window_usage(throttle, key)
    }

    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.delete(throttle)
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.store.names()
    }

    fn set<'a>(
        &'a self,
        throttle: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        if let Some(act) = &self.before_set {
            act(change);
        }
        self.store.set(throttle, change)
    }

    fn set_capacity<'a>(
        &'a self,
        throttle: &'a Name,
        capacity: RateLimit,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.set_capacity(throttle, capacity, why)
    }

    fn look<'a>(
        &'a self,
        throttle: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>> {
        self.store.look(throttle, keys)
    }

    fn set_workers(&self, workers: u32) {
        self.store.set_workers(workers);
    }
}
