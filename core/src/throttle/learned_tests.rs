use super::RateLimit;
use super::*;

const S: f64 = 1e6;

/// Creates a refusal with a delay that the server stated.
fn stated(at: f64, until: f64) -> KeyRefusal {
    KeyRefusal {
        at,
        until,
        is_stated: true,
    }
}

/// Creates a refusal with a pause that back-off gave.
fn backed_off(at: f64, until: f64) -> KeyRefusal {
    KeyRefusal {
        is_stated: false,
        ..stated(at, until)
    }
}

/// Returns a key that was refused at 10 s, succeeded at `rate`, was refused again at 20 s for a
/// second, and settled at `rate`.
fn refused_at(rate: f64) -> Learned {
    let mut learned = Learned::new(0.0);
    learned.refuse(stated(10.0 * S, 10.0 * S), RateLimit::new(rate), true);
    learned.answered(rate * 11.0, rate * 11.0, 0.0, false, 19.0 * S);
    learned.refuse(stated(20.0 * S, 21.0 * S), RateLimit::new(1000.0), true);
    (learned.settle, learned.cut) = (rate, CUT);
    learned
}

#[test]
fn a_guess_doubles_until_it_is_refused_and_is_then_near_what_was_tried() {
    // One of sixteen requests at once succeeds: that says next to nothing about the rate.
    let mut learned = Learned::new(0.0);
    learned.answered(1.0, 1.0, 0.0, false, S / 100.0);
    learned.refuse(backed_off(S / 100.0, 1.01 * S), RateLimit::Unlimited, true);
    assert_eq!(learned.cut, GUESS_CUT);
    let first = learned.settle;
    let mut now = learned.grows_from;
    let began = now;
    let mut rate = first;
    while rate < 50.0 {
        learned.wanted(now);
        rate = learned.rate(now).number();
        now += S / rate;
        learned.answered(1.0, 1.0, 0.0, false, now);
    }
    assert!(
        now - began < 40.0 * S,
        "from {first} to 50 per second in {} s",
        (now - began) / S
    );

    learned.refuse(backed_off(now, now + 0.25 * S), RateLimit::Unlimited, true);

    assert!(
        (0.75 * rate..=rate).contains(&learned.settle),
        "{rate}, settled at {}",
        learned.settle
    );
    assert_eq!(learned.cut, CUT, "it is no guess any more");
}

#[test]
fn refusals_in_a_row_count_what_the_server_allowed_in_all_that_time() {
    // 300 a minute, used in the first two seconds.
    let mut learned = Learned::new(0.0);
    learned.answered(300.0, 300.0, 0.0, false, 2.0 * S);
    let (mut now, mut pause) = (2.0 * S, 1.0 * S);
    while now < 60.0 * S {
        learned.refuse(backed_off(now, now + pause), RateLimit::Unlimited, true);
        now += pause;
        pause *= 2.0;
    }

    assert!((4.0..=6.5).contains(&learned.settle), "{}", learned.settle);
    assert_eq!(learned.cut, GUESS_CUT, "the row goes on");

    learned.answered(1.0, 1.0, 0.0, false, learned.grows_from);

    assert_eq!(learned.cut, NEAR_CUT, "a whole window was counted");
}

#[test]
fn the_rate_begins_at_seven_tenths_settles_where_it_was_and_then_feels_its_way_beyond() {
    let mut learned = refused_at(500.0);
    let mut at = |s: f64| {
        let now = (21.0 + s) * S;
        learned.answered(5000.0, 5000.0, 0.0, false, now);
        learned.rate(now).number().round()
    };

    assert_eq!(
        [at(0.0), at(10.0), at(20.0), at(30.0)],
        [350.0, 481.0, 500.0, 519.0]
    );
}

#[test]
fn who_does_not_use_a_rate_gets_no_higher_one() {
    let mut learned = refused_at(500.0);
    let at = |learned: &Learned, s: f64| learned.rate((21.0 + s) * S).number().round();
    assert_eq!(at(&learned, 1000.0), 500.0);

    for s in 0..=1000 {
        learned.answered(600.0, 600.0, 0.0, false, (21.0 + f64::from(s)) * S);
    }
    let rate = at(&learned, 1000.0);
    assert!(
        (650.0..=760.0).contains(&rate),
        "a quarter more than what succeeds: {rate}"
    );
}

#[test]
fn a_rate_that_jobs_wait_for_grows_though_our_own_slots_keep_them_from_using_it() {
    // A slot is free only every 97 ms: 10.3 a second succeed of 17, and each time another job
    // waits.
    let run = |is_wanted: bool| {
        let mut learned = refused_at(17.0);
        let mut now = 21.0 * S;
        while now < 81.0 * S {
            learned.answered(1.0, 1.0, 0.0, false, now);
            if is_wanted {
                learned.wanted(now);
            }
            now += 97_000.0;
        }
        learned.rate(now).number()
    };
    assert!(run(true) > 25.0, "{}", run(true));
    assert!(
        run(true) <= 34.0,
        "but no further than to twice what is known: {}",
        run(true)
    );
    assert_eq!(
        run(false),
        17.0,
        "who waits for nothing has not learned more"
    );
}

#[test]
fn one_refusal_takes_no_more_than_its_share_however_long_nothing_was_asked() {
    let mut learned = refused_at(500.0);
    learned.answered(5.0, 5.0, 0.0, false, 22.0 * S);

    learned.refuse(stated(600.0 * S, 601.0 * S), RateLimit::new(1000.0), true);

    assert_eq!(learned.settle, 350.0);
}

#[test]
fn a_slow_key_gets_time_for_twenty_tokens() {
    let learned = refused_at(0.1);

    assert!((learned.rate((21.0 + 200.0) * S).number() - 0.1).abs() < 1e-9);
}

#[test]
fn more_is_allowed_as_more_succeeds() {
    let mut learned = refused_at(10.0);
    let mut now = 21.0 * S;
    while now < 90.0 * S {
        let rate = learned.rate(now).number();
        learned.answered(1.0, 1.0, 0.0, false, now);
        now += S / rate;
    }

    assert!(
        learned.rate(now).number() > 20.0,
        "twice as much in seventy seconds: {}",
        learned.rate(now).number()
    );
}

#[test]
fn stragglers_of_one_refusal_cut_once() {
    let (mut learned, before) = (refused_at(500.0), refused_at(500.0));

    for ms in 0..30 {
        learned.refuse(
            stated(20.0 * S + f64::from(ms) * 1000.0, 21.0 * S),
            RateLimit::new(1000.0),
            true,
        );
    }

    assert_eq!(
        learned.rate(22.0 * S).number(),
        before.rate(22.0 * S).number()
    );
    assert_eq!(
        (learned.refused, learned.strikes),
        (before.refused + 30.0, before.strikes)
    );
}

#[test]
fn without_a_success_each_refusal_cuts_again_and_doubles_the_pause() {
    let mut learned = refused_at(500.0);

    learned.refuse(stated(30.0 * S, 31.0 * S), RateLimit::new(1000.0), true);

    assert_eq!(
        learned.settle,
        5500.0 / 20.5,
        "what succeeded since the pause at 10 s, less the rounding of a stated delay"
    );
    for _ in 0..3 {
        let now = learned.grows_from;
        learned.refuse(stated(now, now + 3600.0 * S), RateLimit::new(1000.0), true);
    }
    assert_eq!(learned.settle, 5500.0 / 20.5 / 8.0, "but by half at most");
    assert_eq!(
        [0.0, 1.0, 2.0].map(|strikes| pause_us(None, strikes, false, 0.0)),
        [S, 2.0 * S, 4.0 * S]
    );
    assert_eq!(
        [0.0, 1.0, 2.0].map(|strikes| pause_us(None, strikes, true, 0.0)),
        [0.1 * S, 0.2 * S, 0.4 * S],
        "a known rate is refused shortly before the end of the server's window"
    );
    assert_eq!(pause_us(None, 1e9, false, 0.0), 256.0 * S);
    assert_eq!(
        pause_us(Some(7.0 * S), 3.0, false, 1.0),
        7.7 * S,
        "what is said counts, and jitter goes upwards"
    );
    assert_eq!(
        [0.0, 1.0, 2.0].map(|strikes| pause_us(Some(0.0), strikes, true, 0.0)),
        [50_000.0, 100_000.0, 200_000.0]
    );
}

#[test]
fn the_first_refusal_of_a_key_takes_its_own_rate_for_what_succeeded() {
    let (mut learned, mut unknown) = (Learned::new(0.0), Learned::new(0.0));
    learned.refuse(stated(S, 2.0 * S), RateLimit::new(40.0), true);
    unknown.refuse(stated(S, 2.0 * S), RateLimit::new(-1.0), true);

    assert_eq!(learned.rate(2.0 * S).number(), 28.0);
    assert!(unknown.rate(2.0 * S).number() < 0.0);
}

#[test]
fn one_probe_goes_first_and_success_doubles_what_may_be_under_way() {
    let mut probe = ProbeCredit::begin(0.0);
    assert_eq!(probe.left(1.0), Some(1.0));
    probe.take(1.0, 1.0);
    assert_eq!(probe.left(2.0), Some(0.0));
    probe.answered(1.0, 0.0, true, 3.0);
    assert_eq!(probe.left(3.0), Some(2.0));
    probe.take(2.0, 4.0);
    probe.answered(1.0, 1.0, true, 5.0);
    assert_eq!(
        probe.left(5.0),
        Some(3.0),
        "a failure makes room for one, a success for two"
    );
    probe.answered(7.0, 0.0, true, 6.0);
    assert_eq!(probe.left(6.0), None);
}

#[test]
fn a_probe_that_nobody_answers_for_is_given_up() {
    let mut probe = ProbeCredit::begin(0.0);
    probe.take(1.0, 0.0);

    assert_eq!(probe.left(PROBE_LOST_AFTER_US - 1.0), Some(0.0));
    assert_eq!(probe.left(PROBE_LOST_AFTER_US), Some(1.0));
    assert_eq!(
        probe.left(-PROBE_LOST_AFTER_US),
        Some(1.0),
        "nor for ever after a clock that stepped back"
    );
}

#[test]
fn while_the_rate_is_unknown_the_credit_stays() {
    let mut unknown = Learned::new(0.0);
    unknown.refuse(stated(S, 2.0 * S), RateLimit::new(-1.0), true);
    unknown.answered(40.0, 40.0, 0.0, false, 3.0 * S);
    assert_eq!(
        unknown.probe.left(3.0 * S),
        Some(16.0),
        "so many at once, and no more"
    );

    unknown.refuse(stated(4.0 * S, 5.0 * S), RateLimit::new(-1.0), true);
    unknown.answered(40.0, 40.0, 0.0, false, 6.0 * S);

    assert!((unknown.settle - 40.0 / 2.5).abs() < 1e-9);
    assert_eq!(unknown.probe, ProbeCredit::OPEN);
}

#[test]
fn what_is_left_of_a_quota_is_spread_over_its_rest() {
    let mut learned = Learned::new(0.0);
    learned.window.observe(30.0, 2.0 * S, 3600.0 * S, S);

    assert_eq!(learned.rate(2.0 * S).number(), 15.25);
    assert_eq!(
        learned.rate(3.0 * S).number(),
        15.25,
        "and goes on, until an answer tells anew or as long again is over"
    );
    assert!(learned.rate(5.0 * S).number() < 0.0);
    assert!(
        !learned.is_over(RateLimit::new(-1.0), 4.9 * S)
            && learned.is_over(RateLimit::new(-1.0), 5.0 * S)
    );
    assert_eq!(learned.keep_ms(S), 4000.0);

    learned.window.observe(0.0, S, 3600.0 * S, S);
    assert_eq!(learned.rate(1.5 * S).number(), 0.0);
}

#[test]
fn what_was_learned_is_forgotten_when_the_keys_own_rate_is_reached() {
    let mut learned = refused_at(500.0);
    learned.answered(20.0, 20.0, 0.0, false, 22.0 * S);

    assert!(!learned.is_over(RateLimit::new(500.0), 40.0 * S));
    assert!(learned.is_over(RateLimit::new(500.0), 41.0 * S));
    assert!(!learned.is_over(RateLimit::new(-1.0), 41.0 * S));
    assert_eq!(learned.keep_ms(21.0 * S), 600_000.0);
    assert_eq!(
        learned.keep_ms(121.0 * S),
        500_000.0,
        "counted from the last refusal, however much succeeds"
    );
}

/// Asks, as fast as the law allows, a server that accepts `quota` in each second of its own clock
/// and refuses the rest without a delay; returns the share of the quota that was used from `from_s`
/// on.
fn used_of_a_silent_quota(quota: f64, configured: f64, from_s: f64, to_s: f64) -> f64 {
    let mut known: Option<Learned> = None;
    let (mut now, mut second, mut count, mut taken) = (0.0, -1.0, 0.0, 0.0);
    while now < to_s * S {
        let rate = known.as_ref().map_or(configured, |known| {
            known.rate(now).slower(RateLimit::new(configured)).number()
        });
        if (now / S).floor() != second {
            (second, count) = ((now / S).floor(), 0.0);
        }
        count += 1.0;
        if count <= quota {
            taken += if now >= from_s * S { 1.0 } else { 0.0 };
            known
                .iter_mut()
                .for_each(|known| known.answered(1.0, 1.0, 0.0, true, now));
            now += S / rate;
        } else {
            let mut learned = known.unwrap_or_else(|| Learned::new(now));
            let until =
                now + pause_us(None, learned.strikes_before(now), learned.settle > 0.0, 0.5);
            learned.refuse(backed_off(now, until), RateLimit::new(configured), true);
            (known, now) = (Some(learned), until);
        }
    }
    taken / (quota * (to_s - from_s))
}

#[test]
fn a_quota_that_nobody_tells_is_found_within_a_minute_and_used() {
    for quota in [4.0, 10.0, 50.0, 250.0] {
        let used = used_of_a_silent_quota(quota, 1.96 * quota, 60.0, 360.0);
        assert!(used >= 0.95, "{used} of {quota} a second");
    }
}

#[test]
fn a_rate_that_is_refused_near_its_value_again_and_again_gets_sure_and_loses_little() {
    let mut learned = refused_at(50.0);
    let mut now = 21.0 * S;
    let mut begins = Vec::new();
    for after_s in [36.0, 30.0, 30.0] {
        let until = now + after_s * S;
        while now < until {
            learned.answered(1.0, 1.0, 0.0, false, now);
            now += S / learned.rate(now).number();
        }
        learned.refuse(backed_off(now, now + 0.1 * S), RateLimit::Unlimited, true);
        begins.push(learned.cut);
        now = learned.grows_from;
    }

    assert_eq!(begins, [NEAR_CUT, SURE_CUT, SURE_CUT]);
}

#[test]
fn the_rest_of_a_window_after_a_short_pause_says_nothing_of_a_known_rate() {
    let mut learned = refused_at(50.0);
    let mut now = 21.0 * S;
    while now < 51.0 * S {
        learned.answered(1.0, 1.0, 0.0, false, now);
        now += S / 50.0;
    }
    learned.refuse(backed_off(now, now + 0.1 * S), RateLimit::Unlimited, true);
    let (settle, cut) = (learned.settle, learned.cut);

    now = learned.grows_from;
    learned.refuse(backed_off(now, now + 0.2 * S), RateLimit::Unlimited, true);
    assert!(learned.settle > 0.95 * settle, "{}", learned.settle);
    assert_eq!(learned.cut, cut);

    learned.answered(1.0, 1.0, 0.0, false, learned.grows_from);
    now = learned.grows_from + 0.1 * S;
    learned.refuse(backed_off(now, now + 0.1 * S), RateLimit::Unlimited, true);
    assert!(
        learned.settle > 0.9 * settle,
        "after one success: {}",
        learned.settle
    );
}

#[test]
fn units_of_a_learned_rate_are_spaced_evenly_as_long_as_workers_are_that_exact() {
    let depth = |rate| refused_at(rate).depth_us(41.0 * S);

    assert_eq!([10.0, 50.0].map(depth), [0.0, 0.0]);
    assert_eq!([100.0, 1000.0].map(depth), [LATE_US, LATE_US]);

    let mut told = refused_at(10.0);
    told.window.observe(5.0, S, 3600.0 * S, 41.0 * S);
    assert_eq!(
        told.depth_us(41.0 * S),
        LATE_US,
        "a server that reports a quota counts"
    );
}

#[test]
fn a_unit_is_spaced_from_the_begin_of_the_one_before_it_unless_the_clock_stepped_back() {
    let mut learned = refused_at(10.0);
    let now = 60.0 * S;
    assert_eq!(learned.spaced_from(now), Some(0.0));
    learned.began(0.03 * S, now);
    assert_eq!(learned.spaced_from(now), Some(59_970_000.0));
    // An earlier one that is reported later changes nothing.
    learned.began(0.5 * S, now);
    assert_eq!(learned.spaced_from(now), Some(59_970_000.0));
    assert_eq!(learned.spaced_from(30.0 * S), None);

    let mut fast = refused_at(1000.0);
    fast.began(0.03 * S, now);
    assert_eq!(fast.spaced_from(now), None, "it saves up a little");
}
