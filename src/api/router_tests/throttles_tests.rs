//! Throttles, their tokens and their keys.

use super::*;
use crate::api::stream::live_sample::LiveSample;
use crate::api::throttles::measured::Measured;
use crate::api::throttles::view::state_word;
use crate::throttle::OnStoreLoss;

#[tokio::test]
async fn a_throttle_is_shown_with_its_seq_as_etag() {
    let fixture = fixture(None).await;
    let response = fixture
        .get("/api/v1/throttles/reindex")
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["etag"], "\"17\"");
    let one: Value = response.json().await.unwrap();
    assert_eq!(
        (
            one["state"].as_str(),
            one["effective_rps"].as_f64(),
            &one["achieved_rps"]
        ),
        (Some("flowing"), Some(5.0), &Value::Null)
    );
    assert_eq!(one["knobs"]["on_store_loss"], "closed");
    let all: Value = fixture
        .get("/api/v1/throttles")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(all["throttles"], json!([one]));
    assert_eq!(all["may_change"], true);
    let why: Value = fixture
        .get("/api/v1/throttles/reindex/why")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        why["sentence"],
        "reindex runs at 5 a second; its knobs were last changed by alice: a test"
    );
    {
        let mut throttles = fixture.map_store.throttles.lock();
        let edited = throttles.get_mut(&Name::new("reindex").unwrap()).unwrap();
        let written = ("written".to_owned(), "9 - - 0 alice".to_owned());
        edited.raw.extend([written]);
        edited.knobs.by.clear();
    }
    let why = fixture.get("/api/v1/throttles/reindex/why").send().await;
    let why: Value = why.unwrap().json().await.unwrap();
    assert_eq!(
        why["sentence"],
        "reindex runs at 5 a second; its knobs were last changed in Redis directly"
    );
}

#[tokio::test]
async fn one_status_that_comes_too_late_is_taken_from_the_last_sample_or_asked_for_again() {
    let fixture = fixture(None).await;
    let [reindex, hooks] = ["reindex", "hooks"].map(|name| Name::new(name).unwrap());
    let add = |name: &Name| {
        let status = status_of(name, 7.0, 1);
        fixture
            .map_store
            .throttles
            .lock()
            .insert(name.clone(), status)
    };
    add(&hooks);
    let late = |times: u32| fixture.map_store.late.lock().insert(hooks.clone(), times);
    let list = async || fixture.get("/api/v1/throttles").send().await.unwrap();
    let rates = async || {
        let all: Value = list().await.json().await.unwrap();
        let of = |n: usize| all["throttles"][n]["effective_rps"].as_f64().unwrap();
        [of(0), of(1)]
    };

    late(1);
    assert_eq!(rates().await, [7.0, 5.0], "asked again");
    late(2);
    problem(list().await, 503, "throttles_unavailable").await;
    let mut sample = LiveSample::default();
    let seen = Measured {
        status: Some(status_of(&hooks, 6.0, 1)),
        ..Measured::default()
    };
    sample.throttles.insert(hooks.to_string(), seen);
    fixture.live.keep_sample(sample);
    late(2);
    assert_eq!(rates().await, [6.0, 5.0], "as last seen");
    fixture.map_store.late.lock().insert(reindex, 2);
    problem(list().await, 503, "throttles_unavailable").await;
}

#[tokio::test]
async fn a_throttle_whose_jobs_do_not_start_for_want_of_writes_does_not_flow() {
    let fixture = fixture(None).await;
    let name = Name::new("reindex").unwrap();
    let state = async |no_writes: bool, is_store_lost: bool, on_store_loss: OnStoreLoss| {
        let mut status = status_of(&name, 5.0, 1);
        status.knobs.on_store_loss = on_store_loss;
        let measured = Measured {
            status: Some(status),
            ..Measured::default()
        };
        let mut sample = LiveSample {
            is_queue_unwritable: no_writes,
            is_store_lost,
            ..LiveSample::default()
        };
        sample.throttles.insert(name.to_string(), measured);
        sample.mark_unwritable();
        fixture.live.keep_sample(sample);
        let shown = fixture.get("/api/v1/throttles/reindex").send().await;
        let shown: Value = shown.unwrap().json().await.unwrap();
        shown["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(false, false, OnStoreLoss::Closed).await, "flowing");
    assert_eq!(state(true, false, OnStoreLoss::Open).await, "no_writes");
    assert_eq!(state(false, true, OnStoreLoss::Closed).await, "no_writes");
    assert_eq!(state(false, true, OnStoreLoss::Open).await, "flowing");
}

#[test]
fn a_pause_above_comes_before_a_want_of_writes_which_stops_no_limit_of_requests() {
    let measured = |name: &str| Measured {
        status: Some(status_of(&Name::new(name).unwrap(), 5.0, 1)),
        ..Measured::default()
    };
    let mut sample = LiveSample {
        is_queue_unwritable: true,
        ..LiveSample::default()
    };
    for name in ["reindex", "api:read", "limit:lead"] {
        sample.throttles.insert(name.to_owned(), measured(name));
    }
    let below = Measured {
        above: Some("stopped"),
        ..measured("below")
    };
    sample.throttles.insert("below".to_owned(), below);
    sample.mark_unwritable();

    let state = |name: &str| {
        let measured = &sample.throttles[name];
        state_word(measured.status.as_ref().unwrap(), Some(measured))
    };
    assert_eq!(state("reindex"), "no_writes");
    assert_eq!(state("below"), "stopped");
    assert_eq!(state("api:read"), "flowing");
    assert_eq!(state("limit:lead"), "flowing");
}

#[tokio::test]
async fn an_edit_is_made_under_its_condition_and_a_lost_audit_line_is_a_warning() {
    let fixture = fixture(None).await;
    let edit = |seq: &'static str| {
        fixture
            .ask(Method::PATCH, "/api/v1/throttles/reindex")
            .header("if-match", seq)
    };

    problem(
        edit("\"16\"")
            .json(&json!({"rps": 9}))
            .send()
            .await
            .unwrap(),
        409,
        "conflict",
    )
    .await;
    problem(
        edit("seventeen")
            .json(&json!({"rps": 9}))
            .send()
            .await
            .unwrap(),
        400,
        "invalid_header",
    )
    .await;
    let response = edit("\"17\"")
        .json(&json!({"rps": 9, "by": "bob", "why": "quiet night"}))
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            response.status(),
            response.headers()["etag"].to_str().unwrap()
        ),
        (StatusCode::OK, "\"18\"")
    );
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["knobs"]["rps"], 9.0);
    assert!(body["warnings"][0].as_str().unwrap().contains("audit log"));
}

#[tokio::test]
async fn a_wrong_edit_changes_nothing_and_lists_all_that_is_wrong() {
    let fixture = fixture(None).await;
    let edit = |path: &'static str, body: Value| fixture.send(Method::PATCH, path, body);

    let wrong = json!({"rps": "fast", "seq": 3, "by": 5, "parent": "reindex"});
    let refused = problem(
        edit("/api/v1/throttles/reindex", wrong).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/seq", "/by", "/rps", "/parent"]);
    problem(
        edit("/api/v1/throttles/reindex", json!({"why": "no reason"})).await,
        422,
        "invalid_fields",
    )
    .await;
    problem(
        edit("/api/v1/throttles/reindex", json!([1])).await,
        422,
        "invalid_fields",
    )
    .await;
    problem(
        edit("/api/v1/throttles/new", json!({"rps": 1})).await,
        404,
        "throttle_not_found",
    )
    .await;
    let no_name = edit("/api/v1/throttles/mail:lane", json!({"rps": 1})).await;
    let refused = problem(no_name, 404, "throttle_not_found").await;
    let detail = refused["detail"].as_str().unwrap();
    assert!(
        detail.contains("none can have this name") && !detail.contains("create"),
        "{detail}"
    );
    problem(
        edit("/api/v1/throttles/new?create=yes", json!({"rps": 1})).await,
        400,
        "invalid_query",
    )
    .await;
    assert_eq!(
        edit("/api/v1/throttles/new?create=true", json!({"rps": 1}))
            .await
            .status(),
        StatusCode::OK
    );
    assert_eq!(
        fixture
            .map_store
            .find(&Name::new("reindex").unwrap())
            .unwrap()
            .knobs
            .seq,
        17
    );
}

#[tokio::test]
async fn any_program_can_take_tokens() {
    let fixture = fixture(None).await;
    let take = |name: &str, body: Value| {
        fixture
            .ask(Method::POST, &format!("/api/v1/throttles/{name}/acquire"))
            .json(&body)
            .send()
    };

    let all: Value = take("reindex", json!({"want": 2}))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (&all["granted"], &all["wait_s"], &all["limit"]),
        (&json!(2), &json!(0.0), &Value::Null)
    );
    let some: Value = take("reindex", json!({"want": 3, "key": "acme", "cost": 0.5}))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (&some["granted"], &some["wait_s"], &some["limit"]),
        (&json!(2), &json!(0.5), &json!({"level": "throttle"}))
    );
    assert_eq!(some["until"], "1970-01-01T00:00:01.5Z");
    problem(
        take("none", json!({})).await.unwrap(),
        404,
        "throttle_not_found",
    )
    .await;
    let wrong =
        json!({"want": -1, "cost": -1, "key": [], "held": 1.5, "holder": "", "ttl_s": 4000});
    let refused = problem(take("reindex", wrong).await.unwrap(), 422, "invalid_fields").await;
    let mut named = pointers(&refused);
    named.sort();
    assert_eq!(
        named,
        ["/cost", "/held", "/holder", "/key", "/ttl_s", "/want"]
    );
}

#[tokio::test]
async fn keys_are_paused_and_resumed_and_a_minus_is_the_lane_without_a_key() {
    let fixture = fixture(None).await;
    let paused: Value = fixture
        .send(
            Method::POST,
            "/api/v1/throttles/reindex/keys/a%2Fb/pause",
            json!({"seconds": 5}),
        )
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        (paused["key"].as_str(), paused["until"].as_str()),
        (Some("a/b"), Some("1970-01-01T00:00:05Z"))
    );
    let resumed: Value = fixture
        .ask(Method::POST, "/api/v1/throttles/reindex/keys/-/resume")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (resumed["key"].as_str(), resumed["resumed"].as_bool()),
        (Some(""), Some(true))
    );
    let minus: Value = fixture
        .ask(Method::POST, "/api/v1/throttles/reindex/keys/--/resume")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(minus["key"], "-");
    for body in [
        json!({}),
        json!({"seconds": 0}),
        json!({"seconds": "5"}),
        json!({"seconds": 1e9}),
    ] {
        let refused = problem(
            fixture
                .send(Method::POST, "/api/v1/throttles/reindex/keys/a/pause", body)
                .await,
            422,
            "invalid_fields",
        )
        .await;
        assert_eq!(pointers(&refused), ["/seconds"]);
    }
    problem(
        fixture
            .send(
                Method::POST,
                "/api/v1/throttles/none/keys/a/pause",
                json!({"seconds": 5}),
            )
            .await,
        404,
        "throttle_not_found",
    )
    .await;
}
