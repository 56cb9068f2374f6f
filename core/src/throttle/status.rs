//! The state of a throttle, for operators.

use std::collections::BTreeMap;

use crate::throttle::bucket::{Bucket, Start, UsageCounters};
use crate::throttle::knobs::SHAPING;
use crate::throttle::rules::KnobProblem;
use crate::throttle::{Knobs, Mode, Name, RateLimit, tree};

/// The time to the end of a debt below which a status omits it, in microseconds.
const SHORT_DEBT_US: f64 = 10_000_000.0;

/// The field under which a time to live is reported as a problem.
pub const EXPIRES: &str = "expires";

/// The field under which a key in the store that is not a hash is reported as a problem.
pub const NO_HASH: &str = "knobs";

/// The state of a throttle, for operators.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Status {
    /// The throttle's name.
    pub name: Name,
    /// The knobs in use.
    pub knobs: Knobs,
    /// The hash as stored in Redis.
    pub raw: BTreeMap<String, String>,
    /// The unusable fields, each with the error and the allowed values.
    pub problems: Vec<KnobProblem>,
    /// The rate in force.
    pub effective_rps: RateLimit,
    /// True if the knob's lease has lapsed and `safe_rps` is in force for that reason; false while
    /// the throttle is paused or its `rps` cannot be read.
    pub lease_expired: bool,
    /// The tokens taken since the throttle's bucket began, net of refunds. May restart from 0.
    pub used: f64,
    /// The cumulative time during which a caller waited for this level's tokens, in microseconds.
    /// May restart from 0.
    pub limited_us: f64,
    /// The store's clock, unix microseconds.
    pub at_us: i64,
    /// The time until the hash expires, in seconds, if another program gave it a time to live, as
    /// LimitLion does.
    pub expires_in_s: Option<f64>,
    /// The pause of the whole throttle after a refusal, while it lasts.
    pub refusal: Option<RefusalPause>,
    /// The end of a debt that is longer than a moment, unix milliseconds; nothing is granted
    /// before.
    pub debt_until_ms: Option<i64>,
    /// True if the store holds a bucket of the throttle, which it forgets after a week without use.
    #[serde(skip)]
    pub has_bucket: bool,
}

/// A pause of a whole throttle, after another server refused one of its jobs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RefusalPause {
    /// The end of the pause, unix milliseconds.
    pub until_ms: i64,
    /// The server's answer.
    pub why: String,
}

impl Status {
    /// Reads the hash and the counters of a throttle at `now_us`.
    pub fn read(
        name: Name,
        raw: BTreeMap<String, String>,
        meter: &UsageCounters,
        now_us: i64,
    ) -> Self {
        let (knobs, problems) = Knobs::read(&raw);
        // No governor renews the lease of a rate that is not in force.
        let is_in_force = !knobs.paused && problems.iter().all(|problem| problem.field != "rps");
        Self {
            name,
            effective_rps: knobs.effective_rps(now_us),
            lease_expired: is_in_force && knobs.lease_expired(now_us),
            used: meter.used,
            limited_us: meter.limited_us_at(now_us as f64),
            at_us: now_us,
            expires_in_s: None,
            refusal: None,
            debt_until_ms: None,
            has_bucket: false,
            knobs,
            raw,
            problems,
        }
    }

    /// Adds the limits of the bucket: a debt, and the pause after a refusal until `until_us` with
    /// its reason.
    #[must_use]
    pub fn with_bucket(mut self, bucket: &Bucket, refusal: Option<(f64, &str)>) -> Self {
        self.has_bucket = bucket.spent_to.is_some() || bucket.stopped || self.used > 0.0;
        let (now, rate) = (self.at_us as f64, self.knobs.rate(self.at_us));
        if rate.rps.rate().is_some() && !bucket.stopped {
            let open = bucket.open(
                rate,
                Start::OneToken,
                now,
                1.0,
                self.knobs.charged_cost(self.at_us),
            );
            // The next token is available one interval after the debt.
            let free_us = open.close().spent_to.unwrap_or(now) + rate.interval_us();
            let least_us = SHORT_DEBT_US.max(2.0 * rate.interval_us());
            self.debt_until_ms =
                (free_us - now > least_us).then_some((free_us / 1e3).ceil() as i64);
        }
        let lasting = refusal.filter(|(until_us, _)| *until_us > now);
        self.refusal = lasting.map(|(until_us, why)| RefusalPause {
            until_ms: (until_us / 1e3).ceil() as i64,
            why: why.to_owned(),
        });
        self
    }

    /// Adds the time to live of the hash, in milliseconds as Redis reports it: below 0 for none.
    #[must_use]
    pub fn expiring_in(mut self, ms: i64) -> Self {
        if ms >= 0 {
            let name = &self.name;
            let message = format!(
                "in {}; after that throttle {name} does not exist and its jobs wait; keep it with: \
                 flyball throttle import-limitlion --yes",
                format_seconds(ms / 1000)
            );
            self.problems.push(KnobProblem {
                field: EXPIRES.to_owned(),
                message,
            });
            self.expires_in_s = Some(ms as f64 / 1000.0);
        }
        self
    }

    /// Returns the status of a throttle whose `key` in the store is not a hash: nothing flows.
    pub fn no_hash(name: Name, key: &str, now_us: i64) -> Self {
        let problem = KnobProblem {
            field: NO_HASH.to_owned(),
            message: format!("{}; nothing flows", no_hash(key)),
        };
        let nothing = Self::read(name, BTreeMap::new(), &UsageCounters::default(), now_us);
        Self {
            problems: vec![problem],
            effective_rps: RateLimit::Stopped,
            ..nothing
        }
    }

    /// Adds the errors in its parents; see [`tree::wrong_parent`].
    #[must_use]
    pub fn with_parents(mut self, parents: &BTreeMap<Name, Option<String>>) -> Self {
        let wrong = tree::wrong_parent(&self.name, parents);
        self.problems.extend(wrong.map(|message| KnobProblem {
            field: "parent".to_owned(),
            message,
        }));
        self
    }

    /// Returns true if no job starts now: it is paused, stopped, without slots, refused by another
    /// server, or in debt.
    pub fn lets_nothing_through(&self) -> bool {
        self.knobs.paused
            || self.effective_rps.is_stopped()
            || self.knobs.concurrency == Some(0)
            || self.refusal.is_some()
            || self.debt_until_ms.is_some()
    }

    /// Returns true if a field besides `rps` that shapes the rate cannot be read: no rate above
    /// `safe_rps` is in force then.
    pub fn is_careful(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| SHAPING.contains(&problem.field.as_str()))
    }

    /// Returns true if a governor must look at the throttle: unless a person has turned it off, or
    /// controls the rate without an end.
    pub fn needs_governor(&self) -> bool {
        match self.knobs.mode {
            Mode::Auto | Mode::Shadow => true,
            Mode::Manual => self.knobs.manual_until_ms.is_some(),
            Mode::Off => false,
        }
    }

    /// Returns the seconds for which the knobs may let a key wait for a token: the time between two
    /// of them at its rate, or the longest span of its windows; -1 if no job with a key starts.
    pub fn key_wait_s(&self) -> f64 {
        let rps = self.knobs.key_rate().rps;
        if rps.is_stopped() || self.knobs.key_concurrency == Some(0) {
            return -1.0;
        }
        let spans = self.knobs.key_windows.iter().map(|limit| limit.span_s);
        spans.fold(rps.rate().map_or(0.0, |rps| 1.0 / rps), f64::max)
    }

    /// Returns true if nothing flows because a parent does not exist.
    pub fn has_missing_parent(&self) -> bool {
        self.problems
            .iter()
            .any(|problem| problem.field == "parent" && problem.message.starts_with(tree::MISSING))
    }
}

/// Formats a time in the largest unit of which it contains at least two.
fn format_seconds(seconds: i64) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let fitting = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    fitting.map_or_else(
        || format!("{seconds} s"),
        |(unit, word)| format!("{} {word}", seconds / unit),
    )
}

/// The knobs of a throttle as they are written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WrittenKnobs {
    /// The fields of the hash; none for a key that is not a hash.
    pub fields: BTreeMap<String, String>,
    /// True if another program lets the hash expire.
    pub expires: bool,
}

impl From<Status> for WrittenKnobs {
    fn from(status: Status) -> Self {
        Self {
            expires: status.expires_in_s.is_some(),
            fields: status.raw,
        }
    }
}

/// Returns the error text for a throttle whose key is not a hash.
pub(super) fn no_hash(key: &str) -> String {
    format!("the key {key} in Redis is not a hash; delete it with redis-cli DEL, then set rps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_nobody_renews_because_a_person_holds_the_throttle_has_not_lapsed() {
        let lapsed = |field: &str, text: &str| {
            let fields = [
                ("rps", "5"),
                ("mode", "auto"),
                ("valid_until", "1000"),
                (field, text),
            ];
            let raw = fields.map(|(field, text)| (field.to_owned(), text.to_owned()));
            let name = Name::new("hooks").unwrap();
            let meter = UsageCounters::default();
            Status::read(name, raw.into(), &meter, 5_000_000).lease_expired
        };
        assert!(lapsed("paused", "0") && lapsed("burst", "much"));
        assert!(!lapsed("paused", "1") && !lapsed("rps", "ten"));
    }
}
