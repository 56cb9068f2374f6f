//! Pause and resumption of one throttle.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::response::IntoResponse;

use super::knobs::{answer, name_of, view};
use super::state::ThrottlesState;
use super::view::View;
use crate::api::audit::entry::AuditEntry;
use crate::api::audit::log;
use crate::api::http::caller::Caller;
use crate::api::http::operate::{Reason, signed};
use crate::api::http::problem::Problem;
use crate::throttle::Change;

/// Pauses a throttle: it grants nothing until it is resumed; its knobs are kept.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/pause", operation_id = "pause_throttle", tag = "throttles",
    params(("name" = String, Path, description = "The name, with slashes percent-encoded.")),
    request_body = Reason,
    responses((status = 200, body = View)))]
pub async fn pause_throttle(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    turn(&state, &caller, name, request, "1", "throttle.pause").await
}

/// Resumes a paused throttle, from an empty bucket.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/resume", operation_id = "resume_throttle", tag = "throttles",
    params(("name" = String, Path, description = "The name, with slashes percent-encoded.")),
    request_body = Reason,
    responses((status = 200, body = View)))]
pub async fn resume_throttle(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    turn(&state, &caller, name, request, "0", "throttle.resume").await
}

async fn turn(
    state: &ThrottlesState,
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

    let (before, after) = state.throttles.set(&name, &change).await?;

    let entry = AuditEntry::turned(action, &change, before.as_ref(), &after).by(caller);
    let mut view = view(&after, state.live.sample().as_deref());
    view.warnings.extend(log::note(&state.queue, &entry).await);
    Ok(answer(view))
}
