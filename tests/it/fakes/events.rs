//! Events of the fakes are signed and follow the plan.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use der::asn1::Any;
use der::{Decode as _, Encode as _};
use flyball_fakes::{Events, Fake, FakeOptions, FakeProvider, PlannedEvent};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use super::fixture::{LONG, SID, client, mailbox, secrets, twilio};
use crate::support::eventually;

fn plan(callback: &str) -> Events {
    let delay = Duration::from_millis(10);
    let shares = vec![(PlannedEvent::Delivered, 1.0)];
    Events {
        callback: callback.to_owned(),
        shares,
        delay,
        duplicates: 1.0,
        secret: "secret".to_owned(),
        ..Events::default()
    }
}

#[tokio::test]
async fn events_come_back_signed_and_twice_where_the_plan_says_so() {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
    let (url, kept) = mailbox().await;
    let options = FakeOptions {
        secrets: secrets(SID, "right"),
        events: Some(plan(&url)),
        ..FakeOptions::default()
    };
    let fake = Fake::start(FakeProvider::Twilio, options).await.unwrap();
    twilio(&client(), &fake, "right").send().await.unwrap();
    let two = || async {
        let mut kept = kept.lock().unwrap();
        (kept.len() >= 2).then(|| std::mem::take(&mut *kept))
    };
    let posted = eventually("both events", LONG, two).await;
    assert_eq!(posted[0].1, posted[1].1, "a duplicate is the same event");
    let form: BTreeMap<String, String> = url::form_urlencoded::parse(&posted[0].1)
        .into_owned()
        .collect();
    assert_eq!(
        (form["MessageStatus"].as_str(), &form["MessageSid"]),
        ("delivered", &fake.received(SID)[0].id)
    );
    let text = form
        .iter()
        .fold(url.clone(), |text, (name, value)| text + name + value);
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"right");
    let signature = STANDARD.decode(&posted[0].0["x-twilio-signature"]).unwrap();
    aws_lc_rs::hmac::verify(&key, text.as_bytes(), &signature).unwrap();

    let fake = Fake::start(
        FakeProvider::Sendgrid,
        FakeOptions {
            events: Some(plan(&url)),
            ..FakeOptions::default()
        },
    )
    .await
    .unwrap();
    let mail = json!({
        "personalizations": [{ "to": [{ "email": "a@example.com" }] }], "from": { "email": "b@example.com" }, "content": [],
    });
    client()
        .post(format!("{}/v3/mail/send", fake.url()))
        .bearer_auth("k")
        .json(&mail)
        .send()
        .await
        .unwrap();
    let posted = eventually("both events", LONG, two).await;
    let (headers, body) = &posted[0];
    let at = headers["x-twilio-email-event-webhook-timestamp"].as_bytes();
    let signature = STANDARD
        .decode(&headers["x-twilio-email-event-webhook-signature"])
        .unwrap();
    let key = UnparsedPublicKey::new(
        &ECDSA_P256_SHA256_ASN1,
        STANDARD.decode(fake.event_key()).unwrap(),
    );
    key.verify(&[at, body].concat(), &signature).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(body).unwrap()[0]["event"],
        "delivered"
    );
    eventually("both are counted", LONG, || async {
        (fake.events() == (2, 0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sns_asks_first_and_signs_with_the_key_of_the_certificate_that_it_serves() {
    let (url, kept) = mailbox().await;
    let fake = Fake::start(FakeProvider::Ses, FakeOptions::default())
        .await
        .unwrap();
    assert_eq!(fake.subscribe("AKIA1", &url).await, Some(200));
    let (headers, body) = kept.lock().unwrap().remove(0);
    assert_eq!(
        headers["x-amz-sns-message-type"],
        "SubscriptionConfirmation"
    );
    let requested: Value = serde_json::from_slice(&body).unwrap();
    let field = |name: &str| requested[name].as_str().unwrap();
    let names = [
        "Message",
        "MessageId",
        "SubscribeURL",
        "Timestamp",
        "Token",
        "TopicArn",
        "Type",
    ];
    let text: String = names
        .iter()
        .map(|name| format!("{name}\n{}\n", field(name)))
        .collect();
    let pem = client()
        .get(field("SigningCertURL"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let signed = Vec::<Any>::from_der(&certificate).unwrap().remove(0);
    let key = signed.decode_as::<Vec<Any>>().unwrap()[6].to_der().unwrap();
    let key = aws_lc_rs::signature::UnparsedPublicKey::new(
        &aws_lc_rs::signature::RSA_PKCS1_2048_8192_SHA256,
        key,
    );
    key.verify(
        text.as_bytes(),
        &STANDARD.decode(field("Signature")).unwrap(),
    )
    .unwrap();
    assert!(!fake.is_subscribed("AKIA1"));
    assert_eq!(
        client()
            .get(field("SubscribeURL"))
            .send()
            .await
            .unwrap()
            .status(),
        200
    );
    assert!(fake.is_subscribed("AKIA1"));
}
