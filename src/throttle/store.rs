//! What any store of throttles can do, and the words it answers with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::bucket::{Bucket, Meter, Start};
use super::knobs::MAX_COST;
use super::{Knobs, Name, OverLimit, learned, tree};

/// Most lanes that one ask should carry, so that Redis is never blocked for more than half a millisecond. More are served by
/// several calls, and so are fewer where each lane has something of its own to be asked.
pub const MAX_LANES_PER_ASK: usize = 256;

/// The longest pause of a key that a person or a handler may ask for: 30 days.
pub const MAX_PAUSE: Duration = Duration::from_secs(30 * 86_400);

/// The longest time for which what is said of a quota counts.
const LONGEST_QUOTA: Duration = Duration::from_secs(86_400);

/// The longest pause of a key that is kept, in milliseconds (31 days).
pub const MAX_PAUSE_MS: u128 = 31 * 86_400_000;

/// The longest rate-limit key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// Whether a text can be a rate-limit key, or why not.
pub fn check_key(key: &str) -> Result<(), String> {
    if key.len() <= MAX_KEY_BYTES && !key.contains('\0') {
        return Ok(());
    }
    Err(format!("the key has {} bytes; allowed: at most {MAX_KEY_BYTES} without NUL", key.len()))
}

/// A request for tokens of one throttle, for many lanes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The throttle; its tiers are charged as well.
    pub throttle: Name,
    /// The lanes in the order in which they shall be served; at most [`MAX_LANES_PER_ASK`].
    pub lanes: Vec<LaneAsk>,
    /// Who will run the jobs that are granted, so that the limits of concurrency count them. `None` asks for tokens alone, for
    /// work that runs already: no limit of concurrency concerns it.
    pub holder: Option<Holder>,
}

/// A process that runs jobs, as the limits of concurrency know it. All its numbers are absolute, so that an answer or a
/// release that got lost is made good by the next word; what it holds lapses `ttl` after its last word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Unique for each start of a process.
    pub id: String,
    /// How long after this word the numbers still count; at most an hour.
    pub ttl: Duration,
    /// Jobs of the throttle that it runs now, counting those that were granted and are not yet claimed.
    pub held: u32,
}

/// What one lane wants.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneAsk {
    /// The rate-limit key; empty where jobs name none.
    pub key: String,
    /// Units of work wanted.
    pub want: u32,
    /// Tokens that one unit costs; above 0, at most 1e9.
    pub cost: f64,
    /// Jobs of this lane that the holder runs now, counted as [`Holder::held`]; without a holder it means nothing.
    pub held: u32,
}

impl Default for LaneAsk {
    /// One unit of one token, without a key.
    fn default() -> Self {
        Self { key: String::new(), want: 1, cost: 1.0, held: 0 }
    }
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// One grant per lane, in the order of the ask.
    pub lanes: Vec<Grant>,
    /// The rate in force for the throttle itself, after reading, lease and pause; -1 is unlimited.
    pub effective_rps: f64,
    /// The store's clock, unix microseconds; 0 when the store could not be asked.
    pub at_us: i64,
    /// The knobs' `seq` at that time.
    pub seq: u64,
    /// The knob `weight`: this throttle's share beside others in a worker.
    pub weight: f64,
    /// The throttle, a level above it or its keys have a limit of concurrency, so that releases must be told with
    /// [`Store::hold`].
    pub limits_concurrency: bool,
    /// The throttle and those above it decide alone: no key of it has a rate, a pause or anything else of its own. False where
    /// that is not known.
    pub levels_decide: bool,
    /// The knob `over_limit`: what becomes of jobs that were not granted.
    pub over_limit: OverLimit,
    /// The highest cost of one unit that is charged here, in tokens: a dearer one was charged this.
    pub max_cost: f64,
    /// What the server said in place of an answer, where the store counts as lost although it speaks.
    pub said: Option<&'static str>,
}

impl Default for Answer {
    /// Nothing granted to nobody.
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

/// What one lane got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grant {
    /// Units of work granted, 0 to `want`.
    pub granted: u32,
    /// When fewer were granted than wanted: how long until the next unit fits.
    pub wait: Duration,
    /// When fewer were granted than wanted: the level that says so.
    pub limit: Option<Limit>,
    /// Microseconds that one unit was charged at each level, root first, then the key; what [`Store::refund_many`] gives back.
    /// Empty where nothing was granted or the store was lost. Lanes that were charged alike share it.
    pub charge_us: Arc<[f64]>,
    /// The lane was refused by others before, or they told its quota: say with [`Store::ended`] how its jobs end.
    pub watched: bool,
}

/// Whom somebody else's refusal concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Jobs of the same throttle and key.
    #[default]
    Key,
    /// Everything that goes through the throttle above this one, such as the account's; the throttle itself where there is none.
    Account,
    /// Every key of the throttle.
    Throttle,
}

impl Scope {
    /// The word used in the hash.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Throttle => "throttle",
            Self::Account => "account",
        }
    }

    /// The word as read from the hash.
    pub fn of(text: &str) -> Option<Self> {
        [Self::Key, Self::Throttle, Self::Account].into_iter().find(|scope| scope.as_str() == text)
    }

    /// The narrower of the two: an account is more than one throttle.
    #[must_use]
    pub fn narrower(self, other: Self) -> Self {
        let breadth = |scope| match scope {
            Self::Key => 0,
            Self::Throttle => 1,
            Self::Account => 2,
        };
        if breadth(other) < breadth(self) { other } else { self }
    }
}

/// What somebody else said is left of a quota.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// Requests that are left until then.
    pub remaining: f64,
    /// How long until the quota is full again.
    pub reset: Duration,
}

/// A refusal of somebody else, such as a 429.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused<'a> {
    /// The rate-limit key of the job that was refused; empty for none.
    pub key: &'a str,
    /// Whom it concerns.
    pub scope: Scope,
    /// It sheds load, whoever asks: no rate is learned from it.
    pub is_overload: bool,
    /// It is the word of a server that nobody vouches for: it concerns no more than the knob `trust_scope` lets it.
    pub is_hearsay: bool,
    /// How long to stay away, where it was said; otherwise by back-off.
    pub delay: Option<Duration>,
    /// A number from 0 to 1 that nobody can foresee, for the jitter.
    pub jitter: f64,
    /// What was answered; shown to people.
    pub why: &'a str,
}

impl Refused<'_> {
    /// The throttle of the chain (root first) that is paused as a whole; `None` if only the key is.
    pub(super) fn level<'a>(&self, chain: &'a [Name]) -> Option<&'a Name> {
        match self.scope {
            Scope::Key => None,
            Scope::Throttle => chain.last(),
            Scope::Account => chain.iter().rev().nth(1).or(chain.last()),
        }
    }

    /// The pause that was asked for, in microseconds, if any.
    pub(super) fn said_us(&self) -> Option<f64> {
        self.delay.map(|delay| delay.as_micros().min(MAX_PAUSE_MS * 1000) as f64)
    }

    /// The end of the pause, unix milliseconds, after so many refusals in a row; shorter where a rate `is_known`, and never longer than
    /// `most_us`.
    pub(super) fn until_ms(&self, strikes: f64, is_known: bool, most_us: f64, now_us: i64) -> i64 {
        let pause_us = learned::pause_us(self.said_us(), strikes, is_known, self.jitter);
        ((now_us as f64 + pause_us.min(most_us).floor()) / 1000.0).ceil() as i64
    }
}

impl Quota {
    /// Whole microseconds until it is full again, at least one.
    pub(super) fn reset_us(&self) -> f64 {
        self.reset.as_micros().clamp(1, LONGEST_QUOTA.as_micros()) as f64
    }
}

/// What a refusal leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused {
    /// The end of the pause, unix milliseconds.
    pub until_ms: i64,
    /// How long the refused job itself is to wait where the throttle is naive and nobody else is paused.
    pub alone: Option<Duration>,
}

impl Paused {
    /// Nobody else is paused.
    pub(super) fn alone(until_ms: i64, now_us: i64) -> Self {
        let delay_us = (until_ms * 1000).saturating_sub(now_us).max(0);
        Self { until_ms, alone: Some(Duration::from_micros(delay_us as u64)) }
    }
}

/// How jobs of one key ended that other people's servers had a say in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ended<'a> {
    /// The rate-limit key; empty for none.
    pub key: &'a str,
    /// Jobs that succeeded.
    pub succeeded: u32,
    /// Tokens of those.
    pub tokens: f64,
    /// Jobs that failed otherwise than by a refusal, or were granted and never begun.
    pub failed: u32,
    /// What the last of them were told of the quota.
    pub quota: Option<Quota>,
    /// It is the word of a server that nobody vouches for.
    pub is_hearsay: bool,
}

/// Units of a grant that no work used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refund<'a> {
    /// The rate-limit key; empty for none.
    pub key: &'a str,
    /// The grant.
    pub grant: &'a Grant,
    /// How many of its units are given back.
    pub units: u32,
    /// Tokens that one unit cost.
    pub cost: f64,
}

/// What is known of one key of a throttle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyState {
    /// The end of its pause, unix milliseconds; `None` where it is not paused now.
    pub paused_until_ms: Option<i64>,
    /// Why it is paused.
    pub why: String,
    /// The rate that was learned of it, as it holds now, in tokens per second: from refusals, or from what was told of its quota.
    pub learned_rps: Option<f64>,
    /// The rate at which it last settled after a refusal, in tokens per second; the learned rate grows from there.
    pub settled_rps: Option<f64>,
    /// Its pause after a refusal is over and no job of it has succeeded since.
    pub probing: bool,
    /// Refusals since anything was known of it. May restart from 0.
    pub refused: f64,
}

/// The text of the knob `capacity` for what can be borne, in tokens per second: below 0 is no limit, and what cannot be used is
/// nothing at all.
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
        /// Its name.
        name: Name,
    },
    /// The throttle itself.
    Throttle,
    /// The key's own rate.
    Key,
    /// The key is paused, for instance by a 429.
    Paused {
        /// Unix milliseconds when the pause ends.
        until_ms: i64,
        /// Why it was paused.
        why: String,
        /// The throttle, where all of it is paused and not the key alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Name>,
    },
    /// The key's rate as it was learned from refusals, or from what is left of its quota.
    Learned,
    /// After a pause it is not known yet whether jobs are welcome again; a few go first. Their answers cannot be foreseen, so
    /// the wait is a guess.
    Probing {
        /// The throttle.
        name: Name,
        /// True if it concerns this lane alone.
        key: bool,
    },
    /// A rate of 0, or a throttle that a person paused, here or above.
    Stopped {
        /// The stopped throttle.
        name: Name,
        /// Why, where what stands behind it can bear nothing now; empty where a person or the governor stopped it.
        #[serde(skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// As many jobs run as may run at once. A release cannot be foreseen, so the wait is a guess.
    Concurrency {
        /// The throttle whose knob says so.
        name: Name,
        /// True for `key_concurrency`, which concerns this lane alone; false for `concurrency`, which concerns all lanes.
        key: bool,
    },
    /// The limit of concurrency of a throttle knows as many holders as it keeps, and this one is not among them.
    Holders {
        /// The throttle.
        name: Name,
    },
    /// There is no throttle of that name.
    Unknown {
        /// The missing throttle.
        name: Name,
    },
    /// The store could not be asked.
    StoreLost,
}

/// A change of knobs. Fields are the names people use in the hash; `None` removes the field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// Field and new text, already validated by [`Knobs::check`].
    pub fields: BTreeMap<String, Option<String>>,
    /// Refuse unless the knobs' `seq` is this.
    pub if_seq: Option<u64>,
    /// Refuse if a later governor's term has written.
    pub term: Option<u64>,
    /// Refuse unless `rps` still reads as this text (a person may have turned it meanwhile).
    pub if_rps: Option<String>,
    /// Refuse unless `concurrency` still reads as this text, where none is the empty one; instead of `if_rps`.
    pub if_concurrency: Option<String>,
    /// Who writes.
    pub by: String,
    /// Why.
    pub why: String,
    /// Create the throttle if it does not exist.
    pub create: bool,
    /// Write only those fields that the hash does not have yet; what somebody wrote stays.
    pub absent_only: bool,
}

impl Change {
    /// Refuses to make a throttle its own parent.
    pub(super) fn check_parent(&self, throttle: &Name) -> Result<(), Error> {
        match self.fields.get("parent") {
            Some(Some(parent)) if parent == throttle.as_str() => {
                let message = format!("{parent:?} is the throttle itself: it must be the name of another one, or empty for none");
                Err(Error::Invalid(vec![Problem { field: "parent".to_owned(), message }]))
            }
            _ => Ok(()),
        }
    }
}

/// A throttle as an operator sees it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Status {
    /// Its name.
    pub name: Name,
    /// The knobs as they are used.
    pub knobs: Knobs,
    /// The hash as it stands in Redis.
    pub raw: BTreeMap<String, String>,
    /// Fields that could not be used, with what was wrong and what is allowed.
    pub problems: Vec<Problem>,
    /// The rate in force now: 0 stopped, -1 unlimited.
    pub effective_rps: f64,
    /// True when the knob's lease has lapsed and `safe_rps` is in force.
    pub lease_lapsed: bool,
    /// Tokens taken since the throttle's bucket began, net of refunds. May restart from 0.
    pub used: f64,
    /// Microseconds during which somebody waited for this level's tokens, cumulative. May restart from 0.
    pub limited_us: f64,
    /// The store's clock, unix microseconds.
    pub at_us: i64,
    /// Seconds until the hash vanishes by itself, where somebody has given it a time to live, as LimitLion does.
    pub expires_in_s: Option<f64>,
    /// The pause of the whole throttle after a refusal, while it lasts.
    pub refusal: Option<RefusalPause>,
    /// The end of a debt that is longer than a moment, unix milliseconds: nothing is granted before.
    pub debt_until_ms: Option<i64>,
}

/// A pause of a whole throttle, after somebody else refused one of its jobs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RefusalPause {
    /// Its end, unix milliseconds.
    pub until_ms: i64,
    /// What was answered.
    pub why: String,
}

/// A debt that ends sooner is nothing to tell of, in microseconds.
const SHORT_DEBT_US: f64 = 10_000_000.0;

/// The field under which a time to live is told as a problem.
pub const EXPIRES: &str = "expires";

impl Status {
    /// Reads the hash and the counters of a throttle as they stand at `now_us`.
    pub fn read(name: Name, raw: BTreeMap<String, String>, meter: &Meter, now_us: i64) -> Self {
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

    /// As it is, with what its bucket holds back: a debt, and the pause of a refusal until `until_us` with its reason.
    #[must_use]
    pub fn with_bucket(mut self, bucket: &Bucket, refusal: Option<(f64, &str)>) -> Self {
        let (now, rate) = (self.at_us as f64, self.knobs.rate(self.at_us));
        if rate.rps > 0.0 && !bucket.stopped {
            let open = bucket.open(rate, Start::OneToken, now, 1.0, self.knobs.charged_cost(self.at_us));
            // The next token is there an interval after the debt.
            let free_us = open.close().spent_to.unwrap_or(now) + rate.interval_us();
            let least_us = SHORT_DEBT_US.max(2.0 * rate.interval_us());
            self.debt_until_ms = (free_us - now > least_us).then_some((free_us / 1e3).ceil() as i64);
        }
        let lasting = refusal.filter(|(until_us, _)| *until_us > now);
        self.refusal =
            lasting.map(|(until_us, why)| RefusalPause { until_ms: (until_us / 1e3).ceil() as i64, why: why.to_owned() });
        self
    }

    /// As it is, with the time to live of its hash in milliseconds as Redis tells it: below 0 for none.
    #[must_use]
    pub fn expiring_in(mut self, ms: i64) -> Self {
        if ms >= 0 {
            let name = &self.name;
            let message = format!(
                "in {}, and then there is no throttle {name} and its jobs wait; keep it: flyball throttle import-limitlion --yes",
                words(ms / 1000)
            );
            self.problems.push(Problem { field: EXPIRES.to_owned(), message });
            self.expires_in_s = Some(ms as f64 / 1000.0);
        }
        self
    }

    /// A throttle whose key in the store holds something that is no hash: nothing flows.
    pub fn no_hash(name: Name, now_us: i64) -> Self {
        let problem = Problem { field: "knobs".to_owned(), message: format!("{}; nothing flows", no_hash(&name)) };
        let nothing = Self::read(name, BTreeMap::new(), &Meter::default(), now_us);
        Self { problems: vec![problem], effective_rps: 0.0, ..nothing }
    }

    /// As it is, with what is wrong with its parents; see [`tree::wrong_parent`].
    #[must_use]
    pub fn with_parents(mut self, parents: &BTreeMap<Name, Option<String>>) -> Self {
        let wrong = tree::wrong_parent(&self.name, parents);
        self.problems.extend(wrong.map(|message| Problem { field: "parent".to_owned(), message }));
        self
    }

    /// True if no token is granted now: it is paused, stopped, refused by somebody else, or in debt.
    pub fn lets_nothing_through(&self) -> bool {
        self.knobs.paused || self.effective_rps == 0.0 || self.refusal.is_some() || self.debt_until_ms.is_some()
    }

    /// True if nothing flows because a parent does not exist.
    pub fn has_missing_parent(&self) -> bool {
        self.problems.iter().any(|problem| problem.field == "parent" && problem.message.starts_with(tree::MISSING))
    }
}

/// A time in its largest whole unit of which there are two.
fn words(seconds: i64) -> String {
    let units = [(86_400, "days"), (3600, "hours"), (60, "minutes")];
    let fitting = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    fitting.map_or_else(|| format!("{seconds} s"), |(unit, word)| format!("{} {word}", seconds / unit))
}

/// What to say of a throttle whose key is no hash.
pub(super) fn no_hash(name: &Name) -> String {
    format!("the key throttle:{name}:knobs in Redis is no hash; delete it with redis-cli DEL, then set rps")
}

/// A knob that cannot be used as it stands.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// The field of the hash.
    pub field: String,
    /// What is wrong with it and what is allowed.
    pub message: String,
}

/// Why a store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached or did not answer in time.
    #[error("{}", lost(.0))]
    Lost(String),
    /// There is no throttle of that name.
    #[error("there is no throttle {0}; create it with: flyball throttle set {0} rps=10")]
    Unknown(Name),
    /// Somebody else wrote in the meantime.
    #[error("the knobs of {name} changed meanwhile ({what}); read them again")]
    Conflict {
        /// The throttle.
        name: Name,
        /// Which condition failed.
        what: String,
    },
    /// Knobs that cannot be accepted; nothing was changed.
    #[error("{}", .0.iter().map(|p| format!("{}: {}", p.field, p.message)).collect::<Vec<_>>().join("; "))]
    Invalid(Vec<Problem>),
}

/// A server that says why it refuses does answer.
fn lost(reason: &str) -> String {
    let verb = if super::said_in(reason).is_some() { "refused" } else { "did not answer" };
    format!("the throttle store {verb}: {reason}")
}

/// A store of throttles. Every call answers within 50 ms or so, or with [`Error::Lost`].
///
/// No method has a default: a store that stands before another would otherwise swallow what it forgets to pass on.
pub trait Store: Send + Sync + 'static {
    /// Asks for tokens; parents are charged first. A lost store answers by the throttle's own `on_store_loss`.
    fn acquire<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer>;

    /// Tells what a holder holds of a throttle and renews it; answers whatever the knobs are.
    ///
    /// `lanes` are keys with the jobs of them that it runs now; one that fell to 0 is to be named once with 0, for what is not
    /// named stays as it is until it lapses. To be called every second or so for each throttle of which jobs run, and soon
    /// after a release where [`Answer::limits_concurrency`] says so; never while an acquire of the same throttle by the same
    /// holder is under way, because the number would not hold what that one grants.
    fn hold<'a>(&'a self, throttle: &'a Name, holder: &'a Holder, lanes: &'a [(String, u32)])
    -> BoxFuture<'a, Result<(), Error>>;

    /// Gives back, as time, what no work used of grants of one throttle. Holders tell what they hold by themselves.
    fn refund_many<'a>(&'a self, throttle: &'a Name, refunds: &'a [Refund<'a>]) -> BoxFuture<'a, Result<(), Error>>;

    /// Charges (positive) or returns (negative) tokens of keys of one throttle after the real cost is known. A debt may be made by
    /// it, of some minutes of the rate or of one job of the highest cost; what would go beyond does not count.
    fn settle_many<'a>(&'a self, throttle: &'a Name, tokens: &'a [(&'a str, f64)]) -> BoxFuture<'a, Result<(), Error>>;

    /// Pauses a key for `delay` from now by the store's clock; the later of two ends wins. Answers the end, unix milliseconds.
    fn pause_key<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        delay: Duration,
        why: &'a str,
    ) -> BoxFuture<'a, Result<i64, Error>>;

    /// Ends a key's pause; true if there was one.
    fn resume_key<'a>(&'a self, throttle: &'a Name, key: &'a str) -> BoxFuture<'a, Result<bool, Error>>;

    /// Somebody else refused a job: whom that concerns is paused, and slower afterwards, as the knob `on_429` says.
    ///
    /// A key whose delay was told is paused for exactly that, times `1 + jitter / 10`, rounded up to a millisecond; never for less
    /// than 50 ms doubled with each refusal in a row (12.8 s at most). A further refusal while it is paused counts no strike and can
    /// only make the pause longer: the later end wins. After the pause one unit goes to whoever asks first with a holder, and no
    /// further one until [`Store::ended`] says how it went, or 30 s have passed; then two for each success and one for each failure,
    /// up to 16 under way, from where on a key with a rate of its own, or with a learned one, has no such limit any more. What `ended`
    /// says while the key is paused opens nothing; what was under way before and ends after the pause counts as the probe's end. An
    /// ask without a holder is paused, and held to a learned rate, but not held to one at a time. With `is_overload` no rate is
    /// learned. Other keys are not touched.
    fn refused<'a>(&'a self, throttle: &'a Name, refused: &'a Refused<'a>) -> BoxFuture<'a, Result<Paused, Error>>;

    /// Tells how jobs ended whose grant was [`Grant::watched`], or which were told a quota.
    fn ended<'a>(&'a self, throttle: &'a Name, ended: &'a [Ended<'a>]) -> BoxFuture<'a, Result<(), Error>>;

    /// What acquire would answer, without charging anything.
    fn peek<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer>;

    /// The throttle as an operator sees it; `None` if there is none.
    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>>;

    /// All throttles that are known, in the order of their names.
    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>>;

    /// Writes knobs under the conditions of `change`; answers the state before and after.
    fn set<'a>(&'a self, throttle: &'a Name, change: &'a Change) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>>;

    /// Writes what stands behind a throttle can bear now, in tokens per second: the knob `capacity` and why; `None` takes it away.
    ///
    /// It is the program's own word, said as often as it changes: it counts no `seq`, names nobody who wrote and fails nobody who
    /// writes under a condition meanwhile.
    fn set_capacity<'a>(&'a self, throttle: &'a Name, capacity: Option<f64>, why: &'a str) -> BoxFuture<'a, Result<(), Error>>;

    /// What is known of keys of one throttle, in the order of `keys`; changes nothing.
    fn look<'a>(&'a self, throttle: &'a Name, keys: &'a [String]) -> BoxFuture<'a, Result<Vec<KeyState>, Error>>;

    /// Takes a throttle away with its bucket; its jobs are parked from then on. True if there was one.
    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>>;

    /// The names of all hashes of knobs that are there, however long the search takes; some may be no names of throttles.
    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, Error>>;

    /// Whether the store answers and takes writes.
    fn takes_writes(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Takes a hash into our keeping: it loses its time to live, and from now on its absence is somebody's will, as long as the
    /// rest of the store is there.
    fn keep<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<(), Error>>;

    /// Whether somebody has taken a kept throttle away, in a store that has not been emptied.
    fn was_taken_away<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>>;

    /// Tells how many workers live, for `on_store_loss = local`, where each takes its share of the last known rate.
    fn set_workers(&self, workers: u32);
}
