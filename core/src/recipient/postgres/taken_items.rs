//! Items that the closer takes out of their digests, with as many contents as their messages need.

use std::collections::HashMap;

use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use serde_json::{Map, Value};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::statement::query;
use crate::jobs::Error;
use crate::postgres::json_or_text;

macro_rules! taken {
    ($which:literal) => {
        concat!(
            "
with taken as (
    delete from flyball.digest_item where ",
            $which,
            " returning digest_id, job_id, item, at
)
select t.digest_id, t.job_id, t.item, t.at, lead(t.job_id) over (partition by t.digest_id order by t.job_id) is null as is_newest
from taken t
order by t.digest_id, t.job_id"
        )
    };
}

pub(super) const TAKE_ITEMS: &str = taken!("digest_id = any($1)");

pub(super) const TAKE_FIRST_ITEMS: &str = taken!(
    "digest_id = $1 and job_id = any(array(
        select i.job_id from flyball.digest_item i where i.digest_id = $1 order by i.job_id limit $2))"
);

/// The fields of the newest item that its digest has too.
const OF_NEWEST: [&str; 2] = ["from", "provider"];

/// An item of a digest.
pub(super) struct DigestItem {
    pub job_id: i64,
    pub args: Value,
    /// The time at which it was accepted.
    pub at: Timestamp,
}

/// The contents of a digest that are read.
#[derive(Clone, Copy)]
pub(super) struct ItemsWanted {
    /// The most items.
    pub items: usize,
    /// The bytes of them after which no further one is read.
    pub bytes: usize,
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
            self.bytes = self.bytes.saturating_add(args.to_string().len());
            self.shown.push(DigestItem {
                job_id,
                args,
                at: row.try_get::<SqlTimestamp, _>("at")?.to_jiff(),
            });
        }
        Ok(())
    }
}

/// Takes all items of digests, each in the order in which they came.
pub(super) async fn take_items(
    connection: &mut PgConnection,
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

/// Takes the first `most` items of a digest.
pub(super) async fn take_first(
    connection: &mut PgConnection,
    digest: i64,
    most: usize,
) -> Result<TakenItems, Error> {
    let rows = query(TAKE_FIRST_ITEMS)
        .bind(digest)
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await?;
    let (mut taken, all) = (TakenItems::default(), usize::MAX);
    for row in &rows {
        let wanted = ItemsWanted {
            items: all,
            bytes: all,
        };
        taken.add(row, wanted)?;
    }
    Ok(taken)
}
