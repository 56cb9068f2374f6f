//! The frequent operations: asks, refunds, settlements and holds, each one call of the Lua script.

use std::time::Duration;

use redis::Value;

use super::call::Call;
use super::connection::Connection;
use super::layout::KNOBS;
use super::reply::{self, Acquired, ReplyReader};
use super::shape::{Extra, Shape};
use super::store::{ACQUIRE_AND_PEEK, RedisStore, locked};
use crate::throttle::bucket::STOPPED_WAIT_US;
use crate::throttle::chain::sane_cost;
use crate::throttle::tree;
use crate::throttle::{
    AcquireRequest, AcquireResponse, Error, Grant, Holder, KeyOutcomes, LaneRequest, Limit,
    MAX_LANES_PER_ASK, Name, Refund,
};

/// The number of attempts, because people may turn knobs during an ask several times in a row, but
/// not for ever.
const MAX_CONFLICT_RETRIES: usize = 4;

/// The wait reported for a throttle that cannot exist.
const UNKNOWN_THROTTLE_WAIT: Duration = Duration::from_micros(STOPPED_WAIT_US as u64);

impl RedisStore {
    // --- asks ---

    /// Asks for tokens, repeating a call that lacked some keys.
    pub(super) async fn ask(
        &self,
        verb: &str,
        ask: &AcquireRequest,
    ) -> Result<AcquireResponse, Error> {
        let mut whole: Option<AcquireResponse> = None;
        let mut holder = ask.holder.clone();
        let mut rest = ask.lanes.as_slice();
        while !rest.is_empty() || whole.is_none() {
            // A peek leaves no charges that a second part could see, so it goes in one call.
            let most = if verb == "peek" {
                MAX_LANES_PER_ASK
            } else {
                locked(&self.shapes).of(&ask.throttle).extra.most_lanes()
            };
            let (lanes, after) = rest.split_at(rest.len().min(most));
            rest = after;
            let part = match self
                .ask_lanes(verb, &ask.throttle, holder.as_ref(), lanes)
                .await
            {
                // The first part is kept; the caller's next request repeats the rest.
                Err(_) if whole.is_some() => break,
                part => part?,
            };
            if let Some(holder) = &mut holder {
                holder.held += part.lanes.iter().map(|lane| lane.granted).sum::<u32>();
            }
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.lanes.extend(part.lanes),
            }
        }
        let mut answer = whole.unwrap_or_default();
        answer.lanes.resize_with(ask.lanes.len(), Grant::default);
        Ok(answer)
    }

    pub(super) async fn ask_lanes(
        &self,
        verb: &str,
        throttle: &Name,
        holder: Option<&Holder>,
        lanes: &[LaneRequest],
    ) -> Result<AcquireResponse, Error> {
        if self.layout.check(throttle).is_err() {
            return self
                .answer_of_unknown(throttle, throttle.clone(), lanes)
                .await;
        }
        let mut shape = locked(&self.shapes).of(throttle);
        for _ in 0..MAX_CONFLICT_RETRIES {
            let call = self.acquire_call(verb, throttle, &shape, holder, lanes);
            let values = self.invoke(throttle, &call, self.ask_bound).await?;
            match reply::acquired(values, &shape.chain, lanes)
                .map_err(|error| Error::Lost(error.to_string()))?
            {
                Acquired::Answer(answer, seen, needed) => {
                    // The reply to an ask without a holder does not show if asks with one need the
                    // keys of holds.
                    let needed = Extra {
                        holds: if holder.is_some() {
                            needed.holds
                        } else {
                            shape.extra.holds
                        },
                        ..needed
                    };
                    if needed != shape.extra {
                        shape.extra = needed;
                        locked(&self.shapes).remember(throttle, &shape);
                    }
                    if let Some(seen) = seen {
                        locked(&self.memo).saw(throttle, seen);
                    }
                    return Ok(answer);
                }
                Acquired::KeysMissing(needed) => shape.extra = needed,
                Acquired::ChainChanged => match self.resolve_chain(throttle).await? {
                    Ok(resolved) => shape = resolved,
                    Err(apart) => return self.answer_of_unknown(throttle, apart, lanes).await,
                },
            }
            locked(&self.shapes).remember(throttle, &shape);
        }
        Err(unsteady(throttle))
    }

    fn acquire_call(
        &self,
        verb: &str,
        throttle: &Name,
        shape: &Shape,
        holder: Option<&Holder>,
        lanes: &[LaneRequest],
    ) -> Call<'_> {
        let extra = Extra {
            holds: shape.extra.holds && holder.is_some(),
            ..shape.extra
        };
        let mut call = self
            .law
            .call(3 * shape.chain.len() + 1 + extra.parts().count() * lanes.len());
        for (name, _) in shape.chain.iter() {
            for part in [KNOBS, "bucket", "holds"] {
                call.key(&self.layout.key(name, part, ""));
            }
        }
        call.key(&self.layout.key(throttle, "pauses", ""));
        for (_, part) in extra.parts() {
            for lane in lanes {
                call.key(&self.layout.key(throttle, part, &lane.key));
            }
        }
        self.begin(&mut call, verb);
        call.number(shape.chain.len());
        call.number(lanes.len());
        call.text(&extra.letters());
        if let Some(holder) = holder {
            call.number(format_args!("{}/{throttle}", holder.id));
            call.number(holder.ttl_ms());
            call.number(holder.held);
        } else {
            ["", "", ""].iter().for_each(|nobody| call.text(nobody));
        }
        for (_, parent) in shape.chain.iter() {
            call.text(parent);
        }
        let held = |lane: &LaneRequest| if extra.holds { lane.held } else { 0 };
        let alike = |a: &LaneRequest, b: &LaneRequest| {
            a.want == b.want
                && a.cost == b.cost
                && a.key.is_empty() == b.key.is_empty()
                && held(a) == held(b)
        };
        // The lane that is only looked at is a run of its own.
        let taken = lanes.len() - usize::from(verb == ACQUIRE_AND_PEEK).min(lanes.len());
        let (taken, peeked) = lanes.split_at(taken);
        for run in taken.chunk_by(alike).chain(peeked.chunk_by(alike)) {
            call.number(run.len());
            call.number(run[0].want);
            call.number(sane_cost(run[0].cost));
            call.number(u8::from(!run[0].key.is_empty()));
            call.number(held(&run[0]));
        }
        call
    }

    /// Reads the current chain, or returns the first parent that one call cannot serve together
    /// with `leaf`.
    pub(super) async fn resolve_chain(&self, leaf: &Name) -> Result<Result<Shape, Name>, Error> {
        let parents = self.read_parents(leaf, self.ask_bound).await?;
        let chain = tree::chain(leaf, |name| {
            parents.get(name).cloned().flatten().unwrap_or_default()
        });
        if let Some((apart, _)) = chain
            .iter()
            .find(|(name, _)| !self.layout.is_together(leaf, name))
        {
            return Ok(Err(apart.clone()));
        }
        let mut shapes = locked(&self.shapes);
        let shape = Shape {
            chain: chain.into(),
            ..shapes.of(leaf)
        };
        shapes.remember(leaf, &shape);
        Ok(Ok(shape))
    }

    // --- calls that only name the chain ---

    /// Makes a call that names the chain, repeating it if the chain has changed, and returns the
    /// chain that applied.
    async fn call_chain(
        &self,
        throttle: &Name,
        verb: &str,
        part: &str,
        keys: &[(&str, &str)],
        add: impl Fn(&mut Call<'_>, &Shape),
    ) -> Result<(Shape, Vec<Value>), Error> {
        self.layout
            .check(throttle)
            .map_err(|_| Error::Unknown(throttle.clone()))?;
        let mut shape = locked(&self.shapes).of(throttle);
        for _ in 0..MAX_CONFLICT_RETRIES {
            let mut call = self.law.call(2 * shape.chain.len() + keys.len());
            for (name, _) in shape.chain.iter() {
                call.key(&self.layout.key(name, KNOBS, ""));
                call.key(&self.layout.key(name, part, ""));
            }
            for (key_part, key) in keys {
                call.key(&self.layout.key(throttle, key_part, key));
            }
            self.begin(&mut call, verb);
            call.number(shape.chain.len());
            for (_, parent) in shape.chain.iter() {
                call.text(parent);
            }
            add(&mut call, &shape);
            let values = self.invoke(throttle, &call, self.ask_bound).await?;
            match values.first() {
                Some(Value::BulkString(word)) if word == b"chain" => {
                    shape = self
                        .resolve_chain(throttle)
                        .await?
                        .map_err(Error::Unknown)?;
                }
                _ => return Ok((shape, values)),
            }
        }
        Err(unsteady(throttle))
    }

    pub(super) async fn hold_lanes(
        &self,
        throttle: &Name,
        holder: &Holder,
        lanes: &[(String, u32)],
    ) -> Result<(), Error> {
        let lanes: Vec<(&str, u32)> = lanes
            .iter()
            .map(|(key, held)| (key.as_str(), *held))
            .filter(|(key, _)| !key.is_empty())
            .collect();
        // One call is made even without lanes, for the levels.
        let mut rest = lanes.as_slice();
        loop {
            let (part, after) = rest.split_at(rest.len().min(MAX_LANES_PER_ASK));
            let keys: Vec<(&str, &str)> = part.iter().map(|(key, _)| ("holds:", *key)).collect();
            let add = |call: &mut Call<'_>, _: &Shape| {
                call.number(format_args!("{}/{throttle}", holder.id));
                call.number(holder.ttl_ms());
                call.number(holder.held);
                part.iter().for_each(|(_, held)| call.number(held));
            };
            self.call_chain(throttle, "hold", "holds", &keys, add)
                .await?;
            if after.is_empty() {
                return Ok(());
            }
            rest = after;
        }
    }

    pub(super) async fn refund_grants(
        &self,
        throttle: &Name,
        refunds: &[Refund<'_>],
    ) -> Result<(), Error> {
        // A grant of a lost store has no charges to give back.
        let refunds: Vec<Refund<'_>> = refunds
            .iter()
            .map(|one| one.within_grant())
            .filter(|one| !one.grant.charge_us.is_empty())
            .collect();
        for part in refunds.chunks(MAX_LANES_PER_ASK) {
            let key_charge = |one: &Refund<'_>| one.grant.charge_us.last().copied().unwrap_or(0.0);
            let keys: Vec<(&str, &str)> = part
                .iter()
                .filter(|one| key_charge(one) > 0.0)
                .map(|one| ("lane:", one.key))
                .collect();
            let alike = |a: &Refund<'_>, b: &Refund<'_>| {
                a.units == b.units && a.cost == b.cost && a.grant.charge_us == b.grant.charge_us
            };
            let add = |call: &mut Call<'_>, shape: &Shape| {
                for run in part.chunk_by(alike) {
                    let charge_us = &run[0].grant.charge_us;
                    let levels = &charge_us[..charge_us.len() - 1];
                    let is_whole = levels.len() == shape.chain.len();
                    call.number(run.len());
                    call.number(run[0].units);
                    call.number(sane_cost(run[0].cost));
                    call.number(key_charge(&run[0]));
                    call.number(u8::from(is_whole));
                    levels
                        .iter()
                        .filter(|_| is_whole)
                        .for_each(|charge_us| call.number(charge_us));
                }
            };
            self.call_chain(throttle, "refund", "bucket", &keys, add)
                .await?;
        }
        Ok(())
    }

    pub(super) async fn settle_keys(
        &self,
        throttle: &Name,
        tokens: &[(&str, f64)],
    ) -> Result<(), Error> {
        for part in tokens.chunks(MAX_LANES_PER_ASK) {
            let keys: Vec<(&str, &str)> = part
                .iter()
                .filter(|(key, _)| !key.is_empty())
                .map(|(key, _)| ("lane:", *key))
                .collect();
            let add = |call: &mut Call<'_>, _: &Shape| {
                for (key, tokens) in part {
                    call.number(tokens);
                    call.number(u8::from(!key.is_empty()));
                }
            };
            let (shape, values) = self
                .call_chain(throttle, "settle", "bucket", &keys, add)
                .await?;
            let mut parts = ReplyReader::new(values);
            if parts.text() == "unknown" {
                let level = parts
                    .whole()
                    .ok()
                    .and_then(|at| shape.chain.get(usize::try_from(at).ok()?.checked_sub(1)?));
                return Err(Error::Unknown(
                    level.map_or(throttle, |level| &level.0).clone(),
                ));
            }
        }
        Ok(())
    }

    pub(super) async fn report_outcomes(
        &self,
        throttle: &Name,
        ended: &[KeyOutcomes<'_>],
    ) -> Result<(), Error> {
        for part in ended.chunks(MAX_LANES_PER_ASK) {
            let keys: Vec<(&str, &str)> = [("pauses", "")]
                .into_iter()
                .chain(part.iter().map(|one| ("learned:", one.key)))
                .collect();
            let add = |call: &mut Call<'_>, _: &Shape| {
                for one in part {
                    call.number(one.succeeded);
                    call.number(one.tokens);
                    call.number(one.failed);
                    match one.quota {
                        Some(quota) => {
                            call.number(quota.remaining.max(0.0));
                            call.number(quota.reset_us());
                        }
                        None => ["", ""].iter().for_each(|nothing| call.text(nothing)),
                    }
                    match one.begun_ago {
                        Some(ago) => call.number(ago.as_micros()),
                        None => call.text(""),
                    }
                    call.text(match (one.key.is_empty(), one.is_untrusted) {
                        (false, _) => "1",
                        (true, false) => "0",
                        (true, true) => "-",
                    });
                }
            };
            self.call_chain(throttle, "ended", "bucket", &keys, add)
                .await?;
        }
        Ok(())
    }

    // --- pieces ---

    /// Adds the verb and the time, which follow the keys.
    pub(super) fn begin(&self, call: &mut Call<'_>, verb: &str) {
        call.text(verb);
        match &self.clock {
            None => call.text(""),
            Some(clock) => call.number(clock()),
        }
    }

    pub(super) async fn invoke(
        &self,
        throttle: &Name,
        call: &Call<'_>,
        bound: Duration,
    ) -> Result<Vec<Value>, Error> {
        self.servers
            .run(self.layout.slot(throttle), bound, |redis| {
                call.invoke(redis)
            })
            .await
    }

    /// Answers an ask that cannot be made because the throttle or one above it cannot exist under
    /// its name.
    async fn answer_of_unknown(
        &self,
        throttle: &Name,
        missing: Name,
        lanes: &[LaneRequest],
    ) -> Result<AcquireResponse, Error> {
        let time = |mut redis: Connection| async move {
            redis::cmd("TIME")
                .query_async::<(i64, i64)>(&mut redis)
                .await
        };
        let (s, us) = self
            .servers
            .run(self.layout.slot(throttle), self.ask_bound, time)
            .await?;
        let nothing = |lane: &LaneRequest| match lane.want {
            0 => Grant::default(),
            _ => Grant {
                wait: UNKNOWN_THROTTLE_WAIT,
                limit: Some(Limit::Unknown {
                    name: missing.clone(),
                }),
                ..Grant::default()
            },
        };
        Ok(AcquireResponse {
            lanes: lanes.iter().map(nothing).collect(),
            at_us: s * 1_000_000 + us,
            ..AcquireResponse::default()
        })
    }
}

fn unsteady(throttle: &Name) -> Error {
    Error::Lost(format!(
        "the parents or the keys of {throttle} change faster than they can be read"
    ))
}
