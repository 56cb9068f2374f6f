//! The waits of one job go before those of its kind.

use std::time::Duration;

use flyball::jobs::{JobRetry, NewJob, Outcome, State};
use serde_json::json;

use super::fixture::{WorkerFixture, counter, quick};

#[tokio::test]
async fn a_failed_job_waits_as_it_says_and_its_neighbour_as_its_kind_says() {
    let mut fixture = WorkerFixture::new().await;
    let (_, run) = counter(Outcome::Retry {
        after: None,
        error: "no".into(),
    });
    fixture.kind("failing", run);
    fixture.register("failing").await;
    let job = || NewJob::new("failing", json!({})).throttle("fast");
    let own = job().retry(JobRetry::every(Duration::from_secs(1000)));
    let quick_one = job()
        .max_attempts(4)
        .retry(JobRetry::every(Duration::from_millis(20)));
    let made = fixture
        .queue
        .enqueue(&[own, quick_one, job()])
        .await
        .unwrap();
    let worker = fixture.worker(quick()).await;

    fixture.until(made[0].id, State::Retryable).await;
    fixture.until(made[1].id, State::Dead).await;
    let own = fixture.queue.get(made[0].id).await.unwrap().unwrap();
    let wait = own
        .summary
        .due_at
        .unwrap()
        .duration_since(own.attempts[0].finished_at);
    assert!(
        (495..=1001).contains(&wait.as_secs()),
        "{wait:?} is not between half of 1000 s and all of it"
    );
    fixture.until(made[2].id, State::Retryable).await;
    let plain = fixture.queue.get(made[2].id).await.unwrap().unwrap();
    let last = plain.attempts.last().unwrap();
    let wait = plain
        .summary
        .due_at
        .unwrap()
        .duration_since(last.finished_at);
    assert!(
        wait.as_secs() < 100,
        "{wait:?} is by the policy of the kind"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_wait_that_the_handler_names_goes_before_that_of_the_job() {
    let mut fixture = WorkerFixture::new().await;
    let (_, run) = counter(Outcome::Retry {
        after: Some(Duration::from_secs(3000)),
        error: "later".into(),
    });
    fixture.kind("failing", run);
    fixture.register("failing").await;
    let job = NewJob::new("failing", json!({}))
        .throttle("fast")
        .retry(JobRetry::every(Duration::from_secs(10)));
    let id = fixture.queue.enqueue(&[job]).await.unwrap()[0].id;
    let worker = fixture.worker(quick()).await;

    fixture.until(id, State::Retryable).await;
    let found = fixture.queue.get(id).await.unwrap().unwrap();
    let wait = found
        .summary
        .due_at
        .unwrap()
        .duration_since(found.attempts[0].finished_at);
    assert!((2990..=3001).contains(&wait.as_secs()), "{wait:?}");
    worker.stop().await;
}
