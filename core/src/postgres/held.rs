//! A connection that goes back to its pool within a bounded time.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use futures_util::FutureExt as _;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// The time in which a connection must answer to go back to its pool.
const RETURN_WITHIN: Duration = Duration::from_secs(5);

pub(super) const HAS_CONNECTION: &str = "a connection is held until it is taken out";

/// A connection of a pool.
///
/// The driver takes it back when its last statement has ended. The statement of a call that was
/// given up may run on, and a server that vanished is noticed only after a quarter of an hour;
/// until then the place in the pool would be taken. So a connection that does not answer in time is
/// closed.
pub(super) struct HeldConnection {
    /// `None` only after it was taken out.
    connection: Option<PoolConnection<Postgres>>,
}

impl HeldConnection {
    /// Closes the connection.
    pub(super) fn close(self) {
        self.into_inner().close_on_drop();
    }

    /// Returns the connection of the pool.
    pub(super) fn into_inner(mut self) -> PoolConnection<Postgres> {
        self.connection.take().expect(HAS_CONNECTION)
    }
}

impl From<PoolConnection<Postgres>> for HeldConnection {
    fn from(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
        }
    }
}

impl Deref for HeldConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect(HAS_CONNECTION)
    }
}

impl DerefMut for HeldConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect(HAS_CONNECTION)
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        // Dropped before its end, this closes the connection and frees its place.
        let returned = connection.return_to_pool();
        if let Ok(runtime) = Handle::try_current() {
            let give_back = async move {
                if timeout(RETURN_WITHIN, returned).await.is_err() {
                    tracing::debug!("a connection to Postgres did not answer and is closed");
                }
            };
            runtime.spawn(give_back.boxed());
        }
    }
}
