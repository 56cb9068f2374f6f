use super::*;
use crate::control::ewma::smooth;
use crate::governor::Bounds;
use crate::governor::policy::{ControllerTuning, SignalKind, SignalPolicy};
use crate::governor::{ControlState, Observation, Plan, SignalSample};
use crate::throttle::RateLimit;

const HOUR_S: f64 = 3600.0;
/// Midnight of a Monday, UTC.
const MONDAY: f64 = 1_700_438_400.0;

/// A shop that is busy by day, with a backlog of jobs that begins at eight every evening and lasts
/// for five hours.
struct Shop {
    policy: Policy,
    bounds: Bounds,
    state: ControlState,
    now: f64,
    average: f64,
    scraped: Vec<(f64, f64)>,
    plan: Plan,
    /// The `(time, load, rate)` of every step with work.
    record: Vec<(f64, f64, f64)>,
}

/// The step of the shop, its tick and its scrape, in seconds.
const STEP_S: f64 = 15.0;
const COST: f64 = 0.01;

impl Shop {
    fn new(feed_forward: bool) -> Self {
        let signal = SignalPolicy::of_prometheus("load", SignalKind::Load, "load", 1.0, 60.0);
        let policy = Policy {
            signals: vec![signal],
            law: ControllerTuning {
                tick_s: STEP_S,
                feed_forward,
                ..ControllerTuning::default()
            },
        };
        let bounds = Bounds {
            min: 1.0,
            max: 2000.0,
            safe_rps: 5.0,
        };
        let state = ControlState::new(&policy, bounds, RateLimit::PerSecond(10.0), MONDAY);
        Self {
            policy,
            bounds,
            state,
            now: MONDAY,
            average: 0.3,
            scraped: Vec::new(),
            plan: Plan {
                rps: 10.0,
                ..Plan::default()
            },
            record: Vec::new(),
        }
    }

    /// Returns the load of others: high by day, lower in the evening and at weekends, and never
    /// quite the same.
    fn background(&self) -> f64 {
        let hours = (self.now - MONDAY) / HOUR_S;
        let (day, hour) = ((hours / 24.0).floor() as u32, hours % 24.0);
        let busy = (8.0..19.5).contains(&hour);
        let weekend = day % 7 >= 5;
        let wobble = 0.03 * f64::from(day * 7 % 5) + 0.03 * (self.now / 700.0).sin();
        wobble
            + match (busy, weekend) {
                (true, false) => 0.85,
                (true, true) => 0.5,
                (false, false) => 0.3,
                (false, true) => 0.15,
            }
    }

    fn has_work(&self) -> bool {
        let hour = (self.now - MONDAY) / HOUR_S % 24.0;
        !(1.0..20.0).contains(&hour)
    }

    fn step(&mut self) {
        self.now += STEP_S;
        let rate = if self.has_work() { self.plan.rps } else { 0.0 };
        let load = self.background() + COST * rate;
        self.average = smooth(self.average, load, STEP_S, 60.0);
        self.scraped.push((self.now, self.average));
        let visible: Vec<SignalSample> = self
            .scraped
            .iter()
            .rev()
            .filter(|(at, _)| at + 20.0 <= self.now)
            .take(3)
            .map(|&(at, value)| SignalSample {
                signal: "load".to_owned(),
                value: Some(value),
                at,
            })
            .collect();
        if self.scraped.len() > 20 {
            self.scraped.remove(0);
        }
        let seen = Observation {
            now: self.now,
            readings: visible,
            achieved_rps: Some(rate),
            limiting_share: Some(if self.has_work() { 1.0 } else { 0.0 }),
            ..Observation::default()
        };
        self.plan = self.state.tick(&self.policy, self.bounds, &seen);
        if self.has_work() {
            self.record.push((self.now, load, rate));
        }
    }

    fn run(&mut self, days: u32) {
        for _ in 0..(f64::from(days) * 24.0 * HOUR_S / STEP_S) as u32 {
            self.step();
        }
    }

    /// Returns, for every evening from day `from` on, the seconds until the rate is at 70 % of the
    /// possible one, and the overload: the load more than a tenth above the setpoint, over time.
    fn evenings(&self, from: u32) -> Vec<(f64, f64)> {
        (from..21)
            .map(|day| {
                let begins = MONDAY + f64::from(day) * 24.0 * HOUR_S + 20.0 * HOUR_S;
                let evening: Vec<_> = self
                    .record
                    .iter()
                    .filter(|(t, ..)| (begins..begins + HOUR_S).contains(t))
                    .collect();
                let there = evening
                    .iter()
                    .find(|(_, load, rate)| *rate >= 0.7 * (1.0 - (load - COST * rate)) / COST);
                let over = evening
                    .iter()
                    .map(|(_, load, _)| (load - 1.1).max(0.0) * STEP_S)
                    .sum();
                (there.map_or(HOUR_S, |(t, ..)| t - begins), over)
            })
            .collect()
    }
}

#[test]
fn the_third_week_starts_where_the_hour_can_be_borne_and_overloads_no_more() {
    let (mut with, mut without) = (Shop::new(true), Shop::new(false));
    let mut used = 0;
    for _ in 0..(21.0 * 24.0 * HOUR_S / STEP_S) as u32 {
        with.step();
        without.step();
        let says_so = with.plan.limiting == "week"
            && with
                .plan
                .reason
                .contains("the usual rate of this hour of the week");
        used += u32::from(
            says_so
                && with.plan.terms["week_rps"]
                    .as_f64()
                    .is_some_and(|rps| (10.0..100.0).contains(&rps)),
        );
        if with.now < MONDAY + WEEK_S {
            assert_eq!(with.plan, without.plan, "nothing is used in the first week");
        }
        assert_ne!(without.plan.limiting, "week");
    }

    let (with, without) = (with.evenings(14), without.evenings(14));
    let late = |evenings: &[(f64, f64)]| evenings.iter().map(|(late_s, _)| late_s).sum::<f64>();
    let over = |evenings: &[(f64, f64)]| evenings.iter().map(|(_, over)| over).sum::<f64>();
    assert!(used > 100);
    assert!(
        late(&with) < 0.5 * late(&without),
        "{with:?}, without {without:?}"
    );
    assert!(
        over(&with) <= 1.1 * over(&without) + 1.0,
        "{with:?}, without {without:?}"
    );
}

/// Returns a week that has learned that the hour `n` sustains `e^u`, in its first week.
fn learned(n: i64, u: f64) -> Week {
    let mut week = Week::default();
    week.learn(MONDAY, 5.0, None, false);
    for t in 0..720 {
        week.learn(
            MONDAY + n as f64 * HOUR_S + f64::from(t) * 5.0,
            5.0,
            Some(u),
            false,
        );
    }
    week.learn(MONDAY + (n + 1) as f64 * HOUR_S, 5.0, None, false);
    week
}

fn policy() -> Policy {
    Shop::new(true).policy
}

/// Returns the start value at the hour `n` after `idle_s` without waiting jobs.
fn start(week: &Week, n: f64, idle_s: f64) -> Option<f64> {
    let mut week = week.clone();
    let now = MONDAY + n * HOUR_S;
    week.learn(now - idle_s, 5.0, None, true);
    week.learn(now, 5.0, None, true);
    week.start(&policy(), now)
}

#[test]
fn it_says_nothing_before_a_week_has_passed_or_of_an_hour_that_it_has_not_seen() {
    let week = learned(20, 4.0);
    let ready = Some(4.0 + START.ln());
    assert_eq!(start(&week, 167.5, 900.0), None, "the week is not over");
    assert_eq!(start(&week, 168.0 + 20.5, 900.0), ready);
    assert_eq!(
        start(&week, 168.0 + 19.5, 900.0),
        ready,
        "the hour before stands ready for it"
    );
    assert_eq!(start(&week, 168.0 + 18.5, 900.0), None);
    assert_eq!(start(&week, 168.0 + 21.5, 900.0), None);
    assert_eq!(
        start(&week, 168.0 + 20.5, 300.0),
        None,
        "a pause is not a stop"
    );
    let off = Policy {
        law: ControllerTuning {
            feed_forward: false,
            ..ControllerTuning::default()
        },
        ..policy()
    };
    let mut idle = week.clone();
    idle.learn(MONDAY + 188.2 * HOUR_S, 5.0, None, true);
    assert_eq!(idle.start(&off, MONDAY + 188.6 * HOUR_S), None);
}

#[test]
fn a_new_week_counts_half_and_five_good_minutes_are_needed() {
    let mut week = learned(20, 4.0);
    for t in 0..720 {
        week.learn(
            MONDAY + (168.0 + 20.0) * HOUR_S + f64::from(t) * 5.0,
            5.0,
            Some(5.0),
            false,
        );
    }
    // Less than five minutes of another hour do not count.
    for t in 0..50 {
        week.learn(
            MONDAY + (168.0 + 22.0) * HOUR_S + f64::from(t) * 5.0,
            5.0,
            Some(9.0),
            false,
        );
    }
    week.learn(MONDAY + (168.0 + 23.0) * HOUR_S, 5.0, None, false);
    assert_eq!((week.hours[20], week.hours[22]), ((4.5, 2), (0.0, 0)));
    week.scale(std::f64::consts::E);
    assert_eq!((week.hours[20], week.hours[22]), ((5.5, 2), (0.0, 0)));
}

#[test]
fn an_unused_knob_is_put_no_higher_than_the_model_and_max_allow() {
    let mut shop = Shop::new(true);
    shop.run(8);
    let idle = shop
        .state
        .week
        .hours
        .iter()
        .filter(|(_, weeks)| *weeks > 0)
        .count();
    assert!(idle >= 30, "{idle} hours are known");
    // The week recommends far too much; the model of this day's load does not.
    shop.state.week.hours.fill((9.0, 3));
    let mut most = 0.0f64;
    while !shop.has_work() {
        shop.step();
    }
    while shop.has_work() {
        shop.step();
    }
    for _ in 0..2000 {
        shop.step();
        most = most.max(shop.plan.rps);
    }
    assert!(most < 400.0, "6077 rps are not tried: {most}");
    shop.bounds.max = 30.0;
    for _ in 0..200 {
        shop.step();
        assert!(shop.plan.rps <= 30.0);
    }
}
