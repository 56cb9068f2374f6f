//! A queue on its own database, its workers, the states of its jobs, and statements.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Client, Error, NewJob, Queue, State};
use flyball::postgres::Db;
use serde_json::json;
use sqlx::AssertSqlSafe;

use crate::support::{Database, database};

pub const FENCE: i64 = 4242;

/// Counts the sessions that wait for a lock.
pub const BLOCKED: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'";

pub async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
        .await
        .unwrap();
    (database, queue)
}

pub async fn worker(queue: &Queue, ttl: Duration) -> i32 {
    let kinds = vec!["http".to_owned(), "noop".to_owned()];
    queue
        .register(&NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl,
            kinds,
        })
        .await
        .unwrap()
}

pub async fn claim_all(queue: &Queue, worker: i32, fence: i64, jobs: i32) -> Vec<i64> {
    let lanes = queue.ready_lanes().await.unwrap();
    let claims: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, jobs))
        .collect();
    queue
        .claim(worker, fence, &claims)
        .await
        .unwrap()
        .into_iter()
        .map(|one| one.job.id)
        .collect()
}

pub fn http() -> NewJob {
    NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
}

pub async fn enqueue_one(queue: &Queue, job: NewJob) -> i64 {
    queue.enqueue(&[job]).await.unwrap()[0].id
}

pub async fn state(queue: &Queue, id: i64) -> State {
    queue.get(id).await.unwrap().unwrap().summary.state
}

pub fn end(job_id: i64, fence: i64, ending: Ending) -> Finish {
    Finish {
        job_id,
        fence,
        ending,
    }
}

pub async fn finish(queue: &Queue, id: i64, ending: Ending) {
    let kept = queue.finish(&[end(id, FENCE, ending)]).await.unwrap();
    assert_eq!(kept, [id]);
}

pub fn dead() -> Ending {
    Ending::Dead {
        error: "never".into(),
    }
}

pub async fn run(pool: &Db, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(pool)
        .await
        .unwrap();
}

pub async fn count(queue: &Queue, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(&queue.pool)
        .await
        .unwrap()
}

/// Checks that a job is refused among others and alone, for the same field with the same message;
/// returns the message.
pub async fn refused(queue: &Queue, job: &NewJob, at: &str, output: &str) -> String {
    let among = queue.enqueue(&[http(), job.clone()]).await.unwrap_err();
    let Error::Refused {
        index,
        field,
        message,
    } = &among
    else {
        panic!("{among}")
    };
    assert_eq!((*index, field.as_str()), (Some(1), at), "{among}");
    assert!(message.starts_with(output), "{at}: {message}");
    let alone = Client.enqueue(&queue.pool, job.clone()).await.unwrap_err();
    assert!(
        matches!(&alone, Error::Refused { index: None, field, message: same } if field == at && same == message),
        "{alone}"
    );
    message.clone()
}
