//! The audit log: the author, the time, the content and the reason of each change.

use std::panic::resume_unwind;
use std::time::Duration;

use axum::extract::{MatchedPath, Query as Pairs, Request, State};
use axum::middleware::Next;
use axum::response::Response;
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

/// The routes whose changes are made first and written to the audit log then. Those of jobs,
/// messages and recipients write their entries in the transaction of the change.
const CHANGED_THEN_WRITTEN: [&str; 11] = [
    "/api/v1/throttles/{name}",
    "/api/v1/throttles/{name}/pause",
    "/api/v1/throttles/{name}/resume",
    "/api/v1/throttles/{name}/keys/{key}/pause",
    "/api/v1/throttles/{name}/keys/{key}/resume",
    "/api/v1/crons/{name}",
    "/api/v1/crons/{name}/run",
    "/api/v1/crons/{name}/pause",
    "/api/v1/crons/{name}/resume",
    "/api/v1/kinds/{name}",
    "/api/v1/pools/{name}/accounts/{account}/resume",
];

tokio::task_local! {
    /// Set while a request is answered to its end.
    static TO_THE_END: ();
}

/// Answers requests for such changes in tasks of their own. A request ends where its client goes
/// away, and nobody may make a change without an entry by closing the connection in between.
pub async fn to_the_end(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let is_change = !request.method().is_safe()
        && path.is_some_and(|path| CHANGED_THEN_WRITTEN.contains(&path.as_str()));
    if !is_change {
        return next.run(request).await;
    }
    let answer = next.run(request).in_current_span();
    match tokio::spawn(TO_THE_END.scope((), answer).boxed()).await {
        Ok(answer) => answer,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Writes an entry. A change that is already made is not undone if its entry cannot be written, so
/// the failure is returned as a warning.
pub async fn note(queue: &Queue, entry: &AuditEntry) -> Option<String> {
    debug_assert!(
        TO_THE_END.try_with(|()| ()).is_ok(),
        "the route of {} is missing from CHANGED_THEN_WRITTEN",
        entry.action
    );
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
    use std::sync::Arc;

    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::put;
    use tokio::sync::Notify;
    use tower_service::Service as _;

    use super::*;

    #[tokio::test]
    async fn a_change_that_has_begun_ends_although_its_client_is_gone() {
        let (go_on, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (may_go_on, has_ended) = (go_on.clone(), ended.clone());
        let change = move || {
            let (go_on, ended) = (may_go_on.clone(), has_ended.clone());
            async move {
                go_on.notified().await;
                ended.notify_one();
            }
        };
        let mut router: Router = Router::new()
            .route("/api/v1/kinds/{name}", put(change))
            .layer(from_fn(to_the_end));
        let request = axum::http::Request::put("/api/v1/kinds/mail")
            .body(Body::empty())
            .unwrap();

        // As a request is dropped whose connection has closed.
        let dropped = tokio::time::timeout(Duration::ZERO, router.call(request)).await;

        assert!(dropped.is_err());
        go_on.notify_one();
        let ended = tokio::time::timeout(Duration::from_secs(30), ended.notified()).await;
        assert!(ended.is_ok());
    }

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
