//! Concurrency limits, and a pause of the whole queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flyball::jobs::{Context, Job, Outcome};
use flyball::runner::Config;
use flyball::throttle::Name;

use super::fixture::{FairnessFixture, SOON, config, until_begun};
use crate::support::eventually;

#[tokio::test]
async fn no_more_jobs_run_at_once_than_throttle_and_key_allow_in_all_workers_together() {
    let mut fixture = FairnessFixture::new().await;
    let [now, most, now_a, most_a, done] = [(); 5].map(|()| Arc::new(AtomicUsize::new(0)));
    let counts = (
        now.clone(),
        most.clone(),
        now_a.clone(),
        most_a.clone(),
        done.clone(),
    );
    fixture
        .kinds
        .register_fn("note", move |job: Job, _: Context| {
            let (now, most, now_a, most_a, done) = counts.clone();
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if job.key == "a" {
                    most_a.fetch_max(now_a.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                }
                // Real time: jobs that last a while run beside each other.
                tokio::time::sleep(Duration::from_millis(30)).await;
                if job.key == "a" {
                    now_a.fetch_sub(1, Ordering::SeqCst);
                }
                now.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        });
    fixture
        .turn(
            "t",
            &[
                ("rps", "-1"),
                ("concurrency", "5"),
                ("key_concurrency", "2"),
            ],
        )
        .await;
    for key in ["a", "b", "c", "d", "e"] {
        fixture.enqueue("t", key, 1, 30).await;
    }

    let workers = [
        fixture.worker(config(32)).await,
        fixture.worker(config(32)).await,
    ];
    eventually("all jobs have run", SOON * 3, || async {
        (done.load(Ordering::SeqCst) == 150).then_some(())
    })
    .await;
    for worker in workers {
        worker.stop().await;
    }

    assert!(
        (4..=5).contains(&most.load(Ordering::SeqCst)),
        "at most 5 of the throttle ran at once: {most:?}"
    );
    assert_eq!(
        most_a.load(Ordering::SeqCst),
        2,
        "at most 2 of a key ran at once"
    );
}

#[tokio::test]
async fn what_a_dead_worker_held_of_a_limit_is_free_again_when_its_time_to_live_is_over() {
    let mut fixture = FairnessFixture::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    fixture
        .kinds
        .register_fn("note", move |_: Job, context: Context| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                context.cancelled.cancelled().await;
                Outcome::HandedBack
            }
        });
    fixture
        .turn("t", &[("rps", "-1"), ("concurrency", "1")])
        .await;
    fixture.enqueue("t", "", 1, 2).await;
    // A holder that never renews, like a killed process.
    let dead = flyball::throttle::Holder {
        id: "dead".into(),
        ttl: Duration::from_secs(3),
        held: 1,
    };
    fixture
        .store
        .hold(&Name::new("t").unwrap(), &dead, &[(String::new(), 1)])
        .await
        .unwrap();
    let begun = Instant::now();

    let worker = fixture.worker(config(8)).await;
    eventually("a job runs", SOON, || async {
        (runs.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await;

    assert!(
        begun.elapsed() >= Duration::from_millis(2500),
        "the slot was free too early: {:?}",
        begun.elapsed()
    );
    fixture.refusals.again("t", "").await;
    assert_eq!(
        runs.load(Ordering::SeqCst),
        1,
        "the other job waits for the one slot"
    );
    fixture.turn("t", &[("concurrency", "2")]).await;
    eventually("the knob lets the second one run", SOON, || async {
        (runs.load(Ordering::SeqCst) == 2).then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn what_a_worker_that_stops_held_of_a_limit_is_free_at_once() {
    let mut fixture = FairnessFixture::new().await;
    let (runs, gate) = fixture.gated("note");
    fixture
        .turn(
            "t",
            &[
                ("rps", "-1"),
                ("concurrency", "1"),
                ("key_concurrency", "1"),
            ],
        )
        .await;
    fixture.enqueue("t", "k", 1, 2).await;
    // Its reports would be valid for longer than this test waits.
    let first = fixture
        .worker(Config {
            ttl: Duration::from_secs(600),
            ..config(8)
        })
        .await;
    until_begun(&runs, 1).await;
    let second = fixture.worker(config(8)).await;
    let stopping = tokio::spawn(first.stop());
    fixture.refusals.again("t", "k").await;
    assert_eq!(
        runs.load(Ordering::SeqCst),
        1,
        "the other job waits for the one slot"
    );

    gate.send_replace(true);

    until_begun(&runs, 2).await;
    assert_eq!(stopping.await.unwrap(), 0);
    second.stop().await;
}

#[tokio::test]
async fn what_still_runs_in_a_worker_that_stops_is_counted_until_it_has_ended() {
    let mut fixture = FairnessFixture::new().await;
    let (runs, gate) = fixture.gated("note");
    fixture
        .turn("t", &[("rps", "-1"), ("concurrency", "1")])
        .await;
    fixture.enqueue("t", "", 1, 2).await;
    let ttl = Duration::from_secs(3);
    let first = fixture
        .worker(Config {
            ttl,
            grace: Duration::from_secs(60),
            ..config(8)
        })
        .await;
    until_begun(&runs, 1).await;
    let second = fixture.worker(config(8)).await;

    let stopping = tokio::spawn(first.stop());
    // Real time: a report lapses by the clock of Redis, here unless the first worker renews it.
    tokio::time::sleep(ttl + Duration::from_millis(500)).await;
    fixture.refusals.again("t", "").await;
    let while_stopping = runs.load(Ordering::SeqCst);
    gate.send_replace(true);

    assert_eq!(while_stopping, 1, "a second job ran beside the first one");
    until_begun(&runs, 2).await;
    stopping.await.unwrap();
    second.stop().await;
}

#[tokio::test]
async fn while_everything_is_paused_no_job_begins() {
    let mut fixture = FairnessFixture::new().await;
    let notes = fixture.note();
    fixture.turn("t", &[("rps", "-1")]).await;
    let ttl = Duration::from_secs(3);
    let worker = fixture.worker(Config { ttl, ..config(8) }).await;
    fixture.enqueue("t", "", 1, 1).await;
    notes.reach(1).await;

    sqlx::query("select flyball.pause_all('a test')")
        .execute(&fixture.queue.pool)
        .await
        .unwrap();
    // The pause arrives with the answer to a heartbeat.
    fixture.beats(&worker).await;
    fixture.enqueue("t", "", 1, 5).await;
    fixture.beats(&worker).await;
    assert_eq!(notes.len(), 1);
    sqlx::query("select flyball.resume_all()")
        .execute(&fixture.queue.pool)
        .await
        .unwrap();

    notes.reach(6).await;
    worker.stop().await;
}
