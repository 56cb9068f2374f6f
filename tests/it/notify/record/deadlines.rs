//! Deadlines, dead messages, and the removal of old records.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Attribution, NewJob, Queue, RetryAnswer, State};
use flyball::notify::record::NO_ACCOUNT;
use flyball::notify::{DeliveryState, DeliveryUpdate};
use flyball::providers::EventKind;
use serde_json::json;

use super::fixture::{
    HOUR, attempt, begun, enqueue_one, event, grow_older, message, record_events, run, seen, sent,
    state, store,
};

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
async fn dead_messages_behind_many_dead_letters_of_other_kinds_are_found_by_the_next_round() {
    let (database, queue, deliveries) = store().await;
    let dead = enqueue_one(&queue, message("ann@example.com")).await;
    for statement in [
        "insert into flyball.dead (job_id, lane_id, priority, attempt, cost, died_at)
        select 2 * i, 1, 1, 1, 1, now() - interval '30 days' from generate_series(1, 52000) as i",
        "with gone as (delete from flyball.ready returning *)
        insert into flyball.dead (job_id, lane_id, priority, attempt, cost, died_at)
        select job_id, lane_id, priority, 1, cost, now() - interval '20 days' from gone",
    ] {
        sqlx::query(statement)
            .execute(database.pool())
            .await
            .unwrap();
    }

    let rounds = [
        deliveries.forget_dead(14).await.unwrap(),
        deliveries.forget_dead(14).await.unwrap(),
    ];

    assert_eq!(rounds, [0, 1]);
    let args = queue.get(dead).await.unwrap().unwrap().args;
    assert_eq!(args.get("body"), None);
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
        // One at a time, so that the walk must resume.
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
        let (state, reason, attempt_count, attempts) = seen(&database, id).await;
        assert_eq!(
            (state.as_str(), reason.as_str(), attempt_count),
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

    // Other causes of death are not handled here.
    let broken = enqueue_one(&queue, message("x@b.c")).await;
    bury(&queue, broken).await;
    let swept = deliveries
        .requeue_unsent("mail", 2, &Attribution::default())
        .await
        .unwrap();
    assert!(swept.more && swept.jobs == 2);
    assert_eq!(
        deliveries
            .requeue_unsent("mail", 2, &Attribution::default())
            .await
            .unwrap()
            .jobs,
        1
    );
    assert_eq!(
        deliveries
            .requeue_unsent("mail", 2, &Attribution::default())
            .await
            .unwrap()
            .jobs,
        0
    );
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

/// Claims the job and ends it as dead.
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
    record_events(
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
