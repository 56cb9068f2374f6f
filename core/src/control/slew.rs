//! Slew limits of a logarithmic rate: slow upwards, immediate downwards; and the slow decay while
//! there are no readings.

/// Returns `wanted`, limited to a rise by the factor `up_per_min` per minute above `previous`; a
/// fall is not limited.
pub fn rise(previous: f64, wanted: f64, up_per_min: f64, dt_s: f64) -> f64 {
    wanted.min(previous + up_per_min.ln() * dt_s / 60.0)
}

/// Returns `value` lowered so that the rate halves every `half_s` seconds, down to `floor`; a value
/// already below the floor is returned unchanged.
pub fn decay(value: f64, floor: f64, half_s: f64, dt_s: f64) -> f64 {
    if value <= floor {
        value
    } else {
        (value - std::f64::consts::LN_2 * dt_s / half_s).max(floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_grows_at_most_fourfold_a_minute_and_falls_at_once() {
        let mut u = 0.0;
        for _ in 0..12 {
            u = rise(u, 100.0, 4.0, 5.0);
        }
        assert!((u - 4f64.ln()).abs() < 1e-12);
        assert_eq!(rise(u, -3.0, 4.0, 5.0), -3.0);
    }

    #[test]
    fn decay_halves_then_rests_on_the_floor_and_never_rises() {
        let mut u = 8f64.ln();
        for _ in 0..12 {
            u = decay(u, 0.0, 60.0, 5.0);
        }
        assert!((u - 4f64.ln()).abs() < 1e-12);
        assert_eq!(decay(u, 4f64.ln() - 1e-3, 60.0, 5.0), 4f64.ln() - 1e-3);
        assert_eq!(decay(-2.0, 0.0, 60.0, 5.0), -2.0);
    }
}
