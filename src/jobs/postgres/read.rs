//! Reading jobs: one, many, and what went wrong lately.

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use crate::jobs::{Attempt, Detail, Error, Failure, Filter, Progress, State, Summary};

// A job's state is not a column: it is the table in which the job stands. Each join is one probe of a primary key.
macro_rules! select_jobs {
    ($extra:literal, $from:literal, $tail:literal) => {
        concat!(
            "select j.id, j.kind, j.throttle, j.key, j.priority, j.max_attempts, j.cost, j.created_at, s.run_at as due_at,
    coalesce(l.attempt, r.attempt, s.attempt, d.attempt, a.attempt, 0::smallint) as attempt, coalesce(d.error, a.error) as last_error,
    case when l.job_id is not null then 'running'
         when r.job_id is not null then 'ready'
         when s.job_id is not null then case when s.retry then 'retryable' else 'scheduled' end
         when d.job_id is not null then 'dead'
         when a.outcome = 'cancelled' then 'cancelled'
         else 'completed' end as state",
            $extra,
            $from,
            "
left join lateral (
    select t.attempt, t.outcome, t.error from flyball.attempt t where t.job_id = j.id order by t.finished_at desc limit 1
) a on true",
            $tail
        )
    };
}

macro_rules! list_from {
    ($joins:literal) => {
        select_jobs!(
            "",
            $joins,
            "
where ($2::text is null or j.kind = $2) and ($3::text is null or j.throttle = $3) and ($4::text is null or j.key = $4)
    and ($5::bigint is null or j.id < $5)
    and ($1::text is null or $1 = case
        when l.job_id is not null then 'running'
        when r.job_id is not null then 'ready'
        when s.job_id is not null then case when s.retry then 'retryable' else 'scheduled' end
        when d.job_id is not null then 'dead'
        when a.outcome = 'cancelled' then 'cancelled'
        else 'completed' end)
order by j.id desc
limit $6"
        )
    };
}

pub(super) const GET: &str = select_jobs!(
    ", j.args, j.unique_key is not null as is_unique, w.name as worker, l.claimed_at as started_at, x.job_id is not null as cancelling,
    c.done, c.total, c.note, c.updated_at",
    "
from flyball.job j
left join flyball.lease l on l.job_id = j.id
left join flyball.ready r on r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id
left join flyball.scheduled s on s.job_id = j.id
left join flyball.dead d on d.job_id = j.id
left join flyball.worker w on w.id = l.worker_id
left join flyball.cancel x on x.job_id = j.id
left join flyball.checkpoint c on c.job_id = j.id",
    "
where j.id = $1"
);

pub(super) const LIST: &str = list_from!(
    "
from flyball.job j
left join flyball.lease l on l.job_id = j.id
left join flyball.ready r on r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id
left join flyball.scheduled s on s.job_id = j.id
left join flyball.dead d on d.job_id = j.id"
);

pub(super) const LIST_READY: &str = list_from!(
    "
from flyball.job j
join flyball.ready r on r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id
left join flyball.lease l on l.job_id = j.id
left join flyball.scheduled s on s.job_id = j.id
left join flyball.dead d on d.job_id = j.id"
);

pub(super) const LIST_RUNNING: &str = list_from!(
    "
from flyball.job j
join flyball.lease l on l.job_id = j.id
left join flyball.ready r on r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id
left join flyball.scheduled s on s.job_id = j.id
left join flyball.dead d on d.job_id = j.id"
);

pub(super) const LIST_SCHEDULED: &str = list_from!(
    "
from flyball.job j
join flyball.scheduled s on s.job_id = j.id
left join flyball.lease l on l.job_id = j.id
left join flyball.ready r on r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id
left join flyball.dead d on d.job_id = j.id"
);

pub(super) const LIST_DEAD: &str = list_from!(
    "
from flyball.job j
join flyball.dead d on d.job_id = j.id
left join flyball.lease l on l.job_id = j.id
left join flyball.ready r on r.lane_id = j.lane_id and r.priority = j.priority and r.job_id = j.id
left join flyball.scheduled s on s.job_id = j.id"
);

pub(super) const ATTEMPTS: &str = "
select a.attempt, a.outcome::text as outcome, w.name as worker, a.started_at, a.finished_at, a.error
from flyball.attempt a
left join flyball.worker w on w.id = a.worker_id
where a.job_id = $1
order by a.finished_at desc
limit 100";

pub(super) const FAILURES: &str = "
select f.job_id, f.attempt, f.outcome::text as outcome, f.at, f.error, j.kind, j.throttle, j.key
from (select * from flyball.failure order by id desc limit $1) f
join flyball.job j on j.id = f.job_id
order by f.id desc";

impl Queue {
    /// One job with everything that is known about it; attempts are the last 100, oldest first.
    pub async fn get(&self, id: i64) -> Result<Option<Detail>, Error> {
        let Some(row) = sqlx::query(GET).bind(id).fetch_optional(&self.pool).await? else {
            return Ok(None);
        };
        let attempts = sqlx::query(ATTEMPTS).bind(id).fetch_all(&self.pool).await?;
        let progress = row.get::<Option<Timestamp>, _>("updated_at").map(|at| {
            let (done, total): (i64, Option<i64>) = (row.get("done"), row.get("total"));
            Progress {
                done,
                total,
                percent: total.filter(|total| *total > 0).map(|total| (done as f64 / total as f64 * 100.0).min(100.0)),
                note: row.get("note"),
                at: at.to_jiff(),
            }
        });
        Ok(Some(Detail {
            summary: summary(&row),
            args: row.get("args"),
            unique: row.get("is_unique"),
            attempts: attempts.iter().rev().map(attempt).collect(),
            worker: row.get("worker"),
            started_at: moment(&row, "started_at"),
            cancelling: row.get("cancelling"),
            progress,
        }))
    }

    /// Jobs by filter, newest first.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Summary>, Error> {
        // A rare state is found from its own small table, not by walking the history.
        let statement = match filter.state {
            Some(State::Ready) => LIST_READY,
            Some(State::Running) => LIST_RUNNING,
            Some(State::Scheduled | State::Retryable) => LIST_SCHEDULED,
            Some(State::Dead) => LIST_DEAD,
            Some(State::Completed | State::Cancelled) | None => LIST,
        };
        let rows = sqlx::query(statement)
            .bind(filter.state.map(word))
            .bind(&filter.kind)
            .bind(&filter.throttle)
            .bind(&filter.key)
            .bind(filter.before)
            .bind(filter.limit.clamp(1, 1000))
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.iter().map(summary).collect())
    }

    /// The last failed attempts, newest first.
    pub async fn failures(&self, limit: i64) -> Result<Vec<Failure>, Error> {
        let rows = sqlx::query(FAILURES).bind(limit.clamp(1, 1000)).fetch_all(&self.pool).await?;
        Ok(rows
            .iter()
            .map(|row| Failure {
                job_id: row.get("job_id"),
                kind: row.get("kind"),
                throttle: row.get("throttle"),
                key: row.get("key"),
                attempt: row.get::<i16, _>("attempt").into(),
                outcome: row.get("outcome"),
                error: row.get("error"),
                at: row.get::<Timestamp, _>("at").to_jiff(),
            })
            .collect())
    }
}

fn summary(row: &PgRow) -> Summary {
    Summary {
        id: row.get("id"),
        kind: row.get("kind"),
        throttle: row.get("throttle"),
        key: row.get("key"),
        state: state(row.get("state")),
        priority: row.get::<i16, _>("priority").into(),
        attempt: row.get::<i16, _>("attempt").into(),
        max_attempts: row.get::<i16, _>("max_attempts").into(),
        cost: row.get("cost"),
        created_at: row.get::<Timestamp, _>("created_at").to_jiff(),
        due_at: moment(row, "due_at"),
        last_error: row.get("last_error"),
    }
}

fn attempt(row: &PgRow) -> Attempt {
    Attempt {
        attempt: row.get::<i16, _>("attempt").into(),
        outcome: row.get("outcome"),
        worker: row.get("worker"),
        started_at: moment(row, "started_at"),
        finished_at: row.get::<Timestamp, _>("finished_at").to_jiff(),
        error: row.get("error"),
    }
}

fn moment(row: &PgRow, column: &str) -> Option<jiff::Timestamp> {
    row.get::<Option<Timestamp>, _>(column).map(|at| at.to_jiff())
}

fn word(state: State) -> &'static str {
    match state {
        State::Scheduled => "scheduled",
        State::Ready => "ready",
        State::Running => "running",
        State::Retryable => "retryable",
        State::Completed => "completed",
        State::Cancelled => "cancelled",
        State::Dead => "dead",
    }
}

fn state(word: &str) -> State {
    match word {
        "scheduled" => State::Scheduled,
        "ready" => State::Ready,
        "running" => State::Running,
        "retryable" => State::Retryable,
        "cancelled" => State::Cancelled,
        "dead" => State::Dead,
        _ => State::Completed,
    }
}
