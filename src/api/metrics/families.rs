//! The families of a sample of all throttles.

use crate::api::stream::live_sample::LiveSample;
use crate::api::throttles::measured::Measured;
use crate::api::throttles::view::{self, since_s};
use crate::governor::explain::view::{GovernorView, ShadowView, SignalView};
use crate::governor::law::Verdict;
use crate::governor::{Finding, Phase};
use crate::throttle::status::EXPIRES;
use crate::throttle::{OverQuotaKey, Status, concurrency_number};

/// The most throttles that get a label of their own; the jobs of the others are summed under
/// `other`.
pub(super) const THROTTLE_LABELS_MAX: usize = 200;
/// The label of the other throttles.
const OTHER_LABEL: &str = "other";

type Labels = Vec<(&'static str, String)>;
type Rows = Vec<(Labels, f64)>;

/// The name of a family, its help and its rows.
pub(super) type SampleFamily = (&'static str, &'static str, Rows);

/// Returns the families of a sample; those without rows are left out of the exposition.
pub(super) fn sampled_families(sample: &LiveSample) -> Vec<SampleFamily> {
    let labelled = LabelledSample {
        sample,
        named: sample.chosen(THROTTLE_LABELS_MAX).collect(),
    };
    let families = [
        labelled.throttle_families(),
        labelled.job_families(),
        labelled.governor_families(),
        labelled.signal_families(),
        process_families(sample),
    ];
    families.into_iter().flatten().collect()
}

/// A sample, and those of its throttles that get a label of their own.
struct LabelledSample<'a> {
    sample: &'a LiveSample,
    named: Vec<(&'a str, &'a Measured)>,
}

impl<'a> LabelledSample<'a> {
    fn each(&self, value: impl Fn(&Measured) -> Option<f64>) -> Rows {
        let rows = self.named.iter().filter_map(|(name, measured)| {
            Some((vec![("throttle", (*name).to_owned())], value(measured)?))
        });
        rows.collect()
    }

    fn status(&self, value: impl Fn(&Status) -> f64) -> Rows {
        self.each(|measured| measured.status.as_ref().map(&value))
    }

    fn jobs(&self, value: impl Fn(&Measured) -> i64) -> Rows {
        if self.sample.counted_at.is_none() {
            return Rows::new();
        }
        let mut rows = self.each(|measured| Some(value(measured) as f64));
        if self.sample.throttles.len() > self.named.len() {
            let all: i64 = self.sample.throttles.values().map(&value).sum();
            let shown: i64 = self.named.iter().map(|(_, measured)| value(measured)).sum();
            rows.push((
                vec![("throttle", OTHER_LABEL.to_owned())],
                (all - shown) as f64,
            ));
        }
        rows
    }

    fn governors(&self) -> impl Iterator<Item = (&'a str, &'a GovernorView)> {
        self.named
            .iter()
            .filter_map(|(name, measured)| Some((*name, measured.governor.as_ref()?)))
    }

    fn signals(&self, value: impl Fn(&SignalView) -> Option<f64>) -> Rows {
        let mut rows = Rows::new();
        for (name, governor) in self.governors() {
            for signal in &governor.signals {
                if let Some(value) = value(signal) {
                    rows.push((labels(name, "signal", &signal.name), value));
                }
            }
        }
        rows
    }

    fn shadow(&self, value: impl Fn(&GovernorView, &ShadowView) -> Option<f64>) -> Rows {
        self.each(|measured| {
            let governor = measured.governor.as_ref()?;
            value(governor, governor.shadow.as_ref()?)
        })
    }

    /// Returns two rows of each shadow: the real rate and the governor's own.
    fn both_rates(&self, value: impl Fn(&ShadowView) -> [f64; 2]) -> Rows {
        let mut rows = Rows::new();
        for (name, governor) in self.governors() {
            if let Some(shadow) = &governor.shadow {
                let [real, own] = value(shadow);
                rows.push((labels(name, "rate", "real"), real));
                rows.push((labels(name, "rate", "own"), own));
            }
        }
        rows
    }

    fn states(&self) -> Rows {
        let rows = self.named.iter().filter_map(|(name, measured)| {
            let state = view::state_word(measured.status.as_ref()?, Some(measured));
            Some((labels(name, "state", state), 1.0))
        });
        rows.collect()
    }

    fn held_keys(&self) -> Rows {
        let mut rows = Rows::new();
        for (name, measured) in &self.named {
            let Some(held) = &measured.held else { continue };
            for (hold, keys) in [
                ("paused", held.paused),
                ("resting", held.resting),
                ("learned", held.learned),
                ("probing", held.probing),
            ] {
                rows.push((labels(name, "hold", hold), keys as f64));
            }
        }
        rows
    }

    fn limiting(&self) -> Rows {
        let governors = self.governors();
        governors
            .map(|(name, governor)| (labels(name, "limiting", &governor.limiting), 1.0))
            .collect()
    }

    fn governed_knobs(&self) -> Rows {
        let governors = self.governors();
        governors
            .map(|(name, governor)| (labels(name, "knob", governor.actuator.field()), 1.0))
            .collect()
    }

    fn watchdogs(&self) -> Rows {
        let mut rows = Rows::new();
        for (name, governor) in self.governors() {
            for finding in Finding::ALL {
                let mut findings = governor.findings.iter();
                let found = findings.any(|found| found.finding == finding);
                let labels = labels(name, "finding", finding.as_str());
                rows.push((labels, f64::from(u8::from(found))));
            }
        }
        rows
    }

    fn throttle_families(&self) -> Vec<SampleFamily> {
        vec![
            (
                "flyball_throttle_rps",
                "Tokens per second in force; 0 stopped, -1 unlimited",
                self.status(|status| status.effective_rps.number()),
            ),
            (
                "flyball_throttle_knob_rps",
                "The knob rps as read, in tokens per second; -1 unlimited",
                self.status(|status| status.knobs.rps.number()),
            ),
            (
                "flyball_throttle_concurrency",
                "The knob concurrency: jobs that may run at once over all processes; -1 no limit",
                self.status(|status| concurrency_number(status.knobs.concurrency) as f64),
            ),
            (
                "flyball_throttle_min_rps",
                "The knob min: the lowest rate that a governor may set",
                self.status(|status| status.knobs.min),
            ),
            (
                "flyball_throttle_max_rps",
                "The knob max: the highest rate that a governor may set",
                self.status(|status| status.knobs.max),
            ),
            (
                "flyball_throttle_achieved_rps",
                "Tokens per second taken over the last seconds",
                self.each(|measured| measured.slope.map(|slope| slope.achieved_rps)),
            ),
            (
                "flyball_throttle_limiting_share",
                "Share of the last seconds in which a caller waited for tokens, 0 to 1",
                self.each(|measured| measured.slope.map(|slope| slope.limiting_share)),
            ),
            (
                "flyball_throttle_limiting_share_above",
                "The same of the throttles above, the highest of theirs",
                self.each(|measured| self.sample.limiting_share_above(measured)),
            ),
            (
                "flyball_throttle_key_wait_seconds",
                "Seconds for which a key may wait for a token by its knobs; 0 without a limit, -1 stopped",
                self.status(|status| status.key_wait_s()),
            ),
            (
                "flyball_throttle_invalid_knobs",
                "Knobs with unusable values",
                self.status(|status| {
                    let unusable = status.problems.iter().filter(|one| one.field != EXPIRES);
                    unusable.count() as f64
                }),
            ),
            (
                "flyball_throttle_expires_seconds",
                "Seconds until the knobs expire, where another program gave them a time to live",
                self.each(|measured| measured.status.as_ref()?.expires_in_s),
            ),
            (
                "flyball_throttle_lease_expired",
                "1 while the governor's lease on the knob has lapsed and safe_rps is in force",
                self.status(|status| f64::from(u8::from(status.lease_expired))),
            ),
            (
                "flyball_throttle_state",
                "1 for the current state of the throttle",
                self.states(),
            ),
            (
                "flyball_throttle_held_keys",
                "Keys that hold their jobs back, among the deepest lanes, by cause",
                self.held_keys(),
            ),
            (
                "flyball_throttle_held_jobs",
                "Ready jobs of keys that hold their jobs back, among the deepest lanes",
                self.each(|measured| measured.held.as_ref().map(|held| held.held_ready as f64)),
            ),
            (
                "flyball_throttle_over_quota_keys",
                "Keys that have asked for more than their quota for minutes, among the deepest lanes",
                self.each(|measured| measured.held.as_ref().map(|held| held.over_quota as f64)),
            ),
            (
                "flyball_throttle_over_quota_ratio",
                "Tokens that the worst of these keys asks for, in multiples of its quota; 0 without one",
                self.each(|measured| {
                    let most = measured.held.as_ref()?.most_over_quota.as_ref();
                    Some(most.map_or(0.0, OverQuotaKey::ratio))
                }),
            ),
        ]
    }

    fn job_families(&self) -> Vec<SampleFamily> {
        vec![
            (
                "flyball_throttle_ready_jobs",
                "Jobs that wait for tokens or a worker, at the last count",
                self.jobs(|measured| measured.depth.ready),
            ),
            (
                "flyball_throttle_scheduled_jobs",
                "Jobs that wait for a time, at the last count",
                self.jobs(|measured| measured.depth.scheduled),
            ),
            (
                "flyball_throttle_running_jobs",
                "Jobs that hold a lease, at the last count",
                self.jobs(|measured| measured.depth.running),
            ),
            (
                "flyball_throttle_dead_jobs",
                "Dead letters, at the last count",
                self.jobs(|measured| measured.depth.dead),
            ),
            (
                "flyball_throttle_oldest_ready_seconds",
                "Seconds for which the oldest ready job has waited; 0 while none is ready",
                self.each(|measured| {
                    self.sample.counted_at?;
                    Some(
                        measured
                            .depth
                            .oldest_ready_at
                            .map_or(0.0, |oldest| since_s(oldest, self.sample.at)),
                    )
                }),
            ),
            (
                "flyball_depth_age_seconds",
                "Age of the counted figures; it grows while no process counts",
                self.sample
                    .counted_at
                    .map(|at| (Vec::new(), since_s(at, self.sample.at)))
                    .into_iter()
                    .collect(),
            ),
        ]
    }

    fn governor_families(&self) -> Vec<SampleFamily> {
        vec![
            (
                "flyball_governor_breaker_state",
                "0 closed, 1 half open, 2 open",
                self.each(|measured| {
                    measured
                        .governor
                        .as_ref()
                        .map(|governor| breaker_number(governor.breaker))
                }),
            ),
            (
                "flyball_governor_age_seconds",
                "Seconds since a governor last looked at the throttle; it grows while none does",
                self.each(|measured| {
                    let status = measured.status.as_ref()?;
                    let governor = measured.governor.as_ref();
                    let governor = governor.filter(|_| status.needs_governor())?;
                    Some(since_s(governor.at, self.sample.at))
                }),
            ),
            (
                "flyball_governor_knob",
                "1 for the knob that the governor sets: rps or concurrency",
                self.governed_knobs(),
            ),
            (
                "flyball_governor_limiting",
                "1 for the signal or fixed value that decides the rate now",
                self.limiting(),
            ),
            (
                "flyball_governor_watchdog",
                "1 while a watchdog of the governor finds this",
                self.watchdogs(),
            ),
            (
                "flyball_governor_gain_factor",
                "Factor on the gain, set by the watchdogs: 1, 0.5 or 0.25",
                self.each(|measured| {
                    measured
                        .governor
                        .as_ref()
                        .map(|governor| governor.gain_factor)
                }),
            ),
            (
                "flyball_governor_durations",
                "1 while the durations of jobs count, 0 while they are independent of the load",
                self.each(|measured| {
                    let durations = measured.governor.as_ref()?.durations.as_ref()?;
                    Some(f64::from(u8::from(
                        durations.verdict != Verdict::Uninformative,
                    )))
                }),
            ),
        ]
    }

    fn signal_families(&self) -> Vec<SampleFamily> {
        vec![
            (
                "flyball_governor_signal_ratio",
                "The last reading of a signal over its setpoint; the governor holds the largest near 1",
                self.signals(|signal| {
                    signal
                        .value
                        .filter(|_| signal.setpoint != 0.0)
                        .map(|value| value / signal.setpoint)
                }),
            ),
            (
                "flyball_governor_signal_age_seconds",
                "Age of a signal's last reading",
                self.signals(|signal| signal.age_s),
            ),
            (
                "flyball_governor_signal_stale",
                "1 while a signal's reading is too old or unusable",
                self.signals(|signal| Some(f64::from(u8::from(signal.stale)))),
            ),
            (
                "flyball_governor_learned_quota_rps",
                "Unpublished quota as learned by a ratio signal, in tokens per second or slots",
                self.signals(|signal| signal.learned_quota.as_ref().map(|quota| quota.rps)),
            ),
            (
                "flyball_governor_learned_quota_refused_share",
                "The share that was refused when the quota was learned, 0 to 1",
                self.signals(|signal| {
                    signal
                        .learned_quota
                        .as_ref()
                        .map(|quota| quota.refused_share)
                }),
            ),
            (
                "flyball_governor_shadow_rps",
                "The rate that the governor would set, in shadow mode; 0 stopped",
                self.shadow(|governor, _| Some(governor.rps)),
            ),
            (
                "flyball_governor_shadow_signal_ratio",
                "The highest signal over its setpoint at the governor's own rate, by its model, in \
                 shadow mode",
                self.shadow(|_, shadow| shadow.own_load),
            ),
            (
                "flyball_governor_shadow_jobs",
                "Jobs since shadow mode began: let through (real), and at the governor's own rate \
                 (own)",
                self.both_rates(|shadow| [shadow.jobs, shadow.own_jobs]),
            ),
            (
                "flyball_governor_shadow_overload_seconds",
                "The load above its setpoint over time since shadow mode began, in setpoint \
                 seconds: measured (real), and at the governor's own rate (own)",
                self.both_rates(|shadow| [shadow.overload_s, shadow.own_overload_s]),
            ),
        ]
    }
}

fn process_families(sample: &LiveSample) -> Vec<SampleFamily> {
    vec![
        (
            "flyball_throttle_store_unavailable",
            "1 while the throttle store does not answer this process, or accepts no writes",
            vec![(Vec::new(), f64::from(u8::from(sample.is_store_lost)))],
        ),
        (
            "flyball_postgres_unavailable",
            "1 while Postgres does not answer this process, or accepts no writes",
            vec![(Vec::new(), f64::from(u8::from(sample.is_queue_lost)))],
        ),
        (
            "flyball_paused",
            "1 while everything is paused",
            vec![(Vec::new(), f64::from(u8::from(sample.is_paused)))],
        ),
        (
            "flyball_workers",
            "Live processes with the role runner at the last count",
            vec![(Vec::new(), sample.runners as f64)],
        ),
    ]
}

fn labels(throttle: &str, label: &'static str, word: &str) -> Labels {
    vec![("throttle", throttle.to_owned()), (label, word.to_owned())]
}

fn breaker_number(breaker: Phase) -> f64 {
    match breaker {
        Phase::Closed => 0.0,
        Phase::HalfOpen => 1.0,
        Phase::Open => 2.0,
    }
}
