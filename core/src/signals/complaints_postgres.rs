//! Complaints from the tally in which events of providers are counted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::complaints::{ComplaintSource, Complaints, worst};
use super::{Error, own_database};
use crate::postgres::Db;

/// Longest wait for the tally.
const TALLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Reads the tally of a pool's accounts over 24 hours, as rows of (account, accepted, complained,
/// now).
pub const TALLY: &str = "select account, sum(accepted)::double precision, sum(complained)::double precision, \
     extract(epoch from now())::double precision \
     from flyball.account_tally where pool = $1 and hour > now() - interval '24 hours' group by account";

/// Reads the time, and whether anything was ever counted for a pool.
pub const EVER: &str = "select extract(epoch from now())::double precision, \
     exists (select from flyball.account_tally where pool = $1)";

/// Returns false if there is no pool of that name.
pub type PoolExists = Arc<dyn Fn(&str) -> BoxFuture<'static, bool> + Send + Sync>;

/// Returns a source that reads the tally in this database. A pool without one has no complaints if
/// it `exists`; otherwise its name is misspelt, and has no reading.
pub fn from_tally(db: Db, exists: PoolExists) -> ComplaintSource {
    Arc::new(move |pool| {
        let (db, exists, pool) = (db.clone(), exists.clone(), pool.to_owned());
        Box::pin(async move {
            let found = read(async {
                let rows = sqlx::query(TALLY).bind(&pool).fetch_all(&db).await?;
                of_rows(&rows)
            });
            if let Some(complaints) = found.await? {
                return Ok(complaints);
            }
            let (at, was_counted): (f64, bool) =
                read(sqlx::query_as(EVER).bind(&pool).fetch_one(&db)).await?;
            if !was_counted && !exists(&pool).await {
                return Err(Error::Unknown {
                    what: "pool",
                    name: pool,
                });
            }
            Ok(worst([], at))
        })
    })
}

/// Returns the complaints that rows of the tally tell; `None` if there are no rows.
fn of_rows(rows: &[PgRow]) -> Result<Option<Complaints>, sqlx::Error> {
    let mut accounts: Vec<(String, f64, f64)> = Vec::new();
    let mut read_at = None;
    for row in rows {
        accounts.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        read_at = Some(row.try_get(3)?);
    }
    let accounts = accounts
        .iter()
        .map(|(account, accepted, complained)| (account.as_str(), *accepted, *complained));
    Ok(read_at.map(|at| worst(accounts, at)))
}

async fn read<T>(call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
    own_database::read(TALLY_TIMEOUT, "the tally of complaints", call).await
}
