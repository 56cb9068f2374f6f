//! What is known of messages before their attempts.

use jiff_sqlx::Timestamp;
use sqlx::Row;

use crate::jobs::Error;
use crate::notify::{Asked, Begun, recipient};
use crate::postgres::Db;

// Laterals with a limit are one probe of an index each.
pub(super) const BEGIN: &str = "
select u.reason, d.tries, d.last_outcome, d.requeued_at, greatest(j.created_at, j.run_at, d.requeued_at) as waits_since
from (
    select * from unnest($1::bigint[], $2::text[], $3::bytea[]) with ordinality as a(job_id, channel, digest, n)
) s
left join lateral (
    select h.reason from flyball.suppression h where h.channel = s.channel and h.recipient_digest = s.digest limit 1
) u on true
left join lateral (
    select h.tries, h.last_outcome, h.requeued_at from flyball.delivery h where h.job_id = s.job_id limit 1
) d on true
left join lateral (
    select h.created_at, h.run_at from flyball.job h where h.id = s.job_id limit 1
) j on true
order by s.n";

/// One answer for each, in order.
pub(super) async fn begin(db: &Db, asked: &[Asked]) -> Result<Vec<Begun>, Error> {
    let ids: Vec<i64> = asked.iter().map(|one| one.job_id).collect();
    let channels: Vec<&str> = asked.iter().map(|one| one.channel.word()).collect();
    let digests: Vec<Vec<u8>> = asked.iter().map(|one| recipient::digest(one.channel, &one.recipient)).collect();
    let rows = sqlx::query(BEGIN).bind(ids).bind(channels).bind(digests).fetch_all(db).await?;
    let begun = |row: &sqlx::postgres::PgRow| {
        let moment = |column| row.try_get::<Option<Timestamp>, _>(column).ok().flatten().map(Timestamp::to_jiff);
        Ok(Begun {
            suppressed: row.try_get("reason")?,
            attempts: row.try_get::<Option<i32>, _>("tries")?.unwrap_or(0),
            last_outcome: row.try_get("last_outcome")?,
            requeued_at: moment("requeued_at"),
            waits_since: moment("waits_since"),
        })
    };
    Ok(rows.iter().map(begun).collect::<Result<_, sqlx::Error>>()?)
}
