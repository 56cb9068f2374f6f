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
async fn items_that_the_recipient_has_opted_out_of_since_are_left_out_of_their_digest() {
    let gates = GatesFixture::new("").await;
    let address = json!({"addresses": {"sms": "+15550112"}});
    gates.profile("bob", address.clone()).await;
    for n in 0..8 {
        let mut item = comment(n);
        item["recipient"] = json!("bob");
        match n {
            0 | 1 => item["template_id"] = json!("mention"),
            2 => item["category"] = json!("news"),
            // Mandatory: no choice stops it.
            3 => item["category"] = json!("security"),
            _ => {}
        }
        gates.planned(item).await;
    }
    let items = "select items::bigint from flyball.digest";
    assert_eq!(gates.count(items).await, 8);
    let mut refuses = address;
    refuses["preferences"] = json!({
        "categories": {"news": false, "security": false},
        "templates": {"mention": {"sms": false}},
    });
    gates.profile("bob", refuses).await;

    gates.closes_as_one(5, 5).await;
    let by_template = "select count(*) from flyball.delivery
        where state = 'opted_out' and last_outcome = 'opted_out' and reason = 'the template mention by sms'";
    assert_eq!(gates.count(by_template).await, 2);
    let by_category = "select count(*) from flyball.delivery
        where state = 'opted_out' and reason = 'the category news'";
    assert_eq!(gates.count(by_category).await, 1);
    let left = "select count(*) from flyball.digest_item";
    assert_eq!(gates.count(left).await, 0);
}

#[tokio::test]
async fn a_digest_of_which_no_item_is_wanted_any_more_sends_nothing() {
    let gates = GatesFixture::new("").await;
    let address = json!({"addresses": {"sms": "+15550112"}});
    gates.profile("bob", address.clone()).await;
    for n in 0..3 {
        let mut item = comment(n);
        item["recipient"] = json!("bob");
        gates.planned(item).await;
    }
    let mut refuses = address;
    refuses["preferences"] = json!({"templates": {"comment": false}});
    gates.profile("bob", refuses).await;
    gates.close().await;
    assert_eq!(gates.closed().await, Vec::<Value>::new());
    let ended = "select count(*) from flyball.delivery where state = 'opted_out'";
    assert_eq!(gates.count(ended).await, 3);
    let open = "select count(*) from flyball.digest";
    assert_eq!(gates.count(open).await, 0);
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

#[tokio::test]
async fn a_digest_shows_what_one_message_can_hold_and_counts_the_rest() {
    let gates = GatesFixture::new("").await;
    for n in 0..5 {
        let mut item = comment(n);
        item["data"]["text"] = "x".repeat(100_000).into();
        gates.planned(item).await;
    }
    gates.closes_as_one(2, 5).await;
}

/// Their templates are no part of it.
#[tokio::test]
async fn a_digest_shows_as_many_items_whatever_their_templates() {
    let gates = GatesFixture::new("").await;
    for n in 0..8 {
        let mut item = comment(n);
        item["template"] = "x".repeat(60_000).into();
        gates.planned(item).await;
    }
    gates.closes_as_one(8, 8).await;
}

#[tokio::test]
async fn an_item_that_is_valid_no_more_does_not_go_alone() {
    let gates = GatesFixture::new("").await;
    for n in 0..2 {
        let mut item = comment(n);
        item["valid_for_s"] = json!(60);
        gates.planned(item).await;
    }
    sqlx::query(
        "update flyball.digest_item set at = at - interval '2 minutes'
         where job_id = (select min(job_id) from flyball.digest_item)",
    )
    .execute(gates.fixture.database.pool())
    .await
    .unwrap();
    gates.close().await;
    let closed = gates.closed().await;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0]["data"], json!({"n": 1}));
    assert!(
        closed[0]["valid_for_s"].as_f64().unwrap() < 60.0,
        "it counts from the time at which the item was accepted"
    );
    let expired =
        "select count(*) from flyball.delivery where state = 'failed' and last_outcome = 'expired'";
    assert_eq!(gates.count(expired).await, 1);
}

/// Closes a digest that is split, once it has so many further items of so many bytes. Returns the
/// numbers of items that its messages show and that are left in it.
async fn closed_in_parts(further: i32, bytes: i32) -> (usize, usize) {
    let rules = "[digests.new-comment]\ntemplate = \"activity-digest\"\ncategory = \"product\"\nwindow_s = 3600\n\
                 max_items = 1000\noverflow = \"split\"\n";
    let gates = GatesFixture::new(rules).await;
    gates.planned(comment(0)).await;
    sqlx::query(
        "with more as (
            insert into flyball.digest_item (digest_id, job_id, item, at)
            select i.digest_id, i.job_id + n, i.item || jsonb_build_object('html', repeat('x', $2::int)), i.at
            from flyball.digest_item i, generate_series(1, $1::int) as n
            returning 1
         )
         update flyball.digest set items = items + (select count(*) from more)::int, closes_at = now()",
    )
    .bind(further)
    .bind(bytes)
    .execute(gates.fixture.database.pool())
    .await
    .unwrap();
    assert!(gates.gates.close_due().await.unwrap(), "there are more");
    let closed = gates.closed().await;
    let shown = closed.iter().map(|args| args["data"]["items"].as_array());
    let shown: usize = shown.map(|items| items.unwrap().len()).sum();
    let left = "select items::bigint from flyball.digest where items = (select count(*) from flyball.digest_item)";
    (shown, gates.count(left).await as usize)
}

/// No process reads more than some thousands of items at once.
#[tokio::test]
async fn a_digest_with_very_many_items_closes_in_parts() {
    assert_eq!(closed_in_parts(10_000, 0).await, (10_000, 1));
}

#[tokio::test]
async fn a_digest_with_very_long_items_closes_in_parts() {
    let (shown, left) = closed_in_parts(150, 250_000).await;
    assert!(
        (1..150).contains(&shown) && shown + left == 151,
        "{shown} and {left}"
    );
}

#[tokio::test]
async fn a_digest_that_quiet_hours_keep_open_is_counted_once_as_one_of_a_crowd() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    for n in 0..3 {
        let mut item = comment(n);
        item["recipient"] = json!("ada");
        gates.planned(item).await;
    }
    for _ in 0..2 {
        gates.close().await;
    }
    assert_eq!(gates.closed().await, Vec::<Value>::new());
    let counted = "select sum(messages)::bigint from flyball.held_crowd";
    assert_eq!(gates.count(counted).await, 1);
}
