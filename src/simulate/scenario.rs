//! A scenario: a knobs file, and tables about the plant that it governs.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::curve::Curve;
use super::mail::MailAccount;
use crate::governor::policy::{FeedbackKind, Policy, SignalKind, SignalPolicy, SignalSource};
use crate::governor::{Actuator, Bounds, ControllerTuning};

/// The longest virtual time of a scenario, in minutes: five weeks.
pub const MINUTES_MAX: f64 = 5.0 * 7.0 * 24.0 * 60.0;

/// One plant and the policy that governs it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// The event, in one line.
    pub about: String,
    /// Virtual time, in seconds.
    pub duration_s: u64,
    /// Time of the event, in seconds; recovery is counted from here.
    pub step_s: Option<f64>,
    /// Times without a governor `(from, to)`, in seconds.
    pub governor_down_s: Vec<(f64, f64)>,
    /// Resources that the jobs use.
    pub resources: Vec<Resource>,
    /// The exporter that publishes the load.
    pub exporter: Exporter,
    /// Properties of the jobs.
    pub jobs: Workload,
    /// The quota of a provider, if there is one.
    pub quota: Option<QuotaCurve>,
    /// The queue that the jobs fill, if there is one.
    pub queue: Option<FilledQueue>,
    /// The account whose mails are governed, if there is one.
    pub mail: Option<MailAccount>,
    /// The policy, read by the same code as every knobs file.
    pub policy: Policy,
    /// The knobs `min`, `max` and `safe_rps`.
    pub bounds: Bounds,
    /// The knob at the beginning: `rps`, or `concurrency` if that is governed.
    pub start_rps: f64,
}

/// One shared machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// Prefix of its series: `db` has `db:load` and `db:p99`.
    pub name: String,
    /// Number of processors.
    #[serde(default = "default_cores")]
    pub cores: f64,
    /// Work of others, in cores.
    pub background: Curve,
    /// Cost of one job, in core-seconds.
    pub cost: f64,
    /// Factor on the cost over time.
    #[serde(default = "one")]
    pub cost_factor: Curve,
    /// Standard deviation of the cost's logarithm after an hour of its random walk.
    #[serde(default)]
    pub cost_walk: f64,
    /// Relative noise of the background (an Ornstein-Uhlenbeck process).
    #[serde(default = "default_noise")]
    pub noise: f64,
    /// Duration of the noise's correlation, in seconds.
    #[serde(default = "default_noise_s")]
    pub noise_s: f64,
    /// Number of short bursts of background per hour.
    #[serde(default = "default_bursts")]
    pub bursts_per_hour: f64,
    /// Height of a burst, in cores.
    #[serde(default = "default_burst")]
    pub burst: f64,
    /// Length of a burst, in seconds.
    #[serde(default = "default_burst_s")]
    pub burst_s: f64,
}

/// The observation of the load.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exporter {
    /// Averaging time of the load average, in seconds.
    pub average_s: f64,
    /// Sampling noise, as a multiple of the noise of counting independent tasks.
    ///
    /// Tasks that work for a while are seen more than once, and three quarters give a load average
    /// of 2 the 13 % that real hosts show.
    pub noise: f64,
    /// Seconds between scrapes.
    pub scrape_s: f64,
    /// Shortest and longest time until a scrape is visible, in seconds.
    pub delay_s: (f64, f64),
    /// Share of scrapes that are lost.
    pub lost: f64,
    /// Times without any scrape `(from, to)`, in minutes.
    pub outages: Vec<(f64, f64)>,
    /// True if the exporter's own page can be read every second.
    pub probe: bool,
}

impl Default for Exporter {
    fn default() -> Self {
        Self {
            average_s: 60.0,
            noise: 0.5,
            scrape_s: 15.0,
            delay_s: (20.0, 25.0),
            lost: 0.0,
            outages: Vec::new(),
            probe: false,
        }
    }
}

/// Properties of the jobs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Duration of a job besides its work on the resources, in seconds.
    pub base_s: f64,
    /// Most jobs in flight.
    pub in_flight: f64,
    /// Highest rate of available jobs, per second.
    pub demand: Curve,
    /// True if workers report the durations of jobs.
    pub durations: bool,
    /// Duration of a job, in seconds, if it is unrelated to its work on the resources: the time
    /// until a server acknowledges it, or until another service answers.
    pub answer_s: Option<Curve>,
    /// Standard deviation of that duration's logarithm after an hour of its random walk.
    pub answer_walk: f64,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            base_s: 0.02,
            in_flight: 64.0,
            demand: Curve::Constant(1e9),
            durations: true,
            answer_s: None,
            answer_walk: 0.0,
        }
    }
}

/// The quota of a provider, which refuses the rest.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaCurve {
    /// Accepted jobs per second.
    pub rps: Curve,
}

/// A queue that the jobs fill, one entry each, and that others drain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilledQueue {
    /// Name in the `query` of a signal with the source `depth`.
    pub name: String,
    /// Entries that are taken out per second, while there are any.
    pub drain: Curve,
    /// Relative noise of the drain, correlated over a minute.
    #[serde(default)]
    pub noise: f64,
}

#[derive(Deserialize)]
struct File {
    scenario: Head,
    knobs: ScenarioKnobs,
    #[serde(default)]
    resource: Vec<Resource>,
    #[serde(default)]
    exporter: Exporter,
    #[serde(default)]
    jobs: Workload,
    quota: Option<QuotaCurve>,
    queue: Option<FilledQueue>,
    mail: Option<MailAccount>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: String,
    about: String,
    minutes: f64,
    step_minute: Option<f64>,
    #[serde(default)]
    governor_down: Vec<(f64, f64)>,
}

/// The knobs that a simulation uses; the others of a knobs file do no harm.
#[derive(Deserialize)]
struct ScenarioKnobs {
    rps: f64,
    concurrency: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    safe_rps: Option<f64>,
}

fn default_cores() -> f64 {
    16.0
}
fn one() -> Curve {
    Curve::Constant(1.0)
}
fn default_noise() -> f64 {
    0.12
}
fn default_noise_s() -> f64 {
    120.0
}
fn default_bursts() -> f64 {
    4.0
}
fn default_burst() -> f64 {
    0.4
}
fn default_burst_s() -> f64 {
    30.0
}

/// An error in a scenario.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct InvalidScenario {
    /// Name of the file.
    pub file: String,
    /// The fault, and the allowed values.
    pub reason: String,
}

impl Scenario {
    /// Reads the scenario in the file `file` with the content `text`.
    pub fn parse(text: &str, file: &str) -> Result<Self, InvalidScenario> {
        let refuse = |reason: String| InvalidScenario {
            file: file.to_owned(),
            reason,
        };
        let read: File = toml::from_str(text)
            .map_err(|error| refuse(error.to_string().trim_end().to_owned()))?;
        let policy = Policy::parse(text, file).map_err(|error| refuse(format!("\n{error}")))?;
        let policy = policy.ok_or_else(|| {
            refuse("signal: is missing; a scenario needs at least one [[signal]]".to_owned())
        })?;
        let actuator = policy.law.actuator;
        let start = match actuator {
            Actuator::Rps => read.knobs.rps,
            Actuator::Concurrency => read
                .knobs
                .concurrency
                .unwrap_or(read.knobs.max.unwrap_or(1.0)),
        };
        let seconds = |minutes: &[(f64, f64)]| {
            minutes
                .iter()
                .map(|(from, to)| (from * 60.0, to * 60.0))
                .collect()
        };
        let scenario = Self {
            name: read.scenario.name,
            about: read.scenario.about,
            duration_s: (read.scenario.minutes * 60.0) as u64,
            step_s: read.scenario.step_minute.map(|minute| minute * 60.0),
            governor_down_s: seconds(&read.scenario.governor_down),
            resources: read.resource,
            exporter: Exporter {
                outages: seconds(&read.exporter.outages),
                ..read.exporter
            },
            jobs: read.jobs,
            quota: read.quota,
            queue: read.queue,
            mail: read.mail,
            policy,
            bounds: actuator.bounds(Bounds {
                min: read.knobs.min.unwrap_or(0.0),
                max: read.knobs.max.unwrap_or(0.0),
                safe_rps: read.knobs.safe_rps.unwrap_or(0.0),
            }),
            start_rps: start,
        };
        let faults = scenario.faults(read.scenario.minutes);
        if faults.is_empty() {
            Ok(scenario)
        } else {
            Err(refuse(faults.join("\n")))
        }
    }

    /// Returns the same scenario under another law, as far as `[governor]` of a knobs file contains
    /// it. The actuator stays the plant's.
    pub fn under(mut self, law: ControllerTuning) -> Self {
        let actuator = self.policy.law.actuator;
        self.policy.law = ControllerTuning {
            actuator,
            durations: law.durations && actuator == Actuator::Rps,
            ..law
        };
        self
    }

    /// Returns the resource of the series `query`, with the kind of the series.
    pub fn resource_of(&self, query: &str) -> Option<(usize, SignalKind)> {
        let (name, series) = query.split_once(':')?;
        let kind = match series {
            "load" => SignalKind::Load,
            "p99" => SignalKind::Latency,
            _ => return None,
        };
        Some((
            self.resources
                .iter()
                .position(|resource| resource.name == name)?,
            kind,
        ))
    }

    /// Returns true if `signal` is the depth of the queue that the jobs fill.
    pub fn fills(&self, signal: &SignalPolicy) -> bool {
        let queue = self.queue.as_ref();
        signal.source == SignalSource::Depth && queue.is_some_and(|q| q.name == signal.query)
    }

    /// Returns the account about whose mails `signal` counts complaints.
    pub(super) fn complained_of(&self, signal: &SignalPolicy) -> Option<&MailAccount> {
        let counts = signal.source == SignalSource::Complaints;
        self.mail.as_ref().filter(|_| counts)
    }

    fn faults(&self, minutes: f64) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |sound: bool, what: String| {
            if !sound {
                faults.push(what);
            }
        };
        let within = |value: f64, low: f64, high: f64| value >= low && value <= high;
        check(
            within(minutes, 1.0, MINUTES_MAX),
            format!("scenario.minutes: {minutes} is not allowed; use 1 to {MINUTES_MAX}"),
        );
        check(
            self.step_s.is_none_or(|s| within(s, 0.0, minutes * 60.0)),
            "scenario.step_minute: is not within the scenario; use 0 to its minutes".to_owned(),
        );
        check(
            self.start_rps > 0.0 && self.start_rps.is_finite(),
            format!(
                "knobs.rps: {} is not allowed; use a number above 0",
                self.start_rps
            ),
        );
        check(
            self.bounds.max >= self.start_rps,
            format!(
                "knobs.max: {} is not allowed; use at least knobs.rps",
                self.bounds.max
            ),
        );
        check(
            self.bounds.min > 0.0 && self.bounds.min <= self.bounds.max,
            format!(
                "knobs.min: {} is not allowed; use a number above 0, up to max",
                self.bounds.min
            ),
        );
        check(
            !self.resources.is_empty()
                || self.quota.is_some()
                || self.queue.is_some()
                || self.mail.is_some(),
            "resource: is missing; write at least one [[resource]], a [quota], a [queue] or [mail]"
                .to_owned(),
        );
        let names: BTreeSet<&str> = self
            .resources
            .iter()
            .map(|resource| resource.name.as_str())
            .collect();
        check(
            names.len() == self.resources.len(),
            "resource.name: is duplicated; give each resource its own name".to_owned(),
        );
        for resource in &self.resources {
            let name = &resource.name;
            check(
                within(resource.cores, 0.1, 1e6),
                format!(
                    "resource.cores: {} of {name} is not allowed; use 0.1 to 1000000",
                    resource.cores
                ),
            );
            check(
                within(resource.cost, 1e-9, 1e6),
                format!(
                    "resource.cost: {} of {name} is not allowed; use 1e-9 to 1000000",
                    resource.cost
                ),
            );
            for (key, value, high) in [
                ("cost_walk", resource.cost_walk, 10.0),
                ("noise", resource.noise, 2.0),
                ("bursts_per_hour", resource.bursts_per_hour, 3600.0),
                ("burst", resource.burst, 1e6),
            ] {
                check(
                    within(value, 0.0, high),
                    format!("resource.{key}: {value} of {name} is not allowed; use 0 to {high}"),
                );
            }
            for (key, value) in [("noise_s", resource.noise_s), ("burst_s", resource.burst_s)] {
                check(
                    within(value, 1.0, 86400.0),
                    format!("resource.{key}: {value} of {name} is not allowed; use 1 to 86400"),
                );
            }
            for (key, fault) in [
                ("background", resource.background.fault(0.0)),
                ("cost_factor", resource.cost_factor.fault(1e-9)),
            ] {
                check(
                    fault.is_none(),
                    format!("resource.{key}: of {name} {}", fault.unwrap_or_default()),
                );
            }
        }
        let (exporter, jobs) = (&self.exporter, &self.jobs);
        for (key, value, low, high) in [
            ("average_s", exporter.average_s, 0.0, 3600.0),
            ("noise", exporter.noise, 0.0, 100.0),
            ("scrape_s", exporter.scrape_s, 1.0, 3600.0),
            ("delay_s", exporter.delay_s.0, 0.0, 3600.0),
            ("delay_s", exporter.delay_s.1, exporter.delay_s.0, 3600.0),
            ("lost", exporter.lost, 0.0, 1.0),
        ] {
            check(
                within(value, low, high),
                format!("exporter.{key}: {value} is not allowed; use {low} to {high}"),
            );
        }
        check(
            within(jobs.base_s, 0.0, 3600.0),
            format!("jobs.base_s: {} is not allowed; use 0 to 3600", jobs.base_s),
        );
        check(
            within(jobs.in_flight, 1.0, 1e6),
            format!(
                "jobs.in_flight: {} is not allowed; use 1 to 1000000",
                jobs.in_flight
            ),
        );
        check(
            within(jobs.answer_walk, 0.0, 10.0),
            format!(
                "jobs.answer_walk: {} is not allowed; use 0 to 10",
                jobs.answer_walk
            ),
        );
        let noise = self.queue.as_ref().map_or(0.0, |queue| queue.noise);
        check(
            within(noise, 0.0, 2.0),
            format!("queue.noise: {noise} is not allowed; use 0 to 2"),
        );
        let answer_s = jobs.answer_s.as_ref();
        for (key, fault) in [
            ("jobs.demand", jobs.demand.fault(0.0)),
            (
                "jobs.answer_s",
                answer_s.and_then(|curve| curve.fault(1e-6)),
            ),
            (
                "quota.rps",
                self.quota.as_ref().and_then(|quota| quota.rps.fault(1e-6)),
            ),
            (
                "queue.drain",
                self.queue
                    .as_ref()
                    .and_then(|queue| queue.drain.fault(1e-6)),
            ),
        ] {
            check(
                fault.is_none(),
                format!("{key}: {}", fault.unwrap_or_default()),
            );
        }
        for signal in &self.policy.signals {
            let name = &signal.name;
            match signal.source {
                SignalSource::Prometheus => check(
                    self.resource_of(&signal.query)
                        .is_some_and(|(_, kind)| kind == signal.kind),
                    format!(
                        "signal.query: {:?} of {name} is not a series of this plant for its kind; \
                         use \"RESOURCE:load\" (kind load) or \"RESOURCE:p99\" (kind latency)",
                        signal.query
                    ),
                ),
                SignalSource::Feedback => check(
                    self.quota.is_some()
                        || matches!(
                            signal.feedback,
                            Some(FeedbackKind::Latency | FeedbackKind::LatencyP99)
                        ),
                    format!("signal.source: {name} needs a [quota], because nothing else refuses"),
                ),
                SignalSource::Depth => check(
                    self.fills(signal),
                    format!(
                        "signal.query: {:?} of {name} is not the name of this plant's [queue]",
                        signal.query
                    ),
                ),
                SignalSource::Complaints => check(
                    self.mail.is_some(),
                    format!("signal.source: {name} needs a table [mail], about which to complain"),
                ),
                _ => check(
                    false,
                    format!(
                        "signal.source: of {name} is not simulated; use \"prometheus\", \"depth\", \
                         \"complaints\" or \"feedback\""
                    ),
                ),
            }
        }
        faults.extend(self.mail.iter().flat_map(MailAccount::faults));
        faults
    }
}
