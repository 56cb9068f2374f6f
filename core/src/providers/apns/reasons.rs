//! The meaning of Apple's answers.

use std::time::Duration;

use serde_json::Value;

use crate::outbound::retry_after::{Headers, retry_after};
use crate::providers::code::row;
use crate::providers::outcome::{self, ResponseDetails};
use crate::providers::{Class, Code, ProviderResponse, Scope, Sent};

/// The reason that sets a connection aside.
pub(super) const TOKEN_UPDATES: &str = "TooManyProviderTokenUpdates";

/// The reason that a new token may resolve.
pub(super) const EXPIRED: &str = "ExpiredProviderToken";

/// The meaning of answers. The code is `reason`.
#[rustfmt::skip]
pub const CODES: &[Code] = &[
    row("200", "", Class::Accepted, "accepted"),
    row("400", "BadDeviceToken", Class::Suppress, "the token is not valid in this environment"),
    row("400", "DeviceTokenNotForTopic", Class::Recipient, "the token belongs to another app"),
    row("400", "TopicDisallowed", Class::Account, "the key may not push to this topic"),
    row("400", "IdleTimeout", Class::Transient, "the connection was idle for too long"),
    row("400", "BadCollapseId", Class::Request, "the collapse id is too long"),
    row("400", "BadExpirationDate", Class::Request, "the expiration is not valid"),
    row("400", "BadMessageId", Class::Request, "the id is not a UUID"),
    row("400", "BadPriority", Class::Request, "the priority is not valid"),
    row("400", "BadTopic", Class::Request, "the topic is not valid"),
    row("400", "DuplicateHeaders", Class::Request, "a header is duplicated"),
    row("400", "InvalidPushType", Class::Request, "the push type is not valid"),
    row("400", "MissingDeviceToken", Class::Request, "the token is missing"),
    row("400", "MissingTopic", Class::Request, "the topic is missing"),
    row("400", "PayloadEmpty", Class::Request, "the payload is empty"),
    row("400", "", Class::Request, "the request is not valid"),
    row("403", "BadCertificate", Class::Account, "the certificate is not valid"),
    row("403", "BadCertificateEnvironment", Class::Account, "the certificate is for the other environment"),
    row("403", "BadEnvironmentKeyIdInToken", Class::Account, "the key is for the other environment"),
    row("403", "ExpiredProviderToken", Class::Account, "our token has expired, and it is too early for a new one"),
    row("403", "Forbidden", Class::Account, "the key does not permit this request"),
    row("403", "InvalidProviderToken", Class::Account, "our token is not valid: team, key id or key"),
    row("403", "MissingProviderToken", Class::Account, "our token is missing"),
    row("403", "UnrelatedKeyIdInToken", Class::Account, "the key belongs to another team than the connection"),
    row("403", "", Class::Account, "the key does not permit this request"),
    row("404", "BadPath", Class::Request, "the path is not valid"),
    row("405", "MethodNotAllowed", Class::Request, "the method is not allowed"),
    row("410", "ExpiredToken", Class::Suppress, "the token has expired"),
    row("410", "Unregistered", Class::Suppress, "the app was removed from the device"),
    row("410", "", Class::Suppress, "the token is no longer valid"),
    row("413", "PayloadTooLarge", Class::Request, "the payload is too large"),
    row("429", "TooManyProviderTokenUpdates", Class::Throttled(Scope::Connection), "too many token updates: the connection is unusable for a while"),
    row("429", "TooManyRequests", Class::Throttled(Scope::Recipient), "too many notifications to one device"),
    row("429", "", Class::Throttled(Scope::Recipient), "too many notifications to one device"),
    row("4xx", "", Class::Request, "the request is not valid"),
    row("500", "InternalServerError", Class::Transient, "error on Apple's side"),
    row("503", "ServiceUnavailable", Class::Transient, "Apple is overloaded"),
    row("503", "Shutdown", Class::Transient, "the server is shutting down"),
    row("*", "", Class::Transient, "error on Apple's side"),
];

/// Returns true if the answer rejects a push, after which Apple allows one stream for a moment.
pub(super) fn is_rejection(status: u16) -> bool {
    matches!(status, 400 | 403 | 410)
}

/// Maps an answer to an outcome for the token `to`, and returns its reason as well. `id` is used if
/// the answer has no `apns-id`.
pub(super) fn judge(
    status: u16,
    headers: &Headers,
    body: &[u8],
    now_s: i64,
    to: &str,
    id: &str,
) -> (ProviderResponse, String) {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let word = body["reason"].as_str().unwrap_or_default();
    let code = status.to_string();
    let class = outcome::class(CODES, &code, word);
    let facts = ResponseDetails {
        provider_id: Some(headers.get("apns-id").map_or(id, String::as_str).to_owned()),
        key: Some(to.to_owned()),
        delay: retry_after(headers, now_s),
        reason: outcome::line(&format!("{status} {word}"), &[to]),
    };
    let mut sent = outcome::sent(class, facts);
    if let Sent::Throttled {
        scope: Scope::Connection,
        key,
        delay,
        ..
    } = &mut sent
    {
        // The next attempt uses another connection.
        (*key, *delay) = (None, Some(Duration::from_secs(1)));
    }
    let delay = retry_after(headers, now_s);
    let answer = ProviderResponse {
        is_untimed: is_rejection(status),
        delay,
        ..ProviderResponse::new(sent, code)
    };
    (answer, word.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::providers::wire_tests::{class_of, example, headers};

    #[test]
    fn every_row_is_what_its_answer_becomes() {
        for row in CODES {
            let status: u16 = example(row.status).parse().unwrap();
            let body = json!({ "reason": row.code, "timestamp": 1 }).to_string();
            let (answer, word) = judge(status, &headers(&[]), body.as_bytes(), 0, "token1", "id");
            assert_eq!(
                (class_of(&answer.sent), word.as_str()),
                (row.class, row.code),
                "{row:?}"
            );
            assert_eq!(answer.is_untimed, matches!(status, 400 | 403 | 410));
            if let Sent::Throttled { scope, key, .. } = answer.sent {
                assert_eq!(
                    key.as_deref(),
                    (scope == Scope::Recipient).then_some("token1"),
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn an_accepted_push_has_apples_id_or_ours() {
        let id =
            |pairs: &[(&str, &str)]| judge(200, &headers(pairs), b"", 0, "token1", "ours").0.sent;
        assert_eq!(
            id(&[("apns-id", "theirs")]),
            Sent::Accepted {
                provider_id: Some("theirs".to_owned())
            }
        );
        assert_eq!(
            id(&[]),
            Sent::Accepted {
                provider_id: Some("ours".to_owned())
            }
        );
    }
}
