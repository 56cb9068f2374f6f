//! The checkpoint that an attempt leaves, and its use by the next one.

use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::Outcome;
use flyball::reindex::sink::{ElasticSink, Sink};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::source::{DocumentPage, DocumentSource, Error};
use flyball::reindex::{Args, Catalogue, backfill::backfill};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::reindex::backfill::run;
use crate::reindex::fakes::{Hands, Index, job};

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

#[tokio::test]
async fn an_attempt_in_which_nothing_came_forward_leaves_no_checkpoint_and_so_is_used() {
    let hands = Hands::at("-1");
    let job = job(json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers"},
    }));
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&job.args, &free).unwrap();
    let asked = Elastic {
        url: "http://127.0.0.1:9".into(),
        index: "numbers".into(),
        ..Elastic::default()
    };
    let sink: Arc<dyn Sink> = Arc::new(ElasticSink::new(reqwest::Client::new(), asked));
    let context = hands.context();

    let attempt = backfill(&job, &context, &args, Arc::new(DeadlyPage), sink);
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
        {
            let mut kept = hands.checkpoints.kept.lock().unwrap();
            let half = kept.as_mut().unwrap();
            half.cursor["key"] = json!(["5"]);
            half.done = 5;
        }

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
