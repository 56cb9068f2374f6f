//! Ratio signals: the share of work that is refused (429 and its kin).
//!
//! A refusal measures the quota, so there is nothing to control: the rate goes just below what was let through. While nobody
//! refuses, the rate feels its way up, faster the longer it stays quiet. `Retry-After`, where a provider sends it, is a
//! hard gate in the throttle and not a signal.

use super::policy::{self, Law};
use super::signal::{Learned, Signal};
use crate::control::{History, ewma, within};

/// A share up to this counts as none.
const NONE: f64 = 1e-4;
/// What goes through counts for a quota when nobody has refused for this long, in seconds: counters of work and of tokens are not of
/// the same moment.
const SURE_S: f64 = 30.0;
/// First error with which the rate feels its way up, its doubling time in seconds, and the greatest.
const PROBE: f64 = 0.02;
const PROBE_DOUBLES_S: f64 = 90.0;
const PROBE_MAX: f64 = 0.4;
/// Gain and integral time, in seconds, of that.
const PROBE_GAIN: f64 = 0.4;
const PROBE_TI_S: f64 = 25.0;

impl Signal {
    /// Takes in the share `y` of the last `dt` seconds.
    pub(super) fn ingest_ratio(&mut self, policy: &policy::Signal, now: f64, at: f64, dt: f64, y: f64, history: &History) {
        self.share = within(y, 0.0, 0.98);
        let x = (1.0 - policy.setpoint) / (1.0 - self.share);
        (self.front.x, self.front.z, self.front.xf) = (x, x, x);
        let through = history.mean(at - dt, at) * (1.0 - self.share);
        if self.share > NONE {
            self.quota = Some(through);
            self.learned = Some(Learned { at, share: self.share });
            self.last_bad = Some(at);
        } else {
            // Where more goes through for a while, and nobody refuses it, the quota is at least that.
            let is_quiet = self.last_bad.is_some_and(|bad| at - bad > SURE_S);
            self.quota = self.quota.map(|quota| if is_quiet { quota.max(through) } else { quota });
            self.last_bad = self.last_bad.or(Some(at));
        }
        self.front.stamp(now, at);
    }

    /// The log work rate that a ratio asks for.
    pub(super) fn ask_ratio(&mut self, law: &Law, now: f64, dt: f64, applied: f64) -> f64 {
        self.ti_s = PROBE_TI_S;
        self.pid.integral = ewma::toward(self.pid.integral, applied, dt, PROBE_TI_S);
        if self.share > NONE {
            // The capacity is measured, not modelled: go just below it.
            self.e = (1.0 - self.front.x).min(0.0);
            let below = (self.quota.unwrap_or(0.0) * (1.0 - law.quota_margin)).max(1e-9).ln();
            self.pid.integral = self.pid.integral.min(below);
            self.u = self.pid.integral;
            return self.u;
        }
        let quiet_s = within(now - self.last_bad.unwrap_or(now), 0.0, 1e6);
        self.e = (PROBE * (quiet_s / PROBE_DOUBLES_S).min(60.0).exp2()).min(PROBE_MAX);
        self.u = self.pid.integral + PROBE_GAIN * self.e * (1.0 + dt / PROBE_TI_S);
        self.u
    }
}
