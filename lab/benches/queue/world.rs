//! The private servers of a run, with the connections to them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flyball::jobs::Queue;
use flyball::stack::{RunningStack, ServerKind, SpawnOptions, as_superuser, spawn};
use flyball::throttle::redis::RedisStore;
use flyball::throttle::{Change, Name, Store};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::cpu::Servers;
use crate::fill;
pub use crate::fill::THROTTLE;

/// A finite rate that no machine reaches: the buckets are really counted down, but no job waits.
pub const FAR_ABOVE: &str = "10000000";

/// The servers of the whole program, which stop when this is dropped.
pub struct QueueServers {
    pub database_url: String,
    pub redis_url: String,
    /// Connections with the server's own settings, for filling and inspecting.
    pub pool: PgPool,
    /// The queue, connected as the product does.
    pub queue: Queue,
    pub store: Arc<dyn Store>,
    /// The servers' processes.
    pub servers: Servers,
    _running: RunningStack,
}

impl QueueServers {
    /// Starts Postgres and Redis in `dir` and migrates; with `statements`, Postgres keeps
    /// statistics of every statement.
    pub async fn start(dir: &Path, statements: bool) -> anyhow::Result<Self> {
        let options = SpawnOptions {
            program: Some(PathBuf::from(env!("CARGO_BIN_EXE_flyball-lab"))),
            ephemeral: true,
            stderr: Some(dir.join("services.log")),
            // Servers that are not started take no CPU, and no case needs Prometheus.
            prometheus_url: Some("http://127.0.0.1:9".to_owned()),
            ..SpawnOptions::default()
        };
        let mut running = spawn(dir, &options)?;
        let urls = running.urls.clone();
        if statements {
            let pool = PgPool::connect(&as_superuser(&urls.database_url)).await?;
            sqlx::query("alter system set shared_preload_libraries = 'pg_stat_statements'")
                .execute(&pool)
                .await?;
            pool.close().await;
            running.stop(ServerKind::Postgres)?;
            running.start(ServerKind::Postgres)?;
        }
        // The server's statistics and counts require its superuser.
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .connect(&as_superuser(&urls.database_url))
            .await?;
        if statements {
            sqlx::query("create extension if not exists pg_stat_statements")
                .execute(&pool)
                .await?;
        }
        rare_checkpoints(&pool).await?;
        let queue = Queue::connect(&urls.database_url, 4, Duration::from_secs(20)).await?;
        queue.migrate().await?;
        fill::prepare(&pool).await?;
        let store: Arc<dyn Store> = Arc::new(RedisStore::connect(&urls.redis_url, "")?);
        let servers = Servers {
            postmaster: postmaster(&pool).await?,
            redis: read_pid(&dir.join("run/redis.pid"))?,
        };
        let world = Self {
            database_url: urls.database_url,
            redis_url: urls.redis_url,
            pool,
            queue,
            store,
            servers,
            _running: running,
        };
        world.knobs(THROTTLE, &[("rps", "-1")]).await?;
        Ok(world)
    }

    /// Sets knobs of a throttle, which is created if it does not exist.
    pub async fn knobs(&self, throttle: &str, fields: &[(&str, &str)]) -> anyhow::Result<()> {
        let fields: BTreeMap<_, _> = fields
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Some((*text).to_owned())))
            .collect();
        let change = Change {
            fields,
            create: true,
            by: "bench".into(),
            ..Change::default()
        };
        self.store.set(&Name::new(throttle)?, &change).await?;
        Ok(())
    }
}

/// Makes checkpoints rare, because they would interrupt long runs at arbitrary moments.
pub async fn rare_checkpoints(pool: &PgPool) -> anyhow::Result<()> {
    alter(
        pool,
        &["set max_wal_size = '16GB'", "set checkpoint_timeout = '1h'"],
    )
    .await
}

/// Leaves checkpoints to the server's own settings.
pub async fn frequent_checkpoints(pool: &PgPool) -> anyhow::Result<()> {
    alter(pool, &["reset max_wal_size", "reset checkpoint_timeout"]).await
}

/// Sets whether commits of new transactions wait for the disk.
pub async fn waiting_commits(pool: &PgPool, wait: bool) -> anyhow::Result<()> {
    let setting = match wait {
        true => "reset synchronous_commit",
        false => "set synchronous_commit = off",
    };
    alter(pool, &[setting]).await
}

async fn alter(pool: &PgPool, settings: &[&str]) -> anyhow::Result<()> {
    for setting in settings {
        sqlx::query(sqlx::AssertSqlSafe(format!("alter system {setting}")))
            .execute(pool)
            .await?;
    }
    sqlx::query("select pg_reload_conf()").execute(pool).await?;
    Ok(())
}

/// Returns the postmaster's process id, which is the first line of this file of the server.
async fn postmaster(pool: &PgPool) -> anyhow::Result<u32> {
    let text: String =
        sqlx::query_scalar("select split_part(pg_read_file('postmaster.pid'), chr(10), 1)")
            .fetch_one(pool)
            .await?;
    text.trim()
        .parse()
        .with_context(|| format!("{text:?} is not a process id"))
}

fn read_pid(path: &Path) -> anyhow::Result<u32> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let first = text.split_whitespace().next().unwrap_or_default();
    first
        .parse()
        .with_context(|| format!("{first:?} in {} is not a process id", path.display()))
}
