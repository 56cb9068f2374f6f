//! The event requests of each provider, in its own format and with its own signature.

use serde_json::{Value, json};

use super::crypt::{Keys, base64, hex, hmac_sha1, hmac_sha256};
use super::events::PendingEvent;
use super::wire::FormatState;
use super::{FakeProvider, PlannedEvent, sns};

/// A request that reports events.
pub(super) struct EventPost {
    pub url: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

/// Returns the most events that one request reports.
pub(super) fn at_once(speaks: FakeProvider) -> usize {
    if speaks == FakeProvider::Sendgrid {
        1_000
    } else {
        1
    }
}

/// Builds the request for events that go to one address; `None` for providers that post none.
pub(super) fn post(
    speaks: FakeProvider,
    answer: &[PendingEvent],
    format_state: &FormatState,
    keys: &Keys,
    secret: &str,
    now_ms: u64,
) -> Option<EventPost> {
    let first = answer.first()?;
    let json = ("content-type", "application/json".to_owned());
    let (headers, body) = match speaks {
        FakeProvider::Twilio => {
            let form = twilio(first);
            let token = format_state
                .secrets
                .get(&first.account)
                .map_or(secret, String::as_str);
            let signed = form
                .iter()
                .fold(first.callback.clone(), |text, (name, value)| {
                    text + name + value
                });
            let body = url::form_urlencoded::Serializer::new(String::new())
                .extend_pairs(&form)
                .finish();
            let signature = base64(&hmac_sha1(token.as_bytes(), signed.as_bytes()));
            let kind = (
                "content-type",
                "application/x-www-form-urlencoded".to_owned(),
            );
            (vec![kind, ("x-twilio-signature", signature)], body)
        }
        FakeProvider::Sendgrid => {
            let body = Value::Array(answer.iter().map(sendgrid).collect()).to_string();
            let at = (now_ms / 1_000).to_string();
            let signature =
                base64(&keys.ecdsa([at.as_bytes(), body.as_bytes()].concat().as_slice()));
            let signature = ("x-twilio-email-event-webhook-signature", signature);
            (
                vec![
                    json,
                    signature,
                    ("x-twilio-email-event-webhook-timestamp", at),
                ],
                body,
            )
        }
        FakeProvider::Ses => {
            let topic = sns::topic(&first.account);
            let message = ses(first).to_string();
            let body = sns::notification(
                keys,
                &format_state.url,
                &topic,
                &first.event_id,
                &message,
                &stamp(now_ms),
            );
            (sns_headers("Notification"), body.to_string())
        }
        FakeProvider::Mailgun => {
            let at = (now_ms / 1_000).to_string();
            let token = hex(&hmac_sha256(
                b"token",
                format!("{}{now_ms}", first.event_id).as_bytes(),
            ))[..50]
                .to_owned();
            let signature = hex(&hmac_sha256(
                secret.as_bytes(),
                format!("{at}{token}").as_bytes(),
            ));
            let signature = json!({ "timestamp": at, "token": token, "signature": signature });
            (
                vec![json],
                json!({ "signature": signature, "event-data": mailgun(first) }).to_string(),
            )
        }
        FakeProvider::Telegram
        | FakeProvider::Slack
        | FakeProvider::Webhook
        | FakeProvider::Fcm
        | FakeProvider::Apns
        | FakeProvider::Smtp => return None,
    };
    Some(EventPost {
        url: first.callback.clone(),
        headers,
        body,
    })
}

/// Returns the headers of a request from SNS.
pub(super) fn sns_headers(kind: &'static str) -> Vec<(&'static str, String)> {
    vec![
        ("content-type", "text/plain; charset=UTF-8".to_owned()),
        ("x-amz-sns-message-type", kind.to_owned()),
    ]
}

/// Formats a time in the form of SES and SNS.
pub(super) fn stamp(at_ms: u64) -> String {
    let at = i64::try_from(at_ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .unwrap_or_default();
    at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// Returns the fields of the form, sorted by name because they are signed in that order.
fn twilio(answer: &PendingEvent) -> Vec<(&'static str, String)> {
    let (status, code) = match answer.fate {
        PlannedEvent::Delivered => ("delivered", None),
        PlannedEvent::Bounced => ("undelivered", Some("30005")),
        PlannedEvent::Failed => ("undelivered", Some("30003")),
        PlannedEvent::Complained => ("undelivered", Some("30007")),
        PlannedEvent::Unsubscribed => ("failed", Some("21610")),
    };
    let mut form = vec![
        ("AccountSid", answer.account.clone()),
        ("ApiVersion", "2010-04-01".to_owned()),
    ];
    form.extend(code.map(|code| ("ErrorCode", code.to_owned())));
    form.extend([
        ("MessageSid", answer.id.clone()),
        ("MessageStatus", status.to_owned()),
    ]);
    form.extend([
        ("SmsSid", answer.id.clone()),
        ("SmsStatus", status.to_owned()),
        ("To", answer.to.clone()),
    ]);
    form
}

fn sendgrid(answer: &PendingEvent) -> Value {
    let mut event = json!({
        "email": answer.to, "timestamp": answer.at_ms / 1_000, "sg_event_id": answer.event_id,
        "sg_message_id": format!("{}.recvd-fake-1.0", answer.id), "smtp-id": format!("<{}@fake.invalid>", answer.id),
    });
    let more = match answer.fate {
        PlannedEvent::Delivered => json!({ "event": "delivered", "response": "250 OK" }),
        PlannedEvent::Bounced => {
            json!({ "event": "bounce", "type": "bounce", "status": "5.1.1", "reason": "550 5.1.1 unknown user" })
        }
        PlannedEvent::Failed => json!({ "event": "dropped", "reason": "Bounced Address" }),
        PlannedEvent::Complained => json!({ "event": "spamreport" }),
        PlannedEvent::Unsubscribed => json!({ "event": "unsubscribe" }),
    };
    if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
        event.extend(more);
    }
    event
}

fn ses(answer: &PendingEvent) -> Value {
    let at = stamp(answer.at_ms);
    let mail = json!({ "timestamp": at, "messageId": answer.id, "source": "fake@example.com", "destination": [answer.to] });
    let bounce = |kind: &str, sub: &str, status: &str| {
        let recipients = json!([{ "emailAddress": answer.to, "action": "failed", "status": status, "diagnosticCode": "smtp; no" }]);
        json!({
            "eventType": "Bounce", "mail": mail,
            "bounce": {
                "bounceType": kind, "bounceSubType": sub, "bouncedRecipients": recipients, "timestamp": at, "feedbackId": answer.event_id,
            },
        })
    };
    match answer.fate {
        PlannedEvent::Delivered => json!({
            "eventType": "Delivery", "mail": mail,
            "delivery": { "timestamp": at, "recipients": [answer.to], "processingTimeMillis": 500, "smtpResponse": "250 ok" },
        }),
        PlannedEvent::Bounced => bounce("Permanent", "General", "5.1.1"),
        PlannedEvent::Failed => bounce("Transient", "MailboxFull", "4.2.2"),
        PlannedEvent::Complained => json!({
            "eventType": "Complaint", "mail": mail,
            "complaint": {
                "complainedRecipients": [{ "emailAddress": answer.to }], "timestamp": at, "feedbackId": answer.event_id,
                "complaintFeedbackType": "abuse",
            },
        }),
        PlannedEvent::Unsubscribed => json!({
            "eventType": "Subscription", "mail": mail,
            "subscription": {
                "contactList": "all", "timestamp": at, "source": "UnsubscribeHeader",
                "newTopicPreferences": { "unsubscribeAll": true }, "oldTopicPreferences": { "unsubscribeAll": false },
            },
        }),
    }
}

fn mailgun(answer: &PendingEvent) -> Value {
    // A final failure that is not a bounce comes after hours of retries: `old`.
    let (event, reason) = match answer.fate {
        PlannedEvent::Delivered => ("delivered", None),
        PlannedEvent::Bounced => ("failed", Some(("bounce", 550))),
        PlannedEvent::Failed => ("failed", Some(("old", 452))),
        PlannedEvent::Complained => ("complained", None),
        PlannedEvent::Unsubscribed => ("unsubscribed", None),
    };
    let mut data = json!({
        "id": answer.event_id, "timestamp": answer.at_ms as f64 / 1_000.0, "event": event, "recipient": answer.to,
        "message": { "headers": { "message-id": answer.id.trim_matches(['<', '>']), "to": answer.to } },
    });
    if let Some((reason, code)) = reason {
        data["severity"] = json!("permanent");
        data["reason"] = json!(reason);
        data["delivery-status"] = json!({ "code": code, "message": "no" });
    }
    data
}
