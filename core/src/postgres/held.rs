//! A connection that goes back to its pool within a bounded time.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The time in which a connection must answer to go back to its pool.
const RETURN_WITHIN: Duration = Duration::from_secs(5);

/// A connection of a pool.
///
/// The driver takes it back when its last statement has ended. That of a call that was given up may
/// run on, and a server that vanished answers nothing for a quarter of an hour; until then the
/// place in the pool would be taken. So a connection that does not answer in time is closed.
pub(super) struct HeldConnection(PoolConnection<Postgres>);

impl HeldConnection {
    /// Waits for a connection of the pool.
    pub(super) async fn of(pool: &PgPool) -> Result<Self, sqlx::Error> {
        pool.acquire().await.map(Self)
    }
}

impl From<PoolConnection<Postgres>> for HeldConnection {
    fn from(connection: PoolConnection<Postgres>) -> Self {
        Self(connection)
    }
}

impl Deref for HeldConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for HeldConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        // Dropped before its end, this closes the connection and frees its place.
        let returned = self.0.return_to_pool();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if timeout(RETURN_WITHIN, returned).await.is_err() {
                    tracing::debug!("a connection to Postgres did not answer and is closed");
                }
            });
        }
    }
}
