//! Tells the throttles what runs here, for their limits of concurrency, until nothing does.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::board::{Board, Held};
use super::shared::Shared;
use crate::throttle::Holder;

/// A worker that claims nothing more looks this often whether a word is due.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The last word is said again after these pauses where it was not heard.
const SAY_AGAIN_AFTER: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500)];

/// Takes note of what has ended, and tells what is due of what runs.
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

/// Goes on telling while the last jobs run, so that nobody begins others in their place; and at the end that none does, so that
/// nobody waits for a word to lapse.
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

/// Says all words at once; answers those that were not heard.
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
