//! Pause and resumption of everything.

use axum::extract::{Request, State};
use axum::{Extension, Json};
use serde::Serialize;

use crate::api::http::caller::Caller;
use crate::api::http::operate::{Reason, signed};
use crate::api::http::problem::Problem;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::{Pause, Queue};

/// The state of the pause of everything.
#[derive(Serialize, utoipa::ToSchema)]
pub struct PauseState {
    /// The pause in force; `null` if there is none.
    paused: Option<Pause>,
    /// True if this request changed the state.
    changed: bool,
}

/// Shows whether everything is paused.
#[utoipa::path(get, path = "/api/v1/pause", operation_id = "show_pause", tag = "pause", responses((status = 200, body = PauseState)))]
pub async fn show(State(queue): State<Queue>) -> Result<Json<PauseState>, Problem> {
    let paused = with_timeout(ROW_TIMEOUT, queue.paused()).await?;
    Ok(Json(PauseState {
        paused,
        changed: false,
    }))
}

/// Pauses everything: no worker claims a job until it is resumed; running jobs continue.
#[utoipa::path(post, path = "/api/v1/pause", operation_id = "pause_all", tag = "pause", request_body = Reason,
    responses((status = 200, body = PauseState)))]
pub async fn pause(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<PauseState>, Problem> {
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let changed = with_timeout(ROW_TIMEOUT, queue.pause_all(&signed)).await?;
    let paused = with_timeout(ROW_TIMEOUT, queue.paused()).await?;
    Ok(Json(PauseState { paused, changed }))
}

/// Ends the pause of everything.
#[utoipa::path(post, path = "/api/v1/resume", operation_id = "resume_all", tag = "pause", request_body = Reason,
    responses((status = 200, body = PauseState)))]
pub async fn resume(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<PauseState>, Problem> {
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let changed = with_timeout(ROW_TIMEOUT, queue.resume_all(&signed)).await?;
    Ok(Json(PauseState {
        paused: None,
        changed,
    }))
}
