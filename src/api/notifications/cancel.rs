//! The cancellation of one message.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Serialize;

use crate::api::http::caller::Caller;
use crate::api::http::operate::{Reason, signed};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::show::id_of;
use crate::api::jobs::state::JobsState;
use crate::jobs::{CancelAnswer, State as JobState};
use crate::notify::Deliveries;

/// A message that was cancelled.
#[derive(Serialize, utoipa::ToSchema)]
pub struct CancelledNotification {
    /// The number of its job.
    id: i64,
    /// `cancelled`: it is not sent; `cancelling`: it is being sent at this moment, and its state
    /// tells what became of it.
    state: &'static str,
}

/// Cancels a message that has not been sent; one that is being sent is asked to stop.
#[utoipa::path(post, path = "/api/v1/notifications/{id}/cancel", operation_id = "cancel_notification", tag = "notifications",
    params(("id" = i64, Path, description = "The number of its job.")), request_body = Reason,
    responses(
        (status = 200, body = CancelledNotification, description = "The message is not sent."),
        (status = 202, body = CancelledNotification, description = "The message is being sent, and was asked to stop.")))]
pub async fn cancel_notification(
    State(state): State<Arc<JobsState>>,
    State(deliveries): State<Deliveries>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<(StatusCode, Json<CancelledNotification>), Problem> {
    let id = id_of(&id)?;
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let missing = || Problem::notification_not_found(id);
    // The scope of a sender reaches its messages, and no jobs of other kinds.
    let found = deliveries.find(id, caller.tenant.as_deref());
    with_timeout(ROW_TIMEOUT, found)
        .await?
        .ok_or_else(missing)?;
    let (status, state) = match with_timeout(ROW_TIMEOUT, state.queue.cancel_signed(id, &signed))
        .await?
    {
        CancelAnswer::Cancelled | CancelAnswer::Ended(JobState::Cancelled) => {
            (StatusCode::OK, "cancelled")
        }
        CancelAnswer::Requested => (StatusCode::ACCEPTED, "cancelling"),
        CancelAnswer::Ended(ended) => {
            let detail = format!(
                "the job of notification {id} is already {}, so it cannot be cancelled; an item \
                 of an open digest is withdrawn with DELETE /api/v1/digests/items/{id}",
                ended.as_str()
            );
            return Err(Problem::new(Code::WrongState, detail));
        }
        CancelAnswer::NotFound => return Err(missing()),
    };
    Ok((status, Json(CancelledNotification { id, state })))
}
