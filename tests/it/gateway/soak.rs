//! The long forms of the checks of the gateway: `make soak` runs them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flyball::gateway::limits::GatewayLimits;
use futures_util::{SinkExt as _, StreamExt as _, stream};
use rustix::process::Signal;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

use super::client::{WsClient, open};
use super::processes::{Gateways, SECRET, read};

/// Returns the resident memory of a process, in KiB.
fn resident_kib(pid: i32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Opens connections, some at a time.
async fn many(base: &str, count: usize) -> Vec<WsClient> {
    let opening = (0..count).map(|_| WsClient::connect(base, SECRET));
    stream::iter(opening).buffer_unordered(32).collect().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; make soak runs it"]
async fn soak_fifty_kills_in_traffic_lose_no_offset() {
    let gateways = Gateways::new().await;
    let (mut process, mut base) = gateways.serve(&[]).await;
    let mut client = WsClient::connect(&base, SECRET).await;
    let epoch = client.subscribe("orders").await["epoch"].clone();
    let (mut got, mut published) = (Vec::new(), 0);
    for _ in 0..50 {
        let writing = async {
            gateways.publish(published + 1, published + 100).await;
            process.kill();
            gateways.publish(published + 101, published + 150).await;
        };
        tokio::join!(read(&mut client, &mut got, published + 150), writing);
        published += 150;
        (process, base) = gateways.serve(&[]).await;
        client = WsClient::connect(&base, SECRET).await;
        let answer = client
            .resume("orders", &epoch, got.last().copied().unwrap_or(0))
            .await;
        assert_eq!(answer["recovered"], true, "{answer}");
        read(&mut client, &mut got, published).await;
    }
    assert_eq!(got, (1..=7500).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; make soak runs it"]
async fn soak_a_thousand_connections_that_never_read_have_bounded_memory() {
    let gateways = Gateways::new().await;
    let limits = [
        ("NOTIFY_WS_RATE_PER_TENANT", "100000"),
        // One more reads.
        ("NOTIFY_WS_MAX_CONNECTIONS_PER_TENANT", "1001"),
    ];
    let (process, base) = gateways.serve(&limits).await;
    let mut held = many(&base, 1000).await;
    for client in &mut held {
        assert_eq!(client.subscribe("orders").await["type"], "subscribed");
    }
    let before = resident_kib(process.pid());
    let mut witness = WsClient::connect(&base, SECRET).await;
    let epoch = witness.subscribe("orders").await["epoch"].clone();
    assert!(epoch.is_string());
    // Twenty times what a connection may queue.
    let text = "x".repeat(20_000);
    let mut highest: f64 = 0.0;
    for n in 1..=250 {
        let frame = json!({"type": "publish", "channel": "orders", "data": {"n": n, "text": text}});
        witness.send(&frame).await;
        assert_eq!(witness.next_of("message").await["data"]["n"], n);
        highest = highest.max(resident_kib(process.pid()));
    }
    let each = (highest - before) / 1000.0;
    println!("{each:.0} KiB of memory for each connection that never reads");
    assert!(each < 300.0, "{each:.0} KiB each");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; make soak runs it"]
async fn soak_connection_one_thousand_and_one_is_refused_by_two_processes_that_race() {
    let gateways = Gateways::new().await;
    let (_first, one) = gateways.serve(&[]).await;
    let (_second, two) = gateways.serve(&[]).await;
    let bearer = format!("Bearer {SECRET}");
    let headers = [("authorization", bearer.as_str())];
    let opening =
        (0..1100).map(|n| open(if n % 2 == 0 { &one } else { &two }, "/api/v1/ws", &headers));
    let opened: Vec<_> = stream::iter(opening).buffer_unordered(64).collect().await;
    let held = opened.iter().filter(|one| one.is_ok()).count();
    assert_eq!(held, 1000);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes; make soak runs it"]
async fn soak_ten_thousand_connections_are_sent_away_evenly() {
    // Each takes a file descriptor here and one in the server.
    const CONNECTIONS: usize = 10_000;
    const SPREAD_S: u64 = 10;
    let gateways = Gateways::new().await;
    let settings = [
        ("NOTIFY_WS_MAX_CONNECTIONS_PER_TENANT", "100000"),
        ("FLYBALL_WS_DRAIN_S", "10"),
    ];
    let (mut process, base) = gateways.serve(&settings).await;
    let held = many(&base, CONNECTIONS).await;
    process.signal(Signal::TERM);
    let began = Instant::now();
    let ends = held.into_iter().map(|mut client| async move {
        assert_eq!(client.closed().await, 4201);
        began.elapsed().as_secs()
    });
    let mut seconds: BTreeMap<u64, usize> = BTreeMap::new();
    for second in futures_util::future::join_all(ends).await {
        *seconds.entry(second).or_default() += 1;
    }
    println!("closed in each second: {seconds:?}");
    let even = CONNECTIONS as f64 / SPREAD_S as f64;
    let most = *seconds.values().max().unwrap() as f64;
    assert!(most <= 1.5 * even, "{most} in one second, {even} is even");
    assert!(process.ends(Duration::from_secs(20)).await.success());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; make soak runs it"]
async fn soak_a_tenant_over_its_limit_with_a_thousand_readers_costs_another_no_message() {
    const SECONDS: i64 = 30;
    const PER_SECOND: i64 = 5;
    /// The messages a second that an unoptimized build delivers to a thousand readers beside other
    /// work.
    const LIMIT: u32 = 20;
    const FLOOD: i64 = 3 * LIMIT as i64;
    let limits = GatewayLimits {
        per_second: LIMIT,
        ..super::fixture::limits()
    };
    let served = super::fixture::GatewayServer::with(limits).await;
    let opening = (0..999).map(|_| served.client("acme"));
    let crowd: Vec<WsClient> = stream::iter(opening).buffer_unordered(32).collect().await;
    let flooded = crowd.into_iter().map(|mut client| async move {
        client.subscribe("flood").await;
        for n in 1..=SECONDS * FLOOD {
            assert_eq!(client.next_message().await["offset"], n);
        }
    });
    let began = Instant::now();
    let opening = (0..10).map(|_| served.client("zeta"));
    let calm: Vec<WsClient> = stream::iter(opening).buffer_unordered(10).collect().await;
    let calm = calm.into_iter().map(|mut client| async move {
        client.subscribe("orders").await;
        let mut delays = Vec::new();
        for n in 1..=SECONDS * PER_SECOND {
            let frame = client.next_message().await;
            assert_eq!(frame["offset"], n);
            let sent = frame["data"].as_f64().unwrap();
            delays.push(began.elapsed().as_secs_f64() - sent);
        }
        delays
    });
    let writing = async {
        // Real time: all have subscribed by then.
        tokio::time::sleep(Duration::from_secs(2)).await;
        for n in 0..SECONDS {
            let first = n * FLOOD + 1;
            served
                .publish_numbers("acme", "flood", first, first + FLOOD - 1)
                .await;
            for _ in 0..PER_SECOND {
                let sent = json!(began.elapsed().as_secs_f64());
                served.publish("zeta", "orders", &sent).await;
                // Real time: the pace of the calm tenant.
                tokio::time::sleep(Duration::from_millis(1000 / PER_SECOND as u64)).await;
            }
        }
    };
    let (_, delays, ()) = tokio::join!(
        futures_util::future::join_all(flooded),
        futures_util::future::join_all(calm),
        writing
    );
    let mut delays: Vec<f64> = delays.into_iter().flatten().collect();
    delays.sort_by(f64::total_cmp);
    let at = |part: f64| delays[(delays.len() as f64 * part) as usize] * 1e3;
    println!(
        "beside a tenant at three times its limit: p50 {:.1} ms, p99 {:.1} ms",
        at(0.5),
        at(0.99)
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; make soak runs it"]
async fn soak_a_silent_client_a_late_credential_and_an_expired_one_are_closed() {
    let served = super::fixture::GatewayServer::start().await;
    let silent = async {
        let mut client = served.client("acme").await;
        assert_eq!(
            client.next_within(Duration::from_secs(40)).await["type"],
            "ping"
        );
        let began = Instant::now();
        assert_eq!(client.closed().await, 4108);
        assert!(began.elapsed() > Duration::from_secs(7));
    };
    let endless = async {
        let mut client = served.client("acme").await;
        let part = |opcode| {
            let frame = Frame::message(Vec::<u8>::new(), OpCode::Data(opcode), false);
            Message::Frame(frame)
        };
        client.socket.send(part(Data::Text)).await.unwrap();
        let began = Instant::now();
        loop {
            assert!(
                began.elapsed() < Duration::from_secs(45),
                "a message that never ends keeps its connection open"
            );
            // The server may have closed the connection by now.
            let _ = client.socket.send(part(Data::Continue)).await;
            let ping = Message::Ping(b"x".to_vec().into());
            let _ = client.socket.send(ping).await;
            let next = tokio::time::timeout(Duration::from_secs(1), client.socket.next()).await;
            if let Ok(Some(Ok(Message::Close(Some(frame))))) = next {
                assert_eq!(u16::from(frame.code), 4108);
                break;
            }
            // Real time: the pings go on until the server closes.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let late = async {
        let socket = open(&served.base, "/api/v1/ws", &[]).await.unwrap();
        let mut client = WsClient {
            socket,
            hello: serde_json::Value::Null,
        };
        assert_eq!(client.closed().await, 4001);
    };
    let expired = async {
        let token = super::fixture::jwt("acme", 1);
        let mut client = WsClient::connect(&served.base, &token).await;
        assert_eq!(client.next().await["code"], "TOKEN_EXPIRES");
        assert_eq!(
            client.next_within(Duration::from_secs(40)).await["type"],
            "ping"
        );
        client.send(&json!({"type": "pong"})).await;
        assert_eq!(client.closed().await, 4001);
    };
    let streamed = async {
        let token = super::fixture::jwt("acme", 1);
        let path = "/api/v1/channels/orders/events";
        let request = served.request(reqwest::Method::GET, path);
        let mut response = request.bearer_auth(token).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let began = Instant::now();
        let ended = async { while response.chunk().await.unwrap().is_some() {} };
        let ended = tokio::time::timeout(Duration::from_secs(40), ended).await;
        ended.expect("the stream ends with its credential");
        assert!(began.elapsed() > Duration::from_secs(20));
    };
    tokio::join!(silent, endless, late, expired, streamed);
}
