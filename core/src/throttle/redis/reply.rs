//! The replies of the Lua script, as our types.

use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, RedisError, RedisResult, Value, from_redis_value_ref};

use super::shape::Extra;
use crate::throttle::RateLimit;
use crate::throttle::bucket::{Bucket, Rate, UsageCounters};
use crate::throttle::chain::sane_cost;
use crate::throttle::knobs::PLAIN_COST;
use crate::throttle::loss::LastKnown;
use crate::throttle::rolling_window::{OpenWindow, WindowLimit};
use crate::throttle::rules::{is_blank, number};
use crate::throttle::{
    AcquireResponse, Grant, KeyState, LaneRequest, Limit, Name, OnStoreLoss, OverLimit,
};

/// A text of any bytes, because people may write anything.
pub(super) struct Text(pub(super) String);

impl FromRedisValue for Text {
    fn from_redis_value_ref(value: &Value) -> Result<Self, redis::ParsingError> {
        let bytes: Vec<u8> = from_redis_value_ref(value)?;
        Ok(Self(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        Self::from_redis_value_ref(&value)
    }
}

/// The values of a reply, read in order.
pub(super) struct ReplyReader(std::vec::IntoIter<Value>);

impl ReplyReader {
    pub(super) fn new(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }

    /// Returns the next text, empty if there is none.
    pub(super) fn text(&mut self) -> String {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => match String::from_utf8(bytes) {
                Ok(text) => text,
                Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            },
            Some(Value::SimpleString(text)) => text,
            Some(Value::Int(n)) => n.to_string(),
            _ => String::new(),
        }
    }

    /// Returns the next numbers, packed as doubles.
    fn doubles(&mut self) -> RedisResult<Vec<f64>> {
        let Some(Value::BulkString(bytes)) = self.0.next() else {
            return Err(garbled("no packed numbers"));
        };
        let (numbers, rest) = bytes.as_chunks::<8>();
        match rest {
            [] => Ok(numbers
                .iter()
                .map(|bytes| f64::from_le_bytes(*bytes))
                .collect()),
            _ => Err(garbled("packed numbers of another length")),
        }
    }

    /// Returns the next integer.
    pub(super) fn whole(&mut self) -> RedisResult<i64> {
        match self.0.next() {
            Some(Value::Int(n)) => Ok(n),
            other => Err(garbled(&format!("{other:?}"))),
        }
    }

    /// Returns the next value as it is.
    pub(super) fn value(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    fn is_over(&self) -> bool {
        self.0.len() == 0
    }
}

/// The reply to `acquire` and `peek`.
pub(super) enum Acquired {
    /// The grants, the state to remember for a lost store, and the kinds of lane keys needed.
    Answer(AcquireResponse, Option<LastKnown>, Extra),
    /// A level whose parent differs from the one in the call.
    ChainChanged,
    /// The kinds of lane keys that the call must carry.
    KeysMissing(Extra),
}

/// Reads the reply to an ask for `lanes` of the chain `levels`.
pub(super) fn acquired(
    values: Vec<Value>,
    levels: &[(Name, String)],
    lanes: &[LaneRequest],
) -> RedisResult<Acquired> {
    let mut parts = ReplyReader::new(values);
    match parts.text().as_str() {
        "ok" => {}
        "keys" => return Ok(Acquired::KeysMissing(Extra::read(&parts.text()))),
        "chain" => return Ok(Acquired::ChainChanged),
        other => return Err(garbled(other)),
    }
    let head = ReplyHead::read(&mut parts)?;
    let limits = ReplyLimits::parse(&parts.text())?;
    let Grants { grants, is_unknown } = Grants::read(&mut parts, &head, &limits, levels, lanes)?;
    let (key_rate, window_rps) = (head.key_rate, limits.window_rps);
    let seen = LastKnown {
        on_store_loss: head.on_store_loss,
        slowest_rps: head
            .rates
            .iter()
            .copied()
            .fold(window_rps, RateLimit::slower),
        window_s: head.window_s,
        key_rate: Rate {
            rps: key_rate.rps.slower(limits.key_window_rps),
            ..key_rate
        },
        concurrency: limits.concurrency,
        key_concurrency: limits.key_concurrency,
        cost_factor: limits.cost_factor,
    };
    let answer = AcquireResponse {
        lanes: grants,
        effective_rps: head.rates.last().copied().unwrap_or(RateLimit::Stopped),
        at_us: head.at_us,
        seq: head.seq,
        weight: head.weight,
        limits_concurrency: limits.concurrency.or(limits.key_concurrency).is_some(),
        // Holds (letter k) concern only callers that run jobs, and `limits_concurrency` reports
        // them.
        levels_decide: !is_unknown
            && key_rate.rps.is_unlimited()
            && !limits.has_windows()
            && head.letters.chars().all(|letter| letter == 'k'),
        has_windows: limits.has_windows(),
        over_limit: limits.over_limit,
        max_cost: limits.max_cost / limits.cost_factor,
        server_error: None,
    };
    let extra = Extra::read(&head.letters);
    Ok(Acquired::Answer(
        answer,
        (!is_unknown).then_some(seen),
        extra,
    ))
}

/// The part of a reply that comes before the limits and the grants.
struct ReplyHead {
    at_us: i64,
    seq: u64,
    on_store_loss: OnStoreLoss,
    weight: f64,
    /// The kinds of lane keys that the call must carry, a letter each.
    letters: String,
    window_s: f64,
    key_rate: Rate,
    /// The rates of the levels, root first.
    rates: Vec<RateLimit>,
    /// The rates by which a charge is given back.
    refund_rates: Vec<RateLimit>,
}

impl ReplyHead {
    fn read(parts: &mut ReplyReader) -> RedisResult<Self> {
        let at_us = parts.whole()?;
        let seq = number("seq", &parts.text()).unwrap_or_default() as u64;
        let on_store_loss = OnStoreLoss::of(&parts.text()).unwrap_or_default();
        let weight = number("weight", &parts.text()).unwrap_or(1.0);
        let letters = parts.text();
        let window_s = knob("window", &parts.text())?;
        let key_rate = Rate {
            rps: RateLimit::new(knob("key_rps", &parts.text())?),
            depth_us: knob("key_burst", &parts.text())? * window_s * 1e6,
        };
        let texts = parts.text();
        let texts: Vec<&str> = texts
            .split(is_blank)
            .filter(|text| !text.is_empty())
            .collect();
        let rates = texts
            .iter()
            .map(|text| knob("rps", text.trim_end_matches('b')).map(RateLimit::new));
        let rates: Vec<RateLimit> = rates.collect::<RedisResult<_>>()?;
        // A level that borrows gets no refund, because a level above may have paid for the unit.
        let refund_rates = texts
            .iter()
            .zip(&rates)
            .map(|(text, rps)| match text.ends_with('b') {
                true => RateLimit::Unlimited,
                false => *rps,
            })
            .collect();
        Ok(Self {
            at_us,
            seq,
            on_store_loss,
            weight,
            letters,
            window_s,
            key_rate,
            rates,
            refund_rates,
        })
    }
}

/// The limits of a throttle besides its rates.
struct ReplyLimits {
    concurrency: Option<u32>,
    key_concurrency: Option<u32>,
    over_limit: OverLimit,
    max_cost: f64,
    /// The rate that the rolling windows of the throttle allow in the long run.
    window_rps: RateLimit,
    /// The same for the windows of the key.
    key_window_rps: RateLimit,
    cost_factor: f64,
}

impl ReplyLimits {
    fn parse(text: &str) -> RedisResult<Self> {
        let mut words = text.split(' ');
        let mut at_once = || words.next().and_then(|word| word.parse::<u32>().ok());
        let (concurrency, key_concurrency) = (at_once(), at_once());
        let over_limit = words.next().and_then(OverLimit::of).unwrap_or_default();
        let max_cost = words.next().map_or(Ok(PLAIN_COST), float)?;
        let mut lasting = || words.next().map_or(Ok(-1.0), float).map(RateLimit::new);
        let (window_rps, key_window_rps) = (lasting()?, lasting()?);
        let cost_factor = words.next().map_or(Ok(1.0), float)?;
        Ok(Self {
            concurrency,
            key_concurrency,
            over_limit,
            max_cost,
            window_rps,
            key_window_rps,
            cost_factor,
        })
    }

    fn has_windows(&self) -> bool {
        !(self.window_rps.is_unlimited() && self.key_window_rps.is_unlimited())
    }
}

/// The grants of a reply, in the order of the lanes.
struct Grants {
    grants: Vec<Grant>,
    /// True if a level of the chain does not exist.
    is_unknown: bool,
}

impl Grants {
    fn read(
        parts: &mut ReplyReader,
        head: &ReplyHead,
        limits: &ReplyLimits,
        levels: &[(Name, String)],
        lanes: &[LaneRequest],
    ) -> RedisResult<Self> {
        let mut charges = Charges {
            rates: &head.refund_rates,
            key_rps: head.key_rate.rps,
            max_cost: limits.max_cost,
            cost_factor: limits.cost_factor,
            last: None,
        };
        let all_watched = head.letters.contains('w');
        let mut is_unknown = false;
        let mut grants = Vec::with_capacity(lanes.len());
        let mut rest = lanes.iter();
        while !parts.is_over() {
            let (count, granted, wait) = (parts.whole()?, parts.whole()?, parts.whole()?);
            let (word, detail) = (parts.text(), parts.text());
            let limit = limit(&word, &detail, levels);
            is_unknown |= matches!(limit, Some(Limit::Unknown { .. }));
            let wait = Duration::from_micros(wait.max(0) as u64);
            let learned = count < 0;
            for lane in rest
                .by_ref()
                .take(usize::try_from(count.abs()).unwrap_or(0))
            {
                let charge_us = if granted > 0 {
                    charges.of(lane, learned)
                } else {
                    Arc::default()
                };
                grants.push(Grant {
                    granted: granted as u32,
                    wait,
                    limit: limit.clone(),
                    by_windows: word == "windows",
                    charge_us,
                    watched: learned || all_watched,
                });
            }
        }
        if grants.len() != lanes.len() {
            return Err(garbled("too few lanes"));
        }
        Ok(Self { grants, is_unknown })
    }
}

fn limit(word: &str, detail: &str, levels: &[(Name, String)]) -> Option<Limit> {
    let leaf = || levels.last().map(|level| level.0.clone());
    let level = || {
        levels
            .get(detail.parse::<usize>().ok()?.checked_sub(1)?)
            .map(|level| level.0.clone())
    };
    match word {
        "level" | "windows" if detail.parse() == Ok(levels.len()) => Some(Limit::Throttle),
        "level" | "windows" => level().map(|name| Limit::Tier { name }),
        "key" => Some(Limit::Key),
        "concurrency" => level().map(|name| Limit::Concurrency { name, key: false }),
        "holders" => level().map(|name| Limit::Holders { name }),
        "key_concurrency" => leaf().map(|name| Limit::Concurrency { name, key: true }),
        "stopped" => {
            let (at, why) = detail.split_once('|').unwrap_or((detail, ""));
            let name = levels
                .get(at.parse::<usize>().ok()?.checked_sub(1)?)
                .map(|level| level.0.clone());
            name.map(|name| Limit::Stopped {
                name,
                why: why.to_owned(),
            })
        }
        "unknown" => level().map(|name| Limit::Unknown { name }),
        "paused" => {
            let (until, why) = detail.split_once('|').unwrap_or((detail, ""));
            Some(Limit::Paused {
                until_ms: until.parse().unwrap_or_default(),
                why: why.to_owned(),
                name: None,
            })
        }
        "level_paused" => {
            let (place, why) = detail.split_once('|').unwrap_or((detail, ""));
            let (at, until) = place.split_once(' ')?;
            let name = levels
                .get(at.parse::<usize>().ok()?.checked_sub(1)?)
                .map(|level| level.0.clone());
            Some(Limit::Paused {
                until_ms: until.parse().unwrap_or_default(),
                why: why.to_owned(),
                name,
            })
        }
        "learned" => Some(Limit::Learned),
        "probing" => level().map(|name| Limit::Probing { name, key: false }),
        "key_probing" => leaf().map(|name| Limit::Probing { name, key: true }),
        _ => None,
    }
}

/// The charges of lanes; lanes of the same cost share one list.
struct Charges<'a> {
    rates: &'a [RateLimit],
    key_rps: RateLimit,
    max_cost: f64,
    cost_factor: f64,
    last: Option<(f64, bool, Arc<[f64]>)>,
}

impl Charges<'_> {
    fn of(&mut self, lane: &LaneRequest, learned: bool) -> Arc<[f64]> {
        let (cost, keyed) = (
            (sane_cost(lane.cost) * self.cost_factor).min(self.max_cost),
            !lane.key.is_empty() && !learned,
        );
        match &self.last {
            Some((c, k, charge_us)) if *c == cost && *k == keyed => charge_us.clone(),
            _ => {
                let key_rps = if keyed {
                    self.key_rps
                } else {
                    RateLimit::Unlimited
                };
                let rates = self.rates.iter().copied().chain([key_rps]);
                let charge_us: Arc<[f64]> = rates
                    .map(|rps| cost * Rate { rps, depth_us: 0.0 }.interval_us())
                    .collect();
                self.last = Some((cost, keyed, charge_us.clone()));
                charge_us
            }
        }
    }
}

/// Reads the reply of the verb `look` for one key.
pub(super) fn key_state(parts: &mut ReplyReader) -> RedisResult<KeyState> {
    let (until, why) = (parts.text(), parts.text());
    let (learned, settled) = (float(&parts.text())?, float(&parts.text())?);
    Ok(KeyState {
        paused_until_ms: until.parse().ok(),
        why,
        learned_rps: (learned >= 0.0).then_some(learned),
        settled_rps: (settled > 0.0).then_some(settled),
        probing: parts.whole()? == 1,
        refused: float(&parts.text())?,
    })
}

/// Reads the windows of a throttle or of a key from the reply of the verb `usage`.
pub(super) fn windows(parts: &mut ReplyReader) -> RedisResult<Vec<OpenWindow>> {
    let count = parts.whole()?;
    let mut windows = Vec::new();
    for _ in 0..count {
        let limit = WindowLimit {
            tokens: float(&parts.text())?,
            span_s: float(&parts.text())?,
        };
        let numbers = parts.doubles()?;
        let (grants, _) = numbers.as_chunks::<2>();
        let grants = grants.iter().map(|[at, tokens]| (*at, *tokens)).collect();
        windows.push(OpenWindow::of(limit, grants));
    }
    Ok(windows)
}

/// Reads the counters from the first three texts of the hash.
pub(super) fn meter(texts: &[Option<Text>]) -> UsageCounters {
    let at = |i: usize| {
        texts
            .get(i)
            .and_then(|text| text.as_ref()?.0.parse().ok())
            .unwrap_or(0.0)
    };
    UsageCounters {
        used: at(0),
        limited_us: at(1),
        limited_to: at(2),
    }
}

/// Reads the bucket from the fourth to the sixth text of the hash.
pub(super) fn bucket(texts: &[Option<Text>]) -> Bucket {
    let at = |i: usize| texts.get(i).and_then(|text| text.as_ref()?.0.parse().ok());
    let stopped = texts
        .get(5)
        .and_then(Option::as_ref)
        .is_some_and(|text| text.0 == "1");
    Bucket {
        spent_to: at(3),
        debt: at(4).unwrap_or(0.0),
        stopped,
    }
}

/// Reads the end of the pause after the last refusal, in unix microseconds, and its reason from the
/// seventh text of the hash; `None` also where the law finds it unreadable.
pub(super) fn refusal(texts: &[Option<Text>]) -> Option<(f64, &str)> {
    let (numbers, why) = texts.get(6)?.as_ref()?.0.split_once('|')?;
    let finite = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
    let numbers: Option<Vec<f64>> = numbers.split(' ').map(finite).collect();
    match numbers?[..] {
        [until_us, _, _, _] => Some((until_us, why)),
        _ => None,
    }
}

/// Parses a knob of the hash that the Lua script found usable.
fn knob(field: &str, text: &str) -> RedisResult<f64> {
    number(field, text).ok_or_else(|| garbled(text))
}

/// Parses a number that the Lua script wrote.
pub(super) fn float(text: &str) -> RedisResult<f64> {
    text.parse().map_err(|_| garbled(text))
}

/// Returns the error for a reply that the Lua script never gives.
pub(super) fn garbled(what: &str) -> RedisError {
    RedisError::from((
        redis::ErrorKind::UnexpectedReturnType,
        "the script returned an unexpected reply",
        what.to_owned(),
    ))
}
