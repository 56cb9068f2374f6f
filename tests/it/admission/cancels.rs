//! Large batches are cancelled at random moments: the answer adds up, tells the truth, and is the
//! end.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use flyball_fakes::Latency;
use futures_util::{StreamExt as _, stream};
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::fixture::{AdmissionFixture, SOON, module};
use crate::support::eventually;
use crate::support::ledger::Ledger;

/// The most recipients of a batch.
const RECIPIENTS: usize = 500;

/// Batches that are sent and cancelled at the same time.
const AT_ONCE: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_cancelled_at_any_moment_adds_up() {
    let after = cancel_all(15).await;
    println!("the last message began {after} ms after the answer of its cancellation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes some minutes; make soak runs it"]
async fn soak_two_hundred_batches_that_are_cancelled_add_up_and_nothing_begins_a_second_later() {
    let after = cancel_all(200).await;
    println!("the last message began {after} ms after the answer of its cancellation");
    assert!(after <= 1_000);
}

/// The answer to a cancellation.
struct Cancelled {
    round: usize,
    batch: i64,
    recipients: u64,
    sent: u64,
    cancelled: u64,
    too_late: u64,
    ended: u64,
    answered_ms: u64,
}

/// Sends and cancels batches; returns the longest time from an answer to a message that began
/// later, in milliseconds.
async fn cancel_all(rounds: usize) -> u64 {
    let fixture = AdmissionFixture::new(false).await;
    // A few batches a second, so that messages of each are everywhere when it is cancelled.
    fixture.limit("acme", (400, 400), 1).await;
    fixture.fake.set_latency(Some(Latency {
        base: Duration::from_millis(40),
        at_once: 100,
    }));
    let _processes = [fixture.serve().await, fixture.serve().await];
    let all: Vec<Cancelled> = stream::iter(0..rounds)
        .map(|round| cancel_one(fixture.clone(), round))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    eventually("all has ended", SOON, || async {
        let ledger = Ledger::look(fixture.process.pool()).await?;
        (ledger.waiting() == 0).then_some(())
    })
    .await;
    let ledger = Ledger::look(fixture.process.pool()).await.unwrap();
    ledger.assert_conserved();
    assert_eq!(ledger.dead, 0);
    let received = fixture.received();
    let mut after = 0;
    for one in &all {
        let answer = (one.sent, one.cancelled, one.too_late);
        assert_eq!(
            one.sent + one.cancelled + one.too_late + one.ended,
            one.recipients
        );
        let first = one.round * RECIPIENTS;
        let numbers = module("web").to(first)..=module("web").to(first + RECIPIENTS - 1);
        let came: Vec<u64> = received
            .iter()
            .filter(|message| numbers.contains(&message.to))
            .map(|message| message.at_ms)
            .collect();
        let delivered = came.len() as u64;
        assert!(
            (one.sent..=one.sent + one.too_late).contains(&delivered),
            "batch {}: {delivered} were delivered, the answer was {answer:?}",
            one.batch
        );
        let late = came.iter().map(|at| at.saturating_sub(one.answered_ms));
        after = after.max(late.max().unwrap_or(0));
        assert_is_shown_as_cancelled(&fixture, one, delivered).await;
    }
    let sum = |part: fn(&Cancelled) -> u64| all.iter().map(part).sum::<u64>();
    println!(
        "{rounds} batches: {} sent, {} cancelled, {} too late",
        sum(|one| one.sent),
        sum(|one| one.cancelled),
        sum(|one| one.too_late)
    );
    assert!(sum(|one| one.sent) > 0 && sum(|one| one.cancelled) > 0);
    let mut each: Vec<&str> = received.iter().map(|message| message.to.as_str()).collect();
    each.sort_unstable();
    each.dedup();
    assert_eq!(each.len(), received.len(), "none came twice");
    fixture.assert_nothing_is_pending().await;
    after
}

/// Sends a batch and cancels it a moment later.
async fn cancel_one(fixture: Arc<AdmissionFixture>, round: usize) -> Cancelled {
    let web = module("web");
    let recipients = rand::random_range(50..=RECIPIENTS);
    let first = round * RECIPIENTS;
    let to: Vec<String> = (first..first + recipients).map(|n| web.to(n)).collect();
    let body = json!({"channel": "sms", "body": "the sale ends on Sunday", "recipients": to});
    let answer = fixture.ask(web, "/batch", &body, None).await.unwrap();
    let (status, answer) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let batch = answer["id"].as_i64().unwrap();
    // Real time: the batch is cancelled at any moment of its life.
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..1_500))).await;

    let path = format!("/batches/{batch}/cancel");
    let answer = fixture.ask(web, &path, &Value::Null, None).await.unwrap();

    let answered_ms = UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert_eq!(answer.status(), StatusCode::OK);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["state"], "cancelled");
    let number = |name: &str| body[name].as_u64().unwrap();
    Cancelled {
        round,
        batch,
        recipients: recipients as u64,
        sent: number("sent"),
        cancelled: number("cancelled"),
        too_late: number("too_late"),
        ended: body["ended"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(Value::as_u64)
            .sum(),
        answered_ms,
    }
}

/// Checks that the batch as it is shown adds up as well.
async fn assert_is_shown_as_cancelled(fixture: &AdmissionFixture, one: &Cancelled, delivered: u64) {
    let batches = flyball::admission::Batches::new(fixture.process.queue.clone());
    let shown = batches
        .show(Some("acme"), one.batch)
        .await
        .unwrap()
        .unwrap();
    let sum: i64 = shown.counts.values().sum();
    assert_eq!(
        (shown.state.as_str(), sum as u64),
        ("cancelled", one.recipients)
    );
    // One that was cut off while the provider accepted it is shown as cancelled.
    let cancelled = shown.counts.get("cancelled").copied().unwrap_or(0) as u64;
    let may_be = one.recipients - delivered..=one.recipients - one.sent;
    assert!(may_be.contains(&cancelled), "{:?}", shown.counts);
}
