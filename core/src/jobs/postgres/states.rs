//! States and times in the form of Postgres.

use jiff_sqlx::ToSqlx as _;

use crate::jobs::State;
use crate::jobs::job::UnknownState;

/// Returns the state of a name in an answer of Postgres.
pub(super) fn state(name: &str) -> Result<State, sqlx::Error> {
    name.parse()
        .map_err(|error: UnknownState| sqlx::Error::Decode(Box::new(error)))
}

/// Returns the state at the end of an answer such as `already completed`.
pub(super) fn last_word(answer: &str) -> Result<State, sqlx::Error> {
    state(answer.rsplit(' ').next().unwrap_or_default())
}

/// Returns a time as a parameter of a statement.
pub(super) fn moment(at: jiff::Timestamp) -> jiff_sqlx::Timestamp {
    at.to_sqlx()
}
