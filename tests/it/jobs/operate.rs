//! What people do to jobs that exist, on a real Postgres: one job, many, a lane, everything; and finding them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker, STATEMENTS};
use flyball::jobs::{
    Attribution, BATCH_JOBS_MAX, BulkCursor, CancelAnswer, CancelFilter, Count, DeadFilter, Error,
    JobFilter, LanesAfter, MoveAnswer, NewJob, Queue, RetryAnswer, State, Via,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use crate::support::{Database, database, unique};

const FENCE: i64 = 77;
const SOON: Duration = Duration::from_secs(20);

async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    (database, queue)
}

fn signed() -> Attribution {
    Attribution {
        by: "alice".into(),
        why: "a test".into(),
        via: Via::default(),
    }
}

fn job(throttle: &str, key: &str) -> NewJob {
    let mut job = NewJob::new("http", json!({"url": "http://127.0.0.1/"}));
    (job.throttle, job.key) = (throttle.into(), key.into());
    job
}

async fn enqueue(queue: &Queue, job: NewJob) -> i64 {
    queue.enqueue(&[job]).await.unwrap()[0].id
}

/// The time by the clock that counts.
async fn now(queue: &Queue) -> Timestamp {
    sqlx::query_scalar::<_, jiff_sqlx::Timestamp>("select now()")
        .fetch_one(&queue.pool)
        .await
        .unwrap()
        .to_jiff()
}

async fn later(queue: &Queue, throttle: &str, key: &str) -> i64 {
    let mut job = job(throttle, key);
    job.run_at = Some(now(queue).await + SignedDuration::from_hours(1));
    enqueue(queue, job).await
}

async fn state(queue: &Queue, id: i64) -> State {
    queue.get(id).await.unwrap().unwrap().summary.state
}

async fn worker(queue: &Queue) -> i32 {
    let worker = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: SOON,
        kinds: vec!["http".into()],
    };
    queue.register(&worker).await.unwrap()
}

/// Claims everything that is ready.
async fn claim(queue: &Queue, worker: i32) -> Vec<i64> {
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

/// Runs everything that is ready to this ending.
async fn end_all(queue: &Queue, worker: i32, ending: Ending) -> Vec<i64> {
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

async fn die(queue: &Queue, worker: i32, job: NewJob, error: &str) -> i64 {
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

async fn audit(database: &Database) -> Vec<(String, String, String, Value)> {
    sqlx::query_as(
        "select actor, action, subject, coalesce(after, 'null') from flyball.audit order by id",
    )
    .fetch_all(database.pool())
    .await
    .unwrap()
}

async fn count(database: &Database, table: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!(
        "select count(*) from flyball.{table}"
    )))
    .fetch_one(database.pool())
    .await
    .unwrap()
}

async fn refused<T: std::fmt::Debug>(
    what: impl Future<Output = Result<T, Error>>,
) -> (String, String) {
    match what.await.unwrap_err() {
        Error::Refused { field, message, .. } => (field, message),
        other => panic!("{other}"),
    }
}

// === one job ===

#[tokio::test]
async fn a_waiting_job_is_rescheduled_from_every_state_in_which_it_waits_and_keeps_its_attempts() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let retryable = enqueue(&queue, job("t", "a")).await;
    end_all(
        &queue,
        worker,
        Ending::Failed {
            delay: Duration::from_secs(1),
            error: "500".into(),
        },
    )
    .await;
    let (ready, scheduled) = (
        enqueue(&queue, job("t", "a")).await,
        later(&queue, "t", "a").await,
    );
    let at: Timestamp = "2031-05-04T03:02:01Z".parse().unwrap();

    for id in [retryable, ready, scheduled] {
        assert_eq!(
            queue.reschedule(id, at, &signed()).await.unwrap(),
            MoveAnswer::Moved
        );
        let job = queue.get(id).await.unwrap().unwrap();
        assert_eq!(
            (job.summary.state, job.summary.due_at),
            (State::Scheduled, Some(at))
        );
        assert_eq!(job.summary.attempt, i32::from(id == retryable));
    }
    assert!(
        claim(&queue, worker).await.is_empty(),
        "nothing runs before its time"
    );

    assert_eq!(
        queue
            .reschedule(ready, Timestamp::UNIX_EPOCH, &signed())
            .await
            .unwrap(),
        MoveAnswer::Moved
    );
    assert_eq!(queue.promote().await.unwrap().jobs, 1);
    assert_eq!(claim(&queue, worker).await, [ready]);
    assert_eq!(audit(&database).await.len(), 4);
    assert_eq!(audit(&database).await[0].1, "job.reschedule");
}

#[tokio::test]
async fn what_runs_or_has_ended_is_neither_rescheduled_nor_discarded_and_nothing_changes() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let done = enqueue(&queue, job("t", "")).await;
    end_all(&queue, worker, Ending::Completed).await;
    let dead = die(&queue, worker, job("t", ""), "no").await;
    let running = enqueue(&queue, job("t", "")).await;
    claim(&queue, worker).await;
    let waiting = enqueue(&queue, job("t", "")).await;
    let at = now(&queue).await;

    for (id, state) in [
        (done, State::Completed),
        (dead, State::Dead),
        (running, State::Running),
    ] {
        assert_eq!(
            queue.reschedule(id, at, &signed()).await.unwrap(),
            MoveAnswer::Refused(state)
        );
    }
    for (id, state) in [
        (done, State::Completed),
        (running, State::Running),
        (waiting, State::Ready),
    ] {
        assert_eq!(
            queue.discard(id, &signed()).await.unwrap(),
            MoveAnswer::Refused(state)
        );
    }
    assert_eq!(
        queue.reschedule(7, at, &signed()).await.unwrap(),
        MoveAnswer::NotFound
    );
    assert_eq!(
        queue.discard(7, &signed()).await.unwrap(),
        MoveAnswer::NotFound
    );
    let (field, message) =
        refused(queue.reschedule(waiting, "9000-01-01T00:00:00Z".parse().unwrap(), &signed()))
            .await;
    assert!(
        field == "run_at" && message.contains("ten years from now"),
        "{field}: {message}"
    );
    assert_eq!(state(&queue, waiting).await, State::Ready);
    assert!(audit(&database).await.is_empty());
}

#[tokio::test]
async fn a_dead_job_is_discarded_for_good_or_retried_with_the_attempts_that_it_has_left() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let gone = die(&queue, worker, job("t", ""), "no").await;
    let kept = die(&queue, worker, job("t", ""), "no").await;

    assert_eq!(
        queue.discard(gone, &signed()).await.unwrap(),
        MoveAnswer::Moved
    );
    assert_eq!(
        queue.discard(gone, &signed()).await.unwrap(),
        MoveAnswer::Refused(State::Cancelled)
    );
    assert_eq!(
        queue.retry_signed(gone, false, &signed()).await.unwrap(),
        RetryAnswer::Refused(State::Cancelled)
    );
    assert_eq!(
        queue.retry_signed(kept, true, &signed()).await.unwrap(),
        RetryAnswer::Ready
    );

    assert_eq!(state(&queue, gone).await, State::Cancelled);
    assert_eq!(
        queue.get(kept).await.unwrap().unwrap().summary.attempt,
        1,
        "the attempt that it died of counts"
    );
    let said: Vec<String> = audit(&database)
        .await
        .into_iter()
        .map(|line| format!("{} {} {}", line.0, line.1, line.2))
        .collect();
    assert_eq!(
        said,
        [
            format!("alice job.discard {gone}"),
            format!("alice job.retry {kept}")
        ]
    );
}

#[tokio::test]
async fn one_cancelled_job_is_one_line_of_the_audit_log_and_a_refusal_is_none() {
    let (database, queue) = queue().await;
    let id = enqueue(&queue, job("t", "")).await;

    assert_eq!(
        queue.cancel_signed(id, &signed()).await.unwrap(),
        CancelAnswer::Cancelled
    );
    assert_eq!(
        queue.cancel_signed(id, &signed()).await.unwrap(),
        CancelAnswer::Ended(State::Cancelled)
    );

    let lines = audit(&database).await;
    assert_eq!(
        lines,
        [(
            "alice".into(),
            "job.cancel".into(),
            id.to_string(),
            json!({"state": "cancelled"})
        )]
    );
}

#[tokio::test]
async fn job_state_says_in_sql_what_rust_says() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let mut wanted = BTreeMap::new();
    let endings = [
        (Ending::Completed, "completed"),
        (Ending::Dead { error: "x".into() }, "dead"),
        (Ending::Cancelled, "cancelled"),
        (
            Ending::Failed {
                delay: SOON,
                error: "x".into(),
            },
            "retryable",
        ),
        (
            Ending::Snoozed {
                delay: SOON,
                why: String::new(),
            },
            "scheduled",
        ),
    ];
    for (ending, word) in endings {
        let id = enqueue(&queue, job("t", "")).await;
        end_all(&queue, worker, ending).await;
        wanted.insert(id, word);
    }
    let running = enqueue(&queue, job("t", "")).await;
    claim(&queue, worker).await;
    wanted.insert(running, "running");
    wanted.insert(enqueue(&queue, job("t", "")).await, "ready");

    for (id, word) in wanted {
        let said: String = sqlx::query_scalar("select flyball.job_state($1)")
            .bind(id)
            .fetch_one(database.pool())
            .await
            .unwrap();
        assert_eq!(said, word);
        assert_eq!(serde_json::to_value(state(&queue, id).await).unwrap(), word);
    }
    let none: Option<String> = sqlx::query_scalar("select flyball.job_state(7)")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(none, None);
}

#[tokio::test]
async fn a_running_job_shows_its_worker_with_the_age_of_its_heartbeat_and_what_it_carries() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let id = enqueue(&queue, job("t", "")).await;
    sqlx::query("update flyball.job set timeout_s = 1.5, traceparent = '00-a-b-01' where id = $1")
        .bind(id)
        .execute(database.pool())
        .await
        .unwrap();
    claim(&queue, worker).await;

    let shown = queue.get(id).await.unwrap().unwrap();

    assert_eq!(
        (
            shown.worker.as_deref(),
            shown.timeout_s,
            shown.traceparent.as_deref()
        ),
        (Some("w"), Some(1.5), Some("00-a-b-01"))
    );
    assert!(
        shown.heartbeat_at.is_some()
            && shown
                .heartbeat_age_s
                .is_some_and(|age_s| (0.0..60.0).contains(&age_s)),
        "{shown:?}"
    );
    queue
        .finish(&[Finish {
            job_id: id,
            fence: FENCE,
            ending: Ending::Completed,
        }])
        .await
        .unwrap();
    assert_eq!(queue.get(id).await.unwrap().unwrap().heartbeat_age_s, None);
}

/// Ends everything that is ready as done.
async fn complete_all(queue: &Queue, worker: i32) -> Vec<i64> {
    end_all(queue, worker, Ending::Completed).await
}

fn unique_job(key: &str) -> NewJob {
    NewJob {
        unique_key: Some(key.into()),
        ..job("t", "")
    }
}

#[tokio::test]
async fn a_dead_job_that_runs_again_holds_its_unique_key_until_it_ends() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let alone = die(&queue, worker, unique_job("alone"), "no").await;
    let (first, second) = (
        die(&queue, worker, unique_job("a"), "no").await,
        die(&queue, worker, unique_job("b"), "no").await,
    );
    let all = DeadFilter {
        kind: Some("http".into()),
        ..DeadFilter::default()
    };

    assert_eq!(queue.retry(alone).await.unwrap(), RetryAnswer::Ready);
    assert_eq!(
        queue
            .requeue_dead(&all, false, &BulkCursor::of(10), &signed())
            .await
            .unwrap()
            .jobs,
        2
    );

    for (key, id) in [("alone", alone), ("a", first), ("b", second)] {
        let again = queue.enqueue(&[unique_job(key)]).await.unwrap()[0];
        assert_eq!((again.id, again.duplicate), (id, true), "{key}");
    }
    assert_eq!(
        BTreeSet::from_iter(complete_all(&queue, worker).await),
        BTreeSet::from([alone, first, second])
    );
    assert_eq!(
        count(&database, "unique_holder").await,
        0,
        "their ends free the keys"
    );
}

#[tokio::test]
async fn a_dead_job_whose_key_another_holds_meanwhile_runs_again_without_it() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let (one, older) = (
        die(&queue, worker, unique_job("a"), "no").await,
        die(&queue, worker, unique_job("b"), "no").await,
    );
    let newer = die(&queue, worker, unique_job("b"), "no").await;
    let holder = enqueue(
        &queue,
        NewJob {
            priority: 3,
            ..unique_job("a")
        },
    )
    .await;
    let all = DeadFilter {
        kind: Some("http".into()),
        ..DeadFilter::default()
    };

    assert_eq!(queue.retry(one).await.unwrap(), RetryAnswer::Ready);
    assert_eq!(
        queue
            .requeue_dead(&all, false, &BulkCursor::of(10), &signed())
            .await
            .unwrap()
            .jobs,
        2
    );
    let free = |id: i64| Finish {
        job_id: id,
        fence: FENCE,
        ending: Ending::Completed,
    };
    claim(&queue, worker).await;
    queue.finish(&[free(one), free(older)]).await.unwrap();

    for (key, id) in [("a", holder), ("b", newer)] {
        let again = queue.enqueue(&[unique_job(key)]).await.unwrap()[0];
        assert_eq!(
            (again.id, again.duplicate),
            (id, true),
            "{key}: the end of the other one did not free it"
        );
    }
    queue.finish(&[free(holder), free(newer)]).await.unwrap();
    assert_eq!(count(&database, "unique_holder").await, 0);
}

#[tokio::test]
async fn a_key_with_a_time_of_its_own_does_not_begin_again_with_its_job() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let window = |key: &str| NewJob {
        unique_for: Some(3600.0),
        ..unique_job(key)
    };
    let (over, still) = (
        die(&queue, worker, window("over"), "no").await,
        die(&queue, worker, window("still"), "no").await,
    );
    sqlx::query("delete from flyball.unique_holder where job_id = $1")
        .bind(over)
        .execute(database.pool())
        .await
        .unwrap();

    for id in [over, still] {
        assert_eq!(queue.retry(id).await.unwrap(), RetryAnswer::Ready);
    }

    assert!(queue.enqueue(&[unique_job("still")]).await.unwrap()[0].duplicate);
    assert!(!queue.enqueue(&[unique_job("over")]).await.unwrap()[0].duplicate);
    complete_all(&queue, worker).await;
    assert!(
        queue.enqueue(&[unique_job("still")]).await.unwrap()[0].duplicate,
        "its end does not free it either"
    );
}

// === many jobs ===

#[tokio::test]
async fn a_filter_cancels_exactly_the_jobs_that_it_names() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let running = enqueue(&queue, job("t", "a")).await;
    claim(&queue, worker).await;
    let retryable = enqueue(&queue, job("t", "b")).await;
    let ids: Vec<i64> = claim(&queue, worker).await;
    assert_eq!(ids, [retryable]);
    let failed = Finish {
        job_id: retryable,
        fence: FENCE,
        ending: Ending::Failed {
            delay: SOON,
            error: "x".into(),
        },
    };
    queue.finish(&[failed]).await.unwrap();
    let mut taken = job("t", "a");
    taken.unique_key = Some("u".into());
    let mut other_kind = job("u", "a");
    other_kind.kind = "reindex".into();
    let ready = enqueue(&queue, taken.clone()).await;
    let scheduled = later(&queue, "t", "a").await;
    let elsewhere = enqueue(&queue, other_kind).await;
    let all = BTreeSet::from([running, retryable, ready, scheduled, elsewhere]);

    let hour_ago = now(&queue).await - SignedDuration::from_hours(1);
    let none = CancelFilter::default();
    let cases: Vec<(CancelFilter, Vec<i64>)> = vec![
        (
            CancelFilter {
                kind: Some("reindex".into()),
                ..none.clone()
            },
            vec![elsewhere],
        ),
        (
            CancelFilter {
                throttle: Some("t".into()),
                ..none.clone()
            },
            vec![running, retryable, ready, scheduled],
        ),
        (
            CancelFilter {
                key: Some("a".into()),
                ..none.clone()
            },
            vec![running, ready, scheduled, elsewhere],
        ),
        (
            CancelFilter {
                throttle: Some("t".into()),
                key: Some("a".into()),
                ..none.clone()
            },
            vec![running, ready, scheduled],
        ),
        (
            CancelFilter {
                state: Some(State::Retryable),
                ..none.clone()
            },
            vec![retryable],
        ),
        (
            CancelFilter {
                state: Some(State::Scheduled),
                ..none.clone()
            },
            vec![scheduled],
        ),
        (
            CancelFilter {
                state: Some(State::Running),
                ..none.clone()
            },
            vec![running],
        ),
        (
            CancelFilter {
                created_before: Some(hour_ago),
                ..none.clone()
            },
            vec![],
        ),
        (
            CancelFilter {
                created_after: Some(hour_ago),
                ..none.clone()
            },
            all.iter().copied().collect(),
        ),
        (
            CancelFilter {
                throttle: Some("no".into()),
                ..none.clone()
            },
            vec![],
        ),
    ];
    for (filter, wanted) in cases {
        let found = queue.count_cancel_jobs(&filter).await.unwrap();
        assert_eq!(
            found,
            Count {
                jobs: wanted.len() as i64,
                more: false
            },
            "{filter:?}"
        );
        // Each is carried out, looked at, and taken back.
        let mut connection = database.pool().acquire().await.unwrap();
        let mut open = connection.begin().await.unwrap();
        let said = sqlx::query(
            "select * from flyball.cancel_jobs(kind => $1, throttle => $2, key => $3, state => $4, created_after => $5::text::timestamptz, \
             created_before => $6::text::timestamptz)",
        )
        .bind(&filter.kind)
        .bind(&filter.throttle)
        .bind(&filter.key)
        .bind(filter.state.map(|state| serde_json::to_value(state).unwrap().as_str().unwrap().to_owned()))
        .bind(filter.created_after.map(|at| at.to_string()))
        .bind(filter.created_before.map(|at| at.to_string()))
        .fetch_one(&mut *open)
        .await
        .unwrap();
        let gone: Vec<i64> =
            sqlx::query_scalar("select id from flyball.job where flyball.job_state(id) = 'cancelled' union select job_id from flyball.cancel order by 1")
                .fetch_all(&mut *open)
                .await
                .unwrap();
        assert_eq!(
            BTreeSet::from_iter(gone),
            BTreeSet::from_iter(wanted.iter().copied()),
            "{filter:?}"
        );
        assert_eq!(
            said.get::<i64, _>("cancelled") + said.get::<i64, _>("requested"),
            wanted.len() as i64
        );
        assert_eq!(said.get::<Option<String>, _>("next"), None);
        open.rollback().await.unwrap();
    }
    for id in all {
        assert!(
            !matches!(state(&queue, id).await, State::Cancelled),
            "counting changes nothing"
        );
    }
    let done = queue
        .cancel_jobs(
            &CancelFilter {
                key: Some("a".into()),
                ..none
            },
            &BulkCursor::of(100),
            &signed(),
        )
        .await
        .unwrap();
    assert_eq!((done.jobs, done.requested, done.next), (3, 1, None));
    assert_eq!(
        count(&database, "unique_holder").await,
        0,
        "the unique key of a cancelled job is free"
    );
    assert!(!queue.enqueue(&[taken]).await.unwrap()[0].duplicate);
    assert_eq!(
        queue.pulse(worker, &[]).await.unwrap().cancel,
        [running],
        "its worker is told"
    );
}

#[tokio::test]
async fn a_walk_of_many_batches_takes_every_job_once_and_is_one_line_of_the_audit_log() {
    let (database, queue) = queue().await;
    let jobs: Vec<NewJob> = (0..250).map(|i| job("t", &format!("k{}", i % 7))).collect();
    queue.enqueue(&jobs).await.unwrap();
    for i in 0..20 {
        later(&queue, "t", &format!("k{}", i % 3)).await;
    }
    let stays = enqueue(&queue, job("other", "k1")).await;
    let filter = CancelFilter {
        throttle: Some("t".into()),
        ..CancelFilter::default()
    };

    let mut walk = BulkCursor::of(30);
    let (mut jobs, mut calls) = (0, 0);
    loop {
        let walked = queue.cancel_jobs(&filter, &walk, &signed()).await.unwrap();
        assert!(walked.jobs <= 30);
        jobs += walked.jobs;
        calls += 1;
        walk.start = walked.next;
        if walk.start.is_none() {
            break;
        }
    }

    assert_eq!(jobs, 270);
    assert!(calls >= 9, "{calls}");
    assert_eq!(state(&queue, stays).await, State::Ready);
    assert_eq!(
        (
            count(&database, "ready").await,
            count(&database, "scheduled").await,
            count(&database, "attempt").await
        ),
        (1, 0, 270)
    );
    let lines = audit(&database).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (
            lines[0].1.as_str(),
            &lines[0].3["cancelled"],
            &lines[0].3["filter"]["throttle"]
        ),
        ("jobs.cancel", &json!(270), &json!("t"))
    );
}

#[tokio::test]
async fn a_count_stops_at_ten_thousand() {
    let (_database, queue) = queue().await;
    let batch: Vec<NewJob> = (0..BATCH_JOBS_MAX).map(|_| job("t", "k")).collect();
    queue.enqueue(&batch).await.unwrap();
    let lane = async || queue.count_lane("t", "k").await.unwrap();
    assert_eq!(
        lane().await,
        Count {
            jobs: 10_000,
            more: false
        }
    );

    queue.enqueue(&batch[..1]).await.unwrap();

    assert_eq!(lane().await.to_string(), "10000+");
    let all = CancelFilter {
        state: Some(State::Ready),
        ..CancelFilter::default()
    };
    assert_eq!(
        queue.count_cancel_jobs(&all).await.unwrap().to_string(),
        "10000+"
    );
}

#[tokio::test]
async fn dead_letters_are_requeued_by_filter_and_wake_workers() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let timeout = die(&queue, worker, job("t", "a"), "timeout after 30 s").await;
    let refused = die(&queue, worker, job("t", "b"), "connect: timeout").await;
    let percent = die(&queue, worker, job("u", "a"), "100% wrong").await;
    let mut reindex = job("u", "b");
    reindex.kind = "reindex".into();
    let reindex = die(&queue, worker, reindex, "500").await;
    sqlx::query("update flyball.dead set died_at = now() - interval '3 days' where job_id = $1")
        .bind(percent)
        .execute(database.pool())
        .await
        .unwrap();
    let none = DeadFilter::default();
    let day_ago = now(&queue).await - SignedDuration::from_hours(24);
    let like = |pattern: &str| DeadFilter {
        error_like: Some(pattern.into()),
        ..none.clone()
    };
    let cases = [
        (like("timeout%"), vec![timeout]),
        (like("%timeout%"), vec![timeout, refused]),
        (like(r"100\%%"), vec![percent]),
        (like("%"), vec![timeout, refused, percent, reindex]),
        (
            DeadFilter {
                kind: Some("reindex".into()),
                ..none.clone()
            },
            vec![reindex],
        ),
        (
            DeadFilter {
                throttle: Some("t".into()),
                ..none.clone()
            },
            vec![timeout, refused],
        ),
        (
            DeadFilter {
                key: Some("a".into()),
                ..none.clone()
            },
            vec![timeout, percent],
        ),
        (
            DeadFilter {
                throttle: Some("u".into()),
                key: Some("a".into()),
                ..none.clone()
            },
            vec![percent],
        ),
        (
            DeadFilter {
                died_before: Some(day_ago),
                ..none.clone()
            },
            vec![percent],
        ),
        (
            DeadFilter {
                died_after: Some(day_ago),
                key: Some("a".into()),
                ..none.clone()
            },
            vec![timeout],
        ),
    ];
    for (filter, wanted) in cases {
        assert_eq!(
            queue.count_dead(&filter).await.unwrap(),
            Count {
                jobs: wanted.len() as i64,
                more: false
            },
            "{filter:?}"
        );
    }
    let mut bell = PgListener::connect(database.url()).await.unwrap();
    bell.listen("flyball").await.unwrap();

    let walked = queue
        .requeue_dead(&like("%timeout%"), false, &BulkCursor::of(10), &signed())
        .await
        .unwrap();

    assert_eq!((walked.jobs, walked.next), (2, None));
    tokio::time::timeout(SOON, bell.recv())
        .await
        .expect("a notification arrives")
        .unwrap();
    for id in [timeout, refused] {
        let job = queue.get(id).await.unwrap().unwrap();
        assert_eq!((job.summary.state, job.summary.attempt), (State::Ready, 0));
    }
    assert_eq!(
        (state(&queue, percent).await, state(&queue, reindex).await),
        (State::Dead, State::Dead)
    );
    assert_eq!(
        BTreeSet::from_iter(claim(&queue, worker).await),
        BTreeSet::from([timeout, refused])
    );

    let walked = queue
        .requeue_dead(&like("100%"), true, &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(
        (
            walked.jobs,
            queue.get(percent).await.unwrap().unwrap().summary.attempt
        ),
        (1, 1),
        "attempts are kept on request"
    );
    let walked = queue
        .discard_dead(&like("500"), &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(
        (walked.jobs, state(&queue, reindex).await),
        (1, State::Cancelled)
    );
    let actions: Vec<String> = audit(&database)
        .await
        .into_iter()
        .map(|line| line.1)
        .collect();
    assert_eq!(actions, ["dead.requeue", "dead.requeue", "dead.discard"]);
}

#[tokio::test]
async fn many_dead_letters_are_requeued_batch_by_batch_each_once() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    queue.enqueue(&vec![job("t", "a"); 120]).await.unwrap();
    let ids = end_all(&queue, worker, Ending::Dead { error: "x".into() }).await;
    let filter = DeadFilter {
        throttle: Some("t".into()),
        ..DeadFilter::default()
    };

    let mut walk = BulkCursor::of(50);
    let mut batches = Vec::new();
    loop {
        let walked = queue
            .requeue_dead(&filter, false, &walk, &signed())
            .await
            .unwrap();
        batches.push(walked.jobs);
        walk.start = walked.next;
        if walk.start.is_none() {
            break;
        }
    }

    assert_eq!(batches, [50, 50, 20]);
    assert_eq!(
        BTreeSet::from_iter(claim(&queue, worker).await),
        BTreeSet::from_iter(ids)
    );
    let lines = audit(&database).await;
    assert_eq!((lines.len(), &lines[0].3["jobs"]), (1, &json!(120)));
}

#[tokio::test]
async fn what_is_asked_wrongly_of_many_jobs_is_refused_by_name_and_nothing_changes() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let dead = die(&queue, worker, job("t", ""), "x").await;
    let ready = enqueue(&queue, job("t", "")).await;
    let cases = [
        (
            "cancel_jobs()",
            "state: is missing, as is every other filter; name at least one of kind",
        ),
        (
            "cancel_jobs(state => 'dead')",
            "state: \"dead\" is not a state that can be cancelled; allowed are ready",
        ),
        (
            "cancel_jobs('http', max_jobs => 0)",
            "max_jobs: is 0; allowed are 1 to 10000",
        ),
        (
            "cancel_jobs('http', max_jobs => null)",
            "max_jobs: is null; allowed are 1 to 10000",
        ),
        (
            "cancel_jobs('http', start => 'x')",
            "start: \"x\" is not a place to go on from",
        ),
        (
            "purge_lane('t', '', start => 'ready/9999999999999999999/0/1')",
            "start: \"ready/9999999999999999999/0/1\" names no lane",
        ),
        (
            "cancel_jobs('http', start => 'scheduled/-9223372036854775809/1')",
            "start: \"scheduled/-9223372036854775809/1\" names no",
        ),
        (
            "cancel_jobs('http', start => 'dead/1')",
            "start: \"dead/1\" is not a place to go on from",
        ),
        (
            "cancel_jobs(created_after => now(), created_before => now())",
            "created_after: is",
        ),
        (
            "purge_lane('two words', '')",
            "throttle: \"two words\" is not a throttle's name",
        ),
        (
            "purge_lane(null, '')",
            "throttle: null is not a throttle's name",
        ),
        ("purge_lane('t', null)", "key: must not be null"),
        (
            "purge_lane('t', repeat('k', 513))",
            "key: is 513 bytes long; at most 512 are allowed",
        ),
        (
            "purge_lane('t', '', 10001)",
            "max_jobs: is 10001; allowed are 1 to 10000",
        ),
        (
            "requeue_dead()",
            "error_like: is missing, as is every other filter",
        ),
        (
            "requeue_dead(error_like => 'a\\')",
            "error_like: ends with a lone backslash",
        ),
        (
            "requeue_dead(error_like => '%a%b%c%d%e%f')",
            "error_like: is too long or has more than five %",
        ),
        (
            "requeue_dead('http', start => 'ready/1/1/1')",
            "start: \"ready/1/1/1\" is not a place",
        ),
        ("discard_dead()", "error_like: is missing"),
        (
            "discard_dead('http', died_after => now(), died_before => now() - interval '1 s')",
            "died_after: is",
        ),
        (
            "set_weight('t', '', 0)",
            "weight: is 0; allowed are 0.001 to 1000",
        ),
        ("set_weight('t', '', 'NaN')", "weight: is NaN; allowed are"),
        ("set_weight('t', '', null)", "weight: is null; allowed are"),
        (
            "set_weight('t t', '', 1)",
            "throttle: \"t t\" is not a throttle's name",
        ),
        (
            "reschedule(1, null)",
            "run_at: is null; allowed are times from 1970",
        ),
        (
            "reschedule(1, 'infinity')",
            "run_at: is infinity; allowed are times from 1970",
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

    assert_eq!(
        (state(&queue, dead).await, state(&queue, ready).await),
        (State::Dead, State::Ready)
    );
    assert!(audit(&database).await.is_empty());
    assert_eq!(
        count(&database, "lane").await,
        1,
        "the lane that the worker saw"
    );
}

// === lanes ===

#[tokio::test]
async fn purging_a_lane_cancels_what_waits_in_it_and_nothing_else() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    let running = enqueue(&queue, job("t", "a")).await;
    claim(&queue, worker).await;
    let mut taken = job("t", "a");
    taken.unique_key = Some("u".into());
    enqueue(&queue, taken.clone()).await;
    queue.enqueue(&vec![job("t", "a"); 40]).await.unwrap();
    later(&queue, "t", "a").await;
    let (other_key, other_throttle) = (
        enqueue(&queue, job("t", "b")).await,
        enqueue(&queue, job("u", "a")).await,
    );
    let other_later = later(&queue, "t", "b").await;
    assert_eq!(
        queue.count_lane("t", "a").await.unwrap(),
        Count {
            jobs: 42,
            more: false
        }
    );

    let first = queue
        .purge_lane("t", "a", &BulkCursor::of(10), &signed())
        .await
        .unwrap();
    assert_eq!(
        (
            first.jobs,
            first.next.is_some(),
            count(&database, "ready").await
        ),
        (10, true, 33)
    );
    let rest = queue
        .purge_lane(
            "t",
            "a",
            &BulkCursor {
                start: first.next,
                ..BulkCursor::of(1000)
            },
            &signed(),
        )
        .await
        .unwrap();

    assert_eq!((rest.jobs, rest.next), (32, None));
    assert_eq!(state(&queue, running).await, State::Running);
    for id in [other_key, other_throttle] {
        assert_eq!(state(&queue, id).await, State::Ready);
    }
    assert_eq!(state(&queue, other_later).await, State::Scheduled);
    assert!(
        !queue.enqueue(&[taken]).await.unwrap()[0].duplicate,
        "its unique key is free again"
    );
    let lines = audit(&database).await;
    assert_eq!(
        (
            lines.len(),
            lines[0].1.as_str(),
            lines[0].2.as_str(),
            &lines[0].3["cancelled"]
        ),
        (1, "lane.purge", "t/a", &json!(42))
    );
}

#[tokio::test]
async fn a_place_in_another_lane_leads_no_walk_out_of_its_own() {
    let (database, queue) = queue().await;
    let mut lanes: Vec<(i64, &str)> = Vec::new();
    for key in ["a", "b", "c", "d", "e"] {
        enqueue(&queue, job("t", key)).await;
        later(&queue, "t", key).await;
        let sql = "select flyball.lane_of('t', $1)";
        lanes.push((
            sqlx::query_scalar(sql)
                .bind(key)
                .fetch_one(database.pool())
                .await
                .unwrap(),
            key,
        ));
    }
    lanes.sort_unstable();
    let middle = lanes[2].1;
    let filter = CancelFilter {
        throttle: Some("t".into()),
        key: Some(middle.into()),
        ..CancelFilter::default()
    };
    let below = |phase: &str, place: &str| BulkCursor {
        start: Some(format!("{phase}/{}/{place}", lanes[0].0)),
        ..BulkCursor::of(100)
    };

    let mut found = Vec::new();
    for walk in [below("ready", "1/0"), below("scheduled", "0")] {
        let dry = BulkCursor {
            dry_run: true,
            ..walk
        };
        found.push(
            queue
                .cancel_jobs(&filter, &dry, &signed())
                .await
                .unwrap()
                .jobs,
        );
        found.push(
            queue
                .purge_lane("t", middle, &dry, &signed())
                .await
                .unwrap()
                .jobs,
        );
    }
    let purged = queue
        .purge_lane(
            "t",
            middle,
            &below("ready", "3/900000000000000000"),
            &signed(),
        )
        .await
        .unwrap();

    assert_eq!(found, [2, 2, 1, 1], "what the lane holds itself");
    assert_eq!((purged.jobs, purged.next), (2, None));
    assert_eq!(
        (
            count(&database, "ready").await,
            count(&database, "scheduled").await
        ),
        (4, 4)
    );
    let past = BulkCursor {
        start: Some(format!("ready/{}/0/0", lanes[4].0)),
        ..BulkCursor::of(100)
    };
    assert_eq!(
        queue
            .purge_lane("t", lanes[1].1, &past, &signed())
            .await
            .unwrap()
            .jobs,
        1,
        "only what is scheduled is left to see"
    );
}

#[tokio::test]
async fn a_job_is_either_claimed_or_purged_and_never_both_nor_lost() {
    let (database, queue) = queue().await;
    let worker = worker(&queue).await;
    queue.enqueue(&vec![job("t", "a"); 3000]).await.unwrap();
    let lane_id = queue.ready_lanes().await.unwrap()[0].lane_id;

    let claims = async {
        let mut claimed = Vec::new();
        loop {
            let jobs = queue
                .claim(worker, FENCE, &[LaneClaim::first(lane_id, 7)])
                .await
                .unwrap();
            claimed.extend(jobs.iter().map(|one| one.job.id));
            if count(&database, "ready").await == 0 {
                return claimed;
            }
        }
    };
    let purge = async {
        let mut purged = 0;
        while count(&database, "ready").await > 0 {
            purged += queue
                .purge_lane("t", "a", &BulkCursor::of(40), &signed())
                .await
                .unwrap()
                .jobs;
        }
        purged
    };
    let (claimed, purged) = tokio::join!(claims, purge);

    assert!(
        !claimed.is_empty() && purged > 0,
        "{} {purged}",
        claimed.len()
    );
    assert_eq!(claimed.len() as i64 + purged, 3000);
    assert_eq!(
        (
            count(&database, "lease").await,
            count(&database, "attempt").await
        ),
        (claimed.len() as i64, purged)
    );
}

#[tokio::test]
async fn a_lane_is_weighed_whether_or_not_a_worker_has_seen_it() {
    let (database, queue) = queue().await;
    for key in ["c", "", "a", "b"] {
        enqueue(&queue, job("t", key)).await;
    }
    enqueue(&queue, job("u", "x")).await;
    queue.ready_lanes().await.unwrap();

    assert_eq!(
        queue.set_weight("t", "b", 2.5, &signed()).await.unwrap(),
        1.0
    );
    assert_eq!(
        queue.set_weight("t", "b", 0.5, &signed()).await.unwrap(),
        2.5
    );
    assert_eq!(
        queue
            .set_weight("t", "unseen", 3.0, &signed())
            .await
            .unwrap(),
        1.0
    );

    let by_key = queue
        .lanes_of("t", &LanesAfter::Key(None), 10)
        .await
        .unwrap()
        .lanes;
    let keys: Vec<(&str, f64)> = by_key
        .iter()
        .map(|lane| (lane.key.as_str(), lane.weight))
        .collect();
    assert_eq!(
        keys,
        [
            ("", 1.0),
            ("a", 1.0),
            ("b", 0.5),
            ("c", 1.0),
            ("unseen", 3.0)
        ]
    );
    assert_eq!(queue.lane_of("t", "b").await.unwrap().unwrap().weight, 0.5);
    let lines = audit(&database).await;
    assert_eq!(
        (lines[1].1.as_str(), lines[1].2.as_str(), &lines[1].3),
        ("lane.weight", "t/b", &json!({"weight": 0.5}))
    );
}

// === everything ===

#[tokio::test]
async fn everything_is_paused_once_and_resuming_wakes_workers() {
    let (database, queue) = queue().await;
    assert_eq!(queue.paused().await.unwrap(), None);
    let mut bell = PgListener::connect(database.url()).await.unwrap();
    bell.listen("flyball").await.unwrap();

    assert!(queue.pause_all(&signed()).await.unwrap());
    assert!(
        !queue
            .pause_all(&Attribution {
                by: "bob".into(),
                why: "me too".into(),
                via: Via::default()
            })
            .await
            .unwrap()
    );
    let pause = queue.paused().await.unwrap().unwrap();
    assert_eq!(
        (pause.by.as_str(), pause.why.as_str()),
        ("alice", "a test"),
        "the first pause stays"
    );

    assert!(queue.resume_all(&Attribution::default()).await.unwrap());
    assert!(!queue.resume_all(&Attribution::default()).await.unwrap());
    tokio::time::timeout(SOON, bell.recv())
        .await
        .expect("a notification arrives")
        .unwrap();
    assert_eq!(queue.paused().await.unwrap(), None);
    let lines = audit(&database).await;
    assert_eq!(
        lines.iter().map(|line| line.1.as_str()).collect::<Vec<_>>(),
        ["all.pause", "all.resume"]
    );
}

// === rights ===

#[tokio::test]
async fn nobody_may_operate_until_let_and_one_grant_is_enough_for_one_job() {
    let (database, queue) = queue().await;
    let id = enqueue(&queue, job("t", "")).await;
    let role = format!("operator_{}", unique());
    let mut connection = PgConnection::connect(&database.superuser_url())
        .await
        .unwrap();
    let run = async |connection: &mut PgConnection, sql: &str| {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(connection)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    };
    run(
        &mut connection,
        &format!("create role {role}; grant usage on schema flyball to {role}"),
    )
    .await
    .unwrap();
    run(
        &mut connection,
        &format!("set session authorization {role}"),
    )
    .await
    .unwrap();
    let forbidden = [
        "job_state(1)",
        "cancel(1)",
        "retry(1)",
        "reschedule(1, now())",
        "discard(1)",
        "cancel_jobs('http')",
        "purge_lane('t', '')",
        "requeue_dead('http')",
        "discard_dead('http')",
        "pause_all()",
        "resume_all()",
        "set_weight('t', '', 1)",
        "signed('x')",
        "write_audit(null, 'a', 'b', 'c', null, null, '')",
        "id_at(now())",
    ];
    for call in forbidden {
        let error = run(&mut connection, &format!("select flyball.{call}"))
            .await
            .unwrap_err();
        assert!(
            error.contains("permission denied for function"),
            "{call}: {error}"
        );
    }

    run(&mut connection, "reset session authorization")
        .await
        .unwrap();
    run(
        &mut connection,
        &format!("grant execute on function flyball.cancel to {role}"),
    )
    .await
    .unwrap();
    run(
        &mut connection,
        &format!("set session authorization {role}"),
    )
    .await
    .unwrap();
    let said: String = sqlx::query_scalar(AssertSqlSafe(format!(
        "select flyball.cancel({id}, by => 'the boss')"
    )))
    .fetch_one(&mut connection)
    .await
    .unwrap();

    assert_eq!(said, "cancelled");
    let lines = audit(&database).await;
    assert_eq!(lines[0].0, role, "only the owner signs for others");
    run(&mut connection, "reset session authorization")
        .await
        .unwrap();
    run(
        &mut connection,
        &format!("revoke all on function flyball.cancel from {role}; revoke all on schema flyball from {role}; drop role {role}"),
    )
    .await
    .unwrap();
}

// === finding ===

/// Everything that a search finds, page by page, with the number of pages.
async fn pages(queue: &Queue, filter: &JobFilter) -> (Vec<i64>, usize) {
    let mut filter = filter.clone();
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = queue.page(&filter).await.unwrap();
        assert!(page.jobs.len() as i64 <= filter.limit);
        found.extend(page.jobs.iter().map(|job| job.id));
        pages += 1;
        filter.before = page.next;
        if filter.before.is_none() {
            return (found, pages);
        }
    }
}

#[tokio::test]
async fn a_search_finds_every_job_that_it_names_once_newest_first() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let mut by_state: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
    let endings = [
        (Ending::Completed, "completed"),
        (Ending::Dead { error: "x".into() }, "dead"),
        (Ending::Cancelled, "cancelled"),
        (
            Ending::Failed {
                delay: SOON,
                error: "x".into(),
            },
            "retryable",
        ),
    ];
    for (ending, word) in endings {
        queue
            .enqueue(
                &(0..9)
                    .map(|i| job(["t", "u"][i % 2], ["a", "b", ""][i % 3]))
                    .collect::<Vec<_>>(),
            )
            .await
            .unwrap();
        by_state.insert(
            word,
            end_all(&queue, worker, ending).await.into_iter().collect(),
        );
    }
    queue
        .enqueue(
            &(0..9)
                .map(|i| job(["t", "u"][i % 2], ["a", "b", ""][i % 3]))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    by_state.insert("running", claim(&queue, worker).await.into_iter().collect());
    let mut jobs: Vec<NewJob> = (0..30)
        .map(|i| job(["t", "u"][i % 2], ["a", "b", ""][i % 3]))
        .collect();
    jobs.iter_mut()
        .enumerate()
        .for_each(|(i, job)| job.priority = i as i32 % 4);
    jobs[3].kind = "reindex".into();
    let ready: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    by_state.insert("ready", ready.iter().copied().collect());
    by_state.insert("scheduled", BTreeSet::from([later(&queue, "t", "a").await]));
    let newest_first = |ids: &BTreeSet<i64>| ids.iter().rev().copied().collect::<Vec<_>>();
    let all: BTreeSet<i64> = by_state.values().flatten().copied().collect();

    for limit in [4, 100] {
        let open = JobFilter {
            limit,
            ..JobFilter::default()
        };
        assert_eq!(pages(&queue, &open).await.0, newest_first(&all));
        for (word, ids) in &by_state {
            let state = serde_json::from_value(json!(word)).unwrap();
            let filter = JobFilter {
                state: Some(state),
                ..open.clone()
            };
            assert_eq!(pages(&queue, &filter).await.0, newest_first(ids), "{word}");
            assert_eq!(
                queue
                    .list(&JobFilter {
                        limit: 1000,
                        ..filter
                    })
                    .await
                    .unwrap()
                    .len(),
                ids.len(),
                "{word}"
            );
        }
        let ended: BTreeSet<i64> = ["completed", "cancelled", "dead"]
            .iter()
            .flat_map(|word| &by_state[word])
            .copied()
            .collect();
        assert_eq!(
            pages(
                &queue,
                &JobFilter {
                    ended: true,
                    ..open.clone()
                }
            )
            .await
            .0,
            newest_first(&ended)
        );
        let lane = JobFilter {
            throttle: Some("t".into()),
            key: Some("a".into()),
            state: Some(State::Ready),
            ..open.clone()
        };
        let of_lane: BTreeSet<i64> = ready
            .iter()
            .enumerate()
            .filter(|(i, _)| i % 2 == 0 && i % 3 == 0)
            .map(|(_, id)| *id)
            .collect();
        assert_eq!(pages(&queue, &lane).await.0, newest_first(&of_lane));
        let kind = JobFilter {
            kind: Some("reindex".into()),
            ..open.clone()
        };
        assert_eq!(pages(&queue, &kind).await.0, [ready[3]]);
        let nothing = JobFilter {
            key: Some("nobody".into()),
            ..open
        };
        assert_eq!(pages(&queue, &nothing).await.0, Vec::<i64>::new());
    }
}

/// Many finished jobs over some days and as many that wait, written straight into the tables.
const MANY: &str = "
with days as (
    select d, flyball.day_of(now()) - d as day from generate_series(0, 3) d
),
made as (
    insert into flyball.job (id, lane_id, priority, max_attempts, cost, created_at, kind, throttle, key, args)
    select (day << 38) | (1000000 + i), flyball.lane_of('t' || i % 3, 'k' || i % 50), i % 4, 10, 1,
        date_trunc('day', now(), 'UTC') - d * interval '1 day' + i * interval '3.4 s',
        case when i % 1000 = 0 then 'reindex' else 'http' end, 't' || i % 3, 'k' || i % 50, '{}'
    from days, generate_series(1, 25000) i
    returning id, lane_id, priority, created_at
),
waiting as (
    insert into flyball.ready (lane_id, priority, job_id, cost)
    select lane_id, priority, id, 1 from made where id % 2 = 0
)
insert into flyball.attempt (job_id, attempt, outcome, started_at, finished_at)
select id, 1, 'completed', created_at, created_at from made where id % 2 = 1";

#[tokio::test]
async fn no_search_walks_over_more_than_a_bounded_number_of_rows_and_none_scans_a_table() {
    let (database, queue) = queue().await;
    sqlx::query(
        "select flyball.ensure_day(flyball.day_of(now()) - i) from generate_series(1, 3) as i",
    )
    .execute(database.pool())
    .await
    .unwrap();
    sqlx::query(MANY).execute(database.pool()).await.unwrap();
    let mut connection = queue.pool.acquire().await.unwrap();

    // What the queue itself sends for a page that will not fill, at its largest step.
    let worst = [
        ("list", "null, null, null, 'nobody'"),
        ("list", "'{cancelled}', null, null, null"),
        ("list", "'{ready}', 'http', 't1', null"),
        ("list ready of lane", "'{ready}', 'nothing', 't1', 'k1'"),
        ("list running", "'{running}', null, null, null"),
        ("list scheduled", "'{retryable}', null, null, null"),
        ("list dead", "'{dead}', null, null, null"),
    ];
    for statistics in ["stale", "fresh"] {
        if statistics == "fresh" {
            sqlx::query("analyze")
                .execute(database.pool())
                .await
                .unwrap();
        }
        for (name, filter) in worst {
            let (_, sql) = STATEMENTS.iter().find(|(known, _)| *known == name).unwrap();
            let types = "text[], text, text, text, bigint, bigint, timestamptz, timestamptz, bigint, bigint, bigint";
            let prepared = format!("prepare walk ({types}) as {sql}");
            connection.execute(AssertSqlSafe(prepared)).await.unwrap();
            let explain = format!(
                "explain (analyze, buffers, format json) execute walk({filter}, 9223372036854775807, 0, null, null, 10000, 1000, 100)"
            );
            let plan: Value = sqlx::raw_sql(AssertSqlSafe(explain))
                .fetch_one(&mut *connection)
                .await
                .unwrap()
                .get(0);
            connection.execute("deallocate walk").await.unwrap();
            let text = plan.to_string();
            let blocks = plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap()
                + plan[0]["Plan"]["Shared Read Blocks"].as_i64().unwrap();
            assert!(
                blocks < 25_000,
                "{name} {filter}, {statistics} statistics: {blocks} blocks"
            );
            assert!(!text.contains("\"Seq Scan\""), "{name}: {text}");
            assert!(!text.contains("\"Hash"), "{name}: {text}");
        }
    }
    drop(connection);

    let (found, pages) = pages(
        &queue,
        &JobFilter {
            kind: Some("reindex".into()),
            limit: 10,
            ..JobFilter::default()
        },
    )
    .await;
    assert_eq!(found.len(), 100);
    assert!(found.is_sorted_by(|a, b| a > b) && pages >= 10, "{pages}");
}

#[tokio::test]
async fn a_search_by_time_looks_only_where_such_jobs_can_be() {
    let (database, queue) = queue().await;
    sqlx::query(
        "select flyball.ensure_day(flyball.day_of(now()) - i) from generate_series(1, 3) as i",
    )
    .execute(database.pool())
    .await
    .unwrap();
    sqlx::query(MANY).execute(database.pool()).await.unwrap();
    let midnight: i64 =
        sqlx::query_scalar("select extract(epoch from date_trunc('day', now(), 'UTC'))::bigint")
            .fetch_one(database.pool())
            .await
            .unwrap();
    let at = |hours: i64| Timestamp::from_second(midnight + hours * 3600).unwrap();

    for (from, to) in [
        (Some(-36), Some(-34)),
        (Some(-25), Some(-23)),
        (None, Some(-71)),
        (Some(-80), Some(-71)),
        (Some(-1000), Some(-100)),
    ] {
        let filter = JobFilter {
            created_after: from.map(at),
            created_before: to.map(at),
            limit: 1000,
            ..JobFilter::default()
        };
        let wanted: Vec<i64> = sqlx::query_scalar(
            "select id from flyball.job where ($1::bigint is null or created_at >= to_timestamp($1)) and ($2::bigint is null or created_at < to_timestamp($2)) order by id desc",
        )
        .bind(filter.created_after.map(|at| at.as_second()))
        .bind(filter.created_before.map(|at| at.as_second()))
        .fetch_all(database.pool())
        .await
        .unwrap();
        let (found, pages) = pages(&queue, &filter).await;
        assert_eq!(found, wanted, "{from:?} {to:?}");
        assert!(
            pages <= 2 + wanted.len() / 200,
            "{from:?} {to:?}: {pages} pages for {} jobs",
            wanted.len()
        );
    }
}

#[tokio::test]
async fn the_attempts_of_a_job_are_listed_newest_first_page_by_page() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue).await;
    let id = enqueue(&queue, job("t", "")).await;
    for i in 0..5 {
        end_all(
            &queue,
            worker,
            Ending::Throttled {
                alone: None,
                error: format!("429 number {i}"),
            },
        )
        .await;
    }

    let first = queue.attempts(id, None, 3).await.unwrap();
    let rest = queue
        .attempts(id, Some(first[2].finished_at), 3)
        .await
        .unwrap();

    let errors: Vec<_> = first
        .iter()
        .chain(&rest)
        .map(|attempt| attempt.error.clone().unwrap())
        .collect();
    assert_eq!(
        errors,
        (0..5)
            .rev()
            .map(|i| format!("429 number {i}"))
            .collect::<Vec<_>>()
    );
}
