//! One bulk request and its answer.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;

use super::document::Document;
use super::sink::{Sink, WriteError, WriteOutcome};
use crate::control::backoff;

/// A document with its number in the window and the number of times the index was too busy for it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) number: u64,
    pub(super) document: Document,
    pub(super) tries: u32,
}

/// A bulk request that has ended.
#[derive(Debug)]
pub(super) struct FinishedFlight {
    pub(super) items: Vec<Item>,
    pub(super) answer: Result<Vec<WriteOutcome>, WriteError>,
}

/// Sends items in one bulk request; without items it sends none, because an index refuses an empty
/// request.
pub(super) fn send(
    flights: &mut JoinSet<FinishedFlight>,
    sink: std::sync::Arc<dyn Sink>,
    items: Vec<Item>,
) {
    if items.is_empty() {
        return;
    }
    let write = async move {
        let documents: Vec<_> = items.iter().map(|i| i.document.clone()).collect();
        let answer = sink.write(&documents).await;
        FinishedFlight { items, answer }
    };
    flights.spawn(write.boxed());
}

/// Returns the back-off of one document that the index was too busy for: 0.1 s doubling to 10 s,
/// half of it random.
pub(super) fn item_backoff(tries: u32) -> Duration {
    let (first, most) = (Duration::from_millis(100), Duration::from_secs(10));
    backoff::delay(tries.saturating_sub(1), first, most, rand::random())
}

/// Returns the back-off after a bulk request failed as a whole: 0.5 s doubling to 30 s, half of it
/// random.
pub(super) fn whole_backoff(strikes: u32) -> Duration {
    let (first, most) = (Duration::from_millis(500), Duration::from_secs(30));
    backoff::delay(strikes.saturating_sub(1), first, most, rand::random())
}
