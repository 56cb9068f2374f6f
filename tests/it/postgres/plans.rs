//! The plans of statements that transactions prepare: whatever was in the tables at that time, a
//! statement finds its rows by probes.

use std::collections::HashMap;
use std::time::Duration;

use flyball::gateway::postgres::GATEWAY_STATEMENTS;
use flyball::jobs::Queue;
use flyball::recipient::postgres::GATE_STATEMENTS;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use crate::support::database;
use crate::support::plans::{flush_statistics, generic_plan, prepare};

/// Tables that grow with the messages and their recipients. Partitions are named after their table,
/// `_` and a number.
const BIG: &[&str] = &[
    "attempt",
    "batch_message",
    "cap",
    "cap_reservation_held",
    "cap_reservation_ready",
    "channel",
    "channel_message",
    "dedup",
    "delivery",
    "digest",
    "digest_item",
    "inbox_message",
    "job",
    "lease",
    "message_plan",
    "publication",
    "ready",
    "recipient",
    "scheduled",
    "suppression",
];

/// Statements that may read a whole table, each with the reason.
const MAY_READ_ALL: &[&str] = &[
    // Planned again at each use.
    "digests: end items",
    "digests: put off",
    "digests: take a part",
    "gates: digests of a recipient",
    "gates: give back",
    "gates: held",
    "gates: held of a recipient",
    "gates: history of a recipient",
    "gates: hold",
    "gates: mark",
    "gates: new lists",
    "gates: reservations",
    "gates: reserve",
    "gates: slots",
    "gates: take",
    "gates: unsent of messages",
    "gates: withdraw",
    "publications: trim",
    // Stop at the first row.
    "channels: any",
    "channels: last mark",
];

/// Statements that may read an index by another column than its first: those of open digests, whose
/// table Postgres looks at again as soon as some dozens are open.
const MAY_PASS_OVER: &[&str] = &[
    "digests: close",
    "digests: fewer items",
    "digests: put a failed one off",
    "gates: keep a digest open",
    "gates: one digest",
];

/// Calls that read few rows of a table, with the table.
const CALLS: &[(&str, &str)] = &[
    ("ready", "select flyball.admission_place(1)"),
    (
        "ready",
        "select flyball.show_job((select max(id) from flyball.job))",
    ),
    (
        "scheduled",
        "select count(*) from flyball.take_unplanned(1)",
    ),
    ("scheduled", "select flyball.release_waiting(array[1])"),
    (
        "message_plan",
        "select flyball.held_until_of(1, '{\"category\": \"c\"}')",
    ),
    (
        "scheduled",
        "select flyball.replan(array['00000000-0000-0000-0000-000000000001'::uuid])",
    ),
    ("digest_item", "select flyball.withdraw_items(array[0])"),
    (
        "inbox_message",
        "select flyball.deliver_inboxes(array[e.job_id], array['ada'], array[null], array['b'], true)
        from flyball.enqueue('http', '{\"url\": \"http://example.com/\"}') e",
    ),
];

/// Rows of other messages and jobs.
const FILLS: &[&str] = &[
    "insert into flyball.ready (lane_id, priority, job_id, cost)
        select 1000 + n % 100, 2, n, 1 from generate_series(1, 30000) n",
    "insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, turn)
        select n, '-infinity', 1000 + n % 100, 2, 1, false, case n % 2 when 0 then -10 else -2 end
        from generate_series(1, 100000) n",
    "insert into flyball.message_plan (job_id, recipient, state)
        select n, md5(n::text)::uuid, 'held' from generate_series(1, 30000) n",
    "insert into flyball.digest_item (digest_id, job_id, item, at)
        select n % 100, n, '{}', now() from generate_series(1, 30000) n",
    "insert into flyball.inbox_message (tenant, recipient, job_id, category, body, data)
        select '', n::text, n, '', '', '{}' from generate_series(1, 30000) n",
];

#[tokio::test]
async fn a_statement_that_is_planned_while_tables_are_empty_finds_its_rows_by_probes() {
    let database = database().await;
    let queue = connect(database.url()).await;
    let mut connection = queue.pool.acquire().await.unwrap();
    no_plan_reads_all(&mut connection, "new tables").await;
    // Postgres takes a table that nobody has looked at for one of ten pages.
    database.pool().execute("vacuum (analyze)").await.unwrap();
    no_plan_reads_all(&mut connection, "tables that were found empty").await;
}

#[tokio::test]
async fn a_message_costs_the_same_however_many_jobs_came_after_its_plan() {
    let database = database().await;
    database.pool().execute("vacuum (analyze)").await.unwrap();
    let queue = connect(database.url()).await;
    let notify = "select count(*) from flyball.notify('inapp', '{\"channel\": \"inapp\", \"recipient\": \"ada\", \"body\": \"b\"}')";
    queue.pool.execute(notify).await.unwrap();
    let fill = "insert into flyball.ready (lane_id, priority, job_id, cost)
        select 1000 + n % 100, 2, n, 1 from generate_series(1, 20000) n";
    database.pool().execute(fill).await.unwrap();

    let before = entries_read(&queue).await;
    queue.pool.execute(notify).await.unwrap();

    let read = entries_read(&queue).await - before;
    assert!(read < 1000, "{read} entries of indexes were read");
}

#[tokio::test]
async fn a_call_costs_the_same_however_many_rows_came_after_its_plan() {
    let database = database().await;
    // One that waits for a job that has ended.
    let waiting =
        "insert into flyball.job_after (job_id, after_id, runs_anyway) values (2, 1, true)";
    database.pool().execute(waiting).await.unwrap();
    database.pool().execute("vacuum (analyze)").await.unwrap();
    let queue = connect(database.url()).await;
    // The first call makes the day of the others, and a job.
    let enqueue = "select flyball.enqueue('http', '{\"url\": \"http://example.com/\"}')";
    queue.pool.execute(enqueue).await.unwrap();
    for (_, call) in CALLS {
        queue.pool.execute(*call).await.unwrap();
    }
    for fill in FILLS {
        database.pool().execute(*fill).await.unwrap();
    }

    let mut wrong = Vec::new();
    for (table, call) in CALLS {
        let before = blocks_read(&queue, table).await;
        queue.pool.execute(*call).await.unwrap();
        let read = blocks_read(&queue, table).await - before;
        if read > 40 {
            wrong.push(format!("{read} blocks of {table}: {call}"));
        }
    }

    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn connect(url: &str) -> Queue {
    Queue::connect(url, 1, Duration::from_secs(20))
        .await
        .unwrap()
}

/// Returns the entries that were read from indexes so far.
async fn entries_read(queue: &Queue) -> i64 {
    flush_statistics(queue).await;
    let read = "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where schemaname = 'flyball'";
    queue.pool.fetch_one(read).await.unwrap().get(0)
}

/// Returns the blocks that were read of the indexes of a table so far. Unlike entries, they tell of
/// an index that was read from end to end for one row.
async fn blocks_read(queue: &Queue, table: &str) -> i64 {
    flush_statistics(queue).await;
    let read = format!(
        "select coalesce(sum(idx_blks_hit + idx_blks_read), 0)::bigint from pg_statio_user_indexes
        where schemaname = 'flyball' and relname = '{table}'"
    );
    queue
        .pool
        .fetch_one(AssertSqlSafe(read))
        .await
        .unwrap()
        .get(0)
}

async fn no_plan_reads_all(connection: &mut PgConnection, case: &str) {
    let first_columns = first_columns(connection).await;
    let mut wrong = Vec::new();
    for (name, sql) in GATE_STATEMENTS.iter().chain(GATEWAY_STATEMENTS) {
        let (plan, text) = generic_plan(connection, sql).await;
        let mut found = Vec::new();
        let first_columns = (!MAY_PASS_OVER.contains(name)).then_some(&first_columns);
        walk(&plan, false, first_columns, &mut found);
        if !found.is_empty() && !MAY_READ_ALL.contains(name) {
            wrong.push(format!("{case}: {name}: {found:?}\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[tokio::test]
async fn a_statement_that_is_prepared_outlives_the_columns_that_a_newer_program_adds() {
    let database = database().await;
    let queue = connect(database.url()).await;
    let mut connection = queue.pool.acquire().await.unwrap();
    let all: Vec<_> = GATE_STATEMENTS.iter().chain(GATEWAY_STATEMENTS).collect();
    let mut prepared = Vec::new();
    for (n, (name, sql)) in all.into_iter().enumerate() {
        prepared.push((
            name,
            prepare(&mut connection, &format!("kept_{n}"), sql).await,
        ));
    }

    let add = "do $$
        declare t text;
        begin
            for t in select c.oid::regclass from pg_class c
                where c.relnamespace = 'flyball'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            loop
                execute format('alter table %s add column added_later int', t);
            end loop;
        end $$";
    connection.execute(add).await.unwrap();

    let mut wrong = Vec::new();
    for (name, call) in prepared {
        let explain = format!("explain execute {call}");
        if let Err(error) = connection.fetch_all(AssertSqlSafe(explain)).await {
            wrong.push(format!("{name}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the first column of each index.
async fn first_columns(connection: &mut PgConnection) -> HashMap<String, String> {
    let columns = "select i.relname::text, pg_get_indexdef(x.indexrelid, 1, true)
        from pg_index x join pg_class i on i.oid = x.indexrelid where i.relnamespace = 'flyball'::regnamespace";
    let rows = connection.fetch_all(columns).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Returns the big table that a scan reads.
fn big(node: &Value) -> Option<&'static str> {
    let relation = node["Relation Name"].as_str()?;
    let is_part = |rest: &str| {
        rest.is_empty()
            || rest
                .strip_prefix('_')
                .is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    BIG.iter()
        .find(|big| relation.strip_prefix(**big).is_some_and(is_part))
        .copied()
}

/// Returns true unless the condition leaves out the first column of the index, which is then read
/// from end to end.
fn is_probe(node: &Value, first_columns: Option<&HashMap<String, String>>) -> bool {
    let condition = node["Index Cond"].as_str().unwrap_or_default();
    let index = node["Index Name"].as_str().unwrap_or_default();
    let is_named = |first: &String| {
        condition
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .any(|word| word == first)
    };
    match first_columns {
        Some(columns) => columns.get(index).is_some_and(is_named),
        None => !condition.is_empty(),
    }
}

/// Collects the scans of big tables that neither a condition nor a limit bounds.
fn walk(
    node: &Value,
    bounded: bool,
    first_columns: Option<&HashMap<String, String>>,
    wrong: &mut Vec<String>,
) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    if let Some(table) = big(node)
        && kind.contains("Scan")
    {
        let has_condition = node.get("TID Cond").is_some() || is_probe(node, first_columns);
        let stops_early = bounded && node.get("Filter").is_none();
        if !has_condition && !stops_early {
            wrong.push(format!("{kind} of {table}, filtered by {}", node["Filter"]));
        }
    }
    for child in node["Plans"].as_array().into_iter().flatten() {
        // Nodes below a limit stop early, unless a node in between must read all its input first.
        let is_eager = ["Sort", "Hash", "Aggregate"].contains(&kind);
        let is_part = child.get("Subplan Name").is_none();
        walk(
            child,
            is_part && !is_eager && (bounded || kind == "Limit"),
            first_columns,
            wrong,
        );
    }
}
