//! The checkpoint that an attempt leaves, and its use by the next one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::Outcome;
use flyball::reindex::catalogue::DatabaseRights;
use flyball::reindex::sink::{ElasticSink, PostgresSink, Sink, WriteError, WriteOutcome};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::source::{DocumentPage, DocumentSource, Error};
use flyball::reindex::{Args, Catalogue, Document, ReindexDatabase, backfill::backfill};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::reindex::backfill::{all, run};
use crate::reindex::fakes::{Hands, Index, Numbers, job};
use crate::support::database;

/// A source whose first page is never read to its end, as if a document in it killed the worker.
struct DeadlyPage;

impl DocumentSource for DeadlyPage {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async { Ok(Some(10)) })
    }

    fn page<'a>(
        &'a self,
        _: Option<&'a [String]>,
        _: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        Box::pin(std::future::pending())
    }
}

/// Runs an attempt to copy the documents of this source.
async fn attempt(source: Arc<dyn DocumentSource>, sink: Arc<dyn Sink>, hands: &Hands) -> Outcome {
    let job = job(json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers"},
    }));
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&job.args, &free).unwrap();
    backfill(&job, &hands.context(), &args, source, sink).await
}

/// Moves the cursor back to the fifth of ten numbers, as if the worker had died there.
fn move_back(hands: &Hands) {
    let mut kept = hands.checkpoints.kept.lock().unwrap();
    let half = kept.as_mut().unwrap();
    half.cursor["key"] = json!(["5"]);
    half.done = 5;
}

#[tokio::test]
async fn an_attempt_in_which_nothing_came_forward_leaves_no_checkpoint_and_so_is_used() {
    let hands = Hands::at("-1");
    let asked = Elastic {
        url: "http://127.0.0.1:9".into(),
        index: "numbers".into(),
        ..Elastic::default()
    };
    let sink: Arc<dyn Sink> = Arc::new(ElasticSink::new(reqwest::Client::new(), asked));

    let attempt = attempt(Arc::new(DeadlyPage), sink, &hands);
    // Real time: a checkpoint is saved at once and then every second.
    let ended = tokio::time::timeout(Duration::from_millis(1500), attempt).await;

    assert!(ended.is_err());
    assert!(hands.checkpoints.kept.lock().unwrap().is_none());
}

#[tokio::test]
async fn a_cursor_in_other_rows_than_the_settings_name_now_is_not_resumed() {
    for (table, sent_again) in [("numbers", 5), ("others", 10)] {
        let (index, url) = Index::start().await;
        let hands = Hands::at("-1");
        run(10, &url, &hands, json!({})).await;
        move_back(&hands);

        let source = json!({"type": "postgres", "table": table, "key": "id"});
        let outcome = run(10, &url, &hands, json!({"source": source})).await;

        assert_eq!(outcome, Outcome::Done);
        assert_eq!(index.sent(), 10 + sent_again, "{table}");
    }
}

#[tokio::test]
async fn a_job_whose_end_was_not_recorded_is_not_copied_again() {
    let (index, url) = Index::start().await;
    let hands = Hands::at("-1");

    for _ in 0..2 {
        assert_eq!(run(10, &url, &hands, json!({})).await, Outcome::Done);
        assert_eq!(hands.note(), "10 documents, all read");
    }

    assert_eq!(index.sent(), 10);
}

#[tokio::test]
async fn an_index_that_was_deleted_is_filled_from_the_beginning() {
    let (index, url) = Index::start().await;
    let gone = ("7".to_owned(), (404, "index_not_found_exception"));
    index.busy.lock().unwrap().extend([gone]);
    let hands = Hands::at("-1");
    let slices = json!({"batch_docs": 1, "concurrency": 1});
    let Outcome::Dead { error } = run(10, &url, &hands, slices.clone()).await else {
        panic!("there is no index")
    };
    assert!(error.contains("scans from the beginning"), "{error}");
    assert_eq!(hands.cursor(), 6);

    index.busy.lock().unwrap().clear();
    index.documents.lock().unwrap().clear();
    assert_eq!(run(10, &url, &hands, slices).await, Outcome::Done);
    assert_eq!(index.ids(), all(10));
}

/// An index that may not be made and does not exist in the requests whose answer is false.
struct UnstableIndex(Mutex<VecDeque<bool>>);

impl Sink for UnstableIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        let is_there = self.0.lock().unwrap().pop_front().unwrap_or(true);
        Box::pin(async move {
            match is_there {
                true => Ok(vec![WriteOutcome::Stored; documents.len()]),
                false => Err(WriteError::Absent("403 may not be made".to_owned())),
            }
        })
    }
}

#[tokio::test]
async fn an_index_that_may_not_be_made_is_waited_for_unless_it_was_there_before() {
    let copy = async |answers: &[bool]| {
        let index = UnstableIndex(Mutex::new(answers.iter().copied().collect()));
        attempt(Arc::new(Numbers(10)), Arc::new(index), &Hands::at("-1")).await
    };

    assert_eq!(copy(&[false, true]).await, Outcome::Done);
    let Outcome::Dead { error } = copy(&[true, false]).await else {
        panic!("the index was deleted")
    };
    assert!(error.contains("scans from the beginning"), "{error}");
}

/// An index that has these identities when it is asked, and counts its documents.
struct RemadeIndex {
    identities: Mutex<VecDeque<&'static str>>,
    stored: AtomicUsize,
    published: AtomicUsize,
}

impl Sink for RemadeIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn identity(&self) -> BoxFuture<'_, Option<String>> {
        let identity = self.identities.lock().unwrap().pop_front();
        Box::pin(async move { identity.map(str::to_owned) })
    }

    fn publish(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        self.published.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        self.stored.fetch_add(documents.len(), Ordering::SeqCst);
        Box::pin(async move { Ok(vec![WriteOutcome::Stored; documents.len()]) })
    }
}

/// Runs an attempt into an index of these identities; returns the outcome, the number of documents
/// that were stored, and how often the index was published.
async fn copy_into(identities: [&'static str; 2], hands: &Hands) -> (Outcome, usize, usize) {
    let index = Arc::new(RemadeIndex {
        identities: Mutex::new(identities.into()),
        stored: AtomicUsize::new(0),
        published: AtomicUsize::new(0),
    });
    let outcome = attempt(Arc::new(Numbers(10)), index.clone(), hands).await;
    let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
    (outcome, count(&index.stored), count(&index.published))
}

#[tokio::test]
async fn an_index_that_was_made_again_is_filled_from_the_beginning() {
    let hands = Hands::at("-1");

    // While it was filled, which the end of the scan shows.
    let (outcome, _, published) = copy_into(["a", "b"], &hands).await;
    let Outcome::Dead { error } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.contains("deleted and made again"), "{error}");
    assert_eq!(published, 0);
    assert_eq!(copy_into(["b", "b"], &hands).await, (Outcome::Done, 10, 1));

    // Between two attempts.
    for (identities, stored, published) in [(["b", "b"], 5, 0), (["c", "c"], 10, 1)] {
        move_back(&hands);
        let copied = copy_into(identities, &hands).await;
        assert_eq!(copied, (Outcome::Done, stored, published), "{identities:?}");
    }
}

#[tokio::test]
async fn a_table_that_was_dropped_is_filled_from_the_beginning() {
    let database = database().await;
    let hands = Hands::at("-1");
    let copy = async || {
        let sink = PostgresSink::open(
            ReindexDatabase::of(database.pool()),
            &DatabaseRights::default(),
            &["kept".to_owned()],
            None,
            "simple",
            2,
        );
        attempt(Arc::new(Numbers(10)), Arc::new(sink), &hands).await
    };
    assert_eq!(copy().await, Outcome::Done);
    move_back(&hands);
    let drop_table = sqlx::query("drop table kept").execute(database.pool());
    drop_table.await.unwrap();

    assert_eq!(copy().await, Outcome::Done);

    let stored = sqlx::query_scalar("select count(*) from kept");
    let stored: i64 = stored.fetch_one(database.pool()).await.unwrap();
    assert_eq!(stored, 10);
}
