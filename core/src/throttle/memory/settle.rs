//! Refunds and settlements in memory.

use super::{MemoryStore, Throttles};
use crate::throttle::bucket::{Bucket, Rate, Start};
use crate::throttle::chain::sane_cost;
use crate::throttle::rolling_window::settle_all;
use crate::throttle::{Error, Name, Refund};

impl MemoryStore {
    pub(super) fn refund_one(throttles: &mut Throttles, throttle: &Name, refund: &Refund<'_>) {
        let charge_us = &refund.grant.charge_us;
        let Some((key_charge_us, level_charges_us)) = charge_us.split_last() else {
            return;
        };
        let chain = Self::chain(throttles, throttle);
        let units = f64::from(refund.within_grant().units);
        let cost = sane_cost(refund.cost) * Self::cost_factor(throttles, throttle);
        // If the chain changed since the grant, its charges belong to other throttles, and only the
        // key is repaid.
        if level_charges_us.len() == chain.len() {
            for (name, charge_us) in chain.iter().zip(level_charges_us) {
                let throttle = throttles.entry(name.clone()).or_default();
                throttle.bucket.refund(units * charge_us);
                let tokens = units * cost;
                throttle
                    .grants
                    .iter_mut()
                    .for_each(|window| window.give_back(tokens));
                throttle.meter.used -= units * cost;
            }
        }
        if let Some(bucket) = throttles
            .get_mut(throttle)
            .and_then(|throttle| throttle.keys.get_mut(refund.key))
        {
            bucket.refund(units * key_charge_us);
        }
    }

    pub(super) fn settle_one(
        throttles: &mut Throttles,
        throttle: &Name,
        key: &str,
        tokens: f64,
        now: i64,
    ) -> Result<(), Error> {
        let chain = Self::chain(throttles, throttle);
        let is_known = |name: &&Name| {
            throttles
                .get(*name)
                .is_some_and(|level| !level.raw.is_empty())
        };
        if let Some(unknown) = chain.iter().find(|name| !is_known(name)) {
            return Err(Error::Unknown(unknown.clone()));
        }
        let most = Self::most(throttles, &chain, now);
        let tokens = tokens * Self::cost_factor(throttles, throttle);
        for name in chain {
            let level = throttles.entry(name.clone()).or_default();
            let knobs = level.raw.knobs();
            level.meter.used += settle_bucket(
                &mut level.bucket,
                knobs.rate(now),
                Start::OneToken,
                now,
                (tokens, most),
            );
            if !knobs.windows.is_empty() {
                level.grants = settle_all(&knobs.windows, &level.grants, tokens, now as f64);
            }
            if name == *throttle && !key.is_empty() && !knobs.key_windows.is_empty() {
                let known = level.key_grants.entry(key.to_owned()).or_default();
                *known = settle_all(&knobs.key_windows, known, tokens, now as f64);
            }
            if name == *throttle && !key.is_empty() && knobs.key_rps.rate().is_some() {
                let bucket = level.keys.entry(key.to_owned()).or_default();
                settle_bucket(bucket, knobs.key_rate(), Start::Full, now, (tokens, most));
            }
        }
        Ok(())
    }
}

/// Settles tokens under a limit of `most` per job; returns the tokens that counted.
fn settle_bucket(
    bucket: &mut Bucket,
    rate: Rate,
    start: Start,
    now: i64,
    (tokens, most): (f64, f64),
) -> f64 {
    if rate.rps.rate().is_none() {
        return tokens;
    }
    let mut open = bucket.open(rate, start, now as f64, 1.0, most);
    let counted = open.settle(tokens, now as f64);
    *bucket = open.close();
    counted
}
