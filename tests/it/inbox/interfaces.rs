//! Sending, listing, counting and marking by HTTP, SQL and frames.

use reqwest::Method;
use serde_json::json;

use super::fixture::{InboxFixture, counts, field};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_sent_by_any_interface_is_kept_and_published_to_the_device() {
    let inbox = InboxFixture::start().await;
    let mut device = inbox.device("acme", "ada").await;
    let id = inbox
        .send(
            "acme",
            "ada",
            json!({"subject": "New comment", "body": "Bob answered", "data": {"url": "/posts/7"},
                "category": "product", "template_id": "comment", "actor": "bob"}),
        )
        .await;
    let told = device.next_of("message").await;
    assert_eq!(told["channel"], "$inbox/ada");
    let data = &told["data"];
    assert_eq!((&data["type"], counts(data)), (&json!("message"), (1, 1)));

    let by_sql = "select (flyball.notify('inapp', '{\"channel\": \"inapp\", \"to\": \"ada\", \"template\": {\"subject\": \"Hi {{ name }}\", \"body\": \"{{ name }}!\"}, \"data\": {\"name\": \"Ada\"}}')).id";
    inbox.sql("acme", by_sql).await.unwrap();
    let second = device.next_of("message").await;
    assert_eq!(counts(&second["data"]), (2, 2));

    let messages = inbox.inbox("acme", "ada", 2).await;
    assert_eq!(messages[1], data["message"], "the same by both interfaces");
    let first = json!({
        "id": messages[1]["id"], "notification_id": id, "category": "product", "template_id": "comment", "actor": "bob",
        "subject": "New comment", "body": "Bob answered", "data": {"url": "/posts/7"}, "state": "unseen",
        "created_at": messages[1]["created_at"], "seen_at": null, "read_at": null, "archived_at": null,
    });
    assert_eq!(messages[1], first);
    assert_eq!(
        (
            &messages[0]["subject"],
            &messages[0]["body"],
            &messages[0]["data"]
        ),
        (&json!("Hi Ada"), &json!("Ada!"), &json!({"name": "Ada"}))
    );

    let shown = inbox
        .get("acme", &format!("/api/v1/notifications/{id}"))
        .await;
    assert_eq!(
        (&shown["state"], &shown["pool"], &shown["provider"]),
        (&json!("delivered"), &json!("inapp"), &json!("inbox"))
    );
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_read_by_cursor_state_and_category() {
    let inbox = InboxFixture::start().await;
    for n in 0..5 {
        let category = if n == 0 { "billing" } else { "product" };
        let fields = json!({"body": n.to_string(), "category": category});
        inbox.send("acme", "ada", fields).await;
        inbox.inbox("acme", "ada", n + 1).await;
    }
    let path = "/api/v1/recipients/ada/inbox";
    let page = inbox.get("acme", &format!("{path}?limit=2")).await;
    let bodies = |page: &serde_json::Value| -> Vec<String> {
        let messages = page["messages"].as_array().unwrap().clone();
        field(&messages, "body")
            .into_iter()
            .map(|body| body.as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(bodies(&page), ["4", "3"]);
    assert_eq!(counts(&page["counts"]), (5, 5));
    let next = page["next"].as_str().unwrap().to_owned();
    let page = inbox.get("acme", &next).await;
    assert_eq!(bodies(&page), ["2", "1"]);
    let page = inbox.get("acme", page["next"].as_str().unwrap()).await;
    assert_eq!(
        (bodies(&page), &page["next"]),
        (vec!["0".to_owned()], &json!(null))
    );
    let billing = inbox.get("acme", &format!("{path}?category=billing")).await;
    assert_eq!(bodies(&billing), ["0"]);

    let third = billing["messages"][0]["id"].as_str().unwrap().to_owned();
    let mark = json!({"ids": [third], "as": "archived"});
    let (status, marked) = inbox
        .ask("acme", Method::POST, &format!("{path}/mark"), Some(&mark))
        .await;
    assert_eq!(
        (status, &marked["changed"], counts(&marked)),
        (200, &json!(1), (4, 4))
    );
    for (state, wanted) in [
        ("archived", vec!["0"]),
        ("unread", vec!["4", "3", "2", "1"]),
        ("unseen", vec!["4", "3", "2", "1"]),
        ("seen", vec![]),
        ("read", vec![]),
    ] {
        let page = inbox.get("acme", &format!("{path}?state={state}")).await;
        assert_eq!(bodies(&page), wanted, "{state}");
    }
    let by_sql = inbox
        .sql(
            "acme",
            "select array_agg(i.body) as bodies from flyball.inbox('ada', 'unread', most => 2) i",
        )
        .await
        .unwrap();
    assert_eq!(by_sql["bodies"], json!(["4", "3"]));
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_move_states_and_counts_the_same_by_every_interface() {
    let inbox = InboxFixture::start().await;
    for _ in 0..4 {
        inbox.send("acme", "ada", json!({})).await;
    }
    let messages = inbox.inbox("acme", "ada", 4).await;
    let ids: Vec<&str> = messages
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();

    // All up to an id: the newest stays unseen.
    let mark = json!({"all_up_to": ids[1], "as": "seen"});
    let path = "/api/v1/recipients/ada/inbox/mark";
    let (_, marked) = inbox.ask("acme", Method::POST, path, Some(&mark)).await;
    assert_eq!((&marked["changed"], counts(&marked)), (&json!(3), (1, 4)));

    // By SQL, and a rollback marks nothing.
    let statement = format!(
        "select * from flyball.mark_inbox('ada', 'read', ids => '{{{}}}')",
        ids[3]
    );
    let marked = inbox.sql("acme", &statement).await.unwrap();
    assert_eq!((&marked["changed"], counts(&marked)), (&json!(1), (1, 3)));

    // By a frame; what is read was seen.
    let mut device = inbox.device("acme", "ada").await;
    device
        .send(&json!({"type": "inbox_mark", "ids": [ids[0]], "as": "read", "ref": "m"}))
        .await;
    let answer = device.next_of("inbox_counts").await;
    assert_eq!((counts(&answer), &answer["ref"]), ((0, 2), &json!("m")));
    device
        .send(&json!({"type": "inbox_list", "state": "read", "limit": 1, "ref": "l"}))
        .await;
    let page = device.next_of("inbox").await;
    assert_eq!(
        (
            &page["messages"][0]["id"],
            counts(&page["counts"]),
            &page["next"],
            &page["ref"]
        ),
        (&json!(ids[0]), (0, 2), &json!(ids[0]), &json!("l"))
    );
    let read = &page["messages"][0];
    assert!(
        read["seen_at"].is_string() && read["read_at"].is_string(),
        "{read}"
    );
    device
        .send(&json!({"type": "inbox_list", "state": "read", "cursor": ids[0]}))
        .await;
    let page = device.next_of("inbox").await;
    assert_eq!(
        (&page["messages"][0]["id"], &page["next"]),
        (&json!(ids[3]), &json!(null))
    );

    // Unread again; and once more, which changes nothing.
    for wanted in [1, 0] {
        let mark = json!({"ids": [ids[0]], "as": "unread"});
        let (_, marked) = inbox.ask("acme", Method::POST, path, Some(&mark)).await;
        assert_eq!(
            (&marked["changed"], counts(&marked)),
            (&json!(wanted), (0, 3))
        );
    }
    let by_counts = inbox
        .get("acme-reader", "/api/v1/recipients/ada/inbox/counts")
        .await;
    assert_eq!(counts(&by_counts), (0, 3));

    // All, by time, into the archive and back.
    let now = inbox
        .sql("", "select clock_timestamp() as now")
        .await
        .unwrap();
    for (mark, wanted) in [("archived", (0, 0)), ("unarchived", (0, 3))] {
        let mark = json!({"all_up_to": now["now"], "as": mark});
        let (_, marked) = inbox.ask("acme", Method::POST, path, Some(&mark)).await;
        assert_eq!((&marked["changed"], counts(&marked)), (&json!(4), wanted));
    }
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_by_every_interface_and_changes_nothing() {
    let inbox = InboxFixture::start().await;
    inbox.send("acme", "ada", json!({})).await;
    inbox.inbox("acme", "ada", 1).await;
    for (body, pointer) in [
        (json!({"recipient": "ada", "to": "bob"}), "/to"),
        (json!({"recipient": "check"}), "/recipient"),
        (json!({"recipient": "ada", "html": "<b>x</b>"}), "/html"),
        (json!({"recipient": "ada", "from": "us"}), "/from"),
        (json!({"recipient": "ada", "data": [1]}), "/data"),
        (
            json!({"recipient": "ada", "data": {"a": "x".repeat(17_000)}}),
            "/data",
        ),
        (
            json!({"recipient": "ada", "subject": "x".repeat(1025)}),
            "/subject",
        ),
        (
            json!({"recipient": "ada", "body": "x".repeat(16_385)}),
            "/body",
        ),
    ] {
        let mut message = json!({"channel": "inapp", "body": "x"});
        let fields = message.as_object_mut().unwrap();
        fields.extend(body.as_object().unwrap().clone());
        let (status, answer) = inbox
            .ask(
                "acme",
                Method::POST,
                "/api/v1/notifications",
                Some(&message),
            )
            .await;
        assert_eq!(
            (status, &answer["errors"][0]["pointer"]),
            (422, &json!(pointer)),
            "{answer}"
        );
    }
    let path = "/api/v1/recipients/ada/inbox";
    for query in ["cursor=x", "limit=101", "state=new", "color=1"] {
        let (status, answer) = inbox
            .ask("acme", Method::GET, &format!("{path}?{query}"), None)
            .await;
        assert_eq!(status, 400, "{query}: {answer}");
    }
    let (status, answer) = inbox
        .ask(
            "acme",
            Method::POST,
            &format!("{path}/mark"),
            Some(&json!({"as": "read"})),
        )
        .await;
    assert_eq!(
        (status, &answer["errors"][0]["pointer"]),
        (422, &json!("/ids"))
    );
    let refused = inbox.sql(
        "acme",
        "select flyball.mark_inbox('ada', 'blue', up_to => 9)",
    );
    let message = refused.await.unwrap_err().to_string();
    assert!(message.contains("mark: must be seen, read"), "{message}");
    let refused = inbox.sql("acme", "select flyball.mark_inbox('', 'read', up_to => 9)");
    let message = refused.await.unwrap_err().to_string();
    assert!(
        message.contains("mark_inbox: recipient: must be a text of 1 to 128 bytes"),
        "{message}"
    );
    let mut device = inbox.device("acme", "ada").await;
    device
        .send(&json!({"type": "inbox_mark", "all_up_to": "soon", "as": "read", "ref": "x"}))
        .await;
    let answer = device.next_of("error").await;
    assert_eq!(
        (&answer["code"], &answer["ref"]),
        (&json!("BAD_FRAME"), &json!("x"))
    );
    assert!(
        answer["message"].as_str().unwrap().contains("/all_up_to"),
        "{answer}"
    );
    let counted = inbox.get("acme", &format!("{path}/counts")).await;
    assert_eq!(counts(&counted), (1, 1));
    inbox.program.stop().await;
}
