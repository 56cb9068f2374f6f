//! The collector, and the steps of tenants at their limit.

use std::time::{Duration, Instant};

use super::fixture::GatewayServer;

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
