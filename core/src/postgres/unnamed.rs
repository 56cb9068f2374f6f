//! Statements without a name, for connections that are lent for one transaction.

use sqlx::postgres::PgStatement;
use sqlx::{Database, Execute, Postgres, SqlStr};

pub(super) fn cannot_prepare() -> sqlx::Error {
    sqlx::Error::Configuration(
        "a statement cannot be prepared for later behind a pooler in transaction mode".into(),
    )
}

/// A statement that the driver parses without a name, so that nothing of it stays on the server's
/// connection.
///
/// The driver looks up unknown types by a query of its own, which removes the unnamed statement.
/// Neither parameters nor columns may therefore be of a type that a schema defines; cast them to
/// text.
pub(super) struct Unnamed<E>(pub(super) E);

impl<'q, E> Execute<'q, Postgres> for Unnamed<E>
where
    E: Execute<'q, Postgres>,
{
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        None
    }

    fn take_arguments(
        &mut self,
    ) -> Result<Option<<Postgres as Database>::Arguments>, sqlx::error::BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}
