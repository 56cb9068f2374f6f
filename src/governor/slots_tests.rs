//! The loop closed by slots: a plant that responds more slowly the more requests are open, and
//! manual changes of the knob.

use crate::throttle::RateLimit;
use proptest::prelude::*;

use super::GovernorView;
use super::actuator::{Actuator, limited_by_slots};
use super::bounds::Bounds;
use super::law::Phase;
use super::policy::Policy;
use super::{ControlState, Observation, Plan, SignalSample};

const POLICY: &str = "[governor]\nactuator = \"concurrency\"\n[[signal]]\nname = \"answers\"\nsource = \"feedback\"\nkind = \"latency\"\n";

/// A server that responds in `base_s` while it can work on all open requests, and completes
/// `capacity` per second beyond that.
struct SlotsPlant {
    policy: Policy,
    bounds: Bounds,
    state: ControlState,
    now: f64,
    base_s: f64,
    capacity: f64,
    demand: f64,
    person: Option<f64>,
    knob: f64,
    plan: Plan,
    /// The knob, the latency and the jobs per second, by second.
    record: Vec<(f64, f64, f64)>,
    seed: u32,
    noise: f64,
    /// The way in which rejections are reported, if the server rejects some requests; after each it
    /// responds to one at a time.
    rejects: Option<RejectionTiming>,
}

/// The report to a governor about responses that were slow because of a rejection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RejectionTiming {
    /// The durations, as if they were load.
    Plainly,
    /// No report at all.
    Nothing,
    /// A report that the durations carry no information.
    Discounted,
}

impl SlotsPlant {
    fn new(setpoint: f64, more: &str) -> Self {
        let policy = Policy::parse(&format!("{POLICY}setpoint = {setpoint}\n{more}"), "f")
            .unwrap()
            .unwrap();
        let bounds = policy.law.actuator.bounds(Bounds {
            min: 1.0,
            max: 500.0,
            safe_rps: 1.0,
        });
        let state = ControlState::new(&policy, bounds, RateLimit::PerSecond(4.0), 0.0);
        Self {
            policy,
            bounds,
            state,
            now: 0.0,
            base_s: 0.05,
            capacity: 400.0,
            demand: f64::INFINITY,
            person: None,
            knob: 4.0,
            plan: Plan::default(),
            record: Vec::new(),
            seed: 1,
            noise: 0.05,
            rejects: None,
        }
    }

    fn run(&mut self, seconds: u32) -> &mut Self {
        for _ in 0..seconds {
            self.now += 1.0;
            let most = (self.demand * self.base_s).min(self.knob);
            let capacity = if self.rejects.is_some() {
                2.0 / self.base_s
            } else {
                self.capacity
            };
            let latency = self.base_s.max(most / capacity);
            self.record.push((self.knob, latency, most / latency));
            if (self.now as u64).is_multiple_of(5) {
                let in_use = most;
                self.seed = self
                    .seed
                    .wrapping_mul(1_664_525)
                    .wrapping_add(1_013_904_223);
                let noise = self.noise * (f64::from(self.seed >> 8) / f64::from(1u32 << 23) - 1.0);
                let ended = if most > 0.0 {
                    5.0 * most / latency
                } else {
                    0.0
                };
                let is_told = self
                    .rejects
                    .is_none_or(|reported| reported == RejectionTiming::Plainly);
                let silent = SignalSample {
                    signal: "answers".to_owned(),
                    value: None,
                    at: self.now,
                };
                let seen = Observation {
                    now: self.now,
                    readings: if is_told { Vec::new() } else { vec![silent] },
                    discounted: self.rejects == Some(RejectionTiming::Discounted),
                    achieved_rps: Some(in_use),
                    limiting_share: Some(limited_by_slots(in_use, RateLimit::new(self.knob), None)),
                    mean_duration_s: (ended > 0.0 && is_told).then_some(latency * (1.0 + noise)),
                    completed: ended,
                    idle: ended == 0.0,
                    knob_rps: self.person.take().map(RateLimit::new),
                    ..Observation::default()
                };
                self.plan = self.state.tick(&self.policy, self.bounds, &seen);
                self.knob = self.plan.rps;
            }
        }
        self
    }

    fn since(&self, t: f64) -> &[(f64, f64, f64)] {
        &self.record[t as usize..]
    }

    fn mean(&self, t: f64, of: impl Fn(&(f64, f64, f64)) -> f64) -> f64 {
        self.since(t).iter().map(of).sum::<f64>() / self.since(t).len() as f64
    }
}

#[test]
fn it_holds_the_latency_uses_the_capacity_backs_off_within_a_minute_and_comes_back() {
    let mut server = SlotsPlant::new(0.1, "");
    server.run(900);
    assert!(
        (server.mean(600.0, |s| s.1) / 0.1 - 1.0).abs() < 0.1,
        "{}",
        server.mean(600.0, |s| s.1)
    );
    assert!(
        server.mean(600.0, |s| s.2) > 0.97 * 400.0,
        "{}",
        server.mean(600.0, |s| s.2)
    );

    server.capacity = 200.0;
    server.run(60);
    let back = server.since(950.0).iter().all(|s| s.1 < 1.25 * 0.1);
    assert!(
        back,
        "a minute after the halving: {:?}",
        server.since(950.0)
    );
    server.run(600);
    assert!((server.mean(1200.0, |s| s.1) / 0.1 - 1.0).abs() < 0.1);
    assert!(server.mean(960.0, |s| s.2) > 0.95 * 200.0);

    server.capacity = 400.0;
    server.run(600);
    assert!(
        server.mean(1800.0, |s| s.2) > 0.95 * 400.0,
        "{}",
        server.mean(1800.0, |s| s.2)
    );
    assert!(
        server
            .record
            .iter()
            .all(|s| s.0.fract() == 0.0 && s.0 >= 1.0),
        "slots are whole"
    );
}

#[test]
fn changes_of_less_than_a_slot_are_not_lost_with_few_slots() {
    // Room for five at the setpoint: every step of the law is a fraction of a slot for a long time.
    let mut server = SlotsPlant::new(0.1, "");
    server.capacity = 50.0;
    server.run(1200);
    assert!((4.0..=6.0).contains(&server.knob), "{}", server.knob);
    assert!(
        server.mean(600.0, |s| s.1) < 0.125,
        "{}",
        server.mean(600.0, |s| s.1)
    );
    server.capacity = 100.0;
    server.run(900);
    assert!((8.0..=11.0).contains(&server.knob), "{}", server.knob);
}

#[test]
fn slots_that_nobody_uses_are_not_raised() {
    let mut server = SlotsPlant::new(0.1, "");
    server.run(600);
    let before = server.knob;
    server.demand = 20.0;
    server.run(1800);
    assert!(server.knob <= before + 1.0, "{} from {before}", server.knob);
    assert_eq!(server.plan.limiting, "idle", "{}", server.plan.reason);
    assert!(
        server.plan.reason.contains("no job waits for slots"),
        "{}",
        server.plan.reason
    );
}

#[test]
fn a_persons_slots_are_the_new_start_and_held_and_none_is_the_most_allowed() {
    let mut server = SlotsPlant::new(0.1, "");
    server.run(600);
    server.person = Some(8.0);
    server.run(60);
    assert!(
        server.since(606.0).iter().all(|s| s.0 <= 8.0) && server.plan.limiting == "person",
        "{}",
        server.plan.reason
    );
    assert!(
        server.plan.reason.contains("set 8 slots"),
        "{}",
        server.plan.reason
    );
    server.person = Some(0.0);
    server.run(30);
    assert_eq!(
        (server.knob, server.plan.limiting.as_str()),
        (0.0, "person")
    );
    assert!(
        server.plan.reason.contains("(concurrency 0)"),
        "{}",
        server.plan.reason
    );
    server.person = Some(-1.0);
    server.run(5);
    assert_eq!(server.knob, server.bounds.max, "{}", server.plan.reason);
}

#[test]
fn a_trip_stops_and_restarts_gently() {
    let mut server = SlotsPlant::new(0.1, "trip = 0.3\n");
    server.run(600);
    let before = server.knob;
    server.capacity = 40.0;
    server.run(20);
    let tripped = server.since(600.0).iter().any(|s| s.0 == 0.0);
    assert!(
        tripped && server.state.breaker.phase == Phase::Open,
        "{}",
        server.plan.reason
    );
    server.run(60);
    let restarted = server
        .since(620.0)
        .iter()
        .find(|s| s.0 > 0.0)
        .expect("it restarts")
        .0;
    assert!(restarted < before, "{restarted} of {before}");
    server.run(900);
    assert!(
        server.mean(1200.0, |s| s.1) < 0.15,
        "{}",
        server.mean(1200.0, |s| s.1)
    );
}

#[test]
fn rejected_tokens_do_not_turn_the_knob_where_they_are_discounted_and_would_otherwise() {
    let after = |reported: RejectionTiming| {
        let mut server = SlotsPlant::new(0.1, "");
        server.run(900);
        let before = server.knob;
        server.rejects = Some(reported);
        server.run(600);
        let during = server
            .since(900.0)
            .iter()
            .map(|s| s.0)
            .fold(f64::INFINITY, f64::min);
        let reason = server.plan.reason.clone();
        server.rejects = None;
        server.run(120);
        let latency = server.mean(1560.0, |s| s.1);
        assert!(
            latency < 0.13,
            "{latency} s a minute after the last rejection, {reported:?}"
        );
        (during / before, reason)
    };
    let (discounted, reason) = after(RejectionTiming::Discounted);
    assert_eq!(discounted, 1.0, "{reason}");
    assert!(
        reason.contains("job durations do not indicate load: holding"),
        "{reason}"
    );
    // As load, and as silence, they cost most of the slots.
    for reported in [RejectionTiming::Plainly, RejectionTiming::Nothing] {
        let (cut, reason) = after(reported);
        assert!(cut < 0.5, "{reported:?}: {cut}, {reason}");
    }
}

#[test]
fn a_state_of_another_knob_is_not_gone_on_from_and_one_of_the_same_is() {
    let mut server = SlotsPlant::new(0.1, "");
    server.run(300);
    let stored = serde_json::to_value(&server.state).unwrap();
    let kept = crate::governor::stored::resume(stored.clone(), &server.policy, 301.0).unwrap();
    assert_eq!((kept.u, kept.knob), (server.state.u, server.knob));
    let mut rates = server.policy.clone();
    rates.law.actuator = Actuator::Rps;
    assert_eq!(crate::governor::stored::resume(stored, &rates, 301.0), None);
}

#[test]
fn the_unit_is_in_the_reason_the_terms_and_the_view() {
    let mut server = SlotsPlant::new(0.1, "");
    server.run(30);
    assert!(
        server.plan.reason.contains(" slots"),
        "{}",
        server.plan.reason
    );
    assert_eq!(server.plan.terms["actuator"], "concurrency");
    assert_eq!(
        GovernorView::new(&server.state, &server.policy, 30.0)
            .unwrap()
            .actuator,
        Actuator::Concurrency
    );
}

#[test]
fn durations_are_off_with_slots_and_refused_where_somebody_wants_them() {
    let server = SlotsPlant::new(0.1, "");
    assert!(!server.policy.law.durations && server.policy.uses_feedback());
    let text = format!(
        "{}setpoint = 1\n",
        POLICY.replace("\"concurrency\"\n", "\"concurrency\"\ndurations = true\n")
    );
    let reported = Policy::parse(&text, "f").unwrap_err().to_string();
    assert!(
        reported.contains("f:3: governor.durations: must be false with actuator"),
        "{reported}"
    );
    let reported = Policy::parse(&POLICY.replace("concurrency", "slots"), "f")
        .unwrap_err()
        .to_string();
    assert!(
        reported.contains("must be rps or concurrency, not \"slots\""),
        "{reported}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn it_settles_for_any_server(
        base_s in 0.005..0.5f64,
        room in 3.0..200.0f64,
        above in 1.3..4.0f64,
        noise in 0.0..0.1f64,
    ) {
        let setpoint = base_s * above;
        let mut server = SlotsPlant::new(setpoint, "");
        // This number of slots reaches the setpoint.
        (server.base_s, server.capacity, server.noise) = (base_s, room / setpoint, noise);
        server.run(2400);
        let (latency, rate) = (server.mean(1800.0, |s| s.1), server.mean(1800.0, |s| s.2));
        prop_assert!(latency < 1.3 * setpoint, "{latency} of {setpoint}");
        prop_assert!(rate > 0.85 * server.capacity, "{rate} of {}", server.capacity);
    }
}
