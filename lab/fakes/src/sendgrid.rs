//! The v3 mail/send API of SendGrid in its own format.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::wire::{
    FakeRequest, FormatState, IncomingRequest, QuotaStatus, Read, Reply, WireFormat, whole_seconds,
};

/// The format of SendGrid's v3 mail/send API.
pub struct Sendgrid;

fn error(status: u16, field: Option<&str>, message: &str) -> Reply {
    Reply::json(
        status,
        &json!({ "errors": [{ "message": message, "field": field, "help": null }] }),
    )
}

impl WireFormat for Sendgrid {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        if came.path() != ["v3", "mail", "send"] {
            return Read::Other(error(404, None, "Not Found"));
        }
        let key = came
            .header("authorization")
            .strip_prefix("Bearer ")
            .unwrap_or_default()
            .to_owned();
        if came.method != "POST" {
            return Read::Refused(key, error(405, None, "method not allowed"));
        }
        if key.is_empty() || !format_state.knows(&key) {
            let requested = FakeRequest::default();
            return Read::Refused(key, self.unauthorized(&requested));
        }
        let body = came.json();
        let to = body["personalizations"][0]["to"][0]["email"]
            .as_str()
            .unwrap_or_default();
        let from = body["from"]["email"].as_str().unwrap_or_default();
        if to.is_empty() || !to.contains('@') {
            let message = "Does not contain a valid address.";
            return Read::Refused(
                key,
                error(400, Some("personalizations.0.to.0.email"), message),
            );
        }
        if !from.contains('@') {
            return Read::Refused(
                key,
                error(
                    400,
                    Some("from.email"),
                    "The from email does not contain a valid address.",
                ),
            );
        }
        if !body["content"].is_array() && !body["template_id"].is_string() {
            return Read::Refused(
                key,
                error(400, Some("content"), "The content parameter is required."),
            );
        }
        Read::Message(FakeRequest {
            account: key,
            to: to.to_owned(),
            sender: from.to_owned(),
            ..FakeRequest::default()
        })
    }

    fn accepted(&self, _: &FakeRequest, number: u64, _: u64) -> (String, Reply) {
        let id = format!("f4k3{number:018}");
        (
            id.clone(),
            Reply {
                status: 202,
                headers: Vec::new(),
                body: String::new(),
            }
            .with("x-message-id", id),
        )
    }

    fn throttled(
        &self,
        _: &FakeRequest,
        _: ThrottleScope,
        delay: Option<Duration>,
        now_ms: u64,
    ) -> Reply {
        let body = json!({ "errors": [{ "field": null, "message": "too many requests" }] });
        let reply = Reply::json(429, &body);
        match delay {
            Some(delay) => reply
                .with("x-ratelimit-limit", 100)
                .with("x-ratelimit-remaining", 0)
                .with("x-ratelimit-reset", now_ms / 1_000 + whole_seconds(delay)),
            None => reply,
        }
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        error(status, None, code.unwrap_or("Internal Server Error"))
    }

    fn suspended(&self, _: &FakeRequest) -> Reply {
        error(403, None, "access forbidden")
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        error(
            401,
            None,
            "The provided authorization grant is invalid, expired, or revoked",
        )
    }

    fn gone(&self, _: &FakeRequest, _: u64) -> Reply {
        error(
            400,
            Some("personalizations.0.to.0.email"),
            "Does not contain a valid address.",
        )
    }

    fn with_quota(&self, reply: Reply, standing: QuotaStatus, now_ms: u64) -> Reply {
        match standing.limit {
            Some(limit) => reply
                .with("x-ratelimit-limit", limit)
                .with("x-ratelimit-remaining", standing.left)
                .with("x-ratelimit-reset", now_ms / 1_000 + 1),
            None => reply,
        }
    }
}
