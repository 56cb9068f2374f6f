//! Limits of tenants that change while messages wait, and a queue with its ten thousand messages.

use flyball::throttle::admission::TenantLimits;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::admission::*;
use crate::support::eventually;

impl AdmissionServer {
    /// Lets a message of another module be admitted and go: what may go has gone by then.
    async fn let_another_pass(&self) {
        let before = self.ran().await;
        assert_eq!(self.send_by_sql("shop", 1).await, Ok(1));
        eventually("the message of the other module ran", SOON, || async {
            (self.ran().await > before).then_some(())
        })
        .await;
    }

    /// Sends messages by SQL in the name of a module; returns the number of those that wait, or the
    /// SQLSTATE of the refusal.
    async fn send_by_sql(&self, module: &str, messages: i32) -> Result<i64, String> {
        let mut transaction = self.server.queue.pool.begin().await.unwrap();
        sqlx::query("select flyball.as_tenant('acme', $1)")
            .bind(module)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let sql = "select count(*) filter (where status = 'held') from flyball.notify_many((
            select jsonb_agg(jsonb_build_object('pool', 'mail', 'channel', 'email', 'to', 'ada' || n || '@example.com', 'body', 'x'))
            from generate_series(1, $1) n))";
        let held = sqlx::query_scalar(sql)
            .bind(messages)
            .fetch_one(&mut *transaction)
            .await
            .map_err(|error| {
                let refused = error.as_database_error().and_then(|error| error.code());
                refused.map_or_else(|| error.to_string(), |code| code.into_owned())
            })?;
        transaction.commit().await.unwrap();
        Ok(held)
    }
}

#[tokio::test]
async fn a_limit_that_is_lowered_holds_those_that_wait_and_one_that_is_raised_frees_them() {
    let served = admission_server(TenantLimits::default()).await;
    for n in 0..90 {
        served.send("web", &message(n)).await;
    }
    let worker = served.deliver(50).await;
    let limit = async |knobs: &[(&str, &str)]| served.server.turn("notify:acme", knobs).await;

    limit(&[("key_windows", "10/60")]).await;

    // More count than the limit allows now, and nothing is below zero.
    let told = served
        .ask("web", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(limits_of(&told), ["100", "50", "10", "0", "1744714260"]);
    let late = served.send("web", &message(90)).await;
    assert_eq!(
        header(&late, "retry-after"),
        "300",
        "four spans of ten go before it"
    );
    served.let_another_pass().await;
    assert_eq!(served.ran().await, 51);
    for minute in 1..=2 {
        served.pass(60);
        let ran = 51 + 11 * minute;
        eventually("ten more ran", SOON, || async {
            (served.ran().await == ran - 1).then_some(())
        })
        .await;
        served.let_another_pass().await;
        assert_eq!(served.ran().await, ran);
    }

    // The tenant's own limit is the narrower one now.
    limit(&[("key_windows", "50/60"), ("windows", "16/60")]).await;
    let ran = |count: i64| {
        let served = &served;
        let what = format!("{count} messages ran");
        async move {
            eventually(&what, SOON, || async {
                (served.ran().await == count).then_some(())
            })
            .await
        }
    };
    // Of the last minute count ten messages of the module and one of the other.
    ran(73 + 5).await;
    limit(&[("windows", "100/60")]).await;
    ran(91 + 3).await;
    worker.stop().await;
}

#[tokio::test]
async fn ten_thousand_messages_may_be_pending_and_the_next_is_refused() {
    let served = admission_server(TenantLimits::default()).await;
    // The limit of the settings, which the process writes as it starts.
    served.queue_max(10_000).await;
    assert_eq!(served.send_by_sql("web", 9_998).await, Ok(9_998));
    for n in 0..2 {
        let sent = served.send("shop", &message(n)).await;
        assert_eq!(sent.status(), StatusCode::ACCEPTED, "{n}");
    }

    let full = served.send("web", &message(10_001)).await;

    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    let retry_after: u64 = header(&full, "retry-after").parse().unwrap();
    assert!((1..=300).contains(&retry_after));
    assert_eq!(limits_of(&full), ["100", "98", "50", "0", "1744714200"]);
    assert_body_of_a_full_queue(full).await;
    assert_eq!(served.send_by_sql("web", 1).await, Err("53400".to_owned()));
    let elsewhere = served.send("else", &message(0)).await;
    assert_eq!(elsewhere.status(), StatusCode::ACCEPTED);
    assert_eq!(
        served.count("select count(*) from flyball.job").await,
        10_001
    );

    // Fifty of the module and two of the other go, and as many may come.
    let worker = served.deliver(2 + 1 + 50).await;
    worker.stop().await;
    assert_eq!(served.send_by_sql("web", 53).await, Err("53400".to_owned()));
    // A look at what has ended is not repeated within a second.
    eventually("as many are accepted", SOON, || async {
        (served.send_by_sql("web", 52).await == Ok(52)).then_some(())
    })
    .await;
    let full = served.send("web", &message(10_001)).await;
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// A tenant with two modules would send without any limit otherwise.
#[tokio::test]
async fn a_message_that_is_merged_with_one_that_waits_waits_as_well() {
    let served = at_its_limit().await;
    let knobs = "insert into flyball.knobs (throttle, fields) values ('mail', '{\"over_limit\": \"merge\"}')
        on conflict (throttle) do update set fields = excluded.fields";
    sqlx::query(knobs)
        .execute(&served.server.queue.pool)
        .await
        .unwrap();
    let keyed = |n: usize| {
        let mut message = message(n);
        message["unique_key"] = "offer".into();
        message
    };
    let waiting = served.send("web", &keyed(1)).await;
    assert_eq!(waiting.status(), StatusCode::TOO_MANY_REQUESTS);

    let merged = served.send("shop", &keyed(2)).await;

    assert_eq!(merged.status(), StatusCode::OK);
    let body: Value = merged.json().await.unwrap();
    let location = header(&waiting, "location");
    assert_eq!(
        location,
        format!("/api/v1/notifications/{}", body["id"]),
        "it took the place of the one that waited"
    );
    // It waits for the limits of the module that sent it last, which has a slot.
    let waits =
        "select count(*) from flyball.ready where lane_id = flyball.lane_of('notify:acme', 'shop')";
    assert_eq!(served.count(waits).await, 1);
    let worker = served.deliver(2).await;
    let told = served
        .ask("shop", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(limits_of(&told)[3], "0", "it used the slot");
    worker.stop().await;
}
