//! The store in Redis: one Lua script for everything that changes a bucket, plain reads for the
//! rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::adoption::Adoption;
use super::call::LuaScript;
use super::connection::Connection;
use super::layout::{KNOBS, Layout};
use super::reply::Text;
use super::server_errors::reason_meaning;
use super::servers::Servers;
use super::shape::Shapes;
use crate::throttle::loss::LossFallback;
use crate::throttle::memory::Clock;
use crate::throttle::refusal::MAX_PAUSE_MS;
use crate::throttle::rolling_window::WindowUsage;
use crate::throttle::{
    AcquireRequest, AcquireResponse, Change, Error, Grant, Holder, KeyOutcomes, KeyState, Name,
    RateLimit, Refund, RefusalEffect, Status, Store, UpstreamRefusal, WrittenKnobs,
};

/// The usual time limit of an ask, so that work goes on or stops but never hangs.
const ASK_BOUND: Duration = Duration::from_millis(50);

/// The least time limit of an operator's call, which no job waits for.
const OPERATOR_BOUND: Duration = Duration::from_millis(250);

/// The verb of a call whose last lane is only looked at.
pub(super) const ACQUIRE_AND_PEEK: &str = "acquire_and_peek";

/// Keeps knobs (`KEYS[1]`) for good, and marks them as kept (`KEYS[2]`).
///
/// Knobs that are missing get no mark: in a Redis that was emptied a moment ago they would look as
/// if somebody had deleted them, and would not be restored.
const KEEP: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('PERSIST', KEYS[1]) redis.call('SET', KEYS[2], 1) end";

mod keys;
mod knobs;
mod status;

/// The store of throttles in Redis.
pub struct RedisStore {
    pub(super) servers: Servers,
    pub(super) layout: Layout,
    pub(super) law: LuaScript,
    pub(super) ask_bound: Duration,
    pub(super) operator_bound: Duration,
    pub(super) clock: Option<Clock>,
    started: Instant,
    workers: AtomicU32,
    pub(super) shapes: Mutex<Shapes>,
    pub(super) memo: Mutex<LossFallback>,
    pub(super) adoption: Mutex<Adoption>,
    /// The names as last read, used while a cluster has lost the server that holds them.
    pub(super) known: Mutex<Vec<Name>>,
    /// The names without knobs in the last list.
    pub(super) absent: Mutex<BTreeSet<Name>>,
}

impl RedisStore {
    /// Connects to `url` in the background; every key begins with `prefix`.
    ///
    /// The URL is `redis://`, `rediss://`, `redis+unix://`, or `redis+cluster://` and
    /// `rediss+cluster://` with some servers of a cluster. Never waits: while Redis is down the
    /// store returns [`Error::Lost`]. Must be called inside a Tokio runtime.
    pub fn connect(url: &str, prefix: &str) -> Result<Self, Error> {
        let servers = Servers::open(url)?;
        Ok(Self {
            layout: Layout::new(prefix, servers.is_cluster()),
            servers,
            law: LuaScript::new(),
            ask_bound: ASK_BOUND,
            operator_bound: OPERATOR_BOUND,
            clock: None,
            started: Instant::now(),
            workers: AtomicU32::new(1),
            shapes: Mutex::default(),
            memo: Mutex::default(),
            adoption: Mutex::default(),
            known: Mutex::default(),
            absent: Mutex::default(),
        })
    }

    /// Sets the time limit of every call that a job or a request waits for, 50 ms by default; that
    /// of an operator's call is 250 ms at least.
    #[must_use]
    pub fn with_bound(self, bound: Duration) -> Self {
        Self {
            ask_bound: bound,
            operator_bound: bound.max(OPERATOR_BOUND),
            ..self
        }
    }

    /// Takes the time from `clock` instead of Redis, for tests of the law. Keys then live an hour
    /// at least.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self {
            clock: Some(clock),
            ..self
        }
    }

    // --- a lost store ---

    fn answer_of_lost_store(
        &self,
        ask: &AcquireRequest,
        error: &Error,
        answer: fn(&mut LossFallback, &AcquireRequest, i64, u32) -> AcquireResponse,
    ) -> AcquireResponse {
        let now_us = self.started.elapsed().as_micros() as i64;
        let server_error = if let Error::Lost(reason) = error {
            reason_meaning(reason)
        } else {
            None
        };
        AcquireResponse {
            server_error,
            ..answer(
                &mut locked(&self.memo),
                ask,
                now_us,
                self.workers.load(Ordering::Relaxed),
            )
        }
    }

    // --- operators ---
}

/// Returns true if `message` reports a key of another type.
pub(super) fn is_wrong_type(message: &str) -> bool {
    message.contains("WRONGTYPE")
}

fn hash(fields: Vec<(Text, Text)>) -> BTreeMap<String, String> {
    fields
        .into_iter()
        .map(|(field, text)| (field.0, text.0))
        .collect()
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    // usable.
    mutex.lock()
}

// === impl Store ===

impl Store for RedisStore {
    fn set_workers(&self, workers: u32) {
        self.workers.store(workers, Ordering::Relaxed);
    }

    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        async move {
            self.ask("acquire", ask).await.unwrap_or_else(|error| {
                self.answer_of_lost_store(ask, &error, LossFallback::answer)
            })
        }
        .boxed()
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        async move {
            self.ask("peek", ask)
                .await
                .unwrap_or_else(|error| self.answer_of_lost_store(ask, &error, LossFallback::peek))
        }
        .boxed()
    }

    fn acquire_and_peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        async move {
            let asked = self.ask_lanes(ACQUIRE_AND_PEEK, &ask.throttle, None, &ask.lanes);
            asked.await.unwrap_or_else(|error| {
                // What a lost store grants is charged by this process: not to the lane that is only
                // looked at, of which nothing is known.
                let mut taken = ask.clone();
                taken.lanes.pop();
                let mut answer = self.answer_of_lost_store(&taken, &error, LossFallback::answer);
                answer.lanes.push(Grant::default());
                answer
            })
        }
        .boxed()
    }

    fn hold<'a>(
        &'a self,
        throttle: &'a Name,
        holder: &'a Holder,
        lanes: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.hold_lanes(throttle, holder, lanes).boxed()
    }

    fn refund_many<'a>(
        &'a self,
        throttle: &'a Name,
        refunds: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.refund_grants(throttle, refunds).boxed()
    }

    fn settle_many<'a>(
        &'a self,
        throttle: &'a Name,
        tokens: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.settle_keys(throttle, tokens).boxed()
    }

    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        async move {
            let mut call = self.pause_call("pause", throttle, key)?;
            call.number(delay.as_millis().min(MAX_PAUSE_MS));
            call.text(why);
            self.second(throttle, &call).await
        }
        .boxed()
    }

    fn resume_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            Ok(self
                .second(throttle, &self.pause_call("resume", throttle, key)?)
                .await?
                == 1)
        }
        .boxed()
    }

    fn refused<'a>(
        &'a self,
        throttle: &'a Name,
        refused: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        self.refuse(throttle, refused).boxed()
    }

    fn ended<'a>(
        &'a self,
        throttle: &'a Name,
        ended: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.report_outcomes(throttle, ended).boxed()
    }

    fn written_knobs<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<WrittenKnobs>, Error>>> {
        self.read_written(names).boxed()
    }

    fn statuses<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<Status>, Error>>> {
        self.read_statuses(names).boxed()
    }

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        self.read_status(throttle).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        self.known_names().boxed()
    }

    fn set<'a>(
        &'a self,
        throttle: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        self.write(throttle, change).boxed()
    }

    fn set_capacity<'a>(
        &'a self,
        throttle: &'a Name,
        capacity: RateLimit,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.write_capacity(throttle, capacity, why).boxed()
    }

    fn look<'a>(
        &'a self,
        throttle: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>> {
        self.look_at(throttle, keys).boxed()
    }

    fn window_usage<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<WindowUsage>, Error>> {
        self.read_usage(throttle, key).boxed()
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.search_all().boxed()
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        async move {
            let mut write = redis::cmd("SET");
            write.arg(self.layout.alive()).arg(1).arg("PX").arg(10_000);
            self.change_names(&write).await
        }
        .boxed()
    }

    fn persist<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let mut keep = redis::cmd("EVAL");
            keep.arg(KEEP)
                .arg(2)
                .arg(self.layout.key(throttle, KNOBS, ""))
                .arg(self.layout.key(throttle, "kept", ""));
            let keep = &keep;
            let keep = |mut redis: Connection| async move { keep.exec_async(&mut redis).await };
            self.servers
                .run(self.layout.slot(throttle), self.operator_bound, keep)
                .await
        }
        .boxed()
    }

    fn is_kept<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            let mut mark = redis::cmd("EXISTS");
            mark.arg(self.layout.key(throttle, "kept", ""));
            let mark = &mark;
            let read =
                |mut redis: Connection| async move { mark.query_async::<bool>(&mut redis).await };
            self.servers
                .run(self.layout.slot(throttle), self.operator_bound, read)
                .await
        }
        .boxed()
    }

    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        self.take_away(throttle).boxed()
    }
}
