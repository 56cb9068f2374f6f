//! Databases that a reindex reads or writes, and names in them.
//!
//! Each statement runs in a transaction of its own, with its own limit of time and, where one is set, its own role. A statement that
//! reads leaves nothing behind: its transaction is read-only from its first word and rolled back, which takes back every setting that
//! it changed, and its locks and all else that a session keeps are dropped before the next one. A statement that nobody waits for any
//! more is ended by the server: the transaction's connection is closed, and the server looks every second whether it still has one.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::catalogue::Rights;
use crate::postgres::{Db, Pooler, Transaction};

/// How a database is reached; connections are opened by those who use it.
#[derive(Clone, Debug)]
pub struct Database {
    options: PgConnectOptions,
    pooler: Pooler,
}

impl Database {
    /// The database of a pool, such as the queue's.
    pub fn of(db: impl Into<Db>) -> Self {
        let db = db.into();
        Self { options: (*db.pool().connect_options()).clone(), pooler: db.pooler() }
    }

    /// The database at a URL, which is told in no error.
    pub(super) fn at(url: &str) -> Result<Self, &'static str> {
        let options = url.trim().parse().map_err(|_| "does not hold a Postgres URL")?;
        Ok(Self { options, pooler: Pooler::None })
    }

    /// Transactions that may write.
    pub(super) fn writer(self, rights: &Rights, connections: u32, patience: Duration) -> Session {
        Session::new(self, "begin", rights, connections, patience)
    }

    /// Transactions that may only read.
    pub(super) fn reader(self, rights: &Rights, connections: u32, patience: Duration) -> Session {
        Session::new(self, "begin read only", rights, connections, patience)
    }
}

/// What the connections of a reindex are called in `pg_stat_activity`.
const APPLICATION: &str = "flyball reindex";

/// Makes the server look whether its client is still there while a statement runs, where it can: Postgres 14 or newer, on Unix.
const LOOK_FOR_THE_CLIENT: &str = "
    select pg_catalog.set_config('client_connection_check_interval', '1s', true)
    where pg_catalog.current_setting('server_version_num')::integer >= 140000
        and pg_catalog.version() !~* '(visual|msvc|mingw)'";

/// Ends a transaction that read. A rollback takes back settings, but a lock of the session would outlive it.
const LEAVE_NOTHING: &str = "select pg_catalog.pg_advisory_unlock_all(); rollback";
/// Drops whatever else a session keeps, on a connection that is ours alone.
const FORGET: &str = "discard all";

/// Transactions on one database, all begun alike.
pub(super) struct Session {
    db: Db,
    begin: String,
    is_ours: bool,
}

impl Session {
    fn new(database: Database, begin: &str, rights: &Rights, connections: u32, patience: Duration) -> Self {
        let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(patience);
        let timeout_ms = rights.statement_timeout.as_millis();
        // The role comes last: what is set before it needs none of its rights.
        let role = rights.role.as_ref().map_or_else(String::new, |role| format!("; set local role {}", quoted(role)));
        let begin = format!(
            "{begin}; set local jit = off; set local idle_in_transaction_session_timeout = '60s'; {LOOK_FOR_THE_CLIENT}; \
             set local statement_timeout = {timeout_ms}{role}"
        );
        let is_ours = database.pooler == Pooler::None;
        // Each transaction says for itself how it begins, so that a pooler between us and the server makes no difference.
        Self { db: Db::lent(pool, database.options.application_name(APPLICATION), "begin read only"), begin, is_ours }
    }

    /// Begins a transaction. Dropped before it has ended it closes its connection, which ends its statement on the server.
    pub(super) async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        self.db.begin_with(&self.begin).await
    }

    /// Ends a transaction that has read.
    pub(super) async fn leave(&self, transaction: Transaction) -> Result<(), sqlx::Error> {
        transaction.end_with(if self.is_ours { &[LEAVE_NOTHING, FORGET] } else { &[LEAVE_NOTHING] }).await
    }
}

/// `"schema"."table"`.
pub(super) fn qualified(parts: &[String]) -> String {
    parts.iter().map(|p| quoted(p)).collect::<Vec<_>>().join(".")
}

/// A name as a quoted identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The class of an error's code, e.g. `42` for syntax, names and rights; empty where there is none.
pub(super) fn class(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default();
    code.chars().take(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_so_that_none_can_end_the_statement() {
        assert_eq!(qualified(&["public".into(), "a\"; drop table b; --".into()]), "\"public\".\"a\"\"; drop table b; --\"");
    }
}
