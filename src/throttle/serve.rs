//! One ask served by a chain of throttles and the keys below it: the law of the tree.
//!
//! Parents are charged first. The lanes of one ask share, in their order, what the levels above still hold; all levels
//! are charged for what was granted and nothing else. Lanes that follow each other, want the same and have nothing of their own
//! to be asked (no rate of the key, no limit, no pause) are served in one step, in their order: an ask for a hundred of them
//! costs as much as an ask for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bucket::{Bucket, MAX_WAIT_US, Meter, Open, Rate, STOPPED_WAIT_US, Start};
use super::holds::CROWDED_WAIT_US;

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
    /// Microseconds charged per unit, root first, then the key; empty where nothing was granted.
    pub charge_us: Arc<[f64]>,
}

/// The place in the tree that limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// The throttle at this place of the chain, root first.
    Level(usize),
    /// The key's own rate.
    Key,
    /// The key is paused.
    Paused,
    /// The throttle at this place of the chain is stopped.
    Stopped(usize),
    /// The limit of concurrency of the throttle at this place of the chain.
    Crowded(usize),
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
}

/// Serves `wishes` at `now` (unix microseconds), with what the keys that have a limit of concurrency were granted.
pub fn serve(now: f64, source: Source<'_>, wishes: &[Wish<'_>]) -> (Vec<Served>, BTreeMap<String, KeyRoom>) {
    let Source { levels, key_rate, keys } = source;
    if let Some(stopped) = levels.iter().position(|level| level.rate.rps == 0.0) {
        let served = wishes.iter().map(|wish| nothing(wish, STOPPED_WAIT_US, Where::Stopped(stopped))).collect();
        for level in levels.iter_mut().filter(|level| level.rate.rps == 0.0) {
            level.bucket.drain(now, true);
        }
        levels[stopped].meter.refused(now, STOPPED_WAIT_US);
        return (served, BTreeMap::new());
    }
    let dearest = wishes.iter().map(|wish| wish.cost).fold(0.0, f64::max);
    let open = levels.iter().map(|level| {
        let is_limited = level.rate.rps > 0.0;
        is_limited.then(|| level.bucket.open(level.rate, Start::OneToken, now, dearest))
    });
    let open: Vec<Option<Open>> = open.collect();
    let mut service = Service { now, open, refused: vec![0.0; levels.len()], levels, served: Vec::with_capacity(wishes.len()) };
    let mut rooms: BTreeMap<String, KeyRoom> = BTreeMap::new();
    let mut rest = wishes;
    while let Some((wish, after)) = rest.split_first() {
        let alike = if wish.is_plain(key_rate, now) {
            rest.iter().take_while(|other| wish.is_like(other) && other.is_plain(key_rate, now)).count()
        } else {
            0
        };
        if alike > 0 {
            service.serve(alike, wish, Own::default());
            rest = &rest[alike..];
            continue;
        }
        rest = after;
        service.serve_bound(wish, key_rate, keys, &mut rooms);
    }
    (service.close(dearest), rooms)
}

/// An ask while it is served.
struct Service<'a> {
    now: f64,
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
}

impl Service<'_> {
    /// Serves a lane whose key is paused, has a rate or has a limit.
    fn serve_bound(
        &mut self,
        wish: &Wish<'_>,
        key_rate: Rate,
        keys: &mut BTreeMap<String, Bucket>,
        rooms: &mut BTreeMap<String, KeyRoom>,
    ) {
        if let Some(until_ms) = wish.paused_until_ms.filter(|until| *until as f64 * 1000.0 > self.now) {
            return self.served.push(nothing(wish, until_ms as f64 * 1000.0 - self.now, Where::Paused));
        }
        if key_rate.rps == 0.0 {
            return self.served.push(nothing(wish, STOPPED_WAIT_US, Where::Key));
        }
        let room = wish.room.map(|left| {
            let room = KeyRoom { left, granted: 0.0 };
            rooms.entry(wish.key.to_owned()).or_insert(room)
        });
        let bucket = keys.get(wish.key).copied().unwrap_or_default();
        let mut open = (key_rate.rps > 0.0).then(|| bucket.open(key_rate, Start::Full, self.now, wish.cost));
        let granted = self.serve(1, wish, Own { rate: Some(key_rate), bucket: open.as_mut(), room });
        // A clamp is kept as well: clamped on reading alone, it would move along with the clock for ever.
        if let Some(open) = open.filter(|open| granted > 0.0 || open.was_clamped(&bucket)) {
            keys.insert(wish.key.to_owned(), open.close());
        }
    }

    /// Serves `lanes` lanes that want what `wish` wants, in one step; answers the units granted to them together.
    fn serve(&mut self, lanes: usize, wish: &Wish<'_>, mut own: Own<'_>) -> f64 {
        let (now, want, cost) = (self.now, wish.want, wish.cost);
        let wanted = lanes as f64 * want;
        let own_open = own.bucket.as_deref();
        let mut granted = self.open.iter().flatten().chain(own_open).fold(wanted, |units, open| units.min(open.units(cost, now)));
        granted = self.levels.iter().filter_map(|level| level.room).fold(granted, f64::min);
        granted = own.room.as_deref().map_or(granted, |room| granted.min(room.left));
        if granted > 0.0 {
            self.open.iter_mut().flatten().chain(own.bucket.as_deref_mut()).for_each(|open| open.take(granted, cost, now));
            for level in self.levels.iter_mut() {
                level.meter.used += granted * cost;
                level.room = level.room.map(|room| room - granted);
            }
            if let Some(room) = &mut own.room {
                room.left -= granted;
                room.granted += granted;
            }
        }
        let (wait_us, limit) = if granted < wanted { self.limit(cost, &own) } else { (0.0, None) };
        let rates = self.levels.iter().map(|level| level.rate).chain([own.rate.unwrap_or(Rate::UNLIMITED)]);
        let charge_us: Arc<[f64]> = rates.map(|rate| cost * rate.interval_us()).collect();
        let mut left = granted;
        for _ in 0..lanes {
            let granted = left.min(want);
            left -= granted;
            let charge_us = if granted > 0.0 { charge_us.clone() } else { Arc::default() };
            let (wait_us, limit) = if granted < want { (wait_us, limit) } else { (0.0, None) };
            self.served.push(Served { granted, wait_us, limit, charge_us });
        }
        granted
    }

    /// Who makes people wait longest now, and until when.
    fn limit(&mut self, cost: f64, own: &Own<'_>) -> (f64, Option<Where>) {
        let (mut wait_us, mut limit) = (0.0, None);
        let places = (0..self.levels.len()).map(Where::Level).chain([Where::Key]);
        for (place, open) in places.zip(self.open.iter().map(Option::as_ref).chain([own.bucket.as_deref()])) {
            let wait = open.map_or(0.0, |open| open.wait_us(cost, self.now).ceil());
            if wait > wait_us {
                (wait_us, limit) = (wait.min(MAX_WAIT_US), Some(place));
            }
        }
        if wait_us < CROWDED_WAIT_US {
            let level = self.levels.iter().position(|level| level.room == Some(0.0)).map(Where::Crowded);
            let crowded = level.or_else(|| own.room.as_deref().filter(|room| room.left == 0.0).map(|_| Where::KeyCrowded));
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
            let has_more = open.is_none_or(|open| open.units(dearest, self.now) >= 1.0);
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
    Served { granted: 0.0, wait_us, limit, charge_us: Arc::default() }
}
