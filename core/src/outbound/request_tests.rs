use serde_json::json;

use super::*;

fn issues(args: Value) -> Vec<(String, String)> {
    let issues = Request::parse(&args).expect_err("issues");
    issues
        .into_iter()
        .map(|issue| (issue.pointer, issue.message))
        .collect()
}

#[test]
fn a_url_alone_is_enough() {
    let request = Request::parse(&json!({"url": "https://example.com/a?b=c"})).unwrap();

    assert_eq!(
        (request.method.as_str(), request.timeout.as_secs()),
        ("GET", 30)
    );
    assert_eq!(
        (
            request.body,
            request.template,
            request.secret,
            request.success
        ),
        (None, None, None, vec![200..=299])
    );
    assert_eq!(
        (
            request.connect_timeout.as_secs(),
            request.redirects,
            request.http2
        ),
        (10, 0, false)
    );
    assert_eq!(
        (request.throttled_scope, request.on_ambiguous),
        (Scope::Key, OnAmbiguous::Retry)
    );
}

#[test]
fn every_field_is_read() {
    let args = json!({
        "method": "post", "url": "HTTP://example.com", "headers": {"X-Token": "tä st"}, "body": {"a": [1]},
        "timeout_ms": 600_000, "success": [200, "202-204", "404"], "connect_timeout_ms": 60_000, "redirects": 10,
        "http2_prior_knowledge": true, "excerpt_bytes": 0, "throttled_scope": "account", "on_ambiguous": "dead", "secret": "acme",
    });

    let request = Request::parse(&args).unwrap();

    assert_eq!(request.method, "POST");
    assert_eq!(
        request.headers,
        [("X-Token".to_owned(), "tä st".to_owned())]
    );
    assert_eq!(
        (request.body.as_deref(), request.body_is_json),
        (Some("{\"a\":[1]}"), true)
    );
    assert_eq!(request.success, [200..=200, 202..=204, 404..=404]);
    assert_eq!(
        (
            request.connect_timeout.as_secs(),
            request.redirects,
            request.http2
        ),
        (60, 10, true)
    );
    assert_eq!(
        (request.excerpt_bytes, request.secret.as_deref()),
        (0, Some("acme"))
    );
    assert_eq!(
        (request.throttled_scope, request.on_ambiguous),
        (Scope::Account, OnAmbiguous::Dead)
    );
    let made = Request::parse(&json!({"url": "http://a", "template": "{{ a }}", "data": {"a": 1}}))
        .unwrap();
    assert_eq!(made.template, Some(("{{ a }}".to_owned(), json!({"a": 1}))));
    let text = Request::parse(&json!({"url": "http://a", "body": "plain"})).unwrap();
    assert_eq!(
        (text.body.as_deref(), text.body_is_json),
        (Some("plain"), false)
    );
}

#[test]
fn urls_that_cannot_be_sent_to_are_refused() {
    let cases = [
        (json!({}), "is missing"),
        (json!({"url": 3}), "must be a text"),
        (
            json!({"url": ""}),
            "must be a URL that begins with http:// or https://",
        ),
        (
            json!({"url": "example.com/hook"}),
            "must be a URL that begins with http:// or https://, not one without a scheme",
        ),
        (
            json!({"url": "ftp://example.com"}),
            "must be a URL that begins with http:// or https://, not ftp://",
        ),
        (
            json!({"url": "file:///etc/passwd"}),
            "must be a URL that begins with http:// or https://, not file://",
        ),
        (json!({"url": "http:///path"}), "must have a host"),
        (json!({"url": "http://?x"}), "must have a host"),
        (json!({"url": "http://a b/"}), "must be without blanks"),
        (
            json!({"url": "http://a/\r\nX: y"}),
            "must be without blanks and control characters",
        ),
    ];
    for (args, expected) in cases {
        let found = issues(args.clone());
        assert_eq!(found.len(), 1, "{args}: {found:?}");
        assert_eq!(found[0].0, "/url");
        assert!(found[0].1.starts_with(expected), "{args}: {}", found[0].1);
    }
}

#[test]
fn all_issues_are_listed_with_pointers() {
    let found = issues(json!({
        "url": "x", "method": "FETCH", "headers": {"bad name": "v", "a/b": "x\r\ny", "Connection": "close", "n": 1},
        "timeout_ms": 0, "success": [200, 99, "300-200", true], "retries": 3,
    }));

    let pointers: Vec<&str> = found.iter().map(|(pointer, _)| pointer.as_str()).collect();
    let expected = [
        "/retries",
        "/method",
        "/url",
        "/headers/Connection",
        "/headers/a~1b",
        "/headers/a~1b",
        "/headers/bad name",
        "/headers/n",
        "/timeout_ms",
        "/success/1",
        "/success/2",
        "/success/3",
    ];
    assert_eq!(pointers, expected);
    assert!(
        found[0]
            .1
            .contains("allowed: method, url, headers, body, template, data"),
        "{}",
        found[0].1
    );
    assert!(
        issues(json!([]))[0]
            .1
            .starts_with("must be an object with the fields method, url,")
    );
}

#[test]
fn each_field_says_what_it_may_be() {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let cases = [
        (
            json!({"connect_timeout_ms": 60_001}),
            "/connect_timeout_ms",
            "must be a whole number from 1 to 60000, not 60001",
        ),
        (
            json!({"redirects": -1}),
            "/redirects",
            "must be a whole number from 0 to 10, not -1",
        ),
        (
            json!({"excerpt_bytes": 3001}),
            "/excerpt_bytes",
            "must be a whole number from 0 to 3000, not 3001",
        ),
        (
            json!({"http2_prior_knowledge": "yes"}),
            "/http2_prior_knowledge",
            "must be true or false, not \"yes\"",
        ),
        (
            json!({"throttled_scope": "tenant"}),
            "/throttled_scope",
            "must be key, account or throttle, not \"tenant\"",
        ),
        (
            json!({"on_ambiguous": 1}),
            "/on_ambiguous",
            "must be retry or dead, not 1",
        ),
        (
            json!({"template": "{{ a", "data": {}}),
            "/template",
            "line 1: syntax error",
        ),
        (json!({"template": 7}), "/template", "must be a text, not 7"),
        (
            json!({"template": "a", "body": "b"}),
            "/template",
            "must be left out beside body",
        ),
        (
            json!({"data": {}}),
            "/data",
            "must be left out without a template to fill in",
        ),
        (
            json!({"template": "a", "data": [1]}),
            "/data",
            "must be an object, not a list",
        ),
        (
            json!({"secret": secret}),
            "/secret",
            "must be the name of a secret",
        ),
        (
            json!({"secret": "a b"}),
            "/secret",
            "must be the name of a secret",
        ),
        (
            json!({"secret": "a", "headers": {"Webhook-Id": "x"}}),
            "/headers/Webhook-Id",
            "must be left out beside a secret",
        ),
    ];
    for (mut args, at, reason) in cases {
        args["url"] = json!("http://a");
        let found = issues(args.clone());
        assert_eq!(
            (found.len(), found[0].0.as_str()),
            (1, at),
            "{args}: {found:?}"
        );
        assert!(
            found[0].1.contains(reason) && !found[0].1.contains(secret),
            "{args}: {}",
            found[0].1
        );
    }
}

#[test]
fn refusals_are_as_pinned() {
    let url = "http://a";
    let wrong = [
        json!(null),
        json!([]),
        json!({}),
        json!({"url": null}),
        json!({"url": 3}),
        json!({"url": ""}),
        json!({"url": "example.com/hook"}),
        json!({"url": "ftp://example.com"}),
        json!({"url": "http://"}),
        json!({"url": "http://a b"}),
        json!({"url": url, "metod": "GET", "a/b~c": 1}),
        json!({"url": url, "method": "FETCH"}),
        json!({"url": url, "method": 1}),
        json!({"url": url, "headers": []}),
        json!({"url": url, "headers": {"a b": "v", "Connection": "close", "a/b": "x\ny", "n": 1}}),
        json!({"url": url, "template": 7}),
        json!({"url": url, "template": "{{ a", "data": {}}),
        json!({"url": url, "template": "a", "body": "b", "data": [1]}),
        json!({"url": url, "data": {}}),
        json!({"url": url, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}),
        json!({"url": url, "secret": 1}),
        json!({"url": url, "secret": "a", "headers": {"Webhook-Id": "x"}}),
        json!({"url": url, "timeout_ms": 0, "connect_timeout_ms": 60_001, "redirects": -1, "excerpt_bytes": 1.5}),
        json!({"url": url, "timeout_ms": "1 s", "redirects": null}),
        json!({"url": url, "http2_prior_knowledge": "yes"}),
        json!({"url": url, "success": []}),
        json!({"url": url, "success": 200}),
        json!({"url": url, "success": [200, 99, "300-200", true]}),
        json!({"url": url, "throttled_scope": "acount", "on_ambiguous": 1}),
    ];
    crate::input::pinned::check(
        "http",
        wrong.map(|args| {
            let found = issues(args.clone());
            let lines = found
                .into_iter()
                .map(|(at, message)| format!("{at}: {message}"));
            (args.to_string(), lines.collect())
        }),
    );
}
