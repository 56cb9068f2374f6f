//! Items of digests: what they leave behind when they end, and the address to which they go.

use flyball::recipient::gates::MessagePlan;
use serde_json::{Value, json};

use super::digests::comment;
use super::fixture::GatesFixture;

#[tokio::test]
async fn items_end_with_a_digest_whose_recipient_opted_out() {
    let gates = GatesFixture::new("").await;
    gates
        .profile("bob", json!({"addresses": {"sms": "+15550112"}}))
        .await;
    for n in 0..3 {
        let mut item = comment(n);
        item["recipient"] = json!("bob");
        gates.planned(item).await;
    }
    let refuses =
        json!({"addresses": {"sms": "+15550112"}, "preferences": {"all": {"sms": false}}});
    gates.profile("bob", refuses).await;
    gates.close().await;
    assert_eq!(gates.closed().await, Vec::<Value>::new());
    let ended = "select count(*) from flyball.delivery where state = 'opted_out'";
    assert_eq!(gates.count(ended).await, 3);
}

#[tokio::test]
async fn an_event_is_no_duplicate_of_an_item_whose_digest_ended_unsent() {
    let rules = "[digests.new-comment]\ntemplate = \"activity-digest\"\ncategory = \"product\"\nwindow_s = 3600\ndedup_items = true\n\
                 [categories.product]\ndedup_window_s = 172800\n";
    let gates = GatesFixture::new(rules).await;
    let wants = |wanted: bool| json!({"addresses": {"sms": "+15550112"}, "preferences": {"all": {"sms": wanted}}});
    let mut item = comment(0);
    item["recipient"] = json!("bob");
    gates.profile("bob", wants(true)).await;
    let (_, plan) = gates.planned(item.clone()).await;
    assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
    let (_, equal) = gates.planned(item.clone()).await;
    assert!(matches!(equal, MessagePlan::Ended { .. }), "{equal:?}");

    gates.profile("bob", wants(false)).await;
    gates.close().await;
    gates.profile("bob", wants(true)).await;
    let (_, plan) = gates.planned(item).await;
    assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
}

#[tokio::test]
async fn a_digest_goes_to_the_address_of_its_newest_item_or_of_the_profile() {
    let gates = GatesFixture::new("").await;
    let reachable = json!({"addresses": {"sms": "+15550111"}});
    gates.profile("ada", reachable).await;
    let item = |n: usize| {
        let mut item = comment(n);
        item["recipient"] = json!("ada");
        if n % 3 < 2 {
            item["to"] = json!("+15550122");
            item["priority"] = json!("low");
        }
        item
    };
    let mut sent = Vec::new();
    for n in 0..3 {
        sent.push(gates.send(item(n)).await);
    }
    // By their priorities: the newest first.
    gates.gates.plan_jobs(&sent).await.unwrap();
    gates.close().await;
    // The pool takes it.
    sqlx::query("delete from flyball.ready")
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    for n in 3..6 {
        gates.planned(item(n)).await;
    }
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 2);
    let has_none = |digest: &Value| digest.get("to").is_none();
    assert!(closed.iter().all(has_none), "{closed:?}");
}
