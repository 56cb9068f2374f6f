//! The law of the tree: one ask served by a chain of throttles and the keys below it.
//!
//! Parents are charged first. The lanes of one ask share, in their order, what the levels above
//! still hold; all levels are charged for the granted units and nothing else. Consecutive lanes
//! with equal requests are served in one step, if their keys have no rate, limit or pause. An ask
//! for a hundred of them thus costs as much as an ask for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::RateLimit;
use super::bucket::{Bucket, MAX_WAIT_US, OpenBucket, Rate, STOPPED_WAIT_US, Start};
use super::chain::{KeySlots, LaneAnswer, LaneDemand, LearnedParts, Level, LimitedBy};
use super::holds::CROWDED_WAIT_US;
use super::learned::{Learned, ProbeCredit};
use super::rolling_window::{OpenWindow, WindowGrants, WindowLimit};

/// The state that serves one ask.
pub struct ServeContext<'a> {
    /// The chain of throttles, root first.
    pub levels: &'a mut [Level],
    /// The rate of each key.
    pub key_rate: Rate,
    /// The buckets of keys.
    pub keys: &'a mut BTreeMap<String, Bucket>,
    /// The rolling windows of each key.
    pub key_windows: &'a [WindowLimit],
    /// The grants that they remember.
    pub key_grants: &'a mut BTreeMap<String, Vec<WindowGrants>>,
    /// The highest charged cost of one unit, in tokens; no demand costs more.
    pub most: f64,
    /// The learned state of keys.
    pub learned: &'a mut BTreeMap<String, Learned>,
    /// The parts of the learned state that apply.
    pub learned_parts: LearnedParts,
}

/// Serves `demands` at `now` (unix microseconds), and returns the answers and the use of the keys'
/// concurrency limits.
pub fn serve(
    now: f64,
    source: ServeContext<'_>,
    demands: &[LaneDemand<'_>],
) -> (Vec<LaneAnswer>, BTreeMap<String, KeySlots>) {
    let ServeContext {
        levels,
        key_rate,
        keys,
        key_windows,
        key_grants,
        most,
        learned,
        learned_parts,
    } = source;
    if let Some(served) = refuse_all(now, levels, demands) {
        return (served, BTreeMap::new());
    }
    let highest_cost = demands.iter().map(|demand| demand.cost).fold(0.0, f64::max);
    let open = levels.iter().map(|level| {
        let is_limited = level.rate.rps.rate().is_some();
        is_limited.then(|| {
            level
                .bucket
                .open(level.rate, Start::OneToken, now, highest_cost, most)
        })
    });
    let open: Vec<Option<OpenBucket>> = open.collect();
    let is_watched = levels
        .iter()
        .filter_map(|level| level.refusal.as_ref())
        .any(|refusal| refusal.probe.left(now).is_some());
    let windows = levels
        .iter()
        .map(|level| OpenWindow::open_all(&level.windows, &level.grants, now))
        .collect();
    let refused = vec![0.0; levels.len()];
    let mut service = Service {
        now,
        most,
        learned_parts,
        open,
        windows,
        refused,
        levels,
        served: Vec::with_capacity(demands.len()),
    };
    let mut rooms: BTreeMap<String, KeySlots> = BTreeMap::new();
    let mut rest = demands;
    while let Some((demand, after)) = rest.split_first() {
        let is_plain = |demand: &LaneDemand<'_>| {
            let has_windows = !demand.key.is_empty() && !key_windows.is_empty();
            demand.is_plain(key_rate, now) && !has_windows && !learned.contains_key(demand.key)
        };
        let alike = if is_plain(demand) {
            rest.iter()
                .take_while(|other| demand.is_like(other) && is_plain(other))
                .count()
        } else {
            0
        };
        if alike > 0 {
            service.serve(alike, demand, LaneLimits::default());
            rest = &rest[alike..];
            continue;
        }
        rest = after;
        let limits = KeyLimits {
            rate: key_rate,
            keys: &mut *keys,
            windows: key_windows,
            grants: &mut *key_grants,
        };
        service.serve_bound(demand, limits, learned, &mut rooms);
    }
    let mut served = service.close(highest_cost);
    // A level that needs reports of how jobs end needs those of all lanes.
    served.iter_mut().for_each(|one| one.watched |= is_watched);
    (served, rooms)
}

/// Refuses all demands if a level is stopped, or paused after a refusal by another server.
fn refuse_all(
    now: f64,
    levels: &mut [Level],
    demands: &[LaneDemand<'_>],
) -> Option<Vec<LaneAnswer>> {
    if let Some(stopped) = levels.iter().position(|level| level.rate.rps.is_stopped()) {
        let served = demands
            .iter()
            .map(|demand| nothing(demand, STOPPED_WAIT_US, LimitedBy::Stopped(stopped)))
            .collect();
        for level in levels
            .iter_mut()
            .filter(|level| level.rate.rps.is_stopped())
        {
            level.bucket.drain(now, true);
        }
        levels[stopped].meter.refused(now, STOPPED_WAIT_US);
        return Some(served);
    }
    let paused = |level: &Level| {
        level
            .refusal
            .as_ref()
            .filter(|refusal| refusal.until > now)
            .map(|refusal| refusal.until)
    };
    let (at, until) = levels
        .iter()
        .enumerate()
        .find_map(|(at, level)| Some((at, paused(level)?)))?;
    // The time of a pause refills nothing.
    levels
        .iter_mut()
        .filter(|level| paused(level).is_some())
        .for_each(|level| level.bucket.drain(now, true));
    let served = demands
        .iter()
        .map(|demand| nothing(demand, until - now, LimitedBy::LevelPaused(at)))
        .collect();
    Some(served)
}

/// The limits of keys, with their state.
struct KeyLimits<'a> {
    rate: Rate,
    keys: &'a mut BTreeMap<String, Bucket>,
    windows: &'a [WindowLimit],
    grants: &'a mut BTreeMap<String, Vec<WindowGrants>>,
}

/// The state of an ask while it is served.
struct Service<'a> {
    now: f64,
    most: f64,
    learned_parts: LearnedParts,
    levels: &'a mut [Level],
    open: Vec<Option<OpenBucket>>,
    windows: Vec<Vec<OpenWindow>>,
    /// The longest wait that each level caused.
    refused: Vec<f64>,
    served: Vec<LaneAnswer>,
}

/// The limits of a lane besides those of the levels.
#[derive(Default)]
struct LaneLimits<'a> {
    rate: Option<Rate>,
    bucket: Option<&'a mut OpenBucket>,
    windows: &'a mut [OpenWindow],
    room: Option<&'a mut KeySlots>,
    learned: Option<&'a mut Learned>,
    /// True if the rate is the learned one.
    is_learned: bool,
}

impl Service<'_> {
    /// Serves a lane whose key is paused, or has a rate or a limit.
    fn serve_bound(
        &mut self,
        demand: &LaneDemand<'_>,
        limits: KeyLimits<'_>,
        learned: &mut BTreeMap<String, Learned>,
        rooms: &mut BTreeMap<String, KeySlots>,
    ) {
        if let Some(until_ms) = demand
            .paused_until_ms
            .filter(|until| *until as f64 * 1000.0 > self.now)
        {
            return self.served.push(nothing(
                demand,
                until_ms as f64 * 1000.0 - self.now,
                LimitedBy::Paused,
            ));
        }
        let key_rate = if demand.key.is_empty() {
            Rate::UNLIMITED
        } else {
            limits.rate
        };
        if key_rate.rps.is_stopped() {
            return self
                .served
                .push(nothing(demand, STOPPED_WAIT_US, LimitedBy::Key));
        }
        let room = demand.room.map(|left| {
            let room = KeySlots { left, granted: 0.0 };
            rooms.entry(demand.key.to_owned()).or_insert(room)
        });
        let learned = learned.get_mut(demand.key);
        let learned_rps = learned
            .as_deref()
            .filter(|_| self.learned_parts.rates)
            .map_or(RateLimit::Unlimited, |learned| learned.rate(self.now));
        if learned_rps.is_stopped() {
            let wait = learned.map_or(0.0, |learned| learned.window.rests_to() - self.now);
            return self.served.push(nothing(demand, wait, LimitedBy::Learned));
        }
        let depth_us = learned
            .as_deref()
            .map_or(0.0, |learned| learned.depth_us(self.now));
        let is_learned = learned_rps < key_rate.rps;
        let key_rate = if is_learned {
            Rate {
                rps: learned_rps,
                depth_us,
            }
        } else {
            key_rate
        };
        let bucket = limits.keys.get(demand.key).copied().unwrap_or_default();
        let mut open = key_rate
            .rps
            .rate()
            .is_some()
            .then(|| bucket.open(key_rate, Start::Full, self.now, demand.cost, self.most));
        if let (true, Some(open), Some(learned)) = (is_learned, &mut open, learned.as_deref())
            && let Some(from) = learned.spaced_from(self.now)
        {
            open.space_from(from);
        }
        let mut windows = if demand.key.is_empty() {
            Vec::new()
        } else {
            let known = limits.grants.get(demand.key).map_or(&[][..], Vec::as_slice);
            OpenWindow::open_all(limits.windows, known, self.now)
        };
        let own = LaneLimits {
            rate: Some(key_rate),
            bucket: open.as_mut(),
            windows: &mut windows,
            room,
            learned,
            is_learned,
        };
        let granted = self.serve(1, demand, own);
        // The clamp is stored even without a grant: clamped on reading alone, the debt would move
        // along with the clock for ever.
        if let Some(open) = open.filter(|open| granted > 0.0 || open.was_clamped(&bucket)) {
            limits.keys.insert(demand.key.to_owned(), open.close());
        }
        if windows.iter().any(OpenWindow::is_changed) {
            let closed = windows.into_iter().map(OpenWindow::close).collect();
            limits.grants.insert(demand.key.to_owned(), closed);
        }
    }

    /// Serves `lanes` lanes with the same demand in one step and returns the units granted to them
    /// together.
    fn serve(&mut self, lanes: usize, demand: &LaneDemand<'_>, mut own: LaneLimits<'_>) -> f64 {
        let wanted = lanes as f64 * demand.want;
        let granted = self.grantable(wanted, demand.cost, &own);
        if granted > 0.0 {
            self.take(granted, demand.cost, &mut own);
        }
        let (wait_us, limit) = if granted < wanted {
            self.limit(demand.cost, &own)
        } else {
            (0.0, None)
        };
        if let (Some(LimitedBy::Learned), Some(learned)) = (limit, own.learned.as_deref_mut()) {
            learned.wanted(self.now);
        }
        let charge_us = self.charge_us(demand.cost, &own);
        let mut left = granted;
        for _ in 0..lanes {
            let granted = left.min(demand.want);
            left -= granted;
            let charge_us = if granted > 0.0 {
                charge_us.clone()
            } else {
                Arc::default()
            };
            let (wait_us, limit) = if granted < demand.want {
                (wait_us, limit)
            } else {
                (0.0, None)
            };
            self.served.push(LaneAnswer {
                granted,
                wait_us,
                limit,
                charge_us,
                watched: own.learned.is_some(),
            });
        }
        granted
    }

    /// Returns the units of this cost that all limits allow together, up to `wanted`.
    fn grantable(&self, wanted: f64, cost: f64, own: &LaneLimits<'_>) -> f64 {
        let now = self.now;
        let mut granted =
            (0..self.levels.len()).fold(wanted, |granted, at| granted.min(self.units(at, cost)));
        granted = own
            .bucket
            .as_deref()
            .map_or(granted, |open| granted.min(open.units(cost, now)));
        granted = self
            .windows
            .iter()
            .flatten()
            .chain(own.windows.iter())
            .map(|window| window.units(cost))
            .fold(granted, f64::min);
        granted = self
            .levels
            .iter()
            .filter_map(|level| level.room)
            .fold(granted, f64::min);
        granted = self
            .levels
            .iter()
            .filter_map(|level| self.level_credit(level))
            .fold(granted, f64::min);
        granted = own
            .room
            .as_deref()
            .map_or(granted, |room| granted.min(room.left));
        self.key_credit(own)
            .map_or(granted, |credit| granted.min(credit))
    }

    /// Takes granted units of this cost from all limits.
    fn take(&mut self, granted: f64, cost: f64, own: &mut LaneLimits<'_>) {
        let now = self.now;
        for (at, open) in self.open.iter_mut().enumerate() {
            if let Some(open) = open {
                // The level above pays for borrowed units.
                let taken = if self.levels[at].borrows {
                    granted.min(open.units(cost, now))
                } else {
                    granted
                };
                open.take(taken, cost, now);
            }
        }
        if let Some(open) = own.bucket.as_deref_mut() {
            open.take(granted, cost, now);
        }
        let windows = self.windows.iter_mut().flatten();
        for window in windows.chain(own.windows.iter_mut()) {
            window.take(granted * cost, now);
        }
        for level in self.levels.iter_mut() {
            level.meter.used += granted * cost;
            level.room = level.room.map(|room| room - granted);
        }
        if self.learned_parts.probes {
            let levels = self
                .levels
                .iter_mut()
                .filter_map(|level| Some(&mut level.refusal.as_mut()?.probe));
            let key = own.learned.as_deref_mut().map(|learned| &mut learned.probe);
            levels.chain(key).for_each(|probe| probe.take(granted, now));
        }
        if let Some(room) = &mut own.room {
            room.left -= granted;
            room.granted += granted;
        }
    }

    /// Returns the microseconds that a unit of this cost is charged at each level, root first, and
    /// then by the key.
    fn charge_us(&self, cost: f64, own: &LaneLimits<'_>) -> Arc<[f64]> {
        let free = |is_free: bool, rate: Rate| if is_free { Rate::UNLIMITED } else { rate };
        let key_rate = free(own.learned.is_some(), own.rate.unwrap_or(Rate::UNLIMITED));
        let rates = self
            .levels
            .iter()
            .map(|level| free(level.borrows, level.rate))
            .chain([key_rate]);
        rates.map(|rate| cost * rate.interval_us()).collect()
    }

    /// Returns the jobs that may begin under the probe limit of a level; `None` for no limit.
    fn level_credit(&self, level: &Level) -> Option<f64> {
        self.credit(&level.refusal.as_ref()?.probe)
    }

    /// Returns the jobs that may begin under the probe limit of a key; `None` for no limit.
    fn key_credit(&self, own: &LaneLimits<'_>) -> Option<f64> {
        self.credit(&own.learned.as_deref()?.probe)
    }

    fn credit(&self, probe: &ProbeCredit) -> Option<f64> {
        if self.learned_parts.probes {
            probe.left(self.now)
        } else {
            None
        }
    }

    /// Returns the units that the level at this index allows.
    fn units(&self, at: usize, cost: f64) -> f64 {
        let own = self.open[at].map_or(f64::INFINITY, |open| open.units(cost, self.now));
        own + self.above(at).map_or(0.0, |above| {
            above.map_or(f64::INFINITY, |above| above.spare_units(cost, self.now))
        })
    }

    /// Returns the microseconds until the level at this index allows the next unit, and the place
    /// at it that causes the wait.
    fn wait_us(&self, at: usize, cost: f64) -> (LimitedBy, f64) {
        let own = self.open[at].map_or(0.0, |open| open.wait_us(cost, self.now));
        let own = self.above(at).map_or(own, |above| {
            above.map_or(0.0, |above| own.min(above.spare_wait_us(cost, self.now)))
        });
        let windows = longest_wait(&self.windows[at], cost, self.now);
        let place = if windows > own {
            LimitedBy::Windows(at)
        } else {
            LimitedBy::Level(at)
        };
        (place, own.max(windows).ceil())
    }

    /// Returns the bucket from which the level at this index borrows, if it borrows; the inner
    /// `None` is a lender without a limit.
    fn above(&self, at: usize) -> Option<Option<&OpenBucket>> {
        self.levels[at]
            .borrows
            .then(|| self.open.get(at.checked_sub(1)?).map(Option::as_ref))
            .flatten()
    }

    /// Returns the longest wait now, in microseconds, and the place that causes it.
    fn limit(&mut self, cost: f64, own: &LaneLimits<'_>) -> (f64, Option<LimitedBy>) {
        let (mut wait_us, mut limit) = (0.0, None);
        let levels = (0..self.levels.len()).map(|at| self.wait_us(at, cost));
        let key = own
            .bucket
            .as_deref()
            .map_or(0.0, |open| open.wait_us(cost, self.now).ceil())
            .max(longest_wait(own.windows, cost, self.now).ceil());
        let places = levels.chain([(
            if own.is_learned {
                LimitedBy::Learned
            } else {
                LimitedBy::Key
            },
            key,
        )]);
        for (place, wait) in places {
            if wait > wait_us {
                (wait_us, limit) = (wait.min(MAX_WAIT_US), Some(place));
            }
        }
        if wait_us < CROWDED_WAIT_US {
            let crowded = self.levels.iter().position(|level| level.room == Some(0.0));
            let level = crowded.map(|at| {
                if self.levels[at].is_full {
                    LimitedBy::Full(at)
                } else {
                    LimitedBy::Crowded(at)
                }
            });
            let key = || {
                own.room
                    .as_deref()
                    .filter(|room| room.left == 0.0)
                    .map(|_| LimitedBy::KeyCrowded)
            };
            let probing = || {
                self.levels
                    .iter()
                    .position(|level| self.level_credit(level) == Some(0.0))
                    .map(LimitedBy::Probing)
            };
            let key_probing = || {
                self.key_credit(own)
                    .filter(|credit| *credit == 0.0)
                    .map(|_| LimitedBy::KeyProbing)
            };
            let crowded = level.or_else(key).or_else(probing).or_else(key_probing);
            if crowded.is_some() {
                (wait_us, limit) = (CROWDED_WAIT_US, crowded);
            }
        }
        if let Some(LimitedBy::Level(at) | LimitedBy::Windows(at)) = limit {
            self.refused[at] = self.refused[at].max(wait_us);
        }
        (wait_us, limit)
    }

    /// Closes the levels' buckets and records waits.
    fn close(self, highest_cost: f64) -> Vec<LaneAnswer> {
        let each = self.levels.iter_mut().zip(self.open).zip(self.refused);
        for (((level, open), refused), windows) in each.zip(self.windows) {
            let has_more = (open.is_none_or(|open| open.units(highest_cost, self.now) >= 1.0)
                || level.borrows)
                && windows
                    .iter()
                    .all(|window| window.units(highest_cost) >= 1.0);
            if windows.iter().any(OpenWindow::is_changed) {
                level.grants = windows.into_iter().map(OpenWindow::close).collect();
            }
            if let Some(open) = open {
                level.bucket = open.close();
            }
            if refused > 0.0 {
                level.meter.refused(self.now, refused);
            } else if has_more {
                level.meter.relieved(self.now);
            }
        }
        self.served
    }
}

/// Returns the microseconds until all of these windows allow the next unit.
fn longest_wait(windows: &[OpenWindow], cost: f64, now: f64) -> f64 {
    windows
        .iter()
        .map(|window| window.wait_us(cost, now))
        .fold(0.0, f64::max)
}

/// Returns the answer to a lane that gets nothing, without a wait if it wants nothing.
fn nothing(demand: &LaneDemand<'_>, wait_us: f64, limit: LimitedBy) -> LaneAnswer {
    let (wait_us, limit) = if demand.want > 0.0 {
        (wait_us.min(MAX_WAIT_US), Some(limit))
    } else {
        (0.0, None)
    };
    LaneAnswer {
        granted: 0.0,
        wait_us,
        limit,
        charge_us: Arc::default(),
        watched: false,
    }
}
