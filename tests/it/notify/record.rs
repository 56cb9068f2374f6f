//! The record of messages on a real Postgres.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{NewJob, Queue, RetryAnswer, State};
use flyball::notify::record::NO_ACCOUNT;
use flyball::notify::{
    Attempt, BeginRequest, Begun, Deliveries, DeliveryState, DeliveryUpdate, Notice,
    RecipientResult, recipient,
};
use flyball::providers::{Channel, EventKind, ProviderEvent, Recipient};
use futures_util::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, Row, SqlSafeStr};

use crate::support::{Database, database};

const HOUR: Duration = Duration::from_secs(3600);

async fn store() -> (Database, Queue, Deliveries) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
        .await
        .unwrap();
    let deliveries = Deliveries::new(queue.pool.clone());
    (database, queue, deliveries)
}

fn args(to: &str) -> Value {
    json!({"channel": "email", "to": to, "body": "hello"})
}

fn message(to: &str) -> NewJob {
    NewJob::new("notification", args(to)).throttle("mail")
}

async fn enqueue_one(queue: &Queue, job: NewJob) -> i64 {
    queue.enqueue(&[job]).await.unwrap()[0].id
}

fn attempt(account: &str, outcome: &'static str, at_ms: i64) -> Attempt {
    Attempt {
        at: Timestamp::from_millisecond(1_700_000_000_000 + at_ms).unwrap(),
        account: account.into(),
        outcome,
        status: "202".into(),
        reason: String::new(),
        took: Duration::from_millis(12),
    }
}

fn mail(to: &str) -> Recipient {
    Recipient::parse(Channel::Email, to).unwrap()
}

fn sent(job_id: i64, to: &str) -> DeliveryUpdate {
    DeliveryUpdate {
        job_id,
        channel: Channel::Email,
        pool: "mail".into(),
        provider: "sendgrid",
        account: Some("a1".into()),
        state: DeliveryState::Sent,
        provider_id: Some(format!("p{job_id}")),
        recipient: mail(to),
        category: String::new(),
        attempts: vec![attempt("a1", "accepted", job_id & 0xffff)],
        suppress: None,
        met: None,
    }
}

fn event(
    event_id: &str,
    job_id: i64,
    event_type: EventKind,
    recipient: Option<&str>,
) -> ProviderEvent {
    ProviderEvent {
        event_id: event_id.into(),
        provider_id: format!("p{job_id}"),
        event_type,
        recipient: recipient.map(str::to_owned),
        at_s: 1_700_000_000,
        reason: format!("said {}", event_type.as_str()),
    }
}

fn notice(events: Vec<ProviderEvent>) -> Notice {
    Notice {
        pool: "mail".into(),
        account: "a1".into(),
        channel: Channel::Email,
        events,
    }
}

async fn told(deliveries: &Deliveries, events: Vec<ProviderEvent>) -> u64 {
    deliveries
        .record_events(notice(events))
        .await
        .unwrap()
        .iter()
        .map(|(_, count)| count)
        .sum()
}

async fn begun(deliveries: &Deliveries, job_id: i64, to: &str) -> Begun {
    deliveries
        .begin(BeginRequest {
            job_id,
            channel: Channel::Email,
            recipient: mail(to),
        })
        .await
        .unwrap()
}

async fn seen(database: &Database, job_id: i64) -> (String, String, i32, Value) {
    let row = sqlx::query(
        "select state, reason, tries, attempts from flyball.notification where job_id = $1",
    )
    .bind(job_id)
    .fetch_one(database.pool())
    .await
    .unwrap();
    (
        row.get("state"),
        row.get("reason"),
        row.get("tries"),
        row.get("attempts"),
    )
}

async fn state(database: &Database, job_id: i64) -> String {
    seen(database, job_id).await.0
}

async fn tally(database: &Database) -> (i64, i64, i64, i64, i64) {
    sqlx::query_as(
        "select coalesce(sum(accepted), 0)::bigint, coalesce(sum(delivered), 0)::bigint, coalesce(sum(bounced), 0)::bigint,
             coalesce(sum(complained), 0)::bigint, coalesce(sum(unsubscribed), 0)::bigint
         from flyball.account_tally where pool = 'mail' and account = 'a1'",
    )
    .fetch_one(database.pool())
    .await
    .unwrap()
}

async fn run(database: &Database, sql: &str) {
    database
        .pool()
        .execute(AssertSqlSafe(sql.to_owned()))
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Everything that was enqueued was enqueued `ago` earlier.
async fn grow_older(database: &Database, ago: &str) {
    run(
        database,
        &format!("update flyball.job set created_at = created_at - interval '{ago}'"),
    )
    .await;
}

#[tokio::test]
async fn every_statement_of_the_record_can_be_prepared_on_the_migrated_schema() {
    let (_database, queue, _) = store().await;
    let mut connection = queue.pool.acquire().await.unwrap();

    for (name, sql) in flyball::notify::postgres::STATEMENTS {
        let prepared = connection.prepare(AssertSqlSafe(*sql).into_sql_str()).await;
        assert!(prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

/// The digest under which a recipient is kept, by its digest without the key.
async fn keyed(database: &Database, known: Vec<u8>) -> Vec<u8> {
    sqlx::query_scalar("select flyball.keyed_digest($1)")
        .bind(known)
        .fetch_one(database.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn what_sql_can_read_is_the_same_recipient_there_and_the_rest_it_refuses() {
    let database = database().await;
    let recipients = [
        " Ada@Example.COM\n",
        "\"Ada, L.\" <ADA@Example.com>",
        "Ada L. <ada@example.com>",
        "Ädä <ada@example.com>",
        "ÄDA@Exämple.de",
        "ada@xn--exmple-cua.de",
        "a@localhost",
        "a@b@c.d",
        "a@127.0.0.1",
        "a@x.example, Bob <b@y.example>",
        "Bob, A <a@x.example>",
        "b@y.example <a@x.example>",
        "=?utf-8?q?b?= <a@x.example>",
        "a..b@x.example",
        "nonsense",
        "@",
        "+1 (555) 010-00.00\t",
        "WhatsApp:+1 555 0100000",
        "0015550100000",
        "12345",
        "",
        "0123456789abcdef",
        "00FC13ADFF785122B4AD28809A3420982341241421348097878E577C991DE8F0",
        "/topics/news",
        "-1001234567890",
        "+0042",
        "@News",
        "C0123456789",
        "a,b",
        "https://hooks.example.com:8443/x?token=1",
        "https://hooks.example.com",
        "HTTPS://Hooks.example.com:443/a/../b",
        "https://u:p@hooks.example.com/x",
        "https://hooks.example.com/%7Ex",
        "http://127.1/x",
        "http://",
        "ftp://x.y",
        "\u{b}täst\u{c}",
        "日本語の宛先です日本語の宛先です",
    ];

    let mut read = 0;
    for (word, channel) in Channel::WORDS {
        for to in recipients {
            let (normal, digest, masked): (Option<String>, Option<Vec<u8>>, String) = sqlx::query_as(
                "select flyball.normal_recipient($1, $2), flyball.recipient_digest($1, $2), flyball.mask_recipient($1, $2)",
            )
            .bind(word)
            .bind(to)
            .fetch_one(database.pool())
            .await
            .unwrap();
            let Some(normal) = normal else {
                assert_eq!((digest, masked.as_str()), (None, "***"), "{word} {to:?}");
                continue;
            };
            read += 1;
            let recipient = Recipient::parse(channel, to)
                .unwrap_or_else(|message| panic!("{word} {to:?} {message}"));
            assert_eq!(normal, recipient.identity(), "{word} {to:?}");
            assert_eq!(
                digest,
                Some(keyed(&database, recipient::digest(channel, &normal)).await),
                "{word} {to:?}"
            );
            assert_eq!(masked, recipient::mask(&recipient), "{word} {to:?}");
        }
    }
    assert!(read >= 30, "SQL reads the usual forms; it read {read}");
}

#[tokio::test]
async fn a_suppressed_recipient_gets_nothing_in_any_spelling() {
    let (database, queue, deliveries) = store().await;
    let spellings: [(Channel, &str, &[&str]); 6] = [
        (
            Channel::Email,
            "victim@example.com",
            &[
                "Victim <victim@example.com>",
                "\"V., the\" <VICTIM@Example.Com>",
                " <victim@EXAMPLE.com>\n",
                "victim@ｅxample。com",
            ],
        ),
        (
            Channel::Email,
            "victim@bücher.example",
            &[
                "Victim <victim@xn--bcher-kva.example>",
                "Victim@BÜCHER.example",
            ],
        ),
        (
            Channel::Sms,
            "+15550100000",
            &[
                "whatsapp:+15550100000",
                "+1 (555) 010-0000",
                "WhatsApp: +1.555.010.0000",
            ],
        ),
        (Channel::Chat, "-1001", &["-001001"]),
        (Channel::Push, "token", &[" token\n"]),
        (
            Channel::Webhook,
            "https://a.example/in?x=1",
            &[
                "HTTPS://A.EXAMPLE/in?x=1",
                "https://a.example:443/b/../in?x=1#y",
                "https://a.example./%69n?x=1",
                "https://ａ.example/in?x=1",
            ],
        ),
    ];
    let asked = |channel, to: &str| BeginRequest {
        job_id: 1,
        channel,
        recipient: Recipient::parse(channel, to).unwrap(),
    };
    for (channel, first, others) in spellings {
        let all: Vec<&str> = others.iter().copied().chain([first]).collect();
        for said in &all {
            let recipient = Recipient::parse(channel, said).unwrap();
            let signed = flyball::jobs::Attribution {
                by: "test".into(),
                why: "asked".into(),
                ..Default::default()
            };
            assert!(
                deliveries.suppress(&recipient, &signed).await.unwrap(),
                "{said}"
            );
            for to in &all {
                let begun = deliveries.begin(asked(channel, to)).await.unwrap();
                assert_eq!(
                    begun.suppressed.as_deref(),
                    Some("asked"),
                    "{said} keeps {to} back"
                );
            }
            assert!(
                !deliveries
                    .suppress(&Recipient::parse(channel, first).unwrap(), &signed)
                    .await
                    .unwrap(),
                "not twice"
            );
            assert!(
                deliveries
                    .unsuppress(&Recipient::parse(channel, all[0]).unwrap(), &signed)
                    .await
                    .unwrap()
            );
        }
        assert_eq!(
            deliveries
                .begin(asked(channel, first))
                .await
                .unwrap()
                .suppressed,
            None
        );
    }

    // Providers name people as they like.
    let id = enqueue_one(&queue, message("Victim <victim@example.com>")).await;
    deliveries
        .record(sent(id, "Victim <victim@example.com>"))
        .await
        .unwrap();
    told(
        &deliveries,
        vec![event(
            "e1",
            id,
            EventKind::Unsubscribed,
            Some("V, (of old) <VICTIM@example.com>"),
        )],
    )
    .await;
    assert_eq!(
        begun(&deliveries, 1, "\"Mr. V\" <victim@example.com>")
            .await
            .suppressed
            .as_deref(),
        Some("unsubscribed")
    );
    // One that comes without a name concerns whom the message went to.
    let id = enqueue_one(&queue, message("Other <other@example.com>")).await;
    deliveries
        .record(sent(id, "Other <other@example.com>"))
        .await
        .unwrap();
    told(
        &deliveries,
        vec![event("e2", id, EventKind::Complained, None)],
    )
    .await;
    assert_eq!(
        begun(&deliveries, 1, "other@example.com")
            .await
            .suppressed
            .as_deref(),
        Some("complained")
    );
    drop(database);
}

#[tokio::test]
async fn a_digest_tells_nothing_without_the_key_that_only_postgres_has() {
    let (database, _, deliveries) = store().await;
    let number = Recipient::parse(Channel::Sms, "+15550100000").unwrap();
    deliveries
        .suppress(&number, &flyball::jobs::Attribution::default())
        .await
        .unwrap();
    let listed = deliveries.suppressions(None, None, 10).await.unwrap()[0]
        .recipient_digest
        .clone();
    let plain: String = recipient::digest(Channel::Sms, "+15550100000")
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_ne!(
        listed, plain,
        "whoever lists digests cannot try all numbers"
    );

    let (inner, outer): (Vec<u8>, Vec<u8>) =
        sqlx::query_as("select inner_pad, outer_pad from flyball.digest_key")
            .fetch_one(database.pool())
            .await
            .unwrap();
    let key: Vec<u8> = inner[..32].iter().map(|byte| byte ^ 0x36).collect();
    assert_eq!(
        key,
        outer[..32]
            .iter()
            .map(|byte| byte ^ 0x5c)
            .collect::<Vec<u8>>()
    );
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key);
    let expected = aws_lc_rs::hmac::sign(&key, &recipient::digest(Channel::Sms, "+15550100000"));
    let expected: String = expected
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(listed, expected, "it is HMAC-SHA-256");

    // A role that may read all tables reads no key, and computes no digest.
    let role = format!("reports_{}", std::process::id());
    let mut reports = database.superuser().begin().await.unwrap();
    let statement = format!(
        "create role {role}; grant usage on schema flyball to {role}; grant select on all tables in schema flyball to {role}; set local role {role}"
    );
    reports.execute(AssertSqlSafe(statement)).await.unwrap();
    let keys: i64 = sqlx::query_scalar("select count(*) from flyball.digest_key")
        .fetch_one(&mut *reports)
        .await
        .unwrap();
    assert_eq!(keys, 0);
    let refused = sqlx::query("select flyball.keyed_digest('x')")
        .execute(&mut *reports)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("permission denied"),
        "{refused}"
    );
    reports.rollback().await.unwrap();
}

#[tokio::test]
async fn what_a_dead_message_says_is_wiped_when_nobody_asked_for_it() {
    let (database, queue, deliveries) = store().await;
    let code = NewJob::new(
        "notification",
        json!({"channel": "sms", "to": "+15550100", "template": "{{ c }}", "data": {"c": "123456"}}),
    );
    let old = enqueue_one(&queue, code.clone().throttle("mail")).await;
    let young = enqueue_one(&queue, code.throttle("mail")).await;
    let other = enqueue_one(
        &queue,
        NewJob::new("http", json!({"url": "http://x/", "body": "kept"})).throttle("mail"),
    )
    .await;
    for (id, days) in [(old, 20), (young, 3), (other, 20)] {
        let bury = sqlx::query(
            "with gone as (delete from flyball.ready where job_id = $1 returning *)
            insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error, died_at)
            select job_id, lane_id, priority, 1, cost, 'refused', now() - make_interval(days => $2) from gone",
        );
        bury.bind(id)
            .bind(days)
            .execute(database.pool())
            .await
            .unwrap();
    }
    assert_eq!(deliveries.forget_dead(0).await.unwrap(), 0, "0 keeps them");
    assert_eq!(deliveries.forget_dead(14).await.unwrap(), 1);
    assert_eq!(deliveries.forget_dead(14).await.unwrap(), 0);
    let args = async |id: i64| queue.get(id).await.unwrap().unwrap().args;
    assert_eq!(
        args(old).await,
        json!({"channel": "sms", "to": "+15550100"})
    );
    assert_eq!(
        (&args(young).await["data"]["c"], &args(other).await["body"]),
        (&json!("123456"), &json!("kept"))
    );
    let dead: Vec<i64> = sqlx::query_scalar("select job_id from flyball.dead order by job_id")
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert_eq!(dead, [young, other]);
}

#[tokio::test]
async fn a_message_is_queued_then_what_was_written_down() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("Ada@Example.com")).await;
    assert_eq!(state(&database, id).await, "queued");
    let before = begun(&deliveries, id, "ada@example.com").await;
    assert_eq!(
        (before.attempts, before.suppressed, before.last_outcome),
        (0, None, None)
    );
    assert!(before.waits_since.is_some() && before.requeued_at.is_none());

    let waits = DeliveryUpdate {
        state: DeliveryState::Queued,
        account: Some("a0".into()),
        provider_id: None,
        attempts: vec![attempt("a0", "transient", 0), attempt("a1", "throttled", 1)],
        ..sent(id, "ada@example.com")
    };
    deliveries.record(waits).await.unwrap();
    deliveries
        .record(sent(id, "ada@example.com"))
        .await
        .unwrap();

    let (state, _, tries, attempts) = seen(&database, id).await;
    assert_eq!((state.as_str(), tries), ("sent", 3));
    let outcomes: Vec<&str> = attempts
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["transient", "throttled", "accepted"]);
    assert_eq!(
        (&attempts[0]["account"], &attempts[0]["ms"]),
        (&json!("a0"), &json!(12))
    );
    assert_eq!(
        begun(&deliveries, id, "ada@example.com")
            .await
            .last_outcome
            .as_deref(),
        Some("accepted")
    );
    let (recipient, digest): (String, Vec<u8>) =
        sqlx::query_as("select recipient, recipient_digest from flyball.delivery")
            .fetch_one(database.pool())
            .await
            .unwrap();
    assert_eq!(
        (recipient.as_str(), digest),
        (
            "a***@e***.com",
            keyed(
                &database,
                recipient::digest(Channel::Email, "ada@example.com")
            )
            .await
        )
    );
    let rows: i64 = sqlx::query_scalar("select count(*) from flyball.delivery_attempt")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(rows, 3);
    assert_eq!(tally(&database).await, (1, 0, 0, 0, 0));
}

#[tokio::test]
async fn the_same_word_said_twice_counts_once_and_only_the_last_50_attempts_are_kept() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;

    for _ in 0..3 {
        deliveries.record(sent(id, "a@b.c")).await.unwrap();
    }
    assert_eq!(tally(&database).await.0, 1);
    assert_eq!(seen(&database, id).await.2, 1);

    for n in 0..70 {
        let written = DeliveryUpdate {
            attempts: vec![attempt("a1", "transient", 100_000 + n)],
            ..sent(id, "a@b.c")
        };
        deliveries
            .record(DeliveryUpdate {
                state: DeliveryState::Queued,
                ..written
            })
            .await
            .unwrap();
    }
    let (state, _, tries, attempts) = seen(&database, id).await;
    assert_eq!(
        (state.as_str(), tries, attempts.as_array().unwrap().len()),
        ("sent", 71, 50)
    );
    assert_eq!(attempts[49]["at"], attempt("", "", 100_069).at.to_string());
}

#[tokio::test]
async fn two_hundred_at_once_are_all_written_and_one_that_cannot_be_fails_alone() {
    let (database, queue, deliveries) = store().await;
    let jobs: Vec<NewJob> = (0..200).map(|n| message(&format!("u{n}@b.c"))).collect();
    let ids: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();

    let all = ids.iter().enumerate().map(|(n, id)| {
        let deliveries = deliveries.clone();
        async move {
            let to = format!("u{n}@b.c");
            let asked = BeginRequest {
                job_id: *id,
                channel: Channel::Email,
                recipient: mail(&to),
            };
            assert_eq!(deliveries.begin(asked).await.unwrap().attempts, 0);
            let pool = if n == 77 { "ma\0il" } else { "mail" };
            let written = deliveries
                .record(DeliveryUpdate {
                    pool: pool.into(),
                    ..sent(*id, &to)
                })
                .await;
            (n, written)
        }
    });
    for (n, written) in join_all(all).await {
        assert_eq!(written.is_ok(), n != 77, "{n}: {written:?}");
    }
    // Two words about one job at once cannot be in one statement.
    let twice = join_all((0..2).map(|_| deliveries.record(sent(ids[77], "u77@b.c")))).await;
    assert!(twice.iter().all(Result::is_ok), "{twice:?}");

    let rows: Vec<(i64, String)> =
        sqlx::query_as("select job_id, provider_id from flyball.delivery where state = 'sent'")
            .fetch_all(database.pool())
            .await
            .unwrap();
    assert_eq!(rows.len(), 200);
    assert!(
        rows.iter()
            .all(|(id, provider_id)| *provider_id == format!("p{id}"))
    );
    assert_eq!(tally(&database).await.0, 200);
}

#[tokio::test]
async fn an_event_counts_once_in_whatever_order_it_comes() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    deliveries.record(sent(id, "a@b.c")).await.unwrap();

    let delivered = event("e1", id, EventKind::Delivered, None);
    assert_eq!(
        told(&deliveries, vec![delivered.clone(), delivered.clone()]).await,
        1
    );
    assert_eq!(told(&deliveries, vec![delivered]).await, 0);
    assert_eq!(state(&database, id).await, "delivered");

    for (event_id, event_type, then) in [
        ("e0", EventKind::Sent, "delivered"),
        ("e2", EventKind::Failed, "delivered"),
        ("e3", EventKind::Bounced, "bounced"),
        ("e4", EventKind::Delivered, "bounced"),
    ] {
        assert_eq!(
            told(&deliveries, vec![event(event_id, id, event_type, None)]).await,
            1,
            "{event_id}"
        );
        assert_eq!(state(&database, id).await, then, "{event_id}");
    }
    assert_eq!(seen(&database, id).await.1, "said bounced");
    assert_eq!(tally(&database).await, (1, 2, 1, 0, 0));
    assert!(
        begun(&deliveries, id, "A@B.c ").await.suppressed.is_some(),
        "by the digest of the message"
    );
}

#[tokio::test]
async fn events_of_one_message_in_one_request_lead_to_the_furthest() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    deliveries.record(sent(id, "a@b.c")).await.unwrap();

    let events = [
        EventKind::Complained,
        EventKind::Sent,
        EventKind::Unsubscribed,
    ];
    let events = events
        .map(|event_type| event(event_type.as_str(), id, event_type, Some("a@b.c")))
        .to_vec();
    let fresh = deliveries.record_events(notice(events)).await.unwrap();

    assert_eq!(fresh.len(), 3);
    assert_eq!(state(&database, id).await, "delivered");
    let complained: bool = sqlx::query_scalar("select complained from flyball.notification")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert!(complained);
    assert_eq!(tally(&database).await, (1, 0, 0, 1, 1));
}

#[tokio::test]
async fn an_event_that_comes_before_its_message_waits_for_it() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    assert_eq!(
        told(
            &deliveries,
            vec![event("e1", id, EventKind::Delivered, None)]
        )
        .await,
        1
    );
    assert_eq!(state(&database, id).await, "queued");

    deliveries.record(sent(id, "a@b.c")).await.unwrap();
    assert_eq!(state(&database, id).await, "delivered");

    // Neither saw the other: both were under way at once.
    let other = enqueue_one(&queue, message("a@b.c")).await;
    deliveries
        .record(DeliveryUpdate {
            provider_id: None,
            ..sent(other, "a@b.c")
        })
        .await
        .unwrap();
    assert_eq!(
        told(
            &deliveries,
            vec![event("e2", other, EventKind::Bounced, None)]
        )
        .await,
        1
    );
    run(
        &database,
        &format!("update flyball.delivery set provider_id = 'p{other}' where job_id = {other}"),
    )
    .await;
    assert_eq!(state(&database, other).await, "sent");

    assert_eq!(deliveries.sweep_events().await.unwrap(), 1);
    assert_eq!(state(&database, other).await, "bounced");
    assert_eq!(deliveries.sweep_events().await.unwrap(), 0);
}

#[tokio::test]
async fn whoever_is_suppressed_is_told_before_an_attempt() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    let suppressed = DeliveryUpdate {
        suppress: Some("5.1.1 no such user".into()),
        ..sent(id, "a@b.c")
    };
    deliveries
        .record(DeliveryUpdate {
            state: DeliveryState::Bounced,
            ..suppressed
        })
        .await
        .unwrap();

    assert_eq!(
        begun(&deliveries, 1, " A@B.C").await.suppressed.as_deref(),
        Some("5.1.1 no such user")
    );
    assert_eq!(begun(&deliveries, 1, "other@b.c").await.suppressed, None);
    let ask = async |sql: &'static str| {
        sqlx::query_scalar::<_, bool>(sql)
            .fetch_one(database.pool())
            .await
            .unwrap()
    };
    assert!(ask("select flyball.is_suppressed('email', 'A@b.c')").await);
    assert!(
        !ask("select flyball.is_suppressed('chat', 'a@b.c')").await,
        "another channel"
    );
    assert!(ask("select flyball.unsuppress('email', 'A@b.c')").await);
    assert!(
        !ask("select flyball.unsuppress('email', 'a@b.c')").await,
        "not twice"
    );
    assert_eq!(begun(&deliveries, 1, "a@b.c").await.suppressed, None);
    assert!(ask("select flyball.suppress('sms', '+1 555-0100', 'asked us by post')").await);
    assert!(!ask("select flyball.suppress('sms', '+15550100')").await);
    let audit: Vec<String> = sqlx::query_scalar("select subject from flyball.audit")
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert_eq!(audit, ["email/a***@b***.c", "sms/***00"]);

    for (call, said) in [
        (
            "suppress('fax', '1')",
            "channel: \"fax\" is not a channel; allowed are sms, email, push, chat and webhook",
        ),
        ("suppress(null, '1')", "channel: null is not a channel"),
        ("suppress('sms', ' - ')", "recipient: must be a number"),
        ("unsuppress('email', null)", "recipient: is empty"),
    ] {
        let error = database
            .pool()
            .execute(AssertSqlSafe(format!("select flyball.{call}")))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(said), "{call}: {error}");
    }
}

#[tokio::test]
async fn a_message_that_waits_beyond_its_deadline_dies_and_runs_again_when_accounts_are_back() {
    let (database, queue, deliveries) = store().await;
    let patient = NewJob::new(
        "notification",
        json!({"channel": "email", "to": "a@b.c", "body": "x", "valid_for_s": 864_000}),
    );
    let patient = enqueue_one(&queue, patient.throttle("mail")).await;
    let keyed = enqueue_one(&queue, message("k@b.c").key("tenant").unique("u")).await;
    let plain = enqueue_one(&queue, message("p@b.c")).await;
    let later = enqueue_one(
        &queue,
        message("l@b.c").run_at(flyball::api::clock::now() + Duration::from_secs(60)),
    )
    .await;
    let retried = enqueue_one(&queue, message("r@b.c")).await;
    let elsewhere = enqueue_one(&queue, message("e@b.c").throttle("other")).await;
    let http = enqueue_one(
        &queue,
        NewJob::new("http", json!({"url": "http://x/"})).throttle("mail"),
    )
    .await;
    run(
        &database,
        &format!(
            "with gone as (delete from flyball.ready where job_id = {retried} returning *)
        insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique)
        select job_id, now() + interval '1 hour', lane_id, priority, 1, cost, true, false from gone"
        ),
    )
    .await;
    run(
        &database,
        "insert into flyball.lane (lane_id, throttle, key) values (flyball.lane_of('mail', 'tenant'), 'mail', 'tenant')",
    )
    .await;
    assert_eq!(
        deliveries.expire("mail", HOUR, 100).await.unwrap().jobs,
        0,
        "nothing is late yet"
    );

    grow_older(&database, "2 hours").await;
    let mut expired = 0;
    loop {
        // One at a time, so that the walk must go on where it stopped.
        let swept = deliveries.expire("mail", HOUR, 1).await.unwrap();
        expired += swept.jobs;
        if !swept.more {
            break;
        }
    }

    assert_eq!(expired, 3);
    for id in [patient, elsewhere, later] {
        assert_eq!(state(&database, id).await, "queued", "{id}");
    }
    assert_eq!(
        queue.get(http).await.unwrap().unwrap().summary.state,
        State::Ready
    );
    for id in [keyed, plain, retried] {
        let job = queue.get(id).await.unwrap().unwrap();
        assert_eq!(job.summary.state, State::Dead);
        let (state, reason, tries, attempts) = seen(&database, id).await;
        assert_eq!(
            (state.as_str(), reason.as_str(), tries),
            (
                "failed",
                "no account of pool mail was available until its deadline",
                1
            )
        );
        assert_eq!(job.summary.last_error.as_deref(), Some(reason.as_str()));
        assert_eq!(attempts[0]["outcome"], NO_ACCOUNT);
    }
    assert_eq!(
        begun(&deliveries, plain, "p@b.c")
            .await
            .last_outcome
            .as_deref(),
        Some(NO_ACCOUNT)
    );
    assert!(
        !queue
            .enqueue(&[message("k@b.c").key("tenant").unique("u")])
            .await
            .unwrap()[0]
            .duplicate,
        "its key was freed"
    );

    // A death of another sort is none of our business.
    let broken = enqueue_one(&queue, message("x@b.c")).await;
    bury(&queue, broken).await;
    let swept = deliveries.requeue_unsent("mail", 2).await.unwrap();
    assert!(swept.more && swept.jobs == 2);
    assert_eq!(deliveries.requeue_unsent("mail", 2).await.unwrap().jobs, 1);
    assert_eq!(deliveries.requeue_unsent("mail", 2).await.unwrap().jobs, 0);
    for id in [keyed, plain, retried] {
        assert_eq!(
            queue.get(id).await.unwrap().unwrap().summary.state,
            State::Ready
        );
        assert_eq!(state(&database, id).await, "queued");
        let again = begun(&deliveries, id, "p@b.c").await;
        assert!(
            again.requeued_at.is_some() && again.requeued_at == again.waits_since,
            "{again:?}"
        );
    }
    assert_eq!(state(&database, broken).await, "failed");
    assert_eq!(
        deliveries.expire("mail", HOUR, 100).await.unwrap().jobs,
        0,
        "their deadlines count anew"
    );
}

/// Claims the job and lets it die.
async fn bury(queue: &Queue, id: i64) {
    let kinds = vec!["notification".to_owned()];
    let new = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: HOUR,
        kinds,
    };
    let worker = queue.register(&new).await.unwrap();
    let lanes: Vec<LaneClaim> = queue
        .ready_lanes()
        .await
        .unwrap()
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 100))
        .collect();
    let claimed = queue.claim(worker, 7, &lanes).await.unwrap();
    assert!(claimed.iter().any(|one| one.job.id == id));
    let ends: Vec<Finish> = claimed
        .iter()
        .map(|one| {
            let ending = if one.job.id == id {
                Ending::Dead {
                    error: "broken".into(),
                }
            } else {
                Ending::HandedBack
            };
            Finish {
                job_id: one.job.id,
                fence: 7,
                ending,
            }
        })
        .collect();
    queue.finish(&ends).await.unwrap();
}

#[tokio::test]
async fn a_dead_message_that_a_person_runs_again_is_queued_with_a_deadline_of_its_own() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    let failed = DeliveryUpdate {
        state: DeliveryState::Failed,
        attempts: vec![attempt("a1", "permanent_request", 0)],
        ..sent(id, "a@b.c")
    };
    deliveries.record(failed).await.unwrap();
    bury(&queue, id).await;
    assert_eq!(state(&database, id).await, "failed");

    assert_eq!(queue.retry(id).await.unwrap(), RetryAnswer::Ready);

    assert_eq!(state(&database, id).await, "queued");
    assert!(begun(&deliveries, id, "a@b.c").await.requeued_at.is_some());
    deliveries.record(sent(id, "a@b.c")).await.unwrap();
    assert_eq!(state(&database, id).await, "sent");
}

#[tokio::test]
async fn what_ended_before_anything_was_tried_is_shown_as_failed_with_the_reason() {
    let (database, queue, _) = store().await;
    let dead = enqueue_one(&queue, message("a@b.c")).await;
    bury(&queue, dead).await;
    let cancelled = enqueue_one(&queue, message("b@b.c")).await;
    queue.cancel(cancelled).await.unwrap();
    let waits = enqueue_one(
        &queue,
        message("c@b.c").run_at(flyball::api::clock::now() + HOUR),
    )
    .await;

    let of = async |id| {
        let (state, reason, ..) = seen(&database, id).await;
        (state, reason)
    };
    assert_eq!(of(dead).await, ("failed".into(), "broken".into()));
    assert_eq!(of(cancelled).await, ("failed".into(), "cancelled".into()));
    assert_eq!(of(waits).await, ("queued".into(), String::new()));
    let shown: Vec<String> =
        sqlx::query_scalar("select recipient from flyball.notification order by job_id")
            .fetch_all(database.pool())
            .await
            .unwrap();
    assert_eq!(shown, ["a***@b***.c", "b***@b***.c", "c***@b***.c"]);
}

#[tokio::test]
async fn the_record_goes_with_the_finished_jobs_and_not_before() {
    let (database, queue, deliveries) = store().await;
    let lives = enqueue_one(&queue, message("a@b.c")).await;
    let old_day = "(flyball.day_of(now()) - 40 << 38)";
    for (n, job_id) in [
        format!("{old_day} + 1"),
        format!("{old_day} + 2"),
        format!("{old_day} + 3"),
    ]
    .iter()
    .enumerate()
    {
        run(
            &database,
            &format!(
                "insert into flyball.delivery (job_id, channel, pool, state, updated_at)
            values ({job_id}, 'email', 'mail', 'sent', now() - interval '{} days')",
                [40, 40, 3][n]
            ),
        )
        .await;
    }
    deliveries.record(sent(lives, "a@b.c")).await.unwrap();
    run(&database, "update flyball.delivery set updated_at = now() - interval '90 days' where state = 'sent' and job_id > 0 and provider_id is not null").await;
    run(
        &database,
        &format!(
            "select flyball.ensure_day(flyball.day_of(now()) - 40);
        insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
        values ({old_day} + 2, 1, 1, 1, 1, 'notification', 'mail', '', '{{}}')"
        ),
    )
    .await;
    told(
        &deliveries,
        vec![
            event("old", 1, EventKind::Sent, None),
            event("new", 2, EventKind::Sent, None),
        ],
    )
    .await;
    run(&database, "update flyball.delivery_event set received_at = now() - interval '40 days' where event_id = 'old'").await;

    assert_eq!(deliveries.forget(30).await.unwrap(), 2);
    assert_eq!(deliveries.forget(30).await.unwrap(), 0);

    let left: Vec<i64> =
        sqlx::query_scalar("select job_id & ((1::bigint << 38) - 1) from flyball.delivery where provider_id is null order by 1")
            .fetch_all(database.pool())
            .await
            .unwrap();
    assert_eq!(left, [2, 3], "one has a job, and of one there was news");
    assert_eq!(state(&database, lives).await, "sent");
}

#[tokio::test]
async fn the_urgency_of_a_message_is_its_priority_by_every_door_of_the_database() {
    let (database, queue, _) = store().await;
    let of = |priority: &str| json!({"channel": "email", "to": "a@b.c", "body": "x", "priority": priority});
    let priority = async |id: i64| queue.get(id).await.unwrap().unwrap().summary.priority;

    for (word, wanted) in [("critical", 0), ("high", 1), ("normal", 2), ("low", 3)] {
        let one: i64 = sqlx::query_scalar("select job_id from flyball.enqueue('notification', $1)")
            .bind(of(word))
            .fetch_one(database.pool())
            .await
            .unwrap();
        let unique: i64 = sqlx::query_scalar(
            "select job_id from flyball.enqueue('notification', $1, unique_key => $2)",
        )
        .bind(of(word))
        .bind(word)
        .fetch_one(database.pool())
        .await
        .unwrap();
        let many = json!([{"kind": "http"}, {"kind": "notification", "args": of(word)}, {"kind": "notification", "args": of(word), "priority": 3},
            {"kind": "http", "args": of(word)}]);
        let many: Vec<i64> = sqlx::query_scalar("select job_id from flyball.enqueue_many($1)")
            .bind(many)
            .fetch_all(database.pool())
            .await
            .unwrap();
        let rust = enqueue_one(&queue, NewJob::new("notification", of(word))).await;
        let two = queue
            .enqueue(&[
                NewJob::new("notification", of(word)),
                NewJob::new("http", of(word)),
            ])
            .await
            .unwrap();
        for id in [one, unique, many[1], rust, two[0].id] {
            assert_eq!(priority(id).await, wanted, "{word}");
        }
        assert_eq!(priority(many[2]).await, 3, "it was named");
        for id in [many[0], many[3], two[1].id] {
            assert_eq!(priority(id).await, 1, "no other kind");
        }
    }
    assert_eq!(
        priority(enqueue_one(&queue, message("a@b.c")).await).await,
        2,
        "normal where nothing is said"
    );
    assert_eq!(
        priority(enqueue_one(&queue, NewJob::new("notification", of("low")).priority(0)).await)
            .await,
        0,
        "it was named"
    );
}

// === Recipients that are left alone ===

async fn met(deliveries: &Deliveries, job_id: i64, to: &str, met: RecipientResult) {
    let state = DeliveryState::Queued;
    deliveries
        .record(DeliveryUpdate {
            state,
            provider_id: None,
            met: Some(met),
            ..sent(job_id, to)
        })
        .await
        .unwrap();
}

fn unable(failures: u32, rest: Duration) -> RecipientResult {
    RecipientResult::Unable { failures, rest }
}

#[tokio::test]
async fn of_all_messages_for_a_recipient_whose_rest_is_over_one_goes_first() {
    let (database, queue, deliveries) = store().await;
    let jobs: Vec<NewJob> = (0..20).map(|_| message("ill@b.c")).collect();
    let ids: Vec<i64> = queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect();
    let well = enqueue_one(&queue, message("well@b.c")).await;
    // Those that were under way together count once, and the longest rest holds.
    met(&deliveries, ids[0], "ill@b.c", unable(1, HOUR)).await;
    met(
        &deliveries,
        ids[1],
        "Ill@B.c",
        unable(1, Duration::from_secs(5)),
    )
    .await;

    let asked = || join_all(ids.iter().map(|id| begun(&deliveries, *id, "ill@b.c")));
    for one in asked().await {
        assert_eq!(one.failures, 1);
        assert!(
            one.rest
                .is_some_and(|rest| rest > HOUR - Duration::from_secs(300) && rest <= HOUR),
            "{one:?}"
        );
    }
    assert_eq!(begun(&deliveries, well, "well@b.c").await.rest, None);

    run(
        &database,
        "update flyball.recipient_backoff set backoff_until = now() - interval '1 s'",
    )
    .await;
    let first = asked()
        .await
        .into_iter()
        .chain(asked().await)
        .filter(|one| one.rest.is_none())
        .count();
    assert_eq!(
        first, 1,
        "one finds out, and whoever comes later waits for it"
    );

    // It fails: all wait again, longer. Then it goes well, and all may go.
    met(&deliveries, ids[0], "ill@b.c", unable(2, 3 * HOUR)).await;
    assert!(
        asked()
            .await
            .iter()
            .all(|one| one.failures == 2 && one.rest.is_some_and(|rest| rest > 2 * HOUR))
    );
    met(&deliveries, ids[0], "ill@b.c", RecipientResult::Able).await;
    assert!(
        asked()
            .await
            .iter()
            .all(|one| one.failures == 0 && one.rest.is_none())
    );
}

#[tokio::test]
async fn rests_and_changes_of_accounts_are_forgotten() {
    let (database, _, deliveries) = store().await;
    run(
        &database,
        "insert into flyball.recipient_backoff (channel, recipient_digest, failures, backoff_until)
         values ('sms', 'a', 1, now() - interval '2 days'), ('sms', 'b', 1, now()), ('sms', 'c', 1, now() + interval '1 day')",
    )
    .await;
    run(
        &database,
        "insert into flyball.account_event (pool, account, from_state, to_state, reason, changed_at, created_at)
         select 'sms', 'a', 'closed', 'open', '', now(), now() - make_interval(days => n) from unnest(array[1, 89, 91, 400]) n",
    )
    .await;

    deliveries.forget(7).await.unwrap();

    let left: (i64, i64) =
        sqlx::query_as("select (select count(*) from flyball.recipient_backoff), (select count(*) from flyball.account_event)")
            .fetch_one(database.pool())
            .await
            .unwrap();
    assert_eq!(left, (2, 2));
}

#[tokio::test]
async fn how_long_a_message_has_waited_is_told_by_the_clock_of_postgres() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    grow_older(&database, "2 hours").await;
    let waited = begun(&deliveries, id, "a@b.c").await.waited;
    assert!(waited >= 2 * HOUR && waited < 3 * HOUR, "{waited:?}");
}

#[tokio::test]
async fn what_was_recorded_decides_until_somebody_asks_for_the_message_again() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    assert!(!begun(&deliveries, id, "a@b.c").await.is_settled());
    let doubtful = DeliveryUpdate {
        state: DeliveryState::Failed,
        provider_id: None,
        attempts: vec![attempt("a1", "ambiguous", 1)],
        ..sent(id, "a@b.c")
    };
    deliveries.record(doubtful).await.unwrap();
    let before = begun(&deliveries, id, "a@b.c").await;
    assert!(before.is_doubtful() && !before.is_settled());
    deliveries
        .record(DeliveryUpdate {
            attempts: vec![attempt("a1", "accepted", 2)],
            ..sent(id, "a@b.c")
        })
        .await
        .unwrap();
    assert!(begun(&deliveries, id, "a@b.c").await.is_settled());

    run(
        &database,
        "update flyball.delivery set requeued_at = now(), last_outcome = null",
    )
    .await;
    assert!(!begun(&deliveries, id, "a@b.c").await.is_settled());
    deliveries
        .record(DeliveryUpdate {
            attempts: vec![attempt("a1", "accepted", 3)],
            ..sent(id, "a@b.c")
        })
        .await
        .unwrap();
    assert!(begun(&deliveries, id, "a@b.c").await.is_settled());
}
