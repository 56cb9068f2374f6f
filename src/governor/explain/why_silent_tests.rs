//! The sentence of a throttle whose signals are silent, late, or keep its breaker open.

use super::*;
use crate::governor::policy::SignalKind;

/// Returns the sentence for a rate of 30 under this view, `after_s` seconds after the last tick.
fn told(view: &GovernorView, rps: f64, after_s: f64) -> String {
    let (mut view, status) = (view.clone(), status(rps, Mode::Auto));
    view.age(NOW + after_s);
    sentence(WhyInput {
        now: NOW + after_s,
        ..input(Some(&status), Some(&view))
    })
}

#[test]
fn silent_signals_have_their_reasons_as_the_state_stores_them() {
    let silent = |problems: [Option<&str>; 2]| {
        let (mut state, policy) = governor(1.0);
        for (signal, problem) in state.signals.iter_mut().zip(problems) {
            signal.problem = problem.map(str::to_owned);
        }
        let stored = serde_json::to_value(&state).unwrap();
        told(
            &GovernorView::of_stored(stored, &policy, NOW).unwrap(),
            30.0,
            70.0,
        )
    };
    let refused = "http://x cannot be reached: refused";
    for problems in [[Some(refused), Some(refused)], [Some(refused), None]] {
        let told = silent(problems);
        assert!(told.contains(&format!(" s ({refused})")), "{told}");
    }
    let told = silent([Some(refused), Some("no value: nothing matches")]);
    assert!(
        told.contains(&format!(
            " (search-load: {refused}; mongo-load: no value: nothing matches)"
        )),
        "{told}"
    );
    assert!(!silent([None, None]).contains('('));
}

#[test]
fn the_signal_whose_reading_is_late_is_named_with_its_reason() {
    let mut view = governed(1.8, |_, _| {});
    view.limiting = "late".to_owned();
    view.signals[0].late_after_s = 100.0;
    view.signals[1].late_after_s = 10.0;
    view.signals[1].problem = Some("http://m did not answer within 2000 ms".to_owned());
    let told = told(&view, 30.0, 20.0);
    assert!(
        told.starts_with(
            "30 rps, not raised, because the next reading of mongo-load is late (http://m did not \
             answer within 2000 ms), search-load 1.8 of 2.0 (sample 34 s old)"
        ),
        "{told}"
    );
}

#[test]
fn an_open_breaker_says_what_keeps_it_open() {
    let open = |change: &dyn Fn(&mut GovernorView)| {
        let mut view = governed(1.0, |_, _| {});
        view.breaker = Phase::Open;
        change(&mut view);
        told(&view, 0.0, 0.0)
    };
    let quiet = open(&|_| {});
    assert!(
        !quiet.contains("still reads") && !quiet.contains("probe"),
        "{quiet}"
    );
    let high = open(&|view| view.signals[1].value = Some(4.4));
    assert!(
        high.ends_with("; mongo-load still reads 4.4 of 4.0 (sample 9 s old)."),
        "{high}"
    );
    // A latency that trips nothing, and one that is silent, keep nothing open.
    let latency = open(&|view| {
        let signal = &mut view.signals[1];
        (signal.value, signal.keeps_open) = (Some(40.0), false);
    });
    assert!(!latency.contains("still reads"), "{latency}");
    // Its page reads something else than Prometheus does.
    let probed = |at| open(&|view| view.signals[0].looked = Some((at, 60.0)));
    let reported = probed(NOW - 1.0);
    assert!(
        reported.ends_with("; the probe of search-load still reads 60 of 2."),
        "{reported}"
    );
    assert!(!probed(NOW - 60.0).contains("probe"));

    let mut silent = governed(1.0, |_, _| {});
    silent.breaker = Phase::Open;
    silent.signals[0].problem = Some("http://x cannot be reached: refused".to_owned());
    let reported = told(&silent, 0.0, 90.0);
    assert!(
        reported.ends_with("; search-load: http://x cannot be reached: refused."),
        "{reported}"
    );
    silent.signals[0].kind = SignalKind::Latency;
    let reported = told(&silent, 0.0, 90.0);
    assert!(!reported.contains("http://x"), "{reported}");
}

#[test]
fn a_governor_without_readings_says_at_once_why_and_one_that_only_follows_says_whom() {
    let policy = Policy::parse(POLICY, "f").unwrap().unwrap();
    let mut state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(30.0), NOW - 5.0);
    let seen = |now: f64| Observation {
        now,
        ..Observation::default()
    };
    state.signals[0].problem = Some("no value: nothing matches".to_owned());
    state.tick(&policy, BOUNDS, &seen(NOW));
    let view = GovernorView::new(&state, &policy, NOW).unwrap();
    assert_eq!(
        told(&view, 30.0, 1.0),
        "30 rps, held, because no signal has been read yet (no value: nothing matches)."
    );

    // Their edit was long ago.
    state.overrides.last = Some(ManualOverride {
        what: "rps 30".to_owned(),
        by: Some("bob".to_owned()),
        at: NOW - 86_400.0,
        why: "too fast".to_owned(),
    });
    state.follow(
        &policy,
        BOUNDS,
        &seen(NOW + 5.0),
        RateLimit::PerSecond(12.0),
        crate::governor::explain::Cause::followed("a calibration controls this throttle"),
    );
    let view = GovernorView::new(&state, &policy, NOW + 5.0).unwrap();
    assert_eq!(
        told(&view, 12.0, 6.0),
        "12 rps, a calibration controls this throttle; the governor only tracks it."
    );
}
