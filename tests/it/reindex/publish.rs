//! The end of a reindex, at which its index becomes visible.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{Method, Uri};
use axum::{Json, Router};
use flyball::jobs::Outcome;
use flyball::reindex::sink::{ElasticSink, Sink, WriteError, WriteOutcome};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::{Args, Catalogue, Document, backfill::backfill};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

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
    /// The documents that another index shows meanwhile.
    shown: Option<String>,
    written: AtomicUsize,
    published: AtomicUsize,
}

impl Sink for StrictIndex {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn shown(&self) -> BoxFuture<'_, Result<Option<String>, WriteError>> {
        Box::pin(async { Ok(self.shown.clone()) })
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
    let more = json!({"on_bad_document": on_bad_document});
    copy(10, index, hands, more).await
}

/// Runs one attempt to copy the numbers up to `n`.
async fn copy(n: u64, index: Arc<dyn Sink>, hands: &Hands, more: Value) -> Outcome {
    let mut args = json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers", "alias": "all"},
    });
    let fields = args.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    let job = job(args);
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&job.args, &free).unwrap();
    let context = hands.context();
    let attempt = backfill(&job, &context, &args, Arc::new(Numbers(n)), index);
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

#[tokio::test]
async fn a_source_without_documents_hides_none_that_searches_find_unless_it_may_be_empty() {
    let full = || {
        Arc::new(StrictIndex {
            shown: Some("the alias all shows 7 documents of numbers-1".to_owned()),
            ..StrictIndex::default()
        })
    };

    let (index, hands) = (full(), Hands::at("-1"));
    let outcome = copy(0, index.clone(), &hands, json!({})).await;
    let Outcome::Dead { error } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(
        error.contains("no documents, and the alias all shows 7 documents of numbers-1")
            && error.contains("\"allow_empty\": true"),
        "{error}"
    );
    assert_eq!(index.published.load(Ordering::SeqCst), 0);

    // A retry reads the source again.
    assert_eq!(
        copy(3, index.clone(), &hands, json!({})).await,
        Outcome::Done
    );
    assert_eq!(index.published.load(Ordering::SeqCst), 1);

    for (index, more) in [
        (full(), json!({"allow_empty": true})),
        (Arc::default(), json!({})),
    ] {
        let outcome = copy(0, index.clone(), &Hands::at("-1"), more).await;
        assert_eq!(outcome, Outcome::Done);
        assert_eq!(index.published.load(Ordering::SeqCst), 1);
    }
}

/// The answers of a search engine about the alias `all`: the indexes that have it, and the count of
/// its documents.
type AliasAnswers = Arc<(Value, Value)>;

async fn answer(method: Method, uri: Uri, State(answers): State<AliasAnswers>) -> Json<Value> {
    match (method, uri.path()) {
        (Method::GET, "/_alias/all") => Json(answers.0.clone()),
        (Method::GET, "/all/_count") => Json(answers.1.clone()),
        (Method::GET, "/all/_settings" | "/numbers-2/_settings") => {
            Json(json!({"numbers-2": {"settings": {"index": {"uuid": "a1b2"}}}}))
        }
        _ => Json(json!({})),
    }
}

/// Answers like a search engine that has the alias `all` on these indexes, and counts documents as
/// it is told.
async fn aliased(holders: &[&str], count: Value) -> String {
    let aliases = json!({"aliases": {"all": {}}});
    let holders: serde_json::Map<String, Value> = holders
        .iter()
        .map(|holder| ((*holder).to_owned(), aliases.clone()))
        .collect();
    let answers = Arc::new((Value::Object(holders), count));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().fallback(answer).with_state(answers);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

#[tokio::test]
async fn a_search_engine_tells_an_index_from_a_later_one_of_its_name() {
    let url = aliased(&[], json!({})).await;
    // Indexes behind another name change.
    for (index, expected) in [("numbers-2", Some("a1b2")), ("all", None)] {
        let asked = Elastic {
            url: url.clone(),
            index: index.into(),
            ..Elastic::default()
        };
        let sink = ElasticSink::new(reqwest::Client::new(), asked);
        assert_eq!(sink.identity().await.as_deref(), expected, "{index}");
    }
}

/// Returns what the alias `all` of these indexes shows besides `numbers-2`.
async fn shown(holders: &[&str], count: Value) -> Result<Option<String>, WriteError> {
    let asked = Elastic {
        url: aliased(holders, count).await,
        index: "numbers-2".into(),
        alias: Some("all".into()),
        ..Elastic::default()
    };
    let sink = ElasticSink::new(reqwest::Client::new(), asked);
    sink.shown().await
}

#[tokio::test]
async fn a_search_engine_tells_what_its_alias_shows_in_other_indexes() {
    let counted = |count: u64, answered: u64| json!({"count": count, "_shards": {"total": 2, "successful": answered}});
    for (holders, count, expected) in [
        (vec![], counted(7, 2), None),
        (vec!["numbers-2"], counted(7, 2), None),
        (vec!["numbers-1"], counted(0, 2), None),
        (
            vec!["numbers-0", "numbers-1", "numbers-2"],
            counted(7, 2),
            Some("the alias all shows 7 documents of numbers-0, numbers-1"),
        ),
    ] {
        let found = shown(&holders, count).await.unwrap();
        assert_eq!(found.as_deref(), expected, "{holders:?}");
    }
    // A shard without an answer may have documents.
    let unknown = shown(&["numbers-1"], counted(0, 1)).await;
    assert!(
        matches!(&unknown, Err(WriteError::Lost(why)) if why.contains("not all of its shards answered")),
        "{unknown:?}"
    );
}
