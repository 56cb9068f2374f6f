//! Replacing jobs in transactions that overlap, roll back, or hold the same keys.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flyball::jobs::postgres::Ending;
use flyball::jobs::{Client, NewJob};
use serde_json::{Value, json};
use sqlx::Row;

use super::fixture::BLOCKED;
use super::replace::{claim, finish, numbered, one, queue, worker};
use crate::support::eventually;

#[tokio::test]
async fn a_replacement_that_is_rolled_back_changes_nothing() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let id = one(&queue, numbered(1)).await.id;
    let mut transaction = database.pool().begin().await.unwrap();
    assert!(
        Client
            .enqueue(&mut *transaction, numbered(2).throttle("hooks"))
            .await
            .unwrap()
            .replaced
    );

    assert!(
        claim(&queue, worker, 1).await.is_empty(),
        "a claim does not wait for the open transaction, it passes the job by"
    );
    transaction.rollback().await.unwrap();

    let claimed = claim(&queue, worker, 2).await;
    assert_eq!(
        (
            claimed[0].job.id,
            &claimed[0].job.args,
            claimed[0].job.throttle.as_str()
        ),
        (id, &json!({"n": 1}), "default")
    );
}

#[tokio::test]
async fn a_duplicate_that_is_not_committed_holds_no_worker_up() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let plain = NewJob {
        replace: false,
        ..numbered(1)
    };
    let id = one(&queue, plain.clone()).await.id;
    claim(&queue, worker, 1).await;
    let mut transaction = database.pool().begin().await.unwrap();
    assert!(
        Client
            .enqueue(&mut *transaction, plain)
            .await
            .unwrap()
            .duplicate
    );

    let ended = tokio::time::timeout(
        Duration::from_secs(10),
        finish(&queue, id, 1, Ending::Completed),
    )
    .await;

    assert!(
        ended.is_ok(),
        "the end of the job waited for a producer's transaction"
    );
    transaction.rollback().await.unwrap();
}

#[tokio::test]
async fn no_end_waits_for_a_producer_that_replaces_and_its_rollback_leaves_no_key_behind() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let (completed, dead) = (
        one(&queue, numbered(1)).await.id,
        one(&queue, numbered(1).unique("other")).await.id,
    );
    claim(&queue, worker, 1).await;
    let mut transaction = database.pool().begin().await.unwrap();
    Client
        .enqueue_many(
            &mut *transaction,
            &[numbered(2), numbered(2).unique("other")],
        )
        .await
        .unwrap();

    let ended = tokio::time::timeout(Duration::from_secs(10), async {
        finish(&queue, completed, 1, Ending::Completed).await;
        finish(&queue, dead, 1, Ending::Dead { error: "x".into() }).await;
    })
    .await;

    assert!(
        ended.is_ok(),
        "the ends waited for a producer's transaction"
    );
    transaction.rollback().await.unwrap();
    let plain = NewJob {
        replace: false,
        ..numbered(3)
    };
    assert!(
        !one(&queue, plain.clone()).await.duplicate,
        "the key of the ended job is free"
    );
    assert!(!one(&queue, plain.unique("other")).await.duplicate);
}

#[tokio::test]
async fn a_key_whose_job_ended_without_giving_it_back_is_taken_over() {
    let (database, queue) = queue().await;
    let plain = NewJob {
        replace: false,
        ..numbered(1)
    };
    let id = one(&queue, plain.clone()).await.id;
    sqlx::query("delete from flyball.ready")
        .execute(database.pool())
        .await
        .unwrap();

    let next = one(&queue, plain).await;

    assert!(!next.duplicate);
    assert_ne!(next.id, id);
}

#[tokio::test]
async fn batches_with_the_same_keys_in_any_order_do_not_cross() {
    let (database, queue) = queue().await;
    let jobs = |backwards: bool| {
        let mut jobs: Vec<NewJob> = (0..60)
            .map(|n| numbered(n).unique(format!("k{n}")))
            .collect();
        if backwards {
            jobs.reverse();
        }
        jobs
    };
    let both = (0..12).map(|nth| {
        let (queue, jobs) = (queue.clone(), jobs(nth % 2 == 0));
        tokio::spawn(async move { queue.enqueue(&jobs).await })
    });

    for enqueued in futures_util::future::join_all(both).await {
        enqueued.unwrap().unwrap();
    }
    let waiting: i64 = sqlx::query_scalar("select count(*) from flyball.ready")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(waiting, 60);
}

#[tokio::test]
async fn the_last_arguments_run_last_although_a_job_before_has_a_higher_number() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let mut open = database.pool().begin().await.unwrap();
    sqlx::query("lock table flyball.unique_holder in share mode")
        .execute(&mut *open)
        .await
        .unwrap();
    let slow = tokio::spawn({
        let queue = queue.clone();
        async move { one(&queue, numbered(2)).await.id }
    });
    eventually(
        "a producer with a number waits",
        Duration::from_secs(60),
        || async {
            let blocked: i64 = sqlx::query_scalar(BLOCKED)
                .fetch_one(&queue.pool)
                .await
                .unwrap();
            (blocked > 0).then_some(())
        },
    )
    .await;
    let fast = Client.enqueue(&mut *open, numbered(1)).await.unwrap().id;
    let claimed = "with removed as (delete from flyball.ready where job_id = $1 returning *)
        insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost, holds_unique, claimed_at)
        select job_id, 1, $2, lane_id, priority, 1, cost, holds_unique, now() from removed";
    sqlx::query(claimed)
        .bind(fast)
        .bind(worker)
        .execute(&mut *open)
        .await
        .unwrap();
    open.commit().await.unwrap();
    let slow = slow.await.unwrap();
    assert!(slow < fast, "{slow} and {fast}");

    let last = one(&queue, numbered("last")).await;

    assert_eq!((last.id, last.replaced), (slow, true));
    finish(&queue, fast, 1, Ending::Completed).await;
    let claimed = claim(&queue, worker, 2).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(
        (claimed[0].job.id, &claimed[0].job.args),
        (slow, &json!({"n": "last"}))
    );
}

/// Producers replace and debounce one key while workers claim, complete, fail, release and promote.
/// Then one more job is enqueued: it runs, no job begins after it that had not begun before, no job
/// is left behind, and each ends once.
///
/// Numbers say nothing about the order: a producer has one before it has the key.
#[tokio::test]
async fn whatever_races_the_last_arguments_run_last() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let stop = Arc::new(AtomicBool::new(false));
    let is_last_in = Arc::new(AtomicBool::new(false));
    let claimers: Vec<_> = (0..3i64)
        .map(|nth| {
            let (queue, stop, is_last_in) = (queue.clone(), stop.clone(), is_last_in.clone());
            tokio::spawn(async move {
                let mut ran: Vec<(i64, Value, bool)> = Vec::new();
                let mut fence = nth << 40;
                while !stop.load(Ordering::Relaxed) {
                    fence += 1;
                    queue.promote().await.unwrap();
                    let is_after = is_last_in.load(Ordering::SeqCst);
                    for claimed in claim(&queue, worker, fence).await {
                        let job = claimed.job;
                        ran.push((job.id, job.args["n"].clone(), is_after));
                        // A retried job may get new arguments in between.
                        let ending = match fence % 4 {
                            0 if job.args["n"] != "last" => Ending::Failed {
                                delay: Duration::from_millis(1),
                                error: "x".into(),
                            },
                            1 if job.args["n"] != "last" => Ending::HandedBack,
                            _ => Ending::Completed,
                        };
                        finish(&queue, job.id, fence, ending).await;
                    }
                }
                ran
            })
        })
        .collect();

    let producers = (0..5i64).map(|nth| {
        let queue = queue.clone();
        tokio::spawn(async move {
            for n in 0..60 {
                let output = nth * 1000 + n;
                let job = match n % 3 {
                    0 => numbered(output),
                    1 => NewJob::new("http", json!({"n": output}))
                        .unique("customer")
                        .debounce(Duration::from_millis(3)),
                    _ => numbered(output).key("other lane"),
                };
                Client
                    .enqueue(&queue.pool, job.max_attempts(1000))
                    .await
                    .unwrap();
            }
        })
    });
    for done in futures_util::future::join_all(producers).await {
        done.unwrap();
    }
    let last = one(&queue, numbered("last")).await.id;
    is_last_in.store(true, Ordering::SeqCst);
    let left = "select (select count(*) from flyball.ready) + (select count(*) from flyball.scheduled) + (select count(*) from flyball.lease)";
    eventually("an empty queue", Duration::from_secs(60), || async {
        let left: i64 = sqlx::query_scalar(left)
            .fetch_one(database.pool())
            .await
            .unwrap();
        (left == 0).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    let mut ran = Vec::new();
    for claimer in claimers {
        ran.extend(claimer.await.unwrap());
    }

    assert_eq!(
        ran.iter().filter(|(_, n, _)| n == "last").count(),
        1,
        "the last arguments run, once"
    );
    let begun: BTreeSet<i64> = ran
        .iter()
        .filter(|(_, _, is_after)| !is_after)
        .map(|(id, ..)| *id)
        .collect();
    for (id, n, _) in ran.iter().filter(|(_, _, is_after)| *is_after) {
        assert!(
            n == "last" || *id != last && begun.contains(id),
            "older arguments began after the last: {n} of {id}"
        );
    }
    let row = sqlx::query(
        "select (select count(*) from flyball.job) as jobs,
            (select count(*) from flyball.attempt where outcome = 'completed') as completed,
            (select count(distinct job_id) from flyball.attempt where outcome = 'completed') as once,
            (select count(*) from flyball.unique_holder) as keys",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    let (jobs, completed, once): (i64, i64, i64) =
        (row.get("jobs"), row.get("completed"), row.get("once"));
    assert_eq!((completed, once), (jobs, jobs), "each job ends once");
    assert_eq!(row.get::<i64, _>("keys"), 0, "no key is left behind");
}
