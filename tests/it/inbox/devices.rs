//! Several devices of one recipient.

use serde_json::json;

use super::fixture::{InboxFixture, counts};

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_on_one_device_is_told_to_the_others_in_order() {
    let inbox = InboxFixture::start().await;
    inbox.send("acme", "ada", json!({"body": "first"})).await;
    inbox.inbox("acme", "ada", 1).await;
    inbox.is_told().await;
    let mut phone = inbox.device("acme", "ada").await;
    let mut desk = inbox.device("acme", "ada").await;
    inbox.send("acme", "ada", json!({"body": "second"})).await;
    let on_phone = phone.next_of("message").await;
    let on_desk = desk.next_of("message").await;
    assert_eq!(on_phone["data"], on_desk["data"]);
    let id = on_phone["data"]["message"]["id"].clone();

    phone
        .send(&json!({"type": "inbox_mark", "ids": [id], "as": "read", "ref": "r"}))
        .await;
    let answer = phone.next_of("inbox_counts").await;
    assert_eq!(counts(&answer), (1, 1));
    let told = desk.next_of("message").await;
    assert_eq!(told["channel"], "$inbox/ada");
    assert_eq!(
        told["data"],
        json!({"type": "counts", "unseen": 1, "unread": 1, "as": "read", "ids": [id], "all_up_to": null})
    );

    // A message that comes while all are marked up to the last that the device has stays unseen.
    inbox.send("acme", "ada", json!({"body": "third"})).await;
    assert_eq!(desk.next_of("message").await["data"]["type"], "message");
    desk.send(&json!({"type": "inbox_mark", "all_up_to": id, "as": "seen"}))
        .await;
    let answer = desk.next_of("inbox_counts").await;
    assert_eq!(counts(&answer), (1, 2));
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_was_away_gets_what_it_missed() {
    let inbox = InboxFixture::start().await;
    let mut device = inbox.device("acme", "ada").await;
    inbox.send("acme", "ada", json!({"body": "first"})).await;
    let first = device.next_of("message").await;
    drop(device);
    inbox.send("acme", "ada", json!({"body": "second"})).await;
    inbox.inbox("acme", "ada", 2).await;
    inbox.is_told().await;
    let mut device = inbox.device("acme", "ada").await;
    let offset = first["offset"].as_i64().unwrap();
    device
        .send(&json!({"type": "subscribe", "channel": "$inbox", "since": {"epoch": first["epoch"], "offset": offset}}))
        .await;
    let answer = device.next_of("subscribed").await;
    assert_eq!(
        (&answer["recovered"], &answer["missed"]),
        (&json!(true), &json!(1))
    );
    let missed = device.next_of("message").await;
    assert_eq!(missed["data"]["message"]["body"], "second");
    inbox.program.stop().await;
}
