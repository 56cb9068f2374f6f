//! The rules in force, as far as SQL needs them.

use serde_json::{Map, Value, json};
use sqlx::query;
use sqlx::types::Json;

use super::rows::sql_time;
use crate::jobs::Error;
use crate::postgres::Db;
use crate::recipient::refusing_caps::refusing_caps;
use crate::recipient::rules::RecipientRules;

pub(super) const PUBLISH: &str = "
insert into flyball.recipient_rules as r (file, changed_at, refusing, digest_texts) values ($1, $2, $3, $4)
on conflict (one) do update
set file = excluded.file, changed_at = excluded.changed_at, refusing = excluded.refusing, digest_texts = excluded.digest_texts
where (r.file, r.changed_at, r.refusing, r.digest_texts)
    is distinct from (excluded.file, excluded.changed_at, excluded.refusing, excluded.digest_texts)";

/// Writes the rules in force for the functions of SQL.
pub async fn publish_rules(db: impl Into<Db>, rules: &RecipientRules) -> Result<(), Error> {
    let db: Db = db.into();
    let refusing: Json<Value> = Json(refusing_caps(rules));
    let texts = Json(digest_texts(rules));
    let mut transaction = db.begin().await?;
    query(PUBLISH)
        .bind(&rules.origin.file)
        .bind(rules.origin.changed_at.map(sql_time))
        .bind(refusing)
        .bind(texts)
        .execute(&mut transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// Returns the texts of each type of digest.
fn digest_texts(rules: &RecipientRules) -> Value {
    let each = rules.digests().map(|kind| {
        let texts = &kind.texts;
        let texts = json!({"subject": texts.subject, "body": texts.body, "html": texts.html});
        (kind.name.clone(), texts)
    });
    Value::Object(each.collect::<Map<String, Value>>())
}
