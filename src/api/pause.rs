//! Pause and resumption of everything, or of one throttle.

use std::collections::BTreeMap;

use axum::extract::{Path, Request, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;

use super::audit::{self, AuditEntry};
use super::auth::Caller;
use super::moves::Reason;
use super::operate::signed;
use super::problem::Problem;
use super::state::ApiState;
use super::throttle_view::View;
use super::throttles::{answer, name_of, view};
use super::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::Pause;
use crate::throttle::Change;

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
pub async fn show(State(app): State<ApiState>) -> Result<Json<PauseState>, Problem> {
    let paused = with_timeout(ROW_TIMEOUT, app.deps.queue.paused()).await?;
    Ok(Json(PauseState {
        paused,
        changed: false,
    }))
}

/// Pauses everything: no worker claims a job until it is resumed; running jobs continue.
#[utoipa::path(post, path = "/api/v1/pause", operation_id = "pause_all", tag = "pause", request_body = Reason,
    responses((status = 200, body = PauseState)))]
pub async fn pause(
    State(app): State<ApiState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<PauseState>, Problem> {
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let changed = with_timeout(ROW_TIMEOUT, app.deps.queue.pause_all(&signed)).await?;
    let paused = with_timeout(ROW_TIMEOUT, app.deps.queue.paused()).await?;
    Ok(Json(PauseState { paused, changed }))
}

/// Ends the pause of everything.
#[utoipa::path(post, path = "/api/v1/resume", operation_id = "resume_all", tag = "pause", request_body = Reason,
    responses((status = 200, body = PauseState)))]
pub async fn resume(
    State(app): State<ApiState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<PauseState>, Problem> {
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let changed = with_timeout(ROW_TIMEOUT, app.deps.queue.resume_all(&signed)).await?;
    Ok(Json(PauseState {
        paused: None,
        changed,
    }))
}

/// Pauses a throttle: it grants nothing until it is resumed; its knobs are kept.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/pause", operation_id = "pause_throttle", tag = "throttles",
    params(("name" = String, Path, description = "The name, with slashes percent-encoded.")),
    request_body = Reason,
    responses((status = 200, body = View)))]
pub async fn pause_throttle(
    State(app): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    turn(&app, &caller, name, request, "1", "throttle.pause").await
}

/// Resumes a paused throttle, from an empty bucket.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/resume", operation_id = "resume_throttle", tag = "throttles",
    params(("name" = String, Path, description = "The name, with slashes percent-encoded.")),
    request_body = Reason,
    responses((status = 200, body = View)))]
pub async fn resume_throttle(
    State(app): State<ApiState>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    turn(&app, &caller, name, request, "0", "throttle.resume").await
}

async fn turn(
    app: &ApiState,
    caller: &Caller,
    name: String,
    request: Request,
    paused: &str,
    action: &str,
) -> Result<impl IntoResponse + use<>, Problem> {
    let name = name_of(name)?;
    let ((), signed) = signed(request, caller, &[], |_| ()).await?;
    let fields = BTreeMap::from([("paused".to_owned(), Some(paused.to_owned()))]);
    let change = Change {
        fields,
        by: signed.by,
        why: signed.why,
        ..Change::default()
    };

    let (before, after) = app.deps.throttles.set(&name, &change).await?;

    let entry = AuditEntry::turned(action, &change, before.as_ref(), &after).by(caller);
    let mut view = view(&after, app.deps.live.sample().as_deref());
    view.warnings.extend(audit::note(app, &entry).await);
    Ok(answer(view))
}
