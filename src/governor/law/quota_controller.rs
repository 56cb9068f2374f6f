//! The controller of ratio signals: the share of work that is refused (429 and similar).
//!
//! A refusal measures the quota, so there is nothing to control: the rate goes just below the
//! throughput. Without refusals the rate probes upwards, faster the longer there are none.
//! `Retry-After`, if a provider sends it, is a hard gate in the throttle and not a signal.
//!
//! Behind a throttle there may be a pool of accounts, each of which finds its own rate. A message
//! refused by one account goes to the next, so the throughput equals the arrivals; and while
//! refused accounts recover, less goes through than the quota allows. For a pool, the quota is
//! therefore the highest throughput during such a recovery, and a refused share up to the setpoint
//! is left to the single accounts. They stay below their quotas by themselves, so a pool's rate
//! goes to what was measured and not below it, and probes upwards sooner.

use jiff::Timestamp;

use super::part::{StatePart, all_finite};
use super::pid_controller::Ask;
use super::tick_context::TickContext;
use crate::control::{History, LagFilter, clamp_finite, ewma};
use crate::governor::time::timestamp;

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
/// The same for a pool: there a probe that goes too far costs one account a short pause, and the
/// work nothing.
const INITIAL_PROBE_ERROR_OF_POOL: f64 = 0.05;
/// The doubling time of the error of upward probing, in seconds.
const PROBE_DOUBLES_S: f64 = 90.0;
/// The largest error of upward probing.
const PROBE_MAX: f64 = 0.4;
/// The gain of upward probing.
const PROBE_GAIN: f64 = 0.4;
/// The integral time of upward probing, in seconds.
const PROBE_TI_S: f64 = 25.0;

/// The largest refused share from which a quota is computed: beyond it a sample would weigh too
/// much. The breaker judges the whole share.
const SHARE_MAX: f64 = 0.98;

/// The state of the controller of one refused share.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct QuotaController {
    /// The log work rate without the probe of this moment.
    pub integral: f64,
    /// The newest refused share.
    pub share: f64,
    /// The learned quota as a work rate.
    pub quota: Option<f64>,
    /// The time of the newest refusal.
    last_refused_at: Option<f64>,
    /// The newest refusal that measured the quota.
    learned: Option<QuotaMeasurement>,
    /// True once it has been seeded with a rate in force.
    pub started: bool,
    /// The current capacity of a pool of accounts behind the throttle (work rate); `None` without a
    /// pool.
    #[serde(skip)]
    pub capacity: Option<f64>,
    /// The time since which the work uses all that the throttle lets through; `None` while it does
    /// not.
    #[serde(skip)]
    pub used_from: Option<f64>,
}

/// A refusal that measured the quota.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct QuotaMeasurement {
    /// The time in unix seconds.
    at: f64,
    /// The share that was refused.
    share: f64,
}

/// A quota learned from refusals.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct LearnedQuota {
    /// The throughput within the quota, in tokens per second (or slots, if the governor sets
    /// `concurrency`).
    pub rps: f64,
    /// The time of the newest refusal, from which the quota was learned.
    pub at: Timestamp,
    /// The share of requests that was refused then, 0 to 1.
    pub refused_share: f64,
}

impl QuotaController {
    pub(super) fn new(u: f64) -> Self {
        Self {
            integral: u,
            share: 0.0,
            quota: None,
            last_refused_at: None,
            learned: None,
            started: false,
            capacity: None,
            used_from: None,
        }
    }

    /// Returns the quota that it has learned, for `w` of work per job.
    pub fn learned_quota(&self, w: f64) -> Option<LearnedQuota> {
        let (quota, learned) = (self.quota?, self.learned?);
        let rps = quota / w;
        rps.is_finite().then(|| LearnedQuota {
            rps,
            at: timestamp(learned.at),
            refused_share: learned.share,
        })
    }

    /// Returns true if nothing has been refused for `quiet_s` seconds at `now`.
    pub(super) fn is_quiet(&self, now: f64, quiet_s: f64) -> bool {
        self.share <= NEGLIGIBLE_SHARE && self.last_refused_at.is_none_or(|bad| now - bad > quiet_s)
    }

    pub(super) fn scale(&mut self, factor: f64) {
        self.integral += factor.ln();
        self.quota = self.quota.map(|quota| quota * factor);
    }

    /// Ingests the refused share `y` of the time since the newest sample of `front`.
    pub(super) fn ingest(
        &mut self,
        front: &mut LagFilter,
        context: TickContext<'_>,
        at: f64,
        y: f64,
    ) {
        let (now, setpoint, history) = (context.now, context.policy.setpoint, context.history);
        let dt = front.spacing_s(at);
        self.share = clamp_finite(y, 0.0, 1.0);
        let counted = self.share.min(SHARE_MAX);
        let x = (1.0 - setpoint) / (1.0 - counted);
        (front.x, front.z, front.xf) = (x, x, x);
        let through = match self.capacity {
            Some(_) => most(history, at, dt),
            None => history.mean(at - dt, at) * (1.0 - counted),
        };
        // Throughput while the work has only begun, or does not use the whole rate, does not show
        // the quota.
        let is_used = self.used_from.is_some_and(|from| now - from >= MEAN_S);
        let is_back = self
            .last_refused_at
            .is_some_and(|bad| at - bad > ACCOUNT_RECOVERY_S);
        if self.share > NEGLIGIBLE_SHARE {
            // In a pool the first refusal after a quiet time measures the quota, and so do many at
            // once; the few that follow come from accounts that find their own rates.
            if self.capacity.is_none() || (is_used && (is_back || self.share > setpoint)) {
                self.quota = Some(through);
                self.learned = Some(QuotaMeasurement {
                    at,
                    share: self.share,
                });
            }
            self.last_refused_at = Some(at);
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
            let is_quiet = self.last_refused_at.is_some_and(|bad| at - bad > SURE_S);
            self.quota = self
                .quota
                .map(|quota| if is_quiet { quota.max(through) } else { quota });
            self.last_refused_at = self.last_refused_at.or(Some(at));
        }
        front.stamp(now, at);
    }

    /// Returns true if the accounts of the pool limit the rate, not this signal.
    fn is_limited_by_its_pool(&self) -> bool {
        self.capacity
            .is_some_and(|capacity| capacity * (1.0 + NEGLIGIBLE_SHARE) < self.integral.exp())
    }

    /// Returns true if the newest sample measured the quota.
    fn is_news(&self) -> bool {
        self.learned
            .as_ref()
            .is_some_and(|learned| Some(learned.at) == self.last_refused_at)
    }

    /// Returns the rate to ask for, with `applied` in force.
    pub(super) fn ask(
        &mut self,
        front: &LagFilter,
        context: TickContext<'_>,
        dt: f64,
        applied: f64,
    ) -> Ask {
        let is_few = self.capacity.is_some() && self.share > NEGLIGIBLE_SHARE && !self.is_news();
        if is_few || (self.share <= NEGLIGIBLE_SHARE && self.is_limited_by_its_pool()) {
            // Single accounts adapt by themselves, and while they limit, nothing can be learned
            // about a higher rate.
            return Ask {
                u: self.integral,
                e: 0.0,
            };
        }
        self.integral = ewma::toward(self.integral, applied, dt, PROBE_TI_S);
        let (margin, first_error) = match self.capacity {
            Some(_) => (0.0, INITIAL_PROBE_ERROR_OF_POOL),
            None => (context.law.quota_margin, INITIAL_PROBE_ERROR),
        };
        if self.share > NEGLIGIBLE_SHARE {
            // The capacity is measured, not modelled: go just below it.
            let below = (self.quota.unwrap_or(0.0) * (1.0 - margin)).max(1e-9).ln();
            self.integral = self.integral.min(below);
            return Ask {
                u: self.integral,
                e: (1.0 - front.x).min(0.0),
            };
        }
        let now = context.now;
        let quiet_s = clamp_finite(now - self.last_refused_at.unwrap_or(now), 0.0, 1e6);
        let e = (first_error * (quiet_s / PROBE_DOUBLES_S).min(60.0).exp2()).min(PROBE_MAX);
        Ask {
            u: self.integral + PROBE_GAIN * e * (1.0 + dt / PROBE_TI_S),
            e,
        }
    }
}

impl StatePart for QuotaController {
    fn shift(&mut self, by_s: f64) {
        self.last_refused_at = self.last_refused_at.map(|t| t + by_s);
        if let Some(learned) = &mut self.learned {
            learned.at += by_s;
        }
    }

    fn is_sound(&self) -> bool {
        all_finite([self.integral, self.share].into_iter().chain(self.quota))
    }
}

/// Returns the highest mean throughput over any [`MEAN_S`] of the last [`ACCOUNT_RECOVERY_S`].
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
    use crate::governor::policy::Policy;
    use crate::governor::{Bounds, ControlState, Observation};
    use crate::throttle::RateLimit;

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
                state: ControlState::new(&policy, BOUNDS, RateLimit::new(rps), 1000.0),
                policy,
                now: 1000.0,
                idle: false,
            }
        }

        fn quota(&self) -> Option<f64> {
            self.state.signals[0].controller.quota().unwrap().quota
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
            (lowered - 50.0).abs() < 0.2,
            "the first refusal after a quiet time is a word about the quota: {lowered}"
        );
        let away = rig
            .run(10, 35.0, 0.005, Some(35.0))
            .min(rig.run(1, 35.0, 0.1, Some(35.0)));
        assert!(
            (away - 50.0).abs() < 0.2,
            "what goes through while accounts come back is not the quota: {away}"
        );
        let back = rig.run(30, 49.0, 0.0, Some(90.0));
        assert!((50.5..56.0).contains(&back), "{back}");
    }

    #[test]
    fn a_refusal_while_a_pool_has_only_begun_says_nothing_of_its_quota() {
        let mut rig = Rig::new(100.0);
        rig.idle = true;
        rig.run(30, 0.0, 0.0, Some(100.0));
        rig.idle = false;
        let knob = rig.run(1, 30.0, 0.05, Some(95.0));
        assert_eq!(
            (knob, rig.quota()),
            (rig.run(4, 95.0, 0.0, Some(95.0)), None)
        );

        rig.run(8, 95.0, 0.0, Some(95.0));
        rig.run(1, 60.0, 0.3, Some(20.0));
        let learned = rig.quota().unwrap();
        assert!((90.0..96.0).contains(&learned), "{learned}");
    }

    #[test]
    fn where_accounts_come_back_unrefused_so_much_is_learned_and_the_knob_has_no_part_in_it() {
        let mut rig = Rig::new(100.0);
        rig.run(8, 98.0, 0.2, Some(60.0));
        let knob = rig.run(19, 45.0, 0.0, Some(45.0));
        assert!(rig.quota().unwrap() > 90.0);
        assert_eq!(rig.run(10, 46.0, 0.0, Some(46.0)), knob);
        let learned = rig.quota().unwrap();
        assert!((45.0..47.0).contains(&learned), "{learned}");
    }
}
