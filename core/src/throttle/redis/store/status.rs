//! Reads of throttles, of their parents and of their keys.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::RedisResult;

use super::{RedisStore, hash, is_wrong_type};
use crate::throttle::redis::connection::Connection;
use crate::throttle::redis::layout::{KNOBS, other_tag};
use crate::throttle::redis::reply::{self, ReplyReader, Text};
use crate::throttle::rolling_window::WindowUsage;
use crate::throttle::tree::{MAX_LEVELS, MISSING};
use crate::throttle::{Error, KeyState, KnobProblem, MAX_LANES_PER_ASK, Name, Status};

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

/// The text of `parent` of each level of a tree, `None` for a throttle that cannot be asked.
type Parents = BTreeMap<Name, Option<String>>;

impl RedisStore {
    pub(super) async fn read_status(&self, throttle: &Name) -> Result<Option<Status>, Error> {
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
