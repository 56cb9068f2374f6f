//! Events of Mailgun: one JSON object each.
//!
//! Its `signature` is HMAC-SHA256, with the webhook signing key, over `timestamp` and `token`, in
//! hexadecimal. It does not cover the event itself, so a reader of one request could forge others.
//! Therefore a signature is remembered while its time is acceptable, and is accepted again only
//! with the same body ([`once`]): ten minutes, unless the account sets another age.

use aws_lc_rs::{digest, hmac};
use serde_json::Value;

use super::super::{Account, EventKind, ProviderEvent, RejectedWebhook, WebhookRequest, words};
use super::age;
use super::once::ReplayGuard;

/// The account setting that holds the secret.
const KEY: &str = "webhook_signing_key";

/// The default maximum age of a request, in seconds.
const USUAL_AGE_S: i64 = 600;

/// Checks the signature of a request and reads its event.
pub fn read(
    account: &Account,
    posted: &WebhookRequest<'_>,
) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
    let no_secret = || RejectedWebhook::NoSecret {
        account: account.name.clone(),
        field: KEY,
    };
    let key = account
        .secret(KEY)
        .filter(|key| !key.is_empty())
        .ok_or_else(no_secret)?;
    let wrong = |what: &str| RejectedWebhook::Signature(what.to_owned());
    let body: Value = serde_json::from_slice(posted.body)
        .map_err(|_| wrong("the signature is missing, because the body is not JSON"))?;
    let signature = &body["signature"];
    let timestamp = match &signature["timestamp"] {
        Value::Number(number) => number.to_string(),
        other => other
            .as_str()
            .ok_or_else(|| wrong("the timestamp is missing"))?
            .to_owned(),
    };
    let token = signature["token"]
        .as_str()
        .ok_or_else(|| wrong("the token is missing"))?;
    let given = signature["signature"]
        .as_str()
        .and_then(bytes)
        .ok_or_else(|| wrong("the signature is missing or not hexadecimal"))?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    hmac::verify(&key, format!("{timestamp}{token}").as_bytes(), &given)
        .map_err(|_| wrong("the signature does not match"))?;
    let at_s = timestamp
        .parse()
        .map_err(|_| wrong("the timestamp is not a number"))?;
    age::check(account, USUAL_AGE_S, at_s, posted.now_s)?;
    match &body["event-data"] {
        data @ Value::Object(_) => Ok(match one(account, data, posted.now_s) {
            Some(event)
                if event.event_type == EventKind::Unsubscribed && data["event"] == "failed" =>
            {
                event.of_unsent().into()
            }
            event => event.into_iter().collect(),
        }),
        _ => Err(RejectedWebhook::Unreadable(
            "event-data is missing".to_owned(),
        )),
    }
}

/// Returns the record that binds an authentic request's signature to its body; `None` for a request
/// that cannot be parsed.
pub fn once(account: &Account, posted: &WebhookRequest<'_>) -> Option<ReplayGuard> {
    let body: Value = serde_json::from_slice(posted.body).ok()?;
    let signature = &body["signature"];
    let timestamp = match &signature["timestamp"] {
        Value::Number(number) => number.to_string(),
        other => other.as_str()?.to_owned(),
    };
    // The signature covers the concatenation, not the boundary between the two.
    let signed = format!("{timestamp}{}", signature["token"].as_str()?);
    let most_s = age::most(account, USUAL_AGE_S).unwrap_or(USUAL_AGE_S);
    let digest = |bytes: &[u8]| digest::digest(&digest::SHA256, bytes).as_ref().to_vec();
    let key = account.secret(KEY).unwrap_or_default();
    let signed = hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()),
        format!("once:{signed}").as_bytes(),
    );
    Some(ReplayGuard {
        signed: signed.as_ref().to_vec(),
        body: digest(posted.body),
        until_s: posted
            .now_s
            .saturating_add(most_s)
            .saturating_add(2 * age::MAX_CLOCK_AHEAD_S),
    })
}

/// Reads an event; returns `None` if it reports nothing relevant.
fn one(account: &Account, data: &Value, now_s: i64) -> Option<ProviderEvent> {
    let text = |value: &Value| {
        value
            .as_str()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let word = text(&data["event"])?;
    let event_type = match word.as_str() {
        "accepted" => EventKind::Sent,
        "delivered" => EventKind::Delivered,
        "failed" => failed(data)?,
        "rejected" => EventKind::Failed,
        "complained" => EventKind::Complained,
        "unsubscribed" => EventKind::Unsubscribed,
        _ => return None,
    };
    let provider_id = text(&data["message"]["headers"]["message-id"])?
        .trim_matches(['<', '>'])
        .to_owned();
    let recipient = text(&data["recipient"]);
    let at_s = data["timestamp"]
        .as_f64()
        .map_or(now_s, |seconds| seconds as i64);
    let status = &data["delivery-status"];
    let code = status["code"]
        .as_i64()
        .filter(|code| *code > 0)
        .map(|code| code.to_string());
    let words_of = text(&status["message"])
        .or_else(|| text(&status["description"]))
        .or_else(|| text(&data["reject"]["reason"]));
    let details = [
        Some(word.clone()),
        text(&data["severity"]),
        text(&data["reason"]),
        code,
        words_of,
    ];
    let made = || {
        format!(
            "{provider_id}:{word}:{at_s}:{}",
            recipient.as_deref().unwrap_or_default()
        )
    };
    Some(ProviderEvent {
        event_id: text(&data["id"]).unwrap_or_else(made),
        event_type,
        at_s,
        reason: words::tidy(
            account,
            &details.into_iter().flatten().collect::<Vec<_>>().join(" "),
        ),
        provider_id,
        recipient,
    })
}

/// Returns the kind of a failure; `None` for a temporary one, which Mailgun retries by itself.
fn failed(data: &Value) -> Option<EventKind> {
    let policy = data["delivery-status"]["enhanced-code"]
        .as_str()
        .is_some_and(|code| code.starts_with("5.7."));
    match (data["severity"].as_str(), data["reason"].as_str()) {
        (Some("temporary"), _) => None,
        // Mailgun did not send it. The complaint was about an earlier mail, and counted then.
        (_, Some("suppress-unsubscribe" | "suppress-complaint")) => Some(EventKind::Unsubscribed),
        // Mailgun gave up after many attempts, or the server rejected the mail and not the
        // recipient.
        (_, Some("old" | "espblock")) => Some(EventKind::Failed),
        _ if policy => Some(EventKind::Failed),
        _ => Some(EventKind::Bounced),
    }
}

/// Decodes a hexadecimal text.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    digits
        .chunks_exact(2)
        .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::super::examples::{self, NOW_S};
    use super::*;

    fn signature(key: &str, timestamp: &str, token: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
        let signature = hmac::sign(&key, format!("{timestamp}{token}").as_bytes());
        signature
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    fn post(options: &[(&str, &str)], body: &Value) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
        let account = examples::account(options, &[(KEY, "key-1")]);
        let body = body.to_string();
        read(
            &account,
            &WebhookRequest {
                url: "",
                headers: &BTreeMap::new(),
                body: body.as_bytes(),
                now_s: NOW_S,
            },
        )
    }

    fn signed(at_s: i64, data: &Value) -> Value {
        let time = at_s.to_string();
        let signature = json!({ "timestamp": time, "token": "t0ken", "signature": signature("key-1", &time, "t0ken") });
        json!({ "signature": signature, "event-data": data })
    }

    fn event(word: &str, more: Value) -> Value {
        let mut event = json!({
            "id": "e1", "event": word, "timestamp": 1_699_999_990.7, "recipient": "ann@example.com",
            "message": { "headers": { "message-id": "1.2@mg.example.com" } }
        });
        event
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        event
    }

    #[test]
    fn a_valid_signature_is_believed_and_every_change_is_not() {
        let good = signed(
            NOW_S,
            &event(
                "delivered",
                json!({ "delivery-status": { "code": 250, "message": "OK" } }),
            ),
        );
        let expected = ProviderEvent {
            event_id: "e1".into(),
            provider_id: "1.2@mg.example.com".into(),
            event_type: EventKind::Delivered,
            recipient: Some("ann@example.com".into()),
            at_s: 1_699_999_990,
            reason: "delivered 250 OK".into(),
        };
        assert!(post(&[], &good).unwrap() == [expected]);
        let refused = |body: &Value| {
            assert!(
                matches!(post(&[], body), Err(RejectedWebhook::Signature(_))),
                "{body}"
            )
        };
        let mut numeric = good.clone();
        numeric["signature"]["timestamp"] = NOW_S.into();
        assert!(post(&[], &numeric).is_ok());
        for (key, value) in [
            ("timestamp", json!((NOW_S + 1).to_string())),
            ("token", json!("t0kem")),
            ("signature", json!("00")),
            ("signature", json!("zz")),
            ("signature", json!("")),
            ("token", json!(7)),
            ("timestamp", Value::Null),
        ] {
            let mut other = good.clone();
            other["signature"][key] = value;
            refused(&other);
        }
        let given = bytes(good["signature"]["signature"].as_str().unwrap()).unwrap();
        for bit in 0..given.len() * 8 {
            let mut other = given.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let mut body = good.clone();
            body["signature"]["signature"] = other
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
                .into();
            refused(&body);
        }
        refused(&json!({ "event-data": {} }));
        refused(&json!([]));
        assert!(matches!(
            post(&[], &signed(NOW_S, &Value::Null)),
            Err(RejectedWebhook::Unreadable(_))
        ));
    }

    #[test]
    fn what_is_too_old_is_not_believed() {
        let data = event("delivered", json!({}));
        assert!(post(&[], &signed(NOW_S - 600, &data)).is_ok());
        assert!(matches!(
            post(&[], &signed(NOW_S - 601, &data)),
            Err(RejectedWebhook::Signature(_))
        ));
        assert!(matches!(
            post(&[], &signed(NOW_S + 601, &data)),
            Err(RejectedWebhook::Signature(_))
        ));
        assert!(matches!(
            post(&[("webhook_max_age_s", "60")], &signed(NOW_S - 61, &data)),
            Err(RejectedWebhook::Signature(_))
        ));
    }

    #[test]
    fn a_signature_is_remembered_whole_and_with_its_body() {
        let account = examples::account(&[], &[(KEY, "key-1")]);
        let once = |body: &Value| {
            let body = body.to_string();
            once(
                &account,
                &WebhookRequest {
                    url: "",
                    headers: &BTreeMap::new(),
                    body: body.as_bytes(),
                    now_s: NOW_S,
                },
            )
            .unwrap()
        };
        let first = once(&signed(NOW_S, &event("delivered", json!({}))));
        let other_body = once(&signed(NOW_S, &event("complained", json!({}))));
        assert!(first.signed == other_body.signed && first.body != other_body.body);
        // The boundary between timestamp and token is not signed.
        let moved = json!({ "signature": { "timestamp": format!("{NOW_S}t0"), "token": "ken" } });
        assert_eq!(once(&moved).signed, first.signed);
        assert!(
            first.until_s >= NOW_S + USUAL_AGE_S + age::MAX_CLOCK_AHEAD_S,
            "for as long as it is believed"
        );
    }

    #[test]
    fn every_event_has_its_meaning() {
        let permanent = |reason: &str| json!({ "severity": "permanent", "reason": reason });
        let policy = json!({ "severity": "permanent", "reason": "generic", "delivery-status": { "enhanced-code": "5.7.1" } });
        let cases = [
            ("accepted", json!({}), Some(EventKind::Sent)),
            ("delivered", json!({}), Some(EventKind::Delivered)),
            ("failed", permanent("bounce"), Some(EventKind::Bounced)),
            (
                "failed",
                permanent("suppress-bounce"),
                Some(EventKind::Bounced),
            ),
            ("failed", permanent("generic"), Some(EventKind::Bounced)),
            (
                "failed",
                permanent("suppress-unsubscribe"),
                Some(EventKind::Unsubscribed),
            ),
            (
                "failed",
                permanent("suppress-complaint"),
                Some(EventKind::Unsubscribed),
            ),
            ("failed", permanent("old"), Some(EventKind::Failed)),
            ("failed", policy, Some(EventKind::Failed)),
            (
                "failed",
                json!({ "severity": "temporary", "reason": "generic" }),
                None,
            ),
            (
                "rejected",
                json!({ "reject": { "reason": "spam" } }),
                Some(EventKind::Failed),
            ),
            ("complained", json!({}), Some(EventKind::Complained)),
            ("unsubscribed", json!({}), Some(EventKind::Unsubscribed)),
            ("opened", json!({}), None),
            ("clicked", json!({}), None),
        ];
        for (word, more, expected) in cases {
            let events = post(&[], &signed(NOW_S, &event(word, more.clone()))).unwrap();
            assert_eq!(
                events.first().map(|event| event.event_type),
                expected,
                "{word} {more}"
            );
        }
    }

    #[test]
    fn a_mail_that_mailgun_kept_back_has_failed_and_is_no_new_complaint() {
        for reason in ["suppress-unsubscribe", "suppress-complaint"] {
            let more = json!({ "severity": "permanent", "reason": reason });
            let events = post(&[], &signed(NOW_S, &event("failed", more))).unwrap();
            let types: Vec<EventKind> = events.iter().map(|one| one.event_type).collect();
            assert_eq!(types, [EventKind::Unsubscribed, EventKind::Failed]);
            assert_ne!(events[0].event_id, events[1].event_id);
        }
        let own = post(&[], &signed(NOW_S, &event("unsubscribed", json!({})))).unwrap();
        assert_eq!(own.len(), 1, "the recipient's own click is no failure");
    }

    #[test]
    fn without_a_secret_nothing_is_believed() {
        let posted = WebhookRequest {
            url: "",
            headers: &BTreeMap::new(),
            body: b"{}",
            now_s: 0,
        };
        let expected = RejectedWebhook::NoSecret {
            account: "main".into(),
            field: KEY,
        };
        assert_eq!(read(&examples::account(&[], &[]), &posted), Err(expected));
    }
}
