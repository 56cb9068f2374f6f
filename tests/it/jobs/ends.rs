//! Ends of attempts: late results, lost workers, cancellation, retirement.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, Retention};
use flyball::jobs::{CancelAnswer, Checkpoint, Checkpoints, JobFilter, NewJob, RetryAnswer, State};
use flyball::reindex::Progress;
use flyball::reindex::progress::RefusedDocument;
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::fixture::{FENCE, claim_all, end, enqueue_one, http, queue, state, worker};
use crate::support::eventually;

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
        queue.failures(None, 10).await.unwrap().len(),
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
        "a worker declared dead learns of it"
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
async fn a_checkpoint_is_stored_whatever_its_note_quotes() {
    let (_database, queue) = queue().await;
    let checkpoints = flyball::jobs::postgres::PgCheckpoints::new(queue.pool.clone());
    let id = enqueue_one(&queue, http()).await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    assert_eq!(claim_all(&queue, worker, FENCE, 1).await.len(), 1);
    // The index quotes the document that it refused.
    let mut progress = Progress::resume(None);
    progress.advance(7, &["7".to_owned()]);
    progress.refuse(RefusedDocument::new("a\0b", "failed to parse [\0]"));
    progress.trouble = Some("the index is busy: \0".into());

    let at = progress.checkpoint(Duration::ZERO);
    checkpoints.store(id, FENCE, &at).await.unwrap();

    let kept = checkpoints.load(id).await.unwrap().unwrap();
    assert_eq!((kept.cursor, kept.done), (at.cursor, 7));
    assert!(
        kept.note.ends_with("; the index is busy: "),
        "{}",
        kept.note
    );
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
    // The request is in flight while the attempts end, and neither transaction sees the other.
    let mut connection = database.pool().acquire().await.unwrap();
    sqlx::raw_sql("begin")
        .execute(&mut *connection)
        .await
        .unwrap();
    for id in [waits, runs, unique] {
        let output: String = sqlx::query_scalar("select flyball.cancel($1)")
            .bind(id)
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        assert_eq!(output, "requested");
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

    // Housekeeping an hour later removes none of them.
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
async fn processes_with_the_role_runner_are_counted_beside_workers_in_other_programs() {
    let (database, queue) = queue().await;
    worker(&queue, Duration::from_secs(30)).await;
    let others = "insert into flyball.worker (name, host, pid, ttl, role)
        values ('pdf-1', '', 1, '1 hour', 'remote'), ('broker', '', 2, '1 hour', 'broker')";
    sqlx::query(others).execute(database.pool()).await.unwrap();

    let (workers, failing) = queue.workers_and_failing().await.unwrap();

    assert_eq!((workers.all, workers.runners), (2, 1));
    assert!(failing.is_empty());
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
