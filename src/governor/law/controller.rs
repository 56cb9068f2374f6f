//! The choice of a control law by the kind of signal.

use super::part::StatePart;
use super::pid_controller::PidController;
use super::quota_controller::QuotaController;
use crate::governor::policy::SignalKind;

/// The controller of one signal.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// Holds a load or a latency at its setpoint.
    Pid(PidController),
    /// Stays just below a quota that refusals reveal.
    Quota(QuotaController),
}

impl Controller {
    /// Creates the controller of a signal of this kind that tracks the log work rate `u`; `ti_s` is
    /// its first integral time, in seconds.
    pub fn new(kind: SignalKind, u: f64, ti_s: f64) -> Self {
        match kind {
            SignalKind::Ratio => Self::Quota(QuotaController::new(u)),
            SignalKind::Load | SignalKind::Latency => Self::Pid(PidController::new(u, ti_s)),
        }
    }

    /// Returns true if it is the law for this kind of signal.
    pub fn fits(&self, kind: SignalKind) -> bool {
        matches!(self, Self::Quota(_)) == (kind == SignalKind::Ratio)
    }

    /// Returns the PID controller of a load or a latency.
    pub fn pid(&self) -> Option<&PidController> {
        match self {
            Self::Pid(pid) => Some(pid),
            Self::Quota(_) => None,
        }
    }

    /// Returns the PID controller of a load or a latency, to change it.
    pub fn pid_mut(&mut self) -> Option<&mut PidController> {
        match self {
            Self::Pid(pid) => Some(pid),
            Self::Quota(_) => None,
        }
    }

    /// Returns the quota controller of a refused share.
    pub fn quota(&self) -> Option<&QuotaController> {
        match self {
            Self::Pid(_) => None,
            Self::Quota(quota) => Some(quota),
        }
    }

    /// Returns the quota controller of a refused share, to change it.
    pub fn quota_mut(&mut self) -> Option<&mut QuotaController> {
        match self {
            Self::Pid(_) => None,
            Self::Quota(quota) => Some(quota),
        }
    }

    /// Returns the integral: the log work rate without the terms of this moment.
    pub fn integral(&self) -> f64 {
        match self {
            Self::Pid(pid) => pid.pid.integral,
            Self::Quota(quota) => quota.integral,
        }
    }

    /// Returns true once its rate rests on a sample.
    pub fn has_rate(&self) -> bool {
        match self {
            Self::Pid(pid) => pid.started,
            Self::Quota(quota) => quota.started || quota.quota.is_some(),
        }
    }

    /// Multiplies rates by `factor` after the unit of work changed.
    pub fn scale(&mut self, factor: f64) {
        match self {
            Self::Pid(pid) => pid.scale(factor),
            Self::Quota(quota) => quota.scale(factor),
        }
    }
}

impl StatePart for Controller {
    fn shift(&mut self, by_s: f64) {
        match self {
            Self::Pid(pid) => pid.shift(by_s),
            Self::Quota(quota) => quota.shift(by_s),
        }
    }

    fn is_sound(&self) -> bool {
        match self {
            Self::Pid(pid) => pid.is_sound(),
            Self::Quota(quota) => quota.is_sound(),
        }
    }
}
