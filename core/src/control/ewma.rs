//! First-order smoothing, in the two forms that the control law uses.

/// Returns one Euler step of a first-order lag: `value` moves towards `target` by `dt_s / tau_s`,
/// never past it.
///
/// This is the cheap form for a fixed tick; the tracking of the PID's integral is defined by it.
pub fn toward(value: f64, target: f64, dt_s: f64, tau_s: f64) -> f64 {
    value + (target - value) * super::clamp_finite(dt_s / tau_s, 0.0, 1.0)
}

/// Returns the exact first-order lag over `dt_s`, for samples at uneven intervals.
pub fn smooth(value: f64, target: f64, dt_s: f64, tau_s: f64) -> f64 {
    value + (target - value) * (1.0 - (-dt_s.max(0.0) / tau_s.max(1e-3)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_form_passes_its_target() {
        for dt in [0.0, 0.1, 5.0, 60.0, 1e9] {
            for form in [toward, smooth] {
                let value = form(1.0, 3.0, dt, 60.0);
                assert!((1.0..=3.0).contains(&value), "{dt}: {value}");
            }
        }
    }

    #[test]
    fn smoothing_in_two_parts_equals_smoothing_at_once() {
        let parts = smooth(smooth(1.0, 2.0, 4.0, 10.0), 2.0, 6.0, 10.0);
        assert!((parts - smooth(1.0, 2.0, 10.0, 10.0)).abs() < 1e-12);
    }
}
