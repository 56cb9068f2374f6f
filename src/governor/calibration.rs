//! A calibration has the knob: the governor keeps its hands off, and takes it back when it ends or dies.
//!
//! Who calibrates writes `by`, and keeps the lease of the knob alive. Without a lease nothing would be said by the mark any more:
//! a calibration that was killed leaves the throttle at `safe_rps` by itself, and to the governor, as one does that died.

use super::actuator::Actuator;
use crate::throttle::Status;

/// What stands in the knob `by` while a calibration turns the knob.
pub const TURNS: &str = "calibrate";
/// What stands there when it has put the rate back.
pub const ENDED: &str = "calibrate, ended";

/// True if a calibration has the knob, or died with it.
pub(super) fn wrote(status: &Status) -> bool {
    status.knobs.by == TURNS
}

/// Why the governor keeps its hands off, if it must; `followed` is the rate that it knows of. A calibration turns rates only.
pub(super) fn holds(status: &Status, actuator: Actuator, followed: f64) -> Option<String> {
    if actuator != Actuator::Rps {
        return None;
    }
    match status.knobs.by.as_str() {
        TURNS if !status.lease_lapsed => Some("a calibration turns this throttle".to_owned()),
        ENDED if status.knobs.rps != followed => Some("a calibration has ended; the governor goes on from here".to_owned()),
        _ => None,
    }
}
