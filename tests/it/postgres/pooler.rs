//! Queues behind PgBouncer in transaction mode, as packaged by Debian, with more clients than
//! server connections.

use std::collections::BTreeSet;
use std::time::Duration;

use flyball::jobs::{CancelAnswer, NewJob, Queue, RetryAnswer, State};
use flyball::postgres::{Access, Db, Pooler};
use reqwest::{Client, StatusCode};
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Executor, PgPool, Row};

use super::connections::{COUNTED, PLANTED};
use crate::governor::POLICY;
use crate::support::ledger::{Ledger, assert_nothing_is_left_behind};
use crate::support::pgbouncer::{PgBouncer, SERVER_CONNECTIONS};
use crate::support::process::{Gate, ProcessFixture};
use crate::support::{Database, database, eventually};

const SOON: Duration = Duration::from_secs(60);

async fn pooled() -> (Database, PgBouncer, Db) {
    let database = database().await;
    let pooler = PgBouncer::start(database.url()).await;
    let db = Db::connect(&pooler.access(), 8, Duration::from_secs(20))
        .await
        .unwrap();
    (database, pooler, db)
}

/// Opens sessions that hold a transaction and do nothing.
async fn idle_in_transaction(pool: &PgPool) -> i64 {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'";
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

// === The executor ===

#[tokio::test]
async fn statements_run_with_their_settings_and_leave_nothing_on_the_servers_connections() {
    let (database, _pooler, db) = pooled().await;
    let requested = (0..40).map(|n: i32| {
        let db = db.clone();
        async move {
            let sql = "select $1::int as n, pg_backend_pid() as backend, current_setting('plan_cache_mode') as plans,
                current_setting('enable_seqscan') as seqscan, pg_sleep(0.005)::text";
            let row = sqlx::query(sql).bind(n).fetch_one(&db).await.unwrap();
            assert_eq!(row.get::<i32, _>("n"), n);
            assert_eq!((row.get::<&str, _>("plans"), row.get::<&str, _>("seqscan")), ("force_generic_plan", "off"));
            row.get::<i32, _>("backend")
        }
    });

    let backends: BTreeSet<i32> = futures_util::future::join_all(requested)
        .await
        .into_iter()
        .collect();

    assert!(
        backends.len() <= SERVER_CONNECTIONS as usize,
        "{backends:?}"
    );
    for n in 0..10_i32 {
        let mut transaction = db.begin().await.unwrap();
        let next: i32 = sqlx::query_scalar("select $1::int + 1")
            .bind(n)
            .fetch_one(&mut transaction)
            .await
            .unwrap();
        assert_eq!(next, n + 1);
        transaction.commit().await.unwrap();
    }
    for _ in 0..10 {
        // Outside of a transaction, each statement may use another server connection.
        let row = sqlx::raw_sql(
            "select count(*), current_setting('enable_seqscan') from pg_prepared_statements",
        )
        .fetch_one(db.pool())
        .await
        .unwrap();
        assert_eq!((row.get::<i64, _>(0), row.get::<&str, _>(1)), (0, "on"));
    }
    assert_eq!(idle_in_transaction(database.pool()).await, 0);
}

#[tokio::test]
async fn what_others_plant_in_public_is_not_called_behind_a_pooler() {
    let (database, _pooler, db) = pooled().await;
    database.pool().execute(PLANTED).await.unwrap();

    let counted = sqlx::query_scalar(COUNTED).fetch_one(&db).await;
    assert_eq!(counted.unwrap_or(0_i64), 2);
    let mut transaction = db.begin().await.unwrap();
    let counted = sqlx::query_scalar(COUNTED).fetch_one(&mut transaction);
    assert_eq!(counted.await.unwrap_or(0_i64), 2);
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn what_is_published_for_a_tenant_leaves_no_statement_on_the_servers_connections() {
    let (_database, pooler, db) = pooled().await;
    // Each is a program that names its first statement as the others do.
    for n in 0..10 {
        let queue = Queue::connect(pooler.access(), 1, SOON).await.unwrap();
        let published = queue.publish_as("acme", "orders", &json!(n)).await;
        published.unwrap();
    }
    for _ in 0..10 {
        let left: i64 = sqlx::raw_sql("select count(*) from pg_prepared_statements")
            .fetch_one(db.pool())
            .await
            .unwrap()
            .get(0);
        assert_eq!(left, 0);
    }
}

#[tokio::test]
async fn what_cannot_be_committed_is_an_error_of_the_call_and_hands_out_no_row() {
    let (database, _pooler, db) = pooled().await;
    let tables = "create table public.one (id int primary key);
        create table public.two (id int references public.one (id) deferrable initially deferred)";
    database.pool().execute(tables).await.unwrap();
    let insert = "insert into public.two values (1) returning id";

    let refusals = [
        sqlx::query(insert).execute(&db).await.map(drop),
        sqlx::query(insert).fetch_optional(&db).await.map(drop),
        sqlx::query(insert).fetch_all(&db).await.map(drop),
        futures_util::StreamExt::next(&mut sqlx::query(insert).fetch(&db))
            .await
            .unwrap()
            .map(drop),
    ];

    for refused in refusals {
        assert_eq!(
            refused
                .unwrap_err()
                .as_database_error()
                .unwrap()
                .code()
                .unwrap(),
            "23503"
        );
    }
    let rows: i64 = sqlx::query_scalar("select count(*) from public.two")
        .fetch_one(&db)
        .await
        .unwrap();
    assert_eq!((rows, idle_in_transaction(database.pool()).await), (0, 0));
}

#[tokio::test]
async fn a_failed_or_dropped_call_leaves_no_transaction_open_and_the_next_one_works() {
    let (database, _pooler, db) = pooled().await;
    database
        .pool()
        .execute("create table public.n (id int)")
        .await
        .unwrap();
    for cut_after_ms in 0..40_u64 {
        let insert = sqlx::query("insert into public.n select 1 from pg_sleep(0.02)").execute(&db);
        let _ = tokio::time::timeout(Duration::from_millis(cut_after_ms / 2), insert).await;
        let begun =
            tokio::time::timeout(Duration::from_millis(cut_after_ms / 10), db.begin()).await;
        drop(begun);
        assert!(sqlx::query("select 1 / 0").execute(&db).await.is_err());
    }

    eventually("no transaction is open", SOON, || async {
        (idle_in_transaction(database.pool()).await == 0).then_some(())
    })
    .await;

    for _ in 0..20 {
        let one: i32 = sqlx::query_scalar("select 1").fetch_one(&db).await.unwrap();
        assert_eq!(one, 1);
    }
}

#[tokio::test]
async fn a_pooler_without_its_setting_is_refused_with_the_name_of_the_setting() {
    let database = database().await;
    let pooler = PgBouncer::start(database.url()).await;
    let unreported = Access {
        pooler: Pooler::None,
        ..pooler.access()
    };

    let queue = Queue::connect(unreported, 4, Duration::from_secs(20))
        .await
        .unwrap();
    let refused = queue.refuse_hidden_pooler().await.unwrap_err().to_string();
    assert!(refused.contains("DATABASE_POOLER=transaction"), "{refused}");

    // If the check at startup missed the pooler, prepared statements collide sooner or later.
    let errors = eventually("a prepared statement fails", SOON, || async {
        let requested = (0..20).map(|n| {
            let queue = queue.clone();
            async move {
                if n % 2 == 0 {
                    queue.wake_up().await
                } else {
                    queue.promote().await.map(drop)
                }
            }
        });
        let answers = futures_util::future::join_all(requested).await;
        let errors: Vec<String> = answers
            .into_iter()
            .filter_map(Result::err)
            .map(|error| error.to_string())
            .collect();
        errors
            .into_iter()
            .find(|error| error.contains("prepared statement"))
    })
    .await;
    assert!(errors.contains("DATABASE_POOLER=transaction"), "{errors}");

    let direct = Queue::connect(database.url(), 4, Duration::from_secs(20))
        .await
        .unwrap();
    direct.refuse_hidden_pooler().await.unwrap();
    let message = Queue::connect(pooler.access(), 4, Duration::from_secs(20))
        .await
        .unwrap();
    message.refuse_hidden_pooler().await.unwrap();
}

#[tokio::test]
async fn two_who_migrate_an_empty_database_at_once_run_each_migration_once() {
    let (database, pooler, db) = pooled().await;
    db.execute("drop schema flyball cascade").await.unwrap();
    let through = Queue::connect(pooler.access(), 2, Duration::from_secs(20))
        .await
        .unwrap();
    let straight = Queue::connect(database.url(), 2, Duration::from_secs(20))
        .await
        .unwrap();

    let (one, two, three) = tokio::join!(through.migrate(), straight.migrate(), through.migrate());

    let run = [one.unwrap(), two.unwrap(), three.unwrap()];
    let recorded: i64 = sqlx::query_scalar("select count(*) from flyball.migration")
        .fetch_one(&db)
        .await
        .unwrap();
    assert_eq!(
        (
            run.iter().sum::<usize>() as i64,
            run.iter().filter(|n| **n > 0).count() > 0
        ),
        (recorded, true),
        "{run:?}"
    );
    assert_eq!(through.migrate().await.unwrap(), 0);
}

#[tokio::test]
async fn listening_goes_past_the_pooler_where_a_direct_url_leads() {
    let (database, pooler, _db) = pooled().await;
    let listening_pids = "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen%'";
    let listens = format!("select count(*) from ({listening_pids}) l");
    let notified = std::sync::Arc::new(tokio::sync::Notify::new());
    let planned = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    for (direct_url, expected) in [(None, 0), (Some(database.url().to_owned()), 6)] {
        let access = Access {
            direct_url,
            ..pooler.access()
        };
        let queue = Queue::connect(access, 2, Duration::from_secs(20))
            .await
            .unwrap();
        let cancel = tokio_util::sync::CancellationToken::new();
        let listening = tokio::spawn({
            let (queue, notified, cancel) = (queue.clone(), notified.clone(), cancel.clone());
            async move { queue.listen(|_| notified.notify_one(), cancel).await }
        });
        // More than one pool of them has places.
        let mut planning = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let (queue, planned, cancel) = (queue.clone(), planned.clone(), cancel.clone());
            planning.spawn(async move {
                let wake = |_: &str| planned.add_permits(1);
                queue.listen_to("flyball_plan", wake, cancel).await;
            });
        }
        if expected > 0 {
            notified.notified().await;
            planned.acquire_many(5).await.unwrap().forget();
            queue.fall_asleep().await.unwrap();
            sqlx::query("select pg_notify('flyball', '')")
                .execute(&queue.pool)
                .await
                .unwrap();
            tokio::time::timeout(SOON, notified.notified())
                .await
                .expect("a notification");
            // What came while a lost connection was lost is made up for.
            let cut = format!("select pg_terminate_backend(l.pid) from ({listening_pids}) l");
            sqlx::raw_sql(sqlx::AssertSqlSafe(cut))
                .execute(database.pool())
                .await
                .unwrap();
            let again = async {
                notified.notified().await;
                planned.acquire_many(5).await.unwrap().forget();
            };
            tokio::time::timeout(SOON, again)
                .await
                .expect("new connections");
        }
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(listens.clone()))
            .fetch_one(database.pool())
            .await
            .unwrap();
        assert_eq!(found, expected);
        cancel.cancel();
        listening.await.unwrap();
        planning.join_all().await;
    }
}

// === The whole ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_processes_enqueue_run_cancel_retry_rescue_govern_and_reindex_through_a_pooler() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.settings_file(
        "[reindex.sources.own]\ntables = [\"pages\"]\n[reindex.sinks.own]\ntype = \"postgres\"\ntables = [\"search.pages\"]\n",
    );
    fixture.knobs_file("governed", POLICY);
    fixture.knobs_file("free", "[knobs]\nrps = -1.0\nmode = \"manual\"\n");
    let pooler = PgBouncer::start(&fixture.database_url).await;
    let through = Queue::connect(pooler.access(), 4, Duration::from_secs(20))
        .await
        .unwrap();
    let serve = || fixture.serve_with(&[], &pooler.settings());
    fixture.target.gate(Gate::ClosedToTheFirst);
    let mut doomed = serve();
    doomed.worker_started().await;

    // Eight jobs run and hang in their first call; they are rescued when their worker dies.
    let first = enqueue(&through, 8, |n| fixture.call(&format!("first-{n}"))).await;
    fixture.target.called(8, SOON).await;
    let (one, two) = (serve(), serve());
    one.worker_started().await;
    two.worker_started().await;
    fixture.target.gate(Gate::Open);
    doomed.kill();
    fixture.until_completed(&first, SOON).await;
    assert!(fixture.ended(&first, "lost").await > 0);

    // Many lanes, several processes, and producers by Rust, HTTP and SQL at the same time.
    let client = Client::new();
    let url = one.url().await;
    let many = enqueue(&through, 400, |n| NewJob {
        key: (n % 7).to_string(),
        ..fixture.call(&format!("many-{n}"))
    })
    .await;
    let post = client
        .post(format!("{url}/api/v1/jobs"))
        .json(&json!({"kind": "http", "throttle": "governed",
        "args": {"url": format!("{}/posted", fixture.target.url)}}));
    let posted = post.send().await.unwrap();
    assert_eq!(posted.status(), StatusCode::CREATED);
    let posted = posted.json::<Value>().await.unwrap()["id"]
        .to_string()
        .trim_matches('"')
        .parse::<i64>()
        .unwrap();
    fixture.until_completed(&many, SOON).await;
    fixture.until_completed(&[posted], SOON).await;
    let counts = fixture.target.counts();
    let of_many = counts.iter().filter(|(path, _)| path.starts_with("many"));
    let of_many: Vec<usize> = of_many.map(|(_, calls)| *calls).collect();
    assert_eq!(of_many, vec![1; 400], "each ran once");

    // Due jobs are promoted, a failed one is retried, a dead one starts over, and both kinds of
    // cancellation work.
    let now: jiff_sqlx::Timestamp = sqlx::query_scalar("select now()")
        .fetch_one(&through.pool)
        .await
        .unwrap();
    let soon = now.to_jiff() + Duration::from_secs(1);
    let due = enqueue(&through, 3, |n| NewJob {
        run_at: Some(soon),
        ..fixture.call(&format!("due-{n}"))
    })
    .await;
    fixture.until_completed(&due, SOON).await;
    let bad = enqueue(&through, 1, |_| NewJob {
        max_attempts: 1,
        ..fixture.call("bad")
    })
    .await[0];
    let is = |id: i64, state: State| {
        let through = through.clone();
        async move { (through.get(id).await.unwrap().unwrap().summary.state == state).then_some(()) }
    };
    eventually("it is dead", SOON, || is(bad, State::Dead)).await;
    assert_eq!(through.retry(bad).await.unwrap(), RetryAnswer::Ready);
    eventually("it is dead again", SOON, || async {
        (fixture.ended(&[bad], "dead").await == 2).then_some(())
    })
    .await;
    let later = enqueue(&through, 1, |_| NewJob {
        run_at: Some(soon + Duration::from_secs(86_400)),
        ..fixture.call("later")
    })
    .await[0];
    assert_eq!(
        through.cancel(later).await.unwrap(),
        CancelAnswer::Cancelled
    );
    fixture.target.gate(Gate::Closed);
    let running = enqueue(&through, 1, |_| fixture.call("running")).await[0];
    eventually("it runs", SOON, || is(running, State::Running)).await;
    assert_eq!(
        through.cancel(running).await.unwrap(),
        CancelAnswer::Requested
    );
    eventually("it is cancelled", SOON, || is(running, State::Cancelled)).await;
    fixture.target.gate(Gate::Open);

    // The governor holds its lease, writes its journal and sets the knob.
    eventually("the governor has decided", SOON, || async {
        (fixture
            .count("select count(*) from flyball.governor where throttle = 'governed'")
            .await
            == 1)
            .then_some(())
    })
    .await;
    let terms = fixture
        .count("select count(*) from flyball.leader where name = 'governor' and term >= 1")
        .await;
    assert_eq!(terms, 1);

    // A reindex reads and writes the queue's own database.
    let table = "create table public.pages (id int primary key, title text);
        insert into public.pages select n, 'page ' || n from generate_series(1, 500) n";
    through.pool.execute(table).await.unwrap();
    let args = json!({"source": {"name": "own", "table": "pages", "key": "id"},
        "sink": {"name": "own", "table": "search.pages"}});
    let reindex = enqueue(&through, 1, |_| NewJob {
        throttle: "free".into(),
        ..NewJob::new("reindex", args.clone())
    })
    .await;
    fixture.until_completed(&reindex, SOON).await;
    assert_eq!(
        fixture.count("select count(*) from search.pages").await,
        500
    );

    // Every page that reads Postgres.
    for path in READ {
        let answer = client.get(format!("{url}{path}")).send().await.unwrap();
        let (status, body) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
    }
    for arguments in [
        vec!["job", "list"],
        vec!["why", "governed"],
        vec!["throttle", "set", "governed", "mode=manual"],
    ] {
        let output = fixture
            .command()
            .envs(pooler.settings())
            .args(&arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    let mut ending = [one, two];
    for process in &mut ending {
        process.signal(Signal::TERM);
        assert_eq!(process.ends(SOON).await.code(), Some(0));
        let log = process.log();
        let troubled = log
            .lines()
            .find(|line| line.contains("prepared statement") || line.contains("interrupted"));
        assert_eq!(troubled, None, "{log}");
    }
    let ledger = Ledger::look(fixture.pool()).await.unwrap();
    println!("{ledger:?}");
    ledger.assert_conserved();
    assert_eq!((ledger.dead, ledger.cancelled, ledger.waiting()), (1, 2, 0));
    assert_nothing_is_left_behind(fixture.pool()).await;
    let left = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'";
    assert_eq!(fixture.count(left).await, 0);
}

async fn enqueue(queue: &Queue, count: usize, job: impl Fn(usize) -> NewJob) -> Vec<i64> {
    let jobs: Vec<NewJob> = (0..count).map(job).collect();
    queue
        .enqueue(&jobs)
        .await
        .unwrap()
        .iter()
        .map(|one| one.id)
        .collect()
}

/// Every read-only route.
const READ: &[&str] = &[
    "/healthz",
    "/readyz",
    "/metrics",
    "/api/v1/throttles",
    "/api/v1/throttles/governed",
    "/api/v1/throttles/governed/why",
    "/api/v1/decisions",
    "/api/v1/failures",
    "/api/v1/audit",
    "/api/v1/workers",
    "/api/v1/jobs",
    "/api/v1/jobs?state=completed&kind=http&limit=5",
    "/api/v1/jobs?state=dead",
    "/api/v1/jobs?state=scheduled",
    "/api/v1/jobs?state=ready",
    "/api/v1/jobs?state=running",
];
