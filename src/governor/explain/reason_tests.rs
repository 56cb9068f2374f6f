use crate::throttle::RateLimit;
use std::collections::BTreeSet;

use super::*;
use serde_json::json;

use crate::governor::law::Hold;
use crate::governor::{Bounds, ControlState};
use crate::governor::{Observation, SignalSample};

const POLICY: &str = "[[signal]]\nname = \"load\"\nquery = \"q\"\nsetpoint = 2.0\n";
const NOW: f64 = 1000.0;

fn state(phase: Phase) -> (ControlState, Policy) {
    let policy = Policy::parse(POLICY, "f").unwrap().unwrap();
    let bounds = Bounds {
        min: 1.0,
        max: 2000.0,
        safe_rps: 5.0,
    };
    let mut state = ControlState::new(&policy, bounds, RateLimit::PerSecond(30.0), NOW - 10.0);
    let sample = SignalSample {
        signal: "load".to_owned(),
        value: Some(1.9),
        at: NOW - 12.0,
    };
    let seen = Observation {
        now: NOW - 5.0,
        readings: vec![sample],
        limiting_share: Some(1.0),
        ..Observation::default()
    };
    state.tick(&policy, bounds, &seen);
    state.hold = Some(Hold {
        rps: 30.0,
        from: NOW - 20.0,
        until: NOW + 40.0,
    });
    let breaker = &mut state.breaker;
    (breaker.phase, breaker.since, breaker.by, breaker.height) =
        (phase, NOW - 30.0, Some("load".to_owned()), 2.6);
    (state, policy)
}

/// Returns every cause; a new one does not compile until it is listed below with its texts.
fn causes() -> Vec<(Cause, &'static str, &'static str)> {
    let place = |cause: &Cause| match cause {
        Cause::NoReading => ("start", "no signal has been read yet; holding 30 rps"),
        Cause::StoppedByHand => (
            "person",
            "stopped manually (rps 0); it resumes when someone sets a rate",
        ),
        Cause::Followed { .. } => (
            "person",
            "a person controls it; the governor only tracks it",
        ),
        Cause::HandedBack { .. } => (
            "person",
            "manual mode is over; back to auto, continuing from 30 rps",
        ),
        Cause::Stale { .. } => ("stale", "no new reading of load for 5 s; "),
        Cause::Open => (
            "breaker",
            "load rose to 2.6 x its setpoint 30 s ago; it restarts when the load is gone",
        ),
        Cause::Signal { .. } => (
            "load",
            "load reads 1.9, setpoint 2 (12 s old): holding 30 rps",
        ),
    };
    let all = [
        Cause::NoReading,
        Cause::StoppedByHand,
        Cause::Followed {
            why: "a person controls it".to_owned(),
        },
        Cause::HandedBack {
            why: "manual mode is over; back to auto".to_owned(),
        },
        Cause::Stale {
            names: vec!["load".to_owned()],
        },
        Cause::Open,
        Cause::Signal {
            index: 0,
            clamps: Vec::new(),
        },
    ];
    all.into_iter()
        .map(|cause| {
            let (word, words) = place(&cause);
            (cause, word, words)
        })
        .collect()
}

#[test]
fn every_cause_in_every_phase_has_a_word_and_a_sentence() {
    for phase in [Phase::Closed, Phase::Open, Phase::HalfOpen] {
        let mut reasons = BTreeSet::new();
        for (cause, word, words) in causes() {
            let (state, policy) = state(phase);
            let plan = plan(&state.snapshot(), &policy, NOW, state.knob, &cause);
            assert_eq!(
                (plan.limiting.as_str(), plan.breaker),
                (word, phase),
                "{cause:?}"
            );
            assert!(
                plan.reason.starts_with(words),
                "{cause:?} in {phase:?}: {}",
                plan.reason
            );
            assert!(
                reasons.insert(plan.reason),
                "{cause:?} has no words of its own"
            );
            assert!(
                plan.terms.contains_key("u")
                    && plan.terms.contains_key("trips") == (phase != Phase::Closed),
                "{:?}",
                plan.terms
            );
        }
    }
}

#[test]
fn every_clamp_has_a_word_and_words_of_its_own() {
    // A new one does not compile until it is listed here.
    let place = |clamp: Clamp| match clamp {
        Clamp::Slew => ("slew", ", at the fastest allowed rise"),
        Clamp::Idle => ("idle", "; not raised, because no job waits for tokens"),
        Clamp::Soft => (
            "soft",
            "; not raised while a signal is above its soft level",
        ),
        Clamp::Week => (
            "week",
            "; no job waits for tokens, so it stays ready at the usual rate of this hour of the \
             week",
        ),
        Clamp::Confirm => (
            "confirm",
            "; not raised until a sample confirms the restart",
        ),
        Clamp::Floor => ("floor", ", the floor below the usual rate"),
        Clamp::Late => ("late", "; not raised, because the next reading is late"),
        Clamp::Person => (
            "person",
            "; a person set 30 rps 20 s ago, so it is not raised for another 40 s",
        ),
        Clamp::Max => ("max", ", the highest rate allowed (max or capacity)"),
        Clamp::Min => ("min", ", the lowest rate allowed (min)"),
    };
    let reported: BTreeSet<&str> = Clamp::ALL.into_iter().map(|clamp| place(clamp).0).collect();
    assert_eq!(reported.len(), 10, "each once: {reported:?}");
    for clamp in Clamp::ALL {
        let (state, policy) = state(Phase::Closed);
        let plan = plan(
            &state.snapshot(),
            &policy,
            NOW,
            state.knob,
            &Cause::Signal {
                index: 0,
                clamps: vec![clamp],
            },
        );
        let (word, words) = place(clamp);
        assert_eq!((plan.limiting.as_str(), clamp.as_str()), (word, word));
        assert!(plan.reason.ends_with(words), "{}", plan.reason);
        assert_eq!(plan.terms["clamps"], json!([word]));
    }
}

#[test]
fn every_word_of_who_decided_is_in_the_guide() {
    let guide = include_str!("../../../docs/governor.md");
    let causes = causes()
        .into_iter()
        .map(|(_, word, _)| word)
        .filter(|word| *word != "load");
    for word in causes.chain(Clamp::ALL.map(Clamp::as_str)) {
        assert!(
            guide
                .lines()
                .any(|line| line.starts_with('|') && line.contains(&format!("`{word}`"))),
            "{word}"
        );
    }
}
