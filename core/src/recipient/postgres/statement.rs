//! Statements that are not planned once for a connection, as all others of this folder are.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// Returns a statement that Postgres plans at each use. A plan for empty tables would read whole
/// tables once they are full.
pub(super) fn query_unprepared(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}
