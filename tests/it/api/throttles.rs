//! Knobs over HTTP.

use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::server::{pointers, problem, spawn_api};

#[tokio::test]
async fn a_knob_is_turned_under_its_seq_with_a_line_in_the_audit_log() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let before = api.body("/api/v1/throttles/reindex").await;
    let edit = |seq: u64, body: Value| {
        let request = api
            .client
            .patch(format!("{}/api/v1/throttles/reindex", api.base))
            .header("if-match", format!("\"{seq}\""));
        request.json(&body).send()
    };
    let seq = before["seq"].as_u64().unwrap();

    let turned = edit(
        seq,
        json!({"rps": 12.5, "mode": "manual", "by": "alice", "why": "quiet night"}),
    )
    .await
    .unwrap();
    assert_eq!(turned.status(), StatusCode::OK);
    let turned: Value = turned.json().await.unwrap();
    assert_eq!(
        (
            &turned["knobs"]["rps"],
            &turned["effective_rps"],
            &turned["mode"]
        ),
        (&json!(12.5), &json!(12.5), &json!("manual"))
    );
    assert!(
        turned["seq"].as_u64().unwrap() > seq && turned.get("warnings").is_none(),
        "{turned}"
    );
    problem(
        edit(seq, json!({"rps": 99})).await.unwrap(),
        409,
        "conflict",
    )
    .await;

    let audit = api.body("/api/v1/audit").await;
    let entry = &audit["entries"][0];
    assert_eq!(
        (&entry["actor"], &entry["action"], &entry["subject"]),
        (&json!("alice"), &json!("throttle.set"), &json!("reindex"))
    );
    assert_eq!(
        (
            &entry["before"]["rps"],
            &entry["after"]["rps"],
            &entry["why"]
        ),
        (&json!("5"), &json!("12.5"), &json!("quiet night"))
    );
    let seq = turned["seq"].as_u64().unwrap();
    let past = edit(
        seq,
        json!({"mode": "manual", "manual_until_ms": 1_600_000_000_000_u64}),
    )
    .await
    .unwrap();
    assert_eq!(past.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let past: Value = past.json().await.unwrap();
    assert!(
        past["errors"][0]["pointer"] == "/manual_until_ms"
            && past.to_string().contains("is in the past"),
        "{past}"
    );
    let why = api.body("/api/v1/throttles/reindex/why").await;
    assert!(why["sentence"].as_str().unwrap().contains("alice"), "{why}");
}

#[tokio::test]
async fn wrong_knobs_are_refused_each_with_its_pointer_and_nothing_changes() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let wrong = json!({"rps": "ten", "burst": -1, "mode": "fast", "paused": "perhaps", "safe_rps": null, "rsp": 1});
    let refused = problem(
        api.send(Method::PATCH, "/api/v1/throttles/reindex", &wrong)
            .await,
        422,
        "invalid_fields",
    )
    .await;
    let mut found = pointers(&refused);
    found.sort_unstable();
    assert_eq!(found, ["/burst", "/mode", "/paused", "/rps", "/rsp"]);
    assert_eq!(
        api.body("/api/v1/throttles/reindex").await["knobs"]["rps"],
        5.0
    );
    assert_eq!(api.body("/api/v1/audit").await["entries"], json!([]));
}

#[tokio::test]
async fn a_throttle_is_made_only_when_that_is_asked_for() {
    let api = spawn_api(None).await;
    let path = "/api/v1/throttles/%7Bnotify%7D.sms";
    problem(
        api.send(Method::PATCH, path, &json!({"rps": 1})).await,
        404,
        "throttle_not_found",
    )
    .await;
    let made = api
        .send(
            Method::PATCH,
            &format!("{path}?create=true"),
            &json!({"rps": 1}),
        )
        .await;
    assert_eq!(made.status(), StatusCode::OK);
    assert_eq!(api.body(path).await["name"], "{notify}.sms");
}

async fn acquire(client: Client, url: String, body: Value) -> Value {
    let answer = client.post(url).json(&body).send().await.unwrap();
    answer.json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_waits_for_many_tokens_is_not_overtaken_for_ever_by_those_of_other_keys() {
    let api = spawn_api(None).await;
    // Those of the second come in two seconds, which is longer than a pause between two requests.
    for (throttle, window, tokens) in [("mixed", "1", 8), ("deep", "10", 40)] {
        api.turn(throttle, &[("rps", "20"), ("window", window)])
            .await;
        let url = format!("{}/api/v1/throttles/{throttle}/acquire", api.base);
        let mut others = JoinSet::new();
        for n in 0..6 {
            let (client, url) = (api.client.clone(), url.clone());
            others.spawn(async move {
                for _ in 0..10_000 {
                    let body = json!({"key": format!("k{n}"), "tokens": 1, "wait_ms": 5000});
                    acquire(client.clone(), url.clone(), body).await;
                }
            });
        }

        let body = json!({"key": "many", "tokens": tokens, "wait_ms": 30_000});
        let many = acquire(api.client.clone(), url, body).await;

        assert_eq!(many["allowed"], true, "{many}");
        others.abort_all();
    }
}
