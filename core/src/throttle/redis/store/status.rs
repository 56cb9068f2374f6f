//! Reads of throttles, of their parents and of their keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use redis::{RedisResult, Value, from_redis_value_ref};

use super::{RedisStore, hash, is_wrong_type};
use crate::throttle::redis::connection::Connection;
use crate::throttle::redis::layout::{KNOBS, other_tag};
use crate::throttle::redis::reply::{self, ReplyReader, Text};
use crate::throttle::rolling_window::WindowUsage;
use crate::throttle::tree::{MAX_LEVELS, MISSING};
use crate::throttle::{
    Error, KeyState, KnobProblem, MAX_LANES_PER_ASK, Name, Status, WrittenKnobs,
};

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

/// The throttles whose knobs are read in one call.
const READ_AT_ONCE: usize = 200;

/// The calls for knobs that are under way at once; on a cluster each throttle may be in a slot of its
/// own.
const READ_CONCURRENCY: usize = 32;

/// The text of `parent` of each level of a tree, `None` for a throttle that cannot be asked.
type Parents = BTreeMap<Name, Option<String>>;

/// The same of throttles of many trees, or the reason why one could not be read.
type KnownParents = BTreeMap<Name, Result<Option<String>, String>>;

impl RedisStore {
    /// Reads the status of one throttle.
    pub(super) async fn read_status(&self, throttle: &Name) -> Result<Option<Status>, Error> {
        let mut found = self.read_statuses(std::slice::from_ref(throttle)).await;
        found.pop().unwrap_or(Ok(None))
    }

    /// Reads the statuses of throttles, in a few calls for all of one slot.
    pub(super) async fn read_statuses(&self, names: &[Name]) -> Vec<Result<Option<Status>, Error>> {
        let read = |slot, part| self.statuses_of_slot(slot, part);
        let mut found = self.by_slots(names, read).await;
        let mut known: KnownParents = BTreeMap::new();
        for (name, status) in names.iter().zip(&found) {
            if let Ok(status) = status {
                let fields = status.as_ref().map(|status| &status.raw);
                known.insert(name.clone(), Ok(parent_of(fields)));
            }
        }
        self.complete(&mut known).await;
        for one in &mut found {
            let Ok(Some(status)) = one else { continue };
            if status.knobs.parent.is_none() {
                continue;
            }
            let parents = self.parents_among(&status.name, &known);
            *one = parents.map(|parents| Some(self.with_parents(status.clone(), &parents)));
        }
        found
    }

    /// Reads the parents that are not known yet, a level of all trees at a time.
    async fn complete(&self, known: &mut KnownParents) {
        for _ in 0..MAX_LEVELS {
            let named = known.values().flatten().flatten();
            let missing: BTreeSet<Name> = named
                .filter_map(|parent| Name::new(parent).ok())
                .filter(|parent| !known.contains_key(parent))
                .collect();
            if missing.is_empty() {
                return;
            }
            let missing: Vec<Name> = missing.into_iter().collect();
            let read = self.read_written(&missing).await;
            for (name, written) in missing.into_iter().zip(read) {
                let parent = match written {
                    Ok(written) => Ok(parent_of(written.as_ref().map(|knobs| &knobs.fields))),
                    Err(error) => Err(reason_of(error)),
                };
                known.insert(name, parent);
            }
        }
    }

    /// Reads the knobs of throttles as they are written, in a few calls for all of one slot.
    pub(super) async fn read_written(
        &self,
        names: &[Name],
    ) -> Vec<Result<Option<WrittenKnobs>, Error>> {
        let read = |slot, part| self.written_of_slot(slot, part);
        self.by_slots(names, read).await
    }

    /// Reads something of many throttles, in the order of their names: by slots, of each so many at
    /// once. There is nothing of a name that cannot be one on this server.
    pub(in crate::throttle::redis) async fn by_slots<'a, T, F>(
        &'a self,
        names: &'a [Name],
        read: impl Fn(u16, Vec<&'a Name>) -> F,
    ) -> Vec<Result<Option<T>, Error>>
    where
        F: Future<Output = Result<Vec<Result<Option<T>, Error>>, Error>>,
    {
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (place, name) in names.iter().enumerate() {
            if self.layout.check(name).is_ok() {
                slots.entry(self.layout.slot(name)).or_default().push(place);
            }
        }
        let parts: Vec<(u16, &[usize])> = slots
            .iter()
            .flat_map(|(slot, places)| places.chunks(READ_AT_ONCE).map(move |part| (*slot, part)))
            .collect();
        let asks: Vec<F> = parts
            .iter()
            .map(|(slot, places)| read(*slot, places.iter().map(|place| &names[*place]).collect()))
            .collect();
        let answers: Vec<_> = stream::iter(asks)
            .buffered(READ_CONCURRENCY)
            .collect()
            .await;
        let mut found: Vec<Result<Option<T>, Error>> = names.iter().map(|_| Ok(None)).collect();
        for ((_, places), answer) in parts.into_iter().zip(answers) {
            match answer {
                Ok(all) => places
                    .iter()
                    .zip(all)
                    .for_each(|(place, one)| found[*place] = one),
                Err(error) => {
                    let reason = reason_of(error);
                    places
                        .iter()
                        .for_each(|place| found[*place] = Err(Error::Lost(reason.clone())));
                }
            }
        }
        found
    }

    async fn statuses_of_slot(
        &self,
        slot: u16,
        names: Vec<&Name>,
    ) -> Result<Vec<Result<Option<Status>, Error>>, Error> {
        let mut pipe = redis::pipe();
        for name in &names {
            let key = self.layout.key(name, KNOBS, "");
            pipe.cmd("HGETALL").arg(&key);
            pipe.cmd("HMGET")
                .arg(self.layout.key(name, "bucket", ""))
                .arg(&BUCKET);
            pipe.cmd("PTTL").arg(&key);
        }
        pipe.cmd("TIME");
        let values = self.values_of(slot, pipe).await?;
        let time = values.last().and_then(|time| time.as_ref().ok());
        let time = time.and_then(|time| from_redis_value_ref::<(i64, i64)>(time).ok());
        let (s, us) = time.ok_or_else(|| Error::Lost("no time in the answer".to_owned()))?;
        let now_us = self
            .clock
            .as_ref()
            .map_or(s * 1_000_000 + us, |clock| clock());
        let status = |(name, of): (&&Name, &[RedisResult<Value>])| {
            let Some(raw) = fields_of(&of[0])? else {
                let key = self.layout.key(name, KNOBS, "").to_string();
                return Ok(Some(Status::no_hash((*name).clone(), &key, now_us)));
            };
            if raw.is_empty() {
                return Ok(None);
            }
            let bucket: Vec<Option<Text>> = of[1]
                .as_ref()
                .ok()
                .and_then(|bucket| from_redis_value_ref(bucket).ok())
                .unwrap_or_default();
            let status = Status::read((*name).clone(), raw, &reply::meter(&bucket), now_us)
                .expiring_in(expires_ms(&of[2]));
            let (level, refusal) = (reply::bucket(&bucket), reply::refusal(&bucket));
            Ok(Some(status.with_bucket(&level, refusal)))
        };
        Ok(names.iter().zip(values.chunks(3)).map(status).collect())
    }

    async fn written_of_slot(
        &self,
        slot: u16,
        names: Vec<&Name>,
    ) -> Result<Vec<Result<Option<WrittenKnobs>, Error>>, Error> {
        let mut pipe = redis::pipe();
        for name in names {
            let key = self.layout.key(name, KNOBS, "");
            pipe.cmd("HGETALL").arg(&key);
            pipe.cmd("PTTL").arg(&key);
        }
        let values = self.values_of(slot, pipe).await?;
        let written = |of: &[RedisResult<Value>]| {
            let Some(fields) = fields_of(&of[0])? else {
                return Ok(Some(WrittenKnobs::default()));
            };
            let expires = expires_ms(&of[1]) >= 0;
            Ok((!fields.is_empty()).then_some(WrittenKnobs { fields, expires }))
        };
        Ok(values.chunks(2).map(written).collect())
    }

    /// Sends commands together. People may have written anything under these keys, and errors of
    /// one throttle must not hide the others.
    async fn values_of(
        &self,
        slot: u16,
        mut pipe: redis::Pipeline,
    ) -> Result<Vec<RedisResult<Value>>, Error> {
        pipe.ignore_errors();
        let pipe = &pipe;
        let read = |mut redis: Connection| async move { pipe.query_async(&mut redis).await };
        self.servers.run(slot, self.operator_bound, read).await
    }

    /// Returns what [`Self::read_parents`] would read.
    fn parents_among(&self, leaf: &Name, known: &KnownParents) -> Result<Parents, Error> {
        let mut parents = Parents::new();
        let mut next = Some(leaf.clone());
        while let Some(name) =
            next.filter(|name| !parents.contains_key(name) && parents.len() <= MAX_LEVELS)
        {
            let parent = match known.get(&name) {
                Some(parent) if self.layout.is_together(leaf, &name) => {
                    parent.clone().map_err(Error::Lost)?
                }
                _ => None,
            };
            next = parent.as_deref().and_then(|parent| Name::new(parent).ok());
            parents.insert(name, parent);
        }
        Ok(parents)
    }

    /// Reads the text of `parent` of a throttle and of those above it, `None` for a throttle that
    /// does not exist or has another hash tag.
    pub(in crate::throttle::redis) async fn read_parents(
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
                    (true, Ok(parent)) => Some(valid_parent(parent.map(|text| text.0))),
                    _ => None,
                },
            };
            next = parent.as_deref().and_then(|parent| Name::new(parent).ok());
            parents.insert(name, parent);
        }
        Ok(parents)
    }

    pub(super) fn with_parents(&self, status: Status, parents: &Parents) -> Status {
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

    pub(super) async fn look_at(
        &self,
        throttle: &Name,
        keys: &[String],
    ) -> Result<Vec<KeyState>, Error> {
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

    pub(super) async fn read_usage(
        &self,
        throttle: &Name,
        key: &str,
    ) -> Result<Option<WindowUsage>, Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let mut call = self.law.call(3);
        call.key(&self.layout.key(throttle, KNOBS, ""));
        call.key(&self.layout.key(throttle, "bucket", ""));
        call.key(&self.layout.key(throttle, "lane:", key));
        self.begin(&mut call, "usage");
        let mut parts = ReplyReader::new(self.invoke(throttle, &call, self.operator_bound).await?);
        if parts.text() == "unknown" {
            return Ok(None);
        }
        let mut read = || {
            let at_us = reply::float(&parts.text())? as i64;
            Ok(Some(WindowUsage {
                at_us,
                throttle: reply::windows(&mut parts)?,
                key: reply::windows(&mut parts)?,
            }))
        };
        read().map_err(|error: redis::RedisError| Error::Lost(error.to_string()))
    }
}

/// Returns the reason of an error, for another one of a lost store.
fn reason_of(error: Error) -> String {
    match error {
        Error::Lost(reason) => reason,
        other => other.to_string(),
    }
}

/// Returns the fields of a reply; `None` for a key that is not a hash.
fn fields_of(reply: &RedisResult<Value>) -> Result<Option<BTreeMap<String, String>>, Error> {
    match reply {
        Ok(value) => from_redis_value_ref::<Vec<(Text, Text)>>(value)
            .map(|fields| Some(hash(fields)))
            .map_err(|error| Error::Lost(error.to_string())),
        Err(error) if is_wrong_type(&error.to_string()) => Ok(None),
        Err(error) => Err(Error::Lost(error.to_string())),
    }
}

/// Returns the time to live of a key in milliseconds, below 0 for none.
fn expires_ms(reply: &RedisResult<Value>) -> i64 {
    match reply {
        Ok(Value::Int(ms)) => *ms,
        _ => -1,
    }
}

/// Returns the parent in the fields of a throttle; `None` without fields, because a key that does not
/// exist or is not a hash is not a throttle.
fn parent_of(fields: Option<&BTreeMap<String, String>>) -> Option<String> {
    let fields = fields.filter(|fields| !fields.is_empty())?;
    Some(valid_parent(fields.get("parent").cloned()))
}

/// Returns the parent that a text names. An invalid name counts as no parent, as in the Lua script.
fn valid_parent(text: Option<String>) -> String {
    text.and_then(|text| Name::new(text).ok())
        .map_or_else(String::new, |name| name.to_string())
}
