//! Items that the closer takes out of their digests, with as many contents as their messages need.

use std::collections::HashMap;

use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde_json::{Map, Value};
use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::{Transaction, json_or_text};
use crate::recipient::text_bytes::text_bytes;

pub(super) const TAKE_ITEMS: &str = "
with taken as (
    delete from flyball.digest_item where digest_id = any($1) returning digest_id, job_id, item, at
)
select t.digest_id, t.job_id, t.item, t.at, lead(t.job_id) over (partition by t.digest_id order by t.job_id) is null as is_newest
from taken t
order by t.digest_id, t.job_id";

// The number of items that were found tells whether the bytes ended the part, or the items.
pub(super) const TAKE_PART: &str = "
with first as materialized (
    select i.job_id, octet_length(i.item::text) as bytes
    from flyball.digest_item i where i.digest_id = $1 order by i.job_id limit $2
),
taken as (
    delete from flyball.digest_item
    where digest_id = $1 and job_id <= (
        select max(c.job_id)
        from (select f.job_id, sum(f.bytes) over (order by f.job_id) - f.bytes as before from first f) c
        where c.before <= $3
    )
    returning job_id, item, at
)
select t.job_id, t.item, t.at, lead(t.job_id) over (order by t.job_id) is null as is_newest, (select count(*) from first) as found
from taken t
order by t.job_id";

pub(super) const ITEM_BYTES: &str = "
select a.id, s.bytes
from unnest($1::bigint[]) as a(id)
cross join lateral (
    select coalesce(sum(octet_length(i.item::text)), 0)::bigint as bytes from flyball.digest_item i where i.digest_id = a.id
) s";

/// The fields of the newest item that its digest has too.
const OF_NEWEST: [&str; 2] = ["from", "provider"];

/// The bytes that a digest shows of an item above which it may go alone. A shorter one has room in
/// any digest, whatever its texts.
const ALONE_BYTES: usize = 32_768;

/// An item of a digest.
pub(super) struct DigestItem {
    pub job_id: i64,
    /// The arguments of its message; only what a digest shows of them if it does not go alone.
    pub args: Value,
    /// The time at which it was accepted.
    pub at: Timestamp,
}

/// The contents of a digest that are read; none by default.
#[derive(Clone, Copy, Default)]
pub(super) struct ItemsWanted {
    /// The most items.
    pub items: usize,
    /// The bytes that a digest shows of them after which no further one is read.
    pub bytes: usize,
    /// True if each goes alone.
    pub is_alone: bool,
}

/// The items of one digest.
#[derive(Default)]
pub(super) struct TakenItems {
    /// The messages of all of them.
    pub jobs: Vec<i64>,
    /// The first ones, as many as were wanted.
    pub shown: Vec<DigestItem>,
    /// The fields of the newest one that name its sender and its provider.
    pub newest: Map<String, Value>,
    bytes: usize,
}

impl TakenItems {
    fn add(&mut self, row: &PgRow, wanted: ItemsWanted) -> Result<(), sqlx::Error> {
        let job_id = row.try_get("job_id")?;
        self.jobs.push(job_id);
        let is_newest: bool = row.try_get("is_newest")?;
        let is_shown = self.shown.len() < wanted.items && self.bytes <= wanted.bytes;
        if !is_shown && !is_newest {
            return Ok(());
        }
        let args = json_or_text(row, "item");
        if is_newest {
            let fields = OF_NEWEST.iter().filter_map(|name| {
                let value = args.get(*name)?;
                Some(((*name).to_owned(), value.clone()))
            });
            self.newest = fields.collect();
        }
        if is_shown {
            let seen = shown(&args);
            let bytes = text_bytes(&seen);
            self.bytes = self.bytes.saturating_add(bytes);
            let args = match wanted.is_alone || bytes > ALONE_BYTES {
                true => args,
                false => only_shown(seen),
            };
            self.shown.push(DigestItem {
                job_id,
                args,
                at: row.try_get::<SqlTimestamp, _>("at")?.to_jiff(),
            });
        }
        Ok(())
    }
}

/// Returns what a digest shows of an item with these arguments: its data. Where they name neither
/// `text` nor `title`, its own words beside: the body as `text`, or else the subject as `title`. A
/// template with data has no words before these fill it in.
pub(super) fn shown(args: &Value) -> Value {
    let data = args.get("data").and_then(Value::as_object);
    let mut seen = data.cloned().unwrap_or_default();
    let template = args.get("template").filter(|template| !template.is_null());
    let is_named = seen.contains_key("text") || seen.contains_key("title");
    if is_named || (template.is_some() && !seen.is_empty()) {
        return Value::Object(seen);
    }
    let texts = template.unwrap_or(args);
    let is_said = |words: &&Value| !words.is_null() && words.as_str() != Some("");
    let body = match texts.is_string() {
        true => Some(texts),
        false => texts.get("body"),
    };
    let body = body.filter(is_said).map(|body| ("text", body));
    let subject = || Some(("title", texts.get("subject").filter(is_said)?));
    if let Some((name, words)) = body.or_else(subject) {
        seen.insert(name.to_owned(), words.clone());
    }
    Value::Object(seen)
}

/// Returns the arguments of an item of which only this is left: its template is often much longer.
fn only_shown(seen: Value) -> Value {
    Value::Object(Map::from_iter([("data".to_owned(), seen)]))
}

/// Takes all items of digests, each in the order in which they came.
pub(super) async fn take_items(
    connection: &mut Transaction,
    digests: &HashMap<i64, ItemsWanted>,
) -> Result<HashMap<i64, TakenItems>, Error> {
    let mut items: HashMap<i64, TakenItems> = HashMap::new();
    let ids: Vec<i64> = digests.keys().copied().collect();
    // Row by row, because a digest may have many more than are shown.
    let mut rows = query(TAKE_ITEMS).bind(ids).fetch(connection);
    while let Some(row) = rows.try_next().await? {
        let digest: i64 = row.try_get("digest_id")?;
        if let Some(wanted) = digests.get(&digest) {
            items.entry(digest).or_default().add(&row, *wanted)?;
        }
    }
    Ok(items)
}

/// Takes the first `most` items of a digest, or fewer that have `bytes` bytes. Returns them, and
/// the number of those that were found.
pub(super) async fn take_part(
    connection: &mut Transaction,
    digest: i64,
    most: usize,
    bytes: usize,
    is_alone: bool,
) -> Result<(TakenItems, usize), Error> {
    let mut taken = TakenItems::default();
    let mut found: i64 = 0;
    let whole = |limit: usize| i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = query_unprepared(TAKE_PART)
        .bind(digest)
        .bind(whole(most))
        .bind(whole(bytes))
        .fetch(connection);
    let wanted = ItemsWanted {
        items: usize::MAX,
        bytes: usize::MAX,
        is_alone,
    };
    while let Some(row) = rows.try_next().await? {
        found = row.try_get("found")?;
        taken.add(&row, wanted)?;
    }
    Ok((taken, usize::try_from(found).unwrap_or_default()))
}

/// Returns the bytes of all items of each of these digests.
pub(super) async fn item_bytes(
    connection: &mut Transaction,
    digests: &[i64],
) -> Result<HashMap<i64, usize>, Error> {
    if digests.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = query(ITEM_BYTES)
        .bind(digests)
        .fetch_all(connection)
        .await?;
    let read = |row: &PgRow| {
        let bytes: i64 = row.try_get("bytes")?;
        Ok((
            row.try_get("id")?,
            usize::try_from(bytes).unwrap_or_default(),
        ))
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_digest_shows_the_data_of_an_item_or_its_own_words() {
        for (args, seen) in [
            (
                json!({"data": {"n": 1}, "template": {"body": "{{ n }}", "subject": "long"}}),
                json!({"n": 1}),
            ),
            (
                json!({"body": "x", "subject": "y", "to": "+15550100"}),
                json!({"text": "x"}),
            ),
            (json!({"template": "sent"}), json!({"text": "sent"})),
            (
                json!({"template": {"body": "sent", "subject": "y"}, "data": {}}),
                json!({"text": "sent"}),
            ),
            (
                json!({"html": "<p>x</p>", "subject": "y", "body": ""}),
                json!({"title": "y"}),
            ),
            (
                json!({"body": "x", "data": {"url": "/7"}, "template": null}),
                json!({"url": "/7", "text": "x"}),
            ),
            (
                json!({"body": "x", "data": {"title": "y"}}),
                json!({"title": "y"}),
            ),
            (json!({"body": {"a": 1}}), json!({"text": {"a": 1}})),
            (json!({"data": null, "body": "x"}), json!({"text": "x"})),
            (json!({"html": "<p>x</p>"}), json!({})),
        ] {
            assert_eq!(shown(&args), seen, "{args}");
            assert_eq!(shown(&only_shown(seen.clone())), seen);
        }
    }
}
