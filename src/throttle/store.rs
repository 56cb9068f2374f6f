//! What any store of throttles can do, and the words it answers with.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::bucket::Meter;
use super::{Knobs, Name, tree};

/// Most lanes that one ask may carry, so that Redis is never blocked for more than half a millisecond.
pub const MAX_LANES_PER_ASK: usize = 48;

/// The longest pause of a key, in milliseconds (31 days).
pub const MAX_PAUSE_MS: u128 = 31 * 86_400_000;

/// A request for tokens of one throttle, for many lanes at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The throttle; its tiers are charged as well.
    pub throttle: Name,
    /// The lanes in the order in which they shall be served; at most [`MAX_LANES_PER_ASK`].
    pub lanes: Vec<LaneAsk>,
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
}

/// What one lane got.
#[derive(Clone, Debug, PartialEq)]
pub struct Grant {
    /// Units of work granted, 0 to `want`.
    pub granted: u32,
    /// When fewer were granted than wanted: how long until the next unit fits.
    pub wait: Duration,
    /// When fewer were granted than wanted: the level that says so.
    pub limit: Option<Limit>,
    /// Microseconds that one unit was charged at each level, root first, then the key; what [`Store::refund`] gives back.
    /// Empty where nothing was granted or the store was lost.
    pub charge_us: Vec<f64>,
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
    },
    /// A rate of 0, or a throttle that a person paused, here or above.
    Stopped {
        /// The stopped throttle.
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
}

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
            knobs,
            raw,
            problems,
        }
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

    /// True if nothing flows because a parent does not exist.
    pub fn has_missing_parent(&self) -> bool {
        self.problems.iter().any(|problem| problem.field == "parent" && problem.message.starts_with(tree::MISSING))
    }
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
    #[error("the throttle store did not answer: {0}")]
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

/// A store of throttles. Every call answers within 50 ms or so, or with [`Error::Lost`].
pub trait Store: Send + Sync + 'static {
    /// Asks for tokens; parents are charged first. A lost store answers by the throttle's own `on_store_loss`.
    fn acquire<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer>;

    /// Gives `units` of a grant back that no work used, as time.
    fn refund<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        grant: &'a Grant,
        units: u32,
        cost: f64,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Charges (positive) or returns (negative) tokens after the real cost is known; debt is allowed.
    fn settle<'a>(&'a self, throttle: &'a Name, key: &'a str, tokens: f64) -> BoxFuture<'a, Result<(), Error>>;

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

    /// What acquire would answer, without charging anything.
    fn peek<'a>(&'a self, ask: &'a Ask) -> BoxFuture<'a, Answer>;

    /// The throttle as an operator sees it; `None` if there is none.
    fn status<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<Option<Status>, Error>>;

    /// All throttles that are known, in the order of their names.
    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, Error>>;

    /// Writes knobs under the conditions of `change`; answers the state before and after.
    fn set<'a>(&'a self, throttle: &'a Name, change: &'a Change) -> BoxFuture<'a, Result<(Option<Status>, Status), Error>>;

    /// Takes a throttle away with its bucket; its jobs are parked from then on. True if there was one.
    fn delete<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>>;

    /// Tells how many workers live, for `on_store_loss = local`, where each takes its share of the last known rate.
    fn set_workers(&self, workers: u32) {
        let _ = workers;
    }
}
