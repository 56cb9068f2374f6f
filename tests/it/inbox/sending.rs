//! A message for the inbox passes the gates, and is written once for its job.

use flyball::inbox::Inbox;
use flyball::inbox::postgres::{InboxDelivery, NewInboxMessage};
use reqwest::Method;
use serde_json::json;

use super::fixture::{InboxFixture, SOON, field};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_between_the_write_and_the_record_leaves_one_message() {
    let inbox = InboxFixture::start().await;
    // The job is not due, so that the write of the dead worker comes before its attempt.
    let later = json!({"run_at": "2035-01-01T00:00:00Z"});
    let id = inbox.send("acme", "ada", later).await;
    let new = NewInboxMessage {
        job_id: id,
        recipient: "ada".to_owned(),
        subject: None,
        body: "Hello".to_owned(),
    };
    let store = Inbox::new(&inbox.program.app.queue.pool);
    for _ in 0..2 {
        let kept = store.deliver(new.clone()).await.unwrap();
        assert_eq!(kept, InboxDelivery::Kept);
    }
    let path = format!("/api/v1/notifications/{id}");
    assert_eq!(inbox.get("acme", &path).await["state"], "queued");
    inbox
        .program
        .app
        .queue
        .reschedule(id, jiff::Timestamp::UNIX_EPOCH, &Default::default())
        .await
        .unwrap();
    inbox.until(id, "delivered").await;
    inbox.inbox("acme", "ada", 1).await;
    assert_eq!(
        inbox.count("select unseen from flyball.inbox_count").await,
        1
    );
    let told = "select (select count(*) from flyball.channel_message) + (select count(*) from flyball.publication)";
    assert_eq!(inbox.count(told).await, 1, "it is told once");
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_who_opted_out_gets_nothing_and_equal_messages_come_once() {
    let inbox = InboxFixture::start().await;
    let profile = json!({"preferences": {"categories": {"marketing": {"inapp": false}}}});
    let (status, _) = inbox
        .ask(
            "acme",
            Method::PUT,
            "/api/v1/recipients/ada",
            Some(&profile),
        )
        .await;
    assert_eq!(status, 201);
    // By the id in either field.
    let mut ended = Vec::new();
    for to in ["recipient", "to"] {
        let message = json!({"channel": "inapp", to: "ada", "body": to, "category": "marketing"});
        let (_, answer) = inbox
            .ask(
                "acme",
                Method::POST,
                "/api/v1/notifications",
                Some(&message),
            )
            .await;
        ended.push(answer["id"].as_i64().unwrap());
    }
    for id in ended {
        inbox.until(id, "opted_out").await;
    }
    let mut equal = Vec::new();
    for _ in 0..2 {
        let fields = json!({
            "template_id": "comment", "body": "One comment", "data": {"n": 1}, "category": "product",
        });
        equal.push(inbox.send("acme", "ada", fields).await);
    }
    // The first that is planned goes. On a busy machine that may be the second that was accepted.
    eventually("one goes, the other is a duplicate", SOON, || async {
        let mut states = Vec::new();
        for id in &equal {
            let path = format!("/api/v1/notifications/{id}");
            let message = inbox.get("acme", &path).await;
            states.push(message["state"].as_str().unwrap().to_owned());
        }
        states.sort_unstable();
        (states == ["delivered", "duplicate"]).then_some(())
    })
    .await;
    let fields = json!({"body": "last", "category": "product"});
    let last = inbox.send("acme", "ada", fields).await;
    inbox.until(last, "delivered").await;
    let messages = inbox.inbox("acme", "ada", 2).await;
    assert!(field(&messages, "body").contains(&&json!("last")));
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_for_the_inbox_become_one_message_with_their_data() {
    let inbox = InboxFixture::start().await;
    for n in 0..3 {
        let fields = json!({
            "category": "product", "template_id": "comment", "digest": "new-comment", "body": format!("comment {n}"), "data": {"text": n.to_string()},
        });
        inbox.send("acme", "ada", fields).await;
    }
    eventually("three items", SOON, || async {
        let items = inbox.count("select coalesce(sum(items), 0) from flyball.digest");
        (items.await == 3).then_some(())
    })
    .await;
    sqlx::query("update flyball.digest set closes_at = now()")
        .execute(inbox.program.database.pool())
        .await
        .unwrap();
    let messages = inbox.inbox("acme", "ada", 1).await;
    assert_eq!(messages[0]["template_id"], "activity-digest");
    assert_eq!(
        messages[0]["data"],
        json!({"items": [{"text": "0"}, {"text": "1"}, {"text": "2"}], "totalCount": 3, "hasMore": false})
    );
    assert!(messages[0]["subject"].is_string(), "{}", messages[0]);
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_hours_hold_a_message_only_if_the_recipient_sets_them() {
    let inbox = InboxFixture::start().await;
    let statement = "select to_char(now() at time zone 'UTC', 'dy') as day";
    let today = inbox.sql("", statement).await.unwrap();
    let quiet = json!({"all_day": true, "weekdays": [today["day"]]});
    for (id, hours) in [
        ("ada", json!({"inapp": quiet})),
        ("bob", json!({"sms": quiet})),
    ] {
        let profile = json!({"quiet_hours": hours, "time_zone": "UTC"});
        let path = format!("/api/v1/recipients/{id}");
        inbox.ask("acme", Method::PUT, &path, Some(&profile)).await;
    }
    let held = inbox
        .send("acme", "ada", json!({"category": "marketing"}))
        .await;
    inbox
        .send("acme", "bob", json!({"category": "marketing"}))
        .await;
    inbox.inbox("acme", "bob", 1).await;
    let path = format!("/api/v1/notifications/{held}/explain");
    let explained = inbox.get("acme", &path).await;
    let sentence = explained["sentence"].as_str().unwrap();
    assert!(sentence.contains("quiet hours"), "{sentence}");
    inbox.inbox("acme", "ada", 0).await;
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_publications_wait_keeps_its_messages_in_the_queue() {
    let inbox = InboxFixture::start().await;
    let later = json!({"run_at": "2035-01-01T00:00:00Z"});
    let id = inbox.send("acme", "ada", later).await;
    let limited = "insert into flyball.tenant_limit (tenant, max_pending) values ('acme', 1)
        on conflict (tenant) do update set max_pending = 1";
    let mut transaction = inbox.program.app.queue.pool.begin().await.unwrap();
    sqlx::query(limited)
        .execute(&mut *transaction)
        .await
        .unwrap();
    sqlx::query(
        "insert into flyball.publication (tenant, channel, data) values ('acme', 'x', '1')",
    )
    .execute(&mut *transaction)
    .await
    .unwrap();
    let kept: bool = sqlx::query_scalar(
        "select d.kept from flyball.deliver_inboxes(array[$1], array['ada'], array[null]::text[], array['x'], true) d",
    )
    .bind(id)
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    assert!(!kept);
    let written: i64 = sqlx::query_scalar("select count(*) from flyball.inbox_message")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(written, 0);
    transaction.rollback().await.unwrap();
    inbox.program.stop().await;
}
