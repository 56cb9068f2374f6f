//! The plans of the hot statements: whatever the tables and the statistics contain, a statement
//! reads only the rows that it needs.
//!
//! The statements come from the program's own table and are planned as in production: prepared,
//! with the generic plan, under the session's settings. `make soak` repeats this with a million
//! jobs.

use std::time::{Duration, Instant};

use flyball::jobs::postgres::{
    Ending, Finish, LaneClaim, LaneCursor, NewWorker, PromotionCursor, STATEMENTS,
};
use flyball::jobs::{CancelAnswer, Queue};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use crate::support::database;
use crate::support::plans::{flush_statistics, generic_plan};

/// Tables that grow with the queue, the running jobs or the history. Partitions are named after
/// their table, `_` and a day.
const BIG: &[&str] = &[
    "ready",
    "job",
    "attempt",
    "scheduled",
    "dead",
    "lease",
    "unique_holder",
    "checkpoint",
    "lane",
];

/// Statements that may scan a whole table, each with the reason.
const MAY_READ_ALL: &[(&str, &str)] = &[
    // When a worker dies or stops, every lease is read; there are as many as running jobs.
    ("orphaned", "lease"),
    ("rescue", "lease"),
    // Read the leases of workers in other programs alone, by an index that has no others.
    ("rescue expired", "lease"),
    ("due work", "lease"),
    ("counted jobs", "lease"),
    ("adopt leases", "lease"),
    ("hand back", "lease"),
    ("disown", "lease"),
    ("end missing", "lease"),
    ("old claims", "lease"),
    ("forget workers", "lease"),
    ("forget unreadable leases", "lease"),
    // Once a minute.
    ("forget unique keys", "unique_holder"),
    // When planned with nothing scheduled, it may use the index of lanes until the vacuum that
    // follows some thousand rows.
    ("walk scheduled", "scheduled"),
    ("walk all", "scheduled"),
    // Lanes with a non-default weight are few and have an index.
    ("weights", "lane"),
];

/// Predicates of partial indexes. Where rows are locked they are checked again, which leaves none
/// out.
const PREDICATES: &[(&str, &str)] = &[("scheduled_due", "(turn >= 0)")];

/// The size of a table.
#[derive(Clone, Copy, Debug)]
struct Size {
    jobs: i64,
    lanes: i64,
}

/// Fills three days of the queue with set-based statements, equivalent to `enqueue` and the worker.
/// Every tenth job is scheduled, every hundredth runs.
fn fill(Size { jobs, lanes }: Size) -> String {
    format!(
        "insert into flyball.worker (name, host, pid, ttl) select 'w', 'h', n, '1 hour' from generate_series(1, 20) n;
         select flyball.ensure_day(flyball.day_of(now()) - 2);
         insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
         select (flyball.day_of(now()) - n % 3) << 38 | n, flyball.lane_of('t', (n % {lanes})::text), n % 4, 10, 1, 'http', 't',
             (n % {lanes})::text, '{{}}'
         from generate_series(1, {jobs}) n;
         insert into flyball.ready (lane_id, priority, job_id, cost)
         select lane_id, priority, id, cost from flyball.job where id % 10 <> 0 and id % 100 <> 1;
         insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry)
         select id, now() + make_interval(secs => (id % 1000) - 900), lane_id, priority, cost, true from flyball.job where id % 10 = 0;
         insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost)
         select id, 1, (select min(w.id) from flyball.worker w where w.name = 'w') + (id / 100) % 20, lane_id, priority, 1, cost
         from flyball.job where id % 100 = 1;
         insert into flyball.unique_holder (digest, job_id) select sha256(id::text::bytea), id from flyball.job where id % 10 = 3;
         insert into flyball.attempt (job_id, attempt, outcome, worker_id) select id, 1, 'failed', 1 from flyball.job where id % 10 = 0;
         insert into flyball.lane (lane_id, throttle, key)
         select flyball.lane_of('t', n::text), 't', n::text from generate_series(0, {lanes} - 1) n;"
    )
}

const EMPTY: &str = "
    delete from flyball.job; delete from flyball.ready; delete from flyball.scheduled; delete from flyball.lease;
    delete from flyball.attempt; delete from flyball.lane; delete from flyball.unique_holder; delete from flyball.dead; delete from flyball.worker";

const ANALYZE: &str = "
    analyze flyball.ready, flyball.job, flyball.scheduled, flyball.lease, flyball.attempt, flyball.lane, flyball.dead, flyball.worker,
        flyball.cancel, flyball.unique_holder";

/// Disables autoanalyze: statistics change only when the test runs ANALYZE.
const NO_AUTOVACUUM: &str = "
do $$
declare t regclass;
begin
    for t in select c.oid from pg_class c where c.relnamespace = 'flyball'::regnamespace and c.relkind = 'r' loop
        execute format('alter table %s set (autovacuum_enabled = off)', t);
    end loop;
end $$";

#[tokio::test]
async fn no_statement_reads_more_than_it_is_about_at_any_size_and_with_any_statistics() {
    all_cases(Size {
        jobs: 50_000,
        lanes: 5_000,
    })
    .await;
}

#[tokio::test]
#[ignore = "takes a minute; make soak runs it"]
async fn soak_no_statement_reads_more_than_it_is_about_at_a_million_jobs_and_a_hundred_thousand_lanes()
 {
    all_cases(Size {
        jobs: 1_000_000,
        lanes: 100_000,
    })
    .await;
}

async fn all_cases(many: Size) {
    let database = database().await;
    let say = async |sql: &str| {
        let begun = Instant::now();
        database
            .pool()
            .execute(AssertSqlSafe(sql.to_owned()))
            .await
            .unwrap();
        if begun.elapsed() > Duration::from_secs(5) {
            println!("{:?}: {}", begun.elapsed(), &sql[..sql.len().min(60)]);
        }
    };
    let url = database.url();
    say(NO_AUTOVACUUM).await;
    say(ANALYZE).await;
    check(url, "empty", None).await;

    // Filled without new statistics.
    say(&fill(many)).await;
    check(url, "many lanes, analyzed when empty", Some(many)).await;
    say(ANALYZE).await;
    check(url, "many lanes", Some(many)).await;

    // Emptied by normal work, as every day: the files keep their size, and the statistics report
    // empty tables.
    say(EMPTY).await;
    check(url, "empty, analyzed when full", None).await;
    for table in [
        "ready",
        "scheduled",
        "lease",
        "attempt",
        "lane",
        "unique_holder",
        "job",
    ] {
        say(&format!("vacuum (analyze, truncate off) flyball.{table}")).await;
    }
    check(url, "empty after use", None).await;
    let one = Size { lanes: 1, ..many };
    say(&fill(one)).await;
    check(url, "one lane, analyzed when there were many", Some(one)).await;
    say(ANALYZE).await;
    check(url, "one lane", Some(one)).await;
}

/// Checks both the plans and the rows actually read.
async fn check(url: &str, case: &str, size: Option<Size>) {
    let queue = Queue::connect(url, 1, Duration::from_secs(20))
        .await
        .unwrap();
    let mut wrong = Vec::new();
    for (name, sql) in STATEMENTS {
        let allowed = MAY_READ_ALL
            .iter()
            .find(|(other, _)| other == name)
            .map_or("", |(_, tables)| tables);
        let mut connection = queue.pool.acquire().await.unwrap();
        let (plan, text) = generic_plan(&mut connection, sql).await;
        let mut found = Vec::new();
        walk(&plan, false, &mut found);
        found.retain(|(table, _)| !allowed.split(' ').any(|other| other == *table));
        if !found.is_empty() {
            wrong.push(format!("{case}: {name}: {found:?}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    if let Some(size) = size {
        read_rows(&queue, case, size).await;
    }
    queue.pool.close().await;
}

/// Returns the big table that a scan reads, without the day of its partition.
fn big(node: &Value) -> Option<&'static str> {
    let rest_of = |name: &Value, big: &str| -> Option<String> {
        Some(name.as_str()?.strip_prefix(big)?.to_owned())
    };
    let is_day = |rest: &str| {
        rest.strip_prefix('_')
            .is_some_and(|day| day.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (relation, index) = (&node["Relation Name"], &node["Index Name"]);
    let is_of = |big: &&&str| match relation {
        Value::Null => rest_of(index, big).is_some_and(|rest| rest.starts_with('_')),
        _ => rest_of(relation, big).is_some_and(|rest| rest.is_empty() || is_day(&rest)),
    };
    BIG.iter().find(is_of).copied()
}

/// Collects each unbounded scan of a big table, and each sort or hash over a whole lane.
fn walk(node: &Value, bounded: bool, wrong: &mut Vec<(&'static str, String)>) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    if let Some(table) = big(node)
        && kind.contains("Scan")
    {
        let has_condition = node.get("TID Cond").is_some()
            || node["Index Cond"]
                .as_str()
                .is_some_and(|condition| pins(table, condition));
        // A limit stops a scan early only if no row is filtered out.
        let filter = node.get("Filter").and_then(Value::as_str);
        let index = node["Index Name"].as_str().unwrap_or_default();
        let is_filtered = filter.is_some_and(|filter| !PREDICATES.contains(&(index, filter)));
        let stops_early = bounded && !is_filtered;
        if kind == "Seq Scan" || !has_condition && !stops_early && kind != "Bitmap Heap Scan" {
            let name = node["Index Name"].as_str().unwrap_or(table);
            wrong.push((
                table,
                format!(
                    "{kind} ({name}), filtered by {}",
                    node["Filter"].as_str().unwrap_or("nothing")
                ),
            ));
        }
    }
    if ["Sort", "Hash", "Aggregate", "Materialize"].contains(&kind)
        && let Some(scan) = lane_scan(node)
    {
        wrong.push(("ready", format!("{kind} of a whole lane by {scan}")));
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        // Nodes below a limit stop early, unless a node in between must read all its input first.
        let eager = ["Sort", "Hash", "Aggregate"].contains(&kind);
        let own = child.get("Subplan Name").is_none();
        walk(child, own && !eager && (bounded || kind == "Limit"), wrong);
    }
}

/// Returns true if an index condition selects single rows. A range or a lane may contain
/// everything.
fn pins(table: &str, condition: &str) -> bool {
    let column = match table {
        "job" => "(id = ",
        "lane" if condition.contains("(key = ") => return true,
        "lane" => "lane_id = ",
        "unique_holder" if condition.contains("digest = ") => return true,
        _ => "job_id = ",
    };
    condition.contains(column)
}

/// Returns true for a scan of `ready` by lane below this node, in the same part of the plan and not
/// below a limit.
fn lane_scan(node: &Value) -> Option<String> {
    for child in node["Plans"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|child| child.get("Subplan Name").is_none())
    {
        let kind = child["Node Type"].as_str().unwrap_or_default();
        let condition = child["Index Cond"].as_str().unwrap_or_default();
        if big(child) == Some("ready") && kind.contains("Index") && !condition.contains("job_id") {
            return Some(format!("{kind} ({condition})"));
        }
        if kind != "Limit"
            && let Some(found) = lane_scan(child)
        {
            return Some(found);
        }
    }
    None
}

/// Returns the rows read since the last call, by sequential scans of big tables and by all indexes.
async fn rows_read(queue: &Queue) -> (i64, i64) {
    flush_statistics(queue).await;
    let sql = "
        select coalesce(sum(seq_tup_read) filter (where relname ~ '^(ready|job|attempt|scheduled|dead)(_|$)'), 0)::bigint,
            (select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where schemaname = 'flyball')
        from pg_stat_user_tables where schemaname = 'flyball'";
    let row = queue.pool.fetch_one(sql).await.unwrap();
    (row.get(0), row.get(1))
}

/// Runs the hot statements through the store, and counts the rows read per affected job.
async fn read_rows(queue: &Queue, case: &str, size: Size) {
    let worker = NewWorker {
        name: "plans".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(600),
        kinds: vec!["http".into()],
    };
    let worker = queue.register(&worker).await.unwrap();
    let mut last = rows_read(queue).await;
    let mut spent = async |what: &str, about: i64, most_for_each: i64| {
        let now = rows_read(queue).await;
        let (by_scan, by_index) = (now.0 - last.0, now.1 - last.1);
        last = now;
        println!(
            "{case}: {what}: {about} rows asked for, {by_index} index entries and {by_scan} scanned rows read"
        );
        assert_eq!(by_scan, 0, "{case}: {what}");
        // A few hundred rows belong to small tables: workers, wakeup, cancels. A sweep reads up to
        // a thousand entries before it hops.
        assert!(
            by_index <= about * most_for_each + 2000,
            "{case}: {what}: {by_index} index entries for {about} rows"
        );
    };

    let lanes = queue.ready_lanes().await.unwrap();
    assert_eq!(
        lanes.len() as i64,
        size.lanes.min(lanes.len() as i64).max(1)
    );
    spent("lanes", lanes.len() as i64, 6).await;

    let mut held = Vec::new();
    for (round, share) in lanes.chunks(100).take(3).enumerate() {
        let each = (100 / share.len()).max(1) as i32;
        let requested: Vec<LaneClaim> = share
            .iter()
            .map(|lane| LaneClaim::first(lane.lane_id, each))
            .collect();
        let fence = 1000 + round as i64;
        let claimed = queue.claim(worker, fence, &requested).await.unwrap();
        assert!(
            claimed.len() >= 50,
            "{case}: {} jobs were claimed",
            claimed.len()
        );
        spent("claim", claimed.len() as i64, 12).await;
        held.extend(claimed.into_iter().map(|one| Finish {
            job_id: one.job.id,
            fence,
            ending: Ending::Completed,
        }));
    }
    // A worker that serves less looks first, and takes what it has seen.
    let requested: Vec<LaneClaim> = lanes
        .iter()
        .skip(300)
        .chain(&lanes[..1])
        .take(100)
        .map(|lane| LaneClaim::first(lane.lane_id, 1))
        .collect();
    let kinds = ["http".to_owned()];
    let seen = queue.look(&requested, 10, &kinds).await.unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|one| one.args.is_some()));
    spent("look", seen.len() as i64, 6).await;
    let places: Vec<(i64, LaneCursor)> = seen.iter().map(|one| (one.lane_id, one.place)).collect();
    let taken = queue.claim_looked_at(worker, 2000, &places).await.unwrap();
    assert_eq!(taken.jobs.len(), seen.len(), "{case}");
    spent("claim looked at", seen.len() as i64, 12).await;
    held.extend(taken.jobs.into_iter().map(|one| Finish {
        job_id: one.job.id,
        fence: 2000,
        ending: Ending::Completed,
    }));
    let ended = queue.finish(&held).await.unwrap();
    assert_eq!(ended.len(), held.len());
    spent("finish", ended.len() as i64, 12).await;

    let moved = queue.promote().await.unwrap().jobs;
    assert!(moved > 0);
    spent("promote", moved, 12).await;
    // It skips from turn to turn, and reads a few jobs of each.
    let crowd = queue
        .promote_crowd(&mut PromotionCursor::default())
        .await
        .unwrap()
        .jobs;
    assert!(crowd > 0);
    spent("promote crowd", crowd, 20).await;

    // One job waits in its lane, another for its time.
    let sql = "(select job_id from flyball.ready order by lane_id desc limit 1) union all
        (select job_id from flyball.scheduled where turn >= 0 order by run_at desc limit 1)";
    let waiting: Vec<i64> = queue
        .pool
        .fetch_all(sql)
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    spent("looking for two", 2, 0).await;
    for id in waiting {
        assert_eq!(queue.cancel(id).await.unwrap(), CancelAnswer::Cancelled);
        assert!(queue.get(id).await.unwrap().is_some());
    }
    spent("cancel and get", 2, 100).await;

    let rescued = queue.rescue().await.unwrap();
    assert_eq!(rescued.workers, 0);
    spent("rescue of nothing", 0, 0).await;

    // One worker is dead, one lost the answer to a claim, and one stops gracefully.
    let three = "
        update flyball.worker set name = 'gone'
        where id = any(array(select id from flyball.worker where name = 'w' order by id limit 3)) returning id";
    let mut three: Vec<i32> = queue
        .pool
        .fetch_all(three)
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    three.sort_unstable();
    let dies = format!(
        "update flyball.worker set heartbeat_at = now() - interval '1 day' where id = {}",
        three[0]
    );
    queue.pool.execute(AssertSqlSafe(dies)).await.unwrap();
    let rescued = queue.rescue().await.unwrap();
    assert_eq!((rescued.workers, rescued.missing), (1, vec![]));
    assert!(!rescued.ready.is_empty());
    spent("rescue", rescued.ready.len() as i64, 20).await;
    let disowned = queue.disown(three[1], 1).await.unwrap() as i64;
    assert!(disowned > 0);
    spent("disown", disowned, 12).await;
    let handed = queue.retire(three[2]).await.unwrap() as i64;
    assert!(handed > 0);
    spent("hand back", handed, 12).await;
}

#[tokio::test]
async fn a_claim_behind_its_place_reads_no_remains_of_the_claims_before_it() {
    let database = database().await;
    let say = async |sql: &str| {
        database
            .pool()
            .execute(AssertSqlSafe(sql.to_owned()))
            .await
            .unwrap();
    };
    say(NO_AUTOVACUUM).await;
    say(&fill(Size {
        jobs: 12_000,
        lanes: 1,
    }))
    .await;
    // While this transaction is open, no dead row can be removed.
    let mut reader = PgConnection::connect(database.url()).await.unwrap();
    reader
        .execute("begin isolation level repeatable read; select count(*) from flyball.worker")
        .await
        .unwrap();
    let queue = Queue::connect(database.url(), 1, Duration::from_secs(20))
        .await
        .unwrap();
    let worker = NewWorker {
        name: "plans".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(600),
        kinds: vec!["http".into()],
    };
    let worker = queue.register(&worker).await.unwrap();
    let lane_id = queue.ready_lanes().await.unwrap()[0].lane_id;
    let entries = async || -> i64 {
        rows_read(&queue).await;
        let sql = "select coalesce(idx_tup_read, 0) from pg_stat_user_indexes where indexrelname = 'ready_lane'";
        queue.pool.fetch_one(sql).await.unwrap().get(0)
    };

    let (mut after, mut before, mut most) = (LaneCursor::default(), entries().await, 0);
    for fence in 0..20 {
        let claimed = queue
            .claim(
                worker,
                fence,
                &[LaneClaim {
                    lane_id,
                    jobs: 200,
                    after,
                    look: false,
                }],
            )
            .await
            .unwrap();
        assert_eq!(claimed.len(), 200);
        let last = &claimed[199].job;
        after = LaneCursor {
            priority: last.priority as i16,
            job_id: last.id,
        };
        let now = entries().await;
        most = most.max(now - before);
        before = now;
    }
    queue
        .claim(worker, 20, &[LaneClaim::first(lane_id, 1)])
        .await
        .unwrap();
    let from_head = entries().await - before;
    reader.close().await.unwrap();

    assert!(most <= 250, "{most} entries were read for 200 jobs");
    assert!(
        from_head >= 4_000,
        "only {from_head} entries were read from the head: nothing lay in the way"
    );
}
