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

/// An index that refuses the first documents, as many as it is told, and counts how often it is to
/// become visible.
#[derive(Default)]
struct StrictIndex {
    refuses: usize,
    written: AtomicUsize,
    published: AtomicUsize,
}

impl Sink for StrictIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn publish(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        self.published.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        let first = self.written.fetch_add(documents.len(), Ordering::SeqCst);
        let outcome = |place| match place < self.refuses {
            true => WriteOutcome::Refused("400 illegal_argument_exception: no".to_owned()),
            false => WriteOutcome::Stored,
        };
        let places = first..first + documents.len();
        let outcomes: Vec<WriteOutcome> = places.map(outcome).collect();
        Box::pin(async move { Ok(outcomes) })
    }
}

async fn run(index: Arc<dyn Sink>, hands: &Hands) -> Outcome {
    run_with(index, hands, "dead_letter").await
}

async fn run_with(index: Arc<dyn Sink>, hands: &Hands, on_bad_document: &str) -> Outcome {
    let job = job(json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers", "alias": "all"},
        "on_bad_document": on_bad_document,
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

#[tokio::test]
async fn an_index_that_refuses_every_document_gets_no_alias_even_if_they_may_be_skipped() {
    let strict = |refuses| {
        Arc::new(StrictIndex {
            refuses,
            ..StrictIndex::default()
        })
    };

    let index = strict(10);
    let outcome = run_with(index.clone(), &Hands::at("-1"), "skip").await;
    let Outcome::Dead { error } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.contains("10 refused (1: 400 "), "{error}");
    assert_eq!(index.published.load(Ordering::SeqCst), 0);

    let index = strict(9);
    let outcome = run_with(index.clone(), &Hands::at("-1"), "skip").await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(index.published.load(Ordering::SeqCst), 1);
}
