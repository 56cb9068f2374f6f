//! One governed throttle, and what its governor keeps between rounds.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::counters::Counters;
use super::sources::DirectSources;
use crate::governor::actuator::Actuator;
use crate::governor::bounds::Bounds;
use crate::governor::decision::Decision;
use crate::governor::explain::view::GovernorView;
use crate::governor::policy::{Policy, SignalKind};
use crate::governor::state::ControlState;
use crate::governor::watchdogs::ActiveFinding;
use crate::signals::FeedbackMeter;
use crate::throttle::{Knobs, Name, Status};

/// A throttle with a policy.
pub(super) struct GovernedThrottle {
    pub name: Name,
    pub policy: Policy,
    /// The sources that the fast path reads.
    pub direct: DirectSources,
    pub runtime: AsyncMutex<ThrottleRuntime>,
    /// The newest view; `None` in a process that does not lead.
    pub view: Mutex<Option<GovernorView>>,
    /// The errors of the signals' last readings, by signal.
    pub problems: Mutex<BTreeMap<String, String>>,
}

/// The memory between rounds; everything of lasting value is in the state.
#[derive(Default)]
pub(super) struct ThrottleRuntime {
    pub term: Option<u64>,
    pub state: Option<ControlState>,
    /// The time of the next tick, by the store's clock.
    pub due: Option<f64>,
    /// The counters at the last tick.
    pub counters: Option<Counters>,
    /// The counters at the last look of the fast path.
    pub looked: Option<Counters>,
    /// The feedback of the work itself.
    pub meter: FeedbackMeter,
    /// The time up to which the ticks have read the feedback.
    pub heard_to: Option<f64>,
    /// The times of the fast path's newest looks, by signal.
    pub looks: BTreeMap<String, f64>,
    /// True during a pause at whose beginning the lease of the rate was valid.
    pub paused_in_force: bool,
    /// The newest decision that was journaled.
    pub journaled: Option<Decision>,
}

impl ThrottleRuntime {
    /// Returns the time at which the breaker last stopped or restarted the work.
    pub fn acted_at(&self) -> f64 {
        self.state
            .as_ref()
            .map_or(f64::NEG_INFINITY, |state| state.breaker.acted_at)
    }

    /// Returns true if a tick is due at `now`, and schedules the next one a tick later.
    pub fn is_due(&mut self, now: f64, tick_s: f64) -> bool {
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

impl GovernedThrottle {
    /// Creates a throttle that no governor has looked at.
    pub fn new(name: Name, policy: Policy, direct: DirectSources) -> Self {
        Self {
            name,
            policy,
            direct,
            runtime: AsyncMutex::new(ThrottleRuntime::default()),
            view: Mutex::default(),
            problems: Mutex::default(),
        }
    }

    /// Returns the kind of knob that is set.
    pub fn actuator(&self) -> Actuator {
        self.policy.law.actuator
    }

    /// Returns the bounds of the knob, in its own unit.
    pub fn bounds(&self, status: &Status) -> Bounds {
        let Knobs {
            min,
            max,
            safe_rps,
            capacity,
            ..
        } = status.knobs;
        // Above the capacity the knob would only wind up. A capacity of 0 is a stop, and no bound
        // of a rate. A ratio does not wind up, and its quota is that of all accounts: it still
        // applies when those that are away return.
        let is_bound = self.actuator() == Actuator::Rps
            && self
                .policy
                .signals
                .iter()
                .any(|signal| signal.kind != SignalKind::Ratio);
        let max = (capacity.rate())
            .filter(|_| is_bound)
            .map_or(max, |capacity| max.min(capacity));
        // While a typo holds the rate in force at safe_rps, a higher knob would only wind up and
        // open wide with the correction. A safe_rps of 0 leaves `min`, because it bounds no rate.
        let is_careful = self.actuator() == Actuator::Rps && status.is_careful();
        let max = if is_careful {
            max.min(safe_rps.rate().unwrap_or(min))
        } else {
            max
        };
        let safe_rps = safe_rps.number();
        let min = min.min(max);
        self.actuator().bounds(Bounds { min, max, safe_rps })
    }

    /// Shows the state to people, with the errors of the signals' last readings.
    pub fn show(&self, state: &ControlState, status: &Status) {
        let mut view = GovernorView::new(state, &self.policy, status.at_us as f64 / 1e6);
        let problems = self.problems.lock();
        for signal in view.iter_mut().flat_map(|view| &mut view.signals) {
            signal.problem = problems.get(&signal.name).cloned();
        }
        *self.view.lock() = view;
    }

    /// Logs each finding of the watchdogs once at its start and once at its end.
    pub fn log_findings(&self, state: &ControlState, earlier: &[ActiveFinding]) {
        let (begun, ended) = state.watchdogs.since(earlier);
        for found in begun {
            tracing::warn!(throttle.name = %self.name, finding = found.finding.as_str(), "{}", found.sentence);
        }
        for found in ended {
            tracing::info!(throttle.name = %self.name, finding = found.finding.as_str(), "a watchdog finding has ended");
        }
    }
}
