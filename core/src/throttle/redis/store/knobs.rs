//! Writes of knobs and of capacities, and the end of a throttle.

use std::collections::BTreeMap;

use redis::{RedisResult, from_redis_value};

use super::{RedisStore, hash, is_wrong_type, locked};
use crate::throttle::bucket::UsageCounters;
use crate::throttle::new_name::check_new_name;
use crate::throttle::redis::connection::Connection;
use crate::throttle::redis::layout::{KNOBS, other_tag};
use crate::throttle::redis::reply;
use crate::throttle::redis::reply::{ReplyReader, Text, float, garbled};
use crate::throttle::rules::min_above_max;
use crate::throttle::status::{NO_HASH, no_hash};
use crate::throttle::store::capacity_text;
use crate::throttle::{Change, Error, KnobProblem, Name, RateLimit, Status};

impl RedisStore {
    pub(super) async fn write(
        &self,
        throttle: &Name,
        change: &Change,
    ) -> Result<(Option<Status>, Status), Error> {
        change.check_parent(throttle)?;
        change.check_pause(throttle)?;
        change.check_concurrency(throttle)?;
        self.check_tags(throttle, change)?;
        // A throttle that was made before names were checked is turned like any other.
        if change.create
            && let Err(refusal) = check_new_name(change, throttle)
            && self.read_status(throttle).await?.is_none()
        {
            return Err(refusal);
        }
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
        if let Some(mode) = &change.if_mode {
            call.text("mode");
            call.text(&format!("?{mode}"));
        }
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
        match written.map_err(|error| self.refusal_of_wrong_type(error, throttle))? {
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

    pub(super) async fn write_capacity(
        &self,
        throttle: &Name,
        capacity: RateLimit,
        why: &str,
    ) -> Result<(), Error> {
        self.layout
            .check(throttle)
            .map_err(|problem| Error::Invalid(vec![problem]))?;
        let mut call = self.law.call(2);
        call.key(&self.layout.key(throttle, KNOBS, ""));
        call.key(&self.layout.key(throttle, "bucket", ""));
        self.begin(&mut call, "capacity");
        call.text(
            &capacity_text(capacity).map_or_else(|| "-".to_owned(), |text| format!("={text}")),
        );
        call.text(why);
        let written = self.invoke(throttle, &call, self.operator_bound).await;
        let mut parts =
            ReplyReader::new(written.map_err(|error| self.refusal_of_wrong_type(error, throttle))?);
        if parts.text() == "unknown" {
            Err(Error::Unknown(throttle.clone()))
        } else {
            Ok(())
        }
    }

    /// Refuses a name or a parent that would spread the keys of one call over several slots of a
    /// cluster.
    pub(super) fn check_tags(&self, throttle: &Name, change: &Change) -> Result<(), Error> {
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

    pub(super) async fn take_away(&self, throttle: &Name) -> Result<bool, Error> {
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
        locked(&self.memo).forget(throttle);
        let mut forget = redis::cmd("SREM");
        forget.arg(self.layout.names()).arg(throttle.as_str());
        // A name whose knobs are gone is ignored.
        let _ = self.change_names(&forget).await;
        Ok(was_there)
    }
}

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

impl RedisStore {
    fn refusal_of_wrong_type(&self, error: Error, throttle: &Name) -> Error {
        match error {
            Error::Lost(answer) if is_wrong_type(&answer) => Error::Invalid(vec![KnobProblem {
                field: NO_HASH.to_owned(),
                message: no_hash(&self.layout.key(throttle, KNOBS, "").to_string()),
            }]),
            other => other,
        }
    }
}
