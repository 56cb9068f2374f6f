//! Apple Push Notification service in Apple's format, over HTTP/2.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::crypt::token_parts;
use super::wire::{FakeRequest, FormatState, IncomingRequest, Read, Reply, WireFormat};

/// The format of Apple Push Notification service.
pub struct Apns;

/// The maximum age of a provider token, in seconds.
const TOKEN_S: u64 = 3_600;

/// The maximum size of a payload, in bytes.
const PAYLOAD: usize = 4_096;

fn error(status: u16, reason: &str) -> Reply {
    Reply::json(status, &json!({ "reason": reason }))
}

/// Returns the team of a provider token, or the reason why the token is invalid.
fn team(came: &IncomingRequest) -> Result<String, &'static str> {
    let header = came.header("authorization");
    let Some(token) = header
        .strip_prefix("bearer ")
        .or_else(|| header.strip_prefix("Bearer "))
    else {
        return Err("MissingProviderToken");
    };
    let Some((head, claims)) = token_parts(token) else {
        return Err("InvalidProviderToken");
    };
    let (Some(team), Some(issued)) = (claims["iss"].as_str(), claims["iat"].as_u64()) else {
        return Err("InvalidProviderToken");
    };
    if head["alg"] != "ES256" || head["kid"].as_str().is_none_or(str::is_empty) {
        return Err("InvalidProviderToken");
    }
    let now_s = came.now_ms / 1_000;
    if issued > now_s + 300 || now_s.saturating_sub(issued) > TOKEN_S {
        return Err("ExpiredProviderToken");
    }
    Ok(team.to_owned())
}

impl WireFormat for Apns {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        let ["3", "device", device] = came.path()[..] else {
            return Read::Other(error(404, "BadPath"));
        };
        let account = match team(came) {
            Ok(account) => account,
            Err(reason) => return Read::Other(error(403, reason)),
        };
        let refused = |status, reason| Read::Refused(account.clone(), error(status, reason));
        if came.method != "POST" {
            return refused(405, "MethodNotAllowed");
        }
        if !format_state.knows(&account) {
            return refused(403, "InvalidProviderToken");
        }
        if came.header("apns-topic").is_empty() {
            return refused(400, "MissingTopic");
        }
        if device.is_empty()
            || device.len() % 2 != 0
            || !device.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return refused(400, "BadDeviceToken");
        }
        if came.header("apns-collapse-id").len() > 64 {
            return refused(400, "BadCollapseId");
        }
        if came.body.is_empty() {
            return refused(400, "PayloadEmpty");
        }
        if came.body.len() > PAYLOAD {
            return refused(413, "PayloadTooLarge");
        }
        let id = came.header("apns-id").to_owned();
        Read::Message(FakeRequest {
            to: device.to_owned(),
            sender: String::new(),
            endpoint: id,
            callback: None,
            account: account.clone(),
        })
    }

    fn accepted(&self, requested: &FakeRequest, number: u64, _: u64) -> (String, Reply) {
        let id = match requested.endpoint.as_str() {
            "" => format!("FA4E0000-0000-4000-8000-{number:012X}"),
            own => own.to_owned(),
        };
        (
            id.clone(),
            Reply {
                status: 200,
                ..Reply::default()
            }
            .with("apns-id", id),
        )
    }

    fn throttled(
        &self,
        _: &FakeRequest,
        whom: ThrottleScope,
        delay: Option<Duration>,
        _: u64,
    ) -> Reply {
        let reason = if whom == ThrottleScope::Connection {
            "TooManyProviderTokenUpdates"
        } else {
            "TooManyRequests"
        };
        error(429, reason).after(delay)
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        let usual = if status == 503 {
            "ServiceUnavailable"
        } else {
            "InternalServerError"
        };
        error(status, code.unwrap_or(usual))
    }

    fn suspended(&self, _: &FakeRequest) -> Reply {
        error(403, "Forbidden")
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        error(403, "InvalidProviderToken")
    }

    fn gone(&self, _: &FakeRequest, now_ms: u64) -> Reply {
        Reply::json(
            410,
            &json!({ "reason": "Unregistered", "timestamp": now_ms }),
        )
    }
}
