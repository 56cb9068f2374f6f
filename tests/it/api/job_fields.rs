//! Fields of jobs over HTTP that few jobs have: tags, the jobs after which one runs, webhooks.

use std::collections::BTreeSet;

use flyball::api::{Permissions, TokenScope};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::server::{pointers, problem, spawn_api};
use super::tokens_fixture::{secret, token_server};

fn mail(more: Value) -> Value {
    let mut job = json!({"kind": "mail", "args": {"to": "ada"}});
    let fields = job.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    job
}

#[tokio::test]
async fn a_job_has_waits_of_its_own_and_their_faults_are_named_at_once() {
    let api = spawn_api(None).await;
    let own = json!({"delay_s": 5, "factor": 3});
    let made = api.post("/api/v1/jobs", mail(json!({"retry": own}))).await;
    assert_eq!(made.status(), StatusCode::CREATED);
    let made: Value = made.json().await.unwrap();
    assert_eq!(
        made["retry"],
        json!({"delay_s": 5.0, "factor": 3.0, "max_delay_s": 3600.0})
    );
    let none = api.post("/api/v1/jobs", mail(json!({"retry": null}))).await;
    let none: Value = none.json().await.unwrap();
    assert_eq!(none["retry"], Value::Null);
    let path = format!("/api/v1/jobs/{}", made["id"]);
    let change = json!({"retry": {"delay_s": 1, "factor": 1, "max_delay_s": 1}});
    let changed: Value = api
        .send(Method::PATCH, &path, &change)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        changed["retry"],
        json!({"delay_s": 1.0, "factor": 1.0, "max_delay_s": 1.0})
    );
    let none = json!({"retry": null});
    let changed: Value = api
        .send(Method::PATCH, &path, &none)
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(changed["retry"], Value::Null);

    let wrong = json!({"delay_s": 0, "factor": 101, "max_delay_s": "1h", "jitter": 1});
    for (path, body, at) in [
        ("/api/v1/jobs", mail(json!({"retry": wrong})), "/retry"),
        (
            "/api/v1/jobs/batch",
            json!([mail(json!({"retry": wrong}))]),
            "/0/retry",
        ),
    ] {
        let refused = api.post(path, body).await;
        let refused = problem(refused, 422, "invalid_fields").await;
        let pointers: BTreeSet<&str> = pointers(&refused).into_iter().collect();
        let expected =
            ["delay_s", "factor", "jitter", "max_delay_s"].map(|name| format!("{at}/{name}"));
        assert_eq!(
            pointers,
            expected.iter().map(String::as_str).collect(),
            "{refused}"
        );
    }
    let refused = api
        .post("/api/v1/jobs", mail(json!({"retry": {"factor": 2}})))
        .await;
    let refused = problem(refused, 422, "invalid_fields").await;
    assert_eq!(refused["errors"][0]["pointer"], "/retry/delay_s");
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
