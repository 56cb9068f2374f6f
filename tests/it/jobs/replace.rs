//! Jobs that take the place of the one that waits: nothing is lost, and what was said last runs, whoever races.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flyball::jobs::postgres::{Claimed, Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Checkpoint, Checkpoints, Client, Enqueued, NewJob, Queue, State};
use serde_json::{Value, json};
use sqlx::Row;

use crate::support::{Database, database, eventually};

async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 12, Duration::from_secs(20))
        .await
        .unwrap();
    (database, queue)
}

async fn worker(queue: &Queue) -> i32 {
    let worker = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(60),
        kinds: Vec::new(),
    };
    queue.register(&worker).await.unwrap()
}

/// A job that says `n` and takes the place of the one that waits.
fn says(n: impl Into<Value>) -> NewJob {
    NewJob::new("http", json!({"n": n.into()}))
        .unique("customer")
        .replace()
}

async fn one(queue: &Queue, job: NewJob) -> Enqueued {
    Client.enqueue(&queue.pool, job).await.unwrap()
}

async fn claim(queue: &Queue, worker: i32, fence: i64) -> Vec<Claimed> {
    let lanes = queue.ready_lanes().await.unwrap();
    let claims: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 10))
        .collect();
    queue.claim(worker, fence, &claims).await.unwrap()
}

async fn finish(queue: &Queue, job_id: i64, fence: i64, ending: Ending) {
    assert_eq!(
        queue
            .finish(&[Finish {
                job_id,
                fence,
                ending
            }])
            .await
            .unwrap(),
        [job_id]
    );
}

async fn waits_s(queue: &Queue, id: i64) -> f64 {
    let sql = "select extract(epoch from run_at - now())::float8 from flyball.scheduled where job_id = $1";
    sqlx::query_scalar(sql)
        .bind(id)
        .fetch_one(&queue.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_waiting_job_becomes_what_was_said_last_under_its_number() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let first = one(&queue, says(1).after(Duration::from_secs(600)).key("a")).await;
    assert_eq!((first.duplicate, first.replaced), (false, false));

    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let second = says(2)
        .throttle("hooks")
        .key("b")
        .priority(3)
        .cost(2.0)
        .max_attempts(4)
        .traceparent(trace);
    let second = one(&queue, second.timeout(Duration::from_secs(9))).await;

    assert_eq!(
        (second.id, second.duplicate, second.replaced),
        (first.id, true, true)
    );
    let third = one(
        &queue,
        says(3)
            .throttle("hooks")
            .key("c")
            .traceparent(trace)
            .timeout(Duration::from_secs(9)),
    )
    .await;
    assert_eq!(
        (third.id, third.replaced),
        (first.id, true),
        "a ready job is replaced like a scheduled one"
    );
    let claimed = claim(&queue, worker, 1).await;
    assert_eq!(claimed.len(), 1);
    let job = &claimed[0].job;
    assert_eq!(
        (job.id, &job.args, job.throttle.as_str(), job.key.as_str()),
        (first.id, &json!({"n": 3}), "hooks", "c")
    );
    assert_eq!(
        (job.priority, job.cost, job.max_attempts, job.attempt),
        (1, 1.0, 10, 1)
    );
    assert_eq!(
        (job.traceparent.as_deref(), job.timeout),
        (Some(trace), Some(Duration::from_secs(9)))
    );
    finish(&queue, first.id, 1, Ending::Completed).await;
    assert!(
        !one(&queue, says(4)).await.duplicate,
        "an ended job has given its key back"
    );
}

#[tokio::test]
async fn a_running_job_is_left_alone_and_the_new_one_holds_the_key() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let running = one(&queue, says(1)).await;
    claim(&queue, worker, 1).await;

    let next = one(&queue, says(2)).await;

    assert_ne!(next.id, running.id);
    assert!(!next.duplicate && !next.replaced);
    assert_eq!(
        one(&queue, says(3)).await.id,
        next.id,
        "the one that waits is replaced, not the one that runs"
    );
    finish(&queue, running.id, 1, Ending::Completed).await;
    let plain = NewJob {
        replace: false,
        ..says(4)
    };
    let duplicate = one(&queue, plain.clone()).await;
    assert_eq!(
        (duplicate.id, duplicate.duplicate, duplicate.replaced),
        (next.id, true, false),
        "its end did not free the key"
    );
    let claimed = claim(&queue, worker, 2).await;
    assert_eq!(claimed[0].job.args, json!({"n": 3}));
    finish(&queue, next.id, 2, Ending::Completed).await;
    assert!(!one(&queue, plain).await.duplicate);
}

#[tokio::test]
async fn a_job_that_waits_for_a_retry_starts_over() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let id = one(&queue, says(1)).await.id;
    claim(&queue, worker, 1).await;
    let at = Checkpoint {
        cursor: json!({"at": 5}),
        done: 5,
        total: None,
        note: String::new(),
    };
    let checkpoints = flyball::jobs::postgres::PgCheckpoints::new(queue.pool.clone());
    checkpoints.store(id, 1, &at).await.unwrap();
    finish(
        &queue,
        id,
        1,
        Ending::Failed {
            delay: Duration::from_secs(600),
            error: "boom".into(),
        },
    )
    .await;
    assert_eq!(
        queue.get(id).await.unwrap().unwrap().summary.state,
        State::Retryable
    );

    assert!(one(&queue, says(2)).await.replaced);

    assert!(
        checkpoints.load(id).await.unwrap().is_none(),
        "a cursor of the old arguments means nothing to the new ones"
    );
    let claimed = claim(&queue, worker, 2).await;
    assert_eq!(
        (
            claimed[0].job.id,
            claimed[0].job.attempt,
            &claimed[0].job.args
        ),
        (id, 1, &json!({"n": 2}))
    );
    drop(database);
}

#[tokio::test]
async fn a_debounced_job_waits_for_quiet_but_not_for_ever() {
    let (_database, queue) = queue().await;
    let quiet = |n: i64| {
        NewJob::new("http", json!({"n": n}))
            .unique("c")
            .debounce(Duration::from_secs(100))
    };
    let first = one(&queue, quiet(1)).await;
    assert!((95.0..=100.0).contains(&waits_s(&queue, first.id).await));
    let age = |by: i32| {
        let pool = queue.pool.clone();
        let id = first.id;
        async move {
            let sql = "update flyball.unique_holder set since = since - make_interval(secs => $1) where job_id = $2";
            sqlx::query(sql)
                .bind(f64::from(by))
                .bind(id)
                .execute(&pool)
                .await
                .unwrap();
            let sql = "update flyball.scheduled set run_at = run_at - make_interval(secs => $1) where job_id = $2";
            sqlx::query(sql)
                .bind(f64::from(by))
                .bind(id)
                .execute(&pool)
                .await
                .unwrap();
        }
    };

    age(60).await;
    assert!(one(&queue, quiet(2)).await.replaced);
    assert!(
        (95.0..=100.0).contains(&waits_s(&queue, first.id).await),
        "it is put off again"
    );
    age(890).await;
    one(&queue, quiet(3)).await;
    assert!(
        (40.0..=50.0).contains(&waits_s(&queue, first.id).await),
        "ten times the debounce after the first it runs"
    );
    one(&queue, quiet(4).debounce_max(Duration::from_secs(970))).await;
    assert!(
        (10.0..=20.0).contains(&waits_s(&queue, first.id).await),
        "or when debounce_max says"
    );
    age(60).await;
    assert!(one(&queue, quiet(5)).await.replaced);
    let worker = worker(&queue).await;
    let claimed = claim(&queue, worker, 1).await;
    assert_eq!(
        claimed[0].job.args,
        json!({"n": 5}),
        "its time is over, so it is ready with the last arguments"
    );

    let next = one(&queue, quiet(6)).await;
    assert_ne!(next.id, first.id);
    assert!(
        (95.0..=100.0).contains(&waits_s(&queue, next.id).await),
        "while one runs, a new row of jobs begins"
    );
}

#[tokio::test]
async fn a_burst_begins_with_the_first_job_that_is_debounced_however_long_another_held_the_key() {
    let (_database, queue) = queue().await;
    let quiet = |n: i64| {
        NewJob::new("http", json!({"n": n}))
            .unique("customer")
            .debounce(Duration::from_secs(100))
    };
    let ages = async || {
        let sql = "update flyball.unique_holder set since = since - interval '1 hour'";
        sqlx::query(sql).execute(&queue.pool).await.unwrap();
    };
    let plain = one(
        &queue,
        NewJob {
            replace: false,
            ..says(1)
        },
    )
    .await;
    ages().await;

    assert_eq!(one(&queue, quiet(2)).await.id, plain.id);
    let first = waits_s(&queue, plain.id).await;
    ages().await;
    assert!(
        one(&queue, says(3).after(Duration::from_secs(600)))
            .await
            .replaced,
        "which ends the burst"
    );
    one(&queue, quiet(4)).await;
    let second = waits_s(&queue, plain.id).await;

    assert!((95.0..=100.0).contains(&first), "{first}");
    assert!((95.0..=100.0).contains(&second), "{second}");
}

#[tokio::test]
async fn a_replacement_that_is_rolled_back_changes_nothing() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let id = one(&queue, says(1)).await.id;
    let mut transaction = database.pool().begin().await.unwrap();
    assert!(
        Client
            .enqueue(&mut *transaction, says(2).throttle("hooks"))
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
        ..says(1)
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
        one(&queue, says(1)).await.id,
        one(&queue, says(1).unique("other")).await.id,
    );
    claim(&queue, worker, 1).await;
    let mut transaction = database.pool().begin().await.unwrap();
    Client
        .enqueue_many(&mut *transaction, &[says(2), says(2).unique("other")])
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
        ..says(3)
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
        ..says(1)
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
        let mut jobs: Vec<NewJob> = (0..60).map(|n| says(n).unique(format!("k{n}"))).collect();
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
async fn within_a_batch_the_last_of_a_key_stands() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let enqueued = queue
        .enqueue(&[says(1), says(2), NewJob::new("http", json!({})), says(3)])
        .await
        .unwrap();
    let told: Vec<_> = enqueued.iter().map(|one| one.replaced).collect();
    assert_eq!(told, [false, true, false, true]);
    assert_eq!(
        (enqueued[0].id, enqueued[1].id),
        (enqueued[3].id, enqueued[3].id)
    );

    let claimed = claim(&queue, worker, 1).await;

    let args = &claimed
        .iter()
        .find(|one| one.job.id == enqueued[0].id)
        .unwrap()
        .job
        .args;
    assert_eq!((claimed.len(), args), (2, &json!({"n": 3})));
}

#[tokio::test]
async fn a_waiting_job_is_found_by_its_place_however_long_the_queue_is() {
    let (database, queue) = queue().await;
    let mut connection = database.pool().acquire().await.unwrap();
    let begun = says(0).throttle("hooks");
    one(&queue, begun.clone()).await;
    // Plans are made while the queue is short.
    for _ in 0..8 {
        for call in ["replace => true", "replace => false"] {
            let sql = format!(
                "select flyball.enqueue('http', unique_key => 'customer', throttle => 'hooks', {call})"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
                .execute(&mut *connection)
                .await
                .unwrap();
        }
    }
    sqlx::raw_sql(
        "insert into flyball.ready (lane_id, priority, job_id, cost) select i % 100, 1, i, 1 from generate_series(1, 200000) i",
    )
    .execute(&mut *connection)
    .await
    .unwrap();

    for call in ["replace => true", "replace => false"] {
        let sql = format!(
            "explain (analyze, buffers, format json) select flyball.enqueue('http', unique_key => 'customer', throttle => 'hooks', {call})"
        );
        let plan: Value = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let blocks = plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap()
            + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap();
        assert!(blocks < 200, "{call}: {blocks} blocks were read");
    }
}

/// Producers replace and debounce one key while workers claim, finish, fail, hand back and promote. Then one more is enqueued: it
/// runs, nothing older starts after it, no job is left behind, none runs twice at a time and each one ends once.
#[tokio::test]
async fn whatever_races_the_last_arguments_run_last() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let stop = Arc::new(AtomicBool::new(false));
    let claimers: Vec<_> = (0..3i64)
        .map(|nth| {
            let (queue, stop) = (queue.clone(), stop.clone());
            tokio::spawn(async move {
                let mut ran: Vec<(i64, Value)> = Vec::new();
                let mut fence = nth << 40;
                while !stop.load(Ordering::Relaxed) {
                    fence += 1;
                    queue.promote().await.unwrap();
                    for claimed in claim(&queue, worker, fence).await {
                        let job = claimed.job;
                        ran.push((job.id, job.args["n"].clone()));
                        // A job that is tried again may be given other arguments in between.
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
                let said = nth * 1000 + n;
                let job = match n % 3 {
                    0 => says(said),
                    1 => NewJob::new("http", json!({"n": said}))
                        .unique("customer")
                        .debounce(Duration::from_millis(3)),
                    _ => says(said).key("other lane"),
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
    one(&queue, says("last")).await;
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
        ran.iter().filter(|(_, n)| n == "last").count(),
        1,
        "the last arguments run, once"
    );
    let row = sqlx::query(
        "select (select count(*) from flyball.job) as jobs,
            (select count(*) from flyball.attempt where outcome = 'completed') as completed,
            (select count(distinct job_id) from flyball.attempt where outcome = 'completed') as once,
            (select count(*) from flyball.unique_holder) as keys,
            (select args ->> 'n' from flyball.job order by id desc limit 1) as newest",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    let (jobs, completed, once): (i64, i64, i64) =
        (row.get("jobs"), row.get("completed"), row.get("once"));
    assert_eq!((completed, once), (jobs, jobs), "each job ends once");
    assert_eq!(row.get::<i64, _>("keys"), 0, "no key is left behind");
    assert_eq!(
        row.get::<String, _>("newest"),
        "last",
        "no older arguments came after"
    );
}
