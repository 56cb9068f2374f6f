//! The author of a knob's text: the governor, or a person.

use super::calibration;
use super::knob_writer::GOVERNED_KNOB;
use crate::governor::actuator::{Actuator, BREAKERS_ZERO};
use crate::governor::state::ControlState;
use crate::throttle::Status;

/// Returns true if the governor or a calibration wrote the knob, or if the governor has taken it
/// over from a person; any other text is an edit.
pub(super) fn is_ours(status: &Status, actuator: Actuator, state: &ControlState) -> bool {
    if calibration::wrote(status) {
        return true;
    }
    let Some(raw) = actuator.text(&status.raw) else {
        return false;
    };
    // After a person's stop every rate is a person's too, even the one that the governor had set
    // before: nobody else ends the stop.
    let ends_stop = state.stopped && !actuator.setting(status).is_stopped();
    let governed = status.raw.get(GOVERNED_KNOB).map(String::as_str);
    raw == BREAKERS_ZERO || (!ends_stop && state.wrote.explains(raw, governed))
}
