//! Charges what handlers said their jobs really cost, or gives back what they were charged too much, in batches per throttle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

use crate::throttle::{Error, Name, Store};

/// Most differences that may wait; while the store is lost, more are not kept.
pub(super) const IN_HAND: usize = 10_000;

/// Most that are settled at once.
const MAX_BATCH: usize = 1000;

/// How long the first of a batch waits for company.
const LINGER: Duration = Duration::from_millis(20);

/// After a lost answer it is tried again after these pauses, and then no more.
const AGAIN_AFTER: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500)];

/// Tokens that a key of a throttle has to be charged, below 0 given back.
pub(super) struct Difference {
    pub(super) throttle: Name,
    pub(super) key: String,
    pub(super) tokens: f64,
}

/// Settles until every sender is gone.
pub(super) async fn settle_all(throttles: Arc<dyn Store>, mut differences: mpsc::Receiver<Difference>) {
    let mut batch = Vec::new();
    while differences.recv_many(&mut batch, MAX_BATCH).await > 0 {
        if batch.len() < MAX_BATCH / 2 {
            tokio::time::sleep(LINGER).await;
            while batch.len() < MAX_BATCH
                && let Ok(one) = differences.try_recv()
            {
                batch.push(one);
            }
        }
        let mut by_throttle: HashMap<Name, HashMap<String, f64>> = HashMap::new();
        for one in batch.drain(..) {
            *by_throttle.entry(one.throttle).or_default().entry(one.key).or_default() += one.tokens;
        }
        join_all(by_throttle.iter().map(|(throttle, keys)| settle(&*throttles, throttle, keys))).await;
    }
}

async fn settle(throttles: &dyn Store, throttle: &Name, keys: &HashMap<String, f64>) {
    let mut tokens: Vec<(&str, f64)> = keys.iter().map(|(key, tokens)| (key.as_str(), *tokens)).collect();
    for pause in AGAIN_AFTER.iter().map(Some).chain([None]) {
        match (throttles.settle_many(throttle, &tokens).await, pause) {
            (Err(Error::Lost(_)), Some(pause)) => {
                // It may have been carried out although the answer got lost. Charged twice, a throttle is slow for a moment; what
                // is given back twice would be free.
                tokens.retain(|(_, tokens)| *tokens > 0.0);
                if tokens.is_empty() {
                    return;
                }
                tokio::time::sleep(*pause).await;
            }
            (Err(error), _) => {
                tracing::debug!(throttle.name = %throttle, %error, "what jobs really cost could not be settled");
                return;
            }
            (Ok(()), _) => return,
        }
    }
}
