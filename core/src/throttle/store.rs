//! The trait of a store of throttles, its errors, and the changes that it takes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::admission::counts_messages;
use super::missing::{create_it, no_throttle};
use super::rolling_window::WindowUsage;
use super::rules::{KnobProblem, paused_pattern};
use super::{
    AcquireRequest, AcquireResponse, Grant, Holder, KeyOutcomes, KeyState, Name, RateLimit,
    RefusalEffect, Status, UpstreamRefusal, WrittenKnobs,
};

/// Units of a grant that no work used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refund<'a> {
    /// The rate-limit key; empty for none.
    pub key: &'a str,
    /// The grant that charged the units.
    pub grant: &'a Grant,
    /// The number of its units that are given back; more than were granted count as all of them.
    pub units: u32,
    /// The cost of one unit, in tokens.
    pub cost: f64,
}

impl Refund<'_> {
    /// Returns the same with no more units than were granted.
    #[must_use]
    pub(super) fn within_grant(self) -> Self {
        Self {
            units: self.units.min(self.grant.granted),
            ..self
        }
    }
}

/// Returns the text of the knob `capacity`; `None` without a limit.
pub(super) fn capacity_text(capacity: RateLimit) -> Option<String> {
    let rps = capacity.tokens()?;
    let usable = if rps >= 1e-6 { rps.min(1e9) } else { 0.0 };
    Some(usable.to_string())
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
    /// The required text of `mode`, if any (a person may have taken over without a new rate).
    pub if_mode: Option<String>,
    /// The author of the change.
    pub by: String,
    /// The reason of the change.
    pub why: String,
    /// True to create the throttle if it does not exist.
    pub create: bool,
    /// True to write only the fields that the hash lacks; existing ones stay.
    pub absent_only: bool,
    /// True for a throttle that existed before, whatever its name is.
    pub restores: bool,
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

    /// Refuses to pause a pattern. One that was paused before is restored as it was.
    pub(super) fn check_pause(&self, throttle: &Name) -> Result<(), Error> {
        match paused_pattern(throttle, &self.fields) {
            Some(problem) if !self.restores => Err(Error::Invalid(vec![problem])),
            _ => Ok(()),
        }
    }

    /// Refuses a limit of concurrency where nothing runs. One that was set before is restored as it
    /// was.
    pub(super) fn check_concurrency(&self, throttle: &Name) -> Result<(), Error> {
        if self.restores || !counts_messages(throttle.as_str()) {
            return Ok(());
        }
        let limits = |field: &&str| {
            let text = self.fields.get(*field).and_then(Option::as_deref);
            text.is_some_and(|text| !matches!(text, "" | "-1"))
        };
        let problems: Vec<KnobProblem> = ["concurrency", "key_concurrency"]
            .into_iter()
            .filter(limits)
            .map(|field| KnobProblem {
                field: field.to_owned(),
                message: format!(
                    "must be -1: {throttle} limits messages, none of which runs there; set \
                     windows or key_windows, or pause it"
                ),
            })
            .collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Error::Invalid(problems)),
        }
    }
}

/// The error of a store operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached or did not answer in time.
    #[error("{}", lost(.0))]
    Lost(String),
    /// The throttle does not exist.
    #[error("{}", no_throttle(.0.as_str(), &create_it(.0.as_str())))]
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

/// A store of throttles. Every call returns within 50 ms or so (250 ms for operators' calls, and
/// longer only for lists of very many throttles), or fails with [`Error::Lost`].
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
    /// [`AcquireResponse::limits_concurrency`] is set. Never call it while an acquire of the same
    /// throttle by the same holder is under way, because the number would miss the jobs of that
    /// grant.
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

    /// Asks for tokens like [`Store::acquire`] for all lanes but the last one, of which it returns
    /// what `peek` would answer then. For two lanes or more, and without a holder.
    fn acquire_and_peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse>;

    /// Returns the knobs of throttles as they are written, in the order of `names`; `None` for a
    /// throttle that does not exist. For all throttles at once it costs a fraction of their status.
    fn written_knobs<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<WrittenKnobs>, Error>>>;

    /// Returns the statuses of throttles, in the order of `names`, as [`Store::status`] does.
    fn statuses<'a>(
        &'a self,
        names: &'a [Name],
    ) -> BoxFuture<'a, Vec<Result<Option<Status>, Error>>>;

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

    /// Sets the knob `capacity` with its reason; without a limit both are removed.
    ///
    /// The program itself writes it as often as the capacity changes, so it does not count `seq`,
    /// names no author and does not fail a concurrent conditional write.
    fn set_capacity<'a>(
        &'a self,
        throttle: &'a Name,
        capacity: RateLimit,
        why: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns the states of keys of one throttle, in the order of `keys`; changes nothing.
    fn look<'a>(
        &'a self,
        throttle: &'a Name,
        keys: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<KeyState>, Error>>;

    /// Returns the grants that count now in the windows of a throttle and of one of its keys;
    /// `None` if there is no such throttle. The throttles above it are not read.
    fn window_usage<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<WindowUsage>, Error>>;

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

    /// Returns true if the store still knows that a throttle is kept, which one that was emptied
    /// does not.
    fn is_kept<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<bool, Error>>;

    /// Sets the number of live workers, for `on_store_loss = local`, in which each takes its share
    /// of the last known rate.
    fn set_workers(&self, workers: u32);
}
