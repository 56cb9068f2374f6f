//! The waits of one job after failed attempts, from every entry point.

use std::time::Duration;

use flyball::cron::{NewSchedule, Schedules};
use flyball::jobs::{Client, Error, JobRetry, JobUpdate, NewGroup, NewJob, Queue};
use serde_json::{Value, json};
use sqlx::Executor;

use super::enqueue::{count, one};
use super::fixture::{http, queue};
use super::replace::{claim, worker};

const OWN: JobRetry = JobRetry {
    delay_s: 5.0,
    factor: 3.0,
    max_delay_s: Some(600.0),
};

async fn waits(queue: &Queue, id: i64) -> Option<JobRetry> {
    queue.get(id).await.unwrap().unwrap().retry
}

#[tokio::test]
async fn a_job_keeps_its_waits_from_every_entry_point_and_its_worker_gets_them() {
    let (database, queue) = queue().await;
    let alone = one(&queue, http().retry(OWN)).await.id;
    let many = queue
        .enqueue(&[http(), http().retry(OWN), http().unique("u").retry(OWN)])
        .await
        .unwrap();
    let tenants = queue
        .enqueue_for("tenant:acme", "", &[http().retry(OWN)])
        .await
        .unwrap()[0]
        .id;
    let in_sql: i64 = sqlx::query_scalar(
        "select job_id from flyball.enqueue('http', retry => '{\"delay_s\": 5, \"factor\": 3, \"max_delay_s\": 600}')",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    for id in [alone, many[1].id, many[2].id, tenants, in_sql] {
        assert_eq!(waits(&queue, id).await, Some(OWN), "{id}");
    }
    assert_eq!(waits(&queue, many[0].id).await, None);

    let worker = worker(&queue).await;
    let claimed = claim(&queue, worker, 1).await;
    assert_eq!(claimed.len(), 6);
    for one in claimed {
        let expected = (one.job.id != many[0].id).then_some(OWN);
        assert_eq!(one.job.retry, expected);
    }
}

#[tokio::test]
async fn members_callbacks_and_jobs_of_schedules_have_their_waits() {
    let (database, queue) = queue().await;
    let group = NewGroup::then(http().key("callback").retry(OWN))
        .jobs(vec![http().key("member").retry(OWN)]);
    Client.create_group(database.pool(), &group).await.unwrap();
    let cancelled = "select flyball.cancel_group(id) from flyball.job_group";
    database.pool().execute(cancelled).await.unwrap();
    queue.settle_groups().await.unwrap();
    let schedules = Schedules::new(queue.pool.clone());
    let nightly = NewSchedule::new("nightly", "30 2 * * *", http().key("schedule").retry(OWN));
    schedules.set(&nightly).await.unwrap();
    schedules.run_now("nightly").await.unwrap();
    assert_eq!(schedules.list().await.unwrap()[0].retry, Some(OWN));
    let stored = "select count(*) from flyball.job where retry->>'delay_s' = '5'
        and key in ('member', 'callback', 'schedule')";
    assert_eq!(count(database.pool(), stored).await, 3);
    // Declared again without, its next jobs have none.
    let plain = NewSchedule::new("nightly", "30 2 * * *", http());
    schedules.set(&plain).await.unwrap();
    assert_eq!(schedules.list().await.unwrap()[0].retry, None);
}

#[tokio::test]
async fn what_is_not_given_is_the_usual_and_a_replacement_brings_its_own_waits() {
    let (database, queue) = queue().await;
    for (given, stored) in [
        (
            "{\"delay_s\": 5}",
            json!({"delay_s": 5, "factor": 2, "max_delay_s": 3600}),
        ),
        (
            "{\"delay_s\": 7200, \"factor\": null}",
            json!({"delay_s": 7200, "factor": 2, "max_delay_s": 7200}),
        ),
        ("null", Value::Null),
    ] {
        sqlx::query("select 1 from flyball.enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'http', 'retry', $1::jsonb)))")
            .bind(given)
            .execute(database.pool())
            .await
            .unwrap();
        let last: Value = sqlx::query_scalar(
            "select coalesce(retry, 'null') from flyball.job order by id desc limit 1",
        )
        .fetch_one(database.pool())
        .await
        .unwrap();
        assert_eq!(last, stored, "{given}");
    }
    let id = one(&queue, http().unique("u").retry(OWN)).await.id;
    let steady = JobRetry::every(Duration::from_secs(9));
    one(&queue, http().unique("u").replace().retry(steady)).await;
    assert_eq!(waits(&queue, id).await, Some(steady));
    one(&queue, http().unique("u").replace()).await;
    assert_eq!(waits(&queue, id).await, None);

    let change = |retry, clear: &[&str]| JobUpdate {
        retry,
        clear: clear.iter().map(|name| (*name).to_owned()).collect(),
        ..JobUpdate::default()
    };
    let signed = flyball::jobs::Attribution::default();
    queue
        .update(id, &change(Some(OWN), &[]), &signed)
        .await
        .unwrap();
    assert_eq!(waits(&queue, id).await, Some(OWN));
    queue
        .update(id, &change(None, &["retry"]), &signed)
        .await
        .unwrap();
    assert_eq!(waits(&queue, id).await, None);
}

#[tokio::test]
async fn waits_out_of_range_are_refused_with_every_fault_and_nothing_is_enqueued() {
    let (database, queue) = queue().await;
    for (waits, words) in [
        (
            "[]",
            "retry: must be an object such as {\"delay_s\": 5, \"factor\": 2, \"max_delay_s\": 600}, not array",
        ),
        (
            "{}",
            "retry: needs a delay_s: the longest wait after the first failure",
        ),
        (
            "{\"delay_s\": 0, \"factor\": 0.5, \"max_delay_s\": 1e400, \"jitter\": 1}",
            "retry: delay_s is 0; allowed are 0.001 to 31622400 seconds (366 days); factor is 0.5; allowed are 1 (always the \
             same) to 100; max_delay_s is 1000000000000000000000000000000000000000; allowed are 0.001 to 31622400 seconds \
             (366 days); has \"jitter\"; allowed are delay_s, factor, max_delay_s",
        ),
        (
            "{\"delay_s\": \"5\"}",
            "retry: delay_s is \"5\"; allowed are",
        ),
    ] {
        let statements = [
            "select 1 from flyball.enqueue('http', retry => $1::jsonb)",
            "select 1 from flyball.enqueue_many(jsonb_build_array(jsonb_build_object('kind', 'http', 'retry', $1::jsonb)))",
            "select 1 from flyball.schedule('s', '@daily', 'http', retry => $1::jsonb)",
        ];
        for statement in statements {
            let error = sqlx::query(statement)
                .bind(waits)
                .execute(database.pool())
                .await
                .unwrap_err();
            assert!(error.to_string().contains(words), "{statement}: {error}");
        }
    }
    let wrong: NewJob = http().retry(JobRetry::every(Duration::ZERO));
    match queue.enqueue(&[http(), wrong]).await.unwrap_err() {
        Error::Refused {
            index,
            field,
            message,
        } => {
            assert_eq!((index, field.as_str()), (Some(1), "retry"));
            assert!(message.starts_with("delay_s is 0"), "{message}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.job").await,
        0
    );
    assert_eq!(
        count(database.pool(), "select count(*) from flyball.cron").await,
        0
    );
}
