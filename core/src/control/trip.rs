//! The arithmetic of the breaker: trip level, open time and restart rate.

use super::clamp_finite;

/// The re-trip count at which back-off stops growing: the open time is then 16 times the first.
pub const TRIPS_MAX: u32 = 4;

/// Returns a trip level in setpoints: `sigmas` of the signal's noise above the setpoint, but at
/// least `least` and at most `most`.
///
/// A noisy signal has a higher level, so that noise alone never stops the work.
pub fn level(var: f64, sigmas: f64, least: f64, most: f64) -> f64 {
    clamp_finite(1.0 + sigmas * var.max(0.0).sqrt(), least, most)
}

/// Returns the shortest open time in seconds, doubled by every re-trip.
pub fn open_s(first_s: f64, trips: u32) -> f64 {
    first_s * 2f64.powi(trips.min(TRIPS_MAX) as i32)
}

/// Returns the work rate to restart at: the share `share` of the model's room, at most the rate
/// that tripped and at least a twentieth of it before that share, halved by every re-trip.
pub fn restart(tripped: f64, room: Option<f64>, share: f64, trips: u32) -> f64 {
    let modelled = room.map_or(tripped, |room| room.min(tripped));
    modelled.max(0.05 * tripped) * share * 0.5f64.powi(trips.min(TRIPS_MAX) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_raises_the_level_between_its_bounds() {
        assert_eq!(level(0.0, 5.0, 2.0, 4.0), 2.0);
        assert!((level(0.36, 5.0, 2.0, 4.0) - 4.0).abs() < 1e-12);
        assert_eq!(level(f64::NAN, 5.0, 2.0, 4.0), 2.0);
    }

    #[test]
    fn every_retrip_waits_twice_as_long_and_restarts_at_half() {
        assert_eq!(
            [0, 1, 2, 9].map(|n| open_s(20.0, n)),
            [20.0, 40.0, 80.0, 320.0]
        );
        assert_eq!(
            [0, 1].map(|n| restart(100.0, Some(50.0), 0.6, n)),
            [30.0, 15.0]
        );
    }

    #[test]
    fn a_restart_never_exceeds_the_rate_that_tripped() {
        assert_eq!(restart(10.0, Some(1e9), 1.0, 0), 10.0);
        assert_eq!(restart(10.0, Some(0.0), 1.0, 0), 0.5);
    }
}
