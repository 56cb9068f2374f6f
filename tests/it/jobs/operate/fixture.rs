//! A queue with jobs in every state, and their state after an operation.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Attribution, Error, NewJob, Queue, State, TokenIdentity};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::support::{Database, database};

pub const FENCE: i64 = 77;

pub const SOON: Duration = Duration::from_secs(60);

pub async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    (database, queue)
}

pub fn signed() -> Attribution {
    Attribution {
        by: "alice".into(),
        why: "a test".into(),
        identity: TokenIdentity::default(),
    }
}

pub fn job(throttle: &str, key: &str) -> NewJob {
    let mut job = NewJob::new("http", json!({"url": "http://127.0.0.1/"}));
    (job.throttle, job.key) = (throttle.into(), key.into());
    job
}

pub async fn enqueue(queue: &Queue, job: NewJob) -> i64 {
    queue.enqueue(&[job]).await.unwrap()[0].id
}

/// Returns the time by Postgres' clock.
pub async fn now(queue: &Queue) -> Timestamp {
    sqlx::query_scalar::<_, jiff_sqlx::Timestamp>("select now()")
        .fetch_one(&queue.pool)
        .await
        .unwrap()
        .to_jiff()
}

pub async fn later(queue: &Queue, throttle: &str, key: &str) -> i64 {
    let mut job = job(throttle, key);
    job.run_at = Some(now(queue).await + SignedDuration::from_hours(1));
    enqueue(queue, job).await
}

pub async fn state(queue: &Queue, id: i64) -> State {
    queue.get(id).await.unwrap().unwrap().summary.state
}

pub async fn worker(queue: &Queue) -> i32 {
    let worker = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: SOON,
        kinds: vec!["http".into()],
    };
    queue.register(&worker).await.unwrap()
}

/// Claims every ready job.
pub async fn claim(queue: &Queue, worker: i32) -> Vec<i64> {
    let lanes = queue.ready_lanes().await.unwrap();
    let claims: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 1000))
        .collect();
    queue
        .claim(worker, FENCE, &claims)
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.job.id)
        .collect()
}

/// Runs every ready job to this outcome.
pub async fn end_all(queue: &Queue, worker: i32, ending: Ending) -> Vec<i64> {
    let ids = claim(queue, worker).await;
    let ends: Vec<Finish> = ids
        .iter()
        .map(|id| Finish {
            job_id: *id,
            fence: FENCE,
            ending: ending.clone(),
        })
        .collect();
    queue.finish(&ends).await.unwrap();
    ids
}

pub async fn die(queue: &Queue, worker: i32, job: NewJob, error: &str) -> i64 {
    let id = enqueue(queue, job).await;
    assert_eq!(
        end_all(
            queue,
            worker,
            Ending::Dead {
                error: error.into()
            }
        )
        .await,
        [id]
    );
    id
}

pub async fn audit(database: &Database) -> Vec<(String, String, String, Value)> {
    sqlx::query_as(
        "select actor, action, subject, coalesce(after, 'null') from flyball.audit order by id",
    )
    .fetch_all(database.pool())
    .await
    .unwrap()
}

pub async fn count(database: &Database, table: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!(
        "select count(*) from flyball.{table}"
    )))
    .fetch_one(database.pool())
    .await
    .unwrap()
}

pub async fn refused<T: std::fmt::Debug>(
    what: impl Future<Output = Result<T, Error>>,
) -> (String, String) {
    match what.await.unwrap_err() {
        Error::Refused { field, message, .. } => (field, message),
        other => panic!("{other}"),
    }
}
