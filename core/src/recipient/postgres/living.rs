//! Conditions of statements on a job: whether it is ready, and whether it has not ended.

/// The condition that the job of this number is ready.
// The limit makes Postgres look for one job at a time, whatever the tables held when it planned
// this.
macro_rules! is_ready {
    ($job:literal) => {
        concat!(
            "exists (
        select from flyball.job j
        cross join lateral (
            select from flyball.ready h
            where h.lane_id in (j.lane_id, j.admission_lane) and h.priority = j.priority and h.job_id = j.id
            limit 1
        ) w
        where j.id = ",
            $job,
            "
    )"
        )
    };
}

/// The condition that the job of this number waits or runs.
macro_rules! lives {
    ($job:literal) => {
        concat!(
            "(exists (select from flyball.scheduled h where h.job_id = ",
            $job,
            ")
    or exists (select from flyball.lease h where h.job_id = ",
            $job,
            ")
    or ",
            $crate::recipient::postgres::living::is_ready!($job),
            ")"
        )
    };
}

pub(super) use {is_ready, lives};
