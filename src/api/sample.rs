//! Sampling: one loop looks at every throttle each second and feeds the routes, the stream and the metrics.
//!
//! Three loops run side by side, so that a slow Postgres never stops the clock of the ticks: the ticks themselves, the
//! counting of jobs, and the following of the journals for whoever listens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use tokio::time::{sleep, timeout};

use super::clock;
use super::held::held_keys;
use super::live::{Tick, TickSignal, TickThrottle};
use super::pace::{Pace, Slope};
use super::postgres;
use super::state::{Deps, GovernorState};
use super::throttle_view;
use crate::jobs::{Depth, Failing};
use crate::throttle::{HeldKeys, Name, Status};

/// Throttles that are sampled each second; further ones are served by the API without a measured pace.
const SAMPLED_MAX: usize = 1000;
/// Throttles in one tick: governed and busy ones first.
const TICK_THROTTLES_MAX: usize = 200;
/// Questions to the throttle store at a time.
const ASKED_AT_ONCE: usize = 32;
/// The figures of depth are read so often; whoever walks the queue writes them no more often.
const COUNT_REST: Duration = Duration::from_secs(1);
/// Keys that hold jobs back are looked for so often …
const KEYS_REST: Duration = Duration::from_secs(3);
/// … in so many throttles …
const KEYS_THROTTLES_MAX: usize = 100;
/// … of which so many are looked at side by side.
const KEYS_ASKED_AT_ONCE: usize = 2;
/// Throttles above one that are looked at.
const MAX_LEVELS: usize = 8;
/// The longest that a tick waits for the journal; it keeps what it knew.
const JOURNAL_TIMEOUT: Duration = Duration::from_millis(600);
/// The first look for a new listener tells what happened in this time; who has it already knows it by its number.
const FIRST_LOOK: Duration = Duration::from_secs(3);
/// Events of one kind that are read at a time.
const FOLLOWED_MAX: i64 = 50;

/// Everything that was measured in one second.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// When.
    pub at: Timestamp,
    /// By name: throttles that exist, and names that only jobs know.
    pub throttles: BTreeMap<String, Measured>,
    /// When the jobs were counted; `None` before the first count.
    pub counted_at: Option<Timestamp>,
    /// Jobs that hold a lease.
    pub running_total: i64,
    /// Live workers.
    pub workers: i64,
    /// True while the throttle store does not answer.
    pub is_store_lost: bool,
}

/// One throttle in one second.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// As the store says; absent for a name that only jobs know and while the store is lost.
    pub status: Option<Status>,
    /// How fast it really goes.
    pub slope: Option<Slope>,
    /// Its jobs.
    pub depth: Depth,
    /// Its governor.
    pub governor: Option<GovernorState>,
    /// Its keys that hold jobs back.
    pub held: Option<HeldKeys>,
    /// Its failures, where all its jobs fail.
    pub failing: Option<Failing>,
    /// The state that a throttle above it, which lets nothing through, gives it.
    pub above: Option<&'static str>,
}

/// Keys that hold jobs back, by throttle.
type Held = BTreeMap<String, HeldKeys>;

#[derive(Clone, Default)]
struct Counts {
    at: Option<Timestamp>,
    depths: Vec<Depth>,
    failing: Vec<Failing>,
    workers: i64,
}

/// Samples until the token fires.
pub async fn run(deps: Deps) {
    let counts = Arc::new(ArcSwap::from_pointee(Counts::default()));
    let held = Arc::new(ArcSwap::from_pointee(Held::default()));
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

async fn tick_each_second(deps: &Deps, counts: &ArcSwap<Counts>, held: &ArcSwap<Held>) {
    let mut sampler = Sampler::default();
    let mut last_at = 0;
    loop {
        // Just after the whole second of the wall clock, so that ids neither repeat nor leave holes.
        let into_second_ms = u64::from(clock::now().subsec_nanosecond().unsigned_abs() / 1_000_000);
        sleep(Duration::from_millis(
            1010_u64.saturating_sub(into_second_ms).max(10),
        ))
        .await;
        let sample = sampler
            .sample(deps, &counts.load(), &held.load(), clock::now())
            .await;
        let mut tick = tick(&sample);
        tick.at = tick.at.max(last_at + 1);
        last_at = tick.at;
        deps.live.keep_sample(sample);
        deps.live.publish_tick(&tick);
    }
}

/// What one tick needs to remember for the next.
#[derive(Default)]
struct Sampler {
    names: Vec<Name>,
    paces: BTreeMap<Name, Pace>,
    governors: BTreeMap<String, GovernorState>,
}

impl Sampler {
    async fn sample(
        &mut self,
        deps: &Deps,
        counts: &Counts,
        held: &Held,
        now: Timestamp,
    ) -> Sample {
        let (names, governors) = tokio::join!(
            deps.throttles.names(),
            timeout(JOURNAL_TIMEOUT, deps.decisions.governors())
        );
        if let Ok(Ok(governors)) = governors {
            self.governors = governors;
        }
        let is_store_lost = names.is_err();
        if let Ok(names) = names {
            self.names = names;
            self.names.truncate(SAMPLED_MAX);
            self.paces.retain(|name, _| self.names.contains(name));
        }
        let statuses: Vec<(Name, Option<Status>)> = if is_store_lost {
            self.names.iter().map(|name| (name.clone(), None)).collect()
        } else {
            stream::iter(self.names.clone())
                .map(|name| async move {
                    (
                        name.clone(),
                        deps.throttles.status(&name).await.ok().flatten(),
                    )
                })
                .buffer_unordered(ASKED_AT_ONCE)
                .collect()
                .await
        };
        let mut sample = Sample {
            at: now,
            counted_at: counts.at,
            workers: counts.workers,
            is_store_lost,
            ..Sample::default()
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

impl Sample {
    /// Gives each throttle below one that lets nothing through the state of that.
    fn look_above(&mut self) {
        let state_above = |measured: &Measured| {
            let mut next = measured.status.as_ref()?.knobs.parent.clone();
            for _ in 0..MAX_LEVELS {
                let status = self.throttles.get(next?.as_str())?.status.as_ref()?;
                if let Some(state) = throttle_view::state_below(status) {
                    return Some(state);
                }
                next = status.knobs.parent.clone();
            }
            None
        };
        let states: Vec<_> = self.throttles.values().map(state_above).collect();
        for (measured, state) in self.throttles.values_mut().zip(states) {
            measured.above = state;
        }
    }

    /// At most `max` throttles: governed ones first, then busy ones, then by name.
    pub fn chosen(&self, max: usize) -> impl Iterator<Item = (&str, &Measured)> {
        let mut all: Vec<(&str, &Measured)> = self
            .throttles
            .iter()
            .map(|(name, measured)| (name.as_str(), measured))
            .collect();
        if all.len() > max {
            let is_busy = |measured: &Measured| measured.depth.ready + measured.depth.running > 0;
            all.sort_by_key(|(_, measured)| (measured.governor.is_none(), !is_busy(measured)));
            all.truncate(max);
        }
        all.into_iter()
    }
}

/// The sample as listeners get it.
fn tick(sample: &Sample) -> Tick {
    let chosen = sample.chosen(TICK_THROTTLES_MAX);
    Tick {
        at: sample.at.as_second(),
        throttles: chosen
            .map(|(name, measured)| (name.to_owned(), tick_throttle(measured, sample.at)))
            .collect(),
        running_total: sample.running_total,
        workers: sample.workers,
        depth_age_s: sample
            .counted_at
            .map(|at| throttle_view::since_s(at, sample.at)),
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
        concurrency: status.map(|status| status.knobs.concurrency),
        achieved_rps: measured.slope.map(|slope| slope.achieved_rps),
        limiting_share: measured.slope.map(|slope| slope.limiting_share),
        mode: status.map(|status| throttle_view::mode_word(&status.knobs).to_owned()),
        state: status
            .map_or("unknown", |status| {
                throttle_view::state_word(status, Some(measured))
            })
            .to_owned(),
        breaker: measured
            .governor
            .as_ref()
            .map(|governor| governor.breaker.clone()),
        ready: measured.depth.ready,
        running: measured.depth.running,
        dead: measured.depth.dead,
        oldest_ready_s: measured
            .depth
            .oldest_ready_at
            .map(|oldest| throttle_view::since_s(oldest, now)),
        signals: signals.collect(),
    }
}

async fn count_at_leisure(deps: &Deps, counts: &ArcSwap<Counts>) {
    let mut is_lost = false;
    loop {
        let (depths, failing, workers) = tokio::join!(
            deps.queue.depths(),
            deps.queue.failing(),
            postgres::count_workers(&deps.queue.pool)
        );
        match (depths, failing, workers) {
            (Ok(depths), Ok(failing), Ok(workers)) => {
                counts.store(Arc::new(Counts {
                    at: depths.at,
                    depths: depths.throttles,
                    failing,
                    workers,
                }));
                is_lost = false;
            }
            (depths, failing, workers) if !is_lost => {
                let errors = [depths.err(), failing.err()]
                    .into_iter()
                    .flatten()
                    .map(|error| error.to_string());
                let reason = errors
                    .chain(workers.err().map(|error| error.to_string()))
                    .next();
                tracing::warn!(
                    reason = reason.unwrap_or_default(),
                    "jobs cannot be counted; the last count is shown"
                );
                is_lost = true;
            }
            _ => {}
        }
        sleep(COUNT_REST).await;
    }
}

/// Looks every few seconds for keys that hold jobs back, in the throttles of which most jobs wait.
async fn look_at_keys(deps: &Deps, counts: &ArcSwap<Counts>, held: &ArcSwap<Held>) {
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
            // A look that fails tells of nothing; the next one is some seconds away.
            let found = held_keys(&deps.queue, &*deps.throttles, &name)
                .await
                .ok()
                .flatten()?;
            Some((name.to_string(), found))
        });
        let found: Vec<_> = stream::iter(looks)
            .buffer_unordered(KEYS_ASKED_AT_ONCE)
            .collect()
            .await;
        held.store(Arc::new(found.into_iter().flatten().collect()));
    }
}

/// Reads the journals and sends what is new in them; while nobody listens it reads nothing. Reading, and not being told,
/// shows what other processes do as well.
async fn follow_for_listeners(deps: &Deps) {
    let mut seen = Seen::default();
    loop {
        sleep(Duration::from_secs(1)).await;
        if deps.live.listeners() == 0 {
            seen = Seen::default();
            continue;
        }
        let (decisions, failures, audit) = tokio::join!(
            deps.decisions.recent(None, FOLLOWED_MAX),
            deps.queue.failures(FOLLOWED_MAX),
            postgres::read_audit(&deps.queue.pool, FOLLOWED_MAX),
        );
        // Somebody who came a moment ago has read the journals himself and missed what happened between that and this first look.
        let lately = clock::now() - FIRST_LOOK;
        // A journal that cannot be read now is read again in a second; what is new in it is still new then.
        for decision in decisions
            .map(|items| fresh(&mut seen.decisions, items, |it| it.id, |it| it.at >= lately))
            .unwrap_or_default()
        {
            deps.live.publish("decision", &decision);
        }
        for failure in failures
            .map(|items| {
                fresh(
                    &mut seen.failures,
                    items,
                    |it| (it.job_id, it.attempt, it.at),
                    |it| it.at >= lately,
                )
            })
            .unwrap_or_default()
        {
            deps.live.publish("failure", &failure);
        }
        for entry in audit
            .map(|items| fresh(&mut seen.audit, items, |it| it.id, |it| it.at >= lately))
            .unwrap_or_default()
        {
            deps.live.publish("audit", &entry);
        }
    }
}

#[derive(Default)]
struct Seen {
    decisions: Option<BTreeSet<i64>>,
    failures: Option<BTreeSet<(i64, i32, Timestamp)>>,
    audit: Option<BTreeSet<i64>>,
}

/// The items (newest first) that were not there at the last look, oldest first; at the first look, those that are recent.
fn fresh<T, K: Ord + Copy>(
    seen: &mut Option<BTreeSet<K>>,
    items: Vec<T>,
    key: impl Fn(&T) -> K,
    is_recent: impl Fn(&T) -> bool,
) -> Vec<T> {
    let keys: BTreeSet<K> = items.iter().map(&key).collect();
    let before = seen.replace(keys);
    let is_new = |item: &T| {
        before
            .as_ref()
            .map_or_else(|| is_recent(item), |before| !before.contains(&key(item)))
    };
    items.into_iter().filter(is_new).rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_gets_what_is_new_once_and_oldest_first() {
        let mut seen = None;
        assert_eq!(fresh(&mut seen, vec![3, 2, 1], |n| *n, |n| *n > 2), [3]);
        assert_eq!(fresh(&mut seen, vec![5, 4, 3], |n| *n, |_| true), [4, 5]);
        assert_eq!(
            fresh(&mut seen, vec![5, 4, 3], |n| *n, |_| true),
            Vec::<i32>::new()
        );
        assert_eq!(fresh(&mut seen, vec![6, 5, 4], |n| *n, |_| true), [6]);
    }

    #[test]
    fn the_first_entry_of_an_empty_journal_is_new() {
        let mut seen = None;
        assert!(fresh(&mut seen, Vec::<i32>::new(), |n| *n, |_| true).is_empty());
        assert_eq!(fresh(&mut seen, vec![1], |n| *n, |_| true), [1]);
    }

    #[test]
    fn a_tick_holds_a_bounded_number_of_throttles_governed_and_busy_ones_first() {
        let mut sample = Sample::default();
        for i in 0..500 {
            sample
                .throttles
                .insert(format!("t{i:03}"), Measured::default());
        }
        sample.throttles.get_mut("t499").unwrap().depth.ready = 1;

        let tick = tick(&sample);

        assert_eq!(tick.throttles.len(), TICK_THROTTLES_MAX);
        assert!(tick.throttles.contains_key("t499"));
        assert_eq!(tick.throttles["t000"].state, "unknown");
    }
}
