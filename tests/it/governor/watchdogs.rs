//! Unreachable setpoints, several governors on one signal, and calibrations.

use flyball::governor::calibration::{CALIBRATION_ACTOR, ENDED};
use flyball::governor::{Decision, Finding, Governor};
use flyball::signals::{no_depth, no_feedback};
use flyball::throttle::{Change, Name, RateLimit, Store};
use serde_json::json;

use super::rig::{Rig, governor};

#[tokio::test]
async fn a_setpoint_out_of_reach_is_found_reported_journaled_and_taken_over_by_a_successor() {
    let mut rig = Rig::new("auto").await;
    rig.run(120).await;
    // High enough that no rate helps, and low enough that the breaker does not trip.
    rig.background = 1.15;
    rig.store.write_raw(&rig.name, "min", "5");
    rig.run(1100).await;

    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    let found = view
        .findings
        .iter()
        .find(|found| found.finding == Finding::Unreachable)
        .expect("a finding");
    assert!(
        found
            .sentence
            .contains("search-load stays near 1.2 (setpoint 1)"),
        "{}",
        found.sentence
    );
    let kept = rig.journal.recent(None, 1000).await.unwrap();
    let answer: Vec<&Decision> = kept
        .iter()
        .filter(|d| d.reason.contains("; unreachable: the rate has been at min"))
        .collect();
    assert_eq!(answer.len(), 1, "it is explained in full once: {answer:?}");
    assert_eq!(answer[0].terms["findings"], json!(["unreachable"]));

    // The successor inherits the finding and does not report it again.
    let (since, policy) = (found.since, rig.policy.clone());
    rig.governor = governor(&rig.store, &rig.journal, &rig.url, &rig.name, &policy);
    rig.term = 2;
    rig.run(10).await;
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(
        view.findings
            .iter()
            .map(|f| (f.finding, f.since))
            .collect::<Vec<_>>(),
        [(Finding::Unreachable, since)]
    );

    // Under manual control there are no findings.
    rig.store.write_raw(&rig.name, "mode", "manual");
    rig.run(5).await;
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(view.findings, []);
}

#[tokio::test]
async fn of_two_governors_on_one_signal_the_one_without_work_follows_and_a_hand_ends_it() {
    let mut rig = Rig::new("auto").await;
    let other = Name::new("mail").unwrap();
    let knobs = [
        ("rps", "10"),
        ("mode", "auto"),
        ("min", "1"),
        ("max", "2000"),
        ("safe_rps", "5"),
    ];
    let fields = knobs
        .map(|(k, v)| (k.to_owned(), Some(v.to_owned())))
        .into();
    rig.store
        .set(
            &other,
            &Change {
                fields,
                by: "seed".to_owned(),
                create: true,
                ..Change::default()
            },
        )
        .await
        .unwrap();
    let policies = vec![
        (rig.name.clone(), rig.policy.clone()),
        (other.clone(), rig.policy.clone()),
    ];
    rig.governor = Governor::new(
        rig.store.clone(),
        rig.journal.clone(),
        &rig.url,
        no_depth(),
        policies,
        no_feedback(),
    )
    .unwrap();

    rig.run(120).await;

    let views = rig.governor.snapshot(rig.now());
    let sentence = |name: &Name| {
        views[name]
            .findings
            .iter()
            .find(|f| f.finding == Finding::Shared)
            .expect("found")
            .sentence
            .clone()
    };
    assert!(
        sentence(&other).contains("search-load also governs reindex, so this throttle follows"),
        "{}",
        sentence(&other)
    );
    assert!(
        sentence(&rig.name).contains("search-load also governs mail, which follow"),
        "{}",
        sentence(&rig.name)
    );
    assert!(
        views[&other].reason.contains("following reindex"),
        "{}",
        views[&other].reason
    );

    rig.store.write_raw(&other, "mode", "manual");
    rig.run(6).await;
    let view = rig.governor.snapshot(rig.now()).remove(&rig.name).unwrap();
    assert_eq!(view.findings, [], "a person has the other");
}

/// Writes like a calibration: a rate under its mark, with a lease.
async fn calibrate(rig: &Rig, rps: &str, by: &str, lease_s: f64) {
    let until_ms = (rig.now() + lease_s) * 1e3;
    let fields = [
        ("rps", rps.to_owned()),
        ("valid_until", format!("{until_ms:.0}")),
    ];
    let fields = fields
        .map(|(knob, text)| (knob.to_owned(), Some(text)))
        .into();
    rig.store
        .set(
            &rig.name,
            &Change {
                fields,
                by: by.to_owned(),
                ..Change::default()
            },
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn a_calibration_has_the_knob_until_it_ends_and_the_governor_goes_on_from_there() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    for _ in 0..3 {
        calibrate(&rig, "30", CALIBRATION_ACTOR, 15.0).await;
        rig.run(10).await;
        assert_eq!(
            (rig.rps().await, rig.status().await.knobs.by.as_str()),
            (30.0, CALIBRATION_ACTOR)
        );
    }
    assert!(
        rig.governor.snapshot(rig.now())[&rig.name]
            .reason
            .contains("calibration")
    );

    calibrate(&rig, "50", ENDED, 15.0).await;
    rig.run(10).await;

    let knobs = rig.status().await.knobs;
    assert_eq!(knobs.by, "governor");
    // From 50 on at the allowed pace, without the hold that follows a manual edit.
    assert!(
        knobs.rps > RateLimit::PerSecond(50.0) && knobs.rps < RateLimit::PerSecond(70.0),
        "{}",
        knobs.rps
    );
}

#[tokio::test]
async fn a_calibration_that_died_leaves_the_safe_rate_to_the_governor() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    calibrate(&rig, "60", CALIBRATION_ACTOR, 6.0).await;
    rig.run(9).await;

    let knobs = rig.status().await.knobs;
    assert_eq!(knobs.by, "governor");
    assert!(knobs.rps < RateLimit::PerSecond(8.0), "{}", knobs.rps);
}

#[tokio::test]
async fn the_fast_path_is_armed_while_a_calibration_turns_the_knob() {
    let mut rig = Rig::new("auto").await;
    rig.run(60).await;
    calibrate(&rig, "60", CALIBRATION_ACTOR, 15.0).await;
    rig.run(3).await;
    rig.cost *= 10.0;
    rig.run(5).await;

    let status = rig.status().await;
    assert_eq!(
        (status.raw["rps"].as_str(), status.knobs.by.as_str()),
        ("0.000", "governor")
    );
}
