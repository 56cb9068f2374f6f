//! One ask served by a chain of throttles and the keys below it: the law of the tree.
//!
//! Parents are charged first. The lanes of one ask share, in their order, what the levels above still hold; all levels
//! are charged for what was granted and nothing else.

use std::collections::BTreeMap;

use super::Name;
use super::bucket::{Bucket, MAX_WAIT_US, Meter, Open, Rate, STOPPED_WAIT_US, Start};

/// A throttle of the chain.
#[derive(Clone, Debug)]
pub struct Level {
    /// The rate in force.
    pub rate: Rate,
    /// Its bucket.
    pub bucket: Bucket,
    /// Its counters.
    pub meter: Meter,
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
    pub charge_us: Vec<f64>,
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
}

/// Most levels that one ask is charged at, the asked throttle included.
pub const MAX_LEVELS: usize = 4;

/// The chain of a throttle, root first, each with the parent that its hash names (which may be no name at all).
///
/// A circle of parents, and what is more than [`MAX_LEVELS`] above, is cut off.
pub fn chain(leaf: &Name, parent_of: impl Fn(&Name) -> String) -> Vec<(Name, String)> {
    let mut chain: Vec<(Name, String)> = Vec::new();
    let mut next = Some(leaf.clone());
    while let Some(name) = next {
        let parent = parent_of(&name);
        next = Name::new(parent.as_str()).ok();
        chain.push((name, parent));
        next = next.filter(|above| chain.len() < MAX_LEVELS && chain.iter().all(|(name, _)| name != above));
    }
    chain.reverse();
    chain
}

/// How the message begins when a parent is missing.
pub(super) const MISSING: &str = "there is no throttle ";

/// What is wrong with the parents of `leaf`, where `parents` holds the text of `parent` of every level that was read, `None`
/// for a throttle that does not exist.
pub fn wrong_parent(leaf: &Name, parents: &BTreeMap<Name, Option<String>>) -> Option<String> {
    let mut seen = vec![leaf];
    loop {
        let last = seen[seen.len() - 1];
        let above = Name::new(parents.get(last)?.as_deref()?).ok()?;
        if seen.contains(&&above) {
            return Some(format!("{last} names {above} as its parent, which closes a circle; it is cut there"));
        }
        if seen.len() == MAX_LEVELS {
            return Some(format!("{above} is more than {MAX_LEVELS} levels up; it and what is above it is not asked"));
        }
        let (above, parent) = parents.get_key_value(&above)?;
        if parent.is_none() {
            return Some(format!("{MISSING}{above}, which {last} names as its parent; nothing flows until there is one"));
        }
        seen.push(above);
    }
}

/// A cost that the law can work with: above 0 and at most 1e9 tokens.
pub fn sane_cost(cost: f64) -> f64 {
    if cost.is_nan() { 1.0 } else { cost.clamp(1e-9, 1e9) }
}

/// Serves `wishes` at `now` (unix microseconds) from `levels` (root first) and `keys`.
pub fn serve(
    now: f64,
    levels: &mut [Level],
    key_rate: Rate,
    keys: &mut BTreeMap<String, Bucket>,
    wishes: &[Wish<'_>],
) -> Vec<Served> {
    if let Some(stopped) = levels.iter().position(|level| level.rate.rps == 0.0) {
        let nothing = Served::nothing(STOPPED_WAIT_US, Where::Stopped(stopped));
        let served = wishes.iter().map(|wish| nothing.clone().to(wish)).collect();
        for level in levels.iter_mut().filter(|level| level.rate.rps == 0.0) {
            level.bucket.drain(now, true);
        }
        levels[stopped].meter.refused(now, STOPPED_WAIT_US);
        return served;
    }
    let dearest = wishes.iter().map(|wish| wish.cost).fold(0.0, f64::max);
    let mut open: Vec<Option<Open>> = levels
        .iter()
        .map(|level| (level.rate.rps > 0.0).then(|| level.bucket.open(level.rate, Start::OneToken, now, dearest)))
        .collect();
    let mut refused = vec![0.0_f64; levels.len()];
    let served = wishes
        .iter()
        .map(|wish| {
            let one = serve_one(now, levels, &mut open, key_rate, keys, wish);
            if let Some(Where::Level(at)) = one.limit {
                refused[at] = refused[at].max(one.wait_us);
            }
            one
        })
        .collect();
    for ((level, open), refused) in levels.iter_mut().zip(open).zip(refused) {
        let has_more = open.is_none_or(|open| open.units(dearest, now) >= 1.0);
        if let Some(open) = open {
            level.bucket = open.close();
        }
        if refused > 0.0 {
            level.meter.refused(now, refused);
        } else if has_more {
            level.meter.relieved(now);
        }
    }
    served
}

fn serve_one(
    now: f64,
    levels: &mut [Level],
    open: &mut [Option<Open>],
    key_rate: Rate,
    keys: &mut BTreeMap<String, Bucket>,
    wish: &Wish<'_>,
) -> Served {
    let (want, cost) = (wish.want, wish.cost);
    let key_rate = if wish.key.is_empty() { Rate::UNLIMITED } else { key_rate };
    if let Some(until_ms) = wish.paused_until_ms.filter(|until| *until as f64 * 1000.0 > now) {
        return Served::nothing(until_ms as f64 * 1000.0 - now, Where::Paused).to(wish);
    }
    if key_rate.rps == 0.0 {
        return Served::nothing(STOPPED_WAIT_US, Where::Key).to(wish);
    }
    let bucket = keys.get(wish.key).copied().unwrap_or_default();
    let mut key = (key_rate.rps > 0.0).then(|| bucket.open(key_rate, Start::Full, now, cost));
    let granted = open.iter().chain([&key]).flatten().fold(want, |units, level| units.min(level.units(cost, now)));
    if granted > 0.0 {
        open.iter_mut().chain([&mut key]).flatten().for_each(|level| level.take(granted, cost, now));
        levels.iter_mut().for_each(|level| level.meter.used += granted * cost);
    }
    // A clamp is kept as well: clamped on reading alone, it would move along with the clock for ever.
    if let Some(key) = key.filter(|key| granted > 0.0 || key.was_clamped(&bucket)) {
        keys.insert(wish.key.to_owned(), key.close());
    }
    let (mut wait_us, mut limit) = (0.0, None);
    if granted < want {
        let places = (0..levels.len()).map(Where::Level).chain([Where::Key]);
        for (place, level) in places.zip(open.iter().chain([&key])) {
            let wait = level.map_or(0.0, |level| level.wait_us(cost, now).ceil());
            if wait > wait_us {
                (wait_us, limit) = (wait.min(MAX_WAIT_US), Some(place));
            }
        }
    }
    let rates = levels.iter().map(|level| level.rate).chain([key_rate]);
    let charge_us = rates.filter(|_| granted > 0.0).map(|rate| cost * rate.interval_us()).collect();
    Served { granted, wait_us, limit, charge_us }
}

impl Served {
    fn nothing(wait_us: f64, limit: Where) -> Self {
        Self { granted: 0.0, wait_us: wait_us.min(MAX_WAIT_US), limit: Some(limit), charge_us: Vec::new() }
    }

    /// The same answer for a lane that wants nothing has nothing to wait for.
    fn to(self, wish: &Wish<'_>) -> Self {
        if wish.want > 0.0 { self } else { Self { wait_us: 0.0, limit: None, ..self } }
    }
}
