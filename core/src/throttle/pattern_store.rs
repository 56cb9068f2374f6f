//! A store that makes throttles on first use, from patterns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::admission::is_of_admission;
use super::caller_knobs::{fields_of_pattern, make_in, pattern_of};
use super::listing::Listing;
use super::rolling_window::WindowUsage;
use super::{
    AcquireRequest, AcquireResponse, Change, Error, Holder, KeyOutcomes, KeyState, Limit, Name,
    RateLimit, Refund, RefusalEffect, Status, Store, UpstreamRefusal, WrittenKnobs,
};

/// The shortest time between two warnings that throttles cannot be made, because each request for
/// one of them is a cause.
const WARNED_EVERY: Duration = Duration::from_secs(60);

/// A store that answers for throttles that do not exist by making them from the pattern that fits.
pub struct PatternStore {
    store: Arc<dyn Store>,
    made_max: usize,
    listing: Listing,
    warned: Mutex<Option<Instant>>,
}

impl PatternStore {
    /// Wraps `store`; with `made_max` throttles or more none is made.
    pub fn new(store: Arc<dyn Store>, made_max: usize) -> Self {
        Self {
            store,
            made_max,
            listing: Listing::default(),
            warned: Mutex::default(),
        }
    }

    /// Makes a throttle from the pattern that fits; returns false if none does.
    async fn make(&self, name: &Name) -> Result<bool, Error> {
        let patterns = self.listing.patterns(&*self.store).await?;
        let Some((pattern, knobs)) = pattern_of(&*self.store, name, &patterns).await? else {
            return Ok(false);
        };
        // Tenants are as many as an operator lets in, and counting all throttles takes time.
        if !is_of_admission(name.as_str()) {
            self.listing
                .admit(&*self.store, name, self.made_max)
                .await?;
        }
        make_in(&*self.store, name, pattern.as_str(), &knobs).await?;
        Ok(true)
    }

    /// Returns a change that makes a throttle together with the knobs of the pattern that fits and
    /// that it does not set itself; `None` if no pattern fits or the throttle exists. Without them a
    /// person who sets one knob of a throttle before its first use would remove the others.
    async fn with_pattern(&self, name: &Name, change: &Change) -> Result<Option<Change>, Error> {
        if !change.create || change.absent_only || name.is_pattern() {
            return Ok(None);
        }
        let patterns = self.listing.patterns(&*self.store).await?;
        let Some(mut fields) = fields_of_pattern(&*self.store, name, &patterns).await? else {
            return Ok(None);
        };
        fields.extend(change.fields.clone());
        Ok(Some(Change {
            fields,
            ..change.clone()
        }))
    }

    /// Returns true if an answer names a throttle that did not exist, and was made now.
    async fn was_made(&self, answer: &AcquireResponse) -> bool {
        let unknown = answer.lanes.iter().find_map(|lane| match &lane.limit {
            Some(Limit::Unknown { name }) => Some(name),
            _ => None,
        });
        let Some(name) = unknown else {
            return false;
        };
        match self.make(name).await {
            Ok(made) => made,
            Err(error) => {
                let now = Instant::now();
                let mut warned = self.warned.lock();
                if warned.is_none_or(|at| now.duration_since(at) >= WARNED_EVERY) {
                    *warned = Some(now);
                    tracing::warn!(throttle.name = %name, %error, "a throttle could not be made from its pattern");
                }
                false
            }
        }
    }

    /// Asks the store, and once more if the throttle was made meanwhile.
    async fn ask(
        &self,
        ask: &AcquireRequest,
        call: for<'b> fn(&'b dyn Store, &'b AcquireRequest) -> BoxFuture<'b, AcquireResponse>,
    ) -> AcquireResponse {
        let answer = call(&*self.store, ask).await;
        if self.was_made(&answer).await {
            return call(&*self.store, ask).await;
        }
        answer
    }
}

impl Store for PatternStore {
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.ask(ask, |store, ask| store.acquire(ask)).boxed()
    }

    fn hold<'a>(
        &'a self,
        throttle: &'a Name,
        holder: &'a Holder,
        lanes: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.hold(throttle, holder, lanes)
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

    fn refused<'a>(
        &'a self,
        throttle: &'a Name,
        refused: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        self.store.refused(throttle, refused)
    }

    fn ended<'a>(
        &'a self,
        throttle: &'a Name,
        ended: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.ended(throttle, ended)
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.ask(ask, |store, ask| store.peek(ask)).boxed()
    }

    fn acquire_and_peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.ask(ask, |store, ask| store.acquire_and_peek(ask))
            .boxed()
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

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        self.store.status(throttle)
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        self.store.names()
    }

    fn set<'a>(
        &'a self,
        throttle: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        async move {
            let inherited = self.with_pattern(throttle, change).await?;
            let change = inherited.as_ref().unwrap_or(change);
            self.store.set(throttle, change).await
        }
        .boxed()
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

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.store.search()
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.store.takes_writes()
    }

    fn persist<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        self.store.persist(throttle)
    }

    fn is_kept<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.is_kept(throttle)
    }

    fn set_workers(&self, workers: u32) {
        self.store.set_workers(workers)
    }
}
