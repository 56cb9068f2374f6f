//! The knobs of a throttle, as a person wrote them and as they are used.

use super::Name;

/// Who turns the `rps` knob.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The governor turns it.
    Auto,
    /// A person turns it; the governor keeps its hands off.
    #[default]
    Manual,
    /// The governor computes and records what it would do, and writes nothing.
    Shadow,
    /// No governor runs for this throttle.
    Off,
}

/// What acquire answers when Redis cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStoreLoss {
    /// Grant nothing: the throttle protects something that must not be overrun.
    #[default]
    Closed,
    /// Grant as if there were no limit.
    Open,
    /// Grant from the last known rate divided by the live workers, halved each window.
    Local,
}

/// The knobs of one throttle after reading: every field has a usable value.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Knobs {
    /// Tokens per second; 0 stops, -1 is unlimited.
    pub rps: f64,
    /// Windows' worth of tokens that may be spent at once after a quiet time.
    pub burst: f64,
    /// Length of a window in seconds; the tolerance of the bucket is `burst * window` seconds.
    pub window: f64,
    /// Who turns `rps`.
    pub mode: Mode,
    /// Lowest rate that the governor may set, in tokens per second.
    pub min: f64,
    /// Highest rate that the governor may set, in tokens per second.
    pub max: f64,
    /// Rate used when `rps` cannot be read or its lease has lapsed, in tokens per second.
    pub safe_rps: f64,
    /// Rate of each key, in tokens per second; -1 is unlimited.
    pub key_rps: f64,
    /// As `burst`, for each key.
    pub key_burst: f64,
    /// The throttle that this one draws from as well.
    pub parent: Option<Name>,
    /// True while a person has paused the throttle; `rps` keeps its value.
    pub paused: bool,
    /// What acquire answers when Redis cannot be asked.
    pub on_store_loss: OnStoreLoss,
    /// Unix milliseconds after which `rps` no longer counts and `safe_rps` does; `None` never lapses.
    pub valid_until_ms: Option<i64>,
    /// Counts writes through Flyball (not a person's own HSET).
    pub seq: u64,
    /// Term of the governor's leader that wrote last.
    pub term: u64,
    /// Who wrote last.
    pub by: String,
    /// When, in unix milliseconds.
    pub at_ms: i64,
    /// Why.
    pub why: String,
}
