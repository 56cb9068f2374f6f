//! Telegram's bot API in its own format.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::wire::{
    FakeRequest, FormatState, IncomingRequest, Read, Reply, WireFormat, whole_seconds,
};

/// The format of Telegram's bot API.
pub struct Telegram;

fn error(status: u16, description: &str) -> Reply {
    Reply::json(
        status,
        &json!({ "ok": false, "error_code": status, "description": description }),
    )
}

impl WireFormat for Telegram {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        let path = came.path();
        let [bot, method] = path[..] else {
            return Read::Other(error(404, "Not Found"));
        };
        let Some(token) = bot
            .strip_prefix("bot")
            .map(|token| token.replace("%3A", ":").replace("%3a", ":"))
        else {
            return Read::Other(error(404, "Not Found"));
        };
        if !token.contains(':') {
            return Read::Refused(token, error(404, "Not Found"));
        }
        if !format_state.knows(&token) {
            return Read::Refused(token, error(401, "Unauthorized"));
        }
        if !method.eq_ignore_ascii_case("sendMessage") {
            return Read::Refused(token, error(404, "Not Found: method not found"));
        }
        let (form, body) = (came.form(), came.json());
        let field = |name: &str| match &body[name] {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => form.get(name).cloned().unwrap_or_default(),
            other => other.to_string(),
        };
        if field("chat_id").is_empty() {
            return Read::Refused(token, error(400, "Bad Request: chat_id is empty"));
        }
        if field("text").is_empty() {
            return Read::Refused(token, error(400, "Bad Request: message text is empty"));
        }
        Read::Message(FakeRequest {
            account: token,
            to: field("chat_id"),
            ..FakeRequest::default()
        })
    }

    fn accepted(&self, requested: &FakeRequest, number: u64, now_ms: u64) -> (String, Reply) {
        let chat: i64 = requested.to.parse().unwrap_or(1);
        let kind = if chat < 0 { "group" } else { "private" };
        let result = json!({ "message_id": number, "date": now_ms / 1_000, "chat": { "id": chat, "type": kind }, "text": "" });
        (
            number.to_string(),
            Reply::json(200, &json!({ "ok": true, "result": result })),
        )
    }

    fn throttled(
        &self,
        _: &FakeRequest,
        _: ThrottleScope,
        delay: Option<Duration>,
        _: u64,
    ) -> Reply {
        let Some(delay) = delay.map(whole_seconds) else {
            return error(429, "Too Many Requests");
        };
        Reply::json(
            429,
            &json!({
                "ok": false, "error_code": 429, "description": format!("Too Many Requests: retry after {delay}"),
                "parameters": { "retry_after": delay },
            }),
        )
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        error(status, code.unwrap_or("Internal Server Error"))
    }

    fn suspended(&self, _: &FakeRequest) -> Reply {
        error(401, "Unauthorized")
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        error(401, "Unauthorized")
    }

    fn gone(&self, _: &FakeRequest, _: u64) -> Reply {
        error(403, "Forbidden: bot was blocked by the user")
    }
}
