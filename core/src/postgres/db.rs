//! The executor on which every store runs its statements.

use std::fmt;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use sqlx::postgres::{
    PgConnectOptions, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo,
};
use sqlx::{Describe, Either, Execute, Executor, PgPool, Postgres, SqlStr};

use super::Transaction;
use super::connections::Connections;
use super::options::connect_options;
use super::transaction::BEGIN;
use super::unnamed::cannot_prepare;

/// The settings under which the statements were measured, as `set` or as `set local`.
///
/// JIT compilation and re-planning cost more than the statements themselves. A plan made while a
/// table was empty must not scan it sequentially once it is full, nor collect all matches from an
/// index before a limit sees the first. A forgotten transaction must not pin old rows, and nothing
/// may wait for long behind a transaction that a producer leaves open.
///
/// Names are looked up in the system's schema alone. A function or an operator of another schema
/// whose types fit better is called in place of the system's, so whoever may create one in `public`
/// would run code with the rights of the schema's owner.
macro_rules! settings {
    ($set:literal) => {
        concat!(
            $set,
            " search_path = pg_catalog, pg_temp; ",
            $set,
            " jit = off; ",
            $set,
            " plan_cache_mode = force_generic_plan; ",
            $set,
            " enable_seqscan = off; ",
            $set,
            " enable_bitmapscan = off; ",
            $set,
            " idle_in_transaction_session_timeout = '60s'; ",
            $set,
            " lock_timeout = '3s'"
        )
    };
}

/// The statements sent once on a connection of our own.
///
/// The isolation may be another for the role or the database; under a stricter one, statements that
/// only wait for each other would fail. A statement whose call was given up would run on after its
/// connection is closed, beside all those of the next one; so the server looks for its client, where
/// its system can.
const SESSION: &str = concat!(
    settings!("set"),
    "; set default_transaction_isolation = 'read committed'",
    "; do $$ begin set client_connection_check_interval = '2s'; exception when others then null; end $$"
);

/// The statements that begin a transaction on a lent connection, because a setting for longer would
/// reach the next borrower.
const BEGIN_LENT: &str = concat!(
    "begin isolation level read committed; ",
    settings!("set local")
);

/// The name of our connections in `pg_stat_activity`, unless the URL gives another.
const APPLICATION: &str = "flyball";

/// The pause between two attempts at the first connection.
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The pooler between us and Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// No pooler, or one in session mode: a connection keeps its settings.
    #[default]
    None,
    /// A pooler that lends a server connection for one transaction: PgBouncer with `pool_mode =
    /// transaction`.
    Transaction,
}

/// The access to the database.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The database URL.
    pub url: String,
    /// The pooler that the URL leads through.
    pub pooler: Pooler,
    /// A URL that bypasses the pooler, for LISTEN, which needs a session.
    pub direct_url: Option<String>,
}

impl From<&str> for Access {
    fn from(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            ..Self::default()
        }
    }
}

impl From<&String> for Access {
    fn from(url: &String) -> Self {
        url.as_str().into()
    }
}

/// A pool of connections on which `&Db` runs single statements, with or without a pooler before the
/// server.
///
/// Without a pooler, a statement runs on a connection of the pool, which is closed if it does not
/// answer soon after the end of the call. Behind a pooler in transaction mode, a prepared
/// statement, a setting or a lock of the session would stay on a connection that the next
/// transaction of another client receives. Each statement is therefore parsed without a name,
/// inside a transaction of its own that commits before the first row is returned. A call that is
/// dropped half-way closes its connection, and so does a [`Transaction`] that is dropped before its
/// end, so that no open transaction ever returns to the pool.
#[derive(Clone)]
pub struct Db {
    connections: Connections,
    /// The statement that begins a transaction on a lent connection; `None` if connections are
    /// ours.
    lent: Option<&'static str>,
}

impl Db {
    /// Opens at most `connections` connections, waiting up to `timeout` for the server.
    pub async fn connect(
        access: &Access,
        connections: u32,
        timeout: Duration,
    ) -> Result<Self, sqlx::Error> {
        let db = Self::lazy(
            connect_options(&access.url)?,
            access.pooler,
            connections,
            timeout,
        );
        // The first connection is made now, so that a wrong URL is reported now. The pool waits for
        // a server that refuses, but not for one without a socket, nor for one that goes down
        // during the greeting.
        let until = Instant::now() + timeout;
        loop {
            match db.acquire().await {
                Ok(_) => return Ok(db),
                Err(sqlx::Error::Io(_) | sqlx::Error::Protocol(_))
                    if Instant::now() + CONNECT_RETRY_DELAY < until =>
                {
                    tokio::time::sleep(CONNECT_RETRY_DELAY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates the pool without connecting yet.
    pub fn lazy(
        options: PgConnectOptions,
        pooler: Pooler,
        connections: u32,
        timeout: Duration,
    ) -> Self {
        // PgBouncer refuses parameters that it does not know. Since Postgres 12 this one repeats
        // the default anyway.
        let mut options = options.extra_float_digits(None);
        if options.get_application_name().is_none() {
            options = options.application_name(APPLICATION);
        }
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(timeout);
        match pooler {
            Pooler::None => {
                let pool = pool.after_connect(|connection, _| {
                    Box::pin(async move { connection.execute(SESSION).await.map(|_| ()) })
                });
                Self {
                    connections: Connections::lazy(pool, options),
                    lent: None,
                }
            }
            Pooler::Transaction => Self::lent(pool, options, BEGIN_LENT),
        }
    }

    /// Creates a pool of lent connections with the caller's options; each transaction begins with
    /// `begin`.
    pub fn lent(pool: PgPoolOptions, options: PgConnectOptions, begin: &'static str) -> Self {
        let options = options.extra_float_digits(None).statement_cache_capacity(0);
        Self {
            connections: Connections::lazy(pool, options),
            lent: Some(begin),
        }
    }

    /// Returns another pool to the same database, for work that must not queue behind other work.
    pub fn apart(&self, connections: u32, timeout: Duration) -> Self {
        Self {
            connections: self.connections.apart(connections, timeout),
            lent: self.lent,
        }
    }

    /// Returns the pooler between us and the server.
    pub fn pooler(&self) -> Pooler {
        if self.lent.is_some() {
            Pooler::Transaction
        } else {
            Pooler::None
        }
    }

    /// Returns the pool. Behind a pooler only single statements of the simple protocol
    /// (`sqlx::raw_sql`, COPY) may run on it.
    pub fn pool(&self) -> &PgPool {
        self.connections.pool()
    }

    /// Returns a connection, with the restriction of [`Db::pool`].
    pub async fn acquire(&self) -> Result<sqlx::pool::PoolConnection<Postgres>, sqlx::Error> {
        Ok(self.connections.acquire().await?.into_inner())
    }

    /// Begins a transaction of several statements. Statements that run on the [`Transaction`]
    /// itself are prepared once for each connection of our own. A statement that runs on its
    /// `PgConnection` must be `.persistent(false)`, because the statement's name would outlive the
    /// transaction on a lent connection.
    pub async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        self.begin_with(self.lent.unwrap_or(BEGIN)).await
    }

    /// Begins a transaction like [`Db::begin`] that waits for no lock longer than `timeout`.
    pub async fn begin_with_timeout(&self, timeout: Duration) -> Result<Transaction, sqlx::Error> {
        let begin = self.lent.unwrap_or("begin isolation level read committed");
        let timeout_ms = timeout.as_millis();
        let begin = format!("{begin}; set local lock_timeout = '{timeout_ms}ms'");
        self.begin_with(&begin).await
    }

    /// Begins a transaction with the caller's own `begin` statement.
    pub async fn begin_with(&self, begin: &str) -> Result<Transaction, sqlx::Error> {
        Transaction::begin(&self.connections, begin, self.lent.is_some()).await
    }

    /// Waits for connections in use, then closes all.
    pub async fn close(&self) {
        self.connections.close().await;
    }
}

impl From<PgPool> for Db {
    fn from(pool: PgPool) -> Self {
        Self {
            connections: pool.into(),
            lent: None,
        }
    }
}

impl From<&PgPool> for Db {
    fn from(pool: &PgPool) -> Self {
        pool.clone().into()
    }
}

impl From<&Db> for Db {
    fn from(db: &Db) -> Self {
        db.clone()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db")
            .field("pooler", &self.pooler())
            .finish_non_exhaustive()
    }
}

impl<'p> Executor<'p> for &'_ Db {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let (connections, lent) = (self.connections.clone(), self.lent);
        // Nothing is returned before the commit, so that every returned row is durable.
        let done = async move {
            let Some(begin) = lent else {
                let mut connection = connections.acquire().await?;
                let items: Vec<_> = connection.fetch_many(query).try_collect().await?;
                connection.give_back();
                return Ok(items);
            };
            let mut transaction = Transaction::begin(&connections, begin, true).await?;
            let items: Result<Vec<_>, _> = transaction.fetch_many(query).try_collect().await;
            transaction.end(items).await
        };
        stream::once(done)
            .map_ok(|items| stream::iter(items).map(Ok))
            .try_flatten()
            .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let (connections, lent) = (self.connections.clone(), self.lent);
        Box::pin(async move {
            let Some(begin) = lent else {
                let mut connection = connections.acquire().await?;
                let row = connection.fetch_optional(query).await?;
                connection.give_back();
                return Ok(row);
            };
            let mut transaction = Transaction::begin(&connections, begin, true).await?;
            let row = transaction.fetch_optional(query).await;
            transaction.end(row).await
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        match self.lent {
            None => self.connections.pool().prepare_with(sql, parameters),
            Some(_) => Box::pin(async { Err(cannot_prepare()) }),
        }
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        match self.lent {
            None => self.connections.pool().describe(sql),
            Some(_) => Box::pin(async { Err(cannot_prepare()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_connection_gets_the_settings_of_a_session_for_one_transaction() {
        let (begin, lent) = BEGIN_LENT.split_once("; ").unwrap();
        let (session, others) = SESSION.split_once("; set default").unwrap();

        assert_eq!(lent.replace("set local", "set"), session);
        assert_eq!(begin, "begin isolation level read committed");
        assert!(others.starts_with("_transaction_isolation = 'read committed'; "));
        assert!(session.contains("set lock_timeout = '3s'"), "{session}");
        assert!(
            session.starts_with("set search_path = pg_catalog, pg_temp; "),
            "{session}"
        );
    }
}
