//! The history of channels: what came after a message, and where a channel stands.

use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use crate::gateway::channel_name::ChannelName;
use crate::gateway::limits::STORED_BYTES;
use crate::jobs::Error;
use crate::postgres::Db;

pub(super) const LAST_SEQ: &str = "select coalesce((select m.seq from flyball.channel_message m order by m.seq desc limit 1), 0) as seq";

/// Leaves out data with more than `$3` bytes, as it is stored or as text, and what is compressed,
/// which is not even read. The text of a number may be far longer than what is stored of it.
pub(super) const AFTER: &str = r#"
select m.seq, m.tenant, m.channel, m.epoch, m."offset", m.id, case when octet_length(m.data) <= $3 then m.data end as data
from (
    select m.seq, m.tenant, m.channel, m.epoch, m."offset", m.id,
        case when pg_column_size(m.data) <= $3 and pg_column_compression(m.data) is null then m.data::text end as data
    from flyball.channel_message m where m.seq > $1 order by m.seq limit $2
) m
order by m.seq"#;

/// Reads data that was left out: of lists of messages, each until it has `$4` bytes. `$2` has for
/// each message the place of the first one of the next list. Of data with more than `$3` bytes, and
/// of a message that has gone, nothing is read.
// A sum over a window would read all data of a list before it drops the most.
pub(super) const LARGE: &str = r#"
with recursive walk as (
    select 0 as i, '' as data, 0::bigint as bytes
    union all
    select n.i, d.data, n.earlier + octet_length(d.data)
    from walk w
    cross join lateral (select case when w.bytes < $4 then w.i + 1 else ($2::int[])[w.i] end as i) x
    cross join lateral (select x.i, case when x.i = ($2::int[])[w.i] then 0 else w.bytes end as earlier) n
    cross join lateral (
        select coalesce((
            select case when octet_length(t.data) <= $3 then t.data end
            from (select m.data::text as data from flyball.channel_message m where m.seq = ($1::bigint[])[n.i] offset 0) t
        ), '') as data
        offset 0
    ) d
    where n.i <= cardinality($1::bigint[])
)
select w.i as place, w.data from walk w where w.i > 0"#;

pub(super) const POSITIONS: &str = "
select coalesce(c.epoch, e.last_value) as epoch, coalesce(c.last_offset, 0) as last_offset, coalesce(c.first_offset, 1) as first_offset
from unnest($1::text[], $2::text[]) with ordinality as a(tenant, name, n)
cross join flyball.channel_epoch e
left join lateral (
    select h.epoch, h.last_offset, h.first_offset from flyball.channel h where h.tenant = a.tenant and h.name = a.name limit 1
) c on true
order by a.n";

/// Leaves out data as [`AFTER`] does, with `$6`.
pub(super) const PAGES: &str = r#"
select a.n, m.seq, m.tenant, m.channel, m.epoch, m."offset", m.id, case when octet_length(m.data) <= $6 then m.data end as data
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) with ordinality as a(tenant, channel, epoch, next, n)
cross join lateral (
    select m.seq, m.tenant, m.channel, m.epoch, m."offset", m.id,
        case when pg_column_size(m.data) <= $6 and pg_column_compression(m.data) is null then m.data::text end as data
    from flyball.channel_message m
    where m.tenant = a.tenant and m.channel = a.channel and m."offset" > 0 and m."offset" >= a.next and m.epoch = a.epoch
    order by m."offset"
    limit $5
) m
order by a.n, m."offset""#;

/// The most bytes of data that is read with its message; larger ones are read one by one, so that
/// as many as are wanted are read and no more.
const SMALL_BYTES: i32 = 4096;

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
    /// The data as JSON text; empty if it has more than [`STORED_BYTES`].
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
    /// The offset of the first message that is kept; one more than the last if none is, and two
    /// more after the erasure of an inbox, so that nobody resumes across it.
    pub first_offset: i64,
}

impl ChannelPosition {
    /// Returns true if everything after `offset` is kept.
    pub fn has_all_after(&self, epoch: i64, offset: i64) -> bool {
        epoch == self.epoch
            && (0..=self.last_offset).contains(&offset)
            && offset >= self.first_offset - 1
    }
}

/// Returns the number of the last message of all channels.
pub async fn last_seq(db: &Db) -> Result<i64, Error> {
    Ok(query(LAST_SEQ).fetch_one(db).await?.try_get("seq")?)
}

/// Returns up to `most` messages of all channels after a number: the first, and further ones until
/// they have `bytes` of data.
pub async fn after(
    db: &Db,
    seq: i64,
    most: i64,
    bytes: usize,
) -> Result<Vec<StoredMessage>, Error> {
    let rows = query(AFTER)
        .bind(seq)
        .bind(most)
        .bind(SMALL_BYTES)
        .fetch_all(db)
        .await?;
    let found = rows
        .iter()
        .map(message)
        .collect::<Result<Vec<_>, Error>>()?;
    Ok(complete(db, vec![found], bytes)
        .await?
        .pop()
        .unwrap_or_default())
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

/// Returns up to `most` messages of each page, in the order of the pages: the first, and further
/// ones until they have `bytes` of data.
pub async fn pages(
    db: &Db,
    asked: &[HistoryPage],
    most: i64,
    bytes: usize,
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
        .bind(SMALL_BYTES)
        .fetch_all(db)
        .await?;
    let mut found = vec![Vec::new(); asked.len()];
    for row in &rows {
        let n: i64 = row.try_get("n")?;
        if let Some(page) = usize::try_from(n - 1).ok().and_then(|n| found.get_mut(n)) {
            page.push(message(row)?);
        }
    }
    complete(db, found, bytes).await
}

/// A message as it was found.
#[derive(Clone)]
struct FoundMessage {
    message: StoredMessage,
    /// True if its data is still to be read.
    is_large: bool,
}

/// Reads the data that was left out, and cuts each list off where it has `bytes` of data.
async fn complete(
    db: &Db,
    lists: Vec<Vec<FoundMessage>>,
    bytes: usize,
) -> Result<Vec<Vec<StoredMessage>>, Error> {
    let (mut seqs, mut next_lists) = (Vec::new(), Vec::new());
    for list in &lists {
        let large = list.iter().filter(|found| found.is_large);
        seqs.extend(large.map(|found| found.message.seq));
        next_lists.resize(seqs.len(), seqs.len() as i32 + 1);
    }
    let mut texts: Vec<Option<String>> = vec![None; seqs.len()];
    if !seqs.is_empty() {
        let rows = query(LARGE)
            .bind(&seqs)
            .bind(&next_lists)
            .bind(STORED_BYTES as i32)
            .bind(bytes as i64)
            .fetch_all(db)
            .await?;
        for row in &rows {
            let place: i32 = row.try_get("place")?;
            let text = usize::try_from(place - 1).ok();
            if let Some(text) = text.and_then(|place| texts.get_mut(place)) {
                *text = Some(row.try_get("data")?);
            }
        }
    }
    let mut texts = texts.into_iter();
    let cut = |list: Vec<FoundMessage>| {
        let large = list.iter().filter(|found| found.is_large).count();
        let texts = texts.by_ref().take(large).collect();
        cut_off(list, texts, bytes)
    };
    Ok(lists.into_iter().map(cut).collect())
}

/// Returns the messages of a list until they have `bytes` of data, or until one was not read.
/// `texts` has the data that was left out.
fn cut_off(
    list: Vec<FoundMessage>,
    texts: Vec<Option<String>>,
    bytes: usize,
) -> Vec<StoredMessage> {
    let (mut read, mut kept) = (0, Vec::with_capacity(list.len()));
    let mut texts = texts.into_iter();
    for mut found in list {
        if read >= bytes {
            break;
        }
        if found.is_large {
            match texts.next().flatten() {
                Some(text) => found.message.data = text,
                None => break,
            }
        }
        read += found.message.data.len();
        kept.push(found.message);
    }
    kept
}

fn message(row: &PgRow) -> Result<FoundMessage, Error> {
    let channel: &str = row.try_get("channel")?;
    let data: Option<String> = row.try_get("data")?;
    let is_large = data.is_none();
    let message = StoredMessage {
        seq: row.try_get("seq")?,
        tenant: row.try_get("tenant")?,
        channel: ChannelName::stored(channel),
        epoch: row.try_get("epoch")?,
        offset: row.try_get("offset")?,
        id: row.try_get("id")?,
        data: data.unwrap_or_default(),
    };
    Ok(FoundMessage { message, is_large })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(seq: i64, data: Option<&str>) -> FoundMessage {
        FoundMessage {
            message: StoredMessage {
                seq,
                tenant: "acme".to_owned(),
                channel: ChannelName::stored("orders"),
                epoch: 1,
                offset: seq,
                id: seq,
                data: data.unwrap_or_default().to_owned(),
            },
            is_large: data.is_none(),
        }
    }

    #[test]
    fn a_list_ends_with_the_message_that_fills_it_or_before_the_first_that_was_not_read() {
        let list = || {
            let small = |seq| found(seq, Some("123"));
            vec![small(1), found(2, None), small(3), found(4, None), small(5)]
        };
        let cut = |texts: [Option<&str>; 2], bytes: usize| -> Vec<(i64, String)> {
            let texts = texts.map(|text| text.map(str::to_owned)).to_vec();
            let kept = cut_off(list(), texts, bytes);
            kept.into_iter().map(|one| (one.seq, one.data)).collect()
        };
        let seqs = |texts: [Option<&str>; 2], bytes: usize| -> Vec<i64> {
            cut(texts, bytes).into_iter().map(|(seq, _)| seq).collect()
        };
        let both = [Some("12345"), Some("")];
        assert_eq!(seqs(both, 100), [1, 2, 3, 4, 5]);
        assert_eq!(cut(both, 100)[1], (2, "12345".to_owned()));
        assert_eq!(seqs(both, 8), [1, 2]);
        assert_eq!(seqs(both, 9), [1, 2, 3]);
        assert_eq!(seqs([both[0], None], 100), [1, 2, 3]);
        assert_eq!(seqs([None, None], 1), [1]);
    }
}
