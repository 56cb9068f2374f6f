//! The watchdogs of one governor and their findings.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::json;

use super::idle::Idle;
use super::oscillation::Oscillation;
use super::saturation::Saturation;
use super::sharing;
use super::unresponsive::Excursion;
use crate::governor::bounds::Bounds;
use crate::governor::law::Phase;
use crate::governor::law::part::{StatePart, all_finite};
use crate::governor::observation::Observation;
use crate::governor::plan::Plan;
use crate::governor::policy::{ControllerTuning, Policy, SignalKind};
use crate::governor::snapshot::Snapshot;

/// A condition that a watchdog reports.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum Finding {
    /// The rate oscillates by itself.
    Oscillating,
    /// Another governor controls the same signal at the same setpoint.
    Shared,
    /// A signal does not react to the rate.
    Unresponsive,
    /// No allowed rate brings the load to its setpoint.
    Unreachable,
    /// Jobs wait, but not for this throttle.
    Idle,
}

impl Finding {
    /// All findings, in reporting order.
    pub const ALL: [Self; 5] = [
        Self::Oscillating,
        Self::Shared,
        Self::Unresponsive,
        Self::Unreachable,
        Self::Idle,
    ];

    /// Returns the name used in metrics, terms and on the page.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A finding that still holds.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ActiveFinding {
    pub finding: Finding,
    /// The time at which it began, in unix seconds.
    pub since: f64,
    /// One sentence for a person: the finding, the evidence, the remedy.
    pub sentence: String,
}

/// The watchdogs of one governor.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Watchdogs {
    /// The current findings, in the order of [`Finding::ALL`].
    pub found: Vec<ActiveFinding>,
    /// The detector of oscillations of the rate.
    pub oscillation: Oscillation,
    /// The detectors of unresponsive signals, by signal.
    pub excursions: BTreeMap<String, Excursion>,
    /// The detector of setpoints out of reach.
    pub saturation: Saturation,
    /// The detector of jobs that wait for something else.
    pub idle: Idle,
}

impl Watchdogs {
    /// Returns the policy with the gain lowered after an oscillation, and without a model until that is
    /// forgiven.
    pub fn detuned<'a>(&self, policy: &'a Policy) -> Cow<'a, Policy> {
        if self.oscillation.is_forgiven() {
            return Cow::Borrowed(policy);
        }
        let factor = self.oscillation.gain_factor();
        let law = ControllerTuning {
            gain: policy.law.gain * factor,
            // Work that shows later than any model of this kind can tell makes it swing, and does so
            // again when the gain is back.
            model: false,
            ..policy.law.clone()
        };
        Cow::Owned(Policy {
            law,
            ..policy.clone()
        })
    }

    /// Returns the findings that began since `earlier`, and those that ended.
    pub fn since(&self, earlier: &[ActiveFinding]) -> (Vec<ActiveFinding>, Vec<ActiveFinding>) {
        let without = |these: &[ActiveFinding], those: &[ActiveFinding]| {
            these
                .iter()
                .filter(|a| !those.iter().any(|b| a.finding == b.finding))
                .cloned()
                .collect()
        };
        (without(&self.found, earlier), without(earlier, &self.found))
    }

    /// Clears the findings and their evidence while a person controls the knob; the lowered gain
    /// remains.
    pub fn rest(&mut self) {
        self.found.clear();
        self.excursions.clear();
        (self.saturation, self.idle) = (Saturation::default(), Idle::default());
        self.oscillation.interrupt();
    }

    /// Runs one tick on the observation and the newest plan, and returns the current findings with
    /// their sentences.
    pub(in crate::governor) fn look(
        &mut self,
        state: &Snapshot<'_>,
        policy: &Policy,
        bounds: Bounds,
        seen: &Observation,
        now: f64,
    ) -> Vec<(Finding, String)> {
        let Some(plan) = state.plan else {
            return Vec::new();
        };
        let loop_s = loop_s(state, policy);
        let blind = plan.limiting == "stale" || plan.limiting == "start";
        let held = blind || state.stopped || state.hold.is_some();
        let mut findings = Vec::new();
        let mut report = |finding: Finding, sentence: Option<String>| {
            findings.extend(sentence.map(|sentence| (finding, sentence)))
        };

        if held || plan.limiting == "idle" || plan.limiting == "week" {
            self.oscillation.interrupt();
        } else {
            self.oscillation.step(now, state.u, loop_s);
        }
        self.oscillation.rest(now, loop_s);
        report(
            Finding::Oscillating,
            self.oscillation
                .sentence(state.work.w, state.actuator.unit()),
        );
        report(
            Finding::Shared,
            sharing::sentence(seen.shared.as_ref(), state.links),
        );

        self.excursions
            .retain(|name, _| policy.signal(name).is_some());
        for (signal, about) in state.signals.iter().zip(&policy.signals) {
            let excursion = self.excursions.entry(about.name.clone()).or_default();
            let idle = plan.breaker == Phase::Closed && plan.limiting == "idle";
            if held || idle || about.kind == SignalKind::Ratio {
                *excursion = Excursion::default();
                continue;
            }
            if signal.front.seen == Some(now)
                && let Some(at) = signal.front.at
            {
                let own_s = signal.front.lag_s + signal.front.gap_s + (now - at).max(0.0);
                let v = state.history.mean(at - own_s, at);
                excursion.step(at, signal.front.x, signal.front.z.min(1e6), v, own_s);
            }
            report(
                Finding::Unresponsive,
                excursion.sentence(about, state.work.w, state.actuator.unit()),
            );
        }

        if held {
            self.saturation = Saturation::default();
        } else {
            self.saturation
                .step(state, policy, bounds, seen.limiting_share, now);
        }
        report(
            Finding::Unreachable,
            self.saturation.sentence(state, policy, bounds, now),
        );

        if held || plan.breaker == Phase::Open {
            self.idle = Idle::default();
        } else {
            self.idle.step(now, state.knob, seen);
        }
        report(
            Finding::Idle,
            self.idle.sentence(now, state.knob, state.actuator, seen),
        );
        findings
    }

    /// Stores the current findings and adds them to the plan: the full sentence at the start, the
    /// name while one lasts.
    pub(in crate::governor) fn update_findings(
        &mut self,
        findings: Vec<(Finding, String)>,
        now: f64,
        plan: &mut Plan,
    ) {
        let before = std::mem::take(&mut self.found);
        for finding in Finding::ALL {
            let sentences: Vec<String> = findings
                .iter()
                .filter(|(f, _)| *f == finding)
                .map(|(_, s)| s.clone())
                .collect();
            if sentences.is_empty() {
                continue;
            }
            let since = before
                .iter()
                .find(|found| found.finding == finding)
                .map_or(now, |found| found.since);
            self.found.push(ActiveFinding {
                finding,
                since,
                sentence: sentences.join("; "),
            });
        }
        let (begun, ended) = self.since(&before);
        let lasting: Vec<&str> = self
            .found
            .iter()
            .filter(|f| f.since < now)
            .map(|f| f.finding.as_str())
            .collect();
        begun.iter().for_each(|found| {
            plan.reason += &format!("; {}: {}", found.finding.as_str(), found.sentence)
        });
        if !lasting.is_empty() {
            plan.reason += &format!("; still {}", lasting.join(", "));
        }
        ended
            .iter()
            .for_each(|found| plan.reason += &format!("; no longer {}", found.finding.as_str()));
        if !self.found.is_empty() {
            let words: Vec<&str> = self
                .found
                .iter()
                .map(|found| found.finding.as_str())
                .collect();
            plan.terms.insert("findings".to_owned(), json!(words));
        }
        if self.oscillation.gain_factor() < 1.0 {
            plan.terms.insert(
                "gain_factor".to_owned(),
                json!(self.oscillation.gain_factor()),
            );
        }
    }
}

impl StatePart for Watchdogs {
    fn shift(&mut self, by_s: f64) {
        self.found.iter_mut().for_each(|found| found.since += by_s);
        self.excursions.clear();
        (self.saturation, self.idle) = (Saturation::default(), Idle::default());
        self.oscillation.shift(by_s);
    }

    fn is_sound(&self) -> bool {
        all_finite(self.found.iter().map(|found| found.since))
    }
}

/// Returns the loop time in seconds, from a change of the knob until the slowest signal shows it in
/// full: the average, the spacing and the delay of its samples, and our own tick.
fn loop_s(state: &Snapshot<'_>, policy: &Policy) -> f64 {
    let each = state.signals.iter().filter_map(|signal| {
        let late_s = (signal.front.seen? - signal.front.at?).max(0.0);
        Some(signal.front.lag_s + signal.front.gap_s + late_s)
    });
    policy.law.tick_s + each.fold(0.0, f64::max).min(3600.0)
}
