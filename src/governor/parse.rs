//! Reads a policy from a knobs file and reports all its errors, each with its line.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::actuator::Actuator;
use super::keys::{self, Allowed, Default, PolicyTable};
use super::policy::{
    ControllerTuning, Extractor, Heard, InvalidPolicy, Policy, PolicyProblem, ProbeTarget,
    SIGNALS_MAX, SignalKind, SignalPolicy, SignalSource,
};
use crate::signals::exposition::Series;
use crate::signals::probe::check_pointer;
use crate::signals::promql;

/// Returns the policy in `text`; `None` if it contains no signal.
pub(super) fn policy(text: &str, file: &str) -> Result<Option<Policy>, InvalidPolicy> {
    let mut report = ProblemCollector {
        text,
        file,
        problems: Vec::new(),
    };
    let policy = read(&mut report);
    report.problems.sort_by_key(|problem| problem.line);
    if report.problems.is_empty() {
        Ok(policy)
    } else {
        Err(InvalidPolicy(report.problems))
    }
}

/// The share of complaints above which the large mailbox providers filter mail.
const COMPLAINTS: f64 = 0.001;
/// The averaging time for a day's share of complaints, in seconds.
const COMPLAINTS_LAG_S: f64 = 900.0;

/// Returns the law without any override.
pub(super) fn default_law() -> ControllerTuning {
    law(&Values {
        part: PolicyTable::Governor,
        place: 0..0,
        given: BTreeMap::new(),
        tried: Vec::new(),
    })
}

fn read(report: &mut ProblemCollector) -> Option<Policy> {
    let root = match DeTable::parse(report.text) {
        Ok(root) => root,
        Err(error) => {
            let place = error.span().unwrap_or(0..0);
            report.refuse(&place, "toml", error.message());
            return None;
        }
    };
    let entry = |name: &str| {
        root.get_ref()
            .iter()
            .find(|(key, _)| key.get_ref() == name)
            .map(|(_, value)| value)
    };

    let law = match entry("governor").map(|value| (value.span(), value.get_ref())) {
        None => default_law(),
        Some((place, DeValue::Table(table))) => {
            let values = values(report, PolicyTable::Governor, place, table);
            let law = law(&values);
            check_law(report, &values, &law);
            law
        }
        Some((place, _)) => {
            report.refuse(&place, "governor", "is not a table; write [governor]");
            default_law()
        }
    };
    let signals = match entry("signal").map(|value| (value.span(), value.get_ref())) {
        None => return None,
        Some((_, DeValue::Array(tables))) => tables
            .iter()
            .filter_map(|table| signal(report, table))
            .collect(),
        Some((place, _)) => {
            report.refuse(
                &place,
                "signal",
                "is not a list of tables; write [[signal]] before each",
            );
            return None;
        }
    };
    let policy = Policy { signals, law };
    check_names(report, &policy, entry("signal")?);
    (!policy.signals.is_empty()).then_some(policy)
}

fn check_names(report: &mut ProblemCollector, policy: &Policy, place: &Spanned<DeValue>) {
    if policy.signals.len() > SIGNALS_MAX {
        report.refuse(
            &place.span(),
            "signal",
            format!(
                "{} signals; at most {SIGNALS_MAX} are allowed",
                policy.signals.len()
            ),
        );
    }
    for (n, signal) in policy.signals.iter().enumerate() {
        if policy.signals[..n]
            .iter()
            .any(|earlier| earlier.name == signal.name)
        {
            let tables = place
                .get_ref()
                .as_array()
                .into_iter()
                .flat_map(|a| a.iter());
            let places = tables.filter_map(|t| {
                t.get_ref()
                    .as_table()?
                    .iter()
                    .find(|(k, _)| k.get_ref() == "name")
            });
            let same = places
                .filter(|(_, v)| v.get_ref().as_str() == Some(&signal.name))
                .map(|(_, v)| v.span());
            let place = same
                .max_by_key(|span| span.start)
                .unwrap_or_else(|| place.span());
            report.refuse(
                &place,
                "signal.name",
                format!(
                    "{:?} is the name of another signal too; give each its own",
                    signal.name
                ),
            );
        }
    }
}

fn law(values: &Values) -> ControllerTuning {
    let actuator = if values.text("actuator") == "concurrency" {
        Actuator::Concurrency
    } else {
        Actuator::Rps
    };
    ControllerTuning {
        actuator,
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
        // Longer jobs already complete less often per slot; lowering the slots as well would count
        // that twice.
        durations: values.flag("durations") && actuator == Actuator::Rps,
        duration_step: values.number("duration_step"),
        observer: values.flag("observer"),
        predictor: values.flag("predictor"),
        noise_max: values.number("noise_max"),
        filter_max_s: values.number("filter_max_s"),
        feed_forward: values.flag("feed_forward"),
    }
}

/// Checks the rules of the law that involve several keys.
fn check_law(report: &mut ProblemCollector, values: &Values, law: &ControllerTuning) {
    if law.actuator == Actuator::Concurrency
        && values.given("durations")
        && values.flag("durations")
    {
        let reason = "true is not allowed with actuator \"concurrency\": jobs that take longer already leave their slots later, and would \
                      count twice; use false or leave it out";
        report.refuse(&values.place("durations"), "governor.durations", reason);
    }
}

/// Reads one `[[signal]]`; returns `None` if it is not a table.
fn signal(report: &mut ProblemCollector, table: &Spanned<DeValue>) -> Option<SignalPolicy> {
    let DeValue::Table(entries) = table.get_ref() else {
        report.refuse(
            &table.span(),
            "signal",
            "is not a table; write [[signal]] before each",
        );
        return None;
    };
    let values = values(report, PolicyTable::Signal, table.span(), entries);
    let source = match values.text("source") {
        "depth" => SignalSource::Depth,
        "age" => SignalSource::Age,
        "feedback" => SignalSource::Feedback,
        "http" => SignalSource::Http,
        "postgres" => SignalSource::Postgres,
        "complaints" => SignalSource::Complaints,
        _ => SignalSource::Prometheus,
    };
    let written = match values.text("kind") {
        "latency" => Some(SignalKind::Latency),
        "ratio" => Some(SignalKind::Ratio),
        "load" => Some(SignalKind::Load),
        _ => None,
    };
    let query = values.text("query").trim();
    let heard = match source {
        SignalSource::Feedback if values.given("query") => Heard::WORDS
            .iter()
            .find(|(word, _)| *word == query)
            .map(|(_, heard)| *heard),
        SignalSource::Feedback if written == Some(SignalKind::Ratio) => Some(Heard::Refused),
        SignalSource::Feedback if written == Some(SignalKind::Latency) => Some(Heard::Latency),
        _ => None,
    };
    // A whole day's share does not follow the rate within minutes, and is no quota: its control is
    // slow.
    let slow = (source == SignalSource::Complaints).then_some(SignalKind::Latency);
    let kind = written
        .or(slow)
        .or(heard.map(Heard::kind))
        .unwrap_or(SignalKind::Load);
    let usual_lag_s = match (source, heard) {
        (SignalSource::Prometheus, _) => 60.0,
        (SignalSource::Complaints, _) => COMPLAINTS_LAG_S,
        (_, Some(Heard::Errors | Heard::LatencyP99)) => 15.0,
        _ => 0.0,
    };
    let setpoint =
        values
            .given_number("setpoint")
            .unwrap_or(if source == SignalSource::Complaints {
                COMPLAINTS
            } else {
                1.0
            });
    if source != SignalSource::Complaints && !values.given("setpoint") && !values.tried("setpoint")
    {
        let allowed = keys::find(PolicyTable::Signal, "setpoint")
            .map_or_else(String::new, |key| key.allowed.description());
        report.refuse(
            &table.span(),
            "signal.setpoint",
            format!("is missing; use {allowed}"),
        );
    }
    let signal = SignalPolicy {
        name: values.text("name").to_owned(),
        kind,
        source,
        query: query.to_owned(),
        server: values
            .given("server")
            .then(|| values.text("server").trim().to_owned()),
        heard,
        scale: values.number("scale"),
        setpoint,
        soft: values.given_number("soft"),
        trip: values.given_number("trip").unwrap_or(2.0 * setpoint),
        trips: kind == SignalKind::Load || values.given("trip"),
        stale_s: values.given_number("stale_s"),
        series_min: values
            .given_number("series_min")
            .map(|least| least as usize),
        lag_s: if kind == SignalKind::Ratio {
            0.0
        } else {
            values.given_number("lag_s").unwrap_or(usual_lag_s)
        },
        probe: match source {
            SignalSource::Http => look(&values, ["url", "metric", "pointer"]),
            _ => look(&values, ["probe", "probe_metric", "probe_pointer"]),
        },
    };
    check(report, &values, &signal);
    Some(signal)
}

/// Returns the page and the place on it, if these keys name them.
fn look(values: &Values, [url, metric, pointer]: [&str; 3]) -> Option<ProbeTarget> {
    let text = |key: &str| values.text(key).trim().to_owned();
    let place = if values.given(pointer) {
        Extractor::Pointer(text(pointer))
    } else {
        Extractor::Metric(text(metric))
    };
    values.given(url).then(|| ProbeTarget {
        url: text(url),
        place,
    })
}

/// Checks the rules of a signal that involve several keys.
fn check(report: &mut ProblemCollector, values: &Values, signal: &SignalPolicy) {
    let mut refuse = |key: &str, reason: String| {
        report.refuse(&values.place(key), format!("signal.{key}"), reason)
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if values.given("name") && !signal.name.chars().all(plain) {
        refuse(
            "name",
            format!(
                "{:?} is not allowed; use letters, digits and . _ -",
                signal.name
            ),
        );
    }
    if let Some(least) = values.given_number("series_min") {
        if least.fract() != 0.0 {
            refuse(
                "series_min",
                format!("{least} is not allowed; use a whole number"),
            );
        } else if signal.source != SignalSource::Prometheus || !promql::is_selector(&signal.query) {
            refuse(
                "series_min",
                "is for a plain selector of source \"prometheus\" only; leave it out".to_owned(),
            );
        }
    }
    check_levels(values, signal, &mut refuse);
    check_source(values, signal, &mut refuse);
    let keys = if signal.source == SignalSource::Http {
        ["url", "metric", "pointer"]
    } else {
        ["probe", "probe_metric", "probe_pointer"]
    };
    check_look(values, signal.probe.as_ref(), keys, &mut refuse);
}

/// Checks that the setpoint, the soft and the hard level are in this order.
fn check_levels(values: &Values, signal: &SignalPolicy, refuse: &mut impl FnMut(&str, String)) {
    let is_share = signal.kind == SignalKind::Ratio
        || signal.heard == Some(Heard::Errors)
        || signal.source == SignalSource::Complaints;
    if is_share && signal.setpoint > 0.5 {
        refuse(
            "setpoint",
            format!(
                "{} is too much for a ratio; use at most 0.5",
                signal.setpoint
            ),
        );
    }
    if signal.trip <= signal.setpoint {
        refuse(
            "trip",
            format!(
                "{} is not above the setpoint {}",
                signal.trip, signal.setpoint
            ),
        );
    } else if is_share && values.given("trip") && signal.trip > 1.0 {
        refuse(
            "trip",
            format!("{} is too much for a ratio; use at most 1", signal.trip),
        );
    }
    if let Some(soft) = signal.soft {
        if soft < signal.setpoint {
            refuse(
                "soft",
                format!(
                    "{soft} is below the setpoint {}, which could then not be reached",
                    signal.setpoint
                ),
            );
        } else if signal.trips && soft >= signal.trip {
            refuse(
                "soft",
                format!(
                    "{soft} is not below {}, the value that trips the breaker",
                    signal.trip
                ),
            );
        }
    }
}

/// Checks the keys that each source needs, and those of other sources.
fn check_source(values: &Values, signal: &SignalPolicy, refuse: &mut impl FnMut(&str, String)) {
    let source = signal.source;
    match source {
        SignalSource::Prometheus if signal.query.is_empty() => {
            refuse("query", "is missing; use a PromQL query".to_owned())
        }
        SignalSource::Postgres if signal.query.is_empty() => refuse(
            "query",
            "is missing; use a statement that answers one number".to_owned(),
        ),
        SignalSource::Depth if signal.query.is_empty() => {
            refuse(
                "query",
                "is missing; use the name of the throttle whose ready jobs count".to_owned(),
            );
        }
        SignalSource::Age if signal.query.is_empty() => {
            refuse(
                "query",
                "is missing; use the name of the throttle whose oldest ready job counts".to_owned(),
            );
        }
        SignalSource::Complaints if signal.query.is_empty() => {
            refuse(
                "query",
                "is missing; use the name of the pool whose accounts count".to_owned(),
            );
        }
        SignalSource::Http if values.given("query") => {
            refuse("query", "is not for source \"http\"; use url".to_owned())
        }
        _ => {}
    }
    match (source, signal.heard) {
        (SignalSource::Depth | SignalSource::Age, _) if signal.kind != SignalKind::Load => {
            refuse(
                "kind",
                format!("must be \"load\" for source {:?}", values.text("source")),
            );
        }
        (SignalSource::Complaints, _) if signal.kind != SignalKind::Latency => {
            refuse("kind", "must be \"latency\" for source \"complaints\": a day's share is no load and no quota".to_owned());
        }
        (SignalSource::Feedback, None) if values.given("query") => {
            let words = Heard::WORDS
                .map(|(word, _)| format!("{word:?}"))
                .join(" or ");
            refuse(
                "query",
                format!("{:?} is not heard of feedback; use {words}", signal.query),
            );
        }
        (SignalSource::Feedback, None) => {
            refuse(
                "kind",
                "must be \"ratio\" (refused share) or \"latency\" (mean duration) for source \"feedback\"; or use query"
                    .to_owned(),
            );
        }
        (SignalSource::Feedback, Some(Heard::Refused)) if signal.kind != SignalKind::Ratio => {
            refuse(
                "kind",
                "must be \"ratio\" for what was refused, which measures a quota".to_owned(),
            );
        }
        (SignalSource::Feedback, Some(heard)) if signal.kind != heard.kind() => {
            let word = if heard == Heard::Errors {
                "errors: a share of them is no quota"
            } else {
                "a duration"
            };
            refuse("kind", format!("must be \"latency\" for {word}"));
        }
        _ => {}
    }
    match source {
        SignalSource::Prometheus => {}
        SignalSource::Postgres if signal.server.is_none() => {
            refuse(
                "server",
                "is missing; use the name of a [postgres.<name>] of the settings".to_owned(),
            );
        }
        SignalSource::Postgres => {}
        _ if signal.server.is_some() => {
            refuse(
                "server",
                "is for source \"prometheus\" or \"postgres\" only; leave it out".to_owned(),
            );
        }
        _ => {}
    }
    for key in ["url", "metric", "pointer"] {
        if source != SignalSource::Http && values.given(key) {
            refuse(key, "is for source \"http\" only; leave it out".to_owned());
        }
    }
    for key in ["probe", "probe_metric", "probe_pointer"] {
        if source != SignalSource::Prometheus && values.given(key) {
            refuse(key, "is for source \"prometheus\" only: the breaker looks at this source itself; leave it out".to_owned());
        }
    }
    if values.given("probe") && !signal.trips {
        refuse(
            "probe",
            "is for what trips the breaker: kind \"load\", or with trip; leave it out".to_owned(),
        );
    }
}

/// Checks that a page has an address and exactly one place on it.
fn check_look(
    values: &Values,
    look: Option<&ProbeTarget>,
    [url, metric, pointer]: [&str; 3],
    refuse: &mut impl FnMut(&str, String),
) {
    let Some(look) = look else {
        if url == "url" {
            refuse(url, "is missing; use http://host:port/path".to_owned());
        }
        for key in [metric, pointer] {
            if url == "probe" && values.given(key) {
                refuse(key, "needs probe, the address of the page".to_owned());
            }
        }
        return;
    };
    let host = look
        .url
        .strip_prefix("http://")
        .or(look.url.strip_prefix("https://"));
    match host {
        None => refuse(
            url,
            format!(
                "{:?} is not an address; use http://host:port/path",
                hidden(&look.url)
            ),
        ),
        Some(rest)
            if rest
                .split(['/', '?', '#'])
                .next()
                .is_some_and(|host| host.contains('@')) =>
        {
            refuse(url, "holds credentials, which do not belong into a policy; leave out what stands before @".to_owned());
        }
        Some(_) => {}
    }
    match (values.given(metric), values.given(pointer)) {
        (false, false) => refuse(
            metric,
            format!(
                "is missing; name the metric on the page, or with {pointer} the place in its JSON"
            ),
        ),
        (true, true) => refuse(
            pointer,
            format!("is one too many; use {metric} or {pointer}"),
        ),
        _ => {}
    }
    match &look.place {
        Extractor::Metric(name) if values.given(metric) => Series::parse(name)
            .err()
            .into_iter()
            .for_each(|reason| refuse(metric, reason)),
        Extractor::Metric(_) => {}
        Extractor::Pointer(place) => check_pointer(place)
            .err()
            .into_iter()
            .for_each(|reason| refuse(pointer, reason)),
    }
}

/// Returns an address without the credentials before its host.
fn hidden(url: &str) -> &str {
    url.rsplit_once('@').map_or(url, |(_, rest)| rest)
}

/// A value that its key accepts.
enum Value {
    Number(f64),
    Flag(bool),
    Text(String),
}

/// The values of one table, by key, with the place of each.
struct Values {
    part: PolicyTable,
    place: Range<usize>,
    given: BTreeMap<&'static str, (Value, Range<usize>)>,
    tried: Vec<&'static str>,
}

impl Values {
    fn given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// Returns true if the key is present, even if its value is not allowed.
    fn tried(&self, name: &str) -> bool {
        self.tried.contains(&name)
    }

    fn given_number(&self, name: &str) -> Option<f64> {
        match self.given.get(name) {
            Some((Value::Number(x), _)) => Some(*x),
            _ => None,
        }
    }

    /// Returns the number given, or the key's default; 1 for a missing required key, which was
    /// reported, so that reading continues.
    fn number(&self, name: &str) -> f64 {
        self.given_number(name).unwrap_or_else(|| {
            match keys::find(self.part, name).map(|key| key.default) {
                Some(Default::Number(x)) => x,
                _ => 1.0,
            }
        })
    }

    fn flag(&self, name: &str) -> bool {
        match (
            self.given.get(name),
            keys::find(self.part, name).map(|key| key.default),
        ) {
            (Some((Value::Flag(x), _)), _) => *x,
            (_, Some(Default::Flag(x))) => x,
            _ => false,
        }
    }

    fn text(&self, name: &str) -> &str {
        match (
            self.given.get(name),
            keys::find(self.part, name).map(|key| key.default),
        ) {
            (Some((Value::Text(text), _)), _) => text,
            (_, Some(Default::Word(word))) => word,
            _ => "",
        }
    }

    /// Returns the place of the key's value, or of its table.
    fn place(&self, name: &str) -> Range<usize> {
        self.given
            .get(name)
            .map_or_else(|| self.place.clone(), |(_, place)| place.clone())
    }
}

/// Checks every entry of a table against the table of keys.
fn values(
    report: &mut ProblemCollector,
    part: PolicyTable,
    place: Range<usize>,
    table: &DeTable,
) -> Values {
    let title = if part == PolicyTable::Signal {
        "signal"
    } else {
        "governor"
    };
    let mut given = BTreeMap::new();
    let mut tried = Vec::new();
    for (name, value) in table {
        let full = format!("{title}.{}", name.get_ref());
        let Some(key) = keys::find(part, name.get_ref()) else {
            report.refuse(
                &name.span(),
                full,
                format!("is not a key; use one of {}", keys::names(part)),
            );
            continue;
        };
        tried.push(key.name);
        match accept(value.get_ref(), key.allowed) {
            Some(accepted) => {
                given.insert(key.name, (accepted, value.span()));
            }
            None => {
                let written = report
                    .text
                    .get(value.span())
                    .unwrap_or("the value")
                    .chars()
                    .take(60)
                    .collect::<String>();
                report.refuse(
                    &value.span(),
                    full,
                    format!(
                        "{written} is not allowed; use {}",
                        key.allowed.description()
                    ),
                );
            }
        }
    }
    for key in keys::KEYS
        .iter()
        .filter(|k| k.part == part && k.default == Default::Required && !tried.contains(&k.name))
    {
        report.refuse(
            &place,
            format!("{title}.{}", key.name),
            format!("is missing; use {}", key.allowed.description()),
        );
    }
    Values {
        part,
        place,
        given,
        tried,
    }
}

fn accept(value: &DeValue, allowed: Allowed) -> Option<Value> {
    let number = |x: &DeValue| match x {
        // TOML numbers may contain underscores.
        DeValue::Integer(i) if i.radix() == 10 => i.as_str().replace('_', "").parse::<f64>().ok(),
        DeValue::Float(f) => f.as_str().replace('_', "").parse::<f64>().ok(),
        _ => None,
    };
    match allowed {
        Allowed::Number(from, to) => number(value)
            .filter(|x| (from..=to).contains(x))
            .map(Value::Number),
        Allowed::Above(from, to) => number(value)
            .filter(|x| *x > from && *x <= to)
            .map(Value::Number),
        Allowed::Flag => value.as_bool().map(Value::Flag),
        Allowed::Word(words) => value
            .as_str()
            .filter(|w| words.contains(w))
            .map(|w| Value::Text(w.to_owned())),
        Allowed::Text(most) => {
            let fits = |t: &&str| !t.trim().is_empty() && t.chars().count() <= most;
            value
                .as_str()
                .filter(fits)
                .map(|t| Value::Text(t.to_owned()))
        }
    }
}

/// The collected errors.
struct ProblemCollector<'a> {
    text: &'a str,
    file: &'a str,
    problems: Vec<PolicyProblem>,
}

impl ProblemCollector<'_> {
    fn refuse(&mut self, place: &Range<usize>, key: impl Into<String>, reason: impl Into<String>) {
        let before = &self.text.as_bytes()[..place.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        self.problems.push(PolicyProblem {
            file: self.file.to_owned(),
            line,
            key: key.into(),
            reason: reason.into(),
        });
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
