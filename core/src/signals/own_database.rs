//! Reads of Flyball's own database for signals.

use std::fmt::Display;
use std::time::Duration;

use super::Error;

/// The name of the database in errors, which never show its URL.
const DATABASE: &str = "Postgres";

/// Waits for an answer of the database; where `what` cannot be read, the error says so.
pub async fn read<T, E: Display>(
    within: Duration,
    what: &str,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Error> {
    let answer = tokio::time::timeout(within, call).await;
    let answer = answer.map_err(|_| Error::TimedOut {
        url: DATABASE.to_owned(),
        within_ms: within.as_millis(),
    })?;
    answer.map_err(|error| {
        tracing::debug!(what, %error, "no reading of the database");
        Error::Unreachable {
            url: DATABASE.to_owned(),
            reason: format!("{what} cannot be read"),
        }
    })
}
