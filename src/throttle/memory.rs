//! Throttles in the memory of one process, by the same law as in Redis: for tests, simulations and
//! examples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use parking_lot::{Mutex, MutexGuard};

use super::bucket::{Bucket, Rate, STOPPED_WAIT_US, Start, UsageCounters};
use super::holds::Holds;
use super::knobs::MAX_COST;
use super::learned::{Learned, ThrottleRefusal};
use super::rules::{self, number};
use super::serve::{
    self, Heed, KeyRoom, LaneDemand, Level, ServeContext, Served, Where, sane_cost,
};
use super::store::capacity_text;
use super::tree;
use super::{
    AcquireRequest, AcquireResponse, Change, Error, Grant, Holder, KeyOutcomes, KeyState, Knobs,
    LaneRequest, Limit, Name, Refund, RefusalEffect, Scope, Status, Store, UpstreamRefusal,
};

/// A clock that returns unix microseconds.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// A [`Store`] that lives as long as the process.
pub struct MemoryStore {
    clock: Clock,
    throttles: Mutex<Throttles>,
}

type Throttles = BTreeMap<Name, Throttle>;

#[derive(Clone, Default)]
struct Throttle {
    raw: BTreeMap<String, String>,
    bucket: Bucket,
    meter: UsageCounters,
    keys: BTreeMap<String, Bucket>,
    pauses: BTreeMap<String, (i64, String)>,
    refusal: Option<ThrottleRefusal>,
    learned: BTreeMap<String, (Learned, i64)>,
    holds: Holds,
    key_holds: BTreeMap<String, Holds>,
}

impl MemoryStore {
    /// Creates an empty store that takes its time from `clock`.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            throttles: Mutex::default(),
        }
    }

    /// Writes a field as a person with redis-cli would: unchecked and uncounted.
    pub fn write_raw(&self, throttle: &Name, field: &str, text: &str) {
        self.locked()
            .entry(throttle.clone())
            .or_default()
            .raw
            .insert(field.to_owned(), text.to_owned());
    }

    /// Removes a field as a person with redis-cli would; a hash without fields is gone.
    pub fn remove_raw(&self, throttle: &Name, field: &str) {
        if let Some(found) = self.locked().get_mut(throttle) {
            found.raw.remove(field);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Throttles> {
        self.throttles.lock()
    }

    fn now(&self) -> i64 {
        (self.clock)()
    }

    fn chain(throttles: &Throttles, leaf: &Name) -> Vec<Name> {
        let parent_of = |name: &Name| {
            let parent = throttles
                .get(name)
                .and_then(|throttle| throttle.raw.get("parent"));
            parent.cloned().unwrap_or_default()
        };
        tree::chain(leaf, parent_of)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    /// Returns the highest charged cost of one job in a chain.
    fn most(throttles: &Throttles, chain: &[Name], now: i64) -> f64 {
        let of = |name| {
            throttles.get(name).map_or(MAX_COST, |level: &Throttle| {
                Knobs::read(&level.raw).0.charged_cost(now)
            })
        };
        chain.iter().map(of).fold(MAX_COST, f64::min)
    }

    fn ask(throttles: &mut Throttles, ask: &AcquireRequest, now: i64) -> AcquireResponse {
        let chain = Self::chain(throttles, &ask.throttle);
        let known = throttles
            .get(&ask.throttle)
            .filter(|throttle| !throttle.raw.is_empty());
        let knobs = known.map(|throttle| Knobs::read(&throttle.raw).0);
        let mut answer = AcquireResponse {
            at_us: now,
            ..AcquireResponse::default()
        };
        if let Some(knobs) = &knobs {
            (answer.effective_rps, answer.seq, answer.weight) =
                (knobs.rate(now).rps, knobs.seq, knobs.weight);
            answer.over_limit = knobs.over_limit;
        }
        let limits: Vec<i64> = chain
            .iter()
            .map(|name| {
                throttles
                    .get(name)
                    .map_or(-1, |level| Knobs::read(&level.raw).0.concurrency)
            })
            .collect();
        let key_limits = knobs.iter().map(|knobs| knobs.key_concurrency);
        answer.limits_concurrency = knobs.is_some()
            && limits
                .iter()
                .copied()
                .chain(key_limits)
                .any(|limit| limit >= 0);
        let unknown = chain.iter().find(|name| {
            throttles
                .get(*name)
                .is_none_or(|throttle| throttle.raw.is_empty())
        });
        let (Some(knobs), None) = (knobs, unknown) else {
            let limit = Limit::Unknown {
                name: unknown.unwrap_or(&ask.throttle).clone(),
            };
            answer.lanes = ask.lanes.iter().map(|lane| nothing(lane, &limit)).collect();
            return answer;
        };
        let most = Self::most(throttles, &chain, now);
        answer.max_cost = most;
        let has_own = |throttle: &Throttle| {
            !throttle.learned.is_empty()
                || throttle
                    .pauses
                    .values()
                    .any(|(until_ms, _)| until_ms * 1000 > now)
        };
        let is_refused = chain.iter().any(|name| throttles[name].refusal.is_some());
        answer.levels_decide = knobs.key_rate().rps < 0.0
            && !is_refused
            && !throttles.get(&ask.throttle).is_some_and(has_own);
        let mut levels: Vec<Level> = chain
            .iter()
            .map(|name| throttles[name].level(now))
            .collect();
        let is_paused = |level: &Level| {
            level
                .refusal
                .as_ref()
                .is_some_and(|refusal| refusal.until > now as f64)
        };
        let is_stopped = levels
            .iter()
            .any(|level| level.rate.rps == 0.0 || is_paused(level));
        // Holders are not examined while nothing flows, so that lapsed reports are dropped at the
        // same asks as in Redis.
        let holder = ask.holder.as_ref().filter(|_| !is_stopped);
        let who = holder
            .map(|holder| who(holder, &ask.throttle))
            .unwrap_or_default();
        let mut held = Vec::new();
        if let Some(holder) = holder {
            for ((name, level), limit) in chain
                .iter()
                .zip(&mut levels)
                .zip(&limits)
                .filter(|(_, limit)| **limit >= 0)
            {
                let holds = &mut throttles.entry(name.clone()).or_default().holds;
                let room = holds.room(&who, *limit, holder.held, now.div_euclid(1000));
                (level.room, level.is_full) = (Some(room.left as f64), room.is_full);
                held.push(room.held);
            }
        }
        let leaf = throttles.entry(ask.throttle.clone()).or_default();
        let has_key_limit = knobs.key_concurrency >= 0 && knobs.key_rps != 0.0 && holder.is_some();
        let key_limit = has_key_limit.then_some(knobs.key_concurrency);
        let mut wishes: Vec<LaneDemand<'_>> = ask
            .lanes
            .iter()
            .map(|lane| leaf.wish(lane, key_limit, &who, now))
            .collect();
        wishes
            .iter_mut()
            .for_each(|wish| wish.cost = wish.cost.min(most));
        let mut keys = std::mem::take(&mut leaf.keys);
        let is_heeded = |_: &&String| !knobs.on_429.is_naive();
        let known = leaf
            .learned
            .keys()
            .filter(is_heeded)
            .filter_map(|key| Some((key.clone(), leaf.learned_of(key, now)?)));
        let mut learned: BTreeMap<String, Learned> = known.collect();
        let heed = Heed {
            rates: knobs.on_429.learns(),
            probes: ask.holder.is_some(),
        };
        let source = ServeContext {
            levels: &mut levels,
            key_rate: knobs.key_rate(),
            keys: &mut keys,
            most,
            learned: &mut learned,
            heed,
        };
        let (served, rooms) = serve::serve(now as f64, source, &wishes);
        answer.lanes = served
            .into_iter()
            .zip(&ask.lanes)
            .map(|(one, lane)| leaf.grant(one, lane, &chain, &levels))
            .collect();
        leaf.keys = keys;
        for (key, known) in learned {
            leaf.learned.entry(key).and_modify(|kept| kept.0 = known);
        }
        if let Some(holder) = holder {
            let granted = answer
                .lanes
                .iter()
                .map(|lane| i64::from(lane.granted))
                .sum::<i64>();
            let limited = chain
                .iter()
                .zip(&limits)
                .filter(|(_, limit)| **limit >= 0)
                .map(|(name, _)| name);
            for (name, held) in limited.zip(held) {
                let holds = &mut throttles.entry(name.clone()).or_default().holds;
                holds.report(&who, held + granted, now.div_euclid(1000), holder.ttl_ms());
            }
            let leaf = throttles.entry(ask.throttle.clone()).or_default();
            leaf.say_keys(&who, ask, holder, &rooms, now);
        }
        for (name, level) in chain.iter().zip(levels) {
            let throttle = throttles.entry(name.clone()).or_default();
            (throttle.bucket, throttle.meter, throttle.refusal) =
                (level.bucket, level.meter, level.refusal);
        }
        answer
    }

    fn write(
        throttles: &mut Throttles,
        name: &Name,
        change: &Change,
        now: i64,
    ) -> Result<(Option<Status>, Status), Error> {
        change.check_parent(name)?;
        let stands = throttles.get(name).cloned().unwrap_or_default();
        let exists = !stands.raw.is_empty();
        if !exists && !change.create {
            return Err(Error::Unknown(name.clone()));
        }
        let earlier = Knobs::read(&stands.raw).0;
        let conflict = |what: String| {
            Err(Error::Conflict {
                name: name.clone(),
                what,
            })
        };
        if let Some(seq) = change.if_seq.filter(|seq| *seq != earlier.seq) {
            return conflict(format!("seq is {}, not {seq}", earlier.seq));
        }
        if let Some(term) = change.term.filter(|term| earlier.term > *term) {
            return conflict(format!(
                "term {} has written since term {term}",
                earlier.term
            ));
        }
        let rps = stands.raw.get("rps").map_or("", String::as_str);
        if let Some(expected) = change.if_rps.as_deref().filter(|expected| *expected != rps) {
            return conflict(format!(
                "rps is {}, not {}",
                rules::cut(if rps.is_empty() { "missing" } else { rps }),
                rules::cut(expected)
            ));
        }
        let slots = stands.raw.get("concurrency").map_or("", String::as_str);
        if let Some(expected) = change
            .if_concurrency
            .as_deref()
            .filter(|expected| *expected != slots && change.if_rps.is_none())
        {
            let slots = if slots.is_empty() { "missing" } else { slots };
            return conflict(format!(
                "concurrency is {}, not {}",
                rules::cut(slots),
                rules::cut(expected)
            ));
        }
        let mut raw = stands.raw.clone();
        let (mut changed, mut resumed) = (!exists, false);
        for (field, text) in &change.fields {
            if change.absent_only && stands.raw.contains_key(field) {
                continue;
            }
            changed = true;
            resumed |= field == "paused";
            put(&mut raw, field, text.clone());
            if field == "mode" && raw.get("mode").is_some_and(|mode| mode != "auto") {
                raw.remove("valid_until");
            }
        }
        // A change of `capacity` includes its reason, so the old reason goes.
        if change.fields.contains_key("capacity")
            && !change.fields.contains_key("capacity_why")
            && !change.absent_only
        {
            raw.remove("capacity_why");
        }
        // A change of `mode` cancels the end of the old one.
        if change.fields.contains_key("mode")
            && !change.fields.contains_key("manual_until_ms")
            && !change.absent_only
        {
            raw.remove("manual_until_ms");
        }
        let bound = |raw: &BTreeMap<String, String>, field, default| {
            raw.get(field)
                .and_then(|text| number(field, text))
                .unwrap_or(default)
        };
        let (min, max) = (bound(&raw, "min", 0.1), bound(&raw, "max", 1000.0));
        let touched = ["min", "max"]
            .iter()
            .any(|field| raw.get(*field) != stands.raw.get(*field));
        if min > max && touched {
            return Err(Error::Invalid(vec![rules::min_above_max(min, max)]));
        }
        let throttle = throttles.entry(name.clone()).or_default();
        if changed {
            let safe = raw
                .get("safe_rps")
                .cloned()
                .unwrap_or_else(|| "1".to_owned());
            for (field, text) in [
                ("rps", safe),
                ("burst", "1".to_owned()),
                ("window", "1".to_owned()),
            ] {
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
            let later = Knobs::read(&raw).0;
            let is_limited_again =
                exists && earlier.effective_rps(now) < 0.0 && later.effective_rps(now) > 0.0;
            // A manual resume begins with an empty bucket and without a debt, because no debt
            // outlives a time without a limit. The effect of a refusal ends with the pause.
            let resumed = resumed && !later.paused;
            if resumed || is_limited_again {
                throttle.bucket.forgive(now as f64);
            }
            if resumed {
                throttle.refusal = None;
            }
            throttle.raw = raw;
        }
        let before = exists.then(|| Status::read(name.clone(), stands.raw, &throttle.meter, now));
        let after = Status::read(name.clone(), throttle.raw.clone(), &throttle.meter, now);
        Ok((before, after.with_parents(&parents(throttles))))
    }
}

/// Returns the time at which learned state is forgotten, unix milliseconds.
fn kept_until_ms(known: &Learned, now: f64) -> i64 {
    (now / 1000.0).floor() as i64 + known.keep_ms(now) as i64
}

/// Returns the name of a holder's report about a throttle, used there and at the levels above it.
fn who(holder: &Holder, throttle: &Name) -> String {
    format!("{}/{throttle}", holder.id)
}

fn put(raw: &mut BTreeMap<String, String>, field: &str, text: Option<String>) {
    match text {
        Some(text) => raw.insert(field.to_owned(), text),
        None => raw.remove(field),
    };
}

fn nothing(lane: &LaneRequest, limit: &Limit) -> Grant {
    let (wait_us, limit) = if lane.want > 0 {
        (STOPPED_WAIT_US, Some(limit.clone()))
    } else {
        (0.0, None)
    };
    Grant {
        granted: 0,
        wait: Duration::from_micros(wait_us as u64),
        limit,
        ..Grant::default()
    }
}

// === impl Throttle ===

impl Throttle {
    fn level(&self, now: i64) -> Level {
        let knobs = Knobs::read(&self.raw).0;
        let (rate, borrows) = (knobs.rate(now), knobs.borrow);
        Level {
            rate,
            bucket: self.bucket,
            meter: self.meter,
            room: None,
            borrows,
            refusal: self.refusal.clone(),
            is_full: false,
            stopped_because: knobs.stopped_because(now).unwrap_or_default().to_owned(),
        }
    }

    /// Reports for each key with a limit the jobs that its holder runs now.
    fn say_keys(
        &mut self,
        who: &str,
        ask: &AcquireRequest,
        holder: &Holder,
        rooms: &BTreeMap<String, KeyRoom>,
        now: i64,
    ) {
        for (key, room) in rooms {
            let held = ask
                .lanes
                .iter()
                .find(|lane| lane.key == *key)
                .map_or(0, |lane| lane.held);
            let holds = self.key_holds.entry(key.clone()).or_default();
            let held = holds.believed(who, i64::from(held), now.div_euclid(1000));
            holds.report(
                who,
                held + room.granted as i64,
                now.div_euclid(1000),
                holder.ttl_ms(),
            );
        }
    }

    fn wish<'a>(
        &mut self,
        lane: &'a LaneRequest,
        key_limit: Option<i64>,
        who: &str,
        now: i64,
    ) -> LaneDemand<'a> {
        let paused_until_ms = self.pauses.get(&lane.key).map(|pause| pause.0);
        let is_paused = paused_until_ms.is_some_and(|until| until as f64 * 1000.0 > now as f64);
        let key_limit = key_limit.filter(|_| !lane.key.is_empty() && !is_paused);
        let share = |limit| {
            let holds = self.key_holds.entry(lane.key.clone()).or_default();
            holds.room(who, limit, lane.held, now.div_euclid(1000)).left as f64
        };
        LaneDemand {
            room: key_limit.map(share),
            key: &lane.key,
            want: f64::from(lane.want),
            cost: sane_cost(lane.cost),
            paused_until_ms,
        }
    }

    fn grant(&self, served: Served, lane: &LaneRequest, chain: &[Name], levels: &[Level]) -> Grant {
        let limit = served.limit.map(|place| match place {
            Where::Level(at) if at + 1 == chain.len() => Limit::Throttle,
            Where::Level(at) => Limit::Tier {
                name: chain[at].clone(),
            },
            Where::Stopped(at) => Limit::Stopped {
                name: chain[at].clone(),
                why: levels[at].stopped_because.clone(),
            },
            Where::Key => Limit::Key,
            Where::Crowded(at) => Limit::Concurrency {
                name: chain[at].clone(),
                key: false,
            },
            Where::Full(at) => Limit::Holders {
                name: chain[at].clone(),
            },
            Where::KeyCrowded => Limit::Concurrency {
                name: chain[chain.len() - 1].clone(),
                key: true,
            },
            Where::Learned => Limit::Learned,
            Where::Probing(at) => Limit::Probing {
                name: chain[at].clone(),
                key: false,
            },
            Where::KeyProbing => Limit::Probing {
                name: chain[chain.len() - 1].clone(),
                key: true,
            },
            Where::Paused => {
                let (until_ms, why) = self.pauses[&lane.key].clone();
                Limit::Paused {
                    until_ms,
                    why,
                    name: None,
                }
            }
            Where::LevelPaused(at) => {
                let refusal = levels[at].refusal.as_ref();
                let until_ms = refusal.map_or(0, |refusal| (refusal.until / 1000.0) as i64);
                let why = refusal
                    .map(|refusal| refusal.why.clone())
                    .unwrap_or_default();
                Limit::Paused {
                    until_ms,
                    why,
                    name: Some(chain[at].clone()),
                }
            }
        });
        Grant {
            granted: served.granted as u32,
            wait: Duration::from_micros(served.wait_us as u64),
            limit,
            charge_us: served.charge_us,
            watched: served.watched,
        }
    }

    /// Pauses the key and learns from its refusal.
    fn refuse_key(&mut self, refused: &UpstreamRefusal<'_>, now: i64) -> RefusalEffect {
        let knobs = Knobs::read(&self.raw).0;
        let known = self.learned_of(refused.key, now);
        let strikes = known.map_or(0.0, |known| known.strikes_before(now as f64));
        let is_known = known.is_some_and(|known| known.settle > 0.0);
        let until_ms = refused.until_ms(strikes, is_known, knobs.max_key_pause_us(), now);
        // Jobs without a key go to many untrusted servers, of which one must not stop the others.
        let is_one_of_many =
            refused.is_hearsay && refused.key.is_empty() && knobs.trust_scope == Scope::Key;
        if knobs.on_429.is_naive() || is_one_of_many {
            return RefusalEffect::alone(until_ms, now);
        }
        let until_ms = self.pause_key(refused.key, until_ms, refused.why);
        let (now, configured) = (
            now as f64,
            if refused.key.is_empty() {
                -1.0
            } else {
                knobs.key_rate().rps
            },
        );
        let mut known = known.unwrap_or_else(|| Learned::new(now));
        let said = refused.delay.is_some();
        known.refuse(
            now,
            until_ms as f64 * 1000.0,
            said,
            configured,
            knobs.on_429.learns() && !refused.is_overload,
        );
        self.learned
            .insert(refused.key.to_owned(), (known, kept_until_ms(&known, now)));
        RefusalEffect {
            until_ms,
            alone: None,
        }
    }

    /// Pauses the whole throttle.
    fn refuse(&mut self, refused: &UpstreamRefusal<'_>, now: i64) -> RefusalEffect {
        let strikes = self
            .refusal
            .as_ref()
            .map_or(0.0, |refusal| refusal.strikes_before(now as f64));
        let knobs = Knobs::read(&self.raw).0;
        let until_ms = refused.until_ms(strikes, false, knobs.max_wide_pause_us(), now);
        if knobs.on_429.is_naive() {
            return RefusalEffect::alone(until_ms, now);
        }
        let refusal = ThrottleRefusal::again(
            self.refusal.as_ref(),
            now as f64,
            until_ms as f64 * 1000.0,
            refused.why,
        );
        let until_ms = (refusal.until / 1000.0) as i64;
        self.refusal = Some(refusal);
        self.bucket.drain(now as f64, true);
        RefusalEffect {
            until_ms,
            alone: None,
        }
    }

    /// Returns the state of a key, as far as the knob `on_429` uses it.
    fn look(&self, key: &str, now: i64) -> KeyState {
        let pause = self
            .pauses
            .get(key)
            .filter(|(until_ms, _)| until_ms * 1000 > now);
        let (paused_until_ms, why) = pause
            .cloned()
            .map_or((None, String::new()), |(until_ms, why)| {
                (Some(until_ms), why)
            });
        let known = self.learned_of(key, now);
        let refused = known.map_or(0.0, |known| known.refused);
        let on_429 = Knobs::read(&self.raw).0.on_429;
        let (known, now) = (known.filter(|_| !on_429.is_naive()), now as f64);
        let learned = known.filter(|_| on_429.learns());
        KeyState {
            paused_until_ms,
            why,
            learned_rps: learned
                .map(|known| known.rate(now))
                .filter(|rps| *rps >= 0.0),
            settled_rps: learned.map(|known| known.settle).filter(|rps| *rps > 0.0),
            probing: known.is_some_and(|known| known.is_probing(now)),
            refused,
        }
    }

    /// Returns the learned state of a key if it still counts.
    fn learned_of(&self, key: &str, now: i64) -> Option<Learned> {
        let (known, until_ms) = self.learned.get(key)?;
        (*until_ms > now.div_euclid(1000)).then_some(*known)
    }

    fn pause_key(&mut self, key: &str, until_ms: i64, why: &str) -> i64 {
        let pause = self.pauses.entry(key.to_owned()).or_default();
        if pause.0 < until_ms {
            *pause = (until_ms, why.to_owned());
        }
        pause.0
    }

    /// Learns from jobs that ended.
    fn learn(&mut self, ended: &KeyOutcomes<'_>, now: i64) {
        let known = self.learned_of(ended.key, now);
        let (knobs, now) = (Knobs::read(&self.raw).0, now as f64);
        let learns = knobs.on_429.learns();
        let is_one_of_many =
            ended.is_hearsay && ended.key.is_empty() && knobs.trust_scope == Scope::Key;
        let quota = ended.quota.filter(|_| learns && !is_one_of_many);
        let Some(mut known) = known.or_else(|| quota.map(|_| Learned::new(now))) else {
            return;
        };
        let configured = if ended.key.is_empty() {
            -1.0
        } else {
            knobs.key_rate().rps
        };
        let is_known = !learns || configured > 0.0;
        known.answered(
            f64::from(ended.succeeded),
            ended.tokens,
            f64::from(ended.failed),
            is_known,
            now,
        );
        if let Some(quota) = quota {
            known.window.observe(
                quota.remaining.max(0.0),
                quota.reset_us(),
                knobs.max_quota_us(),
                now,
            );
        }
        if known.is_over(configured, now) {
            self.learned.remove(ended.key);
        } else {
            self.learned
                .insert(ended.key.to_owned(), (known, kept_until_ms(&known, now)));
        }
    }
}

// === impl Store ===

/// Returns the text of `parent` of every throttle, with `None` for parents that do not exist.
fn parents(throttles: &Throttles) -> BTreeMap<Name, Option<String>> {
    let exists = |name: &Name| {
        throttles
            .get(name)
            .is_some_and(|throttle| !throttle.raw.is_empty())
    };
    let named = |name: &Name| {
        throttles[name]
            .raw
            .get("parent")
            .cloned()
            .unwrap_or_default()
    };
    let known = throttles
        .keys()
        .filter(|name| exists(name))
        .map(|name| (name.clone(), Some(named(name))));
    let missing = throttles
        .keys()
        .filter_map(|name| Name::new(named(name)).ok())
        .filter(|name| !exists(name))
        .map(|name| (name, None));
    known.chain(missing).collect()
}

impl Store for MemoryStore {
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        ready(Self::ask(&mut self.locked(), ask, self.now())).boxed()
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        let mut copy = self.locked().clone();
        ready(Self::ask(&mut copy, ask, self.now())).boxed()
    }

    fn hold<'a>(
        &'a self,
        throttle: &'a Name,
        holder: &'a Holder,
        lanes: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        let (now_ms, ttl_ms, who) = (
            self.now().div_euclid(1000),
            holder.ttl_ms(),
            who(holder, throttle),
        );
        for name in Self::chain(throttles, throttle) {
            let Some(level) = throttles.get_mut(&name) else {
                continue;
            };
            let knobs = Knobs::read(&level.raw).0;
            if knobs.concurrency >= 0 {
                let held = level.holds.believed(&who, i64::from(holder.held), now_ms);
                level.holds.report(&who, held, now_ms, ttl_ms);
            }
            if knobs.key_concurrency >= 0 && name == *throttle {
                for (key, held) in lanes.iter().filter(|(key, _)| !key.is_empty()) {
                    let holds = level.key_holds.entry(key.clone()).or_default();
                    let held = holds.believed(&who, i64::from(*held), now_ms);
                    holds.report(&who, held, now_ms, ttl_ms);
                }
            }
        }
        ready(Ok(())).boxed()
    }

    fn refund_many<'a>(
        &'a self,
        throttle: &'a Name,
        refunds: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        for refund in refunds {
            refund_one(throttles, throttle, refund);
        }
        ready(Ok(())).boxed()
    }

    fn settle_many<'a>(
        &'a self,
        throttle: &'a Name,
        tokens: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let throttles = &mut *self.locked();
        let now = self.now();
        for (key, tokens) in tokens {
            if let Err(error) = settle_one(throttles, throttle, key, *tokens, now) {
                return ready(Err(error)).boxed();
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
        let until_ms =
            self.now().div_euclid(1000) + delay.as_millis().min(super::store::MAX_PAUSE_MS) as i64;
        let mut throttles = self.locked();
        let until_ms = throttles
            .entry(throttle.clone())
            .or_default()
            .pause_key(key, until_ms, why);
        ready(Ok(until_ms)).boxed()
    }

    fn refused<'a>(
        &'a self,
        throttle: &'a Name,
        refused: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>> {
        let (mut throttles, now) = (self.locked(), self.now());
        let trusted = throttles
            .get(throttle)
            .map_or(Scope::Key, |known| Knobs::read(&known.raw).0.trust_scope);
        let scope = if refused.is_hearsay {
            refused.scope.narrower(trusted)
        } else {
            refused.scope
        };
        let refused = &UpstreamRefusal {
            scope,
            ..refused.clone()
        };
        let paused = match refused.level(&Self::chain(&throttles, throttle)) {
            None => throttles
                .entry(throttle.clone())
                .or_default()
                .refuse_key(refused, now),
            Some(level) => throttles
                .entry(level.clone())
                .or_default()
                .refuse(refused, now),
        };
        ready(Ok(paused)).boxed()
    }

    fn ended<'a>(
        &'a self,
        throttle: &'a Name,
        ended: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>> {
        let (throttles, now) = (&mut *self.locked(), self.now());
        let sum = |units: fn(&KeyOutcomes<'_>) -> u32| {
            ended.iter().map(|one| f64::from(units(one))).sum::<f64>()
        };
        let (succeeded, failed) = (sum(|one| one.succeeded), sum(|one| one.failed));
        for name in Self::chain(throttles, throttle) {
            let Some(level) = throttles.get_mut(&name) else {
                continue;
            };
            if level
                .refusal
                .as_mut()
                .is_some_and(|refusal| refusal.answered(succeeded, failed, now as f64))
            {
                level.refusal = None;
            }
        }
        let leaf = throttles.entry(throttle.clone()).or_default();
        ended.iter().for_each(|one| leaf.learn(one, now));
        ready(Ok(())).boxed()
    }

    fn set_capacity<'a>(
        &'a self,
        throttle: &'a Name,
        capacity: Option<f64>,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let (now, text) = (self.now(), capacity.map(capacity_text));
        let mut throttles = self.locked();
        let Some(known) = throttles
            .get_mut(throttle)
            .filter(|known| !known.raw.is_empty())
        else {
            return ready(Err(Error::Unknown(throttle.clone()))).boxed();
        };
        let why = text
            .is_some()
            .then(|| why.to_owned())
            .filter(|why| !why.is_empty());
        if known.raw.get("capacity") != text.as_ref()
            || known.raw.get("capacity_why") != why.as_ref()
        {
            let was_stopped = Knobs::read(&known.raw).0.effective_rps(now) == 0.0;
            put(&mut known.raw, "capacity", text);
            put(&mut known.raw, "capacity_why", why);
            let is_stopped =
                !known.raw.is_empty() && Knobs::read(&known.raw).0.effective_rps(now) == 0.0;
            if was_stopped || is_stopped {
                known.bucket.drain(now as f64, is_stopped);
            }
        }
        ready(Ok(())).boxed()
    }

    fn look<'a>(
        &'a self,
        throttle: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>> {
        let (throttles, now) = (self.locked(), self.now());
        let known = throttles.get(throttle);
        let state =
            |key: &String| known.map_or_else(KeyState::default, |known| known.look(key, now));
        ready(Ok(keys.iter().map(state).collect())).boxed()
    }

    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        let was = self
            .locked()
            .remove(throttle)
            .is_some_and(|throttle| !throttle.raw.is_empty());
        ready(Ok(was)).boxed()
    }

    fn resume_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let now = self.now();
        let mut throttles = self.locked();
        let pause = throttles.get_mut(throttle).and_then(|throttle| {
            throttle.learned.remove(key);
            throttle.pauses.remove(key)
        });
        ready(Ok(pause.is_some_and(|(until_ms, _)| until_ms * 1000 > now))).boxed()
    }

    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>> {
        let throttles = self.locked();
        let known = throttles
            .get(throttle)
            .filter(|known| !known.raw.is_empty());
        let parents = parents(&throttles);
        let read = |known: &Throttle| {
            let refusal = known
                .refusal
                .as_ref()
                .map(|refusal| (refusal.until, refusal.why.as_str()));
            let status = Status::read(
                throttle.clone(),
                known.raw.clone(),
                &known.meter,
                self.now(),
            );
            status
                .with_bucket(&known.bucket, refusal)
                .with_parents(&parents)
        };
        ready(Ok(known.map(read))).boxed()
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>> {
        let throttles = self.locked();
        let known = throttles
            .iter()
            .filter(|(_, throttle)| !throttle.raw.is_empty());
        ready(Ok(known.map(|(name, _)| name.clone()).collect())).boxed()
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.names()
            .map(|names| Ok(names?.into_iter().map(|name| name.to_string()).collect()))
            .boxed()
    }

    // A store in memory needs no keeping, and no other process can delete from it.

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>> {
        ready(Ok(())).boxed()
    }

    fn persist<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<(), Error>> {
        ready(Ok(())).boxed()
    }

    fn was_taken_away<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, Error>> {
        ready(Ok(false)).boxed()
    }

    // The store is never lost, so no share is computed.
    fn set_workers(&self, _: u32) {}

    fn set<'a>(
        &'a self,
        throttle: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>> {
        ready(Self::write(
            &mut self.locked(),
            throttle,
            change,
            self.now(),
        ))
        .boxed()
    }
}

fn refund_one(throttles: &mut Throttles, throttle: &Name, refund: &Refund<'_>) {
    let charge_us = &refund.grant.charge_us;
    let Some((key_charge_us, level_charges_us)) = charge_us.split_last() else {
        return;
    };
    let chain = MemoryStore::chain(throttles, throttle);
    let units = f64::from(refund.units);
    // If the chain changed since the grant, its charges belong to other throttles, and only the key
    // is repaid.
    if level_charges_us.len() == chain.len() {
        for (name, charge_us) in chain.iter().zip(level_charges_us) {
            let throttle = throttles.entry(name.clone()).or_default();
            throttle.bucket.refund(units * charge_us);
            throttle.meter.used -= units * sane_cost(refund.cost);
        }
    }
    if let Some(bucket) = throttles
        .get_mut(throttle)
        .and_then(|throttle| throttle.keys.get_mut(refund.key))
    {
        bucket.refund(units * key_charge_us);
    }
}

fn settle_one(
    throttles: &mut Throttles,
    throttle: &Name,
    key: &str,
    tokens: f64,
    now: i64,
) -> Result<(), Error> {
    let chain = MemoryStore::chain(throttles, throttle);
    let is_known = |name: &&Name| {
        throttles
            .get(*name)
            .is_some_and(|level| !level.raw.is_empty())
    };
    if let Some(unknown) = chain.iter().find(|name| !is_known(name)) {
        return Err(Error::Unknown(unknown.clone()));
    }
    let most = MemoryStore::most(throttles, &chain, now);
    for name in chain {
        let level = throttles.entry(name.clone()).or_default();
        let (knobs, _) = Knobs::read(&level.raw);
        level.meter.used += settle_bucket(
            &mut level.bucket,
            knobs.rate(now),
            Start::OneToken,
            now,
            (tokens, most),
        );
        if name == *throttle && !key.is_empty() && knobs.key_rps > 0.0 {
            let bucket = level.keys.entry(key.to_owned()).or_default();
            settle_bucket(bucket, knobs.key_rate(), Start::Full, now, (tokens, most));
        }
    }
    Ok(())
}

/// Settles tokens under a limit of `most` per job; returns the tokens that counted.
fn settle_bucket(
    bucket: &mut Bucket,
    rate: Rate,
    start: Start,
    now: i64,
    (tokens, most): (f64, f64),
) -> f64 {
    if rate.rps <= 0.0 {
        return tokens;
    }
    let mut open = bucket.open(rate, start, now as f64, 1.0, most);
    let counted = open.settle(tokens, now as f64);
    *bucket = open.close();
    counted
}
