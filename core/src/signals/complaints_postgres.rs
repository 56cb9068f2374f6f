//! Complaints from the tally in which events of providers are counted.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Row as _;

use super::complaints::{ComplaintSource, worst};
use crate::postgres::Db;

/// Longest wait for the tally.
const TALLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Reads the tally of a pool's accounts over 24 hours, as rows of (account, accepted, complained,
/// now).
pub const TALLY: &str = "select account, sum(accepted)::double precision, sum(complained)::double precision, \
     extract(epoch from now())::double precision \
     from flyball.account_tally where pool = $1 and hour > now() - interval '24 hours' group by account";

/// Returns a source that reads the tally in this database.
pub fn from_tally(db: Db) -> ComplaintSource {
    Arc::new(move |pool| {
        let (db, pool) = (db.clone(), pool.to_owned());
        Box::pin(async move {
            let requested =
                tokio::time::timeout(TALLY_TIMEOUT, sqlx::query(TALLY).bind(&pool).fetch_all(&db))
                    .await;
            let rows = requested
                .ok()?
                .inspect_err(|error| tracing::debug!(pool, %error, "no tally of complaints"))
                .ok()?;
            let Some(first) = rows.first() else {
                // Nothing was sent, so there are no complaints. The database was reached, so its
                // clock can be asked as well.
                return now(&db).await.map(|at| worst([], at));
            };
            let at: f64 = first.try_get(3).ok()?;
            let accounts: Option<Vec<(String, f64, f64)>> = rows
                .iter()
                .map(|row| {
                    Some((
                        row.try_get(0).ok()?,
                        row.try_get(1).ok()?,
                        row.try_get(2).ok()?,
                    ))
                })
                .collect();
            let accounts = accounts?;
            Some(worst(
                accounts.iter().map(|(account, accepted, complained)| {
                    (account.as_str(), *accepted, *complained)
                }),
                at,
            ))
        })
    })
}

async fn now(db: &Db) -> Option<f64> {
    let row = sqlx::query("select extract(epoch from now())::double precision").fetch_one(db);
    tokio::time::timeout(TALLY_TIMEOUT, row)
        .await
        .ok()?
        .ok()?
        .try_get(0)
        .ok()
}
