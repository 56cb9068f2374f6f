//! Laws of the attempt at a message: one message alone stops no other, a recipient that is ill is left alone, what is recorded as
//! sent is not sent again. Real stores, and servers that answer by what they are asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::{Issue, Kinds, NewJob, Queue, State};
use flyball::notify::{Deliveries, DeliveryServices, NotificationHandler, PoolHandle};
use flyball::providers::pool::{self, AccountPool};
use flyball::providers::{
    self, Account, Channel, Class, Driver, Limited, Message, Pool, Pools, Provider,
    ProviderResponse, Scope, SendContext, Sent, apns, fcm, mailgun, sendgrid, ses, slack, smtp,
    telegram, twilio, webhook,
};
use flyball::runner::{self, Worker};
use flyball::throttle::{Notes, Store};
use flyball_fakes::{Fake, FakeOptions, Fault, Speaks};
use futures_util::future::BoxFuture;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::{Acquire, Executor};
use tokio::sync::mpsc;

use crate::support::process::House as Program;
use crate::support::{Database, database, eventually, patient_store, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(120);

// === A server that answers by what it is asked ===

type Reply = (u16, Vec<(&'static str, String)>, String);
type Answers = dyn Fn(&str, &str, usize) -> Reply + Send + Sync;

#[derive(Clone)]
struct Server {
    answers: Arc<Answers>,
    came: Arc<Mutex<Vec<(String, Instant)>>>,
    url: String,
}

impl Server {
    /// `answers` is given the path, the body, and how often the path was asked before.
    async fn start(answers: impl Fn(&str, &str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self {
            answers: Arc::new(answers),
            came: Arc::default(),
            url,
        };
        let router = Router::new().fallback(serve).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    fn times(&self, path: &str) -> Vec<Instant> {
        self.came
            .lock()
            .unwrap()
            .iter()
            .filter(|(came, _)| came == path)
            .map(|(_, at)| *at)
            .collect()
    }
}

async fn serve(
    Shared(server): Shared<Server>,
    uri: Uri,
    body: String,
) -> (StatusCode, HeaderMap, String) {
    let path = uri.path().to_owned();
    let before = server.times(&path).len();
    server
        .came
        .lock()
        .unwrap()
        .push((path.clone(), Instant::now()));
    if path == "/hangs" {
        std::future::pending::<()>().await;
    }
    let (status, headers, body) = (server.answers)(&path, &body, before);
    let header = |(name, text): (&'static str, String)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(&text).unwrap(),
        )
    };
    (
        StatusCode::from_u16(status).unwrap(),
        headers.into_iter().map(header).collect(),
        body,
    )
}

fn plain(status: u16, body: &str) -> Reply {
    (status, Vec::new(), body.to_owned())
}

// === A process with one pool ===

struct House {
    app: App,
    database: Database,
}

/// The settings of a pool with one account; `secret` is the key of its credential.
fn settings(
    pool: &str,
    provider: &str,
    secret: (&str, &str),
    keys: &str,
    folder: &std::path::Path,
) -> String {
    let file = folder.join("secret");
    std::fs::write(&file, secret.1).unwrap();
    format!(
        "allow_private_urls = true\n[pools.{pool}]\nprovider = {provider:?}\n{}_file = {:?}\n{keys}\n[[pools.{pool}.accounts]]\nname = \"main\"\n",
        secret.0,
        file.display().to_string()
    )
}

impl House {
    async fn new(text: impl FnOnce(&std::path::Path) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("flyball.toml");
        std::fs::write(&file, text(folder.path())).unwrap();
        let database = database().await;
        let mut settings = Settings::load(Some(&file), &BTreeMap::default())
            .unwrap_or_else(|error| panic!("{error}"));
        settings.database_url = database.url().to_owned();
        settings.redis_url = stack().await.redis_url.clone();
        settings.redis_prefix = redis_prefix();
        settings.knobs_dir = String::new();
        settings.concurrency = 32;
        let roles = Roles {
            api: false,
            runner: true,
            governor: false,
        };
        let app = App::start(&settings, roles, Kinds::default())
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        Self { app, database }
    }

    async fn enqueue(&self, jobs: &[NewJob]) -> Vec<i64> {
        self.app
            .queue
            .enqueue(jobs)
            .await
            .unwrap()
            .into_iter()
            .map(|made| made.id)
            .collect()
    }

    async fn until(&self, ids: &[i64], wanted: State) {
        for id in ids {
            let state = || async {
                self.app
                    .queue
                    .get(*id)
                    .await
                    .unwrap()
                    .map(|detail| detail.summary.state)
            };
            eventually(&format!("{id} is {wanted:?}"), SOON, || async {
                (state().await == Some(wanted)).then_some(())
            })
            .await;
        }
    }

    async fn opened(&self) -> i64 {
        let sql = "select count(*) from flyball.account_event where to_state = 'open'";
        sqlx::query_scalar(sql)
            .fetch_one(self.database.pool())
            .await
            .unwrap()
    }
}

fn job(pool: &str, args: Value) -> NewJob {
    NewJob::new("notification", args).throttle(pool)
}

const WHSEC: (&str, &str) = ("signing_secret", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz");

async fn webhooks(keys: &str) -> House {
    House::new(|folder| settings("hooks", "webhook", WHSEC, keys, folder)).await
}

fn hook(server: &Server, path: &str) -> NewJob {
    job(
        "hooks",
        json!({"channel": "webhook", "to": format!("{}{path}", server.url), "body": "{}"}),
    )
}

// === One message alone stops no other ===

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
    let house = House::new(|folder| {
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

    let poison = house
        .enqueue(&[mail(Some("Eve <x@evil.example>"))
            .priority(0)
            .max_attempts(2)])
        .await;
    // Alone, it has been there once before the others come.
    eventually("its first attempt", SOON, || async {
        (!server.times("/v2/email/outbound-emails").is_empty()).then_some(())
    })
    .await;
    let good = house.enqueue(&vec![mail(None); 20]).await;
    house.until(&good, State::Completed).await;
    house.until(&poison, State::Dead).await;

    assert_eq!(house.opened().await, 0, "one message opened the breaker");
    assert_eq!(server.times("/v2/email/outbound-emails").len(), 22);
    let detail = house.app.queue.get(poison[0]).await.unwrap().unwrap();
    let error = detail
        .attempts
        .last()
        .and_then(|attempt| attempt.error.clone())
        .unwrap_or_default();
    assert!(error.contains("did not accept this message"), "{error}");
    house.app.stop().await;
}

/// Does what the text of a message says, if it is one of the classes of the property.
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
        let (reason, delay) = ("as it was told".to_owned(), Some(Duration::from_secs(3600)));
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

/// A number that stands for poison.
const POISON_NUMBER: &str = "+15550666";

/// Every class that any row of the ten tables has, but for limits of the account, which the account's own server counts.
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
    let (tell, mut changes) = mpsc::unbounded_channel();
    let (mut pools, mut carriers, mut jobs) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
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
                rps: 1000.0,
            }],
            shedding: true,
            headroom: 1.0,
            breaker_failures: 1,
            breaker_window: Duration::from_secs(3600),
            // Whoever was stopped would be for longer than this test takes.
            breaker_cooldown: Duration::from_secs(3600),
            alert_url: None,
            alert_secret: None,
            retry_ambiguous: true,
            valid_for: Duration::from_secs(3600),
            requeue_on_recovery: false,
            timeout: Duration::from_secs(5),
        };
        let desk =
            AccountPool::open(pool.clone(), store.clone(), notes.clone(), tell.clone()).unwrap();
        pool::seed(&desk).await.unwrap();
        let drivers: Vec<Box<dyn Driver>> = vec![Box::new(Stub { provider, class })];
        carriers.insert(
            name.clone(),
            PoolHandle {
                desk,
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
                (Channel::Push | Channel::Chat, who) => who.to_owned(),
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
            carriers,
            deliveries,
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
    // Twice, as a message that fails comes again.
    let first = queue.enqueue(&poison).await.unwrap();
    let tried = || async {
        let many: i64 = sqlx::query_scalar("select count(*) from flyball.delivery where tries > 0")
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

// === A recipient that is ill is left alone ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_messages_for_a_broken_endpoint_cost_dozens_of_requests_and_a_healthy_one_gets_everything()
 {
    let server =
        Server::start(|path, _, _| plain(if path == "/broken" { 500 } else { 204 }, "")).await;
    let house = webhooks("rps = -1").await;
    let mut jobs = Vec::new();
    for n in 0..500 {
        jobs.push(hook(&server, "/broken"));
        jobs.extend((n % 5 == 0).then(|| hook(&server, "/healthy")));
    }
    let begun = Instant::now();
    house.enqueue(&jobs).await;
    eventually("all at the healthy one", SOON, || async {
        (server.times("/healthy").len() == 100).then_some(())
    })
    .await;
    // Past the first rest of five seconds, after which one goes first.
    tokio::time::sleep(Duration::from_secs(15).saturating_sub(begun.elapsed())).await;
    eventually("one that went first", SOON, || async {
        let times = server.times("/broken");
        (times.last()?.duration_since(*times.first()?) > Duration::from_secs(4)).then_some(())
    })
    .await;
    let requests = server.times("/broken").len();
    assert!(
        requests <= 80,
        "{requests} requests in {:?}",
        begun.elapsed()
    );
    assert_eq!(server.times("/healthy").len(), 100);
    assert_eq!(house.opened().await, 0);
    house.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_never_answers_concerns_itself_alone() {
    let server = Server::start(|_, _, _| plain(204, "")).await;
    let house = webhooks("rps = -1\ntimeout_s = 1\nbreaker_failures = 2").await;
    house.enqueue(&vec![hook(&server, "/hangs"); 20]).await;
    eventually("time-outs", SOON, || async {
        (server.times("/hangs").len() >= 10).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let good = house.enqueue(&vec![hook(&server, "/healthy"); 20]).await;
    house.until(&good, State::Completed).await;
    assert_eq!(house.opened().await, 0);
    assert!(
        server.times("/hangs").len() <= 60,
        "{}",
        server.times("/hangs").len()
    );
    house.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_stays_away_from_a_provider_as_long_as_its_503_says() {
    let server = Server::start(|_, _, nth| match nth {
        0 => (503, vec![("retry-after", "9".to_owned())], String::new()),
        _ => plain(202, ""),
    })
    .await;
    let keys = format!("base_url = {:?}\nfrom = \"shop@example.com\"", server.url);
    let house =
        House::new(|folder| settings("mail", "sendgrid", ("api_key", "SG.x"), &keys, folder)).await;
    let args = json!({"channel": "email", "to": "ann@example.com", "subject": "s", "body": "b"});
    let sent = house.enqueue(&[job("mail", args)]).await;
    house.until(&sent, State::Completed).await;
    let times = server.times("/v3/mail/send");
    assert_eq!(times.len(), 2);
    assert!(
        times[1].duration_since(times[0]) >= Duration::from_millis(8_900),
        "{:?}",
        times[1].duration_since(times[0])
    );
    house.app.stop().await;
}

// === What is recorded as sent is not sent again ===

const SID: &str = "AC00000000000000000000000000000000";

fn twilio_at(fake: &Fake) -> impl Fn(&std::path::Path) -> String {
    let keys = format!(
        "base_url = {:?}\nfrom = \"+15550100\"\nbreaker_failures = 1000\naccount_sid = {SID:?}",
        fake.url()
    );
    move |folder| {
        settings(
            "sms",
            "twilio",
            ("auth_token", "0123456789abcdef0123456789abcdef"),
            &keys,
            folder,
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_worker_is_killed_after_its_record_is_not_sent_again() {
    let fake = Fake::start(Speaks::Twilio, FakeOptions::default())
        .await
        .unwrap();
    fake.fail(SID, Fault::Slow(Duration::from_secs(4)));
    let program = Program::new("rps = -1").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flyball.toml");
    std::fs::write(&file, twilio_at(&fake)(folder.path())).unwrap();
    let serve = || program.serve_with(&["--config", &file.display().to_string()], &[]);
    let mut doomed = serve();
    doomed.works().await;
    let args = json!({"channel": "sms", "to": "+15550123", "body": "hello"});
    let made = program.enqueue_as(1, |_| job("sms", args.clone())).await;
    eventually("the request", SOON, || async {
        (fake.totals(SID).requests == 1).then_some(())
    })
    .await;

    // Its end cannot be written, so that it dies between its record and its end.
    let mut connection = program.pool().acquire().await.unwrap();
    let mut held = connection.begin().await.unwrap();
    held.execute("lock table flyball.lease in share mode")
        .await
        .unwrap();
    let sent = "select count(*) from flyball.delivery where state = 'sent'";
    eventually("its record", SOON, || async {
        (program.count(sent).await == 1).then_some(())
    })
    .await;
    doomed.kill();
    held.rollback().await.unwrap();
    fake.heal(SID);
    let _other = serve();

    eventually("its end", SOON, || async {
        (program.ended(&made, "completed").await == 1).then_some(())
    })
    .await;
    assert_eq!(fake.totals(SID).requests, 1, "it was sent twice");
    assert_eq!(
        program
            .count("select tries::bigint from flyball.delivery")
            .await,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_may_have_been_sent_is_kept_as_its_policy_says_even_if_that_cannot_be_written_down()
 {
    let fake = Fake::start(Speaks::Twilio, FakeOptions::default())
        .await
        .unwrap();
    let house = House::new(twilio_at(&fake)).await;
    fake.fail(SID, Fault::ResetAfterWrite);
    let trigger = "
        create function public.refuse_all() returns trigger language plpgsql as $$ begin raise exception 'the disk is full'; end $$;
        create trigger refuse_all before insert or update on flyball.delivery for each row execute function public.refuse_all();";
    house
        .database
        .pool()
        .execute(sqlx::raw_sql(trigger))
        .await
        .unwrap();
    let sms = |policy: &str| {
        job(
            "sms",
            json!({"channel": "sms", "to": "+15550123", "body": "hello", "on_ambiguous": policy}),
        )
    };
    let doubtful = house.enqueue(&[sms("dead")]).await;
    house.until(&doubtful, State::Dead).await;
    assert_eq!(fake.totals(SID).requests, 1);

    // What was taken is done, whether it can be written down or not.
    fake.heal(SID);
    let good = house.enqueue(&[sms("retry")]).await;
    house.until(&good, State::Completed).await;
    assert_eq!(fake.totals(SID).requests, 2);
    house.app.stop().await;
}
