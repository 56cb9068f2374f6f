//! What Amazon SNS puts around the events of SES: the envelope, its signature, the certificate, and the confirmation of a topic.

use serde_json::{Value, json};

use super::crypt::{Keys, base64};
use super::wire::{Came, House, Reply};

/// A certificate made for tests alone, and by nobody who is trusted. Its key is [`KEY`].
const CERTIFICATE: &str = include_str!("keys/test_only_sns_certificate.pem");

/// The key of [`CERTIFICATE`]. It is public: nothing but a fake signs with it.
pub(super) const KEY: &str = include_str!("keys/test_only_sns_key.pem");

/// Where the certificate is served.
const CERTIFICATE_PATH: &str = "/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem";

/// The topic of an account's events.
pub fn topic(account: &str) -> String {
    let name: String = account.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("arn:aws:sns:us-east-1:000000000000:{name}")
}

/// The answer to a request that is SNS's and not SES's.
pub(super) fn answer(came: &Came, house: &House) -> Option<Reply> {
    if came.method != "GET" {
        return None;
    }
    if came.uri.path() == CERTIFICATE_PATH {
        return Some(Reply::text(200, CERTIFICATE));
    }
    let query: Vec<(String, String)> =
        url::form_urlencoded::parse(came.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    if value("Action") != Some("ConfirmSubscription") {
        return None;
    }
    let topic = value("TopicArn").unwrap_or_default().to_owned();
    house.confirmed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(topic);
    Some(Reply {
        status: 200,
        headers: vec![("content-type", "text/xml".to_owned())],
        body: "<ConfirmSubscriptionResponse/>".into(),
    })
}

/// The envelope around a message of a topic, signed with SHA-256 as signature version 2 says.
pub(super) fn notification(keys: &Keys, url: &str, topic: &str, id: &str, message: &str, at: &str) -> Value {
    let signed = [("Message", message), ("MessageId", id), ("Timestamp", at), ("TopicArn", topic), ("Type", "Notification")];
    let mut envelope = enveloped(keys, url, &signed);
    envelope["UnsubscribeURL"] = json!(format!("{url}/?Action=Unsubscribe&SubscriptionArn={topic}:1"));
    envelope
}

/// What SNS asks before it tells anything.
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

/// The fields in the order in which they are signed, and the signature.
fn enveloped(keys: &Keys, url: &str, signed: &[(&str, &str)]) -> Value {
    let text: String = signed.iter().map(|(name, value)| format!("{name}\n{value}\n")).collect();
    let mut envelope: serde_json::Map<String, Value> =
        signed.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    envelope.insert("SignatureVersion".to_owned(), json!("2"));
    envelope.insert("Signature".to_owned(), json!(base64(&keys.rsa(text.as_bytes()))));
    envelope.insert("SigningCertURL".to_owned(), json!(format!("{url}{CERTIFICATE_PATH}")));
    Value::Object(envelope)
}
