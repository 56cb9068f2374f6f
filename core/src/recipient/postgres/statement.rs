//! The form of all statements of this folder.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// Returns a statement for a `Db` or a `Transaction`, which prepare it once for each connection of
/// our own. On a bare connection it would leave its name behind for whoever is lent that next.
pub(super) fn query(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql)
}

/// Returns a statement that Postgres plans at each use. A plan for empty tables would read whole
/// tables once they are full.
pub(super) fn query_planned_anew(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}
