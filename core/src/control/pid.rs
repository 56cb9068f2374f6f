//! The PID controller of one signal: the crate `pid` computes the terms, this wrapper handles the
//! time step, the integral and the hand-over.
//!
//! The crate has no time step, cannot be seeded and has no tracking input, so a loop that is not
//! selected, is clamped or is taken over by another process would wind up or jump. Here its
//! integral is reset before every call and only this tick's step is taken from it; the integral
//! itself is a lag of the *applied* value (external reset):
//!
//! ```text
//! I   += (applied - I) * min(dt / Ti, 1)
//! out  = I + Kc*e + Kc*dt/Ti*e - Kc*Td/dt*(y - y_prev),      e = 1 - y
//! ```
//!
//! The integral follows the output through every later limit, so wind-up is impossible by
//! construction.

/// The limit of every term of the crate, in nats: a factor of 22,000 in the rate, far beyond any
/// step.
const TERM_MAX: f64 = 10.0;

/// The gains of one call; `kc` is dimensionless (nats per unit of relative error), the others are
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    /// The proportional gain.
    pub kc: f64,
    /// The integral time, also the time constant of the external reset.
    pub ti_s: f64,
    /// The derivative time.
    pub td_s: f64,
}

/// The three terms of one call, in nats; `i` is this call's step of the integral.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Terms {
    /// The proportional term.
    pub p: f64,
    /// The integral part of this step.
    pub i: f64,
    /// The derivative term.
    pub d: f64,
}

/// The controller's state between calls: its integral (a logarithmic rate) and the previous
/// measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LogPid {
    /// The integral, a lag of the applied output.
    pub integral: f64,
    /// The previous measurement; `None` makes the next derivative term zero.
    pub previous: Option<f64>,
}

impl LogPid {
    /// Runs one tick: tracks the `applied` output, then returns the wanted output and its terms for
    /// the measurement `y`.
    ///
    /// A measurement that is not finite changes nothing and returns the applied output (hold).
    pub fn next(&mut self, gains: Gains, y: f64, applied: f64, dt_s: f64) -> (f64, Terms) {
        if !y.is_finite() {
            return (applied, Terms::default());
        }
        let terms = terms(gains, self.previous, y, dt_s);
        self.previous = Some(y);
        self.integral = super::ewma::toward(self.integral, applied, dt_s, gains.ti_s);
        (self.integral + terms.p + terms.i + terms.d, terms)
    }

    /// Makes the current output equal to `output` at measurement `y`, so that a start, hand-over or
    /// restart causes no bump.
    pub fn rebase(&mut self, kc: f64, y: f64, output: f64) {
        self.integral = output - kc * (1.0 - y);
        self.previous = Some(y);
    }
}

/// Returns the crate's terms for one call.
///
/// A fresh controller is built and primed each time, so that the two fields of [`LogPid`] are the
/// whole state and can be stored.
fn terms(gains: Gains, previous: Option<f64>, y: f64, dt_s: f64) -> Terms {
    let mut pid = pid::Pid::<f64>::new(1.0, TERM_MAX);
    if let Some(previous) = previous.filter(|y| y.is_finite()) {
        pid.next_control_output(previous);
    }
    pid.reset_integral_term();
    pid.p(gains.kc, TERM_MAX)
        .i(gains.kc * dt_s / gains.ti_s, TERM_MAX)
        .d(gains.kc * gains.td_s / dt_s, TERM_MAX);
    let out = pid.next_control_output(y);
    Terms {
        p: out.p,
        i: out.i,
        d: out.d,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAINS: Gains = Gains {
        kc: 1.2,
        ti_s: 60.0,
        td_s: 5.0,
    };

    #[test]
    fn nothing_winds_up_while_the_output_is_clamped() {
        let mut pid = LogPid {
            integral: 2.0,
            previous: None,
        };
        for _ in 0..10_000 {
            pid.next(GAINS, 0.2, 2.0, 5.0);
        }
        let (wanted, _) = pid.next(GAINS, 1.5, 2.0, 5.0);
        assert!(
            wanted < 2.0,
            "turns round on the first tick after the error does: {wanted}"
        );
    }

    #[test]
    fn rebase_makes_the_next_output_start_where_the_knob_is() {
        let mut pid = LogPid::default();
        pid.rebase(GAINS.kc, 0.9, 3.0);
        let (wanted, terms) = pid.next(GAINS, 0.9, 3.0, 5.0);
        // One integral step and the reset's part of the proportional term, nothing else.
        assert!((wanted - 3.0).abs() < 0.03, "{wanted}");
        assert_eq!(terms.d, 0.0);
    }

    #[test]
    fn a_measurement_that_is_no_number_holds_and_leaves_no_trace() {
        let mut pid = LogPid {
            integral: 1.0,
            previous: Some(0.8),
        };
        for y in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(pid.next(GAINS, y, 1.5, 5.0), (1.5, Terms::default()));
        }
        assert_eq!(
            pid,
            LogPid {
                integral: 1.0,
                previous: Some(0.8)
            }
        );
    }

    #[test]
    fn the_terms_are_the_crates_own_with_one_step_of_integral() {
        let gains = Gains {
            kc: 2.4,
            ti_s: 60.0,
            td_s: 5.0 / 12.0,
        };
        let Terms { p, i, d } = terms(gains, Some(1.0), 0.25, 5.0);
        assert!((p - 1.8).abs() < 1e-12 && (i - 0.15).abs() < 1e-12 && (d - 0.15).abs() < 1e-12);
        assert_eq!(
            terms(Gains { kc: 20.0, ..gains }, None, 4.0, 5.0).p,
            -TERM_MAX
        );
    }
}
