//! Enqueueing over HTTP.

use std::collections::BTreeSet;

use flyball::api::TokenScope;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::server::{Api, pointers, problem, spawn_api};
use super::tokens_fixture::{leave, secret, token_server};

#[tokio::test]
async fn a_job_is_enqueued_with_its_place_and_a_second_one_with_its_unique_key_is_a_duplicate() {
    let api = spawn_api(None).await;
    api.turn("default", &[("rps", "5")]).await;
    let job = json!({"kind": "mail", "args": {"to": "a@example.org"}, "unique_key": "welcome", "unique_for": "10 minutes"});

    let first = api.post("/api/v1/jobs", job.clone()).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let place = first.headers()["location"].to_str().unwrap().to_owned();
    let first: Value = first.json().await.unwrap();
    assert_eq!(place, format!("/api/v1/jobs/{}", first["id"]));
    assert_eq!(
        (&first["state"], &first["duplicate"], &first["warnings"]),
        (&json!("ready"), &json!(false), &json!([]))
    );
    assert_eq!(
        (
            &first["priority"],
            &first["max_attempts"],
            &first["throttle"]
        ),
        (&json!(1), &json!(10), &json!("default"))
    );

    let second = api.post("/api/v1/jobs", job).await;
    assert_eq!(second.status(), StatusCode::OK);
    let second: Value = second.json().await.unwrap();
    assert_eq!(
        (&second["id"], &second["duplicate"]),
        (&first["id"], &json!(true))
    );
    assert_eq!(
        api.body(&place).await["args"],
        json!({"to": "a@example.org"})
    );
}

#[tokio::test]
async fn a_parameter_of_a_route_that_takes_none_is_refused() {
    let api = spawn_api(None).await;
    for route in [
        "jobs",
        "jobs/batch",
        "groups",
        "notifications",
        "notifications/batch",
    ] {
        let answer = api
            .post(&format!("/api/v1/{route}?tenant=acme"), json!({}))
            .await;
        let refused = problem(answer, 400, "invalid_query").await;
        assert_eq!(pointers(&refused), ["/tenant"], "{route}");
    }
}

#[tokio::test]
async fn a_token_that_reads_no_jobs_learns_nothing_of_another_clients_by_a_duplicate() {
    let scopes = [TokenScope::JobsEnqueue, TokenScope::JobsRead];
    let server = token_server(
        vec![
            ("writer", Some("acme"), leave(&scopes[..1])),
            ("reader", Some("acme"), leave(&scopes)),
        ],
        "",
    )
    .await;
    let of_another = json!({"kind": "http", "args": {"url": "https://a.example/"},
        "throttle": "mail", "key": "their-key", "tags": ["their-tag"], "unique_key": "invoice-1"});
    let own = json!({"kind": "http", "args": {"url": "https://b.example/"}, "key": "own-key",
        "unique_key": "invoice-1"});
    let send = async |token: &str, job: &Value| {
        let path = "/api/v1/jobs";
        let (_, answer) = server
            .call(Method::POST, path, &secret(token), job.clone())
            .await;
        answer
    };
    let first = send("reader", &of_another).await;
    assert_eq!(first["duplicate"], false, "{first}");

    let answer = send("writer", &own).await;

    assert_eq!(
        (&answer["id"], &answer["duplicate"], &answer["state"]),
        (&first["id"], &json!(true), &first["state"])
    );
    assert_eq!(
        (&answer["key"], &answer["throttle"], &answer["args"]),
        (&json!("own-key"), &json!("default"), &Value::Null)
    );
    assert!(!answer.to_string().contains("their-"), "{answer}");
    let read = send("reader", &own).await;
    assert_eq!(read["tags"], json!(["their-tag"]), "{read}");
}

#[tokio::test]
async fn a_batch_is_enqueued_whole_or_not_at_all() {
    let api = spawn_api(None).await;
    let good = json!({"kind": "mail", "args": {"to": "a"}});
    let bad = json!({"kind": "mail", "args": {}, "priority": 9});

    let refused = api
        .post("/api/v1/jobs/batch", json!([good, bad, good]))
        .await;
    assert_eq!(
        pointers(&problem(refused, 422, "invalid_fields").await),
        ["/1/args/to", "/1/priority"]
    );
    assert_eq!(api.count_jobs().await, 0);

    let all = api
        .post(
            "/api/v1/jobs/batch",
            Value::from(vec![good.clone(); 10_000]),
        )
        .await;
    assert_eq!(all.status(), StatusCode::CREATED);
    let all: Value = all.json().await.unwrap();
    let ids: BTreeSet<i64> = all["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_i64().unwrap())
        .collect();
    assert_eq!((ids.len(), api.count_jobs().await), (10_000, 10_000));
    assert_eq!(
        all["warnings"].as_array().unwrap().len(),
        1,
        "the throttle default does not exist here"
    );
    problem(
        api.post("/api/v1/jobs/batch", Value::from(vec![good; 10_001]))
            .await,
        422,
        "invalid_fields",
    )
    .await;
}

#[tokio::test]
async fn what_only_postgres_refuses_is_a_field_error_too() {
    let api = spawn_api(None).await;
    let far = json!({"kind": "mail", "args": {"to": "a"}, "run_at": "2190-01-01T00:00:00Z"});
    let refused = problem(
        api.post("/api/v1/jobs", far.clone()).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/run_at"]);
    let near = json!({"kind": "mail", "args": {"to": "a"}});
    let refused = problem(
        api.post("/api/v1/jobs/batch", json!([near, far])).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/1/run_at"]);
    assert_eq!(api.count_jobs().await, 0);
}

#[tokio::test]
async fn a_kind_that_another_process_registered_is_known_and_others_are_not() {
    let api = spawn_api(None).await;
    sqlx::query("select flyball.register_kind('elsewhere')")
        .execute(&api.queue.pool)
        .await
        .unwrap();
    assert_eq!(
        api.post("/api/v1/jobs", json!({"kind": "elsewhere"}))
            .await
            .status(),
        StatusCode::CREATED
    );
    let refused = problem(
        api.post("/api/v1/jobs", json!({"kind": "elswhere"})).await,
        422,
        "invalid_fields",
    )
    .await;
    let message = refused["errors"][0]["message"].as_str().unwrap();
    assert!(
        message.contains("did you mean \"elsewhere\"?") && message.contains("mail"),
        "{message}"
    );
}

#[tokio::test]
async fn nonsense_on_every_entry_point_is_a_clear_problem_and_nothing_is_lost() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let id = api.enqueue(json!({"throttle": "reindex"})).await;
    let entry_points = [
        (Method::POST, "/api/v1/jobs".to_owned()),
        (Method::POST, "/api/v1/jobs/batch".to_owned()),
        (Method::PATCH, "/api/v1/throttles/reindex".to_owned()),
        (Method::POST, "/api/v1/throttles/reindex/acquire".to_owned()),
        (
            Method::POST,
            "/api/v1/throttles/reindex/keys/acme/pause".to_owned(),
        ),
    ];
    let nonsense: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"\"text\"".to_vec(),
        b"[[[]]]".to_vec(),
        b"{\"kind\":{}}".to_vec(),
        b"{\"rps\":NaN}".to_vec(),
        b"{\"rps\":1e999}".to_vec(),
        b"{\"rps\":-5,\"cost\":-5,\"seconds\":-5,\"kind\":\"mail\"}".to_vec(),
        b"{\"rps\":\"NaN\",\"mode\":\"fast\",\"paused\":\"perhaps\",\"burst\":[]}".to_vec(),
        b"{\"kind\":\"mail\",\"kind\":\"mail\"}".to_vec(),
        b"{\"key\":\"\\ud800\"}".to_vec(),
        b"{\"kind\":\"mail\",\"args\":{\"to\":\"\\u0000\"},\"why\":\"\\u0000\",\"key\":\"\\u0000\"}".to_vec(),
        b"\xff\xfe".to_vec(),
        "[".repeat(100_000).into_bytes(),
        format!("{{\"kind\":\"mail\",\"want\":0,\"args\":{{\"to\":\"{}\"}}}}", "x".repeat(300_000)).into_bytes(),
    ];
    for (method, path) in &entry_points {
        // Taking one token needs no body.
        for body in nonsense
            .iter()
            .filter(|body| !(body.is_empty() && path.ends_with("/acquire")))
        {
            let request = api
                .client
                .request(method.clone(), format!("{}{path}", api.base));
            let response = request
                .header("content-type", "application/json")
                .body(body.clone())
                .send()
                .await
                .unwrap();
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            let status = response.status();
            assert_eq!(
                response.headers()["content-type"],
                "application/problem+json",
                "{method} {path} {shown}: {status}"
            );
            assert!(
                matches!(status.as_u16(), 400 | 422),
                "{method} {path} {shown}: {status}"
            );
        }
    }
    assert_eq!(api.count_jobs().await, 1);
    assert_eq!(
        api.body(&format!("/api/v1/jobs/{id}")).await["state"],
        "ready"
    );
    assert_eq!(
        api.body("/api/v1/throttles/reindex").await["knobs"]["rps"],
        5.0
    );
}

async fn cap(api: &Api, throttle: &str, fields: Value) {
    let sql = "insert into flyball.knobs (throttle, fields) values ($1, $2)";
    sqlx::query(sql)
        .bind(throttle)
        .bind(fields)
        .execute(&api.queue.pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_full_lane_answers_503_with_its_depth_and_when_to_try_again() {
    let api = spawn_api(None).await;
    cap(
        &api,
        "hooks",
        json!({"max_backlog": "1", "on_backlog": "reject"}),
    )
    .await;
    cap(&api, "mails", json!({"max_backlog": "1"})).await;
    let job = |throttle: &str| json!({"kind": "mail", "args": {"to": "a"}, "throttle": throttle, "key": "k"});

    let first = api.post("/api/v1/jobs", job("hooks")).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    assert_eq!(first.json::<Value>().await.unwrap()["backlog"], Value::Null);
    for (path, body) in [
        ("/api/v1/jobs", job("hooks")),
        ("/api/v1/jobs/batch", json!([job("mails"), job("hooks")])),
    ] {
        let full = api.post(path, body).await;
        assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(full.headers()["retry-after"], "5");
        assert_eq!(full.headers()["content-type"], "application/problem+json");
        let problem: Value = full.json().await.unwrap();
        assert_eq!(
            (&problem["code"], &problem["depth"], &problem["max_backlog"]),
            (&json!("lane_full"), &json!(1), &json!(1))
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.starts_with("throttle \"hooks\", key \"k\": 1 job of this lane is ready"),
            "{detail}"
        );
    }

    let batch: Value = api
        .post("/api/v1/jobs/batch", json!([job("mails"), job("mails")]))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(batch["jobs"][1]["backlog"], json!({"depth": 2, "max": 1}));
    let metrics = api.get("/metrics").await.text().await.unwrap();
    assert!(
        metrics.contains(r#"flyball_enqueue_over_backlog_total{answer="rejected"} 2"#),
        "{metrics}"
    );
    assert!(
        metrics.contains(r#"flyball_enqueue_over_backlog_total{answer="signalled"} 2"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn the_trace_of_a_request_is_kept_with_its_jobs_unless_the_body_names_one() {
    let api = spawn_api(None).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let other = trace.replace("00f0", "11f0");
    let post = async |header: &str, path: &str, body: Value| {
        let request = api
            .client
            .post(format!("{}{path}", api.base))
            .header("traceparent", header)
            .json(&body);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::CREATED);
    };
    let job = json!({"kind": "mail", "args": {"to": "a"}});
    let mut named = job.clone();
    named["traceparent"] = json!(other);

    post(trace, "/api/v1/jobs", job.clone()).await;
    post(trace, "/api/v1/jobs", named.clone()).await;
    post(trace, "/api/v1/jobs/batch", json!([job, named])).await;
    post("nonsense", "/api/v1/jobs", job.clone()).await;

    let sql = "select coalesce(traceparent, '') from flyball.job order by id";
    let kept: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(&api.queue.pool)
        .await
        .unwrap();
    assert_eq!(kept, [trace, &other, trace, &other, ""]);
    named["traceparent"] = json!("nonsense");
    let refused: Value = api.post("/api/v1/jobs", named).await.json().await.unwrap();
    assert_eq!(refused["errors"][0]["pointer"], "/traceparent");
}

#[tokio::test]
async fn a_repeated_request_with_an_idempotency_key_makes_no_second_job() {
    let api = spawn_api(None).await;
    let send = async |path: &str, key: &str, body: Value| {
        let request = api.client.post(format!("{}{path}", api.base));
        let request = request.header("idempotency-key", key).json(&body);
        request.send().await.unwrap()
    };
    let job = |to: &str| json!({"kind": "mail", "args": {"to": to}});
    let path = "/api/v1/jobs";
    let first = send(path, "order-7", job("a")).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let first: Value = first.json().await.unwrap();
    let id = first["id"].as_i64().unwrap();

    api.queue.cancel(id).await.unwrap();
    let again = send(path, "\"order-7\"", job("a")).await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let again: Value = again.json().await.unwrap();
    assert_eq!(
        (&again["id"], &again["duplicate"], &again["state"]),
        (&json!(id), &json!(true), &json!("cancelled"))
    );
    let other = send(path, "order-7", job("b")).await;
    problem(other, 422, "idempotency_key_reused").await;
    let batch = send("/api/v1/jobs/batch", "order-7", json!([job("a")])).await;
    problem(batch, 400, "invalid_header").await;
    let group = json!({"callback": job("b"), "jobs": [job("a")]});
    let group = send("/api/v1/groups", "order-7", group).await;
    problem(group, 400, "invalid_header").await;
    let groups = sqlx::query_scalar("select count(*) from flyball.job_group");
    let groups: i64 = groups.fetch_one(&api.queue.pool).await.unwrap();
    assert_eq!((api.count_jobs().await, groups), (1, 0));

    let next = send(path, "order-8", job("b")).await;
    assert_eq!(next.status(), StatusCode::CREATED);
    assert!(!next.headers().contains_key("idempotent-replayed"));

    sqlx::query("delete from flyball.job where id = $1")
        .bind(id)
        .execute(&api.queue.pool)
        .await
        .unwrap();
    let gone = send(path, "order-7", job("a")).await;
    problem(gone, 404, "job_not_found").await;
}

#[tokio::test]
async fn a_job_that_replaces_the_waiting_one_is_no_new_job() {
    let api = spawn_api(None).await;
    let job = |n: i32| json!({"kind": "mail", "args": {"to": "a", "n": n}, "unique_key": "k", "debounce": "1 minute"});
    let first: Value = api.post("/api/v1/jobs", job(1)).await.json().await.unwrap();

    let second = api.post("/api/v1/jobs", job(2)).await;

    assert_eq!(second.status(), StatusCode::OK);
    let second: Value = second.json().await.unwrap();
    assert_eq!(
        (&second["id"], &second["replaced"], &second["duplicate"]),
        (&first["id"], &json!(true), &json!(true))
    );
    assert_eq!(
        (&second["state"], &second["args"]["n"]),
        (&json!("scheduled"), &json!(2))
    );
}
