//! The pace of a reindex while somebody turns its rate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::Outcome;
use flyball::reindex::sink::{Sink, WriteError, WriteOutcome};
use flyball::reindex::source::{DocumentPage, DocumentSource, Error};
use flyball::reindex::{Action, Args, Catalogue, Document, backfill::backfill};
use flyball::throttle::{AcquireRequest, LaneRequest, Name, Store};
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::reindex::fakes::{Hands, Numbers, job};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(60);

/// Numbers, of which those after `first` wait for the gate.
struct GatedNumbers {
    numbers: Numbers,
    first: u64,
    gate: Semaphore,
}

impl DocumentSource for GatedNumbers {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.numbers.estimate()
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        Box::pin(async move {
            if after.is_some_and(|key| key[0].parse::<u64>().unwrap() >= self.first) {
                let _open = self.gate.acquire().await.unwrap();
            }
            self.numbers.page(after, limit).await
        })
    }
}

/// Numbers in documents of 100 kB, which are counted when they are read.
struct LargeNumbers {
    numbers: Numbers,
    body: Arc<str>,
    read: AtomicUsize,
}

impl DocumentSource for LargeNumbers {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.numbers.estimate()
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        Box::pin(async move {
            let mut page = self.numbers.page(after, limit).await?;
            for document in &mut page.documents {
                document.action = Action::Store(self.body.clone());
            }
            self.read.fetch_add(page.documents.len(), Ordering::SeqCst);
            Ok(page)
        })
    }
}

/// An index that answers while its gate is open, and refuses an empty request.
struct GatedIndex {
    /// The number of documents of each request.
    sizes: Mutex<Vec<usize>>,
    gate: Semaphore,
}

impl GatedIndex {
    fn sent(&self) -> usize {
        self.sizes.lock().unwrap().iter().sum()
    }
}

impl Sink for GatedIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        Box::pin(async move {
            self.sizes.lock().unwrap().push(documents.len());
            if documents.is_empty() {
                return Err(WriteError::Wrong("400 request body is required".to_owned()));
            }
            let _open = self.gate.acquire().await.unwrap();
            Ok(vec![WriteOutcome::Stored; documents.len()])
        })
    }
}

#[tokio::test]
async fn a_rate_lowered_while_requests_hang_sends_what_was_paid_for_and_no_empty_request() {
    let source = Arc::new(GatedNumbers {
        numbers: Numbers(1000),
        first: 700,
        gate: Semaphore::new(0),
    });
    let index = Arc::new(GatedIndex {
        sizes: Mutex::default(),
        gate: Semaphore::new(0),
    });
    let hands = Hands::at("1000");
    let args = json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers"},
        "batch_docs": 100, "concurrency": 32,
    });
    let (job, context) = (job(args), hands.context());
    let (read, written) = (source.clone(), index.clone());
    let running = tokio::spawn(async move {
        let free = Catalogue {
            allow_queries: true,
            ..Catalogue::default()
        };
        let args = Args::parse(&job.args, &free).unwrap();
        backfill(&job, &context, &args, read, written).await
    });
    eventually("the first documents are in flight", SOON, || async {
        (index.sent() == 700).then_some(())
    })
    .await;

    // The next documents are granted at a rate that would not have let them be counted.
    hands.turn("5");
    let name = Name::new("reindex").unwrap();
    let ask = AcquireRequest {
        throttle: name.clone(),
        lanes: vec![LaneRequest {
            cost: 100.0,
            ..LaneRequest::default()
        }],
        holder: None,
    };
    eventually("the bucket is full", SOON, || async {
        (hands.throttles.peek(&ask).await.lanes[0].granted > 0).then_some(())
    })
    .await;
    source.gate.add_permits(1);
    eventually("they are sent", SOON, || async {
        (index.sent() > 700 || running.is_finished()).then_some(())
    })
    .await;

    let used = hands.throttles.status(&name).await.unwrap().unwrap().used;
    assert!((used - index.sent() as f64).abs() < 1e-6, "{used} tokens");
    hands.turn("-1");
    index.gate.add_permits(1);
    let outcome = tokio::time::timeout(SOON, running).await.unwrap().unwrap();
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(index.sent(), 1000);
    assert!(!index.sizes.lock().unwrap().contains(&0));
}

/// An index that takes longer than anyone waits for more than ten documents at once, or refuses
/// them.
struct SlowIndex {
    /// The number of documents of each request.
    sizes: Mutex<Vec<usize>>,
    /// The requests after which it is as fast as others.
    slow: usize,
    /// The reason of its refusal; `None` if it is only slow.
    refusal: Option<&'static str>,
}

impl Sink for SlowIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        let asked = {
            let mut sizes = self.sizes.lock().unwrap();
            sizes.push(documents.len());
            sizes.len()
        };
        let is_late = asked <= self.slow && documents.len() > 10;
        let bytes = documents.iter().map(Document::bytes).sum();
        let trouble = match self.refusal {
            Some(reason) => WriteError::Busy {
                retry_after: None,
                reason: reason.to_owned(),
            },
            None => WriteError::Late { bytes },
        };
        Box::pin(async move {
            match is_late {
                false => Ok(vec![WriteOutcome::Stored; documents.len()]),
                true => Err(trouble),
            }
        })
    }
}

/// Copies numbers into an index that is slow for its first requests; returns the size of each.
async fn sizes_while_slow(slow: usize, numbers: u64) -> Vec<usize> {
    let index = SlowIndex {
        sizes: Mutex::default(),
        slow,
        refusal: None,
    };
    sizes_sent_to(index, numbers).await
}

async fn sizes_sent_to(index: SlowIndex, numbers: u64) -> Vec<usize> {
    let index = Arc::new(index);
    let hands = Hands::at("-1");
    let args = json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers"},
        "batch_docs": 50, "concurrency": 1,
    });
    let (job, context) = (job(args), hands.context());
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&job.args, &free).unwrap();

    let source = Arc::new(Numbers(numbers));
    let copied = backfill(&job, &context, &args, source, index.clone());
    let outcome = tokio::time::timeout(SOON, copied).await.unwrap();

    assert_eq!(outcome, Outcome::Done);
    index.sizes.lock().unwrap().clone()
}

#[tokio::test]
async fn an_index_that_is_too_slow_for_a_request_gets_smaller_ones() {
    let sizes = sizes_while_slow(usize::MAX, 200).await;

    let late = sizes.iter().filter(|size| **size > 10).count();
    assert!((1..=3).contains(&late), "{sizes:?}");
}

#[tokio::test]
async fn an_index_without_the_memory_for_a_request_gets_smaller_ones() {
    let index = SlowIndex {
        sizes: Mutex::default(),
        slow: usize::MAX,
        refusal: Some("429 {\"error\":{\"type\":\"circuit_breaking_exception\"}}"),
    };

    let sizes = sizes_sent_to(index, 200).await;

    let refused = sizes.iter().filter(|size| **size > 10).count();
    assert!((1..=3).contains(&refused), "{sizes:?}");
}

#[tokio::test]
async fn requests_grow_again_once_an_index_that_was_slow_takes_them() {
    let sizes = sizes_while_slow(3, 5000).await;

    let smallest = sizes.iter().position(|size| *size <= 10).unwrap();
    assert!(sizes[smallest..].iter().any(|size| *size > 20), "{sizes:?}");
}

#[tokio::test]
async fn documents_that_wait_for_tokens_are_few_if_they_are_large() {
    let source = Arc::new(LargeNumbers {
        numbers: Numbers(2000),
        body: "x".repeat(100_000).into(),
        read: AtomicUsize::new(0),
    });
    let index = Arc::new(GatedIndex {
        sizes: Mutex::default(),
        gate: Semaphore::new(1),
    });
    let hands = Hands::at("0");
    let args = json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers"},
        "batch_docs": 10_000, "batch_bytes": 1_000_000,
    });
    let (job, context) = (job(args), hands.context());
    let (read, written) = (source.clone(), index.clone());
    let running = tokio::spawn(async move {
        let free = Catalogue {
            allow_queries: true,
            ..Catalogue::default()
        };
        let args = Args::parse(&job.args, &free).unwrap();
        backfill(&job, &context, &args, read, written).await
    });

    hands.refusals.again("reindex", "").await;

    // The first page, whose size nobody knew, and two more that are held behind it.
    let ahead = source.read.load(Ordering::SeqCst);
    assert!((100..200).contains(&ahead), "{ahead} documents were read");
    hands.turn("-1");
    let outcome = tokio::time::timeout(SOON, running).await.unwrap().unwrap();
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(index.sent(), 2000);
}
