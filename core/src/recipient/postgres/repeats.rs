//! Transactions that are run once more after a deadlock.

use crate::jobs::Error;

/// Most repeats of a transaction after a deadlock.
const REPEATS_MAX: u32 = 5;

/// Runs a transaction again that was broken off by a deadlock. One that waited for a lock as long as it
/// may is not repeated.
pub(in crate::recipient) async fn repeated<T, F>(mut run: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut repeats = 0;
    loop {
        match run().await {
            Err(error)
                if error.was_broken_off() && !error.was_locked_out() && repeats < REPEATS_MAX =>
            {
                repeats += 1;
            }
            ended => return ended,
        }
    }
}
