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
use crate::service::FailureLog;
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
    /// The rounds that failed.
    pub failures: Mutex<FailureLog>,
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
    /// The counters at the last sample of the fast path.
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
            failures: Mutex::default(),
        }
    }

    /// Returns the kind of knob that is set.
    pub fn actuator(&self) -> Actuator {
        self.policy.law.actuator
    }

    /// Returns the bounds of the knob, in its own unit.
    pub fn bounds(&self, status: &Status) -> Bounds {
        bounds(&self.policy, status)
    }

    /// Shows the state to people.
    pub fn show(&self, state: &ControlState, status: &Status) {
        let view = GovernorView::new(state, &self.policy, status.at_us as f64 / 1e6);
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

/// Returns the bounds that `policy` and the knobs set, in the unit of the governed knob.
fn bounds(policy: &Policy, status: &Status) -> Bounds {
    let Knobs {
        min,
        max,
        safe_rps,
        capacity,
        ..
    } = status.knobs;
    let actuator = policy.law.actuator;
    // Above the capacity the knob would only wind up. A capacity of 0 is a stop, and no bound of a
    // rate. A ratio does not wind up, and its quota is that of all accounts: it still applies when
    // those that are away return.
    let is_bound = actuator == Actuator::Rps
        && policy
            .signals
            .iter()
            .any(|signal| signal.kind != SignalKind::Ratio);
    let max = (capacity.rate())
        .filter(|_| is_bound)
        .map_or(max, |capacity| max.min(capacity));
    // While a typo holds the rate in force at safe_rps, a higher knob would only wind up and open
    // wide with the correction. A safe_rps of 0 leaves `min`, because it bounds no rate. A typo in
    // `max` must not raise it to its default.
    let has_no_max = status.problems.iter().any(|problem| problem.field == "max");
    let max = match actuator {
        Actuator::Rps if has_no_max || status.is_careful() => {
            max.min(safe_rps.rate().unwrap_or(min))
        }
        Actuator::Concurrency if has_no_max => max.min(min),
        _ => max,
    };
    let safe_rps = safe_rps.number();
    let min = min.min(max);
    actuator.bounds(Bounds { min, max, safe_rps })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::bucket::UsageCounters;

    #[test]
    fn a_typo_in_max_lifts_no_bound() {
        let most = |policy: &str, max: &str| {
            let fields = [
                ("rps", "80"),
                ("mode", "auto"),
                ("min", "2"),
                ("max", max),
                ("safe_rps", "5"),
            ];
            let raw = fields.map(|(field, text)| (field.to_owned(), text.to_owned()));
            let name = Name::new("reindex").unwrap();
            let status = Status::read(name, raw.into(), &UsageCounters::default(), 1_000_000);
            let policy = Policy::parse(policy, "f").unwrap().unwrap();
            bounds(&policy, &status).max
        };
        let rate = "[[signal]]\nname = \"load\"\nquery = \"q\"\nsetpoint = 1.0\n";
        let slots = "[[signal]]\nname = \"answers\"\nsource = \"feedback\"\nquery = \"latency\"\n\
                     setpoint = 0.1\n[governor]\nactuator = \"concurrency\"\n";
        assert_eq!((most(rate, "100"), most(rate, "1O0")), (100.0, 5.0));
        assert_eq!((most(slots, "100"), most(slots, "1O0")), (100.0, 2.0));
    }
}
