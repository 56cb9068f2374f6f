//! Held messages whose jobs somebody has rescheduled: their explanations, and their caps.

use flyball::jobs::Attribution;
use jiff::Timestamp;
use serde_json::json;

use super::fixture::GatesFixture;

const TWO_DAYS_S: i64 = 2 * 86_400;

/// Returns a message that quiet hours hold, and the end of its hold.
async fn held() -> (GatesFixture, i64, Timestamp) {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, plan) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    let until = plan.planned_at(gates.now().await).unwrap();
    (gates, id, until)
}

#[tokio::test]
async fn a_held_message_that_is_put_off_tells_the_new_time() {
    let (gates, id, until) = held().await;
    let later = Timestamp::from_second(until.as_second() + TWO_DAYS_S).unwrap();
    let signed = Attribution::default();
    let queue = &gates.fixture.queue;
    queue.reschedule(id, later, &signed).await.unwrap();

    let found = gates.gates.explain(id, None).await.unwrap().unwrap();
    let told = format!("; it was rescheduled for {later:.0}");
    assert!(found.sentence.contains(&told), "{}", found.sentence);
    assert_eq!(found.planned_at, Some(later));
    assert_eq!(found.forecast.unwrap().goes_at, Some(later));
    let standing = gates.gates.standing(id).await.unwrap();
    assert_eq!(standing.planned_at, Some(later));
    assert!(standing.held_by.unwrap().until < later, "the hold itself");

    // An earlier time does not end the hold: the attempt holds the message again.
    let early = Timestamp::from_second(1).unwrap();
    queue.reschedule(id, early, &signed).await.unwrap();
    let found = gates.gates.explain(id, None).await.unwrap().unwrap();
    let planned_at = found.planned_at.unwrap();
    assert_eq!(planned_at.as_second(), until.as_second());
}

#[tokio::test]
async fn a_held_message_counts_for_its_caps_at_the_time_to_which_it_is_put_off() {
    let (gates, id, until) = held().await;
    let later = Timestamp::from_second(until.as_second() + TWO_DAYS_S).unwrap();
    let signed = Attribution::default();
    let queue = &gates.fixture.queue;
    // Every second for which a place is reserved, since 1970.
    let reserved =
        "select sum(distinct at_s + 1577836800::bigint)::bigint from flyball.cap_reservation";
    let told = gates.count(reserved).await;
    assert!(told >= until.as_second(), "{told}");

    queue.reschedule(id, later, &signed).await.unwrap();
    assert_eq!(gates.count(reserved).await, later.as_second());

    let early = Timestamp::from_second(1).unwrap();
    queue.reschedule(id, early, &signed).await.unwrap();
    assert_eq!(gates.count(reserved).await, told, "the end of its hold");
}

#[tokio::test]
async fn a_message_that_names_a_time_of_the_next_century_can_be_rescheduled() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, _) = gates
        .planned(
            json!({"recipient": "ada", "category": "billing", "local_time": "2100-01-01T09:00"}),
        )
        .await;
    let reserved =
        "select count(*) from flyball.cap_reservation where is_held and at_s = 2147483647";
    let lists = gates.count(reserved).await;
    assert!(lists > 0);

    let early = Timestamp::from_second(1).unwrap();
    let queue = &gates.fixture.queue;
    queue
        .reschedule(id, early, &Attribution::default())
        .await
        .unwrap();

    assert_eq!(gates.count(reserved).await, lists);
}
