//! The common form of a background loop.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::DueWork;

/// The timeout of a tick, or ten rounds if that is longer; a longer tick hangs, on a silently lost
/// connection for example.
const LONGEST_TICK: Duration = Duration::from_secs(30);

/// The time after which a loop that still fails is logged again, so that it is not forgotten in a
/// log of hours.
const TELL_AGAIN: Duration = Duration::from_secs(300);

/// The schedule of a loop.
#[derive(Clone)]
pub struct LoopOptions {
    /// The name in log lines.
    pub name: &'static str,
    /// The time between two ticks, varied by ±5 % so that processes do not tick in step.
    pub every: Duration,
    /// A notification that ends the sleep early.
    pub wake: Option<Arc<Notify>>,
}

/// Runs `tick` until `cancel` fires, which also interrupts a tick that waits for a store.
///
/// A single statement is either done or not done, and the next tick sees the result. A failing tick
/// is logged when it begins to fail, every few minutes, and when it works again, not each time.
pub async fn periodic<E, F>(pace: LoopOptions, cancel: CancellationToken, tick: impl FnMut() -> F)
where
    E: Display,
    F: Future<Output = Result<(), E>>,
{
    run(pace, cancel, |_| true, tick).await;
}

/// Runs `tick` like [`periodic`], but leaves out ticks that nothing woke while a worker of this
/// process looks for the loop's work and would wake it.
pub async fn periodic_unless_watched<E, F>(
    pace: LoopOptions,
    due: DueWork,
    cancel: CancellationToken,
    tick: impl FnMut() -> F,
) where
    E: Display,
    F: Future<Output = Result<(), E>>,
{
    run(pace, cancel, move |rested| due.must_look(rested), tick).await;
}

async fn run<E, F>(
    pace: LoopOptions,
    cancel: CancellationToken,
    is_due: impl Fn(Duration) -> bool,
    mut tick: impl FnMut() -> F,
) where
    E: Display,
    F: Future<Output = Result<(), E>>,
{
    let mut failing = false;
    let mut told: Option<Instant> = None;
    let longest = LONGEST_TICK.max(pace.every * 10);
    loop {
        let ended = tokio::select! {
            () = cancel.cancelled() => return,
            ended = tokio::time::timeout(longest, tick()) => ended,
        };
        match ended {
            Ok(Ok(())) if failing => {
                failing = false;
                tracing::info!(service = pace.name, "works again");
            }
            Ok(Ok(())) => {}
            Err(_) => {
                failing = true;
                tracing::warn!(
                    service = pace.name,
                    longest_s = longest.as_secs(),
                    "aborted because it took too long"
                );
            }
            Ok(Err(error)) if !failing || told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) => {
                (failing, told) = (true, Some(Instant::now()));
                tracing::warn!(service = pace.name, %error, "failed; retrying");
            }
            Ok(Err(error)) => tracing::debug!(service = pace.name, %error, "still failing"),
        }
        let ticked = Instant::now();
        loop {
            let pause = pace.every.mul_f64(0.95 + rand::random::<f64>() * 0.1);
            let woken = async {
                match &pace.wake {
                    Some(wake) => wake.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = woken => break,
            }
            if failing || is_due(ticked.elapsed()) {
                break;
            }
        }
    }
}
