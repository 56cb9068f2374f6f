//! A client of the gateway: a WebSocket of this test.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};

/// The longest wait for a frame.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct WsClient {
    pub socket: WebSocketStream<TcpStream>,
    pub hello: Value,
}

/// The refusal of a connection: its status and its problem.
#[derive(Debug)]
pub struct RefusedUpgrade {
    pub status: u16,
    pub retry_after: Option<String>,
    pub problem: Value,
}

/// Opens a socket at a path of a server, with headers; the first frame is not read.
pub async fn open(
    base: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<WebSocketStream<TcpStream>, RefusedUpgrade> {
    let host = base.trim_start_matches("http://");
    let mut request = format!("ws://{host}{path}").into_client_request().unwrap();
    let all = [("sec-websocket-protocol", "flyball.v1")];
    for (name, value) in all.iter().chain(headers) {
        if value.is_empty() {
            continue;
        }
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(host).await.unwrap();
    match tokio_tungstenite::client_async(request, stream).await {
        Ok((socket, response)) => {
            let protocol = response.headers().get("sec-websocket-protocol").unwrap();
            assert_eq!(protocol, "flyball.v1");
            Ok(socket)
        }
        Err(Error::Http(response)) => {
            let retry_after = response.headers().get("retry-after");
            Err(RefusedUpgrade {
                status: response.status().as_u16(),
                retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
                problem: serde_json::from_slice(response.body().as_deref().unwrap_or_default())
                    .unwrap_or_default(),
            })
        }
        Err(error) => panic!("the upgrade failed: {error}"),
    }
}

impl WsClient {
    /// Connects with a token.
    pub async fn connect(base: &str, token: &str) -> Self {
        let token = format!("Bearer {token}");
        Self::with(base, "/api/v1/ws", &[("authorization", &token)]).await
    }

    /// Connects and reads the first frame.
    pub async fn with(base: &str, path: &str, headers: &[(&str, &str)]) -> Self {
        let socket = open(base, path, headers).await.unwrap();
        let mut client = Self {
            socket,
            hello: Value::Null,
        };
        client.hello = client.next().await;
        assert_eq!(client.hello["type"], "hello");
        client
    }

    pub async fn send(&mut self, frame: &Value) {
        self.send_text(frame.to_string()).await;
    }

    pub async fn send_text(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// Returns the next frame.
    pub async fn next(&mut self) -> Value {
        match self.received().await {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("not a frame: {other:?}"),
        }
    }

    /// Returns the next frame, which may come later than usual.
    pub async fn next_within(&mut self, patience: Duration) -> Value {
        let next = tokio::time::timeout(patience, self.socket.next()).await;
        let next = next.expect("a frame in time").expect("an open connection");
        match next.expect("a sound message") {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("not a frame: {other:?}"),
        }
    }

    /// Returns the next frame of a type; others are dropped.
    pub async fn next_of(&mut self, kind: &str) -> Value {
        loop {
            let frame = self.next().await;
            if frame["type"] == kind {
                return frame;
            }
        }
    }

    /// Returns the next message; pings are answered, other frames are dropped.
    pub async fn next_message(&mut self) -> Value {
        loop {
            let frame = self.next().await;
            if frame["type"] == "ping" {
                self.send(&serde_json::json!({"type": "pong"})).await;
            } else if frame["type"] == "message" {
                return frame;
            }
        }
    }

    /// Returns the code with which the server closes; frames before it are dropped.
    pub async fn closed(&mut self) -> u16 {
        loop {
            if let Message::Close(Some(frame)) = self.received().await {
                return frame.code.into();
            }
        }
    }

    async fn received(&mut self) -> Message {
        let next = tokio::time::timeout(PATIENCE, self.socket.next()).await;
        let next = next.expect("a message in time");
        next.expect("an open connection").expect("a sound message")
    }

    /// Subscribes and returns the answer.
    pub async fn subscribe(&mut self, channel: &str) -> Value {
        self.send(&json!({"type": "subscribe", "channel": channel}))
            .await;
        self.next().await
    }

    /// Subscribes after a message and returns the answer.
    pub async fn resume(&mut self, channel: &str, epoch: &Value, offset: i64) -> Value {
        let since = json!({"epoch": epoch, "offset": offset});
        self.send(&json!({"type": "subscribe", "channel": channel, "since": since}))
            .await;
        self.next().await
    }
}
