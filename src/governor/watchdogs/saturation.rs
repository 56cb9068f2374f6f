//! Setpoints out of reach: the lowest allowed rate is still too much, or the highest far too
//! little.

use crate::governor::bounds::Bounds;
use crate::governor::explain::format::{number, seconds};
use crate::governor::law::Phase;
use crate::governor::policy::{Policy, SignalKind};
use crate::governor::snapshot::Snapshot;

/// The load at the lowest rate above which it is too much, in setpoints.
const OVERLOADED: f64 = 1.1;
/// The load at the lowest rate below which it is no longer too much, in setpoints.
const OVER_ENDS: f64 = 1.0;
/// The load at the highest rate below which every load is far from its setpoint, in setpoints.
const UNDER: f64 = 0.5;
/// The load at the highest rate above which it is no longer far from its setpoint, in setpoints.
const UNDER_ENDS: f64 = 0.6;
/// The duration at the lowest rate before it is reported, in seconds.
const LOW_S: f64 = 900.0;
/// The duration at the highest rate before it is reported, in seconds.
const HIGH_S: f64 = 1800.0;
/// The share of the time with waiters above which the throttle counts as used.
const USED_SHARE: f64 = 0.5;
/// The ratio to a bound within which a rate counts as at it.
const BOUND_TOLERANCE: f64 = 1.01;

/// Detects a rate that stays at a bound without bringing the load to its setpoint.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Saturation {
    /// The time since which the rate is at its lowest, or stopped by the breaker, with a load above
    /// its setpoint.
    low_since: Option<f64>,
    /// The time since which the rate is at its highest with every load far below its setpoint.
    high_since: Option<f64>,
}

impl Saturation {
    /// Runs one tick, after the knob was decided on.
    pub(in crate::governor) fn step(
        &mut self,
        state: &Snapshot<'_>,
        policy: &Policy,
        bounds: Bounds,
        limiting_share: Option<f64>,
        now: f64,
    ) {
        let bounds = bounds.sound();
        let stopped = state.breaker.phase == Phase::Open;
        let lowest = stopped || state.knob <= bounds.min * BOUND_TOLERANCE;
        let over = if self.low_since.is_some() {
            OVER_ENDS
        } else {
            OVERLOADED
        };
        let too_much = highest(state, policy).is_some_and(|(_, x)| x > over);
        self.low_since = (lowest && too_much).then(|| self.low_since.unwrap_or(now));

        let used = limiting_share.is_some_and(|share| share > USED_SHARE);
        let under = if self.high_since.is_some() {
            UNDER_ENDS
        } else {
            UNDER
        };
        let too_little = highest(state, policy).is_some_and(|(_, x)| x < under);
        let highest = !stopped && state.knob * BOUND_TOLERANCE >= bounds.max;
        self.high_since = (highest && used && too_little).then(|| self.high_since.unwrap_or(now));
    }

    /// Returns the sentence for a person.
    pub(in crate::governor) fn sentence(
        &self,
        state: &Snapshot<'_>,
        policy: &Policy,
        bounds: Bounds,
        now: f64,
    ) -> Option<String> {
        let (n, x) = highest(state, policy)?;
        let (about, bounds) = (&policy.signals[n], bounds.sound());
        let amount = |knob: f64| state.actuator.amount(&number(knob));
        let reads = format!(
            "{} stays near {} (setpoint {})",
            about.name,
            number(x * about.setpoint),
            number(about.setpoint)
        );
        if let Some(since) = self.low_since.filter(|since| now - since >= LOW_S) {
            let at = if state.breaker.phase == Phase::Open {
                "the breaker has stopped all work".to_owned()
            } else {
                format!("the rate has been at min, {},", amount(bounds.min))
            };
            return Some(format!(
                "{at} for {} and {reads}: other callers cause this load; check them, or raise the \
                 setpoint if this load is acceptable",
                seconds(now - since)
            ));
        }
        let since = self.high_since.filter(|since| now - since >= HIGH_S)?;
        Some(format!(
            "the rate has been at max, {}, for {} and {reads}: raise max if the system can \
             take more, or check that the signal is the right one",
            amount(bounds.max),
            seconds(now - since)
        ))
    }
}

/// Returns the index of the load highest relative to its setpoint, and its filtered value in
/// setpoints.
fn highest(state: &Snapshot<'_>, policy: &Policy) -> Option<(usize, f64)> {
    let loads = policy
        .signals
        .iter()
        .enumerate()
        .filter(|(_, about)| about.kind != SignalKind::Ratio);
    let read = loads.filter_map(|(n, _)| {
        state
            .signals
            .get(n)
            .filter(|s| s.front.at.is_some())
            .map(|s| (n, s.front.xf))
    });
    read.max_by(|a, b| a.1.total_cmp(&b.1))
}
