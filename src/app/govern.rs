//! Takes part in the election of the governor's leader, and governs while this process leads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::knobs::Policies;
use crate::governor::{Governor, Journal, Sources};
use crate::jobs::postgres::Feedbacks;
use crate::jobs::{self, Queue};
use crate::service::Leader;
use crate::signals::complaints_postgres::{self, PoolExists};
use crate::signals::{
    self, Depth, DepthSource, Feedback, FeedbackSource, WorkerFeedback, own_database,
};
use crate::throttle::{Name, Store};

/// Time without a renewal after which another process may lead.
const LEASE: Duration = Duration::from_secs(10);

/// Interval between checks of the lease.
const LEADER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between renewals of the lease.
const RENEW_EVERY: Duration = Duration::from_secs(3);

/// Time without access to the knobs after which a leader gives up its lease.
const OUT_OF_REACH: Duration = Duration::from_secs(5);

/// Longest wait of the governor for Postgres, or for a signal from it; the knob is turned in any
/// case.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of the slow path, which runs the policies that are due.
const TICK_EVERY: Duration = Duration::from_secs(1);

/// Interval of the breaker's fast path.
///
/// A second probe confirms the first, and leased tokens may be spent for another quarter of a
/// second; even so, no token is granted later than a second and a half after a load has risen.
const FAST_EVERY: Duration = Duration::from_millis(500);

/// Delay of the fast path's second probe after an alarm.
const CONFIRM_AFTER: Duration = Duration::from_millis(250);

/// Builds a governor of `policies` that reads these sources, and those in Postgres.
pub(super) fn governor(
    sources: Sources,
    queue: &Queue,
    throttles: &Arc<dyn Store>,
    policies: Policies,
) -> anyhow::Result<Governor> {
    // Separate connections with a short timeout, so that neither a crowd of requests nor an
    // unreachable Postgres holds the knob up.
    let apart = queue.apart(2, JOURNAL_TIMEOUT);
    let timed = policies
        .iter()
        .filter(|(_, policy)| policy.uses_durations())
        .map(|(name, _)| name.to_string())
        .collect();
    let reported = feedback(Feedbacks::new(&apart).with_durations(timed));
    let sources = sources
        .with_depth(depth(queue.clone(), throttles.clone()))
        .with_feedback(reported)
        .with_complaints(complaints_postgres::from_tally(
            apart.clone(),
            pool_exists(throttles.clone()),
        ));
    Ok(Governor::with(
        throttles.clone(),
        Journal::new(apart).with_patience(JOURNAL_TIMEOUT),
        sources,
        policies,
    )?)
}

/// Returns a source of the depth and age of a throttle's queue, as of its last walk.
///
/// A throttle without jobs has a depth of zero. One that does not exist has no reading, or a
/// misspelt name would look like an empty queue for ever and raise the rate; and before the first
/// walk is complete there is none.
fn depth(queue: Queue, throttles: Arc<dyn Store>) -> DepthSource {
    Arc::new(move |throttle| {
        let (queue, throttles) = (queue.clone(), throttles.clone());
        let throttle = throttle.to_owned();
        Box::pin(async move {
            let what = "the depth of the queues";
            let depths = own_database::read(JOURNAL_TIMEOUT, what, queue.depths()).await?;
            let at = unix_s(depths.at.ok_or(signals::Error::NotCounted)?);
            let of = depths
                .throttles
                .iter()
                .find(|depth| depth.throttle == throttle);
            if of.is_none() && !exists(&*throttles, &throttle).await {
                return Err(signals::Error::Unknown {
                    what: "throttle",
                    name: throttle,
                });
            }
            let oldest_at = of
                .filter(|depth| depth.ready > 0)
                .and_then(|depth| depth.oldest_ready_at);
            Ok(Depth {
                ready: of.map_or(0, |depth| depth.ready) as f64,
                oldest_s: oldest_at.map_or(0.0, |oldest| (at - unix_s(oldest)).max(0.0)),
                at,
            })
        })
    })
}

/// Returns the look for a pool, whose jobs pass a throttle of its name.
fn pool_exists(throttles: Arc<dyn Store>) -> PoolExists {
    Arc::new(move |pool| {
        let (throttles, pool) = (throttles.clone(), pool.to_owned());
        Box::pin(async move { exists(&*throttles, &pool).await })
    })
}

/// Returns false if there is no throttle of that name, and no pattern from which its first job would
/// make it; true if the store does not answer.
async fn exists(throttles: &dyn Store, name: &str) -> bool {
    let Ok(exact) = Name::new(name) else {
        return false;
    };
    // Most have one of their own.
    if !matches!(throttles.status(&exact).await, Ok(None)) {
        return true;
    }
    let beginnings = (0..=name.len()).filter_map(|end| name.get(..end));
    let patterns = beginnings.filter_map(|text| Name::or_pattern(format!("{text}*")).ok());
    let found = throttles.statuses(&patterns.collect::<Vec<_>>()).await;
    found.iter().any(|status| !matches!(status, Ok(None)))
}

fn unix_s(at: jiff::Timestamp) -> f64 {
    at.as_microsecond() as f64 / 1e6
}

/// Returns a source of the outcomes of a throttle's jobs, as all living workers report them with
/// their heartbeats.
fn feedback(reported: Feedbacks) -> FeedbackSource {
    let reported = Arc::new(reported);
    Arc::new(move |throttle| {
        let (reported, throttle) = (reported.clone(), throttle.to_owned());
        Box::pin(async move {
            let of = |one: jobs::postgres::WorkerReport| WorkerFeedback {
                worker: one.worker_id.into(),
                counted: Feedback {
                    completed: one.tally.completed as f64,
                    refused: one.tally.refused as f64,
                    failed: one.tally.failed as f64,
                    busy_s: one.tally.busy_s,
                    untimed: one.tally.untimed as f64,
                },
                durations: one.tally.durations,
                running: one.tally.running as f64,
                age_s: one.age_s,
                born_s: one.born_s,
            };
            let reported = reported
                .of(&throttle)
                .await
                .inspect_err(|error| tracing::debug!(%error, "no report of the workers yet"))
                .ok()?;
            Some(reported.into_iter().map(of).collect())
        })
    })
}

/// Governs whenever this process leads, until `cancel` fires; then releases the leadership.
///
/// Three loops share the term: one holds the lease, one ticks, and one runs the breaker's fast
/// path, so that a slow Prometheus never holds the breaker up.
pub(super) async fn run(governor: Governor, queue: Queue, cancel: CancellationToken) {
    let holder = format!("{}-{:016x}", std::process::id(), rand::random::<u64>());
    let leader = Leader::new(queue.pool.clone(), "governor", holder, LEASE);
    let term = Term::default();
    tokio::join!(
        hold(&leader, &governor, &term, &cancel),
        rounds(&governor, Round::Tick, &term, &cancel),
        rounds(&governor, Round::Fast, &term, &cancel),
    );
    let _ = tokio::time::timeout(Duration::from_secs(1), leader.release()).await;
}

/// The term under which this process leads, and the time of its last confirmation.
#[derive(Default)]
struct Term(Mutex<Option<(u64, Instant)>>);

impl Term {
    fn get(&self) -> Option<(u64, Instant)> {
        *self.0.lock()
    }

    fn set(&self, term: Option<(u64, Instant)>) {
        *self.0.lock() = term;
    }

    /// Returns the term, unless its lease may have expired.
    fn leading(&self) -> Option<u64> {
        self.get()
            .filter(|(_, since)| since.elapsed() < LEASE)
            .map(|(term, _)| term)
    }
}

/// Takes and renews the lease while the knobs can be reached, and releases it when they cannot,
/// because a leader that is cut off from the knobs must not keep others from turning them.
async fn hold(leader: &Leader, governor: &Governor, term: &Term, cancel: &CancellationToken) {
    let mut reached = None;
    loop {
        if governor.reaches_knobs().await {
            reached = Some(Instant::now());
        }
        let before = term.get();
        if reached.is_none_or(|at: Instant| at.elapsed() >= OUT_OF_REACH) {
            if let Some((term, _)) = before {
                tracing::warn!(
                    term,
                    "the knobs cannot be reached; another process may lead the governor"
                );
                let _ = leader.release().await;
            }
            term.set(None);
        } else if before.is_none_or(|(_, since)| since.elapsed() >= RENEW_EVERY) {
            // The time is taken before the request, so that a slow answer never makes the lease
            // look younger than it is.
            let requested = Instant::now();
            match leader.hold_above(governor.seen_term()).await {
                Ok(now) => {
                    log_leadership(now, before.map(|(term, _)| term));
                    term.set(now.map(|now| (now, requested)));
                }
                Err(error) => tracing::debug!(%error, "renewing the governor's lease failed"),
            }
        }
        if let Some((before, _)) = before
            && term.leading().is_none()
        {
            // The lease has expired, and Postgres could not renew it.
            if term.get().is_some() {
                log_leadership(None, Some(before));
            }
            term.set(None);
            governor.rest().await;
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(LEADER_CHECK_INTERVAL) => {}
        }
    }
}

/// The paths of the governor.
#[derive(Clone, Copy)]
enum Round {
    /// The control law, which decides by itself which policies are due.
    Tick,
    /// The breaker's direct probe.
    Fast,
}

/// Runs a path at its interval while this process leads. A fenced round ends the term.
async fn rounds(governor: &Governor, round: Round, term: &Term, cancel: &CancellationToken) {
    let mut pace = tokio::time::interval(match round {
        Round::Tick => TICK_EVERY,
        Round::Fast => FAST_EVERY,
    });
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = pace.tick() => {}
        }
        let Some(leading) = term.leading() else {
            continue;
        };
        let report = match round {
            Round::Tick => governor.tick(leading).await,
            Round::Fast => governor.fast(leading).await,
        };
        if report.alarmed {
            pace.reset_after(CONFIRM_AFTER);
        }
        if report.fenced {
            tracing::warn!(
                term = leading,
                "another governor leads with a newer term; standing by"
            );
            term.set(None);
        }
    }
}

fn log_leadership(now: Option<u64>, before: Option<u64>) {
    match (now, before) {
        (now, before) if now == before => {}
        (Some(term), _) => tracing::info!(term, "this process leads the governor"),
        (None, Some(term)) => tracing::info!(term, "this process no longer leads the governor"),
        (None, None) => {}
    }
}
