//! The rules in force, as far as SQL needs them.

use serde_json::Value;
use sqlx::types::Json;

use super::rows::sql_time;
use super::statement::query;
use crate::jobs::Error;
use crate::postgres::Db;
use crate::recipient::refusing_caps::refusing_caps;
use crate::recipient::rules::RecipientRules;

pub(super) const PUBLISH: &str = "
insert into flyball.recipient_rules as r (file, changed_at, refusing) values ($1, $2, $3)
on conflict (one) do update
set file = excluded.file, changed_at = excluded.changed_at, refusing = excluded.refusing, loaded_at = clock_timestamp()
where (r.file, r.changed_at, r.refusing) is distinct from (excluded.file, excluded.changed_at, excluded.refusing)";

/// Writes the rules in force for the functions of SQL.
pub async fn publish_rules(db: impl Into<Db>, rules: &RecipientRules) -> Result<(), Error> {
    let db: Db = db.into();
    let refusing: Json<Value> = Json(refusing_caps(rules));
    let mut transaction = db.begin().await?;
    query(PUBLISH)
        .bind(&rules.origin.file)
        .bind(rules.origin.changed_at.map(sql_time))
        .bind(refusing)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}
