//! The records of the governors: their stored states, their decisions, and the term that fences
//! both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::governed::{GovernedThrottle, ThrottleRuntime};
use super::postgres::{Error as JournalError, Journal};
use super::report::ReconcileError;
use crate::governor::actuator::{BREAKERS_ZERO, is_breakers_zero};
use crate::governor::decision::Decision;
use crate::governor::state::ControlState;
use crate::governor::stored;
use crate::service::FailureLog;
use crate::throttle::{RateLimit, Status};

/// The number of decisions by which a slow listener may lag.
const LISTENER_BEHIND: usize = 256;

/// The journal, and those who listen to it.
pub(super) struct Records {
    journal: Journal,
    /// The decisions as they are made.
    pub decisions: broadcast::Sender<Decision>,
    /// The latest term found in a knob without a valid lease.
    seen_term: AtomicU64,
    /// The failures to save states and to record decisions, of all throttles.
    failures: Mutex<FailureLog>,
}

impl Records {
    pub fn new(journal: Journal) -> Self {
        Self {
            journal,
            decisions: broadcast::channel(LISTENER_BEHIND).0,
            seen_term: AtomicU64::new(0),
            failures: Mutex::default(),
        }
    }

    /// Returns the latest term above ours found in a knob without a valid lease; 0 for none.
    pub fn seen_term(&self) -> u64 {
        self.seen_term.load(Ordering::Relaxed)
    }

    /// Fails if a later leader has written this knob, which is how a process without Postgres
    /// detects it.
    pub fn check_term(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
        status: &Status,
    ) -> Result<(), JournalError> {
        if status.knobs.term <= term {
            return Ok(());
        }
        let is_renewed = status
            .knobs
            .valid_until_ms
            .is_some_and(|until| until > status.at_us / 1000);
        if !is_renewed {
            // No leader has that term: the database that counts terms was restored from an older
            // copy.
            self.seen_term
                .fetch_max(status.knobs.term, Ordering::Relaxed);
        }
        Err(JournalError::Fenced {
            throttle: throttle.name.to_string(),
            term,
        })
    }

    /// Loads the state at the beginning of a term, or begins at the knob in force.
    pub async fn take_up(
        &self,
        throttle: &GovernedThrottle,
        runtime: &mut ThrottleRuntime,
        term: u64,
        status: &Status,
    ) -> Result<(), ReconcileError> {
        if runtime.term == Some(term) && runtime.state.is_some() {
            return Ok(());
        }
        let now = status.at_us as f64 / 1e6;
        let name = throttle.name.as_str();
        let stored = self.journal.load(name).await?;
        if let Some((theirs, _)) = &stored
            && *theirs > term
        {
            return Err(JournalError::Fenced {
                throttle: name.to_owned(),
                term,
            }
            .into());
        }
        *runtime = ThrottleRuntime {
            term: Some(term),
            due: runtime.due,
            ..ThrottleRuntime::default()
        };
        runtime.journaled = self.journal.recent(Some(name), 1).await?.pop();
        let resumed = stored.and_then(|(_, stored)| stored::resume(stored, &throttle.policy, now));
        runtime.state = Some(match resumed {
            Some(mut state) => {
                if is_breakers_zero(&status.raw, throttle.actuator().field()) {
                    let bounds = throttle.bounds(status);
                    stored::reopen(&mut state, &throttle.policy, bounds, now);
                }
                state
            }
            None => begun(throttle, status, now),
        });
        Ok(())
    }

    /// Saves the state.
    ///
    /// Only a later leader's term is an error: an outage of Postgres must not stop the governor.
    pub async fn save_state(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
        state: &ControlState,
    ) -> Result<(), ReconcileError> {
        let Ok(value) = serde_json::to_value(state) else {
            return Ok(());
        };
        match self
            .journal
            .save(throttle.name.as_str(), term, &value)
            .await
        {
            Err(JournalError::Postgres(error)) => {
                if self.is_logged() {
                    tracing::warn!(throttle.name = %throttle.name, %error, "saving the governor's state failed");
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Returns true if a failure of the journal is to be logged: the first of an outage, whichever
    /// the throttle, and one every few minutes.
    fn is_logged(&self) -> bool {
        self.failures.lock().failed_anew(Instant::now())
    }

    /// Journals a decision if it is news, and sends it to the listeners.
    pub async fn record(&self, runtime: &mut ThrottleRuntime, term: u64, mut decision: Decision) {
        if !decision.is_news_after(runtime.journaled.as_ref()) {
            return;
        }
        match self.journal.append(term, &decision).await {
            Ok(id) => decision.id = id,
            Err(error) => {
                if self.is_logged() {
                    tracing::warn!(throttle.name = decision.throttle, %error, "recording a decision failed");
                }
            }
        }
        // A send without listeners is not an error.
        let _ = self.decisions.send(decision.clone());
        runtime.journaled = Some(decision);
    }
}

/// Begins a governor at the knob in force.
fn begun(throttle: &GovernedThrottle, status: &Status, now: f64) -> ControlState {
    let actuator = throttle.actuator();
    let raw = actuator.text(&status.raw);
    let bounds = throttle.bounds(status);
    // Only a person's stop lasts: a breaker's without its state, and a rate that lapsed to a
    // `safe_rps` of 0, continue from the lowest rate.
    let is_by_hand = actuator.setting(status).is_stopped() && raw != Some(BREAKERS_ZERO);
    let rate = match actuator.start(status, bounds) {
        RateLimit::Stopped if !is_by_hand => RateLimit::new(bounds.min),
        started => started,
    };
    let mut state = ControlState::new(&throttle.policy, bounds, rate, now);
    state.wrote.record(raw.unwrap_or_default());
    state
}
