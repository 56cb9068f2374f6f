//! Connections of the queue.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::PgPool;

use super::depth_cache::DepthCache;
use crate::jobs::activity::Activity;
use crate::jobs::{ClaimedDays, Error, SecretKeys};
use crate::postgres::{
    Access, Db, Pooler, Replica, TenantPlace, TenantQueues, connect_options, refuse_hidden_pooler,
};

/// The number of heartbeat connections; two, because one that hangs must not block the next
/// heartbeat.
const LIFELINES: u32 = 2;

/// The time that a heartbeat waits for its connection.
const LIFELINE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most connections of one listener: the one that it uses, and one that is being closed.
const LISTENER_CONNECTIONS: u32 = 2;

/// The time that LISTEN waits for its connection.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);

/// The queue: a pool of connections and the statements that run on it.
#[derive(Clone)]
pub struct Queue {
    /// The main pool of connections. If Flyball has opened it, statements name the schema of what
    /// is not the system's: `public.customer`.
    pub pool: Db,
    /// The connections of the heartbeat alone, so that a crowd of requests does not get the worker
    /// declared dead.
    pub(super) lifeline: Db,
    /// The pool of which each listener has a copy: LISTEN needs a session and keeps it, so that it takes
    /// none of the main pool. `None` behind a pooler without a direct URL.
    pub(super) sessions: Option<PgPool>,
    pub(super) depth: Arc<DepthCache>,
    /// The days of which claims read jobs at once.
    pub(super) claimed_days: Arc<Mutex<ClaimedDays>>,
    /// The times at which something happened, as far as this process knows.
    pub(super) activity: Arc<Activity>,
    /// The keys of secret arguments.
    pub(super) keys: Arc<SecretKeys>,
    /// The replica for reads that may be some seconds old.
    pub(super) replica: Option<Replica>,
    /// The requests of tenants that enqueue. A producer's open transaction may hold what those of its
    /// tenant need, such as a unique key, and each of them that waits for it keeps a connection.
    pub(super) tenant_queues: TenantQueues,
}

impl Queue {
    /// Returns a queue on an existing pool.
    pub fn new(pool: impl Into<Db>) -> Self {
        let pool = pool.into();
        let sessions = (pool.pooler() == Pooler::None).then(|| {
            pool.apart(LISTENER_CONNECTIONS, LISTEN_TIMEOUT)
                .pool()
                .clone()
        });
        let connections = pool.pool().options().get_max_connections();
        Self {
            lifeline: pool.apart(LIFELINES, LIFELINE_TIMEOUT),
            pool,
            sessions,
            depth: Arc::default(),
            claimed_days: Arc::default(),
            activity: Arc::default(),
            keys: Arc::default(),
            replica: None,
            tenant_queues: TenantQueues::new(places_of_a_tenant(connections)),
        }
    }

    /// Sets the keys with which this queue encrypts secret arguments before it stores them.
    pub fn with_secret_keys(self, keys: SecretKeys) -> Self {
        Self {
            keys: Arc::new(keys),
            ..self
        }
    }

    /// Returns the keys of secret arguments.
    pub fn secret_keys(&self) -> &Arc<SecretKeys> {
        &self.keys
    }

    /// Returns the record of when something last happened, shared by all clones of this queue.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Connects with at most `connections` at a time, waiting up to `timeout` for the server.
    pub async fn connect(
        access: impl Into<Access>,
        connections: u32,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let access = access.into();
        let direct = access
            .direct_url
            .as_deref()
            .map(connect_options)
            .transpose()?;
        let mut queue = Self::new(Db::connect(&access, connections, timeout).await?);
        if let Some(direct) = direct {
            let sessions = Db::lazy(direct, Pooler::None, LISTENER_CONNECTIONS, timeout);
            queue.sessions = Some(sessions.pool().clone());
        }
        Ok(queue)
    }

    /// Returns another pool to the same database, for work that must not wait behind the main pool.
    pub fn apart(&self, connections: u32, timeout: Duration) -> Db {
        self.pool.apart(connections, timeout)
    }

    /// Fails, naming the setting, if there is a transaction pooler that the settings do not
    /// mention.
    pub async fn refuse_hidden_pooler(&self) -> Result<(), Error> {
        Ok(refuse_hidden_pooler(&self.pool).await?)
    }

    /// Waits until a tenant may enqueue, on half of the connections at most, until the place is
    /// dropped; `None` for callers without a tenant, who need none.
    pub(crate) async fn tenant_place(&self, tenant: &str) -> Option<TenantPlace> {
        match tenant.is_empty() {
            true => None,
            false => Some(self.tenant_queues.enter(tenant).await),
        }
    }

    /// Returns true if Postgres answers.
    pub async fn ping(&self) -> bool {
        sqlx::query("select 1").execute(&self.pool).await.is_ok()
    }
}

/// Returns the requests of one tenant that enqueue at the same time on so many connections.
fn places_of_a_tenant(connections: u32) -> usize {
    (connections as usize / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_half_of_the_connections_and_one_at_least() {
        assert_eq!([5, 2, 1].map(places_of_a_tenant), [2, 1, 1]);
    }
}
