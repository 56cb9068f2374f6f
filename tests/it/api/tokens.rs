//! API tokens over HTTP: every route of the document with every kind of token.

use std::collections::BTreeSet;

use flyball::api::http::scopes::{self, RequiredAccess};
use flyball::api::{Permissions, TokenScope};
use flyball::jobs::NewJob;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::tokens_fixture::{ADMIN, Given, TokenServer, leave, secret, token_server};

/// Every operation of the document: method and template.
async fn operations(server: &TokenServer) -> Vec<(Method, String)> {
    let document: Value = server
        .ask(Method::GET, "/openapi.json", Some(ADMIN), &json!({}))
        .await
        .json()
        .await
        .unwrap();
    let methods = ["get", "post", "put", "patch", "delete"];
    let of = |(path, item): (&String, &Value)| {
        let of_path: Vec<(Method, String)> = methods
            .iter()
            .filter(|method| item.get(**method).is_some())
            .map(|method| (method.to_uppercase().parse().unwrap(), path.clone()))
            .collect();
        of_path
    };
    document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(of)
        .collect()
}

fn filled(template: &str) -> String {
    let name = if template.starts_with("/api/v1/throttles") {
        "mail"
    } else {
        "nothing"
    };
    let parts = [
        ("{id}", "999999"),
        ("{name}", name),
        ("{key}", "k"),
        ("{pool}", "none"),
        ("{account}", "none"),
        ("{tenant}", "none"),
        ("{recipient}", "none"),
        ("{channel}", "none"),
    ];
    let path = parts
        .iter()
        .fold(template.to_owned(), |path, (part, with)| {
            path.replace(part, with)
        });
    assert!(
        !path.contains('{'),
        "{template} has a part that this test does not know"
    );
    path
}

#[tokio::test]
async fn every_route_is_open_to_the_scopes_that_it_needs_and_to_no_other() {
    let all: Vec<TokenScope> = TokenScope::WORDS.iter().map(|(_, scope)| *scope).collect();
    let mut given: Vec<Given<'_>> = TokenScope::WORDS
        .iter()
        .filter(|(word, _)| *word != "admin")
        .map(|(word, scope)| (*word, None, leave(&[*scope])))
        .collect();
    given.push(("nothing", None, leave(&[])));
    let server = token_server(given, "").await;
    let operations = operations(&server).await;
    assert!(operations.len() > 50, "{}", operations.len());

    for (method, template) in &operations {
        assert!(
            scopes::is_known(method, template),
            "{method} {template} has no row in src/api/http/scopes.rs: say which scope it needs"
        );
        let need = scopes::need(method, template);
        // No read permission allows a change, and no route is open by accident.
        let is_change = *method != Method::GET;
        let ways_in = [
            TokenScope::JobsEnqueue,
            TokenScope::JobsWork,
            TokenScope::NotifySend,
            TokenScope::ChannelsPublish,
            TokenScope::ThrottlesAcquire,
            TokenScope::OpsWrite,
            TokenScope::Admin,
        ];
        // A ticket passes a permission to read on to a browser.
        let is_change = is_change && template != "/api/v1/ws/tickets";
        match need {
            RequiredAccess::Open => {
                assert!(
                    [
                        "/healthz",
                        "/readyz",
                        "/api/v1/provider-events/{pool}/{account}"
                    ]
                    .contains(&template.as_str())
                )
            }
            RequiredAccess::Token => {
                assert!(["/openapi.json", "/asyncapi.json"].contains(&template.as_str()));
            }
            RequiredAccess::Scope(scope) => {
                assert_eq!(ways_in.contains(&scope), is_change, "{method} {template}")
            }
        }
        let path = filled(template);
        let nobody = server
            .ask(method.clone(), &path, None, &json!({}))
            .await
            .status();
        match need {
            RequiredAccess::Open => {
                assert_ne!(nobody, StatusCode::FORBIDDEN, "{method} {template}")
            }
            _ => assert_eq!(nobody, StatusCode::UNAUTHORIZED, "{method} {template}"),
        }
        for (word, scope) in TokenScope::WORDS
            .iter()
            .map(|(word, scope)| (*word, Some(*scope)))
            .chain([("nothing", None)])
        {
            let response = server
                .ask(method.clone(), &path, Some(&secret(word)), &json!({}))
                .await;
            let status = response.status();
            let may = match need {
                RequiredAccess::Open | RequiredAccess::Token => true,
                RequiredAccess::Scope(needed) => {
                    scope == Some(needed) || scope == Some(TokenScope::Admin)
                }
            };
            assert_ne!(status, StatusCode::TOO_MANY_REQUESTS, "{method} {template}");
            if may {
                assert_ne!(
                    status,
                    StatusCode::FORBIDDEN,
                    "{method} {template} by {word}"
                );
            } else {
                assert_eq!(
                    status,
                    StatusCode::FORBIDDEN,
                    "{method} {template} by {word}"
                );
                let problem: Value = response.json().await.unwrap();
                let RequiredAccess::Scope(needed) = need else {
                    unreachable!()
                };
                let answer = format!(
                    "{method} {template} needs the scope {}; token {word} has",
                    needed.as_str()
                );
                assert_eq!(problem["code"], "scope_missing");
                assert!(
                    problem["detail"].as_str().unwrap().starts_with(&answer),
                    "{problem}"
                );
            }
        }
    }
    assert!(
        all.iter()
            .all(|scope| TokenScope::of(scope.as_str()) == Some(*scope))
    );
}

#[tokio::test]
async fn a_token_enqueues_the_kinds_and_throttles_that_its_settings_name() {
    let enqueues = |kinds: Option<&[&str]>, throttles: Option<&[&str]>| Permissions {
        scopes: BTreeSet::from([
            TokenScope::JobsEnqueue,
            TokenScope::OpsWrite,
            TokenScope::ThrottlesAcquire,
        ]),
        kinds: kinds.map(|kinds| kinds.iter().map(|kind| (*kind).to_owned()).collect()),
        throttles: throttles.map(|throttles| {
            throttles
                .iter()
                .map(|throttle| (*throttle).to_owned())
                .collect()
        }),
    };
    let given = vec![
        ("plain", None, enqueues(None, None)),
        ("search", None, enqueues(Some(&["reindex"]), None)),
        (
            "shop",
            Some("shop"),
            enqueues(None, Some(&["mail", "shop:*"])),
        ),
    ];
    let server = token_server(given, "").await;
    sqlx::query(
        "select flyball.register_kind('elsewhere', false), flyball.register_kind('shared', true)",
    )
    .execute(server.database.pool())
    .await
    .unwrap();
    let args = |kind: &str| match kind {
        "reindex" => json!({}),
        _ => json!({"url": "https://example.org/"}),
    };
    for (token, kinds) in [
        ("plain", &["http", "shared"][..]),
        ("search", &["reindex"]),
        ("admin", &["http", "shared", "reindex", "elsewhere"]),
    ] {
        for kind in ["http", "shared", "reindex", "elsewhere"] {
            let job = json!({"kind": kind, "args": args(kind)});
            let mut schedule = job.clone();
            schedule["expression"] = json!("@daily");
            for (method, path, body) in [
                (Method::POST, "/api/v1/jobs", job.clone()),
                (Method::POST, "/api/v1/jobs/batch", json!([job])),
                (Method::PUT, "/api/v1/crons/s", schedule),
            ] {
                let (status, response) = server.call(method, path, &secret(token), body).await;
                let is_denied = |response: &Value| {
                    response["code"] == "not_allowed"
                        && response
                            .to_string()
                            .contains(&format!("may not enqueue kind \\\"{kind}\\\""))
                };
                match kinds.contains(&kind) {
                    true => assert_ne!(status, 403, "{token} {kind} {path}: {response}"),
                    false => assert!(
                        status == 403 && is_denied(&response),
                        "{token} {kind} {path}: {response}"
                    ),
                }
            }
        }
    }
    for (throttle, may) in [
        ("mail", true),
        ("shop:eu", true),
        ("default", false),
        ("api:write", false),
        ("shop", false),
    ] {
        let job = json!({"kind": "http", "args": args("http"), "throttle": throttle});
        let (status, response) = server
            .call(Method::POST, "/api/v1/jobs", &secret("shop"), job)
            .await;
        assert_eq!(
            status,
            if may { 201 } else { 403 },
            "{throttle}: {response}"
        );
        let path = format!("/api/v1/throttles/{}/acquire", throttle.replace(':', "%3A"));
        let (status, response) = server
            .call(Method::POST, &path, &secret("shop"), json!({}))
            .await;
        assert_eq!(
            status,
            if may { 200 } else { 404 },
            "{throttle}: {response}"
        );
    }
    // Only administrators may add work to the API's own throttles.
    let drain = json!({"kind": "http", "args": args("http"), "throttle": "api:write"});
    server
        .refused(
            Method::POST,
            "/api/v1/jobs",
            &secret("plain"),
            drain,
            "not_allowed",
        )
        .await;
}

#[tokio::test]
async fn tokens_do_not_touch_each_others_jobs_by_their_unique_keys() {
    let may = || leave(&[TokenScope::JobsEnqueue]);
    let server = token_server(
        vec![
            ("a", Some("acme"), may()),
            ("b", Some("acme"), may()),
            ("evil", None, may()),
        ],
        "",
    )
    .await;
    let job = |url: &str| json!({"kind": "http", "args": {"url": url}, "unique_key": "invoice-1", "replace": true, "run_at": "2099-01-01T00:00:00Z"});
    let mut answer = Vec::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "a job is scheduled from the clock of who enqueues it"
    )]
    let far = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    for token in ["a", "b", "evil", "admin"] {
        let mut body = job(&format!("https://{token}.example/"));
        body["run_at"] = json!(far.to_string());
        let (status, response) = server
            .call(Method::POST, "/api/v1/jobs", &secret(token), body)
            .await;
        let is_replaced = response["replaced"].as_bool().unwrap();
        assert_eq!(status, if is_replaced { 200 } else { 201 }, "{response}");
        answer.push(is_replaced);
    }
    assert_eq!(
        answer,
        [false, true, false, false],
        "tokens of one tenant share their keys, and nobody else's"
    );
    let cron = json!({"kind": "http", "args": {"url": "https://evil.example/"}, "unique_key": "cron:nightly", "replace": true});
    for token in ["evil", "admin"] {
        let (status, response) = server
            .call(Method::POST, "/api/v1/jobs", &secret(token), cron.clone())
            .await;
        assert_eq!(
            (status, response["errors"][0]["pointer"].as_str()),
            (422, Some("/unique_key")),
            "{response}"
        );
    }
    // A token without permission to read jobs cannot read one by enqueueing it again.
    let again =
        json!({"kind": "http", "args": {"url": "https://x.example/"}, "unique_key": "invoice-1"});
    let (_, response) = server
        .call(Method::POST, "/api/v1/jobs", &secret("a"), again.clone())
        .await;
    assert_eq!(
        (response["duplicate"].as_bool(), &response["args"]),
        (Some(true), &Value::Null)
    );
    let (_, response) = server
        .call(Method::POST, "/api/v1/jobs", ADMIN, again)
        .await;
    assert_eq!(response["args"]["url"], "https://admin.example/");
}

#[tokio::test]
async fn the_audit_log_names_the_token_whatever_the_request_calls_itself() {
    let server = token_server(
        vec![("night-shift", None, leave(&[TokenScope::OpsWrite]))],
        "",
    )
    .await;
    let id = server
        .queue
        .enqueue(&[NewJob::new("http", json!({}))])
        .await
        .unwrap()[0]
        .id;
    let signed = json!({"by": "alice from ops\u{1f}admin\u{1f}root", "why": "because"});
    let with = |more: Value| {
        let mut body = signed.clone();
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let job =
        json!({"kind": "http", "args": {"url": "https://example.org/"}, "expression": "@daily"});
    let acts = [
        (
            Method::PATCH,
            "/api/v1/throttles/mail".to_owned(),
            with(json!({"rps": 7})),
        ),
        (
            Method::POST,
            "/api/v1/throttles/mail/pause".to_owned(),
            signed.clone(),
        ),
        (
            Method::POST,
            "/api/v1/throttles/mail/keys/k/pause".to_owned(),
            with(json!({"seconds": 5})),
        ),
        (
            Method::POST,
            "/api/v1/throttles/mail/keys/k/resume".to_owned(),
            signed.clone(),
        ),
        (
            Method::PATCH,
            "/api/v1/throttles/mail/keys/k".to_owned(),
            with(json!({"weight": 2})),
        ),
        (Method::POST, "/api/v1/pause".to_owned(), signed.clone()),
        (Method::POST, "/api/v1/resume".to_owned(), signed.clone()),
        (Method::PUT, "/api/v1/crons/s".to_owned(), with(job)),
        (
            Method::POST,
            "/api/v1/crons/s/run".to_owned(),
            signed.clone(),
        ),
        (
            Method::POST,
            "/api/v1/crons/s/pause".to_owned(),
            signed.clone(),
        ),
        (
            Method::DELETE,
            "/api/v1/crons/s?by=alice".to_owned(),
            json!({}),
        ),
        (
            Method::POST,
            format!("/api/v1/jobs/{id}/reschedule"),
            with(json!({"run_at": "2026-12-31T00:00:00Z"})),
        ),
        (
            Method::PATCH,
            format!("/api/v1/jobs/{id}"),
            with(json!({"priority": 2})),
        ),
        (
            Method::POST,
            format!("/api/v1/jobs/{id}/retry"),
            signed.clone(),
        ),
        (
            Method::POST,
            "/api/v1/jobs/cancel".to_owned(),
            with(json!({"kind": "http"})),
        ),
        (
            Method::POST,
            "/api/v1/suppressions".to_owned(),
            with(json!({"channel": "email", "recipient": "a@example.org"})),
        ),
        (
            Method::DELETE,
            "/api/v1/suppressions?channel=email&recipient=a@example.org&by=alice".to_owned(),
            json!({}),
        ),
    ];
    for (method, path, body) in &acts {
        let (status, response) = server
            .call(method.clone(), path, &secret("night-shift"), body.clone())
            .await;
        assert!((200..300).contains(&status), "{path}: {status} {response}");
    }
    let (_, audit) = server
        .call(Method::GET, "/api/v1/audit", ADMIN, json!({}))
        .await;
    let entries = audit["entries"].as_array().unwrap();
    assert!(entries.len() >= acts.len(), "{audit}");
    for entry in entries {
        assert_eq!(
            (entry["token"].as_str(), entry["tenant"].as_str()),
            (Some("night-shift"), None),
            "{entry}"
        );
        assert!(
            entry["actor"].as_str().unwrap().starts_with("alice"),
            "{entry}"
        );
    }
    let (_, mail) = server
        .call(Method::GET, "/api/v1/throttles/mail", ADMIN, json!({}))
        .await;
    assert!(
        !mail.to_string().contains("night-shift"),
        "the hash of knobs is no place for it: {mail}"
    );
}

pub async fn with(server: &TokenServer, method: Method, path: &str, cookie: &str) -> u16 {
    let request = server
        .client
        .request(method, format!("{}{path}", server.base))
        .header("cookie", cookie);
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_query_that_is_not_utf8_is_refused_by_its_name() {
    let server = token_server(Vec::new(), "").await;
    for path in [
        "/api/v1/jobs?key=%ff",
        "/api/v1/jobs?limit=1&key=%c3%28",
        "/api/v1/crons/s?by=%ff",
    ] {
        let method = if path.contains("crons") {
            Method::DELETE
        } else {
            Method::GET
        };
        let (status, problem) = server.call(method, path, ADMIN, json!({})).await;
        assert_eq!(
            (status, problem["code"].as_str()),
            (400, Some("invalid_query")),
            "{problem}"
        );
    }
    // Nobody is told so without a token.
    let stranger = server
        .client
        .get(format!("{}/api/v1/jobs?key=%ff", server.base));
    assert_eq!(stranger.send().await.unwrap().status().as_u16(), 401);
    assert_eq!(
        server
            .call(Method::GET, "/api/v1/jobs?key=%c3%bc", ADMIN, json!({}))
            .await
            .0,
        200
    );
}

#[tokio::test]
async fn the_list_of_throttles_says_whether_the_token_may_make_changes() {
    let given = vec![
        ("reader", None, leave(&[TokenScope::OpsRead])),
        (
            "operator",
            None,
            leave(&[TokenScope::OpsRead, TokenScope::OpsWrite]),
        ),
    ];
    let server = token_server(given, "").await;
    let named = [("reader", false), ("operator", true)];
    let named = named.map(|(name, may_change)| (secret(name), may_change));
    for (secret, may_change) in named.into_iter().chain([(ADMIN.to_owned(), true)]) {
        let (status, all) = server
            .call(Method::GET, "/api/v1/throttles", &secret, Value::Null)
            .await;
        assert_eq!((status, &all["may_change"]), (200, &json!(may_change)));
    }
}

#[tokio::test]
async fn a_method_that_a_path_does_not_have_is_no_question_of_scopes() {
    let server = token_server(vec![("nothing", None, leave(&[]))], "").await;
    let token = secret("nothing");
    for (method, path, status) in [
        (Method::PUT, "/api/v1/jobs", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/api/v1/claim", StatusCode::METHOD_NOT_ALLOWED),
        (Method::POST, "/api/v1/jobs", StatusCode::FORBIDDEN),
    ] {
        let answer = server
            .ask(method.clone(), path, Some(&token), &json!({}))
            .await;
        assert_eq!(answer.status(), status, "{method} {path}");
        let names_others = answer.headers().contains_key("allow");
        assert!(names_others || status == StatusCode::FORBIDDEN, "{path}");
    }
}
