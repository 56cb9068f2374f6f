//! Events of SendGrid: a JSON list, for many messages and recipients.
//!
//! `X-Twilio-Email-Event-Webhook-Signature` is the base64 of an ECDSA signature (P-256, SHA-256,
//! ASN.1) over the header `X-Twilio-Email-Event-Webhook-Timestamp` and the raw body. A request may
//! be ten minutes old unless the account sets another age; SendGrid signs a redelivery again, and
//! its events count once by their ids.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::{
    Account, EventKind, InvalidAccount, ProviderEvent, RejectedWebhook, WebhookRequest,
    invalid_account, words,
};
use super::{age, certificate};

/// The account setting that holds the public key.
const KEY: &str = "webhook_public_key";

/// The default maximum age of a request, in seconds.
const USUAL_AGE_S: i64 = 600;

/// Rejects settings with which no signature could be checked.
pub fn check_settings(account: &Account) -> Result<(), InvalidAccount> {
    age::most(account, USUAL_AGE_S)?;
    match words::either(account, KEY) {
        Some(text) if point(text).is_none() => Err(invalid_account::refused(
            KEY,
            "must be a P-256 key in base64, as SendGrid's console shows it",
        )),
        _ => Ok(()),
    }
}

/// Returns the point of a public key, given as base64 of its DER form, with or without PEM lines.
fn point(text: &str) -> Option<Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with("-----"));
    let der = STANDARD
        .decode(lines.flat_map(str::split_whitespace).collect::<String>())
        .ok()?;
    let point = certificate::public_key(&der)?;
    (point.len() == 65 && point.first() == Some(&4)).then(|| point.to_vec())
}

/// Checks the signature of a request and reads its events.
pub fn read(
    account: &Account,
    posted: &WebhookRequest<'_>,
) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
    let no_key = || RejectedWebhook::NoSecret {
        account: account.name.clone(),
        field: KEY,
    };
    let key = words::either(account, KEY)
        .and_then(point)
        .ok_or_else(no_key)?;
    let wrong = |what: &str| RejectedWebhook::Signature(what.to_owned());
    let header = |name: &str| {
        let value = posted
            .headers
            .get(&format!("x-twilio-email-event-webhook-{name}"));
        value
            .map(|value| value.trim())
            .ok_or_else(|| wrong(&format!("the {name} is missing")))
    };
    let (signature, timestamp) = (header("signature")?, header("timestamp")?);
    let signature = STANDARD
        .decode(signature)
        .map_err(|_| wrong("the signature is not base64"))?;
    let signed = [timestamp.as_bytes(), posted.body].concat();
    let is_signed = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key)
        .verify(&signed, &signature)
        .is_ok();
    if !is_signed {
        return Err(wrong("the signature does not match"));
    }
    let at_s = timestamp
        .parse()
        .map_err(|_| wrong("the timestamp is not a number"))?;
    age::check(account, USUAL_AGE_S, at_s, posted.now_s)?;
    let events: Vec<Value> = serde_json::from_slice(posted.body)
        .map_err(|error| RejectedWebhook::Unreadable(error.to_string()))?;
    Ok(events
        .iter()
        .filter_map(|event| one(account, event, posted.now_s))
        .collect())
}

/// Reads an event; returns `None` if it reports nothing relevant.
fn one(account: &Account, event: &Value, now_s: i64) -> Option<ProviderEvent> {
    let text = |name: &str| event[name].as_str().filter(|text| !text.is_empty());
    let word = text("event")?;
    let event_type = match (word, text("type")) {
        ("processed", _) => EventKind::Sent,
        ("delivered", _) => EventKind::Delivered,
        ("bounce", Some("blocked")) | ("dropped", _) => EventKind::Failed,
        ("bounce", _) => EventKind::Bounced,
        ("spamreport", _) => EventKind::Complained,
        ("unsubscribe" | "group_unsubscribe", _) => EventKind::Unsubscribed,
        _ => return None,
    };
    // The id begins with that of the accepted mail; the rest names the server that the mail went
    // through.
    let provider_id = text("sg_message_id")?
        .split('.')
        .next()
        .unwrap_or_default()
        .to_owned();
    let at_s = event["timestamp"].as_i64().unwrap_or(now_s);
    let details = [
        Some(word),
        text("type"),
        text("status"),
        text("reason").or_else(|| text("response")),
    ];
    let made = || {
        format!(
            "{provider_id}:{word}:{at_s}:{}",
            text("email").unwrap_or_default()
        )
    };
    Some(ProviderEvent {
        event_id: text("sg_event_id").map_or_else(made, str::to_owned),
        event_type,
        recipient: text("email").map(str::to_owned),
        at_s,
        reason: words::tidy(
            account,
            &details.into_iter().flatten().collect::<Vec<_>>().join(" "),
        ),
        provider_id,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
    use serde_json::json;

    use super::super::super::examples::{self, NOW_S};
    use super::*;

    struct Sender {
        pair: EcdsaKeyPair,
        account: Account,
    }

    impl Sender {
        fn new() -> Self {
            let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
            let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
            let account = examples::account(&[(KEY, &STANDARD.encode(der.as_ref()))], &[]);
            Self { pair, account }
        }

        fn sign(&self, timestamp: &str, body: &str) -> Vec<u8> {
            let signed = format!("{timestamp}{body}");
            self.pair
                .sign(&SystemRandom::new(), signed.as_bytes())
                .unwrap()
                .as_ref()
                .to_vec()
        }

        fn post(
            &self,
            timestamp: &str,
            body: &str,
            signature: &[u8],
        ) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
            let name = |end: &str| format!("x-twilio-email-event-webhook-{end}");
            let headers = [
                (name("signature"), STANDARD.encode(signature)),
                (name("timestamp"), timestamp.to_owned()),
            ];
            let headers = BTreeMap::from(headers);
            read(
                &self.account,
                &WebhookRequest {
                    url: "",
                    headers: &headers,
                    body: body.as_bytes(),
                    now_s: NOW_S,
                },
            )
        }

        fn post_signed(&self, body: &Value) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
            let (time, body) = (NOW_S.to_string(), body.to_string());
            self.post(&time, &body, &self.sign(&time, &body))
        }
    }

    #[test]
    fn a_valid_signature_is_believed_and_every_change_is_not() {
        let sender = Sender::new();
        let (time, body) = (
            NOW_S.to_string(),
            r#"[{"event":"delivered","sg_message_id":"a.filter1"}]"#,
        );
        let good = sender.sign(&time, body);
        assert_eq!(sender.post(&time, body, &good).unwrap().len(), 1);
        let refused = |sender: &Sender, time: &str, body: &str, signature: &[u8]| {
            assert!(
                matches!(
                    sender.post(time, body, signature),
                    Err(RejectedWebhook::Signature(_))
                ),
                "{time} {body}"
            );
        };
        refused(&Sender::new(), &time, body, &good);
        refused(&sender, &(NOW_S + 1).to_string(), body, &good);
        refused(&sender, "", body, &good);
        refused(&sender, &time, &format!("{body} "), &good);
        refused(&sender, &time, body, &[]);
        for bit in 0..good.len() * 8 {
            let mut other = good.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            refused(&sender, &time, body, &other);
        }
        let mut bytes = body.as_bytes().to_vec();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            refused(&sender, &time, std::str::from_utf8(&bytes).unwrap(), &good);
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn what_is_too_old_is_not_believed_unless_the_account_says_so() {
        let mut sender = Sender::new();
        let signed = |time: i64, sender: &Sender| {
            sender.post(
                &time.to_string(),
                "[]",
                &sender.sign(&time.to_string(), "[]"),
            )
        };
        assert_eq!(signed(NOW_S - 600, &sender), Ok(vec![]));
        assert!(matches!(
            signed(NOW_S - 601, &sender),
            Err(RejectedWebhook::Signature(_))
        ));
        assert!(matches!(
            signed(NOW_S + 601, &sender),
            Err(RejectedWebhook::Signature(_))
        ));
        sender
            .account
            .options
            .insert("webhook_max_age_s".into(), "86400".into());
        assert_eq!(signed(NOW_S - 86_400, &sender), Ok(vec![]));
    }

    #[test]
    fn every_event_has_its_meaning() {
        let sender = Sender::new();
        let cases = [
            ("processed", "", Some(EventKind::Sent)),
            ("delivered", "", Some(EventKind::Delivered)),
            ("bounce", "bounce", Some(EventKind::Bounced)),
            ("bounce", "", Some(EventKind::Bounced)),
            ("bounce", "blocked", Some(EventKind::Failed)),
            ("dropped", "", Some(EventKind::Failed)),
            ("spamreport", "", Some(EventKind::Complained)),
            ("unsubscribe", "", Some(EventKind::Unsubscribed)),
            ("group_unsubscribe", "", Some(EventKind::Unsubscribed)),
            ("deferred", "", None),
            ("open", "", None),
            ("click", "", None),
            ("group_resubscribe", "", None),
        ];
        for (word, kind, expected) in cases {
            let event = json!([{ "event": word, "type": kind, "sg_message_id": "a" }]);
            let events = sender.post_signed(&event).unwrap();
            assert_eq!(
                events.first().map(|event| event.event_type),
                expected,
                "{word} {kind}"
            );
        }
    }

    #[test]
    fn one_request_reports_many_recipients() {
        let events = json!([
            { "event": "delivered", "email": "ann@example.com", "timestamp": 1_699_999_990, "sg_event_id": "e1",
              "sg_message_id": "abc.filterdrecv-1.recvd-2", "response": "250 OK" },
            { "event": "open", "email": "ann@example.com", "sg_event_id": "e2", "sg_message_id": "abc.filter" },
            { "event": "bounce", "email": "bob@example.com", "sg_event_id": "e3", "sg_message_id": "abc.filter", "type": "bounce",
              "status": "5.1.1", "reason": "550 5.1.1 <bob@example.com>: no such user" },
            { "event": "delivered", "email": "no-id@example.com" }, 7
        ]);
        let events = Sender::new().post_signed(&events).unwrap();
        assert_eq!(events.len(), 2);
        let event =
            |event_id: &str, event_type, recipient: &str, at_s, reason: &str| ProviderEvent {
                event_id: event_id.into(),
                provider_id: "abc".into(),
                event_type,
                recipient: Some(recipient.into()),
                at_s,
                reason: reason.into(),
            };
        assert!(
            events[0]
                == event(
                    "e1",
                    EventKind::Delivered,
                    "ann@example.com",
                    1_699_999_990,
                    "delivered 250 OK"
                )
        );
        let reason = "bounce bounce 5.1.1 550 5.1.1 <***>: no such user";
        assert!(
            events[1] == event("e3", EventKind::Bounced, "bob@example.com", NOW_S, reason),
            "{}",
            events[1].reason
        );
        assert!(matches!(
            Sender::new().post_signed(&json!({ "event": "open" })),
            Err(RejectedWebhook::Unreadable(_))
        ));
    }

    #[test]
    fn without_a_key_nothing_is_believed() {
        let posted = WebhookRequest {
            url: "",
            headers: &BTreeMap::new(),
            body: b"[]",
            now_s: 0,
        };
        let expected = RejectedWebhook::NoSecret {
            account: "main".into(),
            field: KEY,
        };
        assert_eq!(read(&examples::account(&[], &[]), &posted), Err(expected));
        assert!(matches!(
            read(&Sender::new().account, &posted),
            Err(RejectedWebhook::Signature(_))
        ));
    }
}
