//! A single message blocks no other, whatever a driver answers.

use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::{Issue, Kinds, NewJob, Queue, State};
use flyball::notify::{Deliveries, DeliveryServices, NotificationHandler, PoolHandle};
use flyball::providers::pool::{self, AccountPool};
use flyball::providers::{
    self, Account, Channel, Class, Driver, Limited, Message, Pool, Pools, Provider,
    ProviderResponse, Scope, SendContext, Sent, apns, fcm, mailgun, sendgrid, ses, slack, smtp,
    telegram, twilio, webhook,
};
use flyball::runner::{self, Worker};
use flyball::throttle::{Notes, RateLimit, Store};

use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::mpsc;

use super::fixture::{PoolFixture, SOON, Server, job, plain, settings};
use crate::support::{database, eventually, patient_store, redis_prefix};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_sender_is_forbidden_ends_by_its_own_attempts_and_stops_no_other() {
    let server = Server::start(|path, body, _| match path {
        "/v2/email/account" => plain(404, "{}"),
        _ if body.contains("evil.example") => {
            let kind = vec![("x-amzn-errortype", "AccessDeniedException".to_owned())];
            (
                403,
                kind,
                json!({"message": "not authorized to perform ses:SendEmail"}).to_string(),
            )
        }
        _ => plain(200, &json!({"MessageId": "m"}).to_string()),
    })
    .await;
    let keys = format!(
        "base_url = {:?}\nregion = \"eu-central-1\"\naccess_key_id = \"AKIA\"\nfrom = \"shop@example.com\"\nbreaker_failures = 1",
        server.url
    );
    let fixture = PoolFixture::new(|folder| {
        settings(
            "mail",
            "ses",
            ("secret_access_key", "s3cret"),
            &keys,
            folder,
        )
    })
    .await;
    let mail = |from: Option<&str>| {
        let mut args =
            json!({"channel": "email", "to": "ann@example.com", "subject": "s", "body": "b"});
        args.as_object_mut()
            .unwrap()
            .extend(from.map(|from| ("from".to_owned(), json!(from))));
        job("mail", args)
    };

    let poison = fixture
        .enqueue(&[mail(Some("Eve <x@evil.example>"))
            .priority(0)
            .max_attempts(2)])
        .await;
    // The first message has one attempt alone before the others start.
    eventually("its first attempt", SOON, || async {
        (!server.times("/v2/email/outbound-emails").is_empty()).then_some(())
    })
    .await;
    let good = fixture.enqueue(&vec![mail(None); 20]).await;
    fixture.until(&good, State::Completed).await;
    fixture.until(&poison, State::Dead).await;

    assert_eq!(fixture.opened().await, 0, "one message opened the breaker");
    assert_eq!(server.times("/v2/email/outbound-emails").len(), 22);
    let detail = fixture.app.queue.get(poison[0]).await.unwrap().unwrap();
    let error = detail
        .attempts
        .last()
        .and_then(|attempt| attempt.error.clone())
        .unwrap_or_default();
    assert!(error.contains("did not accept this message"), "{error}");
    fixture.program.stop().await;
}

/// Answers as the text of a message demands, if it names one of the tested classes.
struct Stub {
    provider: Provider,
    class: Class,
}

impl Driver for Stub {
    fn provider(&self) -> Provider {
        self.provider
    }

    fn check(&self, _: &Message) -> Vec<Issue> {
        Vec::new()
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        _: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        let (reason, delay) = ("as requested".to_owned(), Some(Duration::from_secs(3600)));
        let sent = match self.class {
            _ if ![POISON_NUMBER, "poison"]
                .iter()
                .any(|poison| message.to.address().contains(poison)) =>
            {
                Sent::Accepted { provider_id: None }
            }
            Class::Delivered => Sent::Delivered { provider_id: None },
            Class::Accepted => Sent::Accepted { provider_id: None },
            Class::Throttled(scope) => Sent::Throttled {
                scope,
                key: None,
                delay,
                reason,
            },
            Class::Transient => Sent::Transient { reason },
            Class::Recipient => Sent::PermanentRecipient {
                suppress: false,
                reason,
            },
            Class::Suppress => Sent::PermanentRecipient {
                suppress: true,
                reason,
            },
            Class::Request => Sent::PermanentRequest { reason },
            Class::Account => Sent::AccountFailure { reason },
            Class::Ambiguous => Sent::Ambiguous { reason },
        };
        let delay = matches!(sent, Sent::Transient { .. }).then_some(Duration::from_secs(3600));
        Box::pin(async move {
            ProviderResponse {
                delay,
                ..ProviderResponse::new(sent, "")
            }
        })
    }
}

/// The number of the poisonous message.
const POISON_NUMBER: &str = "+15550666";

/// Every class in any of the ten tables, except limits of the account, which its own server counts.
fn classes() -> Vec<(Provider, Class)> {
    let tables = [
        (Provider::Twilio, twilio::CODES),
        (Provider::Sendgrid, sendgrid::CODES),
        (Provider::Mailgun, mailgun::CODES),
        (Provider::Ses, ses::CODES),
        (Provider::Smtp, smtp::CODES),
        (Provider::Apns, apns::CODES),
        (Provider::Fcm, fcm::CODES),
        (Provider::Telegram, telegram::CODES),
        (Provider::Slack, slack::CODES),
        (Provider::Webhook, webhook::CODES),
    ];
    let mut seen = BTreeSet::new();
    let rows = tables
        .into_iter()
        .flat_map(|(provider, codes)| codes.iter().map(move |row| (provider, row.class)));
    let rows = rows.filter(|(_, class)| *class != Class::Throttled(Scope::Account));
    rows.filter(|(provider, class)| seen.insert((*provider, format!("{class:?}"))))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_any_driver_says_of_one_message_no_other_is_stopped_by_it() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let redis = Arc::new(patient_store(&redis_prefix()).await);
    let (store, notes): (Arc<dyn Store>, Arc<dyn Notes>) = (redis.clone(), redis);
    let (sender, mut changes) = mpsc::unbounded_channel();
    let (mut pools, mut handles, mut jobs) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for (nth, (provider, class)) in classes().into_iter().enumerate() {
        let name = format!("{}-{nth}", provider.as_str());
        let pool = Pool {
            name: name.clone(),
            provider,
            accounts: vec![Limited {
                account: Account {
                    name: "main".to_owned(),
                    ..Account::default()
                },
                rps: RateLimit::PerSecond(1000.0),
            }],
            shedding: true,
            headroom: 1.0,
            breaker_failures: 1,
            breaker_window: Duration::from_secs(3600),
            // A blocked message would stay blocked for longer than this test takes.
            breaker_cooldown: Duration::from_secs(3600),
            alert_url: None,
            alert_secret: None,
            retry_ambiguous: true,
            valid_for: Duration::from_secs(3600),
            requeue_on_recovery: false,
            timeout: Duration::from_secs(5),
        };
        let accounts =
            AccountPool::open(pool.clone(), store.clone(), notes.clone(), sender.clone()).unwrap();
        pool::seed(&accounts).await.unwrap();
        let drivers: Vec<Box<dyn Driver>> = vec![Box::new(Stub { provider, class })];
        handles.insert(
            name.clone(),
            PoolHandle {
                accounts,
                drivers: Arc::new(drivers),
            },
        );
        pools.insert(name.clone(), pool);
        let message = |to: &str| {
            let channel = provider.channel();
            let to = match (channel, to) {
                (Channel::Email, who) => format!("{who}@example.com"),
                (Channel::Sms, "poison") => POISON_NUMBER.to_owned(),
                (Channel::Sms, _) => "+15550123".to_owned(),
                (Channel::Webhook, who) => format!("https://example.com/{who}"),
                (Channel::Push | Channel::Chat | Channel::InApp, who) => who.to_owned(),
            };
            let subject = if channel == Channel::Email { "s" } else { "" };
            let mut args =
                json!({"channel": channel.as_str(), "provider": name, "to": to, "body": "{}"});
            if !subject.is_empty() {
                args["subject"] = json!(subject);
            }
            job(&name, args)
        };
        jobs.push((message("poison"), message("anybody")));
    }
    let deliveries = Deliveries::new(queue.pool.clone());
    let metrics = providers::PoolMetrics::register(&mut Registry::default());
    let handler = NotificationHandler::new(
        Arc::new(Pools(pools)),
        Some(DeliveryServices {
            handles,
            deliveries,
            gates: crate::recipient::gates(&queue),
            metrics,
        }),
    );
    let mut kinds = Kinds::default();
    kinds.register("notification", handler);
    let metrics = runner::WorkerMetrics::register(&mut Registry::default());
    let worker = Worker::start(
        runner::Config::default(),
        queue.clone(),
        store,
        kinds,
        metrics,
    )
    .await
    .unwrap();

    let (poison, good): (Vec<NewJob>, Vec<NewJob>) = jobs.into_iter().unzip();
    // Twice, as a failed message is retried.
    let first = queue.enqueue(&poison).await.unwrap();
    let tried = || async {
        let many: i64 =
            sqlx::query_scalar("select count(*) from flyball.delivery where attempt_count > 0")
                .fetch_one(&queue.pool)
                .await
                .unwrap();
        (many >= first.len() as i64).then_some(())
    };
    eventually("an attempt at each", SOON, tried).await;
    let good = queue.enqueue(&good).await.unwrap();
    for made in &good {
        let state = || async {
            queue
                .get(made.id)
                .await
                .unwrap()
                .map(|detail| (detail.summary.state, detail.summary.throttle))
        };
        let ended = || async {
            state()
                .await
                .filter(|(state, _)| *state == State::Completed)
                .map(drop)
        };
        eventually(&format!("{:?} is sent", state().await), SOON, ended).await;
    }
    while let Ok((pool, change)) = changes.try_recv() {
        assert_ne!(change.to, pool::BreakerState::Open, "{pool}: {change:?}");
    }
    worker.stop().await;
}
