//! The conversion of a message to a push: its headers, its payload, and their validation.

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

use crate::jobs::Issue;
use crate::providers::Message;

/// The maximum length of a payload, in bytes.
const PAYLOAD_BYTES: usize = 4096;
/// The maximum length of a voip push's payload, in bytes.
const VOIP_BYTES: usize = 5120;

/// The maximum length of a collapse id, in bytes.
const COLLAPSE_BYTES: usize = 64;

/// The push types that Apple knows.
const TYPES: &[&str] = &[
    "alert",
    "background",
    "complication",
    "controls",
    "fileprovider",
    "liveactivity",
    "location",
    "mdm",
    "pushtotalk",
    "voip",
    "widgets",
];

/// Keys of `extra` and their names within `aps`.
const APS: &[(&str, &str)] = &[
    ("badge", "badge"),
    ("sound", "sound"),
    ("category", "category"),
    ("thread_id", "thread-id"),
    ("content_available", "content-available"),
    ("mutable_content", "mutable-content"),
    ("interruption_level", "interruption-level"),
    ("relevance_score", "relevance-score"),
    ("target_content_id", "target-content-id"),
];

/// Returns the id of a push: a UUID that is the same for all attempts at a message.
pub(super) fn id(message_id: &str) -> String {
    let digest = digest(&SHA256, message_id.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    // UUID version 8, whose other bits are free, and the usual variant.
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

/// Builds the headers that Apple reads, except the token.
pub(super) fn headers(message: &Message, topic: &str) -> Vec<(&'static str, String)> {
    let kind = kind(message);
    let extra = |name: &str| message.extra.get(name);
    let mut headers = vec![
        ("apns-id", id(&message.id)),
        (
            "apns-topic",
            extra("topic")
                .and_then(Value::as_str)
                .unwrap_or(topic)
                .to_owned(),
        ),
        ("apns-push-type", kind.to_owned()),
        ("content-type", "application/json".to_owned()),
    ];
    // Apple rejects a background push with any other priority.
    let usual = if kind == "background" { 5 } else { 10 };
    headers.push((
        "apns-priority",
        extra("priority")
            .and_then(Value::as_i64)
            .unwrap_or(usual)
            .to_string(),
    ));
    if let Some(at_s) = extra("expiration")
        .and_then(Value::as_i64)
        .or(message.expires_at_s)
    {
        headers.push(("apns-expiration", at_s.max(0).to_string()));
    }
    if let Some(collapse) = extra("collapse_id").and_then(Value::as_str) {
        headers.push(("apns-collapse-id", collapse.to_owned()));
    }
    headers
}

fn kind(message: &Message) -> &str {
    message
        .extra
        .get("push_type")
        .and_then(Value::as_str)
        .unwrap_or("alert")
}

/// Builds the payload.
pub(super) fn payload(message: &Message) -> String {
    let extra = &message.extra;
    let mut aps = Map::new();
    if kind(message) == "background" {
        aps.insert("content-available".to_owned(), json!(1));
    } else if message.subject.is_some() || !message.body.is_empty() {
        let mut alert = Map::new();
        alert.extend(
            message
                .subject
                .iter()
                .map(|title| ("title".to_owned(), json!(title))),
        );
        alert.extend(
            extra
                .get("subtitle")
                .map(|subtitle| ("subtitle".to_owned(), subtitle.clone())),
        );
        if !message.body.is_empty() {
            alert.insert("body".to_owned(), json!(message.body));
        }
        aps.insert("alert".to_owned(), Value::Object(alert));
    }
    for (name, key) in APS {
        // Apple expects 1 where people write true.
        let value = extra.get(*name).map(|value| {
            if *value == json!(true) && key.contains("content") {
                json!(1)
            } else {
                value.clone()
            }
        });
        aps.extend(value.map(|value| ((*key).to_owned(), value)));
    }
    let mut payload = extra
        .get("data")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    payload.insert("aps".to_owned(), Value::Object(aps));
    Value::Object(payload).to_string()
}

/// Checks a message.
pub(super) fn check(message: &Message) -> Vec<Issue> {
    let mut issues = Vec::new();
    let mut issue = |pointer: &str, text: &str| {
        issues.push(Issue {
            pointer: pointer.to_owned(),
            message: text.to_owned(),
        })
    };
    if !is_token(message.to.address()) {
        issue(
            "/to",
            "must be a device's token: 1 to 200 letters and digits",
        );
    }
    let extra = |name: &str| message.extra.get(name);
    if extra("push_type")
        .is_some_and(|kind| !kind.as_str().is_some_and(|kind| TYPES.contains(&kind)))
    {
        issue(
            "/extra/push_type",
            &format!("must be one of {}", TYPES.join(", ")),
        );
    }
    if extra("priority").is_some_and(|priority| !matches!(priority.as_i64(), Some(1 | 5 | 10))) {
        issue("/extra/priority", "must be 1, 5 or 10");
    }
    if extra("expiration").is_some_and(|at| at.as_i64().is_none_or(|at| at < 0)) {
        issue(
            "/extra/expiration",
            "must be unix seconds, or 0 for now or never",
        );
    }
    let is_word = |value: &Value, most: usize| {
        value.as_str().is_some_and(|text| {
            (1..=most).contains(&text.len()) && !text.chars().any(char::is_control)
        })
    };
    if extra("collapse_id").is_some_and(|id| !is_word(id, COLLAPSE_BYTES)) {
        issue("/extra/collapse_id", "must be a text of 1 to 64 bytes");
    }
    if extra("topic")
        .is_some_and(|topic| !is_word(topic, 255) || !topic.as_str().is_some_and(str::is_ascii))
    {
        issue(
            "/extra/topic",
            "must be an app's id, such as com.example.app.voip",
        );
    }
    if extra("badge").is_some_and(|badge| badge.as_u64().is_none()) {
        issue("/extra/badge", "must be a whole number from 0");
    }
    if extra("sound").is_some_and(|sound| !sound.is_string() && !sound.is_object()) {
        issue(
            "/extra/sound",
            "must be a sound's name, or an object for a critical alert",
        );
    }
    if extra("data")
        .is_some_and(|data| data.as_object().is_none_or(|data| data.contains_key("aps")))
    {
        issue(
            "/extra/data",
            "must be an object without aps, which is made of the other fields",
        );
    }
    let most = if kind(message) == "voip" {
        VOIP_BYTES
    } else {
        PAYLOAD_BYTES
    };
    if payload(message).len() > most {
        issue(
            "/body",
            &format!("is too long: the payload with data may have at most {most} bytes"),
        );
    }
    issues
}

/// Returns true if a token is valid in a URL path: 1 to 200 letters, digits, `-` and `_`.
pub(super) fn is_token(text: &str) -> bool {
    (1..=200).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::Channel;
    use crate::providers::wire_tests::{extra, message};

    #[test]
    fn the_id_is_a_uuid_of_the_message() {
        let uuid = id("job_7");
        assert_eq!((uuid.clone(), uuid.len()), (id("job_7"), 36));
        assert_ne!(uuid, id("job_8"));
        let dashes: Vec<usize> = uuid.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!((dashes, &uuid[14..15]), (vec![8, 13, 18, 23], "8"));
    }

    #[test]
    fn a_push_has_what_the_message_says() {
        let mut sent = message(Channel::Push, "abc123");
        sent.subject = Some("Hi".to_owned());
        sent.expires_at_s = Some(99);
        sent.extra = extra(
            json!({ "badge": 3, "sound": "default", "mutable_content": true, "thread_id": "t",
            "collapse_id": "order-7", "data": { "order": 7 } }),
        );
        let expected = json!({ "order": 7, "aps": { "alert": { "title": "Hi", "body": "Hello" }, "badge": 3,
            "sound": "default", "mutable-content": 1, "thread-id": "t" } });
        assert_eq!(
            serde_json::from_str::<Value>(&payload(&sent)).unwrap(),
            expected
        );
        let all = headers(&sent, "com.example.app");
        for header in [
            ("apns-topic", "com.example.app"),
            ("apns-push-type", "alert"),
            ("apns-priority", "10"),
            ("apns-expiration", "99"),
            ("apns-collapse-id", "order-7"),
        ] {
            assert!(
                all.contains(&(header.0, header.1.to_owned())),
                "{header:?} in {all:?}"
            );
        }
        sent.extra = extra(
            json!({ "push_type": "background", "expiration": 0, "topic": "com.example.app.x" }),
        );
        assert_eq!(payload(&sent), r#"{"aps":{"content-available":1}}"#);
        let all = headers(&sent, "com.example.app");
        for header in [
            ("apns-priority", "5"),
            ("apns-expiration", "0"),
            ("apns-topic", "com.example.app.x"),
        ] {
            assert!(
                all.contains(&(header.0, header.1.to_owned())),
                "{header:?} in {all:?}"
            );
        }
    }

    #[test]
    fn everything_wrong_is_reported() {
        assert!(
            check(&message(
                Channel::Push,
                "00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0"
            ))
            .is_empty()
        );
        let mut sent = message(Channel::Push, "../x");
        sent.body = "x".repeat(4096);
        sent.extra = extra(
            json!({ "push_type": "loud", "priority": 7, "expiration": -1, "collapse_id": "x".repeat(65),
            "topic": "a\nb", "badge": -1, "sound": 1, "data": { "aps": {} } }),
        );
        let pointers: Vec<String> = check(&sent)
            .into_iter()
            .map(|issue| issue.pointer)
            .collect();
        let names = [
            "push_type",
            "priority",
            "expiration",
            "collapse_id",
            "topic",
            "badge",
            "sound",
            "data",
        ];
        let mut expected = vec!["/to".to_owned()];
        expected.extend(names.iter().map(|name| format!("/extra/{name}")));
        expected.push("/body".to_owned());
        assert_eq!(pointers, expected);
        sent.extra = extra(json!({ "push_type": "voip" }));
        sent.to = message(Channel::Push, "abc").to;
        assert!(check(&sent).is_empty(), "a voip push may be longer");
    }
}
