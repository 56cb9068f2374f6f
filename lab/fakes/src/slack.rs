//! Slack in its own format: incoming webhooks, whose errors are text, and the Web API, whose errors
//! have status 200.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::wire::{FakeRequest, FormatState, IncomingRequest, Read, Reply, WireFormat};

/// The format of Slack's webhooks and Web API.
pub struct Slack;

/// The value of [`FakeRequest::endpoint`] for requests to the Web API.
const WEB: &str = "web";

fn not_ok(word: &str) -> Reply {
    Reply::json(200, &json!({ "ok": false, "error": word }))
}

fn is_web(requested: &FakeRequest) -> bool {
    requested.endpoint == WEB
}

impl WireFormat for Slack {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        let path = came.path();
        let body = came.json();
        let has_text = ["text", "blocks", "attachments"]
            .iter()
            .any(|name| !body[*name].is_null());
        match path[..] {
            ["services", _, _, _] => {
                let account = came.uri.path().to_owned();
                if !format_state.knows(&account) {
                    return Read::Refused(account, Reply::text(403, "invalid_token"));
                }
                if !body.is_object() {
                    return Read::Refused(account, Reply::text(400, "invalid_payload"));
                }
                if !has_text {
                    return Read::Refused(account, Reply::text(400, "no_text"));
                }
                Read::Message(FakeRequest {
                    to: account.clone(),
                    account,
                    ..FakeRequest::default()
                })
            }
            ["api", "chat.postMessage"] => {
                let token = came
                    .header("authorization")
                    .strip_prefix("Bearer ")
                    .unwrap_or_default()
                    .to_owned();
                if token.is_empty() {
                    return Read::Refused(token, not_ok("not_authed"));
                }
                if !format_state.knows(&token) {
                    return Read::Refused(token, not_ok("invalid_auth"));
                }
                let channel = body["channel"].as_str().unwrap_or_default().to_owned();
                if channel.is_empty() {
                    return Read::Refused(token, not_ok("channel_not_found"));
                }
                if !has_text {
                    return Read::Refused(token, not_ok("no_text"));
                }
                Read::Message(FakeRequest {
                    account: token,
                    to: channel,
                    endpoint: WEB.to_owned(),
                    ..FakeRequest::default()
                })
            }
            _ => Read::Other(Reply::text(404, "no_service")),
        }
    }

    fn accepted(&self, requested: &FakeRequest, number: u64, now_ms: u64) -> (String, Reply) {
        let ts = format!("{}.{:06}", now_ms / 1_000, number % 1_000_000);
        let reply = if is_web(requested) {
            Reply::json(
                200,
                &json!({ "ok": true, "channel": requested.to, "ts": ts, "message": { "type": "message", "ts": ts } }),
            )
        } else {
            Reply::text(200, "ok")
        };
        (ts, reply)
    }

    fn throttled(
        &self,
        requested: &FakeRequest,
        _: ThrottleScope,
        delay: Option<Duration>,
        _: u64,
    ) -> Reply {
        let body = json!({ "ok": false, "error": "ratelimited" });
        let reply = if is_web(requested) {
            Reply::json(429, &body)
        } else {
            Reply::text(429, "rate_limited")
        };
        reply.after(delay)
    }

    fn failed(&self, requested: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        match (is_web(requested), code) {
            (true, Some(code)) => not_ok(code),
            (true, None) => {
                let word = if status == 503 {
                    "service_unavailable"
                } else {
                    "internal_error"
                };
                Reply::json(status, &json!({ "ok": false, "error": word }))
            }
            (false, code) => Reply::text(status, code.unwrap_or("rollup_error")),
        }
    }

    fn suspended(&self, requested: &FakeRequest) -> Reply {
        if is_web(requested) {
            not_ok("account_inactive")
        } else {
            Reply::text(403, "action_prohibited")
        }
    }

    fn unauthorized(&self, requested: &FakeRequest) -> Reply {
        if is_web(requested) {
            not_ok("invalid_auth")
        } else {
            Reply::text(403, "invalid_token")
        }
    }

    fn gone(&self, requested: &FakeRequest, _: u64) -> Reply {
        if is_web(requested) {
            not_ok("channel_not_found")
        } else {
            Reply::text(410, "channel_is_archived")
        }
    }
}
