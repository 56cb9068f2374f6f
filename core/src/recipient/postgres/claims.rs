//! Claims on the contents of messages: read, written while messages are planned, and settled.
//!
//! The time of a claim and its mark are stored as one number: seconds since 2020, rounded up, so
//! that no window is shorter than it should be, and negative once the claim is marked.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::{Row, query};

use super::copy::{COPIED_MIN, CopiedRows};
use super::living::lives;
use super::rows::{ClaimKey, GateInput, stored, unstored};
use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::dedup::DedupClaim;

// A claim counts while its job lives. One whose job has ended counts as marked if a provider
// accepted the message, because the worker may have died between the two, or if nobody knows
// whether one did: whoever cuts an attempt off marks nothing. The offset keeps the planner from
// asking twice for what is costly, and each limit from reading a table for all claims at once.
pub(super) const CLAIMS: &str = concat!(
    "
select d.claim, d.job_id, d.at_s, coalesce(s.updated_at, u.at) as known_at,
    d.at_s < 0 or s.updated_at is not null or u.at is not null or l.lives as counts
from (select distinct k.claim from unnest($1::bigint[]) as k(claim)) a
cross join lateral (
    select * from flyball.dedup h where h.claim = a.claim limit 1
) d
left join lateral (
    select h.updated_at from flyball.delivery h
    where d.at_s >= 0 and h.job_id = d.job_id and h.state in ('sent', 'delivered', 'bounced', 'collected')
    limit 1
) s on true
cross join lateral (
    select d.at_s >= 0 and s.updated_at is null and (
        d.job_id = any($2) or ",
    lives!("d.job_id"),
    "
    ) as lives
    offset 0
) l
left join lateral (
    select max(f.at) as at
    from (
        select h.finished_at as at from flyball.attempt h where h.job_id = d.job_id and h.outcome in ('ambiguous', 'lost')
        union all
        select h.updated_at from flyball.delivery h where h.job_id = d.job_id and h.last_outcome = 'ambiguous'
    ) f
    where d.at_s >= 0 and s.updated_at is null and not l.lives
) u on true"
);

pub(super) const CLAIM: &str = "
with wanted as (
    select * from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as a(claim, job_id, expected)
)
insert into flyball.dedup as d (claim, job_id, at_s)
select w.claim, w.job_id, ceil(extract(epoch from clock_timestamp()) - 1577836800)::int from wanted w order by w.claim
on conflict (claim) do update
set job_id = excluded.job_id, at_s = excluded.at_s
where d.job_id in (select w.expected from wanted w where w.claim = excluded.claim)
returning d.job_id";

const COPY_CLAIMS: &str = "copy flyball.dedup (claim, job_id, at_s) from stdin (format binary)";

pub(super) const MARK: &str = "
update flyball.dedup d
set at_s = -ceil(extract(epoch from clock_timestamp()) - 1577836800)::int
from (select * from unnest($1::bigint[], $2::bigint[]) as a(claim, job_id) order by claim) a
where d.claim = a.claim and d.job_id = a.job_id";

pub(super) const GIVE_BACK: &str = "
with unsent as (
    select * from unnest($1::bigint[], $2::bigint[], $3::text[]::uuid[]) as a(claim, job_id, recipient) order by claim
),
claims as (
    delete from flyball.dedup d using unsent a where d.claim = a.claim and d.job_id = a.job_id and d.at_s >= 0
),
reservations as (
    delete from flyball.cap_reservation r using unsent a where r.recipient = a.recipient and r.job_id = a.job_id
)
update flyball.message_plan set slot_lists = '{}', slot_s = '{}' where job_id = any($2) and slot_lists <> '{}'";

/// A claim as it is stored.
pub(super) struct StoredClaim {
    pub claim: DedupClaim,
    /// False for one whose job ended unsent.
    pub counts: bool,
}

/// A claim to write.
pub(super) struct NewClaim {
    pub claim: i64,
    pub job_id: i64,
    /// The job of the row that is there; `None` if there is none.
    pub before: Option<i64>,
}

/// Returns those claims that count, by their numbers.
pub(super) fn counting(stored: &HashMap<i64, StoredClaim>) -> HashMap<i64, DedupClaim> {
    let counting = stored.iter().filter(|(_, one)| one.counts);
    counting.map(|(key, one)| (*key, one.claim)).collect()
}

/// Reads the claims on the contents of messages that may still count, by their numbers.
pub(super) async fn claims(
    connection: &mut Transaction,
    inputs: &[&GateInput],
) -> Result<HashMap<i64, DedupClaim>, Error> {
    Ok(counting(&stored_claims(connection, inputs).await?))
}

/// Reads all claims on the contents of messages, by their numbers.
pub(super) async fn stored_claims(
    connection: &mut Transaction,
    inputs: &[&GateInput],
) -> Result<HashMap<i64, StoredClaim>, Error> {
    let wanted: Vec<i64> = inputs.iter().map(|one| one.claim).collect();
    let own: Vec<i64> = inputs.iter().map(|one| one.message.job_id).collect();
    let rows = query(CLAIMS)
        .bind(wanted)
        .bind(own)
        .fetch_all(connection)
        .await?;
    let read = |row: &sqlx::postgres::PgRow| {
        let (at, is_marked) = read_second(row.try_get("at_s")?);
        // The time of what its job left, if nobody marked the claim.
        let known_at: Option<SqlTimestamp> = row.try_get("known_at")?;
        let claim = DedupClaim {
            job: row.try_get("job_id")?,
            at: known_at.map_or(at, SqlTimestamp::to_jiff),
            is_marked: is_marked || known_at.is_some(),
        };
        let counts = row.try_get("counts")?;
        Ok((row.try_get("claim")?, StoredClaim { claim, counts }))
    };
    Ok(rows.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
}

/// Writes claims, and returns the jobs of those that nobody else wrote first.
pub(super) async fn write_claims(
    connection: &mut Transaction,
    mut claims: Vec<NewClaim>,
    now: Timestamp,
) -> Result<BTreeSet<i64>, Error> {
    claims.sort_unstable_by_key(|one| one.claim);
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
    let second = second_of(now);
    let mut rows = CopiedRows::default();
    for one in claims {
        rows.row().bigint(one.claim).bigint(one.job_id).int(second);
    }
    Ok(rows.write_if_new(connection, COPY_CLAIMS).await?)
}

async fn merged(connection: &mut Transaction, claims: &[NewClaim]) -> Result<BTreeSet<i64>, Error> {
    if claims.is_empty() {
        return Ok(BTreeSet::new());
    }
    let expected = claims.iter().map(|one| one.before.unwrap_or(one.job_id));
    let claimed: Vec<i64> = sqlx::query_scalar(CLAIM)
        .bind(claims.iter().map(|one| one.claim).collect::<Vec<_>>())
        .bind(claims.iter().map(|one| one.job_id).collect::<Vec<_>>())
        .bind(expected.collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(claimed.into_iter().collect())
}

/// Marks claims: their windows count from now.
pub(super) async fn mark_claims(
    connection: &mut Transaction,
    keys: &[ClaimKey],
) -> Result<(), Error> {
    if keys.is_empty() {
        return Ok(());
    }
    query_unprepared(MARK)
        .bind(keys.iter().map(|key| key.claim).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.job_id).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Gives claims back, unless they are marked, with the reservations of their messages.
pub(super) async fn give_claims_back(
    connection: &mut Transaction,
    keys: &[ClaimKey],
) -> Result<(), Error> {
    if keys.is_empty() {
        return Ok(());
    }
    let recipients = keys.iter().map(|key| key.recipient.to_hex());
    query_unprepared(GIVE_BACK)
        .bind(keys.iter().map(|key| key.claim).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.job_id).collect::<Vec<_>>())
        .bind(recipients.collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Returns the second of a claim that is made now, as it is stored.
fn second_of(now: Timestamp) -> i32 {
    let rounded_up = now.subsec_nanosecond() > 0;
    stored(now.as_second() + i64::from(rounded_up))
}

/// Returns the time of a claim, and whether it is marked.
fn read_second(at_s: i32) -> (Timestamp, bool) {
    let second = unstored(at_s.saturating_abs());
    let at = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
    (at, at_s < 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_claim_counts_from_a_second_that_is_not_before_its_time() {
        assert_eq!(second_of(time("2020-01-01T00:01:00Z")), 60);
        assert_eq!(second_of(time("2020-01-01T00:01:00.000001Z")), 61);
        assert_eq!(second_of(time("2020-01-01T00:01:00.999999Z")), 61);
    }

    #[test]
    fn a_negative_second_is_that_of_a_mark() {
        let minute = time("2020-01-01T00:01:00Z");
        assert_eq!(read_second(60), (minute, false));
        assert_eq!(read_second(-60), (minute, true));
        assert_eq!(read_second(second_of(minute)), (minute, false));
    }
}
