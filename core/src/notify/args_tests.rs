use serde_json::json;

use super::*;

fn wrong(args: Value) -> Vec<String> {
    match NotificationArgs::parse(&args) {
        Ok(_) => Vec::new(),
        Err(issues) => issues
            .into_iter()
            .map(|issue| format!("{} {}", issue.pointer, issue.message))
            .collect(),
    }
}

#[test]
fn a_message_with_a_body_or_a_template_is_read() {
    let plain =
        NotificationArgs::parse(&json!({"channel": "sms", "to": "+15550100", "body": "hello"}))
            .ok()
            .unwrap();
    assert_eq!(
        (
            plain.channel,
            plain.category.as_str(),
            plain.fill(|| false).unwrap().body.as_str()
        ),
        (Channel::Sms, "transactional", "hello")
    );
    let args = json!({
        "channel": "email", "to": "a@example.com", "category": "marketing", "priority": "critical", "valid_for_s": 60,
        "template": {"subject": "Hi {{ name }}", "body": "Dear {{ name }}", "html": "<p>{{ name }}</p>"}, "data": {"name": "Ada"},
    });
    let filled = NotificationArgs::parse(&args).ok().unwrap();
    let texts = filled.fill(|| false).unwrap();
    assert_eq!(
        (
            texts.subject.as_deref(),
            texts.body.as_str(),
            texts.html.as_deref()
        ),
        (Some("Hi Ada"), "Dear Ada", Some("<p>Ada</p>"))
    );
    assert_eq!(filled.valid_for, Some(Duration::from_secs(60)));
}

#[test]
fn what_a_value_says_is_text_in_html_and_stays_as_it_is_elsewhere() {
    let args = json!({
        "channel": "email", "to": "a@example.com",
        "template": {"subject": "{{ name }}", "body": "{{ name }}", "html": "<p>{{ name }}{{ sign|safe }}</p>"},
        "data": {"name": "<b>Ada</b>", "sign": "<hr>"},
    });
    let texts = NotificationArgs::parse(&args).ok().unwrap().fill(|| false);
    let texts = texts.unwrap();
    assert_eq!(
        (texts.subject.as_deref(), texts.body.as_str()),
        (Some("<b>Ada</b>"), "<b>Ada</b>")
    );
    assert_eq!(
        texts.html.as_deref(),
        Some("<p>&lt;b&gt;Ada&lt;&#x2f;b&gt;<hr></p>")
    );
}

#[test]
fn the_subject_of_a_mail_is_one_line() {
    let sent = |channel: &str, to: &str, subject: &str| {
        let args = json!({"channel": channel, "to": to, "subject": subject, "body": "x"});
        let read = NotificationArgs::parse(&args).ok().unwrap();
        let to = read.to.clone().unwrap();
        let message = read.message("job_1".to_owned(), to, read.texts.clone(), None);
        message.subject.unwrap()
    };
    for (subject, line) in [
        ("Hi", "Hi"),
        (" as  it is ", " as  it is "),
        (
            "failed:\n  line 1\r\nBcc: x@example.com\n",
            "failed: line 1 Bcc: x@example.com",
        ),
        ("a\tb\u{2028}c\u{7}", "a b c"),
        ("\n", ""),
    ] {
        assert_eq!(sent("email", "a@example.com", subject), line);
    }
    assert_eq!(sent("push", "token", "two\nlines"), "two\nlines");
}

#[test]
fn everything_that_is_wrong_is_listed_and_no_address_is_shown() {
    let issues = wrong(
        json!({"channel": "fax", "to": 7, "priority": "urgent", "colour": 1, "valid_for_s": 0, "on_ambiguous": "drop"}),
    );
    for expected in [
        "/colour is not a known field; allowed: channel, to, from",
        "/channel must be sms, email, push, chat, webhook or inapp",
        "/to must be a text",
        "/body is missing",
        "/priority must be critical, high, normal or low",
        "/valid_for_s must be a number from 1 to",
        "/on_ambiguous must be retry or dead",
    ] {
        assert!(
            issues.iter().any(|issue| issue.starts_with(expected)),
            "{expected}: {issues:?}"
        );
    }
    assert!(wrong(json!([])).join("").contains("must be an object"));
    let nothing = wrong(json!({"channel": "sms", "to": null, "body": 7}));
    assert_eq!(
        nothing,
        [
            "/to is missing: it must be the recipient of the message",
            "/body must be a text"
        ]
    );
}

#[test]
fn what_only_a_provider_understands_may_be_the_message() {
    assert_eq!(
        wrong(json!({"channel": "push", "to": "token", "extra": {"data": {"order": "4711"}}})),
        Vec::<String>::new()
    );
    assert!(
        wrong(json!({"channel": "push", "to": "token", "extra": {}}))[0]
            .starts_with("/body is missing")
    );
}

#[test]
fn templates_are_bounded_and_stand_alone() {
    let base = |more: Value| {
        let mut args = json!({"channel": "sms", "to": "+15550100"});
        args.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        wrong(args).join("; ")
    };
    assert!(base(json!({"template": "{% set a = 1 %}"})).contains("/template/body"));
    assert!(
        base(json!({"template": "a", "body": "b"}))
            .contains("/body must be left out beside a template")
    );
    assert!(
        base(json!({"body": "b", "data": {}}))
            .contains("/data must be left out without a template")
    );
    assert!(
        base(json!({"template": {"text": "b"}})).contains("/template/text is not a known field")
    );
}

#[test]
fn refusals_are_as_pinned() {
    let sms = |more: Value| {
        let mut args = json!({"channel": "sms", "to": "+15550100", "body": "b"});
        args.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        args
    };
    let cases = [
        json!([]),
        json!({}),
        json!({"channel": "fax", "to": 7, "body": 7}),
        json!({"channel": 1, "to": "", "body": "b"}),
        json!({"channel": "sms", "to": "nobody", "body": "b"}),
        sms(json!({"colour": 1, "subjekt": "s", "a/b": 1})),
        sms(json!({"priority": "urgent", "on_ambiguous": "drop", "valid_for_s": 0})),
        sms(json!({"priority": 1, "on_ambiguous": 2, "valid_for_s": "1"})),
        sms(json!({"from": "", "category": "x".repeat(65), "provider": 1})),
        sms(json!({"extra": []})),
        sms(json!({"subject": 1, "html": 2})),
        sms(json!({"data": {}})),
        sms(json!({"template": "a"})),
        json!({"channel": "sms", "to": "+15550100"}),
        json!({"channel": "sms", "to": "+15550100", "template": 7}),
        json!({"channel": "sms", "to": "+15550100", "template": "a", "data": 1}),
        json!({"channel": "sms", "to": "+15550100", "template": "{{ a"}),
        json!({"channel": "sms", "to": "+15550100", "template": {"text": "b", "subject": 1}}),
        sms(json!({"local_time": "9:00"})),
        sms(json!({"local_time": "09:00", "digest": "likes"})),
    ];
    crate::input::pinned::check(
        "notification",
        cases.map(|args| (args.to_string(), wrong(args))),
    );
}

#[test]
fn a_message_names_no_recipient_that_nobody_can_erase() {
    for (id, message) in [
        (
            "a\nb",
            "must be a text of 1 to 128 bytes without control characters",
        ),
        (
            "..",
            "must not be check, . or .., which cannot be in a path",
        ),
    ] {
        let args = json!({"channel": "sms", "to": "+15550100", "body": "b", "recipient": id});
        assert_eq!(wrong(args), [format!("/recipient {message}")]);
    }
}

#[test]
fn the_address_in_the_inbox_is_the_id_of_the_recipient() {
    let to = |args: Value| {
        let read = NotificationArgs::parse(&args).ok().unwrap();
        assert!(read.is_gated, "{args}");
        read.to.unwrap().address().to_owned()
    };
    let by_recipient =
        json!({"channel": "inapp", "recipient": "ada", "body": "x", "data": {"n": 1}});
    assert_eq!(to(by_recipient), "ada");
    assert_eq!(
        to(json!({"channel": "inapp", "to": "ada", "body": "x"})),
        "ada"
    );
    assert_eq!(
        wrong(json!({"channel": "inapp", "recipient": "ada", "to": "bob", "body": "x"})),
        ["/to must be left out beside recipient"]
    );
    for (args, pointer) in [
        (json!({"recipient": " ada"}), "/recipient"),
        (json!({"to": ".."}), "/to"),
        (json!({"recipient": "ada", "data": []}), "/data"),
        (
            json!({"recipient": "ada", "data": {"a": "x".repeat(KEPT_DATA_BYTES)}}),
            "/data",
        ),
    ] {
        let mut message = json!({"channel": "inapp", "body": "x"});
        message
            .as_object_mut()
            .unwrap()
            .extend(args.as_object().unwrap().clone());
        let issues = wrong(message);
        assert!(
            issues.len() == 1 && issues[0].starts_with(pointer),
            "{issues:?}"
        );
    }
}
