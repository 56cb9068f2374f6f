//! Pause and resumption of one throttle.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::response::IntoResponse;

use super::knobs::{answer, name_of, view};
use super::state::ThrottlesState;
use super::view::View;
use crate::admission::{PausedBy, tenant_author};
use crate::api::audit::entry::AuditEntry;
use crate::api::audit::log;
use crate::api::http::caller::Caller;
use crate::api::http::operate::{Reason, signed};
use crate::api::http::problem::{Code, Problem};
use crate::throttle::{self, Change, Name, Status};

/// The times that a change of a tenant is tried while others change the knobs.
const TRIES: usize = 3;

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

/// Resumes a paused throttle, from an empty bucket. A token of a tenant resumes only what one of its
/// tenant's tokens has paused.
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
    let mut change = Change {
        fields,
        by: signed.by.clone(),
        why: signed.why,
        ..Change::default()
    };
    let (before, after) = match caller.tenant.as_deref() {
        Some(tenant) => {
            change.by = tenant_author(tenant, &signed.by);
            turn_of_tenant(state, tenant, &name, &mut change).await?
        }
        None => state.throttles.set(&name, &change).await?,
    };

    let entry = AuditEntry {
        actor: signed.by,
        ..AuditEntry::turned(action, &change, before.as_ref(), &after)
    };
    let entry = entry.by(caller);
    let mut view = view(caller, &after, state.live.sample().as_deref());
    view.warnings.extend(log::note(&state.queue, &entry).await);
    Ok(answer(view))
}

/// Makes a tenant's change, unless operators have paused the throttle.
async fn turn_of_tenant(
    state: &ThrottlesState,
    tenant: &str,
    name: &Name,
    change: &mut Change,
) -> Result<(Option<Status>, Status), Problem> {
    let mut tries = 1;
    loop {
        let status = state.throttles.status(name).await?;
        refuse_operators_pause(name, tenant, status.as_ref())?;
        // An operator may pause it meanwhile.
        change.if_seq = status.map(|status| status.knobs.seq);
        match state.throttles.set(name, change).await {
            // The request named no `seq`, so a change of another knob is no conflict with it.
            Err(throttle::Error::Conflict { .. }) if tries < TRIES => tries += 1,
            turned => return Ok(turned?),
        }
    }
}

/// Refuses a tenant's change of a pause that is not its own. One that it paused once more would be
/// its own.
fn refuse_operators_pause(
    name: &Name,
    tenant: &str,
    status: Option<&Status>,
) -> Result<(), Problem> {
    let Some(status) = status.filter(|status| status.knobs.paused) else {
        return Ok(());
    };
    match PausedBy::of(tenant, &status.knobs, status.at_us) {
        Some(PausedBy::Operators) => Err(paused_by_operators(&format!("throttle {name}"))),
        _ => Ok(()),
    }
}

/// Returns the refusal of a tenant that would end a pause of operators.
pub fn paused_by_operators(what: &str) -> Problem {
    let detail = format!("{what} is paused by operators, and only they resume it");
    Problem::new(Code::NotAllowed, detail)
}
