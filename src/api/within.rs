//! Waiting for a store, but not for long: a client that hears "try again" after seconds is better off than one that hangs.

use std::time::Duration;

use super::problem::{Code, Problem};

/// For one row, one job, one edit.
pub const ONE: Duration = Duration::from_secs(4);
/// For a list, which may be read from disk.
pub const MANY: Duration = Duration::from_secs(15);

/// What Postgres answers within `limit`, or the problem that it did not.
pub async fn within<T, E: Into<Problem>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(limit, work).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => {
            tracing::warn!(
                limit_s = limit.as_secs(),
                "Postgres did not answer a request in time"
            );
            let detail = format!(
                "Postgres did not answer within {} s: it is busy, or a transaction that is still open holds what this needs, such as an \
                 equal unique_key; a change may or may not be made yet. Try again soon, a job with a unique_key cannot be made twice",
                limit.as_secs()
            );
            Err(Problem::new(Code::QueueLost, detail).retry_after(1))
        }
    }
}
