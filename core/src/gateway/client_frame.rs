//! Frames of clients: one JSON object each.

use serde_json::Value;

use crate::inbox::request::{MarkRequest, PageRequest};
use crate::input::json::{JsonReadError, parse_short};
use crate::input::reader::Reader;
use crate::input::wording::clipped;
use crate::input::{Issue, listed};

/// The longest `ref`, in bytes.
pub const REF_BYTES: usize = 64;

/// The longest token in a frame, in bytes.
const TOKEN_BYTES: usize = 16_384;

/// The longest name that is looked at, in bytes; a longer one is refused with its form.
const NAME_BYTES: usize = 1024;

/// The highest offset.
pub const OFFSET_MAX: i64 = 1 << 53;

/// The types of frames, for messages.
pub const TYPES: [&str; 8] = [
    "subscribe",
    "unsubscribe",
    "publish",
    "ack",
    "pong",
    "refresh",
    "inbox_list",
    "inbox_mark",
];

/// A frame of a client with its `ref`, which the answer repeats.
#[derive(Clone, PartialEq)]
pub struct ClientFrame {
    pub reference: Option<String>,
    pub request: ClientRequest,
}

/// The request of a client.
#[derive(Clone, PartialEq)]
pub enum ClientRequest {
    /// Messages of a channel from now on, or after a message that it has.
    Subscribe {
        channel: String,
        since: Option<Since>,
    },
    /// No more messages of a channel.
    Unsubscribe { channel: String },
    /// A message to all subscribers of a channel.
    Publish { channel: String, data: Value },
    /// It has everything of a channel up to an offset.
    Ack { channel: String, offset: i64 },
    /// It is alive.
    Pong,
    /// A newer credential.
    Refresh { token: String },
    /// A page of the own inbox.
    InboxList(PageRequest),
    /// A mark of messages of the own inbox.
    InboxMark(MarkRequest),
}

impl ClientRequest {
    /// Returns true for a request that costs Postgres, or the check of tokens, and that no limit of
    /// its tenant counts.
    pub fn asks(&self) -> bool {
        match self {
            Self::Subscribe { .. }
            | Self::Refresh { .. }
            | Self::InboxList(_)
            | Self::InboxMark(_) => true,
            Self::Unsubscribe { .. } | Self::Publish { .. } | Self::Ack { .. } | Self::Pong => {
                false
            }
        }
    }
}

/// The last message that a client has of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    pub epoch: i64,
    pub offset: i64,
}

/// The reason for which a frame is refused, with its `ref` if that could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFrame {
    pub reference: Option<String>,
    pub message: String,
}

impl ClientFrame {
    /// Parses a frame.
    pub fn parse(text: &str) -> Result<Self, BadFrame> {
        let value = parse_short(text).map_err(|wrong| unread(text, &wrong))?;
        let reference = reference_of(&value);
        let bad = |message: String| BadFrame {
            reference: reference.clone(),
            message,
        };
        let word = value.get("type").and_then(Value::as_str);
        let allowed: &[&str] = match word {
            Some("subscribe") => &["type", "ref", "channel", "since"],
            Some("unsubscribe") => &["type", "ref", "channel"],
            Some("publish") => &["type", "ref", "channel", "data"],
            Some("ack") => &["type", "ref", "channel", "offset"],
            Some("pong") => &["type", "ref"],
            Some("refresh") => &["type", "ref", "token"],
            Some("inbox_list") => &["type", "ref", "cursor", "limit", "state", "category"],
            Some("inbox_mark") => &["type", "ref", "ids", "all_up_to", "as"],
            Some(other) => {
                let types = TYPES.join(", ");
                return Err(bad(format!(
                    "type: {:?} is not a type of frame; allowed: {types}",
                    clipped(other)
                )));
            }
            None => {
                let types = TYPES.join(", ");
                return Err(bad(format!("type: must be given: one of {types}")));
            }
        };
        let word = word.unwrap_or_default().to_owned();
        let mut issues: Vec<Issue> = Vec::new();
        let read = Reader::open(value, "", allowed, &mut issues).and_then(|fields| {
            let mut fields = fields.hide_values();
            fields.text_or_null("ref", 0..=REF_BYTES);
            request(&word, &mut fields)
        });
        match read {
            Some(request) if issues.is_empty() => Ok(Self { reference, request }),
            _ => Err(BadFrame {
                reference,
                message: listed("", &issues),
            }),
        }
    }
}

/// Returns the `ref` of a frame, by which a client finds its request, whatever else is wrong.
fn reference_of(frame: &Value) -> Option<String> {
    let reference = frame.get("ref").and_then(Value::as_str);
    let reference = reference.filter(|reference| reference.len() <= REF_BYTES);
    reference.map(str::to_owned)
}

/// Returns the refusal of a frame that is not JSON, or of which a part would be lost.
fn unread(text: &str, wrong: &JsonReadError) -> BadFrame {
    let message = match wrong {
        JsonReadError::Malformed(wrong) => format!(
            "the frame is not JSON: {} at line {} column {}",
            wrong.what, wrong.line, wrong.column
        ),
        JsonReadError::LongInteger(found) => format!("{}: {}", found.pointer, found.refusal()),
        wrong => wrong.to_string(),
    };
    let frame: Option<Value> = serde_json::from_str(text).ok();
    BadFrame {
        reference: frame.as_ref().and_then(reference_of),
        message,
    }
}

fn request(word: &str, fields: &mut Reader<'_>) -> Option<ClientRequest> {
    if word == "pong" {
        return Some(ClientRequest::Pong);
    }
    if word == "refresh" {
        let token = required(fields, "token", TOKEN_BYTES)?;
        return Some(ClientRequest::Refresh { token });
    }
    if word == "inbox_list" {
        return Some(ClientRequest::InboxList(PageRequest::take(fields)));
    }
    if word == "inbox_mark" {
        return MarkRequest::take(fields).map(ClientRequest::InboxMark);
    }
    let channel = required(fields, "channel", NAME_BYTES);
    let request = match word {
        "subscribe" => ClientRequest::Subscribe {
            since: since(fields),
            channel: channel?,
        },
        "unsubscribe" => ClientRequest::Unsubscribe { channel: channel? },
        "ack" => {
            if !fields.contains("offset") {
                fields.missing("offset", "an offset");
            }
            let offset = fields.whole("offset", 0..=OFFSET_MAX, "");
            ClientRequest::Ack {
                channel: channel?,
                offset: offset?,
            }
        }
        _ => {
            let data = fields.take("data");
            match &data {
                None => fields.missing("data", "any JSON value"),
                Some(data) if has_nul(data) => {
                    fields.wrong("data", "must not contain the character U+0000");
                }
                Some(_) => {}
            }
            ClientRequest::Publish {
                channel: channel?,
                data: data?,
            }
        }
    };
    Some(request)
}

fn required(fields: &mut Reader<'_>, name: &str, bytes: usize) -> Option<String> {
    // Reading takes the field away.
    if !fields.contains(name) {
        fields.missing(name, "a text");
    }
    fields.text(name, 1..=bytes)
}

fn since(fields: &mut Reader<'_>) -> Option<Since> {
    if !fields.has("since") {
        return None;
    }
    let mut since = fields.part("since", &["epoch", "offset"])?;
    if !since.contains("epoch") {
        since.missing("epoch", "the epoch of the last message");
    }
    let epoch = since.text("epoch", 1..=20);
    let parsed = epoch.as_deref().and_then(|text| text.parse().ok());
    if epoch.is_some() && parsed.is_none() {
        since.wrong("epoch", "must be the epoch of the last message");
    }
    if !since.contains("offset") {
        since.missing("offset", "the offset of the last message");
    }
    let offset = since.whole("offset", 0..=OFFSET_MAX, "");
    Some(Since {
        epoch: parsed?,
        offset: offset?,
    })
}

/// Returns true if a text or key in a value has a character that Postgres cannot store.
pub fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || has_nul(value)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(value: &Value) -> Result<ClientRequest, String> {
        ClientFrame::parse(&value.to_string())
            .map(|frame| frame.request)
            .map_err(|bad| bad.message)
    }

    #[test]
    fn a_frame_of_which_a_part_would_be_lost_is_refused_with_its_ref() {
        let refused = |text: &str| {
            let bad = ClientFrame::parse(text).err().unwrap();
            (bad.reference, bad.message)
        };
        let reference = || Some("r".to_owned());
        let publish = |data: &str| {
            format!(r#"{{"type": "publish", "ref": "r", "channel": "a", "data": {data}}}"#)
        };
        assert_eq!(
            refused(&publish(r#"{"n": [1, 12345678901234567890123]}"#)),
            (
                reference(),
                "/data/n/1: is 12345678901234567890123, which would be rounded; allowed: integers of at \
                 most 64 bits, and larger ones as texts"
                    .to_owned()
            )
        );
        let (found, message) = refused(&publish(r#"{"n": 1, "n": 2}"#));
        assert_eq!(found, reference());
        assert!(
            message.contains(r#"the field "n" is given twice"#),
            "{message}"
        );
        let (found, message) = refused("{");
        assert_eq!(found, None);
        assert!(message.starts_with("the frame is not JSON: "), "{message}");
        let largest = publish("[18446744073709551615, -9223372036854775808, 1.5, 1e30]");
        assert!(ClientFrame::parse(&largest).is_ok());
    }

    #[test]
    fn frames_are_read() {
        let since = json!({"type": "subscribe", "channel": "a", "ref": "1", "since": {"epoch": "3", "offset": 7}});
        let frame = ClientFrame::parse(&since.to_string()).map_err(|bad| bad.message);
        let frame = frame.unwrap();
        assert_eq!(frame.reference.as_deref(), Some("1"));
        let ClientRequest::Subscribe { channel, since } = frame.request else {
            panic!("another frame");
        };
        let wanted = Since {
            epoch: 3,
            offset: 7,
        };
        assert_eq!((channel.as_str(), since), ("a", Some(wanted)));
        assert!(parse(&json!({"type": "publish", "channel": "a", "data": null})).is_ok());
        assert!(parse(&json!({"type": "ack", "channel": "a", "offset": 3})).is_ok());
        assert!(parse(&json!({"type": "pong"})).is_ok());
    }

    #[test]
    fn what_is_wrong_is_named_and_no_value_is_shown() {
        for (frame, words) in [
            (json!([]), "type: must be given"),
            (
                json!({"type": "x"}),
                "is not a type of frame; allowed: subscribe",
            ),
            (json!({"type": "subscribe"}), "/channel"),
            (
                json!({"type": "subscribe", "channel": "a", "secret": 1}),
                "/secret",
            ),
            (
                json!({"type": "subscribe", "channel": "a", "since": {"epoch": "x", "offset": 1}}),
                "/since/epoch",
            ),
            (
                json!({"type": "subscribe", "channel": "a", "since": {"epoch": "1"}}),
                "/since/offset",
            ),
            (json!({"type": "publish", "channel": "a"}), "/data"),
            (
                json!({"type": "publish", "channel": "a", "data": ["\u{0}"]}),
                "U+0000",
            ),
            (
                json!({"type": "ack", "channel": "a", "offset": -1}),
                "/offset",
            ),
            (json!({"type": "ack", "channel": "a"}), "/offset"),
            (json!({"type": "refresh", "token": 5}), "/token"),
            (json!({"type": "inbox_list", "limit": 0}), "/limit"),
            (json!({"type": "inbox_mark", "ids": ["1"]}), "/as"),
        ] {
            let message = parse(&frame).err().unwrap_or_default();
            assert!(message.contains(words), "{frame}: {message}");
        }
        let message = parse(&json!({"type": "refresh", "token": ["top-secret"]}))
            .err()
            .unwrap();
        assert!(!message.contains("top-secret"), "{message}");
    }

    #[test]
    fn a_field_that_is_wrong_is_named_once_and_not_called_missing() {
        let since = |since: Value| json!({"type": "subscribe", "channel": "a", "since": since});
        for (frame, place) in [
            (json!({"type": "subscribe", "channel": 5}), "/channel"),
            (json!({"type": "subscribe", "channel": null}), "/channel"),
            (json!({"type": "unsubscribe", "channel": ""}), "/channel"),
            (json!({"type": "refresh", "token": ""}), "/token"),
            (
                json!({"type": "ack", "channel": "a", "offset": "1"}),
                "/offset",
            ),
            (since(json!({"epoch": 1, "offset": 1})), "/since/epoch"),
            (since(json!({"epoch": null, "offset": 1})), "/since/epoch"),
            (
                since(json!({"epoch": "1", "offset": null})),
                "/since/offset",
            ),
        ] {
            let message = parse(&frame).err().unwrap_or_default();
            let is_named_once = message.matches(place).count() == 1;
            assert!(
                is_named_once && !message.contains("missing"),
                "{frame}: {message}"
            );
        }
        let message = parse(&since(json!({}))).err().unwrap_or_default();
        assert_eq!(message.matches("is missing").count(), 2, "{message}");
    }

    #[test]
    fn a_refused_frame_keeps_its_ref() {
        for frame in [
            json!({"type": "subscribe", "ref": "r"}),
            json!({"type": "dance", "ref": "r"}),
            json!({"ref": "r"}),
            json!({"type": "ack", "channel": "a", "offset": -1, "ref": "r"}),
        ] {
            let bad = ClientFrame::parse(&frame.to_string()).err().unwrap();
            assert_eq!(bad.reference.as_deref(), Some("r"), "{frame}");
        }
    }

    proptest! {
        #[test]
        fn nothing_a_client_sends_breaks_the_reader(text in ".{0,200}") {
            let _ = ClientFrame::parse(&text);
        }
    }
}
