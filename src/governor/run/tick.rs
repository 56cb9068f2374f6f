//! One tick of one throttle: read it and its signals, plan, persist, set the knob, journal.
//!
//! The order of the writes, the first two of which are fenced by the term:
//!
//! 1. the state is saved, with the text that is about to be written;
//! 2. the knob is set, unless it has changed meanwhile;
//! 3. the decision is journaled.

use super::authorship;
use super::calibration;
use super::governed::{GovernedThrottle, ThrottleRuntime};
use super::observe::observe;
use super::reconciler::Reconciler;
use super::report::{ReconcileError, RoundReport};
use super::silence;
use crate::governor::actuator::{Actuator, BREAKERS_ZERO};
use crate::governor::decision::Decision;
use crate::governor::explain::cause::Cause;
use crate::governor::law::signals;
use crate::governor::observation::{Observation, SignalSample};
use crate::governor::plan::Plan;
use crate::governor::shadow;
use crate::governor::state::ControlState;
use crate::governor::time::timestamp;
use crate::postgres::storable;
use crate::throttle::{Knobs, Mode, RateLimit, Status};

/// The longest wait for the record of knobs to replace an older copy of them, in seconds.
const OLDER_COPY_S: f64 = 15.0;
/// The most characters of a reason for a missing reading that are kept: room for the longest query
/// and what a server says of it.
const PROBLEM_CHARS: usize = 5000;

/// A tick of one throttle in one term.
struct Tick<'a> {
    parts: &'a Reconciler,
    throttle: &'a GovernedThrottle,
    term: u64,
    status: &'a Status,
}

/// Ticks the throttle if its tick is due.
pub(super) async fn tick(
    parts: &Reconciler,
    throttle: &GovernedThrottle,
    term: u64,
) -> Result<RoundReport, ReconcileError> {
    let unknown = || {
        *throttle.view.lock() = None;
        RoundReport::default()
    };
    let Some(status) = parts.store.status(&throttle.name).await? else {
        return Ok(unknown());
    };
    parts.records.check_term(throttle, term, &status)?;
    let now = status.at_us as f64 / 1e6;
    let tick_s = throttle.policy.law.tick_s;
    if !throttle.runtime.lock().await.is_due(now, tick_s) {
        return Ok(RoundReport::default());
    }
    // Signals are read without locking the runtime, so that a slow Prometheus never delays the fast
    // path.
    let name = throttle.name.as_str();
    let feedback = parts.sources.worker_feedback(&throttle.policy, name).await;
    let (readings, ready) = tokio::join!(
        read(parts, throttle, now, feedback.is_some()),
        parts.sources.ready(name)
    );
    let Some(status) = parts.store.status(&throttle.name).await? else {
        return Ok(unknown());
    };

    let mut runtime = throttle.runtime.lock().await;
    parts
        .records
        .take_up(throttle, &mut runtime, term, &status)
        .await?;
    // A write now would make an older copy of the knobs the newest, and lose what a person had set.
    let waits_for_record = runtime.state.as_ref().is_some_and(|state| {
        let is_recent = state.at.is_some_and(|at| (now - at).abs() < OLDER_COPY_S);
        is_recent && state.overrides.is_ahead_of(&status.knobs)
    });
    if waits_for_record {
        return Ok(RoundReport::default());
    }
    if let Some(feedback) = &feedback {
        runtime.meter.take_in(feedback, now);
    }
    let has_feedback = feedback.is_some();
    let policy = &throttle.policy;
    let seen = observe(policy, &mut runtime, &status, readings, has_feedback, ready);
    let Some(mut state) = runtime.state.take() else {
        return Ok(RoundReport::default());
    };
    let mut problems = silence::reasons(policy, &runtime.meter, &seen);
    problems.extend(silence::outdated(&state.signals, policy, &seen));
    problems.extend(throttle.problems.lock().clone());
    signals::note_problems(&mut state.signals, &problems);
    let found = state.watchdogs.found.clone();
    let tick = Tick {
        parts,
        throttle,
        term,
        status: &status,
    };
    let outcome = tick.decide(&mut runtime, &mut state, seen).await;
    throttle.log_findings(&state, &found);
    throttle.show(&state, &status);
    if outcome.as_ref().is_err_and(ReconcileError::is_fenced) {
        *runtime = ThrottleRuntime::default();
    } else {
        runtime.state = Some(state);
    }
    outcome
}

/// Reads every signal; a failure is recorded for people and yields no reading.
async fn read(
    parts: &Reconciler,
    throttle: &GovernedThrottle,
    now: f64,
    has_feedback: bool,
) -> Vec<SignalSample> {
    let outcomes = parts
        .sources
        .read(&throttle.policy, &throttle.direct, now, has_feedback)
        .await;
    let mut problems = throttle.problems.lock();
    let mut samples = Vec::new();
    for (about, outcome) in throttle.policy.signals.iter().zip(outcomes) {
        match outcome {
            Ok(read) => {
                if problems.remove(&about.name).is_some() {
                    tracing::info!(throttle.name = %throttle.name, signal = about.name, "the signal has readings again");
                }
                samples.extend(read);
            }
            Err(error) => {
                let problem = storable(&error.to_string(), PROBLEM_CHARS);
                // Logged once, not every tick.
                if problems.get(&about.name) != Some(&problem) {
                    tracing::warn!(throttle.name = %throttle.name, signal = about.name, error = problem, "no reading");
                }
                problems.insert(about.name.clone(), problem);
            }
        }
    }
    samples
}

/// The knob that a tick finds.
#[derive(Clone, Copy)]
struct FoundKnob {
    /// True if the governor wrote it.
    is_ours: bool,
    /// True if a person has changed it, or the mode, since the last tick.
    is_edited: bool,
}

impl Tick<'_> {
    /// Plans according to the throttle's mode and carries the plan out.
    async fn decide(
        &self,
        runtime: &mut ThrottleRuntime,
        state: &mut ControlState,
        mut seen: Observation,
    ) -> Result<RoundReport, ReconcileError> {
        let (throttle, status, knobs) = (self.throttle, self.status, &self.status.knobs);
        let (name, actuator) = (throttle.name.as_str(), throttle.actuator());
        let raw = actuator.text(&status.raw);
        let is_ours = authorship::is_ours(status, actuator, state);
        let is_edited = state.overrides.see(knobs, actuator, raw, is_ours, seen.now);
        seen.is_breakers_stop = raw == Some(BREAKERS_ZERO);
        let was_in_force = runtime.paused_in_force;
        runtime.paused_in_force =
            knobs.paused && (was_in_force || !knobs.lease_expired(status.at_us));
        if let Some(mode) = state.overrides.over(knobs, seen.now) {
            return self.hand_back(runtime, state, &seen, mode).await;
        }
        if knobs.mode != Mode::Shadow {
            state.shadow = None;
        }
        let calibration = calibration::holds(status, actuator, state.knob);
        if (knobs.mode != Mode::Auto || calibration.is_some())
            && let Some(raw) = raw
        {
            // A rate set by a person meanwhile is where the governor continues, not an edit to
            // hold.
            state.wrote.record(raw);
        }
        let hands_off = hands_off(status, actuator, calibration);
        if hands_off.is_some() || knobs.mode != Mode::Auto {
            // A governor that does not set its knob neither leads nor follows.
            self.parts.sharing.lock().leave(name);
        } else {
            seen.shared = self.parts.sharing.lock().role(name, seen.now);
        }
        if let Some(why) = hands_off {
            let knob = FoundKnob { is_ours, is_edited };
            return self.follow(runtime, state, &seen, &why, knob).await;
        }
        if knobs.mode == Mode::Shadow {
            return self.shadow(runtime, state, &seen).await;
        }
        if !is_ours {
            seen.knob_rps = Some(actuator.setting(status));
        } else if status.lease_expired && !was_in_force && actuator == Actuator::Rps {
            // A lease that lapsed during a pause says nothing about the governor.
            let bounds = throttle.bounds(status);
            state.restart_from(&throttle.policy, bounds, status.effective_rps, seen.now);
        }
        self.govern(runtime, state, &seen).await
    }

    /// Sets the knob by the law.
    async fn govern(
        &self,
        runtime: &mut ThrottleRuntime,
        state: &mut ControlState,
        seen: &Observation,
    ) -> Result<RoundReport, ReconcileError> {
        let (throttle, status, records) = (self.throttle, self.status, &self.parts.records);
        let actuator = throttle.actuator();
        let before = actuator.setting(status);
        let plan = state.tick(&throttle.policy, throttle.bounds(status), seen);
        let shared = crate::governor::shared::tick(state, seen.now);
        let name = throttle.name.as_str();
        self.parts.sharing.lock().post(name, shared);
        let text = actuator.spell(plan.rps);
        // A person's stop stays as they wrote it.
        if !state.stopped {
            state.wrote.record(&text);
        }
        records.save_state(throttle, self.term, state).await?;
        let writer = self.parts.writer(throttle, self.term, status);
        let written = if state.stopped {
            writer.end_lease().await?;
            0
        } else {
            writer.write_if_needed(&text, &plan.reason).await?
        };
        let decision = self.decision(seen, &plan, before, status.knobs.mode);
        records.record(runtime, self.term, decision).await;
        Ok(RoundReport::decided(written))
    }

    /// Decides in a simulation and leaves the knob alone.
    async fn shadow(
        &self,
        runtime: &mut ThrottleRuntime,
        state: &mut ControlState,
        seen: &Observation,
    ) -> Result<RoundReport, ReconcileError> {
        let (throttle, status, records) = (self.throttle, self.status, &self.parts.records);
        let actuator = throttle.actuator();
        let (before, in_force) = (actuator.setting(status), actuator.in_force(status));
        let bounds = throttle.bounds(status);
        let plan = shadow::tick(state, &throttle.policy, bounds, seen, in_force);
        records.save_state(throttle, self.term, state).await?;
        let writer = self.parts.writer(throttle, self.term, status);
        writer.end_lease().await?;
        let decision = self.decision(seen, &plan, before, status.knobs.mode);
        records.record(runtime, self.term, decision).await;
        Ok(RoundReport::decided(0))
    }

    /// Follows a knob that is controlled elsewhere, because of `why`.
    async fn follow(
        &self,
        runtime: &mut ThrottleRuntime,
        state: &mut ControlState,
        seen: &Observation,
        why: &str,
        knob: FoundKnob,
    ) -> Result<RoundReport, ReconcileError> {
        let (throttle, status, records) = (self.throttle, self.status, &self.parts.records);
        let before = RateLimit::new(state.knob);
        let edit = state
            .overrides
            .last
            .as_ref()
            .filter(|_| knob.is_edited)
            .map(|last| format!("; {} set {}", last.who_and_why(), last.what));
        let plan = state.follow(
            &throttle.policy,
            throttle.bounds(status),
            seen,
            throttle.actuator().setting(status),
            Cause::followed(format!("{why}{}", edit.unwrap_or_default())),
        );
        records.save_state(throttle, self.term, state).await?;
        if knob.is_edited {
            let decision = self.decision(seen, &plan, before, status.knobs.mode);
            records.record(runtime, self.term, decision).await;
        }
        let writer = self.parts.writer(throttle, self.term, status);
        if status.knobs.mode != Mode::Auto {
            writer.end_lease().await?;
        }
        // Slots have no lease to keep.
        let written = match throttle.actuator() {
            Actuator::Rps => writer.keep_lease(&plan.reason, knob.is_ours).await?,
            Actuator::Concurrency => 0,
        };
        Ok(RoundReport::decided(written))
    }

    /// Returns to `mode` after a manual mode with an end, continuing from the current rate, and
    /// journals it.
    async fn hand_back(
        &self,
        runtime: &mut ThrottleRuntime,
        state: &mut ControlState,
        seen: &Observation,
        mode: Mode,
    ) -> Result<RoundReport, ReconcileError> {
        let (throttle, status, records) = (self.throttle, self.status, &self.parts.records);
        let (actuator, before) = (throttle.actuator(), RateLimit::new(state.knob));
        let why = format!(
            "manual mode is over{}; back to {}",
            until(&status.knobs).replace(" until", " since"),
            mode.as_str()
        );
        let plan = state.follow(
            &throttle.policy,
            throttle.bounds(status),
            seen,
            actuator.setting(status),
            Cause::HandedBack { why: why.clone() },
        );
        if let Some(text) = actuator.text(&status.raw) {
            state.wrote.record(text);
        }
        records.save_state(throttle, self.term, state).await?;
        let writer = self.parts.writer(throttle, self.term, status);
        if !writer.return_to(mode, &why).await? {
            return Ok(RoundReport::decided(0));
        }
        tracing::info!(throttle.name = %throttle.name, reason = why, "manual mode is over");
        state.overrides.went_back(mode, &why, seen.now);
        records.save_state(throttle, self.term, state).await?;
        let decision = self.decision(seen, &plan, before, mode);
        records.record(runtime, self.term, decision).await;
        Ok(RoundReport::decided(1))
    }

    /// Creates the record of a plan; `before` is the knob that was in force.
    fn decision(&self, seen: &Observation, plan: &Plan, before: RateLimit, mode: Mode) -> Decision {
        Decision::new(self.throttle.name.as_str(), seen.now, plan, before, mode)
    }
}

/// Returns the reason why the governor leaves the knob alone, if any.
fn hands_off(status: &Status, actuator: Actuator, calibration: Option<String>) -> Option<String> {
    let knobs = &status.knobs;
    match knobs.mode {
        Mode::Off => Some("no governor controls this throttle (mode off)".to_owned()),
        Mode::Manual => Some(format!(
            "a person controls this throttle (mode manual{})",
            until(knobs)
        )),
        Mode::Auto | Mode::Shadow if knobs.paused => {
            Some("a person has paused this throttle".to_owned())
        }
        // A capacity bounds rates and not slots, but at 0 no job starts, whatever the knob.
        Mode::Auto | Mode::Shadow if knobs.capacity.is_stopped() => Some(without_capacity(knobs)),
        Mode::Auto => unreadable(status, actuator).or(calibration),
        Mode::Shadow => None,
    }
}

/// Returns the reason why the knob cannot be read, if any; the governor leaves it for a person to
/// correct.
fn unreadable(status: &Status, actuator: Actuator) -> Option<String> {
    let problem = status
        .problems
        .iter()
        .find(|problem| problem.field == actuator.field())?;
    Some(format!("the knob {} {}", actuator.field(), problem.message))
}

/// Returns the reason why nothing is decided while the capacity is 0.
fn without_capacity(knobs: &Knobs) -> String {
    let why = if knobs.capacity_reason.is_empty() {
        "its capacity is 0"
    } else {
        &knobs.capacity_reason
    };
    format!("the system behind this throttle can take nothing ({why})")
}

/// Formats the end of the manual mode for a sentence; empty without an end.
fn until(knobs: &Knobs) -> String {
    knobs.manual_until_ms.map_or_else(String::new, |ms| {
        format!(" until {:.0}", timestamp(ms as f64 / 1e3))
    })
}
