//! The write of throttles' figures, with the time from which their oldest ready job waits.

use super::Queue;
use crate::jobs::Error;
use crate::jobs::depth_counter::{Figures, JobTable};

// A job that was enqueued for later waits from then on; one that was let run before that time, from
// its creation. So the job with the smallest id, if it was enqueued for later, may have waited for
// less time than others: the first ones of the deepest lanes are looked at as well.
pub(super) const WRITE_THROTTLES: &str = "
insert into flyball.depth as d (throttle, ready, scheduled, running, dead, oldest_ready_at)
select p.throttle, p.ready, p.scheduled, p.running, p.dead, least(head.since, others.since)
from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    as p(throttle, ready, scheduled, running, dead, oldest)
left join lateral (
    select greatest(created_at, case when run_at <= clock_timestamp() then run_at end) as since,
        run_at > created_at as is_planned
    from flyball.job where id = p.oldest limit 1
) head on true
left join lateral (
    select min(greatest(j.created_at, case when j.run_at <= clock_timestamp() then j.run_at end)) as since
    from (
        select lane_id from flyball.lane
        where head.is_planned and throttle = p.throttle and depth > 0
        order by depth desc, lane_id desc
        limit 5
    ) l
    cross join generate_series(0, 3) level
    cross join lateral (
        select r.job_id from flyball.ready r
        where r.lane_id = l.lane_id and r.priority = level::smallint
        order by r.lane_id, r.priority, r.job_id
        limit 10
    ) h
    cross join lateral (select created_at, run_at from flyball.job where id = h.job_id limit 1) j
) others on true
on conflict (throttle) do update
set ready = excluded.ready, scheduled = excluded.scheduled, running = excluded.running, dead = excluded.dead,
    oldest_ready_at = excluded.oldest_ready_at, counted_at = clock_timestamp()";

/// Writes the figures of these throttles.
pub(super) async fn write(queue: &Queue, taken: &[(&str, Figures)]) -> Result<(), Error> {
    let names: Vec<&str> = taken.iter().map(|(name, _)| *name).collect();
    let jobs = |part: JobTable| -> Vec<i64> {
        let of = |(_, figures): &(&str, Figures)| figures.jobs[part as usize];
        taken.iter().map(of).collect()
    };
    let oldest: Vec<Option<i64>> = taken.iter().map(|(_, figures)| figures.oldest).collect();
    sqlx::query(WRITE_THROTTLES)
        .bind(names)
        .bind(jobs(JobTable::Ready))
        .bind(jobs(JobTable::Scheduled))
        .bind(jobs(JobTable::Running))
        .bind(jobs(JobTable::Dead))
        .bind(oldest)
        .execute(&queue.pool)
        .await?;
    Ok(())
}
