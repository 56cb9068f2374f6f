//! Groups that exist: list, show, seal, cancel.

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;

use crate::api::http::caller::Caller;
use crate::api::http::fields::FieldLocation;
use crate::api::http::lagging::read_list;
use crate::api::http::link::{next_link, next_page};
use crate::api::http::operate::{Reason, signed};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::api::jobs::redact::mask_group;
use crate::api::tenants::{NAME_BYTES_MAX, only};
use crate::jobs::{CancelledGroup, GroupFilter, GroupState, JobGroup, Queue, SealAnswer};

/// A page of groups.
#[derive(Serialize, utoipa::ToSchema)]
pub struct GroupList {
    /// The groups, newest first.
    groups: Vec<JobGroup>,
    /// The URL of the next page; also in the Link header. `null` at the end.
    next: Option<String>,
}

/// Lists groups of jobs, newest first. A token of a tenant sees those of its tenant.
#[utoipa::path(get, path = "/api/v1/groups", operation_id = "list_groups", tag = "groups",
    params(
        ("tenant" = Option<String>, Query, description = "Only those of this tenant."),
        ("state" = Option<String>, Query, description = "Only those in this state: `open`, `running` or `ended`."),
        ("created_before" = Option<Timestamp>, Query, description = "Only those that were created before this time."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("before" = Option<i64>, Query, description = "Only those with a lower number: the cursor in `next`.")),
    responses((status = 200, body = GroupList, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let allowed = ["tenant", "state", "created_before", "limit", "before"];
    let mut query = Query::open(pairs, &allowed);
    let named = query.text("tenant", NAME_BYTES_MAX);
    let state = query.choice("state", &GroupState::WORDS);
    let created_before = query.time("created_before");
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let before = query.whole("before", 1..=i64::MAX);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let groups = match only(&caller, named.as_deref()) {
        Ok(tenant) => {
            let filter = &GroupFilter {
                tenant: tenant.map(str::to_owned),
                state,
                created_before,
                before,
                limit,
            };
            read_list(&queue, |queue| async move { queue.groups(filter).await }).await?
        }
        Err(_) => Vec::new(),
    };
    let last = groups.last().filter(|_| groups.len() as i64 == limit);
    let next = last.map(|last| {
        let filter = [
            ("tenant", named),
            ("state", state.map(|state| state.as_str().to_owned())),
            ("created_before", created_before.map(|at| at.to_string())),
        ];
        next_page("/api/v1/groups", &filter, limit, ("before", last.id))
    });
    let groups = groups.into_iter().map(mask_group).collect();
    let page = GroupList { groups, next };
    Ok((next_link(page.next.as_deref()), Json(page)))
}

/// Shows a group: its state, its counts and its callback.
#[utoipa::path(get, path = "/api/v1/groups/{id}", operation_id = "show_group", tag = "groups",
    params(("id" = i64, Path, description = "The number of the group.")),
    responses((status = 200, body = JobGroup)))]
pub async fn show(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<JobGroup>, Problem> {
    let id = group_id(&id)?;
    shown(&queue, &caller, id).await.map(Json)
}

/// Seals a group: no more jobs can join it, and when all have ended, its callback is enqueued. Its
/// answer is the same the second time.
#[utoipa::path(post, path = "/api/v1/groups/{id}/seal", operation_id = "seal_group", tag = "groups",
    params(("id" = i64, Path, description = "The number of the group.")),
    responses((status = 200, body = JobGroup)))]
pub async fn seal(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<JobGroup>, Problem> {
    let id = group_id(&id)?;
    let seal = queue.seal_group(id, caller.tenant.as_deref());
    match with_timeout(ROW_TIMEOUT, seal).await? {
        SealAnswer::NotFound => Err(not_found(id)),
        SealAnswer::Sealed | SealAnswer::Ended | SealAnswer::Already => {
            shown(&queue, &caller, id).await.map(Json)
        }
    }
}

/// Cancels the jobs of a group, some thousands at a time, and seals it: waiting ones end at once,
/// running ones are asked to stop. Its callback is enqueued when all have ended.
#[utoipa::path(post, path = "/api/v1/groups/{id}/cancel", operation_id = "cancel_group", tag = "groups",
    params(("id" = i64, Path, description = "The number of the group.")), request_body = Reason,
    responses((status = 200, body = CancelledGroup)))]
pub async fn cancel(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<CancelledGroup>, Problem> {
    let id = group_id(&id)?;
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let cancelled = with_timeout(LIST_TIMEOUT, queue.cancel_group(id, &signed)).await?;
    cancelled.map(Json).ok_or_else(|| not_found(id))
}

/// Returns a group that the caller may see.
pub(super) async fn shown(queue: &Queue, caller: &Caller, id: i64) -> Result<JobGroup, Problem> {
    let read = queue.group(id, caller.tenant.as_deref());
    let found = with_timeout(ROW_TIMEOUT, read).await?;
    found.map(mask_group).ok_or_else(|| not_found(id))
}

fn group_id(text: &str) -> Result<i64, Problem> {
    let id = text.parse().ok().filter(|id| *id > 0);
    id.ok_or_else(|| {
        let message = "must be the number of a group";
        Problem::at(Code::InvalidPath, FieldLocation::Path, "id", message)
    })
}

fn not_found(id: i64) -> Problem {
    Problem::new(
        Code::GroupNotFound,
        format!("there is no group {id}; groups that have ended are kept for a limited time"),
    )
}
