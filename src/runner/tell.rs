//! Reports the running jobs to the throttles, for their concurrency limits, until none runs.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::board::{Board, Held};
use super::shared::Shared;
use crate::throttle::Holder;

/// Interval at which a worker that claims nothing more checks for due reports.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Pauses before the last report is sent again after a failure.
const SAY_AGAIN_AFTER: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
];

/// Records the jobs that ended, and sends the reports that are due.
pub(super) async fn tell(shared: &Shared, board: &mut Board) {
    for lane in shared.running.take_ended() {
        board.ended(lane);
    }
    for lane in shared.answers.take_heard() {
        board.heard(lane);
    }
    let words = board.tell(Instant::now());
    for word in say(shared, words).await {
        board.unheard(&word, Instant::now());
    }
}

/// Goes on reporting while the last jobs run, so that no worker begins others in their place;
/// finally reports that none runs, so that no worker waits for a count to lapse.
pub(super) async fn tell_to_the_end(shared: &Shared, board: &mut Board, over: &CancellationToken) {
    while !over.is_cancelled() {
        tell(shared, board).await;
        tokio::select! {
            () = over.cancelled() => {}
            () = shared.running.ended.notified() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    let mut words = say(shared, board.farewell()).await;
    for pause in SAY_AGAIN_AFTER {
        if words.is_empty() {
            return;
        }
        tokio::time::sleep(pause).await;
        words = say(shared, words).await;
    }
}

/// Sends all reports at once; returns those that failed.
async fn say(shared: &Shared, words: Vec<Held>) -> Vec<Held> {
    let said = join_all(words.into_iter().map(|word| async move {
        let holder = Holder { id: shared.holder.clone(), ttl: shared.config.ttl, held: word.held };
        let heard = shared.throttles.hold(&word.throttle, &holder, &word.lanes).await;
        heard.err().map(|error| {
            tracing::debug!(throttle.name = %word.throttle, %error, "what runs here could not be told yet");
            word
        })
    }));
    said.await.into_iter().flatten().collect()
}
