//! The queue's connections.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use super::depth::DepthCache;
use crate::jobs::Error;
use crate::postgres::{Access, Db, Pooler, refuse_hidden_pooler};

/// One that hangs must not hang the next heartbeat.
const LIFELINES: u32 = 2;

/// How long the heartbeat waits for its connection.
const LIFELINE_PATIENCE: Duration = Duration::from_secs(5);

/// The queue: a pool of connections and the statements that run on it.
#[derive(Clone)]
pub struct Queue {
    /// The connections.
    pub pool: Db,
    /// Connections for the heartbeat alone: a crowd of requests must not let a worker be taken for dead.
    pub(super) lifeline: Db,
    /// Where a session keeps what it is told, for LISTEN; `None` behind a pooler that nothing leads past.
    pub(super) sessions: Option<PgPool>,
    pub(super) depth: Arc<DepthCache>,
}

impl Queue {
    /// Makes a queue on an existing pool.
    pub fn new(pool: impl Into<Db>) -> Self {
        let pool = pool.into();
        let sessions = (pool.pooler() == Pooler::None).then(|| pool.pool().clone());
        Self { lifeline: pool.apart(LIFELINES, LIFELINE_PATIENCE), pool, sessions, depth: Arc::default() }
    }

    /// Connects, waiting up to `patience` for the server; at most `connections` at a time.
    pub async fn connect(access: impl Into<Access>, connections: u32, patience: Duration) -> Result<Self, Error> {
        let access = access.into();
        let direct = access.direct_url.as_deref().map(str::parse::<PgConnectOptions>).transpose()?;
        let mut queue = Self::new(Db::connect(&access, connections, patience).await?);
        if let Some(direct) = direct {
            queue.sessions = Some(Db::lazy(direct, Pooler::None, 1, patience).pool().clone());
        }
        Ok(queue)
    }

    /// A pool to the same database beside the main one, for those who must not wait behind others.
    pub fn apart(&self, connections: u32, patience: Duration) -> Db {
        self.pool.apart(connections, patience)
    }

    /// Fails, naming the setting, where a pooler in transaction mode stands in the way that the settings do not tell of.
    pub async fn refuse_hidden_pooler(&self) -> Result<(), Error> {
        Ok(refuse_hidden_pooler(&self.pool).await?)
    }

    /// True when Postgres answers.
    pub async fn ping(&self) -> bool {
        sqlx::query("select 1").execute(&self.pool).await.is_ok()
    }
}
