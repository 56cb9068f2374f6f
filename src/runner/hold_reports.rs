//! Reports the running jobs to the throttles, for their concurrency limits, until none runs.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::lane_scheduler::{HoldReport, LaneScheduler};
use super::shared::WorkerContext;
use crate::throttle::Holder;

/// Interval at which a worker that claims nothing more checks for due reports.
const REPORT_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Pauses before the last report is sent again after a failure.
const FINAL_REPORT_RETRY_DELAYS: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
];

/// Records the jobs that ended, and sends the reports that are due.
pub(super) async fn report_holds(shared: &WorkerContext, board: &mut LaneScheduler) {
    for lane in shared.running.take_ended() {
        board.ended(lane);
    }
    for lane in shared.answers.take_acknowledged() {
        board.acknowledge(lane);
    }
    let words = board.due_reports(Instant::now());
    for word in send_reports(shared, words).await {
        board.retry_report(&word, Instant::now());
    }
}

/// Goes on reporting while the last jobs run, so that no worker begins others in their place;
/// finally reports that none runs, so that no worker waits for a count to lapse.
pub(super) async fn report_until_stopped(
    shared: &WorkerContext,
    board: &mut LaneScheduler,
    over: &CancellationToken,
) {
    while !over.is_cancelled() {
        report_holds(shared, board).await;
        tokio::select! {
            () = over.cancelled() => {}
            () = shared.running.ended.notified() => {}
            () = tokio::time::sleep(REPORT_CHECK_INTERVAL) => {}
        }
    }
    let mut words = send_reports(shared, board.final_reports()).await;
    for pause in FINAL_REPORT_RETRY_DELAYS {
        if words.is_empty() {
            return;
        }
        tokio::time::sleep(pause).await;
        words = send_reports(shared, words).await;
    }
}

/// Sends all reports at once; returns those that failed.
async fn send_reports(shared: &WorkerContext, words: Vec<HoldReport>) -> Vec<HoldReport> {
    let answer = join_all(words.into_iter().map(|word| async move {
        let holder = Holder { id: shared.holder.clone(), ttl: shared.config.ttl, held: word.held };
        let heard = shared.throttles.hold(&word.throttle, &holder, &word.lanes).await;
        heard.err().map(|error| {
            tracing::debug!(throttle.name = %word.throttle, %error, "reporting running jobs failed");
            word
        })
    }));
    answer.await.into_iter().flatten().collect()
}
