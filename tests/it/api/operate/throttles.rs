//! Pausing and deleting throttles, and operating on lanes, over HTTP.

use std::collections::BTreeMap;

use flyball::jobs::{NewJob, State};
use flyball::throttle::postgres::KnobRecord;
use flyball::throttle::{Change, Name};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::fixture::operator;

#[tokio::test]
async fn a_throttle_is_deleted_over_http_with_its_record_and_its_jobs_wait_for_it() {
    let operator = operator().await;
    operator.turn("t", &[("rps", "5")]).await;
    operator.turn("api:enqueue", &[("rps", "5")]).await;
    let record = KnobRecord::new(operator.queue.pool.clone());
    let name = Name::new("t").unwrap();
    record
        .save(&name, &BTreeMap::from([("rps".to_owned(), "5".to_owned())]))
        .await
        .unwrap();
    operator.enqueue(3, "t", "a").await;
    operator.enqueue(1, "other", "a").await;
    let mut later = NewJob::new("http", json!({"url": "http://127.0.0.1/"})).throttle("t");
    later.run_at = Some("2031-01-01T00:00:00Z".parse().unwrap());
    operator.queue.enqueue(&[later]).await.unwrap();

    let plain = "/api/v1/throttles/t";
    let (refused, output) = operator.send(Method::DELETE, plain, json!({})).await;
    assert_eq!(
        (refused, &output["code"]),
        (StatusCode::CONFLICT, &json!("in_use"))
    );
    assert!(
        output["detail"]
            .as_str()
            .unwrap()
            .starts_with("4 jobs wait for throttle t"),
        "{output}"
    );
    assert!(operator.store.status(&name).await.unwrap().is_some());
    let deleted = operator
        .ok(
            Method::DELETE,
            "/api/v1/throttles/t?force=true&by=ann&why=it+is+over",
            json!({}),
        )
        .await;

    assert_eq!(
        deleted,
        json!({"throttle": "t", "waiting": {"jobs": 4, "more": false}})
    );
    assert!(operator.store.status(&name).await.unwrap().is_none());
    assert!(
        record
            .load()
            .await
            .unwrap()
            .iter()
            .all(|(kept, _)| *kept != name),
        "the keeper of knobs would restore it"
    );
    let entry = &operator.get("/api/v1/audit").await["entries"][0];
    assert_eq!(
        (&entry["actor"], &entry["action"], &entry["subject"]),
        (&json!("ann"), &json!("throttle.delete"), &json!("t"))
    );
    assert_eq!(
        (&entry["why"], &entry["before"]["rps"], &entry["after"]),
        (&json!("it is over"), &json!("5"), &Value::Null)
    );
    let waiting = operator.get("/api/v1/jobs?throttle=t").await;
    assert!(
        waiting["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|job| ["ready", "scheduled"].contains(&job["state"].as_str().unwrap()))
    );
    assert_eq!(waiting["jobs"].as_array().unwrap().len(), 4);

    for (path, status, code) in [
        ("t", 404, "throttle_not_found"),
        ("api:enqueue", 409, "in_use"),
        ("t%20x", 400, "invalid_path"),
        ("other?force=yes", 400, "invalid_query"),
    ] {
        let (answered, output) = operator
            .send(
                Method::DELETE,
                &format!("/api/v1/throttles/{path}"),
                json!({}),
            )
            .await;
        assert_eq!(
            (answered.as_u16(), output["code"].as_str()),
            (status, Some(code)),
            "{path}: {output}"
        );
    }
}

#[tokio::test]
async fn a_throttle_from_which_others_draw_is_not_deleted() {
    let operator = operator().await;
    operator.turn("above", &[("rps", "5")]).await;
    for child in ["one", "two"] {
        let knobs = [("rps", "1"), ("parent", "above")]
            .map(|(knob, value)| (knob.to_owned(), Some(value.to_owned())));
        let change = Change {
            fields: BTreeMap::from(knobs),
            by: "test".into(),
            create: true,
            ..Change::default()
        };
        operator
            .store
            .set(&Name::new(child).unwrap(), &change)
            .await
            .unwrap();
    }

    let (status, output) = operator
        .send(Method::DELETE, "/api/v1/throttles/above", json!({}))
        .await;
    assert_eq!(
        (status.as_u16(), output["code"].as_str()),
        (409, Some("in_use")),
        "{output}"
    );
    assert!(
        output["detail"]
            .as_str()
            .unwrap()
            .contains("above is the parent of one, two"),
        "{output}"
    );
    assert!(
        operator
            .store
            .status(&Name::new("above").unwrap())
            .await
            .unwrap()
            .is_some()
    );

    for child in ["one", "two", "above"] {
        operator
            .ok(
                Method::DELETE,
                &format!("/api/v1/throttles/{child}"),
                json!({}),
            )
            .await;
    }
}

#[tokio::test]
async fn a_throttle_and_everything_are_paused_and_resumed_over_http_and_jobs_say_so() {
    let operator = operator().await;
    operator.turn("t", &[("rps", "-1")]).await;
    let id = operator.enqueue(1, "t", "a").await[0];
    let reason = async || {
        operator.get(&format!("/api/v1/jobs/{id}")).await["waiting"]["reason"]
            .as_str()
            .unwrap()
            .to_owned()
    };

    let paused = operator
        .post("/api/v1/throttles/t/pause", json!({"why": "upgrade"}))
        .await;
    assert_eq!(
        (&paused["paused"], &paused["state"]),
        (&json!(true), &json!("paused"))
    );
    assert!(
        reason().await.starts_with("throttle t is stopped"),
        "{}",
        reason().await
    );
    assert_eq!(
        operator
            .post("/api/v1/throttles/t/resume", Value::Null)
            .await["paused"],
        false
    );
    let (status, output) = operator
        .send(Method::POST, "/api/v1/throttles/none/pause", json!({}))
        .await;
    assert_eq!(
        (status, &output["code"]),
        (StatusCode::NOT_FOUND, &json!("throttle_not_found"))
    );

    assert_eq!(
        operator.get("/api/v1/pause").await,
        json!({"paused": null, "changed": false})
    );
    let first = operator
        .post(
            "/api/v1/pause",
            json!({"why": "the disk is full", "by": "alice"}),
        )
        .await;
    assert_eq!(
        (&first["changed"], &first["paused"]["why"]),
        (&json!(true), &json!("the disk is full"))
    );
    let second = operator.post("/api/v1/pause", json!({"by": "bob"})).await;
    assert_eq!(
        (&second["changed"], &second["paused"]["by"]),
        (&json!(false), &json!("alice"))
    );
    assert!(
        reason()
            .await
            .ends_with("by alice: the disk is full; end the pause with: flyball resume"),
        "{}",
        reason().await
    );
    assert_eq!(
        operator.post("/api/v1/resume", json!({})).await,
        json!({"paused": null, "changed": true})
    );
    assert_eq!(
        operator.post("/api/v1/resume", json!({})).await["changed"],
        false
    );

    let actions: Vec<String> = operator
        .actions()
        .await
        .into_iter()
        .map(|(_, action)| action)
        .collect();
    assert_eq!(
        actions,
        [
            "throttle.pause",
            "throttle.resume",
            "all.pause",
            "all.resume"
        ]
    );
}

#[tokio::test]
async fn jobs_without_a_key_and_those_whose_key_is_a_minus_are_distinguished_over_http() {
    let operator = operator().await;
    let without = operator.enqueue(1, "t", "").await;
    let minus = operator.enqueue(2, "t", "-").await;
    operator.queue.ready_lanes().await.unwrap();
    let found =
        async |path: &str, list: &str| operator.get(path).await[list].as_array().unwrap().len();

    assert_eq!(found("/api/v1/jobs?key=", "jobs").await, 1);
    assert_eq!(found("/api/v1/jobs?key=-", "jobs").await, 2);
    assert_eq!(
        found("/api/v1/jobs?kind=", "jobs").await,
        3,
        "any other empty parameter counts as absent"
    );
    assert_eq!(
        operator.get("/api/v1/throttles/t/lanes?key=--").await["lanes"][0]["key"],
        "-"
    );
    assert_eq!(
        operator.get("/api/v1/throttles/t/lanes?key=").await["lanes"][0]["key"],
        ""
    );
    let purged = operator
        .ok(
            Method::DELETE,
            "/api/v1/throttles/t/keys/--/jobs",
            Value::Null,
        )
        .await;

    assert_eq!(purged["jobs"], 2);
    assert_eq!(
        (
            operator.state(without[0]).await,
            operator.state(minus[0]).await
        ),
        (State::Ready, State::Cancelled)
    );
}

#[tokio::test]
async fn lanes_are_looked_at_weighed_and_emptied_over_http() {
    let operator = operator().await;
    for key in ["", "a b", "b/c"] {
        operator.enqueue(3, "t", key).await;
    }
    operator.queue.ready_lanes().await.unwrap();

    let lane = operator.get("/api/v1/throttles/t/keys/b%2Fc").await;
    assert_eq!(
        (&lane["weight"], &lane["waiting"]),
        (&json!(1.0), &json!({"jobs": 3, "more": false}))
    );
    let heavy = operator
        .ok(
            Method::PATCH,
            "/api/v1/throttles/t/keys/b%2Fc",
            json!({"weight": 2.5, "by": "alice"}),
        )
        .await;
    assert_eq!(heavy["weight"], 2.5);
    for (body, words) in [
        (json!({}), "is missing: it must be"),
        (json!({"weight": 0}), "must be a number"),
        (json!({"weight": 0.0001}), "must be a number"),
        (json!({"weight": 1001}), "must be a number"),
        (json!({"weight": "2"}), "must be a number"),
    ] {
        let (status, output) = operator
            .send(Method::PATCH, "/api/v1/throttles/t/keys/-", body)
            .await;
        assert_eq!(
            (status, &output["errors"][0]["pointer"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("/weight")),
            "{output}"
        );
        assert!(
            output["detail"].as_str().unwrap().contains(words),
            "{output}"
        );
    }

    let purge = "/api/v1/throttles/t/keys/a%20b/jobs";
    assert_eq!(
        operator
            .ok(
                Method::DELETE,
                &format!("{purge}?dry_run=true"),
                Value::Null
            )
            .await["jobs"],
        3
    );
    let some = operator
        .ok(
            Method::DELETE,
            &format!("{purge}?limit=2&by=alice&why=gone"),
            Value::Null,
        )
        .await;
    assert_eq!((&some["jobs"], &some["more"]), (&json!(2), &json!(true)));
    assert_eq!(
        operator.ok(Method::DELETE, purge, Value::Null).await["jobs"],
        1
    );
    assert_eq!(
        operator
            .ok(
                Method::DELETE,
                "/api/v1/throttles/t/keys/-/jobs",
                Value::Null
            )
            .await["jobs"],
        3,
        "a minus is the empty key"
    );
    let left: i64 = sqlx::query_scalar("select count(*) from flyball.ready")
        .fetch_one(operator.database.pool())
        .await
        .unwrap();
    assert_eq!(left, 3);
    let (status, output) = operator
        .send(
            Method::DELETE,
            &format!("{purge}?limit=0&force=1"),
            Value::Null,
        )
        .await;
    assert_eq!(
        (status, output["errors"].as_array().unwrap().len()),
        (StatusCode::BAD_REQUEST, 2),
        "{output}"
    );
}
