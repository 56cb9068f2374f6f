//! Lists, which may be some seconds old: they are read from the replica if there is one that can be
//! used, and their answers say by how much it lags.

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;

use super::problem::Problem;
use super::timeout::{LIST_TIMEOUT, with_timeout};
use crate::api::read_error::ReadError;
use crate::jobs::Queue;
use crate::jobs::postgres::{LaggingError, with_lag};

/// The header with the seconds by which the replica lagged that answered; absent from answers of
/// the primary.
pub const REPLICA_LAG: &str = "x-replica-lag-s";

impl LaggingError for ReadError {
    fn is_refusal(&self) -> bool {
        false
    }
}

/// Reads a list, from the replica where it can be used. `read` gets a queue for this read only.
pub async fn read_list<T, E, F>(queue: &Queue, read: impl Fn(Queue) -> F) -> Result<T, Problem>
where
    E: LaggingError + Into<Problem>,
    F: Future<Output = Result<T, E>>,
{
    with_timeout(LIST_TIMEOUT, queue.read_lagging(read)).await
}

/// Adds the lag of the replica to answers that it had a part in.
pub async fn add_lag(request: Request, next: Next) -> Response {
    let (mut response, lag) = with_lag(next.run(request)).await;
    if let Some(lag) = lag {
        let seconds = format!("{:.1}", lag.as_secs_f64());
        if let Ok(seconds) = HeaderValue::try_from(seconds) {
            response.headers_mut().insert(REPLICA_LAG, seconds);
        }
    }
    response
}
