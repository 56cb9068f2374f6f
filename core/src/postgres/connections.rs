//! A pool whose connection that was used last is used next.

use std::fmt;
use std::mem::take;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres};
use tokio::time::timeout;

use super::held::{HAS_CONNECTION, HeldConnection};

/// The most idle connections that are kept outside of the driver's pool.
const KEPT: usize = 4;

/// The time for which a connection that answered counts as alive.
const FRESH: Duration = Duration::from_secs(1);

/// The time in which a connection must answer that was idle for longer than [`FRESH`].
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// The time after which a connection goes back to the driver's pool, which closes old ones.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// The connections to one database.
///
/// The driver's pool waits for an answer of a connection before each statement and after it, and takes
/// its connections in turn. For a statement of a millisecond that is two more trips, to a process of
/// the server whose caches are cold. So a few connections that have just ended a statement are kept
/// here, and the last one is the next to be used. They count against the bound of the driver's pool,
/// and none is kept while somebody waits for a connection.
#[derive(Clone)]
pub(super) struct Connections {
    pool: PgPool,
    /// The most connections that are kept here.
    most: usize,
    kept: Arc<Mutex<Kept>>,
    failure: LastFailure,
}

/// The time at which a connection last failed.
#[derive(Clone, Default)]
struct LastFailure(Arc<Mutex<Option<Instant>>>);

impl LastFailure {
    fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Returns true if a connection that answered this time ago counts as alive. None does that
    /// answered before another one failed: a restart of the server closes all at once.
    fn leaves_alive(&self, answered: Duration) -> bool {
        let has_failed_since = || self.0.lock().is_some_and(|at| at.elapsed() <= answered);
        answered <= FRESH && !has_failed_since()
    }
}

#[derive(Default)]
struct Kept {
    /// The idle connections, the last one used last.
    idle: Vec<IdleConnection>,
    /// The callers that wait for the driver's pool.
    waiting: usize,
    is_closed: bool,
}

struct IdleConnection {
    connection: HeldConnection,
    taken_at: Instant,
    answered_at: Instant,
}

/// A caller that waits for the driver's pool until this is dropped.
struct Waiting<'a>(&'a Mutex<Kept>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Connections {
    /// Makes connections to `to`, the first one when it is needed.
    pub(super) fn lazy(options: PgPoolOptions, to: PgConnectOptions) -> Self {
        let failure = LastFailure::default();
        let noted = failure.clone();
        let options =
            options
                .test_before_acquire(false)
                .before_acquire(move |connection, last_use| {
                    let is_alive = noted.leaves_alive(last_use.idle_for);
                    Box::pin(async move { Ok(is_alive || answers(connection).await) })
                });
        Self {
            most: KEPT,
            failure,
            ..options.connect_lazy_with(to).into()
        }
    }

    /// Makes at most `connections` others to the same database, for callers that wait for one for up
    /// to `timeout`.
    pub(super) fn apart(&self, connections: u32, timeout: Duration) -> Self {
        let options = self.pool.options().clone();
        let options = options
            .min_connections(0)
            .max_connections(connections)
            .acquire_timeout(timeout);
        let to = (*self.pool.connect_options()).clone();
        Self {
            most: self.most,
            failure: self.failure.clone(),
            ..options.connect_lazy_with(to).into()
        }
    }

    /// Returns the driver's pool, with all idle connections in it.
    pub(super) fn pool(&self) -> &PgPool {
        drop(take(&mut self.kept.lock().idle));
        &self.pool
    }

    /// Waits for a connection.
    pub(super) async fn acquire(&self) -> Result<LentConnection, sqlx::Error> {
        loop {
            let mut idle = match self.take() {
                Ok(idle) => idle,
                Err(_waiting) => {
                    let connection = self.pool.acquire().await?;
                    return Ok(LentConnection {
                        connection: Some(connection.into()),
                        taken_at: Instant::now(),
                        from: self.clone(),
                    });
                }
            };
            let is_alive = self.failure.leaves_alive(idle.answered_at.elapsed());
            if !is_alive && !answers(&mut idle.connection).await {
                idle.connection.close();
                continue;
            }
            return Ok(LentConnection {
                connection: Some(idle.connection),
                taken_at: idle.taken_at,
                from: self.clone(),
            });
        }
    }

    fn take(&self) -> Result<IdleConnection, Waiting<'_>> {
        let mut kept = self.kept.lock();
        match kept.idle.pop() {
            Some(idle) => Ok(idle),
            None => {
                kept.waiting += 1;
                Err(Waiting(&self.kept))
            }
        }
    }

    /// Keeps a connection for the next statement, or gives it back to the driver's pool.
    fn give_back(&self, connection: HeldConnection, taken_at: Instant) {
        let now = Instant::now();
        if now.duration_since(taken_at) < KEPT_FOR {
            let mut kept = self.kept.lock();
            if kept.waiting == 0 && kept.idle.len() < self.most && !kept.is_closed {
                kept.idle.push(IdleConnection {
                    connection,
                    taken_at,
                    answered_at: now,
                });
            }
        }
    }

    /// Waits for connections in use, then closes all.
    pub(super) async fn close(&self) {
        let idle = {
            let mut kept = self.kept.lock();
            kept.is_closed = true;
            take(&mut kept.idle)
        };
        drop(idle);
        self.pool.close().await;
    }
}

/// Returns true if the server answers on this connection in time.
async fn answers(connection: &mut PgConnection) -> bool {
    let answer = timeout(ANSWER_WITHIN, connection.ping()).await;
    matches!(answer, Ok(Ok(())))
}

/// A pool of the caller's, which keeps all connections itself, because others may wait for them.
impl From<PgPool> for Connections {
    fn from(pool: PgPool) -> Self {
        Self {
            pool,
            most: 0,
            kept: Arc::default(),
            failure: LastFailure::default(),
        }
    }
}

/// A connection in use. Dropped in the middle of a statement, it goes back to the driver's pool
/// once the statement has ended.
pub(super) struct LentConnection {
    /// `None` only after it was taken out.
    connection: Option<HeldConnection>,
    /// The time at which the driver's pool lent it.
    taken_at: Instant,
    from: Connections,
}

impl LentConnection {
    /// Gives the connection back after the end of a statement, outside of any transaction.
    pub(super) fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            self.from.give_back(connection, self.taken_at);
        }
    }

    /// Closes the connection.
    pub(super) fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            self.from.failure.note();
            connection.close();
        }
    }

    /// Returns the connection of the driver's pool.
    pub(super) fn into_inner(mut self) -> PoolConnection<Postgres> {
        self.connection.take().expect(HAS_CONNECTION).into_inner()
    }
}

impl Drop for LentConnection {
    fn drop(&mut self) {
        if self.connection.is_some() {
            self.from.failure.note();
        }
    }
}

impl fmt::Debug for LentConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentConnection").finish_non_exhaustive()
    }
}

impl Deref for LentConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(HAS_CONNECTION)
    }
}

impl DerefMut for LentConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(HAS_CONNECTION)
    }
}
