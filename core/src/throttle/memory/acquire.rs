//! Acquire in memory: what each lane of a request gets from its throttle and those above it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::bucket::STOPPED_WAIT_US;
use super::{MemoryStore, Throttle, Throttles, who};
use crate::throttle::chain::{
    KeySlots, LaneAnswer, LaneDemand, LearnedParts, Level, LimitedBy, sane_cost,
};
use crate::throttle::knobs::MAX_COST;
use crate::throttle::learned::Learned;
use crate::throttle::serve::ServeContext;
use crate::throttle::{
    AcquireRequest, AcquireResponse, Grant, Holder, Knobs, LaneRequest, Limit, Name, serve,
};

impl MemoryStore {
    pub(super) fn ask(
        throttles: &mut Throttles,
        ask: &AcquireRequest,
        now: i64,
    ) -> AcquireResponse {
        let chain = Self::chain(throttles, &ask.throttle);
        let known = throttles
            .get(&ask.throttle)
            .filter(|throttle| !throttle.raw.is_empty());
        let knobs = known.map(|throttle| throttle.raw.knobs());
        let limits: Vec<Option<u32>> = chain
            .iter()
            .map(|name| {
                throttles
                    .get(name)
                    .and_then(|level| level.raw.knobs().concurrency)
            })
            .collect();
        let mut answer = description(throttles, &chain, knobs.as_deref(), &limits, now);
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
        answer.max_cost = most / knobs.cost_factor;
        let has_own = |throttle: &Throttle| {
            !throttle.learned.is_empty()
                || throttle
                    .pauses
                    .values()
                    .any(|(until_ms, _)| until_ms * 1000 > now)
        };
        let is_refused = chain.iter().any(|name| throttles[name].refusal.is_some());
        answer.levels_decide = knobs.key_rate().rps.is_unlimited()
            && !answer.has_windows
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
            .any(|level| level.rate.rps.is_stopped() || is_paused(level));
        // Holders are not examined while nothing flows, so that lapsed reports are dropped at the
        // same asks as in Redis.
        let holder = ask.holder.as_ref().filter(|_| !is_stopped);
        let who = holder
            .map(|holder| who(holder, &ask.throttle))
            .unwrap_or_default();
        let asking = holder.map(|holder| AskingHolder {
            who: &who,
            holder,
            now_ms: now.div_euclid(1000),
        });
        let held = match &asking {
            Some(asking) => asking.note_room(throttles, &chain, &limits, &mut levels),
            None => Vec::new(),
        };
        let leaf = throttles.entry(ask.throttle.clone()).or_default();
        let key_limit = (knobs.key_concurrency.map(i64::from))
            .filter(|_| !knobs.key_rps.is_stopped() && holder.is_some());
        let mut demands: Vec<LaneDemand<'_>> = ask
            .lanes
            .iter()
            .map(|lane| leaf.demand(lane, key_limit, &who, now))
            .collect();
        demands
            .iter_mut()
            .for_each(|demand| demand.cost = (demand.cost * knobs.cost_factor).min(most));
        let mut keys = std::mem::take(&mut leaf.keys);
        let mut key_grants = std::mem::take(&mut leaf.key_grants);
        let uses_learned = |_: &&String| !knobs.on_429.is_naive();
        let known = leaf
            .learned
            .keys()
            .filter(uses_learned)
            .filter_map(|key| Some((key.clone(), leaf.learned_of(key, now)?)));
        let mut learned: BTreeMap<String, Learned> = known.collect();
        let learned_parts = LearnedParts {
            rates: knobs.on_429.learns(),
            probes: ask.holder.is_some(),
        };
        let source = ServeContext {
            levels: &mut levels,
            key_rate: knobs.key_rate(),
            keys: &mut keys,
            key_windows: &knobs.key_windows,
            key_grants: &mut key_grants,
            most,
            learned: &mut learned,
            learned_parts,
        };
        let (served, rooms) = serve::serve(now as f64, source, &demands);
        answer.lanes = served
            .into_iter()
            .zip(&ask.lanes)
            .map(|(one, lane)| leaf.grant(one, lane, &chain, &levels))
            .collect();
        (leaf.keys, leaf.key_grants) = (keys, key_grants);
        for (key, known) in learned {
            leaf.learned.entry(key).and_modify(|kept| kept.0 = known);
        }
        if let Some(asking) = &asking {
            let granted = answer
                .lanes
                .iter()
                .map(|lane| i64::from(lane.granted))
                .sum::<i64>();
            asking.report(throttles, &chain, &limits, held, granted);
            let leaf = throttles.entry(ask.throttle.clone()).or_default();
            leaf.report_keys(&who, ask, asking.holder, &rooms, now);
        }
        for (name, level) in chain.iter().zip(levels) {
            let throttle = throttles.entry(name.clone()).or_default();
            (throttle.bucket, throttle.meter, throttle.refusal) =
                (level.bucket, level.meter, level.refusal);
            throttle.grants = level.grants;
        }
        answer
    }
}

impl Throttle {
    fn level(&self, now: i64) -> Level {
        let knobs = self.raw.knobs();
        let (rate, borrows) = (knobs.rate(now), knobs.borrow);
        Level {
            rate,
            bucket: self.bucket,
            windows: knobs.windows.clone(),
            grants: self.grants.clone(),
            meter: self.meter,
            room: None,
            borrows,
            refusal: self.refusal.clone(),
            is_full: false,
            stopped_because: knobs.stopped_because(now).unwrap_or_default().to_owned(),
        }
    }

    /// Reports for each key with a limit the jobs that its holder runs now.
    fn report_keys(
        &mut self,
        who: &str,
        ask: &AcquireRequest,
        holder: &Holder,
        rooms: &BTreeMap<String, KeySlots>,
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

    fn demand<'a>(
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

    fn grant(
        &self,
        served: LaneAnswer,
        lane: &LaneRequest,
        chain: &[Name],
        levels: &[Level],
    ) -> Grant {
        let limit = served.limit.map(|place| match place {
            LimitedBy::Level(at) | LimitedBy::Windows(at) if at + 1 == chain.len() => {
                Limit::Throttle
            }
            LimitedBy::Level(at) | LimitedBy::Windows(at) => Limit::Tier {
                name: chain[at].clone(),
            },
            LimitedBy::Stopped(at) => Limit::Stopped {
                name: chain[at].clone(),
                why: levels[at].stopped_because.clone(),
            },
            LimitedBy::Key => Limit::Key,
            LimitedBy::Crowded(at) => Limit::Concurrency {
                name: chain[at].clone(),
                key: false,
            },
            LimitedBy::Full(at) => Limit::Holders {
                name: chain[at].clone(),
            },
            LimitedBy::KeyCrowded => Limit::Concurrency {
                name: chain[chain.len() - 1].clone(),
                key: true,
            },
            LimitedBy::Learned => Limit::Learned,
            LimitedBy::Probing(at) => Limit::Probing {
                name: chain[at].clone(),
                key: false,
            },
            LimitedBy::KeyProbing => Limit::Probing {
                name: chain[chain.len() - 1].clone(),
                key: true,
            },
            LimitedBy::Paused => {
                let (until_ms, why) = self.pauses[&lane.key].clone();
                Limit::Paused {
                    until_ms,
                    why,
                    name: None,
                }
            }
            LimitedBy::LevelPaused(at) => {
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
            by_windows: matches!(served.limit, Some(LimitedBy::Windows(_))),
            charge_us: served.charge_us,
            watched: served.watched,
        }
    }
}

/// Returns what a response says of the throttle itself: its rate, and which limits it has.
fn description(
    throttles: &Throttles,
    chain: &[Name],
    knobs: Option<&Knobs>,
    limits: &[Option<u32>],
    now: i64,
) -> AcquireResponse {
    let mut answer = AcquireResponse {
        at_us: now,
        ..AcquireResponse::default()
    };
    let Some(knobs) = knobs else {
        return answer;
    };
    (answer.effective_rps, answer.seq, answer.weight) =
        (knobs.rate(now).rps, knobs.seq, knobs.weight);
    answer.over_limit = knobs.over_limit;
    answer.max_cost = MAX_COST / knobs.cost_factor;
    answer.limits_concurrency =
        knobs.key_concurrency.is_some() || limits.iter().any(Option::is_some);
    let is_windowed = |name: &Name| {
        let level = throttles.get(name);
        level.is_some_and(|level| !level.raw.knobs().windows.is_empty())
    };
    answer.has_windows = !knobs.key_windows.is_empty() || chain.iter().any(is_windowed);
    answer
}

/// A holder of slots that asks now.
struct AskingHolder<'a> {
    /// Its name in the reports to the levels.
    who: &'a str,
    holder: &'a Holder,
    now_ms: i64,
}

impl AskingHolder<'_> {
    /// Notes in each level that limits concurrency the room for the holder. Returns the jobs that
    /// the holder is believed to run in each of these.
    fn note_room(
        &self,
        throttles: &mut Throttles,
        chain: &[Name],
        limits: &[Option<u32>],
        levels: &mut [Level],
    ) -> Vec<i64> {
        let mut held = Vec::new();
        for ((name, level), limit) in chain.iter().zip(levels).zip(limits) {
            let Some(limit) = limit.map(i64::from) else {
                continue;
            };
            let holds = &mut throttles.entry(name.clone()).or_default().holds;
            let room = holds.room(self.who, limit, self.holder.held, self.now_ms);
            (level.room, level.is_full) = (Some(room.left as f64), room.is_full);
            held.push(room.held);
        }
        held
    }

    /// Reports to the same levels that the holder runs what it ran there, and what was granted.
    fn report(
        &self,
        throttles: &mut Throttles,
        chain: &[Name],
        limits: &[Option<u32>],
        held: Vec<i64>,
        granted: i64,
    ) {
        let limited = chain
            .iter()
            .zip(limits)
            .filter(|(_, limit)| limit.is_some())
            .map(|(name, _)| name);
        for (name, held) in limited.zip(held) {
            let holds = &mut throttles.entry(name.clone()).or_default().holds;
            holds.report(self.who, held + granted, self.now_ms, self.holder.ttl_ms());
        }
    }
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
