//! Stands for the governor's leadership, and governs while it leads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Policies, clock};
use crate::config::Settings;
use crate::governor::{Governor, Journal};
use crate::jobs::Queue;
use crate::service::Leader;
use crate::signals::{DepthSource, Reading, no_feedback};
use crate::throttle::Store;

/// How long a leader may be silent before another may lead.
const LEASE: Duration = Duration::from_secs(10);

/// How often the lease is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(3);

/// The pace of the breaker's fast path; the slow path ticks when it is due.
const ROUND: Duration = Duration::from_secs(1);

/// Composes a governor of `policies`.
pub(super) fn governor(
    settings: &Settings,
    queue: &Queue,
    throttles: &Arc<dyn Store>,
    policies: Policies,
) -> anyhow::Result<Governor> {
    Ok(Governor::new(
        throttles.clone(),
        // Apart from the others, and not patient: neither a crowd of requests nor a Postgres that is away holds the knob up.
        Journal::new(queue.apart(2, Duration::from_secs(2))),
        &settings.prometheus_url,
        depth(queue.clone()),
        policies,
        no_feedback(),
    )?)
}

/// The depth of a throttle's queue as a signal: what is ready now. A throttle without jobs has a depth of zero.
fn depth(queue: Queue) -> DepthSource {
    Arc::new(move |throttle| {
        let (queue, throttle) = (queue.clone(), throttle.to_owned());
        Box::pin(async move {
            let depths = queue.depths().await.ok()?;
            let ready = depths.iter().find(|depth| depth.throttle == throttle).map_or(0, |depth| depth.ready);
            Some(Reading { value: ready as f64, at: clock::unix_s() })
        })
    })
}

/// Governs whenever this process leads, until `cancel` fires; then lets the leadership go.
pub(super) async fn run(governor: Governor, queue: Queue, cancel: CancellationToken) {
    let holder = format!("{}-{:016x}", std::process::id(), rand::random::<u64>());
    let leader = Leader::new(queue.pool.clone(), "governor", holder, LEASE);
    let mut term: Option<u64> = None;
    let mut held_at: Option<Instant> = None;
    let mut round = tokio::time::interval(ROUND);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = cancel.cancelled() => break,
            _ = round.tick() => {}
        }
        if held_at.is_none_or(|at| at.elapsed() >= RENEW_EVERY) {
            // The time is taken before asking, so that a slow answer never makes the lease look younger than it is.
            let asked = Instant::now();
            match leader.hold().await {
                Ok(now) => {
                    if now != term {
                        tell(now, term);
                    }
                    if now.is_none() && term.is_some() {
                        governor.rest().await;
                    }
                    term = now;
                    held_at = now.map(|_| asked);
                }
                Err(error) => tracing::debug!(%error, "the governor's lease could not be renewed"),
            }
        }
        let Some(leading) = term else { continue };
        if held_at.is_none_or(|at| at.elapsed() >= LEASE) {
            tracing::warn!("the governor's lease has run out unrenewed; resting");
            governor.rest().await;
            term = None;
            continue;
        }
        let fast = governor.fast(leading).await;
        let slow = governor.tick(leading).await;
        if fast.fenced || slow.fenced {
            tracing::warn!("another governor leads with a later term; resting");
            governor.rest().await;
            (term, held_at) = (None, None);
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), leader.release()).await;
}

fn tell(now: Option<u64>, before: Option<u64>) {
    match (now, before) {
        (Some(term), _) => tracing::info!(term, "this process leads the governor"),
        (None, Some(term)) => tracing::info!(term, "this process no longer leads the governor"),
        (None, None) => {}
    }
}
