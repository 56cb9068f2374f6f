//! Messages that go now: from the planner into the lanes of their jobs.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::query;

use super::copy::{COPIED_MIN, CopiedRows};
use super::taken::TakenMessage;
use crate::jobs::Error;
use crate::postgres::Transaction;

/// The most lanes in one notification, which holds 8,000 bytes.
const NOTIFIED_TOGETHER: usize = 370;

// No `on conflict`, which writes a record of the log more for each row. The offset makes a probe of
// each, whatever was ready when Postgres planned this.
pub(super) const SEND: &str = "
with told as materialized (
    select count(pg_notify('flyball', t.lanes)) from unnest($1::text[]) as t(lanes)
)
insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
select r.* from unnest($2::bigint[], $3::smallint[], $4::bigint[], $5::smallint[], $6::float8[], $7::boolean[])
    as r(lane_id, priority, job_id, attempt, cost, holds_unique)
cross join told
where not exists (
    select from flyball.ready h where h.lane_id = r.lane_id and h.priority = r.priority and h.job_id = r.job_id
    offset 0
)";

/// Notifies the workers, and finds those of the jobs that are ready already: a copy of such a row
/// would fail.
pub(super) const TELL: &str = "
with told as materialized (
    select count(pg_notify('flyball', t.lanes)) from unnest($1::text[]) as t(lanes)
)
select r.job_id
from unnest($2::bigint[], $3::smallint[], $4::bigint[]) as r(lane_id, priority, job_id)
cross join told
where exists (
    select from flyball.ready h where h.lane_id = r.lane_id and h.priority = r.priority and h.job_id = r.job_id
    offset 0
)";

const COPY_READY: &str = "copy flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique) from stdin (format binary)";

/// Makes messages ready.
pub(super) async fn send(
    connection: &mut Transaction,
    mut sending: Vec<&TakenMessage>,
) -> Result<(), Error> {
    if sending.is_empty() {
        return Ok(());
    }
    sending.sort_unstable_by_key(|one| (one.lane_id, one.priority, one.job_id));
    let lanes: Vec<i64> = sending.iter().map(|one| one.lane_id).collect();
    let priorities: Vec<i16> = sending.iter().map(|one| one.priority).collect();
    let jobs: Vec<i64> = sending.iter().map(|one| one.job_id).collect();
    if sending.len() < COPIED_MIN {
        query(SEND)
            .bind(notices(&sending))
            .bind(lanes)
            .bind(priorities)
            .bind(jobs)
            .bind(sending.iter().map(|one| one.attempt).collect::<Vec<_>>())
            .bind(sending.iter().map(|one| one.cost).collect::<Vec<_>>())
            .bind(
                sending
                    .iter()
                    .map(|one| one.holds_unique)
                    .collect::<Vec<_>>(),
            )
            .execute(connection)
            .await?;
        return Ok(());
    }
    let ready: Vec<i64> = sqlx::query_scalar(TELL)
        .bind(notices(&sending))
        .bind(lanes)
        .bind(priorities)
        .bind(jobs)
        .fetch_all(&mut *connection)
        .await?;
    let ready: BTreeSet<i64> = ready.into_iter().collect();
    let mut rows = CopiedRows::default();
    for one in sending.iter().filter(|one| !ready.contains(&one.job_id)) {
        rows.row()
            .bigint(one.lane_id)
            .smallint(one.priority)
            .bigint(one.job_id)
            .smallint(one.attempt)
            .float(one.cost)
            .boolean(one.holds_unique);
    }
    Ok(rows.write(connection, COPY_READY).await?)
}

/// Returns the lanes of messages as notifications, the most urgent first. The lanes are named to all
/// workers: a job with an old id that came to its lane just now would be found late.
fn notices(sending: &[&TakenMessage]) -> Vec<String> {
    let mut urgencies: BTreeMap<i64, i16> = BTreeMap::new();
    for one in sending {
        let urgency = urgencies.entry(one.lane_id).or_insert(one.priority);
        *urgency = one.priority.min(*urgency);
    }
    let mut lanes: Vec<(i16, i64)> = urgencies
        .into_iter()
        .map(|(lane, urgency)| (urgency, lane))
        .collect();
    lanes.sort_unstable();
    let page = |page: &[(i16, i64)]| {
        let lanes = page.iter().map(|(_, lane)| lane.to_string());
        lanes.collect::<Vec<_>>().join(",")
    };
    lanes.chunks(NOTIFIED_TOGETHER).map(page).collect()
}
