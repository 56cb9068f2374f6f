//! A real Elasticsearch of 2015, as a sink and as a signal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document as BsonDocument, doc};
use flyball::jobs::{NewJob, Outcome};
use flyball::reindex::sink::{ElasticSink, Sink};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::source::{DocumentPage, DocumentSource, Error};
use flyball::reindex::{Action, Args, Catalogue, backfill::backfill};

use flyball::signals::elasticsearch::ClusterStats;
use flyball::signals::figure::ClusterFigure;
use flyball::signals::server::Access;
use futures_util::future::BoxFuture;
use reqwest::Method;
use serde_json::{Value, json};

use crate::reindex::fakes::{Hands, Numbers, job};
use crate::support::counterparts::{Elasticsearch, MongoServer};
use crate::support::eventually;
use crate::support::process::{Process, ProcessFixture};

const SOON: Duration = Duration::from_secs(180);

fn sink(server: &Elasticsearch, index: &str) -> Elastic {
    Elastic {
        url: server.url.clone(),
        index: index.into(),
        bulk_path: "/{index}/doc/_bulk".into(),
        id: "id".into(),
        ..Elastic::default()
    }
}

async fn copy(n: u64, asked: Elastic, hands: &Hands, more: Value) -> Outcome {
    copy_from(Arc::new(Numbers(n)), asked, hands, more).await
}

/// The numbers to 130; from this one on they are strings.
struct TextsFrom(u64);

impl DocumentSource for TextsFrom {
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async { Ok(Some(130)) })
    }

    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>> {
        Box::pin(async move {
            let mut page = Numbers(130).page(after, limit).await?;
            for document in &mut page.documents {
                if document.key[0].parse::<u64>().unwrap() >= self.0 {
                    document.action = Action::Store(r#"{"n": "many"}"#.into());
                }
            }
            Ok(page)
        })
    }
}

async fn copy_from(
    source: Arc<dyn DocumentSource>,
    asked: Elastic,
    hands: &Hands,
    more: Value,
) -> Outcome {
    let mut args = json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers"},
    });
    args.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let args = Args::parse(&args, &free).unwrap();
    let sink: Arc<dyn Sink> = Arc::new(ElasticSink::new(reqwest::Client::new(), asked));
    let (job, context) = (job(Value::Null), hands.context());
    let copied = backfill(&job, &context, &args, source, sink);
    tokio::time::timeout(SOON, copied).await.unwrap()
}

fn numbers(n: u64) -> BTreeSet<String> {
    (1..=n).map(|n| n.to_string()).collect()
}

async fn ids(server: &Elasticsearch, index: &str) -> BTreeSet<String> {
    server.documents(index).await.into_keys().collect()
}

#[tokio::test]
async fn documents_arrive_and_the_alias_moves_to_the_new_index_in_one_step() {
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    for (index, n) in [("moved-1", 30), ("moved-2", 40)] {
        let asked = Elastic {
            alias: Some("moved".into()),
            ..sink(server, index)
        };

        assert_eq!(
            copy(n, asked, &Hands::at("-1"), json!({})).await,
            Outcome::Done
        );

        assert_eq!(ids(server, "moved").await, numbers(n), "{index}");
        let holders = server.call(Method::GET, "/_alias/moved", Value::Null).await;
        assert_eq!(
            holders.as_object().unwrap().keys().collect::<Vec<_>>(),
            [index]
        );
    }
    assert_eq!(
        ids(server, "moved-1").await,
        numbers(30),
        "the old index stays"
    );
}

#[tokio::test]
async fn an_alias_keeps_its_filter_when_it_moves() {
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    let hands = Hands::at("-1");
    let first = copy(30, sink(server, "kept-1"), &hands, json!({})).await;
    assert_eq!(first, Outcome::Done);
    let filter = json!({"filter": {"range": {"n": {"lte": 10}}}});
    server
        .call(Method::PUT, "/kept-1/_alias/kept", filter)
        .await;
    let asked = Elastic {
        alias: Some("kept".into()),
        ..sink(server, "kept-2")
    };

    assert_eq!(
        copy(40, asked, &Hands::at("-1"), json!({})).await,
        Outcome::Done
    );

    let holders = server.call(Method::GET, "/_alias/kept", Value::Null).await;
    assert_eq!(
        holders.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["kept-2"]
    );
    assert_eq!(ids(server, "kept").await, numbers(10));
}

#[tokio::test]
async fn an_index_with_refused_documents_does_not_get_the_alias_unless_they_may_be_skipped() {
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    // From 128 on they are strings, which do not fit the mapping.
    let mapping = json!({"mappings": {"doc": {"properties": {"n": {"type": "integer"}}}}});
    server.call(Method::PUT, "/bytes", mapping).await;
    let asked = Elastic {
        alias: Some("small".into()),
        ..sink(server, "bytes")
    };

    let ended = copy_from(
        Arc::new(TextsFrom(128)),
        asked.clone(),
        &Hands::at("-1"),
        json!({}),
    )
    .await;
    let Outcome::Dead { error } = ended else {
        panic!("{ended:?}")
    };
    assert!(
        error.contains("rejected 3 refused (128: 400 MapperParsingException"),
        "{error}"
    );
    let alias = server.call(Method::GET, "/_alias/small", Value::Null).await;
    assert!(alias.get("bytes").is_none(), "{alias}");

    let skip = json!({"on_bad_document": "skip"});
    assert_eq!(
        copy_from(Arc::new(TextsFrom(128)), asked, &Hands::at("-1"), skip).await,
        Outcome::Done
    );
    assert_eq!(ids(server, "small").await, numbers(127));
}

#[tokio::test]
async fn a_blocked_index_is_waited_for_and_no_document_counts_as_refused() {
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    let block = async |is_blocked: bool| {
        let body = json!({"index": {"blocks": {"write": is_blocked}}});
        server.call(Method::PUT, "/blocked/_settings", body).await
    };
    server.call(Method::PUT, "/blocked", json!({})).await;
    block(true).await;
    let hands = Hands::at("-1");
    let noted = async {
        eventually("it waits", SOON, || async {
            hands.note().contains("ClusterBlockException").then_some(())
        })
        .await;
        block(false).await
    };

    let (ended, _) = tokio::join!(copy(500, sink(server, "blocked"), &hands, json!({})), noted);

    assert_eq!(ended, Outcome::Done);
    assert_eq!(ids(server, "blocked").await, numbers(500));
}

#[tokio::test]
async fn a_queue_that_overflows_rejects_documents_that_are_sent_again() {
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    let hands = Hands::at("-1");

    let more = json!({"batch_docs": 20, "concurrency": 32});
    assert_eq!(
        copy(3000, sink(server, "hurried"), &hands, more).await,
        Outcome::Done
    );

    assert_eq!(ids(server, "hurried").await, numbers(3000));
    let stats = ClusterStats::new(&Access::open(&server.url), ClusterFigure::WriteQueue).unwrap();
    // Other tests write to the same server.
    eventually("the queue is read, and short again", SOON, || async {
        (stats.read(1.0).await.unwrap().value <= 4.0).then_some(())
    })
    .await;
    let stats = server
        .call(Method::GET, "/_nodes/stats/thread_pool", Value::Null)
        .await;
    let rejected = stats["nodes"].as_object().unwrap().values().next().unwrap();
    assert!(
        rejected["thread_pool"]["bulk"]["rejected"]
            .as_u64()
            .unwrap()
            > 0,
        "{rejected}"
    );
}

#[tokio::test]
async fn documents_are_created_once_and_routed() {
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    server
        .call(Method::PUT, "/once/doc/3", json!({"n": "old"}))
        .await;
    let asked = Elastic {
        creates: true,
        ..sink(server, "once")
    };

    assert_eq!(
        copy(5, asked, &Hands::at("-1"), json!({})).await,
        Outcome::Done
    );

    let stored = server.documents("once").await;
    assert_eq!((stored.len(), &stored["3"]), (5, &json!({"n": "old"})));
}

#[tokio::test]
async fn the_nodes_statistics_are_signals() {
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    for (figure, most) in [
        (ClusterFigure::Load, 1000.0),
        (ClusterFigure::Heap, 1.0),
        (ClusterFigure::WriteQueue, 100.0),
    ] {
        let stats = ClusterStats::new(&Access::open(&server.url), figure).unwrap();
        // A busy server may need longer than the half second that a probe has.
        let reading = eventually("statistics", SOON, async || stats.read(100.0).await.ok()).await;
        assert!(
            (0.0..=most).contains(&reading.value),
            "{figure:?}: {reading:?}"
        );
    }
    let rejected = ClusterStats::new(&Access::open(&server.url), ClusterFigure::Rejected).unwrap();
    assert!(
        rejected.read(100.0).await.is_err(),
        "a rate needs two readings"
    );
    let mut at = 100.0;
    let second = eventually("a second reading", SOON, || {
        at += 1.0;
        let (rejected, at) = (&rejected, at);
        async move { rejected.read(at).await.ok() }
    });
    assert!(second.await.value >= 0.0);
}

/// Reindexes from MongoDB to Elasticsearch with real processes that are killed repeatedly.
/// `FLYBALL_REINDEX_DOCUMENTS` sets the number of documents.
#[tokio::test]
async fn a_reindex_from_mongodb_to_elasticsearch_that_is_killed_ten_times_has_every_document_once()
{
    let documents = std::env::var("FLYBALL_REINDEX_DOCUMENTS");
    let documents: i32 = documents.map_or(6_000, |text| text.parse().unwrap());
    let Some(server) = Elasticsearch::shared().await else {
        return;
    };
    let Some(mongodb) = MongoServer::start(&[]).await else {
        return;
    };
    let articles = mongodb
        .client
        .database("shop")
        .collection::<BsonDocument>("articles");
    // Ids of three types, as in a collection that has grown for years.
    let id = |n: i32| match n % 3 {
        0 => Bson::Int32(n),
        1 => Bson::String(format!("article-{n}")),
        _ => Bson::ObjectId(bson::oid::ObjectId::from_bytes(
            [&[0; 8][..], &n.to_be_bytes()].concat().try_into().unwrap(),
        )),
    };
    for from in (0..documents).step_by(1000) {
        let some = (from..(from + 1000).min(documents)).map(|n| doc! {"_id": id(n), "n": n});
        articles.insert_many(some).await.unwrap();
    }
    let rps = f64::from(documents) / 12.0;
    let fixture = ProcessFixture::new(&format!("rps = {rps}\nburst = 1\nwindow = 0.1")).await;
    fixture.settings_file(&format!(
        "[reindex.sources.shop]\ntype = \"mongodb\"\nurl_env = \"SHOP\"\ncollections = [\"shop.*\"]\n\
         [reindex.sinks.search]\ntype = \"elastic\"\nurl = \"{}\"\nindexes = [\"articles-*\"]\naliases = [\"articles\"]\n\
         bulk_path = \"/{{index}}/doc/_bulk\"\n",
        server.url
    ));
    let serve = || fixture.serve_with(&[], &[("SHOP", &mongodb.url)]);
    let args = json!({"source": {"name": "shop", "collection": "shop.articles"},
        "sink": {"name": "search", "index": "articles-2", "alias": "articles"}, "batch_docs": 100});
    let mut processes: Vec<Process> = vec![serve(), serve()];
    let job = NewJob {
        max_attempts: 3,
        ..NewJob::new("reindex", args)
    };
    let job = fixture.queue.enqueue(&[job]).await.unwrap()[0].id;
    let mut done = 0;

    for _ in 0..10 {
        done = fixture
            .kill_the_holder(job, done, &mut processes, serve)
            .await;
        assert!(done < i64::from(documents), "it was done too early");
    }
    fixture
        .until_completed(&[job], Duration::from_secs(120 + documents as u64 / 200))
        .await;

    let stored = server.documents("articles").await;
    let values: BTreeMap<i64, usize> =
        stored
            .values()
            .fold(BTreeMap::new(), |mut values, document| {
                *values.entry(document["n"].as_i64().unwrap()).or_default() += 1;
                values
            });
    assert_eq!(stored.len(), documents as usize);
    assert_eq!(
        (values.len(), values.values().max()),
        (documents as usize, Some(&1))
    );
    assert_eq!(fixture.ended(&[job], "lost").await, 10);
}
