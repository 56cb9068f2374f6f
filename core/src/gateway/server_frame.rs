//! Frames of the gateway: one JSON object each, as text.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::channel_name::ChannelName;
use super::join_point::JoinPoint;
use super::limits::{MESSAGE_BYTES, PING_EVERY, SUBSCRIPTIONS_MAX};
use super::postgres::StoredMessage;
use crate::inbox::InboxCounts;
use crate::inbox::message::InboxPage;

/// The code and text of a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Messages of the tenant wait; the next goes in so many seconds.
    RateLimited { wait_s: u64 },
    /// The credential expires after this time.
    TokenExpires { left: Duration },
}

/// The figures of the first frame that are those of the connection or the settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// The name of the connection.
    pub session: String,
    /// The time over which clients spread that come back after a crash, in seconds.
    pub resume_window_s: u64,
    /// The expiry of the credential, in unix seconds.
    pub expires_at: Option<i64>,
    /// The limit of the tenant.
    pub messages_per_s: f64,
}

/// The code of an error, which programs can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum FrameError {
    /// The frame cannot be read.
    BadFrame,
    /// The name of the channel cannot be one.
    BadChannel,
    /// The channel belongs to somebody else, or the credential does not name it.
    ForbiddenChannel,
    /// The credential lacks the scope.
    ScopeMissing,
    /// The connection has as many channels as it may have.
    TooManySubscriptions,
    /// The connection does not subscribe to the channel.
    NotSubscribed,
    /// The data of the message has too many bytes; it was not published.
    TooLarge,
    /// Too many messages of the tenant wait; this one was not published.
    WsOverloaded,
    /// The credential is not accepted.
    Unauthorized,
    /// Postgres does not answer, or the keys of a token's issuer cannot be read.
    Unavailable,
}

impl FrameError {
    /// All codes.
    pub const ALL: [Self; 10] = [
        Self::BadFrame,
        Self::BadChannel,
        Self::ForbiddenChannel,
        Self::ScopeMissing,
        Self::TooManySubscriptions,
        Self::NotSubscribed,
        Self::TooLarge,
        Self::WsOverloaded,
        Self::Unauthorized,
        Self::Unavailable,
    ];

    /// Returns the code as text.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Returns the frame of a message of a channel. A message that is too large to be sent becomes a
/// gap with its place, so that a client can count on.
pub fn message(message: &StoredMessage) -> Bytes {
    if message.data.is_empty() {
        let mut frame = json!({"type": "gap", "channel": message.channel.as_str(), "missed": 1});
        if let (1.., Some(fields)) = (message.offset, frame.as_object_mut()) {
            fields.insert("epoch".to_owned(), message.epoch.to_string().into());
            fields.insert("offset".to_owned(), message.offset.into());
        }
        return text(frame);
    }
    let channel = Value::from(message.channel.as_str());
    let place = match message.offset {
        0 => String::new(),
        offset => format!(r#""epoch":"{}","offset":{offset},"#, message.epoch),
    };
    let (id, data) = (message.id, &message.data);
    format!(r#"{{"type":"message","channel":{channel},{place}"id":"{id}","data":{data}}}"#).into()
}

/// Returns the frame of a message without its place, for readers that know none.
pub fn bare_message(stored: &StoredMessage) -> Bytes {
    message(&StoredMessage {
        offset: 0,
        ..stored.clone()
    })
}

/// Returns the frame of a warning. The text about a limit is that of the specification, word for
/// word.
pub fn warning(warning: Warning) -> Bytes {
    text(match warning {
        Warning::RateLimited { wait_s } => {
            let message = format!("Message throttled. Retry in {wait_s}s.");
            json!({"type": "warning", "code": "WS_RATE_LIMITED", "message": message})
        }
        Warning::TokenExpires { left } => {
            // It is sent a moment after the time that it tells of.
            let left_s = left.as_secs_f64().ceil() as u64;
            let message = format!("The credential expires in {left_s}s; send a refresh frame.");
            json!({"type": "warning", "code": "TOKEN_EXPIRES", "message": message, "left_s": left_s})
        }
    })
}

/// Returns the frame of an error.
pub fn error(code: FrameError, message: &str, reference: Option<&str>) -> Bytes {
    let frame = json!({"type": "error", "code": code.as_str(), "message": message});
    answered(frame, reference)
}

/// Returns the answer to a subscription; a channel without history has no place.
pub fn subscribed(
    channel: &ChannelName,
    point: Option<&JoinPoint>,
    reference: Option<&str>,
) -> Bytes {
    let recovered = point.and_then(|point| point.recovered);
    let mut frame = json!({
        "type": "subscribed",
        "channel": channel.as_str(),
        "recovered": recovered.is_some(),
        "missed": recovered.unwrap_or(0),
    });
    if let (Some(JoinPoint { position, .. }), Some(fields)) = (point, frame.as_object_mut()) {
        fields.insert("epoch".to_owned(), position.epoch.to_string().into());
        fields.insert("offset".to_owned(), position.last_offset.into());
    }
    answered(frame, reference)
}

/// Returns the answer to the end of a subscription.
pub fn unsubscribed(channel: &ChannelName, reference: Option<&str>) -> Bytes {
    let frame = json!({"type": "unsubscribed", "channel": channel.as_str()});
    answered(frame, reference)
}

/// Returns the answer to a publication.
pub fn published(id: i64, reference: Option<&str>) -> Bytes {
    answered(
        json!({"type": "published", "id": id.to_string()}),
        reference,
    )
}

/// Returns the answer to a newer credential, with its expiry in unix seconds.
pub fn refreshed(expires_at: Option<i64>, reference: Option<&str>) -> Bytes {
    answered(
        json!({"type": "refreshed", "expires_at": expires_at}),
        reference,
    )
}

/// Returns a page of an inbox with its counts.
pub fn inbox(page: &InboxPage, counts: InboxCounts, reference: Option<&str>) -> Bytes {
    let frame = json!({
        "type": "inbox",
        "messages": page.messages,
        "next": page.next,
        "counts": counts,
    });
    answered(frame, reference)
}

/// Returns the answer to a mark.
pub fn inbox_counts(counts: InboxCounts, reference: Option<&str>) -> Bytes {
    let frame = json!({"type": "inbox_counts", "unseen": counts.unseen, "unread": counts.unread});
    answered(frame, reference)
}

/// Returns the frame that tells of dropped messages of a channel without offsets.
pub fn gap(channel: &ChannelName, missed: u32) -> Bytes {
    text(json!({"type": "gap", "channel": channel.as_str(), "missed": missed}))
}

/// Returns the frame that tells that the reader of a channel is behind.
pub fn lag(channel: &ChannelName) -> Bytes {
    text(json!({"type": "lag", "channel": channel.as_str()}))
}

/// Returns the frame that sends a connection away.
pub fn reconnect(after_ms: u64) -> Bytes {
    text(json!({"type": "reconnect", "after_ms": after_ms}))
}

/// Returns the frame that asks for a sign of life.
pub fn ping() -> Bytes {
    Bytes::from_static(br#"{"type":"ping"}"#)
}

/// Returns the first frame of a connection.
pub fn hello(hello: &Hello) -> Bytes {
    text(json!({
        "type": "hello",
        "session": hello.session,
        "ping_s": PING_EVERY.as_secs(),
        "resume_window_s": hello.resume_window_s,
        "expires_at": hello.expires_at,
        "limits": {
            "message_bytes": MESSAGE_BYTES,
            "subscriptions": SUBSCRIPTIONS_MAX,
            "messages_per_s": number(hello.messages_per_s),
        },
    }))
}

/// Returns a number, which is a whole one where it has no fraction.
fn number(value: f64) -> Value {
    match value.fract() == 0.0 {
        true => (value as u64).into(),
        false => value.into(),
    }
}

fn answered(mut frame: Value, reference: Option<&str>) -> Bytes {
    if let (Some(reference), Some(fields)) = (reference, frame.as_object_mut()) {
        fields.insert("ref".to_owned(), reference.into());
    }
    text(frame)
}

fn text(frame: Value) -> Bytes {
    frame.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_of_a_limit_is_that_of_the_specification() {
        let frame: Value =
            serde_json::from_slice(&warning(Warning::RateLimited { wait_s: 1 })).unwrap();
        let wanted = json!({"type": "warning", "code": "WS_RATE_LIMITED", "message": "Message throttled. Retry in 1s."});
        assert_eq!(frame, wanted);
    }

    #[test]
    fn a_credential_is_told_the_seconds_that_it_has_left_and_not_one_less() {
        let told = |left_ms| {
            let left = Duration::from_millis(left_ms);
            let frame = warning(Warning::TokenExpires { left });
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            frame["left_s"].clone()
        };
        assert_eq!([59_998, 60_000, 0].map(told), [60, 60, 0]);
    }

    #[test]
    fn the_limit_of_a_tenant_is_told_also_where_it_is_below_one_a_second() {
        let told = |messages_per_s| {
            let hello = hello(&Hello {
                session: String::new(),
                resume_window_s: 10,
                expires_at: None,
                messages_per_s,
            });
            let frame: Value = serde_json::from_slice(&hello).unwrap();
            frame["limits"]["messages_per_s"].clone()
        };
        assert_eq!(told(200.0), json!(200));
        assert_eq!(told(0.25), json!(0.25));
    }

    #[test]
    fn a_message_is_json_with_its_place() {
        let stored = StoredMessage {
            seq: 9,
            tenant: "acme".to_owned(),
            channel: ChannelName::of_inbox("a\"b"),
            epoch: 4,
            offset: 2,
            id: 7,
            data: r#"{"a": [1, "x"]}"#.to_owned(),
        };
        let frame: Value = serde_json::from_slice(&message(&stored)).unwrap();
        let wanted = json!({"type": "message", "channel": "$inbox/a\"b", "epoch": "4", "offset": 2, "id": "7", "data": {"a": [1, "x"]}});
        assert_eq!(frame, wanted);
        let unnumbered = StoredMessage {
            offset: 0,
            ..stored
        };
        let frame: Value = serde_json::from_slice(&message(&unnumbered)).unwrap();
        assert_eq!((frame.get("epoch"), frame.get("offset")), (None, None));
    }

    #[test]
    fn a_message_that_is_too_large_to_be_sent_is_a_gap_with_its_place() {
        let stored = |offset| StoredMessage {
            seq: 9,
            tenant: "acme".to_owned(),
            channel: ChannelName::stored("orders"),
            epoch: 4,
            offset,
            id: 7,
            data: String::new(),
        };
        let frame = |offset| serde_json::from_slice::<Value>(&message(&stored(offset))).unwrap();
        let placed =
            json!({"type": "gap", "channel": "orders", "missed": 1, "epoch": "4", "offset": 2});
        assert_eq!(frame(2), placed);
        assert_eq!(
            frame(0),
            json!({"type": "gap", "channel": "orders", "missed": 1})
        );
    }
}
