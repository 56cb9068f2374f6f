//! `/asyncapi.json`: the frames of a connection, for programs.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// AsyncAPI 3.0.
const DOCUMENT: &str = include_str!("asyncapi.json");

/// Shows the document of the gateway's frames.
#[utoipa::path(get, path = "/asyncapi.json", operation_id = "show_asyncapi", tag = "meta",
    responses((status = 200, body = Object, description = "AsyncAPI 3.0.")))]
pub async fn show_asyncapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], DOCUMENT).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::gateway::channel_name::ChannelName;
    use crate::gateway::client_frame::{ClientFrame, Since, TYPES};
    use crate::gateway::close::CloseReason;
    use crate::gateway::join_point::JoinPoint;
    use crate::gateway::postgres::{ChannelPosition, StoredMessage};
    use crate::gateway::server_frame::{self as frames, FrameError, Hello, Warning};
    use crate::inbox::InboxCounts;
    use crate::inbox::message::InboxPage;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    fn payload(message: &str) -> Value {
        document()["components"]["messages"][message]["payload"].clone()
    }

    fn names(side: &str) -> BTreeSet<String> {
        let document = document();
        let messages = document["components"]["messages"].as_object().unwrap();
        let names = messages.keys().filter_map(|name| name.strip_prefix(side));
        names.map(str::to_owned).collect()
    }

    #[test]
    fn the_document_has_the_frames_codes_and_reasons_of_the_program() {
        assert_eq!(names("client_"), TYPES.map(str::to_owned).into());
        let errors = payload("server_error")["properties"]["code"]["enum"].clone();
        assert_eq!(errors, json!(FrameError::ALL.map(FrameError::as_str)));
        let words = document()["info"]["description"].to_string();
        for reason in CloseReason::ALL {
            assert!(words.contains(&reason.code().to_string()), "{reason:?}");
        }
        let document = document();
        for operation in ["send", "receive"] {
            let messages = document["operations"][operation]["messages"]
                .as_array()
                .unwrap();
            for message in messages {
                let pointer = message["$ref"].as_str().unwrap().trim_start_matches('#');
                let inner = document.pointer(pointer).unwrap()["$ref"].as_str().unwrap();
                assert!(document.pointer(inner.trim_start_matches('#')).is_some());
            }
        }
    }

    #[test]
    fn frames_of_the_gateway_name_an_inbox_in_full() {
        for message in names("server_") {
            let channel = payload(&format!("server_{message}"))["properties"]["channel"].clone();
            let words = channel["description"].as_str().unwrap_or_default();
            let is_told = channel.is_null() || words.contains("$inbox/");
            assert!(is_told, "{message}: {words}");
        }
    }

    fn inbox_page() -> InboxPage {
        let message = json!({
            "id": "17", "notification_id": 3, "category": "product", "template_id": null, "actor": "bob", "subject": null, "body": "x",
            "data": {}, "state": "seen", "created_at": "2026-11-25T10:00:00Z", "seen_at": "2026-11-25T10:00:01Z", "read_at": null,
            "archived_at": null,
        });
        InboxPage {
            messages: vec![serde_json::from_value(message).unwrap()],
            next: Some("17".to_owned()),
        }
    }

    #[test]
    fn every_frame_of_the_gateway_fits_the_document() {
        let channel = ChannelName::stored("orders");
        let position = ChannelPosition {
            epoch: 3,
            last_offset: 7,
            first_offset: 1,
        };
        let stored = |offset| StoredMessage {
            seq: 1,
            tenant: "acme".to_owned(),
            channel: channel.clone(),
            epoch: 3,
            offset,
            id: 9,
            data: "[1]".to_owned(),
        };
        let hello = Hello {
            session: "a".to_owned(),
            resume_window_s: 10,
            expires_at: None,
            messages_per_s: 0.5,
        };
        let since = Since {
            epoch: 3,
            offset: 5,
        };
        let point = JoinPoint::find(position, Some(since));
        let mut all: Vec<Bytes> = vec![
            frames::hello(&hello),
            frames::message(&stored(7)),
            frames::message(&stored(0)),
            frames::message(&StoredMessage {
                data: String::new(),
                ..stored(7)
            }),
            frames::subscribed(&channel, Some(&point), Some("r")),
            frames::subscribed(&channel, None, None),
            frames::unsubscribed(&channel, None),
            frames::published(9, Some("r")),
            frames::refreshed(None, None),
            frames::refreshed(Some(1), Some("r")),
            frames::warning(Warning::RateLimited { wait_s: 1 }),
            frames::warning(Warning::TokenExpires {
                left: Duration::from_secs(60),
            }),
            frames::gap(&channel, 3),
            frames::lag(&channel),
            frames::reconnect(5),
            frames::ping(),
            frames::inbox(&inbox_page(), InboxCounts::default(), Some("r")),
            frames::inbox(&InboxPage::default(), InboxCounts::default(), None),
            frames::inbox_counts(InboxCounts::default(), None),
        ];
        all.extend(FrameError::ALL.map(|code| frames::error(code, "no", Some("r"))));
        let mut seen = BTreeSet::new();
        for frame in all {
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            let kind = frame["type"].as_str().unwrap().to_owned();
            let schema = payload(&format!("server_{kind}"));
            let fault = jsonschema::validate(&schema, &frame).err();
            assert!(fault.is_none(), "{frame}: {fault:?}");
            seen.insert(kind);
        }
        assert_eq!(seen, names("server_"));
    }

    #[test]
    fn a_frame_of_a_client_is_read_if_and_only_if_it_fits() {
        for frame in [
            json!({"type": "subscribe", "channel": "a", "since": {"epoch": "3", "offset": 0}, "ref": "r"}),
            json!({"type": "subscribe", "channel": "a", "since": {"epoch": "3"}}),
            json!({"type": "subscribe", "channel": ""}),
            json!({"type": "unsubscribe", "channel": "a"}),
            json!({"type": "unsubscribe", "channel": "a", "since": {}}),
            json!({"type": "publish", "channel": "a", "data": null}),
            json!({"type": "publish", "channel": "a"}),
            json!({"type": "ack", "channel": "a", "offset": 1}),
            json!({"type": "ack", "channel": "a", "offset": -1}),
            json!({"type": "pong", "ref": "r"}),
            json!({"type": "pong", "ref": "r".repeat(65)}),
            json!({"type": "refresh", "token": "t"}),
            json!({"type": "refresh", "token": ""}),
            json!({"type": "inbox_list"}),
            json!({"type": "inbox_list", "cursor": "9", "limit": 100, "state": "unread", "category": "a", "ref": "r"}),
            json!({"type": "inbox_list", "cursor": null, "state": null, "category": null}),
            json!({"type": "inbox_list", "cursor": "09"}),
            json!({"type": "inbox_list", "limit": 0}),
            json!({"type": "inbox_list", "limit": null}),
            json!({"type": "inbox_list", "state": "new"}),
            json!({"type": "inbox_list", "category": ""}),
            json!({"type": "inbox_mark", "ids": ["1", "2"], "as": "read"}),
            json!({"type": "inbox_mark", "all_up_to": "17", "as": "unarchived", "ref": "r"}),
            json!({"type": "inbox_mark", "as": "read"}),
            json!({"type": "inbox_mark", "ids": ["1"], "all_up_to": "17", "as": "read"}),
            json!({"type": "inbox_mark", "ids": null, "all_up_to": "17", "as": "read"}),
            json!({"type": "inbox_mark", "ids": [1], "as": "read"}),
            json!({"type": "inbox_mark", "ids": [], "as": "read"}),
            json!({"type": "inbox_mark", "ids": ["1"], "as": "unseen"}),
        ] {
            let schema = payload(&format!("client_{}", frame["type"].as_str().unwrap()));
            let fits = jsonschema::validate(&schema, &frame).is_ok();
            let is_read = ClientFrame::parse(&frame.to_string()).is_ok();
            assert_eq!(is_read, fits, "{frame}");
        }
    }
}
