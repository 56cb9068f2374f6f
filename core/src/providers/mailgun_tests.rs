use serde_json::json;

use super::super::examples::{self, NOW_S, answer, is};
use super::super::{Channel, Sent};
use super::*;

fn account(more: &[(&str, &str)]) -> Account {
    let options: Vec<_> = [("domain", "mg.example.com")]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    examples::account(&options, &[("api_key", "key-0123")])
}

fn driver(more: &[(&str, &str)]) -> Mailgun {
    Mailgun::new(&account(more), examples::tools().http).unwrap()
}

fn message(extra: Value) -> Message {
    examples::message(Channel::Email, "ann@example.com", extra)
}

#[test]
fn every_row_of_the_table_is_what_its_answer_becomes() {
    let driver = driver(&[]);
    for (row, status) in examples::rows(CODES) {
        let text = match row.code {
            "to parameter is not a valid address" => {
                "'to' parameter is not a valid address. please check documentation"
            }
            "authorized recipients" => {
                "Domain x is not allowed to send: add your address to authorized recipients"
            }
            _ => "Queued. Thank you.",
        };
        let id = if row.class == Class::Accepted {
            json!("<1.2@mg.example.com>")
        } else {
            Value::Null
        };
        let judged = driver.judge(
            &answer(
                status,
                &[],
                &json!({ "message": text, "id": id }).to_string(),
            ),
            NOW_S,
        );
        assert!(is(&judged.sent, row.class), "{row:?}: {judged:?}");
    }
}

#[test]
fn the_delay_comes_from_header_or_body_or_is_a_minute() {
    let delay = |headers: &[(&str, &str)], body: &str| match driver(&[])
        .judge(&answer(429, headers, body), NOW_S)
        .sent
    {
        Sent::Throttled { delay, .. } => delay.map(|delay| delay.as_secs()),
        other => panic!("{other:?}"),
    };
    assert_eq!(delay(&[], r#"{"retry-seconds":17}"#), Some(17));
    assert_eq!(delay(&[], r#"{"retry-seconds":"18"}"#), Some(18));
    assert_eq!(
        delay(&[("retry-after", "5")], r#"{"retry-seconds":17}"#),
        Some(5)
    );
    assert_eq!(delay(&[("x-ratelimit-reset", "1700000009")], ""), Some(9));
    for odd in [
        r#"{"retry-seconds":-1}"#,
        r#"{"retry-seconds":"soon"}"#,
        "Too Many Requests",
        "",
    ] {
        assert_eq!(delay(&[], odd), Some(60), "{odd}");
    }
    assert_eq!(delay(&[], r#"{"retry-seconds":1e300}"#), Some(60));
    assert_eq!(delay(&[], r#"{"retry-seconds":99999999}"#), Some(86_400));
}

#[test]
fn success_reports_the_id_without_brackets_and_garbage_is_no_success() {
    let judge = |status, body: &str| driver(&[]).judge(&answer(status, &[], body), NOW_S).sent;
    let id = "20240101.1.ABC@mg.example.com";
    let queued = json!({ "id": format!("<{id}>"), "message": "Queued. Thank you." }).to_string();
    assert_eq!(
        judge(200, &queued),
        Sent::Accepted {
            provider_id: Some(id.into())
        }
    );
    assert_eq!(judge(200, "<html>").as_str(), "ambiguous");
    assert_eq!(judge(202, &queued).as_str(), "ambiguous");
    assert_eq!(
        judge(502, "<html>"),
        Sent::Transient {
            reason: "answered 502: the answer is not Mailgun's".into()
        }
    );
    assert_eq!(judge(401, "Forbidden").reason(), "answered 401: Forbidden");
}

#[test]
fn the_request_is_a_form_with_basic_authentication() {
    let mut account = account(&[("from", "News <news@example.com>")]);
    account.base_url = Some("http://127.0.0.1:4010".into());
    account
        .headers
        .push(("x-team".into(), super::super::AccountSecret::new("growth")));
    let driver = Mailgun::new(&account, examples::tools().http).unwrap();
    let extra = json!({
        "reply_to": "help@example.com", "tags": ["a", "b"], "variables": { "k": "v" }, "headers": { "X-A": "1" },
        "template": "t", "template_variables": { "n": 1 }, "deliver_at": "Tue, 14 Nov 2023 22:13:20 +0000", "test_mode": true
    });
    let message = Message {
        html: Some("<b>".into()),
        ..message(extra)
    };
    assert_eq!(driver.check(&message), []);
    let call = driver.request(&message, Duration::from_secs(3));
    assert_eq!(
        (call.method, call.url.as_str()),
        ("POST", "http://127.0.0.1:4010/v3/mg.example.com/messages")
    );
    let authorization = words::basic("api", "key-0123");
    let form = "application/x-www-form-urlencoded";
    let expected = [
        ("authorization", authorization.as_str()),
        ("content-type", form),
        ("x-team", "growth"),
    ];
    assert_eq!(
        call.headers,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
    let fields: Vec<(String, String)> = url::form_urlencoded::parse(call.body.as_bytes())
        .into_owned()
        .collect();
    let expected = [
        ("from", "News <news@example.com>"),
        ("to", "ann@example.com"),
        ("subject", "Hello"),
        ("text", "Good day"),
        ("html", "<b>"),
        ("template", "t"),
        ("t:variables", r#"{"n":1}"#),
        ("h:Reply-To", "help@example.com"),
        ("h:X-A", "1"),
        ("o:tag", "a"),
        ("o:tag", "b"),
        ("o:deliverytime", "Tue, 14 Nov 2023 22:13:20 +0000"),
        ("o:testmode", "yes"),
        ("v:k", "v"),
        ("v:flyball_id", "job_1_2"),
    ];
    assert_eq!(
        fields,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn messages_are_checked_field_by_field() {
    let pointers = |driver: &Mailgun, message: &Message| {
        driver
            .check(message)
            .into_iter()
            .map(|i| i.pointer)
            .collect::<Vec<_>>()
    };
    assert_eq!(pointers(&driver(&[]), &message(json!({}))), ["/from"]);
    let bad = Message {
        body: String::new(),
        ..message(json!({ "bcc": "x", "tags": 1, "reply_to": "?" }))
    };
    let expected = ["/extra/bcc", "/extra/tags", "/extra/reply_to", "/body"];
    assert_eq!(pointers(&driver(&[("from", "a@b.c")]), &bad), expected);
    for (extra, expected) in [
        (
            json!({ "deliver_at": "2026-12-01T08:00:00Z" }),
            "/extra/deliver_at",
        ),
        (json!({ "deliver_at": "nonsense" }), "/extra/deliver_at"),
        (json!({ "tags": vec!["a"; 11] }), "/extra/tags"),
        (json!({ "tags": "ä" }), "/extra/tags"),
        (
            json!({ "headers": { "Bcc": "b@y.example" } }),
            "/extra/headers/Bcc",
        ),
        (
            json!({ "headers": { "X-A": "a\r\nBcc: b@y.example" } }),
            "/extra/headers/X-A",
        ),
        (
            json!({ "reply_to": "a@x.example, b@y.example" }),
            "/extra/reply_to",
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
    assert_eq!(refused(account(&[])), None);
    assert_eq!(
        refused(examples::account(&[("domain", "a.b")], &[])),
        Some("api_key".into())
    );
    assert_eq!(
        refused(examples::account(&[], &[("api_key", "k")])),
        Some("domain".into())
    );
    assert_eq!(
        refused(examples::account(
            &[("domain", "a/../b")],
            &[("api_key", "k")]
        )),
        Some("domain".into())
    );
    assert_eq!(
        refused(account(&[("region", "mars")])),
        Some("region".into())
    );
    assert_eq!(refused(account(&[("from", "nobody")])), Some("from".into()));
    assert_eq!(
        refused(account(&[("webhook_max_age_s", "-1")])),
        Some("webhook_max_age_s".into())
    );
    assert_eq!(
        driver(&[("region", "eu")]).url,
        "https://api.eu.mailgun.net/v3/mg.example.com/messages"
    );
}
