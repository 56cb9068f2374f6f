//! Gateways as real processes: killed in traffic, racing for the last connections, stopped in order.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::client::{PATIENCE, WsClient, open};
use crate::support::eventually;
use crate::support::process::{Process, ProcessFixture};

pub const SECRET: &str = "0123456789-acme-token";

const TOKENS: &str = r#"
[api_tokens.acme]
tenant = "acme"
secret_env = "ACME_TOKEN"
scopes = ["channels:subscribe", "channels:publish"]
"#;

pub struct Gateways {
    processes: ProcessFixture,
}

impl Gateways {
    pub async fn new() -> Self {
        let processes = ProcessFixture::new("rps = -1").await;
        processes.settings_file(TOKENS);
        Self { processes }
    }

    /// Starts a process; returns it with its base URL.
    pub async fn serve(&self, settings: &[(&str, &str)]) -> (Process, String) {
        let all = [&[("ACME_TOKEN", SECRET)], settings].concat();
        let process = self.processes.serve_with(&["--roles", "api"], &all);
        let base = process.url().await;
        (process, base)
    }

    /// Publishes the numbers from `from` to `to`, each in a transaction of its own.
    pub async fn publish(&self, from: i64, to: i64) {
        for n in from..=to {
            let mut transaction = self.processes.pool().begin().await.unwrap();
            for statement in [
                "select flyball.as_tenant('acme')".to_owned(),
                format!("select flyball.publish('orders', '{n}')"),
            ] {
                sqlx::query(sqlx::AssertSqlSafe(statement))
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
            }
            transaction.commit().await.unwrap();
        }
    }
}

/// Reads messages into `got` until the connection ends or `until` is there.
pub async fn read(client: &mut WsClient, got: &mut Vec<i64>, until: i64) {
    use futures_util::StreamExt as _;
    use tokio_tungstenite::tungstenite::Message;
    while got.last() != Some(&until) {
        match tokio::time::timeout(PATIENCE, client.socket.next()).await {
            Ok(Some(Ok(Message::Text(text)))) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                if frame["type"] == "message" {
                    assert_eq!(frame["data"], frame["offset"], "{frame}");
                    got.push(frame["offset"].as_i64().unwrap());
                }
            }
            Ok(Some(Ok(_))) => {}
            Ok(_) => return,
            Err(_) => panic!("no message in time; got {}", got.len()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_in_traffic_loses_no_offset_and_repeats_none() {
    let gateways = Gateways::new().await;
    let (mut process, mut base) = gateways.serve(&[]).await;
    let mut client = WsClient::connect(&base, SECRET).await;
    let epoch = client.subscribe("orders").await["epoch"].clone();
    let (mut got, mut published) = (Vec::new(), 0);
    for _ in 0..3 {
        let reading = read(&mut client, &mut got, published + 60);
        let writing = async {
            gateways.publish(published + 1, published + 40).await;
            process.kill();
            gateways.publish(published + 41, published + 60).await;
        };
        tokio::join!(reading, writing);
        published += 60;
        (process, base) = gateways.serve(&[]).await;
        client = WsClient::connect(&base, SECRET).await;
        let last = got.last().copied().unwrap_or(0);
        let answer = client.resume("orders", &epoch, last).await;
        assert_eq!(answer["recovered"], true, "{answer}");
        read(&mut client, &mut got, published).await;
    }
    assert_eq!(got, (1..=180).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_race_for_the_last_connections_never_open_one_too_many() {
    let gateways = Gateways::new().await;
    let limit = [("NOTIFY_WS_MAX_CONNECTIONS_PER_TENANT", "20")];
    let (_first, one) = gateways.serve(&limit).await;
    let (_second, two) = gateways.serve(&limit).await;
    let bearer = format!("Bearer {SECRET}");
    let headers = [("authorization", bearer.as_str())];
    // More than the limits of the HTTP API admit in a second, which count no connection.
    let tries =
        (0..700).map(|n| open(if n % 2 == 0 { &one } else { &two }, "/api/v1/ws", &headers));
    let opened = futures_util::future::join_all(tries).await;
    let (held, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    assert_eq!((held.len(), refused.len()), (20, 680));
    for one in &refused {
        let refusal = one.as_ref().err().unwrap();
        let code = refusal.problem["code"].as_str();
        assert_eq!((refusal.status, code), (429, Some("TOO_MANY_CONNECTIONS")));
    }
    // A limit that is raised holds at once.
    let status = gateways.processes.status("ws-connections:acme").await;
    assert!(status.is_some(), "the throttle is made on first use");
    gateways
        .processes
        .redis("HSET {}throttle:ws-connections:acme:knobs concurrency 22")
        .await;
    let mut more = Vec::new();
    for base in [&one, &two] {
        let opened = eventually("one more connection", PATIENCE, || async {
            open(base, "/api/v1/ws", &headers).await.ok()
        });
        more.push(opened.await);
    }
    drop((held, more));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connections_of_a_killed_process_are_free_once_its_report_has_lapsed() {
    let gateways = Gateways::new().await;
    let limit = [("NOTIFY_WS_MAX_CONNECTIONS_PER_TENANT", "3")];
    let (mut first, one) = gateways.serve(&limit).await;
    let (_second, two) = gateways.serve(&limit).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(WsClient::connect(&one, SECRET).await);
    }
    let bearer = format!("Bearer {SECRET}");
    let headers = [("authorization", bearer.as_str())];
    assert!(open(&two, "/api/v1/ws", &headers).await.is_err());
    first.kill();
    let began = Instant::now();
    eventually("a free place", Duration::from_secs(60), || async {
        open(&two, "/api/v1/ws", &headers).await.ok()
    })
    .await;
    // The report was valid for 15 s, so the place was not free before its last part had passed.
    assert!(began.elapsed() > Duration::from_secs(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stops_sends_its_connections_away_one_after_the_other() {
    let gateways = Gateways::new().await;
    let (mut process, base) = gateways.serve(&[("FLYBALL_WS_DRAIN_S", "3")]).await;
    let mut clients = Vec::new();
    for _ in 0..30 {
        let mut client = WsClient::connect(&base, SECRET).await;
        client.subscribe("orders").await;
        clients.push(client);
    }
    process.signal(Signal::TERM);
    let mut told = BTreeSet::new();
    for client in &mut clients {
        let frame = client.next_of("reconnect").await;
        let after_ms = frame["after_ms"].as_u64().unwrap();
        assert!(after_ms < 3000, "{frame}");
        told.insert(after_ms / 300);
        assert_eq!(client.closed().await, 4201);
    }
    assert!(told.len() > 4, "all at once: {told:?}");
    drop(clients);
    let status = process.ends(PATIENCE).await;
    assert!(status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_client_is_published_by_whichever_process_collects() {
    let gateways = Gateways::new().await;
    let (_first, one) = gateways.serve(&[]).await;
    let (_second, two) = gateways.serve(&[]).await;
    let (mut reader, mut writer) = (
        WsClient::connect(&two, SECRET).await,
        WsClient::connect(&one, SECRET).await,
    );
    reader.subscribe("orders").await;
    for n in 1..=20 {
        let frame =
            json!({"type": "publish", "channel": "orders", "data": n, "ref": n.to_string()});
        writer.send(&frame).await;
        assert_eq!(writer.next_of("published").await["ref"], n.to_string());
    }
    let mut got = Vec::new();
    read(&mut reader, &mut got, 20).await;
    assert_eq!(got, (1..=20).collect::<Vec<_>>());
}
