//! A policy: which signals govern a throttle, and how.
//!
//! It is the `[[signal]]` and `[governor]` part of a knobs file. What is wrong in it is refused at start, with file, line,
//! key and what is allowed ([`super::keys`] is the table of all keys).

use super::actuator::Actuator;
use super::parse;

/// Most signals that one throttle may have.
pub const SIGNALS_MAX: usize = 16;

/// How one throttle is governed.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What is measured; at least one.
    pub signals: Vec<Signal>,
    /// The law's numbers.
    pub law: Law,
}

/// One signal of a policy.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Signal {
    /// What people call it.
    pub name: String,
    /// How it answers to the rate.
    pub kind: Kind,
    /// Where it comes from.
    pub source: Source,
    /// The query, or the throttle whose depth or age is meant.
    pub query: String,
    /// Which of the servers in the settings is asked; the usual one if none is named.
    pub server: Option<String>,
    /// What is heard of the throttle's own work.
    pub heard: Option<Heard>,
    /// What the source's unit is multiplied by to be the setpoint's.
    pub scale: f64,
    /// The value to hold, in its own unit.
    pub setpoint: f64,
    /// The value above which the rate is never raised, in its own unit.
    pub soft: Option<f64>,
    /// The value that trips the breaker, in its own unit.
    pub trip: f64,
    /// It can trip the breaker: every load can, others where `trip` is written.
    pub trips: bool,
    /// Seconds without a new sample after which it counts as silent; `None` for what the law says.
    pub stale_s: Option<f64>,
    /// Series of a plain selector that must go on; `None` for as many as usual.
    pub series_min: Option<usize>,
    /// What its exporter averages over, in seconds.
    pub lag_s: f64,
    /// What the breaker reads twice a second. For a signal from a page it is the signal itself.
    pub probe: Option<Look>,
}

impl Signal {
    /// A signal of Prometheus with the defaults of the table for all that is not given.
    pub fn of_prometheus(name: &str, kind: Kind, query: &str, setpoint: f64, lag_s: f64) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            source: Source::Prometheus,
            query: query.to_owned(),
            server: None,
            heard: None,
            scale: 1.0,
            setpoint,
            soft: None,
            trip: 2.0 * setpoint,
            trips: kind == Kind::Load,
            stale_s: None,
            series_min: None,
            lag_s,
            probe: None,
        }
    }
}

/// Where a probe looks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Look {
    /// Address of the page.
    pub url: String,
    /// The place on it.
    pub place: Place,
}

/// A place on a page.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A metric in Prometheus' text form.
    Metric(String),
    /// A JSON pointer.
    Pointer(String),
}

/// What is heard of a throttle's own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Heard {
    /// The share that was refused.
    Refused,
    /// The share that failed.
    Errors,
    /// The mean duration of what succeeded, in seconds.
    Latency,
    /// The duration that only one in a hundred of what succeeded exceeds, in seconds.
    #[serde(rename = "latency_p99")]
    LatencyP99,
}

impl Heard {
    /// All of them, by their words.
    pub const WORDS: [(&str, Self); 4] =
        [("refused", Self::Refused), ("errors", Self::Errors), ("latency", Self::Latency), ("latency_p99", Self::LatencyP99)];

    /// The kind of signal that it is. Only refusals measure a quota; failures and durations grow near saturation.
    pub fn kind(self) -> Kind {
        match self {
            Self::Refused => Kind::Ratio,
            Self::Errors | Self::Latency | Self::LatencyP99 => Kind::Latency,
        }
    }
}

/// How a signal answers to the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Grows in proportion to our work, on top of a background.
    Load,
    /// Grows steeply near saturation.
    Latency,
    /// The share of work that is refused.
    Ratio,
}

/// Where a signal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A Prometheus query.
    Prometheus,
    /// The ready jobs of a throttle.
    Depth,
    /// How long the oldest ready job of a throttle has waited.
    Age,
    /// What the throttle's own work says.
    Feedback,
    /// A number on a page.
    Http,
    /// What a statement on a database answers.
    Postgres,
    /// The share of mail of a pool of provider accounts that was complained of.
    Complaints,
}

/// The law's numbers; each is described in [`super::keys::KEYS`] under the same name.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "every field is a key of the table, which is the one place that describes it")]
pub struct Law {
    pub actuator: Actuator,
    pub tick_s: f64,
    pub gain: f64,
    pub integral_min_s: f64,
    pub derivative_s: f64,
    pub up_per_min: f64,
    pub hold_s: f64,
    pub stale_hold_s: f64,
    pub late_gaps: f64,
    pub stale_half_s: f64,
    pub breaker: bool,
    pub open_min_s: f64,
    pub close_wait_s: f64,
    pub confirm_s: f64,
    pub restart: f64,
    pub retrip_s: f64,
    pub quota_margin: f64,
    pub quiet_s: f64,
    pub durations: bool,
    pub duration_step: f64,
    pub observer: bool,
    pub predictor: bool,
    pub noise_max: f64,
    pub filter_max_s: f64,
    pub feed_forward: bool,
}

/// One thing that is wrong in a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}: {reason}")]
pub struct Problem {
    /// The file.
    pub file: String,
    /// The line in it, from 1.
    pub line: usize,
    /// The key, such as `signal.setpoint`.
    pub key: String,
    /// What is wrong and what is allowed.
    pub reason: String,
}

/// Everything that is wrong in a policy, in the order of the lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Refused(pub Vec<Problem>);

impl Policy {
    /// Reads the policy in the knobs file `file` with the content `text`; `None` if it names no signal.
    ///
    /// Tables that are not the policy's (`[knobs]`, and whatever else) are another room's to judge.
    pub fn parse(text: &str, file: &str) -> Result<Option<Self>, Refused> {
        parse::policy(text, file)
    }

    /// Whether it needs to hear how the throttle's own jobs end.
    pub fn hears(&self) -> bool {
        self.law.durations
            || self.law.actuator == Actuator::Concurrency
            || self.signals.iter().any(|signal| signal.heard.is_some())
    }

    /// True if it is heard how long each of the throttle's own jobs takes.
    pub fn hears_durations(&self) -> bool {
        self.signals.iter().any(|signal| signal.heard == Some(Heard::LatencyP99))
    }

    /// The signal of that name.
    pub fn signal(&self, name: &str) -> Option<&Signal> {
        self.signals.iter().find(|signal| signal.name == name)
    }
}

/// A knob is good for this many ticks, and at least this long, in seconds; past it the throttle falls back to `safe_rps`.
/// Whenever its writer dies, two leases of a leader are left: who takes over finds it in force.
const LEASE_TICKS: f64 = 3.0;
const LEASE_MIN_S: f64 = 30.0;

impl Law {
    /// How long a knob that was written is good for, in seconds.
    pub fn lease_s(&self) -> f64 {
        (LEASE_TICKS * self.tick_s).max(LEASE_MIN_S)
    }
}

impl Default for Law {
    fn default() -> Self {
        parse::default_law()
    }
}
