//! Operating on jobs and dead letters over HTTP.

use flyball::jobs::State;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::fixture::operator;
use crate::api::server::pointers;

#[tokio::test]
async fn one_job_is_rescheduled_discarded_and_retried_over_http() {
    let operator = operator().await;
    let id = operator.enqueue(1, "t", "").await[0];
    let at = |verb: &str| format!("/api/v1/jobs/{id}/{verb}");

    let later = operator
        .post(
            &at("reschedule"),
            json!({"run_at": "2033-01-01T10:00:00+01:00", "by": "alice", "why": "not now"}),
        )
        .await;
    assert_eq!(
        (&later["state"], &later["due_at"]),
        (&json!("scheduled"), &json!("2033-01-01T09:00:00Z"))
    );
    for (body, words) in [
        (json!({}), "is missing: it must be"),
        (json!({"run_at": "soon"}), "must be an RFC 3339 time"),
        (json!({"run_at": 5}), "must be an RFC 3339 time"),
        (
            json!({"run_at": "2033-01-01T10:00:00Z", "at": 1}),
            "is not a known field",
        ),
        (json!([]), "must be an object"),
    ] {
        let (status, output) = operator.send(Method::POST, &at("reschedule"), body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{output}");
        assert!(
            output["detail"].as_str().unwrap().contains(words),
            "{output}"
        );
    }
    let (status, output) = operator.send(Method::POST, &at("discard"), json!({})).await;
    assert_eq!(
        (status, &output["code"]),
        (StatusCode::CONFLICT, &json!("wrong_state"))
    );
    assert!(
        output["detail"]
            .as_str()
            .unwrap()
            .contains("is scheduled; only dead jobs can be discarded"),
        "{output}"
    );

    operator.post(&at("retry"), Value::Null).await;
    operator.kill("no").await;
    let again = operator
        .post(&at("retry"), json!({"keep_attempts": true}))
        .await;
    assert_eq!(
        (&again["state"], &again["attempt"]),
        (&json!("ready"), &json!(1))
    );
    let (status, output) = operator
        .send(Method::POST, &at("retry"), json!({"keep_attempts": "yes"}))
        .await;
    assert_eq!(
        (status, &output["errors"][0]["pointer"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("/keep_attempts"))
    );
    operator.kill("no").await;
    assert_eq!(
        operator.post(&at("discard"), json!({})).await["state"],
        "cancelled"
    );
    let attempts = operator
        .get(&format!("/api/v1/jobs/{id}/attempts?limit=2"))
        .await;
    assert_eq!(attempts["attempts"].as_array().unwrap().len(), 2);
    let rest = operator.get(attempts["next"].as_str().unwrap()).await;
    assert_eq!(
        (rest["attempts"].as_array().unwrap().len(), &rest["next"]),
        (1, &Value::Null)
    );
    let time = json!({"run_at": "2033-01-01T10:00:00Z"});
    for (verb, body) in [
        ("reschedule", &time),
        ("discard", &json!({})),
        ("retry", &json!({"keep_attempts": true})),
    ] {
        let (status, output) = operator
            .send(
                Method::POST,
                &format!("/api/v1/jobs/7/{verb}"),
                body.clone(),
            )
            .await;
        assert_eq!(
            (status, &output["code"]),
            (StatusCode::NOT_FOUND, &json!("job_not_found")),
            "{verb}"
        );
    }
    for verb in ["discard", "retry"] {
        let (status, output) = operator.send(Method::POST, &at(verb), time.clone()).await;
        assert_eq!(
            (status, &output["errors"][0]["pointer"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("/run_at")),
            "{verb}"
        );
    }
    let done: Vec<String> = operator
        .actions()
        .await
        .into_iter()
        .map(|(who, action)| format!("{who} {action}"))
        .collect();
    assert_eq!(
        done,
        [
            "alice job.reschedule",
            "http job.retry",
            "http job.retry",
            "http job.discard"
        ]
    );
}

#[tokio::test]
async fn a_waiting_job_is_updated_over_http_and_every_fault_is_named_at_once() {
    let operator = operator().await;
    let id = operator.enqueue(1, "t", "").await[0];
    let at = format!("/api/v1/jobs/{id}");
    let change = json!({
        "args": {"url": "http://127.0.0.1/new"}, "throttle": "u", "key": "b", "priority": 0, "max_attempts": 3,
        "cost": 2, "timeout": "2 minutes", "tags": ["x"], "by": "alice", "why": "the customer waits",
    });
    let (status, output) = operator.send(Method::PATCH, &at, change).await;
    assert_eq!(status, StatusCode::OK, "{output}");
    assert_eq!(
        json!([
            output["args"],
            output["throttle"],
            output["key"],
            output["priority"],
            output["max_attempts"],
            output["cost"],
            output["timeout_s"],
            output["tags"],
            output["state"],
            output["id"]
        ]),
        json!([{"url": "http://127.0.0.1/new"}, "u", "b", 0, 3, 2.0, 120.0, ["x"], "ready", id])
    );
    let cleared = json!({"timeout": null, "tags": null});
    let (status, output) = operator.send(Method::PATCH, &at, cleared).await;
    assert_eq!(status, StatusCode::OK, "{output}");
    assert_eq!(
        (&output["timeout_s"], &output["tags"]),
        (&Value::Null, &json!([]))
    );

    let wrong = json!({
        "args": {"url": "a\u{0}"}, "throttle": "a b", "key": 7, "priority": 4, "max_attempts": 0, "cost": 0, "timeout": "soon",
        "tags": [""], "kind": "http", "by": "",
    });
    let (status, output) = operator.send(Method::PATCH, &at, wrong).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{output}");
    let mut pointers = pointers(&output);
    pointers.sort_unstable();
    assert_eq!(
        pointers,
        [
            "/args/url",
            "/by",
            "/cost",
            "/key",
            "/kind",
            "/max_attempts",
            "/priority",
            "/tags/0",
            "/throttle",
            "/timeout"
        ],
        "{output}"
    );
    for (body, words) in [
        (json!({}), "must have at least one of args, throttle, key"),
        (json!({"by": "bob"}), "must have at least one of args"),
        (
            json!({"priority": null}),
            "must be a whole number from 0 to 3",
        ),
        (json!({"cost": 1001}), "takes jobs of at most 1000 tokens"),
        (json!([]), "must be an object"),
    ] {
        let (status, output) = operator.send(Method::PATCH, &at, body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{output}");
        assert!(
            output["errors"][0]["message"]
                .as_str()
                .unwrap()
                .contains(words),
            "{output}"
        );
    }
    let shown = operator.get(&at).await;
    assert_eq!(
        (&shown["priority"], &shown["throttle"]),
        (&json!(0), &json!("u"))
    );

    operator.kill("no").await;
    let (status, output) = operator
        .send(Method::PATCH, &at, json!({"priority": 1}))
        .await;
    assert_eq!(
        (status, &output["code"]),
        (StatusCode::CONFLICT, &json!("wrong_state"))
    );
    assert!(
        output["detail"]
            .as_str()
            .unwrap()
            .contains("is dead; only scheduled, ready and retryable jobs can be updated"),
        "{output}"
    );
    let (status, _) = operator
        .send(Method::PATCH, "/api/v1/jobs/7", json!({"priority": 1}))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let done = operator.actions().await;
    let done: Vec<(&str, &str)> = done
        .iter()
        .map(|(who, action)| (&**who, &**action))
        .collect();
    assert_eq!(done, [("alice", "job.update"), ("http", "job.update")]);
}

#[tokio::test]
async fn many_jobs_are_counted_and_cancelled_over_http_step_by_step() {
    let operator = operator().await;
    operator.enqueue(25, "t", "a").await;
    let stays = operator.enqueue(1, "u", "a").await[0];

    let counted = operator
        .post(
            "/api/v1/jobs/cancel",
            json!({"throttle": "t", "dry_run": true}),
        )
        .await;
    assert_eq!(
        counted,
        json!({"jobs": 25, "requested": 0, "dry_run": true, "more": false, "next": null})
    );
    let first = operator
        .post(
            "/api/v1/jobs/cancel",
            json!({"throttle": "t", "limit": 20, "by": "alice", "why": "moved"}),
        )
        .await;
    assert_eq!((&first["jobs"], &first["more"]), (&json!(20), &json!(true)));
    let rest = operator
        .post(
            "/api/v1/jobs/cancel",
            json!({"throttle": "t", "start": first["next"], "by": "alice", "why": "moved"}),
        )
        .await;
    assert_eq!(
        (&rest["jobs"], &rest["more"], &rest["next"]),
        (&json!(5), &json!(false), &Value::Null)
    );

    assert_eq!(operator.state(stays).await, State::Ready);
    assert_eq!(
        operator.actions().await,
        [("alice".to_owned(), "jobs.cancel".to_owned())]
    );
    let refused = [
        (
            json!({}),
            "",
            "no filter is given; set at least one of kind, throttle, key, state, created_after, \
            created_before",
        ),
        (json!({"throttle": null}), "", "no filter is given"),
        (
            json!({"state": "dead"}),
            "/state",
            "must be ready, scheduled, retryable or running",
        ),
        (json!({"state": 3}), "/state", ", not 3"),
        (
            json!({"throttle": "u", "limit": 0}),
            "/limit",
            "must be a whole number from 1 to",
        ),
        (
            json!({"throttle": "u", "limit": 10_001}),
            "/limit",
            "must be a whole number from 1 to",
        ),
        (
            json!({"throttle": "u", "dry_run": "no"}),
            "/dry_run",
            "must be true or false",
        ),
        (
            json!({"throttle": "u", "created_after": "yesterday"}),
            "/created_after",
            "must be an RFC 3339 time",
        ),
        (
            json!({"created_after": "2026-01-02T00:00:00Z", "created_before": "2026-01-01T00:00:00Z"}),
            "/created_after",
            "is not before",
        ),
        (
            json!({"throttle": "u", "start": "nowhere"}),
            "/start",
            "is not a place to go on from",
        ),
        (json!({"throttle": "u", "key": "\u{0}"}), "/key", "NUL"),
        (json!({"thorttle": "u"}), "", "no filter is given"),
        (json!("all"), "", "must be an object"),
    ];
    for (body, pointer, words) in refused {
        let (status, output) = operator
            .send(Method::POST, "/api/v1/jobs/cancel", body.clone())
            .await;
        assert_eq!(
            (status, &output["code"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid_fields")),
            "{body}: {output}"
        );
        let errors = output["errors"].as_array().unwrap();
        let found = errors.iter().any(|error| {
            error["pointer"] == pointer && error["message"].as_str().unwrap().contains(words)
        });
        assert!(found, "{body}: {output}");
    }
    assert_eq!(
        operator.state(stays).await,
        State::Ready,
        "what was refused has changed nothing"
    );
}

#[tokio::test]
async fn dead_letters_are_requeued_and_discarded_over_http() {
    let operator = operator().await;
    let timeouts = operator.enqueue(3, "t", "a").await;
    operator.kill("timeout after 30 s").await;
    let others = operator.enqueue(2, "t", "a").await;
    operator.kill("500").await;

    let counted = operator
        .post(
            "/api/v1/dead/requeue",
            json!({"error_like": "%", "dry_run": true}),
        )
        .await;
    assert_eq!(counted["jobs"], 5);
    let requeued = operator
        .post(
            "/api/v1/dead/requeue",
            json!({"error_like": "timeout%", "throttle": "t"}),
        )
        .await;
    assert_eq!(
        (&requeued["jobs"], &requeued["next"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(operator.state(timeouts[0]).await, State::Ready);
    let discarded = operator
        .post(
            "/api/v1/dead/discard",
            json!({"throttle": "t", "why": "too old"}),
        )
        .await;
    assert_eq!(discarded["jobs"], 2);
    assert_eq!(operator.state(others[0]).await, State::Cancelled);

    for (path, body, pointer) in [
        ("requeue", json!({}), ""),
        ("requeue", json!({"error_like": "a\\"}), "/error_like"),
        (
            "requeue",
            json!({"error_like": "%a%a%a%a%a%"}),
            "/error_like",
        ),
        ("requeue", json!({"error_like": ""}), "/error_like"),
        (
            "discard",
            json!({"error_like": "%", "keep_attempts": true}),
            "/keep_attempts",
        ),
        ("discard", json!({"died_before": "x"}), "/died_before"),
    ] {
        let (status, output) = operator
            .send(Method::POST, &format!("/api/v1/dead/{path}"), body.clone())
            .await;
        assert_eq!(
            (status, &output["errors"][0]["pointer"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(pointer)),
            "{body}: {output}"
        );
    }
}

#[tokio::test]
async fn a_search_over_http_takes_times_and_the_word_ended() {
    let operator = operator().await;
    let dead = operator.enqueue(1, "t", "a").await[0];
    operator.kill("no").await;
    let ready = operator.enqueue(1, "t", "a").await[0];
    let found = async |query: &str| {
        let page = operator.get(&format!("/api/v1/jobs?{query}")).await;
        page["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };

    assert_eq!(found("state=ended").await, [dead]);
    assert_eq!(
        found("created_after=2020-01-01T00:00:00Z").await,
        [ready, dead]
    );
    assert_eq!(
        found("created_before=2020-01-01T00:00:00%2B01:00").await,
        Vec::<i64>::new()
    );
    assert_eq!(found("throttle=t&key=a&state=ready").await, [ready]);
    for query in [
        "state=end",
        "created_after=today",
        "created_after=2020-01-02T00:00:00Z&created_before=2020-01-01T00:00:00Z",
    ] {
        let (status, output) = operator
            .send(Method::GET, &format!("/api/v1/jobs?{query}"), json!({}))
            .await;
        assert_eq!(
            (status, &output["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_query")),
            "{query}: {output}"
        );
    }
}
