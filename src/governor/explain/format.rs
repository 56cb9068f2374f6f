//! Numbers and durations in sentences.

/// Formats a value for people: three digits, no trailing zeros.
pub fn number(value: f64) -> String {
    let text = match value.abs() {
        a if a == 0.0 || (99.95..1e9).contains(&a) => return format!("{value:.0}"),
        a if a >= 1e9 => return format!("{value:.2e}"),
        a if a >= 9.995 => format!("{value:.1}"),
        a if a >= 0.01 => format!("{value:.2}"),
        _ => return format!("{value:.2e}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a duration in seconds for people.
pub fn seconds(value: f64) -> String {
    match value.max(0.0) {
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7170.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// Describes a trip of the breaker by the signal `by`, empty if it was not recorded, at a height in
/// setpoints.
pub fn tripped(by: &str, height: f64) -> String {
    match by {
        "" => "the leader before tripped it and could not record the signal".to_owned(),
        by => format!("{by} rose to {} x its setpoint", number(height)),
    }
}
