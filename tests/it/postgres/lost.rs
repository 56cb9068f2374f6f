//! Connections to a server that vanished without a word, as in a failover.

use std::time::Duration;

use flyball::postgres::{Access, Db, UnusablePostgres, reach};

use crate::support::pgbouncer::{refusing, without_server};
use crate::support::proxy::{Proxy, Way};
use crate::support::{database, eventually};

const SOON: Duration = Duration::from_secs(30);

const RUNNING: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and state = 'active' and query like '%pg_sleep(2)%'";

#[tokio::test]
async fn a_call_that_was_given_up_does_not_keep_its_place_in_the_pool() {
    let database = database().await;
    let proxy = Proxy::start(database.url()).await;
    let db = Db::connect(&Access::from(&proxy.url), 1, SOON)
        .await
        .unwrap();
    let requested = tokio::spawn({
        let db = db.clone();
        async move { sqlx::query("select pg_sleep(2)").execute(&db).await }
    });
    eventually("the statement runs", SOON, || async {
        let running: i64 = sqlx::query_scalar(RUNNING)
            .fetch_one(database.pool())
            .await
            .unwrap();
        (running > 0).then_some(())
    })
    .await;

    proxy.way(Way::Hung);
    requested.abort();

    assert!(requested.await.unwrap_err().is_cancelled());
    // Real time: the connection has some seconds to answer.
    eventually("its connection is closed", SOON, || async {
        (db.pool().size() == 0).then_some(())
    })
    .await;
    proxy.way(Way::Open);
    let answer: i32 = sqlx::query_scalar("select 1").fetch_one(&db).await.unwrap();
    assert_eq!(answer, 1);
}

#[tokio::test]
async fn an_idle_connection_to_a_server_that_vanished_is_replaced_within_seconds() {
    let database = database().await;
    let proxy = Proxy::start(database.url()).await;
    let db = Db::connect(&Access::from(&proxy.url), 1, SOON)
        .await
        .unwrap();
    let one: i32 = sqlx::query_scalar("select 1").fetch_one(&db).await.unwrap();
    assert_eq!(one, 1);
    // In the driver's pool.
    assert_eq!(db.pool().size(), 1);
    // Real time: a connection that answered within the last second is not asked again.
    tokio::time::sleep(Duration::from_millis(1500)).await;

    proxy.forget();

    let one: i32 = sqlx::query_scalar("select 1").fetch_one(&db).await.unwrap();
    assert_eq!(one, 1);
}

#[tokio::test]
async fn the_server_looks_for_the_client_of_a_statement_that_runs() {
    let database = database().await;
    let access = Access::from(database.url());
    let db = Db::connect(&access, 1, SOON).await.unwrap();
    let shown = sqlx::query_scalar("show client_connection_check_interval");
    let shown: String = shown.fetch_one(&db).await.unwrap();
    assert_eq!(shown, "2s");
}

#[tokio::test]
async fn a_pooler_whose_server_is_away_is_waited_for_as_the_server_is() {
    for is_told_at_login in [true, false] {
        let url = without_server(is_told_at_login).await;

        let lost = reach(&Access::from(&url), Duration::from_millis(300), true).await;

        let Err(UnusablePostgres::NotYet(why)) = lost else {
            panic!("{lost:?}");
        };
        assert!(
            why.ends_with("reaches no server: server login has been failing"),
            "{why}"
        );
    }
}

#[tokio::test]
async fn a_pooler_that_does_not_know_a_parameter_is_not_waited_for() {
    let url = refusing(true, "unsupported startup parameter: options").await;

    let lost = reach(&Access::from(&url), SOON, true).await;

    let Err(UnusablePostgres::Never(why)) = lost else {
        panic!("{lost:?}");
    };
    assert!(why.ends_with("startup parameter: options"), "{why}");
}
