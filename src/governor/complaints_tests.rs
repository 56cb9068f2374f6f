//! Complaints brake slowly and release slowly: a day's share does not react within minutes.

use super::bounds::Bounds;
use super::policy::{Policy, SignalKind, SignalSource};
use super::{ControlState, Observation, SignalSample};
use crate::throttle::RateLimit;

const POLICY: &str =
    "[[signal]]\nname = \"complaints\"\nsource = \"complaints\"\nquery = \"marketing\"\n";
const BOUNDS: Bounds = Bounds {
    min: 1.0,
    max: 100.0,
    safe_rps: 1.0,
};

/// Returns the knobs, one per tick of 5 s, for the share of complaints `share` at each second.
fn knobs(hours: f64, share: impl Fn(f64) -> f64) -> Vec<f64> {
    let policy = Policy::parse(POLICY, "f").unwrap().unwrap();
    let mut state = ControlState::new(&policy, BOUNDS, RateLimit::PerSecond(50.0), 0.0);
    let mut knob = 50.0;
    (1..=(hours * 720.0) as u32)
        .map(|n| {
            let now = 5.0 * f64::from(n);
            let sample = SignalSample {
                signal: "complaints".to_owned(),
                value: Some(share(now)),
                at: now,
            };
            let seen = Observation {
                now,
                readings: vec![sample],
                achieved_rps: Some(knob),
                limiting_share: Some(1.0),
                ..Observation::default()
            };
            knob = state.tick(&policy, BOUNDS, &seen).rps;
            knob
        })
        .collect()
}

#[test]
fn the_defaults_of_complaints_are_a_latency_at_a_thousandth() {
    let policy = Policy::parse(POLICY, "f").unwrap().unwrap();
    let signal = &policy.signals[0];
    assert_eq!(
        (signal.kind, signal.source, signal.setpoint, signal.lag_s),
        (SignalKind::Latency, SignalSource::Complaints, 0.001, 900.0)
    );
    assert!(!signal.trips);
    let reported = |text: &str| Policy::parse(text, "f").unwrap_err().to_string();
    assert!(
        reported(&format!("{POLICY}kind = \"ratio\"\n"))
            .contains("signal.kind: must be \"latency\" for source \"complaints\"")
    );
    assert!(
        reported(&POLICY.replace("query = \"marketing\"\n", ""))
            .contains("signal.query: is missing: it must be the name of the pool")
    );
    assert!(
        reported("[[signal]]\nname = \"a\"\nquery = \"q\"\n")
            .contains("f:1: signal.setpoint: is missing: it must be a number above 0")
    );
}

#[test]
fn a_share_above_the_setpoint_brakes_gently_to_min_and_a_good_one_lets_it_come_back() {
    let hour = 3600.0;
    let share = |t: f64| {
        if (2.0 * hour..10.0 * hour).contains(&t) {
            0.003
        } else {
            0.0004
        }
    };
    let knobs = knobs(34.0, share);
    let at = |hours: f64| knobs[(hours * 720.0) as usize - 1];
    assert!(at(2.0) > 60.0, "below the setpoint it grows: {}", at(2.0));

    // Gently: the rate falls by at most three quarters in any five minutes, although all these
    // complaints come at once.
    let steepest = knobs.windows(60).map(|w| w[59] / w[0]).fold(1.0, f64::min);
    assert!(steepest > 0.25, "{steepest}");
    assert!(
        at(2.1) < at(2.0) && at(2.5) > 2.0,
        "{} {}",
        at(2.1),
        at(2.5)
    );
    assert_eq!(at(8.0), BOUNDS.min);
    assert!(knobs[5760..7190].iter().all(|knob| *knob == BOUNDS.min));

    assert!(at(11.0) < 5.0, "and comes back as gently: {}", at(11.0));
    assert!(at(34.0) > 50.0, "{}", at(34.0));
}
