//! The limits of a tenant: messages a second, connections, channels, and the size of a message.

use std::time::{Duration, Instant};

use flyball::gateway::ask_pace::FRAMES_PER_SECOND;
use flyball::gateway::limits::GatewayLimits;
use flyball::jobs::Queue;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::client::{WsClient, open};
use super::fixture::{GatewayServer, gateway, limits, token};
use crate::support::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn the_message_over_the_limit_is_delayed_with_one_warning_and_the_socket_stays_open() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    reader.subscribe("orders").await;
    served.publish_numbers("acme", "orders", 1, 201).await;
    let began = Instant::now();
    let (mut messages, mut warnings) = (Vec::new(), Vec::new());
    while messages.len() < 201 {
        let frame = reader.next().await;
        match frame["type"].as_str() {
            Some("message") => messages.push(frame["offset"].as_i64().unwrap()),
            Some("warning") => warnings.push((messages.len(), frame)),
            _ => panic!("{frame}"),
        }
    }
    let wanted = json!({"type": "warning", "code": "WS_RATE_LIMITED", "message": "Message throttled. Retry in 1s."});
    assert_eq!(messages, (1..=201).collect::<Vec<_>>());
    assert_eq!(
        warnings.iter().map(|(_, frame)| frame).collect::<Vec<_>>(),
        [&wanted]
    );
    assert!(
        began.elapsed() > Duration::from_millis(500),
        "the last was not delayed"
    );
    // Real time: on a busy machine the messages took a while to go, and so the limit is free again
    // only after a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    served.publish_numbers("acme", "orders", 202, 202).await;
    assert_eq!(reader.next().await["data"], 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_hears_no_notifications_warns_its_connections_all_the_same() {
    let served = GatewayServer::deaf().await;
    let mut reader = served.client("acme-reader").await;
    reader.subscribe("orders").await;
    // They take four seconds.
    served.publish_numbers("acme", "orders", 1, 1000).await;
    let warning = reader.next_of("warning").await;
    assert_eq!(warning["code"], "WS_RATE_LIMITED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_publishes_beyond_the_limit_is_slowed_and_loses_nothing() {
    let few = GatewayLimits {
        per_second: 20,
        ..limits()
    };
    let served = GatewayServer::with(few).await;
    let mut client = served.client("acme").await;
    client.subscribe("orders").await;
    for n in 1..=90 {
        let frame =
            json!({"type": "publish", "channel": "orders", "data": n, "ref": n.to_string()});
        client.send(&frame).await;
    }
    let (mut published, mut messages) = (Vec::new(), Vec::new());
    while messages.len() < 90 {
        let frame = client.next().await;
        match frame["type"].as_str() {
            Some("published") => published.push(frame["ref"].as_str().unwrap().to_owned()),
            Some("message") => messages.push(frame["data"].as_i64().unwrap()),
            Some("warning") => {}
            _ => panic!("{frame}"),
        }
    }
    assert_eq!(messages, (1..=90).collect::<Vec<_>>());
    assert_eq!(published.len(), 90);
    // What it sends afterwards is answered: the connection never was too busy.
    client
        .send(&json!({"type": "unsubscribe", "channel": "orders"}))
        .await;
    assert_eq!(client.next_of("unsubscribed").await["channel"], "orders");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_marks_while_its_tenant_is_at_the_limit_is_slowed() {
    let served = GatewayServer::start().await;
    let mut device = served.browser("acme", &json!({"recipient": "u1"})).await;
    let mark = json!({"type": "inbox_mark", "all_up_to": "9", "as": "read"});
    served.gateway.hub.limit("acme", Duration::from_secs(1));
    let began = Instant::now();
    for _ in 0..2 {
        device.send(&mark).await;
        device.next_of("inbox_counts").await;
    }
    assert!(
        began.elapsed() > Duration::from_millis(500),
        "the second was not delayed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_clients_send_frames_without_end_is_slowed() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    let other = served.gateway.hub.join(&"acme".into());
    let began = Instant::now();
    for _ in 0..3 * FRAMES_PER_SECOND {
        other.tenant.frames.take(began);
    }
    // The first ten are its own.
    for n in 0..20 {
        reader.subscribe(&format!("orders.{n}")).await;
    }
    assert!(
        began.elapsed() > Duration::from_secs(1),
        "the others were not delayed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_asks_without_end_is_slowed_and_answered() {
    let served = GatewayServer::start().await;
    let mut device = served.browser("acme", &json!({"recipient": "u1"})).await;
    let began = Instant::now();
    // Refused ones count too.
    let kinds = [("inbox_list", "inbox"), ("dance", "error")];
    let asked = move || (0..140).map(move |n| (n.to_string(), kinds[n % 2]));
    for (n, (asked, _)) in asked() {
        device.send(&json!({"type": asked, "ref": n})).await;
    }
    for (n, (_, answered)) in asked() {
        assert_eq!(device.next_of(answered).await["ref"], n);
    }
    assert!(
        began.elapsed() > Duration::from_secs(1),
        "a hundred come at once, and then twenty a second"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_that_wait_for_postgres_leave_connections_to_it_for_jobs() {
    let served = GatewayServer::start().await;
    let mut devices = Vec::new();
    for _ in 0..8 {
        devices.push(served.browser("acme", &json!({"recipient": "u1"})).await);
    }
    let mut lock = served.database.pool().begin().await.unwrap();
    sqlx::query("lock table flyball.inbox_count in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    for device in &mut devices {
        device.send(&json!({"type": "inbox_list"})).await;
    }
    let waiting = "select count(*) from pg_locks where not granted and relation = 'flyball.inbox_count'::regclass";
    crate::support::eventually("a list waits", super::client::PATIENCE, || async {
        let waiting = sqlx::query_scalar::<_, i64>(waiting);
        let waiting = waiting.fetch_one(served.database.pool()).await.unwrap();
        (waiting > 0).then_some(())
    })
    .await;
    for _ in 0..50 {
        assert!(served.queue.ping().await, "no connection is left");
    }
    lock.rollback().await.unwrap();
    for device in &mut devices {
        device.next_of("inbox").await;
    }
}

/// Every role of the database may notify.
#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_no_collector_has_sent_warns_nobody_and_holds_nobody() {
    let served = GatewayServer::start().await;
    let mut zeta = served.client("zeta").await;
    zeta.subscribe("orders").await;
    let notify = "select pg_notify('flyball_channel', $1 || ' ' || flyball.tenant_mark('zeta'))";
    for wait_ms in ["2000000000", "18446744073709551615"] {
        sqlx::query(notify)
            .bind(wait_ms)
            .execute(&served.queue.pool)
            .await
            .unwrap();
    }
    // A message that comes after the notification is heard after it.
    for n in 1..=3 {
        zeta.send(&json!({"type": "publish", "channel": "orders", "data": n}))
            .await;
        assert_eq!(zeta.next().await["type"], "published");
        assert_eq!(zeta.next().await["data"], n);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_at_its_limit_delays_no_other() {
    let served = GatewayServer::start().await;
    let mut zeta = served.client("zeta").await;
    zeta.subscribe("orders").await;
    served.publish_numbers("acme", "flood", 1, 2000).await;
    for n in 1..=5 {
        served.publish("zeta", "orders", &json!(n)).await;
        assert_eq!(zeta.next().await["data"], json!(n));
    }
    let waiting: i64 =
        sqlx::query_scalar("select count(*) from flyball.publication where tenant = 'acme'")
            .fetch_one(&served.queue.pool)
            .await
            .unwrap();
    assert!(waiting > 0, "acme was not delayed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_refused_when_its_tenant_has_too_many_waiting_and_a_job_is_not() {
    let served = GatewayServer::start().await;
    served.publish_numbers("acme", "flood", 1, 3000).await;
    let mut writer = served.client("acme").await;
    writer
        .send(&json!({"type": "publish", "channel": "flood", "data": 1, "ref": "7"}))
        .await;
    let answer = writer.next_of("error").await;
    assert_eq!(
        (&answer["code"], &answer["ref"]),
        (&json!("WS_OVERLOADED"), &json!("7"))
    );
    let (status, accepted) = served.publish("acme", "flood", &json!(1)).await;
    assert_eq!(status, 202, "{accepted}");
    assert!(accepted["waiting"].as_i64() > Some(1000), "{accepted}");
    // One that is refused is read no faster than one whose message waits.
    let mut other = served.client("acme").await;
    served.gateway.hub.limit("acme", Duration::from_secs(1));
    let began = Instant::now();
    for _ in 0..2 {
        other
            .send(&json!({"type": "publish", "channel": "flood", "data": 1}))
            .await;
        assert_eq!(other.next_of("error").await["code"], "WS_OVERLOADED");
    }
    assert!(
        began.elapsed() > Duration::from_millis(500),
        "the second was not delayed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_raised_helps_those_that_wait_for_a_long_window() {
    let served = GatewayServer::start().await;
    served.turn("ws:acme", &[("windows", "1/3600")]).await;
    let mut reader = served.client("acme-reader").await;
    reader.subscribe("orders").await;
    served.publish_numbers("acme", "orders", 1, 3).await;
    assert_eq!(reader.next_of("message").await["data"], 1);
    reader.next_of("warning").await;
    served.turn("ws:acme", &[("windows", "200/1")]).await;
    for n in 2..=3 {
        assert_eq!(reader.next_of("message").await["data"], n);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_delay_line_is_five_seconds_of_the_tenants_own_limit() {
    let served = GatewayServer::start().await;
    served.turn("ws:acme", &[("windows", "5/1")]).await;
    served.publish_numbers("acme", "flood", 1, 200).await;
    let mut writer = served.client("acme").await;
    writer
        .send(&json!({"type": "publish", "channel": "flood", "data": 1, "ref": "7"}))
        .await;
    let answer = writer.next_of("error").await;
    assert_eq!(
        (&answer["code"], &answer["ref"]),
        (&json!("WS_OVERLOADED"), &json!("7"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_fifty_channels_and_not_one_more() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    for n in 1..=50 {
        assert_eq!(
            reader.subscribe(&format!("c{n}")).await["type"],
            "subscribed"
        );
    }
    assert_eq!(
        reader.subscribe("c51").await["code"],
        "TOO_MANY_SUBSCRIPTIONS"
    );
    assert_eq!(reader.subscribe("c50").await["type"], "subscribed");
    reader
        .send(&json!({"type": "unsubscribe", "channel": "c1"}))
        .await;
    assert_eq!(reader.next().await["type"], "unsubscribed");
    assert_eq!(reader.subscribe("c51").await["type"], "subscribed");
    served.publish("acme", "c51", &json!(1)).await;
    assert_eq!(reader.next().await["channel"], "c51");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_credential_leave_handshakes_to_the_others() {
    let few = GatewayLimits {
        handshakes_per_s: 8,
        ..limits()
    };
    let served = GatewayServer::with(few).await;
    let opening = (0..40).map(|_| open(&served.base, "/api/v1/ws", &[]));
    let opened = futures_util::future::join_all(opening).await;
    let refused = opened.iter().filter_map(|one| one.as_ref().err());
    assert!(refused.count() > 20);
    // One that is refused for its credential takes no handshake either.
    for _ in 0..5 {
        let path = "/api/v1/ws?ticket=unknown";
        let refused = open(&served.base, path, &[]).await.err().unwrap();
        assert_eq!(refused.status, 401);
    }
    served.client("acme").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_is_opened_as_a_connection_is() {
    let few = GatewayLimits {
        handshakes_per_s: 1,
        ..limits()
    };
    let served = GatewayServer::with(few).await;
    let events = || {
        let request = served.request(reqwest::Method::GET, "/api/v1/channels/orders/events");
        request.bearer_auth(token("acme-reader")).send()
    };
    let opened = futures_util::future::join_all((0..10).map(|_| events())).await;
    let statuses = opened.into_iter().map(|one| one.unwrap().status().as_u16());
    let statuses: Vec<u16> = statuses.collect();
    assert!(
        statuses.contains(&200) && statuses.contains(&503),
        "{statuses:?}"
    );
    served.gateway.drain.cancel();
    let problem: Value = events().await.unwrap().json().await.unwrap();
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("the server stops"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_events_leave_connections_to_requests() {
    let few = GatewayLimits {
        node_streams: 4,
        ..limits()
    };
    let served = GatewayServer::with(few).await;
    let events_of = |name: &str| {
        let request = served.request(reqwest::Method::GET, "/api/v1/channels/orders/events");
        request.bearer_auth(token(name)).send()
    };
    let events = || events_of("acme-reader");
    let mut held = vec![events().await.unwrap(), events().await.unwrap()];
    // A tenant has half of them.
    let of_tenant = events().await.unwrap();
    held.push(events_of("zeta").await.unwrap());
    held.push(events_of("zeta").await.unwrap());
    assert!(held.iter().all(|stream| stream.status() == 200));
    let of_all = events_of("operators").await.unwrap();
    for (refused, words) in [
        (of_tenant, "the tenant has half"),
        (of_all, "the server has"),
    ] {
        assert_eq!(refused.status(), 503);
        assert!(refused.headers().contains_key("retry-after"));
        let problem: Value = refused.json().await.unwrap();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("http_connections"), "{detail}");
        assert!(detail.starts_with(words), "{detail}");
    }
    // A WebSocket has no place among requests.
    served.client("acme").await;
    drop(held);
    crate::support::eventually("a stream ends", super::client::PATIENCE, || async {
        (events().await.unwrap().status() == 200).then_some(())
    })
    .await;
}

/// The throttles of a store that was emptied are unknown, as those of one that is away.
#[tokio::test(flavor = "multi_thread")]
async fn processes_without_a_store_of_throttles_keep_one_window_together() {
    let fixture = Fixture::new().await;
    let few = GatewayLimits {
        per_second: 20,
        ..limits()
    };
    let cancel = CancellationToken::new();
    let _stop = cancel.clone().drop_guard();
    for _ in 0..2 {
        let queue = Queue::connect(fixture.database.url(), 6, Duration::from_secs(20));
        let gateway = gateway(queue.await.unwrap(), &fixture, few.clone());
        tokio::spawn(gateway.run(cancel.child_token()));
    }
    let publish = "select flyball.as_tenant('acme'), (select count(*) from (select flyball.publish('orders', to_jsonb(n)) from generate_series(1, 100) n) as p)";
    let began = Instant::now();
    sqlx::query(publish)
        .execute(&fixture.queue.pool)
        .await
        .unwrap();
    crate::support::eventually("all have gone", Duration::from_secs(60), || async {
        let left = "select count(*) from flyball.publication";
        let left = sqlx::query_scalar::<_, i64>(left);
        let left = left.fetch_one(&fixture.queue.pool).await.unwrap();
        (left == 0).then_some(())
    })
    .await;
    assert!(
        began.elapsed() > Duration::from_secs(3),
        "80 beyond the first 20 take four seconds"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_that_nobody_used_are_deleted_although_nobody_uses_channels() {
    let fixture = Fixture::new().await;
    let ticket =
        "insert into flyball.connection_ticket values ('\\x01', '{}', now() - interval '1 s')";
    let pool = &fixture.queue.pool;
    sqlx::query(ticket).execute(pool).await.unwrap();
    let gateway = gateway(fixture.queue.clone(), &fixture, limits());
    let cancel = CancellationToken::new();
    let _stop = cancel.clone().drop_guard();
    tokio::spawn(gateway.run(cancel.child_token()));
    crate::support::eventually("it is deleted", super::client::PATIENCE, || async {
        let left = sqlx::query_scalar::<_, i64>("select count(*) from flyball.connection_ticket");
        (left.fetch_one(pool).await.unwrap() == 0).then_some(())
    })
    .await;
}

fn publish_of(bytes: usize) -> String {
    let frame = |data: &str| format!(r#"{{"type":"publish","channel":"big","data":"{data}"}}"#);
    frame(&"x".repeat(bytes - frame("").len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_65536_bytes_passes_and_a_larger_one_closes() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    reader.subscribe("big").await;
    let mut writer = served.client("acme").await;
    writer.send_text(publish_of(65_536)).await;
    assert_eq!(writer.next().await["type"], "published");
    assert!(reader.next().await["data"].as_str().unwrap().len() > 65_000);
    writer.send_text(publish_of(65_537)).await;
    assert_eq!(writer.closed().await, 1009);

    let (status, _) = served
        .publish("acme", "big", &json!("x".repeat(65_534)))
        .await;
    assert_eq!(status, 202);
    let (status, problem) = served
        .publish("acme", "big", &json!("x".repeat(65_535)))
        .await;
    assert_eq!((status, &problem["code"]), (413, &json!("too_large")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_measured_as_postgres_writes_it() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    reader.subscribe("big").await;
    // Postgres writes each of them with 309 digits.
    let numbers = Value::from(vec![1e308; 9000]);
    assert!(numbers.to_string().len() < 65_536);
    let (status, problem) = served.publish("acme", "big", &numbers).await;
    assert_eq!((status, &problem["code"]), (413, &json!("too_large")));
    let mut writer = served.client("acme").await;
    writer
        .send(&json!({"type": "publish", "channel": "big", "data": numbers, "ref": "n"}))
        .await;
    let answer = writer.next().await;
    assert_eq!(
        (&answer["code"], &answer["ref"]),
        (&json!("TOO_LARGE"), &json!("n"))
    );
    served.publish("acme", "big", &json!("after")).await;
    assert_eq!(reader.next().await["data"], "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_and_the_tenant_that_shares_their_throttle_share_its_connections() {
    let few = GatewayLimits {
        connections: 2,
        ..limits()
    };
    let served = GatewayServer::with(few).await;
    let _held = [
        served.client("operators").await,
        served.client("of-default").await,
    ];
    for name in ["operators", "of-default"] {
        let bearer = format!("Bearer {}", token(name));
        let headers = [("authorization", bearer.as_str())];
        let refused = open(&served.base, "/api/v1/ws", &headers).await;
        assert_eq!(
            refused.err().map(|refusal| refusal.status),
            Some(429),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_the_limit_is_refused_or_closed_as_it_asks() {
    let few = GatewayLimits {
        connections: 2,
        ..limits()
    };
    let served = GatewayServer::with(few).await;
    let held = [served.client("acme").await, served.client("acme").await];
    let bearer = format!("Bearer {}", token("acme"));
    let headers = [("authorization", bearer.as_str())];
    let refused = open(&served.base, "/api/v1/ws", &headers)
        .await
        .err()
        .unwrap();
    assert_eq!(
        (refused.status, refused.problem["code"].as_str()),
        (429, Some("TOO_MANY_CONNECTIONS"))
    );
    assert!(refused.retry_after.is_some());
    let mut closed = WsClient {
        socket: open(&served.base, "/api/v1/ws?refuse=close", &headers)
            .await
            .unwrap(),
        hello: Value::Null,
    };
    assert_eq!(closed.closed().await, 4100);
    // Another tenant has places of its own, and a closed one is free again.
    served.client("zeta").await;
    drop(held);
    crate::support::eventually("a place is free", super::client::PATIENCE, || async {
        open(&served.base, "/api/v1/ws", &headers).await.ok()
    })
    .await;
}

/// The unit test of `TenantMark` has the same name and mark.
#[tokio::test]
async fn the_mark_of_a_tenant_is_the_begin_of_a_digest_of_its_name() {
    let fixture = Fixture::new().await;
    let mark: String = sqlx::query_scalar("select flyball.tenant_mark('abc')")
        .fetch_one(&fixture.queue.pool)
        .await
        .unwrap();
    assert_eq!(mark, "ba7816bf8f01cfea");
}
