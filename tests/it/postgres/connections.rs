//! Connections are used again at once, and none is kept from somebody who waits for one.

use std::time::Duration;

use flyball::jobs::Queue;
use flyball::postgres::{Access, Db};
use futures_util::future::join_all;
use sqlx::Row;

use crate::support::{Database, database, eventually};

const SOON: Duration = Duration::from_secs(30);

/// A function that fits an array of numbers better than that of the system, which takes any array.
pub(super) const PLANTED: &str = "
    create function public.unnest(bigint[]) returns setof bigint language plpgsql as $$
    begin
        raise exception 'planted code runs as %', current_user;
    end $$";

/// Statements of a Flyball session call such functions by their plain names.
pub(super) const COUNTED: &str = "select count(*) from unnest('{1, 2}'::bigint[])";

/// The process of the server that answers.
async fn process(db: &Db) -> i32 {
    let asked = sqlx::query_scalar("select pg_backend_pid()");
    asked.fetch_one(db).await.unwrap()
}

/// Ends processes of the server and waits until they are gone.
async fn end(database: &Database, processes: &[i32]) {
    let ended = sqlx::query("select pg_terminate_backend(pid) from unnest($1) pid");
    let ended = ended.bind(processes).execute(database.pool());
    ended.await.unwrap();
    eventually("the processes are gone", SOON, || async {
        let asked = sqlx::query_scalar("select count(*) from pg_stat_activity where pid = any($1)");
        let asked = asked.bind(processes).fetch_one(database.pool());
        let left: i64 = asked.await.unwrap();
        (left == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_connection_that_was_used_last_is_used_next() {
    let database = database().await;
    let access = Access::from(database.url());
    let db = Db::connect(&access, 4, SOON).await.unwrap();
    let asked = (0..4).map(|_| async { sqlx::query("select pg_sleep(0.1)").execute(&db).await });
    for answer in join_all(asked).await {
        answer.unwrap();
    }
    assert_eq!(db.pool().size(), 4);

    let first = process(&db).await;
    for _ in 0..20 {
        assert_eq!(process(&db).await, first);
        let mut transaction = db.begin().await.unwrap();
        let asked = sqlx::query_scalar("select pg_backend_pid()").persistent(false);
        let in_transaction: i32 = asked.fetch_one(&mut *transaction).await.unwrap();
        assert_eq!(in_transaction, first);
        transaction.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_statement_of_transactions_is_prepared_once() {
    let database = database().await;
    let access = Access::from(database.url());
    let db = Db::connect(&access, 1, SOON).await.unwrap();
    for n in 0..3_i32 {
        let mut transaction = db.begin().await.unwrap();
        let asked = sqlx::query_scalar("select $1::int").bind(n);
        let answer: i32 = asked.fetch_one(&mut transaction).await.unwrap();
        assert_eq!(answer, n);
        transaction.commit().await.unwrap();
    }

    let prepared = sqlx::raw_sql("select statement, generic_plans from pg_prepared_statements");
    let prepared = prepared.fetch_all(db.pool()).await.unwrap();
    let prepared: Vec<(&str, i64)> = prepared
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert_eq!(prepared, [("select $1::int", 3)]);
}

#[tokio::test]
async fn many_callers_take_turns_on_one_connection() {
    let database = database().await;
    let access = Access::from(database.url());
    let db = Db::connect(&access, 1, SOON).await.unwrap();
    for round in 0..20 {
        let asked = (0..16).map(|_| process(&db));
        let first = process(&db).await;
        assert_eq!(join_all(asked).await, [first; 16], "round {round}");
        // Those that ask the driver's pool itself find the connection there.
        let asked = sqlx::query_scalar("select pg_backend_pid()");
        let answer: i32 = asked.fetch_one(db.pool()).await.unwrap();
        assert_eq!(answer, first);
    }
    tokio::time::timeout(SOON, db.close()).await.unwrap();
    let refused = sqlx::query("select 1").execute(&db).await;
    assert!(
        matches!(refused, Err(sqlx::Error::PoolClosed)),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_connection_that_was_lost_while_it_was_idle_is_replaced() {
    let database = database().await;
    let access = Access::from(database.url());
    let db = Db::connect(&access, 2, SOON).await.unwrap();
    let first = process(&db).await;
    end(&database, &[first]).await;
    // Real time: a connection that answered within the last second is not asked again.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_ne!(process(&db).await, first);
}

#[tokio::test]
async fn a_restart_of_the_server_fails_one_statement_and_not_one_for_each_connection() {
    for the_driver_has_them in [false, true] {
        let database = database().await;
        let access = Access::from(database.url());
        let db = Db::connect(&access, 4, SOON).await.unwrap();
        let asked = (0..4).map(|_| async {
            let asked = sqlx::query_scalar("select pg_backend_pid() from pg_sleep(0.1)");
            asked.fetch_one(&db).await.unwrap()
        });
        let processes: Vec<i32> = join_all(asked).await;
        if the_driver_has_them {
            db.pool();
        }

        end(&database, &processes).await;

        let mut failed = Vec::new();
        for _ in 0..4 {
            failed.extend(sqlx::query("select 1").execute(&db).await.err());
        }
        assert!(failed.len() <= 1, "{failed:?}");
    }
}

#[tokio::test]
async fn a_statement_that_fails_leaves_its_connection_usable() {
    let database = database().await;
    let access = Access::from(database.url());
    let db = Db::connect(&access, 1, SOON).await.unwrap();
    for _ in 0..5 {
        let first = process(&db).await;
        assert!(sqlx::query("select 1 / 0").execute(&db).await.is_err());
        assert_eq!(process(&db).await, first);
    }
}

#[tokio::test]
async fn what_others_plant_in_public_is_not_called_with_the_rights_of_the_owner() {
    let database = database().await;
    sqlx::raw_sql(PLANTED)
        .execute(database.pool())
        .await
        .unwrap();
    let usual: Result<i64, _> = sqlx::query_scalar(COUNTED).fetch_one(database.pool()).await;
    assert!(usual.unwrap_err().to_string().contains("planted code"));

    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();
    let counted: i64 = sqlx::query_scalar(COUNTED)
        .fetch_one(&queue.pool)
        .await
        .unwrap();
    assert_eq!(counted, 2);
    let mut transaction = queue.pool.begin().await.unwrap();
    let counted: i64 = sqlx::query_scalar(COUNTED)
        .fetch_one(&mut transaction)
        .await
        .unwrap();
    assert_eq!(counted, 2);
    transaction.commit().await.unwrap();
}
