//! Reads the records of messages before their attempts.

use std::time::Duration;

use jiff_sqlx::Timestamp;
use sqlx::Row;

use crate::jobs::Error;
use crate::notify::{BatchStatus, BeginRequest, BegunDelivery, DeliveryState};
use crate::postgres::Db;
use crate::recipient::address::suppression_digest;

/// Time that the first message for a rested recipient has before another one goes first, in
/// seconds.
const FIRST_MESSAGE_S: f64 = 60.0;

/// Shortest wait of the other messages, after which they check again, in seconds.
const BEHIND_S: f64 = 10.0;

// Laterals with a limit are one probe of an index each. Of the messages for a recipient whose rest
// is over, one goes first; rows locked by a concurrent statement are skipped, because that
// statement chooses the first. A tenant reads no suppression, so its messages get no reason.
pub(super) const BEGIN: &str = "
with requested as materialized (
    select a.job_id, a.channel, a.digest, a.n
    from unnest($1::bigint[], $2::text[], flyball.keyed_digests($3::bytea[])) with ordinality as a(job_id, channel, digest, n)
),
due as materialized (
    select h.channel, h.recipient_digest
    from (select distinct a.channel, a.digest from requested a order by a.channel, a.digest) a
    cross join lateral (
        select r.channel, r.recipient_digest from flyball.recipient_backoff r
        where r.channel = a.channel and r.recipient_digest = a.digest and r.backoff_until <= clock_timestamp()
            and r.first_backoff_until <= clock_timestamp()
        limit 1
        for update skip locked
    ) h
),
first as (
    update flyball.recipient_backoff r
    set first_backoff_until = clock_timestamp() + make_interval(secs => $4)
    from due
    where r.channel = due.channel and r.recipient_digest = due.recipient_digest
    returning r.channel, r.recipient_digest
)
select case when u.reason is null or coalesce(j.tenant, '') = '' then u.reason else '' end as reason,
    d.attempt_count, d.last_outcome, d.was_ambiguous, d.requeued_at, j.since as waits_since,
    coalesce(extract(epoch from clock_timestamp() - j.since), 0)::float8 as waited_s,
    d.state, b.state as batch_state, r.failures,
    case
        when r.failures is null then null
        when f.channel is not null and row_number() over (partition by s.channel, s.digest, f.channel order by s.n) = 1 then null
        else greatest(extract(epoch from r.backoff_until - clock_timestamp()), $5)::float8
    end as rest_s
from requested s
left join first f on f.channel = s.channel and f.recipient_digest = s.digest
left join lateral (
    select h.reason from flyball.suppression h where h.channel = s.channel and h.recipient_digest = s.digest limit 1
) u on true
left join lateral (
    select h.state, h.attempt_count, h.last_outcome, h.requeued_at, h.attempts @> '[{\"outcome\": \"ambiguous\"}]' as was_ambiguous
    from flyball.delivery h where h.job_id = s.job_id limit 1
) d on true
left join lateral (
    select greatest(h.created_at, h.run_at, d.requeued_at, flyball.held_until_of(h.id, h.args)) as since, h.tenant from flyball.job h
    where h.id = s.job_id limit 1
) j on true
left join lateral (
    select c.state from flyball.batch c
    where c.id = (select m.batch_id from flyball.batch_message m where m.job_id = s.job_id limit 1)
    limit 1
) b on true
left join lateral (
    select h.failures, h.backoff_until from flyball.recipient_backoff h
    where h.channel = s.channel and h.recipient_digest = s.digest limit 1
) r on true
order by s.n";

/// Returns one record for each query, in order.
pub(super) async fn begin(db: &Db, requests: &[BeginRequest]) -> Result<Vec<BegunDelivery>, Error> {
    let ids: Vec<i64> = requests.iter().map(|one| one.job_id).collect();
    let channels: Vec<&str> = requests.iter().map(|one| one.channel.as_str()).collect();
    let digests: Vec<Option<Vec<u8>>> = requests
        .iter()
        .map(|one| {
            let to = one.recipient.as_ref()?;
            Some(suppression_digest(one.channel, to.identity()))
        })
        .collect();
    let statement = sqlx::query(BEGIN)
        .bind(ids)
        .bind(channels)
        .bind(digests)
        .bind(FIRST_MESSAGE_S)
        .bind(BEHIND_S);
    let rows = statement.fetch_all(db).await?;
    let begun = |row: &sqlx::postgres::PgRow| {
        let moment = |column| {
            row.try_get::<Option<Timestamp>, _>(column)
                .ok()
                .flatten()
                .map(Timestamp::to_jiff)
        };
        Ok(BegunDelivery {
            suppressed: row.try_get("reason")?,
            attempts: row.try_get::<Option<i32>, _>("attempt_count")?.unwrap_or(0),
            last_outcome: row.try_get("last_outcome")?,
            was_ambiguous: row
                .try_get::<Option<bool>, _>("was_ambiguous")?
                .unwrap_or_default(),
            requeued_at: moment("requeued_at"),
            waits_since: moment("waits_since"),
            waited: seconds(row.try_get("waited_s")?),
            state: row
                .try_get::<Option<&str>, _>("state")?
                .and_then(DeliveryState::of),
            batch: match row.try_get::<Option<&str>, _>("batch_state")? {
                Some("paused") => BatchStatus::Paused,
                Some("cancelled") => BatchStatus::Cancelled,
                _ => BatchStatus::Running,
            },
            failures: row
                .try_get::<Option<i32>, _>("failures")?
                .unwrap_or(0)
                .unsigned_abs(),
            rest: row.try_get::<Option<f64>, _>("rest_s")?.map(seconds),
        })
    };
    Ok(rows.iter().map(begun).collect::<Result<_, sqlx::Error>>()?)
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
