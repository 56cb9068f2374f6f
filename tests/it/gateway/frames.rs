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
