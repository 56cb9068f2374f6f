//! The record of kinds.

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use crate::jobs::{Error, RegisteredKind};

pub(super) const KINDS: &str = "
select name, public, registered_at, attempts, mean_cost from flyball.kind order by name limit 1000";

pub(super) const REGISTER_KIND: &str = "select flyball.register_kind($1, $2)";

pub(super) const KIND: &str = "
select name, public, registered_at, attempts, mean_cost from flyball.kind where name = $1";

impl Queue {
    /// Returns the kinds that can be enqueued, by name: those that a worker has announced, and those
    /// that were registered.
    pub async fn kinds(&self) -> Result<Vec<RegisteredKind>, Error> {
        let rows = sqlx::query(KINDS).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(kind).collect::<Result<_, _>>()?)
    }

    /// Registers a kind before its first worker starts. `public` says whether every role may enqueue
    /// it; `None` leaves it unchanged, and means true for a new kind.
    pub async fn register_kind(
        &self,
        name: &str,
        public: Option<bool>,
    ) -> Result<RegisteredKind, Error> {
        sqlx::query(REGISTER_KIND)
            .bind(name)
            .bind(public)
            .execute(&self.pool)
            .await?;
        let row = sqlx::query(KIND).bind(name).fetch_one(&self.pool).await?;
        Ok(kind(&row)?)
    }
}

fn kind(row: &PgRow) -> Result<RegisteredKind, sqlx::Error> {
    Ok(RegisteredKind {
        name: row.try_get("name")?,
        public: row.try_get("public")?,
        registered_at: row.try_get::<Timestamp, _>("registered_at")?.to_jiff(),
        attempts: row.try_get("attempts")?,
        mean_cost: row.try_get("mean_cost")?,
    })
}
