//! A transaction that cannot be left open by accident.

use std::ops::{Deref, DerefMut};

use sqlx::{AssertSqlSafe, PgConnection};

use super::connections::{Connections, LentConnection};

/// The statement that begins a transaction on a connection of our own.
pub(super) const BEGIN: &str = "begin";

/// An open transaction.
///
/// Dropped without [`Transaction::commit`] or [`Transaction::rollback`], even in the middle of a
/// statement or of one of those two, it closes its connection, which ends the transaction on the
/// server.
#[derive(Debug)]
pub struct Transaction {
    /// `None` only after the end of the transaction.
    connection: Option<LentConnection>,
}

impl Transaction {
    pub(super) async fn begin(connections: &Connections, begin: &str) -> Result<Self, sqlx::Error> {
        let mut transaction = Self {
            connection: Some(connections.acquire().await?),
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
