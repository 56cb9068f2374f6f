//! The share of complaints of a pool's worst account, out of the tally that events are counted in.

use flyball::signals::complaints_postgres::{TALLY, from_tally};
use sqlx::{Connection as _, Executor as _, SqlSafeStr as _};

use crate::support::{Database, database};

/// The tally as the program's own migrations make it; an older schema gets it here.
const TABLE: &str = "create table if not exists flyball.account_tally (pool text, account text, hour timestamptz, accepted bigint, \
     delivered bigint, bounced bigint, complained bigint, unsubscribed bigint, primary key (pool, account, hour))";

/// Counts `accepted` and `complained` for an account, some hours ago.
async fn count(database: &Database, pool: &str, account: &str, hours_ago: i32, accepted: i64, complained: i64) {
    let sql = "insert into flyball.account_tally (pool, account, hour, accepted, delivered, bounced, complained, unsubscribed) \
               values ($1, $2, date_trunc('hour', now()) - make_interval(hours => $3), $4, $4, 0, $5, 0)";
    let asked = sqlx::query(sql).bind(pool).bind(account).bind(hours_ago).bind(accepted).bind(complained);
    asked.execute(database.pool()).await.unwrap();
}

#[tokio::test]
async fn the_worst_account_of_a_day_is_told_and_what_is_not_known_is_no_zero() {
    let database = database().await;
    let mut connection = sqlx::PgConnection::connect(database.url()).await.unwrap();
    connection.execute("drop table if exists flyball.account_tally").await.unwrap();
    let source = from_tally(database.pool().clone().into());
    assert_eq!(source("marketing").await, None, "without a tally nothing is known");

    connection.execute(TABLE).await.unwrap();
    connection.prepare(TALLY.into_sql_str()).await.unwrap();
    let silent = source("marketing").await.expect("nothing was sent");
    assert_eq!((silent.share, silent.account.as_str()), (0.0, ""));
    assert!(silent.at > 1.7e9, "{silent:?}");

    count(&database, "marketing", "bad", 1, 60_000, 100).await;
    count(&database, "marketing", "bad", 5, 40_000, 150).await;
    count(&database, "marketing", "bad", 30, 1_000_000, 0).await;
    count(&database, "marketing", "good", 1, 900_000, 90).await;
    count(&database, "marketing", "small", 1, 400, 40).await;
    count(&database, "receipts", "other", 1, 10_000, 900).await;
    let found = source("marketing").await.unwrap();
    assert_eq!((found.account.as_str(), found.accepted), ("bad", 100_000.0));
    assert!(found.share > 0.0022 && found.share <= 0.0025, "{found:?}");
    assert!(source("receipts").await.unwrap().share > 0.05);
}
