//! The way of a message through its gates.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};

use crate::admission::WaitingMessage;
use crate::api::http::caller::Caller;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::show::id_of;
use crate::api::notifications::accept::AdmissionState;
use crate::api::notifications::accepted::until;
use crate::notify::DeliveryState;
use crate::recipient::explain::MessageExplanation;
use crate::recipient::service::Gates;

/// Explains a message: each gate with what it found and by which rule, and what comes after.
#[utoipa::path(get, path = "/api/v1/notifications/{id}/explain", operation_id = "explain_notification", tag = "notifications",
    params(("id" = i64, Path, description = "The number of its job.")),
    responses((status = 200, body = MessageExplanation)))]
pub async fn explain(
    State(gates): State<Gates>,
    State(admission): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<MessageExplanation>, Problem> {
    let id = id_of(&id)?;
    let explained = gates.explain(id, caller.tenant.as_deref());
    let found = with_timeout(ROW_TIMEOUT, explained).await?;
    let mut explained = found.ok_or_else(|| {
        Problem::new(
            Code::NotificationNotFound,
            format!("there is no notification {id}; finished ones are kept for a limited time"),
        )
    })?;
    if explained.state == DeliveryState::Queued.as_str() {
        let pause = admission.batches.pause_of(id);
        if let Ok(Some(pause)) = with_timeout(ROW_TIMEOUT, pause).await {
            tell_pause(&mut explained, &pause);
            return Ok(Json(explained));
        }
        match with_timeout(ROW_TIMEOUT, admission.admission.waiting(id)).await {
            Ok(Some(waiting)) => tell_admission(&mut explained, &waiting),
            Ok(None) => {}
            // What the gates know is worth telling without the wait.
            Err(problem) => tracing::warn!(job.id = id, ?problem, "reading a wait failed"),
        }
    }
    Ok(Json(explained))
}

/// Adds to the explanation of a message that its batch is paused, about which the gates know nothing.
pub fn tell_pause(explained: &mut MessageExplanation, pause: &str) {
    explained.sentence = format!("message {} waits: {pause}", explained.id);
    explained.planned_at = None;
}

/// Adds to the explanation of a message that it has passed its gates and waits for the limits of
/// its tenant, about which the gates know nothing.
pub fn tell_admission(explained: &mut MessageExplanation, waiting: &WaitingMessage) {
    explained.sentence = format!(
        "message {} has passed its gates and {}",
        explained.id,
        waiting.reason()
    );
    explained.planned_at = until(waiting);
}
