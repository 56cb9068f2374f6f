//! The store in Redis: one Lua script for everything that changes a bucket, plain reads for the
//! rest.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use redis::{RedisResult, from_redis_value};
use tokio::time::Instant;

use super::adoption::Adoption;
use super::call::{Call, LuaScript};
use super::connection::Connection;
use super::layout::{KNOBS, Layout, other_tag};
use super::reply::{self, ReplyReader, Text, float, garbled};
use super::server_errors::reason_meaning;
use super::servers::Servers;
use super::shape::Shapes;
use crate::throttle::bucket::UsageCounters;
use crate::throttle::loss::LossFallback;
use crate::throttle::memory::Clock;
use crate::throttle::rules::min_above_max;
use crate::throttle::store::{MAX_PAUSE_MS, capacity_text, no_hash};
use crate::throttle::tree::{MAX_LEVELS, MISSING};
use crate::throttle::{
    AcquireRequest, AcquireResponse, Change, Error, Holder, KeyOutcomes, KeyState, KnobProblem,
    MAX_LANES_PER_ASK, Name, Refund, RefusalEffect, Scope, Status, Store, UpstreamRefusal,
};

/// The time limit of an ask, so that work goes on or stops but never hangs.
const ASK_BOUND: Duration = Duration::from_millis(50);

/// The time limit of an operator's call, which no job waits for.
const OPERATOR_BOUND: Duration = Duration::from_millis(250);

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
}

/// The text of `parent` of each level of a tree, `None` for a throttle that cannot be asked.
type Parents = BTreeMap<Name, Option<String>>;

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
        })
    }

    /// Sets the time limit of every call to `bound`, for tests on a busy machine.
    #[must_use]
    pub fn with_bound(self, bound: Duration) -> Self {
        Self {
            ask_bound: bound,
            operator_bound: bound,
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

    fn answer_of_lost_store(&self, ask: &AcquireRequest, error: &Error) -> AcquireResponse {
        let now_us = self.started.elapsed().as_micros() as i64;
        let said = if let Error::Lost(reason) = error {
            reason_meaning(reason)
        } else {
            None
        };
        AcquireResponse {
            said,
            ..locked(&self.memo).answer(ask, now_us, self.workers.load(Ordering::Relaxed))
        }
    }

    // --- operators ---

    async fn read_status(&self, throttle: &Name) -> Result<Option<Status>, Error> {
        type Reply = (
            RedisResult<Vec<(Text, Text)>>,
            RedisResult<Vec<Option<Text>>>,
            (i64, i64),
            i64,
        );
        if self.layout.check(throttle).is_err() {
            return Ok(None);
        }
        let mut pipe = redis::pipe();
        // People may have written anything under these keys, and errors of one throttle must not
        // hide the others.
        pipe.ignore_errors();
        pipe.cmd("HGETALL")
            .arg(self.layout.key(throttle, KNOBS, ""));
        pipe.cmd("HMGET")
            .arg(self.layout.key(throttle, "bucket", ""))
            .arg(&BUCKET);
        pipe.cmd("TIME");
        pipe.cmd("PTTL").arg(self.layout.key(throttle, KNOBS, ""));
        let pipe = &pipe;
        let read =
            |mut redis: Connection| async move { pipe.query_async::<Reply>(&mut redis).await };
        let (fields, bucket, (s, us), expires_ms) = self
            .servers
            .run(self.layout.slot(throttle), self.operator_bound, read)
            .await?;
        let now_us = self
            .clock
            .as_ref()
            .map_or(s * 1_000_000 + us, |clock| clock());
        let raw = match fields {
            Ok(fields) => hash(fields),
            Err(error) if is_wrong_type(&error.to_string()) => {
                return Ok(Some(Status::no_hash(throttle.clone(), now_us)));
            }
            Err(error) => return Err(Error::Lost(error.to_string())),
        };
        if raw.is_empty() {
            return Ok(None);
        }
        let bucket = bucket.unwrap_or_default();
        let status = Status::read(throttle.clone(), raw, &reply::meter(&bucket), now_us)
            .expiring_in(expires_ms);
        let status = status.with_bucket(&reply::bucket(&bucket), reply::refusal(&bucket));
        if status.knobs.parent.is_none() {
            return Ok(Some(status));
        }
        let parents = self.read_parents(throttle, self.operator_bound).await?;
        Ok(Some(self.with_parents(status, &parents)))
    }

    /// Reads the text of `parent` of a throttle and of those above it, `None` for a throttle that
    /// does not exist or has another hash tag.
    pub(super) async fn read_parents(
        &self,
        leaf: &Name,
        bound: Duration,
    ) -> Result<Parents, Error> {
        let mut parents = Parents::new();
        let mut next = Some(leaf.clone());
        while let Some(name) =
            next.filter(|name| !parents.contains_key(name) && parents.len() <= MAX_LEVELS)
        {
            let mut pipe = redis::pipe();
            pipe.ignore_errors();
            pipe.cmd("EXISTS").arg(self.layout.key(&name, KNOBS, ""));
            pipe.cmd("HGET")
                .arg(self.layout.key(&name, KNOBS, ""))
                .arg("parent");
            let pipe = &pipe;
            let read = |mut redis: Connection| async move {
                pipe.query_async::<(bool, RedisResult<Option<Text>>)>(&mut redis)
                    .await
            };
            let parent = match self.layout.is_together(leaf, &name) {
                false => None,
                // A key that is not a hash is not a throttle.
                true => match self
                    .servers
                    .run(self.layout.slot(&name), bound, read)
                    .await?
                {
                    // An invalid name counts as no parent, as in the Lua script.
                    (true, Ok(parent)) => Some(
                        parent
                            .and_then(|text| Name::new(text.0).ok())
                            .map_or_else(String::new, |name| name.to_string()),
                    ),
                    _ => None,
                },
            };
            next = parent.as_deref().and_then(|parent| Name::new(parent).ok());
            parents.insert(name, parent);
        }
        Ok(parents)
    }

    fn with_parents(&self, status: Status, parents: &Parents) -> Status {
        let mut status = status.with_parents(parents);
        if let Some(apart) = parents
            .keys()
            .find(|parent| !self.layout.is_together(&status.name, parent))
        {
            let message = format!("{MISSING}{}; nothing flows", other_tag(&status.name, apart));
            status.problems.retain(|problem| problem.field != "parent");
            status.problems.push(KnobProblem {
                field: "parent".to_owned(),
                message,
            });
        }
        status
    }

    fn pause_call(&self, verb: &str, throttle: &Name, key: &str) -> Result<Call, Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let mut call = self.law.call(3);
        call.key(&self.layout.key(throttle, "pause:", key));
        call.key(&self.layout.key(throttle, "pauses", ""));
        call.key(&self.layout.key(throttle, "learned:", key));
        self.begin(&mut call, verb);
        Ok(call)
    }

    /// Reports a refusal, again with a narrower scope if the claimed one is not trusted.
    async fn refuse(
        &self,
        throttle: &Name,
        refused: &UpstreamRefusal<'_>,
    ) -> Result<RefusalEffect, Error> {
        let mut refused = refused.clone();
        loop {
            match self.refuse_as(throttle, &refused).await? {
                Ok(paused) => return Ok(paused),
                Err(trusted) => refused.scope = refused.scope.narrower(trusted),
            }
        }
    }

    /// Reports a refusal, or returns the widest trusted scope if its own is wider.
    async fn refuse_as(
        &self,
        throttle: &Name,
        refused: &UpstreamRefusal<'_>,
    ) -> Result<Result<RefusalEffect, Scope>, Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let begin = |mut call: Call, verb| {
            self.begin(&mut call, verb);
            match refused.requested_us() {
                Some(said_us) => call.number(said_us),
                None => call.text(""),
            }
            call.number(refused.jitter);
            call.text(refused.why);
            call
        };
        let call = if refused.scope == Scope::Key {
            let mut call = self.law.call(4);
            call.key(&self.layout.key(throttle, KNOBS, ""));
            for part in ["pause:", "learned:"] {
                call.key(&self.layout.key(throttle, part, refused.key));
            }
            call.key(&self.layout.key(throttle, "pauses", ""));
            let mut call = begin(call, "refused");
            call.number(u8::from(!refused.key.is_empty()));
            call.number(u8::from(refused.is_overload));
            call.number(u8::from(refused.is_hearsay));
            call
        } else {
            let chain = self
                .resolve_chain(throttle)
                .await?
                .map_err(Error::Unknown)?
                .chain;
            let names: Vec<Name> = chain.iter().map(|(name, _)| name.clone()).collect();
            let level = refused.level(&names).unwrap_or(throttle);
            let mut call = self.law.call(2 + usize::from(refused.is_hearsay));
            call.key(&self.layout.key(level, KNOBS, ""));
            call.key(&self.layout.key(level, "bucket", ""));
            if refused.is_hearsay {
                call.key(&self.layout.key(throttle, KNOBS, ""));
            }
            let mut call = begin(call, "refused_all");
            call.text(refused.scope.as_str());
            call
        };
        let mut parts = ReplyReader::new(self.invoke(throttle, &call, self.operator_bound).await?);
        let is_untrusted = parts.text() == "untrusted";
        let mut number = || {
            parts
                .whole()
                .map_err(|error| Error::Lost(error.to_string()))
        };
        if is_untrusted {
            return Ok(Err(if number()? == 0 {
                Scope::Key
            } else {
                Scope::Throttle
            }));
        }
        let (until_ms, alone, delay_us) = (number()?, number()? == 1, number()?);
        Ok(Ok(RefusalEffect {
            until_ms,
            alone: alone.then(|| Duration::from_micros(delay_us.max(0) as u64)),
        }))
    }

    /// Returns the number that follows `ok` in a reply.
    async fn second(&self, throttle: &Name, call: &Call) -> Result<i64, Error> {
        let mut parts = ReplyReader::new(self.invoke(throttle, call, self.operator_bound).await?);
        parts.text();
        parts
            .whole()
            .map_err(|error| Error::Lost(error.to_string()))
    }

    async fn write(
        &self,
        throttle: &Name,
        change: &Change,
    ) -> Result<(Option<Status>, Status), Error> {
        change.check_parent(throttle)?;
        self.check_tags(throttle, change)?;
        let mut call = self.law.call(2);
        call.key(&self.layout.key(throttle, KNOBS, ""));
        call.key(&self.layout.key(throttle, "bucket", ""));
        self.begin(&mut call, "set");
        let number = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
        call.text(&number(change.if_seq));
        call.text(&number(change.term));
        let unturned = match (&change.if_rps, &change.if_concurrency) {
            (Some(rps), _) => format!("={rps}"),
            (None, Some(slots)) => format!("concurrency={slots}"),
            (None, None) => String::new(),
        };
        call.text(&unturned);
        call.number(u8::from(change.create));
        call.number(u8::from(change.absent_only));
        call.text(&change.by);
        call.text(&change.why);
        for (field, text) in &change.fields {
            call.text(field);
            call.text(
                &text
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), |text| format!("={text}")),
            );
        }
        let call = &call;
        let write = |redis: Connection| async move {
            SetReply::read(ReplyReader::new(call.invoke(redis).await?))
        };
        let written = self
            .servers
            .run(self.layout.slot(throttle), self.operator_bound, write)
            .await;
        match written.map_err(|error| refusal_of_wrong_type(error, throttle))? {
            SetReply::Unknown => Err(Error::Unknown(throttle.clone())),
            SetReply::Conflict(what) => Err(Error::Conflict {
                name: throttle.clone(),
                what,
            }),
            SetReply::MinAboveMax(min, max) => Err(Error::Invalid(vec![min_above_max(min, max)])),
            SetReply::Done {
                now_us,
                before,
                after,
                meter,
            } => {
                // The next search finds a name that could not be added to the set.
                let _ = self.note_names(&[throttle.to_string()]).await;
                let status = |raw| Status::read(throttle.clone(), raw, &meter, now_us);
                let (before, mut after) =
                    ((!before.is_empty()).then(|| status(before)), status(after));
                // The change is made, so an error while reading its parents must not look like a
                // failure.
                if after.knobs.parent.is_some()
                    && let Ok(parents) = self.read_parents(throttle, self.operator_bound).await
                {
                    after = self.with_parents(after, &parents);
                }
                Ok((before, after))
            }
        }
    }

    async fn write_capacity(
        &self,
        throttle: &Name,
        capacity: Option<f64>,
        why: &str,
    ) -> Result<(), Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let mut call = self.law.call(2);
        call.key(&self.layout.key(throttle, KNOBS, ""));
        call.key(&self.layout.key(throttle, "bucket", ""));
        self.begin(&mut call, "capacity");
        call.text(&capacity.map_or_else(
            || "-".to_owned(),
            |capacity| format!("={}", capacity_text(capacity)),
        ));
        call.text(why);
        let written = self.invoke(throttle, &call, self.operator_bound).await;
        let mut parts =
            ReplyReader::new(written.map_err(|error| refusal_of_wrong_type(error, throttle))?);
        if parts.text() == "unknown" {
            Err(Error::Unknown(throttle.clone()))
        } else {
            Ok(())
        }
    }

    async fn look_at(&self, throttle: &Name, keys: &[String]) -> Result<Vec<KeyState>, Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let mut states = Vec::with_capacity(keys.len());
        for part in keys.chunks(MAX_LANES_PER_ASK) {
            let mut call = self.law.call(1 + 2 * part.len());
            call.key(&self.layout.key(throttle, KNOBS, ""));
            for kind in ["pause:", "learned:"] {
                part.iter()
                    .for_each(|key| call.key(&self.layout.key(throttle, kind, key)));
            }
            self.begin(&mut call, "look");
            let mut parts =
                ReplyReader::new(self.invoke(throttle, &call, self.operator_bound).await?);
            parts.text();
            for _ in part {
                states.push(
                    reply::key_state(&mut parts).map_err(|error| Error::Lost(error.to_string()))?,
                );
            }
        }
        Ok(states)
    }

    /// Refuses a name or a parent that would spread the keys of one call over several slots of a
    /// cluster.
    fn check_tags(&self, throttle: &Name, change: &Change) -> Result<(), Error> {
        let refuse = |problem| Error::Invalid(vec![problem]);
        self.layout.check(throttle).map_err(refuse)?;
        let parent = change
            .fields
            .get("parent")
            .and_then(|text| Name::new(text.as_deref()?).ok());
        match parent.filter(|parent| !self.layout.is_together(throttle, parent)) {
            Some(parent) => Err(refuse(KnobProblem {
                field: "parent".to_owned(),
                message: other_tag(throttle, &parent),
            })),
            None => Ok(()),
        }
    }

    async fn take_away(&self, throttle: &Name) -> Result<bool, Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(self.layout.key(throttle, KNOBS, ""));
        pipe.cmd("DEL")
            .arg(self.layout.key(throttle, "bucket", ""))
            .ignore();
        // A process that has just read the record must not take the deletion for a loss; after a
        // day none holds it.
        pipe.cmd("EXPIRE")
            .arg(self.layout.key(throttle, "kept", ""))
            .arg(86_400)
            .ignore();
        let pipe = &pipe;
        let take =
            |mut redis: Connection| async move { pipe.query_async::<(bool,)>(&mut redis).await };
        let (was_there,) = self
            .servers
            .run(self.layout.slot(throttle), self.operator_bound, take)
            .await?;
        let mut forget = redis::cmd("SREM");
        forget.arg(self.layout.names()).arg(throttle.as_str());
        // A name whose knobs are gone is ignored.
        let _ = self.change_names(&forget).await;
        Ok(was_there)
    }
}

/// The fields of a throttle's bucket that a status shows.
const BUCKET: [&str; 7] = [
    "used",
    "limited_us",
    "limited_to",
    "spent_to",
    "debt",
    "stopped",
    "refusal",
];

/// The reply of the verb `set`.
enum SetReply {
    Unknown,
    Conflict(String),
    MinAboveMax(f64, f64),
    Done {
        now_us: i64,
        before: BTreeMap<String, String>,
        after: BTreeMap<String, String>,
        meter: UsageCounters,
    },
}

impl SetReply {
    fn read(mut parts: ReplyReader) -> RedisResult<Self> {
        match parts.text().as_str() {
            "unknown" => Ok(Self::Unknown),
            "conflict" => Ok(Self::Conflict(parts.text())),
            "min_above_max" => Ok(Self::MinAboveMax(
                float(&parts.text())?,
                float(&parts.text())?,
            )),
            "ok" => {
                let now_us = parts.whole()?;
                let mut fields = || from_redis_value::<Vec<(Text, Text)>>(parts.value());
                let (before, after) = (hash(fields()?), hash(fields()?));
                let meter = [(); 3].map(|()| Some(Text(parts.text())));
                Ok(Self::Done {
                    now_us,
                    before,
                    after,
                    meter: reply::meter(&meter),
                })
            }
            other => Err(garbled(other)),
        }
    }
}

/// Returns true if `message` reports a key of another type.
pub(super) fn is_wrong_type(message: &str) -> bool {
    message.contains("WRONGTYPE")
}

fn refusal_of_wrong_type(error: Error, throttle: &Name) -> Error {
    match error {
        Error::Lost(said) if is_wrong_type(&said) => Error::Invalid(vec![KnobProblem {
            field: "knobs".to_owned(),
            message: no_hash(throttle),
        }]),
        other => other,
    }
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
            self.ask("acquire", ask)
                .await
                .unwrap_or_else(|error| self.answer_of_lost_store(ask, &error))
        }
        .boxed()
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        async move {
            self.ask("peek", ask)
                .await
                .unwrap_or_else(|error| self.answer_of_lost_store(ask, &error))
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
        capacity: Option<f64>,
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
            let mut pipe = redis::pipe();
            pipe.cmd("PERSIST")
                .arg(self.layout.key(throttle, KNOBS, ""))
                .ignore();
            pipe.cmd("SET")
                .arg(self.layout.key(throttle, "kept", ""))
                .arg(1)
                .ignore();
            let pipe = &pipe;
            let keep = |mut redis: Connection| async move { pipe.exec_async(&mut redis).await };
            self.servers
                .run(self.layout.slot(throttle), self.operator_bound, keep)
                .await
        }
        .boxed()
    }

    fn was_taken_away<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            let mut pipe = redis::pipe();
            pipe.cmd("EXISTS")
                .arg(self.layout.key(throttle, "kept", ""));
            pipe.cmd("EXISTS").arg(self.layout.key(throttle, KNOBS, ""));
            let pipe = &pipe;
            let read = |mut redis: Connection| async move {
                pipe.query_async::<(bool, bool)>(&mut redis).await
            };
            Ok(self
                .servers
                .run(self.layout.slot(throttle), self.operator_bound, read)
                .await?
                == (true, false))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        self.take_away(throttle).boxed()
    }
}
