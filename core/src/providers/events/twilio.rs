//! Status callbacks of Twilio: one form for each change of one message.
//!
//! `X-Twilio-Signature` is the base64 of HMAC-SHA1, with the account's token, over the whole URL
//! followed by name and value of each field, sorted by name.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use super::super::{Account, EventKind, ProviderEvent, RejectedWebhook, WebhookRequest, words};

/// Checks the signature of a request and reads its event.
pub fn read(
    account: &Account,
    posted: &WebhookRequest<'_>,
) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
    let no_secret = || RejectedWebhook::NoSecret {
        account: account.name.clone(),
        field: "auth_token",
    };
    let token = account
        .secret("auth_token")
        .filter(|token| !token.is_empty())
        .ok_or_else(no_secret)?;
    let wrong = |what: &str| RejectedWebhook::Signature(what.to_owned());
    let signature = posted
        .headers
        .get("x-twilio-signature")
        .ok_or_else(|| wrong("X-Twilio-Signature is missing"))?;
    let signature = STANDARD
        .decode(signature.trim())
        .map_err(|_| wrong("X-Twilio-Signature is not base64"))?;
    let fields: Vec<(String, String)> = url::form_urlencoded::parse(posted.body)
        .into_owned()
        .collect();
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, token.as_bytes());
    let is_signed = |url: &String| hmac::verify(&key, &signed(url, &fields), &signature).is_ok();
    if !spellings(posted.url).iter().any(is_signed) {
        return Err(wrong(
            "X-Twilio-Signature does not match; check that public_url is the address configured at \
             Twilio",
        ));
    }
    Ok(match event(account, &fields, posted.now_s)? {
        Some(event) if event.event_type == EventKind::Unsubscribed && !is_reply(&event) => {
            event.of_unsent().into()
        }
        event => event.into_iter().collect(),
    })
}

/// Returns true for the event of a recipient's own message.
fn is_reply(event: &ProviderEvent) -> bool {
    event.event_id.ends_with(":stop")
}

/// Builds the signed text.
fn signed(url: &str, fields: &[(String, String)]) -> Vec<u8> {
    let mut sorted: Vec<&(String, String)> = fields.iter().collect();
    sorted.sort();
    sorted.dedup();
    let mut text = url.to_owned();
    for (name, value) in sorted {
        text.push_str(name);
        text.push_str(value);
    }
    text.into_bytes()
}

/// Returns a URL as it is, and with its scheme's default port added or removed: Twilio signs either
/// form.
fn spellings(text: &str) -> Vec<String> {
    let mut all = vec![text.to_owned()];
    if let Ok(url) = Url::parse(text)
        && let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default())
        && url.port().is_none()
    {
        let (bare, with_port) = (format!("://{host}"), format!("://{host}:{port}"));
        all.push(if text.contains(&with_port) {
            text.replacen(&with_port, &bare, 1)
        } else {
            text.replacen(&bare, &with_port, 1)
        });
    }
    all
}

/// Reads the event of a form; returns `None` if it reports nothing relevant.
fn event(
    account: &Account,
    fields: &[(String, String)],
    now_s: i64,
) -> Result<Option<ProviderEvent>, RejectedWebhook> {
    let find = |name: &str| {
        fields
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    };
    let sid = find("MessageSid")
        .or_else(|| find("SmsSid"))
        .ok_or_else(|| RejectedWebhook::Unreadable("MessageSid is missing".to_owned()))?;
    let code = find("ErrorCode").unwrap_or_default();
    // A recipient's reply, such as STOP, arrives as a message from that number.
    let (status, event_type, recipient) = match (
        find("OptOutType"),
        find("MessageStatus").or_else(|| find("SmsStatus")),
    ) {
        (Some("STOP"), _) => ("stop", EventKind::Unsubscribed, find("From")),
        (Some(_), _) | (None, None) => return Ok(None),
        (None, Some(status)) => match event_type(status, code) {
            Some(event_type) => (status, event_type, find("To")),
            None => return Ok(None),
        },
    };
    let details = [status, code, find("ErrorMessage").unwrap_or_default()];
    let details: Vec<&str> = details
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    Ok(Some(ProviderEvent {
        event_id: format!("{sid}:{status}"),
        provider_id: sid.to_owned(),
        event_type,
        recipient: recipient.map(str::to_owned),
        at_s: now_s,
        reason: words::tidy(account, &details.join(" ")),
    }))
}

fn event_type(status: &str, code: &str) -> Option<EventKind> {
    match (status, code) {
        ("failed" | "undelivered", "21610") => Some(EventKind::Unsubscribed),
        ("failed" | "undelivered" | "canceled", _) => Some(EventKind::Failed),
        ("delivered" | "read", _) => Some(EventKind::Delivered),
        ("accepted" | "queued" | "sending" | "sent", _) => Some(EventKind::Sent),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::examples;
    use super::*;

    const URL: &str = "https://fly.example/api/v1/provider-events/sms/main?x=1";
    const BODY: &str =
        "MessageSid=SM1&MessageStatus=delivered&To=%2B15550100123&ErrorCode=&A=%C3%A4";

    /// Computes the signature of a text whose fields are already sorted.
    fn sign(token: &str, text: &str) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, token.as_bytes());
        STANDARD.encode(hmac::sign(&key, text.as_bytes()))
    }

    fn post(
        url: &str,
        body: &str,
        signature: Option<String>,
    ) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
        let account = examples::account(&[], &[("auth_token", "token-1")]);
        let headers: BTreeMap<_, _> = signature
            .map(|signature| ("x-twilio-signature".to_owned(), signature))
            .into_iter()
            .collect();
        read(
            &account,
            &WebhookRequest {
                url,
                headers: &headers,
                body: body.as_bytes(),
                now_s: examples::NOW_S,
            },
        )
    }

    /// Posts a correctly signed form of these fields and returns its last event.
    fn post_form(fields: &[(&str, &str)]) -> Option<ProviderEvent> {
        post_all(fields).pop()
    }

    /// Posts a correctly signed form of these fields and returns its events.
    fn post_all(fields: &[(&str, &str)]) -> Vec<ProviderEvent> {
        let mut sorted = fields.to_vec();
        sorted.sort_unstable();
        let text: String = sorted
            .iter()
            .map(|(name, value)| format!("{name}{value}"))
            .collect();
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        post(URL, &body, Some(sign("token-1", &format!("{URL}{text}")))).unwrap()
    }

    #[test]
    fn twilios_own_example_is_believed() {
        let account = examples::account(&[], &[("auth_token", "12345")]);
        let url = "https://mycompany.com/myapp.php?foo=1&bar=2";
        let body = "CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212";
        let headers = BTreeMap::from([(
            "x-twilio-signature".to_owned(),
            "RSOYDt4T1cUTdK1PDd93/VVr8B8=".to_owned(),
        )]);
        let read = read(
            &account,
            &WebhookRequest {
                url,
                headers: &headers,
                body: body.as_bytes(),
                now_s: 0,
            },
        );
        assert_eq!(
            read,
            Err(RejectedWebhook::Unreadable("MessageSid is missing".into()))
        );
    }

    #[test]
    fn a_valid_signature_is_believed_and_every_change_is_not() {
        let text = format!("{URL}AäErrorCodeMessageSidSM1MessageStatusdeliveredTo+15550100123");
        let good = sign("token-1", &text);
        let events = post(URL, BODY, Some(good.clone())).unwrap();
        let expected = ProviderEvent {
            event_id: "SM1:delivered".into(),
            provider_id: "SM1".into(),
            event_type: EventKind::Delivered,
            recipient: Some("+15550100123".into()),
            at_s: examples::NOW_S,
            reason: "delivered".into(),
        };
        assert!(events == [expected]);
        let refused = |url: &str, body: &str, signature: Option<String>| {
            assert!(
                matches!(
                    post(url, body, signature),
                    Err(RejectedWebhook::Signature(_))
                ),
                "{url} {body}"
            );
        };
        refused(URL, BODY, None);
        refused(URL, BODY, Some("%%".into()));
        refused(URL, BODY, Some(String::new()));
        refused(URL, BODY, Some(sign("token-2", &text)));
        refused(&URL.replace("x=1", "x=2"), BODY, Some(good.clone()));
        refused(&URL.replace("main", "other"), BODY, Some(good.clone()));
        refused(URL, &BODY.replace("SM1", "SM2"), Some(good.clone()));
        refused(
            URL,
            &BODY.replace("delivered", "failed"),
            Some(good.clone()),
        );
        refused(URL, &format!("{BODY}&B=2"), Some(good.clone()));
        let bytes = STANDARD.decode(&good).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            refused(URL, BODY, Some(STANDARD.encode(other)));
        }
    }

    #[test]
    fn the_port_may_be_said_or_not() {
        let fields = "AäErrorCodeMessageSidSM1MessageStatusdeliveredTo+15550100123";
        let with = URL.replace("fly.example", "fly.example:443");
        for (requested, signed) in [(URL, with.as_str()), (with.as_str(), URL)] {
            assert!(
                post(
                    requested,
                    BODY,
                    Some(sign("token-1", &format!("{signed}{fields}")))
                )
                .is_ok(),
                "{requested}"
            );
        }
        let other = URL.replace("fly.example", "fly.example:8443");
        assert!(
            post(
                URL,
                BODY,
                Some(sign("token-1", &format!("{other}{fields}")))
            )
            .is_err()
        );
    }

    #[test]
    fn every_status_has_its_meaning() {
        let cases = [
            ("queued", "", Some(EventKind::Sent)),
            ("accepted", "", Some(EventKind::Sent)),
            ("sending", "", Some(EventKind::Sent)),
            ("sent", "", Some(EventKind::Sent)),
            ("delivered", "", Some(EventKind::Delivered)),
            ("read", "", Some(EventKind::Delivered)),
            ("undelivered", "30003", Some(EventKind::Failed)),
            ("failed", "30006", Some(EventKind::Failed)),
            ("canceled", "", Some(EventKind::Failed)),
            ("undelivered", "21610", Some(EventKind::Failed)),
            ("scheduled", "", None),
            ("receiving", "", None),
        ];
        for (status, code, expected) in cases {
            let event = post_form(&[
                ("MessageSid", "SM1"),
                ("MessageStatus", status),
                ("ErrorCode", code),
                ("To", "+15550100"),
            ]);
            assert_eq!(
                event.as_ref().map(|event| event.event_type),
                expected,
                "{status}"
            );
            assert!(
                event.is_none_or(|event| event.reason == format!("{status} {code}").trim()),
                "{status}"
            );
        }
        let stop = post_form(&[
            ("MessageSid", "SM9"),
            ("OptOutType", "STOP"),
            ("From", "+15550100"),
            ("To", "+15550199"),
        ])
        .unwrap();
        assert_eq!(
            (stop.event_type, stop.recipient.as_deref()),
            (EventKind::Unsubscribed, Some("+15550100"))
        );
        assert!(
            post_form(&[
                ("MessageSid", "SM9"),
                ("OptOutType", "START"),
                ("From", "+15550100")
            ])
            .is_none()
        );
    }

    #[test]
    fn a_text_to_somebody_who_unsubscribed_has_failed_and_a_reply_is_no_failure() {
        let types = |fields: &[(&str, &str)]| -> Vec<(String, EventKind)> {
            let events = post_all(fields);
            let found = events.into_iter();
            found.map(|one| (one.event_id, one.event_type)).collect()
        };
        assert_eq!(
            types(&[
                ("MessageSid", "SM1"),
                ("MessageStatus", "failed"),
                ("ErrorCode", "21610"),
                ("To", "+15550100"),
            ]),
            [
                ("SM1:failed".to_owned(), EventKind::Unsubscribed),
                ("failed:SM1:failed".to_owned(), EventKind::Failed),
            ]
        );
        assert_eq!(
            types(&[
                ("MessageSid", "SM9"),
                ("OptOutType", "STOP"),
                ("From", "+15550100"),
            ]),
            [("SM9:stop".to_owned(), EventKind::Unsubscribed)]
        );
    }

    #[test]
    fn without_a_secret_nothing_is_believed() {
        let posted = WebhookRequest {
            url: URL,
            headers: &BTreeMap::new(),
            body: b"",
            now_s: 0,
        };
        let expected = RejectedWebhook::NoSecret {
            account: "main".into(),
            field: "auth_token",
        };
        assert_eq!(read(&examples::account(&[], &[]), &posted), Err(expected));
    }
}
