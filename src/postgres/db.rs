//! The executor that every store runs its statements on.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Database, Describe, Either, Execute, Executor, PgPool, Postgres, Row, SqlStr};

use super::Transaction;
use super::transaction::BEGIN;

/// The settings that the statements were measured under, in both forms.
///
/// JIT and re-planning cost more than these statements themselves do; a plan that was made while a table was empty must not
/// scan it once it is full, nor gather all that an index has of it before a limit sees the first; a forgotten transaction must
/// not pin old rows.
macro_rules! settings {
    ($set:literal) => {
        concat!(
            $set,
            " jit = off; ",
            $set,
            " plan_cache_mode = force_generic_plan; ",
            $set,
            " enable_seqscan = off; ",
            $set,
            " enable_bitmapscan = off; ",
            $set,
            " idle_in_transaction_session_timeout = '60s'"
        )
    };
}

/// Said once on a connection that is ours alone.
const SESSION: &str = settings!("set");

/// Said with every transaction where the connection to the server is lent: what one sets for longer, the next one finds.
const BEGIN_LENT: &str = concat!("begin; ", settings!("set local"));

/// What our connections are called in `pg_stat_activity`, unless the URL says something else.
const APPLICATION: &str = "flyball";

/// Pause before another try at the first connection.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// What stands between us and Postgres.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing, or a pooler in session mode: a connection keeps what it is told.
    #[default]
    None,
    /// A pooler that lends a connection to the server for one transaction: PgBouncer with `pool_mode = transaction`.
    Transaction,
}

/// How the database is reached.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Its URL.
    pub url: String,
    /// What that URL leads through.
    pub pooler: Pooler,
    /// A URL that leads past the pooler, for what needs a session: LISTEN.
    pub direct_url: Option<String>,
}

impl From<&str> for Access {
    fn from(url: &str) -> Self {
        Self { url: url.to_owned(), ..Self::default() }
    }
}

impl From<&String> for Access {
    fn from(url: &String) -> Self {
        url.as_str().into()
    }
}

/// A pool of connections on which `&Db` runs single statements, whatever stands between us and the server.
///
/// Without a pooler it is the pool itself. Behind one in transaction mode, where a prepared statement, a setting or a lock of
/// the session would be left on a connection that the next transaction of somebody else is given, each statement is parsed
/// without a name, inside a transaction of its own which is committed before the first row is handed out. A call that is
/// dropped half-way closes its connection, so that no open transaction ever returns to the pool.
#[derive(Clone)]
pub struct Db {
    pool: PgPool,
    /// How a transaction begins where connections are lent; `None` where they are ours.
    lent: Option<&'static str>,
}

impl Db {
    /// Connects, waiting up to `patience` for the server; at most `connections` at a time.
    pub async fn connect(access: &Access, connections: u32, patience: Duration) -> Result<Self, sqlx::Error> {
        let db = Self::lazy(PgConnectOptions::from_str(&access.url)?, access.pooler, connections, patience);
        // The first connection is made now, so that a wrong URL is told now. The pool waits for a server that refuses, but not
        // for one that is so far down that it has no socket, or that goes down in the middle of the greeting.
        let until = Instant::now() + patience;
        loop {
            match db.acquire().await {
                Ok(_) => return Ok(db),
                Err(sqlx::Error::Io(_) | sqlx::Error::Protocol(_)) if Instant::now() + AGAIN_AFTER < until => {
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The same without connecting yet.
    pub fn lazy(options: PgConnectOptions, pooler: Pooler, connections: u32, patience: Duration) -> Self {
        // PgBouncer refuses parameters that it does not know. Since Postgres 12 this one says what is the default anyway.
        let mut options = options.extra_float_digits(None);
        if options.get_application_name().is_none() {
            options = options.application_name(APPLICATION);
        }
        let pool = PgPoolOptions::new().max_connections(connections).acquire_timeout(patience);
        // A `begin` that was sent by hand and cancelled half-way leaves its connection inside a transaction; such a one is
        // thrown away.
        let pool = pool.after_release(|connection, _| {
            Box::pin(async move {
                // Only the simple protocol keeps the two times equal outside a transaction.
                let look = sqlx::raw_sql("select now() < statement_timestamp()").fetch_one(&mut *connection);
                // A connection that hangs without a word must not keep its place in the pool.
                let row = tokio::time::timeout(Duration::from_secs(2), look).await.map_err(|_| sqlx::Error::WorkerCrashed)??;
                Ok(!row.try_get::<bool, _>(0)?)
            })
        });
        match pooler {
            Pooler::None => {
                let pool =
                    pool.after_connect(|connection, _| Box::pin(async move { connection.execute(SESSION).await.map(|_| ()) }));
                Self { pool: pool.connect_lazy_with(options), lent: None }
            }
            Pooler::Transaction => Self::lent(pool, options, BEGIN_LENT),
        }
    }

    /// Connections that are lent, on a pool with options of the caller's own; each transaction begins with `begin`.
    pub fn lent(pool: PgPoolOptions, options: PgConnectOptions, begin: &'static str) -> Self {
        let options = options.extra_float_digits(None).statement_cache_capacity(0);
        Self { pool: pool.connect_lazy_with(options), lent: Some(begin) }
    }

    /// Another pool to the same database, for those who must not wait behind others.
    pub fn apart(&self, connections: u32, patience: Duration) -> Self {
        let options = self.pool.options().clone().min_connections(0).max_connections(connections).acquire_timeout(patience);
        Self { pool: options.connect_lazy_with((*self.pool.connect_options()).clone()), lent: self.lent }
    }

    /// What stands between us and the server.
    pub fn pooler(&self) -> Pooler {
        if self.lent.is_some() { Pooler::Transaction } else { Pooler::None }
    }

    /// The pool. Behind a pooler only single statements of the simple protocol (`sqlx::raw_sql`, COPY) may be run on it.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A connection. What holds for [`Db::pool`] holds for it.
    pub async fn acquire(&self) -> Result<sqlx::pool::PoolConnection<Postgres>, sqlx::Error> {
        self.pool.acquire().await
    }

    /// Begins a transaction of several statements. Each must be `.persistent(false)`, or its name outlives the transaction.
    pub async fn begin(&self) -> Result<Transaction, sqlx::Error> {
        Transaction::begin(&self.pool, self.lent.unwrap_or(BEGIN)).await
    }

    /// The same, begun by words of the caller's own.
    pub async fn begin_with(&self, begin: &str) -> Result<Transaction, sqlx::Error> {
        Transaction::begin(&self.pool, begin).await
    }

    /// Waits for connections that are in use, and closes all.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl From<PgPool> for Db {
    fn from(pool: PgPool) -> Self {
        Self { pool, lent: None }
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
        f.debug_struct("Db").field("pooler", &self.pooler()).finish_non_exhaustive()
    }
}

impl<'p> Executor<'p> for &'_ Db {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Some(begin) = self.lent else { return self.pool.fetch_many(query) };
        let pool = self.pool.clone();
        // Nothing is handed out before the commit, so that what was handed out is true.
        let done = async move {
            let mut transaction = Transaction::begin(&pool, begin).await?;
            let items: Result<Vec<_>, _> = transaction.fetch_many(Unnamed(query)).try_collect().await;
            transaction.end(items).await
        };
        stream::once(done).map_ok(|items| stream::iter(items).map(Ok)).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Some(begin) = self.lent else { return self.pool.fetch_optional(query) };
        let pool = self.pool.clone();
        Box::pin(async move {
            let mut transaction = Transaction::begin(&pool, begin).await?;
            let row = transaction.fetch_optional(Unnamed(query)).await;
            transaction.end(row).await
        })
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        match self.lent {
            None => self.pool.prepare_with(sql, parameters),
            Some(_) => Box::pin(async { Err(cannot_prepare()) }),
        }
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        match self.lent {
            None => self.pool.describe(sql),
            Some(_) => Box::pin(async { Err(cannot_prepare()) }),
        }
    }
}

fn cannot_prepare() -> sqlx::Error {
    sqlx::Error::Configuration("a statement cannot be prepared for later behind a pooler in transaction mode".into())
}

/// A statement that the driver parses without a name, so that nothing of it is left on the server's connection.
///
/// The driver looks up types that it does not know by a query of its own, which removes the statement without a name: neither
/// parameters nor columns may be of a type that some schema defines. Cast them to text.
struct Unnamed<E>(E);

impl<'q, E> Execute<'q, Postgres> for Unnamed<E>
where
    E: Execute<'q, Postgres>,
{
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        None
    }

    fn take_arguments(&mut self) -> Result<Option<<Postgres as Database>::Arguments>, sqlx::error::BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lent_connection_gets_the_settings_of_a_session_for_one_transaction() {
        assert_eq!(BEGIN_LENT.replace("set local", "set"), format!("begin; {SESSION}"));
    }
}
