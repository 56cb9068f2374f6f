//! What the Lua text answers, as our words.

use std::time::Duration;

use redis::{FromRedisValue, RedisError, RedisResult, Value, from_redis_value_ref};

use crate::throttle::bucket::{Meter, Rate};
use crate::throttle::loss::Seen;
use crate::throttle::rules::number;
use crate::throttle::tree::sane_cost;
use crate::throttle::{Answer, Grant, LaneAsk, Limit, Name, OnStoreLoss};

/// A text of any bytes; people may write anything.
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

/// What acquire and peek answer.
pub(super) enum Acquired {
    /// The grants, and what is to be remembered for a lost store.
    Answer(Answer, Option<Seen>),
    /// A level names another parent than the one that was passed.
    ChainChanged,
}

/// Reads the answer to an ask for `lanes` of the chain `levels`.
pub(super) fn acquired(texts: Vec<Text>, levels: &[Name], lanes: &[LaneAsk]) -> RedisResult<Acquired> {
    let mut texts = texts.into_iter().map(|text| text.0);
    let mut next = move || texts.next().unwrap_or_default();
    if next() != "ok" {
        return Ok(Acquired::ChainChanged);
    }
    let at_us = float(&next())? as i64;
    let effective_rps = float(&next())?;
    let seq = number("seq", &next()).unwrap_or_default() as u64;
    let on_store_loss = OnStoreLoss::of(&next()).unwrap_or_default();
    let (window_s, slowest_rps) = (float(&next())?, float(&next())?);
    let key_rate = Rate { rps: float(&next())?, depth_us: float(&next())? };
    let intervals = next().split(' ').map(float).collect::<RedisResult<Vec<f64>>>()?;
    let key_interval = float(&next())?;
    let mut unknown = false;
    let mut grants = Vec::with_capacity(lanes.len());
    for lane in lanes {
        let (granted, wait, word, detail) = (next(), next(), next(), next());
        let level = || detail.parse::<usize>().ok().and_then(|at| levels.get(at - 1)).cloned();
        let limit = match word.as_str() {
            "level" if detail == levels.len().to_string() => Some(Limit::Throttle),
            "level" => level().map(|name| Limit::Tier { name }),
            "key" => Some(Limit::Key),
            "stopped" => level().map(|name| Limit::Stopped { name }),
            "unknown" => level().map(|name| Limit::Unknown { name }),
            "paused" => {
                let (until, why) = detail.split_once('|').unwrap_or((&detail, ""));
                Some(Limit::Paused { until_ms: until.parse().unwrap_or_default(), why: why.to_owned() })
            }
            _ => None,
        };
        unknown |= matches!(limit, Some(Limit::Unknown { .. }));
        let cost = sane_cost(lane.cost);
        let key_interval = if lane.key.is_empty() { 0.0 } else { key_interval };
        let granted = float(&granted)? as u32;
        let charged = intervals.iter().chain([&key_interval]).filter(|_| granted > 0);
        let charge_us = charged.map(|interval| cost * interval).collect();
        grants.push(Grant { granted, wait: Duration::from_micros(float(&wait)? as u64), limit, charge_us });
    }
    let seen = Seen { on_store_loss, slowest_rps, window_s, key_rate };
    Ok(Acquired::Answer(Answer { lanes: grants, effective_rps, at_us, seq }, (!unknown).then_some(seen)))
}

/// The counters as three texts of the hash.
pub(super) fn meter(texts: &[Option<Text>]) -> Meter {
    let at = |i: usize| texts.get(i).and_then(|text| text.as_ref()?.0.parse().ok()).unwrap_or(0.0);
    Meter { used: at(0), limited_us: at(1), limited_to: at(2) }
}

/// A number of ours.
pub(super) fn float(text: &str) -> RedisResult<f64> {
    text.parse().map_err(|_| garbled(text))
}

/// An answer that the Lua text does not give.
pub(super) fn garbled(what: &str) -> RedisError {
    RedisError::from((redis::ErrorKind::UnexpectedReturnType, "the script answered something else", what.to_owned()))
}
