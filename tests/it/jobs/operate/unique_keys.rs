//! Unique keys of dead jobs that run again.

use std::collections::BTreeSet;

use flyball::jobs::postgres::{Ending, Finish};
use flyball::jobs::{BulkCursor, DeadFilter, NewJob, Queue, RetryAnswer};

use super::fixture::{FENCE, claim, count, die, end_all, enqueue, job, queue, signed, worker};

/// Completes every ready job.
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
