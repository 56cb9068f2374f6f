//! The last knobs of every throttle, kept in Postgres, from which an emptied Redis is restored.

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

/// Every statement of this file, so that a test can prepare each on the migrated schema.
pub const STATEMENTS: &[(&str, &str)] = &[("save knobs", SAVE), ("load knobs", LOAD), ("forget knobs", FORGET)];

/// The record of knobs.
#[derive(Clone)]
pub struct Record {
    pool: Db,
}

impl Record {
    /// The record in the database of `pool`.
    pub fn new(pool: impl Into<Db>) -> Self {
        Self { pool: pool.into() }
    }

    /// Keeps the hash of a throttle as it stands; writes nothing if it has not changed.
    pub async fn save(&self, name: &Name, fields: &BTreeMap<String, String>) -> Result<(), sqlx::Error> {
        sqlx::query(SAVE).bind(name.as_str()).bind(Json(fields)).execute(&self.pool).await?;
        Ok(())
    }

    /// All throttles that were ever kept and not forgotten.
    pub async fn load(&self) -> Result<Vec<(Name, BTreeMap<String, String>)>, sqlx::Error> {
        let rows = sqlx::query(LOAD).fetch_all(&self.pool).await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                let Json(fields) = row.get::<Json<BTreeMap<String, String>>, _>("fields");
                Some((Name::new(row.get::<String, _>("throttle")).ok()?, fields))
            })
            .collect())
    }

    /// Forgets a throttle, so that it is not restored.
    pub async fn forget(&self, name: &Name) -> Result<(), sqlx::Error> {
        sqlx::query(FORGET).bind(name.as_str()).execute(&self.pool).await?;
        Ok(())
    }
}
