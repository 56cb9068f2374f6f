//! A client that costs little: the handshake and the frames by hand, because thousands of them share
//! the cores with the gateway.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct BenchClient {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl BenchClient {
    /// Opens a connection and subscribes to channels; returns when the server has answered.
    pub async fn open(address: &str, token: &str, channels: &[String]) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let request = format!(
            "GET /api/v1/ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: flyball.v1\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut client = Self {
            stream,
            buffer: Vec::new(),
        };
        let head = loop {
            if let Some(end) = client
                .buffer
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
            {
                break client.buffer.drain(..end + 4).collect::<Vec<u8>>();
            }
            client.read().await?;
        };
        let head = String::from_utf8_lossy(&head);
        ensure!(head.starts_with("HTTP/1.1 101"), "{head}");
        client.frame().await?;
        for channel in channels {
            client
                .send(&format!(r#"{{"type":"subscribe","channel":"{channel}"}}"#))
                .await?;
        }
        let mut left = channels.len();
        while left > 0 {
            let answer = client.frame().await?;
            // The tenant may be at its limit while its readers come.
            if answer.windows(9).any(|nine| nine == br#""warning""#) {
                continue;
            }
            left -= 1;
            ensure!(
                answer.starts_with(br#"{"channel"#)
                    || answer.windows(10).any(|ten| ten == b"subscribed"),
                "{}",
                String::from_utf8_lossy(&answer)
            );
        }
        client.buffer.shrink_to_fit();
        Ok(client)
    }

    async fn send(&mut self, text: &str) -> anyhow::Result<()> {
        self.stream.write_all(&text_frame(text)).await?;
        Ok(())
    }

    /// Publishes so many messages a second to a channel, as far as the gateway takes them, until it
    /// closes the connection. Answers are read and dropped.
    pub async fn flood(self, channel: &str, per_second: f64) -> anyhow::Result<()> {
        let (mut answers, mut requests) = self.stream.into_split();
        let drop_answers = async move {
            let mut part = [0; 16_384];
            while answers.read(&mut part).await? > 0 {}
            Ok(())
        };
        let text = "x".repeat(120);
        let frame = text_frame(&format!(
            r#"{{"type":"publish","channel":"{channel}","data":{{"text":"{text}"}}}}"#
        ));
        let publish = async move {
            let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / per_second));
            loop {
                ticks.tick().await;
                requests.write_all(&frame).await?;
            }
        };
        tokio::select! {
            ended = drop_answers => ended,
            failed = publish => failed,
        }
    }

    /// Returns the next frame; pings are answered.
    pub async fn frame(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            let Some(frame) = self.buffered() else {
                self.read().await?;
                continue;
            };
            if frame == br#"{"type":"ping"}"# {
                self.send(r#"{"type":"pong"}"#).await?;
                continue;
            }
            return Ok(frame);
        }
    }

    fn buffered(&mut self) -> Option<Vec<u8>> {
        let short = usize::from(*self.buffer.get(1)? & 0x7f);
        let (begin, length) = match short {
            126 => (
                4,
                usize::from(u16::from_be_bytes([
                    *self.buffer.get(2)?,
                    *self.buffer.get(3)?,
                ])),
            ),
            127 => (
                10,
                u64::from_be_bytes(self.buffer.get(2..10)?.try_into().ok()?) as usize,
            ),
            short => (2, short),
        };
        if self.buffer.len() < begin + length {
            return None;
        }
        let frame = self.buffer[begin..begin + length].to_vec();
        self.buffer.drain(..begin + length);
        Some(frame)
    }

    async fn read(&mut self) -> anyhow::Result<()> {
        let mut part = [0; 16_384];
        let reading = self.stream.read(&mut part);
        let bytes = tokio::time::timeout(PATIENCE, reading)
            .await
            .context("the gateway sends nothing")??;
        ensure!(bytes > 0, "the gateway closed a connection");
        self.buffer.extend(&part[..bytes]);
        Ok(())
    }

    /// Counts messages of the channel until `messages` have come; cheaper than [`Self::frame`].
    pub async fn count(&mut self, messages: usize) -> anyhow::Result<()> {
        let mut left = messages;
        let mut at = 0;
        while left > 0 {
            let header = self.buffer.get(at..at + 4);
            let Some(header) = header else {
                self.buffer.drain(..at);
                at = 0;
                self.read().await?;
                continue;
            };
            let (begin, length) = match header[1] & 0x7f {
                126 => (4, usize::from(u16::from_be_bytes([header[2], header[3]]))),
                short => (2, usize::from(short)),
            };
            if self.buffer.len() < at + begin + length {
                self.buffer.drain(..at);
                at = 0;
                self.read().await?;
                continue;
            }
            let frame = &self.buffer[at + begin..at + begin + length];
            if frame.starts_with(br#"{"type":"message""#) {
                left -= 1;
            }
            at += begin + length;
        }
        self.buffer.drain(..at);
        Ok(())
    }
}

/// Returns a frame of a client with this text. A mask of zeros leaves it as it is.
fn text_frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81];
    match text.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

/// Returns the time in the data of a message, in microseconds.
pub fn published_at(frame: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(frame).ok()?;
    let (_, rest) = text.split_once("\"at\": ")?;
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}
