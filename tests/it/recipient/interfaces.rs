//! Messages by SQL that are refused before anything is accepted.

use flyball::jobs::Error;
use flyball::recipient::gates::MessagePlan;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use sqlx::{Executor, Row};

use super::fixture::GatesFixture;

const CODES: &str = "[categories.codes]\nmandatory = true\nover_cap = \"refuse\"\ndedup_window_s = 0\n\
                     caps.sms = { per_hour = \"3 per 1h\" }\nactor_caps = { per_actor = \"1 per 1d\" }\n\
                     over_actor_cap = \"drop\"\n";

fn code(more: Value) -> Value {
    let mut message = json!({"category": "codes"});
    let fields = message.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    message
}

/// Returns the rule and the time of a refusal, and the index of its message.
fn refused<T: std::fmt::Debug>(sent: Result<T, Error>) -> (String, jiff::Timestamp, Option<usize>) {
    match sent.unwrap_err() {
        Error::Capped {
            index,
            rule,
            reset_at,
        } => (rule, reset_at, index),
        other => panic!("capped, not {other:?}"),
    }
}

async fn jobs(gates: &GatesFixture) -> i64 {
    gates.count("select count(*) from flyball.job").await
}

/// It interrupts nobody.
#[tokio::test]
async fn an_inbox_has_no_caps_of_actors() {
    let rules =
        "[categories.codes]\nover_cap = \"refuse\"\nactor_caps = { per_actor = \"1 per 1d\" }\n";
    let gates = GatesFixture::new(rules).await;
    gates.publish().await;
    for n in 0..3 {
        let message = json!({"channel": "inapp", "recipient": "ada", "actor": "bob", "dedup_key": n.to_string()});
        let id = gates.send(code(message)).await;
        assert_eq!(gates.plan(id).await, MessagePlan::Send, "{n}");
    }
}

#[tokio::test]
async fn sql_refuses_what_http_refuses_and_enqueues_nothing() {
    let gates = GatesFixture::new(CODES).await;
    gates.publish().await;
    let before = gates.now().await;
    // Planned or not, in any spelling: each takes one of three places.
    let first = gates.send(code(json!({}))).await;
    assert_eq!(gates.plan(first).await, MessagePlan::Send);
    gates.send(code(json!({"to": "+1 (555) 0100"}))).await;
    gates.send(code(json!({}))).await;
    let enqueued = jobs(&gates).await;

    let (rule, reset_at, index) = refused(gates.try_send_as("", code(json!({}))).await);
    assert_eq!((rule.as_str(), index), ("per_hour 3 per 1h", Some(0)));
    let wait = reset_at.duration_since(before).as_secs();
    assert!((3590..=3660).contains(&wait), "{wait} s");
    assert_eq!(jobs(&gates).await, enqueued, "nothing was enqueued");

    // The plan has the same rule and the same time.
    let args = json!({"channel": "sms", "to": "+15550100", "body": "x", "category": "codes"});
    let job = flyball::jobs::NewJob::new("notification", args).throttle("own");
    let by_http = gates.gates.refusal("", &job).await.unwrap();
    assert_eq!(by_http, Some((rule, reset_at)));
    let (mut registry, mut text) = (Registry::default(), String::new());
    gates.gates.metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let counted = "flyball_gate_findings_total{gate=\"caps\",finding=\"refused\"} 1\n";
    assert!(text.contains(counted), "{text}");

    // Another recipient, tenant, category or channel is not concerned.
    for (tenant, other) in [
        ("", code(json!({"to": "+15550177"}))),
        ("acme", code(json!({}))),
        ("", json!({"category": "billing"})),
        ("", json!({})),
        ("", code(json!({"channel": "push", "to": "token"}))),
    ] {
        let sent = gates.try_send_as(tenant, other.clone()).await;
        assert!(sent.is_ok(), "{tenant} {other}: {sent:?}");
    }
    // What SQL accepted is sent.
    while gates.gates.plan_due().await.unwrap() {}
    let ended = "select count(*) from flyball.message_plan where state = 'ended'";
    assert_eq!(gates.count(ended).await, 0);
}

#[tokio::test]
async fn the_callers_transaction_decides_and_goes_on_after_a_savepoint() {
    let gates = GatesFixture::new(CODES).await;
    gates.publish().await;
    let pool = gates.fixture.database.pool();
    let notify = "select id from flyball.notify('own', '{\"channel\": \"sms\", \"to\": \"+15550100\", \"body\": \"x\", \"category\": \"codes\"}')";
    let mut transaction = pool.begin().await.unwrap();
    for _ in 0..3 {
        transaction.execute(notify).await.unwrap();
    }
    transaction.execute("savepoint before").await.unwrap();
    let error = transaction.execute(notify).await.unwrap_err();
    let from_server = error.as_database_error().unwrap();
    assert_eq!(from_server.code().as_deref(), Some("53400"));
    assert!(!from_server.message().contains("555"), "{error}");
    transaction
        .execute("rollback to before; select flyball.enqueue('http', '{\"url\": \"http://x\"}')")
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    // Nothing of a transaction that was rolled back counts.
    for _ in 0..3 {
        pool.execute(notify).await.unwrap();
    }
    assert!(pool.execute(notify).await.is_err());
    // The place of a message that is cancelled is free.
    let id: i64 = sqlx::query_scalar("select min(id) from flyball.job")
        .fetch_one(pool)
        .await
        .unwrap();
    gates.fixture.queue.cancel(id).await.unwrap();
    pool.execute(notify).await.unwrap();
}

#[tokio::test]
async fn many_messages_are_refused_together_and_the_first_over_the_cap_is_named() {
    let gates = GatesFixture::new(CODES).await;
    gates.publish().await;
    let message = |to: &str| json!({"pool": "own", "channel": "sms", "to": to, "body": "x", "category": "codes"});
    let many = |count: usize| {
        let each = (0..count).flat_map(|_| [message("+15550100"), message("+15550111")]);
        each.collect::<Value>()
    };
    let send = async |messages: Value| {
        sqlx::query("select status from flyball.notify_many($1)")
            .bind(messages)
            .fetch_all(gates.fixture.database.pool())
            .await
            .map_err(Error::from)
    };
    let (_, _, index) = refused(send(many(4)).await);
    assert_eq!((index, jobs(&gates).await), (Some(6), 0));
    let rows = send(many(3)).await.unwrap();
    assert_eq!(rows.len(), 6);
    assert!(
        rows.iter()
            .all(|row| row.get::<&str, _>("status") == "planning")
    );
    // A later one has its plan when it is due.
    let mut later = message("+15550100");
    let tomorrow = gates.now().await + jiff::SignedDuration::from_hours(24);
    later["run_at"] = json!(tomorrow.to_string());
    assert!(send(json!([later])).await.is_ok());
}

#[tokio::test]
async fn the_caps_of_senders_and_actors_count_and_only_those_that_refuse_refuse() {
    let gates = GatesFixture::new(CODES).await;
    gates.publish().await;
    let invited = |n: u8| {
        code(json!({
            "to": "+15550120", "template_id": "invite", "at_most": "1 per 24h", "template": "{{ n }}", "data": {"n": n}, "body": null,
        }))
    };
    gates.send(invited(1)).await;
    let (rule, ..) = refused(gates.try_send_as("", invited(2)).await);
    assert_eq!(rule, "at_most 1 per 1d");
    // The cap of an actor drops: the message is accepted, and ends as capped.
    let liked = || code(json!({"to": "+15550130", "actor": "bob"}));
    assert_eq!(gates.planned(liked()).await.1, MessagePlan::Send);
    let (_, plan) = gates.planned(liked()).await;
    assert!(matches!(plan, MessagePlan::Ended { .. }), "{plan:?}");
}

/// Checks that a day of a recipient with this zone begins at midnight of the other.
async fn assert_day_begins(time_zone: &str, midnight: &str) {
    assert_day_begins_by(&json!({}), time_zone, midnight).await;
}

/// Checks it for a tenant with these defaults.
async fn assert_day_begins_by(defaults: &Value, time_zone: &str, midnight: &str) {
    let rules = "[categories.codes]\nover_cap = \"refuse\"\ndedup_window_s = 0\ncaps.sms = { per_day = \"1 per local_day\" }\n";
    let gates = GatesFixture::new(rules).await;
    gates.publish().await;
    sqlx::query("insert into flyball.recipient_defaults (tenant, profile) values ('', $1)")
        .bind(defaults)
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let profile = json!({"addresses": {"sms": "+15550140"}, "time_zone": time_zone});
    gates.profile("ada", profile).await;
    let message = || code(json!({"recipient": "ada"}));
    gates.send(message()).await;
    let (rule, reset_at, _) = refused(gates.try_send_as("", message()).await);
    let args = json!({"channel": "sms", "recipient": "ada", "body": "x", "category": "codes"});
    let job = flyball::jobs::NewJob::new("notification", args).throttle("own");
    let by_http = gates.gates.refusal("", &job).await.unwrap();
    assert_eq!(by_http, Some((rule, reset_at)));
    let there = reset_at.in_tz(midnight).unwrap();
    assert_eq!(there.time(), jiff::civil::Time::midnight());
}

#[tokio::test]
async fn a_rule_of_the_local_day_counts_from_the_recipients_midnight() {
    assert_day_begins("Pacific/Kiritimati", "Pacific/Kiritimati").await;
}

/// A profile that was restored from elsewhere may have one that Postgres here does not know.
#[tokio::test]
async fn a_zone_that_is_not_known_any_more_counts_as_utc() {
    assert_day_begins("Mars/Base", "UTC").await;
}

#[tokio::test]
async fn a_zone_that_is_not_known_any_more_gives_way_to_that_of_the_tenant() {
    let defaults = json!({"time_zone": "Pacific/Kiritimati"});
    assert_day_begins_by(&defaults, "Mars/Base", "Pacific/Kiritimati").await;
    let unknown = json!({"time_zone": "Mars/Base"});
    assert_day_begins_by(&unknown, "Mars/Base", "UTC").await;
}

/// Except in the last minute of a day, which is the last of the quiet hours.
#[tokio::test]
async fn caps_judge_a_message_at_the_time_at_which_quiet_hours_let_it_go() {
    let rules = "[categories.codes]\nover_cap = \"refuse\"\ndedup_window_s = 0\ncaps.sms = { per_minute = \"3 per 1m\" }\n";
    let gates = GatesFixture::new(rules).await;
    gates.publish().await;
    let sleeper = gates.quiet_today().await;
    gates
        .profile("ada", json!({"addresses": sleeper["addresses"]}))
        .await;
    let to = |id: &str, more: Value| {
        let mut message = code(more);
        message["recipient"] = id.into();
        message
    };
    let sent = async |id: &str, more: Value| gates.try_send_as("", to(id, more)).await;
    for _ in 0..3 {
        sent("ada", json!({})).await.unwrap();
    }
    refused(sent("ada", json!({})).await);
    let item = json!({"digest": "new-comment"});
    assert!(sent("ada", item).await.is_ok(), "its digest is judged");
    gates.profile("ada", sleeper.clone()).await;
    assert!(sent("ada", json!({})).await.is_ok());
    refused(sent("ada", json!({"priority": "critical"})).await);

    // All who wait go when it wakes, and one that goes now has room.
    gates.profile("bob", sleeper).await;
    for _ in 0..3 {
        let id = sent("bob", json!({})).await.unwrap();
        let plan = gates.plan(id).await;
        assert!(matches!(plan, MessagePlan::Held { .. }), "{plan:?}");
    }
    let (rule, reset_at, _) = refused(sent("bob", json!({})).await);
    let mut args = to("bob", json!({"channel": "sms", "body": "x"}));
    let job = flyball::jobs::NewJob::new("notification", args.take()).throttle("own");
    let by_http = gates.gates.refusal("", &job).await.unwrap();
    assert_eq!(by_http, Some((rule, reset_at)));
    let urgent = sent("bob", json!({"priority": "critical"})).await;
    assert!(urgent.is_ok(), "{urgent:?}");
}

#[tokio::test]
async fn the_address_may_be_left_out_if_the_profile_has_one() {
    let gates = GatesFixture::new("").await;
    let profile = json!({"addresses": {"sms": "+15550150"}});
    gates.profile("ada", profile).await;
    gates.send(json!({"recipient": "ada"})).await;
    for (message, told) in [
        (
            json!({"recipient": "ada", "channel": "push"}),
            "must be given, because the profile of the recipient has no address for push",
        ),
        (
            json!({"recipient": "eve"}),
            "must be given, because the recipient has no profile",
        ),
    ] {
        match gates.try_send_as("", message).await {
            Err(Error::Refused { field, message, .. }) => {
                assert_eq!((field.as_str(), message.as_str()), ("to", told));
            }
            other => panic!("refused, not {other:?}"),
        }
    }
    // The recipients of a tenant are its own.
    let foreign = gates.try_send_as("acme", json!({"recipient": "ada"})).await;
    assert!(matches!(foreign, Err(Error::Refused { .. })), "{foreign:?}");
}

#[tokio::test]
async fn an_unknown_type_of_digest_is_refused_by_its_name() {
    let gates = GatesFixture::new("").await;
    let message = json!({"category": "product", "digest": "new-coment"});
    gates.publish().await;
    let args = json!({"channel": "sms", "to": "+15550100", "body": "x", "digest": "new-coment"});
    let job = flyball::jobs::NewJob::new("notification", args).throttle("own");
    let by_sql = gates.try_send_as("", message).await.unwrap_err();
    let by_http = gates.gates.check_digests(&[job]).unwrap_err();
    for error in [by_sql, by_http] {
        let Error::Refused { field, message, .. } = error else {
            panic!("refused, not {error:?}")
        };
        assert_eq!(field, "digest");
        let told = "\"new-coment\" is not a known type of digest; ";
        assert!(message.starts_with(told), "{message}");
        let allowed = "allowed: creator-activity, new-comment, new-follower, while-you-were-away";
        assert!(message.ends_with(allowed), "{message}");
    }
    assert_eq!(jobs(&gates).await, 0);
    gates
        .send(json!({"category": "product", "digest": "new-comment"}))
        .await;

    sqlx::query("update flyball.recipient_rules set digest_texts = '{}'")
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let message = json!({"category": "product", "digest": "new-comment"});
    let error = gates.try_send_as("", message).await.unwrap_err();
    assert!(error.to_string().ends_with("allowed: none"), "{error}");
}
