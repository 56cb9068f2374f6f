//! A reindex into an index that fails in every way seen in practice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flyball::jobs::{Job, Outcome};
use flyball::reindex::sink::{ElasticSink, Sink, WriteError};
use flyball::reindex::sink_args::Elastic;
use flyball::reindex::source::DocumentSource;
use flyball::reindex::{Args, Catalogue, backfill::backfill};
use flyball::throttle::{Name, Store};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::reindex::fakes::{Hands, Index, Mood, Numbers, job};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(60);

fn args(more: Value) -> Value {
    let mut args = json!({
        "source": {"type": "postgres", "table": "numbers", "key": "id"},
        "sink": {"type": "elastic", "url": "http://127.0.0.1:9", "index": "numbers"},
        "batch_docs": 50, "concurrency": 4,
    });
    args.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    args
}

/// Starts a reindex of the numbers up to `n` into the index at `url`.
pub(super) fn start(n: u64, url: &str, hands: &Hands, more: Value) -> JoinHandle<Outcome> {
    let client = reqwest::Client::builder()
        .timeout(Duration::from_secs(5))
        .build()
        .unwrap();
    let asked = Elastic {
        url: url.to_owned(),
        index: "numbers".into(),
        id: "id".into(),
        ..Elastic::default()
    };
    let sink: Arc<dyn Sink> = Arc::new(ElasticSink::new(client, asked));
    let (job, context): (Job, _) = (job(args(more)), hands.context());
    // The restrictions on jobs are tested elsewhere.
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    tokio::spawn(async move {
        let args = Args::parse(&job.args, &free).unwrap();
        backfill(&job, &context, &args, Arc::new(Numbers(n)), sink).await
    })
}

pub(super) async fn run(n: u64, url: &str, hands: &Hands, more: Value) -> Outcome {
    tokio::time::timeout(SOON, start(n, url, hands, more))
        .await
        .expect("the reindex ends")
        .unwrap()
}

pub(super) fn all(n: u64) -> BTreeSet<u64> {
    (1..=n).collect()
}

async fn tokens_used(hands: &Hands) -> f64 {
    hands
        .throttles
        .status(&Name::new("reindex").unwrap())
        .await
        .unwrap()
        .unwrap()
        .used
}

#[tokio::test]
async fn every_document_is_stored_once_and_the_note_says_so() {
    let (index, url) = Index::start().await;
    let hands = Hands::at("-1");

    let outcome = run(3000, &url, &hands, json!({})).await;

    assert_eq!(outcome, Outcome::Done);
    assert_eq!(index.ids(), all(3000));
    assert_eq!(index.sent(), 3000);
    assert_eq!(hands.cursor(), 3000);
    assert!(
        hands.note().starts_with("3,000 documents, all read"),
        "{}",
        hands.note()
    );
}

#[tokio::test]
async fn an_empty_source_is_done_at_once() {
    let (index, url) = Index::start().await;

    assert_eq!(
        run(0, &url, &Hands::at("-1"), json!({})).await,
        Outcome::Done
    );
    assert_eq!(index.sent(), 0);
}

#[tokio::test]
async fn documents_that_found_the_index_busy_are_sent_again_alone() {
    let (index, url) = Index::start().await;
    index.then([Mood::OddBusy, Mood::OddBusy, Mood::OddBusy]);
    let hands = Hands::at("-1");

    assert_eq!(
        run(200, &url, &hands, json!({"concurrency": 1})).await,
        Outcome::Done
    );

    assert_eq!(index.ids(), all(200));
    let times = index.times_sent();
    assert!(
        times
            .iter()
            .all(|(id, times)| *times == 1 || id.parse::<u64>().unwrap() % 2 == 1),
        "{times:?}"
    );
    // Resent were the documents with odd numbers in the first three requests, however many, and no
    // others.
    let rejected: BTreeSet<String> = index.seen.lock().unwrap()[..3]
        .iter()
        .flat_map(|request| request.ids.clone())
        .filter(|id| id.parse::<u64>().unwrap() % 2 == 1)
        .collect();
    let again = times.iter().filter(|(_, times)| **times > 1);
    let again: BTreeSet<String> = again.map(|(id, _)| id.clone()).collect();
    assert_eq!(again, rejected);
    assert!(!rejected.is_empty());
}

#[tokio::test]
async fn a_whole_429_with_retry_after_stops_everything_for_as_long() {
    let (index, url) = Index::start().await;
    index.then([Mood::Whole(429, Some(2))]);

    assert_eq!(
        run(100, &url, &Hands::at("-1"), json!({"concurrency": 1})).await,
        Outcome::Done
    );

    let seen = index.seen.lock().unwrap().clone();
    assert!(
        seen[1].at - seen[0].at >= Duration::from_millis(1_990),
        "{:?}",
        seen[1].at - seen[0].at
    );
    assert_eq!(index.ids(), all(100));
}

#[tokio::test]
async fn a_very_long_retry_after_is_left_to_the_throttle_of_the_job() {
    let (index, url) = Index::start().await;
    index.then([Mood::Whole(503, Some(3600))]);

    let outcome = run(100, &url, &Hands::at("-1"), json!({"concurrency": 1})).await;

    assert!(
        matches!(outcome, Outcome::Throttled { delay: Some(delay), .. } if delay == Duration::from_secs(3600)),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn failures_nonsense_and_cut_connections_lose_nothing() {
    let (index, url) = Index::start().await;
    index.then([
        Mood::Whole(500, None),
        Mood::Cut,
        Mood::Nonsense,
        Mood::Whole(502, None),
    ]);
    let hands = Hands::at("-1");

    assert_eq!(
        run(400, &url, &hands, json!({"concurrency": 1})).await,
        Outcome::Done
    );

    assert_eq!(index.ids(), all(400));
    assert_eq!(hands.cursor(), 400);
}

#[tokio::test]
async fn a_dead_reindex_that_is_retried_starts_over() {
    let (index, url) = Index::start().await;
    index.refused.lock().unwrap().insert("7".into());
    let hands = Hands::at("-1");
    run(100, &url, &hands, json!({})).await;
    index.refused.lock().unwrap().clear();

    assert_eq!(run(100, &url, &hands, json!({})).await, Outcome::Done);

    assert_eq!(index.ids(), all(100));
}

#[tokio::test]
async fn a_request_that_is_too_large_is_halved_until_it_fits() {
    let (index, url) = Index::start().await;
    *index.most.lock().unwrap() = 3;

    assert_eq!(
        run(60, &url, &Hands::at("-1"), json!({"concurrency": 2})).await,
        Outcome::Done
    );

    assert_eq!(index.ids(), all(60));
}

#[tokio::test]
async fn the_note_says_why_it_waits_until_the_index_has_taken_a_request() {
    let (index, url) = Index::start().await;
    index.then([
        Mood::Whole(500, None),
        Mood::Slow(Duration::from_millis(2500)),
    ]);
    let hands = Hands::at("-1");
    let task = start(50, &url, &hands, json!({"concurrency": 1}));

    eventually("the reason is told", SOON, || async {
        hands
            .note()
            .contains("; waiting for the index: 500 no")
            .then_some(())
    })
    .await;

    eventually("it waits for the second answer", SOON, || async {
        (index.seen.lock().unwrap().len() == 2).then_some(())
    })
    .await;
    assert_eq!(task.await.unwrap(), Outcome::Done);
    assert_eq!(hands.note(), "50 documents, all read");
}

#[tokio::test]
async fn an_answer_that_is_late_tells_the_size_of_its_request() {
    let (index, url) = Index::start().await;
    index.then([Mood::Slow(SOON)]);
    // Real time: the answer is waited for this long.
    let within = Duration::from_millis(200);
    let client = reqwest::Client::builder().timeout(within).build().unwrap();
    let asked = Elastic {
        url,
        index: "numbers".into(),
        ..Elastic::default()
    };
    let documents = Numbers(3).page(None, 3).await.unwrap().documents;

    let late = ElasticSink::new(client, asked).write(&documents).await;

    assert!(
        matches!(late, Err(WriteError::Late { bytes: 60..200 })),
        "{late:?}"
    );
}

#[tokio::test]
async fn no_document_is_sent_without_a_token_retries_included() {
    let (index, url) = Index::start().await;
    index.then([Mood::OddBusy, Mood::Whole(500, None), Mood::OddBusy]);
    let hands = Hands::at("2000");

    assert_eq!(run(500, &url, &hands, json!({})).await, Outcome::Done);

    assert!(index.sent() > 500);
    assert!((tokens_used(&hands).await - index.sent() as f64).abs() < 1e-6);
}

#[tokio::test]
async fn five_documents_a_second_are_five_to_two_percent() {
    let (index, url) = Index::start().await;
    let hands = Hands::at("5");
    let task = start(100_000, &url, &hands, json!({}));
    // The bucket may hold a little at the start, so the rate is measured afterwards.
    eventually("the first documents", SOON, || async {
        (index.sent() >= 4).then_some(())
    })
    .await;
    let from = index.seen.lock().unwrap().len();

    eventually("fifty further documents", SOON, || async {
        (index.seen.lock().unwrap().len() > from + 50).then_some(())
    })
    .await;

    task.abort();
    let seen = index.seen.lock().unwrap();
    let documents: usize = seen[from..from + 50].iter().map(|s| s.ids.len()).sum();
    let rate = documents as f64 / (seen[from + 50].at - seen[from].at).as_secs_f64();
    assert!((rate - 5.0).abs() < 0.1, "{rate}");
}

#[tokio::test]
async fn a_turned_knob_acts_within_a_second_in_both_directions() {
    let (index, url) = Index::start().await;
    let hands = Hands::at("500");
    let task = start(1_000_000, &url, &hands, json!({}));
    eventually("documents flow", SOON, || async {
        (index.sent() > 300).then_some(())
    })
    .await;

    hands.turn("0");
    eventually("the note says that it is stopped", SOON, || async {
        hands.note().contains("is stopped").then_some(())
    })
    .await;
    let stopped_at = index.sent();
    hands.refusals.again("reindex", "").await;
    assert_eq!(index.sent(), stopped_at);

    hands.turn("500");
    let turned = Instant::now();
    eventually("documents flow again", SOON, || async {
        (index.sent() > stopped_at).then_some(())
    })
    .await;
    assert!(
        turned.elapsed() < Duration::from_secs(1),
        "{:?}",
        turned.elapsed()
    );
    task.abort();
}

#[tokio::test]
async fn an_unknown_throttle_sends_nothing_and_says_why() {
    let (index, url) = Index::start().await;
    let hands = Hands::at("100");
    hands
        .throttles
        .remove_raw(&Name::new("reindex").unwrap(), "rps");
    let task = start(10, &url, &hands, json!({}));

    eventually("the note", SOON, || async {
        hands
            .note()
            .contains("there is no throttle reindex")
            .then_some(())
    })
    .await;

    hands.cancelled.cancel();
    assert_eq!(task.await.unwrap(), Outcome::HandedBack);
    assert_eq!(index.sent(), 0);
}

#[tokio::test]
async fn a_stopped_handler_leaves_its_cursor_and_the_next_one_goes_on_from_it() {
    let (index, url) = Index::start().await;
    let hands = Hands::at("2000");
    let task = start(5_000, &url, &hands, json!({}));
    eventually("documents flow", SOON, || async {
        (index.sent() > 500).then_some(())
    })
    .await;

    hands.cancelled.cancel();

    let asked = Instant::now();
    assert_eq!(task.await.unwrap(), Outcome::HandedBack);
    assert!(asked.elapsed() < Duration::from_secs(2));
    let cursor = hands.cursor();
    assert!(cursor > 0 && all(cursor).is_subset(&index.ids()));
    let sent = index.sent() as u64;

    let next = hands.successor();
    next.turn("-1");
    assert_eq!(run(5_000, &url, &next, json!({})).await, Outcome::Done);
    assert_eq!(index.ids(), all(5_000));
    assert_eq!(index.sent() as u64, sent + 5_000 - cursor);
}

#[tokio::test]
async fn a_lost_lease_ends_the_work_and_writes_no_cursor() {
    let (index, url) = Index::start().await;
    let hands = Hands::at("500");
    let task = start(100_000, &url, &hands, json!({}));
    eventually("a checkpoint", SOON, || async {
        (hands.cursor() > 0).then_some(())
    })
    .await;

    hands.checkpoints.fence.store(99, Ordering::SeqCst);

    let outcome = tokio::time::timeout(Duration::from_secs(3), task)
        .await
        .expect("it ends soon")
        .unwrap();
    assert_eq!(outcome, Outcome::HandedBack);
    let cursor = hands.cursor();
    assert!(cursor < index.sent() as u64 && all(cursor).is_subset(&index.ids()));
}

#[tokio::test]
async fn killed_ten_times_at_any_moment_it_still_stores_every_document() {
    const N: u64 = 20_000;
    let (index, url) = Index::start().await;
    let hands = Hands::at("8000");

    for life in 0..10 {
        index.then((0..20).map(|n| match (n + life) % 7 {
            0 => Mood::OddBusy,
            1 => Mood::Slow(Duration::from_millis(60)),
            2 => Mood::Whole(429, None),
            3 => Mood::Cut,
            _ => Mood::Good,
        }));
        let task = start(N, &url, &hands, json!({}));
        // Real time: it is killed at any moment.
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..1_400))).await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        // Every document before the cursor is stored.
        let cursor = hands.cursor();
        assert!(
            all(cursor).is_subset(&index.ids()),
            "life {life}: the cursor {cursor} passed a document that is not stored"
        );
    }
    hands.turn("-1");
    index.moods.lock().unwrap().clear();

    assert_eq!(run(N, &url, &hands, json!({})).await, Outcome::Done);
    assert_eq!(index.ids(), all(N));
}

#[tokio::test]
async fn an_index_that_stays_away_costs_an_attempt_only_if_nothing_came_forward() {
    let hands = Hands::at("-1");
    let closed = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let task = start(10, &closed, &hands, json!({}));

    eventually("the note", SOON, || async {
        hands.note().contains("waiting for the index").then_some(())
    })
    .await;

    hands.cancelled.cancel();
    assert_eq!(task.await.unwrap(), Outcome::HandedBack);
}

#[tokio::test]
async fn documents_are_sent_only_some_seconds_of_the_rate_beyond_the_oldest_one_that_is_not_stored()
{
    let (index, url) = Index::start().await;
    index
        .busy
        .lock()
        .unwrap()
        .insert("1".to_owned(), (503, "unavailable_shards_exception"));
    let hands = Hands::at("500");
    let task = start(
        100_000,
        &url,
        &hands,
        json!({"batch_docs": 500, "concurrency": 8}),
    );

    // The tries of the oldest one are ever further apart: after some hundred documents, far enough
    // for hundreds more.
    let (mut newest, mut tries) = (0, 0);
    eventually("nothing is sent between two tries", SOON, || {
        let (now, tried) = (
            index.ids().last().copied(),
            index.times_sent().get("1").copied(),
        );
        if now.unwrap_or(0) > newest {
            (newest, tries) = (now.unwrap_or(0), tried.unwrap_or(0));
        }
        std::future::ready((newest > 300 && tried.unwrap_or(0) >= tries + 2).then_some(()))
    })
    .await;

    task.abort();
    // Eight requests of a tenth of a second, and three seconds.
    assert!(
        newest <= 8 * 50 + 3 * 500,
        "a killed worker would send {newest} documents again"
    );
    assert_eq!(hands.cursor(), 0);
}

#[tokio::test]
async fn documents_that_the_index_rejects_slow_their_throttle_down_and_others_that_it_cannot_store_do_not()
 {
    for (status, kind, refusals) in [
        (429, "es_rejected_execution_exception", true),
        (403, "cluster_block_exception", false),
    ] {
        let (index, url) = Index::start().await;
        index
            .busy
            .lock()
            .unwrap()
            .insert("7".to_owned(), (status, kind));
        let hands = Hands::at("1000");
        let task = start(50, &url, &hands, json!({}));
        eventually("the document was tried a few times", SOON, || async {
            (index.times_sent().get("7").is_some_and(|times| *times >= 3)).then_some(())
        })
        .await;

        let name = Name::new("reindex").unwrap();
        let answer = eventually("the throttle knows of it", SOON, || async {
            let key = hands
                .throttles
                .look(&name, &[String::new()])
                .await
                .unwrap()
                .remove(0);
            (!refusals || key.refused > 0.0).then_some(key)
        })
        .await;
        assert_eq!(answer.refused > 0.0, refusals, "{status}: {answer:?}");

        // Neither is rejected for good.
        index.busy.lock().unwrap().clear();
        assert_eq!(task.await.unwrap(), Outcome::Done, "{status}");
        assert_eq!(index.ids(), all(50));
    }
}

#[tokio::test]
async fn documents_are_created_once_through_a_pipeline_where_the_job_wants_it_so() {
    let (index, url) = Index::start().await;
    // The answer of a data stream for a document stored by an earlier request.
    index
        .busy
        .lock()
        .unwrap()
        .insert("3".to_owned(), (409, "version_conflict_engine_exception"));
    let (job, context) = (job(args(json!({}))), Hands::at("-1").context());
    let asked = Elastic {
        url,
        index: "numbers".into(),
        id: "id".into(),
        creates: true,
        pipeline: Some("clean".into()),
        ..Elastic::default()
    };
    let free = Catalogue {
        allow_queries: true,
        ..Catalogue::default()
    };
    let sink: Arc<dyn Sink> = Arc::new(ElasticSink::new(reqwest::Client::new(), asked));

    let outcome = backfill(
        &job,
        &context,
        &Args::parse(&job.args, &free).unwrap(),
        Arc::new(Numbers(5)),
        sink,
    )
    .await;

    assert_eq!(outcome, Outcome::Done);
    assert_eq!(index.ids(), [1, 2, 4, 5].into());
    let asked = index.asked.lock().unwrap().clone();
    assert!(!asked.is_empty());
    assert!(
        asked
            .iter()
            .all(|(query, action)| query.contains("pipeline=clean") && action == "create"),
        "{asked:?}"
    );
}
