//! Fixtures shared by the tests of drivers besides those of [`super::examples`]: messages, servers,
//! and answers built from the rows of a table.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{Channel, Class, Message, Recipient, SendContext, Sent};
use crate::outbound::retry_after::Headers;

/// Builds a message with a text and no other parts.
pub fn message(channel: Channel, to: &str) -> Message {
    Message {
        id: "job_7".to_owned(),
        channel,
        to: Recipient::parse(channel, to).unwrap(),
        from: None,
        subject: None,
        body: "Hello".to_owned(),
        html: None,
        extra: Map::new(),
        expires_at_s: None,
    }
}

/// Returns the object in a JSON value.
pub fn extra(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Builds the circumstances of an attempt, with a timeout generous enough for a busy machine.
pub fn send_context(now_s: i64) -> SendContext {
    SendContext {
        now_s,
        timeout: Duration::from_secs(30),
        stop: CancellationToken::new(),
    }
}

/// Builds headers from names and values.
pub fn headers(pairs: &[(&str, &str)]) -> Headers {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Returns a status that matches a row's pattern.
pub fn example(pattern: &str) -> String {
    match pattern {
        "*" => "302".to_owned(),
        pattern => pattern.replace('x', "9"),
    }
}

/// Returns the class of an outcome.
pub fn class_of(sent: &Sent) -> Class {
    match sent {
        Sent::Delivered { .. } => Class::Delivered,
        Sent::Accepted { .. } => Class::Accepted,
        Sent::Throttled { scope, .. } => Class::Throttled(*scope),
        Sent::Transient { .. } | Sent::Unable { .. } => Class::Transient,
        Sent::PermanentRecipient {
            suppress: false, ..
        } => Class::Recipient,
        Sent::PermanentRecipient { suppress: true, .. } => Class::Suppress,
        Sent::PermanentRequest { .. } => Class::Request,
        Sent::AccountFailure { .. } => Class::Account,
        Sent::Ambiguous { .. } => Class::Ambiguous,
    }
}

/// Encodes the bytes of a key as PEM.
pub fn pem(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
        lines.join("\n")
    )
}

/// Starts a server that answers each request, given as head and body, with a status and a body.
/// Returns its address.
pub async fn serve(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !is_whole(&request) {
                    let mut chunk = [0; 8192];
                    match stream.read(&mut chunk).await {
                        Ok(read @ 1..) => request.extend_from_slice(&chunk[..read]),
                        _ => return,
                    }
                }
                let (status, body) = answer(&String::from_utf8(request).unwrap());
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            });
        }
    });
    base
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.trim().parse().unwrap())
}
