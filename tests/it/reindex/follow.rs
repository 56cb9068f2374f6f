//! A reindex that follows its source: the end of the scan, and outages afterwards.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::Outcome;
use flyball::reindex::sink::{Sink, WriteError, WriteOutcome};
use flyball::reindex::source::{ChangePage, DocumentPage, DocumentSource, Error};
use flyball::reindex::{Action, Args, Catalogue, Document, backfill::backfill};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::reindex::fakes::{Hands, job};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(30);

/// A collection that is out of reach after its last page of changes.
struct Collection {
    documents: Vec<Document>,
    changes: Mutex<VecDeque<ChangePage>>,
}

impl Collection {
    /// A collection of two documents, whose log holds no change up to each of the positions.
    fn with(second: Action, positions: &[&str]) -> Self {
        let changes = positions.iter().map(|position| ChangePage {
            position: (*position).to_owned(),
            ..ChangePage::default()
        });
        Self {
            documents: vec![document("1", good()), document("2", second)],
            changes: Mutex::new(changes.collect()),
        }
    }
}

impl DocumentSource for Collection {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async { Ok(None) })
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        _: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        let documents = match after {
            None => self.documents.clone(),
            Some(_) => Vec::new(),
        };
        Box::pin(async move {
            Ok(DocumentPage {
                documents,
                more: false,
            })
        })
    }

    fn position(&self) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async { Ok("start".to_owned()) })
    }

    fn changes<'a>(&'a self, _: &'a str, _: usize) -> BoxFuture<'a, Result<ChangePage, Error>> {
        let page = self.changes.lock().unwrap().pop_front();
        Box::pin(async move { page.ok_or_else(|| Error::Lost("the connection is cut".to_owned())) })
    }
}

/// A collection whose log of changes never answers.
struct SilentCollection(Collection);

impl DocumentSource for SilentCollection {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.0.estimate()
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        self.0.page(after, limit)
    }

    fn position(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.0.position()
    }

    fn changes<'a>(&'a self, _: &'a str, _: usize) -> BoxFuture<'a, Result<ChangePage, Error>> {
        Box::pin(std::future::pending())
    }
}

/// A collection whose log of changes is shorter than a scan.
struct ForgetfulCollection {
    collection: Collection,
    /// The next answers of its log: true for a page without changes, after none that they are lost.
    answers: Mutex<VecDeque<bool>>,
    scans: Arc<AtomicUsize>,
}

impl DocumentSource for ForgetfulCollection {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.collection.estimate()
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        if after.is_none() {
            self.scans.fetch_add(1, Ordering::SeqCst);
        }
        self.collection.page(after, limit)
    }

    fn position(&self) -> BoxFuture<'_, Result<String, Error>> {
        self.collection.position()
    }

    fn changes<'a>(&'a self, _: &'a str, _: usize) -> BoxFuture<'a, Result<ChangePage, Error>> {
        let is_kept = self.answers.lock().unwrap().pop_front().unwrap_or_default();
        Box::pin(async move {
            match is_kept {
                true => Ok(ChangePage {
                    position: "later".to_owned(),
                    ..ChangePage::default()
                }),
                false => Err(Error::ChangesLost("the position is gone".to_owned())),
            }
        })
    }
}

/// An index that stores everything.
#[derive(Default)]
struct Index {
    published: AtomicUsize,
}

impl Sink for Index {
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
        Box::pin(async move { Ok(vec![WriteOutcome::Stored; documents.len()]) })
    }
}

/// An index that never answers, as if a document killed the worker.
struct DeadlyIndex;

impl Sink for DeadlyIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(
        &'a self,
        _: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        Box::pin(std::future::pending())
    }
}

fn document(id: &str, action: Action) -> Document {
    Document {
        key: Arc::from([id.to_owned()]),
        id: Some(id.to_owned()),
        routing: None,
        action,
    }
}

fn good() -> Action {
    Action::Store(Arc::from("{}"))
}

fn bad() -> Action {
    Action::Refuse("n is NaN".to_owned())
}

/// Runs one attempt; returns its outcome, and whether the index was published.
async fn run(source: impl DocumentSource, hands: &Hands, on_bad_document: &str) -> (Outcome, bool) {
    let (outcome, published) = attempt(source, hands, on_bad_document, "dead_letter").await;
    (outcome, published > 0)
}

/// Runs one attempt; returns its outcome, and how often the index was published.
async fn attempt(
    source: impl DocumentSource,
    hands: &Hands,
    on_bad_document: &str,
    on_lost_changes: &str,
) -> (Outcome, usize) {
    let index = Arc::new(Index::default());
    let attempt = copy(
        source,
        index.clone(),
        hands,
        on_bad_document,
        on_lost_changes,
    );
    let outcome = tokio::time::timeout(SOON, attempt).await.unwrap();
    (outcome, index.published.load(Ordering::SeqCst))
}

/// Runs one attempt into this index.
async fn copy(
    source: impl DocumentSource,
    sink: Arc<dyn Sink>,
    hands: &Hands,
    on_bad_document: &str,
    on_lost_changes: &str,
) -> Outcome {
    let job = job(json!({
        "source": {"type": "mongodb", "url_env": "REINDEX_DATABASE_X", "collection": "shop.articles", "follow": true,
            "on_lost_changes": on_lost_changes},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "articles"},
        "on_bad_document": on_bad_document,
    }));
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&job.args, &free).unwrap();
    backfill(&job, &hands.context(), &args, Arc::new(source), sink).await
}

#[tokio::test]
async fn a_refused_document_ends_the_job_at_the_end_of_the_scan_unless_it_may_be_skipped() {
    let hands = Hands::at("-1");
    let (outcome, is_published) = run(Collection::with(bad(), &[]), &hands, "dead_letter").await;
    let Outcome::Dead { error } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(error.contains("1 refused (2: n is NaN)"), "{error}");
    assert!(!is_published);

    // A retry scans again, and follows now that the document is good.
    let (outcome, is_published) = run(Collection::with(good(), &[]), &hands, "dead_letter").await;
    assert!(matches!(outcome, Outcome::Snooze { .. }), "{outcome:?}");
    assert!(is_published);

    let (outcome, is_published) = run(Collection::with(bad(), &[]), &Hands::at("-1"), "skip").await;
    assert!(matches!(outcome, Outcome::Snooze { .. }), "{outcome:?}");
    assert!(is_published);
}

#[tokio::test]
async fn an_outage_uses_no_attempt_of_a_job_that_followed_a_source_without_changes() {
    let hands = Hands::at("-1");
    run(Collection::with(good(), &[]), &hands, "dead_letter").await;

    let quiet = Collection::with(good(), &["later"]);
    let (outcome, _) = run(quiet, &hands, "dead_letter").await;
    assert!(matches!(outcome, Outcome::Snooze { .. }), "{outcome:?}");
    let kept = hands.checkpoints.kept.lock().unwrap().clone().unwrap();
    assert_eq!(kept.cursor["position"], "later");
    assert!(
        kept.note
            .ends_with("; the source did not answer: the connection is cut"),
        "{}",
        kept.note
    );
    assert!(!kept.note.contains("following"), "{}", kept.note);

    let away = Collection::with(good(), &[]);
    let (outcome, _) = run(away, &hands, "dead_letter").await;
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_job_whose_source_does_not_answer_does_not_claim_to_follow_it() {
    let hands = Hands::at("-1");
    let source = SilentCollection(Collection::with(good(), &[]));
    let noted = async {
        // Real time: a source is silent after some seconds.
        eventually("the silence is noted", SOON, || async {
            let note = hands.note();
            note.contains("; the source has not answered for ")
                .then_some(())
        })
        .await;
        hands.cancelled.cancel();
    };

    let ((outcome, _), ()) = tokio::join!(run(source, &hands, "dead_letter"), noted);

    assert_eq!(outcome, Outcome::HandedBack);
}

/// The death of its worker then uses an attempt.
#[tokio::test]
async fn an_attempt_that_has_not_stored_a_page_of_changes_leaves_no_checkpoint() {
    let hands = Hands::at("-1");
    run(Collection::with(good(), &[]), &hands, "skip").await;
    let note = hands.note();
    let source = Collection::with(good(), &["later"]);
    source.changes.lock().unwrap()[0].documents = vec![document("3", good())];

    let attempt = copy(source, Arc::new(DeadlyIndex), &hands, "skip", "dead_letter");
    // Real time: a checkpoint is saved at once and then every second.
    let ended = tokio::time::timeout(Duration::from_millis(1500), attempt).await;

    assert!(ended.is_err());
    assert_eq!(hands.note(), note);
}

#[tokio::test]
async fn a_part_of_the_changes_that_is_read_again_counts_its_refused_documents_once() {
    let hands = Hands::at("-1");
    for position in ["start", "later"] {
        let source = Collection::with(good(), &[position]);
        source.changes.lock().unwrap()[0].documents = vec![document("3", bad())];
        run(source, &hands, "skip").await;
    }

    let kept = hands.checkpoints.kept.lock().unwrap().clone().unwrap();
    assert_eq!(kept.cursor["position"], "later");
    assert_eq!(kept.cursor["refused"], 1);
}

#[tokio::test]
async fn a_source_whose_log_is_shorter_than_a_scan_is_not_scanned_for_ever() {
    for (answers, expected) in [
        (vec![], 4),
        // Up to date with its source, the job may scan as often again.
        (vec![false, false, true], 6),
    ] {
        let scans = Arc::new(AtomicUsize::new(0));
        let source = ForgetfulCollection {
            collection: Collection::with(good(), &[]),
            answers: Mutex::new(answers.into()),
            scans: scans.clone(),
        };

        let hands = Hands::at("-1");
        let (outcome, published) = attempt(source, &hands, "skip", "rescan").await;

        let Outcome::Dead { error } = outcome else {
            panic!("{outcome:?}")
        };
        assert!(
            error.contains("the position is gone") && error.contains("After 3 new scans in a row"),
            "{error}"
        );
        assert_eq!(scans.load(Ordering::SeqCst), expected);
        // Meanwhile a later job may have moved the alias on.
        assert_eq!(published, 1);
    }
}
