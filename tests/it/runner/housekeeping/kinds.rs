//! Kinds that are kept shorter or longer than all others.

use std::time::Duration;

use flyball::jobs::postgres::Retention;
use flyball::jobs::{NewJob, Queue, State};
use serde_json::json;
use sqlx::PgPool;

use super::fixture::{WEEK, number, queue, run};

const HOUR: Duration = Duration::from_secs(3600);

/// Creates a job of a kind that was enqueued this many hours ago, and has ended as `outcome` or is in
/// `table`; returns its id.
async fn old(pool: &PgPool, hours: i64, kind: &str, stands: &str) -> i64 {
    let at = format!("now() - interval '{hours} hours'");
    run(pool, &format!("select flyball.ensure_day(flyball.day_of({at})); insert into flyball.kind (name) values ('{kind}') on conflict do nothing")).await;
    let id = number(
        pool,
        &format!(
            "insert into flyball.job (id, lane_id, priority, max_attempts, cost, created_at, kind, throttle, key, args)
             values ((flyball.day_of({at}) << 38) | (nextval('flyball.job_seq') << 1), flyball.lane_of('t', ''), 1, 10, 1, {at}, '{kind}', 't', '', '{{}}')
             returning id"
        ),
    )
    .await;
    let stands = match stands {
        "ready" => format!("insert into flyball.ready (lane_id, priority, job_id, cost) values (flyball.lane_of('t', ''), 1, {id}, 1)"),
        "dead" => format!("insert into flyball.dead (job_id, lane_id, priority, attempt, cost, died_at, error) values ({id}, flyball.lane_of('t', ''), 1, 3, 1, {at}, 'x')"),
        failed => format!(
            "insert into flyball.attempt (job_id, attempt, outcome, finished_at, error) values ({id}, 1, 'failed', {at}, 'x'), ({id}, 2, '{failed}', {at}, null);
             insert into flyball.failure (job_id, attempt, outcome, error) values ({id}, 1, 'failed', 'x');
             insert into flyball.result (job_id, result, kept_until) values ({id}, '1', now() + interval '1 day')"
        ),
    };
    run(pool, &stands).await;
    id
}

async fn remain(queue: &Queue, ids: &[i64]) -> Vec<bool> {
    let mut remain = Vec::new();
    for id in ids {
        remain.push(queue.get(*id).await.unwrap().is_some());
    }
    remain
}

#[tokio::test]
async fn a_kind_that_is_kept_shorter_goes_early_with_all_that_belongs_to_it() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let ended = old(pool, 3, "brief", "completed").await;
    let cancelled = old(pool, 30, "brief", "cancelled").await;
    let dead = old(pool, 3, "brief", "dead").await;
    let ready = old(pool, 3, "brief", "ready").await;
    let other = old(pool, 3, "other", "completed").await;
    let ids = [ended, cancelled, dead, ready, other];
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(remain(&queue, &ids).await, [true; 5]);

    queue
        .set_retention("brief", Some(2 * HOUR), None)
        .await
        .unwrap();
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(remain(&queue, &ids).await, [false, false, true, true, true]);
    for table in ["attempt", "failure", "result"] {
        let left = number(
            pool,
            &format!("select count(*) from flyball.{table} where job_id in ({ended}, {cancelled})"),
        )
        .await;
        assert_eq!(left, 0, "{table}");
    }
    assert!(
        number(
            pool,
            &format!("select count(*) from flyball.failure where job_id = {other}")
        )
        .await
            == 1
    );

    // Those that lived when housekeeping came by are looked at again when they can have expired.
    run(pool, &format!("delete from flyball.ready where job_id = {ready}; insert into flyball.attempt (job_id, attempt, outcome, finished_at) values ({ready}, 1, 'completed', now() - interval '1 hour')")).await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(remain(&queue, &[ready]).await, [true]);
    run(pool, "update flyball.unexpired set look_at = now(); update flyball.attempt set finished_at = now() - interval '2 hours'").await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(
        remain(&queue, &[dead, ready, other]).await,
        [true, false, true]
    );
}

#[tokio::test]
async fn jobs_that_come_after_housekeeping_saw_an_empty_day_expire_too() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    // Back to the noon before, so that both times are in one day.
    let hours = 12
        + number(
            pool,
            "select extract(hour from now() at time zone 'UTC')::bigint",
        )
        .await;
    queue
        .set_retention("brief", Some(hours as u32 * HOUR), None)
        .await
        .unwrap();
    queue.maintain(WEEK).await.unwrap();
    let later = old(pool, hours + 1, "brief", "completed").await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(remain(&queue, &[later]).await, [false]);
}

#[tokio::test]
async fn a_kind_that_is_kept_longer_survives_its_day() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let long = old(pool, 10 * 24, "yearly", "completed").await;
    let older = old(pool, 40 * 24, "yearly", "completed").await;
    let other = old(pool, 10 * 24, "other", "completed").await;
    queue
        .set_retention("yearly", Some(30 * 24 * HOUR), None)
        .await
        .unwrap();

    queue.maintain(WEEK).await.unwrap();
    assert_eq!(
        remain(&queue, &[long, older, other]).await,
        [true, false, false]
    );
    let detail = queue.get(long).await.unwrap().unwrap();
    assert_eq!(
        (detail.summary.state, detail.attempts.len()),
        (State::Completed, 2)
    );

    // A day with many that stay is thinned, and they stay there too.
    let day = long >> 38;
    let expired = old(pool, 10 * 24, "other", "completed").await;
    run(pool, &format!("insert into flyball.day (day, remaining, next) values ({day}, -1, {day}::bigint << 38) on conflict (day) do update set next = excluded.next")).await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(remain(&queue, &[long, expired]).await, [true, false]);

    // With the retention of all kinds again, it goes with its day.
    queue.set_retention("yearly", None, None).await.unwrap();
    run(
        pool,
        "update flyball.day set pruned_at = now() - interval '2 days'",
    )
    .await;
    queue.maintain(WEEK).await.unwrap();
    assert_eq!(remain(&queue, &[long]).await, [false]);
}

#[tokio::test]
async fn dead_letters_of_a_kind_have_a_retention_of_their_own() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    let brief = old(pool, 5, "brief", "dead").await;
    let young = old(pool, 1, "brief", "dead").await;
    let long = old(pool, 60 * 24, "long", "dead").await;
    let other = old(pool, 60 * 24, "other", "dead").await;
    let states = async || {
        let mut states = Vec::new();
        for id in [brief, young, long, other] {
            states.push(queue.get(id).await.unwrap().unwrap().summary.state);
        }
        states
    };
    queue
        .set_retention("brief", None, Some(3 * HOUR))
        .await
        .unwrap();
    queue
        .set_retention("long", None, Some(365 * 24 * HOUR))
        .await
        .unwrap();

    let month = Retention {
        days: 100,
        dead_days: 30,
    };
    queue.maintain(month).await.unwrap();
    assert_eq!(
        states().await,
        [State::Cancelled, State::Dead, State::Dead, State::Cancelled]
    );

    // Jobs that one kind kept fall to the retention of all when its own ends.
    queue.set_retention("long", None, None).await.unwrap();
    queue.maintain(month).await.unwrap();
    assert_eq!(states().await[2], State::Cancelled);
}

#[tokio::test]
async fn a_retention_outside_of_its_range_is_refused() {
    let (database, queue) = queue().await;
    for (given, part) in [
        (
            "'x', '0 s'",
            "set_retention: retention: is 00:00:00; allowed are 1 hour to 3650 days",
        ),
        ("'x', '-1 day'", "set_retention: retention: is -1 days"),
        ("'x', '4000 days'", "set_retention: retention: is 4000 days"),
        (
            "'x', null, '59 min'",
            "set_retention: dead_retention: is 00:59:00",
        ),
        ("'', '1 day'", "set_retention: kind: "),
        (
            "'*', '1 day'",
            "set_retention: kind: \"*\" is not the name of a kind",
        ),
    ] {
        let sql = sqlx::AssertSqlSafe(format!("select flyball.set_retention({given})"));
        let error = sqlx::query(sql).execute(database.pool()).await.unwrap_err();
        let message = error.into_database_error().unwrap().message().to_owned();
        assert!(message.starts_with(part), "{given}: {message}");
    }
    assert_eq!(
        number(
            database.pool(),
            "select count(*) from flyball.kind_retention"
        )
        .await,
        0
    );
    // Enqueueing is not affected by a retention of a kind that no worker has.
    queue
        .set_retention("nobody", Some(HOUR), None)
        .await
        .unwrap();
    let refused = queue
        .enqueue(&[NewJob::new("nobody", json!({}))])
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("is not a kind"), "{refused}");
}
