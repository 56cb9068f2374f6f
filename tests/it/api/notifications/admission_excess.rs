//! Messages that a tenant sends at once beyond its limit: they share transactions, and each has the
//! answer that it would have had by itself.

use std::collections::BTreeSet;

use flyball::throttle::admission::TenantLimits;
use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use super::admission::{
    AdmissionServer, SOON, admission_server, assert_body_of_a_full_queue, at_its_limit, header,
    limits_of, message,
};
use crate::support::eventually;

/// Counts the sessions that wait for a lock.
const BLOCKED: &str = "select count(*) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'";

/// Sends messages with these numbers at once.
async fn at_once(served: &AdmissionServer, numbers: std::ops::Range<usize>) -> Vec<Response> {
    let bodies: Vec<Value> = numbers.map(message).collect();
    futures_util::future::join_all(bodies.iter().map(|body| served.send("web", body))).await
}

#[tokio::test]
async fn messages_beyond_the_limit_share_transactions_and_each_has_a_place_of_its_own() {
    let served = at_its_limit().await;

    let answers = at_once(&served, 1..61).await;

    let mut waits: Vec<u64> = Vec::new();
    let mut ids = BTreeSet::new();
    for answer in answers {
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(header(&answer, "notification-status"), "queued");
        waits.push(header(&answer, "retry-after").parse().unwrap());
        let body: Value = answer.json().await.unwrap();
        ids.insert(body["notificationId"].to_string());
    }
    waits.sort_unstable();
    let expected: Vec<u64> = (1..=60).map(|place| 60 * place).collect();
    assert_eq!(waits, expected, "the k-th waits k minutes");
    assert_eq!(ids.len(), 60);
    let transactions = served
        .count("select count(distinct xmin::text) from flyball.job")
        .await;
    assert!(transactions < 45, "{transactions} transactions of 61");
}

/// Sends messages with these numbers at once, and returns the waits that they were told.
async fn waits(served: &AdmissionServer, numbers: std::ops::Range<usize>) -> Vec<u64> {
    let answers = at_once(served, numbers).await;
    let wait = |answer: &Response| header(answer, "retry-after").parse().unwrap();
    let mut waits: Vec<u64> = answers.iter().map(wait).collect();
    waits.sort_unstable();
    waits
}

fn minutes(places: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    places.map(|place| 60 * place).collect()
}

#[tokio::test]
async fn places_that_follow_from_a_counted_one_are_those_that_a_count_would_tell() {
    let served = at_its_limit().await;
    assert_eq!(waits(&served, 1..11).await, minutes(1..=10));
    assert_eq!(waits(&served, 11..16).await, minutes(11..=15));

    // The lane moves on: the first one goes to its pool.
    let first =
        "delete from flyball.ready where job_id = (select min(r.job_id) from flyball.ready r
         where r.lane_id = flyball.lane_of('notify:acme', 'web')) returning 1::bigint";
    assert_eq!(served.count(first).await, 1);
    assert_eq!(waits(&served, 16..21).await, minutes(15..=19));

    // A more urgent one comes, and goes before all others.
    let mut urgent = message(21);
    urgent["priority"] = "high".into();
    let told = served.send("web", &urgent).await;
    assert_eq!(header(&told, "retry-after"), "60");
    assert_eq!(waits(&served, 22..27).await, minutes(21..=25));
}

#[tokio::test]
async fn of_messages_beyond_the_limit_those_that_fit_into_the_queue_are_accepted() {
    let served = at_its_limit().await;
    served.queue_max(10).await;

    let answers = at_once(&served, 1..31).await;

    let (mut queued, mut full) = (0, Vec::new());
    for answer in answers {
        match answer.status() {
            StatusCode::TOO_MANY_REQUESTS => queued += 1,
            StatusCode::SERVICE_UNAVAILABLE => full.push(answer),
            other => panic!("{other}"),
        }
    }
    assert_eq!((queued, full.len()), (9, 21));
    assert_body_of_a_full_queue(full.remove(0)).await;
    let jobs = "select count(*) from flyball.job";
    assert_eq!(served.count(jobs).await, 10);
    // Another tenant is not concerned.
    assert_eq!(
        served.send("else", &message(0)).await.status(),
        StatusCode::ACCEPTED
    );
}

#[tokio::test]
async fn a_repeat_among_messages_beyond_the_limit_is_known_and_takes_no_slot() {
    let served = admission_server(TenantLimits {
        per_module: 1,
        ..TenantLimits::default()
    })
    .await;
    let keyed = [("idempotency-key", "once")];
    let first = served.send_with("web", &message(0), &keyed).await;
    assert_eq!(first.status(), StatusCode::ACCEPTED);

    let body = message(0);
    let repeats = (0..5).map(|_| served.send_with("web", &body, &keyed));
    let (others, repeats) = tokio::join!(
        at_once(&served, 1..21),
        futures_util::future::join_all(repeats)
    );

    for other in others {
        assert_eq!(other.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    for repeat in repeats {
        let is_repeat = header(&repeat, "idempotent-replayed") == "true";
        // Two that come at the same moment: one of them is told to come back.
        let is_busy = repeat.status() == StatusCode::CONFLICT;
        assert!(is_repeat || is_busy, "{repeat:?}");
    }
    let other = served.send_with("web", &message(99), &keyed).await;
    assert_eq!(other.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let jobs = "select count(*) from flyball.job";
    assert_eq!(served.count(jobs).await, 21);
    let answer = served
        .ask("web", Method::GET, "/api/v1/notifications")
        .await;
    assert_eq!(limits_of(&answer)[1], "99", "repeats take no slot");
}

#[tokio::test]
async fn requests_that_wait_for_an_open_transaction_leave_connections_to_other_tenants() {
    let served = admission_server(TenantLimits::default()).await;
    let pool = served.server.database.pool();
    let mut open = pool.begin().await.unwrap();
    sqlx::raw_sql(
        r#"select flyball.as_tenant('acme', 'web');
        select flyball.notify('mail', '{"channel": "email", "to": "a@b.c", "body": "x"}', unique_key => 'held')"#,
    )
    .execute(&mut *open)
    .await
    .unwrap();
    let keyed = |n: usize| {
        let mut body = message(n);
        body["unique_key"] = "held".into();
        body
    };
    let bodies: Vec<Value> = (0..20).map(keyed).collect();
    let waiting =
        futures_util::future::join_all(bodies.iter().map(|body| served.send("web", body)));

    let of_another = async {
        eventually("half of the connections wait", SOON, || async {
            let blocked: i64 = sqlx::query_scalar(BLOCKED).fetch_one(pool).await.unwrap();
            (blocked >= 3).then_some(())
        })
        .await;
        let sent = served.send("else", &message(0)).await;
        open.rollback().await.unwrap();
        sent
    };

    let (_, sent) = tokio::join!(waiting, of_another);
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
}
