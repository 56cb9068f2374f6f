//! Soft and hard levels, and the patience with silent signals.

use super::bounds::Bounds;
use super::explain::format::number;
use super::policy::Policy;
use super::{ControlState, Observation, Plan, SignalSample};
use super::{GovernorView, Phase};
use crate::throttle::RateLimit;

const BOUNDS: Bounds = Bounds {
    min: 1.0,
    max: 2000.0,
    safe_rps: 5.0,
};

/// A governor of one signal, running at 100 rps, and its clock.
struct Rig {
    policy: Policy,
    state: ControlState,
    now: f64,
}

impl Rig {
    fn new(signal: &str) -> Self {
        Self::of(1.0, signal)
    }

    fn of(setpoint: f64, signal: &str) -> Self {
        let text =
            format!("[[signal]]\nname = \"a\"\nsetpoint = {setpoint}\nlag_s = 0\n{signal}\n");
        let policy = Policy::parse(&text, "f")
            .unwrap_or_else(|refused| panic!("{refused}"))
            .unwrap();
        let state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(100.0), 1000.0);
        Self {
            policy,
            state,
            now: 1000.0,
        }
    }

    fn seen(&mut self, value: Option<f64>) -> Observation {
        self.now += 5.0;
        let readings = vec![SignalSample {
            signal: "a".to_owned(),
            value,
            at: self.now,
        }];
        Observation {
            now: self.now,
            readings,
            achieved_rps: Some(self.state.knob),
            limiting_share: Some(1.0),
            ..Observation::default()
        }
    }

    fn tick(&mut self, value: Option<f64>) -> Plan {
        let seen = self.seen(value);
        self.state.tick(&self.policy, BOUNDS, &seen)
    }

    fn ticks(&mut self, values: &[f64]) -> Plan {
        values
            .iter()
            .map(|value| self.tick(Some(*value)))
            .last()
            .expect("a plan")
    }
}

#[test]
fn above_the_soft_level_the_rate_is_not_raised_although_the_controller_would() {
    // A fast fall towards the setpoint: the error goes from 0.8 to 0.15, so the controller would
    // raise the rate.
    let falling = [1.0, 1.0, 1.8, 1.8, 1.15];
    let mut free = Rig::new("query = \"q\"");
    let before = free.ticks(&falling[..4]).rps;
    assert!(
        free.tick(Some(1.15)).rps > before,
        "the case is one where the rate would rise"
    );

    let mut rig = Rig::new("query = \"q\"\nsoft = 1.1");
    let held = rig.ticks(&falling);
    assert_eq!((held.rps, held.limiting.as_str()), (before, "soft"));
    assert!(
        held.reason
            .ends_with("; not raised while a is above its soft level 1.1"),
        "{}",
        held.reason
    );
    assert_eq!(
        GovernorView::new(&rig.state, &rig.policy, rig.now)
            .unwrap()
            .signals[0]
            .soft,
        Some(1.1)
    );

    let lower = rig.tick(Some(0.9));
    assert!(
        lower.rps > before,
        "below it it goes on: {}",
        number(lower.rps)
    );
}

#[test]
fn a_latency_and_a_ratio_trip_only_where_a_hard_level_is_written() {
    for (kind, setpoint, hard, calm, high) in [
        ("latency", 1.0, 2.0, 1.0, 5.0),
        ("ratio", 0.01, 0.5, 0.0, 0.9),
        // All are refused.
        ("ratio", 0.01, 0.985, 0.0, 1.0),
    ] {
        let signal = |trip: &str| {
            Rig::of(
                setpoint,
                &format!("query = \"q\"\nkind = \"{kind}\"\n{trip}"),
            )
        };
        let mut calm_only = signal("");
        calm_only.ticks(&[calm; 4]);
        assert_eq!(calm_only.tick(Some(high)).breaker, Phase::Closed, "{kind}");

        let mut rig = signal(&format!("trip = {hard}"));
        rig.ticks(&[calm; 4]);
        let plan = rig.tick(Some(high));
        assert_eq!((plan.rps, plan.breaker), (0.0, Phase::Open), "{kind}");
        assert!(plan.reason.starts_with("a rose to "), "{}", plan.reason);

        // While it shows an overload the work stays stopped; once it is calm, or silent, the work
        // restarts below the rate that tripped.
        for _ in 0..6 {
            assert_eq!(rig.tick(Some(high)).rps, 0.0, "{kind}");
        }
        let again = (0..12)
            .map(|_| rig.tick(Some(calm)).rps)
            .find(|rps| *rps > 0.0)
            .expect("a restart");
        assert!(again < 100.0, "{kind}: {again}");
    }
}

#[test]
fn the_fast_path_trips_on_looks_at_a_latency_with_a_hard_level() {
    let look = |at: f64, value: f64| {
        [SignalSample {
            signal: "a".to_owned(),
            value: Some(value),
            at,
        }]
    };
    for (trip, trips) in [("trip = 3.0", true), ("", false)] {
        let mut rig = Rig::new(&format!("query = \"q\"\nkind = \"latency\"\n{trip}"));
        rig.ticks(&[1.0; 4]);
        let now = rig.now;
        // The level may be raised for a noisy signal; a little above it is enough.
        let high = 1.2 * rig.state.signals[0].trip_x;
        let plans = [1.0, 2.0].map(|s| {
            rig.state.fast(
                &rig.policy,
                BOUNDS,
                now + s,
                Some(100.0),
                &look(now + s, high),
            )
        });
        assert_eq!(plans[0], None, "one look is not enough");
        assert_eq!(
            plans[1].as_ref().map(|plan| plan.rps),
            trips.then_some(0.0),
            "{trip}"
        );
    }
}

#[test]
fn a_signal_with_a_patience_of_its_own_counts_as_silent_after_exactly_that() {
    let mut rig = Rig::new("query = \"q\"\nstale_s = 8");
    rig.ticks(&[1.0; 4]);
    assert_ne!(rig.tick(None).limiting, "stale");
    let plan = rig.tick(None);
    assert_eq!(plan.limiting, "stale", "{}", plan.reason);

    let mut usual = Rig::new("query = \"q\"");
    usual.ticks(&[1.0; 4]);
    assert!((0..10).all(|_| usual.tick(None).limiting != "stale"));

    // A successor allows it half of its own patience, not of the default one.
    rig.tick(Some(1.0));
    let stored = serde_json::to_value(&rig.state).unwrap();
    let next = crate::governor::stored::resume(stored, &rig.policy, rig.now + 100.0).unwrap();
    assert_eq!(next.signals[0].front.seen, Some(rig.now + 96.0));
}

#[test]
fn work_that_is_at_rest_is_not_blind_and_work_that_does_not_end_is() {
    for (idle, expected) in [(true, false), (false, true)] {
        let mut rig = Rig::new("source = \"feedback\"\nquery = \"latency\"\nstale_s = 20");
        rig.ticks(&[1.0; 4]);
        let mut limiting = String::new();
        for _ in 0..8 {
            let seen = Observation {
                idle,
                ..rig.seen(None)
            };
            limiting = rig.state.tick(&rig.policy, BOUNDS, &seen).limiting;
        }
        assert_eq!(limiting == "stale", expected, "{limiting}");
    }
}

#[test]
fn a_latency_or_a_ratio_that_ends_at_its_highest_does_not_keep_the_work_stopped_for_ever() {
    for (kind, setpoint, hard, calm, high) in [
        ("latency", 1.0, 2.0, 1.0, 5.0),
        ("ratio", 0.01, 0.5, 0.0, 0.9),
    ] {
        let signal = format!("query = \"q\"\nkind = \"{kind}\"\ntrip = {hard}");
        let mut rig = Rig::of(setpoint, &signal);
        rig.ticks(&[calm; 4]);
        rig.ticks(&[high; 6]);
        assert_eq!(rig.state.breaker.phase, Phase::Open, "{kind}");

        // Nothing runs, so there is nothing to measure.
        let silent: Vec<f64> = (0..20).map(|_| rig.tick(None).rps).collect();
        assert!(silent[..11].iter().all(|rps| *rps == 0.0), "{silent:?}");
        assert!((silent[19] - BOUNDS.safe_rps).abs() < 1e-9, "{silent:?}");
    }
}

#[test]
fn a_latency_that_is_silent_neither_keeps_an_open_breaker_open_nor_a_closed_one_closed() {
    let text = "[[signal]]\nname = \"load\"\nquery = \"q\"\nsetpoint = 1.0\nlag_s = 0\n\
                [[signal]]\nname = \"p99\"\nquery = \"p\"\nkind = \"latency\"\nsetpoint = 1.0\n";
    let policy = Policy::parse(text, "f").unwrap().unwrap();
    let mut state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(100.0), 1000.0);
    let mut now = 1000.0;
    let mut tick = |load: f64, latency: Option<f64>| {
        now += 5.0;
        let sample = |signal: &str, value: Option<f64>| SignalSample {
            signal: signal.to_owned(),
            value,
            at: now,
        };
        let seen = Observation {
            now,
            readings: vec![sample("load", Some(load)), sample("p99", latency)],
            achieved_rps: Some(state.knob),
            limiting_share: Some(1.0),
            ..Observation::default()
        };
        state.tick(&policy, BOUNDS, &seen)
    };
    (0..4).for_each(|_| drop(tick(1.0, Some(0.8))));
    assert_eq!(tick(50.0, Some(0.8)).breaker, Phase::Open);
    // Others keep the resource loaded for five minutes, in which no job answers.
    assert!((0..60).all(|_| tick(50.0, None).rps == 0.0));

    let restart = (0..30)
        .map(|_| tick(0.2, None))
        .find(|plan| plan.rps > 0.0)
        .expect("a restart");
    let most = BOUNDS.safe_rps * (1.0 + 1e-9);
    assert!(restart.rps <= most, "{}", restart.rps);
    let words = "no new reading of p99 for 5 min; restarting at ";
    assert!(restart.reason.starts_with(words), "{}", restart.reason);
    assert!((0..10).all(|_| tick(0.2, None).rps <= most));
    let last = (0..60).map(|_| tick(0.3, Some(0.3))).last().unwrap();
    assert_ne!(last.limiting, "stale", "{}", last.reason);
    assert_eq!(last.breaker, Phase::Closed, "{}", last.reason);

    (0..20).for_each(|_| drop(tick(0.3, None)));
    assert_eq!(tick(0.3, None).limiting, "stale");
    assert_eq!(tick(50.0, None).breaker, Phase::Open);
}

#[test]
fn a_policy_without_a_breaker_ends_a_stop_from_before() {
    let mut rig = Rig::new("query = \"q\"");
    rig.ticks(&[1.0; 4]);
    rig.ticks(&[50.0; 2]);
    assert_eq!(rig.state.breaker.phase, Phase::Open);
    rig.policy.law.breaker = false;
    let plan = rig.ticks(&[0.2; 2]);
    assert!(
        plan.rps > 0.0 && plan.breaker == Phase::Closed,
        "{}",
        plan.reason
    );
}
