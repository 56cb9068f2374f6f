//! The form of all statements of this folder.

use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// Returns a statement that leaves no name behind on a connection that is lent for a transaction.
pub(super) fn query(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}
