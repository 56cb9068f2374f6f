use super::*;

const GOOD: &str = "[knobs]\nrps = 20.0\n\n[[signal]]\nname = \"search-load\"\nquery = \"search_store_load\"\nsetpoint = 2\nlag_s = 5.0\n\
                    probe = \"http://127.0.0.1:9201/metrics\"\nprobe_metric = \"search_store_load\"\n\n[governor]\ntick_s = 2\n";

fn refused(text: &str) -> Vec<String> {
    Policy::parse(text, "knobs/reindex.toml").unwrap_err().0.iter().map(Problem::to_string).collect()
}

fn signal_with(line: &str) -> String {
    format!("[[signal]]\nname = \"a\"\nquery = \"q\"\nsetpoint = 1.0\n{line}\n")
}

#[test]
fn a_policy_takes_what_is_written_and_the_defaults_for_the_rest() {
    let policy = Policy::parse(GOOD, "f").unwrap().unwrap();
    let signal = &policy.signals[0];
    assert_eq!(
        (signal.kind, signal.source, signal.setpoint, signal.trip, signal.lag_s),
        (Kind::Load, Source::Prometheus, 2.0, 4.0, 5.0)
    );
    assert_eq!(signal.probe.as_ref().unwrap().metric, "search_store_load");
    assert_eq!(policy.law, Law { tick_s: 2.0, ..Law::default() });
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
        (signal_with("setpoitn = 2"), "knobs/reindex.toml:5: signal.setpoitn: is not a key; use one of name, kind,"),
        (signal_with("lag_s = \"5\""), ":5: signal.lag_s: \"5\" is not allowed; use a number from 0 to 900"),
        (signal_with("lag_s = -1"), ":5: signal.lag_s: -1 is not allowed"),
        (signal_with("lag_s = nan"), ":5: signal.lag_s: nan is not allowed"),
        (signal_with("lag_s = inf"), ":5: signal.lag_s: inf is not allowed"),
        (
            signal_with("kind = \"weather\""),
            ":5: signal.kind: \"weather\" is not allowed; use \"load\" or \"latency\" or \"ratio\"",
        ),
        (signal_with("trip = 0.5"), ":5: signal.trip: 0.5 is not above the setpoint 1"),
        (
            signal_with("probe = \"ftp://x\"\nprobe_metric = \"a\""),
            ":5: signal.probe: \"ftp://x\" is not an address; use http://",
        ),
        (signal_with("probe = \"http://x\""), ":1: signal.probe_metric: is missing"),
        (signal_with("probe_metric = \"x\""), ":5: signal.probe_metric: needs probe"),
        (signal_with("probe = \"http://x\"\nprobe_metric = \"9 x\""), ":6: signal.probe_metric: \"9 x\" is not a metric's name"),
        (
            signal_with("kind = \"ratio\"\nprobe = \"http://x\"\nprobe_metric = \"a\""),
            ":6: signal.probe: is for kind \"load\" only",
        ),
        (signal_with("source = \"depth\"\nkind = \"latency\""), "signal.kind: must be \"load\" for source \"depth\""),
        (signal_with("source = \"feedback\""), "signal.kind: must be \"ratio\""),
        (
            signal_with("[[signal]]\nname = \"a\"\nquery = \"r\"\nsetpoint = 3"),
            ":6: signal.name: \"a\" is the name of another signal too",
        ),
        (signal_with("[governor]\ntick = 5"), ":6: governor.tick: is not a key; use one of tick_s,"),
        (signal_with("[governor]\ntick_s = 0"), ":6: governor.tick_s: 0 is not allowed; use a number from 1 to 60"),
        (signal_with("[governor]\nbreaker = 1"), ":6: governor.breaker: 1 is not allowed; use true or false"),
        ("[[signal]]\nname = \"a\"\nquery = \"q\"\n".to_owned(), ":1: signal.setpoint: is missing; use a number above 0"),
        ("[[signal]]\nname = \"a\"\nquery = \"q\"\nsetpoint = nan\n".to_owned(), ":4: signal.setpoint: nan is not allowed"),
        ("[[signal]]\nquery = \"q\"\nsetpoint = 1\n".to_owned(), ":1: signal.name: is missing"),
        ("[[signal]]\nname = \"a\"\nsetpoint = 1\n".to_owned(), ":1: signal.query: is missing; use a PromQL query"),
        ("[[signal]]\nname = \"a b\"\nquery = \"q\"\nsetpoint = 1\n".to_owned(), ":2: signal.name: \"a b\" is not allowed"),
        (
            "[[signal]]\nname = \"a\"\nkind = \"ratio\"\nquery = \"q\"\nsetpoint = 1\n".to_owned(),
            ":5: signal.setpoint: 1 is too much for a ratio",
        ),
        ("[signal]\nname = \"a\"\n".to_owned(), ":1: signal: is not a list of tables; write [[signal]]"),
        ("governor = 3\n".to_owned(), ":1: governor: is not a table"),
        ("[[signal]\n".to_owned(), ":1: toml: "),
        ("signal = [3]\n".to_owned(), ":1: signal: is not a table"),
    ];
    for (text, expected) in cases {
        let told = refused(&text);
        assert!(told.iter().any(|line| line.contains(expected)), "{text}\nwanted {expected}\ngot {told:#?}");
    }
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_lines() {
    let told = refused("[governor]\nbreaker = 3\n[[signal]]\nname = 7\nquery = \"q\"\nsetpoint = -1\n");
    let lines: Vec<&str> = told.iter().map(|t| t.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["2", "4", "6"], "{told:#?}");
}
