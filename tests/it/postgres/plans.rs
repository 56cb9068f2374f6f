//! The plans of statements that transactions prepare: whatever was in the tables at that time, a
//! statement finds its rows by probes.

use std::time::Duration;

use flyball::gateway::postgres::GATEWAY_STATEMENTS;
use flyball::jobs::Queue;
use flyball::recipient::postgres::GATE_STATEMENTS;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use crate::support::database;

/// Tables that grow with the messages and their recipients. Partitions are named after their table,
/// `_` and a number.
const BIG: &[&str] = &[
    "attempt",
    "cap",
    "cap_reservation",
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
    // Planned anew at each use.
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

async fn connect(url: &str) -> Queue {
    Queue::connect(url, 1, Duration::from_secs(20))
        .await
        .unwrap()
}

/// Returns the entries that were read from indexes so far.
async fn entries_read(queue: &Queue) -> i64 {
    for flush in [
        "select pg_stat_force_next_flush()",
        "select pg_stat_clear_snapshot()",
    ] {
        queue.pool.execute(flush).await.unwrap();
    }
    let read = "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where schemaname = 'flyball'";
    queue.pool.fetch_one(read).await.unwrap().get(0)
}

async fn no_plan_reads_all(connection: &mut PgConnection, case: &str) {
    let mut wrong = Vec::new();
    for (name, sql) in GATE_STATEMENTS.iter().chain(GATEWAY_STATEMENTS) {
        let (plan, text) = generic_plan(connection, sql).await;
        let mut found = Vec::new();
        walk(&plan, false, &mut found);
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

/// Prepares a statement under a name, and returns a call of it.
async fn prepare(connection: &mut PgConnection, name: &str, sql: &str) -> String {
    connection
        .execute(AssertSqlSafe(format!("prepare {name} as {sql}")))
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"));
    let count = format!(
        "select coalesce(array_length(parameter_types, 1), 0) from pg_prepared_statements where name = '{name}'"
    );
    let parameters: i32 = connection
        .fetch_one(AssertSqlSafe(count))
        .await
        .unwrap()
        .get(0);
    // A generic plan does not depend on the parameters.
    match parameters {
        0 => name.to_owned(),
        _ => format!("{name}({})", vec!["null"; parameters as usize].join(", ")),
    }
}

/// Returns the plan that a session makes once and keeps.
async fn generic_plan(connection: &mut PgConnection, sql: &str) -> (Value, String) {
    let call = prepare(connection, "looked_at", sql).await;
    let mut plans = Vec::new();
    for form in ["format json", "costs off"] {
        let explain = format!("explain ({form}) execute {call}");
        plans.push(connection.fetch_all(AssertSqlSafe(explain)).await.unwrap());
    }
    connection.execute("deallocate looked_at").await.unwrap();
    let text = plans[1]
        .iter()
        .map(|row| row.get::<String, _>(0) + "\n")
        .collect();
    (plans[0][0].get::<Value, _>(0)[0]["Plan"].clone(), text)
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
fn is_probe(table: &str, condition: &str) -> bool {
    table != "ready" || condition.contains("lane_id = ")
}

/// Collects the scans of big tables that neither a condition nor a limit bounds.
fn walk(node: &Value, bounded: bool, wrong: &mut Vec<String>) {
    let kind = node["Node Type"].as_str().unwrap_or_default();
    if let Some(table) = big(node)
        && kind.contains("Scan")
    {
        let condition = node["Index Cond"].as_str();
        let has_condition = node.get("TID Cond").is_some()
            || condition.is_some_and(|condition| is_probe(table, condition));
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
            wrong,
        );
    }
}
