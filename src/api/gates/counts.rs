//! The numbers of held and collected messages.

use axum::Json;
use axum::extract::State;

use crate::api::http::problem::Problem;
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::recipient::postgres::HeldCounts;
use crate::recipient::service::Gates;

/// Counts the messages that each gate holds, and the items of each type of digest, of all tenants.
#[utoipa::path(get, path = "/api/v1/gates", operation_id = "show_gates", tag = "notifications",
    responses((status = 200, body = HeldCounts)))]
pub async fn show_gates(State(gates): State<Gates>) -> Result<Json<HeldCounts>, Problem> {
    Ok(Json(with_timeout(LIST_TIMEOUT, gates.held_counts()).await?))
}
