//! One poll for everything that waits for its time or for a process that takes it.

use std::time::Duration;

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

// Each part is one probe of an index. `now()` and not `clock_timestamp()`, which could bound none.
// Whether a job is ready, and producers notify, is asked only while the queue may be quiet: after a
// long drain the probe passes over dead entries. The mark of the workers changes with their set, their
// freshness and what they serve.
pub(super) const DUE: &str = "
select coalesce(j.at <= now(), false) as jobs,
    coalesce(c.at <= now(), false)
        or exists (select from flyball.cron where not paused and next_at is null and problem is null) as schedules,
    coalesce(d.at <= now(), false) as digests,
    exists (
        select from (values (-4::smallint), (-3::smallint), (-2::smallint), (-1::smallint)) as p(turn)
        cross join lateral (
            select from flyball.scheduled s
            where (s.turn, s.run_at) >= (p.turn, '-infinity') and (s.turn, s.run_at) <= (p.turn, now())
            order by s.turn, s.run_at
            limit 1
        ) m
    ) as messages,
    exists (select from flyball.group_change) or exists (select from flyball.job_group where retry_at <= now())
        or coalesce((select retry_at from flyball.webhook_call order by retry_at limit 1) <= now(), false) as groups,
    exists (select from flyball.job_after) as waiting,
    exists (select from flyball.worker where not rescued and (stopped_at is not null or heartbeat_at + ttl < now()))
        or exists (select from flyball.lease where broker_id is not null and expires_at < now())
        or exists (select from flyball.cancel) as rescues,
    exists (select from flyball.pause) as paused,
    exists (select from flyball.publication) as publications,
    (select seq from flyball.channel_message order by seq desc limit 1) as newest_message,
    case when $1 then coalesce((select true from flyball.ready order by lane_id, priority, job_id limit 1), false) end as has_ready,
    case when $1 then coalesce((select asleep from flyball.wakeup), true) end as asleep,
    w.workers,
    w.mark as workers_mark,
    extract(epoch from least(j.at, c.at, d.at) - clock_timestamp())::float8 as next_s
from (select (select run_at from flyball.scheduled where turn >= 0 order by run_at limit 1) as at) j
cross join (select (select next_at from flyball.cron where not paused order by next_at limit 1) as at) c
cross join (select (select closes_at from flyball.digest order by closes_at limit 1) as at) d
cross join (
    select count(*) as workers,
        coalesce(sum(hashtextextended(concat_ws('|', id, heartbeat_at > now() - interval '5 seconds', kinds, throttles, capabilities), 0)::numeric)
            % 9000000000000000000, 0)::bigint as mark
    from flyball.worker
    where stopped_at is null and heartbeat_at + ttl >= now() and role <> 'remote'
) w";

/// The work that is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueParts {
    /// Jobs become ready.
    pub jobs: bool,
    /// Schedules have an occurrence.
    pub schedules: bool,
    /// Digests close.
    pub digests: bool,
    /// Messages are to be planned.
    pub messages: bool,
    /// Members of groups have ended, or webhooks are to be called.
    pub groups: bool,
    /// Jobs wait for others.
    pub waiting: bool,
    /// Jobs of workers that are gone, or whose cancellation was requested, may be given back.
    pub rescues: bool,
    /// Messages were published that no collector has moved.
    pub publications: bool,
    /// The number of the newest message of all channels; `None` without any.
    pub newest_message: Option<i64>,
    /// The global pause is in force.
    pub paused: bool,
    /// Jobs are ready, or producers do not notify, so that jobs may come unheard; `None` if that was
    /// not asked.
    pub has_unheard: Option<bool>,
    /// Live workers.
    pub workers: i64,
    /// A number that changes with the live workers, their freshness and what they serve.
    pub workers_mark: i64,
    /// Time until the next job, occurrence or digest; zero if one is due, `None` if none waits.
    pub next: Option<Duration>,
}

impl Queue {
    /// Polls for everything that waits for its time, and, if asked, for what no notification told
    /// of.
    pub async fn due(&self, and_unheard: bool) -> Result<DueParts, Error> {
        let row = sqlx::query(DUE)
            .bind(and_unheard)
            .fetch_one(&self.pool)
            .await?;
        let has_ready: Option<bool> = row.try_get("has_ready")?;
        let asleep: Option<bool> = row.try_get("asleep")?;
        let next_s: Option<f64> = row.try_get("next_s")?;
        Ok(DueParts {
            jobs: row.try_get("jobs")?,
            schedules: row.try_get("schedules")?,
            digests: row.try_get("digests")?,
            messages: row.try_get("messages")?,
            groups: row.try_get("groups")?,
            waiting: row.try_get("waiting")?,
            rescues: row.try_get("rescues")?,
            publications: row.try_get("publications")?,
            newest_message: row.try_get("newest_message")?,
            paused: row.try_get("paused")?,
            has_unheard: has_ready
                .zip(asleep)
                .map(|(ready, asleep)| ready || !asleep),
            workers: row.try_get("workers")?,
            workers_mark: row.try_get("workers_mark")?,
            next: next_s.map(|s| Duration::try_from_secs_f64(s.max(0.0)).unwrap_or(Duration::MAX)),
        })
    }
}
