//! Throttles that drop jobs over their limit, and throttles that merge waiting jobs, with the real
//! runner; and attempts with an unknown outcome.

use std::ops::Deref;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::{Context, Job, JobFilter, Kinds, NewJob, OnAmbiguous, Outcome, State};
use flyball::runner::{Config, Worker};
use flyball::throttle::MemoryStore;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::fixture::Fixture;

const SOON: Duration = Duration::from_secs(60);

/// The calendar example: up to 3 every 5 s for each key, the rest is dropped.
const CALENDARS: &[(&str, &str)] = &[
    ("rps", "-1"),
    ("key_rps", "0.5"),
    ("window", "5"),
    ("over_limit", "drop"),
];

struct OverLimitFixture {
    ran: Arc<Mutex<Vec<i64>>>,
    registry: Registry,
    fixture: Fixture,
}

impl Deref for OverLimitFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl OverLimitFixture {
    async fn new(fixture: Fixture) -> Self {
        fixture.register("notice").await;
        Self {
            ran: Arc::default(),
            registry: Registry::default(),
            fixture,
        }
    }

    async fn of_redis() -> Self {
        Self::new(Fixture::new().await).await
    }

    async fn worker(&mut self) -> Worker {
        let mut kinds = Kinds::default();
        let ran = self.ran.clone();
        kinds.register_fn("notice", move |job: Job, _: Context| {
            ran.lock().unwrap().push(job.id);
            std::future::ready(Outcome::Done)
        });
        self.worker_of(kinds).await
    }

    async fn worker_of(&mut self, kinds: Kinds) -> Worker {
        let config = Config {
            concurrency: 16,
            ..Config::default()
        };
        self.fixture.start(config, kinds, &mut self.registry).await
    }

    async fn burst(&self, throttle: &str, key: &str, count: usize) -> Vec<i64> {
        let job = NewJob::new("notice", json!({})).throttle(throttle).key(key);
        self.enqueue_many(job, count).await
    }

    /// Waits until all of them have ended; returns those that ran and those that were dropped.
    async fn ended(&self, ids: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let (mut ran, mut dropped) = (Vec::new(), Vec::new());
        for id in ids {
            let detail = eventually(&format!("job {id} has ended"), SOON, || async {
                let detail = self.queue.get(*id).await.unwrap().unwrap();
                matches!(detail.summary.state, State::Completed | State::Cancelled)
                    .then_some(detail)
            })
            .await;
            let outcomes: Vec<&str> = detail
                .attempts
                .iter()
                .map(|one| one.outcome.as_str())
                .collect();
            match detail.summary.state {
                State::Completed => ran.push(*id),
                _ => {
                    assert_eq!(outcomes, ["dropped"]);
                    let output = detail.summary.last_error.as_deref();
                    assert_eq!(output, Some("dropped: over the limit of its throttle"));
                    dropped.push(*id);
                }
            }
        }
        (ran, dropped)
    }

    async fn waiting(&self) -> i64 {
        sqlx::query_scalar("select count(*) from flyball.ready")
            .fetch_one(&self.queue.pool)
            .await
            .unwrap()
    }

    fn counted(&self, outcome: &str) -> Option<u64> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find(|line| {
            line.contains("jobs_finished_total") && line.contains(&format!("\"{outcome}\""))
        })?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

#[tokio::test]
async fn a_throttle_that_drops_lets_three_through_every_five_seconds_and_ignores_the_rest() {
    let now = Arc::new(AtomicI64::new(1_000_000_000_000_000));
    let clock = now.clone();
    let store = MemoryStore::new(Arc::new(move || clock.load(Ordering::SeqCst)));
    let mut fixture = OverLimitFixture::new(Fixture::on(Arc::new(store)).await).await;
    fixture.turn("calendar", CALENDARS).await;
    let worker = fixture.worker().await;

    for _ in 0..2 {
        let (one, other) = (
            fixture.burst("calendar", "ann", 10).await,
            fixture.burst("calendar", "bob", 2).await,
        );
        let (ran, dropped) = fixture.ended(&one).await;

        assert_eq!(
            (&ran[..], &dropped[..]),
            (&one[..3], &one[3..]),
            "the oldest run"
        );
        assert_eq!(
            fixture.ended(&other).await,
            (other, Vec::new()),
            "each key has a limit of its own"
        );
        assert_eq!(fixture.waiting().await, 0);
        now.fetch_add(5_000_000, Ordering::SeqCst);
    }

    eventually("the dropped are counted", SOON, || async {
        (fixture.counted("dropped") == Some(14)).then_some(())
    })
    .await;
    let filter = JobFilter {
        state: Some(State::Cancelled),
        limit: 100,
        ..JobFilter::default()
    };
    assert_eq!(
        fixture.queue.list(&filter).await.unwrap().len(),
        14,
        "they are listed as cancelled"
    );
    worker.stop().await;
}

#[tokio::test]
async fn redis_drops_by_the_same_law_and_a_unique_key_is_free_again() {
    let mut fixture = OverLimitFixture::of_redis().await;
    // Like the calendar example, but so slow that no token is refilled during the test.
    fixture
        .turn(
            "calendar",
            &[
                ("rps", "-1"),
                ("key_rps", "0.00025"),
                ("window", "10000"),
                ("over_limit", "drop"),
            ],
        )
        .await;
    let worker = fixture.worker().await;
    let ids = fixture.burst("calendar", "ann", 10).await;
    let (ran, dropped) = fixture.ended(&ids).await;
    assert_eq!((&ran[..], &dropped[..]), (&ids[..3], &ids[3..]));

    let unique = NewJob::new("notice", json!({}))
        .throttle("calendar")
        .key("ann")
        .unique("u");
    for _ in 0..2 {
        let made = fixture
            .queue
            .enqueue(std::slice::from_ref(&unique))
            .await
            .unwrap()[0];
        assert!(!made.duplicate, "whoever was dropped holds no key");
        assert_eq!(fixture.ended(&[made.id]).await, (Vec::new(), vec![made.id]));
    }

    let mut seen = fixture.ran.lock().unwrap().clone();
    // They run concurrently.
    seen.sort_unstable();
    assert_eq!(seen, ran);
    worker.stop().await;
}

#[tokio::test]
async fn a_throttle_that_is_stopped_drops_nothing_and_one_that_waits_keeps_everything() {
    let mut fixture = OverLimitFixture::of_redis().await;
    fixture
        .turn("calendar", &[("rps", "0"), ("over_limit", "drop")])
        .await;
    fixture
        .turn(
            "patient",
            &[("rps", "-1"), ("key_rps", "0.00025"), ("window", "10000")],
        )
        .await;
    let worker = fixture.worker().await;
    let stopped = fixture.burst("calendar", "ann", 3).await;
    let patient = fixture.burst("patient", "ann", 5).await;

    // A throttle that waits is not affected: two of its 2.5 tokens are whole.
    eventually("two have run", SOON, || async {
        (fixture.ran.lock().unwrap().len() == 2).then_some(())
    })
    .await;
    for throttle in ["calendar", "patient"] {
        fixture.refusals.again(throttle, "ann").await;
    }

    assert_eq!(*fixture.ran.lock().unwrap(), patient[..2]);
    assert_eq!(fixture.waiting().await, 6);
    assert_eq!(fixture.counted("dropped"), None);
    fixture.turn("calendar", &[("rps", "-1")]).await;
    assert_eq!(fixture.ended(&stopped).await, (stopped, Vec::new()));
    worker.stop().await;
}

#[tokio::test]
async fn a_rate_of_the_whole_throttle_drops_over_all_its_lanes() {
    let mut fixture = OverLimitFixture::of_redis().await;
    fixture
        .turn(
            "calendar",
            &[
                ("rps", "0.00025"),
                ("window", "10000"),
                ("over_limit", "drop"),
            ],
        )
        .await;
    let job = |key: i32| {
        NewJob::new("notice", json!({}))
            .throttle("calendar")
            .key(key.to_string())
    };
    let jobs: Vec<NewJob> = (0..50).map(job).collect();
    let ids: Vec<i64> = fixture
        .queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    let worker = fixture.worker().await;

    let (ran, dropped) = fixture.ended(&ids).await;

    assert_eq!(
        (ran.len(), dropped.len()),
        (1, 49),
        "a throttle that was never asked begins with one token"
    );
    assert_eq!(*fixture.ran.lock().unwrap(), ran);
    worker.stop().await;
}

#[tokio::test]
async fn what_is_beyond_a_limit_of_concurrency_is_dropped() {
    let mut fixture = OverLimitFixture::of_redis().await;
    fixture
        .turn(
            "calendar",
            &[
                ("rps", "-1"),
                ("key_concurrency", "1"),
                ("over_limit", "drop"),
            ],
        )
        .await;
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = go_on.clone();
    let mut kinds = Kinds::default();
    kinds.register_fn("notice", move |_: Job, _: Context| {
        let gate = gate.clone();
        async move {
            gate.acquire()
                .await
                .map_or(Outcome::Cancelled, |_| Outcome::Done)
        }
    });
    let worker = fixture.worker_of(kinds).await;
    let ids = fixture.burst("calendar", "ann", 5).await;

    assert_eq!(
        fixture.ended(&ids[1..]).await,
        (Vec::new(), ids[1..].to_vec()),
        "while the first one runs"
    );
    go_on.add_permits(5);
    assert_eq!(
        fixture.ended(&ids[..1]).await,
        (ids[..1].to_vec(), Vec::new())
    );
    let next = eventually("the slot is free", SOON, || async {
        let next = fixture.burst("calendar", "ann", 1).await;
        (fixture.ended(&next).await.0 == next).then_some(next)
    })
    .await;
    assert_eq!(next.len(), 1);
    worker.stop().await;
}

#[tokio::test]
async fn a_throttle_that_merges_lets_one_waiting_job_stand_for_all_with_its_unique_key() {
    let mut fixture = OverLimitFixture::of_redis().await;
    fixture
        .turn("calendar", &[("rps", "0"), ("over_limit", "merge")])
        .await;
    let record = "insert into flyball.knobs (throttle, fields) values ('calendar', '{\"rps\": \"0\", \"over_limit\": \"merge\"}')";
    sqlx::query(record)
        .execute(&fixture.queue.pool)
        .await
        .unwrap();
    let says = |n: i64| {
        NewJob::new("notice", json!({"n": n}))
            .throttle("calendar")
            .key("ann")
    };

    let one = fixture.queue.enqueue(&[says(1).unique("u")]).await.unwrap()[0];
    let merged = fixture
        .queue
        .enqueue(&[
            says(2).unique("u"),
            says(3).unique("u"),
            says(4).unique("v"),
            says(5),
        ])
        .await
        .unwrap();

    let answer: Vec<(bool, bool, bool)> = merged
        .iter()
        .map(|other| (other.id == one.id, other.duplicate, other.replaced))
        .collect();
    assert_eq!(
        answer,
        [
            (true, true, true),
            (true, true, true),
            (false, false, false),
            (false, false, false)
        ]
    );
    assert_eq!(fixture.waiting().await, 3);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let seeing = seen.clone();
    let mut kinds = Kinds::default();
    kinds.register_fn("notice", move |job: Job, _: Context| {
        seeing.lock().unwrap().push(job.args["n"].clone());
        std::future::ready(Outcome::Done)
    });
    let worker = fixture.worker_of(kinds).await;
    fixture.turn("calendar", &[("rps", "-1")]).await;
    let ids = [one.id, merged[2].id, merged[3].id];
    assert_eq!(fixture.ended(&ids).await, (ids.to_vec(), Vec::new()));
    let mut seen: Vec<i64> = seen
        .lock()
        .unwrap()
        .iter()
        .filter_map(Value::as_i64)
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [3, 4, 5], "the last arguments run");
    let history: Vec<String> = fixture
        .queue
        .get(one.id)
        .await
        .unwrap()
        .unwrap()
        .attempts
        .into_iter()
        .map(|attempt| attempt.outcome)
        .collect();
    assert_eq!(history, ["merged", "merged", "completed"]);
    worker.stop().await;
}

#[tokio::test]
async fn an_ambiguous_end_is_distinguished_from_a_failure_and_ends_the_job_where_it_must_not_run_twice()
 {
    let mut fixture = OverLimitFixture::of_redis().await;
    fixture.turn("fast", &[("rps", "-1")]).await;
    let mut kinds = Kinds::default();
    kinds.register_fn("notice", |job: Job, _: Context| {
        let policy = if job.args["once"] == true {
            OnAmbiguous::Dead
        } else {
            OnAmbiguous::Retry
        };
        let unsure = job.attempt == 1 || job.max_attempts == 1;
        std::future::ready(match unsure {
            true => Outcome::Ambiguous {
                policy,
                error: "no answer".to_owned(),
            },
            false => Outcome::Done,
        })
    });
    let worker = fixture.worker_of(kinds).await;
    let job = |args: Value| NewJob::new("notice", args).throttle("fast");
    let jobs = [
        job(json!({})),
        job(json!({"once": true})).unique("u"),
        job(json!({})).max_attempts(1),
    ];
    let ids: Vec<i64> = fixture
        .queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();

    for (id, state, expected) in [
        (ids[0], State::Completed, &["ambiguous", "completed"][..]),
        (ids[1], State::Dead, &["ambiguous"]),
        (ids[2], State::Dead, &["ambiguous"]),
    ] {
        let detail = eventually(&format!("job {id} is {state:?}"), SOON, || async {
            let detail = fixture.queue.get(id).await.unwrap().unwrap();
            (detail.summary.state == state).then_some(detail)
        })
        .await;
        let outcomes: Vec<&str> = detail
            .attempts
            .iter()
            .map(|one| one.outcome.as_str())
            .collect();
        assert_eq!(outcomes, expected);
        assert_eq!(
            detail.attempts[0].error.as_deref(),
            Some("ambiguous: no answer")
        );
    }

    let failures = fixture.queue.failures(None, 10).await.unwrap();
    assert!(
        failures.len() == 3 && failures.iter().all(|one| one.outcome == "ambiguous"),
        "{failures:?}"
    );
    assert_eq!(
        (
            fixture.counted("ambiguous"),
            fixture.counted("failed"),
            fixture.counted("dead")
        ),
        (Some(1), None, Some(2)),
        "the alert about dead letters counts those"
    );
    let again = fixture
        .queue
        .enqueue(&[job(json!({})).unique("u")])
        .await
        .unwrap()[0];
    assert!(!again.duplicate, "a dead letter holds no key");
    worker.stop().await;
}
