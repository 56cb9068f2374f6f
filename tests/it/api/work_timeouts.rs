//! Timeouts of attempts in other programs: those of the job, and those of its kind.

use std::time::Duration;

use flyball::jobs::{NewJob, State};
use serde_json::{Value, json};

use super::work::WorkFixture;

/// Claims a job with a lease that is longer than its timeout, and reports progress.
async fn begin(world: &WorkFixture, kind: &str, page: i32) -> Value {
    let more = json!({"kinds": [kind], "lease_s": 60});
    let job = world.claim("w1", 1, more).await.remove(0);
    assert_eq!(job["timeout_s"], 3.0);
    let progress = json!({"checkpoint": {"page": page}, "progress": {"done": page}});
    let (status, answer) = world.call(&job, "heartbeat", progress).await;
    assert_eq!(status, 200, "{answer}");
    job
}

fn errors(shown: &Value) -> Vec<(&str, &str)> {
    let attempts = shown["attempts"].as_array().unwrap().iter();
    let told = attempts.map(|one| (one["outcome"].as_str(), one["error"].as_str()));
    told.map(|(outcome, error)| (outcome.unwrap(), error.unwrap()))
        .collect()
}

#[tokio::test]
async fn an_attempt_that_reaches_its_timeout_is_used_whatever_progress_it_has_reported() {
    let world = WorkFixture::new().await;
    let id = world
        .enqueue(1, |job| NewJob {
            max_attempts: 2,
            ..job.timeout(Duration::from_secs(3))
        })
        .await[0];

    for attempt in [1, 2] {
        let job = begin(&world, "render", attempt).await;
        assert_eq!(job["attempt"], attempt);
    }

    world.server.until(id, State::Dead).await;
    let shown = world.show(id).await;
    assert_eq!(shown["last_error"], "timed out after 3 s");
    assert_eq!(errors(&shown), [("lost", "timed out after 3 s"); 2]);
    world.stop().await;
}

#[tokio::test]
async fn the_timeout_of_a_kind_holds_for_its_jobs_without_one() {
    let world = WorkFixture::new().await;
    world.server.register("hasty").await;
    let id = world
        .enqueue(1, |job| NewJob {
            kind: "hasty".into(),
            max_attempts: 1,
            ..job
        })
        .await[0];

    begin(&world, "hasty", 1).await;

    world.server.until(id, State::Dead).await;
    let shown = world.show(id).await;
    assert_eq!(shown["last_error"], "timed out after 3 s");
    world.stop().await;
}
