//! Ready jobs that no live worker serves: counted by a walk in pages, kept in a small table.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::types::Json;

use super::Queue;
use crate::jobs::serving::{UnservedJobs, remedy, serves_throttle};
use crate::jobs::{Error, WorkerCapabilities};
use crate::postgres::Columns;

/// Ready jobs of one page.
const PAGE_JOBS: i64 = 4000;

/// The most rows that are kept; the jobs of further ones are not shown.
const MAX_ROWS: usize = 500;

/// The shortest time between two writes of the figures of a walk in progress.
const WRITE_EVERY: Duration = Duration::from_secs(5);

pub(super) const HAS_MET: &str = "
select exists (
    select from flyball.worker
    where stopped_at is null and met_unserved_at > clock_timestamp() - interval '2 minutes'
)";

pub(super) const UNSERVED: &str = "
select throttle, kind, needs, jobs, oldest_at from flyball.unserved order by jobs desc, throttle, kind, needs limit 500";

// Messages that wait for admission are moved by every worker, so they are left out. Jobs of a kind
// whose arguments are not needed are grouped here; the others follow one by one.
pub(super) const WALK: &str = "
with walked as materialized (
    select lane_id, priority, job_id from flyball.ready
    where (lane_id, priority, job_id) > ($1, $2, $3)
    order by lane_id, priority, job_id
    limit $4
),
named as materialized (
    select j.throttle, j.kind, case when j.kind = any($5) then j.args end as args, j.created_at
    from flyball.job j
    where j.id = any(array(select job_id from walked))
        and j.id >= (select min(job_id) from walked) and j.id <= (select max(job_id) from walked)
        and j.lane_id in (select lane_id from walked)
)
select throttle, kind, args, count(*) as jobs, min(created_at) as oldest_at, null::bigint as lane_id, null::smallint as priority,
    null::bigint as job_id
from named
group by throttle, kind, args
union all
(select null, null, null, 0, null, lane_id, priority, job_id from walked order by lane_id desc, priority desc, job_id desc limit 1)";

pub(super) const WRITE: &str = "
with counted as materialized (
    select * from jsonb_to_recordset($1) as c(throttle text, kind text, needs text[], jobs bigint, oldest_at timestamptz)
),
gone as (
    delete from flyball.unserved u
    where $2 and not exists (select from counted c where c.throttle = u.throttle and c.kind = u.kind and c.needs = u.needs)
)
insert into flyball.unserved as u (throttle, kind, needs, jobs, oldest_at)
select throttle, kind, needs, jobs, oldest_at from counted
on conflict (throttle, kind, needs) do update
set jobs = case when $2 then excluded.jobs else greatest(u.jobs, excluded.jobs) end, oldest_at = excluded.oldest_at";

/// Throttle, kind and needs of jobs.
type Unserved = (String, String, Vec<String>);

/// The walk over all ready jobs that counts those which no live worker serves.
pub struct UnservedSweeper {
    queue: Queue,
    /// The job behind which the next page begins; `None` between two walks.
    position: Option<(i64, i16, i64)>,
    counts: BTreeMap<Unserved, (i64, Option<Timestamp>)>,
    live: Vec<WorkerCapabilities>,
    wrote: Option<Instant>,
}

impl UnservedSweeper {
    /// Creates a walk that has not begun.
    pub fn new(queue: Queue) -> Self {
        Self {
            queue,
            position: None,
            counts: BTreeMap::new(),
            live: Vec::new(),
            wrote: None,
        }
    }

    /// Returns true between two walks.
    pub fn is_done(&self) -> bool {
        self.position.is_none()
    }

    /// Counts one page; `kinds` are those whose arguments `needs` reads, to return the capabilities
    /// that a job needs.
    pub async fn page(
        &mut self,
        kinds: &[String],
        needs: impl Fn(&str, &Value) -> Vec<String>,
    ) -> Result<(), Error> {
        if self.position.is_none() {
            self.live = self.queue.serving().await?;
            self.counts.clear();
            self.wrote = Some(Instant::now());
        }
        let (lane, priority, job) = self.position.unwrap_or((i64::MIN, i16::MIN, i64::MIN));
        let rows = sqlx::query(WALK)
            .bind(lane)
            .bind(priority)
            .bind(job)
            .bind(PAGE_JOBS)
            .bind(kinds)
            .fetch_all(&self.queue.pool)
            .await?;
        self.position = None;
        for row in &rows {
            if let Some(lane) = row.try_get::<Option<i64>, _>("lane_id")? {
                self.position = Some((lane, row.try_get("priority")?, row.try_get("job_id")?));
                continue;
            }
            let (throttle, kind): (String, String) =
                (row.try_get("throttle")?, row.try_get("kind")?);
            let args = Columns::of(row).get::<Option<Value>>("args");
            let needs = args.map_or_else(Vec::new, |args| needs(&kind, &args));
            if self
                .live
                .iter()
                .any(|worker| worker.runs(&throttle, &kind, &needs))
            {
                continue;
            }
            let unserved = (throttle, kind, needs);
            if self.counts.len() >= MAX_ROWS && !self.counts.contains_key(&unserved) {
                continue;
            }
            let oldest: Option<jiff_sqlx::Timestamp> = row.try_get("oldest_at")?;
            let oldest = oldest.map(jiff_sqlx::Timestamp::to_jiff);
            let count = self.counts.entry(unserved).or_insert((0, oldest));
            count.0 += row.try_get::<i64, _>("jobs")?;
            count.1 = count.1.min(oldest);
        }
        let is_due = self
            .wrote
            .is_none_or(|wrote| wrote.elapsed() >= WRITE_EVERY);
        if self.position.is_none() || is_due {
            self.write(self.position.is_none()).await?;
        }
        Ok(())
    }

    /// Writes that no job is unserved.
    pub async fn clear(&mut self) -> Result<(), Error> {
        self.position = None;
        self.counts.clear();
        self.write(true).await
    }

    async fn write(&mut self, is_whole: bool) -> Result<(), Error> {
        let rows: Vec<Value> = self
            .counts
            .iter()
            .map(|((throttle, kind, needs), (jobs, oldest))| {
                json!({"throttle": throttle, "kind": kind, "needs": needs, "jobs": jobs, "oldest_at": oldest})
            })
            .collect();
        sqlx::query(WRITE)
            .bind(Json(rows))
            .bind(is_whole)
            .execute(&self.queue.pool)
            .await?;
        self.wrote = Some(Instant::now());
        Ok(())
    }
}

impl Queue {
    /// Returns true if a live worker met a job lately that no live worker serves.
    pub async fn has_met_unserved(&self) -> Result<bool, Error> {
        Ok(sqlx::query_scalar(HAS_MET).fetch_one(&self.pool).await?)
    }

    /// Returns the ready jobs that no live worker serves, as last counted, the most first.
    pub async fn unserved(&self) -> Result<Vec<UnservedJobs>, Error> {
        let live = self.serving().await?;
        let depths = self.depths().await?;
        let mut unserved = Vec::new();
        for depth in depths.throttles {
            if depth.ready > 0 && !serves_throttle(&live, &depth.throttle) {
                unserved.push(UnservedJobs {
                    remedy: remedy(&live, &depth.throttle, None, &[]),
                    throttle: depth.throttle,
                    kind: None,
                    needs: Vec::new(),
                    jobs: depth.ready,
                    since: depth.oldest_ready_at,
                });
            }
        }
        let throttles = unserved.len();
        let rows = sqlx::query(UNSERVED).fetch_all(&self.pool).await?;
        for row in &rows {
            let (throttle, kind): (String, String) =
                (row.try_get("throttle")?, row.try_get("kind")?);
            let needs: Vec<String> = row.try_get("needs")?;
            // A worker that serves them may have come since.
            let is_known = unserved[..throttles]
                .iter()
                .any(|one| one.throttle == throttle);
            if is_known
                || live
                    .iter()
                    .any(|worker| worker.runs(&throttle, &kind, &needs))
            {
                continue;
            }
            let oldest: Option<jiff_sqlx::Timestamp> = row.try_get("oldest_at")?;
            unserved.push(UnservedJobs {
                remedy: remedy(&live, &throttle, Some(&kind), &needs),
                throttle,
                kind: Some(kind),
                needs,
                jobs: row.try_get("jobs")?,
                since: oldest.map(jiff_sqlx::Timestamp::to_jiff),
            });
        }
        unserved.sort_by_key(|one| std::cmp::Reverse(one.jobs));
        Ok(unserved)
    }
}
