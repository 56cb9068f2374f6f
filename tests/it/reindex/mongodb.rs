//! A collection on a real server of MongoDB's wire protocol, as a source.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Document as BsonDocument, doc};
use flyball::jobs::Outcome;
use flyball::reindex::sink::{ElasticSink, Sink};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::source::{DocumentSource, Error, MongoSource};
use flyball::reindex::source_args::CollectionName;
use flyball::reindex::{Action, Args, Catalogue, Document, backfill::backfill};
use flyball::signals::figure::ServerFigure;
use flyball::signals::mongodb::ServerStatus;
use mongodb::Collection;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::reindex::fakes::{Hands, Index, job};
use crate::support::counterparts::MongoServer;
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(30);

pub(super) fn args(source: Value, sink: Value) -> Value {
    let mut args = json!({
        "source": {"type": "mongodb", "url_env": "REINDEX_DATABASE_X", "collection": "shop.articles"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "articles"},
        "batch_docs": 50,
    });
    for (part, more) in [("source", source), ("sink", sink)] {
        let part = args[part].as_object_mut().unwrap();
        part.extend(more.as_object().unwrap().clone());
    }
    args
}

fn parse(args: &Value) -> Args {
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    Args::parse(args, &free).unwrap()
}

pub(super) async fn open(server: &MongoServer, args: &Value) -> MongoSource {
    let args = parse(args);
    MongoSource::open(
        &server.url,
        &articles("articles"),
        &args.source,
        args.sink.id(),
        args.sink.routing(),
    )
    .await
    .unwrap()
}

fn articles(name: &str) -> CollectionName {
    CollectionName {
        database: "shop".into(),
        name: name.into(),
    }
}

pub(super) fn collection(server: &MongoServer) -> Collection<BsonDocument> {
    server.client.database("shop").collection("articles")
}

pub(super) async fn insert(
    server: &MongoServer,
    documents: impl IntoIterator<Item = BsonDocument>,
) {
    collection(server).insert_many(documents).await.unwrap();
}

/// Reads everything in pages of two, each from the last key, like a resumed reindex.
async fn read_all(source: &MongoSource) -> Result<Vec<Document>, Error> {
    let mut documents: Vec<Document> = Vec::new();
    loop {
        let after = documents.last().map(|document| document.key.to_vec());
        let page = source.page(after.as_deref(), 2).await?;
        documents.extend(page.documents);
        if !page.more {
            return Ok(documents);
        }
    }
}

/// Starts a reindex of the collection into the index at `url`.
async fn start(server: &MongoServer, url: &str, hands: &Hands, args: Value) -> JoinHandle<Outcome> {
    let asked = Elastic {
        url: url.to_owned(),
        index: "articles".into(),
        id: "_id".into(),
        ..Elastic::default()
    };
    let sink: Arc<dyn Sink> = Arc::new(ElasticSink::new(reqwest::Client::new(), asked));
    let source = Arc::new(open(server, &args).await);
    let (job, context) = (job(args), hands.context());
    tokio::spawn(async move {
        let args = parse(&job.args);
        backfill(&job, &context, &args, source, sink).await
    })
}

async fn until_following(hands: &Hands) {
    eventually("it follows", SOON, || async {
        hands.note().contains("following").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_collection_with_ids_of_ten_types_is_read_whole_in_pages_of_two() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    let object = ObjectId::new();
    let ids = [
        Bson::Int32(1),
        Bson::Double(2.5),
        Bson::Double(f64::NAN),
        Bson::Int64(7_000_000_000),
        Bson::String("a".into()),
        Bson::String("b".into()),
        Bson::String(String::new()),
        Bson::Document(doc! {"shop": 1, "n": 2}),
        Bson::Document(doc! {"shop": 1, "n": 3}),
        Bson::Document(doc! {"shop": 2, "n": 1}),
        Bson::ObjectId(object),
        Bson::ObjectId(ObjectId::new()),
        Bson::Boolean(true),
        Bson::DateTime(DateTime::from_millis(1_700_000_000_123)),
        Bson::Decimal128("3.5".parse().unwrap()),
        Bson::Null,
    ];
    insert(
        &server,
        ids.iter().map(|id| doc! {"_id": id.clone(), "title": "t"}),
    )
    .await;

    let read = read_all(&open(&server, &args(json!({}), json!({}))).await)
        .await
        .unwrap();

    let found: BTreeSet<_> = read
        .iter()
        .map(|document| document.id.clone().unwrap())
        .collect();
    assert_eq!(
        (read.len(), found.len()),
        (ids.len(), ids.len()),
        "{found:?}"
    );
    assert!(
        found.contains(&object.to_hex()) && found.contains("7000000000"),
        "{found:?}"
    );
    assert!(
        read.iter()
            .all(|document| document.json() == r#"{"title":"t"}"#)
    );
}

#[tokio::test]
async fn a_document_that_would_overwrite_another_and_one_that_is_no_json_are_refused() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    insert(
        &server,
        [
            doc! {"_id": 7, "n": 1},
            doc! {"_id": "7", "n": 2},
            doc! {"_id": "8", "n": 3},
            doc! {"_id": 9, "n": f64::NAN},
        ],
    )
    .await;

    let read = read_all(&open(&server, &args(json!({}), json!({}))).await)
        .await
        .unwrap();

    let refused: BTreeMap<_, _> = read
        .iter()
        .filter_map(|document| match &document.action {
            Action::Refuse(reason) => Some((document.key[0].as_str(), reason.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(
        refused.keys().collect::<Vec<_>>(),
        [&"\"7\"", &"{\"$numberInt\":\"9\"}"]
    );
    assert!(refused["\"7\""].contains("reads like the _id of another document"));
    assert!(refused["{\"$numberInt\":\"9\"}"].contains("n is NaN"));

    // Under ids of their own both are kept.
    let own = open(&server, &args(json!({}), json!({"id": "n"}))).await;
    let ids: Vec<_> = read_all(&own)
        .await
        .unwrap()
        .into_iter()
        .filter_map(|d| d.id)
        .collect();
    assert_eq!(ids, ["1", "NaN", "2", "3"]);
}

#[tokio::test]
async fn fields_are_chosen_and_what_cannot_be_read_says_so() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    insert(
        &server,
        [doc! {"_id": 1, "a": 1, "b": {"c": 2, "d": 3}, "shard": "s"}],
    )
    .await;

    let chosen = args(json!({"columns": ["b.c"]}), json!({"routing": "shard"}));
    let read = read_all(&open(&server, &chosen).await).await.unwrap();
    assert_eq!(read[0].json(), r#"{"b":{"c":2},"shard":"s"}"#);
    assert_eq!(read[0].routing.as_deref(), Some("s"));

    let (nothing, any) = (articles("nothing"), articles("a"));
    let parsed = parse(&args(json!({}), json!({})));
    let absent = MongoSource::open(&server.url, &nothing, &parsed.source, "_id", None);
    let absent = read_all(&absent.await.unwrap()).await;
    assert!(
        matches!(&absent, Err(Error::Wrong(why)) if why == "there is no collection nothing"),
        "{absent:?}"
    );
    let not_one = MongoSource::open(
        "postgres://u:very-secret@h/d",
        &any,
        &parsed.source,
        "_id",
        None,
    );
    assert_eq!(not_one.await.err().unwrap(), "does not hold a MongoDB URL");
    let nobody = MongoSource::open(
        "mongodb://u:very-secret@127.0.0.1:1/?serverSelectionTimeoutMS=50",
        &any,
        &parsed.source,
        "_id",
        None,
    );
    let nobody = nobody.await.unwrap().position().await;
    assert!(
        matches!(&nobody, Err(Error::Lost(why)) if !why.contains("secret")),
        "{nobody:?}"
    );
}

#[tokio::test]
async fn an_election_in_the_middle_of_a_scan_loses_no_document() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    insert(&server, (0..500).map(|n| doc! {"_id": n})).await;
    let (index, url) = Index::start().await;
    // About every third query meets a server that has just stepped down.
    let fail = doc! {"configureFailPoint": "failCommand", "mode": {"times": 6},
    "data": {"failCommands": ["find", "getMore"], "errorCode": 10107}};
    server
        .client
        .database("admin")
        .run_command(fail)
        .await
        .unwrap();

    let hands = Hands::at("-1");
    let outcome = start(&server, &url, &hands, args(json!({}), json!({}))).await;

    assert_eq!(
        tokio::time::timeout(SOON, outcome).await.unwrap().unwrap(),
        Outcome::Done
    );
    assert_eq!(index.ids(), (0..500).collect());
}

#[tokio::test]
async fn changes_during_and_after_the_scan_are_followed_until_the_index_is_the_collection() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    let articles = collection(&server);
    insert(&server, (0..2000).map(|n| doc! {"_id": n, "v": 0})).await;
    let (index, url) = Index::start().await;
    let hands = Hands::at("1000");
    let follow = args(json!({"follow": true}), json!({}));
    let running = start(&server, &url, &hands, follow.clone()).await;
    eventually("the scan is on its way", SOON, || async {
        (index.documents.lock().unwrap().len() > 200).then_some(())
    })
    .await;

    // Documents behind the cursor, before it, new and deleted.
    articles
        .update_many(doc! {"_id": {"$lt": 50}}, doc! {"$set": {"v": 1}})
        .await
        .unwrap();
    articles
        .delete_many(doc! {"_id": {"$gte": 50, "$lt": 60}})
        .await
        .unwrap();
    insert(&server, (5000..5020).map(|n| doc! {"_id": n, "v": 2})).await;
    let same = async || {
        let mut all = articles.find(doc! {}).await.unwrap();
        let mut expected = BTreeMap::new();
        while all.advance().await.unwrap() {
            let document: BsonDocument = all.deserialize_current().unwrap();
            let value = json!({"v": document.get_i32("v").unwrap()});
            expected.insert(document.get_i32("_id").unwrap().to_string(), value);
        }
        (*index.documents.lock().unwrap() == expected).then_some(())
    };
    eventually("the index is the collection", SOON, &same).await;
    eventually("the note says so", SOON, || async {
        hands.note().contains("following the changes").then_some(())
    })
    .await;

    // A worker that stops resumes where it was, including the changes in the meantime.
    hands.cancelled.cancel();
    assert_eq!(running.await.unwrap(), Outcome::HandedBack);
    articles.delete_one(doc! {"_id": 1999}).await.unwrap();
    articles
        .update_one(doc! {"_id": 1}, doc! {"$inc": {"v": 7}})
        .await
        .unwrap();
    let sent = index.sent();
    let again = Hands {
        cancelled: tokio_util::sync::CancellationToken::new(),
        throttles: hands.throttles.clone(),
        refusals: hands.refusals.clone(),
        checkpoints: hands.checkpoints.clone(),
    };
    let running = start(&server, &url, &again, follow).await;
    eventually("the index is the collection again", SOON, &same).await;
    assert!(
        index.sent() - sent < 50,
        "it was not scanned again: {} more",
        index.sent() - sent
    );
    again.cancelled.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_few_documents_that_change_without_a_pause_are_followed() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    insert(&server, (0..10).map(|n| doc! {"_id": n, "v": 0})).await;
    let (index, url) = Index::start().await;
    let hands = Hands::at("-1");
    let follow = args(json!({"follow": true}), json!({}));
    let running = start(&server, &url, &hands, follow).await;
    until_following(&hands).await;
    let articles = collection(&server);
    let writing = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        loop {
            ticks.tick().await;
            let more = doc! {"$inc": {"v": 1}};
            articles.update_many(doc! {}, more).await.unwrap();
        }
    });

    let now = || {
        let copied = index.documents.lock().unwrap()["0"]["v"].as_i64().unwrap();
        let kept = hands.checkpoints.kept.lock().unwrap();
        (copied, kept.as_ref().unwrap().cursor["position"].clone())
    };
    let mut before = now();
    for page in ["the first changes", "later changes"] {
        let after = eventually(page, SOON, || async {
            let (copied, position) = now();
            (copied > before.0 && position != before.1).then_some((copied, position))
        })
        .await;
        before = after;
    }

    assert!(!writing.is_finished());
    writing.abort();
    hands.cancelled.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn large_documents_that_changed_come_in_parts_and_a_worker_that_is_killed_between_two_loses_none()
 {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    let follow = args(json!({"follow": true}), json!({}));
    let source = open(&server, &follow).await;
    insert(&server, [doc! {"_id": 100}]).await;
    let begun = source.position().await.unwrap();
    let body = "x".repeat(1 << 20);
    for n in 0..45 {
        insert(&server, [doc! {"_id": n, "body": body.as_str()}]).await;
    }
    let articles = collection(&server);
    articles.delete_one(doc! {"_id": 100}).await.unwrap();

    let page = source.changes(&begun, 500).await.unwrap();
    let resumed = open(&server, &follow).await;
    let (mut found, mut pages) = (BTreeMap::new(), vec![page]);
    let all = async {
        while found.len() < 46 {
            let page = pages.pop().unwrap();
            let bytes: usize = page.documents.iter().map(Document::bytes).sum();
            assert!(bytes < 34 << 20, "{bytes} bytes");
            found.extend(page.documents.into_iter().map(|d| (d.id, d.action)));
            pages.push(resumed.changes(&page.position, 500).await.unwrap());
        }
    };
    tokio::time::timeout(SOON, all).await.unwrap();

    let deleted: Vec<_> = found
        .iter()
        .filter(|(_, action)| **action == Action::Delete)
        .map(|(id, _)| id.clone().unwrap())
        .collect();
    assert_eq!(deleted, ["100"]);
}

#[tokio::test]
async fn an_election_while_it_follows_does_not_end_the_attempt() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    insert(&server, [doc! {"_id": 1}]).await;
    let (index, url) = Index::start().await;
    let hands = Hands::at("-1");
    let follow = args(json!({"follow": true}), json!({}));
    let running = start(&server, &url, &hands, follow).await;
    until_following(&hands).await;

    // The driver itself opens a stream again, and more than once it gives up.
    let fail = doc! {"configureFailPoint": "failCommand", "mode": {"times": 6},
    "data": {"failCommands": ["aggregate", "getMore"], "errorCode": 10107}};
    server
        .client
        .database("admin")
        .run_command(fail)
        .await
        .unwrap();
    insert(&server, [doc! {"_id": 2}]).await;

    eventually("the change is copied", SOON, || async {
        (index.ids() == BTreeSet::from([1, 2])).then_some(())
    })
    .await;
    assert!(!running.is_finished());
    hands.cancelled.cancel();
    assert_eq!(running.await.unwrap(), Outcome::HandedBack);
}

#[tokio::test]
async fn changes_that_the_source_has_dropped_end_the_job_or_start_it_over_and_are_never_passed_over()
 {
    let Some(server) = MongoServer::start(&["--oplog-max-entries", "20"]).await else {
        return;
    };
    insert(&server, (0..30).map(|n| doc! {"_id": n, "v": 0})).await;
    let (index, url) = Index::start().await;
    let hands = Hands::at("-1");
    let run = async |more: Value| {
        let running = start(&server, &url, &hands, args(more, json!({}))).await;
        tokio::time::timeout(SOON, running).await.unwrap().unwrap()
    };
    let running = start(
        &server,
        &url,
        &hands,
        args(json!({"follow": true}), json!({})),
    )
    .await;
    until_following(&hands).await;
    running.abort();
    let _ = running.await;
    insert(&server, (100..200).map(|n| doc! {"_id": n, "v": 1})).await;
    server.drop_changes().await;

    let Outcome::Dead { error } = run(json!({"follow": true})).await else {
        panic!("the index would lack a hundred documents")
    };
    assert!(
        error.contains("no longer has the changes") && error.contains("A retry of this job scans"),
        "{error}"
    );

    // A retry starts over and says so; the next time it does so by itself.
    let running = start(
        &server,
        &url,
        &hands,
        args(json!({"follow": true}), json!({})),
    )
    .await;
    eventually("all are there", SOON, || async {
        (index.documents.lock().unwrap().len() == 130).then_some(())
    })
    .await;
    until_following(&hands).await;
    running.abort();
    let _ = running.await;
    insert(&server, (300..400).map(|n| doc! {"_id": n, "v": 1})).await;
    server.drop_changes().await;
    let rescan = args(
        json!({"follow": true, "on_lost_changes": "rescan"}),
        json!({}),
    );
    let running = start(&server, &url, &hands, rescan).await;
    eventually("all are there again", SOON, || async {
        (index.documents.lock().unwrap().len() == 230).then_some(())
    })
    .await;
    running.abort();
}

#[tokio::test]
async fn the_servers_status_is_a_signal() {
    let Some(server) = MongoServer::start(&[]).await else {
        return;
    };
    let operations = ServerStatus::new("catalog", &server.url, ServerFigure::Operations);
    assert!(
        operations.read(100.0).await.is_err(),
        "a rate needs two readings"
    );
    insert(&server, [doc! {"_id": 1}]).await;
    let reading = operations.read(101.0).await.unwrap();
    assert!(reading.value >= 1.0, "{reading:?}");

    // This server does not report its cache, and a missing one reports nothing.
    let dirty = ServerStatus::new("catalog", &server.url, ServerFigure::CacheDirty);
    assert!(dirty.read(100.0).await.is_err());
    let nobody = "mongodb://u:very-secret@127.0.0.1:1/";
    let nobody = ServerStatus::new("catalog", nobody, ServerFigure::Queue);
    let error = nobody.read(100.0).await.unwrap_err().to_string();
    assert!(
        error.starts_with("catalog") && !error.contains("secret"),
        "{error}"
    );
}
