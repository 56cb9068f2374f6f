//! Enqueueing from a Rust program's own transaction.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::PgExecutor;

use super::enqueue::enqueue;
use crate::jobs::{Enqueued, Error, NewJob};

/// A client that enqueues jobs as a part of the caller's own work in Postgres: in a transaction of
/// sqlx, a job exists exactly if that transaction commits.
///
/// It holds nothing, needs no Redis, and needs no rights but `usage` on the schema `flyball`.
///
/// ```no_run
/// # use flyball_core as flyball;
/// use std::time::Duration;
///
/// use flyball::jobs::NewJob;
/// use flyball::Client;
///
/// #[derive(serde::Serialize)]
/// struct Welcome {
///     user: i64,
/// }
///
/// # async fn sign_up(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// let user: i64 = sqlx::query_scalar("insert into users default values returning id").fetch_one(&mut *transaction).await?;
/// let job = NewJob::of("welcome", &Welcome { user })?.throttle("mail").key(user.to_string()).run_in(Duration::from_secs(60));
/// let enqueued = Client.enqueue(&mut *transaction, job).await?;
/// transaction.commit().await?;
/// println!("job {}", enqueued.id);
/// # Ok(())
/// # }
/// ```
///
/// A job that is not acceptable is an [`Error::Refused`] with the field and the allowed values; a
/// lane above its throttle's `max_backlog` is an [`Error::Full`] if the throttle's `on_backlog` is
/// `reject`, and otherwise a `backlog` in the answer. After either error Postgres allows the
/// transaction nothing but a rollback; enqueue in a savepoint to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client;

impl Client {
    /// Enqueues one job.
    ///
    /// The executor is a connection, `&mut *transaction`, a pool, or a [`Db`](crate::postgres::Db).
    pub async fn enqueue(
        &self,
        executor: impl PgExecutor<'_>,
        job: NewJob,
    ) -> Result<Enqueued, Error> {
        let enqueued = enqueue(executor, &[job]).await?;
        enqueued
            .into_iter()
            .next()
            .ok_or_else(|| Error::Store(sqlx::Error::RowNotFound))
    }

    /// Enqueues all jobs or none, at most 10,000; returns one entry per job, in order.
    ///
    /// ```no_run
    /// # use flyball_core as flyball;
    /// use flyball::jobs::NewJob;
    /// use flyball::Client;
    /// use serde_json::json;
    ///
    /// # async fn all(pool: sqlx::PgPool) -> Result<(), flyball::jobs::Error> {
    /// let jobs: Vec<NewJob> = (0..1000).map(|n| NewJob::new("welcome", json!({"user": n})).key(format!("tenant-{}", n % 10))).collect();
    /// let enqueued = Client.enqueue_many(&pool, &jobs).await?;
    /// assert_eq!(enqueued.len(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enqueue_many(
        &self,
        executor: impl PgExecutor<'_>,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>, Error> {
        enqueue(executor, jobs).await
    }
}

impl NewJob {
    /// Sets the earliest start to this long from now, by the clock of this machine.
    ///
    /// [`NewJob::run_at`] takes a point in time instead.
    #[allow(
        clippy::disallowed_methods,
        reason = "`run_in` is relative to the clock of the sender"
    )]
    pub fn run_in(self, delay: Duration) -> Self {
        // A time beyond the calendar becomes the last one, which the store refuses like any time
        // beyond ten years.
        let at = Timestamp::now()
            .checked_add(delay)
            .unwrap_or(Timestamp::MAX);
        self.run_at(at)
    }
}
