//! The queues of tenants: how many of their messages may be pending.

use super::Queue;
use crate::jobs::Error;

pub(super) const SET_QUEUE_MAX: &str = "
insert into flyball.tenant_limit as l (tenant, max_pending) values ('*', $1)
on conflict (tenant) do update set max_pending = excluded.max_pending where l.max_pending <> excluded.max_pending";

pub(super) const SWEEP_PENDING: &str = "select flyball.sweep_all_pending()";

pub(super) const SETTLE_EXPANSIONS: &str =
    "select ended, enqueued from flyball.settle_expansions()";

pub(super) const FORGET_REQUESTS: &str = "
delete from flyball.idempotency
where ctid = any(array(
    select i.ctid from flyball.idempotency i where i.expires_at < now() order by i.expires_at limit 10000 for update skip locked
))";

impl Queue {
    /// Sets the most pending messages of every tenant that has no limit of its own in
    /// `flyball.tenant_limit`.
    pub async fn set_tenant_queue_max(&self, messages: u32) -> Result<(), Error> {
        sqlx::query(SET_QUEUE_MAX)
            .bind(messages as i32)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Forgets pending messages that have ended, and repeated requests older than a day, and settles
    /// batches that lost the job which enqueues their messages; returns the number of messages.
    pub async fn sweep_pending(&self) -> Result<u64, Error> {
        let removed: i64 = sqlx::query_scalar(SWEEP_PENDING)
            .fetch_one(&self.pool)
            .await?;
        sqlx::query(FORGET_REQUESTS).execute(&self.pool).await?;
        let (ended, enqueued): (i32, i32) = sqlx::query_as(SETTLE_EXPANSIONS)
            .fetch_one(&self.pool)
            .await?;
        if ended > 0 || enqueued > 0 {
            tracing::warn!(
                ended,
                enqueued,
                "settled batches that lost the job which enqueues their messages"
            );
        }
        Ok(removed.unsigned_abs())
    }
}
