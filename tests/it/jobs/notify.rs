//! Messages by SQL and from Rust: in the sender's transaction, within the limits of its tenant.

use flyball::Client;
use flyball::jobs::{Error, NewMessage, Queue};
use serde_json::json;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Row};

use super::permissions::RolesFixture;
use crate::support::database;

const NOTIFY: &str =
    r#"select flyball.notify('mail', '{"channel": "email", "to": "a@b.c", "body": "x"}')"#;

async fn count(fixture: &RolesFixture, sql: &str) -> i64 {
    let row = sqlx::query(AssertSqlSafe(format!("select count(*) from {sql}")))
        .fetch_one(fixture.pool())
        .await
        .unwrap();
    row.get(0)
}

#[tokio::test]
async fn a_message_of_a_tenant_waits_in_the_lane_of_its_module_and_any_other_does_not() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant, module) values ('{}', 'shop', 'carts')",
            fixture.role("web")
        ))
        .await;
    assert_eq!(fixture.as_role("web", NOTIFY).await, None);
    assert_eq!(fixture.as_role("bank", NOTIFY).await, None);
    let many = r#"select flyball.as_tenant('acme', 'web');
        select * from flyball.notify_many('[{"pool": "mail", "channel": "email", "to": "a@b.c", "priority": "low"},
            {"pool": "mail", "channel": "email", "to": "d@e.f", "run_at": "2099-01-01T00:00:00Z", "key": "k"}]')"#;
    assert_eq!(
        fixture.as_role("owner", many).await.unwrap().0,
        "22023",
        "ten years at most"
    );
    let many = many.replace("2099-01-01T00:00:00Z", "2030-01-01T00:00:00Z");
    assert_eq!(fixture.as_role("owner", &many).await, None);

    let lanes = fixture
        .text(
            "select string_agg(format('%s/%s %s %s', j.tenant, j.module, j.priority,
                case when r.lane_id = flyball.lane_of('notify:' || j.tenant, j.module) then 'waits'
                     when r.lane_id = j.lane_id then 'goes' else 'later' end), ', ' order by j.id)
             from flyball.job j left join flyball.ready r on r.job_id = j.id",
        )
        .await;
    assert_eq!(
        lanes,
        "shop/carts 2 waits, / 2 goes, acme/web 3 waits, acme/web 2 later"
    );
    assert_eq!(count(&fixture, "flyball.pending").await, 3);
    // A job of the kind by any other way waits as well.
    let enqueue =
        r#"select flyball.enqueue('notification', '{"channel": "email", "to": "a@b.c"}', 'mail')"#;
    assert_eq!(fixture.as_role("web", enqueue).await, None);
    assert_eq!(count(&fixture, "flyball.ready r join flyball.job j on j.id = r.job_id where j.tenant = 'shop' and r.lane_id = j.admission_lane").await, 2);
    let named = NOTIFY.replace(r#""body": "x""#, r#""body": "x", "key": "own""#);
    assert_eq!(fixture.as_role("bank", &named).await, None);
    // In the pool's throttle each tenant has a lane of its own, unless the message names a key.
    let keys = fixture
        .text(
            "select string_agg(format('%s/%s', j.throttle, j.key), ', ' order by j.id)
             from flyball.job j where j.lane_id = flyball.lane_of(j.throttle, j.key)",
        )
        .await;
    assert_eq!(
        keys,
        "mail/shop, mail/, mail/acme, mail/k, mail/shop, mail/own"
    );
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_is_sent() {
    let fixture = RolesFixture::new().await;
    for (messages, field) in [
        (r#"{}"#, "messages: must be a JSON array"),
        (r#"[7]"#, "messages[0]: must be an object"),
        (
            r#"[{"channel": "email", "to": "a"}]"#,
            "messages[0].pool: must name the pool",
        ),
        (
            r#"[{"pool": " ", "channel": "email", "to": "a"}]"#,
            "messages[0].pool: \" \" is not the name of a pool; use 1 to 128 letters",
        ),
        (
            r#"[{"pool": "mail", "channel": "fax", "to": "a"}]"#,
            "messages[0].channel: must be sms",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms"}]"#,
            "messages[0].to: must be the address, or recipient the id of a recipient",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "priority": "x"}]"#,
            "messages[0].priority: must be critical",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "subjekt": "x"}]"#,
            "messages[0].subjekt: is not a field",
        ),
        (
            r#"[{"pool": "notify:acme", "channel": "sms", "to": "a"}]"#,
            r#"messages[0].pool: "notify:acme" admits the messages of a tenant"#,
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a"}, {"pool": "mail", "channel": "sms", "to": 7}]"#,
            "messages[1].to: must be a text, not number",
        ),
        (
            r#"[{"pool": "mail", "channel": ["sms"], "to": "a"}]"#,
            "messages[0].channel: must be a text, not array",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "body": {}}]"#,
            "messages[0].body: must be a text, not object",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "data": "x"}]"#,
            "messages[0].data: must be an object, not string",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "valid_for_s": "5"}]"#,
            "messages[0].valid_for_s: must be a number, not string",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "valid_for_s": 0.5}]"#,
            "messages[0].valid_for_s: must be a number of seconds from 1 to 2592000",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "on_ambiguous": "drop"}]"#,
            "messages[0].on_ambiguous: must be retry or dead",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "local_time": "9:00"}]"#,
            "messages[0].local_time: must be a time of the recipient's clock as HH:MM, or",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "local_time": "09:00", "digest": "x"}]"#,
            "messages[0].local_time: must be left out beside digest",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "run_at": "soon"}]"#,
            "messages[0].run_at: \"soon\" is not a time",
        ),
        (
            r#"[{"pool": "mail", "channel": "sms", "to": "a", "unique_key": ""}]"#,
            "messages[0].unique_key: is 0 bytes long",
        ),
        (
            r#"[{"pool": "two words", "channel": "sms", "to": "a"}]"#,
            r#"messages[0].pool: "two words" is not the name of a pool"#,
        ),
    ] {
        let sql = format!("select flyball.notify_many('{messages}')");
        let (code, message) = fixture.as_role("owner", &sql).await.unwrap();
        assert_eq!(code, "22023", "{message}");
        let begin = format!("notify_many: {field}");
        assert!(message.starts_with(&begin), "{message}");
    }
    let long = "x".repeat(270_000);
    let with = |more: &str| format!(r#"{{"channel": "sms", "to": "a"{more}}}"#);
    for (pool, message, arguments, refusal) in [
        ("notify:acme", with(""), "", "pool: \"notify:acme\" admits"),
        ("two words", with(""), "", "pool: \"two words\" is not"),
        ("mail", with(r#", "zone": 1"#), "", "zone: is not a field"),
        (
            "mail",
            with(&format!(r#", "body": "{long}""#)),
            "",
            "message: is 270",
        ),
        (
            "mail",
            with(""),
            ", unique_key => 'cron:a'",
            "unique_key: begins",
        ),
        (
            "mail",
            with(""),
            ", key => repeat('k', 513)",
            "key: is 513 bytes",
        ),
        (
            "mail",
            with(""),
            ", run_at => 'infinity'",
            "run_at: \"infinity\" is",
        ),
    ] {
        let sql = format!("select flyball.notify('{pool}', '{message}'{arguments})");
        let (code, message) = fixture.as_role("owner", &sql).await.unwrap();
        assert_eq!(code, "22023", "{message}");
        let begin = format!("notify: {refusal}");
        assert!(message.starts_with(&begin), "{message}");
    }
    assert_eq!(count(&fixture, "flyball.job").await, 0);
}

#[tokio::test]
async fn a_critical_message_of_a_tenant_needs_leave() {
    let fixture = RolesFixture::new().await;
    let web = fixture.role("web");
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant) values ('{web}', 'shop')"
        ))
        .await;
    let critical = NOTIFY.replace("\"body\"", "\"priority\": \"critical\", \"body\"");
    let enqueued = r#"select flyball.enqueue('notification', '{"priority": "critical"}', 'mail')"#;
    for sql in [critical.as_str(), enqueued] {
        let (code, message) = fixture.as_role("web", sql).await.unwrap();
        assert_eq!(code, "42501", "{message}");
        assert!(message.contains("critical"), "{message}");
    }
    fixture
        .owner(&format!(
            "update flyball.producer set critical = true where role = '{web}'"
        ))
        .await;
    assert_eq!(fixture.as_role("web", &critical).await, None);
    // Who has no tenant has no such limit.
    assert_eq!(fixture.as_role("bank", &critical).await, None);
}

#[tokio::test]
async fn from_rust_a_message_exists_if_its_transaction_commits_and_a_full_queue_refuses_it() {
    let fixture = RolesFixture::new().await;
    let queue = Queue::new(fixture.pool().clone());
    queue.set_tenant_queue_max(2).await.unwrap();
    let message = NewMessage::new(
        "mail",
        json!({"channel": "email", "to": "a@b.c", "body": "x"}),
    );
    let send = async |commits: bool| {
        let mut transaction = fixture.pool().begin().await.unwrap();
        sqlx::query("select flyball.as_tenant('acme', 'web')")
            .execute(&mut *transaction)
            .await
            .unwrap();
        let sent = Client.notify(&mut *transaction, &message).await?;
        if commits {
            transaction.commit().await.unwrap();
        }
        Ok::<_, Error>(sent)
    };
    assert_eq!(send(false).await.unwrap().status, "held");
    assert_eq!(count(&fixture, "flyball.pending").await, 0);
    let first = send(true).await.unwrap();
    assert_eq!(first.status, "held");
    assert!(first.held_until.is_some());
    send(true).await.unwrap();

    let Err(Error::QueueFull {
        tenant,
        pending,
        max,
        ..
    }) = send(true).await
    else {
        panic!("the third has room");
    };

    assert_eq!((tenant.as_str(), pending, max), ("acme", 2, 2));
    let other = queue.notify_as("other", "", &message).await.unwrap();
    assert_eq!(other.status, "held");
    let operators = queue.notify_as("", "", &message).await.unwrap();
    assert_eq!(
        (operators.status.as_str(), operators.held_until),
        ("queued", None)
    );
    // A limit of its own.
    fixture
        .owner("insert into flyball.tenant_limit values ('acme', 3)")
        .await;
    send(true).await.unwrap();
}

#[tokio::test]
async fn a_full_queue_is_refused_in_the_name_of_the_function_that_was_called() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner("insert into flyball.tenant_limit values ('acme', 1)")
        .await;
    let many =
        r#"select flyball.notify_many('[{"pool": "mail", "channel": "email", "to": "a@b.c"}]')"#;
    for (called, name) in [(NOTIFY, "notify"), (many, "notify_many")] {
        let sql = format!("select flyball.as_tenant('acme', 'web'); {NOTIFY}; {called}");
        let (code, message) = fixture.as_role("owner", &sql).await.unwrap();
        assert_eq!(code, "53400");
        let begin = format!("{name}: the queue of tenant");
        assert!(message.starts_with(&begin), "{message}");
    }
}

/// Such a transaction fails where others write what it has looked at.
#[tokio::test]
async fn serializable_transactions_that_send_at_the_same_time_do_not_fail_each_other() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner("insert into flyball.tenant_limit values ('acme', 10000)")
        .await;
    let gated = NOTIFY.replace("\"body\"", "\"category\": \"billing\", \"body\"");
    let pool = fixture.pool();
    let (mut one, mut other) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    for transaction in [&mut one, &mut other] {
        for statement in [
            "set transaction isolation level serializable",
            "select flyball.as_tenant('acme', 'web')",
            &gated,
        ] {
            sqlx::query(AssertSqlSafe(statement.to_owned()))
                .execute(&mut **transaction)
                .await
                .unwrap();
        }
    }
    one.commit().await.unwrap();
    other.commit().await.unwrap();
}

#[tokio::test]
async fn a_long_queue_that_is_not_counted_each_time_is_full_at_its_limit() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner("insert into flyball.tenant_limit values ('acme', 1000)")
        .await;
    let send = async |messages: u32| {
        let sql = format!(
            "select flyball.as_tenant('acme', 'web');
             do $$ begin for n in 1..{messages} loop perform * from ({NOTIFY}) as sent; end loop; end $$"
        );
        fixture.as_role("owner", &sql).await
    };
    assert_eq!(send(990).await, None);
    let counted = "select pending::text from flyball.pending_count where tenant = 'acme'";
    assert_eq!(fixture.text(counted).await, "800", "the bound moves on");
    assert_eq!(count(&fixture, "flyball.pending").await, 990);

    assert_eq!(send(10).await, None);
    assert_eq!(send(1).await.unwrap().0, "53400");

    // Messages that ended make room, and the next count knows it.
    fixture
        .owner("select flyball.cancel(id) from flyball.job order by id limit 600")
        .await;
    assert_eq!(send(500).await, None);
    assert_eq!(send(101).await.unwrap().0, "53400");
    assert_eq!(send(100).await, None);
    assert_eq!(count(&fixture, "flyball.pending").await, 1000);
}

#[tokio::test]
async fn messages_of_a_transaction_that_is_rolled_back_were_never_sent() {
    let fixture = RolesFixture::new().await;
    for end in ["rollback", "commit"] {
        let mut transaction = fixture.pool().begin().await.unwrap();
        let sql = r#"select count(*) from flyball.notify_many('[
            {"pool": "mail", "channel": "email", "to": "a@b.c"}, {"pool": "mail", "channel": "email", "to": "d@e.f"}]')"#;
        sqlx::query("select flyball.as_tenant('acme', 'web')")
            .execute(&mut *transaction)
            .await
            .unwrap();
        let sent: i64 = sqlx::query_scalar(sql)
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(sent, 2);
        // The second look tells how far the transaction itself has come.
        let (id, status, held): (i64, String, bool) = sqlx::query_as(AssertSqlSafe(format!(
            "select id, status, held_until is not null from {}",
            &NOTIFY["select ".len()..]
        )))
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
        assert!(id > 0);
        assert_eq!((status.as_str(), held), ("held", true));
        let expected = if end == "commit" { 3 } else { 0 };
        match end {
            "commit" => transaction.commit().await.unwrap(),
            _ => transaction.rollback().await.unwrap(),
        }
        for table in ["flyball.job", "flyball.ready", "flyball.pending"] {
            assert_eq!(count(&fixture, table).await, expected, "{end} {table}");
        }
    }
}

#[tokio::test]
async fn messages_are_told_in_their_order_also_if_one_takes_the_place_of_a_waiting_one() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner(
            r#"insert into flyball.knobs (throttle, fields) values ('mail', '{"over_limit": "merge"}')
            on conflict (throttle) do update set fields = excluded.fields"#,
        )
        .await;
    let both = r#"select id, status from flyball.notify_many('[
        {"pool": "mail", "channel": "email", "to": "a@b.c", "body": "x", "unique_key": "k"},
        {"pool": "mail", "channel": "email", "to": "d@e.f", "body": "y"}]')"#;
    let mut told: Vec<Vec<(i64, String)>> = Vec::new();
    for _ in 0..2 {
        let rows = sqlx::query_as(both).fetch_all(fixture.pool()).await;
        told.push(rows.unwrap());
    }
    let statuses = |n: usize| [&*told[n][0].1, &*told[n][1].1];
    assert_eq!(statuses(0), ["queued", "queued"]);
    assert_eq!(statuses(1), ["duplicate", "queued"]);
    assert_eq!(told[1][0].0, told[0][0].0, "the one that waited");
}

#[tokio::test]
async fn the_time_of_a_held_message_knows_both_levels() {
    let fixture = RolesFixture::new().await;
    fixture
        .owner(
            r#"insert into flyball.knobs (throttle, fields) values ('notify:*', '{"windows": "4/60", "key_windows": "3/30"}')
            on conflict (throttle) do update set fields = excluded.fields"#,
        )
        .await;
    // Workers record the lanes that they see.
    fixture
        .owner(
            "insert into flyball.lane (lane_id, throttle, key)
            select flyball.lane_of('notify:acme', m), 'notify:acme', m from unnest(array['one', 'two']) m",
        )
        .await;
    let told_of = async |module: &str| {
        let mut transaction = fixture.pool().begin().await.unwrap();
        sqlx::query("select flyball.as_tenant('acme', $1)")
            .bind(module)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let sql = format!(
            "select extract(epoch from held_until - now())::int from {}",
            &NOTIFY["select ".len()..]
        );
        let wait: i32 = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        wait
    };
    let mut told = Vec::new();
    for module in ["one", "one", "one", "one", "two", "two", "two"] {
        told.push(told_of(module).await);
    }
    // The fourth of a module waits for its own window, the third of the other one for the tenant's:
    // it has three of the first module before it.
    assert_eq!(told, [0, 0, 0, 30, 0, 0, 60]);

    // Of several windows the one that lets it go last counts, and a rate as well.
    for (fields, wait) in [
        (r#"{"windows": "4/60 5/600", "key_windows": "3/30"}"#, 600),
        (r#"{"windows": "400/60", "rps": "0.01"}"#, 800),
    ] {
        let turn = format!("update flyball.knobs set fields = '{fields}'");
        fixture.owner(&turn).await;
        assert_eq!(told_of("two").await, wait, "{fields}");
    }

    // However slow it is, the time can be told.
    fixture
        .owner(r#"update flyball.knobs set fields = '{"rps": "0.000000001"}'"#)
        .await;
    let at = "select isfinite(flyball.held_at('acme', 10000, 10000))::text";
    assert_eq!(fixture.text(at).await, "true");
}

#[tokio::test]
async fn a_role_that_sends_reads_and_changes_nothing_of_other_tenants() {
    let fixture = RolesFixture::new().await;
    let web = fixture.role("web");
    fixture
        .owner(&format!(
            "insert into flyball.producer (role, tenant, module) values ('{web}', 'shop', 'carts')"
        ))
        .await;
    let sent = r#"select flyball.as_tenant('acme', 'web'); select flyball.notify('mail', '{"channel": "email", "to": "a@b.c"}')"#;
    assert_eq!(fixture.as_role("owner", sent).await, None);
    assert_eq!(fixture.as_role("web", NOTIFY).await, None);
    let tables = [
        "job",
        "ready",
        "scheduled",
        "attempt",
        "delivery",
        "notification",
        "batch",
        "batch_message",
        "batch_walk",
        "pending",
        "pending_count",
        "tenant_limit",
        "idempotency",
        "producer",
        "audit",
        "knobs",
    ];
    let reads = tables.map(|table| format!("select * from flyball.{table}"));
    let writes = tables
        .iter()
        .filter(|table| **table != "notification")
        .map(|table| format!("delete from flyball.{table}"));
    let calls = [
        "select flyball.admission_place(1)",
        "select flyball.awaits_admission(1)",
        "select flyball.is_just_sent(1)",
        "select flyball.pause_batch(null, 1)",
        "select flyball.resume_batch(null, 1)",
        "select flyball.cancel_batch(null, 1)",
        "select flyball.withdraw_items('{1}')",
        "select flyball.settle_expansions()",
        "select flyball.forget_batches(1)",
        "select flyball.sweep_pending('acme')",
        "select flyball.record_pending('x', 'acme', '{1}', false)",
        "select flyball.find_request('a', 'b', true, false)",
        "select flyball.remember_request('a', 'b', 1, null)",
        "select flyball.remember_requests('{a}', '{b}', '{1}')",
        "select * from flyball.places_behind(1, 2::smallint, 3, 4)",
    ]
    .map(str::to_owned);
    for sql in reads.into_iter().chain(writes).chain(calls) {
        let refused = fixture.as_role("web", &sql).await;
        let code = refused.as_ref().map(|(code, _)| code.as_str());
        assert_eq!(code, Some("42501"), "{sql}: {refused:?}");
    }
    let others = "select flyball.as_tenant('acme'); select 1";
    let (_, said) = fixture.as_role("web", others).await.unwrap();
    assert!(said.contains("is not the tenant of role"), "{said}");
    assert_eq!(count(&fixture, "flyball.job").await, 2);
}

/// Workers come for the first of them anyway, and a tenant in a loop must not keep them busy.
#[tokio::test]
async fn a_message_behind_others_that_wait_wakes_nobody() {
    let database = database().await;
    let mut listener = PgListener::connect(database.url()).await.unwrap();
    listener.listen("flyball").await.unwrap();
    let accept = r#"select answer from flyball.accept_message('acme', $1, null, '', false, false,
        '{"channel": "email", "to": "a@b.c", "body": "x"}', 'mail', '', 2, null, null, null)"#;
    let modules = ["web", "web", "carts", "web"];
    for module in modules {
        let answer = sqlx::query_scalar(accept).bind(module);
        let answer: String = answer.fetch_one(database.pool()).await.unwrap();
        assert_eq!(answer, "new");
    }
    sqlx::query("notify flyball, 'over'")
        .execute(database.pool())
        .await
        .unwrap();

    let mut rung = Vec::new();
    while rung.last().is_none_or(|lane| lane != "over") {
        rung.push(listener.recv().await.unwrap().payload().to_owned());
    }
    let lanes =
        "select flyball.lane_of('notify:acme', m)::text from unnest(array['web', 'carts']) m";
    let mut lanes: Vec<String> = sqlx::query_scalar(lanes)
        .fetch_all(database.pool())
        .await
        .unwrap();
    lanes.push("over".to_owned());
    assert_eq!(rung, lanes);
}
