//! The lists of tenants, modules and batches over HTTP, beside what senders are told.

use flyball::jobs::postgres::Sweeper;
use flyball::throttle::admission::TenantLimits;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::admission::*;

/// The time at which the first messages leave the window.
const RESET: &str = "2025-04-15T10:51:00Z";

impl AdmissionServer {
    async fn get(&self, who: &str, path: &str) -> Value {
        let answer = self.ask(who, Method::GET, path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{who} {path}");
        answer.json().await.unwrap()
    }

    /// Follows the pages of a list; returns its entries.
    async fn pages(&self, path: &str, list: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut next = Some(path.to_owned());
        while let Some(path) = next {
            let answer = self.ask("operator", Method::GET, &path).await;
            let link = header(&answer, "link").to_owned();
            let mut page: Value = answer.json().await.unwrap();
            all.append(page[list].as_array_mut().unwrap());
            next = page["next"].as_str().map(str::to_owned);
            let told = next.as_ref().map_or_else(
                || "absent".to_owned(),
                |next| format!("<{next}>; rel=\"next\""),
            );
            assert_eq!(link, told);
        }
        all
    }

    async fn counted(&self) {
        let mut sweeper = Sweeper::new(self.server.queue.clone());
        sweeper.round().await.unwrap();
    }

    async fn run(&self, sql: &str) {
        let run = sqlx::query(AssertSqlSafe(sql.to_owned()));
        run.execute(&self.server.queue.pool).await.unwrap();
    }

    /// Accepts a batch of one sender; returns its id.
    async fn accepted_batch(&self, who: &str, recipients: usize) -> i64 {
        let to: Vec<String> = (0..recipients)
            .map(|n| format!("{who}{n}@example.com"))
            .collect();
        let body = json!({"channel": "email", "body": "x", "recipients": to});
        let path = "/api/v1/notifications/batch";
        let request = self
            .server
            .request(Method::POST, path)
            .bearer_auth(secret(who));
        let sent = request.json(&body).send().await.unwrap();
        assert_eq!(sent.status(), StatusCode::ACCEPTED);
        sent.json::<Value>().await.unwrap()["id"].as_i64().unwrap()
    }
}

fn names<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    let entries = list.as_array().unwrap().iter();
    entries.map(|one| one[field].as_str().unwrap()).collect()
}

#[tokio::test]
async fn tenants_and_modules_are_listed_with_the_figures_that_senders_are_told() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..50).await;
    served.admitted("shop", 0..1).await;
    served.admitted("else", 0..2).await;
    served.pass(42);
    for n in 50..53 {
        let late = served.send("web", &message(n)).await;
        assert_eq!(limits_of(&late), ["100", "49", "50", "0", "1744714260"]);
    }
    served.counted().await;

    let listed = served.get("operator", "/api/v1/tenants").await;
    assert_eq!(names(&listed["tenants"], "tenant"), ["acme", "other"]);
    let acme = &listed["tenants"][0];
    let window = |used: u64, limit: u64, next_at: Value| json!({"limit": limit, "span_s": 60.0, "used": used, "remaining": limit - used, "next_at": next_at, "resets_at": RESET});
    assert_eq!(acme["window"], window(51, 100, Value::Null));
    let none = json!({"accepted": 0, "bounced": 0, "complained": 0, "unsubscribed": 0});
    assert_eq!(acme["feedback"], none);
    assert_eq!(acme["per_module"], json!({"limit": 50, "span_s": 60.0}));
    assert_eq!(
        (
            &acme["state"],
            &acme["waiting"],
            &acme["pending"],
            &acme["throttle"]
        ),
        (
            &json!("waiting"),
            &json!(3),
            &json!(54),
            &json!("notify:acme")
        )
    );
    assert!(acme["oldest_waiting_s"].is_f64() && acme["counted_at"].is_string());
    let other = &listed["tenants"][1];
    assert_eq!(
        (
            &other["state"],
            &other["waiting"],
            &other["oldest_waiting_s"]
        ),
        (&json!("flowing"), &json!(0), &Value::Null)
    );
    assert_eq!(other["window"], window(2, 100, Value::Null));

    // A module whose messages never waited is there too.
    let path = "/api/v1/tenants/acme/modules";
    let modules = served.get("operator", path).await;
    assert_eq!(names(&modules["modules"], "module"), ["shop", "web"]);
    let (shop, web) = (&modules["modules"][0], &modules["modules"][1]);
    assert_eq!(web["window"], window(50, 50, RESET.into()));
    assert_eq!(
        (&web["state"], &web["waiting"], &web["next_at"]),
        (&json!("waiting"), &json!(3), &json!(RESET))
    );
    assert_eq!(shop["window"], window(1, 50, Value::Null));
    assert_eq!(
        (&shop["state"], &shop["waiting"], &shop["next_at"]),
        (&json!("flowing"), &json!(0), &Value::Null)
    );
    let deepest = served.get("operator", &format!("{path}?order=depth")).await;
    assert_eq!(names(&deepest["modules"], "module"), ["web"]);
    let one = served.get("operator", &format!("{path}?module=shop")).await;
    assert_eq!(one["modules"][0], *shop);

    // All slots of the tenant are used by others, so a module waits with its own left.
    served.admitted("blog", 0..49).await;
    let blog = served.get("operator", &format!("{path}?module=blog")).await;
    let blog = &blog["modules"][0];
    assert_eq!(
        (
            &blog["window"]["remaining"],
            &blog["window"]["next_at"],
            &blog["next_at"]
        ),
        (&json!(1), &Value::Null, &json!(RESET))
    );

    // A paused module and a paused tenant say so.
    let acme = flyball::throttle::Name::new("notify:acme").unwrap();
    let pause = std::time::Duration::from_secs(60);
    let store = &served.server.store;
    store
        .pause_key(&acme, "shop", pause, "their loop")
        .await
        .unwrap();
    let paused = served.get("operator", &format!("{path}?module=shop")).await;
    assert_eq!(
        (
            &paused["modules"][0]["state"],
            &paused["modules"][0]["paused"]["why"]
        ),
        (&json!("paused"), &json!("their loop"))
    );
    served.server.turn("notify:acme", &[("paused", "1")]).await;
    let listed = served.get("operator", "/api/v1/tenants?tenant=acme").await;
    assert_eq!(listed["tenants"][0]["state"], "paused");
}

#[tokio::test]
async fn a_tenant_whose_queue_is_full_says_so_and_a_raised_limit_frees_it() {
    let served = admission_server(TenantLimits::default()).await;
    served.queue_max(10).await;
    served.admitted("web", 0..10).await;
    let only = "/api/v1/tenants?tenant=acme";
    let full = served.get("operator", only).await["tenants"][0].clone();
    assert_eq!(
        (&full["state"], &full["pending"], &full["pending_max"]),
        (&json!("queue_full"), &json!(10), &json!(10))
    );
    served
        .run("insert into flyball.tenant_limit (tenant, max_pending) values ('acme', 20)")
        .await;
    let free = served.get("operator", only).await["tenants"][0].clone();
    assert_eq!(
        (&free["state"], &free["pending_max"]),
        (&json!("flowing"), &json!(20))
    );
}

#[tokio::test]
async fn a_token_of_a_tenant_sees_its_own_tenant_and_nothing_of_others() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("else", 0..1).await;
    served.accepted_batch("else", 1).await;
    // Its own tenant is there before it has sent anything.
    let own = served.get("watcher", "/api/v1/tenants").await;
    assert_eq!(names(&own["tenants"], "tenant"), ["acme"]);
    assert_eq!(own["tenants"][0]["window"]["used"], 0);
    let modules = served.get("watcher", "/api/v1/tenants/acme/modules").await;
    assert_eq!(modules["modules"], json!([]));
    for path in [
        "/api/v1/tenants?tenant=other",
        "/api/v1/notifications/batches",
        "/api/v1/notifications/batches?tenant=other",
    ] {
        let answer = served.get("watcher", path).await.to_string();
        assert!(!answer.contains("other"), "{path}: {answer}");
    }
    let mut refused = Vec::new();
    for tenant in ["other", "nobody", "%00", "a%20b"] {
        let path = format!("/api/v1/tenants/{tenant}/modules");
        let answer = served.ask("watcher", Method::GET, &path).await;
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{tenant}");
        let mut body: Value = answer.json().await.unwrap();
        body["instance"].take();
        refused.push(body);
    }
    assert!(
        refused.iter().all(|body| *body == refused[0]),
        "{refused:?}"
    );
    assert_eq!(refused[0]["code"], "tenant_not_found");
    // Operators know no tenant that has sent nothing.
    let path = "/api/v1/tenants/acme/modules";
    let unknown = served.ask("operator", Method::GET, path).await;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    let without = served.ask("web", Method::GET, "/api/v1/tenants").await;
    assert_eq!(
        without.json::<Value>().await.unwrap()["code"],
        "scope_missing"
    );
}

#[tokio::test]
async fn a_thousand_modules_and_many_tenants_are_paged() {
    let served = admission_server(TenantLimits::default()).await;
    served
        .run(
            "insert into flyball.tenant_limit (tenant, max_pending) select 't' || n, 5 from generate_series(1, 7) n;",
        )
        .await;
    served
        .run(
            "insert into flyball.lane (lane_id, throttle, key)
             select flyball.lane_of('notify:t1', 'm' || n), 'notify:t1', 'm' || n from generate_series(1, 1000) n",
        )
        .await;
    let tenants = served.pages("/api/v1/tenants?limit=3", "tenants").await;
    let found: Vec<&str> = tenants
        .iter()
        .map(|one| one["tenant"].as_str().unwrap())
        .collect();
    assert_eq!(found, ["t1", "t2", "t3", "t4", "t5", "t6", "t7"]);
    let path = "/api/v1/tenants/t1/modules?limit=200";
    let modules = served.pages(path, "modules").await;
    let mut found: Vec<&str> = modules
        .iter()
        .map(|one| one["module"].as_str().unwrap())
        .collect();
    assert!(modules.iter().all(|one| one["window"]["remaining"] == 50));
    found.sort_unstable();
    found.dedup();
    assert_eq!((modules.len(), found.len()), (1000, 1000));
}

#[tokio::test]
async fn batches_are_listed_newest_first_and_each_is_as_it_is_shown() {
    let served = admission_server(TenantLimits::default()).await;
    let small = served.accepted_batch("web", 100).await;
    let large = served.accepted_batch("shop", 300).await;
    let foreign = served.accepted_batch("else", 1).await;
    let change = async |id: i64, change: &str| {
        let path = format!("/api/v1/notifications/batches/{id}/{change}");
        assert_eq!(
            served.ask("web", Method::POST, &path).await.status(),
            StatusCode::OK
        );
    };
    change(large, "pause").await;

    let path = "/api/v1/notifications/batches";
    let listed = served.get("operator", path).await;
    let ids = |list: &[Value]| -> Vec<i64> {
        list.iter().map(|one| one["id"].as_i64().unwrap()).collect()
    };
    let batches = listed["batches"].as_array().unwrap();
    assert_eq!(ids(batches), [foreign, large, small]);
    for batch in batches {
        let counts = batch["counts"].as_object().unwrap().values();
        let sum: i64 = counts.map(|messages| messages.as_i64().unwrap()).sum();
        assert_eq!(sum, batch["recipients"].as_i64().unwrap(), "{batch}");
        let shown = served
            .get("operator", &format!("{path}/{}", batch["id"]))
            .await;
        assert_eq!(shown, *batch);
    }
    assert_eq!(batches[1]["counts"], json!({"expanding": 300}));
    assert_eq!(batches[2]["counts"], json!({"queued": 50, "waiting": 50}));
    assert_eq!(batches[2]["estimate"], RESET);
    assert_eq!(listed["may_change"], false);
    assert_eq!(listed["may_overrule"], true);
    let of_tenant = served.get("web", path).await;
    assert_eq!(
        (&of_tenant["may_change"], &of_tenant["may_overrule"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(
        ids(&served.pages(&format!("{path}?limit=1"), "batches").await),
        [foreign, large, small]
    );

    served
        .run(
            "insert into flyball.delivery (job_id, channel, pool, tenant, state, recipient, reason)
             select job_id, 'email', 'mail', 'other', 'sent', 'x', '' from flyball.batch_message where batch_id = 3",
        )
        .await;
    for (filter, wanted) in [
        ("tenant=other", vec![foreign]),
        ("tenant=acme&module=web", vec![small]),
        ("state=paused", vec![large]),
        ("state=running", vec![small]),
        ("state=done", vec![foreign]),
        ("state=cancelled", vec![]),
        ("tenant=nobody", vec![]),
    ] {
        let path = format!("{path}?{filter}&limit=2");
        assert_eq!(
            ids(&served.pages(&path, "batches").await),
            wanted,
            "{filter}"
        );
    }
    change(small, "cancel").await;
    let cancelled = served
        .get("operator", &format!("{path}?state=cancelled"))
        .await;
    assert_eq!(cancelled["batches"][0]["counts"], json!({"cancelled": 100}));

    // One page walks over a bounded part of the list.
    served
        .run(
            "insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages)
             select 'acme', 'web', 'cancelled', 'mail', 2, 1, '[]' from generate_series(1, 1100)",
        )
        .await;
    let first = served
        .get("operator", &format!("{path}?state=paused"))
        .await;
    assert_eq!(first["batches"], json!([]));
    assert!(first["next"].is_string(), "{first}");
    let found = served
        .pages(&format!("{path}?state=paused"), "batches")
        .await;
    assert_eq!(ids(&found), [large]);
}

#[tokio::test]
async fn wrong_parameters_of_the_lists_are_named_with_what_is_allowed() {
    let served = admission_server(TenantLimits::default()).await;
    served.admitted("web", 0..1).await;
    for (path, pointer, allowed) in [
        (
            "/api/v1/tenants?limit=201",
            "/limit",
            "a whole number from 1 to 200",
        ),
        (
            "/api/v1/tenants?tenants=a",
            "/tenants",
            "did you mean \"tenant\"?",
        ),
        ("/api/v1/tenants/acme/modules?order=age", "/order", "depth"),
        (
            "/api/v1/tenants/acme/modules?order=depth&after=x",
            "/after",
            "the value of `next`",
        ),
        (
            "/api/v1/notifications/batches?limit=101",
            "/limit",
            "a whole number from 1 to 100",
        ),
        (
            "/api/v1/notifications/batches?state=open",
            "/state",
            "expanding",
        ),
        (
            "/api/v1/notifications/batches?before=0",
            "/before",
            "a whole number from 1",
        ),
    ] {
        let answer = served.ask("operator", Method::GET, path).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["code"], "invalid_query", "{path}");
        assert_eq!(body["errors"][0]["pointer"], pointer, "{body}");
        let message = body["errors"][0]["message"].as_str().unwrap();
        assert!(message.contains(allowed), "{path}: {message}");
    }
}
