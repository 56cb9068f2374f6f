//! The list of batches, newest first.

use std::sync::Arc;

use axum::extract::{Query as Pairs, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;

use super::accept::AdmissionState;
use crate::admission::{Batch, BatchFilter, BatchPage, Batches};
use crate::api::clock;
use crate::api::http::caller::Caller;
use crate::api::http::link::{next_link, next_page};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::api::http::token_scope::TokenScope;
use crate::api::tenants::{NAME_BYTES_MAX, only};

/// The most batches of a page, whose messages are counted for each answer.
pub const LIMIT_MAX: i64 = 100;

/// The states of a batch, for the query.
pub const STATES: [(&str, &str); 5] = {
    let [a, b, c, d, e] = Batches::STATES;
    [(a, a), (b, b), (c, c), (d, d), (e, e)]
};

/// A page of batches.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BatchesOfMessages {
    /// The time of this answer.
    at: Timestamp,
    /// The batches, newest first. A page may be short or empty although more follow.
    batches: Vec<Batch>,
    /// True if the token may pause, resume and cancel them.
    may_change: bool,
    /// True if the token is bound to no tenant: it pauses a batch that its tenant has paused as
    /// well, and resumes one that operators have paused.
    may_overrule: bool,
    /// The URL of the next page; also in the Link header. `null` at the end.
    next: Option<String>,
}

/// Lists batches, newest first. A token of a tenant sees those of its tenant.
#[utoipa::path(get, path = "/api/v1/notifications/batches", operation_id = "list_batches", tag = "notifications",
    params(
        ("tenant" = Option<String>, Query, description = "Only those of this tenant."),
        ("module" = Option<String>, Query, description = "Only those of this module."),
        ("state" = Option<String>, Query, description = "Only those in this state."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 100; 20 if absent."),
        ("before" = Option<i64>, Query, description = "Only those with a lower number: the cursor in `next`.")),
    responses((status = 200, body = BatchesOfMessages, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list_batches(
    State(state): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(pairs, &["tenant", "module", "state", "limit", "before"]);
    let named = query.text("tenant", NAME_BYTES_MAX);
    let module = query.text("module", NAME_BYTES_MAX);
    let chosen = query.choice("state", &STATES);
    let limit = query.whole("limit", 1..=LIMIT_MAX).unwrap_or(20);
    let before = query.whole("before", 1..=i64::MAX);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let page = match only(&caller, named.as_deref()) {
        Ok(tenant) => {
            let wanted = BatchFilter {
                tenant,
                module: module.as_deref(),
                state: chosen,
                before,
                limit,
            };
            let page = state.admission.list_batches(wanted);
            with_timeout(LIST_TIMEOUT, page).await?
        }
        Err(_) => BatchPage::default(),
    };
    let next = page.next.map(|before| {
        let filter = [
            ("tenant", named),
            ("module", module),
            ("state", chosen.map(str::to_owned)),
        ];
        next_page(
            "/api/v1/notifications/batches",
            &filter,
            limit,
            ("before", before),
        )
    });
    let page = BatchesOfMessages {
        at: clock::now(),
        batches: page.batches,
        may_change: caller.leave.has(TokenScope::NotifySend),
        may_overrule: caller.tenant.is_none(),
        next,
    };
    Ok((next_link(page.next.as_deref()), Json(page)))
}
