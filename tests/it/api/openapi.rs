//! The API document is correct: the server sends only the responses that its `/openapi.json`
//! declares, and accepts the requests that the document allows.

use std::collections::BTreeSet;

use serde_json::json;

use super::openapi_client::{Client, ask, lane, of};
use crate::support::contract::{Ask, NOBODY, Operation, contract};

/// Responses covered by other tests: signed provider events.
const ELSEWHERE: [(&str, u16); 2] = [("receive_provider_events", 204), ("open_connection", 101)];

#[tokio::test]
async fn what_is_answered_is_what_the_document_declares() {
    let client = Client(contract(false).await);

    // Throttles.
    let made = of("hooks")
        .query("create=true")
        .json(json!({"rps": 1000, "max_backlog": 3, "by": "test", "why": "a test"}));
    client.gets(200, "edit_throttle", made).await;
    let shown = client.gets(200, "show_throttle", of("hooks")).await;
    let stale = of("hooks")
        .header(
            "If-Match",
            &format!("\"{}\"", shown["seq"].as_u64().unwrap() + 7),
        )
        .json(json!({"rps": 5}));
    client.gets(409, "edit_throttle", stale).await;
    client
        .gets(
            400,
            "edit_throttle",
            of("hooks")
                .header("If-Match", "seventeen")
                .json(json!({"rps": 5})),
        )
        .await;
    client.gets(200, "list_throttles", ask()).await;
    client.gets(200, "explain_throttle", of("hooks")).await;
    client
        .gets(200, "show_throttle_history", of("hooks").query("range=6h"))
        .await;
    client
        .gets(400, "show_throttle_history", of("hooks").query("range=2h"))
        .await;
    client.gets(200, "pause_throttle", of("hooks")).await;
    let waits = client
        .gets(200, "peek_tokens", of("hooks").json(json!({"tokens": 2})))
        .await;
    assert_eq!(waits["allowed"], false);
    client
        .gets(
            200,
            "resume_throttle",
            of("hooks").json(json!({"by": null, "why": "enough"})),
        )
        .await;
    client.gets(200, "acquire_tokens", of("hooks")).await;
    client.gets(200, "peek_tokens", of("hooks")).await;
    client
        .gets(200, "return_tokens", of("hooks").json(json!({"tokens": 1})))
        .await;
    let cost = of("hooks").json(json!({"charged": 1, "cost": 2.5}));
    let settled = client.gets(200, "settle_tokens", cost).await;
    assert_eq!(settled["settled"], 1.5);
    let answered = of("hooks").json(json!({"key": "slow", "retry_after_s": 30}));
    let paused = client.gets(200, "report_refusal", answered).await;
    assert!(paused["wait_s"].as_f64().unwrap() > 25.0, "{paused}");
    let quota = json!({"key": "slow", "succeeded": 1, "remaining": 3, "reset_s": 1});
    client
        .gets(200, "report_ends", of("hooks").json(quota))
        .await;
    client.gets(404, "acquire_tokens", of("none")).await;
    let request = json!({"method": "GET", "path": "/elsewhere"});
    client.gets(200, "check_request", ask().json(request)).await;
    client
        .gets(
            200,
            "pause_key",
            lane("hooks", "acme").json(json!({"seconds": 60, "why": null})),
        )
        .await;
    client.gets(200, "resume_key", lane("hooks", "acme")).await;
    client
        .gets(
            200,
            "resume_key",
            lane("hooks", "acme").json(json!({"why": "again"})),
        )
        .await;

    // Kinds.
    client.gets(200, "list_kinds", ask()).await;
    let report = || of("report");
    client.gets(200, "register_kind", report()).await;
    let hidden = report().json(json!({"public": false, "by": "ann"}));
    assert_eq!(
        client.gets(200, "register_kind", hidden).await["public"],
        false
    );

    // Jobs.
    let job = || json!({"kind": "anything", "args": {"n": 1}, "throttle": "hooks", "key": "acme"});
    let first = client.enqueue(job()).await;
    let unique = || {
        ask().json(json!({"kind": "anything", "unique_key": "u", "run_at": "2031-01-01T00:00:00Z"}))
    };
    let later = client.gets(201, "enqueue_job", unique()).await["id"]
        .as_i64()
        .unwrap();
    client.gets(200, "enqueue_job", unique()).await;
    client
        .gets(
            201,
            "enqueue_jobs",
            ask().json(json!([job(), job(), job(), job(), {"kind": "anything"}])),
        )
        .await;
    client
        .gets(200, "enqueue_jobs", ask().json(json!([])))
        .await;
    client.gets(201, "enqueue_job", ask().json(job())).await;
    let whole = json!({"name": "import", "callback": job(), "jobs": [job(), job()]});
    client.gets(201, "create_group", ask().json(whole)).await;
    let open = client.gets(201, "create_group", ask().json(json!({})));
    let open = open.await["id"].as_i64().unwrap();
    let mut member = job();
    member["group"] = json!(open);
    client.gets(201, "enqueue_job", ask().json(member)).await;
    client
        .gets(200, "list_groups", ask().query("limit=1"))
        .await;
    let open_ones = ask().query("state=open&created_before=2031-01-01T00:00:00Z");
    let listed = client.gets(200, "list_groups", open_ones).await;
    assert_eq!(listed["groups"].as_array().unwrap().len(), 1, "{listed}");
    for operation in ["show_group", "seal_group", "cancel_group", "seal_group"] {
        client.gets(200, operation, ask().part("id", open)).await;
    }
    client
        .gets(
            200,
            "list_jobs",
            ask().query("limit=2&throttle=hooks&key=acme&state=ready"),
        )
        .await;
    client.gets(200, "show_job", ask().part("id", first)).await;
    client
        .gets(200, "list_lanes", of("hooks").query("order=key"))
        .await;
    client.gets(200, "show_lane", lane("hooks", "acme")).await;
    client
        .gets(
            200,
            "edit_lane",
            lane("hooks", "acme").json(json!({"weight": 2.5})),
        )
        .await;
    client.gets(200, "retry_job", ask().part("id", later)).await;
    client
        .gets(
            200,
            "reschedule_job",
            ask()
                .part("id", later)
                .json(json!({"run_at": "2031-01-01T00:00:00+01:00"})),
        )
        .await;
    client
        .gets(
            200,
            "update_job",
            ask()
                .part("id", later)
                .json(json!({"priority": 2, "timeout": null, "by": "test"})),
        )
        .await;
    client
        .gets(
            200,
            "cancel_job",
            ask().part("id", later).query("by=test&why="),
        )
        .await;
    client
        .gets(
            409,
            "update_job",
            ask().part("id", later).json(json!({"priority": 2})),
        )
        .await;
    for moved in ["retry_job", "discard_job"] {
        client.gets(409, moved, ask().part("id", later)).await;
    }
    client
        .gets(
            409,
            "reschedule_job",
            ask()
                .part("id", later)
                .json(json!({"run_at": "2031-01-01T00:00:00Z"})),
        )
        .await;
    client.kill().await;
    client
        .gets(409, "cancel_job", ask().part("id", first))
        .await;
    client
        .gets(
            200,
            "list_attempts",
            ask().part("id", first).query("limit=1"),
        )
        .await;
    client.gets(200, "show_job", ask().part("id", first)).await;
    client.gets(200, "list_failures", ask()).await;
    client
        .gets(200, "discard_job", ask().part("id", first))
        .await;
    client
        .gets(
            200,
            "requeue_dead",
            ask().json(json!({"error_like": "%", "limit": 2})),
        )
        .await;
    client
        .gets(
            200,
            "discard_dead",
            ask().json(json!({"throttle": "hooks", "dry_run": true})),
        )
        .await;
    let running = client.enqueue(job()).await;
    client.claim().await;
    client
        .gets(200, "show_job", ask().part("id", running))
        .await;
    client
        .gets(202, "cancel_job", ask().part("id", running))
        .await;
    client.gets(200, "list_workers", ask()).await;
    client.enqueue(job()).await;
    client
        .gets(
            200,
            "cancel_jobs",
            ask().json(json!({"throttle": "hooks", "state": "ready"})),
        )
        .await;
    client
        .gets(
            200,
            "purge_lane",
            lane("hooks", "acme").query("dry_run=true&limit=10"),
        )
        .await;

    // The whole queue.
    client.gets(200, "show_pause", ask()).await;
    let paused = client
        .gets(
            200,
            "pause_all",
            ask().json(json!({"by": "ann", "why": "a test"})),
        )
        .await;
    assert_eq!(
        (&paused["changed"], &paused["paused"]["by"]),
        (&json!(true), &json!("ann"))
    );
    client.gets(200, "show_pause", ask()).await;
    client.gets(200, "resume_all", ask()).await;

    // Pools, messages, recipients.
    client.gets(200, "list_pools", ask()).await;
    client.gets(200, "show_pool", of("mail")).await;
    client.gets(404, "show_pool", of("none")).await;
    client
        .gets(200, "resume_account", of("mail").part("account", "a1"))
        .await;
    client
        .gets(404, "resume_account", of("mail").part("account", "none"))
        .await;
    client.gets(200, "requeue_unsent", of("mail")).await;
    client.gets(404, "requeue_unsent", of("none")).await;
    let message = || {
        ask().json(json!({"channel": "email", "to": "a@example.com", "subject": "s", "body": "b", "unique_key": "m"}))
    };
    let sent = client.gets(202, "notify", message()).await["id"]
        .as_i64()
        .unwrap();
    client.gets(200, "notify", message()).await;
    client
        .gets(200, "show_notification", ask().part("id", sent))
        .await;
    let item = "insert into flyball.digest (id, tenant, type, recipient, channel, throttle, closes_at, items)
        values (7, '', 'new-comment', gen_random_uuid(), 'email', 'mail', now() + interval '1 hour', 1);
        insert into flyball.digest_item (digest_id, job_id, item, at) values (7, 77, '{}', now())";
    let pool = &client.0.queue.pool;
    sqlx::raw_sql(item).execute(pool).await.unwrap();
    let explained = ask().part("id", sent);
    client.gets(200, "explain_notification", explained).await;
    for _ in 0..2 {
        let cancelled = ask().part("id", sent).json(json!({"by": "ann"}));
        client.gets(200, "cancel_notification", cancelled).await;
    }
    let unknown = ask().part("id", 99);
    client.gets(404, "cancel_notification", unknown).await;
    let running = client.gets(202, "notify", message()).await["id"]
        .as_i64()
        .unwrap();
    client.claim().await;
    let running = ask().part("id", running);
    client.gets(202, "cancel_notification", running).await;
    let asked = ask().query("channel=email&to=a%40example.com&category=billing");
    client.gets(200, "check_recipient", asked).await;
    let moved = ask().part("id", "ada").json(json!({"by": "ann"}));
    client.gets(200, "replan_recipient", moved).await;
    client.gets(200, "list_digests", ask()).await;
    let withdrawn = || ask().part("id", 77);
    client.gets(200, "withdraw_item", withdrawn()).await;
    client.gets(404, "withdraw_item", withdrawn()).await;
    client.gets(200, "show_gates", ask()).await;
    let mails = ask().query("channel=email&limit=10");
    client.gets(200, "list_notifications", mails).await;
    let many = || {
        ask().header("idempotency-key", "news").json(json!({
            "channel": "email", "recipients": ["a@example.com", {"to": "b@example.com", "key": "k"}], "subject": "s", "body": "b",
        }))
    };
    let batch = client.gets(202, "notify_many", many()).await["id"]
        .as_i64()
        .unwrap();
    client.gets(200, "notify_many", many()).await;
    let known = "insert into flyball.tenant_limit values ('acme', 5); select flyball.record_module('acme', 'web')";
    let pool = &client.0.queue.pool;
    sqlx::raw_sql(known).execute(pool).await.unwrap();
    for operation in ["list_tenants", "list_modules", "list_batches"] {
        let acme = ask().part("tenant", "acme");
        client.gets(200, operation, acme).await;
    }
    for operation in ["show_batch", "pause_batch", "resume_batch", "cancel_batch"] {
        client.gets(200, operation, ask().part("id", batch)).await;
    }
    let recipient = || {
        ask().json(
            json!({"channel": "email", "recipient": "b@example.com", "reason": "asked for it"}),
        )
    };
    client.gets(201, "suppress", recipient()).await;
    client.gets(200, "suppress", recipient()).await;
    client
        .gets(200, "list_suppressions", ask().query("channel=email"))
        .await;
    let person = ask().query("channel=email&recipient=b%40example.com");
    client.gets(200, "unsuppress", person).await;
    let ada = || ask().part("recipient", "ada");
    let profile = || {
        ada().json(json!({"addresses": {"email": "a@example.com"}, "time_zone": "Europe/Berlin"}))
    };
    client.gets(201, "set_recipient", profile()).await;
    client.gets(200, "set_recipient", profile()).await;
    client.gets(200, "show_recipient", ada()).await;
    let page = client
        .gets(200, "list_recipients", ask().query("limit=1"))
        .await;
    assert_eq!(page["next"], "/api/v1/recipients?limit=1&after=ada");
    let import = ask().json(json!({"recipients": [{"id": "bob"}, {"id": "eve"}]}));
    client.gets(200, "import_recipients", import).await;
    client.gets(200, "delete_recipient", ada()).await;
    client.gets(404, "show_recipient", ada()).await;
    let hours = json!({"quiet_hours": {"sms": {"start": "22:00", "end": "08:00"}}});
    client.gets(200, "show_recipient_defaults", ask()).await;
    client
        .gets(200, "set_recipient_defaults", ask().json(hours))
        .await;
    client
        .gets(401, "receive_provider_events", unsigned())
        .await;

    // Schedules.
    let schedule = || {
        of("nightly").json(json!({"expression": "30 2 * * *", "kind": "anything", "args": {}, "key": "acme", "by": "ann"}))
    };
    client.gets(201, "set_schedule", schedule()).await;
    client.gets(200, "set_schedule", schedule()).await;
    client.gets(200, "list_schedules", ask()).await;
    let daily = ask().query("expression=%40daily&time_zone=Europe%2FBerlin");
    let next = client.gets(200, "preview_expression", daily).await;
    assert_eq!(next["upcoming"].as_array().unwrap().len(), 5);
    client.gets(200, "show_schedule", of("nightly")).await;
    client.gets(201, "run_schedule", of("nightly")).await;
    client
        .gets(
            200,
            "run_schedule",
            of("nightly").json(json!({"by": "ann"})),
        )
        .await;
    client.gets(200, "pause_schedule", of("nightly")).await;
    client.gets(200, "resume_schedule", of("nightly")).await;
    client
        .gets(
            204,
            "delete_schedule",
            of("nightly").query("by=ann&why=over"),
        )
        .await;

    // Deleted throttles.
    client
        .gets(
            200,
            "edit_throttle",
            of("child")
                .query("create=true")
                .json(json!({"rps": 1, "parent": "hooks"})),
        )
        .await;
    client.gets(409, "delete_throttle", of("hooks")).await;
    client.gets(409, "delete_throttle", of("mail")).await;
    client
        .gets(200, "delete_throttle", of("child").query("by=ann&why=over"))
        .await;
    client.enqueue(job()).await;
    client.gets(409, "delete_throttle", of("hooks")).await;
    let forced = of("hooks").query("force=true");
    let deleted = client.gets(200, "delete_throttle", forced).await;
    assert_eq!(
        (&deleted["waiting"]["jobs"], &deleted["waiting"]["more"]),
        (&json!(1), &json!(false)),
        "{deleted}"
    );
    client.gets(404, "delete_throttle", of("hooks")).await;

    client.work_in_another_program().await;

    // Inboxes.
    let of_user = || ask().part("recipient", "user-9");
    client.gets(200, "list_inbox", of_user()).await;
    client.gets(200, "count_inbox", of_user()).await;
    let mark = of_user().json(json!({"all_up_to": "17", "as": "read"}));
    client.gets(200, "mark_inbox", mark).await;

    // Channels.
    client.gets(200, "list_channel_usage", ask()).await;
    client.gets(201, "create_ticket", ask()).await;
    let message = ask()
        .part("channel", "news")
        .json(json!({"data": {"n": 1}}));
    client.gets(202, "publish_message", message).await;
    let events = ask().part("channel", "news");
    client.gets(200, "stream_channel", events).await;

    // Records, health and the document itself.
    client.gets(200, "list_audit", ask()).await;
    client.gets(200, "list_decisions", ask()).await;
    client.gets(200, "stream_events", ask()).await;
    let filtered = ask().query("throttle=hooks&group=17&tenant=shop");
    client.gets(200, "stream_events", filtered).await;
    client.gets(200, "show_metrics", ask()).await;
    client.gets(200, "show_liveness", ask()).await;
    client.gets(200, "show_readiness", ask()).await;
    client.gets(200, "show_openapi", ask()).await;
    client.gets(200, "show_asyncapi", ask()).await;

    let good = |status: &u16| *status < 300;
    let declared: BTreeSet<(String, u16)> = client
        .0
        .operations()
        .iter()
        .flat_map(|one| {
            one.statuses()
                .into_iter()
                .filter(good)
                .map(|status| (one.id.clone(), status))
                .collect::<Vec<_>>()
        })
        .filter(|(id, status)| !ELSEWHERE.contains(&(id.as_str(), *status)))
        .collect();
    let seen = client.0.seen();
    let unseen: Vec<_> = declared.difference(&seen).collect();
    assert!(
        unseen.is_empty(),
        "no answer of these was held against the document: {unseen:?}"
    );
}

/// Fills the path of an operation with identifiers that do not exist.
pub fn absent(operation: &Operation) -> Ask {
    filled(operation, "none", "none")
}

/// Fills the path likewise, but with an existing pool, which is looked up before the body is read.
pub fn there(operation: &Operation) -> Ask {
    if ["resume_account", "requeue_unsent"].contains(&operation.id.as_str()) {
        filled(operation, "mail", "a1")
    } else {
        absent(operation)
    }
}

fn filled(operation: &Operation, named: &str, account: &str) -> Ask {
    let value = |name: &str| match name {
        "id" => "999999999",
        "key" => "k",
        "account" => account,
        _ => named,
    };
    operation
        .parameters("path")
        .into_iter()
        .fold(ask(), |ask, parameter| {
            let name = parameter["name"].as_str().unwrap();
            ask.part(name, value(name))
        })
}

#[tokio::test]
async fn every_refusal_that_the_document_declares_is_made_so() {
    // Covered by other tests: an incomplete body, limits, hosts and origins, and the responses of
    // an overloaded or changing system.
    const OTHERS: [u16; 3] = [408, 429, 409];
    for has_tokens in [false, true] {
        let contract = contract(has_tokens).await;
        let (mut missing, mut asked) = (Vec::new(), 0);
        for operation in contract.operations() {
            let id = operation.id.clone();
            let content = operation
                .declared
                .pointer("/requestBody/content/application~1json");
            let body = content.map(|content| content["example"].clone());
            let whole = || match &body {
                Some(body) => absent(&operation).json(body.clone()),
                None => absent(&operation),
            };
            let needed = match id.as_str() {
                "unsuppress" => "channel=email&recipient=a%40example.com",
                "preview_expression" => "expression=%40daily",
                _ => "",
            };
            for status in operation
                .statuses()
                .into_iter()
                .filter(|status| (400..500).contains(status) && !OTHERS.contains(status))
            {
                let wrong = match status {
                    400 if id == "receive_provider_events" => continue,
                    // A repeated request whose job is deleted.
                    404 if id == "enqueue_job" => continue,
                    // Only Prometheus knows that a throttle never was.
                    404 if id == "show_throttle_history" => continue,
                    400 => whole().query("key=%ff"),
                    401 if id == "receive_provider_events" => unsigned(),
                    401 => whole().token(""),
                    403 if has_tokens => whole().token(NOBODY),
                    403 => whole().header("host", "elsewhere.example"),
                    404 => whole().query(needed),
                    413 => there(&operation).text("application/json", " ".repeat(33 * 1024 * 1024)),
                    415 => there(&operation).text("text/plain", "{}"),
                    422 => there(&operation).json(json!({"nonsense": 1})),
                    _ => whole(),
                };
                if status == 413
                    && !["enqueue_jobs", "enqueue_job", "pause_all", "set_schedule"]
                        .contains(&id.as_str())
                {
                    continue;
                }
                let (answered, value) = contract.ask(&operation, &wrong).await;
                asked += 1;
                if answered != status {
                    missing.push(format!("{id} {status}: {answered} {value}"));
                }
            }
        }
        assert!(missing.is_empty(), "has tokens: {has_tokens}: {missing:#?}");
        assert!(asked > 50, "has tokens: {has_tokens}: {asked} refusals");
    }
}

/// Returns unsigned events of an existing account.
fn unsigned() -> Ask {
    let account = ask().part("pool", "mail").part("account", "a1");
    account.text("application/json", "{}")
}
