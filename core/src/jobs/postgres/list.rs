//! Search for jobs: a walk from the newest to the oldest that reads a bounded number of rows at a
//! time.
//!
//! No index serves every filter, and one that did would not be worth its cost on the path of
//! enqueue. A page is therefore found by walking back over the rows that can hold it: the small
//! table of a rare state, the index prefix of a lane, or the jobs themselves. A walk ends when the
//! page is full or after a short time; a short page carries the position at which to go on.

use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use super::read::summary;
use super::states::moment;
use crate::jobs::{Error, JobFilter, JobPage, State, Summary};

/// The most rows that one statement walks over, which takes a few milliseconds.
const ROWS_MAX: i64 = 10_000;
/// The most rows that one statement probes for their state, which takes a few milliseconds.
const PROBES_MAX: i64 = 1_000;

/// The time after which a walk takes no further step although its page is not full.
const WALK_TIME_LIMIT: Duration = Duration::from_millis(25);

// Laterals with a limit are run once per row and in order, so that the walk stops as soon as the
// page is full; the planner can neither hash a whole table for them nor sort.
//
// Parameters: $1 states, $2 kind, $3 throttle, $4 key, $5 and $6 the range of ids, $7 and $8 the
// range of times, $9 rows, $10 probes, $11 jobs of the page, $12 tenant, $13 group where one is asked
// for.
macro_rules! walk {
    ($rows:expr) => {
        concat!(
            "
with walk as materialized (",
            $rows,
            "
),
matching as materialized (
    select w.*
    from walk w
    where ($2::text is null or w.kind = $2)
        and (($3::text is null or w.throttle = $3) and ($4::text is null or w.key = $4)
            or w.admission_lane = flyball.lane_of($3, $4))
        and ($7::timestamptz is null or w.created_at >= $7) and ($8::timestamptz is null or w.created_at < $8)
        and ($12::text is null or w.tenant = $12)
    limit $10
),
page as (
    select m.*, s.run_at as due_at, coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0::smallint) as attempt,
        coalesce(d.error, a.error) as last_error, t.state
    from matching m
    left join lateral (
        select h.attempt from flyball.lease h where h.job_id = m.id limit 1
    ) l on true
    left join lateral (
        select h.attempt from flyball.ready h
        where h.lane_id in (m.lane_id, m.admission_lane) and h.priority = m.priority and h.job_id = m.id
        limit 1
    ) r on true
    left join lateral (
        select h.attempt, case when h.turn >= -4 or h.run_at > now() then h.run_at end as run_at, h.retry
        from flyball.scheduled h where h.job_id = m.id limit 1
    ) s on true
    left join lateral (
        select h.attempt, h.error from flyball.dead h where h.job_id = m.id limit 1
    ) d on true
    left join lateral (
        select h.attempt, h.outcome, h.error from flyball.attempt h where h.job_id = m.id order by h.finished_at desc limit 1
    ) a on true
    cross join lateral (
        select case when l.attempt is not null then 'running'
            when r.attempt is not null then 'ready'
            when s.attempt is not null then case when s.retry then 'retryable' else 'scheduled' end
            when d.attempt is not null then 'dead'
            when a.outcome in ('cancelled', 'dropped') then 'cancelled'
            else 'completed' end as state
    ) t
    where $1::text[] is null or t.state = any($1)
    limit $11
)
select b.walked, b.walked_to, b.matched, b.matched_to, p.*
from (
    select (select count(*) from walk) as walked, (select min(id) from walk) as walked_to,
        (select count(*) from matching) as matched, (select min(id) from matching) as matched_to
) b
left join page p on true
order by p.id desc"
        )
    };
}

macro_rules! walk_table {
    ($jobs:literal) => {
        walk!(concat!(
            "
    select j.*
    from (",
            $jobs,
            "
    ) h
    cross join lateral (
        select id, lane_id, admission_lane, priority, max_attempts, cost, created_at, kind, throttle, key, tenant, group_id, tags
        from flyball.job where id = h.job_id limit 1
    ) j"
        ))
    };
}

pub(super) const LIST: &str = walk!(
    "
    select id, lane_id, admission_lane, priority, max_attempts, cost, created_at, kind, throttle, key, tenant, group_id, tags
    from flyball.job
    where id < $5 and id >= $6
    order by id desc
    limit $9"
);

// The positions of this walk are jobs of the tenant, so they reveal nothing about those of others.
pub(super) const LIST_OF_TENANT: &str = walk!(
    "
    select id, lane_id, admission_lane, priority, max_attempts, cost, created_at, kind, throttle, key, tenant, group_id, tags
    from flyball.job
    where tenant = $12 and tenant <> '' and id < $5 and id >= $6
    order by id desc
    limit $9"
);

pub(super) const LIST_OF_GROUP: &str = walk!(
    "
    select id, lane_id, admission_lane, priority, max_attempts, cost, created_at, kind, throttle, key, tenant, group_id, tags
    from flyball.job
    where group_id = $13 and id < $5 and id >= $6
    order by id desc
    limit $9"
);

pub(super) const LIST_READY_OF_LANE: &str = walk_table!(
    "
        select r.job_id
        from generate_series(0, 3) p
        cross join lateral (
            select q.job_id
            from flyball.ready q
            where q.lane_id = flyball.lane_of($3, $4) and q.priority = p::smallint and q.job_id < $5 and q.job_id >= $6
            order by q.lane_id desc, q.priority desc, q.job_id desc
            limit $9
        ) r
        order by r.job_id desc
        limit $9"
);

pub(super) const LIST_RUNNING: &str = walk_table!(
    "
        select job_id from flyball.lease where job_id < $5 and job_id >= $6 order by job_id desc limit $9"
);

pub(super) const LIST_SCHEDULED: &str = walk_table!(
    "
        select job_id from flyball.scheduled where job_id < $5 and job_id >= $6 order by job_id desc limit $9"
);

pub(super) const LIST_DEAD: &str = walk_table!(
    "
        select job_id from flyball.dead where job_id < $5 and job_id >= $6 order by job_id desc limit $9"
);

// An id begins with the day of the enqueueing transaction, and within a day ids ascend with the
// time at which they were drawn, which may be later than the beginning of the transaction: the
// range leaves an hour for that.
pub(super) const RANGE: &str = "
select case when $1::timestamptz is null then 0
        else greatest(flyball.day_of($1) << 38, flyball.id_at($1 - interval '1 hour')) end as low,
    case when $2::timestamptz is null then 9223372036854775807
        else least((flyball.day_of($2) + 1) << 38, flyball.id_at($2 + interval '1 hour')) end as high";

impl Queue {
    /// Returns jobs by filter, newest first, walking on until there are `limit` or no more.
    ///
    /// It is for programs; people want [`Queue::page`].
    pub async fn list(&self, filter: &JobFilter) -> Result<Vec<Summary>, Error> {
        let mut jobs = Vec::new();
        let mut rest = JobFilter {
            limit: filter.limit.clamp(1, 1000),
            ..filter.clone()
        };
        loop {
            let page = self.page(&rest).await?;
            rest.limit -= page.jobs.len() as i64;
            jobs.extend(page.jobs);
            match page.next {
                Some(next) if rest.limit > 0 => rest.before = Some(next),
                _ => return Ok(jobs),
            }
        }
    }

    /// Returns a page of jobs by filter, newest first.
    ///
    /// Any filter takes a few tens of milliseconds at most, so the page may be short, or empty,
    /// although more follow: go on from [`JobPage::next`] until there is none.
    pub async fn page(&self, filter: &JobFilter) -> Result<JobPage, Error> {
        let begun = Instant::now();
        let limit = filter.limit.clamp(1, 1000);
        let (statement, rows_max) = match filter.state {
            _ if filter.group.is_some() => (LIST_OF_GROUP, ROWS_MAX),
            _ if filter.tenant.is_some() => (LIST_OF_TENANT, ROWS_MAX),
            Some(State::Ready) if filter.throttle.is_some() && filter.key.is_some() => {
                (LIST_READY_OF_LANE, PROBES_MAX)
            }
            Some(State::Running) => (LIST_RUNNING, PROBES_MAX),
            Some(State::Scheduled | State::Retryable) => (LIST_SCHEDULED, PROBES_MAX),
            Some(State::Dead) => (LIST_DEAD, PROBES_MAX),
            _ => (LIST, ROWS_MAX),
        };
        let (low, high) = self.range(filter).await?;
        let mut before = filter.before.unwrap_or(i64::MAX).min(high);
        let mut page = JobPage::default();
        // Small steps come first, because most pages are full after one of them.
        let mut rows = if is_open(filter) {
            limit
        } else {
            (limit * 4).clamp(400, rows_max)
        };
        loop {
            let wanted = limit - page.jobs.len() as i64;
            let mut query = sqlx::query(statement)
                .bind(states(filter))
                .bind(&filter.kind)
                .bind(&filter.throttle)
                .bind(&filter.key)
                .bind(before)
                .bind(low)
                .bind(filter.created_after.map(moment))
                .bind(filter.created_before.map(moment))
                .bind(rows)
                .bind(PROBES_MAX)
                .bind(wanted)
                .bind(&filter.tenant);
            if filter.group.is_some() {
                query = query.bind(filter.group);
            }
            let found = query.fetch_all(&self.pool).await?;
            for row in &found {
                if row.try_get::<Option<i64>, _>("id")?.is_some() {
                    page.jobs.push(summary(row)?);
                }
            }
            page.next = found.first().and_then(|row| next(row, rows));
            if page.jobs.len() as i64 >= limit {
                page.next = page.jobs.last().map(|last| last.id);
                return Ok(page);
            }
            match page.next {
                Some(next) if begun.elapsed() < WALK_TIME_LIMIT => before = next,
                _ => return Ok(page),
            }
            rows = (rows * 5).min(rows_max);
        }
    }

    /// Returns the range of ids that holds the jobs of the filter's time: from the first, below the
    /// second.
    async fn range(&self, filter: &JobFilter) -> Result<(i64, i64), Error> {
        if filter.created_after.is_none() && filter.created_before.is_none() {
            return Ok((0, i64::MAX));
        }
        let statement = sqlx::query(RANGE)
            .bind(filter.created_after.map(moment))
            .bind(filter.created_before.map(moment));
        let row = statement.fetch_one(&self.pool).await?;
        Ok((row.get("low"), row.get("high")))
    }
}

/// Returns the position at which the walk goes on: behind the last job probed, or the last row
/// read.
fn next(row: &PgRow, rows: i64) -> Option<i64> {
    if row.get::<i64, _>("matched") >= PROBES_MAX {
        row.get("matched_to")
    } else if row.get::<i64, _>("walked") >= rows {
        row.get("walked_to")
    } else {
        None
    }
}

/// Returns true if the filter matches every job.
fn is_open(filter: &JobFilter) -> bool {
    states(filter).is_none()
        && filter.kind.is_none()
        && filter.throttle.is_none()
        && filter.key.is_none()
        && filter.created_after.is_none()
        && filter.created_before.is_none()
}

fn states(filter: &JobFilter) -> Option<Vec<&'static str>> {
    match filter.state {
        Some(state) => Some(vec![state.as_str()]),
        None => filter.ended.then(|| vec!["completed", "cancelled", "dead"]),
    }
}
