//! Suppressed recipients.

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Deliveries;
use crate::jobs::{Attribution, Error};
use crate::notify::Suppression;
use crate::providers::{Channel, Recipient};
use crate::recipient::address::suppression_digest;

pub(super) const FIND: &str = "
select channel, encode(recipient_digest, 'hex') as digest, reason, pool, account, created_at
from flyball.suppression
where channel = $1 and recipient_digest = (select flyball.keyed_digest($2))";

pub(super) const LIST: &str = "
select channel, encode(recipient_digest, 'hex') as digest, reason, pool, account, created_at
from flyball.suppression
where (channel, recipient_digest) > ($1, decode($2, 'hex')) and ($3::text is null or channel = $3)
order by channel, recipient_digest
limit $4";

pub(super) const SUPPRESS: &str = "select flyball.suppress_known($1, $2, $3, $4, $5)";

pub(super) const UNSUPPRESS: &str = "select flyball.unsuppress_known($1, $2, $3, $4, $5)";

impl Deliveries {
    /// Returns a recipient's suppression; `None` if it is not suppressed.
    pub async fn suppression(&self, recipient: &Recipient) -> Result<Option<Suppression>, Error> {
        let digest = suppression_digest(recipient.channel(), recipient.identity());
        let row = sqlx::query(FIND)
            .bind(recipient.channel().as_str())
            .bind(digest)
            .fetch_optional(&self.db)
            .await?;
        Ok(row.as_ref().map(suppression).transpose()?)
    }

    /// Returns suppressions in the order of channel and digest, after the given channel and digest
    /// (in hexadecimal).
    pub async fn suppressions(
        &self,
        channel: Option<Channel>,
        after: Option<(&str, &str)>,
        limit: i64,
    ) -> Result<Vec<Suppression>, Error> {
        let word = channel.map(Channel::as_str);
        // The position before the first row of a channel, or of all.
        let (at, digest) = after.unwrap_or((word.unwrap_or(""), ""));
        let statement = sqlx::query(LIST)
            .bind(at)
            .bind(digest)
            .bind(word)
            .bind(limit.clamp(1, 1000));
        Ok(statement
            .fetch_all(&self.db)
            .await?
            .iter()
            .map(suppression)
            .collect::<Result<_, _>>()?)
    }

    /// Suppresses a recipient. Returns false if it was suppressed already.
    pub async fn suppress(
        &self,
        recipient: &Recipient,
        signed: &Attribution,
    ) -> Result<bool, Error> {
        self.change(SUPPRESS, recipient, signed).await
    }

    /// Lifts a recipient's suppression. Returns false if there was none.
    pub async fn unsuppress(
        &self,
        recipient: &Recipient,
        signed: &Attribution,
    ) -> Result<bool, Error> {
        self.change(UNSUPPRESS, recipient, signed).await
    }

    async fn change(
        &self,
        statement: &'static str,
        recipient: &Recipient,
        signed: &Attribution,
    ) -> Result<bool, Error> {
        let statement = sqlx::query_scalar(statement)
            .bind(recipient.channel().as_str())
            .bind(suppression_digest(
                recipient.channel(),
                recipient.identity(),
            ))
            .bind(recipient.masked())
            .bind(&signed.why)
            .bind(signed.line());
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
