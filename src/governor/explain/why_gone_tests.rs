//! The sentence of a throttle that cannot exist, whose governor is gone or has no say, or whose
//! policy is elsewhere.

use super::*;
use crate::governor::law::TripRecord;

#[test]
fn a_throttle_that_none_can_be_or_that_makes_itself_is_not_to_be_created() {
    let missing = WhyInput {
        name: "mail:lane",
        ready: Some(12),
        ..input(None, None)
    };
    let told = sentence(missing);
    assert!(
        told.contains("none can have this name") && !told.contains("throttle set"),
        "{told}"
    );
    assert!(
        told.ends_with("flyball job update ID --throttle NAME; 12 jobs wait"),
        "{told}"
    );
    let of_pattern = WhyInput {
        name: "mail:eu",
        pattern: Some("mail:*"),
        ..missing
    };
    assert_eq!(
        sentence(of_pattern),
        "there is no throttle mail:eu yet; the first request for its tokens makes it, from \
         mail:*; 12 jobs wait"
    );
}

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
    assert!(told(Mode::Auto, 40.0, Some(1)).starts_with("20 rps, and at most 1 slot; its"));
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
    for (mode, so) in [
        (Mode::Shadow, "so this is out of date; check that"),
        (Mode::Manual, "so nothing ends this mode; check that"),
    ] {
        let mut left = status(20.0, mode);
        left.knobs.manual_until_ms = Some(((NOW - 60.0) * 1e3) as i64);
        let reported = ask(Some(&left), Some(&view), &[], None);
        assert!(reported.contains(so), "{reported}");
    }
    (view.breaker, view.actuator) = (Phase::Open, Actuator::Concurrency);
    let mut stopped = status(20.0, Mode::Auto);
    stopped.knobs.concurrency = Some(0);
    let reported = ask(Some(&stopped), Some(&view), &[], None);
    assert!(
        reported.starts_with("stopped by the breaker: ")
            && reported.ends_with(
                "; no governor has looked at it for 40 min, so nothing restarts it; check that a \
                 process with the role governor is running, and that the one that leads has the \
                 throttle's knobs file."
            ),
        "{reported}"
    );
    view.at = timestamp(NOW - 190.0);
    let reported = ask(Some(&stopped), Some(&view), &[], None);
    assert!(!reported.contains("no governor"), "{reported}");
}

#[test]
fn a_persons_stop_is_theirs_after_the_lease_too_and_the_breakers_is_not() {
    let mut stopped = status(0.0, Mode::Auto);
    stopped.lease_expired = true;
    stopped.knobs.valid_until_ms = Some(((NOW - 40.0) * 1e3) as i64);
    stopped.raw.insert("rps".to_owned(), "0".to_owned());
    let view = governed(1.0, |_, _| {});
    let reported = ask(Some(&stopped), Some(&view), &[], None);
    assert!(
        reported.contains("by ann 5 min ago (\"deploy\") (rps 0)") && !reported.contains("lease"),
        "{reported}"
    );

    stopped.raw.insert("rps".to_owned(), "0.000".to_owned());
    let reported = ask(Some(&stopped), Some(&view), &[], None);
    assert_eq!(
        reported,
        "stopped by the breaker, and nothing restarts it, because no governor has renewed its \
         lease for 40 s; check that a process with the role governor is running, and that the one \
         that leads has the throttle's knobs file."
    );
}

#[test]
fn a_lapsed_lease_without_the_policy_says_that_a_governor_needs_the_knobs_file() {
    let mut lapsed = status(118.0, Mode::Auto);
    (lapsed.lease_expired, lapsed.effective_rps) = (true, RateLimit::PerSecond(5.0));
    let reported = ask(Some(&lapsed), None, &[], None);
    assert!(
        reported.ends_with(
            "check that a process with the role governor is running, and that the one that leads \
             has the throttle's knobs file with a [[signal]], or set mode=manual."
        ),
        "{reported}"
    );
    let view = governed(1.0, |_, _| {});
    let reported = ask(Some(&lapsed), Some(&view), &[], None);
    assert!(
        reported.ends_with("that the one that leads has the throttle's knobs file."),
        "{reported}"
    );
}

#[test]
fn a_stop_by_the_breaker_that_a_person_took_over_is_not_theirs_and_says_what_ends_it() {
    let view = governed(1.0, |state, _| {
        state.last_trip = Some(TripRecord {
            at: NOW - 240.0,
            by: "search-load".to_owned(),
            height: 2.6,
        });
    });
    for mode in [Mode::Manual, Mode::Shadow, Mode::Off] {
        let mut left = status(0.0, mode);
        left.raw.insert("rps".to_owned(), "0.000".to_owned());
        let reported = ask(Some(&left), Some(&view), &[], None);
        let expected = format!(
            "stopped by the breaker (search-load rose to 2.6 x its setpoint 4 min ago), and in \
             mode {0} nothing restarts it: set rps, or mode=auto; mode {0}: ",
            mode.as_str()
        );
        assert!(reported.starts_with(&expected), "{reported}");
    }
}

#[test]
fn a_manual_mode_with_an_end_tells_how_long_it_lasts() {
    let mut manual = status(50.0, Mode::Manual);
    manual.knobs.manual_until_ms = Some(((NOW + 1800.0) * 1e3) as i64);
    let view = governed(1.0, |_, _| {});
    let reported = ask(Some(&manual), Some(&view), &[], None);
    assert!(
        reported.ends_with("; mode manual: the governor changes nothing for 30 min more."),
        "{reported}"
    );
    let reported = ask(Some(&manual), None, &[], None);
    assert!(
        reported.contains("its end is ignored, because the throttle has no governor"),
        "{reported}"
    );
}

#[test]
fn an_automatic_throttle_without_a_governor_says_so() {
    let reported = ask(Some(&status(20.0, Mode::Auto)), None, &[], Some(3));
    assert_eq!(
        reported,
        "20 rps; its mode is auto, but no governor has decided yet: that takes a [[signal]] in its \
         knobs file, and a process with the role governor that has this file; 3 jobs wait."
    );
}
