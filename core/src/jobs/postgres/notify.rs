//! Messages from Rust, through the SQL functions.

use jiff::Timestamp;
use jiff_sqlx::{Timestamp as SqlTimestamp, ToSqlx};
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use super::{Client, Queue};
use crate::jobs::Error;
use crate::postgres::Transaction;

pub(super) const NOTIFY: &str =
    "select id, status, held_until from flyball.notify($1, $2, $3, $4, $5)";

pub(super) const AS_TENANT: &str = "select flyball.as_tenant($1, $2)";

/// A message to send.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMessage {
    /// The pool that sends it.
    pub pool: String,
    /// The message, with the fields of `POST /api/v1/notifications`.
    pub message: Value,
    /// The rate-limit key in the pool's throttle; empty for none.
    pub key: String,
    /// The earliest time at which it is sent.
    pub run_at: Option<Timestamp>,
    /// A key that prevents a second message while an unfinished one holds it.
    pub unique_key: Option<String>,
}

impl NewMessage {
    /// Returns a message that is sent as soon as possible.
    pub fn new(pool: impl Into<String>, message: Value) -> Self {
        Self {
            pool: pool.into(),
            message,
            key: String::new(),
            run_at: None,
            unique_key: None,
        }
    }
}

/// A message that was accepted.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SentMessage {
    /// The number of its job.
    pub id: i64,
    /// The status: `queued` for its pool, `planning` while the gates of its recipient have not seen
    /// it, `held` while it waits for the limits of its tenant,
    /// `scheduled`, or `duplicate` if another message holds the unique key.
    pub status: String,
    /// The earliest time at which the limits let a held one go. What was sent within the last
    /// minute can delay it further, and Postgres does not know that.
    pub held_until: Option<Timestamp>,
}

impl Client {
    /// Sends one message, within the limits of the tenant of the executor's role or transaction.
    ///
    /// ```no_run
    /// # use flyball_core as flyball;
    /// use flyball::Client;
    /// use flyball::jobs::NewMessage;
    /// use serde_json::json;
    ///
    /// # async fn welcome(pool: sqlx::PgPool) -> Result<(), flyball::jobs::Error> {
    /// let message = json!({"channel": "email", "to": "ada@example.com", "body": "Welcome"});
    /// let sent = Client.notify(&pool, &NewMessage::new("mail", message)).await?;
    /// println!("message {} is {}", sent.id, sent.status);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A message that is not acceptable is an [`Error::Refused`], one for which the queue of its
    /// tenant has no room an [`Error::QueueFull`], and one over a cap of its recipient whose
    /// category refuses more an [`Error::Capped`].
    pub async fn notify(
        &self,
        executor: impl PgExecutor<'_>,
        message: &NewMessage,
    ) -> Result<SentMessage, Error> {
        let row = sqlx::query(NOTIFY)
            .bind(&message.pool)
            .bind(Json(&message.message))
            .bind(&message.key)
            .bind(message.run_at.map(|at| at.to_sqlx()))
            .bind(&message.unique_key)
            .fetch_one(executor)
            .await?;
        Ok(SentMessage {
            id: row.try_get("id")?,
            status: row.try_get("status")?,
            held_until: row
                .try_get::<Option<SqlTimestamp>, _>("held_until")?
                .map(SqlTimestamp::to_jiff),
        })
    }
}

impl Queue {
    /// Sends one message in the name of a module of a tenant, for a role of operators; an empty
    /// tenant stands for the operators themselves.
    pub async fn notify_as(
        &self,
        tenant: &str,
        module: &str,
        message: &NewMessage,
    ) -> Result<SentMessage, Error> {
        let mut transaction = self.begin_as(tenant, module).await?;
        let sent = Client.notify(&mut transaction, message).await?;
        transaction.commit().await?;
        Ok(sent)
    }

    /// Begins a transaction in the name of a module of a tenant.
    pub(super) async fn begin_as(&self, tenant: &str, module: &str) -> Result<Transaction, Error> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query(AS_TENANT)
            .bind(tenant)
            .bind(module)
            .execute(&mut transaction)
            .await?;
        Ok(transaction)
    }
}
