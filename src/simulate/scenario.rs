//! A scenario: a knobs file, and tables about the plant that it governs.

use serde::Deserialize;

use super::curve::Curve;
use super::mail::MailAccount;
use crate::governor::policy::{Policy, SignalKind, SignalPolicy, SignalSource};
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
}
