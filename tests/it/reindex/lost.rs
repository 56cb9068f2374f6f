//! A reindex whose worker dies before anything came forward.

use std::sync::Arc;
use std::time::Duration;

use flyball::reindex::sink::{ElasticSink, Sink};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::source::{DocumentPage, DocumentSource, Error};
use flyball::reindex::{Args, Catalogue, backfill::backfill};
use futures_util::future::BoxFuture;
use serde_json::json;

use crate::reindex::fakes::{Hands, job};

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
