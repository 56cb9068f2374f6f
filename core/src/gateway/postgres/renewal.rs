//! The end of the history, which goes back with a failover to a copy that lacks it.

use sqlx::{Row, query};

use super::history::StoredMessage;
use super::lock::lock;
use crate::jobs::Error;
use crate::postgres::Db;

pub(super) const LAST_MARK: &str = r#"
select m.tenant, m.channel, m.epoch, m."offset", m.seq from flyball.channel_message m where m."offset" > 0 order by m.seq desc limit 1"#;

pub(super) const LOOK: &str = "
select flyball.channel_went_back($1, $2, $3, $4, $5) as went_back, e.last_value as epoch from flyball.channel_epoch e";

pub(super) const RENEW: &str = "select flyball.renew_channels($1, $2, $3, $4, $5) as renewed";

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadMark {
    pub tenant: String,
    pub channel: String,
    pub epoch: i64,
    pub offset: i64,
    pub seq: i64,
}

impl ReadMark {
    /// Returns the mark of a message with an offset.
    pub fn of(message: &StoredMessage) -> Self {
        Self {
            tenant: message.tenant.clone(),
            channel: message.channel.as_str().to_owned(),
            epoch: message.epoch,
            offset: message.offset,
            seq: message.seq,
        }
    }
}

/// The end of the history as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEnd {
    /// True if the history lacks the message that was looked for.
    pub went_back: bool,
    /// The epoch of channels that are made now.
    pub epoch: i64,
}

/// Returns the mark of the last message with an offset, if there is one.
pub async fn last_mark(db: &Db) -> Result<Option<ReadMark>, Error> {
    let Some(row) = query(LAST_MARK).fetch_optional(db).await? else {
        return Ok(None);
    };
    Ok(Some(ReadMark {
        tenant: row.try_get("tenant")?,
        channel: row.try_get("channel")?,
        epoch: row.try_get("epoch")?,
        offset: row.try_get("offset")?,
        seq: row.try_get("seq")?,
    }))
}

/// Looks whether the history still has a message, or had it until its time was over.
pub async fn history_end(db: &Db, mark: &ReadMark) -> Result<FoundEnd, Error> {
    let row = query(LOOK)
        .bind(&mark.tenant)
        .bind(&mark.channel)
        .bind(mark.epoch)
        .bind(mark.offset)
        .bind(mark.seq)
        .fetch_one(db)
        .await?;
    Ok(FoundEnd {
        went_back: row.try_get("went_back")?,
        epoch: row.try_get("epoch")?,
    })
}

/// Gives all channels a new epoch if the history lacks a message; returns false if it does not, or
/// while a collector is at work.
pub async fn renew_channels(db: &Db, mark: &ReadMark) -> Result<bool, Error> {
    let mut transaction = db.begin().await?;
    if !lock(&mut transaction).await? {
        transaction.rollback().await?;
        return Ok(false);
    }
    let row = query(RENEW)
        .bind(&mark.tenant)
        .bind(&mark.channel)
        .bind(mark.epoch)
        .bind(mark.offset)
        .bind(mark.seq)
        .fetch_one(&mut transaction)
        .await?;
    let is_renewed = row.try_get("renewed")?;
    transaction.commit().await?;
    Ok(is_renewed)
}
