//! A worker whose throttle store panics.

use std::sync::Arc;

use flyball::runner::{Worker, WorkerMetrics};

use super::fixture::{SOON, WorkerFixture, quick};
use crate::support::observed_store::ObservedStore;

#[tokio::test]
async fn a_worker_whose_loop_dies_of_a_defect_says_so_and_can_be_stopped() {
    let fixture = WorkerFixture::new().await;
    fixture.enqueue("noop", "fast", "", 1).await;
    let broken = ObservedStore::new(fixture.store.clone(), |_, _| panic!("a defect"));
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let worker = Worker::start(
        quick(),
        fixture.queue.clone(),
        Arc::new(broken),
        fixture.kinds.clone(),
        metrics,
    )
    .await
    .unwrap();

    let lost = tokio::time::timeout(SOON, worker.lost()).await.unwrap();

    assert_eq!(lost, "dispatch");
    worker.stop().await;
    assert_eq!(fixture.queue.live_workers().await.unwrap(), 0);
}
