//! Timeouts for stores: a client that gets an error after seconds can retry, one that hangs cannot.

use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;

use super::problem::{Code, Problem, is_logged};
use crate::service::FailureLog;

/// The timeout for one row, one job or one edit.
pub const ROW_TIMEOUT: Duration = Duration::from_secs(4);
/// The timeout for a list, which may be read from disk.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(15);

/// The requests that Postgres did not answer in time.
static LATE: LazyLock<Mutex<FailureLog>> = LazyLock::new(Mutex::default);

/// Returns the result of `work` within `limit`, or the problem that Postgres did not answer.
pub async fn with_timeout<T, E: Into<Problem>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(limit, work).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(unanswered(limit)),
    }
}

/// Returns the problem that Postgres did not answer within `limit`, which has passed.
pub fn unanswered(limit: Duration) -> Problem {
    let limit_s = limit.as_secs();
    if is_logged(&LATE) {
        tracing::warn!(limit_s, "Postgres did not answer a request in time");
    } else {
        tracing::debug!(limit_s, "Postgres still does not answer requests in time");
    }
    let what = format!(
        "Postgres did not answer within {limit_s} s: it is busy, or an open transaction holds what \
         this request needs, such as an equal unique_key"
    );
    let change = "the change may still be made. Try again soon; a job with a unique_key is created \
                  once";
    Problem::unsure(Code::QueueUnavailable, &what, change)
}
