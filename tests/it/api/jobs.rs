//! Showing, cancelling, retrying and listing jobs and lanes over HTTP.

use flyball::jobs::NewJob;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::server::{SOON, problem, spawn_api};
use crate::support::eventually;

#[tokio::test]
async fn a_waiting_job_says_why_and_until_when() {
    let api = spawn_api(None).await;
    api.turn("stopped", &[("rps", "0")]).await;
    api.turn("open", &[("rps", "-1")]).await;
    api.turn("slow", &[("rps", "0.01")]).await;
    let waiting = async |more: Value| {
        let id = api.enqueue(more).await;
        api.body(&format!("/api/v1/jobs/{id}")).await["waiting"].clone()
    };

    let stopped = waiting(json!({"throttle": "stopped"})).await;
    assert!(
        stopped["reason"]
            .as_str()
            .unwrap()
            .starts_with("throttle stopped is stopped"),
        "{stopped}"
    );
    let unknown = waiting(json!({"throttle": "not-there-yet"})).await;
    assert!(
        unknown["reason"]
            .as_str()
            .unwrap()
            .contains("flyball throttle set not-there-yet"),
        "{unknown}"
    );
    let nobody = waiting(json!({"throttle": "open"})).await;
    assert_eq!(nobody["reason"], "no worker is live; start one");
    let later = waiting(json!({"throttle": "open", "run_at": "2035-01-01T00:00:00Z"})).await;
    assert_eq!(
        (&later["reason"], &later["until"]),
        (
            &json!("it is scheduled for a later time"),
            &json!("2035-01-01T00:00:00Z")
        )
    );

    let taken = api
        .post("/api/v1/throttles/slow/acquire", json!({}))
        .await
        .json::<Value>()
        .await
        .unwrap();
    assert_eq!(taken["granted"], 1);
    let slow = waiting(json!({"throttle": "slow"})).await;
    assert_eq!(
        slow["reason"],
        "throttle slow grants 0.01 tokens a second, and has none left now; besides, no worker is \
         live: start one"
    );
    assert!(slow["until"].is_string(), "{slow}");

    let pause = api
        .post(
            "/api/v1/throttles/open/keys/acme/pause",
            json!({"seconds": 60, "why": "429"}),
        )
        .await;
    let paused: Value = pause.json().await.unwrap();
    let held = waiting(json!({"throttle": "open", "key": "acme"})).await;
    assert_eq!(
        (&held["reason"], &held["until"]),
        (
            &json!(
                "key \"acme\" of throttle open is paused: 429; besides, no worker is live: start one"
            ),
            &paused["until"]
        )
    );
    let resumed = api
        .post("/api/v1/throttles/open/keys/acme/resume", json!({}))
        .await
        .json::<Value>()
        .await
        .unwrap();
    assert_eq!(resumed["resumed"], true);
}

#[tokio::test]
async fn programs_that_name_themselves_are_counted_by_limits_of_concurrency() {
    let api = spawn_api(None).await;
    api.turn(
        "slots",
        &[
            ("rps", "-1"),
            ("concurrency", "3"),
            ("key_concurrency", "2"),
        ],
    )
    .await;
    let take = async |body: Value| {
        let answer = api
            .post("/api/v1/throttles/slots/acquire", body)
            .await
            .json::<Value>()
            .await
            .unwrap();
        (
            answer["granted"].as_u64().unwrap(),
            answer["limit"]["level"].as_str().map(str::to_owned),
            answer["reason"].clone(),
        )
    };

    assert_eq!(
        take(json!({"holder": "a", "key": "acme", "want": 9}))
            .await
            .0,
        2
    );
    let (granted, level, reason) = take(json!({"holder": "b", "want": 9})).await;
    assert_eq!((granted, level.as_deref()), (1, Some("concurrency")));
    assert_eq!(
        reason,
        "throttle slots is at its concurrency limit; it starts when another job ends"
    );
    assert_eq!(
        take(json!({"want": 9})).await.0,
        9,
        "without a name nobody is counted"
    );
    let id = api
        .enqueue(json!({"throttle": "slots", "key": "acme"}))
        .await;
    let waiting = api.body(&format!("/api/v1/jobs/{id}")).await["waiting"].clone();
    let reason = reason.as_str().unwrap();
    assert_eq!(
        waiting["reason"],
        format!("{reason}; besides, no worker is live: start one")
    );

    assert_eq!(
        take(json!({"holder": "a", "key": "acme", "want": 0, "held": 1, "key_held": 1}))
            .await
            .0,
        0
    );

    assert_eq!(
        take(json!({"holder": "b", "want": 9, "held": 1})).await.0,
        1
    );
}

#[tokio::test]
async fn an_unknown_throttle_parks_its_jobs_and_is_shown_as_such() {
    let api = spawn_api(None).await;
    let response = api
        .post(
            "/api/v1/jobs",
            json!({"kind": "mail", "args": {"to": "a"}, "throttle": "parked"}),
        )
        .await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let job: Value = response.json().await.unwrap();
    assert!(
        job["warnings"][0]
            .as_str()
            .unwrap()
            .contains("there is no throttle parked"),
        "{job}"
    );
    // The path that is told can be asked.
    let sent = json!({"kind": "mail", "args": {"to": "a"}, "throttle": "parked/here"});
    let response = api.post("/api/v1/jobs", sent).await;
    let job: Value = response.json().await.unwrap();
    assert!(
        job["warnings"][0]
            .as_str()
            .unwrap()
            .ends_with("PATCH /api/v1/throttles/parked%2Fhere?create=true"),
        "{job}"
    );

    let shown = eventually("the parked throttle in the list", SOON, || async {
        let all = api.body("/api/v1/throttles").await;
        all["throttles"]
            .as_array()
            .unwrap()
            .iter()
            .find(|throttle| throttle["name"] == "parked")
            .cloned()
    })
    .await;
    assert_eq!(
        (&shown["state"], &shown["knobs"], &shown["depth"]["ready"]),
        (&json!("unknown"), &Value::Null, &json!(1))
    );
}

#[tokio::test]
async fn a_throttle_that_a_pattern_makes_is_no_cause_for_a_warning() {
    let api = spawn_api(None).await;
    api.turn("gcal:*", &[("rps", "5")]).await;
    let job = |throttle: &str| json!({"kind": "mail", "args": {"to": "a"}, "throttle": throttle});
    let jobs = json!([job("gcal:1"), job("other:1")]);

    let answer = api.post("/api/v1/jobs/batch", jobs).await;

    let answer: Value = answer.json().await.unwrap();
    let warnings = answer["warnings"].as_array().unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].as_str().unwrap().contains("other:1"),
        "{answer}"
    );
    let problems = |all: &Value, name: &str| {
        let mut throttles = all["throttles"].as_array().unwrap().iter();
        let found = throttles.find(|throttle| throttle["name"] == name)?;
        Some(found["problems"].clone())
    };
    eventually("both in the list", SOON, || async {
        let all = api.body("/api/v1/throttles").await;
        let (made, other) = (problems(&all, "gcal:1")?, problems(&all, "other:1")?);
        assert_eq!(made, json!([]), "{all}");
        assert_eq!(other.as_array().unwrap().len(), 1, "{all}");
        Some(())
    })
    .await;
}

#[tokio::test]
async fn lanes_are_listed_with_depth_age_and_pause() {
    let api = spawn_api(None).await;
    api.turn("a/b", &[("rps", "0.01")]).await;
    for (key, jobs) in [("acme", 3), ("", 2), ("idle/ü", 1)] {
        let job = json!({"kind": "mail", "args": {"to": "a"}, "throttle": "a/b", "key": key});
        api.post("/api/v1/jobs/batch", json!(vec![job; jobs])).await;
    }
    api.post(
        "/api/v1/throttles/a%2Fb/keys/acme/pause",
        json!({"seconds": 60, "why": "429"}),
    )
    .await;
    api.queue.count_now().await.unwrap();

    let first = api.body("/api/v1/throttles/a%2Fb/lanes?limit=2").await;
    let second = api.body(first["next"].as_str().unwrap()).await;

    let lanes: Vec<_> = [&first, &second]
        .iter()
        .flat_map(|page| page["lanes"].as_array().unwrap())
        .map(|lane| (&lane["key"], &lane["depth"]))
        .collect();
    assert_eq!(
        lanes,
        [
            (&json!("acme"), &json!(3)),
            (&json!(""), &json!(2)),
            (&json!("idle/ü"), &json!(1))
        ]
    );
    assert_eq!(
        (
            &first["lanes"][0]["paused"]["why"],
            &first["lanes"][1]["paused"]
        ),
        (&json!("429"), &Value::Null)
    );
    assert!(
        first["lanes"][0]["oldest_ready_s"].as_f64().unwrap() >= 0.0
            && first["lanes"][0]["counted_at"].is_string()
    );
    assert_eq!(second["next"], Value::Null);
    let by_key = api
        .body("/api/v1/throttles/a%2Fb/lanes?order=key&limit=1")
        .await;
    assert_eq!(by_key["lanes"][0]["key"], "");
    assert_eq!(
        api.body(by_key["next"].as_str().unwrap()).await["lanes"][0]["key"],
        "acme"
    );
    assert_eq!(
        api.body("/api/v1/throttles/a%2Fb/lanes?key=acme").await["lanes"][0]["weight"],
        1.0
    );
    assert_eq!(
        api.body("/api/v1/throttles/a%2Fb/lanes?key=-").await["lanes"][0]["depth"],
        2
    );
    let wrong = api
        .get("/api/v1/throttles/a%2Fb/lanes?after=x&order=deep")
        .await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    let problem: Value = wrong.json().await.unwrap();
    assert_eq!(problem["errors"].as_array().unwrap().len(), 2, "{problem}");
}

#[tokio::test]
async fn jobs_are_cancelled_and_retried_where_their_state_allows_it() {
    let api = spawn_api(None).await;
    let ready = api.enqueue(json!({})).await;
    let later = api.enqueue(json!({"run_at": "2035-01-01T00:00:00Z"})).await;
    let delete = async |id: i64| {
        api.send(Method::DELETE, &format!("/api/v1/jobs/{id}"), &Value::Null)
            .await
    };
    let retry = async |id: i64| {
        api.post(&format!("/api/v1/jobs/{id}/retry"), Value::Null)
            .await
    };

    let now: Value = retry(later).await.json().await.unwrap();
    assert_eq!(now["state"], "ready");
    let gone: Value = delete(ready).await.json().await.unwrap();
    assert_eq!(gone["state"], "cancelled");
    assert_eq!(
        delete(ready).await.status(),
        StatusCode::OK,
        "cancelling twice is no error"
    );
    let refused = problem(retry(ready).await, 409, "wrong_state").await;
    assert!(
        refused["detail"].as_str().unwrap().contains("is cancelled"),
        "{refused}"
    );
    problem(delete(12_345).await, 404, "job_not_found").await;
    problem(retry(12_345).await, 404, "job_not_found").await;
    problem(api.get("/api/v1/jobs/12345").await, 404, "job_not_found").await;
}

#[tokio::test]
async fn pages_lead_to_every_job_once_and_keep_the_filter() {
    let api = spawn_api(None).await;
    let job = |key: &str| NewJob {
        key: key.into(),
        ..NewJob::new("mail", json!({"to": "a"}))
    };
    let jobs: Vec<NewJob> = (0..25)
        .map(|i| job(if i % 5 == 0 { "other" } else { "a&b" }))
        .collect();
    api.queue.enqueue(&jobs).await.unwrap();

    let (mut seen, mut page) = (
        Vec::new(),
        Some("/api/v1/jobs?state=ready&kind=mail&key=a%26b&limit=7".to_owned()),
    );
    while let Some(path) = page {
        let response = api.get(&path).await;
        let link = response
            .headers()
            .get("link")
            .map(|link| link.to_str().unwrap().to_owned());
        let body: Value = response.json().await.unwrap();
        seen.extend(
            body["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|job| job["id"].as_i64().unwrap()),
        );
        page = body["next"].as_str().map(str::to_owned);
        assert_eq!(
            link,
            page.as_ref().map(|next| format!("<{next}>; rel=\"next\""))
        );
    }
    assert_eq!(seen.len(), 20);
    assert!(seen.is_sorted_by(|a, b| a > b), "newest first, none twice");
    assert_eq!(api.body("/api/v1/jobs?state=dead").await["jobs"], json!([]));
}

#[tokio::test]
async fn a_list_counts_the_jobs_of_each_state_on_request() {
    let api = spawn_api(None).await;
    let jobs: Vec<NewJob> = (0..9)
        .map(|_| NewJob::new("mail", json!({"to": "a"})))
        .collect();
    let enqueued = api.queue.enqueue(&jobs).await.unwrap();
    for job in &enqueued[..4] {
        let path = format!("/api/v1/jobs/{}", job.id);
        api.send(Method::DELETE, &path, &Value::Null).await;
    }
    api.queue.count_now().await.unwrap();

    let counts = api.body("/api/v1/jobs?limit=2&counts=true").await["counts"].clone();
    assert_eq!(counts["ready"], 5, "{counts}");
    assert_eq!(
        [&counts["completed"], &counts["cancelled"]],
        [&Value::Null; 2],
        "not analyzed yet"
    );
    sqlx::query("analyze flyball.attempt")
        .execute(&api.queue.pool)
        .await
        .unwrap();
    let counts = api.body("/api/v1/jobs?state=dead&counts=1").await["counts"].clone();
    let figures = [
        "ready",
        "scheduled",
        "running",
        "dead",
        "completed",
        "cancelled",
    ];
    assert_eq!(
        figures.map(|name| counts[name].as_i64().unwrap()),
        [5, 0, 0, 0, 0, 4],
        "whatever the filter"
    );
    for uncounted in ["/api/v1/jobs", "/api/v1/jobs?counts=false"] {
        assert!(api.body(uncounted).await.get("counts").is_none());
    }
    let wrong = problem(
        api.get("/api/v1/jobs?counts=all").await,
        400,
        "invalid_query",
    )
    .await;
    assert_eq!(wrong["errors"][0]["pointer"], "/counts");
}

#[tokio::test]
async fn a_search_by_content_finds_in_lists_what_a_bulk_change_takes() {
    let api = spawn_api(None).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let order = api
        .enqueue(
            json!({"args": {"order": 17, "to": "a"}, "tags": ["eu", "a,b"], "unique_key": "o17"}),
        )
        .await;
    let traced = api
        .enqueue(json!({"traceparent": format!("00-{trace}-00f067aa0ba902b7-01")}))
        .await;
    let list = async |query: &str| -> Vec<i64> {
        let body = api.body(&format!("/api/v1/jobs?{query}")).await;
        let jobs = body["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["id"].as_i64().unwrap()).collect()
    };
    for (query, body, wanted) in [
        (
            "args=%7B%22order%22%3A17%7D",
            json!({"args": {"order": 17}}),
            vec![order],
        ),
        (
            "args_path=%24.order%20%3D%3D%2017",
            json!({"args_path": "$.order == 17"}),
            vec![order],
        ),
        ("tags=eu", json!({"tags": ["eu"]}), vec![order]),
        (
            "tags=%5B%22eu%22%2C%22a%2Cb%22%5D",
            json!({"tags": ["eu", "a,b"]}),
            vec![order],
        ),
        ("tags=us", json!({"tags": ["us"]}), vec![]),
        (
            format!("trace={trace}").as_str(),
            json!({"trace": trace}),
            vec![traced],
        ),
        ("unique_key=o17", json!({"unique_key": "o17"}), vec![order]),
        (
            "tenant=shop",
            json!({"kind": "mail", "tenant": "shop"}),
            vec![],
        ),
        (
            "error_like=%25502%25",
            json!({"error_like": "%502%"}),
            vec![],
        ),
    ] {
        assert_eq!(list(query).await, wanted, "{query}");
        let mut body = body;
        body["dry_run"] = json!(true);
        let counted = api.post("/api/v1/jobs/cancel", body.clone()).await;
        let counted: Value = counted.json().await.unwrap();
        assert_eq!(counted["jobs"], wanted.len(), "{body}: {counted}");
        let dead = api.post("/api/v1/dead/requeue", body).await;
        assert_eq!(dead.status(), StatusCode::OK);
    }

    for (query, part) in [
        ("args=%7B", "/args: is not JSON"),
        ("args=%5B1%5D", "/args: must be a JSON object"),
        (
            "args=%7B%22id%22%3A123456789012345678901%7D",
            "/args: /id is 123456789012345678901, which would be rounded",
        ),
        (
            "args=%7B%22id%22%3A1%2C%22id%22%3A2%7D",
            "/args: the field \"id\" is given twice",
        ),
        (
            "args_path=%24.a%20%3D%3D%20%24.b",
            "/args_path: \"$.a == $.b\" is not allowed",
        ),
        ("trace=x", "/trace: \"x\" is not the id of a trace"),
        (
            "error_like=a%5C",
            "/error_like: the pattern ends with a lone backslash",
        ),
        (
            "tags=%5B%5D",
            "/tags: must be a tag, or a JSON array of 1 to 16 tags",
        ),
    ] {
        let refused = problem(
            api.get(&format!("/api/v1/jobs?{query}")).await,
            400,
            "invalid_query",
        )
        .await;
        assert!(
            refused["detail"].as_str().unwrap().contains(part),
            "{query}: {refused}"
        );
    }
    for (body, part) in [
        (json!({"args": []}), "/args: must be a JSON object"),
        (
            json!({"args_path": "$"}),
            "/args_path: \"$\" is not allowed",
        ),
        (json!({"tags": []}), "/tags: must have 1 to 16 tags"),
        (json!({"tenant": "shop"}), "no filter is given"),
    ] {
        for path in ["/api/v1/jobs/cancel", "/api/v1/dead/discard"] {
            let refused = problem(api.post(path, body.clone()).await, 422, "invalid_fields").await;
            assert!(
                refused
                    .to_string()
                    .replace('\\', "")
                    .contains(&part.replace('\\', "")),
                "{path} {body}: {refused}"
            );
        }
    }
    assert_eq!(list("state=ready").await, [traced, order]);
}
