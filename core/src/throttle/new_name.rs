//! The names that a new throttle may have.

use super::missing::refused_part;
use super::{Change, Error, KnobProblem, Name};

/// Refuses to make a throttle whose knobs a key of another one could overwrite.
pub(super) fn check_new_name(change: &Change, throttle: &Name) -> Result<(), Error> {
    let Some(part) = refused_part(throttle.as_str()).filter(|_| !change.restores) else {
        return Ok(());
    };
    let message = format!(
        "{throttle} has the part {part}, under which the throttle named before it stores the state of its keys; allowed: a new name without a part lane, pause, learned or holds after a colon"
    );
    Err(Error::Invalid(vec![KnobProblem {
        field: "name".to_owned(),
        message,
    }]))
}
