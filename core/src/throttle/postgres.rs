//! The last knobs of every throttle, recorded in Postgres, from which an emptied Redis is restored.

use std::collections::BTreeMap;

use sqlx::Row;
use sqlx::types::Json;

use super::Name;
use crate::postgres::Db;

const SAVE: &str = "
insert into flyball.knobs (throttle, fields) values ($1, $2)
on conflict (throttle) do update set fields = excluded.fields, updated_at = clock_timestamp()
where flyball.knobs.fields <> excluded.fields";

const LOAD: &str = "select throttle, fields from flyball.knobs order by throttle";

const FORGET: &str = "delete from flyball.knobs where throttle = $1";

/// Every statement of this file with its name, so that a test can prepare each on the migrated
/// schema.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("save knobs", SAVE),
    ("load knobs", LOAD),
    ("forget knobs", FORGET),
];

/// The record of knobs.
#[derive(Clone)]
pub struct KnobRecord {
    pool: Db,
}

impl KnobRecord {
    /// Opens the record in the database of `pool`.
    pub fn new(pool: impl Into<Db>) -> Self {
        Self { pool: pool.into() }
    }

    /// Records the hash of a throttle; writes nothing if it has not changed. Returns the reason if
    /// Postgres answers but rejects the hash.
    pub async fn save(
        &self,
        name: &Name,
        fields: &BTreeMap<String, String>,
    ) -> Result<Option<String>, sqlx::Error> {
        match sqlx::query(SAVE)
            .bind(name.as_str())
            .bind(Json(fields))
            .execute(&self.pool)
            .await
        {
            Ok(_) => Ok(None),
            // Postgres' error text may quote the data.
            Err(sqlx::Error::Database(error)) => Ok(Some(format!(
                "Postgres cannot record them (SQLSTATE {})",
                error.code().unwrap_or_default()
            ))),
            Err(error) => Err(error),
        }
    }

    /// Returns all throttles that were ever recorded and not forgotten.
    pub async fn load(&self) -> Result<Vec<(Name, BTreeMap<String, String>)>, sqlx::Error> {
        let rows = sqlx::query(LOAD).fetch_all(&self.pool).await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                let name = Name::or_pattern(row.try_get::<String, _>("throttle").ok()?).ok()?;
                // Other programs may have written anything into the table; a value that is not a
                // map of texts is skipped.
                let Ok(Json(fields)) = row.try_get::<Json<BTreeMap<String, String>>, _>("fields")
                else {
                    tracing::warn!(throttle.name = %name, "skipping a knobs record that is not a \
                                                           map of strings");
                    return None;
                };
                Some((name, fields))
            })
            .collect())
    }

    /// Deletes a throttle from the record, so that it is not restored.
    pub async fn forget(&self, name: &Name) -> Result<(), sqlx::Error> {
        sqlx::query(FORGET)
            .bind(name.as_str())
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}
