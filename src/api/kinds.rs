//! The kinds that can be enqueued: list and register.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::json;

use super::audit::entry::AuditEntry;
use super::audit::log;
use super::http::caller::Caller;
use super::http::fields::{Errors, FieldLocation, clipped};
use super::http::operate::signed;
use super::http::problem::{Code, Problem};
use super::http::timeout::{ROW_TIMEOUT, with_timeout};
use super::jobs::input::KIND_BYTES_MAX;
use super::jobs::state::JobsState;
use crate::jobs::{Queue, RegisteredKind};

/// All kinds.
#[derive(Serialize, utoipa::ToSchema)]
pub struct KindList {
    /// The kinds, by name.
    kinds: Vec<RegisteredKind>,
}

/// The registration of a kind.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct KindBody {
    /// True if every role and every token that may enqueue may enqueue it; unchanged if absent, and
    /// true for a new kind. Only for kinds of other programs: for those of this one the setting
    /// `[kinds.<name>]` `public` says it.
    public: Option<bool>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// A kind with warnings for its sender.
#[derive(Serialize, utoipa::ToSchema)]
pub struct KindView {
    /// The kind.
    #[serde(flatten)]
    kind: RegisteredKind,
    /// Warnings about side effects that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Lists the kinds that can be enqueued: those that a worker has announced, and those that were
/// registered.
#[utoipa::path(get, path = "/api/v1/kinds", operation_id = "list_kinds", tag = "jobs", responses((status = 200, body = KindList)))]
pub async fn list(State(queue): State<Queue>) -> Result<Json<KindList>, Problem> {
    let kinds = with_timeout(ROW_TIMEOUT, queue.kinds()).await?;
    Ok(Json(KindList { kinds }))
}

/// Returns the fault of `public` for a kind whose handler this program has: its handler and the
/// settings decide who may enqueue it, whatever the database says.
pub fn of_settings(kind: &str) -> String {
    format!(
        "is for kinds of other programs; this program runs {kind} itself, and the setting \
         [kinds.{kind}] public says who may enqueue it"
    )
}

/// Registers a kind before its first worker starts, or says who may enqueue it.
#[utoipa::path(put, path = "/api/v1/kinds/{name}", operation_id = "register_kind", tag = "jobs",
    params(("name" = String, Path, description = "The name of the kind.")),
    request_body = KindBody,
    responses((status = 200, body = KindView)))]
pub async fn register(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<KindView>, Problem> {
    if name.is_empty() || name.len() > KIND_BYTES_MAX || name.contains('\0') {
        let message = format!(
            "{:?} is not the name of a kind; allowed: 1 to {KIND_BYTES_MAX} bytes without NUL",
            clipped(&name)
        );
        return Err(Problem::at(
            Code::InvalidPath,
            FieldLocation::Path,
            "name",
            message,
        ));
    }
    let (public, signed) = signed(request, &caller, &["public"], |fields| {
        fields.flag("public")
    })
    .await?;
    // It is a permission: an operator must not give itself one.
    if public.is_some() && !caller.leave.is_admin() {
        let (token, scopes) = (caller.token_name(), caller.leave.scopes_reported());
        let detail = format!(
            "public: says who may enqueue a kind and needs the scope admin; token {token} has {scopes}"
        );
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    if public.is_some() && state.kinds.get(&name).is_some() {
        let mut errors = Errors::default();
        errors.body("/public", of_settings(&name));
        return Err(Problem::fields(Code::InvalidFields, errors));
    }
    let kind = with_timeout(ROW_TIMEOUT, state.queue.register_kind(&name, public)).await?;
    let mut entry = AuditEntry::now(signed.by, "kind.register", name, signed.why).by(&caller);
    entry.after = Some(json!({ "public": kind.public }));
    let warnings = log::note(&state.queue, &entry).await.into_iter().collect();
    Ok(Json(KindView { kind, warnings }))
}
