//! Depth without counting, and lists whose cost is independent of the queue's length.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use flyball::jobs::postgres::{LaneClaim, NewWorker, STATEMENTS, Sweeper};
use flyball::jobs::{LanesAfter, NewJob, Queue};
use flyball::runner::keep_depth;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, PgConnection, PgPool, Row};
use tokio_util::sync::CancellationToken;

use crate::support::{Database, database, eventually};

const SOON: Duration = Duration::from_secs(30);

/// Inserts jobs in every state: `lanes` lanes in three throttles with `jobs` ready jobs in all, and
/// few in other states. Bulk inserts create a long queue quickly.
const FILL: &str = "
create temporary table lanes on commit drop as
    select i as n, t.throttle, i::text as key, flyball.lane_of(t.throttle, i::text) as lane_id
    from generate_series(1, $lanes) i
    cross join lateral (select (array['a', 'b', 'c/d'])[i % 3 + 1] as throttle) t;
create index on lanes (n);
create temporary table filled on commit drop as
    select flyball.next_id() as id, l.lane_id, l.throttle, l.key, (i % 4)::smallint as priority
    from generate_series(1, $jobs) i
    join lanes l on l.n = case when i <= $lanes then i else (i::bigint * i * 7919 % $lanes) + 1 end;
insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
    select id, lane_id, priority, 10, 1, 'http', throttle, key, '{\"url\":\"http://127.0.0.1/\"}' from filled order by id;
insert into flyball.ready (lane_id, priority, job_id, cost) select lane_id, priority, id, 1 from filled order by id";

async fn queue() -> (Database, Queue) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    (database, queue)
}

async fn fill(pool: &PgPool, lanes: i64, jobs: i64) {
    let sql = FILL
        .replace("$lanes", &lanes.to_string())
        .replace("$jobs", &jobs.to_string());
    sqlx::raw_sql(AssertSqlSafe(format!("begin; {sql}; commit; analyze")))
        .execute(pool)
        .await
        .unwrap();
}

async fn run(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(pool)
        .await
        .unwrap();
}

/// Returns the depths by counting all jobs.
async fn counted(pool: &PgPool) -> BTreeMap<(String, String), i64> {
    let rows = sqlx::query(
        "select j.throttle, j.key, count(*) as jobs from flyball.ready r join flyball.job j on j.id = r.job_id group by 1, 2",
    );
    rows.fetch_all(pool)
        .await
        .unwrap()
        .iter()
        .map(|row| ((row.get(0), row.get(1)), row.get(2)))
        .collect()
}

/// Returns the depths stored in the directory.
async fn written(pool: &PgPool) -> BTreeMap<(String, String), i64> {
    let rows = sqlx::query("select throttle, key, depth from flyball.lane where depth > 0");
    rows.fetch_all(pool)
        .await
        .unwrap()
        .iter()
        .map(|row| ((row.get(0), row.get(1)), row.get(2)))
        .collect()
}

/// Returns, by throttle: ready, scheduled, running, dead.
async fn reported(queue: &Queue) -> Vec<(String, [i64; 4])> {
    let depths = queue.depths().await.unwrap().throttles;
    depths
        .into_iter()
        .map(|one| {
            (
                one.throttle,
                [one.ready, one.scheduled, one.running, one.dead],
            )
        })
        .collect()
}

#[tokio::test]
async fn a_walk_in_small_pages_finds_what_a_count_finds() {
    let (database, queue) = queue().await;
    let pool = database.pool();
    fill(pool, 97, 1_000).await;
    run(pool, "insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry) select id, 'infinity', lane_id, 1, 1, false from flyball.job order by id limit 70;
               insert into flyball.dead (job_id, lane_id, priority, attempt, cost) select id, lane_id, 1, 1, 1 from flyball.job order by id limit 55;
               insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost) select id, 1, 1, lane_id, 1, 1, 1 from flyball.job order by id limit 33").await;
    let mut sweeper = Sweeper::new(queue.clone()).with_page(7);

    sweeper.round().await.unwrap();

    assert_eq!(written(pool).await, counted(pool).await);
    let depths = reported(&queue).await;
    let sums: Vec<i64> = (0..4)
        .map(|part| depths.iter().map(|(_, jobs)| jobs[part]).sum())
        .collect();
    assert_eq!(sums, [1_000, 70, 33, 55]);
    assert_eq!(
        depths
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>(),
        ["a", "b", "c/d"]
    );

    // The same walker's next walk picks up all additions and removals.
    run(
        pool,
        "delete from flyball.ready where lane_id in (select lane_id from flyball.lane where throttle = 'b');
               delete from flyball.dead;
               delete from flyball.ready where job_id % 3 = 0",
    )
    .await;
    sweeper.round().await.unwrap();
    assert_eq!(written(pool).await, counted(pool).await);

    // Another walker, with empty state, takes over the stored counts.
    run(pool, "delete from flyball.ready where priority < 2").await;
    let depths = queue.count_now().await.unwrap();
    assert_eq!(written(pool).await, counted(pool).await);
    let ready: i64 = depths.throttles.iter().map(|one| one.ready).sum();
    assert_eq!(ready, counted(pool).await.values().sum::<i64>());
    assert!(depths.at.is_some() && depths.lanes_at.is_some());
}

#[tokio::test]
async fn every_figure_has_an_age_and_the_oldest_job_is_reported() {
    let (database, queue) = queue().await;
    assert_eq!(
        queue.depths().await.unwrap().at,
        None,
        "nobody has counted yet"
    );
    let job = |key: &str| NewJob {
        throttle: "t".into(),
        key: key.into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    };
    let ids = queue
        .enqueue(&[job("x"), job("y"), job("y"), job("")])
        .await
        .unwrap();
    sqlx::query("update flyball.job set created_at = now() - interval '2 hours' where id = $1")
        .bind(ids[0].id)
        .execute(database.pool())
        .await
        .unwrap();

    let depths = queue.count_now().await.unwrap();

    let now: jiff::Timestamp =
        sqlx::query_scalar::<_, jiff_sqlx::Timestamp>("select clock_timestamp()")
            .fetch_one(database.pool())
            .await
            .unwrap()
            .to_jiff();
    let age = |at: Option<jiff::Timestamp>| now.duration_since(at.unwrap()).as_secs_f64();
    assert!((0.0..20.0).contains(&age(depths.at)), "{depths:?}");
    assert!(
        (7_200.0..7_260.0).contains(&age(depths.throttles[0].oldest_ready_at)),
        "{depths:?}"
    );
    let page = queue.lanes_of("t", &LanesAfter::DEEPEST, 10).await.unwrap();
    let lanes: Vec<(&str, i64)> = page
        .lanes
        .iter()
        .map(|lane| (lane.key.as_str(), lane.depth))
        .collect();
    assert_eq!(lanes[0], ("y", 2));
    let x = page.lanes.iter().find(|lane| lane.key == "x").unwrap();
    assert!(age(x.oldest_at) >= 7_200.0 && age(x.counted_at) < 20.0);
}

#[tokio::test]
async fn a_job_that_was_enqueued_for_later_waits_from_then_on() {
    let (database, queue) = queue().await;
    let job = |throttle: &str| NewJob {
        throttle: throttle.into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    };
    let jobs = ["planned", "let_run"].map(job);
    queue.enqueue(&jobs).await.unwrap();
    run(
        database.pool(),
        "update flyball.job set created_at = now() - interval '2 days', run_at = now() +
            case throttle when 'planned' then interval '-1 minute' else interval '1 hour' end",
    )
    .await;

    let depths = queue.count_now().await.unwrap();

    let waited_s = |throttle: &str| {
        let of = depths.throttles.iter().find(|of| of.throttle == throttle);
        let from = of.unwrap().oldest_ready_at.unwrap();
        depths.at.unwrap().duration_since(from).as_secs_f64()
    };
    assert!((30.0..90.0).contains(&waited_s("planned")), "{depths:?}");
    assert!(waited_s("let_run") > 172_000.0, "{depths:?}");
}

#[tokio::test]
async fn a_planned_job_that_became_due_hides_none_that_has_waited_for_longer() {
    let (database, queue) = queue().await;
    let job = |key: &str| NewJob {
        throttle: "mixed".into(),
        key: key.into(),
        ..NewJob::new("http", json!({"url": "http://127.0.0.1/"}))
    };
    queue.enqueue(&[job("planned")]).await.unwrap();
    queue.enqueue(&["behind"; 2].map(job)).await.unwrap();
    run(
        database.pool(),
        "update flyball.job set created_at = now() - case key when 'planned' then interval '2 days' else interval '1 hour' end,
            run_at = case key when 'planned' then now() - interval '1 minute' end",
    )
    .await;

    let depths = queue.count_now().await.unwrap();

    let from = depths.throttles[0].oldest_ready_at.unwrap();
    let waited_s = depths.at.unwrap().duration_since(from).as_secs_f64();
    assert!((3_500.0..3_700.0).contains(&waited_s), "{depths:?}");
}

#[tokio::test]
async fn lanes_are_listed_page_by_page_each_once() {
    let (database, queue) = queue().await;
    fill(database.pool(), 50, 400).await;
    queue.count_now().await.unwrap();
    for first in [LanesAfter::DEEPEST, LanesAfter::Key(None)] {
        let (mut after, mut all) = (Some(first.clone()), Vec::new());
        while let Some(from) = after {
            let page = queue.lanes_of("a", &from, 7).await.unwrap();
            assert!(page.lanes.len() <= 7);
            all.extend(page.lanes);
            after = page.next;
        }
        let mut keys: Vec<&str> = all.iter().map(|lane| lane.key.as_str()).collect();
        match first {
            LanesAfter::Depth { .. } => assert!(all.is_sorted_by(|a, b| a.depth >= b.depth)),
            LanesAfter::Key(_) => assert!(keys.is_sorted()),
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!((keys.len(), all.len()), (16, 16));
    }
    assert_eq!(queue.lane_of("a", "3").await.unwrap().unwrap().key, "3");
    assert_eq!(queue.lane_of("a", "nobody").await.unwrap(), None);
}

#[tokio::test]
async fn one_of_many_processes_counts_and_another_takes_over() {
    let (database, queue) = queue().await;
    fill(database.pool(), 5, 20).await;
    let holder = async || -> Option<String> {
        let row = sqlx::query_scalar(
            "select holder from flyball.leader where name = 'depth' and expires_at > clock_timestamp()",
        );
        row.fetch_optional(database.pool()).await.unwrap()
    };
    let ready = async || {
        reported(&queue)
            .await
            .iter()
            .map(|(_, jobs)| jobs[0])
            .sum::<i64>()
    };
    let (one, two) = (CancellationToken::new(), CancellationToken::new());
    let first = tokio::spawn(keep_depth(queue.clone(), one.clone()));
    eventually("the first count", SOON, async || {
        (ready().await == 20).then_some(())
    })
    .await;
    let led = holder().await;
    let second = tokio::spawn(keep_depth(
        Queue::connect(database.url(), 3, SOON).await.unwrap(),
        two.clone(),
    ));
    run(
        database.pool(),
        "delete from flyball.ready where priority = 0",
    )
    .await;
    eventually("the second count", SOON, async || {
        (ready().await == 15).then_some(())
    })
    .await;
    assert_eq!(holder().await, led, "it stays with whoever counts");

    one.cancel();
    first.await.unwrap();
    run(database.pool(), "delete from flyball.ready").await;

    eventually("the count of the one who took over", SOON, async || {
        (ready().await == 0).then_some(())
    })
    .await;
    assert_ne!(holder().await, led);
    assert!(
        written(database.pool()).await.is_empty(),
        "old figures of lanes are taken back"
    );
    two.cancel();
    second.await.unwrap();
}

/// Returns the rows that a statement reads, by EXPLAIN (ANALYZE, BUFFERS).
struct Touched {
    buffers: i64,
    rows: i64,
    plan: String,
}

async fn touched(
    connection: &mut PgConnection,
    name: &str,
    types: &str,
    arguments: &str,
) -> Touched {
    let mut statements = STATEMENTS.iter().chain(&flyball::api::postgres::STATEMENTS);
    let sql = statements
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("{name} is no statement"))
        .1;
    connection
        .execute(AssertSqlSafe(format!(
            "deallocate all; prepare s {types} as {sql}"
        )))
        .await
        .unwrap();
    let explain = format!("explain (analyze, buffers, format json) execute s {arguments}");
    let row = connection.fetch_one(AssertSqlSafe(explain)).await.unwrap();
    let plan: Value = row.get(0);
    let buffers = ["Shared Hit Blocks", "Shared Read Blocks"]
        .iter()
        .map(|kind| plan[0]["Plan"][*kind].as_i64().unwrap())
        .sum();
    Touched {
        buffers,
        rows: rows_of(&plan[0]["Plan"]),
        plan: plan.to_string(),
    }
}

/// Returns the most rows read by one node of the plan.
fn rows_of(node: &Value) -> i64 {
    let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
    let own = (number("Actual Rows") + number("Rows Removed by Filter")) * number("Actual Loops");
    let children = node["Plans"].as_array().into_iter().flatten().map(rows_of);
    children.max().unwrap_or(0).max(own as i64)
}

#[tokio::test]
async fn no_page_and_no_list_touches_more_than_its_part_of_a_hundred_thousand_lanes() {
    let (database, queue) = queue().await;
    fill(database.pool(), 100_000, 300_000).await;
    run(database.pool(), "insert into flyball.lane (lane_id, throttle, key, depth) select lane_id, throttle, key, count(*) from flyball.job group by 1, 2, 3").await;
    run(database.pool(), "vacuum analyze").await;
    let worker = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: SOON,
        kinds: vec!["http".into()],
    };
    let worker = queue.register(&worker).await.unwrap();
    let lanes: Vec<i64> = sqlx::query_scalar("select lane_id from flyball.lane limit 1000")
        .fetch_all(&queue.pool)
        .await
        .unwrap();
    let claims: Vec<LaneClaim> = lanes
        .into_iter()
        .map(|lane_id| LaneClaim::first(lane_id, 1))
        .collect();
    assert_eq!(queue.claim(worker, 1, &claims).await.unwrap().len(), 1_000);
    // Old remains: stopped workers, failures, edits.
    run(database.pool(), "
        insert into flyball.worker (name, host, pid, ttl, stopped_at) select 'w', 'h', 1, '30 s', now() from generate_series(1, 5000);
        insert into flyball.failure (job_id, attempt, outcome) select id, 1, 'failed' from flyball.job order by id limit 10000;
        insert into flyball.dead (job_id, lane_id, priority, attempt, cost) select id, lane_id, priority, 1, 1 from flyball.job order by id desc limit 5000;
        delete from flyball.ready r using flyball.dead d where r.job_id = d.job_id;
        insert into flyball.audit (actor, action, subject) select 'a', 'b', 'c' from generate_series(1, 5000);
        analyze").await;
    let mut connection = queue.pool.acquire().await.unwrap();

    const LIST: &str = "(jsonb, text, bigint, int)";
    // Name, parameter types, arguments, the row limit of one node, the limit of buffers.
    let cases = [
        (
            "walk ready",
            "(bigint, smallint, bigint, bigint)",
            "(0, 0, 0, 20000)",
            20_000,
            20_500,
        ),
        (
            "walk running",
            "(bigint, bigint)",
            "(0, 20000)",
            1_000,
            1_100,
        ),
        ("walk all", "(bigint)", "(20000)", 20_000, 21_700),
        ("depths", "(bigint)", "(10000)", 10_000, 100),
        (
            "deepest lanes",
            "(text, bigint, bigint, bigint)",
            "('a', 9223372036854775807, 9223372036854775807, 100)",
            400,
            3_000,
        ),
        (
            "deepest lanes",
            "(text, bigint, bigint, bigint)",
            "('a', 2, 0, 100)",
            400,
            3_000,
        ),
        (
            "lanes by key",
            "(text, text, bigint)",
            "('a', '5', 100)",
            400,
            3_000,
        ),
        (
            "first lanes by key",
            "(text, bigint)",
            "('a', 100)",
            400,
            3_000,
        ),
        ("one lane", "(text, text)", "('a', '3')", 4, 60),
        ("failures", "(bigint, text)", "(50, null)", 50, 700),
        // The function plans its statements in the first call, and walks for 25 ms at most.
        ("list", LIST, "('{}', null, null, 100)", 100, 20_000),
        (
            "list",
            LIST,
            "('{\"throttle\": \"nobody\"}', null, null, 100)",
            100,
            60_000,
        ),
        (
            "list",
            LIST,
            "('{\"state\": \"completed\", \"throttle\": \"a\"}', null, null, 100)",
            100,
            120_000,
        ),
        (
            "list",
            LIST,
            "('{\"state\": \"ready\", \"kind\": \"mail\"}', null, 200, 100)",
            100,
            20_000,
        ),
        (
            "list",
            LIST,
            "('{\"state\": \"ready\", \"throttle\": \"a\", \"key\": \"3\"}', null, null, 100)",
            100,
            20_000,
        ),
        (
            "list",
            LIST,
            "('{\"state\": \"running\"}', null, null, 100)",
            100,
            20_000,
        ),
        (
            "list",
            LIST,
            "('{\"state\": \"scheduled\"}', null, null, 100)",
            100,
            60_000,
        ),
        (
            "list",
            LIST,
            "('{\"state\": \"dead\", \"throttle\": \"b\"}', null, null, 100)",
            100,
            60_000,
        ),
        ("read workers", "", "", 1_000, 100),
        (
            "workers and failing",
            "(text, bigint, bigint)",
            "(null, 5, 1000)",
            10,
            20,
        ),
        ("serving", "", "", 1, 20),
        ("unserved", "", "", 1, 10),
        ("read kinds", "", "", 10, 10),
        ("mean costs", "", "", 10, 10),
        ("read audit", "(bigint, text)", "(50, null)", 50, 100),
    ];
    let mut faults = String::new();
    for (name, types, arguments, rows_max, buffers_max) in cases {
        let touched = touched(&mut connection, name, types, arguments).await;
        // There are as many leases as running jobs, and a full list reads them all.
        // Its table has a row for each throttle and kind that nobody serves.
        let is_small = ["read workers", "unserved"].contains(&name);
        let is_walked = touched.plan.contains("Seq Scan") && !is_small;
        if touched.rows > rows_max || touched.buffers > buffers_max || is_walked {
            let Touched {
                rows,
                buffers,
                plan,
            } = touched;
            let _ = writeln!(
                faults,
                "{name} {arguments}: {rows} rows, {buffers} buffers\n{plan}\n"
            );
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

#[tokio::test]
async fn writing_what_has_changed_is_bounded_too() {
    let (database, queue) = queue().await;
    fill(database.pool(), 3_000, 6_000).await;
    let mut sweeper = Sweeper::new(queue.clone());

    sweeper.step().await.unwrap();

    assert!(sweeper.is_whole());
    let lanes = written(database.pool()).await.len();
    assert!(
        (1..=500).contains(&lanes),
        "{lanes} lanes were written at once"
    );
    let depths = queue.depths().await.unwrap();
    assert_eq!(
        depths.throttles.iter().map(|one| one.ready).sum::<i64>(),
        6_000,
        "throttles need not wait for lanes"
    );
    assert_eq!(
        depths.lanes_at, None,
        "lanes say that they are not all written yet"
    );
}
