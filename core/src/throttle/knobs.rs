//! The knobs of a throttle: the texts that a person wrote, and the values in use.
//!
//! Reading never fails, because a person may write anything into the hash while everything runs. An
//! unreadable field becomes a [`KnobProblem`] and the throttle runs carefully. Entry points that
//! can refuse (HTTP, CLI, files) use [`Knobs::check`] instead.

use std::collections::BTreeMap;

use super::Name;
use super::RateLimit;
use super::bucket::Rate;
use super::direct_change::{is_author_unknown, is_changed_directly};
use super::rolling_window::WindowLimit;
use super::rules::KnobProblem;
use super::rules::{self, number};
use super::scope::Scope;
use crate::input::wording::{missing, must_be, unknown};

pub use super::modes::{Mode, On429, OnBacklog, OnStoreLoss, OverLimit};

/// The longest pause of a key after a refusal if no knob sets it, in microseconds.
const KEY_PAUSE_US: f64 = 86_400e6;

/// The longest pause of a whole throttle after a refusal if no knob sets it, in microseconds.
const WIDE_PAUSE_US: f64 = 900e6;

/// The longest time for which a reported quota counts if no knob sets it, in microseconds.
const QUOTA_US: f64 = 3_600e6;

/// The reason of a stop by zero capacity if none is recorded.
pub(super) const NO_CAPACITY: &str = "its capacity is 0";

/// The number of unknown fields that are reported one by one.
const MAX_UNKNOWN_FIELDS: usize = 20;

/// The number of characters of `by` and `why` that are shown.
const MAX_NOTE_CHARS: usize = 1000;

/// The longest `capacity_reason` that is shown, in bytes.
const LONGEST_WHY: usize = 1000;

/// The highest cost of a job anywhere, in tokens.
pub const MAX_COST: f64 = 1e9;

/// The highest cost of a job if no knob or rate allows more, in tokens.
pub(super) const PLAIN_COST: f64 = 1000.0;

/// The highest cost of a job in windows' worth of tokens, if the bucket does not hold more.
const COST_WINDOWS: f64 = 10.0;

/// The highest charge for one job in seconds of the rate in force, if no knob sets it and the
/// bucket does not hold more.
const COST_SECONDS: f64 = 3600.0;

/// The charge for one job that is always allowed, in tokens.
const FEW_TOKENS: f64 = 10.0;

/// The fields besides `rps` that shape the rate. While one of them cannot be read, the rate in force
/// is at most `safe_rps`.
pub(super) const SHAPING: [&str; 9] = [
    "safe_rps",
    "capacity",
    "burst",
    "window",
    "key_rps",
    "key_burst",
    "cost_factor",
    "windows",
    "key_windows",
];

/// The knobs of one throttle after reading: every field has a usable value.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Knobs {
    /// The rate before lease, pause and capacity. If `rps` or another number that shapes the rate
    /// cannot be read, this is already the slower of `rps` and `safe_rps`.
    pub rps: RateLimit,
    /// The tokens that may be spent at once after a quiet time, in windows' worth.
    pub burst: f64,
    /// The length of a window in seconds; the tolerance of the bucket is `burst * window` seconds.
    pub window: f64,
    /// The party that turns `rps`.
    pub mode: Mode,
    /// The end of the mode manual, in unix milliseconds; `None` for no end.
    pub manual_until_ms: Option<i64>,
    /// The lowest rate that the governor may set, in tokens per second.
    pub min: f64,
    /// The highest rate that the governor may set, in tokens per second.
    pub max: f64,
    /// The rate used if `rps` cannot be read or its lease has lapsed.
    pub safe_rps: RateLimit,
    /// The rate that the receivers behind the throttle can take now. No rate in force is above it.
    pub capacity: RateLimit,
    /// The reason of `capacity`; empty if none is recorded.
    pub capacity_reason: String,
    /// The rate of each key.
    pub key_rps: RateLimit,
    /// The burst of each key, in windows' worth of tokens; 0 spaces its jobs evenly.
    pub key_burst: f64,
    /// The factor by which the costs of the throttle's jobs count.
    pub cost_factor: f64,
    /// The rolling windows of the throttle.
    #[serde(serialize_with = "window_texts")]
    pub windows: Vec<WindowLimit>,
    /// The rolling windows of each key.
    #[serde(serialize_with = "window_texts")]
    pub key_windows: Vec<WindowLimit>,
    /// The throttle from which every token is taken as well.
    pub parent: Option<Name>,
    /// True while a person has paused the throttle; `rps` keeps its value.
    pub paused: bool,
    /// The answer of `acquire` while Redis cannot be asked.
    pub on_store_loss: OnStoreLoss,
    /// True if the throttle may take the spare tokens of the level above beyond `rps`.
    pub borrow: bool,
    /// The effect of another server's refusal.
    pub on_429: On429,
    /// The widest scope that a refusal by an untrusted server may have.
    pub trust_scope: Scope,
    /// The longest pause after a refusal, in seconds; `None` for the default.
    pub max_pause: Option<f64>,
    /// The limit of jobs of this throttle and those below it that run at once over all processes;
    /// `None` for no limit.
    #[serde(serialize_with = "slots_number")]
    pub concurrency: Option<u32>,
    /// The limit of jobs of each key that run at once over all processes; `None` for no limit.
    #[serde(serialize_with = "slots_number")]
    pub key_concurrency: Option<u32>,
    /// The share of a worker's slots beside other throttles.
    pub weight: f64,
    /// The fate of jobs that cannot run at once.
    pub over_limit: OverLimit,
    /// The knob `max_cost`, the highest cost of one job in tokens, if set; see [`Knobs::max_cost`].
    pub max_cost: Option<f64>,
    /// The number of waiting jobs of one lane above which `on_backlog` acts.
    pub max_backlog: Option<u64>,
    /// The effect of a backlog above `max_backlog`.
    pub on_backlog: OnBacklog,
    /// The end of the lease in unix milliseconds, after which `safe_rps` replaces `rps`; `None`
    /// never lapses. Always `None` if `mode` in the hash is manual, shadow or off, because a
    /// person's setting stays.
    pub valid_until_ms: Option<i64>,
    /// The number of writes through Flyball (not a person's own HSET).
    pub seq: u64,
    /// The term of the governor's leader that wrote last.
    pub term: u64,
    /// The author of the last write; empty if the main knobs were changed in Redis since, without
    /// one.
    pub by: String,
    /// The time of the last write, in unix milliseconds; 0 if the main knobs were changed in Redis
    /// since.
    pub at_ms: i64,
    /// The reason of the last write; empty as `by` is.
    pub why: String,
}

/// Returns the number that represents a limit of jobs at once in knobs, answers and metrics; -1 for
/// no limit.
pub fn concurrency_number(limit: Option<u32>) -> i64 {
    limit.map_or(-1, i64::from)
}

fn slots_number<S: serde::Serializer>(
    limit: &Option<u32>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(concurrency_number(*limit))
}

/// Writes limits as the knob has them, `10/1 1000/3600`.
fn window_texts<S: serde::Serializer>(
    limits: &[WindowLimit],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let texts: Vec<String> = limits.iter().map(WindowLimit::to_string).collect();
    serializer.serialize_str(&texts.join(" "))
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            rps: RateLimit::PerSecond(1.0),
            burst: 1.0,
            window: 1.0,
            mode: Mode::Manual,
            manual_until_ms: None,
            min: 0.1,
            max: 1000.0,
            safe_rps: RateLimit::PerSecond(1.0),
            capacity: RateLimit::Unlimited,
            capacity_reason: String::new(),
            key_rps: RateLimit::Unlimited,
            key_burst: 1.0,
            cost_factor: 1.0,
            windows: Vec::new(),
            key_windows: Vec::new(),
            parent: None,
            paused: false,
            on_store_loss: OnStoreLoss::Closed,
            borrow: false,
            on_429: On429::ActiveInformed,
            trust_scope: Scope::Key,
            max_pause: None,
            concurrency: None,
            key_concurrency: None,
            weight: 1.0,
            over_limit: OverLimit::Wait,
            max_cost: None,
            max_backlog: None,
            on_backlog: OnBacklog::Signal,
            valid_until_ms: None,
            seq: 0,
            term: 0,
            by: String::new(),
            at_ms: 0,
            why: String::new(),
        }
    }
}

impl Knobs {
    /// Reads the hash of a throttle; each field has its own default, and an unusable value is a
    /// problem, not an error.
    ///
    /// Nonsense in `rps` or in another field that shapes the rate (`SHAPING`) makes the throttle
    /// run at `safe_rps`, or at `rps` if that is readable and slower, because a typo must never
    /// speed anything up. For the same reason nonsense in a concurrency limit lets one job run at a
    /// time.
    pub fn read(raw: &BTreeMap<String, String>) -> (Self, Vec<KnobProblem>) {
        let mut reader = KnobsReader {
            raw,
            problems: Vec::new(),
            careful: false,
        };
        let plain = Self::default();
        let safe_rps = reader.rate_limit("safe_rps", plain.safe_rps);
        let capacity = reader.rate_limit("capacity", plain.capacity);
        let burst = reader.rate_number("burst", plain.burst);
        let window = reader.rate_number("window", plain.window);
        let key_rps = reader.rate_limit("key_rps", plain.key_rps);
        let key_burst = reader.rate_number("key_burst", plain.key_burst);
        let cost_factor = reader.rate_number("cost_factor", plain.cost_factor);
        let (windows, key_windows) = (reader.windows("windows"), reader.windows("key_windows"));
        let rps = reader.rps(safe_rps);
        let mode = reader.parsed("mode", Mode::of);
        let on_store_loss = reader.parsed("on_store_loss", OnStoreLoss::of);
        let on_429 = reader.parsed("on_429", On429::of);
        let trust_scope = reader.parsed("trust_scope", Scope::of);
        let max_pause = reader.number("max_pause", f64::NAN);
        let (paused, borrow) = (reader.flag("paused"), reader.flag("borrow"));
        let parent = match raw.get("parent").map(String::as_str) {
            None | Some("") => None,
            Some(_) => reader.parsed("parent", |text| Name::new(text).ok()),
        };
        let on_backlog = reader.parsed("on_backlog", OnBacklog::of);
        let over_limit = reader.parsed("over_limit", OverLimit::of);
        let max_cost = reader.number("max_cost", f64::NAN);
        let max_backlog = reader.number("max_backlog", f64::NAN);
        let lease = reader.number("valid_until", f64::NAN);
        let until = reader.number("manual_until_ms", f64::NAN);
        // When a change was made in Redis directly is not known, and who made it and why only if it
        // was written with it.
        let is_recorded = !is_author_unknown(raw);
        let note = |field: &str| {
            raw.get(field)
                .filter(|_| is_recorded)
                .map_or_else(String::new, |text| {
                    text.chars().take(MAX_NOTE_CHARS).collect::<String>()
                })
        };
        let changed_at = reader.number("at", 0.0);
        let knobs = Self {
            rps,
            burst,
            window,
            mode: mode.unwrap_or_default(),
            manual_until_ms: (!until.is_nan()).then_some(until as i64),
            min: reader.number("min", plain.min),
            max: reader.number("max", plain.max),
            safe_rps,
            capacity,
            capacity_reason: raw
                .get("capacity_reason")
                .filter(|why| why.len() <= LONGEST_WHY)
                .cloned()
                .unwrap_or_default(),
            key_rps,
            key_burst,
            cost_factor,
            windows,
            key_windows,
            parent,
            paused,
            on_store_loss: on_store_loss.unwrap_or_default(),
            borrow,
            on_429: on_429.unwrap_or_default(),
            trust_scope: trust_scope.unwrap_or_default(),
            max_pause: (!max_pause.is_nan()).then_some(max_pause),
            concurrency: reader.at_once("concurrency"),
            key_concurrency: reader.at_once("key_concurrency"),
            weight: reader.number("weight", plain.weight),
            over_limit: over_limit.unwrap_or_default(),
            max_cost: (!max_cost.is_nan()).then_some(max_cost),
            max_backlog: (!max_backlog.is_nan()).then_some(max_backlog as u64),
            on_backlog: on_backlog.unwrap_or_default(),
            valid_until_ms: (!lease.is_nan() && matches!(mode, None | Some(Mode::Auto)))
                .then_some(lease as i64),
            seq: reader.number("seq", 0.0) as u64,
            term: reader.number("term", 0.0) as u64,
            by: note("by"),
            at_ms: match is_changed_directly(raw) {
                true => 0,
                false => changed_at as i64,
            },
            why: note("why"),
        };
        if knobs.min > knobs.max {
            reader
                .problems
                .push(rules::min_above_max(knobs.min, knobs.max));
        }
        reader.note_strange_fields();
        (knobs, reader.problems)
    }

    /// Returns the highest cost of one job that an entry point accepts, in tokens. It does not fall
    /// when the governor, a lease or a pause slows the throttle down, so that a cost accepted by
    /// day is accepted at night.
    pub fn max_cost(&self) -> f64 {
        let windows = self.rps.tokens().map_or(MAX_COST, |rps| {
            let rate = if self.mode == Mode::Auto {
                rps.max(self.max)
            } else {
                rps
            };
            (self.cost_seconds() * rate).min(MAX_COST)
        });
        self.max_cost.unwrap_or(windows.max(PLAIN_COST))
    }

    /// Returns the highest charged cost of one job at the rates in force, in tokens.
    pub fn charged_cost(&self, now_us: i64) -> f64 {
        let slower = self.rate(now_us).rps.slower(self.key_rate().rps);
        match (self.max_cost, slower.rate()) {
            (None, Some(rate)) => self
                .max_cost()
                .min((rate * COST_SECONDS.max(self.cost_seconds())).max(FEW_TOKENS)),
            _ => self.max_cost(),
        }
    }

    /// Returns the highest cost of one job in seconds of the rate: the depth of the bucket, or some
    /// windows.
    fn cost_seconds(&self) -> f64 {
        COST_WINDOWS.max(self.burst) * self.window
    }

    /// Returns true if the lease of `rps` has lapsed.
    pub fn lease_expired(&self, now_us: i64) -> bool {
        self.valid_until_ms
            .is_some_and(|until| now_us as f64 / 1000.0 > until as f64)
    }

    /// Returns the rate in force after pause, lease and capacity.
    pub fn effective_rps(&self, now_us: i64) -> RateLimit {
        self.requested_rps(now_us).slower(self.capacity)
    }

    /// Returns the reason of a stop by zero capacity, if that is the only cause.
    pub fn stopped_because(&self, now_us: i64) -> Option<&str> {
        let is_told = (1..=LONGEST_WHY).contains(&self.capacity_reason.len());
        let why = if is_told {
            &self.capacity_reason
        } else {
            NO_CAPACITY
        };
        (self.capacity.is_stopped() && !self.requested_rps(now_us).is_stopped()).then_some(why)
    }

    /// Returns true if `capacity` sets the rate in force, and no other knob.
    pub fn is_limited_by_capacity(&self, now_us: i64) -> bool {
        self.effective_rps(now_us) != self.requested_rps(now_us)
    }

    /// Returns the rate after pause and lease, regardless of `capacity`.
    fn requested_rps(&self, now_us: i64) -> RateLimit {
        match () {
            () if self.paused => RateLimit::Stopped,
            () if self.lease_expired(now_us) => self.rps.slower(self.safe_rps),
            () => self.rps,
        }
    }

    /// Returns the rate of the throttle's own bucket.
    pub fn rate(&self, now_us: i64) -> Rate {
        // A capacity is not rounded up.
        let rps = self
            .in_whole(self.requested_rps(now_us))
            .slower(self.capacity);
        Rate {
            rps,
            depth_us: self.burst * self.window * 1e6,
        }
    }

    /// Returns the rate of each key's bucket.
    pub fn key_rate(&self) -> Rate {
        if self.on_429.is_passive() {
            return Rate::UNLIMITED;
        }
        Rate {
            rps: self.in_whole(self.key_rps),
            depth_us: self.key_burst * self.window * 1e6,
        }
    }

    /// Returns the longest pause of a key after a refusal, in microseconds.
    pub fn max_key_pause_us(&self) -> f64 {
        self.max_pause.map_or(KEY_PAUSE_US, |seconds| seconds * 1e6)
    }

    /// Returns the longest pause of the whole throttle after a refusal, in microseconds.
    pub fn max_wide_pause_us(&self) -> f64 {
        self.max_pause
            .map_or(WIDE_PAUSE_US, |seconds| seconds * 1e6)
    }

    /// Returns the longest time for which a reported quota counts, in microseconds.
    pub fn max_quota_us(&self) -> f64 {
        self.max_pause.map_or(QUOTA_US, |seconds| seconds * 1e6)
    }

    /// Rounds the tokens of each window up to whole ones if the throttle drops and a window refills
    /// more than one, because the rest of a token would be lost there instead of delayed.
    fn in_whole(&self, limit: RateLimit) -> RateLimit {
        let tokens = limit.rate().map(|rps| rps * self.window);
        match (self.over_limit, tokens) {
            (OverLimit::Drop, Some(tokens)) if tokens > 1.0 && tokens < 1e6 => {
                RateLimit::PerSecond((tokens - 1e-9).ceil() / self.window)
            }
            _ => limit,
        }
    }
}

/// Parses the text of a flag.
pub(super) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "true" | "yes" | "on" => Some(true),
        "" | "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A reader of the fields one by one that collects problems.
struct KnobsReader<'a> {
    raw: &'a BTreeMap<String, String>,
    problems: Vec<KnobProblem>,
    careful: bool,
}

impl KnobsReader<'_> {
    /// Reads `rps`: a throttle with nonsense in it, or in another field that shapes the rate, runs
    /// at `safe_rps` or slower.
    fn rps(&mut self, safe_rps: RateLimit) -> RateLimit {
        let raw = self.raw;
        match raw
            .get("rps")
            .map(|text| number("rps", text).map(RateLimit::new))
        {
            Some(Some(rps)) if self.careful => {
                let rate = rps.slower(safe_rps);
                self.add_to_all(&format!("; running at {rate} tokens per second"));
                rate
            }
            Some(Some(rps)) => rps,
            unreadable => {
                let allowed = rules::allowed("rps");
                let message = match unreadable {
                    None => missing(allowed),
                    Some(_) => must_be(allowed, &raw["rps"].as_str().into()),
                };
                self.problems.insert(
                    0,
                    KnobProblem {
                        field: "rps".to_owned(),
                        message,
                    },
                );
                self.add_to_all(&format!("; running at safe_rps {safe_rps}"));
                safe_rps
            }
        }
    }

    /// Reports fields that are no knobs, and those that cannot be recorded.
    fn note_strange_fields(&mut self) {
        let raw = self.raw;
        let unknown_fields = || raw.keys().filter(|field| rules::knob(field).is_none());
        for field in unknown_fields().take(MAX_UNKNOWN_FIELDS) {
            self.problems.push(KnobProblem {
                field: rules::cut(field),
                message: unknown(field, "knob", &rules::names()),
            });
        }
        for field in raw
            .iter()
            .filter(|(_, text)| text.contains('\0'))
            .map(|(field, _)| field)
            .take(MAX_UNKNOWN_FIELDS)
        {
            let message = "must be without the character NUL: it is not recorded and cannot be restored; write it again".to_owned();
            self.problems.push(KnobProblem {
                field: rules::cut(field),
                message,
            });
        }
        let more = unknown_fields().count().saturating_sub(MAX_UNKNOWN_FIELDS);
        if more > 0 {
            self.problems.push(KnobProblem {
                field: "…".to_owned(),
                message: format!("{more} more fields are not knobs"),
            });
        }
    }

    fn number(&mut self, field: &str, default: f64) -> f64 {
        match self.raw.get(field) {
            None => default,
            Some(text) => number(field, text).unwrap_or_else(|| {
                self.refuse(field, text);
                default
            }),
        }
    }

    fn rate_number(&mut self, field: &str, default: f64) -> f64 {
        let problems = self.problems.len();
        let value = self.number(field, default);
        self.careful |= self.problems.len() > problems;
        value
    }

    fn rate_limit(&mut self, field: &str, default: RateLimit) -> RateLimit {
        RateLimit::new(self.rate_number(field, default.number()))
    }

    fn windows(&mut self, field: &str) -> Vec<WindowLimit> {
        let limits = self.parsed(field, rules::windows);
        self.careful |= limits.is_none() && self.raw.contains_key(field);
        limits.unwrap_or_default()
    }

    fn flag(&mut self, field: &str) -> bool {
        self.parsed(field, truth).unwrap_or_default()
    }

    /// Reads a text with a meaning.
    fn parsed<T>(&mut self, field: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.raw.get(field)?;
        let found = parse(text);
        if found.is_none() {
            self.refuse(field, text);
        }
        found
    }

    fn at_once(&mut self, field: &str) -> Option<u32> {
        let problems = self.problems.len();
        let limit = self.number(field, -1.0);
        match self.problems.get_mut(problems) {
            None => (limit >= 0.0).then_some(limit as u32),
            Some(problem) => {
                problem.message.push_str("; one job runs at a time");
                Some(1)
            }
        }
    }

    fn refuse(&mut self, field: &str, text: &str) {
        self.problems.push(KnobProblem {
            field: field.to_owned(),
            message: must_be(rules::allowed(field), &text.into()),
        });
    }

    fn add_to_all(&mut self, tail: &str) {
        self.problems
            .iter_mut()
            .for_each(|problem| problem.message.push_str(tail));
    }
}

#[cfg(test)]
#[path = "knobs_tests.rs"]
mod tests;
