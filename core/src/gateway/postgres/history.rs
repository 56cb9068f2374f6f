//! The history of channels: what came after a message, and where a channel stands.

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::statement::query;
use crate::gateway::channel_name::ChannelName;
use crate::jobs::Error;
use crate::postgres::Db;

pub(super) const LAST_SEQ: &str = "select coalesce((select m.seq from flyball.channel_message m order by m.seq desc limit 1), 0) as seq";

pub(super) const AFTER: &str = r#"
select m.seq, m.tenant, m.channel, m.epoch, m."offset", m.id, m.data::text as data
from flyball.channel_message m where m.seq > $1 order by m.seq limit $2"#;

pub(super) const POSITIONS: &str = "
select coalesce(c.epoch, e.last_value) as epoch, coalesce(c.last_offset, 0) as last_offset, coalesce(c.first_offset, 1) as first_offset
from unnest($1::text[], $2::text[]) with ordinality as a(tenant, name, n)
cross join flyball.channel_epoch e
left join flyball.channel c on c.tenant = a.tenant and c.name = a.name
order by a.n";

pub(super) const PAGES: &str = r#"
select a.n, m.seq, m.tenant, m.channel, m.epoch, m."offset", m.id, m.data
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) with ordinality as a(tenant, channel, epoch, next, n)
cross join lateral (
    select m.seq, m.tenant, m.channel, m.epoch, m."offset", m.id, m.data::text as data
    from flyball.channel_message m
    where m.tenant = a.tenant and m.channel = a.channel and m."offset" > 0 and m."offset" >= a.next and m.epoch = a.epoch
    order by m."offset"
    limit $5
) m
order by a.n, m."offset""#;

/// A message of a channel.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredMessage {
    pub seq: i64,
    pub tenant: String,
    pub channel: ChannelName,
    pub epoch: i64,
    /// 0 in a channel without history.
    pub offset: i64,
    pub id: i64,
    /// The data as JSON text.
    pub data: String,
}

impl std::fmt::Debug for StoredMessage {
    /// Shows everything but the data, which may be private.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredMessage")
            .field("channel", &self.channel)
            .field("epoch", &self.epoch)
            .field("offset", &self.offset)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The messages of a channel from an offset on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HistoryPage {
    pub tenant: String,
    pub channel: String,
    pub epoch: i64,
    /// The first offset.
    pub next: i64,
}

/// The place of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelPosition {
    pub epoch: i64,
    /// The offset of the last message; 0 before the first.
    pub last_offset: i64,
    /// The offset of the first message that is kept; one more than the last if none is.
    pub first_offset: i64,
}

impl ChannelPosition {
    /// Returns true if everything after `offset` is kept.
    pub fn has_all_after(&self, epoch: i64, offset: i64) -> bool {
        epoch == self.epoch
            && offset + 1 >= self.first_offset
            && (0..=self.last_offset).contains(&offset)
    }
}

/// Returns the number of the last message of all channels.
pub async fn last_seq(db: &Db) -> Result<i64, Error> {
    Ok(query(LAST_SEQ).fetch_one(db).await?.try_get("seq")?)
}

/// Returns the messages of all channels after a number.
pub async fn after(db: &Db, seq: i64, most: i64) -> Result<Vec<StoredMessage>, Error> {
    let rows = query(AFTER).bind(seq).bind(most).fetch_all(db).await?;
    rows.iter().map(message).collect()
}

/// Returns where channels stand, in their order; each is a tenant and a name.
pub async fn positions(
    db: &Db,
    channels: &[(String, String)],
) -> Result<Vec<ChannelPosition>, Error> {
    let (tenants, names): (Vec<&str>, Vec<&str>) = channels
        .iter()
        .map(|(tenant, name)| (tenant.as_str(), name.as_str()))
        .unzip();
    let rows = query(POSITIONS)
        .bind(&tenants)
        .bind(&names)
        .fetch_all(db)
        .await?;
    rows.iter()
        .map(|row| {
            Ok(ChannelPosition {
                epoch: row.try_get("epoch")?,
                last_offset: row.try_get("last_offset")?,
                first_offset: row.try_get("first_offset")?,
            })
        })
        .collect()
}

/// Returns up to `most` messages of each page, in the order of the pages.
pub async fn pages(
    db: &Db,
    asked: &[HistoryPage],
    most: i64,
) -> Result<Vec<Vec<StoredMessage>>, Error> {
    let tenants: Vec<&str> = asked.iter().map(|page| page.tenant.as_str()).collect();
    let names: Vec<&str> = asked.iter().map(|page| page.channel.as_str()).collect();
    let (epochs, nexts): (Vec<i64>, Vec<i64>) =
        asked.iter().map(|page| (page.epoch, page.next)).unzip();
    let rows = query(PAGES)
        .bind(&tenants)
        .bind(&names)
        .bind(&epochs)
        .bind(&nexts)
        .bind(most)
        .fetch_all(db)
        .await?;
    let mut found = vec![Vec::new(); asked.len()];
    for row in &rows {
        let n: i64 = row.try_get("n")?;
        if let Some(page) = usize::try_from(n - 1).ok().and_then(|n| found.get_mut(n)) {
            page.push(message(row)?);
        }
    }
    Ok(found)
}

fn message(row: &PgRow) -> Result<StoredMessage, Error> {
    let channel: &str = row.try_get("channel")?;
    Ok(StoredMessage {
        seq: row.try_get("seq")?,
        tenant: row.try_get("tenant")?,
        channel: ChannelName::stored(channel),
        epoch: row.try_get("epoch")?,
        offset: row.try_get("offset")?,
        id: row.try_get("id")?,
        data: row.try_get("data")?,
    })
}
