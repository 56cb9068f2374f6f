//! Shards of the lanes: 64 ranges, each held for some seconds by one worker.
//!
//! Holding a shard spares the other workers from looking at its lanes. It is never needed for
//! correctness: two holders at once only find that rows that both wanted are locked.

use std::time::Duration;

use super::Queue;
use crate::jobs::Error;

/// Seconds without a heartbeat after which a worker has no part in sharing the shards, although its
/// jobs are still its own.
const QUIET_S: f64 = 5.0;

// A worker with more than its fair part releases the rest; free shards go to the first worker that
// takes them, so that no lane is unattended while the parts are worked out.
pub(super) const HOLD_SHARDS: &str = "
with fair_share as (
    select ceil(64.0 / greatest(count(*), 1))::int as n
    from flyball.worker
    where stopped_at is null and (id = $1 or serves and heartbeat_at > clock_timestamp() - make_interval(secs => $3))
),
returned as (
    update flyball.worker set serves = true where id = $1 and not serves
),
own as (
    select shard from flyball.shard where worker_id = $1 and expires_at > clock_timestamp() order by shard for update
),
free as (
    select shard from flyball.shard
    where worker_id is null or expires_at <= clock_timestamp()
    order by shard
    for update skip locked
),
retained as (
    (select shard from own order by shard limit (select n from fair_share))
    union all
    (select shard from free order by shard limit (select greatest((select n from fair_share) - (select count(*) from own), 0)))
),
updated as (
    update flyball.shard s
    set worker_id = case when k.shard is null then null else $1 end,
        expires_at = case when k.shard is null then '-infinity' else clock_timestamp() + make_interval(secs => $2) end
    from (select shard from own union select shard from retained) t
    left join retained k using (shard)
    where s.shard = t.shard
    returning s.shard, s.worker_id
)
select shard from updated where worker_id = $1";

// One worker keeps its part in any case, so that the lanes are attended when all are busy.
pub(super) const LET_GO: &str = "
with other as (
    select from flyball.worker
    where id <> $1 and serves and stopped_at is null and heartbeat_at > clock_timestamp() - make_interval(secs => $2)
    limit 1
),
ineligible as (
    update flyball.worker set serves = false where id = $1 and serves and exists (select from other)
),
released as (
    update flyball.shard set worker_id = null, expires_at = '-infinity' where worker_id = $1 and exists (select from other)
)
select exists (select from other)";

// A worker that serves only some jobs has its share of the lanes by its rank among its like.
pub(super) const LEAVE: &str = "
with leaving as (
    update flyball.worker set serves = false where id = $1 and serves
)
update flyball.shard set worker_id = null, expires_at = '-infinity' where worker_id = $1";

pub(super) const RELEASE: &str = "
update flyball.shard set worker_id = null, expires_at = '-infinity' where worker_id = $1";

impl Queue {
    /// Renews and takes this worker's fair part of the shards, for `ttl`; returns the shards that
    /// it holds as a set of bits.
    pub async fn hold_shards(&self, worker_id: i32, ttl: Duration) -> Result<u64, Error> {
        let requested = sqlx::query_scalar(HOLD_SHARDS)
            .bind(worker_id)
            .bind(ttl.as_secs_f64())
            .bind(QUIET_S);
        let held: Vec<i16> = requested.fetch_all(&self.pool).await?;
        Ok(held.into_iter().fold(0, |set, shard| set | 1 << shard))
    }

    /// Releases the shards of a worker that cannot serve lanes, and its part in sharing until it
    /// takes some again; returns false if no other worker could take them.
    pub async fn let_shards_go(&self, worker_id: i32) -> Result<bool, Error> {
        Ok(sqlx::query_scalar(LET_GO)
            .bind(worker_id)
            .bind(QUIET_S)
            .fetch_one(&self.pool)
            .await?)
    }

    /// Releases the shards of a worker that does not serve all jobs, and its part in sharing.
    pub async fn leave_shards(&self, worker_id: i32) -> Result<(), Error> {
        sqlx::query(LEAVE)
            .bind(worker_id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Releases every shard of the worker.
    pub async fn release_shards(&self, worker_id: i32) -> Result<(), Error> {
        sqlx::query(RELEASE)
            .bind(worker_id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}
