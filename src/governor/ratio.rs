//! Ratio signals: the share of work that is refused (429 and similar).
//!
//! A refusal measures the quota, so there is nothing to control: the rate goes just below the
//! throughput. Without refusals the rate probes upwards, faster the longer there are none.
//! `Retry-After`, if a provider sends it, is a hard gate in the throttle and not a signal.
//!
//! Behind a throttle there may be a pool of accounts, each of which finds its own rate. A message
//! refused by one account goes to the next, so the throughput equals the arrivals; and while
//! refused accounts recover, less goes through than the quota allows. For a pool, the quota is
//! therefore the highest throughput during such a recovery, and a refused share up to the setpoint
//! is left to the single accounts.

use super::policy::{self, ControllerTuning};
use super::signal::{Learned, Signal};
use crate::control::{History, clamp_finite, ewma};

/// The largest refused share that counts as none.
const NEGLIGIBLE_SHARE: f64 = 1e-4;
/// The time without refusals after which throughput counts as quota, in seconds: counters of work
/// and of tokens are not sampled at the same moment.
const SURE_S: f64 = 30.0;
/// The time in which a refused account of a pool returns to its former rate, in seconds: the
/// learning period of a key.
const ACCOUNT_RECOVERY_S: f64 = 20.0;
/// The averaging time of a pool's throughput, in seconds: providers count over seconds of their
/// own.
const MEAN_S: f64 = 6.0;
/// The initial error of upward probing.
const INITIAL_PROBE_ERROR: f64 = 0.02;
/// The doubling time of the error of upward probing, in seconds.
const PROBE_DOUBLES_S: f64 = 90.0;
/// The largest error of upward probing.
const PROBE_MAX: f64 = 0.4;
/// The gain of upward probing.
const PROBE_GAIN: f64 = 0.4;
/// The integral time of upward probing, in seconds.
const PROBE_TI_S: f64 = 25.0;

impl Signal {
    /// Ingests the refused share `y` of the last `dt` seconds.
    pub(super) fn ingest_ratio(
        &mut self,
        policy: &policy::SignalPolicy,
        now: f64,
        at: f64,
        dt: f64,
        y: f64,
        history: &History,
    ) {
        self.share = clamp_finite(y, 0.0, 0.98);
        let x = (1.0 - policy.setpoint) / (1.0 - self.share);
        (self.front.x, self.front.z, self.front.xf) = (x, x, x);
        let through = match self.capacity {
            Some(_) => most(history, at, dt),
            None => history.mean(at - dt, at) * (1.0 - self.share),
        };
        // Throughput while the work has only begun, or does not use the whole rate, is no quota.
        let is_used = self.used_from.is_some_and(|from| now - from >= MEAN_S);
        let is_back = self
            .last_bad
            .is_some_and(|bad| at - bad > ACCOUNT_RECOVERY_S);
        if self.share > NEGLIGIBLE_SHARE {
            // In a pool the first refusal after a quiet time measures the quota, and so do many at
            // once; the few that follow come from accounts that find their own rates.
            if self.capacity.is_none() || (is_used && (is_back || self.share > policy.setpoint)) {
                self.quota = Some(through);
                self.learned = Some(Learned {
                    at,
                    share: self.share,
                });
            }
            self.last_bad = Some(at);
        } else if self.is_limited_by_its_pool() {
            // The accounts have recovered without refusals: the quota is at least the throughput,
            // because the knob does not limit.
            if is_back
                && is_used
                && let Some(learned) = &mut self.learned
            {
                learned.at = at;
                self.quota = Some(through);
            }
        } else {
            // If more goes through for a while without refusals, the quota is at least that.
            let is_quiet = self.last_bad.is_some_and(|bad| at - bad > SURE_S);
            self.quota = self
                .quota
                .map(|quota| if is_quiet { quota.max(through) } else { quota });
            self.last_bad = self.last_bad.or(Some(at));
        }
        self.front.stamp(now, at);
    }

    /// Returns true if the accounts of the pool limit the rate, not this signal.
    fn is_limited_by_its_pool(&self) -> bool {
        self.capacity
            .is_some_and(|capacity| capacity * (1.0 + NEGLIGIBLE_SHARE) < self.pid.integral.exp())
    }

    /// Returns true if the newest sample measured the quota.
    fn is_news(&self) -> bool {
        self.learned
            .as_ref()
            .is_some_and(|learned| Some(learned.at) == self.last_bad)
    }

    /// Returns the log work rate that the signal asks for.
    pub(super) fn ask_ratio(
        &mut self,
        law: &ControllerTuning,
        now: f64,
        dt: f64,
        applied: f64,
    ) -> f64 {
        self.ti_s = PROBE_TI_S;
        let is_few = self.capacity.is_some() && self.share > NEGLIGIBLE_SHARE && !self.is_news();
        if is_few || (self.share <= NEGLIGIBLE_SHARE && self.is_limited_by_its_pool()) {
            // Single accounts adapt by themselves, and while they limit, nothing can be learned
            // about a higher rate.
            (self.e, self.u) = (0.0, self.pid.integral);
            return self.u;
        }
        self.pid.integral = ewma::toward(self.pid.integral, applied, dt, PROBE_TI_S);
        if self.share > NEGLIGIBLE_SHARE {
            // The capacity is measured, not modelled: go just below it.
            self.e = (1.0 - self.front.x).min(0.0);
            let below = (self.quota.unwrap_or(0.0) * (1.0 - law.quota_margin))
                .max(1e-9)
                .ln();
            self.pid.integral = self.pid.integral.min(below);
            self.u = self.pid.integral;
            return self.u;
        }
        let quiet_s = clamp_finite(now - self.last_bad.unwrap_or(now), 0.0, 1e6);
        self.e =
            (INITIAL_PROBE_ERROR * (quiet_s / PROBE_DOUBLES_S).min(60.0).exp2()).min(PROBE_MAX);
        self.u = self.pid.integral + PROBE_GAIN * self.e * (1.0 + dt / PROBE_TI_S);
        self.u
    }
}

/// Returns the highest mean throughput over any [`MEAN_S`] of the last [`BACK_S`].
fn most(history: &History, at: f64, dt: f64) -> f64 {
    let dt = clamp_finite(dt, 0.5, ACCOUNT_RECOVERY_S);
    let steps = (ACCOUNT_RECOVERY_S / dt).floor() as u32;
    let ending = |n: u32| at - f64::from(n) * dt;
    (0..steps.max(1))
        .map(|n| history.mean(ending(n) - MEAN_S.max(dt), ending(n)))
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::limits::Bounds;
    use super::super::plan::{ControlState, Observation};
    use super::super::policy::Policy;

    const POLICY: &str = "[[signal]]\nname = \"refused\"\nkind = \"ratio\"\nsource = \"feedback\"\nquery = \"refused\"\nsetpoint = 0.01\n\
                          [governor]\ntick_s = 1\ndurations = false\n";
    const BOUNDS: Bounds = Bounds {
        min: 1.0,
        max: 1000.0,
        safe_rps: 10.0,
    };

    struct Rig {
        state: ControlState,
        policy: Policy,
        now: f64,
        /// True if there is nothing to send.
        idle: bool,
    }

    impl Rig {
        fn new(rps: f64) -> Self {
            let policy = Policy::parse(POLICY, "sms.toml").unwrap().unwrap();
            Self {
                state: ControlState::new(&policy, BOUNDS, rps, 1000.0),
                policy,
                now: 1000.0,
                idle: false,
            }
        }

        /// Runs for `seconds` with the given throughput, refused share and pool capacity, and
        /// returns the knob.
        fn run(
            &mut self,
            seconds: u32,
            achieved: f64,
            share: f64,
            capacity_rps: Option<f64>,
        ) -> f64 {
            let mut rps = 0.0;
            for _ in 0..seconds {
                self.now += 1.0;
                let seen = Observation {
                    now: self.now,
                    achieved_rps: Some(achieved),
                    limiting_share: Some(if self.idle { 0.0 } else { 1.0 }),
                    completed: 1000.0 * (1.0 - share),
                    rejected: 1000.0 * share,
                    capacity_rps,
                    ..Observation::default()
                };
                rps = self.state.tick(&self.policy, BOUNDS, &seen).rps;
            }
            rps
        }
    }

    #[test]
    fn the_quota_of_a_pool_is_what_went_through_before_its_accounts_were_refused() {
        let mut rig = Rig::new(100.0);
        rig.run(8, 98.0, 0.0, Some(100.5));
        let knob = rig.run(30, 50.0, 0.0, Some(50.0));
        assert!(
            knob > 97.0,
            "while the accounts limit, the knob stays: {knob}"
        );

        let lowered = rig.run(1, 50.0, 0.005, Some(48.0));
        assert!(
            (lowered - 49.0).abs() < 0.2,
            "the first refusal after a quiet time is a word about the quota: {lowered}"
        );
        let away = rig
            .run(10, 35.0, 0.005, Some(35.0))
            .min(rig.run(1, 35.0, 0.1, Some(35.0)));
        assert!(
            (away - 49.0).abs() < 0.2,
            "what goes through while accounts come back is not the quota: {away}"
        );
        let back = rig.run(30, 49.0, 0.0, Some(90.0));
        assert!((48.8..52.0).contains(&back), "{back}");
    }

    #[test]
    fn a_refusal_while_a_pool_has_only_begun_says_nothing_of_its_quota() {
        let mut rig = Rig::new(100.0);
        rig.idle = true;
        rig.run(30, 0.0, 0.0, Some(100.0));
        rig.idle = false;
        let knob = rig.run(1, 30.0, 0.05, Some(95.0));
        assert_eq!(
            (knob, rig.state.signals[0].quota),
            (rig.run(4, 95.0, 0.0, Some(95.0)), None)
        );

        rig.run(8, 95.0, 0.0, Some(95.0));
        rig.run(1, 60.0, 0.3, Some(20.0));
        let learned = rig.state.signals[0].quota.unwrap();
        assert!((90.0..96.0).contains(&learned), "{learned}");
    }

    #[test]
    fn where_accounts_come_back_unrefused_so_much_is_learned_and_the_knob_has_no_part_in_it() {
        let mut rig = Rig::new(100.0);
        rig.run(8, 98.0, 0.2, Some(60.0));
        let knob = rig.run(19, 45.0, 0.0, Some(45.0));
        assert!(rig.state.signals[0].quota.unwrap() > 90.0);
        assert_eq!(rig.run(10, 46.0, 0.0, Some(46.0)), knob);
        let learned = rig.state.signals[0].quota.unwrap();
        assert!((45.0..47.0).contains(&learned), "{learned}");
    }
}
