//! Sending and finding messages over HTTP.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::fixture::{spawn, spawn_without_token};

#[tokio::test]
async fn a_message_is_accepted_shown_and_found_with_its_recipient_masked() {
    let api = spawn().await;

    let response = api
        .notify(json!({"priority": "critical", "key": "acme", "category": "billing"}))
        .await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let accepted: Value = response.json().await.unwrap();
    let id = accepted["id"].as_i64().unwrap();
    assert_eq!(
        (location.as_str(), &accepted["pool"]),
        (
            format!("/api/v1/notifications/{id}").as_str(),
            &json!("mail")
        )
    );
    let job = api.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        (
            job.summary.priority,
            job.summary.throttle.as_str(),
            job.summary.key.as_str()
        ),
        (0, "mail", "acme")
    );

    let queued = api.get(&location).await;
    assert_eq!(
        (&queued["state"], &queued["to"], &queued["attempts"]),
        (&json!("queued"), &json!("a***@e***.com"), &json!([]))
    );

    api.sent(id, "a1").await;
    let response = api.ask(Method::GET, &location, None).await;
    let text = response.text().await.unwrap();
    assert!(
        !text.to_lowercase().contains("ada@") && !text.contains("secret text"),
        "{text}"
    );
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["state"], "sent");
    assert_eq!(
        (
            &shown["account"],
            &shown["provider"],
            &shown["attempt_count"]
        ),
        (&json!("a1"), &json!("mailgun"), &json!(2))
    );
    assert_eq!(shown["provider_id"], format!("m{id}@mg.example.com"));
    let first = &shown["attempts"][0];
    assert_eq!(
        (
            &first["account"],
            &first["outcome"],
            &first["reason"],
            &first["ms"]
        ),
        (
            &json!("a0"),
            &json!("transient"),
            &json!("503 busy"),
            &json!(7)
        )
    );

    let missing = api.ask(Method::GET, "/api/v1/notifications/1", None).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(
        missing.json::<Value>().await.unwrap()["code"],
        "notification_not_found"
    );
}

#[tokio::test]
async fn a_message_by_the_route_of_jobs_has_its_priority_and_shows_no_recipient() {
    let api = spawn().await;
    let job = |word: &str| json!({"kind": "notification", "args": {"channel": "email", "to": "ada@example.com", "body": "x", "priority": word}});

    let one = api
        .ask(Method::POST, "/api/v1/jobs", Some(job("low")))
        .await
        .json::<Value>()
        .await
        .unwrap();
    let many = api
        .ask(
            Method::POST,
            "/api/v1/jobs/batch",
            Some(json!([job("critical"), job("high")])),
        )
        .await;
    let many = many.json::<Value>().await.unwrap();

    assert_eq!(
        (&one["priority"], &one["args"]["to"]),
        (&json!(3), &json!("a***@e***.com"))
    );
    assert_eq!(
        one["args"]["body"], "***",
        "what it says is the recipient's business"
    );
    for (place, priority) in [(0, 0), (1, 1)] {
        let shown = api
            .get(&format!("/api/v1/jobs/{}", many["jobs"][place]["id"]))
            .await;
        assert_eq!(
            (&shown["priority"], &shown["args"]["to"]),
            (&json!(priority), &json!("a***@e***.com"))
        );
    }
}

#[tokio::test]
async fn a_request_with_a_key_is_one_message_also_for_senders_without_a_tenant() {
    for api in [spawn().await, spawn_without_token().await] {
        let messages = async || -> i64 {
            sqlx::query_scalar("select count(*) from flyball.job")
                .fetch_one(&api.queue.pool)
                .await
                .unwrap()
        };
        let (status, is_repeat, first) = api.notify_once("order-7", json!({})).await;
        assert_eq!((status, is_repeat), (202, false), "{first}");
        for _ in 0..2 {
            let (status, is_repeat, again) = api.notify_once("order-7", json!({})).await;
            assert_eq!((status, is_repeat), (200, true), "{again}");
            assert_eq!(
                (&again["id"], &again["state"]),
                (&first["id"], &json!("queued"))
            );
        }
        for (key, subject, status, code) in [
            ("order-7", "other", 422, "idempotency_key_reused"),
            ("\"\"", "other", 400, "invalid_header"),
        ] {
            let refused = api.notify_once(key, json!({"subject": subject})).await;
            assert_eq!((refused.0, &refused.2["code"]), (status, &json!(code)));
        }
        assert_eq!(messages().await, 1);

        // Its unique key is the one that a request without an idempotency key takes.
        let unique = json!({"unique_key": "u"});
        let (status, _, second) = api.notify_once("order-8", unique.clone()).await;
        assert_eq!((status, &second["duplicate"]), (202, &json!(false)));
        let (status, _, same) = api.notify_once("order-9", unique.clone()).await;
        assert_eq!((status, &same["duplicate"]), (200, &json!(true)));
        let plain = api.notify(unique).await.json::<Value>().await.unwrap();
        assert_eq!((&same["id"], &plain["id"]), (&second["id"], &second["id"]));
        assert_eq!(messages().await, 2);

        let at_once = (0..8).map(|_| api.notify_once("once", json!({"subject": "once"})));
        let answers = futures_util::future::join_all(at_once).await;
        let new = answers.iter().filter(|(status, ..)| *status == 202);
        assert_eq!(new.count(), 1, "{answers:?}");
        assert!(
            answers
                .iter()
                .all(|(status, ..)| [200, 202, 409].contains(status)),
            "{answers:?}"
        );
        assert_eq!(messages().await, 3);
    }
}

#[tokio::test]
async fn every_wrong_field_of_a_message_is_listed_at_once() {
    let api = spawn().await;

    let body = json!({"channel": "email", "boddy": 1, "key": 7, "run_at": "soon", "provider": "twilio", "unique_key": ""});
    let response = api
        .ask(Method::POST, "/api/v1/notifications", Some(body))
        .await;

    assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let problem: Value = response.json().await.unwrap();
    let pointers: Vec<&str> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(
        pointers,
        [
            "/boddy",
            "/key",
            "/run_at",
            "/unique_key",
            "/to",
            "/body",
            "/provider"
        ]
    );
    assert!(
        problem["errors"][6]["message"]
            .as_str()
            .unwrap()
            .contains("allowed: mail"),
        "{problem}"
    );
    let jobs: i64 = sqlx::query_scalar("select count(*) from flyball.job")
        .fetch_one(api.database.pool())
        .await
        .unwrap();
    assert_eq!(jobs, 0);
}

#[tokio::test]
async fn a_message_with_a_unique_key_is_made_once() {
    let api = spawn().await;
    let id = api.notified(json!({"unique_key": "order-7"})).await;

    let again = api.notify(json!({"unique_key": "order-7"})).await;

    assert_eq!(again.status(), StatusCode::OK);
    let again: Value = again.json().await.unwrap();
    assert_eq!(
        (&again["id"], &again["duplicate"]),
        (&json!(id), &json!(true))
    );
}

#[tokio::test]
async fn messages_are_searched_by_state_channel_and_account_page_by_page() {
    let api = spawn().await;
    let mut ids = Vec::new();
    for n in 0..7 {
        let id = api.notified(json!({})).await;
        if n < 5 {
            api.sent(id, if n % 2 == 0 { "a1" } else { "a2" }).await;
        }
        ids.push(id);
    }
    api.notified(json!({"channel": "sms", "to": "+15550100000"}))
        .await;
    // Jobs of other kinds lie between them.
    sqlx::query("select flyball.enqueue('http') from generate_series(1, 3000)")
        .execute(api.database.pool())
        .await
        .unwrap();

    let found = async |query: &str| -> Vec<i64> {
        let (mut found, mut next) = (
            Vec::new(),
            Some(format!("/api/v1/notifications?limit=2{query}")),
        );
        while let Some(path) = next {
            let page = api.get(&path).await;
            found.extend(
                page["notifications"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|one| one["id"].as_i64().unwrap()),
            );
            next = page["next"].as_str().map(str::to_owned);
        }
        found
    };
    assert_eq!(
        found("&state=sent&account=a1").await,
        [ids[4], ids[2], ids[0]]
    );
    assert_eq!(found("&state=queued&channel=email").await, [ids[6], ids[5]]);
    assert_eq!(found("&channel=sms").await.len(), 1);
    assert_eq!(found("&pool=mail").await.len(), 7);
    assert_eq!(found("").await.len(), 8);
    sqlx::query("update flyball.job set tenant = 'acme' where id = any($1)")
        .bind(&ids[5..])
        .execute(api.database.pool())
        .await
        .unwrap();
    assert_eq!(found("&tenant=acme").await, [ids[6], ids[5]]);
    assert!(found("&tenant=zeta").await.is_empty());

    let wrong = api
        .ask(
            Method::GET,
            "/api/v1/notifications?state=lost&chanel=sms&limit=0",
            None,
        )
        .await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    assert_eq!(
        wrong.json::<Value>().await.unwrap()["errors"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn recipients_are_suppressed_looked_up_listed_and_let_go_without_being_shown() {
    let api = spawn().await;
    let add = async |body: Value| {
        api.ask(Method::POST, "/api/v1/suppressions", Some(body))
            .await
    };

    let first = add(json!({"channel": "email", "recipient": " Ada@Example.com", "reason": "asked by post", "by": "kim"})).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let again = add(json!({"channel": "email", "recipient": "ada@example.com"})).await;
    assert_eq!(again.status(), StatusCode::OK);
    assert_eq!(
        again.json::<Value>().await.unwrap(),
        json!({"suppressed": true, "changed": false})
    );
    for n in 0..4 {
        assert_eq!(
            add(json!({"channel": "sms", "recipient": format!("+1555010000{n}")}))
                .await
                .status(),
            StatusCode::CREATED
        );
    }

    let one = api
        .get("/api/v1/suppressions?channel=email&recipient=ADA%40example.com")
        .await;
    assert_eq!(one["suppressions"][0]["reason"], "asked by post");
    assert_eq!(
        api.get("/api/v1/suppressions?channel=chat&recipient=ada%40example.com")
            .await["suppressions"],
        json!([])
    );
    let (mut listed, mut next) = (Vec::new(), Some("/api/v1/suppressions?limit=2".to_owned()));
    while let Some(path) = next {
        let page = api.get(&path).await;
        assert!(
            !page.to_string().contains("example.com") && !page.to_string().contains("+1555"),
            "{page}"
        );
        listed.extend(page["suppressions"].as_array().unwrap().clone());
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(listed.len(), 5);
    assert_eq!(
        api.get("/api/v1/suppressions?channel=sms").await["suppressions"]
            .as_array()
            .unwrap()
            .len(),
        4
    );

    let path = "/api/v1/suppressions?channel=email&recipient=ada%40example.com&by=kim";
    for changed in [true, false] {
        let response = api.ask(Method::DELETE, path, None).await;
        assert_eq!(
            response.json::<Value>().await.unwrap(),
            json!({"suppressed": false, "changed": changed})
        );
    }
    let audit: Vec<(String, String, String)> = sqlx::query_as(
        "select actor, action, subject from flyball.audit where actor = 'kim' order by id",
    )
    .fetch_all(api.database.pool())
    .await
    .unwrap();
    let line = |action: &str| {
        (
            "kim".to_owned(),
            action.to_owned(),
            "email/a***@e***.com".to_owned(),
        )
    };
    assert_eq!(
        audit,
        [line("recipient.suppress"), line("recipient.unsuppress")]
    );

    let wrong = add(json!({"channel": "fax", "recipent": "1"})).await;
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let wrong: Value = wrong.json().await.unwrap();
    let pointers: Vec<&str> = wrong["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(pointers, ["/recipent", "/channel", "/recipient"]);
    for path in [
        "/api/v1/suppressions?recipient=x",
        "/api/v1/suppressions?cursor=x",
    ] {
        assert_eq!(
            api.ask(Method::GET, path, None).await.status(),
            StatusCode::BAD_REQUEST,
            "{path}"
        );
    }
    assert_eq!(
        api.ask(Method::DELETE, "/api/v1/suppressions?channel=sms", None)
            .await
            .status(),
        StatusCode::BAD_REQUEST
    );
}
