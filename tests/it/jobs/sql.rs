//! Enqueueing by SQL functions: arguments, permissions, unique keys.

use std::time::Duration;

use flyball::jobs::postgres::Ending;
use flyball::jobs::{Error, JobFilter, NewJob};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, Row};

use super::fixture::{FENCE, claim_all, end, enqueue_one, http, queue, worker};
use crate::support::Database;

#[tokio::test]
async fn sql_enqueues_in_the_callers_own_transaction() {
    let (database, queue) = queue().await;
    let mut connection = database.pool().acquire().await.unwrap();
    let mut open = connection.begin().await.unwrap();

    let row = sqlx::query(
        "select * from flyball.enqueue('http', '{\"url\":\"http://x/\"}', throttle => 'hooks', key => 'k', priority => 2)",
    )
    .fetch_one(&mut *open)
    .await
    .unwrap();
    let id: i64 = row.get("job_id");

    assert!(!row.get::<bool, _>("duplicate"));
    assert!(
        queue.ready_lanes().await.unwrap().is_empty(),
        "nothing is visible before the caller commits"
    );
    open.commit().await.unwrap();
    let lanes = queue.ready_lanes().await.unwrap();
    assert_eq!(
        (lanes[0].throttle.as_str(), lanes[0].key.as_str()),
        ("hooks", "k")
    );
    assert_eq!(queue.get(id).await.unwrap().unwrap().summary.priority, 2);
    assert!(id < 1 << 53, "ids are exact in JavaScript");
}

#[tokio::test]
async fn sql_refuses_bad_arguments_by_name_and_enqueues_nothing() {
    let (database, queue) = queue().await;
    let cases = [
        (
            "enqueue('nope')",
            "kind: \"nope\" is not a kind that any worker has registered; known kinds: batch, http, notification, reindex",
        ),
        ("enqueue(null)", "kind: must name what runs the job"),
        ("enqueue('http', null)", "args: must not be null"),
        (
            "enqueue('http', to_jsonb(repeat('x', 300000)))",
            "args: is 300002 bytes long; at most 262144",
        ),
        (
            "enqueue('http', throttle => 'two words')",
            "throttle: \"two words\" is not a throttle's name",
        ),
        (
            "enqueue('http', key => repeat('k', 513))",
            "key: is 513 bytes long; at most 512",
        ),
        (
            "enqueue('http', priority => -1)",
            "priority: is -1; allowed are 0 (runs first), 1, 2 and 3",
        ),
        (
            "enqueue('http', max_attempts => 0)",
            "max_attempts: is 0; allowed are 1 to 1000",
        ),
        (
            "enqueue('http', unique_for => '1 hour')",
            "unique_for: needs a unique_key",
        ),
        (
            "enqueue('http', cost => 'NaN')",
            "cost: is NaN; allowed is more than 0",
        ),
        (
            "enqueue('http', cost => -1)",
            "cost: is -1; allowed is more than 0",
        ),
        (
            "enqueue('http', run_at => 'infinity')",
            "run_at: is infinity; allowed are times from 1970 (at once) to ten years",
        ),
        (
            "enqueue('http', run_at => '-infinity')",
            "run_at: is -infinity; allowed are times from 1970",
        ),
        (
            "enqueue('http', run_at => '4000-01-01 BC')",
            "run_at: is 4000-01-01 00:00:00+00 BC; allowed are times from 1970",
        ),
        (
            "enqueue('http', throttle => null)",
            "throttle: null is not a throttle's name",
        ),
        ("enqueue_many('{}')", "must be a JSON array"),
        (
            "enqueue_many('[{\"kind\":\"http\"},{\"kind\":\"http\",\"priority\":9}]')",
            "jobs[1].priority: is 9",
        ),
        (
            "enqueue_many('[{\"kind\":\"http\",\"prio\":1}]')",
            "jobs[0].prio: is not a field of a job; allowed are kind, args",
        ),
        (
            "enqueue_many('[{\"kind\":\"http\",\"priority\":\"1\"}]')",
            "jobs[0].priority: must be a number, not string",
        ),
        (
            "enqueue_many('[{\"kind\":\"http\",\"run_at\":\"soon\"}]')",
            "jobs[0].run_at: \"soon\" is not a time; write it like",
        ),
        ("enqueue_many('[7]')", "jobs[0]: must be an object"),
        (
            "enqueue_many('[{\"kind\":\"http\",\"cost\":1e400}]')",
            "jobs[0].cost: is out of range; allowed is more than 0",
        ),
        (
            "enqueue_many('[{\"kind\":\"http\",\"cost\":1e-400}]')",
            "jobs[0].cost: is out of range; allowed is more than 0",
        ),
        (
            "enqueue_many('[{\"kind\":\"http\",\"cost\":0}]')",
            "jobs[0].cost: is 0; allowed is more than 0",
        ),
        (
            "enqueue_many('[{\"kind\":\"http\",\"unique_key\":\"a\",\"unique_for\":1e300}]')",
            "jobs[0].unique_for: is out of range; allowed is more than 0 and at most 366 days",
        ),
    ];

    for (call, output) in cases {
        let error = database
            .pool()
            .execute(AssertSqlSafe(format!("select flyball.{call}")))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(output), "{call}: {error}");
    }

    let jobs: i64 = sqlx::query_scalar("select count(*) from flyball.job")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(jobs, 0);
    assert!(queue.ready_lanes().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_role_that_may_only_use_the_schema_can_enqueue_and_nothing_else() {
    let (database, queue) = queue().await;
    let role = format!("producer_{}", crate::support::unique());
    let superuser = database.superuser();
    let run = |sql: String| async {
        superuser
            .execute(AssertSqlSafe(sql))
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let as_producer =
        |sql: &str| format!("set local role {role}; set local search_path = nowhere; {sql}");
    run(format!("create role {role}")).await.unwrap();
    let refused = run(as_producer("select flyball.enqueue('http')"))
        .await
        .unwrap_err();
    assert!(
        refused.contains("permission denied for schema flyball"),
        "{refused}"
    );
    run(format!("grant usage on schema flyball to {role}"))
        .await
        .unwrap();
    // The day's partition is missing, so enqueue must create it.
    run("drop table flyball.job_0, flyball.attempt_0"
        .to_owned()
        .replace("_0", &format!("_{}", today(&database).await)))
    .await
    .unwrap();

    run(as_producer(
        "select flyball.enqueue('http', unique_key => 'once')",
    ))
    .await
    .unwrap();
    run(as_producer(
        "select flyball.enqueue_many('[{\"kind\":\"http\"},{\"kind\":\"http\"}]')",
    ))
    .await
    .unwrap();

    let jobs: i64 = sqlx::query_scalar("select count(*) from flyball.job")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(jobs, 3);
    for sql in [
        "select * from flyball.job",
        "delete from flyball.ready",
        "select flyball.register_kind('mine')",
        "select flyball.prune_day(flyball.day_of(now()))",
        "create table flyball.mine ()",
    ] {
        let refused = run(as_producer(sql)).await.unwrap_err();
        assert!(refused.contains("permission denied"), "{sql}: {refused}");
    }
    run(format!("drop owned by {role}; drop role {role}"))
        .await
        .unwrap();
    drop(queue);
}

async fn today(database: &Database) -> i64 {
    sqlx::query_scalar("select flyball.day_of(now())")
        .fetch_one(database.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_refusal_reaches_rust_with_the_job_and_the_field() {
    let (_database, queue) = queue().await;

    let error = queue
        .enqueue(&[
            http(),
            NewJob {
                cost: 0.0,
                ..http()
            },
        ])
        .await
        .unwrap_err();

    match error {
        Error::Refused {
            index,
            field,
            message,
        } => {
            assert_eq!((index, field.as_str()), (Some(1), "cost"));
            assert!(
                message.starts_with("is 0; allowed is more than 0"),
                "{message}"
            );
        }
        other => panic!("{other}"),
    }
    let nul = queue
        .enqueue(&[NewJob::new("http", json!({"text": "a\u{0}b"}))])
        .await
        .unwrap_err();
    assert!(nul.to_string().contains("\\u0000"), "{nul}");
}

#[tokio::test]
async fn an_unfinished_unique_job_is_not_made_twice_and_its_key_is_free_when_it_ends() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let job = NewJob {
        unique_key: Some("docs".into()),
        ..http()
    };

    let both = queue.enqueue(&[job.clone(), job.clone()]).await.unwrap();

    assert_eq!((both[0].duplicate, both[1].duplicate), (false, true));
    assert_eq!(both[0].id, both[1].id);
    assert_eq!(claim_all(&queue, worker, FENCE, 9).await, [both[0].id]);
    assert!(
        queue.enqueue(std::slice::from_ref(&job)).await.unwrap()[0].duplicate,
        "a running job keeps its key"
    );
    queue
        .finish(&[end(both[0].id, FENCE, Ending::Completed)])
        .await
        .unwrap();
    assert!(!queue.enqueue(&[job]).await.unwrap()[0].duplicate);
}

#[tokio::test]
async fn a_unique_key_with_a_window_stays_taken_after_the_job_has_ended() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let job = NewJob {
        unique_key: Some("docs".into()),
        unique_for: Some(1.0),
        ..http()
    };
    let id = enqueue_one(&queue, job.clone()).await;
    claim_all(&queue, worker, FENCE, 1).await;
    queue
        .finish(&[end(id, FENCE, Ending::Completed)])
        .await
        .unwrap();

    assert!(queue.enqueue(std::slice::from_ref(&job)).await.unwrap()[0].duplicate);

    crate::support::eventually("the window ends", Duration::from_secs(5), || async {
        (!queue.enqueue(std::slice::from_ref(&job)).await.unwrap()[0].duplicate).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_nul_is_blamed_on_the_field_that_holds_it() {
    let (_database, queue) = queue().await;
    let nul = "a\u{0}b";
    let cases = [
        (
            "kind",
            NewJob {
                kind: nul.into(),
                ..http()
            },
        ),
        (
            "throttle",
            NewJob {
                throttle: nul.into(),
                ..http()
            },
        ),
        (
            "key",
            NewJob {
                key: nul.into(),
                ..http()
            },
        ),
        (
            "unique_key",
            NewJob {
                unique_key: Some(nul.into()),
                ..http()
            },
        ),
        (
            "traceparent",
            NewJob {
                traceparent: Some(nul.into()),
                ..http()
            },
        ),
        (
            "args",
            NewJob {
                args: json!({"text": nul}),
                ..http()
            },
        ),
    ];

    for (wanted, job) in cases {
        let alone = queue.enqueue(std::slice::from_ref(&job)).await.unwrap_err();
        let second = queue.enqueue(&[http(), job]).await.unwrap_err();

        let Error::Refused {
            index: None, field, ..
        } = alone
        else {
            panic!("{alone:?}")
        };
        assert_eq!(field, wanted);
        let Error::Refused { index, field, .. } = second else {
            panic!("{second:?}")
        };
        assert_eq!((index.unwrap_or(1), field.as_str()), (1, wanted));
    }
    assert!(
        queue
            .list(&JobFilter {
                limit: 1,
                ..JobFilter::default()
            })
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn no_function_that_forbids_scans_has_its_statements_compiled_by_the_server() {
    // Without scans the estimate of a small statement is above `jit_above_cost`, and to compile it
    // takes seconds. Only the program's own connections have `jit` off.
    let (_database, queue) = queue().await;
    let compiled: Vec<String> = sqlx::query_scalar(
        "select p.oid::regprocedure::text from pg_proc p
         where p.pronamespace = 'flyball'::regnamespace and 'enable_seqscan=off' = any (p.proconfig)
            and not 'jit=off' = any (p.proconfig)
         order by 1",
    )
    .fetch_all(&queue.pool)
    .await
    .unwrap();
    assert_eq!(compiled, [""; 0]);
}
