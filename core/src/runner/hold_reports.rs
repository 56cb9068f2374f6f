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
pub(super) async fn report_holds(shared: &WorkerContext, scheduler: &mut LaneScheduler) {
    if let Some(broker) = &shared.broker {
        for job in broker.take_adopted() {
            scheduler.take_over(job.lane_id, job.throttle, job.key);
        }
    }
    for lane in shared.running.take_ended() {
        scheduler.ended(lane);
    }
    for lane in shared.answers.take_acknowledged() {
        scheduler.acknowledge(lane);
    }
    let reports = scheduler.due_reports(Instant::now());
    for report in send_reports(shared, reports).await {
        scheduler.retry_report(&report, Instant::now());
    }
}

/// Goes on reporting while the last jobs run, so that no worker begins others in their place;
/// finally reports that none runs, so that no worker waits for a count to lapse.
pub(super) async fn report_until_stopped(
    shared: &WorkerContext,
    scheduler: &mut LaneScheduler,
    over: &CancellationToken,
) {
    while !over.is_cancelled() {
        report_holds(shared, scheduler).await;
        tokio::select! {
            () = over.cancelled() => {}
            () = shared.running.ended.notified() => {}
            () = tokio::time::sleep(REPORT_CHECK_INTERVAL) => {}
        }
    }
    let mut reports = send_reports(shared, scheduler.final_reports()).await;
    for pause in FINAL_REPORT_RETRY_DELAYS {
        if reports.is_empty() {
            return;
        }
        tokio::time::sleep(pause).await;
        reports = send_reports(shared, reports).await;
    }
}

/// Sends all reports at once; returns those that failed.
async fn send_reports(shared: &WorkerContext, reports: Vec<HoldReport>) -> Vec<HoldReport> {
    let answer = join_all(reports.into_iter().map(|report| async move {
        let holder = Holder { id: shared.holder.clone(), ttl: shared.config.ttl, held: report.held };
        let heard = shared.throttles.hold(&report.throttle, &holder, &report.lanes).await;
        heard.err().map(|error| {
            tracing::debug!(throttle.name = %report.throttle, %error, "reporting running jobs failed");
            report
        })
    }));
    answer.await.into_iter().flatten().collect()
}
