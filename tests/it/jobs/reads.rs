//! Reads of jobs by SQL: the same as the API shows, of the caller's tenant alone.

use std::collections::BTreeSet;
use std::time::Duration;

use flyball::jobs::postgres::Ending;
use flyball::jobs::{NewJob, Queue};
use serde_json::{Value, json};

use super::fixture::{FENCE, claim_all, end, enqueue_one, finish, http, queue, worker};
use super::permissions::RolesFixture;

async fn value(queue: &Queue, sql: &str) -> Value {
    sqlx::query_scalar::<_, Option<Value>>(sqlx::AssertSqlSafe(sql.to_owned()))
        .fetch_one(&queue.pool)
        .await
        .unwrap()
        .unwrap_or(Value::Null)
}

async fn shown(queue: &Queue, id: i64) -> Value {
    value(queue, &format!("select flyball.show_job({id})")).await
}

/// Returns a value with every number as a float: Postgres writes `1` where Rust writes `1.0`.
fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(values) => values.iter().map(plain).collect(),
        Value::Object(fields) => {
            let each = fields
                .iter()
                .map(|(name, value)| (name.clone(), plain(value)));
            Value::Object(each.collect())
        }
        other => other.clone(),
    }
}

#[tokio::test]
async fn a_job_has_by_sql_every_field_and_value_that_the_api_reads_in_every_state() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(600)).await;
    let later = NewJob {
        run_at: Some("2031-01-01T00:00:00Z".parse().unwrap()),
        unique_key: Some("u".into()),
        timeout_s: Some(1.5),
        ..http().key("a").throttle("hooks")
    };
    let waiting = enqueue_one(&queue, later).await;
    let done = enqueue_one(&queue, http()).await;
    let dead = enqueue_one(&queue, http()).await;
    let running = enqueue_one(&queue, http()).await;
    assert_eq!(claim_all(&queue, worker, FENCE, 10).await.len(), 3);
    let died = Ending::Dead {
        error: "no such user\nsecond line".into(),
    };
    let ends = [end(done, FENCE, Ending::Completed), end(dead, FENCE, died)];
    queue.finish(&ends).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "insert into flyball.result (job_id, result, kept_until) values ({done}, '{{\"pages\": 3}}', now() + interval '1 hour');
         insert into flyball.checkpoint (job_id, cursor, done, total, note) values ({running}, '7', 1, 4, 'a quarter')"
    )))
    .execute(&queue.pool)
    .await
    .unwrap();
    let ready = enqueue_one(&queue, http()).await;

    for id in [waiting, done, dead, running, ready] {
        let by_sql = shown(&queue, id).await;
        let mut read = serde_json::to_value(queue.get(id).await.unwrap().unwrap()).unwrap();
        let fields = |value: &Value| -> BTreeSet<String> {
            value.as_object().unwrap().keys().cloned().collect()
        };
        // The API adds the reason of the wait.
        read["waiting"] = by_sql["waiting"].clone();
        assert_eq!(fields(&by_sql), fields(&read));
        for field in fields(&read) {
            // The age grows between the two reads.
            if field != "heartbeat_age_s" {
                let (found, wanted) = (plain(&by_sql[&field]), plain(&read[&field]));
                assert_eq!(found, wanted, "{field} of {id}");
            }
        }
    }
    let ended = "select coalesce((select d.died_at from flyball.dead d where d.job_id = $1), \
                 (select a.finished_at from flyball.attempt a where a.job_id = $1))";
    for id in [done, dead] {
        let told = queue.get(id).await.unwrap().unwrap().summary.ended_at;
        let stored: jiff_sqlx::Timestamp = sqlx::query_scalar(ended)
            .bind(id)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        assert_eq!(told, Some(stored.to_jiff()));
    }
    for id in [waiting, running, ready] {
        let job = queue.get(id).await.unwrap().unwrap();
        assert_eq!(job.summary.ended_at, None, "{:?}", job.summary.state);
    }
    let listed = value(&queue, "select jobs from flyball.list_jobs()").await;
    assert_eq!(listed.as_array().unwrap().len(), 5);
    for job in listed.as_array().unwrap() {
        let whole = shown(&queue, job["id"].as_i64().unwrap()).await;
        for (field, found) in job.as_object().unwrap() {
            assert_eq!(plain(found), plain(&whole[field]), "{field} of {job}");
        }
    }
    assert_eq!(shown(&queue, done).await["result"], json!({"pages": 3}));
    assert_eq!(
        value(&queue, &format!("select flyball.job_result({done})")).await,
        json!({"pages": 3})
    );
    assert_eq!(shown(&queue, 7).await, Value::Null);
    let attempts = format!(
        "select to_jsonb(array_agg(a.outcome || ' ' || a.error)) from flyball.list_attempts({dead}) a"
    );
    assert_eq!(
        value(&queue, &attempts).await,
        json!(["dead no such user\nsecond line"])
    );
    let failures = "select to_jsonb(array_agg(f.job_id)) from flyball.list_failures() f";
    assert_eq!(value(&queue, failures).await, json!([dead]));
}

#[tokio::test]
async fn why_a_job_waits_is_told_as_far_as_postgres_knows_it() {
    let (_database, queue) = queue().await;
    let why = async |id: i64| {
        let reason = format!("select flyball.why_job({id}) -> 'reason'");
        value(&queue, &reason).await
    };
    let ready = enqueue_one(&queue, http().throttle("hooks")).await;
    assert_eq!(why(ready).await, "no worker is live; start one");
    let id = worker(&queue, Duration::from_secs(600)).await;
    let reason = why(ready).await;
    assert!(
        reason
            .as_str()
            .unwrap()
            .starts_with("it waits for tokens of throttle hooks"),
        "{reason}"
    );
    let serves = |throttles: &str, kinds: &str| {
        format!(
            "update flyball.worker set throttles = '{throttles}', kinds = '{kinds}' where id = {id}"
        )
    };
    for (throttles, kinds, answer) in [
        (
            "{hoo*}",
            "{http}",
            "it waits for tokens of throttle hooks or for a free slot of a worker; Redis knows which",
        ),
        (
            "{mail,m*}",
            "{http}",
            "no live worker serves the throttle hooks; start one without --throttles",
        ),
        (
            "{hooks}",
            "{noop}",
            "no live worker serves the kind http; start a worker that does",
        ),
    ] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(serves(throttles, kinds)))
            .execute(&queue.pool)
            .await
            .unwrap();
        let reason = why(ready).await;
        assert!(reason.as_str().unwrap().starts_with(answer), "{reason}");
    }
    value(
        &queue,
        "select to_jsonb(flyball.pause_all('a test', 'ann'))",
    )
    .await;
    let paused = why(ready).await;
    assert!(
        paused.as_str().unwrap().ends_with("by ann: a test"),
        "{paused}"
    );
    let later = NewJob {
        run_at: Some("2031-01-01T00:00:00Z".parse().unwrap()),
        ..http()
    };
    let later = enqueue_one(&queue, later).await;
    let waits = value(&queue, &format!("select flyball.why_job({later})")).await;
    assert_eq!(
        waits,
        json!({"reason": "it is scheduled for a later time", "until": "2031-01-01T00:00:00Z"})
    );
    assert_eq!(why(7).await, Value::Null);
}

#[tokio::test]
async fn a_job_that_runs_after_others_names_one_of_them_and_a_dead_one_first() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(600)).await;
    let why = async |id: i64| {
        let reason = format!("select flyball.why_job({id}) -> 'reason'");
        value(&queue, &reason).await
    };
    let first = enqueue_one(&queue, http()).await;
    let second = enqueue_one(&queue, http()).await;
    let waiting = enqueue_one(&queue, http().after([first, second])).await;
    let last = enqueue_one(&queue, http().after([waiting])).await;
    let told = format!("it waits for the end of job {first}, which is ready, and for 1 more");
    assert_eq!(why(waiting).await, json!(told));
    let told = format!("it waits for the end of job {waiting}, which is scheduled");
    assert_eq!(why(last).await, json!(told));

    claim_all(&queue, worker, FENCE, 10).await;
    let died = Ending::Dead { error: "no".into() };
    finish(&queue, second, died).await;

    let told = format!(
        "it waits for job {second}, which is dead: requeue it, or discard it, and for 1 more"
    );
    assert_eq!(why(waiting).await, json!(told));
    let whole = shown(&queue, waiting).await;
    assert_eq!(whole["waiting"]["reason"], json!(told));
}

#[tokio::test]
async fn sql_masks_what_the_api_masks() {
    let (_database, queue) = queue().await;
    let cases = [
        (
            "http",
            json!({"url": "https://u:p@example.com/x?y=1", "headers": {"Authorization": "Bearer s", "X-Api-Key": "s",
            "Cookie": "s", "Idempotency-Key": "order-7", "Accept": "*/*"}, "body": {"order": 7}}),
        ),
        ("http", json!({"url": "https://example.com/a@b?c=@"})),
        ("http", json!({"url": 7, "headers": "x"})),
        ("http", json!([])),
        (
            "other",
            json!({"url": "https://u:p@example.com/", "to": "ada@example.com"}),
        ),
        (
            "notification",
            json!({"channel": "email", "to": "ada@example.com", "body": "x", "data": {"code": 1, "none": null}}),
        ),
        (
            "notification",
            json!({"channel": "sms", "to": "+15550100000", "template": {"body": "{{ code }}"}, "subject": null}),
        ),
        (
            "notification",
            json!({"channel": "fax", "to": ["ada@example.com"]}),
        ),
        ("notification", json!("text")),
    ];
    for (kind, args) in cases {
        let mut expected = args.clone();
        flyball::api::jobs::redact::mask_args(kind, &mut expected);
        let by_sql: Value = sqlx::query_scalar("select flyball.shown_args($1, $2)")
            .bind(kind)
            .bind(&args)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        assert_eq!(by_sql, expected, "{kind} {args}");
    }
    // URLs that programs read in different ways are hidden whole.
    for url in [
        "http:u:p@example.com",
        " https://u:p@x/",
        "https:\\\\u:p@x/",
        "https://u:p\t@x/",
    ] {
        let shown: String = sqlx::query_scalar("select flyball.shown_url($1)")
            .bind(url)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        assert_eq!(shown, "***", "{url}");
    }
    // The callback of a group is shown like a job.
    value(
        &queue,
        r#"select to_jsonb(g.group_id) from flyball.create_group('{"kind": "http", "args": {"url": "https://u:p@x.example/"}}') g"#,
    )
    .await;
    let callback = value(&queue, "select flyball.show_group(1) -> 'callback'").await;
    assert_eq!(callback["args"]["url"], "https://***@x.example/");
}

#[tokio::test]
async fn a_role_reads_nothing_without_a_grant_and_its_own_tenant_with_one() {
    let fixture = RolesFixture::new().await;
    let web = fixture.role("web");
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant) values ('{web}', 'shop')"
        ))
        .await;
    let enqueue = "select flyball.enqueue('http', key => 'own')";
    assert_eq!(fixture.as_role("web", enqueue).await, None);
    let foreign =
        "select flyball.as_tenant('bank'); select flyball.enqueue('http', key => 'foreign')";
    assert_eq!(fixture.as_role("owner", foreign).await, None);
    let own = fixture
        .text("select id::text from flyball.job where key = 'own'")
        .await;
    let foreign = fixture
        .text("select id::text from flyball.job where key = 'foreign'")
        .await;
    let fail = "insert into flyball.failure (job_id, attempt, outcome, error) select id, 1, 'failed', key from flyball.job";
    fixture.owner(fail).await;

    let reads = [
        format!("flyball.show_job({own})"),
        format!("flyball.why_job({own})"),
        format!("flyball.job_result({own})"),
        format!("flyball.list_attempts({own})"),
        "flyball.list_jobs()".to_owned(),
        "flyball.list_failures()".to_owned(),
        "flyball.list_audit()".to_owned(),
        "flyball.list_workers()".to_owned(),
        "flyball.list_kinds()".to_owned(),
        "flyball.list_suppressions()".to_owned(),
        "flyball.is_suppressed('sms', '+15550100')".to_owned(),
        "flyball.suppress('sms', '+15550100')".to_owned(),
        "flyball.unsuppress('sms', '+15550100')".to_owned(),
    ];
    for read in &reads {
        let refused = fixture.as_role("web", &format!("select {read}")).await;
        assert_eq!(refused.unwrap().0, "42501", "{read}");
    }
    let all =
        "show_job, flyball.why_job, flyball.job_result, flyball.list_attempts, flyball.list_jobs,
        flyball.list_failures, flyball.list_audit, flyball.list_workers, flyball.list_kinds,
        flyball.list_suppressions, flyball.is_suppressed, flyball.suppress, flyball.unsuppress";
    fixture
        .owner(&format!("grant execute on function flyball.{all} to {web}"))
        .await;
    let listed = |filter: &str| {
        format!(
            "select string_agg(j ->> 'key', ',') from flyball.list_jobs('{filter}') l cross join jsonb_array_elements(l.jobs) j"
        )
    };
    // A check that fails raises, with what was found.
    let is = |expression: &str, wanted: &str| {
        format!(
            "do $$ begin if ({expression}) is distinct from {wanted} then raise exception '%', ({expression}); end if; end $$"
        )
    };
    for (expression, wanted) in [
        (format!("flyball.show_job({own}) ->> 'tenant'"), "'shop'"),
        (
            format!("flyball.show_job({own}, 'shop') ->> 'key'"),
            "'own'",
        ),
        (format!("flyball.show_job({foreign})"), "null"),
        (format!("flyball.why_job({foreign})"), "null"),
        (
            "select string_agg(error, ',') from flyball.list_failures()".to_owned(),
            "'own'",
        ),
        (listed("{}"), "'own'"),
        (listed("{\"tenant\": \"shop\"}"), "'own'"),
    ] {
        assert_eq!(
            fixture.as_role("web", &is(&expression, wanted)).await,
            None,
            "{expression}"
        );
    }
    for (read, words) in [
        (
            format!("select flyball.show_job({foreign}, 'bank')"),
            "tenant: \"bank\" is not the tenant of role",
        ),
        (
            listed("{\"tenant\": \"bank\"}"),
            "list_jobs: tenant: \"bank\" is not the tenant of role",
        ),
        (
            "select flyball.list_failures(10, 'bank')".to_owned(),
            "it reads those of \"shop\"",
        ),
        (
            "select flyball.list_workers()".to_owned(),
            "list_workers: concerns all tenants",
        ),
        (
            "select flyball.list_kinds()".to_owned(),
            "list_kinds: concerns all tenants",
        ),
        (
            "select flyball.list_suppressions()".to_owned(),
            "list_suppressions: concerns all tenants",
        ),
        // A suppression stops the messages of every tenant.
        (
            "select flyball.is_suppressed('sms', '+15550100')".to_owned(),
            "is_suppressed: concerns all tenants",
        ),
        (
            "select flyball.suppress('sms', '+15550100')".to_owned(),
            "suppress: concerns all tenants",
        ),
        (
            "select flyball.unsuppress('sms', '+15550100')".to_owned(),
            "unsuppress: concerns all tenants",
        ),
    ] {
        let (code, message) = fixture.as_role("web", &read).await.unwrap();
        assert!(
            code == "42501" && message.contains(words),
            "{read}: {message}"
        );
    }
    // Operators read all, and as a tenant those of the tenant.
    for (before, expression, wanted) in [
        (
            "",
            format!("flyball.show_job({foreign}) ->> 'tenant'"),
            "'bank'",
        ),
        (
            "select flyball.as_tenant('shop');",
            format!("flyball.show_job({foreign})"),
            "null",
        ),
        ("", format!("flyball.show_job({foreign}, 'shop')"), "null"),
        ("", listed("{}"), "'foreign,own'"),
        ("select flyball.as_tenant('shop');", listed("{}"), "'own'"),
        ("", listed("{\"tenant\": \"bank\"}"), "'foreign'"),
    ] {
        let checked = format!("{before} {}", is(&expression, wanted));
        assert_eq!(
            fixture.as_role("owner", &checked).await,
            None,
            "{expression}"
        );
    }
    // A role without a tenant reads nothing without a grant, and all with one.
    let count = "do $$ begin if jsonb_array_length((flyball.list_jobs()).jobs) <> 2 then raise exception 'not all'; end if; end $$";
    let (code, _) = fixture.as_role("bank", count).await.unwrap();
    assert_eq!(code, "42501");
    let grant = format!(
        "grant execute on function flyball.list_jobs to {}",
        fixture.role("bank")
    );
    fixture.owner(&grant).await;
    assert_eq!(fixture.as_role("bank", count).await, None);
    for (read, words) in [
        (
            "list_failures(0)",
            "list_failures: most: is 0; allowed are 1 to 1000",
        ),
        (
            "list_audit(1001)",
            "list_audit: most: is 1001; allowed are 1 to 1000",
        ),
        (
            "list_groups('shut')",
            "list_groups: in_state: \"shut\" is not a state of a group",
        ),
        (
            "list_suppressions('fax')",
            "list_suppressions: in_channel: \"fax\" is not a channel",
        ),
        (
            "list_suppressions(after => 'x')",
            "list_suppressions: after: is not a place in this list",
        ),
    ] {
        let refused = fixture
            .as_role("owner", &format!("select flyball.{read}"))
            .await;
        let (code, message) = refused.unwrap();
        assert!(code == "22023" && message.starts_with(words), "{message}");
    }
}

#[tokio::test]
async fn groups_are_listed_by_sql_to_their_owner_by_state_and_age() {
    let fixture = RolesFixture::new().await;
    for role in ["web", "bank"] {
        assert_eq!(
            fixture.as_role(role, "select flyball.create_group()").await,
            None
        );
    }
    assert_eq!(
        fixture
            .as_role(
                "web",
                "select flyball.seal_group(1); select flyball.create_group(name => 'second')"
            )
            .await,
        None
    );
    let counts = |filter: &str, wanted: i64| {
        format!(
            "do $$ begin if (select count(*) from flyball.list_groups({filter})) <> {wanted} then
            raise exception 'another number of groups'; end if; end $$"
        )
    };
    for (role, filter, wanted) in [
        ("web", "", 2),
        ("web", "'open'", 1),
        ("web", "'ended'", 1),
        ("web", "'running'", 0),
        ("web", "before => 2", 1),
        ("web", "created_before => now() - interval '1 day'", 0),
        ("bank", "", 1),
        ("owner", "", 3),
        ("owner", "most => 2", 2),
    ] {
        let checked = fixture.as_role(role, &counts(filter, wanted)).await;
        assert_eq!(checked, None, "{role} {filter}");
    }
}
