//! Laws of the bucket on virtual time.

use super::RateLimit;
use proptest::prelude::*;

use super::*;

const NOW: f64 = 1.795e15;

fn rate(rps: f64) -> Rate {
    Rate {
        rps: RateLimit::new(rps),
        depth_us: 1e6,
    }
}

/// Takes the units that fit now and returns their number.
fn take_all(bucket: &mut Bucket, rate: Rate, start: Start, now: f64) -> f64 {
    let mut open = bucket.open(rate, start, now, 1.0, 1000.0);
    let units = open.units(1.0, now);
    open.take(units, 1.0, now);
    *bucket = open.close();
    units
}

#[test]
fn a_cut_of_the_rate_frees_nothing() {
    for cut in [50.0, 10.0, 1.0, 0.1, 0.0001] {
        let mut bucket = Bucket::default();
        take_all(&mut bucket, rate(100.0), Start::Full, NOW);

        assert_eq!(
            take_all(&mut bucket, rate(cut), Start::Full, NOW),
            0.0,
            "{cut}"
        );
    }
}

#[test]
fn after_a_stop_the_bucket_starts_empty_at_any_rate() {
    for resumed in [0.01, 1.0, 20.0, 1e6] {
        let mut bucket = Bucket::default();
        bucket.drain(NOW, false);

        let open = bucket.open(rate(resumed), Start::OneToken, NOW, 1.0, 1000.0);

        assert_eq!(open.units(1.0, NOW), 0.0, "{resumed}");
        assert!((open.wait_us(1.0, NOW) - 1e6 / resumed).abs() < 1.0);
    }
}

#[test]
fn what_passes_between_the_last_ask_of_a_stop_and_its_end_is_no_refill() {
    let (mut bucket, later) = (Bucket::default(), NOW + 400_000.0);
    bucket.drain(NOW, true);

    let open = bucket.open(rate(100.0), Start::OneToken, later, 1.0, 1000.0);

    assert_eq!(open.units(1.0, later), 0.0);
    assert!(!open.close().stopped);
}

#[test]
fn a_raise_of_the_rate_does_not_leave_anybody_waiting_by_the_old_one() {
    let mut bucket = Bucket::default();
    take_all(&mut bucket, rate(0.0001), Start::OneToken, NOW);

    let open = bucket.open(rate(100.0), Start::OneToken, NOW, 1.0, 1000.0);

    assert!(
        open.wait_us(1.0, NOW) <= 10_000.0,
        "{}",
        open.wait_us(1.0, NOW)
    );
}

#[test]
fn a_lost_throttle_bucket_starts_with_one_token_and_an_idle_key_full() {
    assert_eq!(
        take_all(&mut Bucket::default(), rate(50.0), Start::OneToken, NOW),
        1.0
    );
    assert_eq!(
        take_all(&mut Bucket::default(), rate(50.0), Start::Full, NOW),
        50.0
    );
}

#[test]
fn a_unit_dearer_than_the_bucket_runs_from_a_full_one_and_its_debt_is_paid_by_cheap_ones_too() {
    let mut open = Bucket::default().open(rate(20.0), Start::Full, NOW, 100.0, 1000.0);
    assert_eq!(open.units(100.0, NOW), 1.0);
    open.take(1.0, 100.0, NOW);

    let cheap = open.close().open(rate(20.0), Start::Full, NOW, 1.0, 1000.0);

    assert_eq!(cheap.units(1.0, NOW), 0.0);
    assert!(
        (cheap.wait_us(1.0, NOW) - 4_050_000.0).abs() < 1.0,
        "80 tokens of debt and one more: {}",
        cheap.wait_us(1.0, NOW)
    );
}

#[test]
fn a_clock_that_steps_back_an_hour_costs_seconds() {
    let mut bucket = Bucket::default();
    take_all(&mut bucket, rate(10.0), Start::Full, NOW);
    let stepped_back = NOW - 3.6e9;

    let open = bucket.open(rate(10.0), Start::Full, stepped_back, 1.0, 1000.0);

    assert!(open.was_clamped(&bucket));
    assert!(
        open.wait_us(1.0, stepped_back) < 5e6,
        "{}",
        open.wait_us(1.0, stepped_back)
    );
}

#[test]
fn waiting_time_is_counted_once_and_only_as_it_passes() {
    let mut meter = UsageCounters::default();
    meter.refused(0.0, 100.0);
    meter.refused(50.0, 100.0);
    assert_eq!(meter.limited_us_at(60.0), 60.0);
    assert_eq!(meter.limited_us_at(500.0), 150.0);

    // A long wait reported before the rate was raised does not outlive the raise.
    meter.refused(500.0, 1e9);
    meter.relieved(600.0);
    assert_eq!(meter.limited_us_at(1e6), 250.0);
}

#[test]
fn rates_are_exact_from_one_in_hours_to_ten_thousand_a_second() {
    for rps in [
        0.0001, 0.003, 0.1, 0.3, 1.5, 2.2, 7.3, 333.0, 9_950.0, 10_000.0,
    ] {
        let mut bucket = Bucket::default();
        let horizon = (2_000.0_f64 / rps).max(10.0) * 1e6;
        let (mut now, mut taken) = (NOW, -1.0);
        take_all(&mut bucket, rate(rps), Start::Full, now);
        // The consumer comes at the reported time, a little late each time.
        while now < NOW + horizon {
            taken += take_all(&mut bucket, rate(rps), Start::Full, now).max(0.0);
            let wait = bucket
                .open(rate(rps), Start::Full, now, 1.0, 1000.0)
                .wait_us(1.0, now);
            now += wait.max(0.0).ceil() + 7.0;
        }
        let ideal = rps * horizon / 1e6;
        assert!(
            (taken - ideal).abs() / ideal < 0.002,
            "{rps} tokens/s gave {} of {ideal}",
            taken
        );
    }
}

proptest! {
    #[test]
    fn waiting_as_advised_is_always_enough_and_never_much_too_long(
        rps in 1e-4..1e6_f64, depth_s in 0.0..10.0_f64, cost in 0.01..500.0_f64, taken in 0.0..2.0_f64,
    ) {
        let rate = Rate { rps: RateLimit::new(rps), depth_us: depth_s * 1e6 };
        let mut open = Bucket::default().open(rate, Start::Full, NOW, cost, 1000.0);
        open.settle(taken * rps * rate.tau_us(Start::OneToken) / 1e6, NOW);
        let bucket = open.close();
        let wait = bucket.open(rate, Start::Full, NOW, cost, 1000.0).wait_us(cost, NOW).ceil();
        prop_assume!(wait > 2.0);

        let later = bucket.open(rate, Start::Full, NOW + wait, cost, 1000.0);
        let earlier = bucket.open(rate, Start::Full, NOW + wait * 0.999 - 2.0, cost, 1000.0);

        prop_assert!(later.units(cost, NOW + wait) >= 1.0);
        prop_assert!(earlier.units(cost, NOW + wait * 0.999 - 2.0) < 1.0);
    }
}
