//! Documents that an index refuses for good.

use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::Outcome;
use flyball::reindex::sink::{ElasticSink, Sink, WriteOutcome};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::{Action, Document};
use serde_json::json;

use crate::reindex::backfill::{all, run, start};
use crate::reindex::fakes::{Hands, Index};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn refused_documents_are_listed_and_make_the_job_dead_while_all_others_are_stored() {
    let (index, url) = Index::start().await;
    index
        .refused
        .lock()
        .unwrap()
        .extend(["7".to_owned(), "70".to_owned()]);
    let hands = Hands::at("-1");

    let outcome = run(100, &url, &hands, json!({"concurrency": 1})).await;

    let Outcome::Dead { error } = outcome else {
        panic!("{outcome:?}")
    };
    assert!(
        error.contains("2 refused (7: 400 mapper_parsing_exception: as requested; 70: "),
        "{error}"
    );
    assert_eq!(index.ids().len(), 98);

    let skipped = run(
        100,
        &url,
        &Hands::at("-1"),
        json!({"on_bad_document": "skip"}),
    )
    .await;
    assert_eq!(skipped, Outcome::Done);
}

#[tokio::test]
async fn a_document_that_the_index_takes_after_no_try_is_named_in_the_note() {
    let (index, url) = Index::start().await;
    let poison = ("7".to_owned(), (500, "null_pointer_exception"));
    index.busy.lock().unwrap().extend([poison]);
    let hands = Hands::at("-1");
    let task = start(100, &url, &hands, json!({}));

    eventually("the document is named", SOON, || async {
        let note = hands.note();
        note.contains("; the index did not take document 7 in ")
            .then_some(())
    })
    .await;

    index.busy.lock().unwrap().clear();
    assert_eq!(task.await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn a_document_whose_id_the_index_cannot_hold_is_refused_alone() {
    let (index, url) = Index::start().await;
    let asked = Elastic {
        url,
        index: "numbers".into(),
        id: "id".into(),
        ..Elastic::default()
    };
    let sink = ElasticSink::new(reqwest::Client::new(), asked);
    let document = |id: String| Document {
        key: Arc::from([id.clone()]),
        id: Some(id),
        routing: None,
        action: Action::Store(Arc::from("{}")),
    };
    let ids = [
        "1".to_owned(),
        "x".repeat(513),
        String::new(),
        "2".to_owned(),
    ];

    let written = sink.write(&ids.map(document)).await.unwrap();

    assert_eq!(
        (&written[0], &written[3]),
        (&WriteOutcome::Stored, &WriteOutcome::Stored)
    );
    for (outcome, bytes) in [(&written[1], "513 bytes"), (&written[2], "0 bytes")] {
        let WriteOutcome::Refused(reason) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(reason.contains(bytes), "{reason}");
    }
    assert_eq!(index.ids(), all(2));
}

#[tokio::test]
async fn a_document_that_was_refused_before_a_stop_counts_once() {
    let (index, url) = Index::start().await;
    index.refused.lock().unwrap().insert("3".to_owned());
    let away = (503, "unavailable_shards_exception");
    index.busy.lock().unwrap().insert("1".to_owned(), away);
    let hands = Hands::at("-1");
    let task = start(10, &url, &hands, json!({}));
    eventually("all but two are stored", SOON, || async {
        (index.ids().len() == 8).then_some(())
    })
    .await;

    hands.cancelled.cancel();
    assert_eq!(task.await.unwrap(), Outcome::HandedBack);
    index.busy.lock().unwrap().clear();
    let next = hands.successor();
    let Outcome::Dead { error } = run(10, &url, &next, json!({})).await else {
        panic!("a document was refused")
    };
    assert!(error.contains("1 refused (3: "), "{error}");
}
