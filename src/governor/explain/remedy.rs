//! The commands that let the jobs of a stopped throttle go on.

use crate::throttle::Knobs;

/// Returns the command that ends a pause.
pub fn resume(name: &str) -> String {
    format!("resume it with: flyball throttle resume {name}")
}

/// Returns the command that sets a knob which is 0.
pub fn set(name: &str, field: &str) -> String {
    let what = if field == "rps" { "rate" } else { "number" };
    format!("set a {what} with: flyball throttle set {name} {field}=10")
}

/// Returns the command for a rate of 0, to stand behind its author; empty for any other rate.
pub fn of_zero(name: &str, knobs: &Knobs) -> String {
    if knobs.rps.is_stopped() {
        format!("; {}", set(name, "rps"))
    } else {
        String::new()
    }
}
