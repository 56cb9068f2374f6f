//! Counts of all jobs by state: the waiting ones as last counted, the ended ones as estimated.

use sqlx::Row;

use super::Queue;
use crate::jobs::{Error, JobCounts};

// The history is too large to be counted. Its estimate is the share of each outcome in the sample
// that ANALYZE took, times the rows; it is null before the first sample.
pub(super) const ENDED: &str = "
select coalesce(sum(c.reltuples * f.share) filter (where f.outcome = 'completed'), case when count(*) > 0 then 0 end)::bigint as completed,
    coalesce(sum(c.reltuples * f.share) filter (where f.outcome in ('cancelled', 'dropped')), case when count(*) > 0 then 0 end)::bigint
        as cancelled
from pg_inherits i
join pg_class c on c.oid = i.inhrelid and c.reltuples > 0
join pg_stats s on s.schemaname = 'flyball' and s.tablename = c.relname and s.attname = 'outcome'
cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs) f(outcome, share)
where i.inhparent = to_regclass('flyball.attempt')";

impl Queue {
    /// Returns the number of jobs in each state, over all throttles and tenants.
    pub async fn counts(&self) -> Result<JobCounts, Error> {
        let depths = self.depths().await?;
        let ended = sqlx::query(ENDED).fetch_one(&self.pool).await?;
        let sum = |of: fn(&crate::jobs::Depth) -> i64| depths.throttles.iter().map(of).sum();
        Ok(JobCounts {
            ready: sum(|depth| depth.ready),
            scheduled: sum(|depth| depth.scheduled),
            running: sum(|depth| depth.running),
            dead: sum(|depth| depth.dead),
            completed: ended.try_get("completed")?,
            cancelled: ended.try_get("cancelled")?,
            at: depths.at,
        })
    }
}
