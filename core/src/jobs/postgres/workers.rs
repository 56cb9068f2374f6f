//! Worker rows: registration, heartbeat and retirement.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::Row;
use sqlx::types::Json;

use super::Queue;
use crate::jobs::Tally;
use crate::jobs::serving::SharedSettings;
use crate::jobs::{Error, WorkerCapabilities};
use crate::postgres::Db;

/// The description of a worker that registers.
#[derive(Clone, Debug)]
pub struct NewWorker {
    /// The name of the worker, for people.
    pub name: String,
    /// The host name of its machine.
    pub host: String,
    /// The id of its process.
    pub pid: i32,
    /// The time without a heartbeat after which it counts as dead.
    pub ttl: Duration,
    /// The kinds that it runs.
    pub kinds: Vec<String>,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// False if the worker was declared dead in the meantime, so that its leases are gone.
    pub alive: bool,
    /// Jobs of this worker whose cancellation was requested.
    pub cancel: Vec<i64>,
    /// True if the global pause is in force, so that the worker must claim nothing.
    pub paused: bool,
}

pub(super) const REGISTER: &str = "
insert into flyball.worker (name, host, pid, ttl, kinds)
values ($1, $2, $3, make_interval(secs => $4), $5)
returning id";

pub(super) const REGISTER_KINDS: &str =
    "insert into flyball.kind (name) select unnest($1::text[]) on conflict do nothing";

// The fixed order keeps two processes that start at once from a deadlock.
pub(super) const DECLARE_KINDS: &str = "
insert into flyball.kind as k (name, public)
select * from unnest($1::text[], $2::bool[]) as d(name, public) order by d.name
on conflict (name) do update set public = excluded.public where k.public <> excluded.public";

pub(super) const OFFER: &str = "
with settings as (
    insert into flyball.worker_settings (worker_id, subject, fields)
    select $1, s.key, s.value from jsonb_each($3) s
)
update flyball.worker set capabilities = $2, throttles = $4 where id = $1";

// Settings of the same subject, those of the given worker left out.
pub(super) const SETTINGS_OF_OTHERS: &str = "
select w.name || ' (' || w.id || ') at ' || w.host as worker, s.subject, s.fields
from flyball.worker w
join flyball.worker_settings s on s.worker_id = w.id
where w.stopped_at is null and w.heartbeat_at + w.ttl >= clock_timestamp() and w.id <> $1 and s.subject = any($2)
order by w.id
limit 1000";

// A worker that met a job which it does not serve; what nobody serves is counted while there is one.
pub(super) const MET_UNSERVED: &str =
    "update flyball.worker set met_unserved_at = clock_timestamp() where id = $1";

// A heartbeat is due each second, or every other one, so one that is five seconds old is late.
pub(super) const SERVING: &str = "
select id, name, kinds, throttles, capabilities, heartbeat_at > clock_timestamp() - interval '5 seconds' as is_fresh, role = 'broker' as is_broker
from flyball.worker
where stopped_at is null and heartbeat_at + ttl >= clock_timestamp() and role <> 'remote'
order by id
limit 1000";

pub(super) const PULSE: &str = "
with heartbeat as (
    update flyball.worker set heartbeat_at = clock_timestamp()
    where id = $1 and stopped_at is null and heartbeat_at + ttl >= clock_timestamp()
    returning id
),
reports as (
    insert into flyball.feedback as f
        (worker_id, throttle, completed, failed, refused, busy_s, running, untimed, durations, succeeded_at, failed_at,
            failed_before)
    select b.id, t.throttle, t.completed, t.failed, t.refused, t.busy_s, t.running, t.untimed, t.durations::bigint[],
        case when t.completed > 0 then clock_timestamp() end, case when t.failed > 0 then clock_timestamp() end,
        case when t.completed > 0 then t.failed else 0 end
    from heartbeat b
    cross join unnest(
        $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::float8[], $7::bigint[], $8::bigint[], $9::text[]
    ) t (throttle, completed, failed, refused, busy_s, running, untimed, durations)
    on conflict (worker_id, throttle) do update
    set completed = excluded.completed, failed = excluded.failed, refused = excluded.refused, busy_s = excluded.busy_s,
        running = excluded.running, untimed = excluded.untimed, durations = excluded.durations,
        succeeded_at = case when excluded.completed > f.completed then clock_timestamp() else f.succeeded_at end,
        failed_at = case when excluded.failed > f.failed then clock_timestamp() else f.failed_at end,
        failed_before = case when excluded.completed > f.completed then excluded.failed else f.failed_before end
)
select exists (select 1 from heartbeat) as alive,
    coalesce((
        select array_agg(c.job_id)
        from flyball.cancel c
        cross join lateral (select 1 from flyball.lease l where l.job_id = c.job_id and l.worker_id = $1 limit 1) own
    ), '{}') as cancel,
    exists (select 1 from flyball.pause) as paused";

// Remote workers ask for no tokens themselves.
pub(super) const LIVE: &str = "
select count(*) from flyball.worker
where stopped_at is null and heartbeat_at + ttl >= clock_timestamp() and role <> 'remote'";

// A job that was asked to stop in the meantime ends as cancelled: handed back, it would run again
// and the request would be lost. A request that another transaction has locked is forgotten later.
macro_rules! give_back {
    ($whose:literal) => {
        concat!(
            "
with own as (
    delete from flyball.lease where ",
            $whose,
            " returning *
),
checked as (
    select m.*, exists (select 1 from flyball.cancel c where c.job_id = m.job_id) as cancelled from own m
),
stopped as (
    delete from flyball.cancel
    where job_id = any(array(
        select c.job_id from flyball.cancel c where c.job_id = any(array(select j.job_id from checked j)) for update skip locked
    ))
),
history as (
    insert into flyball.attempt (job_id, attempt, outcome, worker_id, started_at)
    select job_id, attempt, 'cancelled', worker_id, claimed_at from checked where cancelled
),
released_keys as (
    delete from flyball.unique_holder
    where digest = any(array(
        select u.digest from flyball.unique_holder u
        where u.expires_at is null and u.job_id = any(array(select job_id from checked where holds_unique and cancelled))
        for update skip locked
    ))
),
requeued as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    select lane_id, priority, job_id, attempt - 1, cost, holds_unique from checked where not cancelled
    on conflict do nothing
)
select count(*) from checked where not cancelled"
        )
    };
}

pub(super) const HAND_BACK: &str = give_back!("worker_id = $1");

pub(super) const DISOWN: &str = give_back!("worker_id = $1 and fence = $2");

pub(super) const PUT_BACK: &str = give_back!("job_id = any($3) and worker_id = $1 and fence = $2");

// No claim waits this long for its answer: a lease of that age belongs to a running job, or its
// claim was lost.
pub(super) const OLD_CLAIMS: &str = "
select distinct fence from flyball.lease where worker_id = $1 and claimed_at < clock_timestamp() - interval '1 minute'";

// The feedback of a stopped worker does not describe the present.
pub(super) const STOP: &str = "
with reports as (
    delete from flyball.feedback where worker_id = $1
),
settings as (
    delete from flyball.worker_settings where worker_id = $1
)
update flyball.worker set stopped_at = clock_timestamp(), rescued = true where id = $1 and stopped_at is null";

impl Queue {
    /// Registers a worker under a fresh identity, and the kinds that it runs; returns its id.
    pub async fn register(&self, worker: &NewWorker) -> Result<i32, Error> {
        sqlx::query(REGISTER_KINDS)
            .bind(&worker.kinds)
            .execute(&self.pool)
            .await?;
        Ok(sqlx::query_scalar(REGISTER)
            .bind(&worker.name)
            .bind(&worker.host)
            .bind(worker.pid)
            .bind(worker.ttl.as_secs_f64())
            .bind(&worker.kinds)
            .fetch_one(&self.pool)
            .await?)
    }

    /// Records for each kind whether every producer may enqueue it; the last process that does so
    /// wins.
    pub async fn declare_kinds(&self, kinds: &[(String, bool)]) -> Result<(), Error> {
        let (names, public): (Vec<&str>, Vec<bool>) = kinds
            .iter()
            .map(|(name, public)| (name.as_str(), *public))
            .unzip();
        sqlx::query(DECLARE_KINDS)
            .bind(names)
            .bind(public)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Records the capabilities of a worker besides its kinds, each with a digest of the settings
    /// behind it, the settings that all workers must share, and the throttles that the worker was
    /// told to serve.
    pub async fn offer(
        &self,
        worker_id: i32,
        capabilities: &BTreeMap<String, String>,
        settings: &SharedSettings,
        throttles: &[String],
    ) -> Result<(), Error> {
        sqlx::query(OFFER)
            .bind(worker_id)
            .bind(Json(capabilities))
            .bind(Json(settings))
            .bind(throttles)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Returns the settings of these subjects that the other live workers have, each with the
    /// worker and the subject.
    pub async fn settings_of_others(
        &self,
        worker_id: i32,
        subjects: &[String],
    ) -> Result<Vec<(String, String, BTreeMap<String, String>)>, Error> {
        let rows = sqlx::query(SETTINGS_OF_OTHERS)
            .bind(worker_id)
            .bind(subjects)
            .fetch_all(&self.pool)
            .await?;
        rows.iter()
            .map(|row| {
                let fields: Json<BTreeMap<String, String>> = row.try_get("fields")?;
                Ok((row.try_get("worker")?, row.try_get("subject")?, fields.0))
            })
            .collect()
    }

    /// Records that a worker met a job which it does not serve.
    pub async fn note_met_unserved(&self, worker_id: i32) -> Result<(), Error> {
        sqlx::query(MET_UNSERVED)
            .bind(worker_id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Returns the capabilities of the live workers.
    pub async fn serving(&self) -> Result<Vec<WorkerCapabilities>, Error> {
        let rows = sqlx::query(SERVING).fetch_all(&self.pool).await?;
        let read = |row: &sqlx::postgres::PgRow| -> Result<WorkerCapabilities, sqlx::Error> {
            let kinds: Vec<String> = row.try_get("kinds")?;
            let capabilities: Json<BTreeMap<String, String>> = row.try_get("capabilities")?;
            Ok(WorkerCapabilities {
                id: row.try_get("id")?,
                name: row.try_get("name")?,
                is_fresh: row.try_get("is_fresh")?,
                is_broker: row.try_get("is_broker")?,
                throttles: row.try_get("throttles")?,
                kinds: kinds.into_iter().collect(),
                capabilities: capabilities.0,
            })
        };
        Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
    }

    /// Sends a heartbeat with the outcomes of jobs, and returns its answer, which names the jobs
    /// that must stop.
    ///
    /// It writes one row, and one for each tally, regardless of the number of running jobs.
    pub async fn pulse(&self, worker_id: i32, tallies: &[Tally]) -> Result<Pulse, Error> {
        pulse_on(&self.lifeline, worker_id, tallies).await
    }

    /// Sends a heartbeat on the main pool, for when the heartbeat's own connections are not
    /// available.
    pub async fn pulse_beside_others(
        &self,
        worker_id: i32,
        tallies: &[Tally],
    ) -> Result<Pulse, Error> {
        pulse_on(&self.pool, worker_id, tallies).await
    }

    /// Returns the number of live workers.
    pub async fn live_workers(&self) -> Result<i64, Error> {
        Ok(sqlx::query_scalar(LIVE).fetch_one(&self.pool).await?)
    }

    /// Hands back the jobs of a claim whose answer was lost, because no worker runs them; returns
    /// their number.
    pub async fn disown(&self, worker_id: i32, fence: i64) -> Result<u64, Error> {
        let given: i64 = sqlx::query_scalar(DISOWN)
            .bind(worker_id)
            .bind(fence)
            .fetch_one(&self.pool)
            .await?;
        Ok(given.unsigned_abs())
    }

    /// Puts claimed jobs that the worker does not serve back into their lanes, in their old places
    /// and without using an attempt; returns their number.
    pub async fn put_back(&self, worker_id: i32, fence: i64, jobs: &[i64]) -> Result<u64, Error> {
        let given: i64 = sqlx::query_scalar(PUT_BACK)
            .bind(worker_id)
            .bind(fence)
            .bind(jobs)
            .fetch_one(&self.pool)
            .await?;
        Ok(given.unsigned_abs())
    }

    /// Returns the fences of the worker's claims that are more than a minute old and of which jobs
    /// are still leased.
    pub async fn old_claims(&self, worker_id: i32) -> Result<Vec<i64>, Error> {
        Ok(sqlx::query_scalar(OLD_CLAIMS)
            .bind(worker_id)
            .fetch_all(&self.pool)
            .await?)
    }

    /// Marks the worker stopped, and hands every job that it still holds back to its lane, without
    /// using an attempt; returns the number of jobs.
    ///
    /// The order matters: a stopped worker can claim nothing more that would be left behind.
    pub async fn retire(&self, worker_id: i32) -> Result<u64, Error> {
        sqlx::query(STOP)
            .bind(worker_id)
            .execute(&self.pool)
            .await?;
        let handed: i64 = sqlx::query_scalar(HAND_BACK)
            .bind(worker_id)
            .fetch_one(&self.pool)
            .await?;
        self.release_shards(worker_id).await?;
        Ok(handed.unsigned_abs())
    }
}

/// Returns an array as Postgres reads it.
fn spelled(counts: &[u64]) -> String {
    let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
    format!("{{{}}}", counts.join(","))
}

async fn pulse_on(db: &Db, worker_id: i32, tallies: &[Tally]) -> Result<Pulse, Error> {
    let throttles: Vec<&str> = tallies
        .iter()
        .map(|tally| tally.throttle.as_str())
        .collect();
    let busy: Vec<f64> = tallies.iter().map(|tally| tally.busy_s).collect();
    let counts = |of: fn(&Tally) -> i64| -> Vec<i64> { tallies.iter().map(of).collect() };
    // Arrays of different lengths make no array of arrays, so they are sent as texts.
    let durations: Vec<String> = tallies
        .iter()
        .map(|tally| spelled(tally.durations.counts()))
        .collect();
    let row = sqlx::query(PULSE)
        .bind(worker_id)
        .bind(throttles)
        .bind(counts(|tally| tally.completed))
        .bind(counts(|tally| tally.failed))
        .bind(counts(|tally| tally.refused))
        .bind(busy)
        .bind(counts(|tally| tally.running))
        .bind(counts(|tally| tally.untimed))
        .bind(durations)
        .fetch_one(db)
        .await?;
    Ok(Pulse {
        alive: row.get("alive"),
        cancel: row.get("cancel"),
        paused: row.get("paused"),
    })
}
