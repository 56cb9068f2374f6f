//! Settles the difference between the actual and the charged cost of jobs, in batches per throttle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

use crate::throttle::{Error, Name, Store};

/// Most differences that may wait; while the store is lost, further ones are dropped.
pub(super) const IN_HAND: usize = 10_000;

/// Most differences settled at once.
const MAX_BATCH: usize = 1000;

/// Time for which the first difference of a batch waits for others.
const SETTLE_BATCH_DELAY: Duration = Duration::from_millis(20);

/// Pauses before a settlement is tried again after a lost answer; after the last one it is dropped.
const SETTLE_RETRY_DELAYS: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
];

/// Tokens to charge to a key of a throttle; a negative amount is refunded.
pub(super) struct Difference {
    pub(super) throttle: Name,
    pub(super) key: String,
    pub(super) tokens: f64,
}

/// Settles differences until every sender is dropped.
pub(super) async fn settle_all(
    throttles: Arc<dyn Store>,
    mut differences: mpsc::Receiver<Difference>,
) {
    let mut batch = Vec::new();
    while differences.recv_many(&mut batch, MAX_BATCH).await > 0 {
        if batch.len() < MAX_BATCH / 2 {
            tokio::time::sleep(SETTLE_BATCH_DELAY).await;
            while batch.len() < MAX_BATCH
                && let Ok(one) = differences.try_recv()
            {
                batch.push(one);
            }
        }
        let mut by_throttle: HashMap<Name, HashMap<String, f64>> = HashMap::new();
        for one in batch.drain(..) {
            *by_throttle
                .entry(one.throttle)
                .or_default()
                .entry(one.key)
                .or_default() += one.tokens;
        }
        join_all(
            by_throttle
                .iter()
                .map(|(throttle, keys)| settle(&*throttles, throttle, keys)),
        )
        .await;
    }
}

async fn settle(throttles: &dyn Store, throttle: &Name, keys: &HashMap<String, f64>) {
    let mut tokens: Vec<(&str, f64)> = keys
        .iter()
        .map(|(key, tokens)| (key.as_str(), *tokens))
        .collect();
    for pause in SETTLE_RETRY_DELAYS.iter().map(Some).chain([None]) {
        match (throttles.settle_many(throttle, &tokens).await, pause) {
            (Err(Error::Lost(_)), Some(pause)) => {
                // The settlement may have been carried out although its answer was lost. A charge
                // made twice slows the throttle for a moment; a refund made twice would be free
                // tokens.
                tokens.retain(|(_, tokens)| *tokens > 0.0);
                if tokens.is_empty() {
                    return;
                }
                tokio::time::sleep(*pause).await;
            }
            (Err(error), _) => {
                tracing::debug!(throttle.name = %throttle, %error, "settling the real costs of jobs failed");
                return;
            }
            (Ok(()), _) => return,
        }
    }
}
