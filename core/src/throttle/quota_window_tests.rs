use super::*;

const S: f64 = 1e6;
const HOUR: f64 = 3600.0 * S;

fn observed(left: f64, reset_s: f64, now: f64) -> QuotaWindow {
    let mut window = QuotaWindow::NONE;
    window.observe(left, reset_s * S, HOUR, now);
    window
}

#[test]
fn the_earliest_end_holds_while_less_and_less_is_left() {
    let mut window = observed(9.0, 1.0, 0.0);
    for (left, at) in [(8.0, 0.1), (7.0, 0.2), (6.0, 0.3), (5.0, 0.4)] {
        window.observe(left, S, HOUR, at * S);
        assert!(
            (9.0..=9.6).contains(&window.rate(at * S).number()),
            "{left} left at {at} s: {}",
            window.rate(at * S).number()
        );
    }
}

#[test]
fn ends_that_are_reported_late_are_found_out() {
    // The window lasts a second, and the server reports two.
    let mut window = QuotaWindow::NONE;
    let (mut now, mut second, mut left, mut taken) = (0.0, 0.0, 10.0, 0.0);
    while now < 20.0 * S {
        if (now / S).floor() != second {
            (second, left) = ((now / S).floor(), 10.0);
        }
        assert!(left > 0.0, "at {now}");
        left -= 1.0;
        taken += 1.0;
        window.observe(left, 2.0 * S, HOUR, now);
        let rest = if window.rate(now).number() == 0.0 {
            window.rests_to() - now
        } else {
            S / window.rate(now).number()
        };
        now += rest;
    }
    assert!(taken >= 0.85 * 200.0, "{taken} of 200");
}

#[test]
fn an_answer_that_was_overtaken_begins_no_window() {
    let mut window = observed(49.0, 1.0, 0.0);
    window.observe(46.0, S, HOUR, 0.05 * S);
    let before = window;
    window.observe(48.0, S, HOUR, 0.051 * S);
    assert_eq!(
        (window.ends, window.left, window.late),
        (before.ends, before.left, 0.0)
    );
}

#[test]
fn exact_ends_and_far_ones_are_taken_as_they_are_reported() {
    let exact = observed(9.0, 0.25, 0.0);
    assert_eq!(
        (exact.rate(0.0).number(), exact.rate(0.25 * S).number()),
        (36.0, -1.0)
    );
    let far = observed(900.0, 1000.0, 0.0);
    assert_eq!(far.rate(0.0).number(), 0.9);
}

#[test]
fn what_is_reported_stops_nobody_for_more_than_a_minute_and_counts_for_no_longer_than_is_allowed() {
    let mut year = observed(0.0, 31_536_000.0, 0.0);
    assert_eq!((year.rate(0.0).number(), year.rests_to()), (0.0, 60.0 * S));
    assert_eq!(year.rate(60.0 * S).number(), 1.0 / 60.0, "one a minute");
    year.observe(0.0, 31_536_000.0 * S, HOUR, 61.0 * S);
    assert_eq!(
        (year.rate(62.0 * S).number(), year.rests_to()),
        (0.0, 121.0 * S),
        "its answer is no different"
    );
    assert_eq!(year.rate(61.0 * S + HOUR).number(), -1.0);
    let slow = observed(1.0, 86_400.0, 0.0);
    assert_eq!(slow.rate(0.0).number(), 1.0 / 60.0);
    let short = observed(0.0, 20.0, 0.0);
    assert_eq!(
        (short.rate(19.0 * S).number(), short.rate(20.0 * S).number()),
        (0.0, -1.0)
    );
}

#[test]
fn a_window_that_is_over_goes_on_as_it_began() {
    let mut window = observed(9.0, 1.0, 0.0);
    window.observe(0.0, S, HOUR, 0.9 * S);
    assert_eq!(
        (
            window.rate(0.95 * S).number(),
            window.rate(S).number(),
            window.rate(2.0 * S).number()
        ),
        (0.0, 9.5, -1.0)
    );
}
