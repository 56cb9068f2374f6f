//! History and resume: everything missed or nothing, over WebSockets and server-sent events.

use std::time::Duration;

use flyball::gateway::channel_name::ChannelName;
use flyball::gateway::limits::ChannelHistory;
use flyball::gateway::postgres::{
    TenantGrant, WaitingPublications, collect, gateway_backlog, positions,
};
use flyball::jobs::Queue;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::client::WsClient;
use super::fixture::{GatewayServer, gateway, limits, token};
use crate::support::eventually;
use crate::support::fixture::Fixture;

async fn offsets(client: &mut WsClient, count: usize) -> Vec<i64> {
    let mut offsets = Vec::new();
    while offsets.len() < count {
        let frame = client.next_of("message").await;
        offsets.push(frame["offset"].as_i64().unwrap());
    }
    offsets
}

/// Waits until everything that was published is in the history.
async fn collected(queue: &Queue) {
    eventually("all is collected", super::client::PATIENCE, || async {
        let left: i64 = sqlx::query_scalar("select count(*) from flyball.publication")
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        (left == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_gets_all_that_it_missed_and_then_what_is_new() {
    let served = GatewayServer::start().await;
    let mut first = served.client("acme-reader").await;
    let answer = first.subscribe("orders").await;
    served.publish_numbers("acme", "orders", 1, 3).await;
    assert_eq!(offsets(&mut first, 3).await, [1, 2, 3]);
    drop(first);
    served.publish_numbers("acme", "orders", 4, 150).await;
    collected(&served.queue).await;
    let mut again = served.client("acme-reader").await;
    let resumed = again.resume("orders", &answer["epoch"], 3).await;
    assert_eq!(
        (&resumed["recovered"], &resumed["missed"]),
        (&json!(true), &json!(147))
    );
    served.publish_numbers("acme", "orders", 151, 153).await;
    assert_eq!(
        offsets(&mut again, 150).await,
        (4..=153).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_before_the_first_look_of_a_process_reaches_its_subscribers() {
    let fixture = Fixture::new().await;
    let (starting, at_work) = (
        gateway(fixture.queue.clone(), &fixture, limits()),
        gateway(fixture.queue.clone(), &fixture, limits()),
    );
    let peer = starting.hub.join(&"acme".into());
    for name in ["orders", "presence.1"] {
        let channel = ChannelName::stored(name);
        starting.hub.subscribe(&peer, &channel);
        let point = starting.join_point("acme", &channel, None).await.unwrap();
        peer.state().join(&channel, point.as_ref());
        let published = fixture.queue.publish_as("acme", name, &json!(1)).await;
        published.unwrap();
    }
    let cancel = CancellationToken::new();
    let _stop = cancel.clone().drop_guard();
    tokio::spawn(at_work.run(cancel.child_token()));
    collected(&fixture.queue).await;
    tokio::spawn(starting.clone().run(cancel.child_token()));
    for _ in 0..2 {
        eventually("a message is there", super::client::PATIENCE, || async {
            let frame = peer.state().outbox.pop();
            frame.map(|_| ())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_kept_whole_is_not_recovered_at_all() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    let epoch = reader.subscribe("short.1").await["epoch"].clone();
    served.publish_numbers("acme", "short.1", 1, 60).await;
    offsets(&mut reader, 60).await;
    // A channel gives up what it has too many of after the readers have got it.
    let first_offset = "select first_offset from flyball.channel where name = 'short.1'";
    eventually(
        "the channel is trimmed",
        super::client::PATIENCE,
        || async {
            let first = sqlx::query_scalar::<_, i64>(first_offset).fetch_one(&served.queue.pool);
            (first.await.unwrap() > 6).then_some(())
        },
    )
    .await;
    for (epoch, offset, recovered) in [
        (epoch.clone(), 5, false),
        (epoch.clone(), 60, true),
        (epoch.clone(), 61, false),
        (json!("99"), 60, false),
    ] {
        let mut again = served.client("acme-reader").await;
        let answer = again.resume("short.1", &epoch, offset).await;
        assert_eq!(answer["recovered"], json!(recovered), "{epoch} {offset}");
        assert_eq!(
            (&answer["missed"], &answer["offset"]),
            (&json!(0), &json!(60))
        );
    }
}

/// Moves all that was published into the history, of which so many are kept.
async fn collect_all(queue: &Queue, kept_max: i32) {
    let admit = |waiting: Vec<WaitingPublications>| -> BoxFuture<'static, Vec<TenantGrant>> {
        let grant = |one: WaitingPublications| TenantGrant {
            tenant: one.tenant,
            messages: one.messages,
            wait: None,
            reported: None,
        };
        let grants: Vec<TenantGrant> = waiting.into_iter().map(grant).collect();
        Box::pin(std::future::ready(grants))
    };
    let kept_s = 300;
    let histories = [("*", ChannelHistory { kept_s, kept_max })];
    let collected = collect(&queue.pool, 100, &[], &admit, &histories).await;
    collected.unwrap();
}

#[tokio::test]
async fn what_a_channel_did_not_keep_for_a_while_is_not_recovered() {
    let fixture = Fixture::new().await;
    let queue = &fixture.queue;
    for (data, kept_max) in [(1, 10), (2, 0), (3, 10)] {
        let published = queue.publish_as("acme", "orders", &json!(data)).await;
        published.unwrap();
        collect_all(queue, kept_max).await;
    }
    let orders = ("acme".to_owned(), "orders".to_owned());
    let place = positions(&queue.pool, &[orders]).await.unwrap()[0];
    let has_all_after = [1, 2, 3].map(|offset| place.has_all_after(place.epoch, offset));
    assert_eq!((has_all_after, place.last_offset), ([false, true, true], 3));
}

#[tokio::test]
async fn what_a_channel_does_not_keep_is_counted_also_while_an_erasure_holds_it() {
    let fixture = Fixture::new().await;
    let queue = &fixture.queue;
    let publish = async |data: i32| {
        let published = queue.publish_as("acme", "orders", &json!(data)).await;
        published.unwrap();
    };
    publish(1).await;
    collect_all(queue, 10).await;
    publish(2).await;
    let mut erasure = queue.pool.begin().await.unwrap();
    let forget = "update flyball.channel set first_offset = last_offset + 1";
    sqlx::query(forget).execute(&mut erasure).await.unwrap();
    let ends = async {
        eventually("the collector waits", super::client::PATIENCE, || async {
            let waiting = "select count(*) from pg_stat_activity
                where datname = current_database() and wait_event_type = 'Lock'";
            let waiting: i64 = sqlx::query_scalar(waiting)
                .fetch_one(&queue.pool)
                .await
                .unwrap();
            (waiting > 0).then_some(())
        })
        .await;
        erasure.commit().await.unwrap();
    };

    tokio::join!(collect_all(queue, 0), ends);

    let orders = ("acme".to_owned(), "orders".to_owned());
    let place = positions(&queue.pool, &[orders]).await.unwrap()[0];
    assert_eq!((place.first_offset, place.last_offset), (3, 2));
}

/// Inboxes, to which campaigns of many tenants go at once.
#[tokio::test]
async fn thousands_of_channels_are_collected_at_once() {
    let fixture = Fixture::new().await;
    let queue = &fixture.queue;
    let insert = "insert into flyball.publication (tenant, channel, data) \
         select 't' || n % 120, 'c' || n, '1' from generate_series(1, 12000) n";
    sqlx::query(insert).execute(&queue.pool).await.unwrap();
    tokio::time::timeout(super::client::PATIENCE, collect_all(queue, 10))
        .await
        .expect("one look at each message and each channel");
    let kept: i64 =
        sqlx::query_scalar(r#"select count(*) from flyball.channel_message where "offset" = 1"#)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
    assert_eq!(kept, 12_000);
}

#[tokio::test]
async fn the_age_of_the_oldest_message_that_waits_is_known() {
    let fixture = Fixture::new().await;
    let queue = &fixture.queue;
    let found = gateway_backlog(&queue.pool).await.unwrap();
    assert_eq!((found.needs_maintenance, found.oldest_s), (false, 0.0));
    let insert = "insert into flyball.publication (tenant, channel, data, created_at) \
         values ('acme', 'orders', '1', now() - interval '90 s'), ('late', 'orders', '1', now())";
    sqlx::query(insert).execute(&queue.pool).await.unwrap();
    let found = gateway_backlog(&queue.pool).await.unwrap();
    assert!(
        !found.needs_maintenance && found.oldest_s >= 90.0,
        "{found:?}"
    );
    collect_all(queue, 10).await;
    let found = gateway_backlog(&queue.pool).await.unwrap();
    assert_eq!((found.needs_maintenance, found.oldest_s), (true, 0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_is_told_and_still_gets_every_offset() {
    let served = GatewayServer::with(flyball::gateway::limits::GatewayLimits {
        per_second: 100_000,
        ..super::fixture::limits()
    })
    .await;
    let mut slow = served.client("acme-reader").await;
    slow.subscribe("orders").await;
    let mut fast = served.client("acme-reader").await;
    fast.subscribe("orders").await;
    let large = json!("x".repeat(30_000));
    for _ in 0..300 {
        let (status, _) = served.publish("acme", "orders", &large).await;
        assert_eq!(status, 202);
    }
    assert_eq!(offsets(&mut fast, 300).await, (1..=300).collect::<Vec<_>>());
    let (mut got, mut lags) = (Vec::new(), 0);
    while got.len() < 300 {
        let frame = slow.next().await;
        match frame["type"].as_str() {
            Some("message") => got.push(frame["offset"].as_i64().unwrap()),
            Some("lag") => lags += 1,
            _ => {}
        }
    }
    assert_eq!(got, (1..=300).collect::<Vec<_>>());
    assert!(lags >= 1, "the reader was never behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_message_that_is_too_large_to_be_sent_is_a_gap_and_the_next_one_arrives() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    let epoch = reader.subscribe("orders").await["epoch"].clone();
    reader.subscribe("presence.1").await;
    // Past the functions that publish, which refuse a message of this size.
    let statement = "insert into flyball.publication (tenant, channel, data) \
         select 'acme', c, (select jsonb_agg(1e308) from generate_series(1, 2000)) from unnest('{orders,presence.1}'::text[]) c";
    sqlx::query(statement)
        .execute(&served.queue.pool)
        .await
        .unwrap();
    let gap = json!({"type": "gap", "channel": "orders", "missed": 1, "epoch": epoch, "offset": 1});
    let unnumbered = json!({"type": "gap", "channel": "presence.1", "missed": 1});
    served.publish("acme", "orders", &json!("after")).await;
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.push(reader.next().await);
    }
    assert_eq!((&frames[0], &frames[1]), (&gap, &unnumbered));
    assert_eq!(frames[2]["data"], "after");

    let mut again = served.client("acme-reader").await;
    let resumed = again.resume("orders", &epoch, 0).await;
    assert_eq!(
        (&resumed["recovered"], &resumed["missed"]),
        (&json!(true), &json!(2))
    );
    assert_eq!(again.next().await, gap);
    assert_eq!(again.next().await["data"], "after");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_whose_end_has_gone_back_is_a_gap_for_its_readers() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    let epoch = reader.subscribe("orders").await["epoch"].clone();
    served.publish_numbers("acme", "orders", 1, 5).await;
    assert_eq!(offsets(&mut reader, 5).await, [1, 2, 3, 4, 5]);
    // Real time: a gateway looks for the end once a second, and first after an error of Postgres, of
    // which there is none here.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    // As a copy that lacks the last two messages; their offsets are given again.
    for statement in [
        "delete from flyball.channel_message where \"offset\" > 3",
        "update flyball.channel set last_offset = 3",
    ] {
        sqlx::query(statement)
            .execute(&served.queue.pool)
            .await
            .unwrap();
    }
    served.publish_numbers("acme", "orders", 6, 8).await;
    assert_eq!(reader.closed().await, 4109);

    let mut again = served.client("acme-reader").await;
    let answer = again.resume("orders", &epoch, 5).await;
    assert_eq!(
        (&answer["recovered"], &answer["offset"]),
        (&json!(false), &json!(6))
    );
    assert_ne!(answer["epoch"], epoch);
    served.publish_numbers("acme", "orders", 9, 9).await;
    let message = again.next_of("message").await;
    assert_eq!(
        (&message["data"], &message["offset"]),
        (&json!(9), &json!(7))
    );
}

/// The places of subscriptions count what was there before their process read anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_history_that_goes_back_before_a_process_has_read_anything_is_a_gap_too() {
    let fixture = Fixture::new().await;
    let queue = &fixture.queue;
    for n in 1..=5 {
        let published = queue.publish_as("acme", "orders", &json!(n)).await;
        published.unwrap();
    }
    collect_all(queue, 1000).await;
    let gateway = gateway(queue.clone(), &fixture, limits());
    let (peer, orders) = (
        gateway.hub.join(&"acme".into()),
        ChannelName::stored("orders"),
    );
    gateway.hub.subscribe(&peer, &orders);
    let point = gateway.join_point("acme", &orders, None).await.unwrap();
    peer.state().join(&orders, point.as_ref());
    for statement in [
        "delete from flyball.channel_message where \"offset\" > 3",
        "update flyball.channel set last_offset = 3",
    ] {
        sqlx::query(statement).execute(&queue.pool).await.unwrap();
    }
    let cancel = CancellationToken::new();
    let _stop = cancel.clone().drop_guard();
    tokio::spawn(gateway.clone().run(cancel.child_token()));
    eventually("the reader doubts", super::client::PATIENCE, || async {
        let behind = peer.state().behind();
        behind.map(|_| ())
    })
    .await;
}

/// Reads 120 messages, of which every second one is small.
async fn assert_mixed(client: &mut WsClient) {
    for n in 1..=120 {
        let frame = client.next_of("message").await;
        let length = frame["data"].as_str().map(str::len);
        let wanted = if n % 2 == 0 { 5 } else { 60_000 };
        assert_eq!((&frame["offset"], length), (&json!(n), Some(wanted)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_are_read_a_few_at_a_time_and_in_order() {
    let served = GatewayServer::with(flyball::gateway::limits::GatewayLimits {
        per_second: 100_000,
        ..super::fixture::limits()
    })
    .await;
    let mut reader = served.client("acme-reader").await;
    let epoch = reader.subscribe("orders").await["epoch"].clone();
    // Every second one is small; those are read with their messages.
    let mixed = "select flyball.as_tenant('acme'), (select count(*) from (select flyball.publish('orders', to_jsonb(repeat('x', case when n % 2 = 0 then 5 else 60000 end))) \
         from generate_series(1, 120) n) as p)";
    sqlx::query(mixed)
        .execute(&served.queue.pool)
        .await
        .unwrap();
    let mut again = served.client("acme-reader").await;
    assert_mixed(&mut reader).await;
    again.resume("orders", &epoch, 0).await;
    assert_mixed(&mut again).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_without_history_has_no_offsets() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    let answer = reader.subscribe("presence.1").await;
    assert_eq!(
        (answer.get("epoch"), &answer["recovered"]),
        (None, &json!(false))
    );
    served.publish("acme", "presence.1", &json!("here")).await;
    let message = reader.next().await;
    assert_eq!(
        (&message["data"], message.get("offset")),
        (&json!("here"), None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_a_channel_resume_after_the_last_id() {
    let served = GatewayServer::start().await;
    let events = |last: Option<String>| {
        let mut request = served
            .request(reqwest::Method::GET, "/api/v1/channels/orders/events")
            .bearer_auth(token("acme-reader"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request.send()
    };
    let answer = events(None).await.unwrap();
    // A proxy would keep the events.
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    let mut stream = Events::of(answer);
    assert_eq!(stream.next().await.0, "subscribed");
    served.publish_numbers("acme", "orders", 1, 2).await;
    let (_, first_id, first) = stream.next_message().await;
    assert_eq!(first["data"], 1);
    assert_eq!(stream.next_message().await.2["data"], 2);
    drop(stream);
    served.publish_numbers("acme", "orders", 3, 3).await;
    collected(&served.queue).await;
    let mut stream = Events::of(events(Some(first_id)).await.unwrap());
    let (_, _, answer) = stream.next().await;
    assert_eq!(
        (&answer["recovered"], &answer["missed"]),
        (&json!(true), &json!(2))
    );
    assert_eq!(stream.next_message().await.2["data"], 2);
    assert_eq!(stream.next_message().await.2["data"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_before_its_first_message_resumes_where_it_began() {
    let served = GatewayServer::start().await;
    let events = |query: &str, last: Option<&str>| {
        let path = format!("/api/v1/channels/orders/events{query}");
        let mut request = served
            .request(reqwest::Method::GET, &path)
            .bearer_auth(token("acme-reader"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request.send()
    };
    served.publish_numbers("acme", "orders", 1, 1).await;
    collected(&served.queue).await;
    let mut stream = Events::of(events("", None).await.unwrap());
    let (_, began, answer) = stream.next().await;
    let place = format!("{}:1", answer["epoch"].as_str().unwrap());
    assert_eq!(began, place);
    drop(stream);
    served.publish_numbers("acme", "orders", 2, 2).await;
    collected(&served.queue).await;
    // The header is newer than the address of the stream, which a page cannot change.
    for (query, last) in [
        (String::new(), Some(began.as_str())),
        (format!("?since={began}"), None),
        (format!("?since={began}"), Some("")),
        ("?since=9999:7".to_owned(), Some(began.as_str())),
    ] {
        let mut stream = Events::of(events(&query, last).await.unwrap());
        let (_, id, answer) = stream.next().await;
        assert_eq!((&answer["recovered"], &id), (&json!(true), &began));
        assert_eq!(stream.next_message().await.2["data"], 2);
    }
    // A place from which nothing can be recovered is replaced by the present one.
    let mut stream = Events::of(events("", Some("9999:7")).await.unwrap());
    let (_, id, answer) = stream.next().await;
    assert_eq!(answer["recovered"], false);
    assert_eq!(id, began.replace(":1", ":2"));

    let refused = events("?since=soon", None).await.unwrap();
    assert_eq!(refused.status(), 400);
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["errors"][0]["pointer"], "/since");
}

/// The events of a response: name, id and data.
struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    fn of(response: reqwest::Response) -> Self {
        assert_eq!(response.status(), 200);
        Self {
            response,
            text: String::new(),
        }
    }

    async fn next(&mut self) -> (String, String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.unwrap_or_default()
                        .trim_start_matches(": ")
                        .trim()
                        .to_owned()
                };
                let found = (field("event"), field("id"), field("data"));
                self.text = rest.to_owned();
                if found.0.is_empty() {
                    continue;
                }
                return (found.0, found.1, serde_json::from_str(&found.2).unwrap());
            }
            let chunk = tokio::time::timeout(super::client::PATIENCE, self.response.chunk()).await;
            let chunk = chunk
                .expect("an event in time")
                .unwrap()
                .expect("an open stream");
            self.text.push_str(&String::from_utf8_lossy(&chunk));
        }
    }

    async fn next_message(&mut self) -> (String, String, Value) {
        loop {
            let event = self.next().await;
            if event.0 == "message" {
                return event;
            }
        }
    }
}
