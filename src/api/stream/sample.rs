//! Sampling: a loop reads every throttle each second for the routes, the stream and the metrics.
//!
//! Independent loops run in parallel, so that a slow Postgres never delays the ticks: the ticks
//! themselves, the counting of jobs, the search for keys that hold jobs back, and the following of
//! the journals for listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::{sleep, timeout};

use super::live::{Tick, TickReplica, TickSignal, TickThrottle};
use super::live_sample::{LiveSample, rank};
use super::seen::{FIRST_LOOK, FOLLOWED_MAX, SeenIds};
use crate::api::clock;
use crate::api::deps::Deps;
use crate::api::postgres;
use crate::api::throttles::held::held_keys;
use crate::api::throttles::measured::Measured;
use crate::api::throttles::pace::RateWindow;
use crate::api::throttles::view;
use crate::governor::GovernorView;
use crate::jobs::postgres::{CountedWorkers, is_disk_full, within};
use crate::jobs::{Depth, Failing, Queue, QueueStatus};
use crate::postgres::Replica;
use crate::service::FailureLog;
use crate::throttle::{self, HeldKeys, Name, Status, concurrency_number};

/// The most throttles that are sampled each second, chosen like those of a tick; the API serves
/// further ones without a measured rate.
const SAMPLED_MAX: usize = 1000;
/// The interval at which the depths are read; they are not written more often.
const COUNT_REST: Duration = Duration::from_secs(1);
/// The same while nothing happens in the queue, as far as a worker of this process knows.
const QUIET_COUNT_REST: Duration = Duration::from_secs(4);
/// The interval at which keys that hold jobs back are searched for.
const KEYS_REST: Duration = Duration::from_secs(3);
/// The most throttles in which keys are searched for each time.
const KEYS_THROTTLES_MAX: usize = 100;
/// The most throttles in which keys are searched for concurrently.
const KEY_CONCURRENCY: usize = 2;
/// The longest wait for a count. A server that vanished in the middle of a statement is noticed by
/// the system after a quarter of an hour only, and one that stands still never.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time of one search for keys in all throttles, and of one read of the journals.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait of a tick for the journal; after it the previous state is used.
const JOURNAL_TIMEOUT: Duration = Duration::from_millis(600);
/// The keys that hold jobs back, by throttle.
type HeldByThrottle = BTreeMap<String, HeldKeys>;

#[derive(Clone, Default)]
struct Counts {
    at: Option<Timestamp>,
    depths: Vec<Depth>,
    failing: Vec<Failing>,
    workers: CountedWorkers,
    is_paused: bool,
    /// True while Postgres does not answer, or accepts no writes.
    is_lost: bool,
    /// The same, without counts that fail alone: jobs may start while those take too long.
    is_unwritable: bool,
}

impl Counts {
    /// Returns the last counts after a failure; `status` is the answer about the queue.
    fn failed<E>(&self, status: &Result<QueueStatus, E>, is_disk_full: bool) -> Self {
        let is_read_only = status.as_ref().map_or(true, |status| status.is_read_only);
        Self {
            is_lost: true,
            is_unwritable: is_read_only || is_disk_full,
            ..self.clone()
        }
    }
}

/// Samples until the cancel token fires.
pub async fn run(deps: Deps) {
    let counts = Arc::new(ArcSwap::from_pointee(Counts::default()));
    let held = Arc::new(ArcSwap::from_pointee(HeldByThrottle::default()));
    let cancelled = deps.cancel.clone();
    let loops = async {
        tokio::join!(
            tick_each_second(&deps, &counts, &held),
            count_at_leisure(&deps, &counts),
            look_at_keys(&deps, &counts, &held),
            follow_for_listeners(&deps)
        );
    };
    tokio::select! {
        () = cancelled.cancelled() => {}
        () = loops => {}
    }
}

async fn tick_each_second(deps: &Deps, counts: &ArcSwap<Counts>, held: &ArcSwap<HeldByThrottle>) {
    let mut sampler = Sampler::default();
    let mut last_at = 0;
    loop {
        // The tick starts just after the whole second of the wall clock, so that ids neither repeat
        // nor leave gaps.
        let into_second_ms = u64::from(clock::now().subsec_nanosecond().unsigned_abs() / 1_000_000);
        sleep(Duration::from_millis(
            1010_u64.saturating_sub(into_second_ms).max(10),
        ))
        .await;
        let sample = sampler
            .sample(deps, &counts.load(), &held.load(), clock::now())
            .await;
        let mut tick = tick(&sample);
        tick.replica = deps.queue.replica().map(tick_replica);
        tick.at = tick.at.max(last_at + 1);
        last_at = tick.at;
        deps.live.keep_sample(sample);
        deps.live.publish_tick(&tick);
    }
}

/// Returns the reply by which a server refuses a write, if `error` is one.
fn refusal_of(error: Option<throttle::Error>) -> Option<&'static str> {
    match error {
        Some(throttle::Error::Lost(reason)) => throttle::reason_meaning(&reason),
        _ => None,
    }
}

/// The state that one tick keeps for the next.
#[derive(Default)]
struct Sampler {
    names: Vec<Name>,
    paces: BTreeMap<Name, RateWindow>,
    governors: BTreeMap<String, GovernorView>,
    refusals: FailureLog,
}

impl Sampler {
    fn note_refusal(&mut self, refusal: Option<&str>, now: Instant) {
        match refusal {
            Some(refusal) => {
                if self.refusals.failed(now) {
                    tracing::warn!(
                        redis.error = refusal,
                        "Redis takes no writes; throttles follow on_store_loss"
                    );
                }
            }
            None => {
                if self.refusals.succeeded(now) {
                    tracing::info!("Redis takes writes again");
                }
            }
        }
    }

    async fn sample(
        &mut self,
        deps: &Deps,
        counts: &Counts,
        held: &HeldByThrottle,
        now: Timestamp,
    ) -> LiveSample {
        // A server that is out of memory, or cannot save its data, answers and takes no writes.
        let (names, governors, writes) = tokio::join!(
            deps.throttles.names(),
            timeout(JOURNAL_TIMEOUT, deps.decisions.governors()),
            timeout(JOURNAL_TIMEOUT, deps.throttles.takes_writes())
        );
        if let Ok(Ok(governors)) = governors {
            self.governors = governors;
        }
        let is_store_lost = names.is_err();
        let refusal = refusal_of(writes.ok().and_then(Result::err));
        if !is_store_lost {
            self.note_refusal(refusal, Instant::now());
        }
        if let Ok(names) = names {
            let is_governed = |name: &str| self.governors.contains_key(name);
            self.names = sampled(names, SAMPLED_MAX, is_governed, &counts.depths);
            let kept: BTreeSet<&Name> = self.names.iter().collect();
            self.paces.retain(|name, _| kept.contains(name));
        }
        let statuses: Vec<(Name, Option<Status>)> = if is_store_lost {
            self.names.iter().map(|name| (name.clone(), None)).collect()
        } else {
            let statuses = deps.throttles.statuses(&self.names).await;
            let known = statuses.into_iter().map(|status| status.ok().flatten());
            self.names.iter().cloned().zip(known).collect()
        };
        let mut sample = LiveSample {
            at: now,
            counted_at: counts.at,
            workers: counts.workers.all,
            runners: counts.workers.runners,
            is_store_lost: is_store_lost || refusal.is_some(),
            is_queue_lost: counts.is_lost,
            is_queue_unwritable: counts.is_unwritable,
            is_paused: counts.is_paused,
            ..LiveSample::default()
        };
        for (name, status) in statuses {
            let slope = status.as_ref().and_then(|status| {
                let pace = self.paces.entry(name.clone()).or_default();
                pace.observe(status);
                pace.slope()
            });
            let depth = Depth {
                throttle: name.to_string(),
                ..Depth::default()
            };
            let governor = self.governors.get(name.as_str()).cloned();
            let held = held.get(name.as_str()).cloned();
            sample.throttles.insert(
                name.to_string(),
                Measured {
                    status,
                    slope,
                    depth,
                    governor,
                    held,
                    ..Measured::default()
                },
            );
        }
        sample.look_above();
        sample.mark_unwritable();
        for failing in &counts.failing {
            if let Some(measured) = sample.throttles.get_mut(&failing.throttle) {
                measured.failing = Some(failing.clone());
            }
        }
        for depth in &counts.depths {
            sample.running_total += depth.running;
            if sample.throttles.contains_key(&depth.throttle)
                || sample.throttles.len() < 2 * SAMPLED_MAX
            {
                sample
                    .throttles
                    .entry(depth.throttle.clone())
                    .or_default()
                    .depth = depth.clone();
            }
        }
        sample
    }
}

/// Returns at most `max` names: those of governed throttles first, then those with jobs, and those
/// of tenants and of the API's limits last.
fn sampled(
    mut names: Vec<Name>,
    max: usize,
    is_governed: impl Fn(&str) -> bool,
    depths: &[Depth],
) -> Vec<Name> {
    if names.len() > max {
        let busy = depths
            .iter()
            .filter(|depth| depth.ready + depth.running + depth.scheduled > 0);
        let busy: BTreeSet<&str> = busy.map(|depth| depth.throttle.as_str()).collect();
        names.sort_by_key(|name| {
            let name = name.as_str();
            rank(name, is_governed(name), busy.contains(name))
        });
        names.truncate(max);
    }
    names
}

/// Converts a sample to the tick from which listeners get a part.
pub(super) fn tick(sample: &LiveSample) -> Tick {
    Tick {
        at: sample.at.as_second(),
        throttles: sample
            .throttles
            .iter()
            .map(|(name, measured)| (name.clone(), tick_throttle(measured, sample.at)))
            .collect(),
        running_total: sample.running_total,
        workers: sample.workers,
        depth_age_s: sample.counted_at.map(|at| view::since_s(at, sample.at)),
        store_lost: sample.is_store_lost,
        queue_unwritable: sample.is_queue_unwritable,
        replica: None,
    }
}

fn tick_replica(replica: &Replica) -> TickReplica {
    let state = replica.state();
    TickReplica {
        lag_s: state.lag.map(|lag| lag.as_secs_f64()),
        used: state.unused.is_none(),
    }
}

fn tick_throttle(measured: &Measured, now: Timestamp) -> TickThrottle {
    let status = measured.status.as_ref();
    let signals = measured
        .governor
        .iter()
        .flat_map(|governor| &governor.signals)
        .map(|signal| {
            let tick = TickSignal {
                value: signal.value,
                setpoint: signal.setpoint,
                trip: signal.trip,
                age_s: signal.age_s,
                stale: signal.stale,
            };
            (signal.name.clone(), tick)
        });
    TickThrottle {
        rps: status.map(|status| status.knobs.rps),
        effective_rps: status.map(|status| status.effective_rps),
        concurrency: status.map(|status| concurrency_number(status.knobs.concurrency)),
        achieved_rps: measured.slope.map(|slope| slope.achieved_rps),
        limiting_share: measured.slope.map(|slope| slope.limiting_share),
        mode: status.map(|status| view::mode_word(&status.knobs).to_owned()),
        state: status
            .map_or("unknown", |status| view::state_word(status, Some(measured)))
            .to_owned(),
        breaker: measured.governor.as_ref().map(|governor| governor.breaker),
        ready: measured.depth.ready,
        running: measured.depth.running,
        dead: measured.depth.dead,
        oldest_ready_s: measured
            .depth
            .oldest_ready_at
            .map(|oldest| view::since_s(oldest, now)),
        signals: signals.collect(),
    }
}

async fn count_at_leisure(deps: &Deps, counts: &ArcSwap<Counts>) {
    let mut is_lost = false;
    let depths = |queue: Queue| async move { queue.depths().await };
    loop {
        let (depths, failing, status) = tokio::join!(
            within(COUNT_TIMEOUT, deps.queue.read_lagging(depths)),
            within(COUNT_TIMEOUT, deps.queue.workers_and_failing()),
            within(COUNT_TIMEOUT, deps.queue.status())
        );
        match (depths, failing, status) {
            (Ok(depths), Ok((workers, failing)), Ok(status)) => {
                let is_unwritable = status.is_read_only || is_disk_full(Instant::now());
                counts.store(Arc::new(Counts {
                    at: depths.at,
                    depths: depths.throttles,
                    failing,
                    workers,
                    is_paused: status.is_paused,
                    is_lost: is_unwritable,
                    is_unwritable,
                }));
                is_lost = false;
            }
            (depths, failing, status) => {
                let last = counts.load().failed(&status, is_disk_full(Instant::now()));
                counts.store(Arc::new(last));
                if !is_lost {
                    let error = depths.err().or(failing.err()).or(status.err());
                    let reason = error.map(|error| error.to_string());
                    tracing::warn!(
                        reason = reason.unwrap_or_default(),
                        "jobs cannot be counted; the last count is shown"
                    );
                }
                is_lost = true;
            }
        }
        let counted = Instant::now();
        loop {
            sleep(COUNT_REST).await;
            let is_quiet = deps.queue.activity().is_quiet(Instant::now());
            if !is_quiet || counted.elapsed() >= QUIET_COUNT_REST {
                break;
            }
        }
    }
}

/// Searches every few seconds for keys that hold jobs back, in the throttles with the most ready
/// jobs.
async fn look_at_keys(deps: &Deps, counts: &ArcSwap<Counts>, held: &ArcSwap<HeldByThrottle>) {
    loop {
        sleep(KEYS_REST).await;
        let mut waiting: Vec<(i64, Name)> = {
            let counts = counts.load();
            let depths = counts.depths.iter().filter(|depth| depth.ready > 0);
            depths
                .filter_map(|depth| Some((depth.ready, Name::new(depth.throttle.clone()).ok()?)))
                .collect()
        };
        waiting.sort_by_key(|(ready, _)| std::cmp::Reverse(*ready));
        waiting.truncate(KEYS_THROTTLES_MAX);
        let looks = waiting.into_iter().map(|(_, name)| async move {
            // A failed search is treated as one without a result, because the next one is only
            // seconds away.
            let found = held_keys(&deps.queue, &*deps.throttles, &name)
                .await
                .ok()
                .flatten()?;
            Some((name.to_string(), found))
        });
        let found: Vec<_> = timeout(
            LOOK_TIMEOUT,
            stream::iter(looks)
                .buffer_unordered(KEY_CONCURRENCY)
                .collect(),
        )
        .await
        .unwrap_or_default();
        held.store(Arc::new(found.into_iter().flatten().collect()));
    }
}

/// Reads the journals and sends their new entries; without listeners it reads nothing. Reading,
/// unlike notifications, also shows the changes of other processes.
async fn follow_for_listeners(deps: &Deps) {
    let mut seen = SeenIds::default();
    let failures = |queue: Queue| async move { queue.failures(None, FOLLOWED_MAX).await };
    let audit =
        |queue: Queue| async move { postgres::read_audit(&queue.pool, None, FOLLOWED_MAX).await };
    loop {
        sleep(Duration::from_secs(1)).await;
        if deps.live.listeners() == 0 {
            seen = SeenIds::default();
            continue;
        }
        let read = async {
            tokio::join!(
                deps.decisions.recent(None, FOLLOWED_MAX),
                deps.queue.read_lagging(failures),
                deps.queue.read_lagging(audit),
            )
        };
        let Ok((decisions, failures, audit)) = timeout(LOOK_TIMEOUT, read).await else {
            continue;
        };
        // A client that joined a moment ago has read the journals itself and missed the events
        // between its read and this one.
        let lately = clock::now() - FIRST_LOOK;
        // A journal that cannot be read now is read again in a second; its new entries are still
        // new then.
        for decision in decisions
            .map(|items| seen.new_decisions(items, lately))
            .unwrap_or_default()
        {
            deps.live.publish("decision", &decision);
        }
        for failure in failures
            .map(|items| seen.new_failures(items, lately))
            .unwrap_or_default()
        {
            deps.live.publish("failure", &failure);
        }
        for entry in audit
            .map(|items| seen.new_entries(items, lately))
            .unwrap_or_default()
        {
            deps.live.publish("audit", &entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::stream::live::TICK_THROTTLES_MAX;

    #[test]
    fn counts_that_fail_alone_are_no_want_of_writes() {
        let failed = |status: Result<QueueStatus, ()>| {
            let counts = Counts::default().failed(&status, false);
            (counts.is_lost, counts.is_unwritable)
        };
        let read_only = QueueStatus {
            is_read_only: true,
            ..QueueStatus::default()
        };
        assert_eq!(failed(Ok(QueueStatus::default())), (true, false));
        assert_eq!(failed(Ok(read_only)), (true, true));
        assert_eq!(failed(Err(())), (true, true));
        let full = Counts::default().failed(&Ok::<_, ()>(QueueStatus::default()), true);
        assert!(full.is_unwritable);
    }

    #[test]
    fn a_tick_holds_a_bounded_number_of_throttles_governed_and_busy_ones_first() {
        let mut sample = LiveSample::default();
        for i in 0..500 {
            sample
                .throttles
                .insert(format!("t{i:03}"), Measured::default());
        }
        sample.throttles.get_mut("t499").unwrap().depth.ready = 1;

        let tick = tick(&sample).cut(TICK_THROTTLES_MAX);

        assert_eq!(tick.throttles.len(), TICK_THROTTLES_MAX);
        assert!(tick.throttles.contains_key("t499"));
        assert_eq!(tick.throttles["t000"].state, "unknown");
    }

    #[test]
    fn a_tick_says_whether_the_store_of_the_throttles_answers() {
        for is_store_lost in [true, false] {
            let sample = LiveSample {
                is_store_lost,
                ..LiveSample::default()
            };
            assert_eq!(tick(&sample).store_lost, is_store_lost);
        }
    }

    #[test]
    fn a_tick_says_whether_the_queue_accepts_writes_also_for_one_throttle() {
        for is_queue_unwritable in [true, false] {
            let sample = LiveSample {
                is_queue_unwritable,
                ..LiveSample::default()
            };
            let tick = tick(&sample);
            assert_eq!(tick.queue_unwritable, is_queue_unwritable);
            assert_eq!(tick.part(|_| false).queue_unwritable, is_queue_unwritable);
        }
    }

    #[test]
    fn throttles_are_chosen_before_they_are_cut_and_those_of_many_tenants_hide_none() {
        let of_tenants = (0..50).flat_map(|tenant| {
            ["api:read:t", "notify:t", "limit:mail:t"].map(|name| format!("{name}{tenant}"))
        });
        let mut names: Vec<String> = of_tenants.collect();
        names.extend(["reindex", "sms", "zoom"].map(str::to_owned));
        names.sort();
        let names: Vec<Name> = names
            .into_iter()
            .map(|name| Name::new(name).unwrap())
            .collect();
        let busy = Depth {
            throttle: "notify:t7".to_owned(),
            scheduled: 1,
            ..Depth::default()
        };

        let chosen = sampled(names, 6, |name| name == "zoom", &[busy]);

        let chosen: Vec<&str> = chosen.iter().map(Name::as_str).collect();
        let wanted = [
            "zoom",
            "notify:t7",
            "reindex",
            "sms",
            "notify:t0",
            "notify:t1",
        ];
        assert_eq!(chosen, wanted);
    }
}
