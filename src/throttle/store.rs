//! The trait of a store of throttles, and the types of its answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::bucket::{Bucket, Start, UsageCounters};
use super::knobs::MAX_COST;
use super::rules::KnobProblem;
use super::scope::Scope;
use super::{Knobs, Name, OverLimit, learned, tree};

/// The number of lanes that one ask should carry, so that Redis is never blocked for more than half
/// a millisecond. Larger asks take several calls, and so do smaller ones whose lanes have limits of
/// their own.
pub const MAX_LANES_PER_ASK: usize = 256;

/// The longest pause of a key that a person or a handler may request: 30 days.
pub const MAX_PAUSE: Duration = Duration::from_secs(30 * 86_400);

/// The longest time for which a reported quota counts.
const LONGEST_QUOTA: Duration = Duration::from_secs(86_400);

/// The longest stored pause of a key, in milliseconds (31 days).
pub const MAX_PAUSE_MS: u128 = 31 * 86_400_000;

/// The longest rate-limit key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// Returns an error text if `key` cannot be a rate-limit key.
pub fn check_key(key: &str) -> Result<(), String> {
    if key.len() <= MAX_KEY_BYTES && !key.contains('\0') {
        return Ok(());
    }
    Err(format!(
        "the key has {} bytes; allowed: at most {MAX_KEY_BYTES} without NUL",
        key.len()
    ))
}

/// A request for tokens of one throttle, for many lanes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireRequest {
    /// The throttle; its tiers are charged as well.
    pub throttle: Name,
    /// The lanes in the order in which they are served; at most [`MAX_LANES_PER_ASK`].
    pub lanes: Vec<LaneRequest>,
    /// The holder that will run the granted jobs, counted by the concurrency limits. `None` asks
    /// for tokens alone, for work that runs already: no concurrency limit applies to it.
    pub holder: Option<Holder>,
}

/// A process that runs jobs, as the concurrency limits know it. All its numbers are absolute, so
/// that the next report corrects an answer or a release that got lost; its jobs lapse `ttl` after
/// its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The id, unique for each start of a process.
    pub id: String,
    /// The time for which this report counts; at most an hour.
    pub ttl: Duration,
    /// The jobs of the throttle that it runs now, including granted jobs not yet claimed.
    pub held: u32,
}

/// The request of one lane.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneRequest {
    /// The rate-limit key; empty if jobs name none.
    pub key: String,
    /// The number of units of work wanted.
    pub want: u32,
    /// The cost of one unit in tokens; above 0, at most 1e9.
    pub cost: f64,
    /// The jobs of this lane that the holder runs now, counted as [`Holder::held`]; ignored without
    /// a holder.
    pub held: u32,
}

impl Default for LaneRequest {
    /// Returns a request for one unit of one token, without a key.
    fn default() -> Self {
        Self {
            key: String::new(),
            want: 1,
            cost: 1.0,
            held: 0,
        }
    }
}

/// The answer to an [`AcquireRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct AcquireResponse {
    /// The grants, one per lane, in the order of the ask.
    pub lanes: Vec<Grant>,
    /// The rate in force for the throttle itself; 0 stopped, -1 unlimited.
    pub effective_rps: f64,
    /// The store's clock, unix microseconds; 0 if the store could not be asked.
    pub at_us: i64,
    /// The knobs' `seq` at that time.
    pub seq: u64,
    /// The knob `weight`: the throttle's share beside others in a worker.
    pub weight: f64,
    /// True if the throttle, a level above it or its keys have a concurrency limit, so that
    /// releases must be reported with [`Store::hold`].
    pub limits_concurrency: bool,
    /// True if the throttle and those above it decide alone: none of its keys has a rate, a pause
    /// or learned state. False if unknown.
    pub levels_decide: bool,
    /// The knob `over_limit`: the fate of jobs that were not granted.
    pub over_limit: OverLimit,
    /// The highest charged cost of one unit, in tokens; a dearer unit was charged this.
    pub max_cost: f64,
    /// The server's error if the store counts as lost although the server answers.
    pub said: Option<&'static str>,
}

impl Default for AcquireResponse {
    /// Returns an answer that grants nothing to no lane.
    fn default() -> Self {
        Self {
            lanes: Vec::new(),
            effective_rps: 0.0,
            at_us: 0,
            seq: 0,
            weight: 1.0,
            limits_concurrency: false,
            levels_decide: false,
            over_limit: OverLimit::Wait,
            max_cost: MAX_COST,
            said: None,
        }
    }
}

/// The answer to one lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grant {
    /// The number of units of work granted, 0 to `want`.
    pub granted: u32,
    /// The time until the next unit fits, if fewer were granted than wanted.
    pub wait: Duration,
    /// The level that limits, if fewer were granted than wanted.
    pub limit: Option<Limit>,
    /// The microseconds that one unit was charged at each level, root first, then the key, for
    /// [`Store::refund_many`]. Empty if nothing was granted or the store was lost. Lanes with the
    /// same charges share it.
    pub charge_us: Arc<[f64]>,
    /// True if a server has refused the lane before or reported its quota, so that [`Store::ended`]
    /// must report how its jobs end.
    pub watched: bool,
}

/// The rest of a quota, as a server reported it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// The requests left until the reset.
    pub remaining: f64,
    /// The time until the quota is full again.
    pub reset: Duration,
}

/// A refusal by another server, such as a 429.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamRefusal<'a> {
    /// The rate-limit key of the refused job; empty for none.
    pub key: &'a str,
    /// The extent of the refusal.
    pub scope: Scope,
    /// True if the server sheds load regardless of the caller, so that no rate is learned.
    pub is_overload: bool,
    /// True if the server is not trusted: the refusal has no wider scope than the knob
    /// `trust_scope` allows.
    pub is_hearsay: bool,
    /// The stated delay; `None` for back-off.
    pub delay: Option<Duration>,
    /// A random number from 0 to 1, for the jitter.
    pub jitter: f64,
    /// The server's answer, shown to people.
    pub why: &'a str,
}

impl UpstreamRefusal<'_> {
    /// Returns the throttle of the chain (root first) that is paused as a whole; `None` if only the
    /// key is.
    pub(super) fn level<'a>(&self, chain: &'a [Name]) -> Option<&'a Name> {
        match self.scope {
            Scope::Key => None,
            Scope::Throttle => chain.last(),
            Scope::Account => chain.iter().rev().nth(1).or(chain.last()),
        }
    }

    /// Returns the stated delay in microseconds, if any.
    pub(super) fn requested_us(&self) -> Option<f64> {
        self.delay
            .map(|delay| delay.as_micros().min(MAX_PAUSE_MS * 1000) as f64)
    }

    /// Returns the end of the pause, unix milliseconds, after `strikes` refusals in a row; shorter
    /// if a rate `is_known`, and never longer than `most_us`.
    pub(super) fn until_ms(&self, strikes: f64, is_known: bool, most_us: f64, now_us: i64) -> i64 {
        let pause_us = learned::pause_us(self.requested_us(), strikes, is_known, self.jitter);
        ((now_us as f64 + pause_us.min(most_us).floor()) / 1000.0).ceil() as i64
    }
}

impl Quota {
    /// Returns the microseconds until the quota is full again, at least one.
    pub(super) fn reset_us(&self) -> f64 {
        self.reset.as_micros().clamp(1, LONGEST_QUOTA.as_micros()) as f64
    }
}

/// The effect of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalEffect {
    /// The end of the pause, unix milliseconds.
    pub until_ms: i64,
    /// The delay of the refused job itself, if the throttle is naive and no other job is paused.
    pub alone: Option<Duration>,
}

impl RefusalEffect {
    /// Returns the effect of a refusal that pauses no other job.
    pub(super) fn alone(until_ms: i64, now_us: i64) -> Self {
        let delay_us = (until_ms * 1000).saturating_sub(now_us).max(0);
        Self {
            until_ms,
            alone: Some(Duration::from_micros(delay_us as u64)),
        }
    }
}

/// The results of jobs of one key that another server influenced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyOutcomes<'a> {
    /// The rate-limit key; empty for none.
    pub key: &'a str,
    /// The number of jobs that succeeded.
    pub succeeded: u32,
    /// The tokens of the jobs that succeeded.
    pub tokens: f64,
    /// The number of jobs that failed without a refusal, or were granted and never begun.
    pub failed: u32,
    /// The quota reported to the last of them.
    pub quota: Option<Quota>,
    /// True if the server is not trusted.
    pub is_hearsay: bool,
}

/// Units of a grant that no work used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refund<'a> {
    /// The rate-limit key; empty for none.
    pub key: &'a str,
    /// The grant that charged the units.
    pub grant: &'a Grant,
    /// The number of its units that are given back.
    pub units: u32,
    /// The cost of one unit, in tokens.
    pub cost: f64,
}

/// The state of one key of a throttle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyState {
    /// The end of its pause, unix milliseconds; `None` if it is not paused now.
    pub paused_until_ms: Option<i64>,
    /// The reason of the pause.
    pub why: String,
    /// The learned rate in force, in tokens per second, from refusals or from a reported quota.
    pub learned_rps: Option<f64>,
    /// The rate at which it last settled after a refusal, in tokens per second; the learned rate
    /// grows from there.
    pub settled_rps: Option<f64>,
    /// True if its pause after a refusal is over and none of its jobs has succeeded since.
    pub probing: bool,
    /// The number of refusals since its state began. May restart from 0.
    pub refused: f64,
}

/// Returns the text of the knob `capacity` for a capacity in tokens per second: below 0 is no
/// limit, and an unusable number is 0.
pub(super) fn capacity_text(capacity: f64) -> String {
    let usable = match capacity {
        c if c < 0.0 => -1.0,
        c if c >= 1e-6 => c.min(1e9),
        _ => 0.0,
    };
    usable.to_string()
}

/// The level that granted less than was wanted.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "level", rename_all = "snake_case")]
pub enum Limit {
    /// A throttle above the one that was asked.
    Tier {
        /// The name of that throttle.
        name: Name,
    },
    /// The throttle itself.
    Throttle,
    /// The key's own rate.
    Key,
    /// The pause of the key, for instance after a 429, or of the whole throttle.
    Paused {
        /// The end of the pause, unix milliseconds.
        until_ms: i64,
        /// The reason of the pause.
        why: String,
        /// The throttle, if all of it is paused and not the key alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Name>,
    },
    /// The key's rate as learned from refusals or from a reported quota.
    Learned,
    /// The limit of probes after a pause, while it is unknown if the server accepts jobs again.
    /// Their answers cannot be foreseen, so the wait is a guess.
    Probing {
        /// The throttle that probes.
        name: Name,
        /// True if only this lane is affected.
        key: bool,
    },
    /// A rate or a capacity of 0, or a pause by a person, of this throttle or of one above.
    Stopped {
        /// The stopped throttle.
        name: Name,
        /// The reason of zero capacity; empty if a person or the governor stopped the throttle.
        #[serde(skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// The concurrency limit. A release cannot be foreseen, so the wait is a guess.
    Concurrency {
        /// The throttle that has the limit.
        name: Name,
        /// True for `key_concurrency`, which limits this lane alone; false for `concurrency`, which
        /// limits all lanes.
        key: bool,
    },
    /// The limit of holders that a throttle's concurrency limit records; this one is not among
    /// them.
    Holders {
        /// The throttle.
        name: Name,
    },
    /// The absence of a throttle of that name.
    Unknown {
        /// The missing throttle.
        name: Name,
    },
    /// The loss of the store.
    StoreLost,
}

/// A change of knobs. Fields are the names in the hash; `None` removes the field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The fields with their new texts, already validated by [`Knobs::check`].
    pub fields: BTreeMap<String, Option<String>>,
    /// The required `seq` of the knobs, if any.
    pub if_seq: Option<u64>,
    /// The governor's term; the change is refused if a later term has written.
    pub term: Option<u64>,
    /// The required text of `rps`, if any (a person may have turned it meanwhile).
    pub if_rps: Option<String>,
    /// The required text of `concurrency`, empty for an absent field; used instead of `if_rps`.
    pub if_concurrency: Option<String>,
    /// The author of the change.
    pub by: String,
    /// The reason of the change.
    pub why: String,
    /// True to create the throttle if it does not exist.
    pub create: bool,
    /// True to write only the fields that the hash lacks; existing ones stay.
    pub absent_only: bool,
}

impl Change {
    /// Refuses a throttle that names itself as its parent.
    pub(super) fn check_parent(&self, throttle: &Name) -> Result<(), Error> {
        match self.fields.get("parent") {
            Some(Some(parent)) if parent == throttle.as_str() => {
                let message = format!(
                    "{parent:?} is the throttle itself: it must be the name of another one, or empty for none"
                );
                Err(Error::Invalid(vec![KnobProblem {
                    field: "parent".to_owned(),
                    message,
                }]))
            }
            _ => Ok(()),
        }
    }
}

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
    /// The rate in force: 0 stopped, -1 unlimited.
    pub effective_rps: f64,
    /// True if the knob's lease has lapsed and `safe_rps` is in force.
    pub lease_lapsed: bool,
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
}

/// A pause of a whole throttle, after another server refused one of its jobs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RefusalPause {
    /// The end of the pause, unix milliseconds.
    pub until_ms: i64,
    /// The server's answer.
    pub why: String,
}

/// The time to the end of a debt below which a status omits it, in microseconds.
const SHORT_DEBT_US: f64 = 10_000_000.0;

/// The field under which a time to live is reported as a problem.
pub const EXPIRES: &str = "expires";

impl Status {
    /// Reads the hash and the counters of a throttle at `now_us`.
    pub fn read(
        name: Name,
        raw: BTreeMap<String, String>,
        meter: &UsageCounters,
        now_us: i64,
    ) -> Self {
        let (knobs, problems) = Knobs::read(&raw);
        Self {
            name,
            effective_rps: knobs.effective_rps(now_us),
            lease_lapsed: knobs.lease_lapsed(now_us),
            used: meter.used,
            limited_us: meter.limited_us_at(now_us as f64),
            at_us: now_us,
            expires_in_s: None,
            refusal: None,
            debt_until_ms: None,
            knobs,
            raw,
            problems,
        }
    }

    /// Adds the limits of the bucket: a debt, and the pause after a refusal until `until_us` with
    /// its reason.
    #[must_use]
    pub fn with_bucket(mut self, bucket: &Bucket, refusal: Option<(f64, &str)>) -> Self {
        let (now, rate) = (self.at_us as f64, self.knobs.rate(self.at_us));
        if rate.rps > 0.0 && !bucket.stopped {
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

    /// Returns the status of a throttle whose key in the store is not a hash: nothing flows.
    pub fn no_hash(name: Name, now_us: i64) -> Self {
        let problem = KnobProblem {
            field: "knobs".to_owned(),
            message: format!("{}; nothing flows", no_hash(&name)),
        };
        let nothing = Self::read(name, BTreeMap::new(), &UsageCounters::default(), now_us);
        Self {
            problems: vec![problem],
            effective_rps: 0.0,
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

    /// Returns true if no token is granted now: it is paused, stopped, refused by another server,
    /// or in debt.
    pub fn lets_nothing_through(&self) -> bool {
        self.knobs.paused
            || self.effective_rps == 0.0
            || self.refusal.is_some()
            || self.debt_until_ms.is_some()
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

/// Returns the error text for a throttle whose key is not a hash.
pub(super) fn no_hash(name: &Name) -> String {
    format!(
        "the key throttle:{name}:knobs in Redis is not a hash; delete it with redis-cli DEL, then \
         set rps"
    )
}

/// The error of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached or did not answer in time.
    #[error("{}", lost(.0))]
    Lost(String),
    /// There is no throttle of that name.
    #[error("there is no throttle {0}; create it with: flyball throttle set {0} rps=10")]
    Unknown(Name),
    /// Another writer changed the knobs in the meantime.
    #[error("the knobs of {name} changed meanwhile ({what}); read them again")]
    Conflict {
        /// The throttle.
        name: Name,
        /// The condition that failed.
        what: String,
    },
    /// The knobs are invalid; nothing was changed.
    #[error("{}", .0.iter().map(|p| format!("{}: {}", p.field, p.message)).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<KnobProblem>),
}

/// Returns the error text of a lost store; a server that gives a reason for its refusal did answer.
fn lost(reason: &str) -> String {
    let verb = if super::reason_meaning(reason).is_some() {
        "refused"
    } else {
        "did not answer"
    };
    format!("the throttle store {verb}: {reason}")
}

/// A store of throttles. Every call returns within 50 ms or so (250 ms for operators' calls), or
/// fails with [`Error::Lost`].
///
/// No method has a default, because a store that wraps another would silently drop the calls that
/// it forgets to forward.
pub trait Store: Send + Sync + 'static {
    /// Asks for tokens; parents are charged first. A lost store answers by the throttle's own
    /// `on_store_loss`.
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse>;

    /// Reports the jobs of a throttle that a holder runs, and renews the report, regardless of the
    /// knobs.
    ///
    /// `lanes` are keys with the number of their jobs that run now. A key that fell to 0 must be
    /// reported once with 0, because an omitted key stays as it is until it lapses. Call it every
    /// second or so for each throttle with running jobs, and soon after a release if
    /// [`AcquireResponse::limits_concurrency`] is set. Never call it while an acquire of the same throttle
    /// by the same holder is under way, because the number would miss the jobs of that grant.
    fn hold<'a>(
        &'a self,
        throttle: &'a Name,
        holder: &'a Holder,
        lanes: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Gives back, as time, the unused units of grants of one throttle. Holders report their jobs
    /// separately.
    fn refund_many<'a>(
        &'a self,
        throttle: &'a Name,
        refunds: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Charges (positive) or returns (negative) tokens of keys of one throttle after the real cost
    /// is known. It may leave a debt of some minutes of the rate or of one job of the highest cost;
    /// charges beyond that do not count.
    fn settle_many<'a>(
        &'a self,
        throttle: &'a Name,
        tokens: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Pauses a key for `delay` from now by the store's clock, keeping the later of two ends;
    /// returns the end, unix milliseconds.
    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>>;

    /// Ends a key's pause; returns true if there was one.
    fn resume_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// Records another server's refusal of a job: the jobs in its scope are paused, and slower
    /// afterwards, as the knob `on_429` determines.
    ///
    /// A key with a stated delay is paused for exactly that, times `1 + jitter / 10`, rounded up to
    /// a millisecond; never for less than 50 ms doubled with each refusal in a row (12.8 s at
    /// most). A further refusal during the pause counts no strike and can only make the pause
    /// longer: the later end wins.
    ///
    /// After the pause one unit goes to the first ask with a holder, and no further one until
    /// [`Store::ended`] reports its result, or 30 s have passed. Then each success admits two more
    /// and each failure one, up to 16 under way; from there on a key with a rate of its own, or
    /// with a learned one, has no such limit. Reports of `ended` during the pause admit nothing; a
    /// job that was under way before and ends after the pause counts as the probe's end.
    ///
    /// An ask without a holder is subject to the pause and to a learned rate, but not to the limit
    /// of probes. With `is_overload` no rate is learned. Other keys are not affected.
    fn refused<'a>(
        &'a self,
        throttle: &'a Name,
        refused: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, Error>>;

    /// Reports how jobs ended whose grant was [`Grant::watched`], or that received a quota.
    fn ended<'a>(
        &'a self,
        throttle: &'a Name,
        ended: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns the answer that `acquire` would give, without charging anything.
    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse>;

    /// Returns the status of the throttle, for operators; `None` if there is none.
    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>>;

    /// Returns all known throttles, in the order of their names.
    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>>;

    /// Writes knobs under the conditions of `change`; returns the states before and after.
    fn set<'a>(
        &'a self,
        throttle: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>>;

    /// Sets the knob `capacity`, in tokens per second, with its reason; `None` removes it.
    ///
    /// The program itself writes it as often as the capacity changes, so it does not count `seq`,
    /// names no author and does not fail a concurrent conditional write.
    fn set_capacity<'a>(
        &'a self,
        throttle: &'a Name,
        capacity: Option<f64>,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns the states of keys of one throttle, in the order of `keys`; changes nothing.
    fn look<'a>(
        &'a self,
        throttle: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>>;

    /// Deletes a throttle with its bucket; its jobs are parked from then on. Returns true if there
    /// was one.
    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>>;

    /// Returns the names of all stored hashes of knobs, however long the search takes; some may not
    /// be valid names.
    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>>;

    /// Fails unless the store answers and accepts writes.
    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Takes a hash into our keeping: it loses its time to live, and from now on its absence counts
    /// as deliberate, as long as the rest of the store is there.
    fn persist<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns true if a kept throttle was deleted from a store that has not been emptied.
    fn was_taken_away<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>>;

    /// Sets the number of live workers, for `on_store_loss = local`, in which each takes its share
    /// of the last known rate.
    fn set_workers(&self, workers: u32);
}
