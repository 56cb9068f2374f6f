//! The sentence of a throttle whose governor is gone, or whose policy is elsewhere.

use super::*;

#[test]
fn a_process_without_the_policy_tells_the_last_decision_and_that_it_lacks_the_signals() {
    let told = |mode, ago_s, concurrency| {
        let mut status = status(20.0, mode);
        status.knobs.concurrency = concurrency;
        status.knobs.manual_until_ms = Some(((NOW + 60.0) * 1e3) as i64);
        let last = Decision {
            reason: "load reads 2: holding 20 rps".to_owned(),
            ..decision(ago_s, 20.0, 20.0)
        };
        ask(Some(&status), None, &[last], None)
    };
    assert_eq!(
        told(Mode::Auto, 40.0, None),
        "20 rps; its governor decided 40 s ago: load reads 2: holding 20 rps; its signals are \
         unknown here, because its policy is not in the knobs files of this process."
    );
    assert!(told(Mode::Auto, 40.0, Some(8)).starts_with("20 rps, and at most 8 slots; its"));
    assert!(told(Mode::Auto, 900.0, None).contains(
        "decided 15 min ago: load reads 2: holding 20 rps; check that a process with the role \
         governor is running"
    ));
    assert!(told(Mode::Shadow, 40.0, None).contains("mode shadow: its governor decided 40 s ago"));
    assert!(!told(Mode::Manual, 40.0, None).contains("ignored"));
}

#[test]
fn a_governor_that_is_gone_is_told_where_no_lease_lapses() {
    let mut view = governed(1.0, |_, _| {});
    view.at = timestamp(NOW - 2400.0);
    let reported = ask(Some(&status(20.0, Mode::Auto)), Some(&view), &[], None);
    assert!(
        reported.contains("; no governor has looked at it for 40 min, so its knob stays as it is;"),
        "{reported}"
    );
    (view.breaker, view.actuator) = (Phase::Open, Actuator::Concurrency);
    let mut stopped = status(20.0, Mode::Auto);
    stopped.knobs.concurrency = Some(0);
    let reported = ask(Some(&stopped), Some(&view), &[], None);
    assert!(
        reported.starts_with("stopped by the breaker: ")
            && reported.ends_with(
                "; no governor has looked at it for 40 min, so nothing restarts it; check that a \
                 process with the role governor is running."
            ),
        "{reported}"
    );
    view.at = timestamp(NOW - 190.0);
    let reported = ask(Some(&stopped), Some(&view), &[], None);
    assert!(!reported.contains("no governor"), "{reported}");
}
