//! Notices through the whole reader: signatures of version 2, fetched certificates, and
//! subscriptions.

use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::fixture::Amazon;
use super::*;
use crate::providers::examples::{self, NOW_S};
use crate::providers::{EventKind, Provider};

#[tokio::test]
async fn a_notice_is_believed_for_an_hour() {
    let amazon = Amazon::start().await;
    let read = async |options: &[(&str, &str)], now_s: i64| {
        let (body, headers) = (amazon.notice().to_string(), BTreeMap::new());
        let mut account = amazon.account.clone();
        account.options.extend(
            options
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let posted = WebhookRequest {
            url: "",
            headers: &headers,
            body: body.as_bytes(),
            now_s,
        };
        super::read(&account, &posted, &amazon.tools.http, &Certs::new()).await
    };
    assert!(read(&[], NOW_S + 3600).await.is_ok());
    for late in [NOW_S + 3601, NOW_S + 10 * 365 * 86_400, NOW_S - 3600] {
        assert!(
            matches!(read(&[], late).await, Err(RejectedWebhook::Signature(_))),
            "{late}"
        );
    }
    assert!(
        read(&[("webhook_max_age_s", "86400")], NOW_S + 86_400)
            .await
            .is_ok()
    );
    assert_eq!(
        amazon.certs_fetched.load(Ordering::SeqCst),
        2,
        "nothing is fetched for a notice that is too old"
    );
}

#[tokio::test]
async fn requests_that_nobody_signed_make_few_fetches() {
    let amazon = Amazon::start().await;
    let certs = Certs::new();
    let mut later = 0;
    for n in 0..200 {
        let mut notice = amazon.notice();
        // The same bad certificate twice, then another.
        notice["SigningCertURL"] = format!(
            "{}/SimpleNotificationService-{:032x}.pem",
            amazon.base,
            n / 2
        )
        .into();
        match amazon.read(&notice, &certs).await {
            Err(RejectedWebhook::Later(_)) => later += 1,
            Err(RejectedWebhook::Signature(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(later, 160, "twenty were fetched");
    let mut good = amazon.notice();
    assert!(
        matches!(
            amazon.read(&good, &certs).await,
            Err(RejectedWebhook::Later(_))
        ),
        "a good one is asked to come again"
    );
    good["MessageId"] = "id-3".into();
    assert!(certs.known.lock().len() <= MAX_CERTIFICATES);
}

#[tokio::test]
async fn a_certificate_that_cannot_be_fetched_now_refuses_no_notice_for_good() {
    let amazon = Amazon::start().await;
    let certs = Certs::new();
    let read = async |now_s: i64| {
        let (body, headers) = (amazon.notice().to_string(), BTreeMap::new());
        let posted = WebhookRequest {
            url: "",
            headers: &headers,
            body: body.as_bytes(),
            now_s,
        };
        super::read(&amazon.account, &posted, &amazon.tools.http, &certs).await
    };
    amazon.is_away.store(true, Ordering::SeqCst);
    assert!(matches!(read(NOW_S).await, Err(RejectedWebhook::Later(_))));
    amazon.is_away.store(false, Ordering::SeqCst);
    for still in [NOW_S, NOW_S + AWAY_S - 1] {
        let answer = read(still).await;
        assert!(
            matches!(answer, Err(RejectedWebhook::Later(_))),
            "{answer:?}"
        );
    }
    assert_eq!(amazon.certs_fetched.load(Ordering::SeqCst), 0);
    assert!(matches!(
        read(NOW_S + AWAY_S).await,
        Ok(SnsRead::Events(events)) if events.len() == 1
    ));

    amazon.is_away.store(true, Ordering::SeqCst);
    let url = format!("{}/?Action=ConfirmSubscription", amazon.base);
    let answer = confirm(&amazon.tools.http, &url).await;
    assert!(
        matches!(answer, Err(RejectedWebhook::Later(_))),
        "{answer:?}"
    );
    amazon.is_away.store(false, Ordering::SeqCst);
    let answer = confirm(&amazon.tools.http, &format!("{}/no", amazon.base)).await;
    assert!(
        matches!(answer, Err(RejectedWebhook::Unreadable(_))),
        "{answer:?}"
    );
}

#[tokio::test]
async fn version_2_is_believed_and_its_certificate_is_fetched_once() {
    let amazon = Amazon::start().await;
    let certs = Certs::new();
    for _ in 0..3 {
        let SnsRead::Events(events) = amazon.read(&amazon.notice(), &certs).await.unwrap() else {
            panic!("no events")
        };
        assert_eq!(events.len(), 1);
        assert_eq!(
            (
                events[0].provider_id.as_str(),
                events[0].event_type,
                events[0].at_s
            ),
            ("m1", EventKind::Delivered, NOW_S)
        );
        assert_eq!(
            (events[0].event_id.as_str(), events[0].recipient.as_deref()),
            ("id-2:0", Some("ann@example.com"))
        );
    }
    assert_eq!(amazon.certs_fetched.load(Ordering::SeqCst), 1);
    let good = amazon.notice();
    let signature = STANDARD
        .decode(good["Signature"].as_str().unwrap())
        .unwrap();
    for bit in 0..signature.len() * 8 {
        let mut other = signature.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        let mut notice = good.clone();
        notice["Signature"] = STANDARD.encode(other).into();
        let envelope = Envelope::read(&amazon.account, notice.to_string().as_bytes()).unwrap();
        assert!(
            matches!(
                envelope.verify(amazon.pem.as_bytes(), NOW_S),
                Err(RejectedWebhook::Signature(_))
            ),
            "bit {bit}"
        );
    }
    let mut notice = amazon.notice();
    notice["Message"] = notice["Message"]
        .as_str()
        .unwrap()
        .replace("m1", "m2")
        .into();
    assert!(matches!(
        amazon.read(&notice, &certs).await,
        Err(RejectedWebhook::Signature(_))
    ));
    let mut notice = amazon.notice();
    notice["SigningCertURL"] = format!(
        "{}/SimpleNotificationService-ffffffffffffffffffffffffffffffff.pem",
        amazon.base
    )
    .into();
    assert!(matches!(
        amazon.read(&notice, &certs).await,
        Err(RejectedWebhook::Signature(_))
    ));
    let other = Amazon::start().await;
    let mut notice = other.notice();
    notice["SigningCertURL"] = format!(
        "{}/SimpleNotificationService-0123456789abcdef0123456789abcdef.pem",
        amazon.base
    )
    .into();
    assert!(matches!(
        amazon.read(&notice, &certs).await,
        Err(RejectedWebhook::Signature(_))
    ));
}

#[tokio::test]
async fn a_subscription_is_confirmed_by_the_endpoint_once_its_signature_fits() {
    let amazon = Amazon::start().await;
    let url = format!("{}/?Action=ConfirmSubscription", amazon.base);
    let request = |kind: &'static str, url: &str| {
        amazon.signed(&[
            ("Type", kind),
            ("Message", "You have chosen"),
            ("Token", "t"),
            ("SubscribeURL", url),
        ])
    };
    let received = async |envelope: &Value| {
        let (body, headers) = (envelope.to_string(), BTreeMap::new());
        let posted = WebhookRequest {
            url: "",
            headers: &headers,
            body: body.as_bytes(),
            now_s: NOW_S,
        };
        super::super::read(Provider::Ses, &amazon.account, &posted, &amazon.tools).await
    };
    let mut forged = request("SubscriptionConfirmation", &url);
    forged["Token"] = "u".into();
    assert!(matches!(
        received(&forged).await,
        Err(RejectedWebhook::Signature(_))
    ));
    let elsewhere = request("SubscriptionConfirmation", "https://evil.example/");
    assert!(matches!(
        received(&elsewhere).await,
        Err(RejectedWebhook::Signature(_))
    ));
    assert_eq!(
        received(&request("UnsubscribeConfirmation", &url)).await,
        Ok(vec![])
    );
    assert_eq!(amazon.confirmed.load(Ordering::SeqCst), 0);
    assert_eq!(
        received(&request("SubscriptionConfirmation", &url)).await,
        Ok(vec![])
    );
    assert_eq!(amazon.confirmed.load(Ordering::SeqCst), 1);
    let gone = request("SubscriptionConfirmation", &format!("{}/gone", amazon.base));
    assert!(matches!(
        received(&gone).await,
        Err(RejectedWebhook::Unreadable(_))
    ));
}

#[tokio::test]
async fn providers_without_events_are_refused() {
    let posted = WebhookRequest {
        url: "",
        headers: &BTreeMap::new(),
        body: b"",
        now_s: NOW_S,
    };
    let tools = examples::tools();
    for provider in [
        Provider::Smtp,
        Provider::Apns,
        Provider::Fcm,
        Provider::Telegram,
        Provider::Slack,
        Provider::Webhook,
    ] {
        let read = super::super::read(provider, &Account::default(), &posted, &tools).await;
        assert!(
            matches!(read, Err(RejectedWebhook::Unreadable(_))),
            "{provider}"
        );
    }
    for provider in [
        Provider::Twilio,
        Provider::Sendgrid,
        Provider::Mailgun,
        Provider::Ses,
    ] {
        let read = super::super::read(provider, &Account::default(), &posted, &tools).await;
        assert!(
            matches!(read, Err(RejectedWebhook::NoSecret { .. })),
            "{provider}"
        );
    }
}
