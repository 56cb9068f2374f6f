//! Shares of lanes and throttles, newcomers, priorities.

use std::time::{Duration, Instant};

use flyball::jobs::{Job, Outcome};

use super::fixture::{FairnessFixture, Notes, SOON, config};
use crate::support::eventually;

#[tokio::test]
async fn lanes_get_the_shares_of_their_weights() {
    let mut fixture = FairnessFixture::new().await;
    let notes = fixture.note();
    fixture.turn("t", &[("rps", "400"), ("burst", "0.1")]).await;
    for (key, weight) in [("a", 1.0), ("b", 2.0), ("c", 5.0)] {
        fixture.enqueue("t", key, 1, 2500).await;
        sqlx::query("select flyball.set_weight('t', $1, $2)")
            .bind(key)
            .bind(weight)
            .execute(&fixture.queue.pool)
            .await
            .unwrap();
    }

    let worker = fixture.worker(config(64)).await;
    notes.reach(2500).await;
    worker.stop().await;

    // Not only on average: each stretch of 1.5 s has these shares. The first jobs begin before all
    // lanes are found.
    for (stretch, keys) in notes.keys()[100..2500].chunks(600).enumerate() {
        for (key, fair) in [("a", 0.125), ("b", 0.25), ("c", 0.625)] {
            let share = keys.iter().filter(|noted| *noted == key).count() as f64 / 600.0;
            assert!(
                (share / fair - 1.0).abs() < 0.1,
                "{key} got {share} instead of {fair} in stretch {stretch}"
            );
        }
    }
}

#[tokio::test]
async fn throttles_get_the_shares_of_their_weights_of_a_workers_permits() {
    let mut fixture = FairnessFixture::new().await;
    let notes = Notes::default();
    let noted = notes.clone();
    fixture.kinds.register_fn("note", move |job: Job, _| {
        noted
            .0
            .lock()
            .unwrap()
            .push((Instant::now(), job.throttle, job.priority));
        async {
            // Real time: jobs that last a while keep all permits in use.
            tokio::time::sleep(Duration::from_millis(10)).await;
            Outcome::Done
        }
    });
    fixture
        .turn("heavy", &[("rps", "-1"), ("weight", "3")])
        .await;
    fixture
        .turn("light", &[("rps", "-1"), ("weight", "1")])
        .await;
    for throttle in ["heavy", "light"] {
        fixture.enqueue(throttle, "", 1, 1000).await;
    }

    let worker = fixture.worker(config(4)).await;
    notes.reach(700).await;
    worker.stop().await;

    // The first answers report the weights. The median of three stretches, because a throttle whose
    // store answers late for a moment gets less in that stretch.
    let mut heavy: Vec<usize> = notes.keys()[100..700]
        .chunks(200)
        .map(|throttles| {
            throttles
                .iter()
                .filter(|throttle| *throttle == "heavy")
                .count()
        })
        .collect();
    heavy.sort_unstable();
    assert!(
        (135..=165).contains(&heavy[1]),
        "{heavy:?} of 200 instead of 150"
    );
}

#[tokio::test]
async fn a_newcomer_is_served_within_one_round_of_a_long_queue() {
    let mut fixture = FairnessFixture::new().await;
    let notes = fixture.note();
    fixture
        .turn("t", &[("rps", "200"), ("burst", "0.05")])
        .await;
    for key in ["a", "b", "c", "d"] {
        fixture.enqueue("t", key, 1, 2000).await;
    }
    let worker = fixture.worker(config(64)).await;
    notes.reach(300).await;

    // Discovery of the new lane takes a while without any flow; its duration is tested elsewhere.
    fixture.turn("t", &[("rps", "0")]).await;
    fixture.enqueue("t", "new", 1, 5).await;
    fixture.refusals.again("t", "new").await;
    let before = notes.len();
    fixture.turn("t", &[("rps", "200")]).await;
    eventually("the newcomer begins", SOON, || async {
        notes.keys().contains(&"new".to_owned()).then_some(())
    })
    .await;
    let first = notes.keys().iter().position(|key| key == "new").unwrap();
    worker.stop().await;

    // A round of five lanes, plus one batch of claims, which starts in order of age.
    assert!(
        first < before + 5 + 10,
        "{} jobs of others went before it",
        first - before
    );
}

#[tokio::test]
async fn urgent_jobs_go_first_and_each_other_priority_has_its_turn_every_few_seconds() {
    let mut fixture = FairnessFixture::new().await;
    let notes = fixture.note();
    fixture.turn("t", &[("rps", "0")]).await;
    for priority in 1..=3 {
        fixture.enqueue("t", "k", priority, 60).await;
    }
    fixture.enqueue("t", "k", 0, 2000).await;
    let begun = Instant::now();
    let worker = fixture.worker(config(16)).await;
    fixture
        .turn("t", &[("rps", "150"), ("burst", "0.05")])
        .await;

    notes.reach(1000).await;
    worker.stop().await;

    let noted = notes.0.lock().unwrap().clone();
    let priorities: Vec<i32> = noted.iter().map(|(_, _, priority)| *priority).collect();
    // No other priority is due within two seconds, in which a calm machine begins 300 jobs.
    let first = noted
        .iter()
        .take(100)
        .take_while(|(at, ..)| *at < begun + Duration::from_secs(2));
    let first: Vec<i32> = first.map(|(_, _, priority)| *priority).collect();
    assert!(
        !first.is_empty() && first.iter().all(|priority| *priority == 0),
        "the urgent ones went first: {first:?}"
    );
    for passed_over in 1..=3 {
        let turns: Vec<usize> = (0..1000)
            .filter(|place| priorities[*place] == passed_over)
            .collect();
        // A turn is due after two seconds, and at least three pass while 450 jobs flow.
        let waits = [0]
            .iter()
            .chain(&turns)
            .zip(turns.iter().chain(&[1000]))
            .map(|(from, to)| to - from);
        assert!(
            waits.clone().all(|jobs| jobs <= 450),
            "priority {passed_over} had its turns at {turns:?}"
        );
        assert!(turns.len() <= 59, "but only now and then: {turns:?}");
    }
}
