//! Slots of messages that ended while they waited: nobody settled what they took.
//!
//! An attempt that ends its message gives its slots back. A message that goes again later keeps
//! them, and may be cancelled or expire until then. A walk over all plans finds these.

use sqlx::{Row, query};

use super::attempts::return_slots;
use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::{Db, Transaction};
use crate::recipient::rules::RecipientRules;

/// The plans of one step.
const PLANS_PER_STEP: i64 = 10_000;

// Laterals with a limit are one probe of an index each. A message that may have been sent keeps its
// slots: a provider accepted it or did not answer, or its worker died. A job that completed was
// settled.
pub(super) const ENDED_SLOTS: &str = "
with page as materialized (
    select p.job_id, p.slot_lists <> '{}' as has_slots
    from flyball.message_plan p
    where p.job_id > greatest($1::bigint, flyball.day_of(now() - make_interval(secs => $2)) << 38)
    order by p.job_id
    limit $3
),
unsent as materialized (
    select w.job_id
    from page w
    left join lateral (
        select h.state in ('sent', 'delivered', 'bounced', 'collected') or h.attempts @> '[{\"outcome\": \"accepted\"}]'
            or h.attempts @> '[{\"outcome\": \"delivered\"}]' or h.attempts @> '[{\"outcome\": \"ambiguous\"}]' as may_be_sent
        from flyball.delivery h where h.job_id = w.job_id limit 1
    ) d on true
    where w.has_slots and d.may_be_sent is not true
),
idle as materialized (
    select u.job_id
    from unsent u
    left join lateral (select true as waits from flyball.scheduled h where h.job_id = u.job_id limit 1) s on true
    left join lateral (select true as runs from flyball.lease h where h.job_id = u.job_id limit 1) l on true
    left join lateral (select h.lane_id, h.admission_lane, h.priority from flyball.job h where h.id = u.job_id limit 1) j on true
    left join lateral (
        select true as waits from flyball.ready h
        where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = u.job_id
        limit 1
    ) r on true
    where s.waits is null and l.runs is null and r.waits is null
)
select (select max(w.job_id) from page w) as last, (select count(*) from page) as walked,
    array(
        select i.job_id
        from idle i
        cross join lateral (
            select bool_or(h.outcome in ('dead', 'cancelled', 'dropped', 'merged')) as has_ended,
                bool_or(h.outcome in ('completed', 'ambiguous', 'lost')) as may_be_sent
            from flyball.attempt h where h.job_id = i.job_id
        ) a
        where a.has_ended and not a.may_be_sent
        order by i.job_id
    ) as ended";

// A message that may have arrived keeps its slots.
pub(super) const UNSENT: &str = "
select a.job_id
from unnest($1::bigint[]) as a(job_id)
where not exists (
        select from flyball.delivery d where d.job_id = a.job_id and d.attempts @> '[{\"outcome\": \"ambiguous\"}]')
    and not exists (select from flyball.attempt h where h.job_id = a.job_id and h.outcome in ('ambiguous', 'lost'))";

pub(super) const FORGET_SLOTS: &str = "
update flyball.message_plan set slot_lists = '{}', slot_s = '{}' where job_id = any($1) and slot_lists <> '{}'";

/// One step of the walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReturnedSlots {
    /// The number of messages whose slots were given back.
    pub messages: usize,
    /// The plan behind which the next step goes on; `None` at the end.
    pub next: Option<i64>,
}

/// Gives back the slots of messages that ended while they waited, in a bounded step behind the plan
/// of the job `after`.
pub async fn return_ended(
    db: &Db,
    rules: &RecipientRules,
    after: i64,
) -> Result<ReturnedSlots, Error> {
    let mut transaction = db.begin().await?;
    let row = query(ENDED_SLOTS)
        .bind(after)
        .bind(rules.longest_cap_s() as f64)
        .bind(PLANS_PER_STEP)
        .fetch_one(&mut transaction)
        .await?;
    let ended: Vec<i64> = row.try_get("ended")?;
    let last: Option<i64> = row.try_get("last")?;
    let walked: i64 = row.try_get("walked")?;
    give_slots_back(&mut transaction, &ended).await?;
    transaction.commit().await?;
    Ok(ReturnedSlots {
        messages: ended.len(),
        next: last.filter(|_| walked >= PLANS_PER_STEP),
    })
}

/// Gives back the slots of messages that a planner ended or collected: nothing went.
pub(super) async fn return_unsent(connection: &mut Transaction, jobs: &[i64]) -> Result<(), Error> {
    if jobs.is_empty() {
        return Ok(());
    }
    let rows = query_unprepared(UNSENT)
        .bind(jobs)
        .fetch_all(&mut *connection)
        .await?;
    let unsent: Vec<i64> = rows
        .iter()
        .map(|row| row.try_get("job_id"))
        .collect::<Result<_, sqlx::Error>>()?;
    give_slots_back(connection, &unsent).await
}

async fn give_slots_back(connection: &mut Transaction, jobs: &[i64]) -> Result<(), Error> {
    if jobs.is_empty() {
        return Ok(());
    }
    return_slots(&mut *connection, jobs).await?;
    query(FORGET_SLOTS).bind(jobs).execute(connection).await?;
    Ok(())
}
