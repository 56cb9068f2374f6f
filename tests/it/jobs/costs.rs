//! Real costs of jobs: settled once at the end of an attempt, however it ends; and their mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::jobs::postgres::EndedAttempts;
use flyball::jobs::{
    Context, Handler, Issue, Job, Kinds, NewJob, Outcome, PreparedJob, Queue, State,
};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::{AcquireRequest, LaneRequest, Limit, RedisStore, Store};
use serde_json::{Value, json};

use crate::support::redis_server::Server;
use crate::support::{Database, app_environment, database, eventually};
use crate::throttle::{ask, fields, name};

const SOON: Duration = Duration::from_secs(30);

/// A worker with a private Redis.
struct CostFixture {
    queue: Queue,
    store: Arc<dyn Store>,
    worker: Worker,
    registry: prometheus_client::registry::Registry,
    server: Server,
    _database: Database,
}

impl CostFixture {
    async fn open() -> Self {
        let (database, server) = (database().await, Server::start());
        let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(
            RedisStore::connect(&server.url(), "")
                .unwrap()
                .with_bound(Duration::from_secs(5)),
        );
        let mut registry = prometheus_client::registry::Registry::default();
        let metrics = WorkerMetrics::register(&mut registry);
        let mut kinds = Kinds::default();
        for kind in ["work", "other"] {
            kinds.register_fn(kind, work);
        }
        kinds.register("picky", Picky);
        let worker = Worker::start(
            Config::default(),
            queue.clone(),
            store.clone(),
            kinds,
            metrics,
        )
        .await
        .unwrap();
        Self {
            queue,
            store,
            worker,
            registry,
            server,
            _database: database,
        }
    }

    async fn throttle(&self, throttle: &str, knobs: &[(&str, &str)]) {
        let change = flyball::throttle::Change {
            fields: fields(knobs),
            create: true,
            by: "test".into(),
            ..Default::default()
        };
        self.store.set(&name(throttle), &change).await.unwrap();
    }

    async fn enqueue(&self, job: NewJob) -> i64 {
        self.queue.enqueue(&[job]).await.unwrap()[0].id
    }

    async fn used(&self, throttle: &str) -> f64 {
        self.store
            .status(&name(throttle))
            .await
            .unwrap()
            .unwrap()
            .used
    }

    async fn reaches(&self, job: i64, state: State) {
        eventually(&format!("the job is {state:?}"), SOON, || async {
            (self.queue.get(job).await.unwrap().unwrap().summary.state == state).then_some(())
        })
        .await;
    }
}

/// Reports the cost given in the arguments for this attempt. The first attempt ends as given there,
/// the second succeeds.
async fn work(job: Job, context: Context) -> Outcome {
    let first = context.last_checkpoint().await.unwrap().is_none();
    let at = flyball::jobs::Checkpoint {
        done: 1,
        ..Default::default()
    };
    context.checkpoint(&at).await.unwrap();
    if let Some(tokens) = job.args["says"][usize::from(!first)].as_f64() {
        context.report_cost(1e6);
        context.report_cost(-3.0);
        context.report_cost(f64::NAN);
        context.report_cost(tokens);
    }
    if !first {
        return Outcome::Done;
    }
    let error = "as requested".to_owned();
    match job.args["end"].as_str().unwrap() {
        "done" => Outcome::Done,
        "retry" => Outcome::Retry {
            after: Some(Duration::ZERO),
            error,
        },
        "dead" => Outcome::Dead { error },
        "back" => Outcome::HandedBack,
        "snooze" => Outcome::Snooze {
            delay: Duration::ZERO,
        },
        "hang" => std::future::pending().await,
        "cancelled" => Outcome::Cancelled,
        _ => panic!("as requested"),
    }
}

/// Rejects all arguments.
struct Picky;

impl Handler for Picky {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Err(vec![Issue {
            pointer: "/url".to_owned(),
            message: "is not allowed".to_owned(),
        }])
    }
}

#[tokio::test]
async fn a_job_costs_no_more_than_the_throttles_above_its_own_allow() {
    let database = database().await;
    for (throttle, fields) in [
        ("account", json!({"rps": "100", "max_cost": " 50\n"})),
        ("mail", json!({"rps": "100", "parent": "account"})),
        (
            "bulk",
            json!({"rps": "100", "max_cost": "20", "parent": "mail"}),
        ),
        ("circle", json!({"rps": "-1", "parent": "circle"})),
        ("orphan", json!({"rps": "-1", "parent": "gone"})),
    ] {
        sqlx::query("insert into flyball.knobs (throttle, fields) values ($1, $2)")
            .bind(throttle)
            .bind(fields)
            .execute(database.pool())
            .await
            .unwrap();
    }
    for (throttle, most) in [
        ("mail", 50.0),
        ("bulk", 20.0),
        ("circle", 1e9),
        ("orphan", 1e9),
        ("gone", 1000.0),
    ] {
        let found: f64 = sqlx::query_scalar("select flyball.max_cost($1)")
            .bind(throttle)
            .fetch_one(database.pool())
            .await
            .unwrap();
        assert_eq!(found, most, "{throttle}");
    }
}

#[tokio::test]
async fn a_job_that_never_ran_gets_back_all_that_it_was_charged() {
    let fixture = CostFixture::open().await;
    fixture
        .throttle("picky", &[("rps", "100"), ("max_cost", "200")])
        .await;
    let job = NewJob {
        throttle: "picky".to_owned(),
        cost: 150.0,
        ..NewJob::new("picky", json!({}))
    };
    let job = fixture.enqueue(job).await;
    fixture.reaches(job, State::Dead).await;

    eventually("what it was charged is back", SOON, || async {
        (fixture.used("picky").await <= 0.001).then_some(())
    })
    .await;

    let wait = fixture
        .store
        .peek(&ask("picky", &[("", 1, 1.0)]))
        .await
        .lanes[0]
        .wait;
    assert!(wait <= Duration::from_secs(1), "{wait:?}");
}

fn job(throttle: &str, end: &str, says: &[f64]) -> NewJob {
    NewJob {
        throttle: throttle.to_owned(),
        timeout_s: Some(if end == "hang" { 5.0 } else { 60.0 }),
        cost: 2.0,
        max_attempts: 3,
        ..NewJob::new("work", json!({"end": end, "says": says}))
    }
}

#[tokio::test]
async fn what_an_attempt_really_cost_is_settled_once_however_it_ends() {
    let fixture = CostFixture::open().await;
    let cases: [(&str, &[f64], State, f64); 10] = [
        ("done", &[5.5], State::Completed, 5.5),
        ("done", &[0.25], State::Completed, 0.25),
        ("done", &[], State::Completed, 2.0),
        ("retry", &[5.0, 3.0], State::Completed, 8.0),
        ("retry", &[7.0], State::Completed, 7.0 + 2.0),
        ("dead", &[6.0], State::Dead, 6.0),
        ("hang", &[9.0], State::Completed, 9.0 + 2.0),
        ("panic", &[4.0, 1.0], State::Completed, 5.0),
        ("snooze", &[3.0, 0.0], State::Completed, 3.0),
        ("cancelled", &[11.0], State::Cancelled, 11.0),
    ];
    let mut jobs = Vec::new();
    for (at, (end, says, ..)) in cases.iter().enumerate() {
        let throttle = format!("t{at}");
        fixture.throttle(&throttle, &[("rps", "100000")]).await;
        jobs.push(fixture.enqueue(job(&throttle, end, says)).await);
    }

    for (at, (end, _, state, cost)) in cases.iter().enumerate() {
        fixture.reaches(jobs[at], *state).await;
        eventually(&format!("{end} has cost {cost}"), SOON, || async {
            ((fixture.used(&format!("t{at}")).await - cost).abs() < 1e-6).then_some(())
        })
        .await;
    }
    // No cost is settled a second time, not even by a worker that stops.
    fixture.worker.stop().await;
    for (at, (end, _, _, cost)) in cases.iter().enumerate() {
        let used = fixture
            .store
            .status(&name(&format!("t{at}")))
            .await
            .unwrap()
            .unwrap()
            .used;
        assert!(
            (used - cost).abs() < 1e-6,
            "{end}: {used} instead of {cost}"
        );
    }
}

#[tokio::test]
async fn a_dear_job_leaves_a_debt_of_its_key_and_the_mean_is_shown() {
    let fixture = CostFixture::open().await;
    fixture
        .throttle(
            "a",
            &[("rps", "100000"), ("key_rps", "1"), ("key_burst", "5")],
        )
        .await;
    let dear = NewJob {
        key: "k".to_owned(),
        ..job("a", "done", &[600.0])
    };
    let (dear, cheap) = (
        fixture.enqueue(dear).await,
        fixture.enqueue(job("a", "done", &[])).await,
    );

    fixture.reaches(dear, State::Completed).await;
    fixture.reaches(cheap, State::Completed).await;

    let of_key = |key: &str| ask("a", &[(key, 1, 1.0)]);
    eventually("the key is in debt", SOON, || async {
        let lane = fixture.store.peek(&of_key("k")).await.lanes.remove(0);
        (lane.granted == 0
            && lane.limit == Some(Limit::Key)
            && lane.wait > Duration::from_secs(300))
        .then_some(())
    })
    .await;
    assert_eq!(
        fixture.store.peek(&of_key("l")).await.lanes[0].granted,
        1,
        "other keys are not"
    );
    let costs = eventually("the mean of both is kept", SOON, || async {
        let costs = fixture.queue.kind_costs().await.unwrap();
        costs.into_iter().find(|cost| cost.attempts == 2)
    })
    .await;
    assert_eq!((costs.kind.as_str(), costs.mean), ("work", 301.0));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &fixture.registry).unwrap();
    assert!(
        text.contains("flyball_job_cost_tokens_sum{kind=\"work\"} 602.0\n"),
        "{text}"
    );
    fixture.worker.stop().await;
}

fn ended(kind: &str, attempts: u64, tokens: f64) -> EndedAttempts {
    EndedAttempts {
        kind: kind.to_owned(),
        attempts,
        tokens,
    }
}

#[tokio::test]
async fn a_mean_follows_the_last_thousand_attempts_and_many_workers_may_write_it() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let mean = async || {
        queue
            .kind_costs()
            .await
            .unwrap()
            .into_iter()
            .find(|cost| cost.kind == "http")
            .unwrap()
    };
    queue
        .learn_costs(&[ended("http", 100, 400.0), ended("nobody's", 1, 1.0)])
        .await
        .unwrap();
    assert_eq!((mean().await.attempts, mean().await.mean), (100, 4.0));

    queue
        .learn_costs(&[ended("http", 300, 300.0)])
        .await
        .unwrap();
    assert_eq!(
        (mean().await.attempts, mean().await.mean),
        (400, 1.75),
        "the mean of all four hundred"
    );
    queue
        .learn_costs(&[ended("http", 1_000_000, 5_000_000.0)])
        .await
        .unwrap();
    assert_eq!((mean().await.attempts, mean().await.mean), (1_000_400, 5.0));

    let names = ["http", "reindex"];
    let writers = (0..8).map(|n| {
        let queue = queue.clone();
        let seen: Vec<_> = (0..2)
            .map(|at| ended(names[(n + at) % 2], 1, 5.0))
            .collect();
        tokio::spawn(async move {
            for _ in 0..20 {
                queue.learn_costs(&seen).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!((mean().await.attempts, mean().await.mean), (1_000_560, 5.0));
}

#[tokio::test]
async fn a_redis_that_is_gone_keeps_no_attempt_from_ending() {
    let mut fixture = CostFixture::open().await;
    fixture.throttle("a", &[("rps", "100000")]).await;
    let job = fixture.enqueue(job("a", "hang", &[5.0])).await;
    fixture.reaches(job, State::Running).await;

    fixture.server.kill();

    // The attempt times out, and the next one waits for tokens.
    eventually("the attempt has ended", SOON, || async {
        let state = fixture.queue.get(job).await.unwrap().unwrap().summary.state;
        matches!(state, State::Retryable | State::Ready).then_some(())
    })
    .await;
    tokio::time::timeout(SOON, fixture.worker.stop())
        .await
        .expect("the worker ends though nothing can be settled");
}

#[tokio::test]
async fn a_handler_that_asks_for_tokens_often_is_answered_from_a_lease_and_the_api_reports_costs() {
    let (database, folder) = (database().await, tempfile::tempdir().unwrap());
    let environment = app_environment(&database, folder.path()).await;
    for lease_ms in ["250", "0"] {
        let mut environment = environment.clone();
        environment.insert("FLYBALL_TOKEN_LEASE_MS".to_owned(), lease_ms.to_owned());
        let is_over = Arc::new(AtomicBool::new(false));
        let mut kinds = Kinds::default();
        let answer = is_over.clone();
        kinds.register_fn("paced", move |_: Job, context: Context| {
            let answer = answer.clone();
            async move {
                let ask = AcquireRequest {
                    throttle: name("default"),
                    lanes: vec![LaneRequest::default()],
                    holder: None,
                };
                while !answer.load(Ordering::SeqCst) {
                    context.throttles.acquire(&ask).await;
                    // Real time: often enough that most asks find tokens of the last one's lease.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                context.report_cost(12.0);
                Outcome::Done
            }
        });
        let app = App::start(
            &Settings::load(None, &environment).unwrap(),
            Roles::ALL,
            kinds,
        )
        .await
        .unwrap();
        let change = flyball::throttle::Change {
            fields: fields(&[("rps", "100000")]),
            create: true,
            by: "test".into(),
            ..Default::default()
        };
        // The app's store has a timeout of 250 ms, which a busy machine may exceed.
        eventually("the rate is set", SOON, || async {
            app.throttles.set(&name("default"), &change).await.ok()
        })
        .await;
        let base = format!("http://{}", app.address.unwrap());
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let job = app
            .queue
            .enqueue(&[NewJob::new("paced", json!({}))])
            .await
            .unwrap()[0]
            .id;

        let answered = |by: &'static str, least: u64| {
            let (client, url) = (client.clone(), format!("{base}/metrics"));
            async move {
                eventually(&format!("asks are answered by the {by}"), SOON, || async {
                    let text = client.get(&url).send().await.ok()?.text().await.ok()?;
                    let line = format!("flyball_token_requests_total{{source=\"{by}\"}} ");
                    let asks: u64 = text
                        .lines()
                        .find_map(|found| found.strip_prefix(&line))?
                        .trim()
                        .parse()
                        .ok()?;
                    (asks >= least).then_some(asks)
                })
                .await
            }
        };
        answered("store", if lease_ms == "0" { 500 } else { 1 }).await;
        if lease_ms == "0" {
            assert_eq!(answered("lease", 0).await, 0, "leases are off");
        } else {
            answered("lease", 100).await;
        }

        is_over.store(true, Ordering::SeqCst);
        eventually("the API tells what the job cost", SOON, || async {
            let seen: Value = client
                .get(format!("{base}/api/v1/workers"))
                .send()
                .await
                .ok()?
                .json()
                .await
                .ok()?;
            let attempts = if lease_ms == "0" { 2 } else { 1 };
            (seen["costs"] == json!([{"kind": "paced", "attempts": attempts, "mean_cost": 12.0}]))
                .then_some(())
        })
        .await;
        assert_eq!(
            app.queue.get(job).await.unwrap().unwrap().summary.state,
            State::Completed
        );
        app.stop().await;
    }
}
