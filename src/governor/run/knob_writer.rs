//! Writes to a governed knob, fenced by the term and refused if it was changed meanwhile.

use std::collections::BTreeMap;

use super::governed::GovernedThrottle;
use super::report::ReconcileError;
use crate::governor::actuator::Actuator;
use crate::governor::manual_override::GOVERNOR;
use crate::throttle::{self, Change, Mode, Status, Store};

/// The share of the lease at which an unchanged knob is written again.
const RENEW_AT: f64 = 0.7;

/// A copy of the `rps` or `concurrency` that a governor last wrote, stored atomically with it.
///
/// If the two differ, a person has edited the knob, even if the state could not be saved.
pub(super) const GOVERNED_KNOB: &str = "governed";

/// The knob of a throttle as it was read, in one term.
#[derive(Clone, Copy)]
pub(super) struct KnobWriter<'a> {
    pub store: &'a dyn Store,
    pub throttle: &'a GovernedThrottle,
    pub term: u64,
    pub status: &'a Status,
}

impl KnobWriter<'_> {
    /// Sets the knob to `text`, with a new lease; returns the number of knobs written.
    pub async fn write(&self, text: &str, reason: &str) -> Result<usize, ReconcileError> {
        let actuator = self.throttle.actuator();
        // Slots have no lease: without a governor they keep their last value.
        let until_ms = (actuator == Actuator::Rps).then(|| self.lease_until_ms().to_string());
        let text = || Some(text.to_owned());
        let mut fields = BTreeMap::from(
            [
                (actuator.field(), text()),
                (GOVERNED_KNOB, text()),
                ("valid_until", until_ms),
            ]
            .map(|(field, text)| (field.to_owned(), text)),
        );
        if self.has_old_end() {
            fields.insert("manual_until_ms".to_owned(), None);
        }
        let change = Change {
            fields,
            term: Some(self.term),
            by: GOVERNOR.to_owned(),
            why: reason.to_owned(),
            ..self.unchanged()
        };
        match self.store.set(&self.throttle.name, &change).await {
            Ok(_) => Ok(1),
            // A person was faster: their rate is adopted at the next tick.
            Err(throttle::Error::Conflict { what, .. }) => {
                tracing::info!(throttle.name = %self.throttle.name, what, "the knob was changed concurrently");
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the knob to `text` if it must change or its lease must be renewed.
    ///
    /// A person's rate that was taken over is written once too: without a copy of it, a return to
    /// the rate before would look like the governor's own.
    pub async fn write_if_needed(&self, text: &str, reason: &str) -> Result<usize, ReconcileError> {
        let raw = &self.status.raw;
        let governed = raw.get(GOVERNED_KNOB).map(String::as_str);
        let is_set = self.throttle.actuator().text(raw) == Some(text) && governed == Some(text);
        if is_set && self.is_fresh() && !self.has_old_end() {
            return Ok(0);
        }
        self.write(text, reason).await
    }

    /// Renews the lease of our own rate while the capacity is 0, so that work later resumes at that
    /// rate and not at the safe one; `is_ours` is true if the governor wrote the knob.
    pub async fn keep_lease(&self, reason: &str, is_ours: bool) -> Result<usize, ReconcileError> {
        let (status, knobs) = (self.status, &self.status.knobs);
        let is_stopped = knobs.mode == Mode::Auto && !knobs.paused && knobs.capacity.is_stopped();
        let must_renew = is_ours && is_stopped && !status.lease_expired && !self.is_fresh();
        match status.raw.get("rps").filter(|_| must_renew) {
            Some(rps) => self.write(rps, reason).await,
            None => Ok(0),
        }
    }

    /// Removes the lease of a knob that is no longer the governor's.
    ///
    /// The lease of a person's stop would lapse as if no governor were left. A lease that stays
    /// after a person's own `HSET` of the mode would count again, long lapsed, as soon as they hand
    /// the throttle back.
    ///
    /// The recorded author and reason stay unchanged.
    pub async fn end_lease(&self) -> Result<(), ReconcileError> {
        let knobs = &self.status.knobs;
        if !self.status.raw.contains_key("valid_until") {
            return Ok(());
        }
        let change = Change {
            fields: BTreeMap::from([("valid_until".to_owned(), None)]),
            term: Some(self.term),
            if_seq: Some(knobs.seq),
            by: knobs.by.clone(),
            why: knobs.why.clone(),
            ..Change::default()
        };
        match self.store.set(&self.throttle.name, &change).await {
            Ok(_) | Err(throttle::Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the throttle to `mode` after a manual mode with an end; false if a person was
    /// faster, whose change is read at the next tick.
    pub async fn return_to(&self, mode: Mode, reason: &str) -> Result<bool, ReconcileError> {
        let mut fields = BTreeMap::from([
            ("mode".to_owned(), Some(mode.as_str().to_owned())),
            ("manual_until_ms".to_owned(), None),
            ("valid_until".to_owned(), None),
        ]);
        if mode == Mode::Auto && self.throttle.actuator() == Actuator::Rps {
            let until_ms = self.lease_until_ms().to_string();
            fields.insert("valid_until".to_owned(), Some(until_ms));
        }
        let change = Change {
            fields,
            term: Some(self.term),
            if_seq: Some(self.status.knobs.seq),
            by: GOVERNOR.to_owned(),
            why: reason.to_owned(),
            ..self.unchanged()
        };
        match self.store.set(&self.throttle.name, &change).await {
            Ok(_) => Ok(true),
            Err(throttle::Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if the knob was written in this term and its lease need not be renewed yet.
    ///
    /// The first tick of a term always writes, so that writes of earlier terms are refused from
    /// then on.
    fn is_fresh(&self) -> bool {
        let (status, knobs) = (self.status, &self.status.knobs);
        let lease_ms = self.throttle.policy.law.lease_s() * 1e3;
        let left_ms = knobs
            .valid_until_ms
            .map_or(0.0, |until| until as f64 - status.at_us as f64 / 1e3);
        let is_in_force = match self.throttle.actuator() {
            Actuator::Rps => left_ms > RENEW_AT * lease_ms,
            // A lease left over from a governed rate would lapse.
            Actuator::Concurrency => !status.raw.contains_key("valid_until"),
        };
        is_in_force && knobs.term == self.term
    }

    /// Returns true if the end of a manual mode is over that a person ended before with an `HSET` of
    /// the mode.
    ///
    /// It would end their next manual mode as soon as that begins.
    fn has_old_end(&self) -> bool {
        let (status, knobs) = (self.status, &self.status.knobs);
        let is_over = |until_ms: i64| until_ms <= status.at_us / 1000;
        knobs.mode != Mode::Manual && knobs.manual_until_ms.is_some_and(is_over)
    }

    /// Creates a change that is refused if the knob or the mode no longer has the text that was
    /// read.
    fn unchanged(&self) -> Change {
        let actuator = self.throttle.actuator();
        let text = actuator.text(&self.status.raw).map(str::to_owned);
        let same_mode = Change {
            if_mode: self.status.raw.get("mode").cloned(),
            ..Change::default()
        };
        match actuator {
            Actuator::Rps => Change {
                if_rps: text,
                ..same_mode
            },
            Actuator::Concurrency => Change {
                if_concurrency: text,
                ..same_mode
            },
        }
    }

    /// Returns the time at which a knob written now lapses, in unix milliseconds.
    fn lease_until_ms(&self) -> i64 {
        self.status.at_us / 1000 + (self.throttle.policy.law.lease_s() * 1e3) as i64
    }
}
