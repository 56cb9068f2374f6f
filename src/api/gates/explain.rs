//! The way of a message through its gates.

use axum::extract::{Path, State};
use axum::{Extension, Json};

use crate::api::http::caller::Caller;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::show::id_of;
use crate::recipient::explain::MessageExplanation;
use crate::recipient::service::Gates;

/// Explains a message: each gate with what it found and by which rule, and what comes after.
#[utoipa::path(get, path = "/api/v1/notifications/{id}/explain", operation_id = "explain_notification", tag = "notifications",
    params(("id" = i64, Path, description = "The number of its job.")),
    responses((status = 200, body = MessageExplanation)))]
pub async fn explain(
    State(gates): State<Gates>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<MessageExplanation>, Problem> {
    let id = id_of(&id)?;
    let explained = gates.explain(id, caller.tenant.as_deref());
    let found = with_timeout(ROW_TIMEOUT, explained).await?;
    found.map(Json).ok_or_else(|| {
        Problem::new(
            Code::NotificationNotFound,
            format!("there is no notification {id}; finished ones are kept for a limited time"),
        )
    })
}
