//! The author of a knob's text: the governor, or a person.

use super::calibration;
use super::knob_writer::GOVERNED_KNOB;
use crate::governor::actuator::{Actuator, BREAKERS_ZERO};
use crate::governor::state::ControlState;
use crate::throttle::{Status, rules};

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
    // So is every text in place of one that cannot be read, which the governor leaves to a person.
    let before = state
        .overrides
        .text()
        .filter(|text| !text.is_empty() && *text != raw);
    let corrects = before.is_some_and(|text| rules::number(actuator.field(), text).is_none());
    let governed = status.raw.get(GOVERNED_KNOB).map(String::as_str);
    let is_theirs = ends_stop || corrects;
    raw == BREAKERS_ZERO || (!is_theirs && state.wrote.explains(raw, governed))
}
