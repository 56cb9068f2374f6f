//! The table of all policy keys: default, unit, range and reason. The parser, the error messages
//! and `docs/reference/policy.md` are all derived from it, so they cannot disagree.

use serde_json::Value;

/// The table of a knobs file to which a key belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyTable {
    /// `[[signal]]`
    Signal,
    /// `[governor]`
    Governor,
}

/// The default of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Default {
    /// No default: the key is required.
    Required,
    /// A default that depends on other keys, as described.
    Depends(&'static str),
    /// A numeric default.
    Number(f64),
    /// A boolean default.
    Flag(bool),
    /// A default word.
    Word(&'static str),
}

/// The set of values that a key accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowed {
    /// A finite number in this closed range.
    Number(f64, f64),
    /// A finite number above the first bound, up to the second.
    Above(f64, f64),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A text of 1 to so many characters.
    Text(usize),
}

/// One key of a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// The table to which it belongs.
    pub part: PolicyTable,
    /// The name of the key.
    pub name: &'static str,
    /// The unit; empty without one.
    pub unit: &'static str,
    pub default: Default,
    pub allowed: Allowed,
    /// The description.
    pub what: &'static str,
}

const fn signal(
    name: &'static str,
    unit: &'static str,
    default: Default,
    allowed: Allowed,
    what: &'static str,
) -> Key {
    Key {
        part: PolicyTable::Signal,
        name,
        unit,
        default,
        allowed,
        what,
    }
}

const fn number(
    name: &'static str,
    unit: &'static str,
    default: f64,
    from: f64,
    to: f64,
    what: &'static str,
) -> Key {
    Key {
        part: PolicyTable::Governor,
        name,
        unit,
        default: Default::Number(default),
        allowed: Allowed::Number(from, to),
        what,
    }
}

const fn flag(name: &'static str, default: bool, what: &'static str) -> Key {
    Key {
        part: PolicyTable::Governor,
        name,
        unit: "",
        default: Default::Flag(default),
        allowed: Allowed::Flag,
        what,
    }
}

pub const KEYS: &[Key] = &[
    signal(
        "name",
        "",
        Default::Required,
        Allowed::Text(64),
        "The signal's name: letters, digits and `. _ -`. Unique in the file.",
    ),
    signal(
        "kind",
        "",
        Default::Depends("\"load\"; for feedback that of its query; latency for complaints"),
        Allowed::Word(&["load", "latency", "ratio"]),
        "`load`: grows with the rate (load average, queue length, utilisation). `latency`: grows steeply near saturation. \
         `ratio`: the share of work that is refused, 0 to 1.",
    ),
    signal(
        "source",
        "",
        Default::Word("prometheus"),
        Allowed::Word(&[
            "prometheus",
            "depth",
            "age",
            "feedback",
            "http",
            "postgres",
            "complaints",
            "elasticsearch",
            "mongodb",
        ]),
        "`prometheus`: a query. `depth`: ready jobs of the throttle named by `query`. `age`: the \
         waiting time of the oldest of them, in seconds. `feedback`: the outcomes of this \
         throttle's own jobs. `http`: a number on the page `url`. `postgres`: the result of the \
         statement `query`. `complaints`: the complaint rate, over 24 hours, of the worst account \
         of the pool `query`. `elasticsearch`, `mongodb`: the figure `query` of the cluster or server `server`. Signals that can trip the breaker are read twice a second, except \
         `prometheus`.",
    ),
    signal(
        "server",
        "",
        Default::Depends(
            "the one of `PROMETHEUS_URL`; required for postgres, elasticsearch and mongodb",
        ),
        Allowed::Text(64),
        "For `prometheus` the name of a `[prometheus.<name>]` of the settings, for `postgres` that of a \
         `[postgres.<name>]`, for `elasticsearch` that of a `[reindex.sinks.<name>]`, for `mongodb` that of a \
         `[reindex.sources.<name>]`.",
    ),
    signal(
        "query",
        "",
        Default::Depends("required, except for feedback and http"),
        Allowed::Text(4096),
        "The PromQL query, best a plain selector: its raw samples are read with their own times. \
         For `depth` and `age`: the name of a throttle. For `complaints`: the name of a pool. For \
         `postgres`: a read-only statement of at most 0.4 s that returns one row with one number, \
         and optionally its time in a column `at`. For `feedback`: `refused`, the share of \
         attempts that the server refused, for instance with 429 (a ratio); `errors`, the share \
         that failed or timed out (a latency); `latency`, the mean duration of successful attempts \
         in seconds; `latency_p99`, their 99th percentile, once twenty or more have ended (a \
         latency). For `elasticsearch`: `load`, the load average over a minute of the busiest node; \
         `heap`, the fullest heap as a share; `write_queue`, the longest queue of writes; `rejected`, \
         rejected requests per second. For `mongodb`: `queue`, waiting operations; `cache_dirty`, the \
         modified share of the cache; `lagged`, 1 while flow control holds writes back; `operations`, \
         operations per second.",
    ),
    signal(
        "url",
        "",
        Default::Depends("required for http"),
        Allowed::Text(1024),
        "For `http`: the page's address, without credentials.",
    ),
    signal(
        "metric",
        "",
        Default::Depends("for http this or `pointer`"),
        Allowed::Text(512),
        "For `http`: the metric on a page in Prometheus' text form: `name` or `name{label=\"value\"}`.",
    ),
    signal(
        "pointer",
        "",
        Default::Depends("for http this or `metric`"),
        Allowed::Text(512),
        "For `http`: a JSON pointer (RFC 6901) to the number on a JSON page, such as \
         `/queue/0/length`.",
    ),
    Key {
        part: PolicyTable::Signal,
        name: "scale",
        unit: "factor",
        default: Default::Number(1.0),
        allowed: Allowed::Number(1e-12, 1e12),
        what: "The factor that converts values to the setpoint's unit: 0.001 from milliseconds to \
               seconds, 0.01 from percent to a share.",
    },
    signal(
        "setpoint",
        "of the signal",
        Default::Depends("required; 0.001 for complaints"),
        Allowed::Above(0.0, 1e12),
        "The value to hold, in the signal's own unit; for a ratio at most 0.5.",
    ),
    signal(
        "soft",
        "of the signal",
        Default::Depends("none"),
        Allowed::Above(0.0, 1e15),
        "The soft level: while the newest value is above it the rate is not raised, regardless of \
         smoothing, prediction and other signals. From the setpoint to below `trip`.",
    ),
    signal(
        "trip",
        "of the signal",
        Default::Depends("2 x setpoint for a load, none for others"),
        Allowed::Above(0.0, 1e15),
        "The hard level: the value that trips the breaker; above the setpoint, and for a ratio \
         below 1. For a load or a latency it is raised automatically while the signal is noisy, up to fourfold. A latency \
         or a ratio trips only if this is set.",
    ),
    signal(
        "lag_s",
        "s",
        Default::Depends(
            "60 for prometheus and elasticsearch load, 15 for feedback errors and latency_p99, 900 for complaints, else 0",
        ),
        Allowed::Number(0.0, 900.0),
        "The averaging time of the exporter: 60 for load1, 300 for load5, half the range of \
         `rate()` and `avg_over_time()`, 0 for a plain gauge. A wrong value is corrected \
         automatically for a load, too high a one for the others. `feedback` is averaged over twice this time, and at least one tick.",
    ),
    signal(
        "stale_s",
        "s",
        Default::Depends("`stale_hold_s`, or 3.5 usual spacings if longer"),
        Allowed::Number(2.0, 3600.0),
        "A signal without a new sample for this long is stale: the rate is lowered towards \
         `safe_rps`.",
    ),
    signal(
        "series_min",
        "series",
        Default::Depends("the usual number"),
        Allowed::Number(0.0, 4000.0),
        "For a plain selector of `prometheus`: with fewer live series than this the signal has no \
         reading, because a missing series may be the worst. The usual number is the median of two \
         hours; 0 switches the check off.",
    ),
    signal(
        "probe",
        "",
        Default::Depends("none"),
        Allowed::Text(1024),
        "For `prometheus`: the address of the exporter's own page, without credentials. The \
         breaker reads it twice a second, bypassing Prometheus.",
    ),
    signal(
        "probe_metric",
        "",
        Default::Depends("with probe this or `probe_pointer`"),
        Allowed::Text(512),
        "The metric on that page: `name` or `name{label=\"value\"}`.",
    ),
    signal(
        "probe_pointer",
        "",
        Default::Depends("with probe this or `probe_metric`"),
        Allowed::Text(512),
        "A JSON pointer to the number on that page, if it is JSON.",
    ),
    Key {
        part: PolicyTable::Governor,
        name: "actuator",
        unit: "",
        default: Default::Word("rps"),
        allowed: Allowed::Word(&["rps", "concurrency"]),
        what: "The knob that the governor sets: `rps` (tokens per second) or `concurrency` (jobs \
               at once over all processes). With `concurrency`, `min` and `max` are whole slots \
               too; use it for a provider without a quota that slows down with more open requests.",
    },
    number(
        "tick_s",
        "s",
        5.0,
        1.0,
        60.0,
        "How often the rate is decided.",
    ),
    number(
        "gain",
        "",
        1.6,
        0.05,
        10.0,
        "Nats of rate per unit of relative error, at a lag of 60 s.",
    ),
    number(
        "integral_min_s",
        "s",
        20.0,
        2.0,
        600.0,
        "Shortest integral time; a longer lag makes it longer.",
    ),
    number(
        "derivative_s",
        "s",
        5.0,
        0.0,
        60.0,
        "Derivative time, at a lag of 60 s.",
    ),
    number(
        "up_per_min",
        "factor",
        4.0,
        1.05,
        100.0,
        "The rate grows at most by this factor a minute. It may fall at once.",
    ),
    number(
        "hold_s",
        "s",
        60.0,
        0.0,
        86_400.0,
        "After a person wrote `rps`, the governor does not raise it for this long. It may lower it.",
    ),
    number(
        "stale_hold_s",
        "s",
        60.0,
        2.0,
        3600.0,
        "Without a new sample the rate is held for this long (or 3.5 usual spacings, if longer).",
    ),
    number(
        "late_gaps",
        "",
        2.0,
        1.0,
        1e6,
        "Without a new sample for this many usual spacings the rate is no longer raised.",
    ),
    number(
        "stale_half_s",
        "s",
        60.0,
        1.0,
        3600.0,
        "Then it halves in this time, down to `safe_rps`.",
    ),
    flag("breaker", true, "Stop at once on an overload."),
    number(
        "open_min_s",
        "s",
        20.0,
        1.0,
        3600.0,
        "Shortest stop after a trip; doubled by every re-trip, up to 16 times.",
    ),
    number(
        "close_wait_s",
        "s",
        120.0,
        0.0,
        3600.0,
        "Longest wait for a slow average to recover, once the load itself is gone.",
    ),
    number(
        "confirm_s",
        "s",
        60.0,
        0.0,
        3600.0,
        "After a restart the rate is not raised until a sample confirms it, or for this long.",
    ),
    number(
        "restart",
        "share",
        0.8,
        0.05,
        1.0,
        "The rate after a restart, as a share of the rate that the model allows; halved by every \
         re-trip.",
    ),
    number(
        "retrip_s",
        "s",
        300.0,
        0.0,
        86_400.0,
        "A trip within this time after a restart is a re-trip.",
    ),
    number(
        "quota_margin",
        "share",
        0.02,
        0.0,
        0.5,
        "The margin that a ratio signal keeps below a learned quota.",
    ),
    number(
        "quiet_s",
        "s",
        600.0,
        10.0,
        86_400.0,
        "Without a refusal for this long a ratio signal no longer limits.",
    ),
    flag(
        "durations",
        true,
        "Control *work* (rate x mean duration): an inner loop that reacts to more expensive jobs \
         within seconds. Jobs whose duration is unrelated to the resource are found out \
         (`durations_check`). Always off with `actuator = \"concurrency\"`, because slots already measure work.",
    ),
    flag(
        "durations_check",
        true,
        "Find out from the samples whether durations say anything of the load, count jobs while \
         they do not, and never raise the rate because jobs get shorter while a signal reads above \
         its setpoint. `false`: durations always count.",
    ),
    number(
        "duration_step",
        "factor",
        1.3,
        1.0,
        1e6,
        "A rise of the mean duration by more than this factor, if it is significant, takes effect \
         at once instead of through the mean of 15 s.",
    ),
    flag(
        "observer",
        true,
        "Learn which part of the load our own jobs cause.",
    ),
    flag(
        "predictor",
        true,
        "Project delayed samples to the present, using the work let through since.",
    ),
    number(
        "noise_max",
        "share",
        0.12,
        0.01,
        1.0,
        "Sample-to-sample noise, relative to the setpoint, above which samples are averaged.",
    ),
    number(
        "filter_max_s",
        "s",
        60.0,
        0.0,
        600.0,
        "The longest averaging time for noisy samples.",
    ),
    flag(
        "model",
        false,
        "Experimental: the rate of a load follows a model that learns its lag, its noise, the \
         background and the cost of our work. It never raises the rate while the newest sample is above the setpoint. \
         Off, the rate follows the PID. Needs `observer`; queues (`depth`, `age`) have none.",
    ),
    flag(
        "feed_forward",
        true,
        "Keep an unused throttle ready at the rate that worked in this hour of the week; only \
         after a whole week of data.",
    ),
];

/// Returns the key of that name.
pub fn find(part: PolicyTable, name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.part == part && key.name == name)
}

/// Returns the names of a table's keys.
pub fn names(part: PolicyTable) -> Vec<&'static str> {
    KEYS.iter()
        .filter(|key| key.part == part)
        .map(|key| key.name)
        .collect()
}

impl Allowed {
    /// Returns true if a key may have the value.
    pub fn accepts(&self, value: &Value) -> bool {
        match self {
            Self::Number(from, to) => value.as_f64().is_some_and(|x| (*from..=*to).contains(&x)),
            Self::Above(from, to) => value.as_f64().is_some_and(|x| x > *from && x <= *to),
            Self::Flag => value.is_boolean(),
            Self::Word(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::Text(most) => value
                .as_str()
                .is_some_and(|text| !text.trim().is_empty() && text.chars().count() <= *most),
        }
    }

    /// Returns the allowed values, in words that complete "must be …".
    pub fn description(&self) -> String {
        match self {
            Self::Number(from, to) => format!("a number from {from} to {to}"),
            Self::Above(from, to) => format!("a number above {from}, at most {to:e}"),
            Self::Flag => "true or false".to_owned(),
            Self::Word(words) => words
                .iter()
                .map(|w| format!("{w:?}"))
                .collect::<Vec<_>>()
                .join(" or "),
            Self::Text(most) => format!("a text of 1 to {most} characters"),
        }
    }
}

impl Default {
    /// Returns the default as a person would write it.
    pub fn words(&self) -> String {
        match self {
            Self::Required => "required".to_owned(),
            Self::Depends(how) => (*how).to_owned(),
            Self::Number(x) => x.to_string(),
            Self::Flag(x) => x.to_string(),
            Self::Word(x) => format!("{x:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_inside_its_own_range() {
        for key in KEYS {
            let fits = match (key.default, key.allowed) {
                (Default::Number(x), Allowed::Number(from, to)) => (from..=to).contains(&x),
                (Default::Word(w), Allowed::Word(words)) => words.contains(&w),
                (Default::Flag(_), Allowed::Flag)
                | (Default::Required | Default::Depends(_), _) => true,
                _ => false,
            };
            assert!(fits, "{}", key.name);
        }
    }
}
