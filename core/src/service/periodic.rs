//! The common form of a background loop.

use std::fmt::Display;
use std::ops::Range;
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
const LOG_AGAIN: Duration = Duration::from_secs(300);

/// The time without a failure after which a loop that failed works again. A tick without work
/// succeeds while the store is away, too.
const CALM: Duration = Duration::from_secs(10);

/// The time from the start of a process to its first housekeeping.
const HOUSEKEEPING_AFTER: Range<Duration> = Duration::from_secs(2)..Duration::from_secs(10);

/// The failures of a loop, which logs when it begins to fail and when it works again.
#[derive(Debug, Default)]
pub struct FailureLog {
    first: Option<Instant>,
    last: Option<Instant>,
    logged: Option<Instant>,
}

impl FailureLog {
    /// Returns true while the loop fails, and for [`CALM`] after its last failure.
    fn is_failing(&self) -> bool {
        self.last.is_some()
    }

    /// Notes a failure; returns true if it is to be logged: the first, and one every few minutes.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.first = self.first.or(Some(now));
        self.last = Some(now);
        let is_logged = self
            .logged
            .is_none_or(|logged| now.duration_since(logged) >= LOG_AGAIN);
        if is_logged {
            self.logged = Some(now);
        }
        is_logged
    }

    /// Returns the time for which the loop has failed; none if it works.
    pub fn lasted(&self, now: Instant) -> Duration {
        self.first
            .map_or(Duration::ZERO, |first| now.duration_since(first))
    }

    /// Notes a failure of work whose successes are not noted; returns true if it is to be logged:
    /// the first of an outage, and one every few minutes.
    pub fn failed_anew(&mut self, now: Instant) -> bool {
        self.succeeded(now);
        self.failed(now)
    }

    /// Notes a success; returns true if the loop works again.
    pub fn succeeded(&mut self, now: Instant) -> bool {
        let is_over = self
            .last
            .is_some_and(|last| now.duration_since(last) >= CALM);
        if is_over {
            *self = Self::default();
        }
        is_over
    }
}

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

/// Runs `tick` like [`periodic`], but not at once: a start has more urgent work, and processes that
/// start together do not all tidy up at the same time.
pub async fn housekeeping<E, F>(
    pace: LoopOptions,
    cancel: CancellationToken,
    tick: impl FnMut() -> F,
) where
    E: Display,
    F: Future<Output = Result<(), E>>,
{
    let first = rand::random_range(HOUSEKEEPING_AFTER);
    let rested = cancel.run_until_cancelled(tokio::time::sleep(first)).await;
    if rested.is_some() {
        periodic(pace, cancel, tick).await;
    }
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
    let mut failures = FailureLog::default();
    let longest = LONGEST_TICK.max(pace.every * 10);
    loop {
        let ended = tokio::select! {
            () = cancel.cancelled() => return,
            ended = tokio::time::timeout(longest, tick()) => ended,
        };
        match ended {
            Ok(Ok(())) => {
                if failures.succeeded(Instant::now()) {
                    tracing::info!(service = pace.name, "works again");
                }
            }
            Err(_) => {
                let longest_s = longest.as_secs();
                if failures.failed(Instant::now()) {
                    tracing::warn!(
                        service = pace.name,
                        longest_s,
                        "aborted because it took too long"
                    );
                } else {
                    tracing::debug!(service = pace.name, longest_s, "aborted once more");
                }
            }
            Ok(Err(error)) => {
                if failures.failed(Instant::now()) {
                    tracing::warn!(service = pace.name, %error, "failed; retrying");
                } else {
                    tracing::debug!(service = pace.name, %error, "still failing");
                }
            }
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
            if failures.is_failing() || is_due(ticked.elapsed()) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_whose_idle_ticks_succeed_during_an_outage_is_told_once_and_over_once() {
        let (mut log, began) = (FailureLog::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert!(!log.succeeded(at(0)) && !log.is_failing());
        assert!(log.failed(at(1)));
        assert!(!log.succeeded(at(3)) && log.is_failing());
        assert!(!log.failed(at(5)), "the same outage");
        assert!(!log.succeeded(at(14)));
        assert!(log.succeeded(at(15)) && !log.is_failing());
        assert!(!log.succeeded(at(16)));
        assert!(log.failed(at(20)), "another one");
    }

    #[test]
    fn an_outage_lasts_from_its_first_failure_until_it_is_over() {
        let (mut log, began) = (FailureLog::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(log.lasted(at(1)), Duration::ZERO);
        log.failed(at(1));
        log.succeeded(at(3));
        log.failed(at(5));
        assert_eq!(log.lasted(at(7)), Duration::from_secs(6));
        assert!(log.succeeded(at(15)));
        assert_eq!(log.lasted(at(16)), Duration::ZERO);
    }

    #[test]
    fn failures_without_noted_successes_are_another_outage_after_a_calm() {
        let (mut log, began) = (FailureLog::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert!(log.failed_anew(at(0)));
        assert!(!log.failed_anew(at(9)) && !log.failed_anew(at(18)));
        assert!(log.failed_anew(at(28)), "another one");
    }
}
