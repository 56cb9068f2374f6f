//! A transaction that cannot be left open by accident.

use std::ops::{Deref, DerefMut};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{AssertSqlSafe, Describe, Either, Execute, Executor, PgConnection, Postgres, SqlStr};

use super::connections::{Connections, LentConnection};
use super::unnamed::{Unnamed, cannot_prepare};

/// The statement that begins a transaction on a connection of our own.
pub(super) const BEGIN: &str = "begin";

/// An open transaction.
///
/// Dropped without [`Transaction::commit`] or [`Transaction::rollback`], even in the middle of a
/// statement or of one of those two, it closes its connection, which ends the transaction on the
/// server.
///
/// A statement that runs on it, and not on its connection, is prepared once for each connection of
/// our own, so that Postgres parses and plans it once. On a connection that is lent for this
/// transaction alone it leaves no name behind.
#[derive(Debug)]
pub struct Transaction {
    /// `None` only after the end of the transaction.
    connection: Option<LentConnection>,
    /// True if the connection is another client's after the transaction.
    is_lent: bool,
}

impl Transaction {
    pub(super) async fn begin(
        connections: &Connections,
        begin: &str,
        is_lent: bool,
    ) -> Result<Self, sqlx::Error> {
        let mut transaction = Self {
            connection: Some(connections.acquire().await?),
            is_lent,
        };
        // From here on a drop closes the connection, because it is unknown whether the transaction
        // has begun until the server answers.
        transaction.execute_raw(begin).await?;
        Ok(transaction)
    }

    /// Commits the transaction. After an error it is unknown whether the commit took place.
    pub async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.execute_raw("commit").await?;
        self.give_back();
        Ok(())
    }

    /// Rolls the transaction back.
    pub async fn rollback(mut self) -> Result<(), sqlx::Error> {
        self.execute_raw("rollback").await?;
        self.give_back();
        Ok(())
    }

    /// Ends the transaction by `words`, executed in order; the last must leave no transaction open.
    pub async fn end_with(mut self, words: &[&str]) -> Result<(), sqlx::Error> {
        for words in words {
            self.execute_raw(words).await?;
        }
        self.give_back();
        Ok(())
    }

    /// Commits after a success and rolls back after a failure, also one that Postgres has not seen.
    pub(crate) async fn end<T, E: From<sqlx::Error>>(self, result: Result<T, E>) -> Result<T, E> {
        match result {
            Ok(value) => {
                self.commit().await?;
                Ok(value)
            }
            Err(error) => {
                // If the rollback fails, the connection is closed, which undoes the transaction as
                // well.
                let _ = self.rollback().await;
                Err(error)
            }
        }
    }

    fn give_back(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.give_back();
        }
    }

    async fn execute_raw(&mut self, words: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(words.to_owned()))
            .execute(&mut **self)
            .await
            .map(|_| ())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection
            .as_ref()
            .expect("a transaction keeps its connection until it ends")
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection
            .as_mut()
            .expect("a transaction keeps its connection until it ends")
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
    }
}

impl<'t> Executor<'t> for &'t mut Transaction {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        't: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        match self.is_lent {
            true => (&mut **self).fetch_many(Unnamed(query)),
            false => (&mut **self).fetch_many(query),
        }
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        't: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        match self.is_lent {
            true => (&mut **self).fetch_optional(Unnamed(query)),
            false => (&mut **self).fetch_optional(query),
        }
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        't: 'e,
    {
        match self.is_lent {
            true => Box::pin(async { Err(cannot_prepare()) }),
            false => (&mut **self).prepare_with(sql, parameters),
        }
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        't: 'e,
    {
        match self.is_lent {
            true => Box::pin(async { Err(cannot_prepare()) }),
            false => (&mut **self).describe(sql),
        }
    }
}
