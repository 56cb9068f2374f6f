//! Open digests, and the withdrawal of their items.

use axum::extract::{Path, Query as Pairs, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;

use crate::api::clock;
use crate::api::http::caller::Caller;
use crate::api::http::link::{encoded, next_link};
use crate::api::http::operate::signed_query;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::api::http::token_scope::TokenScope;
use crate::api::jobs::show::id_of;
use crate::api::tenants::{NAME_BYTES_MAX, only};
use crate::recipient::explain::DigestView;
use crate::recipient::postgres::DigestFilter;
use crate::recipient::service::Gates;

/// The longest cursor, in bytes.
pub(in crate::api) const CURSOR_BYTES_MAX: usize = 40;

/// A page of open digests.
#[derive(Serialize, utoipa::ToSchema)]
pub struct OpenDigests {
    /// The time of this answer.
    at: Timestamp,
    /// The digests, next to close first.
    digests: Vec<DigestView>,
    /// True if the token may withdraw items.
    may_change: bool,
    /// The URL of the next page; also in the Link header. `null` at the end.
    next: Option<String>,
}

/// An item that was withdrawn.
#[derive(Serialize, utoipa::ToSchema)]
pub struct WithdrawnItem {
    /// The number of the message's job.
    id: i64,
    /// The type of the digest that had it.
    digest: String,
}

/// Lists open digests, next to close first. A token of a tenant sees those of its tenant.
#[utoipa::path(get, path = "/api/v1/digests", operation_id = "list_digests", tag = "notifications",
    params(
        ("tenant" = Option<String>, Query, description = "Only those of this tenant."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("cursor" = Option<String>, Query, description = "The cursor, from `next`.")),
    responses((status = 200, body = OpenDigests, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list_digests(
    State(gates): State<Gates>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(pairs, &["tenant", "limit", "cursor"]);
    let named = query.text("tenant", NAME_BYTES_MAX);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let after = query.text("cursor", CURSOR_BYTES_MAX);
    let after = after.map(|cursor| place(&cursor));
    if after == Some(None) {
        query.wrong(
            "cursor",
            "it is not a cursor; use the value of \"next\", or omit it",
        );
    }
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let digests = match only(&caller, named.as_deref()) {
        Ok(tenant) => {
            let filter = DigestFilter {
                tenant: tenant.map(str::to_owned),
                after: after.flatten(),
                limit,
            };
            with_timeout(LIST_TIMEOUT, gates.open_digests(&filter)).await?
        }
        Err(_) => Vec::new(),
    };
    let is_full = i64::try_from(digests.len()).is_ok_and(|found| found >= limit);
    let next = digests.last().filter(|_| is_full).map(|last| {
        let tenant = named
            .map(|name| format!("tenant={}&", encoded(&name)))
            .unwrap_or_default();
        let cursor = cursor(last);
        format!("/api/v1/digests?{tenant}limit={limit}&cursor={cursor}")
    });
    let page = OpenDigests {
        at: clock::now(),
        digests,
        may_change: caller.leave.has(TokenScope::NotifySend),
        next,
    };
    Ok((next_link(page.next.as_deref()), Json(page)))
}

/// Withdraws an item from its digest, until the digest closes.
#[utoipa::path(delete, path = "/api/v1/digests/items/{id}", operation_id = "withdraw_item", tag = "notifications",
    params(
        ("id" = i64, Path, description = "The number of the message's job."),
        ("by" = Option<String>, Query, description = "The author of the change, for the audit log."),
        ("why" = Option<String>, Query, description = "The reason for the change, for the audit log.")),
    responses((status = 200, body = WithdrawnItem)))]
pub async fn withdraw_item(
    State(gates): State<Gates>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<WithdrawnItem>, Problem> {
    let id = id_of(&id)?;
    let signed = signed_query(pairs, &caller)?;
    let withdrawn = with_timeout(ROW_TIMEOUT, gates.withdraw(id, &signed)).await?;
    let digest = withdrawn.ok_or_else(|| {
        Problem::new(
            Code::DigestItemNotFound,
            format!("no open digest has notification {id}; its digest may have closed"),
        )
    })?;
    Ok(Json(WithdrawnItem { id, digest }))
}

fn cursor(last: &DigestView) -> String {
    format!("{}-{}", last.closes_at.as_microsecond(), last.id)
}

fn place(cursor: &str) -> Option<(Timestamp, i64)> {
    let (time, id) = cursor.split_once('-')?;
    let closes_at = Timestamp::from_microsecond(time.parse().ok()?).ok()?;
    let id = id.parse().ok().filter(|id| *id > 0)?;
    Some((closes_at, id))
}
