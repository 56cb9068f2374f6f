//! Maintenance that one worker does for all: promotes due jobs, rescues lost ones, and maintains
//! the tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::housekeeping_log::HousekeepingLog;
use super::metrics::AttemptLabels;
use super::shared::{EndedJobs, SHARD_TTL, WorkerContext};
use crate::jobs::postgres::{DueParts, PromotionCursor, Rescued};
use crate::jobs::serving::differences;
use crate::jobs::{Error, WEBHOOKS};
use crate::service::{LoopOptions, UNWOKEN_EVERY, housekeeping, periodic, periodic_unless_watched};
use crate::throttle::{self, Change, Name};

/// Interval of promotions while jobs become due one after the other.
const PROMOTE_EVERY: Duration = Duration::from_millis(200);
/// Longest time between two polls for due work.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Time without due jobs after which the next one is waited for.
const QUIET_AFTER: Duration = Duration::from_secs(2);
/// Time after which the rest of a crowd is left to the next tick, because a long tick would be
/// taken for one that hangs.
const CROWDED: Duration = Duration::from_secs(10);
const COUNT_GROUPS_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two polls of all jobs that others wait for; a poll for due work wakes them
/// once a second.
const SWEEP_EVERY: Duration = Duration::from_millis(800);
const RESCUE_EVERY: Duration = Duration::from_secs(2);
const ORPHANS_EVERY: Duration = Duration::from_secs(30);
/// Most claims unknown to this worker that one round gives back.
const MAX_CLAIMS_RETURNED: usize = 100;

/// Interval at which live workers are compared.
const COMPARE_EVERY: Duration = Duration::from_secs(10);

const LEARN_COSTS_EVERY: Duration = Duration::from_secs(5);
const MAINTAIN_EVERY: Duration = Duration::from_secs(60);

/// Wakes the worker's own loops when there is work for them.
#[derive(Clone, Default)]
pub(super) struct OwnWork {
    /// Members of groups have ended.
    pub(super) groups: Arc<Notify>,
    /// Jobs that others may wait for have ended.
    pub(super) ended: Arc<EndedJobs>,
    /// The live workers have changed.
    pub(super) workers: Arc<Notify>,
    /// Jobs may be given back.
    rescues: Arc<AtomicBool>,
}

/// The rounds of a loop that leaves some out. One that failed, or was broken off, is made up for by
/// the next.
#[derive(Debug, Default)]
struct NeededRounds {
    last: Option<Instant>,
}

impl NeededRounds {
    /// Returns true if a round is needed; until one is done, the next one is needed as well.
    fn begin(&mut self, is_woken: bool, is_late: impl FnOnce(Instant) -> bool) -> bool {
        let is_needed = is_woken || self.last.is_none_or(is_late);
        if is_needed {
            self.last = None;
        }
        is_needed
    }

    /// Notes the end of a round that began then.
    fn done(&mut self, began: Instant) {
        self.last = Some(began);
    }
}

/// The times of the loop that polls for due work.
struct Looks {
    next: Instant,
    promoted: Option<Instant>,
    newest_message: Option<i64>,
}

/// Polls for due work, promotes due jobs, and wakes the loops of the rest.
pub(super) async fn promote(shared: Arc<WorkerContext>, own: OwnWork, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "promote",
        every: PROMOTE_EVERY,
        wake: None,
    };
    let looks = Arc::new(tokio::sync::Mutex::new(Looks {
        next: Instant::now(),
        promoted: None,
        newest_message: None,
    }));
    periodic(pace, cancel, || {
        let (shared, own, looks) = (shared.clone(), own.clone(), looks.clone());
        async move { look_and_promote(&shared, &own, &mut *looks.lock().await).await }
    })
    .await;
}

async fn look_and_promote(
    shared: &WorkerContext,
    own: &OwnWork,
    looks: &mut Looks,
) -> Result<(), Error> {
    let now = Instant::now();
    let is_busy = looks.promoted.is_some_and(|at| now - at < QUIET_AFTER);
    let mut rest = Duration::ZERO;
    let mut jobs = is_busy;
    if now >= looks.next {
        let activity = shared.queue.activity();
        let due = shared.queue.due(activity.may_be_quiet(now)).await?;
        match due.has_unheard {
            Some(true) => shared.notifier.notify_unheard(),
            Some(false) => activity.found_nothing(now),
            None => {}
        }
        let before = std::mem::replace(&mut looks.newest_message, due.newest_message);
        if due.newest_message != before {
            shared.config.due.channel_messages.notify_one();
        }
        wake_loops(shared, own, &due);
        jobs |= due.jobs;
        if !jobs {
            // The sleep of the loop follows.
            let next = due.next.unwrap_or(POLL_EVERY).min(POLL_EVERY);
            rest = next.saturating_sub(PROMOTE_EVERY);
        }
        looks.next = if is_busy { now + POLL_EVERY } else { now };
    }
    if jobs && promote_due(shared).await? > 0 {
        looks.promoted = Some(now);
    }
    tokio::time::sleep(rest).await;
    Ok(())
}

fn wake_loops(shared: &WorkerContext, own: &OwnWork, due: &DueParts) {
    let others = &shared.config.due;
    let loops = [
        (due.schedules, &others.schedules),
        (due.messages, &others.messages),
        (due.digests, &others.digests),
        (due.publications, &others.publications),
        (due.groups, &own.groups),
        (due.waiting, &own.ended.wake),
    ];
    for (is_due, wake) in loops {
        if is_due {
            wake.notify_one();
        }
    }
    if due.rescues {
        own.rescues.store(true, Ordering::Relaxed);
    }
    // A heartbeat ends the pause, because this answer may be older than its own.
    shared.paused.fetch_or(due.paused, Ordering::Relaxed);
    let mark = due.workers_mark;
    if shared.workers_mark.swap(mark, Ordering::Relaxed) != mark {
        own.workers.notify_one();
    }
    shared.throttles.set_workers(due.workers.max(1) as u32);
    others.note_look();
}

/// Promotes due jobs, and returns their number.
async fn promote_due(shared: &WorkerContext) -> Result<i64, Error> {
    let begun = Instant::now();
    let mut promoted = shared.queue.promote().await?;
    let mut crowd = PromotionCursor::default();
    let mut jobs = 0;
    loop {
        if promoted.jobs > 0 {
            jobs += promoted.jobs;
            shared.notifier.notify(&promoted.lanes);
        }
        if !promoted.more || begun.elapsed() > CROWDED {
            return Ok(jobs);
        }
        promoted = shared.queue.promote_crowd(&mut crowd).await?;
    }
}

/// Counts the ends of members of groups, at once after those that this worker has written and within
/// a second for all others, ends groups with their callbacks, and enqueues the calls of webhooks.
pub(super) async fn settle_groups(
    shared: Arc<WorkerContext>,
    members_ended: Arc<Notify>,
    cancel: CancellationToken,
) {
    let pace = LoopOptions {
        name: "groups",
        every: UNWOKEN_EVERY,
        wake: Some(members_ended),
    };
    let is_made = Arc::new(AtomicBool::new(false));
    periodic_unless_watched(pace, shared.config.due.clone(), cancel, || {
        let (shared, is_made) = (shared.clone(), is_made.clone());
        async move {
            let settled = shared.queue.settle().await?;
            if settled.calls > 0
                && !is_made.load(Ordering::Relaxed)
                && let Ok(name) = Name::new(WEBHOOKS)
            {
                // Without an answer of Redis the calls wait, and the next ones try again.
                let made = shared.throttles.set(&name, &modest()).await;
                let is_there = matches!(made, Ok(_) | Err(throttle::Error::Invalid(_)));
                is_made.store(is_there, Ordering::Relaxed);
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}

/// Counts groups, refused calls and schedules with problems for the metrics.
pub(super) async fn count_groups(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "group counts",
        every: COUNT_GROUPS_EVERY,
        wake: None,
    };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move {
            let counts = shared.queue.group_counts().await?;
            let metrics = &shared.metrics;
            metrics.groups_open.set(counts.open);
            metrics.callbacks_refused.set(counts.callbacks_refused);
            metrics.calls_refused.set(counts.calls_refused);
            metrics
                .schedules_with_problems
                .set(counts.schedules_with_problems);
            Ok::<(), Error>(())
        }
    })
    .await;
}

/// Returns the first knobs of the throttle of webhooks; existing ones stay.
fn modest() -> Change {
    let fields = [("rps", "50"), ("key_rps", "10"), ("on_store_loss", "open")];
    Change {
        fields: fields
            .into_iter()
            .map(|(field, text)| (field.to_owned(), Some(text.to_owned())))
            .collect(),
        by: "flyball".to_owned(),
        why: "calls of webhooks of jobs; adjust it as needed".to_owned(),
        create: true,
        absent_only: true,
        ..Change::default()
    }
}

/// Frees jobs that wait for others: at once after the ends that this worker has written, and within
/// a second for all others.
pub(super) async fn release_waiting(
    shared: Arc<WorkerContext>,
    ended: Arc<EndedJobs>,
    cancel: CancellationToken,
) {
    let pace = LoopOptions {
        name: "waiting",
        every: UNWOKEN_EVERY,
        wake: Some(ended.wake.clone()),
    };
    let swept = Arc::new(Mutex::new(None::<Instant>));
    periodic_unless_watched(pace, shared.config.due.clone(), cancel, || {
        let (shared, ended, swept) = (shared.clone(), ended.clone(), swept.clone());
        async move {
            let (queue, jobs) = (&shared.queue, ended.take());
            let sweeps = swept.lock().is_none_or(|at| at.elapsed() >= SWEEP_EVERY);
            let released = match sweeps {
                true => queue.release_waiting(&jobs).await?,
                false if jobs.is_empty() => return Ok(()),
                false => queue.release_waiting_for(&jobs).await?,
            };
            if sweeps {
                *swept.lock() = Some(Instant::now());
            }
            ended.set_awaited(released.waiting);
            if !released.lanes.is_empty() {
                shared.notifier.notify(&released.lanes);
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}

pub(super) async fn rescue(shared: Arc<WorkerContext>, own: OwnWork, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "rescue",
        every: RESCUE_EVERY,
        wake: None,
    };
    let rounds = Arc::new(Mutex::new(NeededRounds::default()));
    periodic(pace, cancel, || {
        let (shared, own, rounds) = (shared.clone(), own.clone(), rounds.clone());
        async move {
            // A failure comes again, and must not keep the jobs of dead workers leased meanwhile.
            let returned = return_uncertain(&shared).await;
            let is_late = |at: Instant| {
                at.elapsed() >= UNWOKEN_EVERY && shared.config.due.must_look(at.elapsed())
            };
            let is_woken = own.rescues.swap(false, Ordering::Relaxed);
            if !rounds.lock().begin(is_woken, is_late) {
                return returned;
            }
            let began = Instant::now();
            let rescued = shared.queue.rescue().await;
            let rescued = rescued.map(|rescued| log_rescued(&shared, &rescued));
            let expired = shared.queue.rescue_expired().await;
            let expired = expired.map(|expired| log_rescued(&shared, &expired));
            let cancelled = shared.queue.carry_out_cancels().await?;
            if cancelled > 0 {
                tracing::info!(
                    jobs = cancelled,
                    "cancelled returned jobs whose cancellation was requested"
                );
            }
            rescued.and(expired)?;
            rounds.lock().done(began);
            returned
        }
    })
    .await;
}

/// Gives back the jobs of claims whose answer was lost.
pub(super) async fn return_uncertain(shared: &WorkerContext) -> Result<(), Error> {
    let found = shared.uncertain_claims.settle(&shared.queue).await?;
    if found > 0 {
        tracing::warn!(
            jobs = found,
            "returned jobs of claims whose answer was lost"
        );
        shared.notifier.notify(&[]);
    }
    Ok(())
}

pub(super) async fn rescue_orphans(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "rescue_orphans",
        every: ORPHANS_EVERY,
        wake: None,
    };
    housekeeping(pace, cancel, || {
        let shared = shared.clone();
        async move {
            // Each goes on although another fails.
            let orphans = shared.queue.rescue_orphans().await;
            let orphans = orphans.map(|orphans| log_rescued(&shared, &orphans));
            let swept = shared.queue.sweep_pending().await.map(drop);
            give_back_forgotten(&shared).await.and(orphans).and(swept)
        }
    })
    .await;
}

/// Gives back jobs that are leased to this worker and unknown to it. Uncertain claims are looked
/// for only for a while, and one that waited longer behind a lock in Postgres was carried out after
/// that.
pub(super) async fn give_back_forgotten(shared: &WorkerContext) -> Result<(), Error> {
    let worker_id = shared.worker_id.load(Ordering::Acquire);
    // The leases are read first: jobs with leases that old began to run here long ago, or never
    // will.
    let old = shared.queue.old_claims(worker_id).await?;
    let known = shared.running.fences();
    let mut given_back = 0;
    for fence in old
        .into_iter()
        .filter(|fence| !known.contains(fence))
        .take(MAX_CLAIMS_RETURNED)
    {
        given_back += shared.queue.disown(worker_id, fence).await?;
    }
    if given_back > 0 {
        tracing::warn!(
            jobs = given_back,
            "returned jobs leased to this worker that it did not run"
        );
        shared.notifier.notify(&[]);
    }
    Ok(())
}

fn log_rescued(shared: &WorkerContext, rescued: &Rescued) {
    if rescued.workers == 0 && rescued.ready.is_empty() && rescued.dead.is_empty() {
        return;
    }
    tracing::warn!(
        workers = rescued.workers,
        ready = rescued.ready.len(),
        dead = rescued.dead.len(),
        "returned the jobs of dead workers and expired leases"
    );
    shared.metrics.workers_lost.inc_by(rescued.workers as u64);
    shared
        .metrics
        .rescued
        .inc_by((rescued.ready.len() + rescued.dead.len()) as u64);
    for kind in &rescued.dead_kinds {
        let ended = AttemptLabels {
            kind: kind.clone(),
            outcome: "dead",
        };
        shared.metrics.finished.get_or_create(&ended).inc();
    }
    shared.notifier.notify(&rescued.lanes);
}

/// Logs the differences in what live workers run: once for each difference, and once when all are
/// over.
pub(super) async fn log_differences(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "differences",
        every: COMPARE_EVERY,
        wake: None,
    };
    let reported: Arc<Mutex<Vec<String>>> = Arc::default();
    periodic(pace, cancel, || {
        let (shared, reported) = (shared.clone(), reported.clone());
        async move {
            // The share of the lanes is worked out again as soon as the live workers change.
            let differences = differences(&shared.served.live());
            shared.metrics.differences.set(differences.len() as i64);
            let before = std::mem::replace(&mut *reported.lock(), differences.clone());
            for difference in differences
                .iter()
                .filter(|difference| !before.contains(difference))
            {
                tracing::warn!("live workers differ: {difference}");
            }
            if differences.is_empty() && !before.is_empty() {
                tracing::info!("live workers no longer differ");
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}

/// Renews this worker's part of the shards, at once when the live workers have changed.
pub(super) async fn hold_shards(
    shared: Arc<WorkerContext>,
    workers_changed: Option<Arc<Notify>>,
    cancel: CancellationToken,
) {
    let pace = LoopOptions {
        name: "hold_shards",
        every: SHARD_TTL / 4,
        wake: workers_changed,
    };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move {
            shared.hold_shards().await?;
            Ok::<(), Error>(())
        }
    })
    .await;
}

pub(super) async fn maintain(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    // Attempts of a day without its part cannot be recorded.
    if let Err(error) = shared.queue.create_days().await {
        tracing::debug!(%error, "creating the parts of the next days failed; retrying");
    }
    let pace = LoopOptions {
        name: "maintain",
        every: MAINTAIN_EVERY,
        wake: None,
    };
    let log: Arc<Mutex<HousekeepingLog>> = Arc::default();
    housekeeping(pace, cancel, || {
        let (shared, log) = (shared.clone(), log.clone());
        async move {
            let done = shared.queue.maintain(shared.config.retention).await?;
            log.lock().note(&done, Instant::now());
            Ok::<(), Error>(())
        }
    })
    .await;
}

/// Records the costs of attempts. Costs that are not written when a worker ends, or when Postgres
/// fails, are only missing from a mean.
pub(super) async fn learn_costs(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "learn_costs",
        every: LEARN_COSTS_EVERY,
        wake: None,
    };
    periodic(pace, cancel, || {
        let shared = shared.clone();
        async move {
            let seen = shared.runs.take_costs();
            if !seen.is_empty() {
                shared.queue.learn_costs(&seen).await?;
            }
            Ok::<(), Error>(())
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rescue_that_failed_is_made_up_for_without_another_wake_up() {
        let (mut rounds, now) = (NeededRounds::default(), Instant::now());
        let never = |_: Instant| false;
        assert!(rounds.begin(false, never), "the first one");
        rounds.done(now);
        assert!(!rounds.begin(false, never));

        assert!(rounds.begin(true, never));
        assert!(rounds.begin(false, never), "the one before was not done");
        rounds.done(now);
        assert!(!rounds.begin(false, never));
        assert!(rounds.begin(false, |at| at == now), "late");
    }
}
