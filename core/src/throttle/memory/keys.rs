//! Refusals, pauses and learned rates in memory.

use super::Throttle;
use crate::throttle::learned::{KeyRefusal, Learned};
use crate::throttle::throttle_refusal::ThrottleRefusal;
use crate::throttle::{KeyOutcomes, KeyState, RateLimit, RefusalEffect, Scope, UpstreamRefusal};

impl Throttle {
    /// Pauses the key and learns from its refusal.
    pub(super) fn refuse_key(&mut self, refused: &UpstreamRefusal<'_>, now: i64) -> RefusalEffect {
        let knobs = self.raw.knobs();
        let known = self.learned_of(refused.key, now);
        let strikes = known.map_or(0.0, |known| known.strikes_before(now as f64));
        let is_known = known.is_some_and(|known| known.has_known_rate());
        let until_ms = refused.until_ms(strikes, is_known, knobs.max_key_pause_us(), now);
        // Jobs without a key go to many untrusted servers, of which one must not stop the others.
        let is_one_of_many =
            refused.is_untrusted && refused.key.is_empty() && knobs.trust_scope == Scope::Key;
        if knobs.on_429.is_naive() || is_one_of_many {
            return RefusalEffect::alone(until_ms, now);
        }
        let until_ms = self.pause_key(refused.key, until_ms, refused.why);
        let (now, configured) = (
            now as f64,
            if refused.key.is_empty() {
                RateLimit::Unlimited
            } else {
                knobs.key_rate().rps
            },
        );
        let mut known = known.unwrap_or_else(|| Learned::new(now));
        let refusal = KeyRefusal {
            at: now,
            until: until_ms as f64 * 1000.0,
            is_stated: refused.delay.is_some(),
        };
        let learns = knobs.on_429.learns() && !refused.is_overload;
        known.refuse(refusal, configured, learns);
        self.learned
            .insert(refused.key.to_owned(), (known, kept_until_ms(&known, now)));
        RefusalEffect {
            until_ms,
            alone: None,
        }
    }

    /// Pauses the whole throttle.
    pub(super) fn refuse(&mut self, refused: &UpstreamRefusal<'_>, now: i64) -> RefusalEffect {
        let strikes = self
            .refusal
            .as_ref()
            .map_or(0.0, |refusal| refusal.strikes_before(now as f64));
        let knobs = self.raw.knobs();
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
    pub(super) fn look(&self, key: &str, now: i64) -> KeyState {
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
        let on_429 = self.raw.knobs().on_429;
        let (known, now) = (known.filter(|_| !on_429.is_naive()), now as f64);
        let learned = known.filter(|_| on_429.learns());
        KeyState {
            paused_until_ms,
            why,
            learned_rps: learned.and_then(|known| known.rate(now).tokens()),
            settled_rps: learned.map(|known| known.settle).filter(|rps| *rps > 0.0),
            probing: known.is_some_and(|known| known.is_probing(now)),
            refused,
        }
    }

    /// Returns the learned state of a key if it still counts.
    pub(super) fn learned_of(&self, key: &str, now: i64) -> Option<Learned> {
        let (known, until_ms) = self.learned.get(key)?;
        (*until_ms > now.div_euclid(1000)).then_some(*known)
    }

    pub(super) fn pause_key(&mut self, key: &str, until_ms: i64, why: &str) -> i64 {
        let pause = self.pauses.entry(key.to_owned()).or_default();
        if pause.0 < until_ms {
            *pause = (until_ms, why.to_owned());
        }
        pause.0
    }

    /// Learns from jobs that ended.
    pub(super) fn learn(&mut self, ended: &KeyOutcomes<'_>, now: i64) {
        let known = self.learned_of(ended.key, now);
        let (knobs, now) = (self.raw.knobs(), now as f64);
        let learns = knobs.on_429.learns();
        let is_one_of_many =
            ended.is_untrusted && ended.key.is_empty() && knobs.trust_scope == Scope::Key;
        let quota = ended.quota.filter(|_| learns && !is_one_of_many);
        let Some(mut known) = known.or_else(|| quota.map(|_| Learned::new(now))) else {
            return;
        };
        let configured = if ended.key.is_empty() {
            RateLimit::Unlimited
        } else {
            knobs.key_rate().rps
        };
        let is_known = !learns || configured.rate().is_some();
        known.answered(
            f64::from(ended.succeeded),
            ended.tokens * knobs.cost_factor,
            f64::from(ended.failed),
            is_known,
            now,
        );
        if let Some(ago) = ended.begun_ago {
            known.began(ago.as_micros() as f64, now);
        }
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

/// Returns the time at which learned state is forgotten, unix milliseconds.
fn kept_until_ms(known: &Learned, now: f64) -> i64 {
    (now / 1000.0).floor() as i64 + known.keep_ms(now) as i64
}
