//! Calibration: the governor leaves the knob to a running calibration, and takes it back when that
//! ends or dies.
//!
//! A calibration writes `by` and renews the lease of the knob. Without a lease the mark no longer
//! counts: a killed calibration leaves the throttle at `safe_rps`, and to the governor, as a dead
//! governor does.

use crate::governor::actuator::Actuator;
use crate::throttle::Status;

/// The value of the knob `by` while a calibration sets the rate.
pub const CALIBRATION_ACTOR: &str = "calibrate";
/// The value of the knob `by` after a calibration has restored the rate.
pub const ENDED: &str = "calibrate, ended";

/// Returns true if a calibration controls the knob, or died while it did.
pub(super) fn wrote(status: &Status) -> bool {
    status.knobs.by == CALIBRATION_ACTOR
}

/// Returns the reason why the governor must leave the knob alone, if any; `followed` is the rate
/// that it knows of.
///
/// Calibrations apply to rates only.
pub(super) fn holds(status: &Status, actuator: Actuator, followed: f64) -> Option<String> {
    if actuator != Actuator::Rps {
        return None;
    }
    match status.knobs.by.as_str() {
        CALIBRATION_ACTOR if !status.lease_expired => {
            Some("a calibration controls this throttle".to_owned())
        }
        ENDED if status.knobs.rps.number() != followed => {
            Some("a calibration has ended; the governor continues from here".to_owned())
        }
        _ => None,
    }
}
