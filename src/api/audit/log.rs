//! The audit log: the author, the time, the content and the reason of each change.

use std::time::Duration;

use axum::extract::{Query as Pairs, State};
use axum::{Extension, Json};
use futures_util::FutureExt as _;
use serde::Serialize;
use tracing::Instrument as _;

use super::entry::AuditEntry;
use crate::api::http::caller::Caller;
use crate::api::http::lagging::read_list;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::ROW_TIMEOUT;
use crate::api::postgres;
use crate::api::read_error::ReadError;
use crate::jobs::Queue;

/// The last changes.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Audit {
    /// The entries, newest first.
    entries: Vec<AuditEntry>,
}

/// The warning with a change whose entry could not be written.
const UNWRITTEN: &str = "the change was made, but writing it to the audit log failed";

/// Writes an entry. A change that is already made is not undone if its entry cannot be written, so
/// the failure is returned as a warning.
pub async fn note(queue: &Queue, entry: &AuditEntry) -> Option<String> {
    // In a task of its own, because the request ends here if its client goes away.
    let write = write(queue.clone(), entry.clone()).in_current_span();
    match tokio::spawn(write.boxed()).await {
        Ok(true) => None,
        _ => Some(UNWRITTEN.to_owned()),
    }
}

/// Writes an entry, or a line of the log in its place; returns false in that case.
async fn write(queue: Queue, entry: AuditEntry) -> bool {
    let written = within(ROW_TIMEOUT, postgres::write_audit(&queue.pool, &entry));
    let Err(reason) = written.await else {
        return true;
    };
    tracing::error!(
        reason,
        actor = entry.actor,
        action = entry.action,
        subject = entry.subject,
        "a change was made but not written to the audit log"
    );
    false
}

/// Waits for the write of an entry; fails with the reason in the words of the log. Those of a
/// problem say what became of a request's change, and the change of an entry was made before.
async fn within(
    limit: Duration,
    write: impl Future<Output = Result<(), ReadError>>,
) -> Result<(), String> {
    match tokio::time::timeout(limit, write).await {
        Ok(written) => written.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "Postgres did not answer within {} s",
            limit.as_secs()
        )),
    }
}

/// Lists the last changes.
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "list_audit", tag = "audit",
    params(("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent.")),
    responses((status = 200, body = Audit)))]
pub async fn list(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Audit>, Problem> {
    let mut query = Query::open(pairs, &["limit"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let tenant = caller.tenant.as_deref();
    let read = |queue: Queue| async move { postgres::read_audit(&queue.pool, tenant, limit).await };
    let entries = read_list(&queue, read).await?;
    Ok(Json(Audit { entries }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_reason_for_a_missing_entry_says_nothing_about_the_change() {
        let read_only = async { Err(ReadError::Lost("the database is read-only".to_owned())) };
        let refused = within(ROW_TIMEOUT, read_only).await;
        assert_eq!(
            refused,
            Err("Postgres did not answer: the database is read-only".to_owned())
        );
        let late = within(Duration::ZERO, std::future::pending()).await;
        assert_eq!(late, Err("Postgres did not answer within 0 s".to_owned()));
        assert_eq!(within(ROW_TIMEOUT, async { Ok(()) }).await, Ok(()));
    }
}
