//! Neither a tenant nor a recipient reaches another's inbox.

use reqwest::Method;
use serde_json::json;

use super::fixture::{InboxFixture, counts};

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_of_a_tenants_recipient_is_not_that_of_another_tenants() {
    let inbox = InboxFixture::start().await;
    inbox.send("acme", "ada", json!({"body": "secret"})).await;
    let messages = inbox.inbox("acme", "ada", 1).await;
    let id = messages[0]["id"].as_str().unwrap().to_owned();
    let mut of_zeta = inbox.device("zeta", "ada").await;

    let path = "/api/v1/recipients/ada/inbox";
    let page = inbox.get("zeta", path).await;
    assert_eq!(
        (&page["messages"], counts(&page["counts"])),
        (&json!([]), (0, 0))
    );
    let (status, _) = inbox
        .ask("zeta", Method::GET, &format!("{path}?tenant=acme"), None)
        .await;
    assert_eq!(status, 403);
    let mark = json!({"ids": [id], "as": "read"});
    let (_, marked) = inbox
        .ask("zeta", Method::POST, &format!("{path}/mark"), Some(&mark))
        .await;
    assert_eq!(marked["changed"], 0);
    let statement = format!("select * from flyball.mark_inbox('ada', 'read', ids => '{{{id}}}')");
    let marked = inbox.sql("zeta", &statement).await.unwrap();
    assert_eq!(marked["changed"], 0);
    of_zeta
        .send(&json!({"type": "inbox_mark", "ids": [id], "as": "read"}))
        .await;
    assert_eq!(counts(&of_zeta.next_of("inbox_counts").await), (0, 0));
    of_zeta.send(&json!({"type": "inbox_list"})).await;
    assert_eq!(of_zeta.next_of("inbox").await["messages"], json!([]));

    // The next frame that zeta's device gets is its own.
    inbox
        .send("acme", "ada", json!({"body": "another secret"}))
        .await;
    inbox.inbox("acme", "ada", 2).await;
    inbox.send("zeta", "ada", json!({"body": "own"})).await;
    let told = of_zeta.next_of("message").await;
    assert_eq!(told["data"]["message"]["body"], "own");
    let counted = inbox.get("acme", &format!("{path}/counts")).await;
    assert_eq!(counts(&counted), (2, 2));
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipient_reads_and_marks_its_own_inbox_alone() {
    let inbox = InboxFixture::start().await;
    inbox.send("acme", "ada", json!({"body": "for ada"})).await;
    let messages = inbox.inbox("acme", "ada", 1).await;
    let id = messages[0]["id"].clone();
    let mut bob = inbox.device("acme", "bob").await;
    let answer = bob.subscribe("$inbox/ada").await;
    assert_eq!(answer["code"], "FORBIDDEN_CHANNEL");
    bob.send(&json!({"type": "inbox_mark", "ids": [id], "as": "archived"}))
        .await;
    assert_eq!(counts(&bob.next_of("inbox_counts").await), (0, 0));
    bob.send(&json!({"type": "inbox_list", "recipient": "ada"}))
        .await;
    assert_eq!(bob.next_of("error").await["code"], "BAD_FRAME");
    bob.send(&json!({"type": "inbox_list"})).await;
    assert_eq!(bob.next_of("inbox").await["messages"], json!([]));
    inbox.inbox("acme", "ada", 1).await;
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_recipient_and_a_token_without_the_scope_have_no_inbox() {
    let inbox = InboxFixture::start().await;
    let bearer = "Bearer 0123456789-acme-token";
    let headers = [("authorization", bearer)];
    let mut client =
        crate::gateway::client::WsClient::with(&inbox.base(), "/api/v1/ws", &headers).await;
    for frame in [
        json!({"type": "inbox_list"}),
        json!({"type": "inbox_mark", "ids": ["1"], "as": "read"}),
    ] {
        client.send(&frame).await;
        assert_eq!(client.next_of("error").await["code"], "FORBIDDEN_CHANNEL");
    }
    let path = "/api/v1/recipients/ada/inbox";
    let mark = json!({"ids": ["1"], "as": "read"});
    for (name, method, path, body) in [
        (
            "acme-reader",
            Method::POST,
            format!("{path}/mark"),
            Some(&mark),
        ),
        ("zeta-jobs", Method::GET, path.to_owned(), None),
        ("zeta-jobs", Method::GET, format!("{path}/counts"), None),
    ] {
        let (status, answer) = inbox.ask(name, method, &path, body).await;
        assert_eq!(
            (status, &answer["code"]),
            (403, &json!("scope_missing")),
            "{path}"
        );
    }
    inbox.program.stop().await;
}
