//! The table of knobs: their names, allowed values and defaults.
//!
//! One table drives the reading of the hash, the checks at the entry points and
//! `docs/reference/knobs.md`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Name;
use super::rolling_window::WindowLimit;
use crate::input::wording::{must_be, must_be_one_of};

/// A knob whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KnobProblem {
    /// The field of the hash.
    pub field: String,
    /// The error, with the allowed values.
    pub message: String,
}

/// The definition of one knob.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// The name of the field in the hash.
    pub name: &'static str,
    /// The value of an absent field, as people write it; empty for none.
    pub default: &'static str,
    /// The unit; empty for none.
    pub unit: &'static str,
    /// The allowed values, completing "must be …".
    pub allowed: &'static str,
    /// The effect of the knob.
    pub meaning: &'static str,
    pub(super) kind: KnobKind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum KnobKind {
    /// A number from low to high, and 0 or -1 if they have a meaning.
    Number {
        low: f64,
        high: f64,
        zero: bool,
        unlimited: bool,
    },
    /// A whole number from low to high, and -1 if it means no limit.
    Whole {
        low: f64,
        high: f64,
        unlimited: bool,
    },
    Choice(&'static [&'static str]),
    Flag,
    Throttle,
    /// Limits of rolling windows.
    Windows,
    /// A text that Flyball writes beside a change; entry points refuse it.
    Record,
    /// A whole number that Flyball writes as it does a `Record`.
    Count,
    /// A `Count` that grows by one at a time.
    Steps,
}

const RATE: &str = "a number from 0.000001 to 1000000000, or 0 (stopped), or -1 (unlimited)";
const BURST: &str = "a number from 0 to 10000";
const BOUND: &str = "a number from 0.000001 to 1000000000";
const WHOLE: &str = "a whole number of 0 or more";
const UNTIL: &str = "a whole number of unix milliseconds from 1000000000000 (the year 2001)";
const WINDOWS: &str = "limits such as \"3/5\" or \"10/1 1000/3600\": up to 4 of tokens (1 to 9999999) per seconds (0.001 to 9999999), or empty for none";
/// The pattern of the API's document; further blanks and decimals are read as well.
const WINDOWS_PATTERN: &str = "^([1-9][0-9]{0,6}/([1-9][0-9]{0,6}|0\\.[0-9]{0,2}[1-9])( [1-9][0-9]{0,6}/([1-9][0-9]{0,6}|0\\.[0-9]{0,2}[1-9])){0,3})?$";
const CONCURRENCY: &str = "a whole number from 0 (none runs) to 1000000, or -1 (no limit)";

const CONCURRENCY_LIMIT: KnobKind = KnobKind::Whole {
    low: 0.0,
    high: 1e6,
    unlimited: true,
};

const fn rate(zero: bool, unlimited: bool) -> KnobKind {
    KnobKind::Number {
        low: 1e-6,
        high: 1e9,
        zero,
        unlimited,
    }
}

/// All knobs, in the order of display.
#[rustfmt::skip]
pub const TABLE: &[Knob] = &[
    Knob { name: "rps", default: "safe_rps", unit: "tokens/s", allowed: RATE, kind: rate(true, true),
        meaning: "The rate. Tokens refill continuously, so 0.3 is one token every 3.33 seconds." },
    Knob { name: "burst", default: "1", unit: "windows", allowed: BURST, kind: KnobKind::Number { low: 0.0, high: 1e4, zero: false, unlimited: false },
        meaning: "The number of windows' worth of tokens that may be spent at once after an idle period. The bucket always has room for two tokens." },
    Knob { name: "window", default: "1", unit: "s", allowed: "a number from 0.001 to 86400", kind: KnobKind::Number { low: 0.001, high: 86400.0, zero: false, unlimited: false },
        meaning: "The length of a window. The bucket holds `burst * window` seconds of refill. It stores time and not a count, so a lower rate frees no tokens." },
    Knob { name: "mode", default: "manual", unit: "", allowed: "auto, manual, shadow or off", kind: KnobKind::Choice(&["auto", "manual", "shadow", "off"]),
        meaning: "The controller of `rps`: the governor (auto), a person (manual), the governor as a simulation that changes nothing (shadow), or none (off)." },
    Knob { name: "manual_until_ms", default: "", unit: "unix ms", allowed: UNTIL, kind: KnobKind::Whole { low: 1e12, high: 9e15, unlimited: false },
        meaning: "The end of the mode manual: the governor then restores the previous mode and continues from the current rate. If absent, manual control does not end. A change of `mode` through Flyball removes this knob. It applies only in the mode manual, to a throttle with a policy." },
    Knob { name: "min", default: "0.1", unit: "tokens/s", allowed: BOUND, kind: rate(false, false),
        meaning: "The lowest rate that the governor may set. A tripped breaker may still set 0." },
    Knob { name: "max", default: "1000", unit: "tokens/s", allowed: BOUND, kind: rate(false, false),
        meaning: "The highest rate that the governor may set. While it cannot be read, that is `safe_rps`, or `min` for slots." },
    Knob { name: "safe_rps", default: "1", unit: "tokens/s", allowed: "a number from 0.000001 to 1000000000, or 0 (stopped)", kind: rate(true, false),
        meaning: "The rate in force when `rps` is unreadable or its lease has expired. It is never above a readable `rps`." },
    Knob { name: "capacity", default: "-1", unit: "tokens/s", allowed: "a number from 0.000001 to 1000000000, or 0 (nothing is granted), or -1 (no limit)", kind: rate(true, true),
        meaning: "The rate that the system behind the throttle can take now, written by a pool of accounts or by a person. It limits the rate in force, including `rps` and `safe_rps`, and the governor never raises the rate above it. It is not restored into an emptied Redis." },
    Knob { name: "key_rps", default: "-1", unit: "tokens/s", allowed: RATE, kind: rate(true, true),
        meaning: "The rate of each key. It does not limit jobs without a key." },
    Knob { name: "key_burst", default: "1", unit: "windows", allowed: BURST, kind: KnobKind::Number { low: 0.0, high: 1e4, zero: false, unlimited: false },
        meaning: "Like `burst`, for each key. 0 spaces the jobs of a key evenly, which suits servers that count in fixed windows: a key then saves up one token, or 20 ms of refill if that is more. Up to 20 ms of refill is saved in addition to one token, so that a job that is slightly late loses nothing." },
    Knob { name: "cost_factor", default: "1", unit: "", allowed: "a number from 0.001 to 1000", kind: KnobKind::Number { low: 0.001, high: 1000.0, zero: false, unlimited: false },
        meaning: "The factor by which the cost of a job, or the tokens of a request, count: with 2 each takes twice the tokens, here and in the parents. `max_cost` limits the product." },
    Knob { name: "windows", default: "", unit: "tokens/s", allowed: WINDOWS, kind: KnobKind::Windows,
        meaning: "Rolling windows: `10/1 1000/3600` grants at most 10 tokens within any second and 1000 within any hour. They apply beside `rps`; set that to -1 if they alone are to limit." },
    Knob { name: "key_windows", default: "", unit: "tokens/s", allowed: WINDOWS, kind: KnobKind::Windows,
        meaning: "Like `windows`, for each key." },
    Knob { name: "parent", default: "", unit: "", allowed: "the name of another throttle (1 to 128 letters, digits or . _ - / : { }), or empty for none", kind: KnobKind::Throttle,
        meaning: "A throttle from which every token is also taken, up to four levels." },
    Knob { name: "borrow", default: "0", unit: "", allowed: "0 or 1, true or false", kind: KnobKind::Flag,
        meaning: "1 lets the throttle exceed its own `rps` with spare tokens of its parent; its `rps` is then its guaranteed share. It borrows only from the upper half of the parent's bucket, so throttles within their own rate never wait for it. 0 limits it to its own rate." },
    Knob { name: "on_429", default: "active-informed", unit: "", allowed: "active-informed, active-naive, passive-informed or passive-naive", kind: KnobKind::Choice(&["active-informed", "active-naive", "passive-informed", "passive-naive"]),
        meaning: "The reaction to a refusal by an external server. Active enforces `key_rps`, passive does not; informed pauses all jobs of the refused key, naive delays only the refused job. Active-informed also learns the key's rate from refusals." },
    Knob { name: "trust_scope", default: "key", unit: "", allowed: "key, throttle or account", kind: KnobKind::Choice(&["key", "throttle", "account"]),
        meaning: "The widest scope that a job's server may slow down with its answer or with the field `throttled_scope`: the job's key, every key of the throttle, or also the account, which is the parent throttle. A wider scope is reduced to this one. With `key`, only the refused job waits if it has no key. The answers of drivers and of your own handlers are not reduced." },
    Knob { name: "max_pause", default: "", unit: "s", allowed: "a number from 1 to 2592000 (30 days)", kind: KnobKind::Number { low: 1.0, high: 2_592_000.0, zero: false, unlimited: false },
        meaning: "The longest pause that a refusal may cause, and the longest time for which a reported quota is valid. If absent: a day for a key, 900 s for a whole throttle or account, 3600 s for a reported quota. An answer of a server pauses for a day at most, and no quota is valid for longer; a handler, or a program that reports a refusal, may pause for 30 days. A manual pause may be longer." },
    Knob { name: "paused", default: "0", unit: "", allowed: "0 or 1, true or false", kind: KnobKind::Flag,
        meaning: "1 stops the throttle; `rps` keeps its value. After the pause the bucket is empty, so there is no burst." },
    Knob { name: "on_store_loss", default: "closed", unit: "", allowed: "closed, open or local", kind: KnobKind::Choice(&["closed", "open", "local"]),
        meaning: "The behaviour of workers while Redis is unreachable: grant nothing (closed), grant everything (open), or grant the last known rate divided by the live workers and halved each window (local)." },
    Knob { name: "concurrency", default: "-1", unit: "jobs", allowed: CONCURRENCY, kind: CONCURRENCY_LIMIT,
        meaning: "The most jobs of this throttle and of the throttles below it that run at once, over all processes." },
    Knob { name: "key_concurrency", default: "-1", unit: "jobs", allowed: CONCURRENCY, kind: CONCURRENCY_LIMIT,
        meaning: "The most jobs of one key that run at once, over all processes. It does not limit jobs without a key." },
    Knob { name: "weight", default: "1", unit: "", allowed: "a number from 0.001 to 1000", kind: KnobKind::Number { low: 0.001, high: 1000.0, zero: false, unlimited: false },
        meaning: "This throttle's share of a worker's slots, relative to other throttles that have work: 2 gets twice as many as 1." },
    Knob { name: "over_limit", default: "wait", unit: "", allowed: "wait, drop or merge", kind: KnobKind::Choice(&["wait", "drop", "merge"]),
        meaning: "The treatment of jobs that a rate or a concurrency limit holds back: they wait (wait), end as dropped (drop), or wait and are replaced by a newer job with the same unique key (merge)." },
    Knob { name: "max_cost", default: "1000 or more", unit: "tokens", allowed: "a number from 0.001 to 1000000000", kind: KnobKind::Number { low: 0.001, high: 1e9, zero: false, unlimited: false },
        meaning: "The highest cost of one job, in tokens. A higher cost is refused at enqueue; a job that already has one is charged this much. The lowest value of a throttle and its parents applies. If absent, it is the largest of 1000 tokens, 10 windows' worth of tokens and a full bucket (at the rate `rps`, or `max` in the mode auto; 1000000000 if `rps` is -1). The charge is then also limited to an hour's worth of the rate in force, but to no less than 10 tokens or a full bucket." },
    Knob { name: "max_backlog", default: "", unit: "jobs", allowed: "a whole number from 1 to 1000000000", kind: KnobKind::Whole { low: 1.0, high: 1e9, unlimited: false },
        meaning: "The number of waiting jobs in one lane above which `on_backlog` applies. No limit if absent." },
    Knob { name: "on_backlog", default: "signal", unit: "", allowed: "signal or reject", kind: KnobKind::Choice(&["signal", "reject"]),
        meaning: "The reaction above `max_backlog`: report it (signal), or refuse new jobs of the lane (reject)." },
    Knob { name: "valid_until", default: "", unit: "unix ms", allowed: WHOLE, kind: KnobKind::Count,
        meaning: "Written by the governor: the end of its lease. After this time `safe_rps` is in force until the next write. Ignored in the modes manual, shadow and off." },
    Knob { name: "governed", default: "", unit: "", allowed: "text", kind: KnobKind::Record,
        meaning: "Written by the governor together with `rps`, with the same value. If the two differ, a person has changed `rps`." },
    Knob { name: "capacity_reason", default: "", unit: "", allowed: "text", kind: KnobKind::Record,
        meaning: "The reason for the value of `capacity`, written together with it." },
    Knob { name: "made_from", default: "", unit: "", allowed: "text", kind: KnobKind::Record,
        meaning: "The source of a throttle that was made on first use: a pattern, or `caller` for the knobs that a caller brought." },
    Knob { name: "made_of", default: "", unit: "", allowed: "text", kind: KnobKind::Record,
        meaning: "The knobs of that source. A knob that still has its value here follows the source; one that was set since stays." },
    Knob { name: "seq", default: "0", unit: "", allowed: WHOLE, kind: KnobKind::Steps,
        meaning: "The number of changes made through Flyball." },
    Knob { name: "term", default: "0", unit: "", allowed: WHOLE, kind: KnobKind::Steps,
        meaning: "The term of the governor leader that wrote last. Writes with an older term are refused." },
    Knob { name: "by", default: "", unit: "", allowed: "text", kind: KnobKind::Record,
        meaning: "The author of the last change through Flyball." },
    Knob { name: "at", default: "0", unit: "unix ms", allowed: WHOLE, kind: KnobKind::Count,
        meaning: "The time of that change." },
    Knob { name: "why", default: "", unit: "", allowed: "text", kind: KnobKind::Record,
        meaning: "The reason for that change." },
    Knob { name: "written", default: "", unit: "", allowed: "text", kind: KnobKind::Record,
        meaning: "`rps`, `paused` and `concurrency` as that change left them, the length of `why` and `by`. If the three differ, they were changed in Redis since: `at` is not reported, and `by` and `why` only if they were written as well." },
];

/// Returns the knob of that name.
pub fn knob(name: &str) -> Option<&'static Knob> {
    TABLE.iter().find(|knob| knob.name == name)
}

/// Returns the allowed values of a knob, completing "must be …".
pub fn allowed(name: &str) -> &'static str {
    knob(name).map_or("a known knob", |knob| knob.allowed)
}

/// Returns the names of all knobs.
pub fn names() -> Vec<&'static str> {
    TABLE.iter().map(|knob| knob.name).collect()
}

/// Returns the names of the knobs that a person may set.
pub fn settable() -> Vec<&'static str> {
    TABLE
        .iter()
        .filter(|knob| knob.is_settable())
        .map(|knob| knob.name)
        .collect()
}

/// The longest text of a knob's number or word, in bytes; a longer one is nonsense and is not
/// parsed.
pub(super) const LONGEST_FIELD: usize = 64;

/// The number of characters of a foreign text that an error shows.
const LONGEST_QUOTE: usize = 40;

/// Shortens a foreign text.
pub(crate) fn cut(text: &str) -> String {
    if text.chars().count() <= LONGEST_QUOTE {
        text.to_owned()
    } else {
        text.chars().take(LONGEST_QUOTE - 1).collect::<String>() + "…"
    }
}

/// Returns true if the Lua script treats `c` as a blank.
pub(super) fn is_blank(c: char) -> bool {
    [' ', '\t', '\n', '\r', '\x0b', '\x0c'].contains(&c)
}

/// Parses a number as the Lua script does: blanks around it are fine; hex, `inf`, `nan` and values
/// out of range are not.
pub fn number(field: &str, text: &str) -> Option<f64> {
    if text.len() > LONGEST_FIELD {
        return None;
    }
    let text = text.trim_matches(is_blank);
    let plain = |c: char| c.is_ascii_digit() || ".eE+-".contains(c);
    let value: f64 = if text.chars().all(plain) {
        text.parse().ok()?
    } else {
        return None;
    };
    // The addition turns -0 into 0.
    knob(field)?.accepts(value).then_some(value + 0.0)
}

/// Parses limits of rolling windows as the Lua script does.
pub fn windows(text: &str) -> Option<Vec<WindowLimit>> {
    (text.len() <= LONGEST_FIELD)
        .then(|| WindowLimit::parse_all(text))
        .flatten()
}

impl Knob {
    /// Returns true if a person may set the knob through an entry point.
    pub fn is_settable(&self) -> bool {
        !matches!(
            self.kind,
            KnobKind::Record | KnobKind::Count | KnobKind::Steps
        )
    }

    /// Describes as JSON Schema the values that a person may set; `null` gives it its default back.
    pub fn schema(&self) -> Value {
        let null = if self.name == "rps" {
            Vec::new()
        } else {
            vec!["null"]
        };
        let kinds = |kind: &'static str| [vec![kind], null.clone()].concat();
        match self.kind {
            KnobKind::Number {
                low,
                high,
                zero,
                unlimited,
            } => {
                // A value of its own meaning may lie outside of the range.
                let apart: Vec<f64> = [(unlimited, -1.0), (zero, 0.0)]
                    .iter()
                    .filter(|(is, _)| *is)
                    .map(|(_, value)| *value)
                    .collect();
                let least = apart.first().copied().unwrap_or(low);
                let mut schema =
                    json!({ "type": kinds("number"), "minimum": least, "maximum": high });
                if !apart.is_empty() {
                    schema["anyOf"] = json!([{ "minimum": low }, { "enum": apart }]);
                }
                schema
            }
            KnobKind::Whole {
                low,
                high,
                unlimited,
            } => {
                let least = if unlimited { -1 } else { low as i64 };
                json!({ "type": kinds("integer"), "minimum": least, "maximum": high as i64 })
            }
            KnobKind::Choice(words) => {
                let words: Vec<Value> = words
                    .iter()
                    .map(|word| json!(word))
                    .chain([Value::Null])
                    .collect();
                json!({ "type": kinds("string"), "enum": words })
            }
            KnobKind::Flag => json!({ "type": kinds("boolean") }),
            KnobKind::Windows => {
                json!({ "type": kinds("string"), "maxLength": LONGEST_FIELD, "pattern": WINDOWS_PATTERN })
            }
            KnobKind::Throttle => {
                let most = super::name::MAX_BYTES;
                json!({ "type": kinds("string"), "maxLength": most, "pattern": "^[A-Za-z0-9._\\-/:{}]*$" })
            }
            KnobKind::Record | KnobKind::Count | KnobKind::Steps => json!({ "readOnly": true }),
        }
    }

    fn accepts(&self, value: f64) -> bool {
        match self.kind {
            KnobKind::Number {
                low,
                high,
                zero,
                unlimited,
            } => {
                (low..=high).contains(&value)
                    || (zero && value == 0.0)
                    || (unlimited && value == -1.0)
            }
            KnobKind::Whole {
                low,
                high,
                unlimited,
            } => {
                value.fract() == 0.0 && (low..=high).contains(&value)
                    || (unlimited && value == -1.0)
            }
            KnobKind::Count => (0.0..=9e15).contains(&value),
            // The range leaves room for every step that will ever be counted; a higher number was
            // written by hand.
            KnobKind::Steps => (0.0..=1e12).contains(&value),
            _ => false,
        }
    }

    /// Returns the text for the hash, or the error in `value`.
    pub(super) fn text_of(&self, value: &Value) -> Result<Option<String>, String> {
        let refuse = || {
            Err(match self.kind {
                KnobKind::Choice(words) => must_be_one_of(words, value),
                _ => must_be(self.allowed, value),
            })
        };
        match (self.kind, value) {
            (KnobKind::Record | KnobKind::Count | KnobKind::Steps, _) => {
                Err("must be left out: Flyball itself writes it".to_owned())
            }
            (_, Value::Null) if self.name == "rps" => refuse(),
            (_, Value::Null) => Ok(None),
            (KnobKind::Number { .. } | KnobKind::Whole { .. }, Value::Number(n)) => {
                match n.as_f64().filter(|n| self.accepts(*n)) {
                    Some(n) => Ok(Some(format!("{}", n + 0.0))),
                    None => refuse(),
                }
            }
            (KnobKind::Choice(words), Value::String(word)) if words.contains(&word.as_str()) => {
                Ok(Some(word.clone()))
            }
            (KnobKind::Flag, Value::Bool(flag)) => {
                Ok(Some(if *flag { "1" } else { "0" }.to_owned()))
            }
            (KnobKind::Flag, Value::Number(n)) if matches!(n.as_u64(), Some(0 | 1)) => {
                Ok(Some(n.to_string()))
            }
            (KnobKind::Throttle, Value::String(name)) if name.is_empty() => Ok(None),
            (KnobKind::Windows, Value::String(text)) => match windows(text) {
                Some(limits) if limits.is_empty() => Ok(None),
                Some(_) => Ok(Some(text.clone())),
                None => refuse(),
            },
            (KnobKind::Throttle, Value::String(name)) if Name::new(name.as_str()).is_ok() => {
                Ok(Some(name.clone()))
            }
            _ => refuse(),
        }
    }
}

/// Returns the problem of texts that pause a pattern: nothing takes tokens from it, so a pause of it
/// stops nothing.
pub(super) fn paused_pattern(
    throttle: &Name,
    texts: &BTreeMap<String, Option<String>>,
) -> Option<KnobProblem> {
    let pauses = matches!(texts.get("paused"), Some(Some(text)) if text == "1");
    (pauses && throttle.is_pattern()).then(|| KnobProblem {
        field: "paused".to_owned(),
        message: "must be 0 for a pattern: each of its throttles is paused by itself; an rps of 0 stops those that follow it".to_owned(),
    })
}

/// Returns the problem of a `min` above `max`.
pub fn min_above_max(min: f64, max: f64) -> KnobProblem {
    KnobProblem {
        field: "min".to_owned(),
        message: format!("must be at most max {max}, not {min}"),
    }
}
