//! Stability margins of a loop, computed from its fit.
//!
//! In the log domain the loop is, without the predictor and at full gain,
//!
//! ```text
//! L(s) = kc*K * (1 + Ti*s)/(Ti*s) * exp(-D*s) / (1 + lag*s)
//! ```
//!
//! `K` is our share of the load; the gain is divided by it. `D` is the sum of the dead time, half
//! the spacing of the samples, the time until a sample is seen, and half a tick.

use super::fit::Fit;
use crate::governor::law::pid_controller::{LAG_MAX_MIN, SHARE_OVER};
use crate::governor::policy::ControllerTuning;

/// A loop's margins.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Margins {
    /// Gain margin: the factor on the loop's gain at which it would begin to oscillate.
    pub gain: f64,
    /// Phase margin: the additional phase lag at which the loop would begin to oscillate, in
    /// degrees.
    pub phase_deg: f64,
}

/// Returns the margins of the law on a fitted loop if the policy sets `lag_s`. Samples are
/// `spacing_s` apart and seen `late_s` after their time, both in seconds.
pub fn margins(
    fit: &Fit,
    law: &ControllerTuning,
    lag_s: f64,
    spacing_s: f64,
    late_s: f64,
) -> Margins {
    let lag = lag_s.max(law.integral_min_s);
    let share = (1.0 - fit.background).clamp(0.0, 1.0);
    let gain = law.gain * (lag / 60.0).min(LAG_MAX_MIN) * share / share.clamp(SHARE_OVER, 1.0);
    let dead_s = fit.dead_time_s + late_s + 0.5 * (spacing_s + law.tick_s);
    let size = |w: f64| {
        gain * (1.0 + (lag * w).powi(2)).sqrt() / (lag * w) / (1.0 + (fit.lag_s * w).powi(2)).sqrt()
    };
    let angle = |w: f64| {
        (lag * w).atan() - std::f64::consts::FRAC_PI_2 - dead_s * w - (fit.lag_s * w).atan()
    };
    // The frequencies reach from a cycle in some ten hours to one in half a second.
    let w = |n: u32| 1e-4 * 1.01f64.powi(i32::try_from(n).unwrap_or(0));
    let frequencies = || (0..1200).map(w);
    let gain = frequencies()
        .find(|&w| angle(w) <= -std::f64::consts::PI)
        .map_or(f64::INFINITY, |w| 1.0 / size(w));
    let phase = frequencies()
        .find(|&w| size(w) <= 1.0)
        .map_or(180.0, |w| 180.0 + angle(w).to_degrees());
    Margins {
        gain,
        phase_deg: phase,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lag_s: f64, dead_time_s: f64, background: f64) -> Fit {
        let (drift_per_hour, cost, cost_error, share) = (0.0, 0.01, 0.02, 1.0);
        Fit {
            lag_s,
            dead_time_s,
            background,
            drift_per_hour,
            cost,
            cost_error,
            share,
            rate_at_setpoint: 75.0,
            noise: 0.1,
            samples: 90,
        }
    }

    #[test]
    fn a_loop_that_is_all_integral_has_the_margins_of_the_textbook() {
        // Ti equal to the lag cancels it: L = kc/(Ti*s) * exp(-D*s), whose gain margin is pi/2 *
        // Ti/(kc*D).
        let law = ControllerTuning {
            tick_s: 5.0,
            gain: 1.2,
            ..ControllerTuning::default()
        };
        let margins = margins(&found(60.0, 0.0, 0.0), &law, 60.0, 15.0, 10.0);
        let expected = std::f64::consts::FRAC_PI_2 * 60.0 / (1.2 * 20.0);
        assert!(
            (margins.gain / expected - 1.0).abs() < 0.02,
            "{margins:?}, {expected}"
        );
        assert!(
            (margins.phase_deg - (90.0 - (1.2f64 / 60.0 * 20.0).to_degrees())).abs() < 1.0,
            "{margins:?}"
        );
    }

    #[test]
    fn what_is_later_or_told_to_be_slower_than_it_is_is_nearer_to_swinging() {
        let law = ControllerTuning::default();
        let of = |fit: Fit, lag_s: f64| margins(&fit, &law, lag_s, 15.0, 5.0);
        let plain = of(found(60.0, 0.0, 0.2), 60.0);
        let late = of(found(60.0, 60.0, 0.2), 60.0);
        let wrong = of(found(10.0, 0.0, 0.2), 60.0);
        assert!(
            late.gain < 0.5 * plain.gain && late.phase_deg < plain.phase_deg,
            "{late:?} {plain:?}"
        );
        assert!(wrong.gain < 0.5 * plain.gain, "{wrong:?} {plain:?}");
    }
}
