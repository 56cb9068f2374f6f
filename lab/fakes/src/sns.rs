//! The envelope of Amazon SNS around the events of SES, with its signature, its certificate, and
//! the confirmation of a topic.

use serde_json::{Value, json};

use super::crypt::{Keys, base64};
use super::wire::{FormatState, IncomingRequest, Reply};

/// A certificate for tests alone, signed by no trusted authority; its key is [`KEY`].
const CERTIFICATE: &str = include_str!("keys/test_only_sns_certificate.pem");

/// The key of [`CERTIFICATE`], which is public because only fakes sign with it.
pub(super) const KEY: &str = include_str!("keys/test_only_sns_key.pem");

/// The path of the certificate.
const CERTIFICATE_PATH: &str = "/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem";

/// Returns the topic of an account's events.
pub fn topic(account: &str) -> String {
    let name: String = account
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    format!("arn:aws:sns:us-east-1:000000000000:{name}")
}

/// Answers a request that is meant for SNS and not for SES; `None` for all others.
pub(super) fn answer(came: &IncomingRequest, format_state: &FormatState) -> Option<Reply> {
    if came.method != "GET" {
        return None;
    }
    if came.uri.path() == CERTIFICATE_PATH {
        return Some(Reply::text(200, CERTIFICATE));
    }
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(came.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let value = |name: &str| {
        query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    };
    if value("Action") != Some("ConfirmSubscription") {
        return None;
    }
    let topic = value("TopicArn").unwrap_or_default().to_owned();
    format_state.confirmed.lock().insert(topic);
    Some(Reply {
        status: 200,
        headers: vec![("content-type", "text/xml".to_owned())],
        body: "<ConfirmSubscriptionResponse/>".into(),
    })
}

/// Builds the envelope of a message, signed with SHA-256 as in signature version 2.
pub(super) fn notification(
    keys: &Keys,
    url: &str,
    topic: &str,
    id: &str,
    message: &str,
    at: &str,
) -> Value {
    let signed = [
        ("Message", message),
        ("MessageId", id),
        ("Timestamp", at),
        ("TopicArn", topic),
        ("Type", "Notification"),
    ];
    let mut envelope = enveloped(keys, url, &signed);
    envelope["UnsubscribeURL"] = json!(format!(
        "{url}/?Action=Unsubscribe&SubscriptionArn={topic}:1"
    ));
    envelope
}

/// Builds the confirmation request that SNS posts before it posts any event.
pub(super) fn confirmation(keys: &Keys, url: &str, topic: &str, id: &str, at: &str) -> Value {
    let token = format!("token-of-{id}");
    let subscribe = format!("{url}/?Action=ConfirmSubscription&TopicArn={topic}&Token={token}");
    let message = format!("You have chosen to subscribe to the topic {topic}.");
    let signed = [
        ("Message", message.as_str()),
        ("MessageId", id),
        ("SubscribeURL", subscribe.as_str()),
        ("Timestamp", at),
        ("Token", token.as_str()),
        ("TopicArn", topic),
        ("Type", "SubscriptionConfirmation"),
    ];
    enveloped(keys, url, &signed)
}

/// Builds an envelope of the given fields, which are signed in their order, with the signature.
fn enveloped(keys: &Keys, url: &str, signed: &[(&str, &str)]) -> Value {
    let text: String = signed
        .iter()
        .map(|(name, value)| format!("{name}\n{value}\n"))
        .collect();
    let mut envelope: serde_json::Map<String, Value> = signed
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    envelope.insert("SignatureVersion".to_owned(), json!("2"));
    envelope.insert(
        "Signature".to_owned(),
        json!(base64(&keys.rsa(text.as_bytes()))),
    );
    envelope.insert(
        "SigningCertURL".to_owned(),
        json!(format!("{url}{CERTIFICATE_PATH}")),
    );
    Value::Object(envelope)
}
