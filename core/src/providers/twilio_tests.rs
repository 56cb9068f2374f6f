use serde_json::json;

use super::super::Channel;
use super::super::Sent;
use super::super::examples::{self, NOW_S, answer, is};
use super::*;

const SID: &str = "AC00000000000000000000000000000001";

fn account(more: &[(&str, &str)]) -> Account {
    let options: Vec<_> = [("account_sid", SID)]
        .into_iter()
        .chain(more.iter().copied())
        .collect();
    examples::account(&options, &[("auth_token", "the-auth-token")])
}

fn driver(more: &[(&str, &str)]) -> Twilio {
    Twilio::new(&account(more), examples::tools().http).unwrap()
}

fn message(extra: Value) -> Message {
    examples::message(Channel::Sms, "+4915112345678", extra)
}

fn error(code: &str) -> String {
    let code = code.parse::<i64>().map_or(Value::Null, Value::from);
    json!({ "code": code, "message": "it says so", "more_info": "https://www.twilio.com/docs", "status": 400 }).to_string()
}

#[test]
fn every_row_of_the_table_is_what_its_answer_becomes() {
    let driver = driver(&[("from", "+15550100")]);
    for (row, status) in examples::rows(CODES) {
        let body = if row.class == Class::Accepted {
            json!({ "sid": "SM1", "status": "queued" }).to_string()
        } else {
            error(row.code)
        };
        let judged = driver.judge(&message(json!({})), &answer(status, &[], &body), NOW_S);
        assert!(is(&judged.sent, row.class), "{row:?}: {judged:?}");
        assert_eq!(judged.status, status.to_string());
    }
}

#[test]
fn a_full_queue_names_its_sender_and_a_flood_its_recipient() {
    let full = answer(400, &[], &error("21611"));
    let key = |driver: &Twilio, message: &Message, answer: &HttpAnswer| match driver
        .judge(message, answer, NOW_S)
        .sent
    {
        Sent::Throttled { key, delay, .. } => (key, delay.map(|delay| delay.as_secs())),
        other => panic!("{other:?}"),
    };
    let both = driver(&[
        ("from", "+15550100"),
        ("messaging_service_sid", "MG000000000001"),
    ]);
    assert_eq!(
        key(&both, &message(json!({})), &full),
        (Some("+15550100".into()), Some(60))
    );
    let other = Message {
        from: Some("NEWS".into()),
        ..message(json!({}))
    };
    assert_eq!(key(&both, &other, &full), (Some("NEWS".into()), Some(60)));
    let service = driver(&[("messaging_service_sid", "MG000000000001")]);
    assert_eq!(
        key(&service, &message(json!({})), &full),
        (Some("MG000000000001".into()), Some(60))
    );
    assert_eq!(
        key(
            &both,
            &message(json!({})),
            &answer(429, &[], &error("14107"))
        ),
        (Some("+4915112345678".into()), Some(30))
    );
    assert_eq!(
        key(
            &both,
            &message(json!({})),
            &answer(429, &[], &error("20429"))
        ),
        (None, None)
    );
    assert_eq!(
        key(
            &both,
            &message(json!({})),
            &answer(429, &[("retry-after", "7")], &error("20429"))
        ),
        (None, Some(7))
    );
    assert_eq!(
        key(&both, &message(json!({})), &answer(429, &[], "")),
        (None, None)
    );
}

#[test]
fn success_reports_the_id_and_garbage_is_no_success() {
    let driver = driver(&[("from", "+15550100")]);
    let judge = |status, body: &str| {
        driver
            .judge(&message(json!({})), &answer(status, &[], body), NOW_S)
            .sent
    };
    assert_eq!(
        judge(201, r#"{"sid":"SM123","status":"queued"}"#),
        Sent::Accepted {
            provider_id: Some("SM123".into())
        }
    );
    for (status, body) in [
        (201, "{}"),
        (201, "<html>"),
        (200, r#"{"sid":"SM1"}"#),
        (204, ""),
    ] {
        assert_eq!(judge(status, body).as_str(), "ambiguous", "{status} {body}");
    }
    let html = judge(502, "<html><h1>Bad Gateway</h1></html>");
    assert_eq!(
        html,
        Sent::Transient {
            reason: "answered 502: the answer is not Twilio's".into()
        }
    );
    assert_eq!(judge(302, "").as_str(), "account_failure");
    assert_eq!(judge(418, "").as_str(), "permanent_request");
}

#[test]
fn reasons_hide_numbers_and_credentials() {
    let body =
        json!({ "code": 21211, "message": "+4915112345678 is not valid; the-auth-token\nis fine" })
            .to_string();
    let judged = driver(&[]).judge(&message(json!({})), &answer(400, &[], &body), NOW_S);
    assert_eq!(
        judged.sent.reason(),
        "answered 400 (21211): *** is not valid; *** is fine"
    );
}

#[test]
fn the_request_is_a_form_with_basic_authentication() {
    let mut account = account(&[
        ("from", "+15550100"),
        ("status_callback", "https://x.example/e?a=1"),
    ]);
    account.base_url = Some("http://127.0.0.1:4010/".into());
    account
        .headers
        .push(("x-team".into(), super::super::AccountSecret::new("growth")));
    let driver = Twilio::new(&account, examples::tools().http).unwrap();
    let call = driver.request(&message(json!({})), NOW_S, Duration::from_secs(3));
    assert_eq!(
        (call.method, call.timeout),
        ("POST", Duration::from_secs(3))
    );
    assert_eq!(
        call.url,
        format!("http://127.0.0.1:4010/2010-04-01/Accounts/{SID}/Messages.json")
    );
    let header = |name: &str| {
        call.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    assert_eq!(
        header("authorization"),
        Some(words::basic(SID, "the-auth-token").as_str())
    );
    assert_eq!(
        header("content-type"),
        Some("application/x-www-form-urlencoded")
    );
    assert_eq!(header("x-team"), Some("growth"));
    assert_eq!(
        call.body,
        "To=%2B4915112345678&From=%2B15550100&Body=Good+day&StatusCallback=https%3A%2F%2Fx.example%2Fe%3Fa%3D1"
    );
}

#[test]
fn extras_and_expiry_become_fields_of_the_form() {
    let extra = json!({
        "media_url": ["https://x.example/1.png", "https://x.example/2.png"], "content_sid": "HX1",
        "content_variables": { "1": "Ann" }, "max_price": "0.05", "smart_encoded": true
    });
    let driver = driver(&[("messaging_service_sid", "MG000000000001")]);
    let message = Message {
        expires_at_s: Some(NOW_S + 90),
        ..message(extra)
    };
    assert_eq!(driver.check(&message), []);
    let body = driver.request(&message, NOW_S, Duration::from_secs(1)).body;
    let fields: Vec<(String, String)> = url::form_urlencoded::parse(body.as_bytes())
        .into_owned()
        .collect();
    let of = |name: &str| {
        fields
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of("MediaUrl"),
        ["https://x.example/1.png", "https://x.example/2.png"]
    );
    assert_eq!(
        (of("ContentSid"), of("ContentVariables")),
        (vec!["HX1"], vec![r#"{"1":"Ann"}"#])
    );
    assert_eq!(
        (of("ValidityPeriod"), of("MaxPrice"), of("SmartEncoded")),
        (vec!["90"], vec!["0.05"], vec!["true"])
    );
    assert_eq!(
        (of("From"), of("MessagingServiceSid")),
        (Vec::<&str>::new(), vec!["MG000000000001"])
    );
    let late = Message {
        extra: json!({ "send_at": "2026-12-01T08:00:00Z" })
            .as_object()
            .unwrap()
            .clone(),
        ..message
    };
    let body = driver.request(&late, NOW_S, Duration::from_secs(1)).body;
    assert!(
        body.contains("ScheduleType=fixed&SendAt=2026-12-01T08%3A00%3A00Z")
            && !body.contains("ValidityPeriod"),
        "{body}"
    );
}

#[test]
fn messages_are_checked_field_by_field() {
    let pointers = |driver: &Twilio, message: &Message| {
        driver
            .check(message)
            .into_iter()
            .map(|i| i.pointer)
            .collect::<Vec<_>>()
    };
    let with = driver(&[("from", "NEWS")]);
    assert_eq!(pointers(&with, &message(json!({}))), Vec::<String>::new());
    assert_eq!(pointers(&driver(&[]), &message(json!({}))), ["/from"]);
    let bad = Message {
        from: Some("much too long a name".into()),
        body: "x".repeat(1601),
        ..message(json!({ "x/y": 1 }))
    };
    assert_eq!(pointers(&with, &bad), ["/extra/x~1y", "/from", "/body"]);
    assert_eq!(
        pointers(
            &with,
            &Message {
                body: String::new(),
                ..message(json!({}))
            }
        ),
        ["/body"]
    );
    assert_eq!(
        pointers(
            &with,
            &Message {
                body: "ä".repeat(1600),
                ..message(json!({ "media_url": 7 }))
            }
        ),
        ["/extra/media_url"]
    );
    for (extra, expected) in [
        (
            json!({ "media_url": vec!["https://x.example/1.png"; 11] }),
            vec!["/extra/media_url"],
        ),
        (json!({ "media_url": "x.png" }), vec!["/extra/media_url"]),
        (
            json!({ "send_at": "2026-12-01T08:00:00Z" }),
            vec!["/extra/send_at"],
        ),
        (
            json!({ "send_at": "nonsense" }),
            vec!["/extra/send_at", "/extra/send_at"],
        ),
        (
            json!({ "validity_period": 36_001, "content_sid": "H1", "max_price": "dear" }),
            vec![
                "/extra/validity_period",
                "/extra/content_sid",
                "/extra/max_price",
            ],
        ),
    ] {
        assert_eq!(
            pointers(&with, &message(extra.clone())),
            expected,
            "{extra}"
        );
    }
    let serviced = driver(&[("messaging_service_sid", "MG000000000001")]);
    assert_eq!(
        pointers(
            &serviced,
            &message(json!({ "send_at": "2026-12-01T08:00:00+01:00" }))
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        pointers(
            &serviced,
            &message(json!({ "send_at": "Tue, 24 Nov 2026 18:00:00 +0000" }))
        ),
        ["/extra/send_at"]
    );
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
        refused(examples::account(&[], &[("auth_token", "x")])),
        Some("account_sid".into())
    );
    assert_eq!(
        refused(examples::account(
            &[("account_sid", "../etc")],
            &[("auth_token", "x")]
        )),
        Some("account_sid".into())
    );
    assert_eq!(
        refused(examples::account(&[("account_sid", SID)], &[])),
        Some("auth_token".into())
    );
    assert_eq!(
        refused(account(&[("api_key_sid", "SK1")])),
        Some("api_key_secret".into())
    );
    assert_eq!(refused(account(&[("from", "+0")])), Some("from".into()));
    assert_eq!(
        refused(account(&[("messaging_service_sid", "XX1")])),
        Some("messaging_service_sid".into())
    );
    assert_eq!(
        refused(account(&[("status_callback", "example.com")])),
        Some("status_callback".into())
    );
    assert_eq!(
        refused(Account {
            base_url: Some("nowhere".into()),
            ..account(&[])
        }),
        Some("base_url".into())
    );
}
