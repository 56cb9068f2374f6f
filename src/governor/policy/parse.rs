//! Reads a policy from a knobs file and reports all its errors, each with its line.

use super::keys::{self, PolicyTable};
use super::model::{
    ControllerTuning, Extractor, FeedbackKind, Policy, ProbeTarget, SIGNALS_MAX, SignalKind,
    SignalPolicy, SignalSource,
};
use super::values::{Values, values};
use crate::control::durations::LONGEST_S;
use crate::governor::actuator::Actuator;
use crate::input::wording::must_be_one_of;
use crate::input::{FileError, FileProblem, Reader, TomlDocument};
use crate::signals::exposition::Series;
use crate::signals::figure::{ClusterFigure, ServerFigure};
use crate::signals::probe::check_pointer;
use crate::signals::promql;
use std::collections::BTreeMap;

impl Policy {
    /// Reads the policy in the knobs file `file` with the content `text`; `None` if it names no
    /// signal.
    ///
    /// Other tables (`[knobs]` and any more) are validated by other rooms.
    pub fn parse(text: &str, file: &str) -> Result<Option<Self>, FileError> {
        let document = TomlDocument::parse(text)
            .map_err(|error| FileError(vec![FileProblem::not_toml(file, error)]))?;
        let mut issues = Vec::new();
        let policy = Reader::of(&document.value, "", &[], &mut issues)
            .and_then(|mut tables| read(&mut tables));
        if issues.is_empty() {
            Ok(policy)
        } else {
            Err(FileError(FileProblem::located(file, &document, issues)))
        }
    }

    /// Returns true if a knobs file has a table `[governor]`, which does nothing without a signal.
    pub fn has_law(text: &str) -> bool {
        TomlDocument::parse(text).is_ok_and(|document| document.value.get("governor").is_some())
    }
}

impl std::default::Default for ControllerTuning {
    fn default() -> Self {
        law(&Values {
            part: PolicyTable::Governor,
            given: BTreeMap::new(),
        })
    }
}

/// The share of complaints above which the large mailbox providers filter mail.
const COMPLAINTS: f64 = 0.001;
/// The averaging time for a day's share of complaints, in seconds.
const COMPLAINTS_LAG_S: f64 = 900.0;

fn read(tables: &mut Reader<'_>) -> Option<Policy> {
    let law = match tables.get("governor") {
        None => ControllerTuning::default(),
        Some(governor) if !governor.is_object() => {
            tables.wrong("governor", "must be a table: write [governor]");
            ControllerTuning::default()
        }
        Some(_) => {
            let mut fields = tables.part("governor", &keys::names(PolicyTable::Governor))?;
            let values = values(&mut fields, PolicyTable::Governor);
            let law = law(&values);
            check_law(&mut fields, &values, &law);
            law
        }
    };
    let given = tables.take("signal")?;
    let Some(list) = given.as_array() else {
        tables.wrong(
            "signal",
            "must be a list of tables: write [[signal]] before each",
        );
        return None;
    };
    let mut signals: Vec<SignalPolicy> = Vec::new();
    for (at, table) in list.iter().enumerate() {
        let Some(mut fields) = tables.nested(
            table,
            &format!("/signal/{at}"),
            &keys::names(PolicyTable::Signal),
        ) else {
            continue;
        };
        let signal = signal(&mut fields);
        if signals.iter().any(|earlier| earlier.name == signal.name) {
            let message = format!("must be another name: {:?} is taken", signal.name);
            fields.wrong("name", message);
        }
        signals.push(signal);
    }
    if signals.len() > SIGNALS_MAX {
        let message = format!(
            "must be at most {SIGNALS_MAX} tables, not {}",
            signals.len()
        );
        tables.wrong("signal", message);
    }
    (!signals.is_empty()).then_some(Policy { signals, law })
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
        durations_check: values.flag("durations_check"),
        duration_step: values.number("duration_step"),
        observer: values.flag("observer"),
        predictor: values.flag("predictor"),
        noise_max: values.number("noise_max"),
        filter_max_s: values.number("filter_max_s"),
        feed_forward: values.flag("feed_forward"),
        model: values.flag("model"),
    }
}

/// Checks the rules of the law that involve several keys.
fn check_law(fields: &mut Reader<'_>, values: &Values, law: &ControllerTuning) {
    if law.actuator == Actuator::Concurrency
        && values.given("durations")
        && values.flag("durations")
    {
        let reason = "must be false with actuator \"concurrency\", or left out: jobs that take longer already leave their slots later, \
                      and would count twice";
        fields.wrong("durations", reason);
    }
    if law.model && !law.observer {
        let reason =
            "must be false with observer = false, or left out: the model learns from the observer";
        fields.wrong("model", reason);
    }
}

/// Reads one `[[signal]]`.
fn signal(fields: &mut Reader<'_>) -> SignalPolicy {
    let values = values(fields, PolicyTable::Signal);
    let source = match values.text("source") {
        "depth" => SignalSource::Depth,
        "age" => SignalSource::Age,
        "feedback" => SignalSource::Feedback,
        "http" => SignalSource::Http,
        "postgres" => SignalSource::Postgres,
        "complaints" => SignalSource::Complaints,
        "elasticsearch" => SignalSource::Elasticsearch,
        "mongodb" => SignalSource::Mongodb,
        _ => SignalSource::Prometheus,
    };
    let written = match values.text("kind") {
        "latency" => Some(SignalKind::Latency),
        "ratio" => Some(SignalKind::Ratio),
        "load" => Some(SignalKind::Load),
        _ => None,
    };
    let query = values.text("query").trim();
    let feedback = match source {
        SignalSource::Feedback if values.given("query") => FeedbackKind::WORDS
            .iter()
            .find(|(word, _)| *word == query)
            .map(|(_, feedback)| *feedback),
        SignalSource::Feedback if written == Some(SignalKind::Ratio) => Some(FeedbackKind::Refused),
        SignalSource::Feedback if written == Some(SignalKind::Latency) => {
            Some(FeedbackKind::Latency)
        }
        _ => None,
    };
    // A whole day's share does not follow the rate within minutes, and is not a quota: its control
    // is slow.
    let slow = (source == SignalSource::Complaints).then_some(SignalKind::Latency);
    let kind = written
        .or(slow)
        .or(feedback.map(FeedbackKind::kind))
        .unwrap_or(SignalKind::Load);
    let usual_lag_s = match (source, feedback) {
        (SignalSource::Prometheus, _) => 60.0,
        (SignalSource::Complaints, _) => COMPLAINTS_LAG_S,
        (SignalSource::Elasticsearch, _) if query == "load" => 60.0,
        (_, Some(FeedbackKind::Errors | FeedbackKind::LatencyP99)) => 15.0,
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
    if source != SignalSource::Complaints && fields.get("setpoint").is_none() {
        let allowed = keys::find(PolicyTable::Signal, "setpoint")
            .map_or_else(String::new, |key| key.allowed.description());
        fields.missing("setpoint", &allowed);
    }
    let signal = SignalPolicy {
        name: values.text("name").to_owned(),
        kind,
        source,
        query: query.to_owned(),
        server: values
            .given("server")
            .then(|| values.text("server").trim().to_owned()),
        feedback,
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
            SignalSource::Http => probe(&values, ["url", "metric", "pointer"]),
            _ => probe(&values, ["probe", "probe_metric", "probe_pointer"]),
        },
    };
    check(fields, &values, &signal);
    signal
}

/// Returns the page and the place on it, if these keys name them.
fn probe(values: &Values, [url, metric, pointer]: [&str; 3]) -> Option<ProbeTarget> {
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
fn check(fields: &mut Reader<'_>, values: &Values, signal: &SignalPolicy) {
    let mut refuse = |key: &str, reason: String| fields.wrong(key, reason);
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if values.given("name") && !signal.name.chars().all(plain) {
        refuse(
            "name",
            format!("must be letters, digits and . _ -, not {:?}", signal.name),
        );
    }
    if let Some(least) = values.given_number("series_min") {
        if least.fract() != 0.0 {
            refuse("series_min", format!("must be a whole number, not {least}"));
        } else if signal.source != SignalSource::Prometheus || !promql::is_selector(&signal.query) {
            refuse(
                "series_min",
                "must be left out unless query is a plain selector of source \"prometheus\""
                    .to_owned(),
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
    check_probe(values, signal.probe.as_ref(), keys, &mut refuse);
}

/// Checks that the setpoint, the soft and the hard level are in this order.
fn check_levels(values: &Values, signal: &SignalPolicy, refuse: &mut impl FnMut(&str, String)) {
    let is_share = signal.kind == SignalKind::Ratio
        || signal.feedback == Some(FeedbackKind::Errors)
        || signal.source == SignalSource::Complaints;
    if is_share && signal.setpoint > 0.5 {
        refuse(
            "setpoint",
            format!("must be at most 0.5 for a ratio, not {}", signal.setpoint),
        );
    }
    if signal.trip <= signal.setpoint {
        refuse(
            "trip",
            format!(
                "must be above the setpoint {}, not {}",
                signal.setpoint, signal.trip
            ),
        );
    } else if is_share && values.given("trip") && signal.trip >= 1.0 {
        refuse(
            "trip",
            format!(
                "must be below 1 for a ratio, because no share is above 1, not {}",
                signal.trip
            ),
        );
    }
    let longest = LONGEST_S * signal.scale;
    for key in ["setpoint", "soft", "trip"] {
        let level = values.given_number(key).filter(|level| *level >= longest);
        if let (Some(level), Some(FeedbackKind::LatencyP99)) = (level, signal.feedback) {
            let allowed = format!("{longest}, because longer durations are not told apart");
            refuse(key, format!("must be below {allowed}, not {level}"));
        }
    }
    if let Some(soft) = signal.soft {
        if soft < signal.setpoint {
            refuse(
                "soft",
                format!(
                    "must be at least the setpoint {}, which could otherwise not be reached, not {soft}",
                    signal.setpoint
                ),
            );
        } else if signal.trips && soft >= signal.trip {
            refuse(
                "soft",
                format!(
                    "must be below {}, the value that trips the breaker, not {soft}",
                    signal.trip
                ),
            );
        }
    }
}

/// Checks the keys that each source needs, and those of other sources.
fn check_source(values: &Values, signal: &SignalPolicy, refuse: &mut impl FnMut(&str, String)) {
    let source = signal.source;
    check_query(values, signal, refuse);
    check_kind(values, signal, refuse);
    check_server(signal, refuse);
    for key in ["url", "metric", "pointer"] {
        if source != SignalSource::Http && values.given(key) {
            refuse(key, "must be left out unless source is \"http\"".to_owned());
        }
    }
    for key in ["probe", "probe_metric", "probe_pointer"] {
        if source != SignalSource::Prometheus && values.given(key) {
            refuse(key, "must be left out unless source is \"prometheus\": the breaker reads this source itself".to_owned());
        }
    }
    if values.given("probe") && !signal.trips {
        refuse(
            "probe",
            "must be left out unless the signal trips the breaker: kind \"load\", or with trip"
                .to_owned(),
        );
    }
}

/// Checks what is asked of the source.
fn check_query(values: &Values, signal: &SignalPolicy, refuse: &mut impl FnMut(&str, String)) {
    match signal.source {
        SignalSource::Prometheus if signal.query.is_empty() => {
            refuse("query", "is missing: it must be a PromQL query".to_owned())
        }
        SignalSource::Postgres if signal.query.is_empty() => refuse(
            "query",
            "is missing: it must be a statement that answers one number".to_owned(),
        ),
        SignalSource::Depth if signal.query.is_empty() => {
            refuse(
                "query",
                "is missing: it must be the name of the throttle whose ready jobs count".to_owned(),
            );
        }
        SignalSource::Age if signal.query.is_empty() => {
            refuse(
                "query",
                "is missing: it must be the name of the throttle whose oldest ready job counts"
                    .to_owned(),
            );
        }
        SignalSource::Complaints if signal.query.is_empty() => {
            refuse(
                "query",
                "is missing: it must be the name of the pool whose accounts count".to_owned(),
            );
        }
        SignalSource::Elasticsearch if ClusterFigure::parse(&signal.query).is_none() => refuse(
            "query",
            must_be_one_of(
                &ClusterFigure::WORDS.map(|(word, _)| word),
                &signal.query.as_str().into(),
            ),
        ),
        SignalSource::Mongodb if ServerFigure::parse(&signal.query).is_none() => refuse(
            "query",
            must_be_one_of(
                &ServerFigure::WORDS.map(|(word, _)| word),
                &signal.query.as_str().into(),
            ),
        ),
        SignalSource::Http if values.given("query") => refuse(
            "query",
            "must be left out for source \"http\", which has url".to_owned(),
        ),
        _ => {}
    }
}

/// Checks that the kind is one that the source can have.
fn check_kind(values: &Values, signal: &SignalPolicy, refuse: &mut impl FnMut(&str, String)) {
    match (signal.source, signal.feedback) {
        (SignalSource::Depth | SignalSource::Age, _) if signal.kind != SignalKind::Load => {
            refuse(
                "kind",
                format!("must be \"load\" for source {:?}", values.text("source")),
            );
        }
        (SignalSource::Elasticsearch | SignalSource::Mongodb, _)
            if signal.kind == SignalKind::Ratio =>
        {
            let source = values.text("source");
            refuse(
                "kind",
                format!(
                    "must be \"load\" or \"latency\" for source {source:?}: none of its figures is a share of refused work"
                ),
            );
        }
        (SignalSource::Complaints, _) if signal.kind != SignalKind::Latency => {
            refuse("kind", "must be \"latency\" for source \"complaints\": a day's share is neither a load nor a quota".to_owned());
        }
        (SignalSource::Feedback, None) if values.given("query") => {
            let words = FeedbackKind::WORDS.map(|(word, _)| word);
            let query = signal.query.as_str().into();
            refuse("query", must_be_one_of(&words, &query));
        }
        (SignalSource::Feedback, None) => {
            refuse(
                "kind",
                "must be \"ratio\" (refused share) or \"latency\" (mean duration) for source \"feedback\"; or use query"
                    .to_owned(),
            );
        }
        (SignalSource::Feedback, Some(FeedbackKind::Refused))
            if signal.kind != SignalKind::Ratio =>
        {
            refuse(
                "kind",
                "must be \"ratio\" for what was refused, which measures a quota".to_owned(),
            );
        }
        (SignalSource::Feedback, Some(feedback)) if signal.kind != feedback.kind() => {
            let word = if feedback == FeedbackKind::Errors {
                "errors: their share is not a quota"
            } else {
                "a duration"
            };
            refuse("kind", format!("must be \"latency\" for {word}"));
        }
        _ => {}
    }
}

/// Checks that a source on a server of the settings names one, and no other does.
fn check_server(signal: &SignalPolicy, refuse: &mut impl FnMut(&str, String)) {
    match signal.source {
        SignalSource::Prometheus => {}
        SignalSource::Postgres if signal.server.is_none() => {
            refuse(
                "server",
                "is missing: it must be the name of a [postgres.<name>] of the settings".to_owned(),
            );
        }
        SignalSource::Elasticsearch if signal.server.is_none() => refuse(
            "server",
            "is missing: it must be the name of a [reindex.sinks.<name>] of the settings"
                .to_owned(),
        ),
        SignalSource::Mongodb if signal.server.is_none() => refuse(
            "server",
            "is missing: it must be the name of a [reindex.sources.<name>] of the settings"
                .to_owned(),
        ),
        SignalSource::Postgres | SignalSource::Elasticsearch | SignalSource::Mongodb => {}
        _ if signal.server.is_some() => {
            refuse(
                "server",
                "must be left out unless source is \"prometheus\", \"postgres\", \"elasticsearch\" or \"mongodb\""
                    .to_owned(),
            );
        }
        _ => {}
    }
}

/// Checks that a page has an address and exactly one place on it.
fn check_probe(
    values: &Values,
    probe: Option<&ProbeTarget>,
    [url, metric, pointer]: [&str; 3],
    refuse: &mut impl FnMut(&str, String),
) {
    let Some(probe) = probe else {
        if url == "url" {
            refuse(
                url,
                "is missing: it must be http://host:port/path".to_owned(),
            );
        }
        for key in [metric, pointer] {
            if url == "probe" && values.given(key) {
                refuse(
                    key,
                    "must be left out without probe, the address of the page".to_owned(),
                );
            }
        }
        return;
    };
    let host = probe
        .url
        .strip_prefix("http://")
        .or(probe.url.strip_prefix("https://"));
    match host {
        None => refuse(
            url,
            format!(
                "must be an address like http://host:port/path, not {:?}",
                hidden(&probe.url)
            ),
        ),
        Some(rest)
            if rest
                .split(['/', '?', '#'])
                .next()
                .is_some_and(|host| host.contains('@')) =>
        {
            refuse(
                url,
                "must be without credentials: leave out the part before @".to_owned(),
            );
        }
        Some(_) => {}
    }
    match (values.given(metric), values.given(pointer)) {
        (false, false) => refuse(
            metric,
            format!(
                "is missing: it must be the metric on the page, unless {pointer} names the place in its JSON"
            ),
        ),
        (true, true) => refuse(pointer, format!("must be left out beside {metric}")),
        _ => {}
    }
    match &probe.place {
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

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
