//! Handlers that panic, have unreadable arguments, or may run only once; and a worker whose loop
//! dies.

use std::future::Ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flyball::jobs::postgres::{LaneClaim, NewWorker};
use flyball::jobs::retry::Policy;
use flyball::jobs::{
    Attribution, Context, Handler, Issue, Job, NewJob, OnAmbiguous, Outcome, PreparedJob, Scope,
    State,
};
use flyball::runner::Config;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::fixture::{SOON, WorkerFixture, counter, quick};
use crate::support::eventually;

struct Careless;

impl Handler for Careless {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        assert!(args.get("check").is_none(), "the check panics");
        Ok(PreparedJob::new(|_, _| -> Ready<Outcome> {
            panic!("before there is a future")
        }))
    }
}

#[tokio::test]
async fn a_handler_that_panics_outside_its_future_keeps_neither_permit_nor_lease() {
    let mut fixture = WorkerFixture::new().await;
    let (_, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.kinds.register("careless", Careless);
    fixture.enqueue("careless", "fast", "", 0).await;
    let job = |args| NewJob {
        throttle: "fast".into(),
        max_attempts: 1,
        ..NewJob::new("careless", args)
    };
    let bad = fixture
        .queue
        .enqueue(&[job(json!({})), job(json!({"check": 1}))])
        .await
        .unwrap();
    let worker = fixture
        .worker(Config {
            concurrency: 1,
            ..quick()
        })
        .await;

    for one in &bad {
        fixture.until(one.id, State::Dead).await;
    }
    let good = fixture.enqueue("noop", "fast", "", 1).await[0];
    fixture.until(good, State::Completed).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_job_that_cannot_be_read_is_buried_and_its_neighbours_run() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.enqueue("noop", "fast", "", 1).await;
    let poison = format!(r#"{{"secret": {}1{}}}"#, "[".repeat(200), "]".repeat(200));
    let mut dead = Vec::new();
    for args in [r#"{"secret": 1e400}"#, &poison] {
        let sql = "select job_id from flyball.enqueue('noop', $1::text::jsonb, throttle => 'fast')";
        dead.push(
            sqlx::query_scalar::<_, i64>(sql)
                .bind(args)
                .fetch_one(&fixture.queue.pool)
                .await
                .unwrap(),
        );
    }
    fixture.enqueue("noop", "fast", "", 1).await;
    let worker = fixture.worker(quick()).await;

    fixture.until_done(2).await;
    for id in &dead {
        fixture.until(*id, State::Dead).await;
    }

    assert_eq!(runs.load(Ordering::SeqCst), 2);
    for id in dead {
        let job = fixture.queue.get(id).await.unwrap().unwrap();
        let error = job.summary.last_error.unwrap();
        assert!(
            error.starts_with("args cannot be read: ") && !error.contains("secret"),
            "{error}"
        );
        assert!(
            job.args.as_str().unwrap().starts_with(r#"{"secret": "#),
            "{}",
            job.args
        );
    }
    worker.stop().await;
}

/// Allows one attempt.
struct Once(Arc<AtomicUsize>);

impl Handler for Once {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, context: Context| {
            self.0.fetch_add(1, Ordering::SeqCst);
            async move {
                context.cancelled.cancelled().await;
                Outcome::HandedBack
            }
        }))
    }

    fn retry(&self) -> Policy {
        Policy {
            max_attempts: Some(1),
            ..Policy::default()
        }
    }
}

/// Claims `count` jobs of a kind, all of one lane, with a worker that dies at once.
async fn claim_and_die(fixture: &WorkerFixture, kind: &str, count: i32) {
    let doomed = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: SOON,
        kinds: vec![kind.into()],
    };
    let doomed = fixture.queue.register(&doomed).await.unwrap();
    let lane = fixture.queue.ready_lanes().await.unwrap()[0].lane_id;
    let claims = [LaneClaim::first(lane, count)];
    let claimed = fixture.queue.claim(doomed, 1, &claims).await.unwrap();
    assert_eq!(claimed.len(), count as usize);
    let sql = "update flyball.worker set heartbeat_at = now() - interval '1 hour'";
    sqlx::query(sql).execute(&fixture.queue.pool).await.unwrap();
}

#[tokio::test]
async fn a_lost_attempt_that_was_the_last_of_its_kind_is_not_followed_by_another_unless_a_person_says_so()
 {
    let mut fixture = WorkerFixture::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    fixture.kinds.register("once", Once(runs.clone()));
    let id = fixture.enqueue("once", "fast", "", 1).await[0];
    claim_and_die(&fixture, "once", 1).await;
    assert_eq!(fixture.queue.rescue().await.unwrap().ready, [id]);
    let worker = fixture.worker(quick()).await;

    fixture.until(id, State::Dead).await;

    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let job = fixture.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        job.summary.last_error.as_deref(),
        Some("the worker died during the last attempt")
    );
    fixture
        .queue
        .retry_signed(id, true, &Attribution::default())
        .await
        .unwrap();
    fixture.until(id, State::Running).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_job_that_dies_with_its_worker_is_counted_as_a_dead_letter_of_its_kind() {
    let fixture = WorkerFixture::new().await;
    fixture.register("noop").await;
    let job = NewJob {
        throttle: "fast".into(),
        max_attempts: 1,
        ..NewJob::new("noop", json!({}))
    };
    let id = fixture.queue.enqueue(&[job]).await.unwrap()[0].id;
    claim_and_die(&fixture, "noop", 1).await;
    let mut registry = Registry::default();
    let worker = fixture
        .start(quick(), fixture.kinds.clone(), &mut registry)
        .await;

    fixture.until(id, State::Dead).await;

    eventually("it is counted", SOON, || async {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let dead = "flyball_jobs_finished_total{kind=\"noop\",outcome=\"dead\"} 1\n";
        text.contains(dead).then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn a_dead_letter_whose_worker_died_runs_once_more_with_the_attempts_that_it_had() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.register("noop").await;
    let job = NewJob {
        throttle: "fast".into(),
        max_attempts: 1,
        ..NewJob::new("noop", json!({}))
    };
    let waiting = NewJob {
        max_attempts: 3,
        ..job.clone()
    };
    let made = fixture.queue.enqueue(&[job, waiting]).await.unwrap();
    let (dead, waiting) = (made[0].id, made[1].id);
    claim_and_die(&fixture, "noop", 2).await;
    let rescued = fixture.queue.rescue().await.unwrap();
    assert_eq!((rescued.dead, rescued.ready), (vec![dead], vec![waiting]));

    // One keeps its only attempt, and of the other a person takes the rest.
    fixture
        .queue
        .retry_signed(dead, true, &Attribution::default())
        .await
        .unwrap();
    let updated: String = sqlx::query_scalar("select flyball.update($1, max_attempts => 1)")
        .bind(waiting)
        .fetch_one(&fixture.queue.pool)
        .await
        .unwrap();
    assert_eq!(updated, "updated");
    let worker = fixture.worker(quick()).await;

    for id in [dead, waiting] {
        fixture.until(id, State::Completed).await;
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    worker.stop().await;
}

/// Panics when asked for its policy.
struct Reckless;

impl Handler for Reckless {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|job: Job, _| async move {
            match job.args.as_str() {
                Some("throttled") => Outcome::Throttled {
                    scope: Scope::Key,
                    delay: Some(Duration::MAX),
                    error: "429".into(),
                },
                _ => Outcome::Retry {
                    after: None,
                    error: "boom".into(),
                },
            }
        }))
    }

    fn retry(&self) -> Policy {
        panic!("no policy")
    }
}

#[tokio::test]
async fn a_panic_after_the_handler_has_ended_keeps_neither_permit_nor_lease() {
    let mut fixture = WorkerFixture::new().await;
    let (_, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.kinds.register("reckless", Reckless);
    fixture.enqueue("reckless", "fast", "", 0).await;
    let job = |how: &str, key: &str| NewJob {
        throttle: "fast".into(),
        key: key.into(),
        ..NewJob::new("reckless", json!(how))
    };
    let ids = fixture
        .queue
        .enqueue(&[job("throttled", "a"), job("fails", "b")])
        .await
        .unwrap();
    let worker = fixture
        .worker(Config {
            concurrency: 1,
            ..quick()
        })
        .await;

    fixture.until(ids[1].id, State::Retryable).await;
    eventually("the throttled one has come back", SOON, || async {
        let job = fixture.queue.get(ids[0].id).await.unwrap().unwrap();
        (job.summary.state == State::Ready && !job.attempts.is_empty()).then_some(())
    })
    .await;

    let failed = fixture.queue.get(ids[1].id).await.unwrap().unwrap();
    assert!(
        failed
            .summary
            .last_error
            .unwrap()
            .contains("panicked while returning its retry policy")
    );
    // The only permit is free, and so are those of jobs whose ends are not written.
    let good = fixture.enqueue("noop", "fast", "", 9).await;
    for id in good {
        fixture.until(id, State::Completed).await;
    }
    worker.stop().await;
}

#[tokio::test]
async fn what_a_handler_has_started_is_notified_of_its_timeout() {
    let mut fixture = WorkerFixture::new().await;
    let answer = Arc::new(Notify::new());
    let stopped = answer.clone();
    fixture.kind("forks", move |_: Job, context: Context| {
        let stopped = stopped.clone();
        tokio::spawn(async move {
            context.cancelled.cancelled().await;
            stopped.notify_one();
        });
        std::future::pending()
    });
    fixture.enqueue("forks", "fast", "", 0).await;
    let job = NewJob {
        throttle: "fast".into(),
        timeout_s: Some(0.05),
        ..NewJob::new("forks", json!({}))
    };
    fixture.queue.enqueue(&[job]).await.unwrap();
    let worker = fixture.worker(quick()).await;

    let heard = tokio::time::timeout(SOON, answer.notified()).await;

    assert!(heard.is_ok());
    worker.stop().await;
}

#[tokio::test]
async fn work_that_was_handed_over_and_cut_off_goes_the_way_of_its_policy() {
    let mut fixture = WorkerFixture::new().await;
    let over = |policy: OnAmbiguous| {
        move |job: Job, context: Context| async move {
            context.hand_over(policy);
            match job.key.as_str() {
                "panics" => panic!("as requested"),
                // It ignores its cancellation and goes on.
                _ => std::future::pending().await,
            }
        }
    };
    fixture.kind("once", over(OnAmbiguous::Dead));
    fixture.kind("twice", over(OnAmbiguous::Retry));
    let config = Config {
        grace: Duration::from_millis(100),
        ..Config::default()
    };
    let worker = fixture.worker(config).await;
    let late = |kind: &str| {
        NewJob::new(kind, json!({}))
            .throttle("fast")
            .timeout(Duration::from_millis(200))
    };
    sqlx::query("select flyball.register_kind(k) from unnest(array['once', 'twice']) k")
        .execute(&fixture.queue.pool)
        .await
        .unwrap();
    let timed_out = fixture
        .queue
        .enqueue(&[late("once"), late("twice")])
        .await
        .unwrap();
    let panicked = fixture.enqueue("once", "fast", "panics", 1).await;
    let stopped = [
        fixture.enqueue("once", "fast", "hangs", 1).await[0],
        fixture.enqueue("twice", "fast", "hangs", 1).await[0],
    ];
    let state = async |id: i64| fixture.queue.get(id).await.unwrap().unwrap().summary.state;
    for id in [timed_out[0].id, panicked[0]] {
        eventually("a dead letter", SOON, || async {
            (state(id).await == State::Dead).then_some(())
        })
        .await;
    }
    let repeated = eventually("another attempt follows", SOON, || async {
        let job = fixture.queue.get(timed_out[1].id).await.unwrap().unwrap();
        (!job.attempts.is_empty()).then_some(job)
    })
    .await;
    assert_ne!(repeated.summary.state, State::Dead);
    let first = &repeated.attempts[0];
    let error = first.error.as_deref().unwrap();
    assert!(
        first.outcome == "ambiguous" && error.starts_with("ambiguous: timed out after 0.2"),
        "{first:?}"
    );
    for id in stopped {
        eventually("it runs", SOON, || async {
            (state(id).await == State::Running).then_some(())
        })
        .await;
    }

    worker.stop().await;

    // The repeatable one is released.
    assert_eq!(state(stopped[0]).await, State::Dead);
    assert_eq!(state(stopped[1]).await, State::Ready);
}
