//! A worker whose claims Postgres refuses, while its heartbeats get through.

use flyball::jobs::Outcome;

use super::fixture::{SOON, WorkerFixture, counter, quick};
use crate::support::eventually;

#[tokio::test]
async fn a_worker_whose_claims_fail_says_why_and_goes_on_by_itself() {
    let mut fixture = WorkerFixture::new().await;
    let (_, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    fixture.enqueue("noop", "fast", "", 1).await;
    fixture
        .refuse("before insert on flyball.lease", "no lease today")
        .await;
    let worker = fixture.worker(quick()).await;

    let failure = eventually("the worker says that its claims fail", SOON, || async {
        fixture.queue.claim_failures().await.unwrap().pop()
    })
    .await;

    assert!(failure.error.contains("no lease today"), "{failure:?}");
    sqlx::raw_sql("drop trigger refuse on flyball.lease")
        .execute(fixture.database.pool())
        .await
        .unwrap();
    fixture.until_done(1).await;
    worker.stop().await;
}
