//! The queue store on a real Postgres.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker, Retention};
use flyball::jobs::{
    CancelAnswer, Checkpoint, Checkpoints, Error, JobFilter, NewJob, Queue, RetryAnswer, State,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, Row, SqlSafeStr};

use crate::support::{Database, database, eventually};

const FENCE: i64 = 4242;

async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
        .await
        .unwrap();
    (database, queue)
}

async fn worker(queue: &Queue, ttl: Duration) -> i32 {
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

async fn claim_all(queue: &Queue, worker: i32, fence: i64, jobs: i32) -> Vec<i64> {
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

fn http() -> NewJob {
    NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
}

async fn enqueue_one(queue: &Queue, job: NewJob) -> i64 {
    queue.enqueue(&[job]).await.unwrap()[0].id
}

async fn state(queue: &Queue, id: i64) -> State {
    queue.get(id).await.unwrap().unwrap().summary.state
}

fn end(job_id: i64, fence: i64, ending: Ending) -> Finish {
    Finish {
        job_id,
        fence,
        ending,
    }
}

#[tokio::test]
async fn every_statement_can_be_prepared_on_the_migrated_schema() {
    let (_database, queue) = queue().await;
    let mut connection = queue.pool.acquire().await.unwrap();

    for (name, sql) in flyball::jobs::postgres::STATEMENTS
        .iter()
        .chain(flyball::service::STATEMENTS)
    {
        let prepared = connection.prepare(AssertSqlSafe(*sql).into_sql_str()).await;
        assert!(prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

#[tokio::test]
async fn migrating_twice_and_beside_open_work_changes_nothing() {
    let (_database, queue) = queue().await;
    let id = enqueue_one(&queue, http()).await;

    assert_eq!(queue.migrate().await.unwrap(), 0);
    let (one, two) = tokio::join!(queue.migrate(), queue.migrate());

    assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
    assert_eq!(state(&queue, id).await, State::Ready);
}

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
            "kind: \"nope\" is not a kind that any worker has registered; known kinds: http, notification, reindex",
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

    for (call, said) in cases {
        let error = database
            .pool()
            .execute(AssertSqlSafe(format!("select flyball.{call}")))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{call}: {error}");
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
    // The day's partition is missing, so that enqueue must make it.
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
async fn a_claim_takes_what_was_granted_of_each_lane_by_priority_and_age() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let late = enqueue_one(
        &queue,
        NewJob {
            priority: 3,
            key: "a".into(),
            ..http()
        },
    )
    .await;
    let first = enqueue_one(
        &queue,
        NewJob {
            key: "a".into(),
            ..http()
        },
    )
    .await;
    let second = enqueue_one(
        &queue,
        NewJob {
            key: "a".into(),
            ..http()
        },
    )
    .await;
    let other = enqueue_one(
        &queue,
        NewJob {
            key: "b".into(),
            ..http()
        },
    )
    .await;
    let lanes = queue.ready_lanes().await.unwrap();
    let lane_a = lanes.iter().find(|lane| lane.key == "a").unwrap().lane_id;

    let claimed = queue
        .claim(worker, FENCE, &[LaneClaim::first(lane_a, 2)])
        .await
        .unwrap();

    assert_eq!(
        claimed.iter().map(|one| one.job.id).collect::<Vec<_>>(),
        [first, second]
    );
    assert_eq!(claimed[0].job.attempt, 1);
    assert_eq!(
        (state(&queue, late).await, state(&queue, other).await),
        (State::Ready, State::Ready)
    );
    assert_eq!(state(&queue, first).await, State::Running);
}

#[tokio::test]
async fn eight_claimers_of_one_lane_never_get_the_same_job() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let jobs: Vec<NewJob> = (0..400).map(|_| http()).collect();
    let mut wanted: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();

    let claimers = (0..8).map(|fence| {
        let queue = queue.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let got = claim_all(&queue, worker, fence, 7).await;
                if got.is_empty() {
                    return mine;
                }
                mine.extend(got);
            }
        })
    });
    let mut got: Vec<i64> = futures_util::future::join_all(claimers)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();

    got.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(got, wanted);
}

#[tokio::test]
async fn each_ending_puts_the_job_where_it_belongs() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let ids: Vec<i64> = queue
        .enqueue(&vec![http(); 7])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    assert_eq!(claim_all(&queue, worker, FENCE, 9).await.len(), 7);
    let hour = Duration::from_secs(3600);
    let endings = [
        Ending::Completed,
        Ending::Failed {
            delay: hour,
            error: "boom".into(),
        },
        Ending::Throttled {
            alone: None,
            error: "429".into(),
        },
        Ending::Snoozed {
            delay: hour,
            why: String::new(),
        },
        Ending::Dead {
            error: "never".into(),
        },
        Ending::Cancelled,
        Ending::HandedBack,
    ];
    let ends: Vec<Finish> = ids
        .iter()
        .zip(endings)
        .map(|(id, ending)| end(*id, FENCE, ending))
        .collect();

    let mut kept = queue.finish(&ends).await.unwrap();

    kept.sort_unstable();
    assert_eq!(kept, ids);
    let expected = [
        (State::Completed, 1),
        (State::Retryable, 1),
        (State::Ready, 0),
        (State::Scheduled, 0),
        (State::Dead, 1),
        (State::Cancelled, 1),
        (State::Ready, 0),
    ];
    for (id, (state, attempts_used)) in ids.iter().zip(expected) {
        let detail = queue.get(*id).await.unwrap().unwrap();
        assert_eq!(
            (detail.summary.state, detail.summary.attempt),
            (state, attempts_used),
            "{:?}",
            detail.attempts
        );
        let listed = queue
            .list(&JobFilter {
                state: Some(state),
                limit: 10,
                ..JobFilter::default()
            })
            .await
            .unwrap();
        assert!(
            listed.iter().any(|one| one.id == *id),
            "{state:?} lists the job"
        );
    }
    let dead = queue.get(ids[4]).await.unwrap().unwrap();
    assert_eq!(dead.summary.last_error.as_deref(), Some("never"));
    assert_eq!(
        queue.failures(10).await.unwrap().len(),
        3,
        "failed, throttled and dead are shown as failures"
    );
    assert_eq!(
        queue
            .list(&JobFilter {
                limit: 10,
                ..JobFilter::default()
            })
            .await
            .unwrap()
            .len(),
        7
    );
}

#[tokio::test]
async fn a_late_answer_with_another_fence_changes_nothing() {
    let (_database, queue) = queue().await;
    let slow = worker(&queue, Duration::from_millis(800)).await;
    let id = enqueue_one(&queue, http()).await;
    assert_eq!(claim_all(&queue, slow, 1, 1).await, [id]);
    let rescued = crate::support::eventually(
        "the slow worker is found dead",
        Duration::from_secs(10),
        || async {
            let rescued = queue.rescue().await.unwrap();
            (rescued.workers > 0).then_some(rescued)
        },
    )
    .await;
    assert_eq!(rescued.ready, [id]);
    let fast = worker(&queue, Duration::from_secs(30)).await;
    assert_eq!(claim_all(&queue, fast, 2, 1).await, [id]);

    let refused = queue
        .finish(&[end(
            id,
            1,
            Ending::Dead {
                error: "stale".into(),
            },
        )])
        .await
        .unwrap();

    assert!(refused.is_empty());
    assert_eq!(state(&queue, id).await, State::Running);
    assert_eq!(
        queue
            .finish(&[end(id, 2, Ending::Completed)])
            .await
            .unwrap(),
        [id]
    );
    let detail = queue.get(id).await.unwrap().unwrap();
    let outcomes: Vec<(i32, &str)> = detail
        .attempts
        .iter()
        .map(|one| (one.attempt, one.outcome.as_str()))
        .collect();
    assert_eq!(outcomes, [(1, "lost"), (2, "completed")]);
    assert!(
        !queue.pulse(slow, &[]).await.unwrap().alive,
        "a worker that was taken for dead is told so"
    );
}

#[tokio::test]
async fn losing_its_worker_uses_an_attempt_unless_the_job_was_getting_on() {
    let (_database, queue) = queue().await;
    let checkpoints = flyball::jobs::postgres::PgCheckpoints::new(queue.pool.clone());
    let stuck = enqueue_one(
        &queue,
        NewJob {
            max_attempts: 1,
            ..http()
        },
    )
    .await;
    let moving = enqueue_one(
        &queue,
        NewJob {
            max_attempts: 1,
            ..http()
        },
    )
    .await;
    let doomed = worker(&queue, Duration::from_millis(800)).await;
    assert_eq!(claim_all(&queue, doomed, FENCE, 2).await.len(), 2);
    let at = Checkpoint {
        cursor: json!({"after": 7}),
        done: 7,
        total: Some(10),
        note: "7 of 10".into(),
    };
    checkpoints.store(moving, FENCE, &at).await.unwrap();

    let rescued = crate::support::eventually(
        "the worker is found dead",
        Duration::from_secs(10),
        || async {
            let rescued = queue.rescue().await.unwrap();
            (rescued.workers > 0).then_some(rescued)
        },
    )
    .await;

    assert_eq!((rescued.ready, rescued.dead), (vec![moving], vec![stuck]));
    assert_eq!(checkpoints.load(moving).await.unwrap(), Some(at.clone()));
    assert!(
        checkpoints.store(moving, FENCE, &at).await.is_err(),
        "the old fence writes no checkpoint"
    );
    let progress = queue.get(moving).await.unwrap().unwrap().progress.unwrap();
    assert_eq!((progress.done, progress.percent), (7, Some(70.0)));
}

#[tokio::test]
async fn cancelling_ends_a_waiting_job_and_asks_a_running_one_to_stop() {
    let (_database, queue) = queue().await;
    let waiting = enqueue_one(
        &queue,
        NewJob {
            unique_key: Some("u".into()),
            ..http()
        },
    )
    .await;
    let later = enqueue_one(
        &queue,
        NewJob {
            run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
            ..http()
        },
    )
    .await;

    assert_eq!(
        queue.cancel(waiting).await.unwrap(),
        CancelAnswer::Cancelled
    );
    assert_eq!(queue.cancel(later).await.unwrap(), CancelAnswer::Cancelled);
    assert_eq!(
        queue.cancel(waiting).await.unwrap(),
        CancelAnswer::Ended(State::Cancelled)
    );
    assert_eq!(queue.cancel(1).await.unwrap(), CancelAnswer::NotFound);

    let running = enqueue_one(
        &queue,
        NewJob {
            unique_key: Some("u".into()),
            ..http()
        },
    )
    .await;
    assert_ne!(running, waiting, "a cancelled job frees its unique key");
    let worker = worker(&queue, Duration::from_secs(30)).await;
    assert_eq!(claim_all(&queue, worker, FENCE, 9).await, [running]);
    assert_eq!(
        queue.cancel(running).await.unwrap(),
        CancelAnswer::Requested
    );
    assert_eq!(queue.pulse(worker, &[]).await.unwrap().cancel, [running]);
    assert!(queue.get(running).await.unwrap().unwrap().cancelling);
    queue
        .finish(&[end(running, FENCE, Ending::Cancelled)])
        .await
        .unwrap();
    assert_eq!(state(&queue, running).await, State::Cancelled);
    assert!(queue.pulse(worker, &[]).await.unwrap().cancel.is_empty());
}

#[tokio::test]
async fn a_dead_job_starts_over_when_it_is_retried() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let id = enqueue_one(&queue, http()).await;
    claim_all(&queue, worker, FENCE, 1).await;
    assert_eq!(
        queue.retry(id).await.unwrap(),
        RetryAnswer::Refused(State::Running)
    );
    queue
        .finish(&[end(id, FENCE, Ending::Dead { error: "x".into() })])
        .await
        .unwrap();

    assert_eq!(queue.retry(id).await.unwrap(), RetryAnswer::Ready);

    assert_eq!(queue.get(id).await.unwrap().unwrap().summary.attempt, 0);
    assert_eq!(queue.retry(1).await.unwrap(), RetryAnswer::NotFound);
}

#[tokio::test]
async fn what_is_due_is_promoted_and_what_is_not_stays() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let soon = enqueue_one(&queue, http()).await;
    let later = enqueue_one(
        &queue,
        NewJob {
            run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
            ..http()
        },
    )
    .await;
    claim_all(&queue, worker, FENCE, 1).await;
    queue
        .finish(&[end(
            soon,
            FENCE,
            Ending::Failed {
                delay: Duration::from_millis(50),
                error: "x".into(),
            },
        )])
        .await
        .unwrap();

    crate::support::eventually("the retry is due", Duration::from_secs(5), || async {
        let promoted = queue.promote().await.unwrap();
        assert!(!promoted.more);
        (promoted.jobs == 1).then(|| assert_eq!(promoted.lanes.len(), 1))
    })
    .await;

    assert_eq!(
        (state(&queue, soon).await, state(&queue, later).await),
        (State::Ready, State::Scheduled)
    );
    assert_eq!(
        queue.get(soon).await.unwrap().unwrap().summary.attempt,
        1,
        "the failed attempt counts"
    );
}

#[tokio::test]
async fn a_cancel_that_crosses_a_failing_attempt_holds_however_late_the_retry_is_due() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(60)).await;
    let (waits, runs) = (
        enqueue_one(&queue, http()).await,
        enqueue_one(&queue, http()).await,
    );
    let unique = enqueue_one(
        &queue,
        NewJob {
            unique_key: Some("one".into()),
            ..http()
        },
    )
    .await;
    assert_eq!(claim_all(&queue, worker, FENCE, 3).await.len(), 3);
    // The request is on its way while the attempts end: neither sees the other.
    let mut connection = database.pool().acquire().await.unwrap();
    sqlx::raw_sql("begin")
        .execute(&mut *connection)
        .await
        .unwrap();
    for id in [waits, runs, unique] {
        let said: String = sqlx::query_scalar("select flyball.cancel($1)")
            .bind(id)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        assert_eq!(said, "requested");
    }
    let failed = |id, delay| {
        end(
            id,
            FENCE,
            Ending::Failed {
                delay: Duration::from_secs(delay),
                error: "500".into(),
            },
        )
    };
    queue
        .finish(&[failed(waits, 3600), failed(runs, 0), failed(unique, 3600)])
        .await
        .unwrap();
    sqlx::raw_sql("commit; update flyball.cancel set requested_at = now() - interval '1 hour'")
        .execute(&mut *connection)
        .await
        .unwrap();

    // The housekeeping of an hour later forgets none of them.
    queue.maintain(Retention::days(7)).await.unwrap();
    while queue.promote().await.unwrap().jobs == 0 {}
    let lanes: Vec<LaneClaim> = queue
        .ready_lanes()
        .await
        .unwrap()
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 9))
        .collect();
    let claimed = queue.claim(worker, FENCE + 1, &lanes).await.unwrap();
    assert_eq!(
        claimed
            .iter()
            .map(|one| (one.job.id, one.cancelled))
            .collect::<Vec<_>>(),
        [(runs, true)]
    );
    queue
        .finish(&[end(runs, FENCE + 1, Ending::Cancelled)])
        .await
        .unwrap();
    assert_eq!(queue.carry_out_cancels().await.unwrap(), 2);

    for id in [waits, runs, unique] {
        assert_eq!(state(&queue, id).await, State::Cancelled);
    }
    for table in ["cancel", "scheduled", "ready", "lease", "unique_holder"] {
        let left: i64 = sqlx::query_scalar(AssertSqlSafe(format!(
            "select count(*) from flyball.{table}"
        )))
        .fetch_one(database.pool())
        .await
        .unwrap();
        assert_eq!(left, 0, "{table}");
    }
}

#[tokio::test]
async fn a_retiring_worker_gives_its_jobs_back_without_using_an_attempt() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let id = enqueue_one(&queue, http()).await;
    claim_all(&queue, worker, FENCE, 1).await;

    assert_eq!(queue.retire(worker).await.unwrap(), 1);

    let detail = queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.state, detail.summary.attempt),
        (State::Ready, 0)
    );
    assert_eq!(queue.live_workers().await.unwrap(), 0);
}

#[tokio::test]
async fn a_retiring_worker_is_stopped_before_it_gives_its_jobs_back() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    enqueue_one(&queue, http()).await;
    claim_all(&queue, worker, FENCE, 1).await;
    let mut lock = database.pool().begin().await.unwrap();
    sqlx::query("lock table flyball.lease in exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();

    let retiring = tokio::spawn({
        let queue = queue.clone();
        async move { queue.retire(worker).await }
    });

    eventually("the jobs are being given back", Duration::from_secs(20), || async {
        let sql = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
            and query like '%delete from flyball.lease%')";
        let waits: bool = sqlx::query_scalar(sql).fetch_one(database.pool()).await.unwrap();
        waits.then_some(())
    })
    .await;
    assert_eq!(
        queue.live_workers().await.unwrap(),
        0,
        "what it claimed now, nobody would give back"
    );
    lock.rollback().await.unwrap();
    assert_eq!(retiring.await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn depth_is_told_by_throttle_and_state() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let later = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let on = |throttle: &str, key: &str| NewJob {
        throttle: throttle.into(),
        key: key.into(),
        ..http()
    };
    let ids = queue
        .enqueue(&[
            on("a", "1"),
            on("a", "2"),
            on("a", "2"),
            NewJob {
                run_at: later,
                ..on("b", "")
            },
        ])
        .await
        .unwrap();
    let lanes = queue.ready_lanes().await.unwrap();
    let lane = lanes.iter().find(|lane| lane.key == "1").unwrap().lane_id;
    queue
        .claim(worker, FENCE, &[LaneClaim::first(lane, 1)])
        .await
        .unwrap();

    let depths = queue.count_now().await.unwrap().throttles;

    let told: Vec<_> = depths
        .iter()
        .map(|d| (d.throttle.as_str(), d.ready, d.scheduled, d.running, d.dead))
        .collect();
    assert_eq!(told, [("a", 2, 0, 1, 0), ("b", 0, 1, 0, 0)]);
    assert_eq!(ids.len(), 4);
}

#[tokio::test]
async fn an_old_day_is_emptied_and_what_still_lives_stays() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let ids: Vec<i64> = queue
        .enqueue(&vec![http(); 3])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    claim_all(&queue, worker, FENCE, 2).await;
    queue
        .finish(&[
            end(ids[0], FENCE, Ending::Completed),
            end(ids[1], FENCE, Ending::Dead { error: "x".into() }),
        ])
        .await
        .unwrap();

    let kept: i64 = sqlx::query_scalar("select flyball.prune_day(flyball.day_of(now()))")
        .fetch_one(database.pool())
        .await
        .unwrap();

    assert_eq!(kept, 2);
    assert!(queue.get(ids[0]).await.unwrap().is_none());
    assert_eq!(
        (state(&queue, ids[1]).await, state(&queue, ids[2]).await),
        (State::Dead, State::Ready)
    );
    assert_eq!(queue.get(ids[1]).await.unwrap().unwrap().attempts.len(), 1);
    assert_eq!(
        queue
            .maintain(Retention::days(7))
            .await
            .unwrap()
            .pruned_days,
        0
    );
}

#[tokio::test]
async fn days_are_made_ahead_and_even_a_missing_today_is_made_by_enqueue() {
    let (database, queue) = queue().await;
    let days: i64 = sqlx::query_scalar(
        "select count(*) from pg_inherits where inhparent = 'flyball.job'::regclass",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert!(days >= 8, "{days}");
    sqlx::raw_sql(
        "do $$ begin execute format('drop table flyball.job_%1$s, flyball.attempt_%1$s', flyball.day_of(now())); end $$",
    )
    .execute(database.pool())
    .await
    .unwrap();

    let id = enqueue_one(&queue, http()).await;

    assert_eq!(state(&queue, id).await, State::Ready);
}

#[tokio::test]
async fn producers_ring_only_while_a_dispatcher_sleeps() {
    let (database, queue) = queue().await;
    let mut listener = sqlx::postgres::PgListener::connect(database.url())
        .await
        .unwrap();
    listener.listen("flyball").await.unwrap();
    queue.wake_up().await.unwrap();
    enqueue_one(&queue, http()).await;
    queue.fall_asleep().await.unwrap();
    enqueue_one(&queue, http()).await;

    listener.recv().await.unwrap();

    let second = tokio::time::timeout(Duration::from_millis(200), listener.recv()).await;
    assert!(second.is_err(), "only the enqueue during the sleep rang");
}

#[tokio::test]
async fn a_claim_walks_the_index_of_its_lane_however_long_other_lanes_are() {
    let (database, queue) = queue().await;
    sqlx::raw_sql(
        "insert into flyball.ready (lane_id, priority, job_id, cost) select 1, 1, i, 1 from generate_series(1, 200000) i;
         insert into flyball.ready (lane_id, priority, job_id, cost) select i, 1, 200000 + i, 1 from generate_series(2, 5000) i;
         analyze flyball.ready",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let mut connection = queue.pool.acquire().await.unwrap();
    let claim = flyball::jobs::postgres::STATEMENTS
        .iter()
        .find(|(name, _)| *name == "claim")
        .unwrap()
        .1;
    connection
        .execute(AssertSqlSafe(format!(
            "prepare c (bigint[], int[], bigint, int, smallint[], bigint[], bool[]) as {claim}"
        )))
        .await
        .unwrap();

    let rows = connection
        .fetch_all("explain execute c ('{7,8}', '{2,2}', 1, 1, '{0,0}', '{0,0}', '{f,t}')")
        .await
        .unwrap();

    let plan: String = rows
        .iter()
        .map(|row| row.get::<String, _>(0) + "\n")
        .collect();
    assert!(plan.contains("Index Scan using ready_lane"), "{plan}");
    let picked = plan
        .split("CTE picked")
        .nth(1)
        .unwrap()
        .split("CTE taken")
        .next()
        .unwrap();
    assert!(
        !picked.contains("Sort"),
        "the lane's index gives the order: {plan}"
    );
    assert!(!plan.contains("Seq Scan"), "{plan}");
    let jit: String = sqlx::query_scalar("show jit")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let plans: String = sqlx::query_scalar("show plan_cache_mode")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    assert_eq!(
        (jit.as_str(), plans.as_str()),
        ("off", "force_generic_plan")
    );
}

#[tokio::test]
async fn a_connection_is_used_again_unless_a_transaction_was_left_open_on_it() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 1, Duration::from_secs(20))
        .await
        .unwrap();
    let backend = async || -> i32 {
        sqlx::query_scalar("select pg_backend_pid()")
            .fetch_one(&queue.pool)
            .await
            .unwrap()
    };
    let first = backend().await;
    assert_eq!(backend().await, first, "a healthy connection is kept");

    let mut connection = queue.pool.acquire().await.unwrap();
    connection.execute("begin").await.unwrap();
    drop(connection);

    assert_ne!(
        backend().await,
        first,
        "one with an open transaction is thrown away"
    );
}

#[tokio::test]
async fn leadership_passes_on_with_a_later_term() {
    let (_database, queue) = queue().await;
    let lease = |holder: &str, ttl: u64| {
        flyball::service::Leader::new(
            queue.pool.clone(),
            "governor",
            holder,
            Duration::from_millis(ttl),
        )
    };
    let (one, two) = (lease("one", 60_000), lease("two", 60_000));

    assert_eq!(one.hold().await.unwrap(), Some(1));
    assert_eq!(two.hold().await.unwrap(), None);
    assert_eq!(
        one.hold().await.unwrap(),
        Some(1),
        "renewing keeps the term"
    );
    one.release().await.unwrap();
    assert_eq!(two.hold().await.unwrap(), Some(2));
    assert_eq!(one.hold().await.unwrap(), None);
}

#[tokio::test]
async fn an_endless_wait_ends_where_a_schedule_would() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let ids: Vec<i64> = queue
        .enqueue(&vec![http(); 2])
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    claim_all(&queue, worker, FENCE, 9).await;
    let failed = Ending::Failed {
        delay: Duration::MAX,
        error: "boom".into(),
    };
    let snoozed = Ending::Snoozed {
        delay: Duration::MAX,
        why: String::new(),
    };

    queue
        .finish(&[end(ids[0], FENCE, failed), end(ids[1], FENCE, snoozed)])
        .await
        .unwrap();

    let day = jiff::SignedDuration::from_hours(24);
    for (id, expected) in [(ids[0], State::Retryable), (ids[1], State::Scheduled)] {
        let job = queue.get(id).await.unwrap().unwrap().summary;
        assert_eq!(job.state, expected);
        let wait = job.due_at.unwrap().duration_since(job.created_at);
        assert!(wait >= day * 3660 && wait < day * 3661, "{wait:?}");
    }
}

#[tokio::test]
async fn a_time_that_only_postgres_knows_hides_no_job() {
    let (database, queue) = queue().await;
    let later = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let id = enqueue_one(
        &queue,
        NewJob {
            run_at: later,
            ..http()
        },
    )
    .await;
    let other = enqueue_one(&queue, http()).await;
    database
        .pool()
        .execute("update flyball.scheduled set run_at = 'infinity'")
        .await
        .unwrap();

    let listed = queue
        .list(&JobFilter {
            limit: 10,
            ..JobFilter::default()
        })
        .await
        .unwrap();

    assert_eq!(
        listed.iter().map(|job| job.id).collect::<Vec<_>>(),
        [other, id]
    );
    let job = queue.get(id).await.unwrap().unwrap().summary;
    assert_eq!((job.state, job.due_at), (State::Scheduled, None));
}

#[tokio::test]
async fn a_request_to_cancel_that_came_too_late_is_not_shown_on_the_job_that_ended() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let id = enqueue_one(&queue, http()).await;
    claim_all(&queue, worker, FENCE, 1).await;
    queue.cancel(id).await.unwrap();

    queue
        .finish(&[end(id, FENCE, Ending::Completed)])
        .await
        .unwrap();

    let job = queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (job.summary.state, job.cancelling),
        (State::Completed, false)
    );
}

#[tokio::test]
async fn a_job_that_somebody_cancelled_ends_when_its_worker_gives_it_back() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let unique = |key: &str| NewJob {
        unique_key: Some(key.into()),
        ..http()
    };
    let disowned = enqueue_one(&queue, unique("a")).await;
    claim_all(&queue, worker, 1, 1).await;
    let retired = enqueue_one(&queue, unique("b")).await;
    claim_all(&queue, worker, 2, 1).await;
    queue.cancel(disowned).await.unwrap();
    queue.cancel(retired).await.unwrap();

    let given_back = (
        queue.disown(worker, 1).await.unwrap(),
        queue.retire(worker).await.unwrap(),
    );

    assert_eq!(given_back, (0, 0));
    for (id, key) in [(disowned, "a"), (retired, "b")] {
        let job = queue.get(id).await.unwrap().unwrap();
        assert_eq!(
            (job.summary.state, job.cancelling, job.attempts.len()),
            (State::Cancelled, false, 1)
        );
        assert_ne!(
            enqueue_one(&queue, unique(key)).await,
            id,
            "the unique key is free"
        );
    }
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
