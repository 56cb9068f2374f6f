//! The queue of a tenant: the publications of it that may wait.

use std::time::Duration;

use flyball::jobs::{Error, Queue};
use flyball::postgres::{Db, Transaction};
use serde_json::json;

use crate::support::database;
use crate::support::fixture::Fixture;

const PUBLISH: &str = "select flyball.publish('orders', to_jsonb(n)) from generate_series(1, $1) n";

/// Begins a transaction that acts for a tenant.
async fn acting_for(pool: &Db, tenant: &str) -> Transaction {
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("select flyball.as_tenant($1)")
        .bind(tenant)
        .execute(&mut transaction)
        .await
        .unwrap();
    transaction
}

#[tokio::test]
async fn the_queue_of_a_tenant_takes_as_many_as_its_cap_whatever_comes_between_them() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 2, Duration::from_secs(20))
        .await
        .unwrap();
    queue.migrate().await.unwrap();
    queue.set_tenant_queue_max(3).await.unwrap();
    let publish = async |tenant: &str| {
        let published = queue.publish_as(tenant, "orders", &json!(1)).await;
        match published {
            Ok(_) => true,
            Err(Error::QueueFull { max: 3, .. }) => false,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(publish("acme").await && publish("acme").await);
    let mut others = Vec::new();
    for _ in 0..4 {
        others.push(publish("zeta").await);
    }
    assert_eq!(others, [true, true, true, false], "one after the other");

    let mut own = Vec::new();
    for _ in 0..2 {
        own.push(publish("acme").await);
    }
    assert_eq!(own, [true, false], "those of another between them");

    let sql = "delete from flyball.publication p using (select min(id) as id from flyball.publication where tenant = 'acme') m where p.id = m.id";
    sqlx::query(sql).execute(&queue.pool).await.unwrap();
    assert!(publish("acme").await && !publish("acme").await);

    let mut many = acting_for(&queue.pool, "initech").await;
    let three = sqlx::query(PUBLISH).bind(3).execute(&mut many).await;
    assert!(three.is_ok(), "{three:?}");
    let fourth = sqlx::query(PUBLISH).bind(1).execute(&mut many).await;
    let refused = fourth.unwrap_err().to_string();
    assert!(
        refused.contains("3 messages of the tenant wait"),
        "{refused}"
    );
}

/// Numbers of transactions that were rolled back make a queue look full, so what waits is counted.
#[tokio::test]
async fn a_transaction_counts_what_waits_once_and_trusts_no_count_of_another() {
    let fixture = Fixture::new().await;
    let pool = &fixture.queue.pool;
    fixture.queue.set_tenant_queue_max(4).await.unwrap();
    let rooms = async || -> Vec<Option<i32>> {
        sqlx::query_scalar("select room from flyball.publication order by id")
            .fetch_all(pool)
            .await
            .unwrap()
    };
    fixture
        .queue
        .publish_as("acme", "orders", &json!(1))
        .await
        .unwrap();
    sqlx::query("select nextval('flyball.publication_id_seq') from generate_series(1, 9)")
        .execute(pool)
        .await
        .unwrap();
    let mut two = acting_for(pool, "acme").await;
    sqlx::query(PUBLISH)
        .bind(2)
        .execute(&mut two)
        .await
        .unwrap();
    two.commit().await.unwrap();
    assert_eq!(rooms().await, [None, Some(2), Some(1)]);

    // Two have gone since the count.
    sqlx::query("delete from flyball.publication where room is distinct from 1")
        .execute(pool)
        .await
        .unwrap();
    let mut rest = acting_for(pool, "acme").await;
    sqlx::raw_sql("select nextval('flyball.publication_id_seq') from generate_series(1, 9)")
        .execute(&mut rest)
        .await
        .unwrap();
    sqlx::query(PUBLISH)
        .bind(3)
        .execute(&mut rest)
        .await
        .unwrap();
    let more = sqlx::query(PUBLISH).bind(1).execute(&mut rest).await;
    let refused = more.unwrap_err().to_string();
    assert!(
        refused.contains("4 messages of the tenant wait"),
        "{refused}"
    );
    drop(rest);
    assert_eq!(rooms().await, [Some(1)]);
}
