//! Deletes what no rule looks at any more.

use sqlx::query;

use crate::jobs::Error;
use crate::postgres::Db;
use crate::recipient::rules::RecipientRules;

/// The number of parts.
pub const PARTS: i32 = 16;

pub(super) const PRUNE: &str = "select flyball.prune_recipients($1, $2, $3)";

/// Prunes one part, in a bounded step; returns the number of rows.
pub async fn prune(db: &Db, rules: &RecipientRules, part: i32) -> Result<i64, Error> {
    let mut transaction = db.begin().await?;
    let row = query(PRUNE)
        .bind(part.rem_euclid(PARTS))
        .bind(rules.longest_dedup().as_secs_f64())
        .bind(rules.longest_cap_s() as f64)
        .fetch_one(&mut transaction)
        .await?;
    transaction.commit().await?;
    Ok(sqlx::Row::try_get(&row, 0)?)
}
