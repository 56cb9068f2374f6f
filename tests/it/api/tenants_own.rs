//! A tenant reaches what is its own, with the figures of its own alone.

use reqwest::Method;
use serde_json::{Value, json};

use super::tenants_aim::{Expect, aim};
use super::tenants_answers::answer;
use super::tenants_fixture::{secret, two_tenants};

#[tokio::test]
async fn a_tenant_reaches_its_own() {
    let world = two_tenants().await;
    let admin = secret("admin");
    let get = async |path: &str| -> Value {
        let (status, text) = answer(
            &world,
            "GET",
            Some(&admin),
            &aim(path, None, Expect::Within),
        )
        .await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(text.split_once('\n').unwrap().1.trim()).unwrap()
    };
    let mut listed: Vec<i64> = get("/api/v1/jobs").await["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| {
            assert_eq!(job["tenant"], "acme");
            job["id"].as_i64().unwrap()
        })
        .collect();
    listed.sort_unstable();
    let mut owned = world.acme.ids();
    owned.retain(|id| *id != world.acme.old_message);
    owned.sort_unstable();
    assert_eq!(listed, owned);
    for (state, id) in &world.acme.jobs {
        let shown = get(&format!("/api/v1/jobs/{id}")).await;
        let state = if *state == "owned" { "ready" } else { state };
        assert_eq!(
            (shown["state"].as_str(), shown["tenant"].as_str()),
            (Some(state), Some("acme"))
        );
    }
    // The shared throttle is paused for zeta's sake, which is nothing for acme to read.
    let waits = get(&format!("/api/v1/jobs/{}", world.acme.jobs["ready"])).await;
    assert_eq!(
        waits["waiting"]["reason"],
        "throttle mail is stopped: its rate is 0 or it is paused"
    );
    let messages = get("/api/v1/notifications?state=failed").await;
    let ids: Vec<i64> = messages["notifications"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids, [world.acme.message, world.acme.old_message]);
    let throttles = get("/api/v1/throttles").await;
    let names: Vec<&str> = throttles["throttles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["notify:acme", "tenant:acme/out"]);
    let tenants = get("/api/v1/tenants").await;
    assert_eq!(tenants["tenants"].as_array().unwrap().len(), 1);
    assert_eq!(tenants["tenants"][0]["tenant"], "acme");
    assert_eq!(get("/api/v1/tenants/acme/modules").await["tenant"], "acme");
    let batches = get("/api/v1/notifications/batches").await;
    assert_eq!(batches["batches"].as_array().unwrap().len(), 1);
    assert_eq!(batches["batches"][0]["id"], 1);
    assert_eq!(
        get("/api/v1/throttles/tenant:acme%2Fout").await["name"],
        "tenant:acme/out"
    );
    get("/api/v1/throttles/notify:acme/lanes").await;
    get("/api/v1/throttles/notify:acme/keys/acme-key").await;
    assert_eq!(
        get("/api/v1/failures").await["failures"][0]["error"],
        "acme-error"
    );
    let audit = get("/api/v1/audit").await;
    assert_eq!(audit["entries"][0]["actor"], "acme-person");

    let change = async |method: &str, path: &str, body: Value| -> Value {
        let (status, text) = answer(
            &world,
            method,
            Some(&admin),
            &aim(path, Some(body), Expect::Within),
        )
        .await;
        assert!(
            (200..300).contains(&status),
            "{method} {path}: {status} {text}"
        );
        serde_json::from_str(text.split_once('\n').unwrap().1.trim()).unwrap()
    };
    let token = change(
        "POST",
        "/api/v1/throttles/tenant:acme%2Fout/acquire",
        json!({}),
    )
    .await;
    assert_eq!(token["allowed"], true);
    // What a tenant returned to the operators' limit on its messages, it could send.
    for (word, body) in [
        ("return", json!({"tokens": 5, "key": "m"})),
        ("settle", json!({"charged": 5, "cost": 0, "key": "m"})),
        ("ended", json!({"succeeded": 1, "key": "m"})),
        ("refused", json!({"key": "m"})),
        ("acquire", json!({"key": "m"})),
    ] {
        for throttle in [
            "notify:acme",
            "notify-critical:acme",
            "notify-critical:zeta",
            "ws:acme",
            "ws-connections:acme",
        ] {
            let path = format!("/api/v1/throttles/{throttle}/{word}");
            let aimed = aim(&path, Some(body.clone()), Expect::Within);
            let (status, text) = answer(&world, "POST", Some(&admin), &aimed).await;
            assert_eq!(status, 404, "{path}: {text}");
        }
    }
    change(
        "POST",
        "/api/v1/throttles/notify:acme/pause",
        json!({"why": "a rest"}),
    )
    .await;
    change("POST", "/api/v1/throttles/notify:acme/resume", json!({})).await;
    change(
        "POST",
        &format!("/api/v1/jobs/{}/retry", world.acme.jobs["dead"]),
        json!({}),
    )
    .await;
    change(
        "POST",
        &format!("/api/v1/jobs/{}/reschedule", world.acme.jobs["dead"]),
        json!({"run_at": "2026-12-31T00:00:00Z"}),
    )
    .await;
    // Four wait: ready, owned, scheduled, retryable, and the one rescheduled; one runs; one is a
    // message.
    let filter = json!({"created_after": "2020-01-01T00:00:00Z", "dry_run": true});
    assert_eq!(
        change("POST", "/api/v1/jobs/cancel", filter).await["jobs"],
        7
    );
    let paged = json!({"created_after": "2020-01-01T00:00:00Z", "limit": 4});
    let first = change("POST", "/api/v1/jobs/cancel", paged.clone()).await;
    assert_eq!(
        (&first["jobs"], &first["more"]),
        (&json!(3), &json!(true)),
        "{first}"
    );
    let mut rest = paged;
    rest["start"] = first["next"].clone();
    let second = change("POST", "/api/v1/jobs/cancel", rest).await;
    let total =
        |answer: &Value| answer["jobs"].as_i64().unwrap() + answer["requested"].as_i64().unwrap();
    assert_eq!(total(&first) + total(&second), 7, "{first} {second}");
    let batch = json!({"by": "ada", "why": "the wrong list"});
    for word in ["pause", "resume", "cancel"] {
        change(
            "POST",
            &format!("/api/v1/notifications/batches/1/{word}"),
            batch.clone(),
        )
        .await;
    }
    let audit = get("/api/v1/audit").await;
    let of_batches: Vec<_> = audit["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["actor"] == "ada")
        .map(|entry| (&entry["action"], &entry["subject"], &entry["why"]))
        .collect();
    let entry = |action: &'static str| (json!(action), json!("1"), json!("the wrong list"));
    let wanted = ["batch.cancel", "batch.resume", "batch.pause"].map(entry);
    assert!(
        of_batches
            .into_iter()
            .eq(wanted.iter().map(|(action, id, why)| (action, id, why))),
        "{audit}"
    );
    for entry in audit["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["actor"] != "acme-person")
    {
        assert_eq!(
            (entry["token"].as_str(), entry["tenant"].as_str()),
            (Some("admin"), Some("acme")),
            "{entry}"
        );
    }
}

#[tokio::test]
async fn a_stream_tells_the_failures_and_changes_of_its_tenant_alone() {
    let world = two_tenants().await;
    let admin = secret("admin");
    let mut stream = world
        .ask(Method::GET, "/api/v1/stream", Some(&admin), None)
        .await;
    let mut text = String::new();
    let mut wrote = false;
    while !(text.contains("acme-late-error") && text.contains("acme-late-person")) {
        let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
        text.push_str(&String::from_utf8_lossy(&chunk));
        if !wrote && text.contains("event: tick") {
            wrote = true;
            let mut transaction = world.database.pool().begin().await.unwrap();
            for (tenant, owned) in [("zeta", &world.zeta), ("acme", &world.acme)] {
                sqlx::query("insert into flyball.failure (job_id, attempt, outcome, error) values ($1, 2, 'dead', $2)")
                    .bind(owned.jobs["dead"])
                    .bind(format!("{tenant}-late-error"))
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                sqlx::query("insert into flyball.audit (actor, action, subject, token, tenant) values ($1, 'job.cancel', '1', $2, $2)")
                    .bind(format!("{tenant}-late-person"))
                    .bind(tenant)
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
            }
            transaction.commit().await.unwrap();
        }
    }
    assert!(!text.contains("zeta"), "{text}");
}

#[tokio::test]
async fn a_job_for_the_throttle_of_another_tenant_is_refused_with_what_is_allowed() {
    let world = two_tenants().await;
    let admin = secret("admin");
    let job = json!({
        "kind": "http", "args": {"url": "https://example.com/"}, "throttle": "tenant:zeta/out",
    });
    let aimed = aim("/api/v1/jobs", Some(job), Expect::Within);
    let (status, text) = answer(&world, "POST", Some(&admin), &aimed).await;
    assert_eq!(status, 403, "{text}");
    let allowed =
        "which belongs to another tenant; name one of your own, or one that no tenant owns";
    assert!(text.contains(allowed), "{text}");
}
