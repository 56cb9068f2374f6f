//! Conversion of Postgres errors into errors of the queue.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::jobs::{Backlog, Error, check};
use crate::postgres::is_hidden_pooler;

/// The beginning of the reason of an error of a server that accepts no writes.
pub const READ_ONLY: &str = "the database is read-only: it is a standby, or set to read only";

/// The remedy for it.
pub const READ_ONLY_REMEDY: &str = "after a failover, let DATABASE_URL lead to the primary";

/// The beginning of the reason of an error of a server that has no room for what is written.
pub const DISK_FULL: &str = "the disk of Postgres is full";

/// The remedy for it.
pub const DISK_FULL_REMEDY: &str = "make room on it";

/// The time for which a full disk is remembered. A server whose disk is full answers, also to the
/// writes for which its files have room, so only what fails tells.
const FULL_FOR: Duration = Duration::from_secs(60);

/// The last time at which the server had no room for what this process wrote.
static FULL_AT: Mutex<Option<Instant>> = Mutex::new(None);

/// Returns true if the server had no room for what this process wrote within the last minute.
pub fn is_disk_full(now: Instant) -> bool {
    let full_at = *FULL_AT.lock();
    full_at.is_some_and(|at| now.duration_since(at) < FULL_FOR)
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if let Some(help) = is_hidden_pooler(&error) {
            return Error::Lost(format!("{error}; {help}"));
        }
        match &error {
            // The driver reports a server that goes down during a handshake or an answer as a
            // broken protocol.
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Error::Lost(error.to_string()),
            sqlx::Error::Database(from_server) => {
                let code = from_server.code().unwrap_or_default().into_owned();
                match code.as_str() {
                    // Shutting down, crashed, starting up; a standby; out of disk, connections or
                    // memory; a broken connection.
                    "57P01" | "57P02" | "57P03" | "57P05" => {
                        Error::Lost(from_server.message().to_owned())
                    }
                    "25006" => Error::Lost(format!(
                        "{READ_ONLY}; {READ_ONLY_REMEDY} ({})",
                        from_server.message()
                    )),
                    "53100" => {
                        *FULL_AT.lock() = Some(Instant::now());
                        Error::Lost(format!(
                            "{DISK_FULL}; {DISK_FULL_REMEDY} ({})",
                            from_server.message()
                        ))
                    }
                    "53400" => queue_full(from_server.as_ref())
                        .or_else(|| capped(from_server.as_ref()))
                        .or_else(|| full(from_server.as_ref()))
                        .unwrap_or(Error::Store(error)),
                    other if other.starts_with("08") || other.starts_with("53") => {
                        Error::Lost(from_server.message().to_owned())
                    }
                    "22023" | "42501" => {
                        refused(from_server.as_ref()).unwrap_or(Error::Store(error))
                    }
                    // A NUL in JSON or in a plain text; those of a job are checked before they are
                    // sent.
                    "22P05" => nul("args"),
                    "22021" => nul("a text"),
                    _ => Error::Store(error),
                }
            }
            _ => Error::Store(error),
        }
    }
}

fn nul(field: &str) -> Error {
    Error::Refused {
        index: None,
        field: field.to_owned(),
        message: check::NUL.to_owned(),
    }
}

impl Error {
    /// Returns true if no answer came, so that the change may have been made all the same.
    pub fn is_unsure(&self) -> bool {
        let Self::Lost(reason) = self else {
            return false;
        };
        !reason.starts_with(READ_ONLY) && !reason.starts_with(DISK_FULL)
    }

    /// Returns true for deadlocks, serialization failures and locks that took too long, after which a
    /// transaction may succeed the next time.
    pub fn was_broken_off(&self) -> bool {
        self.has_code(&["40001", "40P01", "55P03"])
    }

    /// Returns true if a lock was not free in time, so that a repeat at once would wait as long
    /// again.
    pub fn was_locked_out(&self) -> bool {
        self.has_code(&["55P03"])
    }

    /// Returns true if the server ended a statement before it was through: it took too long, or
    /// somebody asked for it. Its parts would only add to the load.
    pub fn was_cut_off(&self) -> bool {
        self.has_code(&["57014"])
    }

    fn has_code(&self, codes: &[&str]) -> bool {
        let Self::Store(error) = self else {
            return false;
        };
        error
            .as_database_error()
            .and_then(|error| error.code())
            .is_some_and(|code| codes.contains(&code.as_ref()))
    }

    /// Returns true if Postgres refused the statement, so that nothing of it was committed. After a
    /// lost connection, and after an answer that could not be read, it may have committed.
    #[cfg(feature = "notifications")]
    pub(crate) fn is_rolled_back(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::Full { .. }
            | Self::QueueFull { .. }
            | Self::Capped { .. }
            | Self::Store(sqlx::Error::Database(_) | sqlx::Error::Encode(_)) => true,
            Self::Lost(_) | Self::Store(_) => false,
        }
    }

    /// Returns true if Postgres cannot accept a row that was sent.
    ///
    /// Everything else may succeed the next time: a deadlock, a cancelled statement, an unavailable
    /// server.
    #[cfg(feature = "runner")]
    pub(crate) fn blames_a_row(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Full { .. } | Self::QueueFull { .. } | Self::Capped { .. } => {
                false
            }
            Self::Refused { .. } | Self::Store(sqlx::Error::Encode(_)) => true,
            Self::Store(error) => {
                let code = error
                    .as_database_error()
                    .and_then(|error| error.code())
                    .unwrap_or_default();
                // Data, cardinality, constraints, limits of the program.
                ["21", "22", "23", "54"]
                    .iter()
                    .any(|class| code.starts_with(class))
            }
        }
    }
}

/// Reads a full lane from the error fields that Postgres has for schemas, columns and types.
fn full(error: &dyn sqlx::error::DatabaseError) -> Option<Error> {
    let postgres = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
    let (depth, max) = postgres.data_type()?.split_once('/')?;
    Some(Error::Full {
        throttle: postgres.schema()?.to_owned(),
        key: postgres.column().unwrap_or_default().to_owned(),
        backlog: Backlog {
            depth: depth.parse().ok()?,
            max: max.parse().ok()?,
        },
    })
}

/// Reads the full queue of a tenant from the same error fields.
fn queue_full(error: &dyn sqlx::error::DatabaseError) -> Option<Error> {
    let postgres = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
    postgres
        .constraint()
        .filter(|name| *name == "tenant_queue")?;
    let mut numbers = postgres.data_type()?.split('/');
    let mut number = || numbers.next()?.parse::<i64>().ok();
    Some(Error::QueueFull {
        pending: number()?,
        max: number()?,
        retry_after_s: number()?.unsigned_abs(),
        tenant: postgres.schema()?.to_owned(),
    })
}

/// Reads the refusal of a message over a cap from the same error fields.
fn capped(error: &dyn sqlx::error::DatabaseError) -> Option<Error> {
    let postgres = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
    postgres
        .constraint()
        .filter(|name| *name == "recipient_capped")?;
    Some(Error::Capped {
        index: postgres.table().and_then(|table| table.parse().ok()),
        rule: postgres.schema()?.to_owned(),
        reset_at: postgres.data_type()?.parse().ok()?,
    })
}

/// Waits for an answer of Postgres, but at most `longest`, because a connection can hang silently and
/// its caller must not hang with it.
pub async fn within<T>(
    longest: Duration,
    requested: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = timeout(longest, requested).await;
    answer.unwrap_or_else(|_| Err(Error::Lost(no_answer(longest))))
}

/// Describes an answer that did not come within this time.
pub(super) fn no_answer(longest: Duration) -> String {
    format!("no answer within {} s", longest.as_secs_f64())
}

/// Reads a refusal by `flyball.enqueue_many`, which carries the field as the column and the index
/// of the job as the table.
fn refused(error: &dyn sqlx::error::DatabaseError) -> Option<Error> {
    let postgres = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?;
    let field = postgres.column()?.to_owned();
    let index = postgres.table().and_then(|table| table.parse().ok());
    let text = postgres.message();
    // The function's own name may end in the field's, as that of set_weight does; errors of a batch
    // name the field as jobs[1].kind.
    let behind = |before: &str| {
        text.split_once(&format!("{before}{field}: "))
            .map(|(_, rest)| rest)
    };
    let first = [
        behind(": "),
        behind("."),
        text.strip_prefix(&format!("{field}: ")),
    ]
    .into_iter()
    .flatten()
    .max_by_key(|rest| rest.len());
    let message = first.unwrap_or(text).to_owned();
    Some(Error::Refused {
        index,
        field,
        message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_does_not_come_is_an_error_with_the_time() {
        let unanswered = std::future::pending::<Result<(), Error>>();
        let late = within(Duration::ZERO, unanswered).await.unwrap_err();
        assert!(late.to_string().ends_with("no answer within 0 s"), "{late}");
        let refused = async { Err::<(), _>(Error::Lost("refused".to_owned())) };
        let refused = within(Duration::MAX, refused).await.unwrap_err();
        assert!(refused.to_string().ends_with("refused"), "{refused}");
        let read = async { Ok(3) };
        assert_eq!(within(Duration::MAX, read).await.unwrap(), 3);
    }
}
