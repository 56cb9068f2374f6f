//! Handlers run in slots, and jobs that take no time are claimed before a slot is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flyball::jobs::Outcome;
use flyball::runner::Config;
use tokio::sync::{Notify, Semaphore};

use super::fixture::{SOON, WorkerFixture, quick};
use crate::support::eventually;

fn slots(concurrency: usize) -> Config {
    Config {
        concurrency,
        ..quick()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_take_no_time_are_claimed_by_hundreds_and_run_by_fours() {
    let mut fixture = WorkerFixture::new().await;
    let (running, most, done) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let counters = (running, most.clone(), done.clone());
    fixture.kind("short", move |_, _| {
        let (running, most, done) = counters.clone();
        async move {
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            done.fetch_add(1, Ordering::SeqCst);
            Outcome::Done
        }
    });
    let count = 4000;
    fixture.enqueue("short", "fast", "", count).await;

    let worker = fixture.worker(slots(4)).await;
    eventually("all have run", SOON, || async {
        (done.load(Ordering::SeqCst) >= count).then_some(())
    })
    .await;
    worker.stop().await;

    assert_eq!(done.load(Ordering::SeqCst), count, "each ran once");
    assert!(most.load(Ordering::SeqCst) <= 4);
    // The jobs of one claim began at one time.
    let sql = "select max(jobs) from (select count(*) as jobs from flyball.attempt group by started_at) claims";
    let largest: i64 = sqlx::query_scalar(sql)
        .fetch_one(fixture.database.pool())
        .await
        .unwrap();
    assert!(largest > 4, "no claim was larger than {largest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_were_claimed_early_go_to_another_worker_if_no_slot_becomes_free() {
    let mut fixture = WorkerFixture::new().await;
    let (began, gate) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let done = Arc::new(AtomicUsize::new(0));
    let counted = done.clone();
    fixture.kind("short", move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Outcome::Done)
    });
    let (told, opens) = (began.clone(), gate.clone());
    fixture.kind("long", move |_, _| {
        let (told, opens) = (told.clone(), opens.clone());
        async move {
            told.notify_one();
            opens.acquire().await.map(|_| Outcome::Done).unwrap()
        }
    });
    fixture.enqueue("short", "fast", "", 500).await;
    fixture.enqueue("long", "fast", "", 1).await;
    fixture.enqueue("short", "fast", "", 200).await;
    let busy = fixture.worker(slots(1)).await;
    tokio::time::timeout(SOON, began.notified()).await.unwrap();

    // The busy worker has one slot, in which the long job runs.
    let free = fixture.worker(slots(1)).await;
    eventually("all short ones have run", SOON, || async {
        (done.load(Ordering::SeqCst) == 700).then_some(())
    })
    .await;

    gate.add_permits(1);
    busy.stop().await;
    free.stop().await;
    let sql = "select count(distinct job_id) from flyball.attempt where outcome = 'completed'";
    let completed: i64 = sqlx::query_scalar(sql)
        .fetch_one(fixture.database.pool())
        .await
        .unwrap();
    assert_eq!(completed, 701);
}
