//! Claims that are written while messages are planned.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::copy::{COPIED_MIN, CopiedRows};
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::address::RecipientKey;

pub(super) const CLAIM: &str = "
with wanted as (
    select * from unnest($1::text[]::uuid[], $2::bigint[], $3::bigint[], $4::bigint[])
        as a(recipient, content, job_id, expected)
)
insert into flyball.dedup as d (recipient, content, job_id, at)
select w.recipient, w.content, w.job_id, clock_timestamp() from wanted w order by w.recipient, w.content
on conflict (recipient, content) do update
set job_id = excluded.job_id, at = excluded.at, is_marked = false
where d.job_id in (
    select w.expected from wanted w where w.recipient = excluded.recipient and w.content = excluded.content
)
returning d.job_id";

const COPY_CLAIMS: &str =
    "copy flyball.dedup (recipient, content, job_id, at) from stdin (format binary)";

/// A claim to write.
pub(super) struct NewClaim {
    pub recipient: RecipientKey,
    pub content: i64,
    pub job_id: i64,
    /// The job of the row that is there; `None` if there is none.
    pub before: Option<i64>,
}

/// Writes claims, and returns the jobs of those that nobody else wrote first.
pub(super) async fn write_claims(
    connection: &mut Transaction,
    mut claims: Vec<NewClaim>,
    now: Timestamp,
) -> Result<BTreeSet<i64>, Error> {
    claims.sort_unstable_by_key(|claim| (claim.recipient, claim.content));
    let (new, known): (Vec<NewClaim>, Vec<NewClaim>) =
        claims.into_iter().partition(|claim| claim.before.is_none());
    let mut claimed = match new.len() >= COPIED_MIN && copied(connection, &new, now).await? {
        true => new.iter().map(|claim| claim.job_id).collect(),
        false => merged(connection, &new).await?,
    };
    claimed.extend(merged(connection, &known).await?);
    Ok(claimed)
}

/// Writes claims for which there was no row. Returns false, having written none, if another planner
/// wrote one of them meanwhile.
async fn copied(
    connection: &mut Transaction,
    claims: &[NewClaim],
    now: Timestamp,
) -> Result<bool, Error> {
    let mut rows = CopiedRows::default();
    for claim in claims {
        rows.row()
            .key(claim.recipient)
            .bigint(claim.content)
            .bigint(claim.job_id)
            .time(now);
    }
    Ok(rows.write_if_new(connection, COPY_CLAIMS).await?)
}

async fn merged(connection: &mut Transaction, claims: &[NewClaim]) -> Result<BTreeSet<i64>, Error> {
    if claims.is_empty() {
        return Ok(BTreeSet::new());
    }
    let recipients: Vec<String> = claims.iter().map(|one| one.recipient.to_hex()).collect();
    let expected = claims.iter().map(|one| one.before.unwrap_or(one.job_id));
    let claimed: Vec<i64> = sqlx::query_scalar(CLAIM)
        .bind(recipients)
        .bind(claims.iter().map(|one| one.content).collect::<Vec<_>>())
        .bind(claims.iter().map(|one| one.job_id).collect::<Vec<_>>())
        .bind(expected.collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(claimed.into_iter().collect())
}
