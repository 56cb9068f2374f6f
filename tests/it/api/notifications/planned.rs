//! Messages over HTTP that the gates of their recipients hold, collect, end or refuse.

use flyball::throttle::admission::TenantLimits;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::admission::{AdmissionServer, admission_server, limits_of};

async fn sent(served: &AdmissionServer, more: Value) -> (StatusCode, Value) {
    let mut message = json!({"channel": "email", "to": "ada@example.com", "body": "x"});
    message
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let answer = served.send("web", &message).await;
    (answer.status(), answer.json().await.unwrap())
}

#[tokio::test]
async fn the_answer_tells_what_the_gates_found() {
    let served = admission_server(TenantLimits::default()).await;
    let marketing = |n: u8| json!({"category": "marketing", "dedup_key": n.to_string()});
    for n in 1..=2 {
        let (status, body) = sent(&served, marketing(n)).await;
        assert_eq!(
            (status, body.get("status")),
            (StatusCode::ACCEPTED, None),
            "message {n}"
        );
    }
    let (status, capped) = sent(&served, marketing(3)).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(
        (&capped["status"], &capped["reason"]),
        (&json!("ended"), &json!("capped"))
    );
    assert_eq!(
        capped["held_by"],
        json!({"gate": "caps", "rule": "per_day 2 per 1d"})
    );

    let (_, first) = sent(&served, json!({"category": "billing"})).await;
    let (_, again) = sent(&served, json!({"category": "billing"})).await;
    assert_eq!(
        (&again["reason"], &again["duplicate_of"]),
        (&json!("duplicate"), &first["id"])
    );

    let item = json!({"category": "product", "template_id": "comment", "digest": "new-comment"});
    let (status, collected) = sent(&served, item).await;
    assert_eq!(
        (status, &collected["status"]),
        (StatusCode::ACCEPTED, &json!("collected"))
    );
    assert_eq!(collected["digest"], json!("new-comment"));
    assert!(collected["planned_at"].is_string());
}

#[tokio::test]
async fn a_message_is_accepted_although_it_cannot_be_planned_now() {
    let served = admission_server(TenantLimits::default()).await;
    let broken = "create function flyball.broken() returns trigger language plpgsql as
            $$ begin raise exception 'planning fails'; end $$;
        create trigger broken before insert on flyball.dedup for each statement execute function flyball.broken()";
    sqlx::raw_sql(broken)
        .execute(&served.server.queue.pool)
        .await
        .unwrap();

    let (status, body) = sent(&served, json!({"category": "billing"})).await;

    assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    let waiting = "select count(*) from flyball.scheduled where turn between -4 and -1";
    assert_eq!(served.count(waiting).await, 1, "it waits for a planner");
}

/// A slot of the tenant's limits is used by messages that go, and by no others.
#[tokio::test]
async fn a_message_that_is_held_uses_no_slot_until_it_goes() {
    let served = admission_server(TenantLimits::default()).await;
    let today = served
        .count("select extract(isodow from now() at time zone 'UTC')::bigint")
        .await;
    // Quiet hours have an end, and not today or tomorrow.
    let free = (today + 2) % 7 + 1;
    let weekdays: Vec<&str> = (1..)
        .zip(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])
        .filter(|(day, _)| *day != free)
        .map(|(_, name)| name)
        .collect();
    sqlx::query("insert into flyball.recipient (tenant, id, profile) values ('acme', 'ada', $1)")
        .bind(json!({
            "addresses": {"email": "ada@example.com"}, "time_zone": "UTC",
            "quiet_hours": {"email": {"all_day": true, "weekdays": weekdays}},
        }))
        .execute(&served.server.queue.pool)
        .await
        .unwrap();
    let message = json!({
        "channel": "email", "to": "ada@example.com", "recipient": "ada", "body": "x", "category": "product", "dedup_key": "1",
    });
    let held = served.send("web", &message).await;
    assert_eq!(held.status(), StatusCode::ACCEPTED);
    let remaining = limits_of(&held)[1].to_owned();
    let body: Value = held.json().await.unwrap();
    assert_eq!(
        (&body["status"], remaining.as_str()),
        (&json!("held"), "100")
    );
    assert_eq!(body["held_by"]["gate"], json!("quiet_hours"));
    assert!(body["planned_at"].is_string());
    let waits = "select count(*) from flyball.scheduled s join flyball.job j on j.id = s.job_id
        where s.lane_id = j.admission_lane and s.turn >= 0";
    assert_eq!(
        served.count(waits).await,
        1,
        "it comes back to the limits of its tenant"
    );
}

/// One batch, and each recipient gets it at the same time of its own clock.
#[tokio::test]
async fn the_messages_of_a_batch_go_by_the_clock_of_each_recipient() {
    let served = admission_server(TenantLimits::default()).await;
    let zones = ["Asia/Tokyo", "Europe/Berlin", "America/New_York"];
    for zone in zones {
        sqlx::query("insert into flyball.recipient (tenant, id, profile) values ('acme', $1, $2)")
            .bind(zone)
            .bind(json!({"addresses": {"email": "ada@example.com"}, "time_zone": zone}))
            .execute(&served.server.queue.pool)
            .await
            .unwrap();
    }
    let recipients =
        zones.map(|zone| json!({"to": format!("{}@example.com", zone.len()), "recipient": zone}));
    let batch = json!({
        "channel": "email", "body": "x", "local_time": "2999-12-01T09:00", "recipients": recipients,
    });
    let answer = served.send_batch("web", &batch).await;
    let (status, remaining) = (answer.status(), limits_of(&answer)[1].to_owned());
    let body: Value = answer.json().await.unwrap();
    assert_eq!(
        (status, remaining.as_str()),
        (StatusCode::ACCEPTED, "100"),
        "{body}"
    );
    let results = body["results"].as_array().unwrap();
    assert_eq!(results.len(), zones.len(), "{body}");
    for (result, (zone, hour)) in results.iter().zip(zones.iter().zip(["00", "08", "14"])) {
        assert_eq!(result["status"], "held", "{body}");
        let rule = format!("2999-12-01T09:00 {zone}");
        assert_eq!(result["rule"], json!(rule), "{body}");
        let at = result["at"].as_str().unwrap();
        assert!(at.starts_with(&format!("2999-12-01T{hour}:00:00")), "{at}");
    }
}

#[tokio::test]
async fn a_code_over_its_cap_is_refused_and_nothing_is_accepted() {
    let served = admission_server(TenantLimits::default()).await;
    let code = |n: usize| json!({"category": "security", "dedup_key": n.to_string()});
    for n in 0..10 {
        assert_eq!(sent(&served, code(n)).await.0, StatusCode::ACCEPTED);
    }
    let before = served.count("select count(*) from flyball.job").await;
    let (status, body) = sent(&served, code(10)).await;
    assert_eq!(
        (status, &body["code"]),
        (StatusCode::CONFLICT, &json!("RECIPIENT_CAPPED"))
    );
    let detail = body["detail"].as_str().unwrap();
    assert!(
        detail.contains("per_hour 10 per 1h") && !detail.contains("ada@"),
        "{detail}"
    );
    assert_eq!(
        served.count("select count(*) from flyball.job").await,
        before
    );
}

#[tokio::test]
async fn fields_of_the_gates_that_are_wrong_are_named() {
    let served = admission_server(TenantLimits::default()).await;
    let path = "/api/v1/notifications";
    let request = served.server.request(reqwest::Method::POST, path);
    let wrong =
        json!({"channel": "email", "to": "ada@example.com", "body": "x", "templateId": "t"});
    let request = request
        .bearer_auth(super::admission::secret("web"))
        .json(&wrong);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["errors"][0]["pointer"], json!("/templateId"));
}

#[tokio::test]
async fn a_batch_tells_each_recipient_over_its_cap_and_counts_each_state() {
    let served = admission_server(TenantLimits::default()).await;
    let code = |n: usize| json!({"category": "security", "dedup_key": n.to_string()});
    for n in 0..10 {
        assert_eq!(sent(&served, code(n)).await.0, StatusCode::ACCEPTED);
    }
    let batch = json!({
        "channel": "email", "body": "x", "category": "security",
        "recipients": ["ada@example.com", "bob@example.com", "bob@example.com"],
    });
    let answer = served.send_batch("web", &batch).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let body: Value = answer.json().await.unwrap();
    let results = body["results"].as_array().unwrap();
    assert_eq!(
        (
            &results[0]["status"],
            &results[0]["reason"],
            &results[0]["rule"]
        ),
        (
            &json!("ended"),
            &json!("capped"),
            &json!("per_hour 10 per 1h")
        )
    );
    assert!(results[0]["at"].is_string(), "{body}");
    assert_eq!(results[1]["status"], "queued");
    assert_eq!(
        (&results[2]["status"], &results[2]["reason"]),
        (&json!("ended"), &json!("duplicate"))
    );
    let shown = served.batch("web", body["id"].as_i64().unwrap()).await;
    assert_eq!(
        shown["counts"],
        json!({"capped": 1, "queued": 1, "duplicate": 1})
    );
    let cancelled = served.change(body["id"].as_i64().unwrap(), "cancel").await;
    assert_eq!(
        cancelled,
        json!({"state": "cancelled", "sent": 0, "cancelled": 1, "too_late": 0, "ended": {"capped": 1, "duplicate": 1}})
    );
}

#[tokio::test]
async fn a_recipient_without_an_address_is_named() {
    let served = admission_server(TenantLimits::default()).await;
    let recipients = json!([{"recipient": "eve"}, "bob@example.com"]);
    let mut batch = json!({"channel": "email", "body": "x", "recipients": recipients});
    let refused = served.send_batch("web", &batch).await;
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    batch["partial"] = json!(true);
    let answer = served.send_batch("web", &batch).await;
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["results"][0]["status"], "refused", "{body}");
    assert_eq!(
        body["results"][0]["errors"][0]["pointer"],
        "/recipients/0/to"
    );
}

/// The items of a cancelled batch do not go out with their digests; those of others do.
#[tokio::test]
async fn a_cancelled_batch_leaves_no_item_in_a_digest() {
    let served = admission_server(TenantLimits::default()).await;
    let item = json!({
        "channel": "email", "body": "x", "category": "product", "template_id": "comment", "digest": "new-comment",
    });
    let of = |more: Value| {
        let mut message = item.clone();
        message
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        message
    };
    let recipients: Vec<String> = (0..100).map(|n| format!("ada{n}@example.com")).collect();
    let batch = of(json!({"recipients": recipients}));
    let answer = served.send_batch("web", &batch).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let answer: Value = answer.json().await.unwrap();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 100, "{answer}");
    assert!(results.iter().all(|one| one["status"] == "collected"));
    let other = served
        .send(
            "web",
            &of(json!({"to": "ada0@example.com", "body": "another"})),
        )
        .await;
    let other: Value = other.json().await.unwrap();
    assert_eq!(other["status"], "collected");
    let items = "select count(*) from flyball.digest_item";
    assert_eq!(served.count(items).await, 101);

    let id = answer["id"].as_i64().unwrap();
    let cancelled = served.change(id, "cancel").await;

    assert_eq!(
        cancelled,
        json!({"state": "cancelled", "sent": 0, "cancelled": 100, "too_late": 0, "ended": {}})
    );
    assert_eq!(
        served.batch("web", id).await["counts"],
        json!({"cancelled": 100})
    );
    let counted = "select sum(items)::bigint from flyball.digest";
    assert_eq!(
        (served.count(items).await, served.count(counted).await),
        (1, 1)
    );
    // An equal message is no duplicate of one that nobody sees.
    let again = served
        .send("web", &of(json!({"to": "ada1@example.com"})))
        .await;
    assert_eq!(again.json::<Value>().await.unwrap()["status"], "collected");

    // Each of the two goes alone when its digest closes.
    let pool = &served.server.queue.pool;
    sqlx::query("update flyball.digest set closes_at = now()")
        .execute(pool)
        .await
        .unwrap();
    let gates = crate::recipient::gates(&served.server.queue);
    while gates.close_due().await.unwrap() {}
    assert_eq!(
        served.count("select count(*) from flyball.digest").await,
        0,
        "the empty ones close as well"
    );
    let went = "select count(*) from flyball.message_plan where origin <> 'sender'";
    assert_eq!(served.count(went).await, 2);
}

/// Messages that a planner in the background plans before the request does are reported, and
/// counted, as those that the request plans.
#[tokio::test]
async fn the_answer_is_the_same_whoever_plans_the_message() {
    let served = admission_server(TenantLimits::default()).await;
    let gates = crate::recipient::gates(&served.server.queue);
    let planner = tokio::spawn(async move {
        loop {
            _ = gates.plan_due().await;
        }
    });
    let item = |n: usize| {
        json!({
            "channel": "email", "to": format!("ada{n}@example.com"), "body": "x", "category": "product",
            "template_id": "comment", "digest": "new-comment",
        })
    };
    let mut known = 0;
    for n in 0..30 {
        let answer = served.send("web", &item(n)).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        let left = limits_of(&answer)[1].to_owned();
        let body: Value = answer.json().await.unwrap();
        // A busy machine's planner may take longer than the request waits for it; then the message
        // has a slot until it is planned.
        if body["warnings"]
            .to_string()
            .contains("have not decided yet")
        {
            continue;
        }
        known += 1;
        assert!(left == "100" || known <= n, "no slot is used: {body}");
        assert_eq!(body["status"], "collected", "{body}");
        assert!(body["planned_at"].is_string(), "{body}");
    }
    assert!(known > 0, "no request waited long enough");
    let recipients: Vec<String> = (30..60).map(|n| format!("ada{n}@example.com")).collect();
    let mut batch = item(0);
    batch.as_object_mut().unwrap().remove("to");
    batch["recipients"] = json!(recipients);
    let answer = served.send_batch("web", &batch).await;
    let left = limits_of(&answer)[1].to_owned();
    assert!(left == "100" || known < 30, "no slot is used: {left}");
    let body: Value = answer.json().await.unwrap();
    let results = body["results"].as_array().unwrap();
    assert_eq!(results.len(), 30, "{body}");
    assert!(
        known < 30 || results.iter().all(|one| one["status"] == "collected"),
        "{body}"
    );
    planner.abort();
}
