//! Databases that a reindex reads or writes, and names in them.
//!
//! Each statement runs in a transaction of its own, with its own timeout and, if one is set, its
//! own role. A statement that reads leaves nothing behind: its transaction is read-only from the
//! start and rolled back, which reverts every setting that it changed, and its locks and all other
//! session state are dropped before the next one. The server ends a statement that has lost its
//! client: the transaction's connection is closed, and the server checks every second whether it
//! still has one.

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::time::timeout;

use super::catalogue::DatabaseRights;
use crate::postgres::{Db, Pooler, Transaction, connect_options};

/// The connection options of a database; its users open the connections.
#[derive(Clone, Debug)]
pub struct ReindexDatabase {
    options: PgConnectOptions,
    pooler: Pooler,
}

impl ReindexDatabase {
    /// Returns the database of a pool, such as the queue's.
    pub fn of(db: impl Into<Db>) -> Self {
        let db = db.into();
        Self {
            options: (*db.pool().connect_options()).clone(),
            pooler: db.pooler(),
        }
    }

    /// Returns the database at a URL, which no error shows.
    pub(super) fn at(url: &str) -> Result<Self, &'static str> {
        let options = connect_options(url.trim()).map_err(|_| "does not hold a Postgres URL")?;
        Ok(Self {
            options,
            pooler: Pooler::None,
        })
    }

    /// Opens a session for transactions that may write.
    pub(super) fn writer(
        self,
        rights: &DatabaseRights,
        connections: u32,
        acquire_timeout: Duration,
    ) -> TransactionPool {
        TransactionPool::new(self, "begin", rights, connections, acquire_timeout)
    }

    /// Opens a session for transactions that may only read.
    pub(super) fn reader(
        self,
        rights: &DatabaseRights,
        connections: u32,
        acquire_timeout: Duration,
    ) -> TransactionPool {
        TransactionPool::new(
            self,
            "begin read only",
            rights,
            connections,
            acquire_timeout,
        )
    }
}

/// The name of a reindex's connections in `pg_stat_activity`.
const APPLICATION: &str = "flyball reindex";

/// Makes the server check for its client while a statement runs, if it can: Postgres 14 or newer,
/// on Unix.
const LOOK_FOR_THE_CLIENT: &str = "
    select pg_catalog.set_config('client_connection_check_interval', '1s', true)
    where pg_catalog.current_setting('server_version_num')::integer >= 140000
        and pg_catalog.version() !~* '(visual|msvc|mingw)'";

/// Ends a transaction that read. A rollback reverts settings, but not locks of the session.
const LEAVE_NOTHING: &str = "select pg_catalog.pg_advisory_unlock_all(); rollback";
/// Drops all other session state, on a connection that is not shared by a pooler.
const FORGET: &str = "discard all";

/// The time for which a transaction waits for its answers beside the timeouts of its statements.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Most statements of one transaction that may take their whole timeout.
const LONG_STATEMENTS: u32 = 4;

/// A source of transactions on one database, all begun in the same way.
pub(super) struct TransactionPool {
    db: Db,
    begin: String,
    is_ours: bool,
    longest: Duration,
}

impl TransactionPool {
    fn new(
        database: ReindexDatabase,
        begin: &str,
        rights: &DatabaseRights,
        connections: u32,
        acquire_timeout: Duration,
    ) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(acquire_timeout);
        let timeout_ms = rights.statement_timeout.as_millis();
        // The role comes last, because the settings before it need none of its rights.
        let role = rights.role.as_ref().map_or_else(String::new, |role| {
            format!("; set local role {}", quoted(role))
        });
        let begin = format!(
            "{begin}; set local jit = off; set local idle_in_transaction_session_timeout = '60s'; {LOOK_FOR_THE_CLIENT}; \
             set local statement_timeout = {timeout_ms}{role}"
        );
        let is_ours = database.pooler == Pooler::None;
        // Each transaction sets its own options, so that a pooler in front of the server makes no
        // difference.
        Self {
            db: Db::lent(
                pool,
                database.options.application_name(APPLICATION),
                "begin read only",
            ),
            begin,
            is_ours,
            longest: acquire_timeout + rights.statement_timeout * LONG_STATEMENTS + ANSWER_WITHIN,
        }
    }

    /// Waits for a whole transaction. The server ends its statements in time, but an answer that a
    /// network has lost never comes, and a job that waited for it would seem to run.
    pub(super) async fn bounded<T>(
        &self,
        transaction: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        within(self.longest, transaction).await
    }

    /// Begins a transaction. If dropped before its end, it closes its connection, which ends its
    /// statement on the server.
    pub(super) async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        self.db.begin_with(&self.begin).await
    }

    /// Ends a transaction that has read.
    pub(super) async fn leave(&self, transaction: Transaction) -> Result<(), sqlx::Error> {
        transaction
            .end_with(if self.is_ours {
                &[LEAVE_NOTHING, FORGET]
            } else {
                &[LEAVE_NOTHING]
            })
            .await
    }
}

async fn within<T>(
    longest: Duration,
    transaction: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let answer = timeout(longest, transaction).await;
    answer.unwrap_or_else(|_| Err(std::io::Error::from(ErrorKind::TimedOut).into()))
}

/// Returns `"schema"."table"`.
pub(super) fn qualified(parts: &[String]) -> String {
    parts
        .iter()
        .map(|p| quoted(p))
        .collect::<Vec<_>>()
        .join(".")
}

/// Returns a name as a quoted identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Code of a statement that was ended by its timeout.
pub(super) const TOO_LONG: &str = "57014";

/// Returns the code of an error; empty if it has none.
pub(super) fn code(error: &sqlx::Error) -> String {
    error
        .as_database_error()
        .and_then(|e| e.code())
        .unwrap_or_default()
        .into_owned()
}

/// Returns the class of an error's code, e.g. `42` for syntax, names and rights; empty if it has
/// none.
pub(super) fn class(error: &sqlx::Error) -> String {
    code(error).chars().take(2).collect()
}

/// Returns the text of an error; in that of the driver is the line of Postgres' own source, which
/// reads like one of the statement.
pub(super) fn message(error: &sqlx::Error) -> String {
    error.as_database_error().map_or_else(
        || error.to_string(),
        |from_server| from_server.message().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_never_comes_is_an_error_that_may_pass() {
        // Real time: the answer is waited for this long.
        let longest = Duration::from_millis(20);

        let lost = within::<()>(longest, std::future::pending()).await;

        let lost = lost.unwrap_err();
        assert!(matches!(lost, sqlx::Error::Io(_)), "{lost}");
        assert_eq!(class(&lost), "");
        let answered = within(longest, async { Ok(1) }).await;
        assert_eq!(answered.unwrap(), 1);
    }

    #[test]
    fn names_are_quoted_so_that_none_can_end_the_statement() {
        assert_eq!(
            qualified(&["public".into(), "a\"; drop table b; --".into()]),
            "\"public\".\"a\"\"; drop table b; --\""
        );
    }
}
