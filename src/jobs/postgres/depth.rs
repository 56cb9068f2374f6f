//! How deep each throttle's queue is, counted rarely enough that counting costs next to nothing.

use std::time::{Duration, Instant};

use sqlx::Row;
use tokio::sync::Mutex;

use super::Queue;
use crate::jobs::{Depth, Error};

/// Counting may take at most one part in this many of the time.
const DUTY: u32 = 50;

/// A count is never repeated sooner than this.
const MIN_AGE: Duration = Duration::from_millis(900);

// Each lane is counted in one pass over narrow rows; names come from the directory, or from one job where a lane is new.
pub(super) const DEPTHS: &str = "
with counted as (
    select lane_id, count(*) as ready, 0::bigint as scheduled, 0::bigint as running, 0::bigint as dead, min(job_id) as sample
    from flyball.ready group by lane_id
    union all
    select lane_id, 0, count(*), 0, 0, min(job_id) from flyball.scheduled group by lane_id
    union all
    select lane_id, 0, 0, count(*), 0, min(job_id) from flyball.lease group by lane_id
    union all
    select lane_id, 0, 0, 0, count(*), min(job_id) from flyball.dead group by lane_id
)
select coalesce(l.throttle, j.throttle, '') as throttle, sum(c.ready)::bigint as ready, sum(c.scheduled)::bigint as scheduled,
    sum(c.running)::bigint as running, sum(c.dead)::bigint as dead
from counted c
left join flyball.lane l on l.lane_id = c.lane_id
left join flyball.job j on l.lane_id is null and j.id = c.sample
group by 1
order by 1";

pub(super) const CLOCK: &str = "select extract(epoch from clock_timestamp())::float8";

/// The last count, and when the next is due.
#[derive(Default)]
pub(super) struct DepthCache(Mutex<Option<Counted>>);

struct Counted {
    depths: Vec<Depth>,
    at_unix_s: f64,
    at: Instant,
    took: Duration,
}

impl Queue {
    /// Depth of every throttle that has jobs, at most a second old or, where counting is slow, fifty times its duration.
    pub async fn depths(&self) -> Result<Vec<Depth>, Error> {
        Ok(self.counted().await?.0)
    }

    /// As [`Queue::depths`], with the time of the count by the server's clock, in unix seconds.
    pub async fn counted(&self) -> Result<(Vec<Depth>, f64), Error> {
        let mut cache = self.depth.0.lock().await;
        if let Some(counted) = &*cache
            && counted.at.elapsed() < MIN_AGE.max(counted.took * DUTY)
        {
            return Ok((counted.depths.clone(), counted.at_unix_s));
        }
        let begun = Instant::now();
        let at_unix_s: f64 = sqlx::query_scalar(CLOCK).fetch_one(&self.pool).await?;
        let rows = sqlx::query(DEPTHS).fetch_all(&self.pool).await?;
        let depths: Vec<Depth> = rows
            .iter()
            .map(|row| Depth {
                throttle: row.get("throttle"),
                ready: row.get("ready"),
                scheduled: row.get("scheduled"),
                running: row.get("running"),
                dead: row.get("dead"),
            })
            .collect();
        *cache = Some(Counted { depths: depths.clone(), at_unix_s, at: Instant::now(), took: begun.elapsed() });
        Ok((depths, at_unix_s))
    }
}
