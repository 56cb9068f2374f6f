//! Recipients: parsing, suppression, digests and rests.

use std::time::Duration;

use flyball::jobs::NewJob;
use flyball::notify::{BeginRequest, Deliveries, DeliveryState, DeliveryUpdate, RecipientResult};
use flyball::providers::{Channel, EventKind, Recipient};
use flyball::recipient::address::suppression_digest;
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Executor};

use super::fixture::{HOUR, begun, enqueue_one, event, message, record_events, run, sent, store};
use crate::support::{Database, database, eventually};

/// Returns the digest under which a recipient is stored, from its unkeyed digest.
pub async fn keyed(database: &Database, known: Vec<u8>) -> Vec<u8> {
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
                Some(keyed(&database, suppression_digest(channel, &normal)).await),
                "{word} {to:?}"
            );
            assert_eq!(masked, recipient.masked(), "{word} {to:?}");
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
    let requested = |channel, to: &str| BeginRequest {
        job_id: 1,
        channel,
        recipient: Some(Recipient::parse(channel, to).unwrap()),
    };
    for (channel, first, others) in spellings {
        let all: Vec<&str> = others.iter().copied().chain([first]).collect();
        for output in &all {
            let recipient = Recipient::parse(channel, output).unwrap();
            let signed = flyball::jobs::Attribution {
                by: "test".into(),
                why: "asked".into(),
                ..Default::default()
            };
            assert!(
                deliveries.suppress(&recipient, &signed).await.unwrap(),
                "{output}"
            );
            for to in &all {
                let begun = deliveries.begin(requested(channel, to)).await.unwrap();
                assert_eq!(
                    begun.suppressed.as_deref(),
                    Some("asked"),
                    "{output} keeps {to} back"
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
                .begin(requested(channel, first))
                .await
                .unwrap()
                .suppressed,
            None
        );
    }

    // Providers write recipients in different forms.
    let id = enqueue_one(&queue, message("Victim <victim@example.com>")).await;
    deliveries
        .record(sent(id, "Victim <victim@example.com>"))
        .await
        .unwrap();
    record_events(
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
    // An event without a recipient applies to the message's own.
    let id = enqueue_one(&queue, message("Other <other@example.com>")).await;
    deliveries
        .record(sent(id, "Other <other@example.com>"))
        .await
        .unwrap();
    record_events(
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
async fn a_digest_reveals_nothing_without_the_key_that_only_postgres_has() {
    let (database, _, deliveries) = store().await;
    let number = Recipient::parse(Channel::Sms, "+15550100000").unwrap();
    deliveries
        .suppress(&number, &flyball::jobs::Attribution::default())
        .await
        .unwrap();
    let listed = deliveries.suppressions(None, None, 10).await.unwrap()[0]
        .recipient_digest
        .clone();
    let plain: String = suppression_digest(Channel::Sms, "+15550100000")
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
    let expected = aws_lc_rs::hmac::sign(&key, &suppression_digest(Channel::Sms, "+15550100000"));
    let expected: String = expected
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(listed, expected, "it is HMAC-SHA-256");

    // A role that may read all tables can neither read the key nor compute a digest.
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
async fn the_message_of_a_tenant_does_not_get_the_reason_of_a_suppression() {
    let (database, queue, deliveries) = store().await;
    let own = enqueue_one(&queue, message("a@b.c")).await;
    let of_tenant = enqueue_one(&queue, message("a@b.c")).await;
    let sql = format!(
        "update flyball.job set tenant = 'acme' where id = {of_tenant};
         select flyball.suppress('email', 'a@b.c', 'a note of the operators')"
    );
    run(&database, &sql).await;

    let begun = async |job_id| begun(&deliveries, job_id, "a@b.c").await.suppressed;
    assert_eq!(begun(own).await.as_deref(), Some("a note of the operators"));
    assert_eq!(begun(of_tenant).await.as_deref(), Some(""));
}

#[tokio::test]
async fn a_suppressed_recipient_is_reported_before_an_attempt() {
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

    for (call, output) in [
        (
            "suppress('fax', '1')",
            "channel: \"fax\" is not a channel; allowed are sms, email, push, chat, webhook and inapp",
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
        assert!(error.contains(output), "{call}: {error}");
    }
}

pub async fn met(deliveries: &Deliveries, job_id: i64, to: &str, met: RecipientResult) {
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
    // Concurrent failures count once, and the longest rest wins.
    met(&deliveries, ids[0], "ill@b.c", unable(1, HOUR)).await;
    met(
        &deliveries,
        ids[1],
        "Ill@B.c",
        unable(1, Duration::from_secs(5)),
    )
    .await;

    let requested = || join_all(ids.iter().map(|id| begun(&deliveries, *id, "ill@b.c")));
    for one in requested().await {
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
    let first = requested()
        .await
        .into_iter()
        .chain(requested().await)
        .filter(|one| one.rest.is_none())
        .count();
    assert_eq!(
        first, 1,
        "one finds out, and whoever comes later waits for it"
    );

    // It fails: all wait again, longer. Then it succeeds, and all may go.
    met(&deliveries, ids[0], "ill@b.c", unable(2, 3 * HOUR)).await;
    assert!(
        requested()
            .await
            .iter()
            .all(|one| one.failures == 2 && one.rest.is_some_and(|rest| rest > 2 * HOUR))
    );
    met(&deliveries, ids[0], "ill@b.c", RecipientResult::Able).await;
    assert!(
        requested()
            .await
            .iter()
            .all(|one| one.failures == 0 && one.rest.is_none())
    );
}

#[tokio::test]
async fn of_messages_that_are_read_together_that_of_a_refused_row_fails_alone() {
    let (database, queue, deliveries) = store().await;
    let ill = keyed(&database, suppression_digest(Channel::Email, "ill@b.c")).await;
    sqlx::query(
        "insert into flyball.recipient_backoff (channel, recipient_digest, failures, backoff_until)
         values ('email', $1, 1, now() - interval '1 s')",
    )
    .bind(ill)
    .execute(database.pool())
    .await
    .unwrap();
    let forbid = "
        create function public.forbid() returns trigger language plpgsql as $$ begin raise exception using errcode = '22000'; end $$;
        create trigger forbid before update on flyball.recipient_backoff for each row execute function public.forbid();";
    let pool = database.pool();
    pool.execute(sqlx::raw_sql(forbid)).await.unwrap();
    let mut messages = Vec::new();
    for to in ["a@b.c", "ill@b.c", "z@b.c"] {
        messages.push((enqueue_one(&queue, message(to)).await, to));
    }
    let begin = |(job_id, to)| {
        deliveries.begin(BeginRequest {
            job_id,
            channel: Channel::Email,
            recipient: Some(Recipient::parse(Channel::Email, to).unwrap()),
        })
    };
    let begun = join_all(messages.iter().copied().map(begin)).await;
    let read: Vec<bool> = begun.iter().map(Result::is_ok).collect();
    assert_eq!((read[0], read[2]), (true, true));
    // A row is passed over while a statement before still has it locked: Postgres tells of the failure
    // before it gives the lock back.
    eventually("the refused row fails", Duration::from_secs(20), || async {
        begin(messages[1]).await.err()
    })
    .await;
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
