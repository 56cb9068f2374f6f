//! Operations on one job: rescheduling, discarding, retrying, cancelling.

use std::collections::BTreeMap;
use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish};
use flyball::jobs::{CancelAnswer, MoveAnswer, RetryAnswer, State};
use jiff::Timestamp;
use serde_json::json;

use super::fixture::{
    FENCE, SOON, audit, claim, die, end_all, enqueue, job, later, now, queue, refused, signed,
    state, worker,
};

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
    let output: Vec<String> = audit(&database)
        .await
        .into_iter()
        .map(|line| format!("{} {} {}", line.0, line.1, line.2))
        .collect();
    assert_eq!(
        output,
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
        let output: String = sqlx::query_scalar("select flyball.job_state($1)")
            .bind(id)
            .fetch_one(database.pool())
            .await
            .unwrap();
        assert_eq!(output, word);
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
