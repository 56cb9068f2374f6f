//! Leadership by a lease row: a lock that ends with its process and needs no open transaction.

use std::time::Duration;

use crate::postgres::Db;

// The term grows whenever the holder changes or let the lease lapse, so that late writes of an old
// leader can be refused. It also grows above a term seen elsewhere, because a database restored
// from an older copy counts terms a second time.
const HOLD_LEADERSHIP: &str = "
insert into flyball.leader as l (name, holder, term, expires_at)
values ($1, $2, $4 + 1, clock_timestamp() + make_interval(secs => $3))
on conflict (name) do update
    set term = case
            when l.term < $4 then $4 + 1
            when l.holder = excluded.holder and l.expires_at > clock_timestamp() then l.term
            else l.term + 1
        end,
        holder = excluded.holder,
        expires_at = excluded.expires_at
    where l.holder = excluded.holder or l.expires_at <= clock_timestamp()
returning l.term";

const RELEASE: &str =
    "update flyball.leader set expires_at = clock_timestamp() where name = $1 and holder = $2";

/// Every statement of this file with its name, so that a test can prepare each on the migrated
/// schema.
pub const STATEMENTS: &[(&str, &str)] = &[("hold", HOLD_LEADERSHIP), ("release", RELEASE)];

/// A candidate for one leadership.
#[derive(Clone)]
pub struct Leader {
    pool: Db,
    name: &'static str,
    holder: String,
    ttl: Duration,
}

impl Leader {
    /// Creates a candidate under the name `holder`, which must be unique to this process start.
    ///
    /// It has two connections of its own beside `pool`, the second in case the first hangs, so that
    /// a crowd of requests cannot cost it the lease.
    pub fn new(
        pool: impl Into<Db>,
        name: &'static str,
        holder: impl Into<String>,
        ttl: Duration,
    ) -> Self {
        Self {
            pool: pool.into().apart(2, ttl / 3),
            name,
            holder: holder.into(),
            ttl,
        }
    }

    /// Creates a candidate that shares the connections of `pool`, for leaderships whose loss does
    /// no harm.
    pub fn sharing(
        pool: impl Into<Db>,
        name: &'static str,
        holder: impl Into<String>,
        ttl: Duration,
    ) -> Self {
        Self {
            pool: pool.into(),
            name,
            holder: holder.into(),
            ttl,
        }
    }

    /// Takes or renews the lease and returns the term if this process leads now. Returns within
    /// half the lease time.
    pub async fn hold(&self) -> Result<Option<u64>, sqlx::Error> {
        self.hold_above(0).await
    }

    /// Takes or renews the lease with a term that is later than `seen`, a term read from the store
    /// that leaders write to, unless `seen` is the current term of this leader.
    pub async fn hold_above(&self, seen: u64) -> Result<Option<u64>, sqlx::Error> {
        let query = sqlx::query_scalar(HOLD_LEADERSHIP)
            .bind(self.name)
            .bind(&self.holder)
            .bind(self.ttl.as_secs_f64())
            .bind(seen as i64);
        let answer = tokio::time::timeout(self.ttl / 2, query.fetch_optional(&self.pool));
        let term: Option<i64> = answer.await.unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        Ok(term.map(|term| term as u64))
    }

    /// Releases the lease, so that another process may lead at once. Returns within half the lease
    /// time.
    pub async fn release(&self) -> Result<(), sqlx::Error> {
        let query = sqlx::query(RELEASE)
            .bind(self.name)
            .bind(&self.holder)
            .execute(&self.pool);
        tokio::time::timeout(self.ttl / 2, query)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))?;
        Ok(())
    }
}
