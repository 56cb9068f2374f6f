//! Whatever a client sends, it gets an answer or a close code, and nobody else notices.

use futures_util::SinkExt as _;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::fixture::GatewayServer;

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_frame_is_answered_and_the_connection_stays_open() {
    let served = GatewayServer::start().await;
    let mut client = served.client("acme").await;
    for (text, words) in [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "type"),
        (r#"{"type":"dance"}"#, "subscribe"),
        (r#"{"type":"subscribe"}"#, "/channel"),
        (r#"{"type":"publish","channel":"c"}"#, "/data"),
        (
            r#"{"type":"publish","channel":"c","data":"\u0000"}"#,
            "U+0000",
        ),
        (
            r#"{"type":"publish","channel":"c","data":1e999}"#,
            "not JSON",
        ),
        (r#"{"type":"ack","channel":"c","offset":"1"}"#, "/offset"),
    ] {
        client.send_text(text.to_owned()).await;
        let answer = client.next().await;
        assert_eq!(answer["code"], "BAD_FRAME", "{text}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains(words), "{text}: {message}");
    }
    client
        .socket
        .send(Message::binary(vec![1, 2, 3]))
        .await
        .unwrap();
    assert_eq!(client.next().await["code"], "BAD_FRAME");
    client
        .socket
        .send(Message::Ping(b"x".to_vec().into()))
        .await
        .unwrap();
    client.send(&json!({"type": "pong"})).await;
    client
        .send(&json!({"type": "ack", "channel": "c", "offset": 1}))
        .await;
    assert_eq!(client_frame(&mut client).await["code"], "NOT_SUBSCRIBED");
}

/// Returns the next frame after the pong.
async fn client_frame(client: &mut super::client::WsClient) -> serde_json::Value {
    use futures_util::StreamExt as _;
    loop {
        match client.socket.next().await.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_close_frame_of_a_client_is_answered() {
    use tokio_tungstenite::tungstenite::protocol::CloseFrame;

    let served = GatewayServer::start().await;
    for code in [1000, 1001, 4321] {
        let mut client = served.client("acme").await;
        let frame = CloseFrame {
            code: code.into(),
            reason: "bye".into(),
        };
        client
            .socket
            .send(Message::Close(Some(frame)))
            .await
            .unwrap();
        assert_eq!(client.closed().await, code);
    }
}

/// Bytes after the handshake that follow no rule, or nearly follow one: the connection ends or is
/// answered, the server lives, and others notice nothing.
#[tokio::test(flavor = "multi_thread")]
async fn no_bytes_of_a_client_disturb_the_others() {
    use proptest::prelude::{Strategy as _, any};
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let served = GatewayServer::start().await;
    let mut witness = served.client("acme-reader").await;
    witness.subscribe("orders").await;
    let mut runner = TestRunner::deterministic();
    let garbage = proptest::collection::vec(any::<u8>(), 1..2000);
    // A frame: final or not, any opcode and length, masked or not, with any content.
    let frame = (
        any::<u8>(),
        any::<u8>(),
        proptest::collection::vec(any::<u8>(), 0..300),
    );
    let frames = proptest::collection::vec(frame, 1..8);
    for round in 0..120 {
        let bearer = format!("Bearer {}", super::fixture::token("acme"));
        let headers = [("authorization", bearer.as_str())];
        let socket = super::client::open(&served.base, "/api/v1/ws", &headers);
        let Ok(socket) = socket.await else {
            panic!("round {round}: the server refuses connections");
        };
        let mut stream = socket.into_inner();
        let bytes = match round % 2 {
            0 => garbage.new_tree(&mut runner).unwrap().current(),
            _ => {
                let frames = frames.new_tree(&mut runner).unwrap().current();
                let each = frames
                    .into_iter()
                    .flat_map(|(first, length, content)| [vec![first, length], content].concat());
                each.collect()
            }
        };
        // The server may close before it has read everything.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        let ended = tokio::time::timeout(super::client::PATIENCE, reading).await;
        assert!(
            ended.is_ok(),
            "round {round}: the connection stays open: {bytes:?}"
        );
    }
    let (status, _) = served.publish("acme", "orders", &json!("still here")).await;
    assert_eq!(status, 202);
    assert_eq!(witness.next().await["data"], "still here");
    assert_eq!(served.gateway.metrics.open(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_fragments_with_pings_between_is_one_message() {
    use tokio_tungstenite::tungstenite::protocol::frame::Frame;
    use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

    let served = GatewayServer::start().await;
    let mut client = served.client("acme").await;
    let text =
        json!({"type": "publish", "channel": "c", "data": "in parts", "ref": "p"}).to_string();
    let (first, rest) = text.split_at(20);
    let part = |text: &str, opcode, is_final| {
        Message::Frame(Frame::message(
            text.as_bytes().to_vec(),
            OpCode::Data(opcode),
            is_final,
        ))
    };
    client
        .socket
        .send(part(first, Data::Text, false))
        .await
        .unwrap();
    client
        .socket
        .send(Message::Ping(b"now".to_vec().into()))
        .await
        .unwrap();
    client
        .socket
        .send(part(rest, Data::Continue, true))
        .await
        .unwrap();
    assert_eq!(client_frame(&mut client).await["ref"], "p");

    // Fragments that are too large together close the connection as one message does.
    client
        .socket
        .send(part(&"x".repeat(40_000), Data::Text, false))
        .await
        .unwrap();
    client
        .socket
        .send(part(&"x".repeat(40_000), Data::Continue, true))
        .await
        .unwrap();
    assert_eq!(client.closed().await, 1009);

    let mut client = served.client("acme").await;
    let invalid = Frame::message(vec![0xff, 0xfe], OpCode::Data(Data::Text), true);
    client.socket.send(Message::Frame(invalid)).await.unwrap();
    assert_eq!(client.closed().await, 1007);
    let mut client = served.client("acme").await;
    client
        .socket
        .send(part("x", Data::Continue, true))
        .await
        .unwrap();
    assert_eq!(client.closed().await, 1002);
}

/// Pings, warnings and the like are no messages: a thousand idle connections get forty a second.
#[tokio::test(flavor = "multi_thread")]
async fn messages_alone_count_as_delivered() {
    use std::time::Duration;

    let served = GatewayServer::start().await;
    let mut client = served.client("acme").await;
    client.subscribe("orders").await;
    served.gateway.hub.limit("acme", Duration::from_secs(1));
    assert_eq!(client.next().await["code"], "WS_RATE_LIMITED");
    for n in 1..=2 {
        let (status, _) = served.publish("acme", "orders", &json!(n)).await;
        assert_eq!(status, 202);
        assert_eq!(client.next_of("message").await["data"], n);
    }
    // Messages are counted before the next frame of the client is read.
    client
        .send(&json!({"type": "unsubscribe", "channel": "orders"}))
        .await;
    client.next_of("unsubscribed").await;
    let metrics = served.metrics();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("flyball_gateway_delivered_total"));
    assert_eq!(line, Some("flyball_gateway_delivered_total 2"));
}

/// With `refuse=close` the status of each is 101, so nothing else tells of them.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_not_let_in_are_counted() {
    use super::client::WsClient;

    let served = GatewayServer::start().await;
    let (own, foreign) = ([("origin", "")], [("origin", "https://elsewhere.example")]);
    let ticket = "/api/v1/ws?refuse=close&ticket=unknown";
    let page = "/api/v1/ws?refuse=close";
    for (path, headers, code) in [(ticket, own, 4001), (page, foreign, 4003)] {
        let socket = super::client::open(&served.base, path, &headers).await;
        let mut client = WsClient {
            socket: socket.unwrap(),
            hello: json!(null),
        };
        assert_eq!(client.closed().await, code);
    }
    let mut stranger = WsClient {
        socket: super::client::open(&served.base, page, &[]).await.unwrap(),
        hello: json!(null),
    };
    stranger
        .send(&json!({"type": "refresh", "token": "wrong"}))
        .await;
    assert_eq!(stranger.closed().await, 4001);
    let metrics = served.metrics();
    for (reason, clients) in [("credential", 2), ("forbidden", 1)] {
        let line = format!("flyball_gateway_refused_total{{reason=\"{reason}\"}} {clients}");
        assert!(metrics.lines().any(|one| one == line), "{line}: {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_pings_and_no_credential_is_not_waited_for() {
    use std::time::Instant;

    use flyball::gateway::limits::CREDENTIAL_WITHIN;

    let served = GatewayServer::start().await;
    let page = super::client::open(&served.base, "/api/v1/ws", &[]).await;
    let mut stranger = super::client::WsClient {
        socket: page.unwrap(),
        hello: json!(null),
    };
    let began = Instant::now();
    for _ in 0..20 {
        let ping = Message::Ping(b"x".to_vec().into());
        // The server may have closed the connection by now.
        let _ = stranger.socket.send(ping).await;
    }
    assert_eq!(stranger.closed().await, 4001);
    assert!(began.elapsed() < CREDENTIAL_WITHIN);
}
