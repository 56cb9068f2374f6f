//! The routes, and the problems with which they answer.

use super::*;

#[tokio::test]
async fn every_route_is_in_the_document_and_every_path_of_the_document_is_a_route() {
    let fixture = fixture(None).await;
    let document = fixture.document().await;
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 93, "{:?}", paths.keys());

    for (path, item) in paths {
        let url = path
            .replace("{name}", "none")
            .replace("{key}", "acme")
            .replace("{channel}", "none")
            .replace("{id}", "x");
        let url = url.replace("{pool}", "none").replace("{account}", "none");
        let url = url.replace("{recipient}", "none");
        for method in [
            Method::GET,
            Method::POST,
            Method::PATCH,
            Method::PUT,
            Method::DELETE,
        ] {
            let response = fixture.ask(method.clone(), &url).send().await.unwrap();
            let is_known = response.status() != StatusCode::METHOD_NOT_ALLOWED;
            let is_declared = item.get(method.as_str().to_lowercase()).is_some();
            assert_eq!(is_known, is_declared, "{method} {path}");
            if !is_known {
                assert!(!response.headers()["allow"].is_empty());
                let body = problem(response, 405, "method_not_allowed").await;
                assert!(
                    body["detail"].as_str().unwrap().contains("Allow header"),
                    "{body}"
                );
            } else if response.status() == StatusCode::NOT_FOUND {
                let code = match path.split('/').nth(3) {
                    Some("provider-events") => "account_not_found",
                    Some("pools") => "pool_not_found",
                    _ => "throttle_not_found",
                };
                problem(response, 404, code).await;
            }
        }
    }
}

#[tokio::test]
async fn an_operation_that_takes_no_query_refuses_one() {
    let fixture = fixture(None).await;
    let document = fixture.document().await;
    let mut refused = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let takes_any = ["/api/v1/provider-events/", "/api/v1/check"];
        if !path.starts_with("/api/") || takes_any.iter().any(|begin| path.starts_with(begin)) {
            continue;
        }
        let url: Vec<_> = path
            .split('/')
            .map(|part| if part.starts_with('{') { "x" } else { part })
            .collect();
        for (method, operation) in item.as_object().unwrap() {
            let parameters = operation["parameters"].as_array();
            if parameters
                .into_iter()
                .flatten()
                .any(|parameter| parameter["in"] == "query")
            {
                continue;
            }
            let method: Method = method.to_uppercase().parse().unwrap();
            let url = format!("{}?surprise=1", url.join("/"));
            let answer = fixture.ask(method.clone(), &url).send().await.unwrap();
            assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{method} {path}");
            let body = problem(answer, 400, "invalid_query").await;
            assert_eq!(pointers(&body), ["/surprise"], "{method} {path}");
            refused += 1;
        }
    }
    assert!(refused > 60, "{refused}");

    // A provider calls the URL that it was given, with what it adds.
    let answer = fixture
        .ask(Method::POST, "/api/v1/provider-events/none/x?surprise=1")
        .send()
        .await
        .unwrap();
    problem(answer, 404, "account_not_found").await;
    // A proxy that passes on the query of the request that it asks about would let that through.
    let answer = fixture
        .ask(Method::POST, "/api/v1/check?surprise=1")
        .header("x-original-uri", "/orders?surprise=1")
        .send()
        .await
        .unwrap();
    assert_ne!(answer.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn every_reference_of_the_document_leads_somewhere_and_every_operation_may_answer_a_problem()
{
    let fixture = fixture(None).await;
    let document = fixture.document().await;
    let text = document.to_string();
    for reference in text
        .split("\"$ref\":\"#")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
    {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
    let mut ids = std::collections::BTreeSet::new();
    for operation in document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
    {
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "two operations have one id: {operation}"
        );
        let responses = operation["responses"].as_object().unwrap();
        assert!(
            responses.values().all(|response| !response["description"]
                .as_str()
                .unwrap_or_default()
                .is_empty()),
            "{operation}"
        );
        assert!(
            operation
                .pointer("/responses/default/content/application~1problem+json")
                .is_some(),
            "{operation}"
        );
        assert!(operation["summary"].is_string(), "{operation}");
    }
}

#[tokio::test]
async fn an_unknown_route_is_a_problem_that_says_where_the_routes_are() {
    let body = problem(
        fixture(None)
            .await
            .get("/api/v2/jobs?x=1")
            .send()
            .await
            .unwrap(),
        404,
        "route_not_found",
    )
    .await;
    assert_eq!(
        body["detail"],
        "there is no route /api/v2/jobs; /openapi.json lists them"
    );
}

#[tokio::test]
async fn a_body_that_is_not_sent_as_json_is_refused_with_what_to_send() {
    let fixture = fixture(None).await;
    for kind in [
        Some("application/x-www-form-urlencoded"),
        Some("text/plain"),
        None,
    ] {
        let request = fixture.ask(Method::POST, "/api/v1/jobs").body("{}");
        let request = kind.map_or(request.try_clone().unwrap(), |kind| {
            request.header("content-type", kind)
        });
        let body = problem(request.send().await.unwrap(), 415, "unsupported_media_type").await;
        assert!(
            body["detail"]
                .as_str()
                .unwrap()
                .contains("application/json")
        );
    }
}

#[tokio::test]
async fn broken_json_is_refused_with_line_and_column() {
    let request = fixture(None)
        .await
        .ask(Method::POST, "/api/v1/jobs")
        .header("content-type", "application/json")
        .body("{\n\"cost\": NaN}");
    let body = problem(request.send().await.unwrap(), 400, "malformed_json").await;
    let detail = body["detail"].as_str().unwrap();
    assert!(
        detail.contains("line 2, column 9") && detail.contains("no NaN"),
        "{detail}"
    );
}

#[tokio::test]
async fn too_large_a_body_is_refused_with_the_limit_whether_or_not_its_length_is_announced() {
    let fixture = fixture(None).await;
    let body = json!({"kind": "noop", "args": {"blob": "x".repeat(10_000_000)}}).to_string();

    let announced = fixture
        .ask(Method::POST, "/api/v1/jobs")
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .unwrap();
    let refused = problem(announced, 413, "too_large").await;
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("1048576 bytes (1 MiB)"),
        "{refused}"
    );

    let args = json!({"kind": "noop", "args": {"blob": "x".repeat(600_000)}});
    let refused = problem(
        fixture.send(Method::POST, "/api/v1/jobs", args).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/args"]);

    let rounded = fixture
        .ask(Method::POST, "/api/v1/jobs")
        .header("content-type", "application/json")
        .body(r#"{"kind": "noop", "args": {"ids": [1, 123456789012345678901]}}"#);
    let refused = problem(rounded.send().await.unwrap(), 422, "invalid_fields").await;
    assert_eq!(pointers(&refused), ["/args/ids/1"]);
}

#[tokio::test]
async fn a_batch_is_counted_while_it_is_read_and_a_length_beyond_the_limit_is_refused_at_once() {
    let fixture = fixture(None).await;
    let post = |body: String| {
        fixture
            .ask(Method::POST, "/api/v1/jobs/batch")
            .header("content-type", "application/json")
            .body(body)
    };

    let zeros = format!("[{}0]", "0,".repeat(8_000_000));
    let refused = problem(post(zeros).send().await.unwrap(), 422, "invalid_fields").await;
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("more than 10000 jobs"),
        "{refused}"
    );
    let nested = format!("[[{}[]]]", "[],".repeat(8_000_000));
    let refused = problem(post(nested).send().await.unwrap(), 413, "too_large").await;
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("bytes of memory"),
        "{refused}"
    );

    // The server does not wait for a body that is announced as this large.
    let mut stream = tokio::net::TcpStream::connect(fixture.base.trim_start_matches("http://"))
        .await
        .unwrap();
    let head = "POST /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100000000000000\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    let reading = tokio::io::AsyncReadExt::read_buf(&mut stream, &mut answer);
    tokio::time::timeout(std::time::Duration::from_secs(20), reading)
        .await
        .expect("an answer at once")
        .unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 413 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn a_bad_job_is_refused_with_every_field_and_the_pointers_of_a_batch_have_indexes() {
    let fixture = fixture(None).await;
    let job = json!({"kind": 7, "priority": -1, "cost": "NaN", "colour": 1});
    let refused = problem(
        fixture
            .send(Method::POST, "/api/v1/jobs", job.clone())
            .await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(
        pointers(&refused),
        ["/colour", "/kind", "/priority", "/cost"]
    );
    assert_eq!(refused["errors"][1]["in"], "body");
    assert!(
        refused["errors"][1]["message"]
            .as_str()
            .unwrap()
            .starts_with("must be a text of 1 to 128 bytes, not 7")
    );

    let batch = json!([{"kind": "noop"}, job]);
    let refused = problem(
        fixture
            .send(Method::POST, "/api/v1/jobs/batch", batch)
            .await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(
        pointers(&refused),
        ["/1/colour", "/1/kind", "/1/priority", "/1/cost"]
    );

    let many: Vec<Value> = vec![json!({"kind": 1}); 300];
    let refused = problem(
        fixture
            .send(Method::POST, "/api/v1/jobs/batch", json!(many))
            .await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(
        (pointers(&refused).len(), refused["errors_omitted"].as_u64()),
        (100, Some(200))
    );
}

#[tokio::test]
async fn bad_ids_names_and_parameters_are_refused_where_they_are() {
    let fixture = fixture(None).await;
    let refused = problem(
        fixture.get("/api/v1/jobs/abc").send().await.unwrap(),
        400,
        "invalid_path",
    )
    .await;
    assert_eq!(
        (refused["errors"][0]["in"].as_str(), pointers(&refused)),
        (Some("path"), vec!["/id"])
    );
    problem(
        fixture
            .get("/api/v1/throttles/two%20words")
            .send()
            .await
            .unwrap(),
        400,
        "invalid_path",
    )
    .await;
    problem(
        fixture.get("/api/v1/throttles/%FF").send().await.unwrap(),
        400,
        "bad_request",
    )
    .await;
    let refused = problem(
        fixture
            .get("/api/v1/jobs?stat=ready&limit=0&state=redy")
            .send()
            .await
            .unwrap(),
        400,
        "invalid_query",
    )
    .await;
    assert_eq!(pointers(&refused), ["/stat", "/state", "/limit"]);
    problem(
        fixture
            .get("/api/v1/decisions?limit=1e3")
            .send()
            .await
            .unwrap(),
        400,
        "invalid_query",
    )
    .await;
}

#[tokio::test]
async fn while_postgres_does_not_answer_requests_are_told_to_come_back() {
    let fixture = fixture(None).await;
    for path in ["/api/v1/workers", "/api/v1/audit"] {
        let response = fixture.get(path).send().await.unwrap();
        assert_eq!(response.headers()["retry-after"], "1");
        let read = problem(response, 503, "queue_unavailable").await;
        let detail = read["detail"].as_str().unwrap();
        assert!(detail.ends_with("; try again soon"), "{detail}");
    }
    let ready = problem(
        fixture.get("/readyz").send().await.unwrap(),
        503,
        "not_ready",
    )
    .await;
    assert_eq!(ready["detail"], "Postgres does not answer within 1 s");
    assert_eq!(
        fixture
            .get("/healthz")
            .send()
            .await
            .unwrap()
            .json::<Value>()
            .await
            .unwrap(),
        json!({"status": "alive"})
    );
}

#[tokio::test]
async fn calls_of_readyz_that_come_together_share_a_check_of_the_stores() {
    let fixture = fixture(None).await;
    let calls = (0..40).map(|_| fixture.get("/readyz").send());

    // Each check waits 200 ms for a connection to Postgres.
    let answers = futures_util::future::join_all(calls).await;

    for answer in answers {
        let unready = problem(answer.unwrap(), 503, "not_ready").await;
        assert_eq!(unready["detail"], "Postgres does not answer within 1 s");
    }
    let checks = fixture.map_store.write_checks.load(Ordering::SeqCst);
    assert!((1..=10).contains(&checks), "{checks} checks");
}

#[tokio::test]
async fn a_client_that_refuses_plain_answers_gets_the_status_of_its_request() {
    let fixture = fixture(None).await;
    for refused in ["identity;q=0", "gzip;q=0, *;q=0"] {
        let ask = |path| fixture.get(path).header("accept-encoding", refused);

        let alive = ask("/healthz").send().await.unwrap();
        let nowhere = ask("/nowhere").send().await.unwrap();

        assert_eq!(alive.status(), StatusCode::OK, "{refused}");
        problem(nowhere, 404, "route_not_found").await;
    }
}

#[tokio::test]
async fn while_postgres_does_not_answer_nobody_can_say_that_a_kind_is_wrong() {
    let fixture = fixture(None).await;
    let job = json!({"kind": "elsewhere"});
    let schedule = json!({"kind": "elsewhere", "expression": "@daily"});

    for (method, path, body) in [
        (Method::POST, "/api/v1/jobs", job.clone()),
        (Method::POST, "/api/v1/jobs/batch", json!([job])),
        (Method::PUT, "/api/v1/crons/nightly", schedule),
    ] {
        let response = fixture.send(method, path, body).await;

        assert_eq!(response.headers()["retry-after"], "1", "{path}");
        let change = problem(response, 503, "queue_unavailable").await;
        let detail = change["detail"].as_str().unwrap();
        assert!(detail.contains("change may"), "{detail}");
    }
}

#[tokio::test]
async fn while_redis_does_not_answer_throttles_are_503_and_a_defect_is_a_500_problem() {
    let fixture = fixture(None).await;
    fixture.map_store.is_lost.store(true, Ordering::SeqCst);
    problem(
        fixture.get("/api/v1/throttles").send().await.unwrap(),
        503,
        "throttles_unavailable",
    )
    .await;
    assert_eq!(
        fixture
            .get("/readyz")
            .send()
            .await
            .unwrap()
            .json::<Value>()
            .await
            .unwrap()["detail"],
        "Postgres and Redis do not answer within 1 s"
    );
    fixture.map_store.panics.store(true, Ordering::SeqCst);
    let body = problem(
        fixture.get("/api/v1/throttles").send().await.unwrap(),
        500,
        "internal",
    )
    .await;
    assert!(
        !body.to_string().contains("the store has a defect"),
        "the reason belongs into the log"
    );
}
