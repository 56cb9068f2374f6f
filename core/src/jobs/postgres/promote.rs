//! Promotion: due jobs move to their lanes, oldest first, or turn by turn if a crowd is due.

use std::time::{Duration, Instant};

use sqlx::Row;

use super::Queue;
use crate::jobs::Error;

/// The most jobs that one promotion moves, so that it stays short.
///
/// The statement repeats the number as a literal: for a limit that is a parameter the planner
/// assumes a tenth of the table, and would then rather sort than walk the index.
const MAX_PROMOTED: i64 = 1000;

/// Jobs that the first round through a crowd moves.
const FIRST_ROUND: i32 = 1000;

/// The time below which a full round is followed by one of twice as many jobs.
const SHORT_ROUND: Duration = Duration::from_millis(50);

/// The time above which a round is followed by one of half as many jobs, because jobs that become
/// due meanwhile wait for its end.
const LONG_ROUND: Duration = Duration::from_millis(120);

/// The least and the most jobs of a round.
const ROUNDS: (i32, i32) = (250, 8000);

/// The end of a promotion: the rows taken go to their lanes, and a notification names these lanes
/// to all workers, most urgent first, because the promoting process need not be the one that serves
/// them.
///
/// A notification holds 8,000 bytes, which is 370 lanes.
macro_rules! deliver {
    ($more:literal) => {
        concat!(
            "
moved as (
    insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
    select lane_id, priority, job_id, attempt, cost, holds_unique from removed
    on conflict do nothing
),
lanes as (
    select lane_id, urgency, row_number() over (order by urgency, lane_id) / 370 as page
    from (select lane_id, min(priority) as urgency from removed group by lane_id) l
)
select (select count(*) from removed) as moved,
    coalesce((select array_agg(lane_id order by urgency, lane_id) from lanes), '{}') as lanes, (
        select count(pg_notify('flyball', page.lanes))
        from (select string_agg(lane_id::text, ',' order by urgency, lane_id) as lanes from lanes group by page) page
    ) as notified_lanes",
            $more
        )
    };
}

// `now()` and not `clock_timestamp()`: a time that may change during the statement cannot bound a
// scan, and if nothing is due, all scheduled rows would be read.
pub(super) const PROMOTE: &str = concat!(
    "
with due as (
    select ctid from flyball.scheduled
    where run_at <= now() and turn >= 0
    order by run_at
    limit 1000
    for update skip locked
),
removed as (
    delete from flyball.scheduled where ctid = any(array(select ctid from due))
    returning *
),",
    deliver!("")
);

// One round through a crowd. It hops over the turns that hold any jobs, as a sweep hops over lanes,
// beginning behind the last turn of the round before, and takes from those that hold due jobs: all
// of a turn that holds few, and of the others as many as their share of the round. A more urgent
// priority has twice the share of the next, and retries have twice the share of first attempts:
// they are few, and each of them has waited once already. The oldest of a turn go first.
//
// A turn is selected by a range of pairs and not by equality, for which the planner might walk the
// index of times and pass over the rows of all other turns.
//
// One process at a time does this; others would only obstruct it, and take the processors from the
// claims.
pub(super) const PROMOTE_CROWD: &str = concat!(
    "
with recursive guard as materialized (
    select count(*) > 0 as alone
    from (select from flyball.mutex where name = 'promote' for update skip locked) held
),
hop as (
    (select s.turn from flyball.scheduled s
     where s.turn > $1 and (select alone from guard)
     order by s.turn, s.run_at limit 1)
    union all
    (select n.turn
     from hop h
     cross join lateral (
        select s.turn from flyball.scheduled s where s.turn > h.turn order by s.turn, s.run_at limit 1
     ) n)
),
due as materialized (
    select h.turn, d.jobs
    from hop h
    cross join lateral (
        select count(*)::int as jobs
        from (
            select 1 from flyball.scheduled s
            where (s.turn, s.run_at) >= (h.turn, '-infinity') and (s.turn, s.run_at) <= (h.turn, now())
            order by s.turn, s.run_at
            limit 64
        ) few
    ) d
    where d.jobs > 0
    limit 256
),
weighted as (
    select turn, jobs, (8 >> (turn & 3)) * case when turn & 4 = 0 then 2 else 1 end as weight from due
),
shares as materialized (
    select turn, case
            when jobs < 64 then jobs
            else greatest(64, ceil($2::int * weight::float8 / sum(weight) filter (where jobs = 64) over ()))::int end as jobs
    from weighted
),
picked as materialized (
    select r.tid
    from shares a
    cross join lateral (
        select s.ctid as tid
        from flyball.scheduled s
        where (s.turn, s.run_at) >= (a.turn, '-infinity') and (s.turn, s.run_at) <= (a.turn, now())
        order by s.turn, s.run_at
        limit a.jobs
        for update skip locked
    ) r
),
removed as (
    delete from flyball.scheduled where ctid = any(array(select tid from picked))
    returning *
),",
    deliver!(
        ",
    (select alone from guard) as alone,
    (select case when count(*) = 256 then max(turn) end from due) as last,
    coalesce((select bool_or(jobs = 64) from due), false) as deep"
    )
);

/// The result of one promotion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promoted {
    /// The number of jobs moved.
    pub jobs: i64,
    /// The lanes to which they moved, most urgent first.
    pub lanes: Vec<i64>,
    /// True if more jobs may be due.
    pub more: bool,
}

/// The progress of a walk through a crowd, kept between rounds.
#[derive(Clone, Debug)]
pub struct PromotionCursor {
    after: i16,
    round: i32,
}

impl Default for PromotionCursor {
    fn default() -> Self {
        Self {
            after: -1,
            round: FIRST_ROUND,
        }
    }
}

impl Queue {
    /// Moves due jobs to their lanes, oldest first, and notifies the workers.
    pub async fn promote(&self) -> Result<Promoted, Error> {
        let row = sqlx::query(PROMOTE).fetch_one(&self.pool).await?;
        let jobs = row.try_get("moved")?;
        Ok(Promoted {
            jobs,
            lanes: row.try_get("lanes")?,
            more: jobs == MAX_PROMOTED,
        })
    }

    /// Moves due jobs of every throttle and priority side by side, for when more are due than
    /// [`Queue::promote`] moves.
    ///
    /// If another process is doing so, it moves nothing and reports that no more are due.
    pub async fn promote_crowd(&self, crowd: &mut PromotionCursor) -> Result<Promoted, Error> {
        let begun = Instant::now();
        let row = sqlx::query(PROMOTE_CROWD)
            .bind(crowd.after)
            .bind(crowd.round)
            .fetch_one(&self.pool)
            .await?;
        let (jobs, alone, last): (i64, bool, Option<i16>) = (
            row.try_get("moved")?,
            row.try_get("alone")?,
            row.try_get("last")?,
        );
        let looked_at_all = crowd.after < 0 && last.is_none();
        crowd.after = last.unwrap_or(-1);
        crowd.round = next_round(crowd.round, jobs, begun.elapsed());
        let more = alone && (!looked_at_all || row.try_get("deep")?);
        Ok(Promoted {
            jobs,
            lanes: row.try_get("lanes")?,
            more,
        })
    }
}

/// Returns the number of jobs that the next round moves.
fn next_round(round: i32, moved: i64, took: Duration) -> i32 {
    let next = match took {
        _ if took > LONG_ROUND => round / 2,
        _ if took < SHORT_ROUND && moved >= i64::from(round) => round * 2,
        _ => round,
    };
    next.clamp(ROUNDS.0, ROUNDS.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_grow_while_they_are_short_and_shrink_when_they_are_long() {
        let ms = Duration::from_millis;

        assert_eq!(next_round(1000, 1000, ms(20)), 2000);
        assert_eq!(
            next_round(1000, 300, ms(20)),
            1000,
            "so few that it says nothing about a full one"
        );
        assert_eq!(next_round(1000, 1000, ms(80)), 1000);
        assert_eq!(next_round(1000, 1000, ms(300)), 500);
        assert_eq!(
            (next_round(8000, 8000, ms(1)), next_round(250, 250, ms(900))),
            (8000, 250)
        );
    }
}
