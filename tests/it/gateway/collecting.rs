//! The collector, and the steps of tenants at their limit.

use std::time::{Duration, Instant};

use flyball::gateway::limits::ChannelHistory;
use flyball::gateway::postgres::{TenantGrant, channel_usage, collect_granted};
use sqlx::postgres::PgListener;

use super::client::PATIENCE;
use super::fixture::GatewayServer;
use crate::support::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_tenant_at_its_limit_go_soon_after_an_outage() {
    let served = GatewayServer::start().await;
    served.turn("ws:acme", &[("windows", "5/1")]).await;
    let mut reader = served.client("acme-reader").await;
    reader.subscribe("orders").await;
    served.publish_numbers("acme", "orders", 1, 20).await;
    reader.next_of("warning").await;
    let pool = served.database.pool();
    let outage = "
        create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'the disk is full'; end $$;
        create trigger refuse before insert on flyball.channel_message for each row execute function public.refuse();";
    sqlx::raw_sql(outage).execute(pool).await.unwrap();
    // Real time: several steps fail, at the pace of Postgres and of the limit.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let over = "drop trigger refuse on flyball.channel_message";
    sqlx::raw_sql(over).execute(pool).await.unwrap();
    let over_at = Instant::now();
    while reader.next_of("message").await["data"] != 20 {}
    assert!(
        over_at.elapsed() < Duration::from_secs(20),
        "the next step was late"
    );
}

/// Another process may have moved some of them after they were counted.
#[tokio::test]
async fn the_usage_of_a_tenant_counts_messages_that_went_and_not_those_that_were_granted() {
    let fixture = Fixture::new().await;
    let db = &fixture.queue.pool;
    let publish = "select flyball.as_tenant('acme'), (select count(*) from (select flyball.publish('orders', to_jsonb(n)) from generate_series(1, 3) n) as p)";
    sqlx::query(publish).execute(db).await.unwrap();
    let grant = TenantGrant {
        tenant: "acme".to_owned(),
        messages: 10,
        wait: Some(Duration::from_secs(1)),
        reported: Some(Duration::from_secs(1)),
    };
    let histories = [("*", ChannelHistory::USUAL)];
    let moved = collect_granted(db, &[grant], &histories).await;
    assert_eq!(moved.unwrap(), Some(3));
    let usage = channel_usage(db, Some("acme"), "", 1).await.unwrap();
    let usage = usage.first().map(|one| (one.messages, one.limited));
    assert_eq!(usage, Some((3, 1)));
}

/// Every role of the database may listen.
#[tokio::test]
async fn the_notification_of_a_limit_does_not_name_the_tenant() {
    let fixture = Fixture::new().await;
    let db = &fixture.queue.pool;
    let mut listener = PgListener::connect(fixture.database.url()).await.unwrap();
    listener.listen("flyball_channel").await.unwrap();
    let grant = TenantGrant {
        tenant: "acme".to_owned(),
        messages: 0,
        wait: Some(Duration::from_secs(1)),
        reported: Some(Duration::from_secs(1)),
    };
    let histories = [("*", ChannelHistory::USUAL)];
    collect_granted(db, &[grant], &histories).await.unwrap();
    let heard = tokio::time::timeout(PATIENCE, listener.recv()).await;
    let heard = heard.expect("a notification arrives").unwrap();
    let mark: String = sqlx::query_scalar("select flyball.tenant_mark('acme')")
        .fetch_one(db)
        .await
        .unwrap();
    assert_eq!(heard.payload(), format!("1000 {mark}"));
}

/// Without tokens everybody is an operator.
#[tokio::test]
async fn the_usage_of_operators_is_listed_behind_that_of_every_tenant() {
    let fixture = Fixture::new().await;
    let db = &fixture.queue.pool;
    for publish in [
        "select flyball.publish('orders', '1')",
        "select flyball.as_tenant('acme'), (select flyball.publish('orders', '1'))",
    ] {
        sqlx::query(publish).execute(db).await.unwrap();
    }
    let grants = ["", "acme"].map(|tenant| TenantGrant {
        tenant: tenant.to_owned(),
        messages: 10,
        wait: None,
        reported: None,
    });
    let histories = [("*", ChannelHistory::USUAL)];
    let moved = collect_granted(db, &grants, &histories).await;
    assert_eq!(moved.unwrap(), Some(2));
    for (after, most, wanted) in [
        ("", 10, vec!["acme", ""]),
        ("", 1, vec!["acme"]),
        ("acme", 1, vec![""]),
    ] {
        let usage = channel_usage(db, None, after, most).await.unwrap();
        let tenants: Vec<&str> = usage.iter().map(|one| one.tenant.as_str()).collect();
        assert_eq!(tenants, wanted, "{after} {most}");
    }
}

/// In such a transaction every look counts as one at what others write.
#[tokio::test]
async fn serializable_transactions_that_publish_at_the_same_time_do_not_fail_each_other() {
    let fixture = Fixture::new().await;
    let pool = fixture.database.pool();
    let (mut one, mut other) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    for transaction in [&mut one, &mut other] {
        for statement in [
            "set transaction isolation level serializable",
            "select flyball.publish('orders', '1')",
        ] {
            let done = sqlx::query(statement).execute(&mut **transaction).await;
            done.unwrap();
        }
    }
    one.commit().await.unwrap();
    other.commit().await.unwrap();
}
