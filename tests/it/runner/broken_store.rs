//! A worker whose throttle store panics.

use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use flyball::runner::{Worker, WorkerMetrics};
use flyball::throttle::rolling_window::WindowUsage;
use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Error, Holder, KeyOutcomes, KeyState, Name, RateLimit,
    Refund, RefusalEffect, Status, Store, UpstreamRefusal,
};

use super::fixture::{SOON, WorkerFixture, quick};

/// A store that panics on every call.
struct Broken;

impl Store for Broken {
    fn set_workers(&self, _: u32) {}

    fn acquire<'a>(&'a self, _: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        panic!("a defect")
    }

    fn peek<'a>(&'a self, _: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        unimplemented!()
    }

    fn hold<'a>(
        &'a self,
        _: &'a Name,
        _: &'a Holder,
        _: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        unimplemented!()
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        unimplemented!()
    }

    fn persist<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn was_taken_away<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        unimplemented!()
    }

    fn refused<'a>(
        &'a self,
        _: &'a Name,
        _: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        unimplemented!()
    }

    fn ended<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn refund_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn settle_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn pause_key<'a>(
        &'a self,
        _: &'a Name,
        _: &'a str,
        _: Duration,
        _: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        unimplemented!()
    }

    fn resume_key<'a>(&'a self, _: &'a Name, _: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        unimplemented!()
    }

    fn status<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        unimplemented!()
    }

    fn window_usage<'a>(
        &'a self,
        _: &'a Name,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<WindowUsage>, Error>> {
        unimplemented!()
    }

    fn delete<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        unreachable!("no test deletes a throttle here")
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        unimplemented!()
    }

    fn set_capacity<'a>(
        &'a self,
        _: &'a Name,
        _: RateLimit,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        unimplemented!()
    }

    fn look<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>> {
        unimplemented!()
    }

    fn set<'a>(
        &'a self,
        _: &'a Name,
        _: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        unimplemented!()
    }
}

#[tokio::test]
async fn a_worker_whose_loop_dies_of_a_defect_says_so_and_can_be_stopped() {
    let fixture = WorkerFixture::new().await;
    fixture.enqueue("noop", "fast", "", 1).await;
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let worker = Worker::start(
        quick(),
        fixture.queue.clone(),
        Arc::new(Broken),
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
