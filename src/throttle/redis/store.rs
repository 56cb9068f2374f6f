//! The store in Redis: one Lua text for everything that changes a bucket, plain reads for the rest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use redis::aio::ConnectionManager;
use redis::{RedisResult, Script, ScriptInvocation, Value, from_redis_value};
use tokio::time::Instant;

use super::link::Link;
use super::reply::{self, Acquired, Text, float, garbled};
use crate::throttle::bucket::Meter;
use crate::throttle::loss::Memo;
use crate::throttle::memory::Clock;
use crate::throttle::rules::min_above_max;
use crate::throttle::store::{MAX_PAUSE_MS, no_hash};
use crate::throttle::tree::{self, MAX_LEVELS, sane_cost};
use crate::throttle::{Answer, Ask, Change, Error, Grant, MAX_LANES_PER_ASK, Name, Problem, Status, Store};

/// The law in Lua.
const LAW: &str = include_str!("../throttle.lua");

/// Longest that an ask waits for Redis: work goes on or stops, it never hangs.
const ASK_BOUND: Duration = Duration::from_millis(50);

/// Longest that an operator's call waits for Redis; nothing flows through these.
const OPERATOR_BOUND: Duration = Duration::from_millis(250);

/// Hashes that people wrote without us are looked for at most this often.
const ADOPT_EVERY: Duration = Duration::from_secs(10);

/// Longest that one search for such hashes takes; the next goes on where it ended.
const ADOPT_BUDGET: Duration = Duration::from_millis(40);

/// Most chains that are remembered; what is forgotten costs one more round trip.
const MAX_CHAINS: usize = 10_000;

/// People who change parents while we ask may win twice in a row, not for ever.
const CHAIN_TRIES: usize = 3;

/// Throttles in Redis.
pub struct RedisStore {
    link: Link,
    prefix: String,
    script: Script,
    ask_bound: Duration,
    operator_bound: Duration,
    clock: Option<Clock>,
    started: Instant,
    workers: AtomicU32,
    /// For each throttle its chain as last seen, root first, with the text of `parent` at each level.
    chains: Mutex<HashMap<Name, Vec<(Name, String)>>>,
    memo: Mutex<Memo>,
    adoption: Mutex<Adoption>,
}

/// Where the search for hashes that people wrote stands.
#[derive(Default)]
struct Adoption {
    cursor: u64,
    ended: Option<Instant>,
}

impl RedisStore {
    /// Takes the URL (`redis://`, `rediss://`, `redis+unix://`) and connects in the background; every key begins with `prefix`.
    ///
    /// Never waits: with Redis down the store answers [`Error::Lost`] until it is there. Must be called inside a Tokio runtime.
    pub fn connect(url: &str, prefix: &str) -> Result<Self, Error> {
        Ok(Self {
            link: Link::open(url)?,
            prefix: prefix.to_owned(),
            script: Script::new(LAW),
            ask_bound: ASK_BOUND,
            operator_bound: OPERATOR_BOUND,
            clock: None,
            started: Instant::now(),
            workers: AtomicU32::new(1),
            chains: Mutex::default(),
            memo: Mutex::default(),
            adoption: Mutex::default(),
        })
    }

    /// Waits up to `bound` for any answer, for tests on a machine that is busy with something else.
    #[must_use]
    pub fn with_bound(self, bound: Duration) -> Self {
        Self { ask_bound: bound, operator_bound: bound, ..self }
    }

    /// Takes the time from `clock` instead of Redis, for tests of the law. Keys then live an hour at least.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    // --- keys ---

    fn key(&self, throttle: &Name, part: &str) -> String {
        format!("{}throttle:{throttle}:{part}", self.prefix)
    }

    fn names_key(&self) -> String {
        format!("{}throttle:names", self.prefix)
    }

    // --- calls ---

    fn call(&self, verb: &str) -> ScriptInvocation<'_> {
        let mut call = self.script.prepare_invoke();
        call.arg(verb).arg(self.clock.as_ref().map_or(String::new(), |clock| clock().to_string()));
        call
    }

    fn add_levels(&self, call: &mut ScriptInvocation<'_>, chain: &[(Name, String)]) {
        for (name, _) in chain {
            call.key(self.key(name, "knobs")).key(self.key(name, "bucket"));
        }
    }

    async fn texts(&self, call: ScriptInvocation<'_>, bound: Duration) -> Result<Vec<Text>, Error> {
        self.link.run(bound, |mut redis| async move { call.invoke_async::<Vec<Text>>(&mut redis).await }).await
    }

    /// The chain as last seen; a throttle that was never seen is taken to have no parent until the script says otherwise.
    fn chain(&self, leaf: &Name) -> Vec<(Name, String)> {
        let known = locked(&self.chains).get(leaf).cloned();
        known.unwrap_or_else(|| vec![(leaf.clone(), String::new())])
    }

    async fn resolve_chain(&self, leaf: &Name, bound: Duration) -> Result<Vec<(Name, String)>, Error> {
        let parents = self.read_parents(leaf, bound).await?;
        let chain = tree::chain(leaf, |name| parents.get(name).cloned().flatten().unwrap_or_default());
        let mut chains = locked(&self.chains);
        if chains.len() >= MAX_CHAINS {
            chains.clear();
        }
        chains.insert(leaf.clone(), chain.clone());
        Ok(chain)
    }

    /// Makes a call that names the chain, again where the chain has changed meanwhile; answers the chain that held.
    async fn call_chain(
        &self,
        throttle: &Name,
        verb: &str,
        add: impl Fn(&mut ScriptInvocation<'_>),
    ) -> Result<(Vec<(Name, String)>, Vec<Text>), Error> {
        let mut chain = self.chain(throttle);
        for _ in 0..CHAIN_TRIES {
            let mut call = self.call(verb);
            self.add_levels(&mut call, &chain);
            call.arg(chain.len());
            for (_, parent) in &chain {
                call.arg(parent);
            }
            add(&mut call);
            let texts = self.texts(call, self.ask_bound).await?;
            if texts.first().is_none_or(|word| word.0 != "chain") {
                return Ok((chain, texts));
            }
            chain = self.resolve_chain(throttle, self.ask_bound).await?;
        }
        Err(unsteady(throttle))
    }

    async fn ask(&self, verb: &str, ask: &Ask) -> Result<Answer, Error> {
        let mut chain = self.chain(&ask.throttle);
        for _ in 0..CHAIN_TRIES {
            match self.ask_chain(verb, ask, &chain).await? {
                Acquired::Answer(answer, seen) => {
                    if let Some(seen) = seen {
                        locked(&self.memo).saw(&ask.throttle, seen);
                    }
                    return Ok(answer);
                }
                Acquired::ChainChanged => chain = self.resolve_chain(&ask.throttle, self.ask_bound).await?,
            }
        }
        Err(unsteady(&ask.throttle))
    }

    async fn ask_chain(&self, verb: &str, ask: &Ask, chain: &[(Name, String)]) -> Result<Acquired, Error> {
        let names: Vec<Name> = chain.iter().map(|(name, _)| name.clone()).collect();
        let mut whole: Option<Answer> = None;
        let mut remember = None;
        for lanes in ask.lanes.chunks(MAX_LANES_PER_ASK) {
            let mut call = self.call(verb);
            self.add_levels(&mut call, chain);
            call.arg(chain.len()).arg(lanes.len());
            for (_, parent) in chain {
                call.arg(parent);
            }
            for lane in lanes {
                call.key(self.key(&ask.throttle, &format!("lane:{}", lane.key)));
                call.key(self.key(&ask.throttle, &format!("pause:{}", lane.key)));
                call.arg(lane.want).arg(sane_cost(lane.cost).to_string()).arg(u8::from(!lane.key.is_empty()));
            }
            let texts = self.texts(call, self.ask_bound).await?;
            match reply::acquired(texts, &names, lanes).map_err(|error| Error::Lost(error.to_string()))? {
                Acquired::ChainChanged if whole.is_none() => return Ok(Acquired::ChainChanged),
                // The first part stands; the rest is asked again by the next ask.
                Acquired::ChainChanged => break,
                Acquired::Answer(part, seen) => {
                    remember = seen;
                    match &mut whole {
                        None => whole = Some(part),
                        Some(whole) => whole.lanes.extend(part.lanes),
                    }
                }
            }
        }
        let mut answer = whole.unwrap_or(Answer { lanes: Vec::new(), effective_rps: 0.0, at_us: 0, seq: 0 });
        answer.lanes.resize_with(ask.lanes.len(), || Grant {
            granted: 0,
            wait: Duration::ZERO,
            limit: None,
            charge_us: Vec::new(),
        });
        Ok(Acquired::Answer(answer, remember))
    }

    fn answer_of_lost_store(&self, ask: &Ask) -> Answer {
        let now_us = self.started.elapsed().as_micros() as i64;
        locked(&self.memo).answer(ask, now_us, self.workers.load(Ordering::Relaxed))
    }

    // --- operators ---

    async fn read_status(&self, throttle: &Name) -> Result<Option<Status>, Error> {
        type Reply = (RedisResult<Vec<(Text, Text)>>, RedisResult<Vec<Option<Text>>>, (i64, i64));
        let mut pipe = redis::pipe();
        // People may have put anything under these keys; what is wrong with one throttle must not hide the others.
        pipe.ignore_errors();
        pipe.cmd("HGETALL").arg(self.key(throttle, "knobs"));
        pipe.cmd("HMGET").arg(self.key(throttle, "bucket")).arg(&["used", "limited_us", "limited_to"]);
        pipe.cmd("TIME");
        let read = |mut redis: ConnectionManager| async move { pipe.query_async::<Reply>(&mut redis).await };
        let (fields, meter, (s, us)) = self.link.run(self.operator_bound, read).await?;
        let now_us = self.clock.as_ref().map_or(s * 1_000_000 + us, |clock| clock());
        let raw = match fields {
            Ok(fields) => hash(fields),
            Err(error) if is_wrong_type(&error.to_string()) => return Ok(Some(Status::no_hash(throttle.clone(), now_us))),
            Err(error) => return Err(Error::Lost(error.to_string())),
        };
        if raw.is_empty() {
            return Ok(None);
        }
        let status = Status::read(throttle.clone(), raw, &reply::meter(&meter.unwrap_or_default()), now_us);
        if status.knobs.parent.is_none() {
            return Ok(Some(status));
        }
        Ok(Some(status.with_parents(&self.read_parents(throttle, self.operator_bound).await?)))
    }

    /// The text of `parent` of a throttle and of those above it, `None` for one that does not exist.
    async fn read_parents(&self, leaf: &Name, bound: Duration) -> Result<BTreeMap<Name, Option<String>>, Error> {
        let mut parents: BTreeMap<Name, Option<String>> = BTreeMap::new();
        let mut next = Some(leaf.clone());
        while let Some(name) = next.filter(|name| !parents.contains_key(name) && parents.len() <= MAX_LEVELS) {
            let mut pipe = redis::pipe();
            pipe.ignore_errors();
            pipe.cmd("EXISTS").arg(self.key(&name, "knobs"));
            pipe.cmd("HGET").arg(self.key(&name, "knobs")).arg("parent");
            let read = |mut redis: ConnectionManager| async move {
                pipe.query_async::<(bool, RedisResult<Option<Text>>)>(&mut redis).await
            };
            // A key that is no hash is no throttle.
            let parent = match self.link.run(bound, read).await? {
                (true, Ok(parent)) => Some(parent.map_or_else(String::new, |text| text.0)),
                _ => None,
            };
            next = parent.as_deref().and_then(|parent| Name::new(parent).ok());
            parents.insert(name, parent);
        }
        Ok(parents)
    }

    async fn write(&self, throttle: &Name, change: &Change) -> Result<(Option<Status>, Status), Error> {
        change.check_parent(throttle)?;
        let mut call = self.call("set");
        call.key(self.key(throttle, "knobs")).key(self.key(throttle, "bucket")).key(self.names_key());
        let number = |n: Option<u64>| n.map_or_else(String::new, |n| n.to_string());
        call.arg(throttle.as_str()).arg(number(change.if_seq)).arg(number(change.term));
        call.arg(change.if_rps.as_ref().map_or_else(String::new, |rps| format!("={rps}")));
        call.arg(u8::from(change.create)).arg(u8::from(change.absent_only)).arg(&change.by).arg(&change.why);
        for (field, text) in &change.fields {
            call.arg(field).arg(text.as_ref().map_or_else(|| "-".to_owned(), |text| format!("={text}")));
        }
        let write = |mut redis: ConnectionManager| async move {
            let mut parts = call.invoke_async::<Vec<Value>>(&mut redis).await?.into_iter();
            Written::read(&mut parts)
        };
        let written = self.link.run(self.operator_bound, write).await;
        match written.map_err(|error| refusal_of_wrong_type(error, throttle))? {
            Written::Unknown => Err(Error::Unknown(throttle.clone())),
            Written::Conflict(what) => Err(Error::Conflict { name: throttle.clone(), what }),
            Written::MinAboveMax(min, max) => Err(Error::Invalid(vec![min_above_max(min, max)])),
            Written::Done { now_us, before, after, meter } => {
                let status = |raw| Status::read(throttle.clone(), raw, &meter, now_us);
                let (before, mut after) = ((!before.is_empty()).then(|| status(before)), status(after));
                // The change is made; that its parents cannot be read now must not look as if it were not.
                if after.knobs.parent.is_some()
                    && let Ok(parents) = self.read_parents(throttle, self.operator_bound).await
                {
                    after = after.with_parents(&parents);
                }
                Ok((before, after))
            }
        }
    }

    async fn known_names(&self) -> Result<Vec<Name>, Error> {
        let found = self.adopt().await?;
        let names_key = self.names_key();
        let read = |mut redis: ConnectionManager| async move {
            if !found.is_empty() {
                redis::cmd("SADD").arg(&names_key).arg(&found).exec_async(&mut redis).await?;
            }
            redis::cmd("SMEMBERS").arg(&names_key).query_async::<Vec<Text>>(&mut redis).await
        };
        let texts = match self.link.run(self.operator_bound, read).await {
            // The set is ours alone: one that is no set is made anew, by the next search.
            Err(error) if is_wrong_type(&error.to_string()) => {
                let key = self.names_key();
                let forget =
                    |mut redis: ConnectionManager| async move { redis::cmd("DEL").arg(key).exec_async(&mut redis).await };
                self.link.run(self.operator_bound, forget).await?;
                *locked(&self.adoption) = Adoption::default();
                self.adopt().await?.into_iter().map(Text).collect()
            }
            read => read?,
        };
        let names: BTreeSet<Name> = texts.into_iter().filter_map(|text| Name::new(text.0).ok()).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        // A hash that somebody deleted is no throttle any more.
        let mut pipe = redis::pipe();
        for name in &names {
            pipe.cmd("EXISTS").arg(self.key(name, "knobs"));
        }
        let read = |mut redis: ConnectionManager| async move { pipe.query_async::<Vec<bool>>(&mut redis).await };
        let exist = self.link.run(self.operator_bound, read).await?;
        Ok(names.into_iter().zip(exist).filter_map(|(name, exists)| exists.then_some(name)).collect())
    }

    /// Looks for hashes that people wrote with redis-cli: one bounded stretch of SCAN.
    async fn adopt(&self) -> Result<Vec<String>, Error> {
        let begin = Instant::now();
        let mut cursor = {
            let adoption = locked(&self.adoption);
            if adoption.ended.is_some_and(|ended| ended.elapsed() < ADOPT_EVERY) {
                return Ok(Vec::new());
            }
            adoption.cursor
        };
        let (head, tail) = (format!("{}throttle:", self.prefix), ":knobs");
        let pattern = format!("{}*{tail}", literal(&head));
        let mut found = Vec::new();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
            let read = |mut redis: ConnectionManager| async move { scan.query_async::<(u64, Vec<Text>)>(&mut redis).await };
            let (next, keys) = self.link.run(self.operator_bound, read).await?;
            let name = |key: &Text| Some(key.0.strip_prefix(&head)?.strip_suffix(tail)?.to_owned());
            found.extend(keys.iter().filter_map(name).filter(|name| Name::new(name.as_str()).is_ok()));
            cursor = next;
            if cursor == 0 || begin.elapsed() > ADOPT_BUDGET {
                break;
            }
        }
        *locked(&self.adoption) = Adoption { cursor, ended: (cursor == 0).then(Instant::now) };
        Ok(found)
    }
}

/// What the verb `set` answers.
enum Written {
    Unknown,
    Conflict(String),
    MinAboveMax(f64, f64),
    Done { now_us: i64, before: BTreeMap<String, String>, after: BTreeMap<String, String>, meter: Meter },
}

impl Written {
    fn read(parts: &mut impl Iterator<Item = Value>) -> RedisResult<Self> {
        let mut text = || -> RedisResult<String> { Ok(from_redis_value::<Text>(parts.next().unwrap_or(Value::Nil))?.0) };
        match text()?.as_str() {
            "unknown" => Ok(Self::Unknown),
            "conflict" => Ok(Self::Conflict(text()?)),
            "min_above_max" => Ok(Self::MinAboveMax(float(&text()?)?, float(&text()?)?)),
            "ok" => {
                let now_us = float(&text()?)? as i64;
                let mut fields = || from_redis_value::<Vec<(Text, Text)>>(parts.next().unwrap_or(Value::Nil));
                let (before, after) = (hash(fields()?), hash(fields()?));
                let meter: Vec<Option<Text>> = parts.map(from_redis_value).collect::<Result<_, redis::ParsingError>>()?;
                Ok(Self::Done { now_us, before, after, meter: reply::meter(&meter) })
            }
            other => Err(garbled(other)),
        }
    }
}

/// True if Redis says that a key holds another type than it should.
fn is_wrong_type(message: &str) -> bool {
    message.contains("WRONGTYPE")
}

fn refusal_of_wrong_type(error: Error, throttle: &Name) -> Error {
    match error {
        Error::Lost(said) if is_wrong_type(&said) => {
            Error::Invalid(vec![Problem { field: "knobs".to_owned(), message: no_hash(throttle) }])
        }
        other => other,
    }
}

fn unsteady(throttle: &Name) -> Error {
    Error::Lost(format!("the parents of {throttle} change faster than they can be read"))
}

fn hash(fields: Vec<(Text, Text)>) -> BTreeMap<String, String> {
    fields.into_iter().map(|(field, text)| (field.0, text.0)).collect()
}

/// The text with the characters escaped that a glob pattern would take for its own.
fn literal(text: &str) -> String {
    let escape = |c: char| if "*?[]^\\".contains(c) { vec!['\\', c] } else { vec![c] };
    text.chars().flat_map(escape).collect()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Every statement under these locks leaves them whole, so a poisoned lock is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Store ===

impl Store for RedisStore {
    fn set_workers(&self, workers: u32) {
        self.workers.store(workers, Ordering::Relaxed);
    }

    fn acquire<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer> {
        async move { self.ask("acquire", ask).await.unwrap_or_else(|_| self.answer_of_lost_store(ask)) }.boxed()
    }

    fn peek<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer> {
        async move { self.ask("peek", ask).await.unwrap_or_else(|_| self.answer_of_lost_store(ask)) }.boxed()
    }

    fn refund<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        grant: &'a Grant,
        units: u32,
        cost: f64,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            // A grant of a lost store has no charges: there is nothing to give back to.
            let Some((key_charge, charges)) = grant.charge_us.split_last() else { return Ok(()) };
            let add = |call: &mut ScriptInvocation<'_>| {
                call.key(self.key(throttle, &format!("lane:{key}")));
                call.arg(units).arg(sane_cost(cost).to_string()).arg(key_charge.to_string());
                for charge in charges {
                    call.arg(charge.to_string());
                }
            };
            self.call_chain(throttle, "refund", add).await.map(drop)
        }
        .boxed()
    }

    fn settle<'a>(&'a self, throttle: &'a Name, key: &'a str, tokens: f64) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let add = |call: &mut ScriptInvocation<'_>| {
                call.key(self.key(throttle, &format!("lane:{key}")));
                call.arg(tokens.to_string()).arg(u8::from(!key.is_empty()));
            };
            let (chain, texts) = self.call_chain(throttle, "settle", add).await?;
            match (texts.first(), texts.get(1).and_then(|at| at.0.parse::<usize>().ok())) {
                (Some(word), Some(at)) if word.0 == "unknown" && (1..=chain.len()).contains(&at) => {
                    Err(Error::Unknown(chain[at - 1].0.clone()))
                }
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        async move {
            let mut call = self.call("pause");
            call.key(self.key(throttle, &format!("pause:{key}")));
            call.arg(delay.as_millis().min(MAX_PAUSE_MS) as u64).arg(why);
            let texts = self.texts(call, self.operator_bound).await?;
            let until = texts.get(1).and_then(|until| until.0.parse().ok());
            until.ok_or_else(|| Error::Lost("the script answered something else".to_owned()))
        }
        .boxed()
    }

    fn resume_key<'a>(&'a self, throttle: &'a Name, key: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            let mut call = self.call("resume");
            call.key(self.key(throttle, &format!("pause:{key}")));
            let texts = self.texts(call, self.operator_bound).await?;
            Ok(texts.get(1).is_some_and(|was| was.0 == "1"))
        }
        .boxed()
    }

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        self.read_status(throttle).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        self.known_names().boxed()
    }

    fn set<'a>(&'a self, throttle: &'a Name, change: &'a Change) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        self.write(throttle, change).boxed()
    }
}
