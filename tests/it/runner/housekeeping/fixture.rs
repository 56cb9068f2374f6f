//! A queue with old days of jobs.

use std::time::Duration;

use flyball::jobs::Queue;
use flyball::jobs::postgres::{NewWorker, Retention};
use sqlx::{AssertSqlSafe, PgPool};

use crate::support::{Database, database};

pub const SOON: Duration = Duration::from_secs(30);

pub const WEEK: Retention = Retention {
    days: 7,
    dead_days: 0,
};

/// Creates an old day with `jobs` jobs, of which every `each`-th still lives: ready, leased,
/// scheduled and dead in turn.
const OLD_DAY: &str = "
select flyball.ensure_day($day);
insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args, created_at)
    select ($day::bigint << 38) + i, flyball.lane_of('t', (i % 10)::text), 1, 10, 1, 'http', 't', (i % 10)::text, '{}', now() - interval '30 days'
    from generate_series(1, $jobs) i;
insert into flyball.attempt (job_id, attempt, outcome, finished_at) select ($day::bigint << 38) + i, 1, 'completed', now() - interval '30 days' from generate_series(1, $jobs) i;
insert into flyball.ready (lane_id, priority, job_id, cost) select lane_id, priority, id, 1 from flyball.job where id >> 38 = $day and (id & ((1::bigint << 38) - 1)) % (4 * $each) = 0;
insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost)
    select id, 1, 1, lane_id, 1, 1, 1 from flyball.job where id >> 38 = $day and (id & ((1::bigint << 38) - 1)) % (4 * $each) = $each;
insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry)
    select id, now() + interval '1 day', lane_id, 1, 1, true from flyball.job where id >> 38 = $day and (id & ((1::bigint << 38) - 1)) % (4 * $each) = 2 * $each;
insert into flyball.dead (job_id, lane_id, priority, attempt, cost)
    select id, lane_id, 1, 1, 1 from flyball.job where id >> 38 = $day and (id & ((1::bigint << 38) - 1)) % (4 * $each) = 3 * $each";

pub async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    (database, queue)
}

pub async fn worker(queue: &Queue, ttl: Duration) -> i32 {
    let worker = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl,
        kinds: vec!["http".to_owned()],
    };
    queue.register(&worker).await.unwrap()
}

pub async fn run(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(pool)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
}

pub async fn number(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(pool)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"))
}

/// Creates the partition of the day `ago` days before today; returns its number.
pub async fn old_day(pool: &PgPool, ago: i64, jobs: i64, each: i64) -> i64 {
    let day = number(pool, "select flyball.day_of(now())").await - ago;
    let sql = OLD_DAY
        .replace("$day", &day.to_string())
        .replace("$jobs", &jobs.to_string())
        .replace("$each", &each.to_string());
    run(pool, &sql).await;
    day
}

pub async fn jobs_of(pool: &PgPool, day: i64) -> i64 {
    number(
        pool,
        &format!("select count(*) from flyball.job where id >> 38 = {day}"),
    )
    .await
}
