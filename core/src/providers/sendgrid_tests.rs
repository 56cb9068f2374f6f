use super::super::examples::{self, NOW_S, answer, is};
use super::super::{Channel, Sent};
use super::*;
use crate::jobs::Quota;

fn account(options: &[(&str, &str)]) -> Account {
    examples::account(options, &[("api_key", "SG.the-key")])
}

fn driver(options: &[(&str, &str)]) -> Sendgrid {
    Sendgrid::new(&account(options), examples::tools().http).unwrap()
}

fn message(extra: Value) -> Message {
    examples::message(Channel::Email, "ann@example.com", extra)
}

fn error(row: &Code) -> String {
    let (field, text) = match row.code {
        "maximum credits exceeded" => (Value::Null, "Maximum credits exceeded"),
        "personalizations.to.email" => (
            "personalizations.0.to.0.email".into(),
            "Does not contain a valid address.",
        ),
        "" => (Value::Null, "it says so"),
        field => (field.into(), "it says so"),
    };
    json!({ "errors": [{ "message": text, "field": field, "help": null }] }).to_string()
}

#[test]
fn every_row_of_the_table_is_what_its_answer_becomes() {
    let driver = driver(&[]);
    for (row, status) in examples::rows(CODES) {
        let judged = driver.judge(
            &answer(
                status,
                &[],
                &if status == 202 {
                    String::new()
                } else {
                    error(row)
                },
            ),
            NOW_S,
        );
        assert!(is(&judged.sent, row.class), "{row:?}: {judged:?}");
    }
}

#[test]
fn success_reports_the_id_and_what_is_left() {
    let date = [
        ("date", "Tue, 14 Nov 2023 22:13:20 GMT"),
        ("x-ratelimit-reset", "1700000030"),
        ("x-ratelimit-remaining", "40"),
    ];
    let headers: Vec<_> = [("x-message-id", "abc123")]
        .into_iter()
        .chain(date)
        .collect();
    let judged = driver(&[]).judge(&answer(202, &headers, ""), NOW_S + 999);
    assert_eq!(
        judged.sent,
        Sent::Accepted {
            provider_id: Some("abc123".into())
        }
    );
    assert_eq!(
        judged.quota,
        Some(Quota {
            remaining: 40.0,
            reset: Duration::from_secs(30)
        })
    );
    assert_eq!(
        driver(&[]).judge(&answer(202, &[], ""), NOW_S).sent,
        Sent::Accepted { provider_id: None }
    );
}

#[test]
fn a_reset_at_a_unix_time_is_counted_by_the_answers_own_clock() {
    let body = r#"{"errors":[{"field":null,"message":"too many requests"}]}"#;
    let headers = [
        ("date", "Tue, 14 Nov 2023 22:13:20 GMT"),
        ("x-ratelimit-reset", "1700000012"),
        ("x-ratelimit-remaining", "0"),
    ];
    let judged = driver(&[]).judge(&answer(429, &headers, body), NOW_S + 500);
    let reason = "answered 429: too many requests".to_owned();
    assert_eq!(
        judged.sent,
        Sent::Throttled {
            scope: Scope::Account,
            key: None,
            delay: Some(Duration::from_secs(12)),
            reason
        }
    );
    let bare = driver(&[]).judge(&answer(429, &[], body), NOW_S).sent;
    assert!(
        matches!(bare, Sent::Throttled { delay: None, .. }),
        "{bare:?}"
    );
}

#[test]
fn garbage_is_neither_success_nor_shown() {
    let judged = driver(&[])
        .judge(&answer(502, &[], "<html>Bad Gateway</html>"), NOW_S)
        .sent;
    assert_eq!(
        judged,
        Sent::Transient {
            reason: "answered 502: the answer is not SendGrid's".into()
        }
    );
    assert_eq!(
        driver(&[])
            .judge(&answer(200, &[], "<html>"), NOW_S)
            .sent
            .as_str(),
        "ambiguous"
    );
    assert_eq!(
        driver(&[])
            .judge(&answer(301, &[], ""), NOW_S)
            .sent
            .as_str(),
        "account_failure"
    );
}

#[test]
fn the_request_is_json_with_a_bearer() {
    let mut account = account(&[
        ("from", "News <news@example.com>"),
        ("ip_pool_name", "fast"),
    ]);
    account.base_url = Some("http://127.0.0.1:4010".into());
    account
        .headers
        .push(("x-team".into(), super::super::AccountSecret::new("growth")));
    let driver = Sendgrid::new(&account, examples::tools().http).unwrap();
    let message = Message {
        html: Some("<b>Good day</b>".into()),
        ..message(json!({}))
    };
    assert_eq!(driver.check(&message), []);
    let call = driver.request(&message, Duration::from_secs(3));
    assert_eq!(
        (call.method, call.url.as_str()),
        ("POST", "http://127.0.0.1:4010/v3/mail/send")
    );
    let expected = [
        ("authorization", "Bearer SG.the-key"),
        ("content-type", "application/json"),
        ("x-team", "growth"),
    ];
    assert_eq!(
        call.headers,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    let body: Value = serde_json::from_str(&call.body).unwrap();
    let expected = json!({
        "personalizations": [{ "to": [{ "email": "ann@example.com" }], "custom_args": { "flyball_id": "job_1_2" } }],
        "from": { "email": "news@example.com", "name": "News" },
        "subject": "Hello",
        "content": [{ "type": "text/plain", "value": "Good day" }, { "type": "text/html", "value": "<b>Good day</b>" }],
        "ip_pool_name": "fast",
    });
    assert_eq!(body, expected);
}

#[test]
fn extras_have_their_places() {
    let extra = json!({
        "reply_to": "Help <help@example.com>", "categories": "week", "custom_args": { "a": "b" }, "headers": { "X-A": "1" },
        "template_id": "d-1", "dynamic_template_data": { "n": 1 }, "asm_group_id": 7, "send_at": 1_700_000_100
    });
    let driver = driver(&[("from", "news@example.com")]);
    let message = Message {
        subject: None,
        body: String::new(),
        from: Some("me@example.com".into()),
        ..message(extra)
    };
    assert_eq!(driver.check(&message), []);
    let body: Value =
        serde_json::from_str(&driver.request(&message, Duration::from_secs(3)).body).unwrap();
    let expected = json!({
        "personalizations": [{
            "to": [{ "email": "ann@example.com" }], "dynamic_template_data": { "n": 1 }, "custom_args": { "a": "b", "flyball_id": "job_1_2" }
        }],
        "from": { "email": "me@example.com" }, "reply_to": { "email": "help@example.com", "name": "Help" },
        "template_id": "d-1", "categories": ["week"], "headers": { "X-A": "1" }, "send_at": 1_700_000_100,
        "asm": { "group_id": 7 },
    });
    assert_eq!(body, expected);
}

#[test]
fn messages_are_checked_field_by_field() {
    let pointers = |driver: &Sendgrid, message: &Message| {
        driver
            .check(message)
            .into_iter()
            .map(|i| i.pointer)
            .collect::<Vec<_>>()
    };
    assert_eq!(pointers(&driver(&[]), &message(json!({}))), ["/from"]);
    let bad = Message {
        from: Some("b".into()),
        subject: None,
        body: String::new(),
        ..message(json!({ "cc": "x" }))
    };
    assert_eq!(
        pointers(&driver(&[]), &bad),
        ["/extra/cc", "/from", "/subject", "/body"]
    );
    let large = Message {
        body: "x".repeat(BODY_BYTES + 1),
        subject: Some("a\nb".into()),
        ..message(json!({ "reply_to": "x" }))
    };
    assert_eq!(
        pointers(&driver(&[("from", "a@b.c")]), &large),
        ["/extra/reply_to", "/subject", "/body"]
    );
    for (extra, expected) in [
        (json!({ "categories": vec!["a"; 11] }), "/extra/categories"),
        (
            json!({ "categories": "x".repeat(256) }),
            "/extra/categories",
        ),
        (
            json!({ "custom_args": { "a": "x".repeat(10_000) } }),
            "/extra/custom_args",
        ),
        (
            json!({ "headers": { "received": "x" } }),
            "/extra/headers/received",
        ),
        (
            json!({ "headers": { "Cc": "b@y.example" } }),
            "/extra/headers/Cc",
        ),
    ] {
        assert_eq!(
            pointers(&driver(&[("from", "a@b.c")]), &message(extra.clone())),
            [expected],
            "{extra}"
        );
    }
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let refused = |account: Account| {
        build(&account, &examples::tools())
            .err()
            .map(|refused| refused.field)
    };
    assert_eq!(refused(account(&[("region", "eu")])), None);
    assert_eq!(refused(examples::account(&[], &[])), Some("api_key".into()));
    assert_eq!(
        refused(account(&[("region", "mars")])),
        Some("region".into())
    );
    assert_eq!(refused(account(&[("from", "nobody")])), Some("from".into()));
    assert_eq!(
        refused(account(&[("ip_pool_name", "x")])),
        Some("ip_pool_name".into())
    );
    assert_eq!(
        refused(account(&[("webhook_public_key", "%%")])),
        Some("webhook_public_key".into())
    );
    assert_eq!(
        refused(account(&[("webhook_max_age_s", "soon")])),
        Some("webhook_max_age_s".into())
    );
    assert_eq!(
        driver(&[("region", "eu")]).url,
        "https://api.eu.sendgrid.com/v3/mail/send"
    );
}
