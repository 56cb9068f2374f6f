//! Connections to Postgres, each with the settings that the statements were measured under.

use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgPool, Row};

use super::depth::DepthCache;
use crate::jobs::Error;

/// The migrations, embedded; safe to run twice and beside running workers.
///
/// Their record lives in our own schema under its full name: a bare name would be looked up in another schema as soon as
/// the database's user is called `flyball`, and everything would be run a second time.
pub static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrator = sqlx::migrate!("./migrations");
    migrator.create_schema("flyball");
    migrator.dangerous_set_table_name("flyball.migration");
    migrator
});

/// JIT and re-planning cost more than these statements themselves do; a plan that was made while a table was empty must not
/// scan it once it is full; a forgotten transaction must not pin old rows.
const SESSION: &str = "set jit = off; set plan_cache_mode = force_generic_plan; set enable_seqscan = off; \
     set idle_in_transaction_session_timeout = '60s'; set application_name = 'flyball'";

/// One that hangs must not hang the next heartbeat.
const LIFELINES: u32 = 2;

/// How long the heartbeat waits for its connection.
const LIFELINE_PATIENCE: Duration = Duration::from_secs(5);

/// The queue: a pool of connections and the statements that run on it.
#[derive(Clone)]
pub struct Queue {
    /// The connections.
    pub pool: PgPool,
    /// Connections for the heartbeat alone: a crowd of requests must not let a worker be taken for dead.
    pub(super) lifeline: PgPool,
    pub(super) depth: Arc<DepthCache>,
}

impl Queue {
    /// Makes a queue on an existing pool.
    pub fn new(pool: PgPool) -> Self {
        Self { lifeline: apart(&pool, LIFELINES, LIFELINE_PATIENCE), pool, depth: Arc::default() }
    }

    /// Connects to `url`, waiting up to `patience` for the server; at most `connections` at a time.
    pub async fn connect(url: &str, connections: u32, patience: Duration) -> Result<Self, Error> {
        let options = PgConnectOptions::from_str(url)?;
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(patience)
            .after_connect(|connection, _| Box::pin(async move { connection.execute(SESSION).await.map(|_| ()) }))
            // A `begin` that was cancelled half-way leaves its connection inside a transaction; such a one is thrown away.
            .after_release(|connection, _| {
                Box::pin(async move {
                    // Only the simple protocol keeps the two times equal outside a transaction.
                    let look = sqlx::raw_sql("select now() < statement_timestamp()").fetch_one(&mut *connection);
                    // A connection that hangs without a word must not keep its place in the pool.
                    let row =
                        tokio::time::timeout(Duration::from_secs(2), look).await.map_err(|_| sqlx::Error::WorkerCrashed)??;
                    Ok(!row.try_get::<bool, _>(0)?)
                })
            })
            .connect_with(options)
            .await?;
        Ok(Self::new(pool))
    }

    /// A pool to the same database beside the main one, for those who must not wait behind others.
    pub fn apart(&self, connections: u32, patience: Duration) -> PgPool {
        apart(&self.pool, connections, patience)
    }

    /// Brings the schema up to date. Answers how many migrations were run now.
    pub async fn migrate(&self) -> Result<usize, MigrateError> {
        let before = self.applied().await;
        MIGRATOR.run(&self.pool).await?;
        Ok(self.applied().await.saturating_sub(before))
    }

    async fn applied(&self) -> usize {
        let count: Result<i64, _> =
            sqlx::query_scalar("select count(*) from flyball.migration where success").fetch_one(&self.pool).await;
        count.map_or(0, |n| n as usize)
    }

    /// True when Postgres answers.
    pub async fn ping(&self) -> bool {
        sqlx::query("select 1").execute(&self.pool).await.is_ok()
    }
}

fn apart(pool: &PgPool, connections: u32, patience: Duration) -> PgPool {
    let options = pool.options().clone().min_connections(0).max_connections(connections).acquire_timeout(patience);
    options.connect_lazy_with((*pool.connect_options()).clone())
}
