use super::*;

const GOOD: &str = "[knobs]\nrps = 20.0\n\n[[signal]]\nname = \"search-load\"\nquery = \"search_store_load\"\nsetpoint = 2\nlag_s = 5.0\n\
                    probe = \"http://127.0.0.1:9201/metrics\"\nprobe_metric = \"search_store_load\"\n\n[governor]\ntick_s = 2\n";

fn refused(text: &str) -> Vec<String> {
    Policy::parse(text, "knobs/reindex.toml")
        .unwrap_err()
        .0
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn signal_with(line: &str) -> String {
    format!("[[signal]]\nname = \"a\"\nquery = \"q\"\nsetpoint = 1.0\n{line}\n")
}

#[test]
fn a_policy_takes_what_is_written_and_the_defaults_for_the_rest() {
    let policy = Policy::parse(GOOD, "f").unwrap().unwrap();
    let signal = &policy.signals[0];
    assert_eq!(
        (
            signal.kind,
            signal.source,
            signal.setpoint,
            signal.trip,
            signal.lag_s
        ),
        (SignalKind::Load, SignalSource::Prometheus, 2.0, 4.0, 5.0)
    );
    assert_eq!(
        signal.probe.as_ref().unwrap().place,
        Extractor::Metric("search_store_load".into())
    );
    assert_eq!(
        (
            signal.scale,
            signal.soft,
            signal.stale_s,
            signal.trips,
            signal.feedback
        ),
        (1.0, None, None, true, None)
    );
    assert_eq!(
        policy.law,
        ControllerTuning {
            tick_s: 2.0,
            ..ControllerTuning::default()
        }
    );
    assert_eq!(policy.law.gain, 1.6);
}

#[test]
fn a_file_without_signals_has_no_governor() {
    assert_eq!(Policy::parse("[knobs]\nrps = 1\n", "f"), Ok(None));
    assert_eq!(Policy::parse("", "f"), Ok(None));
    assert_eq!(Policy::parse("[governor]\ntick_s = 2\n", "f"), Ok(None));
}

#[test]
fn every_mistake_is_named_with_file_line_key_and_what_is_allowed() {
    let cases = [
        (
            signal_with("setpoitn = 2"),
            "knobs/reindex.toml:5: signal.setpoitn: is not a known field; did you mean \"setpoint\"? allowed: name, kind,",
        ),
        (
            signal_with("lag_s = \"5\""),
            ":5: signal.lag_s: must be a number from 0 to 900, not \"5\"",
        ),
        (
            signal_with("lag_s = -1"),
            ":5: signal.lag_s: must be a number from 0 to 900, not -1",
        ),
        (
            signal_with("lag_s = nan"),
            ":5: signal.lag_s: must be a number from 0 to 900, not \"nan\"",
        ),
        (
            signal_with("lag_s = inf"),
            ":5: signal.lag_s: must be a number from 0 to 900, not \"inf\"",
        ),
        (
            signal_with("kind = \"weather\""),
            ":5: signal.kind: must be load, latency or ratio, not \"weather\"",
        ),
        (
            signal_with("trip = 0.5"),
            ":5: signal.trip: must be above the setpoint 1, not 0.5",
        ),
        (
            signal_with("probe = \"ftp://x\"\nprobe_metric = \"a\""),
            ":5: signal.probe: must be an address like http://host:port/path, not \"ftp://x\"",
        ),
        (
            signal_with("probe = \"http://x\""),
            ":1: signal.probe_metric: is missing",
        ),
        (
            signal_with("probe_metric = \"x\""),
            ":5: signal.probe_metric: must be left out without probe",
        ),
        (
            signal_with("probe = \"http://x\"\nprobe_metric = \"9 x\""),
            ":6: signal.probe_metric: \"9 x\" is not a metric's name",
        ),
        (
            signal_with("kind = \"ratio\"\nprobe = \"http://x\"\nprobe_metric = \"a\""),
            ":6: signal.probe: must be left out unless the signal trips the breaker: kind \"load\", or with trip",
        ),
        (
            signal_with("source = \"depth\"\nkind = \"latency\""),
            "signal.kind: must be \"load\" for source \"depth\"",
        ),
        (
            signal_with("source = \"feedback\""),
            ":3: signal.query: must be refused, errors,",
        ),
        (
            signal_with("[[signal]]\nname = \"a\"\nquery = \"r\"\nsetpoint = 3"),
            ":6: signal.name: must be another name: \"a\" is taken",
        ),
        (
            signal_with("[governor]\ntick = 5"),
            ":6: governor.tick: is not a known field; did you mean \"tick_s\"? allowed: actuator, tick_s,",
        ),
        (
            signal_with("[governor]\ntick_s = 0"),
            ":6: governor.tick_s: must be a number from 1 to 60, not 0",
        ),
        (
            signal_with("[governor]\nbreaker = 1"),
            ":6: governor.breaker: must be true or false, not 1",
        ),
        (
            "[[signal]]\nname = \"a\"\nquery = \"q\"\n".to_owned(),
            ":1: signal.setpoint: is missing: it must be a number above 0",
        ),
        (
            "[[signal]]\nname = \"a\"\nquery = \"q\"\nsetpoint = nan\n".to_owned(),
            ":4: signal.setpoint: must be a number above 0, at most 1e12, not \"nan\"",
        ),
        (
            "[[signal]]\nquery = \"q\"\nsetpoint = 1\n".to_owned(),
            ":1: signal.name: is missing",
        ),
        (
            "[[signal]]\nname = \"a\"\nsetpoint = 1\n".to_owned(),
            ":1: signal.query: is missing: it must be a PromQL query",
        ),
        (
            "[[signal]]\nname = \"a b\"\nquery = \"q\"\nsetpoint = 1\n".to_owned(),
            ":2: signal.name: must be letters, digits and . _ -, not \"a b\"",
        ),
        (
            "[[signal]]\nname = \"a\"\nkind = \"ratio\"\nquery = \"q\"\nsetpoint = 1\n".to_owned(),
            ":5: signal.setpoint: must be at most 0.5 for a ratio, not 1",
        ),
        (
            "[signal]\nname = \"a\"\n".to_owned(),
            ":1: signal: must be a list of tables: write [[signal]]",
        ),
        ("governor = 3\n".to_owned(), ":1: governor: must be a table"),
        ("[[signal]\n".to_owned(), "knobs/reindex.toml:1: "),
        ("signal = [3]\n".to_owned(), ":1: signal: must be an object"),
    ];
    for (text, expected) in cases {
        let reported = refused(&text);
        assert!(
            reported.iter().any(|line| line.contains(expected)),
            "{text}\nwanted {expected}\ngot {reported:#?}"
        );
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_lines() {
    let reported =
        refused("[governor]\nbreaker = 3\n[[signal]]\nname = 7\nquery = \"q\"\nsetpoint = -1\n");
    let lines: Vec<&str> = reported
        .iter()
        .map(|t| t.split(':').nth(1).unwrap())
        .collect();
    assert_eq!(lines, ["2", "4", "6"], "{reported:#?}");
}

/// Returns a signal without the keys that most signals have.
fn bare(lines: &str) -> String {
    format!("[[signal]]\nname = \"a\"\nsetpoint = 0.2\n{lines}\n")
}

fn accepted(text: &str) -> SignalPolicy {
    Policy::parse(text, "f")
        .unwrap_or_else(|refused| panic!("{text}{refused}"))
        .unwrap()
        .signals
        .remove(0)
}

#[test]
fn feedback_is_heard_by_its_word_and_has_the_kind_that_fits_it() {
    let of = |lines: &str| {
        let signal = accepted(&bare(&format!("source = \"feedback\"\n{lines}")));
        (
            signal.feedback.unwrap(),
            signal.kind,
            signal.lag_s,
            signal.trips,
        )
    };
    assert_eq!(
        of("query = \"refused\""),
        (FeedbackKind::Refused, SignalKind::Ratio, 0.0, false)
    );
    assert_eq!(
        of("kind = \"ratio\""),
        (FeedbackKind::Refused, SignalKind::Ratio, 0.0, false)
    );
    assert_eq!(
        of("kind = \"latency\"\ntrip = 1"),
        (FeedbackKind::Latency, SignalKind::Latency, 0.0, true)
    );
    assert_eq!(
        of("query = \"errors\""),
        (FeedbackKind::Errors, SignalKind::Latency, 15.0, false)
    );
    assert_eq!(
        of("query = \"latency_p99\""),
        (FeedbackKind::LatencyP99, SignalKind::Latency, 15.0, false)
    );
    assert_eq!(
        of("query = \"errors\"\nlag_s = 60\ntrip = 0.9"),
        (FeedbackKind::Errors, SignalKind::Latency, 60.0, true)
    );
    let without_feedback = Policy::parse(
        &format!("{}[governor]\ndurations = false\n", signal_with("")),
        "f",
    )
    .unwrap()
    .unwrap();
    assert!(
        !without_feedback.uses_feedback()
            && Policy::parse(&signal_with(""), "f")
                .unwrap()
                .unwrap()
                .uses_feedback(),
        "durations are heard"
    );
}

#[test]
fn pages_and_statements_are_sources_and_levels_scale_and_patience_are_taken() {
    let page = accepted(&bare(
        "source = \"http\"\nurl = \"http://x/stats\"\npointer = \"/queue/0\"\nscale = 0.001\nsoft = 0.3\ntrip = 0.9\nstale_s = 9",
    ));
    let look = ProbeTarget {
        url: "http://x/stats".into(),
        place: Extractor::Pointer("/queue/0".into()),
    };
    assert_eq!(
        (page.source, page.probe, page.lag_s, page.scale),
        (SignalSource::Http, Some(look), 0.0, 0.001)
    );
    assert_eq!(
        (page.soft, page.trip, page.trips, page.stale_s),
        (Some(0.3), 0.9, true, Some(9.0))
    );
    let row = accepted(&bare(
        "source = \"postgres\"\nserver = \"main\"\nquery = \"select 1\"\nkind = \"latency\"",
    ));
    assert_eq!(
        (row.source, row.server.as_deref(), row.trips),
        (SignalSource::Postgres, Some("main"), false)
    );
    let probed = accepted(&signal_with(
        "server = \"east\"\nprobe = \"https://x\"\nprobe_pointer = \"/a\"",
    ));
    assert_eq!(
        (probed.server.as_deref(), probed.probe.unwrap().place),
        (Some("east"), Extractor::Pointer("/a".into()))
    );
}

#[test]
fn sources_and_levels_that_do_not_fit_are_refused() {
    let cases = [
        (
            "source = \"feedback\"",
            ":1: signal.kind: must be \"ratio\" (refused share) or \"latency\"",
        ),
        (
            "source = \"feedback\"\nkind = \"ratio\"\nquery = \"errors\"",
            ":5: signal.kind: must be \"latency\" for errors",
        ),
        (
            "source = \"feedback\"\nkind = \"latency\"\nquery = \"refused\"",
            ":5: signal.kind: must be \"ratio\" for what was refused",
        ),
        (
            "source = \"feedback\"\nquery = \"errors\"\ntrip = 2",
            ":6: signal.trip: must be below 1 for a ratio, because no share is above 1, not 2",
        ),
        (
            "source = \"feedback\"\nquery = \"refused\"\ntrip = 1",
            ":6: signal.trip: must be below 1 for a ratio, because no share is above 1, not 1",
        ),
        (
            "source = \"feedback\"\nquery = \"latency_p99\"\ntrip = 90",
            ":6: signal.trip: must be below 80, because longer durations are not told apart, not 90",
        ),
        (
            "source = \"feedback\"\nquery = \"latency_p99\"\nscale = 0.001",
            ":3: signal.setpoint: must be below 0.08, because longer durations are not told apart, not 0.2",
        ),
        ("source = \"http\"", ":1: signal.url: is missing"),
        (
            "source = \"http\"\nurl = \"x\"\nmetric = \"a\"",
            ":5: signal.url: must be an address like http://host:port/path, not \"x\"",
        ),
        (
            "source = \"http\"\nurl = \"http://x\"",
            "signal.metric: is missing: it must be the metric on the page, unless pointer",
        ),
        (
            "source = \"http\"\nurl = \"http://x\"\nmetric = \"a\"\npointer = \"/a\"",
            ":7: signal.pointer: must be left out beside metric",
        ),
        (
            "source = \"http\"\nurl = \"http://x\"\npointer = \"a\"",
            ":6: signal.pointer: \"a\" is not a JSON pointer",
        ),
        (
            "source = \"http\"\nurl = \"http://x\"\nmetric = \"a\"\nquery = \"q\"",
            ":7: signal.query: must be left out for source \"http\"",
        ),
        (
            "query = \"q\"\nurl = \"http://x\"",
            ":5: signal.url: must be left out unless source is \"http\"",
        ),
        (
            "source = \"depth\"\nquery = \"t\"\nprobe = \"http://x\"",
            ":6: signal.probe: must be left out unless source is \"prometheus\"",
        ),
        (
            "source = \"depth\"\nquery = \"t\"\nserver = \"x\"",
            ":6: signal.server: must be left out unless source is \"prometheus\", \"postgres\", \"elasticsearch\" or \"mongodb\"",
        ),
        (
            "source = \"age\"",
            ":1: signal.query: is missing: it must be the name of the throttle whose oldest",
        ),
        (
            "source = \"age\"\nquery = \"t\"\nkind = \"ratio\"",
            ":6: signal.kind: must be \"load\" for source \"age\"",
        ),
        (
            "source = \"elasticsearch\"\nserver = \"s\"\nquery = \"heap\"\nkind = \"ratio\"",
            ":7: signal.kind: must be \"load\" or \"latency\" for source \"elasticsearch\"",
        ),
        (
            "source = \"mongodb\"\nserver = \"s\"\nquery = \"cache_dirty\"\nkind = \"ratio\"",
            ":7: signal.kind: must be \"load\" or \"latency\" for source \"mongodb\"",
        ),
        (
            "source = \"postgres\"\nquery = \"select 1\"",
            ":1: signal.server: is missing: it must be the name of a [postgres.<name>]",
        ),
        (
            "source = \"postgres\"\nserver = \"x\"",
            ":1: signal.query: is missing: it must be a statement",
        ),
        (
            "query = \"q\"\nsoft = 0.1",
            ":5: signal.soft: must be at least the setpoint 0.2",
        ),
        (
            "query = \"q\"\nsoft = 0.4",
            ":5: signal.soft: must be below 0.4, the value that trips the breaker, not 0.4",
        ),
        (
            "query = \"q\"\nscale = 0",
            ":5: signal.scale: must be a number",
        ),
        (
            "query = \"q\"\nstale_s = 1",
            ":5: signal.stale_s: must be a number from 2 to 3600, not 1",
        ),
    ];
    for (lines, expected) in cases {
        let reported = refused(&bare(lines));
        assert!(
            reported.iter().any(|line| line.contains(expected)),
            "{lines}\nwanted {expected}\ngot {reported:#?}"
        );
    }
    for key in ["url", "probe"] {
        let rest = if key == "url" {
            "source = \"http\"\nmetric = \"a\""
        } else {
            "query = \"q\"\nprobe_metric = \"a\""
        };
        let reported = refused(&bare(&format!(
            "{key} = \"http://ann:very-secret@x/m\"\n{rest}"
        )))
        .concat();
        assert!(
            reported.contains("must be without credentials") && !reported.contains("very-secret"),
            "{reported}"
        );
    }
}

#[test]
fn a_model_without_the_observer_that_it_needs_is_refused() {
    let law = |keys: &str| signal_with(&format!("[governor]\n{keys}"));
    let found = refused(&law("observer = false\nmodel = true"));
    assert!(
        found[0].contains("governor.model: must be false with observer = false"),
        "{found:?}"
    );
    accepted(&law("observer = false"));
    assert!(
        Policy::parse(&law("model = true"), "f")
            .unwrap()
            .unwrap()
            .law
            .model
    );
}

#[test]
fn refusals_are_as_pinned() {
    let lines = [
        "lag_s = \"5\"\nkind = \"weather\"",
        "lag_s = nan\nscale = 0\nstale_s = 1",
        "qery = \"q\"",
        "trip = 0.5\nsoft = 0.1",
        "trip = 4\nsoft = 5",
        "kind = \"ratio\"\nsetpoints = 1",
        "series_min = 1.5",
        "server = \"\"",
        "source = \"depth\"\nkind = \"latency\"\nserver = \"a\"\nurl = \"http://x\"",
        "source = \"feedback\"",
        "source = \"http\"",
        "source = \"http\"\nurl = \"http://u:p@x\"\nmetric = \"a\"\npointer = \"/a\"",
        "source = \"complaints\"\nkind = \"ratio\"",
        "source = \"postgres\"",
        "probe = \"here\"",
        "probe = \"http://x\"\nprobe_metric = \"a{\"",
        "probe = \"http://x\"\nprobe_pointer = \"a\"",
        "probe_pointer = \"/a\"",
    ];
    let texts = [
        "[[signal]]\n".to_owned(),
        "signal = 1\n".to_owned(),
        "signal = [1]\n".to_owned(),
        "governor = 1\n".to_owned(),
        "a = \n".to_owned(),
        "[[signal]]\nname = \"a b\"\nquery = \" \"\nsetpoint = 0\n".to_owned(),
        format!("{0}{0}", signal_with("")),
        signal_with("[governor]\ntick_s = 0\nbreaker = 1\nactuator = \"rsp\"\ntik_s = 1"),
        signal_with("[governor]\nactuator = \"concurrency\"\ndurations = true"),
    ];
    let cases = lines.map(signal_with).into_iter().chain(texts);
    crate::input::pinned::check(
        "policy",
        cases.map(|text| {
            let found = refused(&text);
            (text, found)
        }),
    );
}

#[test]
fn a_law_is_found_however_it_is_written() {
    for text in [
        "[governor]\n",
        "[governor] # the law\ngain = 2\n",
        "[ governor ]\n",
        "governor = { gain = 2 }\n",
    ] {
        assert!(Policy::has_law(text), "{text}");
    }
    for text in ["", "[knobs]\nrps = 1\n", "# [governor]\n", "[governor\n"] {
        assert!(!Policy::has_law(text), "{text}");
    }
}
