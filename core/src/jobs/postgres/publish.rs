//! Publications to channels from Rust, through the SQL functions.

use serde_json::Value;
use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use super::{Client, Queue};
use crate::jobs::Error;

pub(super) const PUBLISH: &str = "select flyball.publish($1, $2)";

impl Client {
    /// Publishes data to the subscribers of a channel, for the tenant of the executor's role or
    /// transaction; returns the number of the publication. Within a transaction, a rollback
    /// publishes nothing.
    ///
    /// ```no_run
    /// # use flyball_core as flyball;
    /// use flyball::Client;
    /// use serde_json::json;
    ///
    /// # async fn packed(pool: sqlx::PgPool) -> Result<(), flyball::jobs::Error> {
    /// let mut transaction = pool.begin().await?;
    /// // ... what the order itself needs ...
    /// let state = json!({"order": 17, "state": "packed"});
    /// Client.publish(&mut *transaction, "orders", &state).await?;
    /// transaction.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A name that no channel has and data of more than 65,536 bytes are an [`Error::Refused`], and
    /// one for which the queue of the tenant has no room is an [`Error::QueueFull`].
    pub async fn publish(
        &self,
        executor: impl PgExecutor<'_>,
        channel: &str,
        data: &Value,
    ) -> Result<i64, Error> {
        let row = sqlx::query(PUBLISH)
            .bind(channel)
            .bind(Json(data))
            .fetch_one(executor)
            .await?;
        Ok(row.try_get(0)?)
    }
}

impl Queue {
    /// Publishes data to a channel of a tenant, for a role of operators; an empty tenant stands for
    /// the operators themselves.
    pub async fn publish_as(
        &self,
        tenant: &str,
        channel: &str,
        data: &Value,
    ) -> Result<i64, Error> {
        let mut transaction = self.begin_as(tenant, "").await?;
        let id = Client.publish(&mut transaction, channel, data).await?;
        transaction.commit().await?;
        Ok(id)
    }
}
