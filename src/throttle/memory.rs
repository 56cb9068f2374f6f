//! Throttles in the memory of one process, by the same law as in Redis: for tests, simulations and examples.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};

use super::bucket::{Bucket, Meter, Rate, STOPPED_WAIT_US, Start};
use super::rules::{self, number};
use super::tree::{self, Level, Served, Where, Wish, sane_cost};
use super::{Answer, Ask, Change, Error, Grant, Knobs, LaneAsk, Limit, Name, Status, Store};

/// Answers the time in unix microseconds.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// A [`Store`] that lives and dies with the process.
pub struct MemoryStore {
    clock: Clock,
    throttles: Mutex<Throttles>,
}

type Throttles = BTreeMap<Name, Throttle>;

#[derive(Clone, Default)]
struct Throttle {
    raw: BTreeMap<String, String>,
    bucket: Bucket,
    meter: Meter,
    keys: BTreeMap<String, Bucket>,
    pauses: BTreeMap<String, (i64, String)>,
}

impl MemoryStore {
    /// An empty store that takes its time from `clock`.
    pub fn new(clock: Clock) -> Self {
        Self { clock, throttles: Mutex::default() }
    }

    /// Writes a field as a person with redis-cli would: unchecked, uncounted.
    pub fn write_raw(&self, throttle: &Name, field: &str, text: &str) {
        self.locked().entry(throttle.clone()).or_default().raw.insert(field.to_owned(), text.to_owned());
    }

    /// Removes a field as a person with redis-cli would; a hash without fields is gone.
    pub fn remove_raw(&self, throttle: &Name, field: &str) {
        if let Some(found) = self.locked().get_mut(throttle) {
            found.raw.remove(field);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Throttles> {
        // The state is consistent between any two statements, so a poisoned lock is still good.
        self.throttles.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn now(&self) -> i64 {
        (self.clock)()
    }

    fn chain(throttles: &Throttles, leaf: &Name) -> Vec<Name> {
        let parent_of = |name: &Name| {
            let parent = throttles.get(name).and_then(|throttle| throttle.raw.get("parent"));
            parent.cloned().unwrap_or_default()
        };
        tree::chain(leaf, parent_of).into_iter().map(|(name, _)| name).collect()
    }

    fn ask(throttles: &mut Throttles, ask: &Ask, now: i64) -> Answer {
        let chain = Self::chain(throttles, &ask.throttle);
        let known = throttles.get(&ask.throttle).filter(|throttle| !throttle.raw.is_empty());
        let knobs = known.map(|throttle| Knobs::read(&throttle.raw).0);
        let effective_rps = knobs.as_ref().map_or(0.0, |knobs| knobs.effective_rps(now));
        let seq = knobs.as_ref().map_or(0, |knobs| knobs.seq);
        let unknown = chain.iter().find(|name| throttles.get(*name).is_none_or(|throttle| throttle.raw.is_empty()));
        let (Some(knobs), None) = (knobs, unknown) else {
            let limit = Limit::Unknown { name: unknown.unwrap_or(&ask.throttle).clone() };
            let lanes = ask.lanes.iter().map(|lane| nothing(lane, &limit)).collect();
            return Answer { lanes, effective_rps, at_us: now, seq };
        };
        let mut levels: Vec<Level> = chain.iter().map(|name| throttles[name].level(now)).collect();
        let leaf = throttles.entry(ask.throttle.clone()).or_default();
        let wishes: Vec<Wish<'_>> = ask.lanes.iter().map(|lane| leaf.wish(lane)).collect();
        let mut keys = std::mem::take(&mut leaf.keys);
        let served = tree::serve(now as f64, &mut levels, knobs.key_rate(), &mut keys, &wishes);
        let lanes = served.into_iter().zip(&ask.lanes).map(|(one, lane)| leaf.grant(one, lane, &chain)).collect();
        leaf.keys = keys;
        for (name, level) in chain.iter().zip(levels) {
            let throttle = throttles.entry(name.clone()).or_default();
            (throttle.bucket, throttle.meter) = (level.bucket, level.meter);
        }
        Answer { lanes, effective_rps, at_us: now, seq }
    }

    fn write(throttles: &mut Throttles, name: &Name, change: &Change, now: i64) -> Result<(Option<Status>, Status), Error> {
        change.check_parent(name)?;
        let stands = throttles.get(name).cloned().unwrap_or_default();
        let exists = !stands.raw.is_empty();
        if !exists && !change.create {
            return Err(Error::Unknown(name.clone()));
        }
        let earlier = Knobs::read(&stands.raw).0;
        let conflict = |what: String| Err(Error::Conflict { name: name.clone(), what });
        if let Some(seq) = change.if_seq.filter(|seq| *seq != earlier.seq) {
            return conflict(format!("seq is {}, not {seq}", earlier.seq));
        }
        if let Some(term) = change.term.filter(|term| earlier.term > *term) {
            return conflict(format!("term {} has written since term {term}", earlier.term));
        }
        let rps = stands.raw.get("rps").map_or("", String::as_str);
        if let Some(expected) = change.if_rps.as_deref().filter(|expected| *expected != rps) {
            return conflict(format!("rps is {}, not {expected}", if rps.is_empty() { "missing" } else { rps }));
        }
        let mut raw = stands.raw.clone();
        let mut changed = !exists;
        for (field, text) in &change.fields {
            if change.absent_only && stands.raw.contains_key(field) {
                continue;
            }
            changed = true;
            put(&mut raw, field, text.clone());
            if field == "mode" && raw.get("mode").is_some_and(|mode| mode != "auto") {
                raw.remove("valid_until");
            }
        }
        let bound = |raw: &BTreeMap<String, String>, field, default| {
            raw.get(field).and_then(|text| number(field, text)).unwrap_or(default)
        };
        let (min, max) = (bound(&raw, "min", 0.1), bound(&raw, "max", 1000.0));
        let touched = ["min", "max"].iter().any(|field| raw.get(*field) != stands.raw.get(*field));
        if min > max && touched {
            return Err(Error::Invalid(vec![rules::min_above_max(min, max)]));
        }
        let throttle = throttles.entry(name.clone()).or_default();
        if changed {
            let safe = raw.get("safe_rps").cloned().unwrap_or_else(|| "1".to_owned());
            for (field, text) in [("rps", safe), ("burst", "1".to_owned()), ("window", "1".to_owned())] {
                raw.entry(field.to_owned()).or_insert(text);
            }
            put(&mut raw, "seq", Some((earlier.seq + 1).to_string()));
            put(&mut raw, "at", Some(now.div_euclid(1000).to_string()));
            put(&mut raw, "by", Some(change.by.clone()));
            put(&mut raw, "why", Some(change.why.clone()));
            if let Some(term) = change.term {
                put(&mut raw, "term", Some(term.to_string()));
            }
            let stopped_after = Knobs::read(&raw).0.effective_rps(now) == 0.0;
            if stopped_after || (exists && earlier.effective_rps(now) == 0.0) {
                throttle.bucket.drain(now as f64, stopped_after);
            }
            throttle.raw = raw;
        }
        let before = exists.then(|| Status::read(name.clone(), stands.raw, &throttle.meter, now));
        let after = Status::read(name.clone(), throttle.raw.clone(), &throttle.meter, now);
        Ok((before, after.with_parents(&parents(throttles))))
    }
}

fn put(raw: &mut BTreeMap<String, String>, field: &str, text: Option<String>) {
    match text {
        Some(text) => raw.insert(field.to_owned(), text),
        None => raw.remove(field),
    };
}

fn nothing(lane: &LaneAsk, limit: &Limit) -> Grant {
    let (wait_us, limit) = if lane.want > 0 { (STOPPED_WAIT_US, Some(limit.clone())) } else { (0.0, None) };
    Grant { granted: 0, wait: Duration::from_micros(wait_us as u64), limit, charge_us: Vec::new() }
}

// === impl Throttle ===

impl Throttle {
    fn level(&self, now: i64) -> Level {
        Level { rate: Knobs::read(&self.raw).0.rate(now), bucket: self.bucket, meter: self.meter }
    }

    fn wish<'a>(&self, lane: &'a LaneAsk) -> Wish<'a> {
        Wish {
            key: &lane.key,
            want: f64::from(lane.want),
            cost: sane_cost(lane.cost),
            paused_until_ms: self.pauses.get(&lane.key).map(|pause| pause.0),
        }
    }

    fn grant(&self, served: Served, lane: &LaneAsk, chain: &[Name]) -> Grant {
        let limit = served.limit.map(|place| match place {
            Where::Level(at) if at + 1 == chain.len() => Limit::Throttle,
            Where::Level(at) => Limit::Tier { name: chain[at].clone() },
            Where::Stopped(at) => Limit::Stopped { name: chain[at].clone() },
            Where::Key => Limit::Key,
            Where::Paused => {
                let (until_ms, why) = self.pauses[&lane.key].clone();
                Limit::Paused { until_ms, why }
            }
        });
        Grant {
            granted: served.granted as u32,
            wait: Duration::from_micros(served.wait_us as u64),
            limit,
            charge_us: served.charge_us,
        }
    }
}

// === impl Store ===

/// What every throttle names as its parent, and the parents that do not exist.
fn parents(throttles: &Throttles) -> BTreeMap<Name, Option<String>> {
    let exists = |name: &Name| throttles.get(name).is_some_and(|throttle| !throttle.raw.is_empty());
    let named = |name: &Name| throttles[name].raw.get("parent").cloned().unwrap_or_default();
    let known = throttles.keys().filter(|name| exists(name)).map(|name| (name.clone(), Some(named(name))));
    let missing =
        throttles.keys().filter_map(|name| Name::new(named(name)).ok()).filter(|name| !exists(name)).map(|name| (name, None));
    known.chain(missing).collect()
}

impl Store for MemoryStore {
    fn acquire<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer> {
        ready(Self::ask(&mut self.locked(), ask, self.now())).boxed()
    }

    fn peek<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer> {
        let mut copy = self.locked().clone();
        ready(Self::ask(&mut copy, ask, self.now())).boxed()
    }

    fn refund<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        grant: &'a Grant,
        units: u32,
        cost: f64,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        let chain = Self::chain(throttles, throttle);
        let units = f64::from(units);
        if grant.charge_us.is_empty() {
            return ready(Ok(())).boxed();
        }
        // If the chain changed since the grant its charges belong to other throttles: then only the key is repaid.
        if grant.charge_us.len() == chain.len() + 1 {
            for (name, charge_us) in chain.iter().zip(&grant.charge_us) {
                let throttle = throttles.entry(name.clone()).or_default();
                throttle.bucket.refund(units * charge_us);
                throttle.meter.used -= units * sane_cost(cost);
            }
        }
        let bucket = throttles.get_mut(throttle).and_then(|throttle| throttle.keys.get_mut(key));
        if let (Some(bucket), Some(charge_us)) = (bucket, grant.charge_us.last()) {
            bucket.refund(units * charge_us);
        }
        ready(Ok(())).boxed()
    }

    fn settle<'a>(&'a self, throttle: &'a Name, key: &'a str, tokens: f64) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        let now = self.now();
        for name in Self::chain(throttles, throttle) {
            let Some(level) = throttles.get_mut(&name).filter(|level| !level.raw.is_empty()) else {
                return ready(Err(Error::Unknown(name))).boxed();
            };
            let (knobs, _) = Knobs::read(&level.raw);
            settle_one(&mut level.bucket, knobs.rate(now), Start::OneToken, now, tokens);
            level.meter.used += tokens;
            if name == *throttle && !key.is_empty() && knobs.key_rps > 0.0 {
                let bucket = level.keys.entry(key.to_owned()).or_default();
                settle_one(bucket, knobs.key_rate(), Start::Full, now, tokens);
            }
        }
        ready(Ok(())).boxed()
    }

    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>> {
        let until_ms = self.now().div_euclid(1000) + delay.as_millis().min(super::store::MAX_PAUSE_MS) as i64;
        let mut throttles = self.locked();
        let pauses = &mut throttles.entry(throttle.clone()).or_default().pauses;
        let pause = pauses.entry(key.to_owned()).or_default();
        if pause.0 < until_ms {
            *pause = (until_ms, why.to_owned());
        }
        ready(Ok(pause.0)).boxed()
    }

    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        let was = self.locked().remove(throttle).is_some_and(|throttle| !throttle.raw.is_empty());
        ready(Ok(was)).boxed()
    }

    fn resume_key<'a>(&'a self, throttle: &'a Name, key: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        let now = self.now();
        let pause = self.locked().get_mut(throttle).and_then(|throttle| throttle.pauses.remove(key));
        ready(Ok(pause.is_some_and(|(until_ms, _)| until_ms * 1000 > now))).boxed()
    }

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        let throttles = self.locked();
        let known = throttles.get(throttle).filter(|known| !known.raw.is_empty());
        let parents = parents(&throttles);
        let read =
            |known: &Throttle| Status::read(throttle.clone(), known.raw.clone(), &known.meter, self.now()).with_parents(&parents);
        ready(Ok(known.map(read))).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        let throttles = self.locked();
        let known = throttles.iter().filter(|(_, throttle)| !throttle.raw.is_empty());
        ready(Ok(known.map(|(name, _)| name.clone()).collect())).boxed()
    }

    fn set<'a>(&'a self, throttle: &'a Name, change: &'a Change) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        ready(Self::write(&mut self.locked(), throttle, change, self.now())).boxed()
    }
}

fn settle_one(bucket: &mut Bucket, rate: Rate, start: Start, now: i64, tokens: f64) {
    if rate.rps > 0.0 {
        let mut open = bucket.open(rate, start, now as f64, 1.0);
        open.settle(tokens, now as f64);
        *bucket = open.close();
    }
}
