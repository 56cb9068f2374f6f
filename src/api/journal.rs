//! The governor's journal: its decisions, and the state of every governor.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::read_error::ReadError;
use crate::throttle;

/// The governor's decisions, read from its journal.
pub trait Decisions: Send + Sync + 'static {
    /// Returns the last decisions, newest first; those of all throttles if none is named.
    fn recent<'a>(
        &'a self,
        throttle: Option<&'a str>,
        limit: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>>;

    /// Returns the state of every governor, by throttle, in one read, because it is called each
    /// second.
    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorState>, ReadError>>;

    /// Returns the reason for the throttle's rate, in one sentence; `None` leaves the explanation
    /// to the knobs.
    fn why<'a>(
        &'a self,
        status: &'a throttle::Status,
    ) -> BoxFuture<'a, Result<Option<String>, ReadError>>;
}

/// One decision of a governor.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Decision {
    /// The number of the decision; later decisions have higher numbers.
    pub id: i64,
    /// The throttle of the decision.
    pub throttle: String,
    /// The time of the decision.
    pub at: Timestamp,
    /// The rate that the governor set, in tokens per second.
    pub rps: Option<f64>,
    /// The rate before the decision, in tokens per second.
    pub previous_rps: Option<f64>,
    /// The state of the breaker: `closed`, `half_open` or `open`.
    pub breaker: Option<String>,
    /// The throttle's mode at that time.
    pub mode: Option<String>,
    /// The signal that limits, if there is one.
    pub limiting: Option<String>,
    /// The reason, in one sentence.
    pub reason: Option<String>,
    /// Readings, terms and clamps, as recorded by the governor.
    pub terms: Value,
}

/// The state of a governor.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct GovernorState {
    /// The knob that the governor sets: `rps` or `concurrency`.
    #[schema(example = "rps")]
    pub actuator: String,
    /// The unit of that knob: `rps` (tokens per second) or `slots` (jobs at once). Every rate here
    /// is in this unit.
    #[schema(example = "rps")]
    pub unit: String,
    /// The value that the governor chose; in shadow mode the value that it would set.
    pub rps: f64,
    /// The state of the breaker: `closed`, `half_open` or `open`.
    pub breaker: String,
    /// The signal that limits, if there is one.
    pub limiting: Option<String>,
    /// The reason for the rate, in one sentence.
    pub reason: String,
    /// The time of the last decision.
    pub at: Timestamp,
    /// The last trip of the breaker; in shadow mode the last simulated one.
    pub last_trip: Option<Trip>,
    /// The last edit of the mode or the rate outside the governor.
    pub hand: Option<ManualOverrideState>,
    /// The comparison of the governor's own rate with the actual one, in shadow mode.
    pub shadow: Option<ShadowState>,
    /// The findings of the watchdogs that still hold.
    pub findings: Vec<FindingState>,
    /// The factor that the watchdogs apply to the gain: 1, 0.5 or 0.25.
    pub gain_factor: f64,
    /// The signals that the governor reads.
    pub signals: Vec<SignalState>,
}

/// A trip of a breaker.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Trip {
    /// The time of the trip.
    pub at: Timestamp,
    /// The signal that tripped it.
    pub by: String,
    /// The reading, in multiples of the setpoint.
    pub height: f64,
}

/// An edit of the mode or the rate outside the governor.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Hand)]
pub struct ManualOverrideState {
    /// The knob that was edited.
    #[schema(example = "mode manual, rps 30")]
    pub what: String,
    /// The author of the edit, if known.
    pub by: Option<String>,
    /// The time of the edit.
    pub at: Timestamp,
    /// The reason for the edit; empty if none was given.
    pub why: String,
}

/// The comparison of the governor's own rate with the actual one since shadow mode began. The `own`
/// figures come from the governor's model.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = Shadow)]
pub struct ShadowState {
    /// The time at which shadow mode began.
    pub since: Timestamp,
    /// The time that was compared, in seconds.
    pub seconds: f64,
    /// Jobs that were granted.
    pub jobs: f64,
    /// Jobs that its own rate would have granted.
    pub own_jobs: f64,
    /// The load above its setpoint over time, in setpoints times seconds.
    pub overload_s: f64,
    /// The overload at its own rate, in setpoints times seconds.
    pub own_overload_s: f64,
    /// The highest load, in multiples of the setpoint.
    pub peak: f64,
    /// The highest load at its own rate, in multiples of the setpoint.
    pub own_peak: f64,
    /// The load now, in multiples of the setpoint; `null` while nothing is read.
    pub load: Option<f64>,
    /// The load now at its own rate, in multiples of the setpoint.
    pub own_load: Option<f64>,
    /// Seconds in which it would have granted fewer jobs.
    pub lower_s: f64,
    /// Seconds in which it would have granted more jobs.
    pub higher_s: f64,
    /// Seconds in which its breaker would have been open.
    pub stopped_s: f64,
    /// Share of the time above the setpoint in which it would have reduced the rate; `null` without
    /// such a time.
    pub braked_share: Option<f64>,
    /// The comparison in one sentence.
    pub sentence: String,
}

/// A finding of a watchdog of a governor.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct FindingState {
    /// The kind of the finding: `oscillating`, `shared`, `deaf`, `unreachable` or `idle`.
    pub finding: String,
    /// The time since which the finding holds.
    pub since: Timestamp,
    /// The finding, its evidence and its remedy, in one sentence.
    pub sentence: String,
}

/// One signal of a governor.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct SignalState {
    /// The name of the signal.
    pub name: String,
    /// The kind of the signal: `load`, `latency` or `ratio`.
    pub kind: String,
    /// The last reading; `null` if there was none.
    pub value: Option<f64>,
    /// The target of the reading.
    pub setpoint: f64,
    /// The threshold of the breaker.
    pub trip: Option<f64>,
    /// The time of the reading itself.
    pub at: Option<Timestamp>,
    /// Age of the reading at the time of this answer, in seconds.
    pub age_s: Option<f64>,
    /// True if the reading is too old or unusable.
    pub stale: bool,
    /// The rate for which the signal asks; `null` before its first reading.
    pub ask_rps: Option<f64>,
    /// The unpublished quota that refusals have revealed; `null` for other signals and before the
    /// first refusal.
    pub learned_quota: Option<QuotaState>,
}

/// A quota learned from refusals.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
#[schema(as = LearnedQuota)]
pub struct QuotaState {
    /// The throughput within the quota, in tokens per second (or slots, if the governor sets
    /// `concurrency`).
    pub rps: f64,
    /// The time of the newest refusal, from which the quota was learned.
    pub at: Timestamp,
    /// The share of requests that was refused then, 0 to 1.
    pub refused_share: f64,
}

/// An empty journal, for processes without a governor and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDecisions;

impl Decisions for NoDecisions {
    fn recent<'a>(
        &'a self,
        _: Option<&'a str>,
        _: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorState>, ReadError>> {
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    fn why<'a>(
        &'a self,
        _: &'a throttle::Status,
    ) -> BoxFuture<'a, Result<Option<String>, ReadError>> {
        Box::pin(async { Ok(None) })
    }
}
