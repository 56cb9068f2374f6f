//! Reads a policy out of a knobs file and says everything that is wrong with it, each with its line.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{self, Allowed, Default, Part};
use super::policy::{Kind, Law, Look, Policy, Problem, Refused, SIGNALS_MAX, Signal, Source};
use crate::signals::exposition::Series;

/// The policy in `text`; `None` if it names no signal.
pub(super) fn policy(text: &str, file: &str) -> Result<Option<Policy>, Refused> {
    let mut report = Report { text, file, problems: Vec::new() };
    let policy = read(&mut report);
    report.problems.sort_by_key(|problem| problem.line);
    if report.problems.is_empty() { Ok(policy) } else { Err(Refused(report.problems)) }
}

/// The law without any override.
pub(super) fn default_law() -> Law {
    law(&Values { part: Part::Governor, place: 0..0, given: BTreeMap::new() })
}

fn read(report: &mut Report) -> Option<Policy> {
    let root = match DeTable::parse(report.text) {
        Ok(root) => root,
        Err(error) => {
            let place = error.span().unwrap_or(0..0);
            report.refuse(&place, "toml", error.message());
            return None;
        }
    };
    let entry = |name: &str| root.get_ref().iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value);

    let law = match entry("governor").map(|value| (value.span(), value.get_ref())) {
        None => default_law(),
        Some((place, DeValue::Table(table))) => law(&values(report, Part::Governor, place, table)),
        Some((place, _)) => {
            report.refuse(&place, "governor", "is not a table; write [governor]");
            default_law()
        }
    };
    let signals = match entry("signal").map(|value| (value.span(), value.get_ref())) {
        None => return None,
        Some((_, DeValue::Array(tables))) => tables.iter().filter_map(|table| signal(report, table)).collect(),
        Some((place, _)) => {
            report.refuse(&place, "signal", "is not a list of tables; write [[signal]] before each");
            return None;
        }
    };
    let policy = Policy { signals, law };
    check_names(report, &policy, entry("signal")?);
    (!policy.signals.is_empty()).then_some(policy)
}

fn check_names(report: &mut Report, policy: &Policy, place: &Spanned<DeValue>) {
    if policy.signals.len() > SIGNALS_MAX {
        report.refuse(&place.span(), "signal", format!("{} signals; at most {SIGNALS_MAX} are allowed", policy.signals.len()));
    }
    for (n, signal) in policy.signals.iter().enumerate() {
        if policy.signals[..n].iter().any(|earlier| earlier.name == signal.name) {
            let tables = place.get_ref().as_array().into_iter().flat_map(|a| a.iter());
            let places = tables.filter_map(|t| t.get_ref().as_table()?.iter().find(|(k, _)| k.get_ref() == "name"));
            let same = places.filter(|(_, v)| v.get_ref().as_str() == Some(&signal.name)).map(|(_, v)| v.span());
            let place = same.max_by_key(|span| span.start).unwrap_or_else(|| place.span());
            report.refuse(
                &place,
                "signal.name",
                format!("{:?} is the name of another signal too; give each its own", signal.name),
            );
        }
    }
}

fn law(values: &Values) -> Law {
    Law {
        tick_s: values.number("tick_s"),
        gain: values.number("gain"),
        integral_min_s: values.number("integral_min_s"),
        derivative_s: values.number("derivative_s"),
        up_per_min: values.number("up_per_min"),
        hold_s: values.number("hold_s"),
        stale_hold_s: values.number("stale_hold_s"),
        late_gaps: values.number("late_gaps"),
        stale_half_s: values.number("stale_half_s"),
        breaker: values.flag("breaker"),
        open_min_s: values.number("open_min_s"),
        close_wait_s: values.number("close_wait_s"),
        confirm_s: values.number("confirm_s"),
        restart: values.number("restart"),
        retrip_s: values.number("retrip_s"),
        quota_margin: values.number("quota_margin"),
        quiet_s: values.number("quiet_s"),
        durations: values.flag("durations"),
        observer: values.flag("observer"),
        predictor: values.flag("predictor"),
        noise_max: values.number("noise_max"),
        filter_max_s: values.number("filter_max_s"),
        feed_forward: values.flag("feed_forward"),
    }
}

/// One `[[signal]]`; `None` if it lacks what a signal cannot be without.
fn signal(report: &mut Report, table: &Spanned<DeValue>) -> Option<Signal> {
    let DeValue::Table(entries) = table.get_ref() else {
        report.refuse(&table.span(), "signal", "is not a table; write [[signal]] before each");
        return None;
    };
    let values = values(report, Part::Signal, table.span(), entries);
    let kind = match values.text("kind") {
        "latency" => Kind::Latency,
        "ratio" => Kind::Ratio,
        _ => Kind::Load,
    };
    let source = match values.text("source") {
        "depth" => Source::Depth,
        "feedback" => Source::Feedback,
        _ => Source::Prometheus,
    };
    let lag_s = values.given_number("lag_s").unwrap_or(if source == Source::Prometheus { 60.0 } else { 0.0 });
    let setpoint = values.number("setpoint");
    let signal = Signal {
        name: values.text("name").to_owned(),
        kind,
        source,
        query: values.text("query").trim().to_owned(),
        setpoint,
        trip: values.given_number("trip").unwrap_or(2.0 * setpoint),
        lag_s: if kind == Kind::Ratio { 0.0 } else { lag_s },
        probe: values
            .given("probe")
            .then(|| Look { url: values.text("probe").trim().to_owned(), metric: values.text("probe_metric").trim().to_owned() }),
    };
    check(report, &values, &signal);
    Some(signal)
}

/// What no single key can say.
fn check(report: &mut Report, values: &Values, signal: &Signal) {
    let mut refuse = |key: &str, reason: String| report.refuse(&values.place(key), format!("signal.{key}"), reason);
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if values.given("name") && !signal.name.chars().all(plain) {
        refuse("name", format!("{:?} is not allowed; use letters, digits and . _ -", signal.name));
    }
    if signal.kind == Kind::Ratio && signal.setpoint > 0.5 {
        refuse("setpoint", format!("{} is too much for a ratio; use at most 0.5", signal.setpoint));
    }
    if signal.trip <= signal.setpoint {
        refuse("trip", format!("{} is not above the setpoint {}", signal.trip, signal.setpoint));
    }
    for key in ["trip", "probe"] {
        if signal.kind != Kind::Load && values.given(key) {
            refuse(key, "is for kind \"load\" only; leave it out".to_owned());
        }
    }
    match signal.source {
        Source::Prometheus | Source::Depth if signal.query.is_empty() => {
            let wanted =
                if signal.source == Source::Depth { "the name of the throttle whose ready jobs count" } else { "a PromQL query" };
            refuse("query", format!("is missing; use {wanted}"));
        }
        Source::Depth if signal.kind != Kind::Load => refuse("kind", "must be \"load\" for source \"depth\"".to_owned()),
        Source::Feedback if signal.kind == Kind::Load => {
            refuse("kind", "must be \"ratio\" (refused share) or \"latency\" (mean duration) for source \"feedback\"".to_owned());
        }
        _ => {}
    }
    match &signal.probe {
        None if values.given("probe_metric") => refuse("probe_metric", "needs probe, the address of the page".to_owned()),
        None => {}
        Some(look) if !look.url.starts_with("http://") && !look.url.starts_with("https://") => {
            refuse("probe", format!("{:?} is not an address; use http://host:port/path", look.url));
        }
        Some(_) if !values.given("probe_metric") => {
            refuse("probe_metric", "is missing; name the metric on the probe's page".to_owned())
        }
        Some(look) => {
            if let Err(reason) = Series::parse(&look.metric) {
                refuse("probe_metric", reason);
            }
        }
    }
}

/// A value that its key allows.
enum Value {
    Number(f64),
    Flag(bool),
    Text(String),
}

/// What one table says, by key, with the place of each value.
struct Values {
    part: Part,
    place: Range<usize>,
    given: BTreeMap<&'static str, (Value, Range<usize>)>,
}

impl Values {
    fn given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    fn given_number(&self, name: &str) -> Option<f64> {
        match self.given.get(name) {
            Some((Value::Number(x), _)) => Some(*x),
            _ => None,
        }
    }

    /// The number given, or the key's default. A required one that is missing was reported; 1 lets the reading go on.
    fn number(&self, name: &str) -> f64 {
        self.given_number(name).unwrap_or_else(|| match keys::find(self.part, name).map(|key| key.default) {
            Some(Default::Number(x)) => x,
            _ => 1.0,
        })
    }

    fn flag(&self, name: &str) -> bool {
        match (self.given.get(name), keys::find(self.part, name).map(|key| key.default)) {
            (Some((Value::Flag(x), _)), _) => *x,
            (_, Some(Default::Flag(x))) => x,
            _ => false,
        }
    }

    fn text(&self, name: &str) -> &str {
        match (self.given.get(name), keys::find(self.part, name).map(|key| key.default)) {
            (Some((Value::Text(text), _)), _) => text,
            (_, Some(Default::Word(word))) => word,
            _ => "",
        }
    }

    /// Where the key's value stands, or its table.
    fn place(&self, name: &str) -> Range<usize> {
        self.given.get(name).map_or_else(|| self.place.clone(), |(_, place)| place.clone())
    }
}

/// Checks every entry of a table against the list of keys.
fn values(report: &mut Report, part: Part, place: Range<usize>, table: &DeTable) -> Values {
    let title = if part == Part::Signal { "signal" } else { "governor" };
    let mut given = BTreeMap::new();
    let mut tried = Vec::new();
    for (name, value) in table {
        let full = format!("{title}.{}", name.get_ref());
        let Some(key) = keys::find(part, name.get_ref()) else {
            report.refuse(&name.span(), full, format!("is not a key; use one of {}", keys::names(part)));
            continue;
        };
        tried.push(key.name);
        match accept(value.get_ref(), key.allowed) {
            Some(accepted) => {
                given.insert(key.name, (accepted, value.span()));
            }
            None => {
                let written = report.text.get(value.span()).unwrap_or("the value").chars().take(60).collect::<String>();
                report.refuse(&value.span(), full, format!("{written} is not allowed; use {}", key.allowed.words()));
            }
        }
    }
    for key in keys::KEYS.iter().filter(|k| k.part == part && k.default == Default::Required && !tried.contains(&k.name)) {
        report.refuse(&place, format!("{title}.{}", key.name), format!("is missing; use {}", key.allowed.words()));
    }
    Values { part, place, given }
}

fn accept(value: &DeValue, allowed: Allowed) -> Option<Value> {
    let number = |x: &DeValue| match x {
        // Underscores may stand in TOML numbers.
        DeValue::Integer(i) if i.radix() == 10 => i.as_str().replace('_', "").parse::<f64>().ok(),
        DeValue::Float(f) => f.as_str().replace('_', "").parse::<f64>().ok(),
        _ => None,
    };
    match allowed {
        Allowed::Number(from, to) => number(value).filter(|x| (from..=to).contains(x)).map(Value::Number),
        Allowed::Above(from, to) => number(value).filter(|x| *x > from && *x <= to).map(Value::Number),
        Allowed::Flag => value.as_bool().map(Value::Flag),
        Allowed::Word(words) => value.as_str().filter(|w| words.contains(w)).map(|w| Value::Text(w.to_owned())),
        Allowed::Text(most) => {
            let fits = |t: &&str| !t.trim().is_empty() && t.chars().count() <= most;
            value.as_str().filter(fits).map(|t| Value::Text(t.to_owned()))
        }
    }
}

/// Collects what is wrong.
struct Report<'a> {
    text: &'a str,
    file: &'a str,
    problems: Vec<Problem>,
}

impl Report<'_> {
    fn refuse(&mut self, place: &Range<usize>, key: impl Into<String>, reason: impl Into<String>) {
        let before = &self.text.as_bytes()[..place.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        self.problems.push(Problem { file: self.file.to_owned(), line, key: key.into(), reason: reason.into() });
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
