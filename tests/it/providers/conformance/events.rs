//! The drivers read the events posted by the fakes: the message, its fate, and the event's id.

use std::collections::BTreeMap;
use std::time::Duration;

use flyball::providers::{
    self, Account, AccountSecret, EventKind, ProviderEvent, RejectedWebhook, Sent, WebhookRequest,
};
use flyball_fakes::{Events, FakeOptions, PlannedEvent, sns};

use super::subjects::{Subject, mailgun, sendgrid, ses, twilio};
use super::{LONG, Pair, context, tools};
use crate::fakes::mailbox;
use crate::support::eventually;

/// Mailgun's key for webhooks.
const KEY: &str = "the-webhook-signing-key";

/// The event for each fate; Twilio reports neither complaints nor permanently invalid numbers.
fn heard(subject: &Subject, fate: PlannedEvent) -> EventKind {
    match (subject.name, fate) {
        (_, PlannedEvent::Delivered) => EventKind::Delivered,
        ("twilio", PlannedEvent::Bounced | PlannedEvent::Complained)
        | (_, PlannedEvent::Failed) => EventKind::Failed,
        (_, PlannedEvent::Bounced) => EventKind::Bounced,
        (_, PlannedEvent::Complained) => EventKind::Complained,
        (_, PlannedEvent::Unsubscribed) => EventKind::Unsubscribed,
    }
}

/// Returns a driver whose fake posts one event of this fate per message, twice, to this address.
async fn start(subject: Subject, fate: PlannedEvent, callback: &str) -> Pair {
    let events = Events {
        callback: callback.to_owned(),
        shares: vec![(fate, 1.0)],
        delay: Duration::from_millis(10),
        duplicates: 1.0,
        secret: KEY.to_owned(),
        ..Events::default()
    };
    subject
        .start(FakeOptions {
            events: Some(events),
            ..FakeOptions::default()
        })
        .await
}

/// Returns the account with the credentials that verify its events.
fn account(pair: &Pair) -> Account {
    let mut account = (pair.subject.settings)(&pair.fake, false);
    let mut option = |name: &str, value: String| account.options.insert(name.to_owned(), value);
    option("webhook_public_key", pair.fake.event_key());
    option("sns_topic_arn", sns::topic(pair.subject.account));
    option("sns_cert_host", pair.fake.url());
    account
        .secrets
        .insert("webhook_signing_key".to_owned(), AccountSecret::new(KEY));
    account
}

async fn read(
    pair: &Pair,
    account: &Account,
    url: &str,
    posted: &crate::fakes::Posted,
) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
    let (headers, body) = posted;
    let text = |(name, value): (&axum::http::HeaderName, &axum::http::HeaderValue)| {
        (name.as_str().to_owned(), value.to_str().unwrap().to_owned())
    };
    let headers: BTreeMap<String, String> = headers.iter().map(text).collect();
    let now_s = context(Duration::ZERO).now_s;
    let provider = pair.driver.provider();
    providers::events::read(
        provider,
        account,
        &WebhookRequest {
            url,
            headers: &headers,
            body,
            now_s,
        },
        &tools(),
    )
    .await
}

#[tokio::test]
async fn events_report_what_became_of_the_message_and_are_known_again() {
    let fates = [
        PlannedEvent::Delivered,
        PlannedEvent::Bounced,
        PlannedEvent::Failed,
        PlannedEvent::Complained,
        PlannedEvent::Unsubscribed,
    ];
    for (subject, fate) in [twilio, sendgrid, ses, mailgun]
        .into_iter()
        .flat_map(|subject| fates.map(|fate| (subject, fate)))
    {
        let (url, kept) = mailbox().await;
        let pair = start(subject(), fate, &url).await;
        let answer = pair.send().await;
        let Sent::Accepted {
            provider_id: Some(id),
        } = answer.sent
        else {
            panic!("{}: {answer:?}", pair.subject.name)
        };
        let two = || async {
            let kept = kept.lock().unwrap();
            (kept.len() >= 2).then(|| kept.clone())
        };
        let posted = eventually("both events", LONG, two).await;
        let mut message = Vec::new();
        for one in &posted {
            message.extend(read(&pair, &account(&pair), &url, one).await.unwrap());
        }
        if (pair.subject.name, fate) == ("twilio", PlannedEvent::Unsubscribed) {
            // A text to somebody who unsubscribed has failed, which is an event of its own.
            message.retain(|event| event.event_type == EventKind::Unsubscribed);
        }
        let [first, second] = &message[..] else {
            panic!("{}: {fate:?}: {message:?}", pair.subject.name)
        };
        assert_eq!(
            first.event_type,
            heard(&pair.subject, fate),
            "{}: {fate:?}",
            pair.subject.name
        );
        assert_eq!(first.provider_id, id, "{}", pair.subject.name);
        assert_eq!(
            first.event_id, second.event_id,
            "{}: the same event",
            pair.subject.name
        );
        let to = (pair.subject.to)(&pair.fake);
        assert!(
            first.recipient.iter().all(|recipient| *recipient == to),
            "{}",
            pair.subject.name
        );
        assert!(
            !format!("{first:?} {}", first.reason).contains(to.trim_start_matches('+')),
            "{}",
            pair.subject.name
        );
    }
}

#[tokio::test]
async fn events_of_somebody_else_are_not_believed() {
    for subject in [twilio, sendgrid, ses, mailgun] {
        let (url, kept) = mailbox().await;
        let pair = start(subject(), PlannedEvent::Bounced, &url).await;
        pair.send().await;
        let one = || async { kept.lock().unwrap().first().cloned() };
        let posted = eventually("an event", LONG, one).await;
        // The same provider with other keys.
        let other = start(subject(), PlannedEvent::Bounced, &url).await;
        let mut account = account(&other);
        for name in ["auth_token", "webhook_signing_key"] {
            account
                .secrets
                .insert(name.to_owned(), AccountSecret::new("another-secret"));
        }
        account
            .options
            .insert("sns_topic_arn".to_owned(), sns::topic("another"));
        let read = read(&pair, &account, &url, &posted).await;
        assert!(
            matches!(read, Err(RejectedWebhook::Signature(_))),
            "{}: {read:?}",
            pair.subject.name
        );
    }
}

#[tokio::test]
async fn a_subscription_is_confirmed_when_sns_asks() {
    let (url, kept) = mailbox().await;
    let pair = start(ses(), PlannedEvent::Delivered, &url).await;
    assert_eq!(
        pair.fake.subscribe(pair.subject.account, &url).await,
        Some(200)
    );
    let requested = kept.lock().unwrap().remove(0);
    assert!(!pair.fake.is_subscribed(pair.subject.account));
    assert_eq!(
        read(&pair, &account(&pair), &url, &requested)
            .await
            .unwrap(),
        []
    );
    assert!(pair.fake.is_subscribed(pair.subject.account));
}

#[tokio::test]
async fn ses_says_how_much_the_account_may_send() {
    let pair = ses().start(FakeOptions::default()).await;
    pair.fake.set_quota(
        pair.subject.account,
        Some(flyball_fakes::WindowQuota::per_second(14.0)),
    );
    assert_eq!(pair.driver.quota(&context(LONG)).await, Some(14.0));
    assert_eq!(pair.requests(), 0, "a question is no message");
}
