//! Tests of the exposition: complete, consistent with its reference, and accepted by Prometheus'
//! own checker.

use crate::api::http::token_metrics::TokenMetrics;
use std::collections::BTreeSet;

use jiff::Timestamp;

use super::families::THROTTLE_LABELS_MAX;
use super::*;
use crate::api::http::metrics::{RequestLabels, RouteLabels};
use crate::api::throttles::measured::Measured;
use crate::api::throttles::pace::Slope;
use crate::governor::explain::view::{
    DurationsView, FindingView, GovernorView, ShadowView, SignalView,
};
use crate::governor::law::{LearnedQuota, Verdict};
use crate::governor::policy::SignalKind;
use crate::governor::{Actuator, Finding, Phase};
use crate::jobs::Depth;
use crate::throttle::status::EXPIRES;
use crate::throttle::{HeldKeys, KnobProblem, Knobs, Mode, Name, RateLimit, Status};

fn problem(field: &str) -> KnobProblem {
    KnobProblem {
        field: field.to_owned(),
        message: String::new(),
    }
}

fn measured(name: &str) -> Measured {
    let knobs = Knobs {
        rps: RateLimit::PerSecond(5.0),
        mode: Mode::Auto,
        min: 1.0,
        max: 100.0,
        seq: 1,
        term: 1,
        by: "governor".into(),
        ..Knobs::default()
    };
    let status = Status {
        name: Name::new(name).unwrap(),
        knobs,
        raw: Default::default(),
        problems: ["burst", EXPIRES].map(problem).to_vec(),
        effective_rps: RateLimit::PerSecond(5.0),
        lease_expired: false,
        used: 0.0,
        limited_us: 0.0,
        at_us: 0,
        expires_in_s: Some(90.0),
        refusal: None,
        debt_until_ms: None,
        has_bucket: false,
    };
    let signal = SignalView {
        name: "search-load".into(),
        kind: SignalKind::Load,
        value: Some(0.5),
        setpoint: 1.0,
        soft: None,
        trip: 2.0,
        at: Some(Timestamp::UNIX_EPOCH),
        age_s: Some(4.2),
        stale: false,
        proposed_rps: Some(6.5),
        learned_quota: Some(LearnedQuota {
            rps: 40.5,
            at: Timestamp::UNIX_EPOCH,
            refused_share: 0.25,
        }),
        problem: None,
        sampled_at: 0.0,
        stale_after_s: 60.0,
        late_after_s: 30.0,
        looked: None,
        keeps_open: true,
    };
    let shadow = ShadowView {
        since: Timestamp::UNIX_EPOCH,
        seconds: 60.0,
        jobs: 300.0,
        own_jobs: 240.0,
        overload_s: 12.5,
        own_overload_s: 0.5,
        peak: 1.5,
        own_peak: 1.1,
        load: Some(1.2),
        own_load: Some(0.9),
        lower_s: 30.0,
        higher_s: 0.0,
        stopped_s: 0.0,
        braked_share: Some(1.0),
        sentence: String::new(),
    };
    Measured {
        status: Some(status),
        slope: Some(Slope {
            achieved_rps: 4.9,
            limiting_share: 0.97,
        }),
        depth: Depth {
            throttle: name.into(),
            ready: 7,
            oldest_ready_at: Some(Timestamp::UNIX_EPOCH),
            ..Depth::default()
        },
        governor: Some(GovernorView {
            actuator: Actuator::Rps,
            unit: "rps",
            rps: 4.0,
            breaker: Phase::HalfOpen,
            breaker_since: None,
            limiting: "search-load".into(),
            signal: None,
            held_until: None,
            last_trip: None,
            manual_override: None,
            shadow: Some(shadow),
            reason: String::new(),
            at: Timestamp::UNIX_EPOCH,
            findings: vec![FindingView {
                finding: Finding::Unresponsive,
                since: Timestamp::UNIX_EPOCH,
                sentence: "it does not react".into(),
            }],
            gain_factor: 0.5,
            durations: Some(DurationsView {
                verdict: Verdict::Uninformative,
                since: None,
                score: -5.0,
            }),
            signals: vec![signal],
        }),
        held: Some(HeldKeys {
            keys: 3,
            ready: 7,
            paused: 1,
            held_ready: 2,
            ..HeldKeys::default()
        }),
        failing: None,
        above: None,
        is_unwritable: false,
    }
}

fn sample(throttles: usize) -> Arc<LiveSample> {
    let mut sample = LiveSample {
        counted_at: Some(Timestamp::UNIX_EPOCH),
        workers: 3,
        runners: 2,
        at: Timestamp::from_second(40).unwrap(),
        is_queue_lost: true,
        ..LiveSample::default()
    };
    for i in 0..throttles {
        let name = format!("t{i:04}");
        sample.throttles.insert(name.clone(), measured(&name));
    }
    Arc::new(sample)
}

/// Returns the exposition of a process after some traffic, with a counter, a unit and an info of
/// another room.
fn text(throttles: usize) -> String {
    let http = HttpMetrics {
        tokens: TokenMetrics::new(Arc::from(["hooks".to_owned()])),
        ..HttpMetrics::default()
    };
    http.tokens.note("hooks", "acme", true);
    http.requests
        .get_or_create(&RequestLabels {
            route: "/healthz".into(),
            method: "GET",
            status: 200,
        })
        .inc();
    http.durations
        .get_or_create(&RouteLabels {
            route: "/healthz".into(),
            method: "GET",
        })
        .observe(0.002);
    exposition(&http, Some(sample(throttles)), &Registry::default())
}

fn families(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| {
            line.strip_prefix("# TYPE ")?
                .split(' ')
                .next()
                .map(str::to_owned)
        })
        .collect()
}

#[test]
fn every_family_is_in_the_reference_and_the_reference_invents_none() {
    let reference = include_str!("../../docs/reference/metrics.md");
    let documented: BTreeSet<String> = reference
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `")?
                .split('`')
                .next()
                .map(str::to_owned)
        })
        .collect();
    let exposed = families(&text(1));

    assert_eq!(
        exposed.difference(&documented).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "docs/reference/metrics.md lacks these"
    );
    let ours = |name: &&String| {
        ["flyball_throttle_", "flyball_governor_", "flyball_http_"]
            .iter()
            .any(|room| name.starts_with(room))
            // Only of throttles below others.
            && name.as_str() != "flyball_throttle_limiting_share_above"
    };
    assert_eq!(
        documented
            .difference(&exposed)
            .filter(ours)
            .collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "these do not exist"
    );
}

#[test]
fn values_and_labels_are_what_was_sampled() {
    let text = text(1);
    for line in [
        r#"flyball_throttle_rps{throttle="t0000"} 5.0"#,
        r#"flyball_throttle_ready_jobs{throttle="t0000"} 7.0"#,
        r#"flyball_governor_breaker_state{throttle="t0000"} 1.0"#,
        r#"flyball_governor_signal_ratio{throttle="t0000",signal="search-load"} 0.5"#,
        r#"flyball_governor_watchdog{throttle="t0000",finding="unresponsive"} 1.0"#,
        r#"flyball_governor_watchdog{throttle="t0000",finding="oscillating"} 0.0"#,
        r#"flyball_governor_gain_factor{throttle="t0000"} 0.5"#,
        r#"flyball_governor_durations{throttle="t0000"} 0.0"#,
        r#"flyball_governor_limiting{throttle="t0000",limiting="search-load"} 1.0"#,
        r#"flyball_throttle_min_rps{throttle="t0000"} 1.0"#,
        r#"flyball_throttle_max_rps{throttle="t0000"} 100.0"#,
        r#"flyball_throttle_key_wait_seconds{throttle="t0000"} 0.0"#,
        r#"flyball_http_requests_total{route="/healthz",method="GET",status="200"} 1"#,
        r#"flyball_throttle_invalid_knobs{throttle="t0000"} 1.0"#,
        r#"flyball_throttle_expires_seconds{throttle="t0000"} 90.0"#,
        r#"flyball_governor_age_seconds{throttle="t0000"} 40.0"#,
        r#"flyball_governor_knob{throttle="t0000",knob="rps"} 1.0"#,
        "flyball_postgres_unavailable 1.0",
        "flyball_paused 0.0",
        "flyball_workers 2.0",
    ] {
        assert!(
            text.lines().any(|exposed| exposed == line),
            "{line} is not in\n{text}"
        );
    }
}

#[test]
fn a_throttle_tells_how_much_those_above_it_limit() {
    let mut sample = LiveSample::default();
    for (name, parent) in [("low", "middle"), ("middle", "top"), ("top", "gone")] {
        let mut one = measured(name);
        if let Some(status) = &mut one.status {
            status.knobs.parent = Name::new(parent).ok();
        }
        one.slope = (name != "middle").then_some(Slope {
            achieved_rps: 0.0,
            limiting_share: 0.25,
        });
        sample.throttles.insert(name.to_owned(), one);
    }
    let share = |name: &str| sample.limiting_share_above(&sample.throttles[name]);
    assert_eq!(
        (share("low"), share("middle"), share("top")),
        (Some(0.25), Some(0.25), None)
    );
}

#[test]
fn a_governor_that_a_person_turned_off_has_no_age() {
    let mut sample = LiveSample::default();
    for mode in [Mode::Auto, Mode::Off] {
        let mut one = measured(mode.as_str());
        if let Some(status) = &mut one.status {
            status.knobs.mode = mode;
        }
        sample.throttles.insert(mode.as_str().to_owned(), one);
    }
    let families = sampled_families(&sample);
    let (.., rows) = families
        .into_iter()
        .find(|(name, ..)| *name == "flyball_governor_age_seconds")
        .unwrap();
    let throttles: Vec<&str> = rows.iter().map(|(labels, _)| &*labels[0].1).collect();
    assert_eq!(throttles, ["auto"]);
}

#[test]
fn labels_are_bounded_and_the_jobs_of_the_rest_are_summed() {
    let text = text(500);
    let labelled = text
        .lines()
        .filter(|line| line.starts_with("flyball_throttle_rps{"))
        .count();
    assert_eq!(labelled, THROTTLE_LABELS_MAX);
    assert!(
        text.contains(r#"flyball_throttle_ready_jobs{throttle="other"} 2100.0"#),
        "{text}"
    );
}

#[test]
fn open_metrics_become_classic_ones() {
    let open = "# HELP a A.\n# TYPE a counter\n# UNIT a s\na_total 1\n# HELP b B.\n# TYPE b info\nb_info{v=\"1\"} 1\n# HELP c a b.\n# TYPE c gauge\nc 1\n# EOF\n";
    let classic_text = "# HELP a_total A.\n# TYPE a_total counter\na_total 1\n# HELP b_info B.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n# HELP c a b.\n# TYPE c gauge\nc 1\n";
    assert_eq!(classic(open), classic_text);
}

#[cfg(feature = "cli")]
#[test]
fn promtool_has_nothing_to_say() {
    use crate::stack::find;
    use std::io::Write as _;
    use std::process::Stdio;

    let prometheus = find::prometheus(&find::places(&[])).expect("Prometheus is installed");
    let mut promtool = prometheus
        .sibling("promtool")
        .command()
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool runs");
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text(3).as_bytes())
        .unwrap();
    let answer = promtool.wait_with_output().unwrap();
    let words = format!(
        "{}{}",
        String::from_utf8_lossy(&answer.stdout),
        String::from_utf8_lossy(&answer.stderr)
    );
    assert!(
        answer.status.success() && words.trim().is_empty(),
        "{words}"
    );
}
