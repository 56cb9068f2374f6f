//! One ask served by a chain of throttles and the keys below it: the law of the tree.
//!
//! Parents are charged first. The lanes of one ask share, in their order, what the levels above still hold; all levels
//! are charged for what was granted and nothing else. Lanes that follow each other, want the same and have nothing of their own
//! to be asked (no rate of the key, no limit, no pause) are served in one step, in their order: an ask for a hundred of them
//! costs as much as an ask for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bucket::{Bucket, MAX_WAIT_US, Meter, Open, Rate, STOPPED_WAIT_US, Start, slower};
use super::holds::CROWDED_WAIT_US;
use super::learned::{Learned, Probe, Refusal};

/// A throttle of the chain.
#[derive(Clone, Debug)]
pub struct Level {
    /// The rate in force.
    pub rate: Rate,
    /// Its bucket.
    pub bucket: Bucket,
    /// Its counters.
    pub meter: Meter,
    /// Jobs that may still be begun under its limit of concurrency; `None` where there is no limit.
    pub room: Option<f64>,
    /// What it lacks may be taken from what the level above has to spare.
    pub borrows: bool,
    /// The last refusal that concerned all of it.
    pub refusal: Option<Refusal>,
    /// Its limit of concurrency knows as many names as it keeps, and that of the asker is not among them.
    pub is_full: bool,
    /// Why it is stopped, where what stands behind it can bear nothing; empty otherwise.
    pub stopped_because: String,
}

/// What one lane wants.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    /// The key; empty for none.
    pub key: &'a str,
    /// Units wanted.
    pub want: f64,
    /// Tokens per unit.
    pub cost: f64,
    /// Unix milliseconds until which the key is paused.
    pub paused_until_ms: Option<i64>,
    /// Jobs of the key that may still be begun under its limit of concurrency; `None` where there is no limit.
    pub room: Option<f64>,
}

/// What the lanes of one key leave of its limit of concurrency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyRoom {
    /// Jobs that may still be begun.
    pub left: f64,
    /// Jobs that were granted.
    pub granted: f64,
}

/// What one lane got.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// Units.
    pub granted: f64,
    /// Microseconds until the next unit fits, where fewer were granted than wanted.
    pub wait_us: f64,
    /// Who says so.
    pub limit: Option<Where>,
    /// Microseconds charged per unit, root first, then the key; empty where nothing was granted. 0 where a unit may have been
    /// paid for by somebody else: at a level that borrows, and at a key whose rate was learned.
    pub charge_us: Arc<[f64]>,
    /// Something was learned of the key or of a level, so that the end of what was granted must be told.
    pub watched: bool,
}

/// The place in the tree that limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// The throttle at this place of the chain, root first.
    Level(usize),
    /// The key's own rate.
    Key,
    /// What was learned of the key.
    Learned,
    /// The key is paused.
    Paused,
    /// The throttle at this place of the chain is paused by a refusal.
    LevelPaused(usize),
    /// It is not known yet whether jobs of the throttle at this place are welcome again.
    Probing(usize),
    /// It is not known yet whether jobs of the key are welcome again.
    KeyProbing,
    /// The throttle at this place of the chain is stopped.
    Stopped(usize),
    /// The limit of concurrency of the throttle at this place of the chain.
    Crowded(usize),
    /// The number of names that the limit of concurrency of the throttle at this place of the chain keeps.
    Full(usize),
    /// The key's limit of concurrency.
    KeyCrowded,
}

/// A cost that the law can work with: above 0 and at most 1e9 tokens.
pub fn sane_cost(cost: f64) -> f64 {
    if cost.is_nan() { 1.0 } else { cost.clamp(1e-9, 1e9) }
}

/// What one ask is served from.
pub struct Source<'a> {
    /// The chain of throttles, root first.
    pub levels: &'a mut [Level],
    /// The rate of each key.
    pub key_rate: Rate,
    /// The buckets of keys.
    pub keys: &'a mut BTreeMap<String, Bucket>,
    /// The highest cost of one unit that is charged, in tokens; no wish costs more.
    pub most: f64,
    /// What was learned of keys.
    pub learned: &'a mut BTreeMap<String, Learned>,
    /// What of it counts.
    pub heed: Heed,
}

/// What of what was learned an ask has to heed.
#[derive(Clone, Copy, Debug)]
pub struct Heed {
    /// The rates.
    pub rates: bool,
    /// How many may go at once. It does not concern work that runs already: that would wait for its own end.
    pub probes: bool,
}

/// Serves `wishes` at `now` (unix microseconds), with what the keys that have a limit of concurrency were granted.
pub fn serve(now: f64, source: Source<'_>, wishes: &[Wish<'_>]) -> (Vec<Served>, BTreeMap<String, KeyRoom>) {
    let Source { levels, key_rate, keys, most, learned, heed } = source;
    if let Some(stopped) = levels.iter().position(|level| level.rate.rps == 0.0) {
        let served = wishes.iter().map(|wish| nothing(wish, STOPPED_WAIT_US, Where::Stopped(stopped))).collect();
        for level in levels.iter_mut().filter(|level| level.rate.rps == 0.0) {
            level.bucket.drain(now, true);
        }
        levels[stopped].meter.refused(now, STOPPED_WAIT_US);
        return (served, BTreeMap::new());
    }
    let paused = |level: &Level| level.refusal.as_ref().filter(|refusal| refusal.until > now).map(|refusal| refusal.until);
    if let Some((at, until)) = levels.iter().enumerate().find_map(|(at, level)| Some((at, paused(level)?))) {
        // What passes meanwhile is no refill.
        levels.iter_mut().filter(|level| paused(level).is_some()).for_each(|level| level.bucket.drain(now, true));
        let served = wishes.iter().map(|wish| nothing(wish, until - now, Where::LevelPaused(at))).collect();
        return (served, BTreeMap::new());
    }
    let dearest = wishes.iter().map(|wish| wish.cost).fold(0.0, f64::max);
    let open = levels.iter().map(|level| {
        let is_limited = level.rate.rps > 0.0;
        is_limited.then(|| level.bucket.open(level.rate, Start::OneToken, now, dearest, most))
    });
    let open: Vec<Option<Open>> = open.collect();
    let is_watched = levels.iter().filter_map(|level| level.refusal.as_ref()).any(|refusal| refusal.probe.left(now).is_some());
    let refused = vec![0.0; levels.len()];
    let mut service = Service { now, most, heed, open, refused, levels, served: Vec::with_capacity(wishes.len()) };
    let mut rooms: BTreeMap<String, KeyRoom> = BTreeMap::new();
    let mut rest = wishes;
    while let Some((wish, after)) = rest.split_first() {
        let is_plain = |wish: &Wish<'_>| wish.is_plain(key_rate, now) && !learned.contains_key(wish.key);
        let alike =
            if is_plain(wish) { rest.iter().take_while(|other| wish.is_like(other) && is_plain(other)).count() } else { 0 };
        if alike > 0 {
            service.serve(alike, wish, Own::default());
            rest = &rest[alike..];
            continue;
        }
        rest = after;
        service.serve_bound(wish, key_rate, keys, learned, &mut rooms);
    }
    let mut served = service.close(dearest);
    // A level that wants to hear how jobs end wants to hear of all.
    served.iter_mut().for_each(|one| one.watched |= is_watched);
    (served, rooms)
}

/// An ask while it is served.
struct Service<'a> {
    now: f64,
    most: f64,
    heed: Heed,
    levels: &'a mut [Level],
    open: Vec<Option<Open>>,
    /// For each level the longest wait that it caused.
    refused: Vec<f64>,
    served: Vec<Served>,
}

/// What a lane is asked besides the levels.
#[derive(Default)]
struct Own<'a> {
    rate: Option<Rate>,
    bucket: Option<&'a mut Open>,
    room: Option<&'a mut KeyRoom>,
    learned: Option<&'a mut Learned>,
    /// The rate is the learned one.
    is_learned: bool,
}

impl Service<'_> {
    /// Serves a lane whose key is paused, has a rate or has a limit.
    fn serve_bound(
        &mut self,
        wish: &Wish<'_>,
        key_rate: Rate,
        keys: &mut BTreeMap<String, Bucket>,
        learned: &mut BTreeMap<String, Learned>,
        rooms: &mut BTreeMap<String, KeyRoom>,
    ) {
        if let Some(until_ms) = wish.paused_until_ms.filter(|until| *until as f64 * 1000.0 > self.now) {
            return self.served.push(nothing(wish, until_ms as f64 * 1000.0 - self.now, Where::Paused));
        }
        let key_rate = if wish.key.is_empty() { Rate::UNLIMITED } else { key_rate };
        if key_rate.rps == 0.0 {
            return self.served.push(nothing(wish, STOPPED_WAIT_US, Where::Key));
        }
        let room = wish.room.map(|left| {
            let room = KeyRoom { left, granted: 0.0 };
            rooms.entry(wish.key.to_owned()).or_insert(room)
        });
        let learned = learned.get_mut(wish.key);
        let learned_rps = learned.as_deref().filter(|_| self.heed.rates).map_or(-1.0, |learned| learned.rate(self.now));
        if learned_rps == 0.0 {
            let wait = learned.map_or(0.0, |learned| learned.window.rests_to() - self.now);
            return self.served.push(nothing(wish, wait, Where::Learned));
        }
        let depth_us = learned.as_deref().map_or(0.0, |learned| learned.depth_us(self.now));
        let is_learned = slower(key_rate.rps, learned_rps) != key_rate.rps;
        let key_rate = if is_learned { Rate { rps: learned_rps, depth_us } } else { key_rate };
        let bucket = keys.get(wish.key).copied().unwrap_or_default();
        let mut open = (key_rate.rps > 0.0).then(|| bucket.open(key_rate, Start::Full, self.now, wish.cost, self.most));
        let own = Own { rate: Some(key_rate), bucket: open.as_mut(), room, learned, is_learned };
        let granted = self.serve(1, wish, own);
        // A clamp is kept as well: clamped on reading alone, it would move along with the clock for ever.
        if let Some(open) = open.filter(|open| granted > 0.0 || open.was_clamped(&bucket)) {
            keys.insert(wish.key.to_owned(), open.close());
        }
    }

    /// Serves `lanes` lanes that want what `wish` wants, in one step; answers the units granted to them together.
    fn serve(&mut self, lanes: usize, wish: &Wish<'_>, mut own: Own<'_>) -> f64 {
        let (now, want, cost) = (self.now, wish.want, wish.cost);
        let wanted = lanes as f64 * want;
        let mut granted = (0..self.levels.len()).fold(wanted, |granted, at| granted.min(self.units(at, cost)));
        granted = own.bucket.as_deref().map_or(granted, |open| granted.min(open.units(cost, now)));
        granted = self.levels.iter().filter_map(|level| level.room).fold(granted, f64::min);
        granted = self.levels.iter().filter_map(|level| self.level_credit(level)).fold(granted, f64::min);
        granted = own.room.as_deref().map_or(granted, |room| granted.min(room.left));
        granted = self.key_credit(&own).map_or(granted, |credit| granted.min(credit));
        if granted > 0.0 {
            for (at, open) in self.open.iter_mut().enumerate() {
                if let Some(open) = open {
                    // What was borrowed is the business of the level above.
                    let taken = if self.levels[at].borrows { granted.min(open.units(cost, now)) } else { granted };
                    open.take(taken, cost, now);
                }
            }
            if let Some(open) = own.bucket.as_deref_mut() {
                open.take(granted, cost, now);
            }
            for level in self.levels.iter_mut() {
                level.meter.used += granted * cost;
                level.room = level.room.map(|room| room - granted);
            }
            if self.heed.probes {
                let levels = self.levels.iter_mut().filter_map(|level| Some(&mut level.refusal.as_mut()?.probe));
                let key = own.learned.as_deref_mut().map(|learned| &mut learned.probe);
                levels.chain(key).for_each(|probe| probe.take(granted, now));
            }
            if let Some(room) = &mut own.room {
                room.left -= granted;
                room.granted += granted;
            }
        }
        let (wait_us, limit) = if granted < wanted { self.limit(cost, &own) } else { (0.0, None) };
        if let (Some(Where::Learned), Some(learned)) = (limit, own.learned.as_deref_mut()) {
            learned.wanted(now);
        }
        let free = |is_free: bool, rate: Rate| if is_free { Rate::UNLIMITED } else { rate };
        let key_rate = free(own.learned.is_some(), own.rate.unwrap_or(Rate::UNLIMITED));
        let rates = self.levels.iter().map(|level| free(level.borrows, level.rate)).chain([key_rate]);
        let charge_us: Arc<[f64]> = rates.map(|rate| cost * rate.interval_us()).collect();
        let watched = own.learned.is_some();
        let mut left = granted;
        for _ in 0..lanes {
            let granted = left.min(want);
            left -= granted;
            let charge_us = if granted > 0.0 { charge_us.clone() } else { Arc::default() };
            let (wait_us, limit) = if granted < want { (wait_us, limit) } else { (0.0, None) };
            self.served.push(Served { granted, wait_us, limit, charge_us, watched });
        }
        granted
    }

    /// Jobs that may begin while it is not known whether those of a level are welcome; `None` for no such limit.
    fn level_credit(&self, level: &Level) -> Option<f64> {
        self.credit(&level.refusal.as_ref()?.probe)
    }

    /// The same for those of a key.
    fn key_credit(&self, own: &Own<'_>) -> Option<f64> {
        self.credit(&own.learned.as_deref()?.probe)
    }

    fn credit(&self, probe: &Probe) -> Option<f64> {
        if self.heed.probes { probe.left(self.now) } else { None }
    }

    /// Units that the level at this place lets through.
    fn units(&self, at: usize, cost: f64) -> f64 {
        let own = self.open[at].map_or(f64::INFINITY, |open| open.units(cost, self.now));
        own + self.above(at).map_or(0.0, |above| above.map_or(f64::INFINITY, |above| above.spare_units(cost, self.now)))
    }

    /// Microseconds until the level at this place lets the next unit through.
    fn wait_us(&self, at: usize, cost: f64) -> f64 {
        let own = self.open[at].map_or(0.0, |open| open.wait_us(cost, self.now));
        self.above(at).map_or(own, |above| above.map_or(0.0, |above| own.min(above.spare_wait_us(cost, self.now)))).ceil()
    }

    /// The bucket that the level at this place borrows from, where it borrows; within, `None` for one without a limit.
    fn above(&self, at: usize) -> Option<Option<&Open>> {
        self.levels[at].borrows.then(|| self.open.get(at.checked_sub(1)?).map(Option::as_ref)).flatten()
    }

    /// Who makes people wait longest now, and until when.
    fn limit(&mut self, cost: f64, own: &Own<'_>) -> (f64, Option<Where>) {
        let (mut wait_us, mut limit) = (0.0, None);
        let levels = (0..self.levels.len()).map(|at| (Where::Level(at), self.wait_us(at, cost)));
        let key = own.bucket.as_deref().map_or(0.0, |open| open.wait_us(cost, self.now).ceil());
        let places = levels.chain([(if own.is_learned { Where::Learned } else { Where::Key }, key)]);
        for (place, wait) in places {
            if wait > wait_us {
                (wait_us, limit) = (wait.min(MAX_WAIT_US), Some(place));
            }
        }
        if wait_us < CROWDED_WAIT_US {
            let crowded = self.levels.iter().position(|level| level.room == Some(0.0));
            let level = crowded.map(|at| if self.levels[at].is_full { Where::Full(at) } else { Where::Crowded(at) });
            let key = || own.room.as_deref().filter(|room| room.left == 0.0).map(|_| Where::KeyCrowded);
            let probing = || self.levels.iter().position(|level| self.level_credit(level) == Some(0.0)).map(Where::Probing);
            let key_probing = || self.key_credit(own).filter(|credit| *credit == 0.0).map(|_| Where::KeyProbing);
            let crowded = level.or_else(key).or_else(probing).or_else(key_probing);
            if crowded.is_some() {
                (wait_us, limit) = (CROWDED_WAIT_US, crowded);
            }
        }
        if let Some(Where::Level(at)) = limit {
            self.refused[at] = self.refused[at].max(wait_us);
        }
        (wait_us, limit)
    }

    /// Closes the levels' buckets and counts who was refused.
    fn close(self, dearest: f64) -> Vec<Served> {
        for ((level, open), refused) in self.levels.iter_mut().zip(self.open).zip(self.refused) {
            let has_more = open.is_none_or(|open| open.units(dearest, self.now) >= 1.0) || level.borrows;
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

impl Wish<'_> {
    /// True if the levels alone decide.
    fn is_plain(&self, key_rate: Rate, now: f64) -> bool {
        let is_paused = self.paused_until_ms.is_some_and(|until| until as f64 * 1000.0 > now);
        !is_paused && self.room.is_none() && (self.key.is_empty() || key_rate.rps < 0.0)
    }

    fn is_like(&self, other: &Wish<'_>) -> bool {
        self.want == other.want && self.cost == other.cost
    }
}

/// The answer to a lane that gets nothing; one that wants nothing has nothing to wait for.
fn nothing(wish: &Wish<'_>, wait_us: f64, limit: Where) -> Served {
    let (wait_us, limit) = if wish.want > 0.0 { (wait_us.min(MAX_WAIT_US), Some(limit)) } else { (0.0, None) };
    Served { granted: 0.0, wait_us, limit, charge_us: Arc::default(), watched: false }
}
