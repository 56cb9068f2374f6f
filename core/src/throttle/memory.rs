//! Throttles in the memory of one process, by the same law as in Redis: for tests, simulations and
//! examples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, join_all, ready};
use parking_lot::{Mutex, MutexGuard};

use super::bucket::{Bucket, UsageCounters};
use super::holds::Holds;
use super::knobs::MAX_COST;
use super::learned::Learned;
use super::rolling_window::{OpenWindow, WindowGrants, WindowUsage};
use super::store::capacity_text;
use super::throttle_refusal::ThrottleRefusal;
use super::{
    AcquireRequest, AcquireResponse, Change, Error, Holder, KeyOutcomes, KeyState, LaneRequest,
    Name, RateLimit, Refund, RefusalEffect, Scope, Status, Store, UpstreamRefusal, WrittenKnobs,
    tree,
};

mod acquire;
mod change;
mod keys;
mod knob_texts;
mod settle;

use knob_texts::KnobTexts;

/// A clock that returns unix microseconds.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// A [`Store`] that lives as long as the process.
pub struct MemoryStore {
    clock: Clock,
    throttles: Mutex<Throttles>,
}

type Throttles = BTreeMap<Name, Throttle>;

#[derive(Clone, Default)]
struct Throttle {
    raw: KnobTexts,
    bucket: Bucket,
    meter: UsageCounters,
    keys: BTreeMap<String, Bucket>,
    grants: Vec<WindowGrants>,
    key_grants: BTreeMap<String, Vec<WindowGrants>>,
    pauses: BTreeMap<String, (i64, String)>,
    refusal: Option<ThrottleRefusal>,
    learned: BTreeMap<String, (Learned, i64)>,
    holds: Holds,
    key_holds: BTreeMap<String, Holds>,
}

impl MemoryStore {
    /// Creates an empty store that takes its time from `clock`.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            throttles: Mutex::default(),
        }
    }

    /// Writes a field as a person with redis-cli would: unchecked and uncounted.
    pub fn write_raw(&self, throttle: &Name, field: &str, text: &str) {
        self.locked()
            .entry(throttle.clone())
            .or_default()
            .raw
            .insert(field.to_owned(), text.to_owned());
    }

    /// Removes a field as a person with redis-cli would; a hash without fields is gone.
    pub fn remove_raw(&self, throttle: &Name, field: &str) {
        if let Some(found) = self.locked().get_mut(throttle) {
            found.raw.remove(field);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Throttles> {
        self.throttles.lock()
    }

    fn now(&self) -> i64 {
        (self.clock)()
    }

    fn chain(throttles: &Throttles, leaf: &Name) -> Vec<Name> {
        let parent_of = |name: &Name| {
            let parent = throttles
                .get(name)
                .and_then(|throttle| throttle.raw.get("parent"));
            parent.cloned().unwrap_or_default()
        };
        tree::chain(leaf, parent_of)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    /// Returns the factor by which the costs of a throttle's jobs count.
    fn cost_factor(throttles: &Throttles, name: &Name) -> f64 {
        throttles
            .get(name)
            .map_or(1.0, |throttle| throttle.raw.knobs().cost_factor)
    }

    /// Returns the highest charged cost of one job in a chain.
    fn most(throttles: &Throttles, chain: &[Name], now: i64) -> f64 {
        let of = |name| {
            throttles.get(name).map_or(MAX_COST, |level: &Throttle| {
                level.raw.knobs().charged_cost(now)
            })
        };
        chain.iter().map(of).fold(MAX_COST, f64::min)
    }
}

/// Returns the name of a holder's report about a throttle, used there and at the levels above it.
fn who(holder: &Holder, throttle: &Name) -> String {
    format!("{}/{throttle}", holder.id)
}

fn put(raw: &mut BTreeMap<String, String>, field: &str, text: Option<String>) {
    match text {
        Some(text) => raw.insert(field.to_owned(), text),
        None => raw.remove(field),
    };
}

/// Returns the text of `parent` of every throttle, with `None` for parents that do not exist.
fn parents(throttles: &Throttles) -> BTreeMap<Name, Option<String>> {
    let exists = |name: &Name| {
        throttles
            .get(name)
            .is_some_and(|throttle| !throttle.raw.is_empty())
    };
    let named = |name: &Name| {
        throttles[name]
            .raw
            .get("parent")
            .cloned()
            .unwrap_or_default()
    };
    let known = throttles
        .keys()
        .filter(|name| exists(name))
        .map(|name| (name.clone(), Some(named(name))));
    let missing = throttles
        .keys()
        .filter_map(|name| Name::new(named(name)).ok())
        .filter(|name| !exists(name))
        .map(|name| (name, None));
    known.chain(missing).collect()
}

impl Store for MemoryStore {
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        ready(Self::ask(&mut self.locked(), ask, self.now())).boxed()
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        let mut copy = self.locked().clone();
        ready(Self::ask(&mut copy, ask, self.now())).boxed()
    }

    fn acquire_and_peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        let (mut throttles, now) = (self.locked(), self.now());
        let part = |lanes: &[LaneRequest]| AcquireRequest {
            throttle: ask.throttle.clone(),
            lanes: lanes.to_vec(),
            holder: None,
        };
        let (taken, peeked) = ask.lanes.split_at(ask.lanes.len().saturating_sub(1));
        let mut answer = Self::ask(&mut throttles, &part(taken), now);
        let mut copy = throttles.clone();
        let looked = Self::ask(&mut copy, &part(peeked), now);
        answer.lanes.extend(looked.lanes);
        ready(answer).boxed()
    }

    fn hold<'a>(
        &'a self,
        throttle: &'a Name,
        holder: &'a Holder,
        lanes: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        let (now_ms, ttl_ms, who) = (
            self.now().div_euclid(1000),
            holder.ttl_ms(),
            who(holder, throttle),
        );
        for name in Self::chain(throttles, throttle) {
            let Some(level) = throttles.get_mut(&name) else {
                continue;
            };
            let knobs = level.raw.knobs();
            if knobs.concurrency.is_some() {
                let held = level.holds.believed(&who, i64::from(holder.held), now_ms);
                level.holds.report(&who, held, now_ms, ttl_ms);
            }
            if knobs.key_concurrency.is_some() && name == *throttle {
                for (key, held) in lanes.iter().filter(|(key, _)| !key.is_empty()) {
                    let holds = level.key_holds.entry(key.clone()).or_default();
                    let held = holds.believed(&who, i64::from(*held), now_ms);
                    holds.report(&who, held, now_ms, ttl_ms);
                }
            }
        }
        ready(Ok(())).boxed()
    }

    fn refund_many<'a>(
        &'a self,
        throttle: &'a Name,
        refunds: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        for refund in refunds {
            Self::refund_one(throttles, throttle, refund);
        }
        ready(Ok(())).boxed()
    }

    fn settle_many<'a>(
        &'a self,
        throttle: &'a Name,
        tokens: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        let now = self.now();
        for (key, tokens) in tokens {
            if let Err(error) = Self::settle_one(throttles, throttle, key, *tokens, now) {
                return ready(Err(error)).boxed();
            }
        }
        ready(Ok(())).boxed()
    }

    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        let until_ms = self.now().div_euclid(1000)
            + delay.as_millis().min(super::refusal::MAX_PAUSE_MS) as i64;
        let mut throttles = self.locked();
        let until_ms = throttles
            .entry(throttle.clone())
            .or_default()
            .pause_key(key, until_ms, why);
        ready(Ok(until_ms)).boxed()
    }

    fn refused<'a>(
        &'a self,
        throttle: &'a Name,
        refused: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        let (mut throttles, now) = (self.locked(), self.now());
        let trusted = throttles
            .get(throttle)
            .map_or(Scope::Key, |known| known.raw.knobs().trust_scope);
        let scope = if refused.is_untrusted {
            refused.scope.narrower(trusted)
        } else {
            refused.scope
        };
        let refused = &UpstreamRefusal {
            scope,
            ..refused.clone()
        };
        let paused = match refused.level(&Self::chain(&throttles, throttle)) {
            None => throttles
                .entry(throttle.clone())
                .or_default()
                .refuse_key(refused, now),
            Some(level) => throttles
                .entry(level.clone())
                .or_default()
                .refuse(refused, now),
        };
        ready(Ok(paused)).boxed()
    }

    fn ended<'a>(
        &'a self,
        throttle: &'a Name,
        ended: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let (throttles, now) = (&mut *self.locked(), self.now());
        let sum = |units: fn(&KeyOutcomes<'_>) -> u32| {
            ended.iter().map(|one| f64::from(units(one))).sum::<f64>()
        };
        let (succeeded, failed) = (sum(|one| one.succeeded), sum(|one| one.failed));
        for name in Self::chain(throttles, throttle) {
            let Some(level) = throttles.get_mut(&name) else {
                continue;
            };
            if level
                .refusal
                .as_mut()
                .is_some_and(|refusal| refusal.answered(succeeded, failed, now as f64))
            {
                level.refusal = None;
            }
        }
        let leaf = throttles.entry(throttle.clone()).or_default();
        ended.iter().for_each(|one| leaf.learn(one, now));
        ready(Ok(())).boxed()
    }

    fn set_capacity<'a>(
        &'a self,
        throttle: &'a Name,
        capacity: RateLimit,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let (now, text) = (self.now(), capacity_text(capacity));
        let mut throttles = self.locked();
        let Some(known) = throttles
            .get_mut(throttle)
            .filter(|known| !known.raw.is_empty())
        else {
            return ready(Err(Error::Unknown(throttle.clone()))).boxed();
        };
        let why = text
            .is_some()
            .then(|| why.to_owned())
            .filter(|why| !why.is_empty());
        if known.raw.get("capacity") != text.as_ref()
            || known.raw.get("capacity_reason") != why.as_ref()
        {
            let was_stopped = known.raw.knobs().effective_rps(now).is_stopped();
            put(&mut known.raw, "capacity", text);
            put(&mut known.raw, "capacity_reason", why);
            let is_stopped =
                !known.raw.is_empty() && known.raw.knobs().effective_rps(now).is_stopped();
            if was_stopped || is_stopped {
                known.bucket.drain(now as f64, is_stopped);
            }
        }
        ready(Ok(())).boxed()
    }

    fn look<'a>(
        &'a self,
        throttle: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>> {
        let (throttles, now) = (self.locked(), self.now());
        let known = throttles.get(throttle);
        let state =
            |key: &String| known.map_or_else(KeyState::default, |known| known.look(key, now));
        ready(Ok(keys.iter().map(state).collect())).boxed()
    }

    fn window_usage<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<WindowUsage>, Error>> {
        let (throttles, now) = (self.locked(), self.now());
        let usage = throttles
            .get(throttle)
            .filter(|known| !known.raw.is_empty())
            .map(|known| {
                let knobs = known.raw.knobs();
                let of_key = known.key_grants.get(key).map_or(&[][..], Vec::as_slice);
                WindowUsage {
                    at_us: now,
                    throttle: OpenWindow::open_all(&knobs.windows, &known.grants, now as f64),
                    key: OpenWindow::open_all(&knobs.key_windows, of_key, now as f64),
                }
            });
        ready(Ok(usage)).boxed()
    }

    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        let was = self
            .locked()
            .remove(throttle)
            .is_some_and(|throttle| !throttle.raw.is_empty());
        ready(Ok(was)).boxed()
    }

    fn resume_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let now = self.now();
        let mut throttles = self.locked();
        let pause = throttles.get_mut(throttle).and_then(|throttle| {
            throttle.learned.remove(key);
            throttle.pauses.remove(key)
        });
        ready(Ok(pause.is_some_and(|(until_ms, _)| until_ms * 1000 > now))).boxed()
    }

    fn written_knobs<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<WrittenKnobs>, Error>>> {
        self.statuses(names)
            .map(|all| {
                let found = |one: Result<Option<Status>, Error>| Ok(one?.map(WrittenKnobs::from));
                all.into_iter().map(found).collect()
            })
            .boxed()
    }

    fn statuses<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<Status>, Error>>> {
        join_all(names.iter().map(|name| self.status(name))).boxed()
    }

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        let throttles = self.locked();
        let known = throttles
            .get(throttle)
            .filter(|known| !known.raw.is_empty());
        let parents = parents(&throttles);
        let read = |known: &Throttle| {
            let refusal = known
                .refusal
                .as_ref()
                .map(|refusal| (refusal.until, refusal.why.as_str()));
            let status = Status::read(
                throttle.clone(),
                known.raw.texts(),
                &known.meter,
                self.now(),
            );
            status
                .with_bucket(&known.bucket, refusal)
                .with_parents(&parents)
        };
        ready(Ok(known.map(read))).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        let throttles = self.locked();
        let known = throttles
            .iter()
            .filter(|(_, throttle)| !throttle.raw.is_empty());
        ready(Ok(known.map(|(name, _)| name.clone()).collect())).boxed()
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.names()
            .map(|names| Ok(names?.into_iter().map(|name| name.to_string()).collect()))
            .boxed()
    }

    // A store in memory needs no keeping, and no other process can delete from it.

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        ready(Ok(())).boxed()
    }

    fn persist<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        ready(Ok(())).boxed()
    }

    fn is_kept<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        ready(Ok(false)).boxed()
    }

    // The store is never lost, so no share is computed.
    fn set_workers(&self, _: u32) {}

    fn set<'a>(
        &'a self,
        throttle: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        ready(Self::write(
            &mut self.locked(),
            throttle,
            change,
            self.now(),
        ))
        .boxed()
    }
}
