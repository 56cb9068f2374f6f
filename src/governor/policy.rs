//! A policy: which signals govern a throttle, and how.
//!
//! It is the `[[signal]]` and `[governor]` part of a knobs file. What is wrong in it is refused at start, with file, line,
//! key and what is allowed ([`super::keys`] is the table of all keys).

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
    /// The query, or the throttle whose depth is meant.
    pub query: String,
    /// The value to hold, in its own unit.
    pub setpoint: f64,
    /// The value that trips the breaker, in its own unit.
    pub trip: f64,
    /// What its exporter averages over, in seconds.
    pub lag_s: f64,
    /// Page and metric that the breaker reads every second.
    pub probe: Option<Look>,
}

/// Where a probe looks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Look {
    /// Address of the page.
    pub url: String,
    /// The metric on it.
    pub metric: String,
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
    /// What the throttle's own work says.
    Feedback,
}

/// The law's numbers; each is described in [`super::keys::KEYS`] under the same name.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "every field is a key of the table, which is the one place that describes it")]
pub struct Law {
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

    /// The signal of that name.
    pub fn signal(&self, name: &str) -> Option<&Signal> {
        self.signals.iter().find(|signal| signal.name == name)
    }
}

impl Default for Law {
    fn default() -> Self {
        parse::default_law()
    }
}
