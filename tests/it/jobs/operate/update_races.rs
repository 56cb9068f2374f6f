//! Updates that race with claims, promotions, replacements and each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flyball::jobs::postgres::{Claimed, LaneClaim};
use flyball::jobs::{BulkCursor, CancelFilter, JobUpdate, MoveAnswer, NewJob, Queue, State};
use serde_json::json;
use tokio::sync::oneshot;

use super::fixture::{SOON, enqueue, job, later, queue, signed, state, worker};
use crate::support::eventually;

/// Returns the `n`th form of a job: all its fields belong together.
fn form(n: i32) -> JobUpdate {
    JobUpdate {
        args: Some(json!({"n": n})),
        throttle: Some(format!("t{}", n % 3)),
        key: Some(format!("k{}", n % 2)),
        priority: Some(n % 4),
        max_attempts: Some(n + 1),
        cost: Some(f64::from(n + 1)),
        timeout_s: Some(f64::from(n + 1)),
        ..JobUpdate::default()
    }
}

/// Returns the number of the form that a claimed job has; fails if it is a mix.
fn whole(claimed: &Claimed) -> i32 {
    let job = &claimed.job;
    let n = i32::try_from(job.args["n"].as_i64().unwrap()).unwrap();
    let (throttle, key) = (format!("t{}", n % 3), format!("k{}", n % 2));
    assert_eq!((&job.throttle, &job.key), (&throttle, &key), "{job:?}");
    assert_eq!((job.priority, job.max_attempts), (n % 4, n + 1), "{job:?}");
    assert_eq!(job.cost, f64::from(n + 1), "{job:?}");
    assert_eq!(
        job.timeout,
        Some(Duration::from_secs(n as u64 + 1)),
        "{job:?}"
    );
    n
}

async fn claim(queue: &Queue, worker: i32, fence: i64) -> Vec<Claimed> {
    let lanes = queue.ready_lanes().await.unwrap();
    let claims: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 3))
        .collect();
    queue.claim(worker, fence, &claims).await.unwrap()
}

fn first(n: i32) -> NewJob {
    let form = form(n);
    let job = NewJob::new("http", form.args.unwrap())
        .throttle(form.throttle.unwrap())
        .key(form.key.unwrap())
        .priority(form.priority.unwrap())
        .max_attempts(form.max_attempts.unwrap())
        .cost(form.cost.unwrap());
    NewJob {
        timeout_s: form.timeout_s,
        ..job
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_claim_runs_the_job_as_it_was_or_as_it_is_and_never_a_mix() {
    const JOBS: usize = 400;
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let mut ids = Vec::new();
    for n in 0..JOBS {
        // Half of them are promoted meanwhile.
        let job = first(0);
        let job = match n % 2 {
            0 => job,
            _ => job.run_in(Duration::from_millis(n as u64 * 5)),
        };
        ids.push(enqueue(&queue, job).await);
    }
    let over = Arc::new(AtomicBool::new(false));
    let changes = Arc::new(AtomicUsize::new(0));
    let editors = (0..3).map(|editor: usize| {
        let (queue, ids, over) = (queue.clone(), ids.clone(), over.clone());
        let changes = changes.clone();
        tokio::spawn(async move {
            let mut last: HashMap<i64, i32> = HashMap::new();
            // Each has jobs of its own, so that it knows what was accepted last.
            let own: Vec<i64> = ids.into_iter().skip(editor).step_by(3).collect();
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                for id in &own {
                    n = (n + 1) % 500;
                    match queue.update(*id, &form(n), &signed()).await.unwrap() {
                        MoveAnswer::Moved => {
                            last.insert(*id, n);
                            changes.fetch_add(1, Ordering::Relaxed);
                        }
                        MoveAnswer::Refused(state) => assert_eq!(state, State::Running),
                        MoveAnswer::NotFound => panic!("{id} is not found"),
                    }
                }
            }
            last
        })
    });
    let editors: Vec<_> = editors.collect();
    let mut ran: HashMap<i64, i32> = HashMap::new();
    let mut fence = 0;
    tokio::time::timeout(Duration::from_secs(120), async {
        eventually(
            "the editors are at work, which a busy machine may begin late",
            SOON,
            || async { (changes.load(Ordering::Relaxed) > JOBS / 2).then_some(()) },
        )
        .await;
        while ran.len() < JOBS {
            queue.promote().await.unwrap();
            fence += 1;
            for claimed in claim(&queue, worker, fence).await {
                let n = whole(&claimed);
                assert_eq!(ran.insert(claimed.job.id, n), None, "it ran twice");
            }
        }
    })
    .await
    .expect("a job was lost");
    over.store(true, Ordering::Relaxed);
    let mut accepted = 0;
    for editor in editors {
        for (id, n) in editor.await.unwrap() {
            accepted += 1;
            assert_eq!(ran[&id], n, "the last accepted change of {id} ran");
        }
    }
    assert!(
        accepted > 50,
        "only {accepted} jobs were changed before they ran"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn updates_and_replacements_of_one_job_take_turns_and_it_runs_once() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    for round in 0..20 {
        let keyed = |n: i32| first(n).unique("k").replace();
        let id = enqueue(&queue, keyed(0)).await;
        let all = (1..9).map(|n| {
            let queue = queue.clone();
            tokio::spawn(async move {
                match n % 2 {
                    0 => assert_eq!(enqueue(&queue, keyed(n)).await, id),
                    _ => {
                        let answer = queue.update(id, &form(n), &signed()).await.unwrap();
                        assert_eq!(answer, MoveAnswer::Moved);
                    }
                }
            })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        let claimed = claim(&queue, worker, round + 1).await;
        assert_eq!(claimed.len(), 1);
        assert_eq!((claimed[0].job.id, whole(&claimed[0]) > 0), (id, true));
        assert!(claim(&queue, worker, round + 1).await.is_empty());
        queue
            .finish(&[flyball::jobs::Finish {
                job_id: id,
                fence: round + 1,
                ending: flyball::jobs::Ending::Completed,
            }])
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn an_update_that_is_rolled_back_changes_nothing_and_no_claim_waits_for_it() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let id = enqueue(&queue, first(1)).await;
    let mut transaction = database.pool().begin().await.unwrap();
    let answer: String =
        sqlx::query_scalar("select flyball.update($1, '{\"n\": 2}', throttle => 'x')")
            .bind(id)
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
    assert_eq!(answer, "updated");
    assert!(
        claim(&queue, worker, 1).await.is_empty(),
        "it passes the job by"
    );
    transaction.rollback().await.unwrap();
    let claimed = claim(&queue, worker, 2).await;
    assert_eq!(claimed.iter().map(whole).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn two_changes_of_a_tenant_at_once_lead_into_no_lane_that_is_refused_to_one() {
    let (database, queue) = queue().await;
    let job = NewJob::new("http", json!({})).throttle("hooks");
    let made = queue.enqueue_for("tenant:acme", "", &[job]).await.unwrap();
    let id = made[0].id;
    let mut open = database.pool().begin().await.unwrap();
    let answer: String =
        sqlx::query_scalar("select flyball.update($1, throttle => 'webhooks', tenant => 'acme')")
            .bind(id)
            .fetch_one(&mut *open)
            .await
            .unwrap();
    assert_eq!(answer, "updated");
    let other = tokio::spawn({
        let pool = queue.pool.clone();
        async move {
            sqlx::query("select flyball.update($1, key => 'zeta', tenant => 'acme')")
                .bind(id)
                .execute(&pool)
                .await
        }
    });
    eventually("the other change waits", SOON, || async {
        let waiting: i64 = sqlx::query_scalar(
            "select count(*) from pg_stat_activity
             where datname = current_database() and wait_event_type = 'Lock'",
        )
        .fetch_one(&queue.pool)
        .await
        .unwrap();
        (waiting > 0).then_some(())
    })
    .await;
    open.commit().await.unwrap();

    let error = other.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("names the calls of others"), "{error}");
}

#[tokio::test]
async fn a_job_that_moves_while_many_are_cancelled_is_cancelled_where_it_is() {
    let (database, queue) = queue().await;
    let ready = enqueue(&queue, job("t", "a").unique("u")).await;
    let scheduled = later(&queue, "t", "b").await;
    for (id, of, change) in [
        (
            ready,
            State::Ready,
            "select flyball.update($1, throttle => 'u')",
        ),
        (scheduled, State::Scheduled, "select flyball.retry($1)"),
    ] {
        let (begun, has_begun) = oneshot::channel();
        let moving = tokio::spawn({
            let pool = database.pool().clone();
            async move {
                let mut open = pool.begin().await.unwrap();
                sqlx::query(change)
                    .bind(id)
                    .execute(&mut *open)
                    .await
                    .unwrap();
                begun.send(()).unwrap();
                // Real time: the walk looks for the job meanwhile.
                sqlx::query("select pg_sleep(0.1)")
                    .execute(&mut *open)
                    .await
                    .unwrap();
                open.commit().await.unwrap();
            }
        });
        has_begun.await.unwrap();
        let filter = CancelFilter {
            state: Some(of),
            ..CancelFilter::default()
        };
        let walk = BulkCursor::of(10);

        let walked = queue.cancel_jobs(&filter, &walk, &signed()).await.unwrap();

        moving.await.unwrap();
        assert_eq!((walked.jobs, walked.requested), (1, 0), "{of:?}");
        assert_eq!(state(&queue, id).await, State::Cancelled, "{of:?}");
    }
    let free = enqueue(&queue, job("t", "a").unique("u")).await;
    assert_ne!(free, ready, "its unique key is free again");
}

#[tokio::test]
async fn a_walk_that_cancels_and_a_producer_that_replaces_never_wait_for_each_other() {
    let (database, queue) = queue().await;
    for key in ["first", "second"] {
        enqueue(&queue, job("t", "a").unique(key)).await;
    }
    let replace = "select duplicate from flyball.enqueue('http', throttle => 't', key => 'a', unique_key => $1, replace => true)";
    let mut producer = database.pool().begin().await.unwrap();
    let replaced: bool = sqlx::query_scalar(replace)
        .bind("second")
        .fetch_one(&mut *producer)
        .await
        .unwrap();
    assert!(replaced);
    let walking = tokio::spawn({
        let pool = database.pool().clone();
        async move {
            let walk = "select cancelled from flyball.cancel_jobs(kind => 'http')";
            sqlx::query_scalar::<_, i64>(walk).fetch_one(&pool).await
        }
    });
    eventually("the walk has the first job", SOON, || async {
        let free: i64 = sqlx::query_scalar(
            "select count(*) from (select from flyball.ready for update skip locked) f",
        )
        .fetch_one(database.pool())
        .await
        .unwrap();
        (free == 0).then_some(())
    })
    .await;

    let replaced: bool = sqlx::query_scalar(replace)
        .bind("first")
        .fetch_one(&mut *producer)
        .await
        .unwrap();

    assert!(!replaced, "it is cancelled, and this is another job");
    producer.commit().await.unwrap();
    assert_eq!(walking.await.unwrap().unwrap(), 1);
}
