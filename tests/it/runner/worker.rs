//! A worker: it runs each job once, at the rate of its throttle, and stops gracefully.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::jobs::{Context, Job, NewJob, Outcome, Scope, State};
use flyball::runner::Config;
use serde_json::json;
use tokio::sync::Semaphore;

use super::fixture::{SOON, WorkerFixture, counter, patient, quick};
use crate::support::eventually;

#[tokio::test]
async fn every_job_runs_once_and_is_completed() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.enqueue("noop", "fast", "", 300).await;
    let worker = fixture.worker(quick()).await;

    fixture.until_done(300).await;

    assert_eq!(runs.load(Ordering::SeqCst), 300);
    assert_eq!(worker.stop().await, 0);
}

#[tokio::test]
async fn a_throttle_never_lets_more_through_than_its_rate_and_its_bucket() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture
        .turn("slow", &[("rps", "40"), ("burst", "1"), ("window", "0.25")])
        .await;
    fixture.enqueue("noop", "slow", "a", 60).await;
    fixture.enqueue("noop", "slow", "b", 60).await;
    let begun = Instant::now();
    let worker = fixture.worker(quick()).await;

    fixture.until_done(120).await;

    let elapsed = begun.elapsed().as_secs_f64();
    assert_eq!(runs.load(Ordering::SeqCst), 120);
    assert!(
        120.0 <= 40.0 * (elapsed + 0.25) + 1.0,
        "120 jobs in {elapsed} s is more than 40 a second"
    );
    // A busy machine loses some of the rate, but not three quarters of it.
    assert!(
        120.0 >= 10.0 * elapsed,
        "120 jobs in {elapsed} s is less than a quarter of 40 a second"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_dear_job_pays_its_whole_cost() {
    let mut fixture = WorkerFixture::new().await;
    let (_, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture
        .turn("dear", &[("rps", "50"), ("burst", "1"), ("window", "0.2")])
        .await;
    fixture.enqueue("noop", "dear", "", 0).await;
    let job = NewJob {
        throttle: "dear".into(),
        cost: 10.0,
        ..NewJob::new("noop", json!({}))
    };
    fixture.queue.enqueue(&vec![job; 12]).await.unwrap();
    let begun = Instant::now();
    let worker = fixture.worker(quick()).await;

    fixture.until_done(12).await;

    let elapsed = begun.elapsed().as_secs_f64();
    // The last job may leave its whole cost as a debt.
    assert!(
        110.0 <= 50.0 * (elapsed + 0.2) + 1.0,
        "12 jobs of cost 10 in {elapsed} s is more than 50 tokens a second"
    );
    worker.stop().await;
}

#[tokio::test]
async fn jobs_of_an_unknown_throttle_are_parked_until_it_exists() {
    let mut fixture = WorkerFixture::new().await;
    let (_, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    let parked = fixture.enqueue("noop", "nobody-made-me", "", 1).await[0];
    // All of these names are asked for in turn.
    let others: Vec<NewJob> = (0..300)
        .map(|n| NewJob {
            throttle: format!("nobody-made-me-{n}"),
            ..NewJob::new("noop", json!({}))
        })
        .collect();
    fixture.queue.enqueue(&others).await.unwrap();
    let other = fixture.enqueue("noop", "fast", "", 1).await[0];
    let worker = fixture.worker(quick()).await;

    fixture.until(other, State::Completed).await;
    let detail = fixture.queue.get(parked).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.state, detail.summary.attempt),
        (State::Ready, 0)
    );

    fixture.turn("nobody-made-me", &[("rps", "10")]).await;
    fixture.until(parked, State::Completed).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_stopped_throttle_holds_its_jobs_and_an_edit_lets_them_go() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.turn("gate", &[("rps", "0")]).await;
    let held = fixture.enqueue("noop", "gate", "", 1).await[0];
    let other = fixture.enqueue("noop", "fast", "", 1).await[0];
    let worker = fixture.worker(quick()).await;
    fixture.until(other, State::Completed).await;
    assert_eq!(fixture.state(held).await, State::Ready);
    assert_eq!(runs.load(Ordering::SeqCst), 1);

    fixture.turn("gate", &[("rps", "20")]).await;

    fixture.until(held, State::Completed).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_throttled_answer_pauses_the_key_alone_and_uses_no_attempt() {
    // Long enough that a busy machine sees the key rest.
    const REST: Duration = Duration::from_secs(20);
    let mut fixture = WorkerFixture::new().await;
    let runs = Arc::new(Mutex::new(Vec::new()));
    let seen = runs.clone();
    fixture.kind("picky", move |job: Job, _| {
        let first = {
            let mut seen = seen.lock().unwrap();
            seen.push((job.key.clone(), Instant::now()));
            seen.iter().filter(|(key, _)| key == "hot").count() == 1
        };
        std::future::ready(if job.key == "hot" && first {
            Outcome::Throttled {
                scope: Scope::Key,
                delay: Some(REST),
                error: "429".into(),
            }
        } else {
            Outcome::Done
        })
    });
    let hot = fixture.enqueue("picky", "fast", "hot", 1).await[0];
    let worker = fixture.worker(quick()).await;
    eventually("the key rests", SOON, || async {
        let detail = fixture.queue.get(hot).await.unwrap().unwrap();
        (detail.summary.state == State::Ready && !detail.attempts.is_empty()).then_some(())
    })
    .await;
    let cold = fixture.enqueue("picky", "fast", "cold", 1).await[0];
    fixture.until(cold, State::Completed).await;
    assert_eq!(
        fixture.state(hot).await,
        State::Ready,
        "the cold key did not wait for the hot one"
    );
    fixture.until(hot, State::Completed).await;

    let runs = runs.lock().unwrap().clone();
    let hot_runs: Vec<Instant> = runs
        .iter()
        .filter(|(key, _)| key == "hot")
        .map(|(_, at)| *at)
        .collect();
    assert_eq!(hot_runs.len(), 2);
    assert!(
        hot_runs[1] - hot_runs[0] >= REST,
        "the key rested for the stated time"
    );
    let detail = fixture.queue.get(hot).await.unwrap().unwrap();
    assert_eq!(detail.summary.attempt, 1, "being throttled used no attempt");
    worker.stop().await;
}

#[tokio::test]
async fn failures_are_tried_again_and_then_buried_with_their_error() {
    let mut fixture = WorkerFixture::new().await;
    let (runs, run) = counter(Outcome::Retry {
        after: Some(Duration::from_millis(10)),
        error: "boom".into(),
    });
    fixture.kind("bad", run);
    fixture.kind("panics", |_: Job, _: Context| async { panic!("oh no") });
    fixture.enqueue("bad", "fast", "", 0).await;
    fixture.enqueue("panics", "fast", "", 0).await;
    let job = |kind: &str, max_attempts| NewJob {
        throttle: "fast".into(),
        max_attempts,
        ..NewJob::new(kind, json!({}))
    };
    let ids = fixture
        .queue
        .enqueue(&[job("bad", 3), job("panics", 1)])
        .await
        .unwrap();
    let worker = fixture.worker(quick()).await;

    fixture.until(ids[0].id, State::Dead).await;
    fixture.until(ids[1].id, State::Dead).await;

    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let bad = fixture.queue.get(ids[0].id).await.unwrap().unwrap();
    let outcomes: Vec<&str> = bad
        .attempts
        .iter()
        .map(|one| one.outcome.as_str())
        .collect();
    assert_eq!(outcomes, ["failed", "failed", "dead"]);
    let panicked = fixture.queue.get(ids[1].id).await.unwrap().unwrap();
    assert_eq!(
        panicked.summary.last_error.as_deref(),
        Some("the handler panicked")
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_running_job_stops_when_it_is_cancelled() {
    let mut fixture = WorkerFixture::new().await;
    fixture.kind("patient", patient);
    let id = fixture.enqueue("patient", "fast", "", 1).await[0];
    let worker = fixture.worker(quick()).await;
    fixture.until(id, State::Running).await;

    fixture.queue.cancel(id).await.unwrap();

    fixture.until(id, State::Cancelled).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_stopping_worker_gives_back_what_it_cannot_finish() {
    let mut fixture = WorkerFixture::new().await;
    fixture.kind("patient", patient);
    let id = fixture.enqueue("patient", "fast", "", 1).await[0];
    let worker = fixture
        .worker(Config {
            grace: Duration::from_millis(200),
            ..quick()
        })
        .await;
    fixture.until(id, State::Running).await;

    worker.stop().await;

    let detail = fixture.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.state, detail.summary.attempt),
        (State::Ready, 0)
    );
    assert_eq!(fixture.queue.live_workers().await.unwrap(), 0);
}

#[tokio::test]
async fn a_worker_that_was_taken_for_dead_stops_its_jobs_and_starts_afresh() {
    let mut fixture = WorkerFixture::new().await;
    fixture.patient_at_first();
    let id = fixture.enqueue("patient", "fast", "", 1).await[0];
    let worker = fixture
        .worker(Config {
            ttl: Duration::from_secs(3),
            ..quick()
        })
        .await;
    let first_identity = worker.id();
    fixture.until(id, State::Running).await;

    sqlx::query("update flyball.worker set heartbeat_at = now() - interval '1 hour' where id = $1")
        .bind(first_identity)
        .execute(&fixture.queue.pool)
        .await
        .unwrap();

    fixture.until(id, State::Completed).await;
    assert_ne!(worker.id(), first_identity);
    let detail = fixture.queue.get(id).await.unwrap().unwrap();
    let outcomes: Vec<&str> = detail
        .attempts
        .iter()
        .map(|one| one.outcome.as_str())
        .collect();
    // Released by itself, or by the rescuer if that was faster.
    assert!(
        matches!(outcomes[..], ["completed"] | ["lost", "completed"]),
        "{outcomes:?}"
    );
    worker.stop().await;
}

#[tokio::test]
async fn two_workers_share_the_work_and_no_job_runs_twice() {
    let mut fixture = WorkerFixture::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let inner = seen.clone();
    fixture.kind("noop", move |job: Job, _| {
        inner.lock().unwrap().push(job.id);
        std::future::ready(Outcome::Done)
    });
    let mut wanted = fixture.enqueue("noop", "fast", "a", 400).await;
    let (one, two) = tokio::join!(fixture.worker(quick()), fixture.worker(quick()));

    fixture.until_done(400).await;

    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
    tokio::join!(one.stop(), two.stop());
}

#[tokio::test]
async fn results_that_an_open_transaction_holds_up_hold_up_no_others() {
    let mut fixture = WorkerFixture::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let passed = gate.clone();
    fixture.kind("gated", move |_: Job, _: Context| {
        let passed = passed.clone();
        async move {
            passed.acquire().await.unwrap().forget();
            Outcome::Done
        }
    });
    fixture.kind("noop", |_: Job, _: Context| {
        std::future::ready(Outcome::Done)
    });
    let held = fixture.enqueue("gated", "fast", "", 2).await;
    let worker = fixture.worker(quick()).await;
    for id in &held {
        fixture.until(*id, State::Running).await;
    }
    let mut lock = fixture.database.pool().begin().await.unwrap();
    sqlx::query("select from flyball.job where id = any($1) for update")
        .bind(&held)
        .execute(&mut *lock)
        .await
        .unwrap();
    for _ in &held {
        gate.add_permits(1);
        // Real time: each result is to be on its way before the next one comes.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    let other = fixture.enqueue("noop", "fast", "", 1).await[0];
    fixture.until(other, State::Completed).await;

    lock.rollback().await.unwrap();
    for id in held {
        fixture.until(id, State::Completed).await;
    }
    worker.stop().await;
}
