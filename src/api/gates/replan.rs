//! A new plan for the held messages of a recipient.

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use serde::Serialize;

use super::check::tenant_of;
use crate::api::http::caller::Caller;
use crate::api::http::fields::FieldLocation;
use crate::api::http::operate::signed;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::api::notifications::suppressions::RECIPIENT_BYTES_MAX;
use crate::api::tenants::NAME_BYTES_MAX;
use crate::recipient::service::Gates;

/// The recipient's tenant, the author and the reason.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewPlan {
    /// The tenant whose recipient it is, for operators; their own if absent.
    tenant: Option<String>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// The messages that are planned again.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ReplannedMessages {
    /// Their number.
    messages: i64,
}

/// Plans the held messages of a recipient again, after its time zone, quiet hours or preferences
/// have changed. For messages that name an address alone, the id is the address.
#[utoipa::path(post, path = "/api/v1/recipients/{id}/replan", operation_id = "replan_recipient", tag = "notifications",
    params(("id" = String, Path, description = "The id of the recipient, or an address.")), request_body = NewPlan,
    responses((status = 200, body = ReplannedMessages)))]
pub async fn replan(
    State(gates): State<Gates>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<ReplannedMessages>, Problem> {
    if id.len() > RECIPIENT_BYTES_MAX || id.contains('\0') {
        let message = format!("must be a text of 1 to {RECIPIENT_BYTES_MAX} bytes without NUL");
        return Err(Problem::at(
            Code::InvalidPath,
            FieldLocation::Path,
            "id",
            message,
        ));
    }
    let read = signed(request, &caller, &["tenant"], |fields| {
        fields.text_or_null("tenant", 0..=NAME_BYTES_MAX)
    });
    let (named, signed) = read.await?;
    let tenant = tenant_of(&caller, named.as_deref())?;
    let replanned = gates.replan(&tenant, &id, &signed);
    let messages = with_timeout(LIST_TIMEOUT, replanned).await?;
    Ok(Json(ReplannedMessages { messages }))
}
