use super::super::plant_tests::Plant;
use super::super::shadow;
use super::super::stored;
use super::super::{GovernorView, Observation};
use crate::governor::law::Verdict;
use crate::throttle::RateLimit;

/// Returns a machine with a setpoint of 2 whose jobs a server acknowledges in 4 ms, and works on
/// later: 9.2 a second are possible, and 4 once they cost 2.3 times as much.
fn acknowledging() -> Plant {
    let mut plant = Plant::new(Default::default(), 5.0, 5, 1.0, false);
    plant.policy.signals[0].setpoint = 2.0;
    plant.policy.signals[0].trip = 8.0;
    (plant.background, plant.load, plant.average) = (0.2, 0.2, 0.2);
    (plant.cost, plant.bounds.min) = (1.8 / 9.2, 0.1);
    (plant.job_s, plant.knob) = (Some(0.004), 5.0);
    plant.state =
        super::ControlState::new(&plant.policy, plant.bounds, RateLimit::PerSecond(5.0), 0.0);
    plant
}

/// Lets the cost rise to 2.3 times, while acknowledgements take 80 ms for half a minute.
fn step(plant: &mut Plant) -> f64 {
    plant.run(900);
    let from = plant.now;
    (plant.cost, plant.job_s) = (1.8 / 4.0, Some(0.08));
    plant.run(30);
    plant.job_s = Some(0.004);
    plant.run(900);
    from
}

#[test]
fn acknowledgements_that_say_nothing_never_raise_the_rate_above_the_setpoint() {
    let mut plant = acknowledging();
    let from = step(&mut plant);
    let smoothed = plant
        .since(from + 60.0)
        .map(|s| s.average / 2.0)
        .fold(0.0, f64::max);
    assert!(smoothed <= 1.05, "{smoothed} setpoints");
    let raising: Vec<_> = plant
        .since(from + 60.0)
        .filter(|s| s.raised && s.reading.is_some_and(|x| x > 2.0))
        .collect();
    assert!(raising.is_empty(), "{raising:?}");
    let last = plant.record.last().unwrap();
    assert!((3.8..4.2).contains(&last.rate), "{last:?}");
    assert_eq!(plant.state.work.evidence.verdict, Verdict::Uninformative);
}

#[test]
fn durations_that_always_count_do_raise_it() {
    let mut plant = acknowledging();
    plant.policy.law.durations_check = false;
    let from = step(&mut plant);
    let raising = plant
        .since(from + 60.0)
        .filter(|s| s.raised && s.reading.is_some_and(|x| x > 2.2));
    assert!(raising.count() > 0);
    assert_eq!(plant.state.work.evidence.verdict, Verdict::Unknown);
}

#[test]
fn the_finding_changes_no_rate_and_everything_that_explains_tells_of_it() {
    let mut plant = acknowledging();
    plant.run(900);
    (plant.cost, plant.job_s) = (1.8 / 4.0, Some(0.08));
    let mut found = None;
    for _ in 0..120 {
        let before = plant.knob;
        plant.run(1);
        if plant.state.work.evidence.verdict == Verdict::Uninformative {
            found = Some((before, plant.knob, plant.plan.clone()));
            break;
        }
    }
    let (before, after, plan) = found.expect("found within two minutes");
    assert!((after / before - 1.0).abs() < 0.3, "{before} {after}");
    assert!(
        plan.reason
            .ends_with("; job durations do not reflect the load, so jobs are counted"),
        "{}",
        plan.reason
    );
    assert_eq!(plan.terms["durations"], "uninformative");
    assert_eq!(plan.terms["w"], 1.0);
    let view = GovernorView::new(&plant.state, &plant.policy, plant.now).unwrap();
    let shown = view.durations.unwrap();
    assert!(shown.verdict == Verdict::Uninformative && shown.score < -3.9 && shown.since.is_some());

    // A successor continues with the finding.
    let stored = serde_json::to_value(&plant.state).unwrap();
    let resumed = stored::read(stored.clone(), &plant.policy).unwrap();
    assert_eq!(resumed.work, plant.state.work);
    // An older governor knew nothing of it.
    let mut older = stored;
    older["work"].as_object_mut().unwrap().remove("evidence");
    let resumed = stored::read(older, &plant.policy).unwrap();
    assert_eq!(resumed.work.evidence.verdict, Verdict::Unknown);
}

#[test]
fn durations_that_follow_the_cost_are_trusted_and_act_before_any_sample() {
    let mut plant = acknowledging();
    let per_cost = 0.5;
    plant.job_s = Some(per_cost * plant.cost);
    plant.run(900);
    for factor in [1.6, 0.7, 2.0, 0.6, 1.8] {
        plant.cost *= factor;
        plant.job_s = Some(per_cost * plant.cost);
        plant.run(400);
    }
    assert_eq!(plant.state.work.evidence.verdict, Verdict::Informative);
    let before = plant.knob;
    plant.cost *= 3.0;
    plant.job_s = Some(per_cost * plant.cost);
    plant.run(5);
    assert!(plant.knob < 0.4 * before, "{before} to {}", plant.knob);
}

#[test]
fn trust_is_lost_and_earned_again() {
    let mut plant = acknowledging();
    step(&mut plant);
    assert_eq!(plant.state.work.evidence.verdict, Verdict::Uninformative);
    for n in 0..12 {
        let factor = if n % 2 == 0 { 0.5 } else { 2.0 };
        plant.cost *= factor;
        plant.job_s = Some(0.5 * plant.cost);
        plant.run(400);
    }
    assert_eq!(plant.state.work.evidence.verdict, Verdict::Informative);
}

#[test]
fn a_policy_that_stops_asking_trusts_again_without_a_jump() {
    let mut plant = acknowledging();
    step(&mut plant);
    let before = plant.knob;
    plant.policy.law.durations_check = false;
    plant.run(5);
    assert_eq!(plant.state.work.evidence.verdict, Verdict::Unknown);
    assert!(
        (plant.knob / before - 1.0).abs() < 0.1,
        "{before} {}",
        plant.knob
    );
}

#[test]
fn a_shadow_counts_in_the_unit_that_the_real_samples_chose() {
    let mut plant = acknowledging();
    step(&mut plant);
    let knob = plant.knob;
    for n in 0..20 {
        let seen = Observation {
            now: plant.now + 5.0 * f64::from(n + 1),
            achieved_rps: Some(knob),
            limiting_share: Some(1.0),
            mean_duration_s: Some(0.004),
            ..Observation::default()
        };
        shadow::tick(
            &mut plant.state,
            &plant.policy,
            plant.bounds,
            &seen,
            RateLimit::new(knob),
        );
    }
    let own = &plant.state.shadow.as_ref().unwrap().own;
    assert_eq!(own.work.evidence.verdict, Verdict::Uninformative);
    assert_eq!(own.work.w, 1.0);
}
