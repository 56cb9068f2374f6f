//! Fields of jobs over HTTP that few jobs have: tags, the jobs after which one runs, webhooks.

use std::collections::BTreeSet;

use flyball::api::{Permissions, TokenScope};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::server::{problem, spawn_api};
use super::tokens_fixture::{secret, token_server};

fn mail(more: Value) -> Value {
    let mut job = json!({"kind": "mail", "args": {"to": "ada"}});
    let fields = job.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    job
}

#[tokio::test]
async fn a_job_shows_its_tags_what_it_waits_for_and_its_webhooks() {
    let api = spawn_api(None).await;
    let first = api.enqueue(mail(json!({"tags": ["import"]}))).await;
    let fields = json!({
        "after": [first], "after_failure": "run", "on_complete": "https://example.org/done",
        "on_dead": "https://example.org/dead", "webhook_secret": "acme", "tags": ["b", "a"],
    });
    let made = api.post("/api/v1/jobs", mail(fields.clone())).await;
    assert_eq!(made.status(), StatusCode::CREATED);
    let made: Value = made.json().await.unwrap();
    for (field, value) in fields.as_object().unwrap() {
        assert_eq!(&made[field], value, "{field}");
    }
    let id = made["id"].as_i64().unwrap();
    let shown = api.body(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!(shown["waits_for"], json!([{"id": first, "state": "ready"}]));
    assert_eq!(
        shown["waiting"]["reason"],
        format!("it waits for the end of job {first}, which is ready")
    );
    let listed = api.body("/api/v1/jobs").await;
    assert_eq!(listed["jobs"][0]["tags"], json!(["b", "a"]));
    assert_eq!(listed["jobs"][0]["state"], "scheduled");
    assert_eq!(listed["jobs"][0]["due_at"], Value::Null);

    let batch = json!([mail(json!({})), mail(json!({"after": [first, 4711]}))]);
    let refused = api.post("/api/v1/jobs/batch", batch).await;
    let refused = problem(refused, 422, "invalid_fields").await;
    assert_eq!(refused["errors"][0]["pointer"], "/1/after");
    let why = refused["errors"][0]["message"].as_str().unwrap();
    assert!(
        why.contains("4711 is not the number of a job of yours"),
        "{why}"
    );
    let callback = json!({"callback": mail(json!({"after": [first]}))});
    let refused = api.post("/api/v1/groups", callback).await;
    let refused = problem(refused, 422, "invalid_fields").await;
    assert_eq!(refused["errors"][0]["pointer"], "/callback/after");
}

#[tokio::test]
async fn a_token_names_webhooks_only_if_it_may_enqueue_the_jobs_that_call_them() {
    let enqueues = |kinds: Option<&[&str]>, throttles: Option<&[&str]>| Permissions {
        scopes: BTreeSet::from([TokenScope::JobsEnqueue, TokenScope::JobsRead]),
        kinds: kinds.map(|kinds| kinds.iter().map(|kind| (*kind).to_owned()).collect()),
        throttles: throttles.map(|throttles| {
            let names = throttles.iter();
            names.map(|name| (*name).to_owned()).collect()
        }),
    };
    let server = token_server(
        vec![
            ("plain", None, enqueues(None, None)),
            ("search", None, enqueues(Some(&["reindex"]), None)),
            ("shop", Some("shop"), enqueues(None, Some(&["mail"]))),
            (
                "bank",
                Some("bank"),
                enqueues(None, Some(&["mail", "webhooks"])),
            ),
        ],
        "",
    )
    .await;
    let mut first = None;
    for (token, kind, wanted) in [
        ("plain", "http", None),
        ("search", "reindex", Some("of the kind http")),
        ("shop", "http", Some("to the throttle webhooks")),
        ("bank", "http", None),
    ] {
        let job = json!({"kind": kind, "args": {}, "throttle": "mail", "on_dead": "https://example.org/"});
        for (path, body, at) in [
            ("/api/v1/jobs", job.clone(), "/on_dead"),
            ("/api/v1/jobs/batch", json!([job.clone()]), "/0/on_dead"),
            (
                "/api/v1/groups",
                json!({"callback": job.clone()}),
                "/callback/on_dead",
            ),
            (
                "/api/v1/groups",
                json!({"jobs": [job.clone()]}),
                "/jobs/0/on_dead",
            ),
        ] {
            let (status, answer) = server.call(Method::POST, path, &secret(token), body).await;
            match wanted {
                None => assert_eq!(status, 201, "{token} {path} {answer}"),
                Some(why) => {
                    assert_eq!((status, &answer["code"]), (403, &json!("not_allowed")));
                    assert_eq!(answer["errors"][0]["pointer"], at, "{answer}");
                    let message = answer["errors"][0]["message"].as_str().unwrap();
                    assert!(message.contains(why), "{token} {path} {message}");
                }
            }
            first = first.or_else(|| answer["id"].as_i64());
        }
    }
    // A tenant finds no jobs of others.
    let body = json!({"kind": "http", "args": {}, "throttle": "mail", "after": [first.unwrap()]});
    let (status, answer) = server
        .call(Method::POST, "/api/v1/jobs", &secret("bank"), body)
        .await;
    assert_eq!(
        (status, &answer["errors"][0]["pointer"]),
        (422, &json!("/after")),
        "{answer}"
    );
}
