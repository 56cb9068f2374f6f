//! Groups of jobs over HTTP: created, joined, sealed, cancelled; wrong fields by their place.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::server::{problem, spawn_api};

fn mail(more: Value) -> Value {
    let mut job = json!({"kind": "mail", "args": {"to": "ada"}});
    let fields = job.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    job
}

#[tokio::test]
async fn a_group_is_created_joined_sealed_and_ends_with_its_callback() {
    let api = spawn_api(None).await;
    let made = api
        .post(
            "/api/v1/groups",
            json!({"name": "import", "callback": mail(json!({"key": "last"}))}),
        )
        .await;
    assert_eq!(made.status(), StatusCode::CREATED);
    let location = made.headers()["location"].to_str().unwrap().to_owned();
    let group: Value = made.json().await.unwrap();
    let id = group["id"].as_i64().unwrap();
    assert_eq!(location, format!("/api/v1/groups/{id}"));
    assert_eq!(
        (&group["state"], &group["jobs"], &group["members"]),
        (&json!("open"), &json!(0), &json!([]))
    );
    let member = api.enqueue(mail(json!({"group": id}))).await;
    let batch = json!([mail(json!({"group": id})), mail(json!({}))]);
    let batch = api.post("/api/v1/jobs/batch", batch).await;
    assert_eq!(batch.status(), StatusCode::CREATED);
    let job = api.body(&format!("/api/v1/jobs/{member}")).await;
    assert_eq!(job["group"], json!(id));

    for _ in 0..2 {
        let sealed = api.post(&format!("{location}/seal"), json!({})).await;
        assert_eq!(sealed.status(), StatusCode::OK);
        let sealed: Value = sealed.json().await.unwrap();
        assert_eq!(
            (&sealed["state"], &sealed["jobs"], &sealed["pending"]),
            (&json!("running"), &json!(2), &json!(2))
        );
    }
    let late = api.post("/api/v1/jobs", mail(json!({"group": id}))).await;
    let late = problem(late, 422, "invalid_fields").await;
    assert_eq!(late["errors"][0]["pointer"], "/group");
    let why = late["errors"][0]["message"].as_str().unwrap();
    assert!(why.contains("is sealed"), "{why}");

    let cancelled = api
        .post(&format!("{location}/cancel"), json!({"why": "wrong file"}))
        .await;
    let cancelled: Value = cancelled.json().await.unwrap();
    assert_eq!(
        cancelled,
        json!({"cancelled": 2, "requested": 0, "more": false})
    );
    let ended = api.body(&location).await;
    assert_eq!(
        (&ended["state"], &ended["cancelled"]),
        (&json!("ended"), &json!(2))
    );
    let callback = ended["callback_job_id"].as_i64().unwrap();
    let callback = api.body(&format!("/api/v1/jobs/{callback}")).await;
    assert_eq!(callback["key"], "last");
    assert_eq!(callback["args"]["group"]["cancelled"], 2);
    let listed = api.body("/api/v1/groups?limit=1").await;
    assert_eq!(listed["groups"][0]["id"], json!(id));
    assert_eq!(
        listed["next"],
        json!(format!("/api/v1/groups?limit=1&before={id}"))
    );
}

#[tokio::test]
async fn a_group_with_its_jobs_is_all_or_nothing_and_every_wrong_field_is_named() {
    let api = spawn_api(None).await;
    let whole = json!({"jobs": [mail(json!({})), mail(json!({"unique_key": "a"})), mail(json!({"unique_key": "a"}))]});
    let made = api.post("/api/v1/groups", whole).await;
    assert_eq!(made.status(), StatusCode::CREATED);
    let made: Value = made.json().await.unwrap();
    let members = made["members"].as_array().unwrap();
    assert_eq!(
        (members.len(), &members[2]["duplicate"], &made["jobs"]),
        (3, &json!(true), &json!(2))
    );
    assert_eq!(made["state"], "running");

    let wrong = json!({
        "nmae": "x", "callback": {"kind": "mail", "args": {}, "group": 1},
        "jobs": [mail(json!({"priority": 9})), mail(json!({"group": 3})), {"kind": "nope"}, 7],
    });
    let refused = problem(
        api.post("/api/v1/groups", wrong).await,
        422,
        "invalid_fields",
    )
    .await;
    let errors = refused["errors"].as_array().unwrap();
    let mut places: Vec<&str> = errors
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            "/callback/args/to",
            "/callback/group",
            "/jobs/0/priority",
            "/jobs/1/group",
            "/jobs/2/kind",
            "/jobs/3",
            "/nmae"
        ],
        "{refused}"
    );
    // What only the queue knows is named by its place too.
    for (body, place) in [
        (
            json!({"jobs": [mail(json!({})), mail(json!({"cost": 1e8}))]}),
            "/jobs/1/cost",
        ),
        (
            json!({"callback": mail(json!({"cost": 1e8}))}),
            "/callback/cost",
        ),
        (
            json!({"jobs": [mail(json!({"unique_key": "b", "replace": true}))]}),
            "/jobs/0/group",
        ),
        (json!({"jobs": {}}), "/jobs"),
        (json!({"name": "n".repeat(201)}), "/name"),
    ] {
        let refused = problem(
            api.post("/api/v1/groups", body).await,
            422,
            "invalid_fields",
        )
        .await;
        assert_eq!(refused["errors"][0]["pointer"], place, "{refused}");
    }
    let groups = api.body("/api/v1/groups").await;
    assert_eq!(groups["groups"].as_array().unwrap().len(), 1);
    for path in ["/api/v1/groups/999", "/api/v1/groups/999/seal"] {
        let answer = if path.ends_with("seal") {
            api.post(path, json!({})).await
        } else {
            api.get(path).await
        };
        problem(answer, 404, "group_not_found").await;
    }
    problem(api.get("/api/v1/groups/none").await, 400, "invalid_path").await;
}
