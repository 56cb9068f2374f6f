//! Jobs that replace the waiting one: none is lost, and the last arguments run, in whatever order
//! requests race.

use std::time::Duration;

use flyball::jobs::postgres::{Claimed, Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Checkpoint, Checkpoints, Client, Enqueued, NewJob, Queue, State};
use serde_json::{Value, json};

use crate::support::{Database, database};

pub async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 12, Duration::from_secs(20))
        .await
        .unwrap();
    (database, queue)
}

pub async fn worker(queue: &Queue) -> i32 {
    let worker = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(60),
        kinds: Vec::new(),
    };
    queue.register(&worker).await.unwrap()
}

/// Returns a job with argument `n` that replaces the waiting one.
pub fn numbered(n: impl Into<Value>) -> NewJob {
    NewJob::new("http", json!({"n": n.into()}))
        .unique("customer")
        .replace()
}

pub async fn one(queue: &Queue, job: NewJob) -> Enqueued {
    Client.enqueue(&queue.pool, job).await.unwrap()
}

pub async fn claim(queue: &Queue, worker: i32, fence: i64) -> Vec<Claimed> {
    let lanes = queue.ready_lanes().await.unwrap();
    let claims: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 10))
        .collect();
    queue.claim(worker, fence, &claims).await.unwrap()
}

pub async fn finish(queue: &Queue, job_id: i64, fence: i64, ending: Ending) {
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
    let first = one(
        &queue,
        numbered(1).run_in(Duration::from_secs(600)).key("a"),
    )
    .await;
    assert_eq!((first.duplicate, first.replaced), (false, false));

    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let second = numbered(2)
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
        numbered(3)
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
        !one(&queue, numbered(4)).await.duplicate,
        "an ended job has given its key back"
    );
}

#[tokio::test]
async fn a_running_job_is_left_alone_and_the_new_one_holds_the_key() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let running = one(&queue, numbered(1)).await;
    claim(&queue, worker, 1).await;

    let next = one(&queue, numbered(2)).await;

    assert_ne!(next.id, running.id);
    assert!(!next.duplicate && !next.replaced);
    assert_eq!(
        one(&queue, numbered(3)).await.id,
        next.id,
        "the one that waits is replaced, not the one that runs"
    );
    finish(&queue, running.id, 1, Ending::Completed).await;
    let plain = NewJob {
        replace: false,
        ..numbered(4)
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
    let id = one(&queue, numbered(1)).await.id;
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

    assert!(one(&queue, numbered(2)).await.replaced);

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
            ..numbered(1)
        },
    )
    .await;
    ages().await;

    assert_eq!(one(&queue, quiet(2)).await.id, plain.id);
    let first = waits_s(&queue, plain.id).await;
    ages().await;
    assert!(
        one(&queue, numbered(3).run_in(Duration::from_secs(600)))
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
async fn a_key_that_was_taken_for_a_time_is_held_by_a_job_that_replaces_until_it_has_ended() {
    let (database, queue) = queue().await;
    let hour = Duration::from_secs(3600);
    let plain = |n: i64, key: &str| NewJob::new("http", json!({"n": n})).unique(key);
    let taken_for = |key: &str, window: u64| {
        let job = plain(1, key).unique_for(Duration::from_secs(window));
        job.run_in(hour)
    };
    let expires = async |id: i64| -> (bool, bool) {
        let sql =
            "select u.expires_at is not null, u.expires_at is not distinct from j.unique_until
            from flyball.unique_holder u join flyball.job j on j.id = u.job_id where j.id = $1";
        sqlx::query_as(sql)
            .bind(id)
            .fetch_one(database.pool())
            .await
            .unwrap()
    };

    // The time is over, or will be before the job is due.
    for (key, replaces) in [
        ("replaced", plain(2, "replaced").replace().run_in(hour)),
        ("put off", plain(2, "put off").debounce(hour)),
    ] {
        for window in [60, 600] {
            let key = format!("{key} {window}");
            let first = one(&queue, taken_for(&key, window)).await;
            let sql = "update flyball.unique_holder set expires_at = now() - interval '1 second' where expires_at < now() + interval '2 minutes'";
            sqlx::query(sql).execute(database.pool()).await.unwrap();
            let second = NewJob {
                unique_key: Some(key.clone()),
                ..replaces.clone()
            };
            assert_eq!(one(&queue, second).await.id, first.id);

            assert_eq!(expires(first.id).await, (false, true), "{key}");
            let third = one(&queue, plain(3, &key)).await;
            assert_eq!((third.id, third.duplicate), (first.id, true), "{key}");
        }
    }

    // A job that is due earlier leaves the key its time.
    let first = one(&queue, taken_for("kept", 600)).await;
    assert!(one(&queue, plain(2, "kept").replace()).await.replaced);
    assert_eq!(expires(first.id).await, (true, true));
}

#[tokio::test]
async fn within_a_batch_the_last_of_a_key_stands() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let enqueued = queue
        .enqueue(&[
            numbered(1),
            numbered(2),
            NewJob::new("http", json!({})),
            numbered(3),
        ])
        .await
        .unwrap();
    let answer: Vec<_> = enqueued.iter().map(|one| one.replaced).collect();
    assert_eq!(answer, [false, true, false, true]);
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
    let begun = numbered(0).throttle("hooks");
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
        // The least of three: a session whose caches of the catalog were emptied reads it again,
        // which happens beside many others that make tables.
        let mut least = i64::MAX;
        for _ in 0..3 {
            let plan: Value = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.clone()))
                .fetch_one(&mut *connection)
                .await
                .unwrap();
            let blocks = |kind: &str| plan[0]["Plan"][kind].as_i64().unwrap();
            least = least.min(blocks("Shared Hit Blocks") + blocks("Shared Read Blocks"));
        }
        assert!(least < 200, "{call}: {least} blocks were read");
    }
}

#[tokio::test]
async fn a_job_that_replaces_one_whose_cancellation_was_requested_runs() {
    let (_database, queue) = queue().await;
    let first = one(&queue, numbered(1)).await;
    // It was asked to stop while it ran, and its attempt ended at the same moment.
    sqlx::query("insert into flyball.cancel (job_id) values ($1)")
        .bind(first.id)
        .execute(&queue.pool)
        .await
        .unwrap();

    let second = one(&queue, numbered(2)).await;
    assert_eq!((second.id, second.replaced), (first.id, true));

    assert_eq!(queue.carry_out_cancels().await.unwrap(), 0);
    let worker = worker(&queue).await;
    let claimed = claim(&queue, worker, 1).await;
    assert_eq!(claimed[0].job.args, json!({"n": 2}));
    assert!(!claimed[0].cancelled);
}
