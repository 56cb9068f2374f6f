//! Recipients to whom nothing goes any more.

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Deliveries;
use crate::jobs::{Error, Signed};
use crate::notify::{Suppression, recipient};
use crate::providers::Channel;

pub(super) const FIND: &str = "
select channel, encode(recipient_digest, 'hex') as digest, reason, pool, account, created_at
from flyball.suppression
where channel = $1 and recipient_digest = $2";

pub(super) const LIST: &str = "
select channel, encode(recipient_digest, 'hex') as digest, reason, pool, account, created_at
from flyball.suppression
where (channel, recipient_digest) > ($1, decode($2, 'hex')) and ($3::text is null or channel = $3)
order by channel, recipient_digest
limit $4";

pub(super) const SUPPRESS: &str = "select flyball.suppress($1, $2, $3, $4)";

pub(super) const UNSUPPRESS: &str = "select flyball.unsuppress($1, $2, $3, $4)";

impl Deliveries {
    /// Why nothing goes to a recipient; `None` where it may.
    pub async fn suppression(&self, channel: Channel, recipient: &str) -> Result<Option<Suppression>, Error> {
        let digest = recipient::digest(channel, recipient);
        let row = sqlx::query(FIND).bind(channel.word()).bind(digest).fetch_optional(&self.db).await?;
        Ok(row.as_ref().map(suppression).transpose()?)
    }

    /// Recipients to whom nothing goes, in the order of channel and digest, behind a channel and a digest in hexadecimal.
    pub async fn suppressions(
        &self,
        channel: Option<Channel>,
        after: Option<(&str, &str)>,
        limit: i64,
    ) -> Result<Vec<Suppression>, Error> {
        let word = channel.map(Channel::word);
        // Before the first of a channel, or of all.
        let (at, digest) = after.unwrap_or((word.unwrap_or(""), ""));
        let statement = sqlx::query(LIST).bind(at).bind(digest).bind(word).bind(limit.clamp(1, 1000));
        Ok(statement.fetch_all(&self.db).await?.iter().map(suppression).collect::<Result<_, _>>()?)
    }

    /// Lets nothing go to a recipient any more; false if it was so already.
    pub async fn suppress(&self, channel: Channel, recipient: &str, signed: &Signed) -> Result<bool, Error> {
        let statement = sqlx::query_scalar(SUPPRESS).bind(channel.word()).bind(recipient).bind(&signed.why).bind(signed.line());
        Ok(statement.fetch_one(&self.db).await?)
    }

    /// Lets messages go to a recipient again; false if none were kept back.
    pub async fn unsuppress(&self, channel: Channel, recipient: &str, signed: &Signed) -> Result<bool, Error> {
        let statement = sqlx::query_scalar(UNSUPPRESS).bind(channel.word()).bind(recipient).bind(signed.line()).bind(&signed.why);
        Ok(statement.fetch_one(&self.db).await?)
    }
}

fn suppression(row: &PgRow) -> Result<Suppression, sqlx::Error> {
    Ok(Suppression {
        channel: row.try_get("channel")?,
        recipient_digest: row.try_get("digest")?,
        reason: row.try_get("reason")?,
        pool: row.try_get("pool")?,
        account: row.try_get("account")?,
        created_at: row.try_get::<Timestamp, _>("created_at")?.to_jiff(),
    })
}
