//! A worker against a real server that rejects requests: which jobs wait, for how long, and that
//! none is lost.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::routing::post;
use flyball::jobs::{Kinds, NewJob, State};
use flyball::outbound::{Guard, HttpConfig, HttpHandler};
use flyball::runner::{self, Worker};
use flyball::throttle::Limit;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::support::eventually;
use crate::support::fixture::Fixture;

const SOON: Duration = Duration::from_secs(60);

/// The answer of a path: a status and headers, by the number of earlier requests.
type Answer = Box<dyn Fn(&str, usize) -> (u16, Vec<(&'static str, String)>) + Send + Sync>;

/// A server that records the requests.
#[derive(Clone)]
struct Server {
    answer: Arc<Answer>,
    came: Arc<Mutex<Vec<(String, Instant)>>>,
}

impl Server {
    async fn start(
        answer: impl Fn(&str, usize) -> (u16, Vec<(&'static str, String)>) + Send + Sync + 'static,
    ) -> (Self, String) {
        let server = Self {
            answer: Arc::new(Box::new(answer)),
            came: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/{key}", post(serve))
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (server, url)
    }

    fn times(&self, key: &str) -> Vec<Instant> {
        self.came
            .lock()
            .unwrap()
            .iter()
            .filter(|(came, _)| came == key)
            .map(|(_, at)| *at)
            .collect()
    }
}

async fn serve(Shared(server): Shared<Server>, Path(key): Path<String>) -> (StatusCode, HeaderMap) {
    let before = {
        let mut came = server.came.lock().unwrap();
        came.push((key.clone(), Instant::now()));
        came.iter().filter(|(known, _)| *known == key).count() - 1
    };
    let (status, headers) = (server.answer)(&key, before);
    let header = |(name, text): (&'static str, String)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(&text).unwrap(),
        )
    };
    (
        StatusCode::from_u16(status).unwrap(),
        headers.into_iter().map(header).collect(),
    )
}

struct ReceiverFixture {
    url: String,
    fixture: Fixture,
}

impl Deref for ReceiverFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl ReceiverFixture {
    async fn new(url: String) -> Self {
        Self {
            url,
            fixture: Fixture::new().await,
        }
    }

    async fn worker(&self) -> Worker {
        let mut kinds = Kinds::default();
        kinds.register(
            "http",
            HttpHandler::new(HttpConfig {
                guard: Guard::open(),
                ..HttpConfig::default()
            })
            .unwrap(),
        );
        self.start(runner::Config::default(), kinds, &mut Registry::default())
            .await
    }

    async fn enqueue(&self, throttle: &str, key: &str, jobs: usize) -> Vec<i64> {
        self.enqueue_to(&format!("{}/{key}", self.url), throttle, key, jobs)
            .await
    }

    async fn enqueue_to(&self, url: &str, throttle: &str, key: &str, jobs: usize) -> Vec<i64> {
        let args = json!({"url": url, "method": "POST"});
        let job = NewJob {
            throttle: throttle.into(),
            key: key.into(),
            ..NewJob::new("http", args)
        };
        self.enqueue_many(job, jobs).await
    }

    async fn all_done(&self, ids: &[i64]) {
        for id in ids {
            self.until(*id, State::Completed).await;
        }
    }

    async fn limit(&self, throttle: &str, key: &str) -> Option<Limit> {
        let request = crate::throttle::ask(throttle, &[(key, 1, 1.0)]);
        self.store.peek(&request).await.lanes.remove(0).limit
    }
}

fn after(seconds: &str) -> Vec<(&'static str, String)> {
    vec![("retry-after", seconds.to_owned())]
}

#[tokio::test]
async fn a_refused_key_waits_as_long_as_requested_and_goes_on_one_by_one_while_others_flow() {
    // The first request of the hot key is rejected.
    let (server, url) = Server::start(|key, before| match key {
        "hot" if before == 0 => (429, after("3")),
        _ => (200, Vec::new()),
    })
    .await;
    let fixture = ReceiverFixture::new(url).await;
    fixture
        .turn(
            "mail",
            &[
                ("rps", "-1"),
                ("key_rps", "1000"),
                ("key_burst", "0"),
                ("key_concurrency", "1"),
            ],
        )
        .await;
    let hot = fixture.enqueue("mail", "hot", 30).await;
    let worker = fixture.worker().await;
    eventually("the refusal", SOON, || async {
        (!server.times("hot").is_empty()).then_some(())
    })
    .await;
    let cold = fixture.enqueue("mail", "cold", 5).await;
    fixture.all_done(&cold).await;
    let when_cold_was_done = Instant::now();
    fixture.all_done(&hot).await;

    let times = server.times("hot");
    assert!(
        times[1] - times[0] >= Duration::from_secs(3),
        "{:?}",
        times[1] - times[0]
    );
    assert_eq!(times.len(), 31, "one refusal, and each job once");
    assert!(
        when_cold_was_done < times[1] || server.times("cold").iter().all(|at| *at < times[1]),
        "others did not wait"
    );
    let detail = fixture.queue.get(hot[0]).await.unwrap().unwrap();
    assert!(detail.summary.attempt <= 1, "a refusal uses no attempt");
    worker.stop().await;
}

#[tokio::test]
async fn a_receiver_stops_its_own_lane_only() {
    let day = || ("retry-after", "86400".to_owned());
    // One receiver of each kind, by the key of its jobs.
    let (server, url) = Server::start(move |key, _| match key {
        "global" => (429, vec![day(), ("x-ratelimit-scope", "global".to_owned())]),
        "account" => (
            429,
            vec![day(), ("x-ratelimit-scope", "account".to_owned())],
        ),
        "discord" => (429, vec![day(), ("x-ratelimit-global", "true".to_owned())]),
        "shedding" => (503, vec![day(), ("x-ratelimit-scope", "ip".to_owned())]),
        "spent" => (
            429,
            vec![
                ("ratelimit", "\"x\";r=0;t=31536000".to_owned()),
                ("x-ratelimit-scope", "app".to_owned()),
            ],
        ),
        _ => (200, Vec::new()),
    })
    .await;
    let fixture = ReceiverFixture::new(url).await;
    fixture.turn("provider", &[("rps", "-1")]).await;
    fixture
        .turn("hooks", &[("rps", "-1"), ("parent", "provider")])
        .await;
    fixture
        .turn("others", &[("rps", "-1"), ("parent", "provider")])
        .await;
    let worker = fixture.worker().await;
    for hostile in ["global", "account", "discord", "shedding", "spent"] {
        fixture.enqueue("hooks", hostile, 1).await;
        // The job's own scope does not widen the pause either.
        let args = json!({"url": format!("{}/{hostile}", fixture.url), "method": "POST", "throttled_scope": "account"});
        fixture
            .queue
            .enqueue(&[NewJob::new("http", args).throttle("hooks").key(hostile)])
            .await
            .unwrap();
        eventually("the pause of the key", SOON, || async {
            matches!(
                fixture.limit("hooks", hostile).await,
                Some(Limit::Paused { name: None, .. })
            )
            .then_some(())
        })
        .await;

        let honest = fixture.enqueue("hooks", "honest", 3).await;
        let beside = fixture.enqueue("others", "beside", 3).await;
        fixture.all_done(&honest).await;
        fixture.all_done(&beside).await;
    }
    // What was granted before the pause may take each of the two jobs once more.
    let requests = server.times("global").len();
    assert!(
        requests <= 4,
        "its own key waits, after {requests} requests"
    );
    worker.stop().await;
}

#[tokio::test]
async fn jobs_without_a_key_wait_for_their_own_host_only() {
    let (hostile, hostile_url) = Server::start(|_, _| (429, after("86400"))).await;
    let (server, url) = Server::start(|_, _| (200, Vec::new())).await;
    let fixture = ReceiverFixture::new(url).await;
    fixture.turn("hooks", &[("rps", "-1")]).await;
    let worker = fixture.worker().await;
    for round in 0..3 {
        fixture
            .enqueue_to(&format!("{hostile_url}/hostile"), "hooks", "", 4)
            .await;
        eventually("a request", SOON, || async {
            (!hostile.times("hostile").is_empty()).then_some(())
        })
        .await;

        let honest = fixture
            .enqueue_to(&format!("{}/honest", fixture.url), "hooks", "", 3)
            .await;
        fixture.all_done(&honest).await;
        assert_eq!(server.times("honest").len(), 3 * (round + 1));
        assert_eq!(
            fixture.limit("hooks", "").await,
            None,
            "the lane is not paused"
        );
    }
    let came = hostile.times("hostile").len();
    assert!(
        came <= 4,
        "its later jobs were put off before anything was sent: {came}"
    );
    eventually("the reason", SOON, || async {
        let told: Vec<String> = sqlx::query_scalar(
            "select distinct error from flyball.attempt where outcome = 'snoozed'",
        )
        .fetch_all(&fixture.queue.pool)
        .await
        .unwrap();
        matches!(&told[..], [one] if one.starts_with("not sent: its host asked another job"))
            .then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn the_calls_of_a_tenant_wait_for_their_own_receiver_only() {
    let (hostile, hostile_url) = Server::start(|key, _| match key {
        "refusing" => (429, after("86400")),
        _ => (200, vec![("ratelimit", "\"x\";r=0;t=31536000".to_owned())]),
    })
    .await;
    let (server, url) = Server::start(|_, _| (200, Vec::new())).await;
    let fixture = ReceiverFixture::new(url).await;
    fixture.turn("webhooks", &[("rps", "-1")]).await;
    let worker = fixture.worker().await;
    for (round, path) in ["spent", "refusing", "refusing"].into_iter().enumerate() {
        fixture
            .enqueue_to(&format!("{hostile_url}/{path}"), "webhooks", "acme", 2)
            .await;
        eventually("a request", SOON, || async {
            (!hostile.times(path).is_empty()).then_some(())
        })
        .await;

        let honest = fixture
            .enqueue_to(&format!("{}/honest", fixture.url), "webhooks", "acme", 3)
            .await;
        fixture.all_done(&honest).await;
        assert_eq!(server.times("honest").len(), 3 * (round + 1));
        assert_eq!(
            fixture.limit("webhooks", "acme").await,
            None,
            "the lane is not paused"
        );
    }
    let came = hostile.times("refusing").len();
    assert!(came <= 2, "its later calls were put off: {came}");
    // Both tenants may have receivers behind one host.
    let beside = fixture
        .enqueue_to(&format!("{hostile_url}/beside"), "webhooks", "zeta", 1)
        .await;
    fixture.all_done(&beside).await;
    worker.stop().await;
}

#[tokio::test]
async fn an_answer_that_names_the_account_pauses_the_throttle_above() {
    let (server, url) = Server::start(|key, before| match key {
        "one" if before == 0 => (
            429,
            vec![
                ("retry-after", "4".to_owned()),
                ("x-ratelimit-scope", "account".to_owned()),
            ],
        ),
        _ => (200, Vec::new()),
    })
    .await;
    let fixture = ReceiverFixture::new(url).await;
    fixture.turn("account", &[("rps", "-1")]).await;
    fixture
        .turn(
            "sms",
            &[
                ("rps", "-1"),
                ("parent", "account"),
                ("trust_scope", "account"),
            ],
        )
        .await;
    fixture
        .turn("mail", &[("rps", "-1"), ("parent", "account")])
        .await;
    let one = fixture.enqueue("sms", "one", 1).await;
    let worker = fixture.worker().await;
    eventually("the pause of the account", SOON, || async {
        let limit = fixture.limit("mail", "other").await;
        matches!(limit, Some(Limit::Paused { name: Some(name), .. }) if name.as_str() == "account")
            .then_some(())
    })
    .await;
    let other = fixture.enqueue("mail", "other", 3).await;
    fixture.all_done(&one).await;
    fixture.all_done(&other).await;

    let refused_at = server.times("one")[0];
    let earliest = server.times("other").into_iter().min().unwrap();
    assert!(
        earliest - refused_at >= Duration::from_secs(4),
        "{:?}",
        earliest - refused_at
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_quota_that_successes_report_is_kept_to_before_anybody_is_refused() {
    // Fifty in the first four seconds after the first request.
    let begun: Arc<OnceLock<Instant>> = Arc::default();
    let first = begun.clone();
    let (server, url) = Server::start(move |_, before| {
        let rest = Duration::from_secs(4).saturating_sub(first.get_or_init(Instant::now).elapsed());
        let remaining = 50_usize.saturating_sub(before + 1);
        match rest.is_zero() {
            true => (200, Vec::new()),
            false => (
                200,
                vec![(
                    "ratelimit",
                    format!("\"default\";r={remaining};t={}", rest.as_secs_f64().ceil()),
                )],
            ),
        }
    })
    .await;
    let fixture = ReceiverFixture::new(url).await;
    fixture
        .turn("mail", &[("rps", "-1"), ("key_concurrency", "1")])
        .await;
    let jobs = fixture.enqueue("mail", "k", 120).await;
    let worker = fixture.worker().await;
    fixture.all_done(&jobs).await;

    let begun = *begun.get().unwrap();
    let early = server
        .times("k")
        .iter()
        .filter(|at| at.saturating_duration_since(begun) < Duration::from_secs(4))
        .count();
    assert!(early <= 55, "{early} of 120 came while fifty were left");
    worker.stop().await;
}

#[tokio::test]
async fn a_refused_job_of_a_naive_throttle_waits_by_itself() {
    let (server, url) = Server::start(|_, before| {
        if before == 0 {
            (429, after("3"))
        } else {
            (200, Vec::new())
        }
    })
    .await;
    let fixture = ReceiverFixture::new(url).await;
    fixture
        .turn(
            "mail",
            &[
                ("rps", "-1"),
                ("on_429", "passive-naive"),
                ("key_concurrency", "1"),
            ],
        )
        .await;
    let first = fixture.enqueue("mail", "k", 1).await;
    let worker = fixture.worker().await;
    eventually("the refusal", SOON, || async {
        (!server.times("k").is_empty()).then_some(())
    })
    .await;
    let others = fixture.enqueue("mail", "k", 5).await;
    fixture.all_done(&others).await;
    fixture.all_done(&first).await;

    let times = server.times("k");
    assert_eq!(times.len(), 7);
    assert!(
        times[6] - times[0] >= Duration::from_secs(3),
        "the refused one came last: {:?}",
        times[6] - times[0]
    );
    let detail = fixture.queue.get(first[0]).await.unwrap().unwrap();
    let outcomes: Vec<&str> = detail
        .attempts
        .iter()
        .map(|attempt| attempt.outcome.as_str())
        .collect();
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == "throttled")
            .count(),
        1,
        "{outcomes:?}"
    );
    worker.stop().await;
}
