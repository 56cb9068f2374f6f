//! The service that reports recorded answers to the throttles.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::completions::Tally;
use super::shared::WorkerContext;
use crate::throttle::{KeyOutcomes, Name};

/// Pauses before a failed report is sent again; after the last one the report is dropped.
const REPORT_RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

/// Reports the recorded answers to the throttles, as fast as these accept them, until cancelled.
pub(super) async fn report_completions(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    while !cancel.is_cancelled() {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = shared.answers.wake.notified() => {}
        }
        let tallies = shared.answers.take_tallies();
        for (throttle, tallies) in &tallies {
            report_tallies(&shared, throttle, tallies).await;
        }
    }
}

async fn report_tallies(
    shared: &WorkerContext,
    throttle: &Name,
    tallies: &BTreeMap<String, Tally>,
) {
    let ended: Vec<KeyOutcomes<'_>> = tallies
        .iter()
        .map(|(key, tally)| tally.ended(key))
        .collect();
    for pause in REPORT_RETRY_DELAYS.into_iter().map(Some).chain([None]) {
        match (shared.throttles.ended(throttle, &ended).await, pause) {
            (Ok(()), _) => break,
            (Err(_), Some(pause)) => tokio::time::sleep(pause).await,
            (Err(error), None) => {
                tracing::debug!(throttle.name = %throttle, %error, "reporting job outcomes to the throttles failed");
            }
        }
    }
    shared
        .answers
        .acknowledge(tallies.values().map(|tally| tally.lane_id));
    shared.running.ended.notify_one();
}
