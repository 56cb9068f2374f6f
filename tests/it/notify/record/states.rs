//! States of messages: attempts, batches and events of providers.

use std::collections::HashMap;

use flyball::jobs::NewJob;
use flyball::notify::{BeginRequest, DeliveryState, DeliveryUpdate, TenantFeedback};
use flyball::providers::{Channel, EventKind};
use flyball::recipient::address::suppression_digest;
use futures_util::future::join_all;
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, SqlSafeStr};

use super::fixture::{
    HOUR, attempt, begun, enqueue_one, event, grow_older, mail, message, notice, record_events,
    run, seen, sent, state, store, tally,
};
use super::recipients::keyed;

#[tokio::test]
async fn every_statement_of_the_record_can_be_prepared_on_the_migrated_schema() {
    let (_database, queue, _) = store().await;
    let mut connection = queue.pool.acquire().await.unwrap();

    for (name, sql) in flyball::notify::postgres::STATEMENTS {
        let prepared = connection.prepare(AssertSqlSafe(*sql).into_sql_str()).await;
        assert!(prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

#[tokio::test]
async fn a_message_whose_job_has_completed_without_a_record_is_not_queued_for_ever() {
    let (database, queue, _) = store().await;
    let id = enqueue_one(&queue, message("ada@example.com")).await;
    assert_eq!(state(&database, id).await, "queued");

    run(
        &database,
        &format!(
            "delete from flyball.ready where job_id = {id}; delete from flyball.scheduled where job_id = {id};
             insert into flyball.attempt (job_id, attempt, outcome) values ({id}, 1, 'completed')"
        ),
    )
    .await;

    let (state, reason, ..) = seen(&database, id).await;
    assert_eq!(state, "sent");
    assert!(reason.contains("could not be recorded"), "{reason}");
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

    let (state, _, attempt_count, attempts) = seen(&database, id).await;
    assert_eq!((state.as_str(), attempt_count), ("sent", 3));
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
                suppression_digest(Channel::Email, "ada@example.com")
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
    let (state, _, attempt_count, attempts) = seen(&database, id).await;
    assert_eq!(
        (
            state.as_str(),
            attempt_count,
            attempts.as_array().unwrap().len()
        ),
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
            let requested = BeginRequest {
                job_id: *id,
                channel: Channel::Email,
                recipient: Some(mail(&to)),
            };
            assert_eq!(deliveries.begin(requested).await.unwrap().attempts, 0);
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
    // One statement may contain only one report per job.
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
        record_events(&deliveries, vec![delivered.clone(), delivered.clone()]).await,
        1
    );
    assert_eq!(record_events(&deliveries, vec![delivered]).await, 0);
    assert_eq!(state(&database, id).await, "delivered");

    for (event_id, event_type, then) in [
        ("e0", EventKind::Sent, "delivered"),
        ("e2", EventKind::Failed, "delivered"),
        ("e3", EventKind::Bounced, "bounced"),
        ("e4", EventKind::Delivered, "bounced"),
    ] {
        assert_eq!(
            record_events(&deliveries, vec![event(event_id, id, event_type, None)]).await,
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
    run(&database, "update flyball.job set tenant = 'acme'").await;
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
    let tenants = ["acme".to_owned(), "zeta".to_owned()];
    let feedback = deliveries.feedback(&tenants).await.unwrap();
    let acme = TenantFeedback {
        accepted: 1,
        bounced: 0,
        complained: 1,
        unsubscribed: 1,
    };
    assert_eq!(feedback, HashMap::from([("acme".to_owned(), acme)]));
}

#[tokio::test]
async fn an_event_that_comes_before_its_message_waits_for_it() {
    let (database, queue, deliveries) = store().await;
    let id = enqueue_one(&queue, message("a@b.c")).await;
    assert_eq!(
        record_events(
            &deliveries,
            vec![event("e1", id, EventKind::Delivered, None)]
        )
        .await,
        1
    );
    assert_eq!(state(&database, id).await, "queued");

    deliveries.record(sent(id, "a@b.c")).await.unwrap();
    assert_eq!(state(&database, id).await, "delivered");

    // The two were concurrent, so neither saw the other.
    let other = enqueue_one(&queue, message("a@b.c")).await;
    deliveries
        .record(DeliveryUpdate {
            provider_id: None,
            ..sent(other, "a@b.c")
        })
        .await
        .unwrap();
    assert_eq!(
        record_events(
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
async fn an_event_whose_message_an_open_transaction_holds_is_left_to_the_next_sweep() {
    let (database, queue, deliveries) = store().await;
    let mut ids = Vec::new();
    for n in 0..2 {
        let id = enqueue_one(&queue, message("a@b.c")).await;
        let unnamed = DeliveryUpdate {
            provider_id: None,
            ..sent(id, "a@b.c")
        };
        deliveries.record(unnamed).await.unwrap();
        let bounced = event(&format!("e{n}"), id, EventKind::Bounced, None);
        assert_eq!(record_events(&deliveries, vec![bounced]).await, 1);
        run(
            &database,
            &format!("update flyball.delivery set provider_id = 'p{id}' where job_id = {id}"),
        )
        .await;
        ids.push(id);
    }
    let mut open = database.pool().begin().await.unwrap();
    sqlx::query("select from flyball.delivery where job_id = $1 for update")
        .bind(ids[0])
        .execute(&mut *open)
        .await
        .unwrap();

    assert_eq!(deliveries.sweep_events().await.unwrap(), 1);
    assert_eq!(state(&database, ids[1]).await, "bounced");

    open.rollback().await.unwrap();
    assert_eq!(deliveries.sweep_events().await.unwrap(), 1);
    assert_eq!(state(&database, ids[0]).await, "bounced");
}

#[tokio::test]
async fn the_urgency_of_a_message_is_its_priority_by_every_function_of_the_database() {
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
        "normal by default"
    );
    assert_eq!(
        priority(enqueue_one(&queue, NewJob::new("notification", of("low")).priority(0)).await)
            .await,
        0,
        "it was named"
    );
}

#[tokio::test]
async fn how_long_a_message_has_waited_is_reported_by_the_clock_of_postgres() {
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
