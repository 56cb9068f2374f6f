//! Firebase Cloud Messaging HTTP v1 in Google's format, with the token endpoint of its service
//! accounts.

use std::time::Duration;

use serde_json::json;

use super::ThrottleScope;
use super::crypt::token_parts;
use super::wire::{FakeRequest, FormatState, IncomingRequest, Read, Reply, WireFormat};

/// The format of Firebase Cloud Messaging.
pub struct Fcm;

/// Builds Google's form of an error, with FCM's own code if there is one.
fn error(status: u16, word: &str, message: &str, code: Option<&str>) -> Reply {
    let details = code.map(|code| json!([{ "@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code }]));
    let mut error = json!({ "code": status, "message": message, "status": word });
    if let Some(details) = details {
        error["details"] = details;
    }
    Reply::json(status, &json!({ "error": error }))
}

fn unauthenticated() -> Reply {
    let message = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid \
                   authentication credential.";
    error(401, "UNAUTHENTICATED", message, None)
}

/// Returns Google's canonical name of a status.
fn canonical(status: u16) -> &'static str {
    match status {
        400 => "INVALID_ARGUMENT",
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        _ => "INTERNAL",
    }
}

/// Issues an access token for a signed assertion of a service account.
fn token(came: &IncomingRequest, format_state: &FormatState) -> Reply {
    let form = came.form();
    let refuse = |word: &str, about: &str| {
        Reply::json(400, &json!({ "error": word, "error_description": about }))
    };
    if form.get("grant_type").map(String::as_str)
        != Some("urn:ietf:params:oauth:grant-type:jwt-bearer")
    {
        return refuse("unsupported_grant_type", "Invalid grant_type");
    }
    let Some((head, claims)) = form
        .get("assertion")
        .and_then(|assertion| token_parts(assertion))
    else {
        return refuse("invalid_grant", "Invalid JWT: Failed audience check.");
    };
    let scope = claims["scope"].as_str().unwrap_or_default();
    let (issued, expires) = (
        claims["iat"].as_u64().unwrap_or_default(),
        claims["exp"].as_u64().unwrap_or_default(),
    );
    let now_s = came.now_ms / 1_000;
    if head["alg"] != "RS256"
        || claims["iss"].as_str().is_none_or(str::is_empty)
        || claims["aud"].as_str().is_none()
    {
        return refuse("invalid_grant", "Invalid JWT Signature.");
    }
    if expires <= now_s || expires > issued + 3_600 || issued > now_s + 300 {
        return refuse(
            "invalid_grant",
            "Invalid JWT: Token must be a short-lived token (60 minutes).",
        );
    }
    if !scope.contains("firebase.messaging") && !scope.contains("cloud-platform") {
        return refuse(
            "invalid_scope",
            "Invalid OAuth scope or ID token audience provided.",
        );
    }
    let mut tokens = format_state.tokens.lock();
    let token = format!("ya29.fake-{}-{}", came.now_ms, tokens.len());
    tokens.insert(token.clone());
    Reply::json(
        200,
        &json!({ "access_token": token, "expires_in": 3_599, "token_type": "Bearer" }),
    )
}

impl WireFormat for Fcm {
    fn read(&self, came: &IncomingRequest, format_state: &FormatState) -> Read {
        if came.method == "POST" && came.uri.path() == "/token" {
            return Read::Other(token(came, format_state));
        }
        let ["v1", "projects", project, "messages:send"] = came.path()[..] else {
            return Read::Other(Reply {
                status: 404,
                headers: Vec::new(),
                body: "<html>Not Found</html>".to_owned(),
            });
        };
        let refused = |reply| Read::Refused(project.to_owned(), reply);
        let bearer = came
            .header("authorization")
            .strip_prefix("Bearer ")
            .unwrap_or_default();
        if !format_state.tokens.lock().contains(bearer) {
            return refused(unauthenticated());
        }
        if !format_state.knows(project) {
            return refused(error(
                403,
                "PERMISSION_DENIED",
                "Permission denied on the project.",
                None,
            ));
        }
        let body = came.json();
        let target = ["token", "topic", "condition"]
            .iter()
            .find_map(|name| body["message"][*name].as_str());
        let Some(target) = target.filter(|target| !target.is_empty()) else {
            let reply = error(
                400,
                "INVALID_ARGUMENT",
                "Recipient of the message is not set.",
                Some("INVALID_ARGUMENT"),
            );
            return refused(reply);
        };
        Read::Message(FakeRequest {
            account: project.to_owned(),
            to: target.to_owned(),
            ..FakeRequest::default()
        })
    }

    fn accepted(&self, requested: &FakeRequest, number: u64, now_ms: u64) -> (String, Reply) {
        let name = format!(
            "projects/{}/messages/0:{now_ms}%{number:016x}",
            requested.account
        );
        let reply = Reply::json(200, &json!({ "name": name }));
        (name, reply)
    }

    /// Builds the answer to an exceeded quota: only its details distinguish a project's from a
    /// device's.
    fn throttled(
        &self,
        requested: &FakeRequest,
        whom: ThrottleScope,
        delay: Option<Duration>,
        _: u64,
    ) -> Reply {
        let details = match whom {
            ThrottleScope::Recipient => json!([
                { "@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": "QUOTA_EXCEEDED" },
                {
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{ "subject": "device", "description": "Device message rate exceeded." }],
                },
            ]),
            _ => json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED", "domain": "googleapis.com",
                "metadata": {
                    "service": "fcm.googleapis.com", "quota_limit": "SendsPerMinutePerProject", "quota_unit": "1/min/{project}",
                    "quota_metric": "fcm.googleapis.com/send_requests", "consumer": format!("projects/{}", requested.account),
                },
            }]),
        };
        let message =
            "Quota exceeded for quota metric 'Send requests' of service 'fcm.googleapis.com'.";
        let error = json!({ "code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": details });
        Reply::json(429, &json!({ "error": error })).after(delay)
    }

    fn failed(&self, _: &FakeRequest, status: u16, code: Option<&str>) -> Reply {
        let code = code.or(match status {
            503 => Some("UNAVAILABLE"),
            500 => Some("INTERNAL"),
            _ => None,
        });
        error(status, canonical(status), "It was not possible.", code)
    }

    fn suspended(&self, _: &FakeRequest) -> Reply {
        let mut body = json!({ "error": {
            "code": 403, "status": "PERMISSION_DENIED",
            "message": "Permission denied: Consumer has been suspended.",
        } });
        body["error"]["details"] = json!([{ "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "CONSUMER_SUSPENDED" }]);
        Reply::json(403, &body)
    }

    fn unauthorized(&self, _: &FakeRequest) -> Reply {
        unauthenticated()
    }

    fn gone(&self, _: &FakeRequest, _: u64) -> Reply {
        error(
            404,
            "NOT_FOUND",
            "Requested entity was not found.",
            Some("UNREGISTERED"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_googles_word_and_fcms_code() {
        let code = |reply: Reply| {
            let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
            body["error"]["details"][0]["errorCode"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let requested = FakeRequest::default();
        assert_eq!(code(Fcm.gone(&requested, 0)), "UNREGISTERED");
        assert_eq!(code(Fcm.failed(&requested, 503, None)), "UNAVAILABLE");
        assert_eq!(
            code(Fcm.throttled(&requested, ThrottleScope::Recipient, None, 0)),
            "QUOTA_EXCEEDED"
        );
    }
}
