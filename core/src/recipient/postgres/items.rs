//! Items: messages that are put into digests, which are opened if need be.

use std::collections::HashMap;

use sqlx::{Row, query};

use super::copy::{COPIED_MIN, CopiedRows};
use super::messages::GatedMessage;
use super::plans::{PlanBatch, digest_key};
use super::rows::{DigestKey, GateInput, sql_time, stored_key};
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::digest::{Arrival, COALESCED, OpenDigest};
use crate::recipient::gates::MessagePlan;

// The address is that of the newest item; a null one is the profile's.
pub(super) const OPEN_DIGESTS: &str = "
insert into flyball.digest as d
    (tenant, module, type, recipient, key, recipient_id, category, channel, address, throttle, throttle_key, opened_at, closes_at, items)
select * from unnest($1::text[], $2::text[], $3::text[], $4::text[]::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::int[])
    as a(tenant, module, type, recipient, key, recipient_id, category, channel, address, throttle, throttle_key, opened_at, closes_at, items)
order by 3, 4, 5
on conflict (type, recipient, key) do update
set items = d.items + excluded.items, opened_at = excluded.opened_at, closes_at = excluded.closes_at,
    last_at = clock_timestamp(), address = excluded.address, throttle = excluded.throttle
returning d.type, uuid_send(d.recipient) as recipient, d.key, d.id";

pub(super) const ADD_ITEMS: &str = "
insert into flyball.digest_item (digest_id, job_id, item, at)
select a.digest_id, a.job_id, j.args, a.at
from unnest($1::bigint[], $2::bigint[], $3::timestamptz[]) as a(digest_id, job_id, at)
cross join lateral (select args from flyball.job where id = a.job_id limit 1) j";

const COPY_ITEMS: &str =
    "copy flyball.digest_item (digest_id, job_id, at, item) from stdin (format binary)";

const COPY_DIGESTS: &str = "copy flyball.digest
    (id, tenant, module, type, recipient, key, recipient_id, category, channel, address, throttle, throttle_key, opened_at, last_at,
    closes_at, items) from stdin (format binary)";

pub(super) const NEW_IDS: &str = "
select nextval('flyball.digest_seq') from generate_series(1, $1::bigint)";

/// A digest that gets items: its key, its newest item, its state, and the number of new items.
type GrowingDigest<'a> = (&'a DigestKey, &'a GateInput, OpenDigest, i32);

/// A message that becomes an item: its digest, its job, and itself.
type NewItem<'a> = (i64, i64, &'a GatedMessage);

impl PlanBatch<'_> {
    /// Puts items into their digests, which it opens if need be. Returns the digest of each message.
    pub(super) async fn collect(
        &self,
        connection: &mut Transaction,
        collected: &[usize],
    ) -> Result<HashMap<usize, i64>, Error> {
        if collected.is_empty() {
            return Ok(HashMap::new());
        }
        let mut adding: HashMap<DigestKey, (usize, i32)> = HashMap::new();
        for at in collected {
            let MessagePlan::Collected { digest, arrival } = &self.planned[*at].plan else {
                continue;
            };
            let more = i32::from(matches!(arrival, Arrival::Joins(_)));
            let key = digest_key(&self.inputs[*at], digest, self.rules);
            let (newest, items) = adding.entry(key).or_insert((*at, 0));
            // Messages are planned by their priorities, whatever their age.
            if self.planned[*at].job_id > self.planned[*newest].job_id {
                *newest = *at;
            }
            *items += more;
        }
        let mut open: Vec<GrowingDigest<'_>> = adding
            .iter()
            .filter_map(|(key, (at, more))| {
                Some((key, &self.inputs[*at], *self.digests.get(key)?, *more))
            })
            .collect();
        // Locked in the order of their keys, as everywhere.
        open.sort_unstable_by_key(|one| one.0);
        let ids = self.open_digests(connection, open).await?;
        let (mut of_message, mut items) = (HashMap::new(), Vec::new());
        for at in collected {
            let (input, one) = (&self.inputs[*at], &self.planned[*at]);
            let MessagePlan::Collected { digest, arrival } = &one.plan else {
                continue;
            };
            let Some(id) = ids.get(&digest_key(input, digest, self.rules)) else {
                continue;
            };
            of_message.insert(*at, *id);
            if matches!(arrival, Arrival::Joins(_)) {
                items.push((*id, one.job_id, &input.message));
            }
        }
        add_items(connection, &items).await?;
        Ok(of_message)
    }

    /// Opens digests, or counts the new items of those that are open. Returns their ids.
    async fn open_digests(
        &self,
        connection: &mut Transaction,
        growing: Vec<GrowingDigest<'_>>,
    ) -> Result<HashMap<DigestKey, i64>, Error> {
        let (mut known, new): (Vec<GrowingDigest<'_>>, Vec<GrowingDigest<'_>>) = growing
            .into_iter()
            .partition(|one| !self.absent.contains(one.0));
        let mut ids = HashMap::new();
        match new.len() >= COPIED_MIN {
            true => match self.copy_digests(connection, &new).await? {
                Some(copied) => ids = copied,
                // Another planner was faster with one of them.
                None => known.extend(new),
            },
            false => known.extend(new),
        }
        ids.extend(self.merge_digests(connection, &known).await?);
        Ok(ids)
    }

    /// Opens digests that were not there. Returns `None`, having opened none, if another planner
    /// opened one of them meanwhile.
    async fn copy_digests(
        &self,
        connection: &mut Transaction,
        new: &[GrowingDigest<'_>],
    ) -> Result<Option<HashMap<DigestKey, i64>>, Error> {
        let ids: Vec<i64> = sqlx::query_scalar(NEW_IDS)
            .bind(i64::try_from(new.len()).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await?;
        let mut rows = CopiedRows::default();
        for (id, (key, item, open, more)) in ids.iter().zip(new) {
            let message = &item.message;
            rows.row()
                .bigint(*id)
                .text(&message.tenant)
                .text(&message.module)
                .text(&key.0)
                .key(key.1)
                .text(&key.2)
                .text(item.args.fields.recipient.as_deref().unwrap_or_default())
                .text(self.digest_category(&key.0, item))
                .text(item.args.channel.as_str())
                .or_null(item.args.to.as_deref(), CopiedRows::text)
                .text(&message.throttle)
                .text(&message.throttle_key)
                .time(open.opened_at)
                .time(self.now)
                .time(open.closes_at)
                .int(*more);
        }
        let opened = rows.write_if_new(connection, COPY_DIGESTS).await?;
        let keys = new.iter().map(|one| one.0.clone());
        Ok(opened.then(|| keys.zip(ids).collect()))
    }

    async fn merge_digests(
        &self,
        connection: &mut Transaction,
        open: &[GrowingDigest<'_>],
    ) -> Result<HashMap<DigestKey, i64>, Error> {
        if open.is_empty() {
            return Ok(HashMap::new());
        }
        let texts = |of: &dyn Fn(&GrowingDigest<'_>) -> String| {
            open.iter().map(of).collect::<Vec<String>>()
        };
        let rows = query(OPEN_DIGESTS)
            .bind(texts(&|one| one.1.message.tenant.clone()))
            .bind(texts(&|one| one.1.message.module.clone()))
            .bind(texts(&|one| one.0.0.clone()))
            .bind(texts(&|one| one.0.1.to_hex()))
            .bind(texts(&|one| one.0.2.clone()))
            .bind(texts(&|one| {
                one.1.args.fields.recipient.clone().unwrap_or_default()
            }))
            .bind(texts(&|one| {
                self.digest_category(&one.0.0, one.1).to_owned()
            }))
            .bind(texts(&|one| one.1.args.channel.as_str().to_owned()))
            .bind(
                open.iter()
                    .map(|one| one.1.args.to.clone())
                    .collect::<Vec<_>>(),
            )
            .bind(texts(&|one| one.1.message.throttle.clone()))
            .bind(texts(&|one| one.1.message.throttle_key.clone()))
            .bind(
                open.iter()
                    .map(|one| sql_time(one.2.opened_at))
                    .collect::<Vec<_>>(),
            )
            .bind(
                open.iter()
                    .map(|one| sql_time(one.2.closes_at))
                    .collect::<Vec<_>>(),
            )
            .bind(open.iter().map(|one| one.3).collect::<Vec<_>>())
            .fetch_all(connection)
            .await?;
        let mut ids: HashMap<DigestKey, i64> = HashMap::new();
        for row in &rows {
            let key = (row.try_get("type")?, stored_key(row)?, row.try_get("key")?);
            ids.insert(key, row.try_get("id")?);
        }
        Ok(ids)
    }

    /// Returns the category of a digest: its type's, or that of the messages that were held.
    fn digest_category<'b>(&'b self, name: &str, item: &'b GateInput) -> &'b str {
        match self.rules.digest(name) {
            Some(kind) if name != COALESCED => &kind.category,
            _ => &item.args.category,
        }
    }
}

/// Adds items: those whose text is known are copied, and that of the others is read from their jobs.
async fn add_items(connection: &mut Transaction, items: &[NewItem<'_>]) -> Result<(), Error> {
    let is_many = items.len() >= COPIED_MIN;
    let mut copied = CopiedRows::default();
    let (mut digests, mut jobs, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for (digest, job, message) in items {
        match &message.item {
            Some(text) if is_many => {
                let row = copied.row().bigint(*digest).bigint(*job);
                row.time(message.accepted_at).json(text);
            }
            _ => {
                digests.push(*digest);
                jobs.push(*job);
                times.push(sql_time(message.accepted_at));
            }
        }
    }
    copied.write(connection, COPY_ITEMS).await?;
    if jobs.is_empty() {
        return Ok(());
    }
    let added = query(ADD_ITEMS).bind(digests).bind(jobs).bind(times);
    added.execute(connection).await?;
    Ok(())
}
