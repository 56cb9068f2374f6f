//! The plans that sessions keep, and the statistics by which tests see what a statement read.

use flyball::jobs::Queue;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

/// Prepares a statement under a name, and returns a call of it.
pub async fn prepare(connection: &mut PgConnection, name: &str, sql: &str) -> String {
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
pub async fn generic_plan(connection: &mut PgConnection, sql: &str) -> (Value, String) {
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

/// Writes out what the only connection of a queue has counted, and reads it again.
pub async fn flush_statistics(queue: &Queue) {
    for flush in [
        "select pg_stat_force_next_flush()",
        "select pg_stat_clear_snapshot()",
    ] {
        queue.pool.execute(flush).await.unwrap();
    }
}
