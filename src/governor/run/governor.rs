//! The governor's loop: read the throttle and the signals, plan, persist, set the knob, journal.
//!
//! The leader calls [`Governor::tick`] every second and [`Governor::fast`] twice as often, with its
//! term; a tick acts on a throttle when its policy's `tick_s` has passed. Nothing is retried here:
//! the next call reads the complete state again.
//!
//! The clock is the throttle store's, so a wrong local clock does no harm. Order of a tick: the
//! state is saved first (fenced by the term, with the text that is about to be written), then the
//! knob is set (fenced by the term, and only if unchanged meanwhile), then the decision is
//! journaled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, broadcast};

use super::calibration;
use super::counters::Counters;
use super::postgres::{Error as JournalError, Journal};
use super::sources::{self, DirectSources, Sources};
use crate::governor::actuator::{Actuator, BREAKERS_ZERO, limited_by_slots};
use crate::governor::bounds::Bounds;
use crate::governor::decision::Decision;
use crate::governor::explain::view::GovernorView;
use crate::governor::manual_override::GOVERNOR;
use crate::governor::observation::{Observation, SignalSample};
use crate::governor::plan::Plan;
use crate::governor::policy::{Policy, SignalKind};
use crate::governor::shadow;
use crate::governor::state::ControlState;
use crate::governor::time::timestamp;
use crate::governor::watchdogs::{ActiveFinding, Sharing};
use crate::signals::{self, DepthSource, FeedbackMeter, FeedbackSource, Prometheus};
use crate::throttle::bucket::slower;
use crate::throttle::{self, Change, Knobs, Mode, Name, Status, Store};

/// The share of the lease at which an unchanged knob is written again.
const RENEW_AT: f64 = 0.7;

/// A copy of the `rps` or `concurrency` that a governor last wrote, stored atomically with it.
///
/// If the two differ, a person has edited the knob, even if the state could not be saved.
const GOVERNED_KNOB: &str = "governed";

/// The number of decisions by which a slow listener may lag.
const LISTENER_BEHIND: usize = 256;

/// The governor of all throttles that have a policy.
pub struct Governor {
    store: Arc<dyn Store>,
    journal: Journal,
    sources: Sources,
    throttles: Vec<GovernedThrottle>,
    sharing: Mutex<Sharing>,
    decisions: broadcast::Sender<Decision>,
    /// The latest term found in a knob without a valid lease.
    seen_term: AtomicU64,
}

/// The result of a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundReport {
    /// The number of throttles decided on.
    pub decided: usize,
    /// The number of knobs written.
    pub written: usize,
    /// The number of trips of the fast path.
    pub tripped: usize,
    /// True if a look of the fast path was above a trip level; the next one decides.
    pub alarmed: bool,
    /// True if another process leads: the given term is over.
    pub fenced: bool,
    /// The errors, by throttle.
    pub problems: Vec<(Name, String)>,
}

/// The reason why a throttle could not be governed this time.
#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    #[error(transparent)]
    Store(#[from] throttle::Error),
    #[error("{0}: {source}", source = std::error::Error::source(.0).map_or_else(String::new, ToString::to_string))]
    Journal(#[from] JournalError),
}

struct GovernedThrottle {
    name: Name,
    policy: Policy,
    eyes: DirectSources,
    desk: AsyncMutex<ThrottleRuntime>,
    view: Mutex<Option<GovernorView>>,
    problems: Mutex<BTreeMap<String, String>>,
}

/// The memory between rounds; everything of lasting value is in the state.
#[derive(Default)]
struct ThrottleRuntime {
    term: Option<u64>,
    state: Option<ControlState>,
    /// The time of the next tick, by the store's clock.
    due: Option<f64>,
    counters: Option<Counters>,
    looked: Option<Counters>,
    /// The feedback of the work itself.
    meter: FeedbackMeter,
    /// The time up to which the ticks have read the feedback.
    heard_to: Option<f64>,
    /// The times of the fast path's newest looks, by signal.
    looks: BTreeMap<String, f64>,
    kept: Option<Decision>,
}

impl ThrottleRuntime {
    /// Returns the time at which the breaker last stopped or restarted the work.
    fn acted_at(&self) -> f64 {
        self.state
            .as_ref()
            .map_or(f64::NEG_INFINITY, |state| state.breaker.acted_at)
    }

    /// Returns true if a tick is due at `now`, and schedules the next one a tick later.
    fn is_due(&mut self, now: f64, tick_s: f64) -> bool {
        // A slightly early call counts as due, or the caller's own jitter would skip every other
        // tick. A due time more than a tick away was set by a clock that has since been corrected.
        if self
            .due
            .is_some_and(|due| now < due - 0.2 && due - now <= tick_s)
        {
            return false;
        }
        self.due = Some(
            self.due
                .filter(|due| (due - now).abs() < 0.5 * tick_s)
                .unwrap_or(now)
                + tick_s,
        );
        true
    }
}

impl Governor {
    /// Creates a governor of `policies` with signals from the Prometheus at `prometheus_url`, from
    /// `depth` and from `feedback`.
    pub fn new(
        store: Arc<dyn Store>,
        journal: Journal,
        prometheus_url: &str,
        depth: DepthSource,
        policies: Vec<(Name, Policy)>,
        feedback: FeedbackSource,
    ) -> Result<Self, signals::Error> {
        let sources = Sources::new(Prometheus::new(prometheus_url)?)
            .with_depth(depth)
            .with_feedback(feedback);
        Self::with(store, journal, sources, policies)
    }

    /// Creates a governor of `policies` with all its sources; fails if a policy names one that is
    /// not among them.
    pub fn with(
        store: Arc<dyn Store>,
        journal: Journal,
        sources: Sources,
        policies: Vec<(Name, Policy)>,
    ) -> Result<Self, signals::Error> {
        let governed = |(name, policy): (Name, Policy)| {
            let eyes = sources.eyes(&policy)?;
            let desk = AsyncMutex::new(ThrottleRuntime::default());
            Ok(GovernedThrottle {
                name,
                policy,
                eyes,
                desk,
                view: Mutex::default(),
                problems: Mutex::default(),
            })
        };
        let sharing = Sharing::of(
            policies
                .iter()
                .map(|(name, policy)| (name.as_str(), policy)),
        );
        for (throttle, signal, with) in sharing.shared_signals() {
            let with = with.join(", ");
            tracing::warn!(
                throttle.name = throttle,
                signal,
                with,
                "a signal has several governors; one follows"
            );
        }
        let throttles = policies
            .into_iter()
            .map(governed)
            .collect::<Result<_, signals::Error>>()?;
        let (decisions, seen_term) = (broadcast::channel(LISTENER_BEHIND).0, AtomicU64::new(0));
        Ok(Self {
            store,
            journal,
            sources,
            throttles,
            sharing: Mutex::new(sharing),
            decisions,
            seen_term,
        })
    }

    /// Subscribes to the decisions as they are made.
    pub fn decisions(&self) -> broadcast::Receiver<Decision> {
        self.decisions.subscribe()
    }

    /// Returns the governed throttles and their policies.
    pub fn policies(&self) -> impl Iterator<Item = (&Name, &Policy)> {
        self.throttles.iter().map(|t| (&t.name, &t.policy))
    }

    /// Returns a view of every governor as of `now` (unix seconds); empty in a process that does
    /// not lead.
    pub fn snapshot(&self, now: f64) -> BTreeMap<Name, GovernorView> {
        let view = |t: &GovernedThrottle| {
            let mut view = lock(&t.view).clone()?;
            view.age(now);
            Some((t.name.clone(), view))
        };
        self.throttles.iter().filter_map(view).collect()
    }

    /// Returns the latest term above ours found in a knob without a valid lease; 0 for none.
    pub fn seen_term(&self) -> u64 {
        self.seen_term.load(Ordering::Relaxed)
    }

    /// Returns true if the knobs can be reached, which a leader must write.
    pub async fn reaches_knobs(&self) -> bool {
        match self.throttles.first() {
            Some(throttle) => self.store.status(&throttle.name).await.is_ok(),
            None => true,
        }
    }

    /// Discards this process's state when it no longer leads; the stored state is the next
    /// leader's.
    pub async fn rest(&self) {
        for throttle in &self.throttles {
            *throttle.desk.lock().await = ThrottleRuntime::default();
            *lock(&throttle.view) = None;
        }
    }

    /// Decides for every throttle whose tick is due.
    ///
    /// Call it every second.
    pub async fn tick(&self, term: u64) -> RoundReport {
        self.round(
            self.throttles.iter().map(|t| self.tick_one(t, term)),
            "tick",
        )
        .await
    }

    /// Runs the breaker's fast path: one direct look at every signal that does not pass through
    /// Prometheus.
    ///
    /// Call it every half second, and sooner after an alarm.
    pub async fn fast(&self, term: u64) -> RoundReport {
        let seen = self
            .throttles
            .iter()
            .filter(|t| sources::can_look(&t.policy));
        self.round(seen.map(|t| self.fast_one(t, term)), "fast path")
            .await
    }

    async fn round<F: Future<Output = (Name, Result<RoundReport, ReconcileError>)>>(
        &self,
        work: impl Iterator<Item = F>,
        what: &str,
    ) -> RoundReport {
        let mut total = RoundReport::default();
        for (name, outcome) in join_all(work).await {
            match outcome {
                Ok(one) => {
                    total.decided += one.decided;
                    total.written += one.written;
                    total.tripped += one.tripped;
                    total.alarmed |= one.alarmed;
                }
                Err(trouble) => {
                    total.fenced |= matches!(
                        &trouble,
                        ReconcileError::Journal(JournalError::Fenced { .. })
                    );
                    tracing::warn!(throttle.name = %name, error = %trouble, "the governor's {what} failed");
                    total.problems.push((name, trouble.to_string()));
                }
            }
        }
        total
    }

    async fn tick_one(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
    ) -> (Name, Result<RoundReport, ReconcileError>) {
        (throttle.name.clone(), self.try_tick(throttle, term).await)
    }

    async fn fast_one(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
    ) -> (Name, Result<RoundReport, ReconcileError>) {
        (throttle.name.clone(), self.try_fast(throttle, term).await)
    }

    async fn try_tick(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
    ) -> Result<RoundReport, ReconcileError> {
        let Some(status) = self.store.status(&throttle.name).await? else {
            return Ok(self.unknown(throttle));
        };
        self.is_over(throttle, term, &status)?;
        let now = status.at_us as f64 / 1e6;
        if !throttle
            .desk
            .lock()
            .await
            .is_due(now, throttle.policy.law.tick_s)
        {
            return Ok(RoundReport::default());
        }
        // Signals are read without locking the desk, so that a slow Prometheus never delays the
        // fast path.
        let told = self
            .sources
            .worker_feedback(&throttle.policy, throttle.name.as_str())
            .await;
        let name = throttle.name.as_str();
        let (readings, ready) = tokio::join!(
            self.read(throttle, now, told.is_some()),
            self.sources.ready(name)
        );
        let Some(status) = self.store.status(&throttle.name).await? else {
            return Ok(self.unknown(throttle));
        };

        let mut desk = throttle.desk.lock().await;
        self.take_up(throttle, &mut desk, term, &status).await?;
        if let Some(told) = &told {
            desk.meter.take_in(told, now);
        }
        let seen = observe(
            &throttle.policy,
            &mut desk,
            &status,
            readings,
            told.is_some(),
            ready,
        );
        let Some(mut state) = desk.state.take() else {
            return Ok(RoundReport::default());
        };
        let found = state.watchdogs.found.clone();
        let outcome = self
            .decide(throttle, &mut desk, term, &status, &mut state, seen)
            .await;
        log_findings(throttle, &state, &found);
        *lock(&throttle.view) = self.view(throttle, &state, &status);
        if !matches!(
            outcome,
            Err(ReconcileError::Journal(JournalError::Fenced { .. }))
        ) {
            desk.state = Some(state);
        } else {
            *desk = ThrottleRuntime::default();
        }
        outcome
    }

    /// Plans according to the throttle's mode and carries the plan out.
    async fn decide(
        &self,
        throttle: &GovernedThrottle,
        desk: &mut ThrottleRuntime,
        term: u64,
        status: &Status,
        state: &mut ControlState,
        mut seen: Observation,
    ) -> Result<RoundReport, ReconcileError> {
        let (policy, knobs, bounds) = (&throttle.policy, &status.knobs, bounds(throttle, status));
        let actuator = policy.law.actuator;
        let raw = actuator.text(&status.raw);
        let governed = status.raw.get(GOVERNED_KNOB).map(String::as_str);
        let mine = raw
            .is_some_and(|raw| raw == BREAKERS_ZERO || state.is_ours(raw) || governed == Some(raw))
            || calibration::wrote(status);
        let turned = state.overrides.see(knobs, actuator, raw, mine, seen.now);
        if let Some(mode) = state.overrides.over(knobs, seen.now) {
            return self
                .hand_back(throttle, desk, term, status, state, &seen, mode)
                .await;
        }
        if knobs.mode != Mode::Shadow {
            state.shadow = None;
        }
        let hands_off = match knobs.mode {
            Mode::Off => Some("no governor controls this throttle (mode off)".to_owned()),
            Mode::Manual => Some(format!(
                "a person controls this throttle (mode manual{})",
                until(knobs)
            )),
            Mode::Auto | Mode::Shadow if knobs.paused => {
                Some("a person has paused this throttle".to_owned())
            }
            // A pool's capacity is a rate; it does not apply to slots.
            Mode::Auto | Mode::Shadow if knobs.capacity == 0.0 => Some(without_capacity(knobs)),
            Mode::Auto => unreadable(status, actuator)
                .or_else(|| calibration::holds(status, actuator, state.knob)),
            Mode::Shadow => None,
        };
        if (knobs.mode != Mode::Auto || calibration::holds(status, actuator, state.knob).is_some())
            && let Some(raw) = raw
        {
            // A rate set by a person meanwhile is where the governor continues, not an edit to
            // hold.
            state.will_write(raw);
        }
        if hands_off.is_some() || knobs.mode != Mode::Auto {
            // A governor that does not set its knob neither leads nor follows.
            lock(&self.sharing).leave(throttle.name.as_str());
        } else {
            seen.shared = lock(&self.sharing).role(throttle.name.as_str(), seen.now);
        }
        if let Some(why) = hands_off {
            let before = state.knob;
            let turn = state
                .overrides
                .last
                .as_ref()
                .filter(|_| turned)
                .map(|last| format!("; {} set {}", last.who_and_why(), last.what));
            let plan = state.follow(
                policy,
                bounds,
                &seen,
                actuator.setting(status),
                &format!("{why}{}", turn.unwrap_or_default()),
            );
            self.save_state(throttle, term, state).await?;
            if turned {
                self.journal(
                    throttle,
                    desk,
                    term,
                    Decision::new(throttle.name.as_str(), seen.now, &plan, before, knobs.mode),
                )
                .await;
            }
            self.end_lease(throttle, term, status).await?;
            let written = self.keep_lease(throttle, term, status, &plan, mine).await?;
            return Ok(RoundReport {
                decided: 1,
                written,
                ..RoundReport::default()
            });
        }
        if knobs.mode == Mode::Auto {
            if !mine {
                seen.knob_rps = Some(actuator.setting(status));
            } else if status.lease_lapsed && actuator == Actuator::Rps {
                state.restart_from(policy, bounds, status.effective_rps, seen.now);
            }
        }
        let before = actuator.setting(status);
        let plan = match knobs.mode {
            Mode::Shadow => shadow::tick(state, policy, bounds, &seen, actuator.in_force(status)),
            _ => state.tick(policy, bounds, &seen),
        };
        if knobs.mode == Mode::Auto {
            lock(&self.sharing).post(throttle.name.as_str(), state.shared_tick(seen.now));
        }
        let written = match knobs.mode {
            // A person's stop stays as they wrote it.
            Mode::Auto if !state.stopped => self.turn(throttle, term, status, state, &plan).await?,
            _ => {
                self.save_state(throttle, term, state).await?;
                self.end_lease(throttle, term, status).await?;
                0
            }
        };
        self.journal(
            throttle,
            desk,
            term,
            Decision::new(throttle.name.as_str(), seen.now, &plan, before, knobs.mode),
        )
        .await;
        Ok(RoundReport {
            decided: 1,
            written,
            ..RoundReport::default()
        })
    }

    /// Returns to `mode` after a manual mode with an end, continuing from the current rate, and
    /// journals it.
    #[expect(
        clippy::too_many_arguments,
        reason = "a branch of `decide` that needs its context"
    )]
    async fn hand_back(
        &self,
        throttle: &GovernedThrottle,
        desk: &mut ThrottleRuntime,
        term: u64,
        status: &Status,
        state: &mut ControlState,
        seen: &Observation,
        mode: Mode,
    ) -> Result<RoundReport, ReconcileError> {
        let (knobs, before) = (&status.knobs, state.knob);
        let why = format!(
            "manual mode is over{}; back to {}",
            until(knobs).replace(" until", " since"),
            mode.as_str()
        );
        let actuator = throttle.policy.law.actuator;
        let plan = state.hand_back(
            &throttle.policy,
            bounds(throttle, status),
            seen,
            actuator.setting(status),
            &why,
        );
        let rps = actuator.text(&status.raw).map(str::to_owned);
        rps.iter().for_each(|rps| state.will_write(rps));
        self.save_state(throttle, term, state).await?;
        let mut fields = BTreeMap::from([
            ("mode".to_owned(), Some(mode.as_str().to_owned())),
            ("manual_until_ms".to_owned(), None),
            ("valid_until".to_owned(), None),
        ]);
        if mode == Mode::Auto && actuator == Actuator::Rps {
            fields.insert(
                "valid_until".to_owned(),
                Some(lease_until_ms(throttle, status).to_string()),
            );
        }
        let (by, if_seq) = (GOVERNOR.to_owned(), Some(knobs.seq));
        let change = Change {
            fields,
            term: Some(term),
            if_seq,
            by,
            why: why.clone(),
            ..unturned(actuator, rps)
        };
        match self.store.set(&throttle.name, &change).await {
            Ok(_) => {}
            // A person was faster: their change is read at the next tick.
            Err(throttle::Error::Conflict { .. }) => {
                return Ok(RoundReport {
                    decided: 1,
                    ..RoundReport::default()
                });
            }
            Err(error) => return Err(error.into()),
        }
        tracing::info!(throttle.name = %throttle.name, reason = why, "manual mode is over");
        state.overrides.went_back(mode, &why, seen.now);
        self.save_state(throttle, term, state).await?;
        self.journal(
            throttle,
            desk,
            term,
            Decision::new(throttle.name.as_str(), seen.now, &plan, before, mode),
        )
        .await;
        Ok(RoundReport {
            decided: 1,
            written: 1,
            ..RoundReport::default()
        })
    }

    /// Renews the lease of our own rate while the capacity is 0, so that work later resumes at that
    /// rate and not at the safe one.
    async fn keep_lease(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
        status: &Status,
        plan: &Plan,
        mine: bool,
    ) -> Result<usize, ReconcileError> {
        let knobs = &status.knobs;
        let is_ours = mine && knobs.mode == Mode::Auto && !knobs.paused && knobs.capacity == 0.0;
        match status
            .raw
            .get("rps")
            .filter(|_| is_ours && !status.lease_lapsed && !is_fresh(throttle, term, status))
        {
            Some(rps) => self.write(throttle, term, status, plan, rps).await,
            None => Ok(0),
        }
    }

    /// Removes a lease left behind by a person's own `HSET` of the mode: long lapsed, it would
    /// count again as soon as they hand the throttle back.
    ///
    /// The recorded author and reason stay unchanged.
    async fn end_lease(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
        status: &Status,
    ) -> Result<(), ReconcileError> {
        if status.knobs.mode == Mode::Auto || !status.raw.contains_key("valid_until") {
            return Ok(());
        }
        let fields = BTreeMap::from([("valid_until".to_owned(), None)]);
        let (by, why) = (status.knobs.by.clone(), status.knobs.why.clone());
        let change = Change {
            fields,
            term: Some(term),
            if_seq: Some(status.knobs.seq),
            by,
            why,
            ..Change::default()
        };
        match self.store.set(&throttle.name, &change).await {
            Ok(_) | Err(throttle::Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn try_fast(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
    ) -> Result<RoundReport, ReconcileError> {
        let Some(status) = self.store.status(&throttle.name).await? else {
            return Ok(RoundReport::default());
        };
        self.is_over(throttle, term, &status)?;
        if !matches!(status.knobs.mode, Mode::Auto | Mode::Shadow) || status.knobs.paused {
            return Ok(RoundReport::default());
        }
        let now = status.at_us as f64 / 1e6;
        let (told, mut looks) = tokio::join!(
            self.sources
                .worker_feedback(&throttle.policy, throttle.name.as_str()),
            self.sources.look(&throttle.policy, &throttle.eyes, now)
        );

        let mut desk = throttle.desk.lock().await;
        if desk.term != Some(term) {
            return Ok(RoundReport::default());
        }
        let counters = Counters::of(&status);
        let flow = desk
            .looked
            .and_then(|earlier| counters.since(&earlier))
            .map(|flow| flow.achieved_rps);
        desk.looked = Some(counters);
        if let Some(told) = &told {
            desk.meter.take_in(told, now);
            looks.extend(sources::overheard(
                &throttle.policy,
                &desk.meter,
                desk.acted_at(),
            ));
        }
        let achieved = match throttle.policy.law.actuator {
            Actuator::Rps => flow,
            Actuator::Concurrency => desk.meter.running(),
        };
        // Two looks at the same sample count once.
        looks.retain(|look| {
            desk.looks
                .insert(look.signal.clone(), look.at)
                .is_none_or(|before| look.at > before)
        });
        let Some(mut state) = desk.state.take() else {
            return Ok(RoundReport::default());
        };
        let plan = match status.knobs.mode {
            Mode::Shadow => shadow::fast(
                &mut state,
                &throttle.policy,
                bounds(throttle, &status),
                now,
                &looks,
            ),
            _ => state.fast(
                &throttle.policy,
                bounds(throttle, &status),
                now,
                achieved,
                &looks,
            ),
        };
        let outcome = match plan {
            None => Ok(RoundReport {
                alarmed: state.signals.iter().any(|signal| signal.alarms > 0),
                ..RoundReport::default()
            }),
            Some(plan) => {
                self.stop(throttle, &mut desk, term, &status, &mut state, plan)
                    .await
            }
        };
        if outcome.as_ref().is_ok_and(|report| report.tripped > 0) {
            *lock(&throttle.view) = self.view(throttle, &state, &status);
        }
        desk.state = Some(state);
        outcome
    }

    /// Carries out a trip: the knob first, everything else after.
    async fn stop(
        &self,
        throttle: &GovernedThrottle,
        desk: &mut ThrottleRuntime,
        term: u64,
        status: &Status,
        state: &mut ControlState,
        plan: Plan,
    ) -> Result<RoundReport, ReconcileError> {
        tracing::warn!(throttle.name = %throttle.name, reason = %plan.reason, "the breaker tripped");
        let written = if status.knobs.mode == Mode::Auto {
            self.write(throttle, term, status, &plan, BREAKERS_ZERO)
                .await?
        } else {
            0
        };
        let now = status.at_us as f64 / 1e6;
        let before = throttle.policy.law.actuator.setting(status);
        let decision = Decision::new(
            throttle.name.as_str(),
            now,
            &plan,
            before,
            status.knobs.mode,
        );
        self.save_state(throttle, term, state).await?;
        self.journal(throttle, desk, term, decision).await;
        Ok(RoundReport {
            decided: 1,
            written,
            tripped: 1,
            ..RoundReport::default()
        })
    }

    /// Saves the state, then sets the knob if it must change or its lease must be renewed.
    async fn turn(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
        status: &Status,
        state: &mut ControlState,
        plan: &Plan,
    ) -> Result<usize, ReconcileError> {
        let actuator = throttle.policy.law.actuator;
        let text = actuator.spell(plan.rps);
        state.will_write(&text);
        self.save_state(throttle, term, state).await?;
        if actuator.text(&status.raw) == Some(&text) && is_fresh(throttle, term, status) {
            return Ok(0);
        }
        self.write(throttle, term, status, plan, &text).await
    }

    async fn write(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
        status: &Status,
        plan: &Plan,
        text: &str,
    ) -> Result<usize, ReconcileError> {
        let actuator = throttle.policy.law.actuator;
        // Slots have no lease: without a governor they keep their last value.
        let until_ms =
            (actuator == Actuator::Rps).then(|| lease_until_ms(throttle, status).to_string());
        let text = || Some(text.to_owned());
        let change = Change {
            fields: [
                (actuator.field(), text()),
                (GOVERNED_KNOB, text()),
                ("valid_until", until_ms),
            ]
            .map(|(field, text)| (field.to_owned(), text))
            .into(),
            term: Some(term),
            by: GOVERNOR.to_owned(),
            why: plan.reason.clone(),
            ..unturned(actuator, actuator.text(&status.raw).map(str::to_owned))
        };
        match self.store.set(&throttle.name, &change).await {
            Ok(_) => Ok(1),
            // A person was faster: their rate is adopted at the next tick.
            Err(throttle::Error::Conflict { what, .. }) => {
                tracing::info!(throttle.name = %throttle.name, what, "the knob was changed concurrently");
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Saves the state.
    ///
    /// Only a later leader's term is an error: an outage of Postgres must not stop the governor.
    async fn save_state(
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
                tracing::warn!(throttle.name = %throttle.name, %error, "saving the governor's state failed");
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Journals a decision if it is news, and sends it to the listeners.
    async fn journal(
        &self,
        throttle: &GovernedThrottle,
        desk: &mut ThrottleRuntime,
        term: u64,
        mut decision: Decision,
    ) {
        if !decision.is_news_after(desk.kept.as_ref()) {
            return;
        }
        match self.journal.append(term, &decision).await {
            Ok(id) => decision.id = id,
            Err(error) => {
                tracing::warn!(throttle.name = %throttle.name, %error, "recording a decision failed")
            }
        }
        // A send without listeners is no error.
        let _ = self.decisions.send(decision.clone());
        desk.kept = Some(decision);
    }

    /// Fails if a later leader has written this knob, which is how a process without Postgres
    /// detects it.
    fn is_over(
        &self,
        throttle: &GovernedThrottle,
        term: u64,
        status: &Status,
    ) -> Result<(), JournalError> {
        if status.knobs.term > term {
            let is_renewed = status
                .knobs
                .valid_until_ms
                .is_some_and(|until| until > status.at_us / 1000);
            if !is_renewed {
                // No leader has that term: the database that counts terms was restored from an
                // older copy.
                self.seen_term
                    .fetch_max(status.knobs.term, Ordering::Relaxed);
            }
            return Err(JournalError::Fenced {
                throttle: throttle.name.to_string(),
                term,
            });
        }
        Ok(())
    }

    /// Loads the state at the beginning of a term, or begins at the knob in force.
    async fn take_up(
        &self,
        throttle: &GovernedThrottle,
        desk: &mut ThrottleRuntime,
        term: u64,
        status: &Status,
    ) -> Result<(), ReconcileError> {
        if desk.term == Some(term) && desk.state.is_some() {
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
        let due = desk.due;
        *desk = ThrottleRuntime {
            term: Some(term),
            due,
            ..ThrottleRuntime::default()
        };
        desk.kept = self.journal.recent(Some(name), 1).await?.pop();
        desk.state = stored
            .and_then(|(_, stored)| ControlState::resume(stored, &throttle.policy, now))
            .or_else(|| {
                let actuator = throttle.policy.law.actuator;
                let raw = actuator.text(&status.raw);
                let bounds = bounds(throttle, status);
                let has_lapsed = status.lease_lapsed && actuator == Actuator::Rps;
                // A breaker's stop without its state continues from the lowest rate, not as a manual
                // stop.
                let rate = if raw == Some(BREAKERS_ZERO) && !has_lapsed {
                    bounds.min
                } else {
                    actuator.start(status, bounds)
                };
                let mut state = ControlState::new(&throttle.policy, bounds, rate, now);
                state.will_write(raw.unwrap_or_default());
                Some(state)
            });
        Ok(())
    }

    /// Reads every signal; a failure is recorded for people and yields no reading.
    async fn read(
        &self,
        throttle: &GovernedThrottle,
        now: f64,
        is_told: bool,
    ) -> Vec<SignalSample> {
        let outcomes = self
            .sources
            .read(&throttle.policy, &throttle.eyes, now, is_told)
            .await;
        let mut problems = lock(&throttle.problems);
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
                    let told = error.to_string();
                    // Logged once, not every tick.
                    if problems.get(&about.name) != Some(&told) {
                        tracing::warn!(throttle.name = %throttle.name, signal = about.name, error = told, "no reading");
                    }
                    problems.insert(about.name.clone(), told);
                }
            }
        }
        samples
    }

    fn view(
        &self,
        throttle: &GovernedThrottle,
        state: &ControlState,
        status: &Status,
    ) -> Option<GovernorView> {
        let mut view = GovernorView::new(state, &throttle.policy, status.at_us as f64 / 1e6)?;
        let problems = lock(&throttle.problems);
        view.signals
            .iter_mut()
            .for_each(|signal| signal.problem = problems.get(&signal.name).cloned());
        Some(view)
    }

    fn unknown(&self, throttle: &GovernedThrottle) -> RoundReport {
        *lock(&throttle.view) = None;
        RoundReport::default()
    }
}

/// Collects the observation since the last tick.
fn observe(
    policy: &Policy,
    desk: &mut ThrottleRuntime,
    status: &Status,
    mut readings: Vec<SignalSample>,
    is_told: bool,
    waiting: Option<f64>,
) -> Observation {
    let counters = Counters::of(status);
    let flow = desk.counters.and_then(|earlier| counters.since(&earlier));
    let span_s = desk
        .meter
        .at()
        .map(|at| sources::span_s(policy, at, desk.heard_to))
        .filter(|span_s| *span_s > 0.0);
    let step = span_s
        .and_then(|span_s| desk.meter.over(span_s))
        .map(|span| span.work);
    readings.extend(sources::feedback_samples(
        policy,
        &desk.meter,
        desk.heard_to,
        desk.acted_at(),
    ));
    let discounted =
        step.is_some_and(|step| step.untimed > 0.0 && 2.0 * step.untimed >= step.completed);
    let idle = is_told && span_s.is_some_and(|span_s| desk.meter.is_idle(span_s));
    (desk.counters, desk.heard_to) = (Some(counters), desk.meter.at());
    let (achieved, limiting) = match policy.law.actuator {
        Actuator::Rps => (
            flow.map(|flow| flow.achieved_rps),
            flow.map(|flow| flow.limited_by(slower(status.knobs.rps, status.knobs.capacity))),
        ),
        Actuator::Concurrency => {
            let in_use = desk.meter.running().filter(|_| is_told);
            (
                in_use,
                in_use.map(|in_use| {
                    limited_by_slots(in_use, status.knobs.concurrency as f64, waiting)
                }),
            )
        }
    };
    Observation {
        now: status.at_us as f64 / 1e6,
        readings,
        achieved_rps: achieved,
        limiting_share: limiting,
        waiting,
        mean_duration_s: step.and_then(|step| step.mean_duration_s()),
        completed: step.map_or(0.0, |step| step.completed),
        rejected: step.map_or(0.0, |step| step.refused),
        idle,
        discounted,
        capacity_rps: Some(status.knobs.capacity)
            .filter(|rps| *rps >= 0.0 && policy.law.actuator == Actuator::Rps),
        ..Observation::default()
    }
}

/// Logs each finding of the watchdogs once at its start and once at its end.
fn log_findings(throttle: &GovernedThrottle, state: &ControlState, earlier: &[ActiveFinding]) {
    let (begun, ended) = state.watchdogs.since(earlier);
    for found in begun {
        tracing::warn!(throttle.name = %throttle.name, finding = found.finding.as_str(), "{}", found.sentence);
    }
    for found in ended {
        tracing::info!(throttle.name = %throttle.name, finding = found.finding.as_str(), "a watchdog finding has ended");
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

fn bounds(throttle: &GovernedThrottle, status: &Status) -> Bounds {
    let Knobs {
        min,
        max,
        safe_rps,
        capacity,
        ..
    } = status.knobs;
    // Above the capacity the knob would only wind up. A capacity of 0 is a stop, and no bound of a
    // rate. A ratio does not wind up, and its quota is that of all accounts: it still applies when
    // those that are away return.
    let is_bound = capacity > 0.0
        && throttle.policy.law.actuator == Actuator::Rps
        && throttle
            .policy
            .signals
            .iter()
            .any(|signal| signal.kind != SignalKind::Ratio);
    let max = if is_bound { max.min(capacity) } else { max };
    let min = min.min(max);
    throttle
        .policy
        .law
        .actuator
        .bounds(Bounds { min, max, safe_rps })
}

/// Returns the reason why nothing is decided while the capacity is 0.
fn without_capacity(knobs: &Knobs) -> String {
    let why = if knobs.capacity_why.is_empty() {
        "its capacity is 0"
    } else {
        &knobs.capacity_why
    };
    format!("the system behind this throttle can take nothing ({why})")
}

/// Returns true if the knob was written in this term and its lease need not be renewed yet.
///
/// The first tick of a term always writes, so that writes of earlier terms are refused from then
/// on.
fn is_fresh(throttle: &GovernedThrottle, term: u64, status: &Status) -> bool {
    let lease_ms = throttle.policy.law.lease_s() * 1e3;
    let left_ms = status
        .knobs
        .valid_until_ms
        .map_or(0.0, |until| until as f64 - status.at_us as f64 / 1e3);
    let is_in_force = match throttle.policy.law.actuator {
        Actuator::Rps => left_ms > RENEW_AT * lease_ms,
        // A lease left over from a governed rate would lapse.
        Actuator::Concurrency => !status.raw.contains_key("valid_until"),
    };
    is_in_force && status.knobs.term == term
}

/// Creates a change that is refused if the knob no longer has the value `text`.
fn unturned(actuator: Actuator, text: Option<String>) -> Change {
    match actuator {
        Actuator::Rps => Change {
            if_rps: text,
            ..Change::default()
        },
        Actuator::Concurrency => Change {
            if_concurrency: text,
            ..Change::default()
        },
    }
}

/// Returns the time at which a knob written now lapses, in unix milliseconds.
fn lease_until_ms(throttle: &GovernedThrottle, status: &Status) -> i64 {
    status.at_us / 1000 + (throttle.policy.law.lease_s() * 1e3) as i64
}

/// Formats the end of the manual mode for a sentence; empty without an end.
fn until(knobs: &Knobs) -> String {
    knobs.manual_until_ms.map_or_else(String::new, |ms| {
        format!(" until {:.0}", timestamp(ms as f64 / 1e3))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> parking_lot::MutexGuard<'_, T> {
    mutex.lock()
}
