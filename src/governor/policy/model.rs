//! A policy: the signals and the law that govern a throttle.
//!
//! It is the `[[signal]]` and `[governor]` part of a knobs file. Errors in it are refused at start,
//! with file, line, key and the allowed values ([`super::keys`] is the table of all keys).

use crate::governor::actuator::Actuator;

/// The maximum number of signals of one throttle.
pub const SIGNALS_MAX: usize = 16;

/// The policy of one throttle.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The signals; at least one.
    pub signals: Vec<SignalPolicy>,
    /// The parameters of the law.
    pub law: ControllerTuning,
}

/// One signal of a policy.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SignalPolicy {
    /// The name, for people.
    pub name: String,
    /// The way in which it responds to the rate.
    pub kind: SignalKind,
    /// The source of its values.
    pub source: SignalSource,
    /// The query, or the name of the throttle or pool for `depth`, `age` and `complaints`.
    pub query: String,
    /// The server in the settings, by name; the default one if `None`.
    pub server: Option<String>,
    /// The kind of feedback from the throttle's own work.
    pub feedback: Option<FeedbackKind>,
    /// The factor from the source's unit to the setpoint's.
    pub scale: f64,
    /// The setpoint, in its own unit.
    pub setpoint: f64,
    /// The value above which the rate is never raised, in its own unit.
    pub soft: Option<f64>,
    /// The value that trips the breaker, in its own unit.
    pub trip: f64,
    /// True if it can trip the breaker: always for a load, for others if `trip` is written.
    pub trips: bool,
    /// The silence after which it is stale, in seconds; `None` for the law's value.
    pub stale_s: Option<f64>,
    /// The smallest number of continuing series of a plain selector; `None` for the usual number.
    pub series_min: Option<usize>,
    /// The averaging time of its exporter, in seconds.
    pub lag_s: f64,
    /// The page that the breaker reads twice a second; for a signal from a page, the signal's own
    /// page.
    pub probe: Option<ProbeTarget>,
}

impl SignalPolicy {
    /// Creates a Prometheus signal with the table's defaults for all other fields.
    pub fn of_prometheus(
        name: &str,
        kind: SignalKind,
        query: &str,
        setpoint: f64,
        lag_s: f64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            source: SignalSource::Prometheus,
            query: query.to_owned(),
            server: None,
            feedback: None,
            scale: 1.0,
            setpoint,
            soft: None,
            trip: 2.0 * setpoint,
            trips: kind == SignalKind::Load,
            stale_s: None,
            series_min: None,
            lag_s,
            probe: None,
        }
    }
}

impl SignalPolicy {
    /// Returns true if a model of the load sets the rate: of an average of work on a resource, not
    /// of a queue, which adds up what was let through.
    pub fn has_model(&self, law: &ControllerTuning) -> bool {
        let is_queue = matches!(self.source, SignalSource::Depth | SignalSource::Age);
        self.kind == SignalKind::Load && law.model && law.observer && !is_queue
    }
}

/// The target of a probe.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ProbeTarget {
    /// The address of the page.
    pub url: String,
    /// The place of the value on the page.
    pub place: Extractor,
}

/// A place on a page.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Extractor {
    /// A metric in Prometheus' text form.
    Metric(String),
    /// A JSON pointer (RFC 6901).
    Pointer(String),
}

/// A kind of feedback from a throttle's own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FeedbackKind {
    /// The share of attempts that were refused.
    Refused,
    /// The share of attempts that failed.
    Errors,
    /// The mean duration of the attempts that succeeded, in seconds.
    Latency,
    /// The 99th percentile of the durations of the attempts that succeeded, in seconds.
    #[serde(rename = "latency_p99")]
    LatencyP99,
}

impl FeedbackKind {
    /// All kinds, by name.
    pub const WORDS: [(&str, Self); 4] = [
        ("refused", Self::Refused),
        ("errors", Self::Errors),
        ("latency", Self::Latency),
        ("latency_p99", Self::LatencyP99),
    ];

    /// Returns its kind of signal.
    ///
    /// Only refusals measure a quota; failures and durations grow near saturation.
    pub fn kind(self) -> SignalKind {
        match self {
            Self::Refused => SignalKind::Ratio,
            Self::Errors | Self::Latency | Self::LatencyP99 => SignalKind::Latency,
        }
    }
}

/// The way in which a signal responds to the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalKind {
    /// Grows in proportion to our work, on top of a background.
    Load,
    /// Grows steeply near saturation.
    Latency,
    /// The share of work that is refused.
    Ratio,
}

/// The source of a signal's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalSource {
    /// A Prometheus query.
    Prometheus,
    /// The number of a throttle's ready jobs.
    Depth,
    /// The waiting time of a throttle's oldest ready job.
    Age,
    /// The feedback of the throttle's own work.
    Feedback,
    /// A number on a page.
    Http,
    /// The result of a statement on a database.
    Postgres,
    /// The share of a provider account pool's mail that recipients complained about.
    Complaints,
    /// A figure of a cluster of Elasticsearch or OpenSearch.
    Elasticsearch,
    /// A figure of a server of MongoDB.
    Mongodb,
}

/// The parameters of the law; each is described in [`super::keys::KEYS`] under the same name.
#[derive(Clone, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "every field is a key of the table, which is the one place that describes it"
)]
pub struct ControllerTuning {
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
    pub durations_check: bool,
    pub duration_step: f64,
    pub observer: bool,
    pub predictor: bool,
    pub noise_max: f64,
    pub filter_max_s: f64,
    pub feed_forward: bool,
    pub model: bool,
}

impl Policy {
    /// Returns true if it needs feedback about the outcome of the throttle's own jobs.
    pub fn uses_feedback(&self) -> bool {
        self.law.durations
            || self.law.actuator == Actuator::Concurrency
            || self.signals.iter().any(|signal| signal.feedback.is_some())
    }

    /// Returns true if the governor finds out whether durations say anything of the load.
    pub fn checks_durations(&self) -> bool {
        self.law.durations && self.law.durations_check
    }

    /// Returns true if it needs the duration of each of the throttle's own jobs.
    pub fn uses_durations(&self) -> bool {
        self.signals
            .iter()
            .any(|signal| signal.feedback == Some(FeedbackKind::LatencyP99))
    }

    /// Returns the signal of that name.
    pub fn signal(&self, name: &str) -> Option<&SignalPolicy> {
        self.signals.iter().find(|signal| signal.name == name)
    }
}

/// The lease of a knob, in ticks; past it the throttle falls back to `safe_rps`.
///
/// At least two leader leases of it remain when its writer dies, so a successor finds it in force.
const LEASE_TICKS: f64 = 3.0;
/// The shortest lease of a knob, in seconds.
const LEASE_MIN_S: f64 = 30.0;

impl ControllerTuning {
    /// Returns the lease of a written knob, in seconds.
    pub fn lease_s(&self) -> f64 {
        (LEASE_TICKS * self.tick_s).max(LEASE_MIN_S)
    }
}
