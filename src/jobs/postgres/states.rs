//! States and times in the form of Postgres.

use jiff_sqlx::ToSqlx as _;

use crate::jobs::State;

/// Every state with its name in Postgres.
const STATES: [(&str, State); 7] = [
    ("scheduled", State::Scheduled),
    ("ready", State::Ready),
    ("running", State::Running),
    ("retryable", State::Retryable),
    ("completed", State::Completed),
    ("cancelled", State::Cancelled),
    ("dead", State::Dead),
];

/// Returns the name of a state.
pub(super) fn state_name(state: State) -> &'static str {
    STATES
        .iter()
        .find(|(_, known)| *known == state)
        .map_or("completed", |(word, _)| word)
}

/// Returns the state of a name; `Completed` for an unknown one.
pub(super) fn state(word: &str) -> State {
    STATES
        .iter()
        .find(|(known, _)| *known == word)
        .map_or(State::Completed, |(_, state)| *state)
}

/// Returns the state at the end of an answer such as `already completed`.
pub(super) fn last_word(answer: &str) -> State {
    state(answer.rsplit(' ').next().unwrap_or_default())
}

/// Returns a time as a parameter of a statement.
pub(super) fn moment(at: jiff::Timestamp) -> jiff_sqlx::Timestamp {
    at.to_sqlx()
}
