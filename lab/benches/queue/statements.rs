//! Postgres' time by statement, for tuning; it is optional because the statistics themselves cost a
//! few per cent.

use sqlx::{PgPool, Row};

const RESET: &str = "select pg_stat_statements_reset()";

const TOP: &str = "
select calls, rows, total_exec_time as ms, regexp_replace(left(query, 400), '\\s+', ' ', 'g') as text
from pg_stat_statements
where dbid = (select oid from pg_database where datname = current_database())
order by total_exec_time desc
limit 12";

pub async fn reset(pool: &PgPool) -> anyhow::Result<()> {
    sqlx::query(RESET).execute(pool).await?;
    Ok(())
}

/// Prints to standard error the statements that took longest since the reset, also per job of a run
/// of `jobs` jobs.
pub async fn print(pool: &PgPool, jobs: f64) -> anyhow::Result<()> {
    eprintln!(
        "  {:>8} {:>9} {:>9} {:>9} {:>9}  statement",
        "calls", "rows", "ms", "ms/call", "µs/job"
    );
    for row in sqlx::query(TOP).fetch_all(pool).await? {
        let (calls, rows, ms): (i64, i64, f64) = (row.get("calls"), row.get("rows"), row.get("ms"));
        let text: String = row.get("text");
        let start: String = text.trim().chars().take(100).collect();
        eprintln!(
            "  {calls:>8} {rows:>9} {ms:>9.0} {:>9.2} {:>9.2}  {start}",
            ms / calls as f64,
            ms * 1e3 / jobs
        );
    }
    Ok(())
}
