//! Schedules as tokens see them: their arguments are masked like those of jobs.

use flyball::api::TokenScope;
use reqwest::Method;
use serde_json::{Value, json};

use super::tokens_fixture::{ADMIN, leave, secret, token_server};

#[tokio::test]
async fn no_answer_about_a_schedule_shows_credentials_recipients_or_contents() {
    let operator = leave(&[TokenScope::OpsRead]);
    let server = token_server(vec![("operator", None, operator)], "").await;
    let body = json!({"expression": "@daily", "kind": "http", "args": {
        "url": "https://ada:5up3r@example.org/report",
        "headers": {"authorization": "Bearer 5up3r", "accept": "text/plain"}}});
    let path = "/api/v1/crons/nightly";
    let (status, made) = server.call(Method::PUT, path, ADMIN, body.clone()).await;
    assert_eq!(status, 201, "{made}");
    let masked = json!({"url": "https://***@example.org/report",
        "headers": {"authorization": "***", "accept": "text/plain"}});
    assert_eq!(made["args"], masked);
    let message =
        json!({"channel": "email", "to": "ada@example.org", "body": "your code is 5up3r"});
    sqlx::query("select flyball.register_kind('notification')")
        .execute(server.database.pool())
        .await
        .unwrap();
    sqlx::query("select flyball.schedule('mail', '@daily', 'notification', $1)")
        .bind(message)
        .execute(server.database.pool())
        .await
        .unwrap();

    let token = secret("operator");
    let read = async |path: &str| {
        let (status, shown) = server.call(Method::GET, path, &token, Value::Null).await;
        assert_eq!(status, 200, "{path}: {shown}");
        shown
    };
    let listed = read("/api/v1/crons").await;
    assert_eq!(listed["crons"][0]["args"]["body"], "***");
    assert_eq!(listed["crons"][1]["args"], masked);

    // What was read is no replacement for what is stored.
    let mut back = body;
    back["args"] = masked;
    let (status, refused) = server.call(Method::PUT, path, ADMIN, back).await;
    assert_eq!(status, 422, "{refused}");
    let pointers: Vec<&Value> = refused["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| &error["pointer"])
        .collect();
    assert_eq!(pointers.len(), 2, "{refused}");
    assert!(pointers.contains(&&json!("/args/headers/authorization")));
    assert!(pointers.contains(&&json!("/args/url")));

    let (status, _) = server
        .call(Method::DELETE, "/api/v1/crons/mail", ADMIN, Value::Null)
        .await;
    assert_eq!(status, 204);
    for path in [path, "/api/v1/crons", "/api/v1/audit"] {
        let shown = read(path).await.to_string();
        assert!(!shown.contains("5up3r"), "{path}: {shown}");
        assert!(!shown.contains("ada@example.org"), "{path}: {shown}");
    }
    let stored: Value = sqlx::query_scalar("select args from flyball.cron where name = 'nightly'")
        .fetch_one(server.database.pool())
        .await
        .unwrap();
    assert_eq!(stored["headers"]["authorization"], "Bearer 5up3r");
}

#[tokio::test]
async fn a_group_shows_neither_the_recipient_nor_the_contents_of_its_callback() {
    let server = token_server(Vec::new(), "").await;
    sqlx::query("select flyball.register_kind('notification')")
        .execute(server.database.pool())
        .await
        .unwrap();
    let message =
        json!({"channel": "email", "to": "ada@example.org", "body": "your code is 5up3r"});
    let id: i64 = sqlx::query_scalar("select group_id from flyball.create_group($1)")
        .bind(json!({"kind": "notification", "args": message}))
        .fetch_one(server.database.pool())
        .await
        .unwrap();
    for path in ["/api/v1/groups".to_owned(), format!("/api/v1/groups/{id}")] {
        let (status, shown) = server.call(Method::GET, &path, ADMIN, Value::Null).await;
        let shown = shown.to_string();
        assert_eq!(status, 200, "{shown}");
        assert!(shown.contains("\"callback\":{"), "{shown}");
        assert!(
            !shown.contains("5up3r") && !shown.contains("ada@example.org"),
            "{shown}"
        );
    }
}
