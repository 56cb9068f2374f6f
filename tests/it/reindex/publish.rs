//! The end of a reindex, at which its index becomes visible.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flyball::jobs::Outcome;
use flyball::reindex::sink::{Sink, WriteError, WriteOutcome};
use flyball::reindex::{Args, Catalogue, Document, backfill::backfill};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::reindex::fakes::{Hands, Memory, Numbers, job};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(30);

/// An index that never answers when it is to become visible.
#[derive(Default)]
struct HiddenIndex {
    /// The checkpoints whose lease another worker takes with the first request.
    stolen: Option<Arc<Memory>>,
    asked: AtomicUsize,
}

impl Sink for HiddenIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn publish(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        if let Some(checkpoints) = &self.stolen {
            checkpoints.fence.store(1, Ordering::SeqCst);
        }
        Box::pin(async move { Ok(vec![WriteOutcome::Stored; documents.len()]) })
    }
}

async fn run(index: Arc<HiddenIndex>, hands: &Hands) -> Outcome {
    let job = job(json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers", "alias": "all"},
    }));
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&job.args, &free).unwrap();
    let context = hands.context();
    let attempt = backfill(&job, &context, &args, Arc::new(Numbers(10)), index);
    tokio::time::timeout(SOON, attempt).await.unwrap()
}

#[tokio::test]
async fn a_cancelled_job_does_not_wait_for_its_index_to_become_visible() {
    let (index, hands) = (Arc::new(HiddenIndex::default()), Hands::at("-1"));
    let cancel = async {
        eventually("all is stored", SOON, || async {
            (index.asked.load(Ordering::SeqCst) == 1).then_some(())
        })
        .await;
        assert_eq!(hands.cursor(), 10, "saved before");
        hands.cancelled.cancel();
    };

    let (outcome, ()) = tokio::join!(run(index.clone(), &hands), cancel);

    assert_eq!(outcome, Outcome::HandedBack);
}

#[tokio::test]
async fn a_worker_that_has_lost_the_job_does_not_make_the_index_visible() {
    let hands = Hands::at("-1");
    let index = Arc::new(HiddenIndex {
        stolen: Some(hands.checkpoints.clone()),
        asked: AtomicUsize::new(0),
    });

    let outcome = run(index.clone(), &hands).await;

    assert_eq!(outcome, Outcome::HandedBack);
    assert_eq!(index.asked.load(Ordering::SeqCst), 0);
}
