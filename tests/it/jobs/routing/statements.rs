//! The hot statements name the columns by which docs/scale.md distributes the hot tables, except for
//! those that it lists as gaps.

use std::collections::{BTreeMap, BTreeSet};

use flyball::jobs::postgres::STATEMENTS;
use sqlx::Row;

use super::scanner::{mentioned, unnamed};
use crate::docs::{code, read, rows, section};
use crate::support::{Database, database};

/// The functions that write a job, each of which any enqueue may run.
const FUNCTIONS: [&str; 5] = [
    "enqueue",
    "enqueue_rows_as",
    "admit",
    "check_backlog",
    "take_turn",
];

/// The statements that run for every job or all the time.
const HOT: [&str; 18] = [
    "claim",
    "claim looked at",
    "read claimed",
    "look",
    "complete",
    "complete with result",
    "finish",
    "pulse",
    "hand over",
    "held lease",
    "beat of lease",
    "promote",
    "promote crowd",
    "release",
    "known names",
    "names",
    "sweep",
    "arrivals",
];

/// Statements on hot tables that run for a process, a second, a person or a fault, and not for jobs. A
/// new statement must be in one of the two lists.
const NOT_HOT: &[&str] = &[
    "cancel",
    "carry out cancels",
    "checkpoint store",
    "end missing",
    "deepest lanes",
    "lanes by key",
    "first lanes by key",
    "one lane",
    "lane arrivals",
    "walk all",
    "walk ready",
    "walk scheduled",
    "walk running",
    "walk dead",
    "lanes' throttles",
    "page of lanes",
    "written lanes",
    "write lanes",
    "write throttles",
    "drop ready",
    "drop looked at",
    "newest",
    "adopt",
    "weights",
    "forget unique keys",
    "forget workers",
    "forget cancels",
    "forget unreadable leases",
    "forget dead",
    "forget lanes",
    "due work",
    "urgent",
    "get",
    "attempts",
    "failures",
    "last error",
    "was lost",
    "kind and tenant of job",
    "tenant of job",
    "store encrypted arguments",
    "needed keys",
    "orphaned",
    "rescue",
    "rescue expired",
    "counted jobs",
    "adopt leases",
    "forget results",
    "walk unserved",
    "put back",
    "hand back",
    "disown",
    "old claims",
];

/// The distribution column of each hot table, by the page.
fn columns(page: &str) -> BTreeMap<String, String> {
    let rows = rows(section(
        page,
        "### Which column each hot table is distributed by",
    ));
    let named = rows.iter().flat_map(|row| {
        let tables = row[0].split(',').map(|table| code(table.trim()).to_owned());
        tables.map(|table| (table, code(&row[1]).to_owned()))
    });
    named.collect()
}

/// The tables that each hot statement does not name by their column, by the page.
fn gaps(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let rows = rows(section(page, "### Which statements name it"));
    let told = rows.iter().map(|row| {
        let tables = row[2].split('`').skip(1).step_by(2).map(str::to_owned);
        (code(&row[0]).to_owned(), tables.collect())
    });
    told.collect()
}

/// Returns the tables that each hot statement does not name by their column.
async fn found(
    columns: &BTreeMap<String, String>,
    database: &Database,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for name in HOT {
        let (_, sql) = STATEMENTS
            .iter()
            .find(|(other, _)| *other == name)
            .unwrap_or_else(|| panic!("there is no statement {name}"));
        assert!(
            !mentioned(sql, columns).is_empty(),
            "{name} touches nothing"
        );
        found.insert(name.to_owned(), unnamed(sql, columns, false));
    }
    let sql = "select proname::text as name, pg_get_functiondef(oid) as body from pg_proc
        where pronamespace = 'flyball'::regnamespace and proname = any($1)";
    let bodies = sqlx::query(sql)
        .bind(&FUNCTIONS[..])
        .fetch_all(database.pool())
        .await
        .unwrap();
    for row in &bodies {
        let (name, body): (String, String) = (row.get("name"), row.get("body"));
        // Its parameters stand before the body.
        let (_, body) = body.split_once("$function$").unwrap();
        let gaps: &mut BTreeSet<String> = found.entry(format!("flyball.{name}")).or_default();
        gaps.extend(unnamed(body, columns, true));
    }
    assert_eq!(found.len(), HOT.len() + FUNCTIONS.len(), "{found:?}");
    found
}

#[tokio::test]
async fn every_hot_statement_names_the_column_of_each_hot_table_or_is_a_told_gap() {
    let page = read("docs/scale.md");
    let columns = columns(&page);
    for table in [
        "job",
        "ready",
        "lease",
        "scheduled",
        "dead",
        "attempt",
        "unique_holder",
    ] {
        assert!(columns.contains_key(table), "the page lacks {table}");
    }
    let database = database().await;
    for (table, column) in &columns {
        let sql = "select exists (select from pg_attribute where attrelid = to_regclass('flyball.' || $1) and attname = $2)";
        let exists: bool = sqlx::query_scalar(sql)
            .bind(table)
            .bind(column)
            .fetch_one(database.pool())
            .await
            .unwrap();
        assert!(exists, "{table} has no column {column}");
    }

    assert_eq!(
        found(&columns, &database).await,
        gaps(&page),
        "left: found, right: docs/scale.md"
    );
}

#[test]
fn every_statement_on_a_hot_table_is_known_as_hot_or_not() {
    let columns = columns(&read("docs/scale.md"));
    let on_hot = STATEMENTS
        .iter()
        .filter(|(_, sql)| !mentioned(sql, &columns).is_empty())
        .map(|(name, _)| *name);
    let known: BTreeSet<&str> = HOT.iter().chain(NOT_HOT).copied().collect();
    assert_eq!(on_hot.collect::<BTreeSet<_>>(), known);
}

#[test]
fn the_scanner_refuses_statements_that_name_no_column() {
    let columns: BTreeMap<String, String> = [("ready", "lane_id"), ("lease", "job_id")]
        .map(|(table, column)| (table.to_owned(), column.to_owned()))
        .into();
    let wrong = |sql: &str| -> Vec<String> { unnamed(sql, &columns, false).into_iter().collect() };

    for named in [
        "select from flyball.ready where lane_id = $1",
        "select from flyball.ready q where q.lane_id = any($1) and q.priority > 2",
        "select from a cross join lateral (select from flyball.ready q where q.lane_id = a.lane_id limit 1) r",
        "select from flyball.lease l join flyball.ready r on r.lane_id = l.lane_id where l.job_id in ($1, $2)",
        "insert into flyball.lease as l (job_id, fence) select 1, 2",
        "update flyball.lease set fence = 1 where $1 = job_id",
        "select flyball.lane_of('a', 'b')",
    ] {
        assert_eq!(wrong(named), Vec::<String>::new(), "{named}");
    }
    for (sql, table) in [
        // The deliberately wrong ones: each would have to ask every shard.
        (
            "select job_id from flyball.ready order by job_id limit 10",
            "ready",
        ),
        (
            "select from flyball.ready where lane_id > $1 and lane_id < $2",
            "ready",
        ),
        (
            "delete from flyball.lease where ctid = any(array(select ctid from flyball.lease where job_id = $1))",
            "lease",
        ),
        (
            "with a as (select lane_id from x where lane_id = $1) delete from flyball.ready where priority = 1",
            "ready",
        ),
        (
            "select from flyball.ready q where q.priority = 1 and exists (select from flyball.lease l where l.job_id = q.job_id)",
            "ready",
        ),
        (
            "select from flyball.lease l where exists (select 1 where job_id = 1)",
            "lease",
        ),
        ("insert into flyball.ready (priority) select 1", "ready"),
        (
            "select 1 -- where job_id = 1\n from flyball.lease where worker_id = 'job_id = 1'",
            "lease",
        ),
        (
            "select from flyball.ready where lane_id = 1 union all select from flyball.ready",
            "ready",
        ),
    ] {
        assert_eq!(wrong(sql), [table], "{sql}");
    }
}
