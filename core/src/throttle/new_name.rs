//! The names that a new throttle may have.

use super::admission::is_of_admission;
use super::api_limit::is_of_the_api;
use super::name::state_part;
use super::{Change, Error, KnobProblem, Name};

/// Returns the part of a name for which no throttle of this name can be made, such as `lane` of
/// `mail:lane`. The names that tenants and the settings of an API give to Flyball's own throttles
/// are left alone.
pub fn refused_part(throttle: &Name) -> Option<&str> {
    let is_own = is_of_admission(throttle.as_str()) || is_of_the_api(throttle.as_str());
    state_part(throttle.as_str()).filter(|_| !is_own)
}

/// Refuses to make a throttle whose knobs a key of another one could overwrite.
pub(super) fn check_new_name(change: &Change, throttle: &Name) -> Result<(), Error> {
    let Some(part) = refused_part(throttle).filter(|_| !change.restores) else {
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
