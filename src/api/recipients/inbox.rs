//! The inbox of a recipient, for the programs of its tenant. Its own devices use the gateway.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;

use super::profiles::{id_of, tenant};
use crate::api::gateway::state::GatewayState;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, ObjectReader};
use crate::api::http::link::{encoded, next_link};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::inbox::request::{
    CATEGORY_BYTES, CURSOR_FORM, FILTERS, ID_BYTES, MARK_FIELDS, MarkRequest, PAGE_MAX, PAGE_USUAL,
    PageRequest, id_of as message_id_of, words,
};
use crate::inbox::{InboxCounts, InboxMessage};

/// The parameters of a list.
const LIST_PARAMETERS: [&str; 5] = ["cursor", "limit", "state", "category", "tenant"];

/// A page of an inbox.
#[derive(Serialize, utoipa::ToSchema)]
pub struct InboxList {
    /// The messages, newest first. A page may be short though more follow.
    messages: Vec<InboxMessage>,
    /// The counts of the whole inbox.
    counts: InboxCounts,
    /// The URL of the next page; also in the Link header.
    next: Option<String>,
}

/// A mark of messages: `ids`, or else `all_up_to`.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewMark {
    /// The ids of the messages, at most 1,000.
    ids: Option<Vec<String>>,
    /// All messages up to this id, or that came until this time; archived ones only for
    /// `unarchived`. A message that comes meanwhile is not among them.
    all_up_to: Option<String>,
    /// The mark.
    r#as: String,
}

/// The result of a mark.
#[derive(Serialize, utoipa::ToSchema)]
pub struct MarkedInbox {
    /// Messages whose state changed.
    changed: i64,
    /// Messages that were not seen.
    unseen: i64,
    /// Messages that were not read.
    unread: i64,
}

/// Lists the messages in the inbox of a recipient, newest first; archived ones only with
/// `state=archived`.
#[utoipa::path(get, path = "/api/v1/recipients/{recipient}/inbox", operation_id = "list_inbox", tag = "notifications",
    params(
        ("recipient" = String, Path, description = "The id of the recipient."),
        ("cursor" = Option<String>, Query, description = "The cursor: only messages before the one with this id."),
        ("limit" = Option<i64>, Query, description = "The maximum number of messages, 1 to 100; 50 if absent."),
        ("state" = Option<String>, Query, description = "Only messages in this state; `unread` are the unseen and the seen ones."),
        ("category" = Option<String>, Query, description = "Only messages of this category."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = InboxList, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list_inbox(
    State(state): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    Path(recipient): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(pairs, &LIST_PARAMETERS);
    let cursor = query.text("cursor", ID_BYTES);
    let before = cursor.as_deref().and_then(message_id_of);
    if cursor.is_some() && before.is_none() {
        query.wrong("cursor", CURSOR_FORM);
    }
    let asked = PageRequest {
        before,
        limit: query.whole("limit", 1..=PAGE_MAX).unwrap_or(PAGE_USUAL),
        state: query.choice("state", &words(FILTERS)),
        category: query.text("category", CATEGORY_BYTES),
    };
    let tenant = tenant(query, &caller)?;
    let recipient = id_of(recipient)?;
    let page = state.inbox.page(&tenant, &recipient, &asked);
    let page = with_timeout(LIST_TIMEOUT, page).await?;
    let counts = with_timeout(ROW_TIMEOUT, state.inbox.counts(&tenant, &recipient)).await?;
    let next = page.next.map(|cursor| {
        let mut url = format!(
            "/api/v1/recipients/{}/inbox?limit={}&cursor={cursor}",
            encoded(&recipient),
            asked.limit
        );
        let named = Some(&tenant).filter(|tenant| caller.tenant.is_none() && !tenant.is_empty());
        let state = asked.state.map(str::to_owned);
        for (name, value) in [
            ("state", state.as_ref()),
            ("category", asked.category.as_ref()),
            ("tenant", named),
        ] {
            if let Some(value) = value {
                url.push_str(&format!("&{name}={}", encoded(value)));
            }
        }
        url
    });
    let list = InboxList {
        messages: page.messages,
        counts,
        next,
    };
    Ok((next_link(list.next.as_deref()), Json(list)))
}

/// Returns the counts of the inbox of a recipient.
#[utoipa::path(get, path = "/api/v1/recipients/{recipient}/inbox/counts", operation_id = "count_inbox", tag = "notifications",
    params(
        ("recipient" = String, Path, description = "The id of the recipient."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = InboxCounts)))]
pub async fn count_inbox(
    State(state): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    Path(recipient): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<InboxCounts>, Problem> {
    let tenant = tenant(Query::open(pairs, &["tenant"]), &caller)?;
    let recipient = id_of(recipient)?;
    let counts = state.inbox.counts(&tenant, &recipient);
    Ok(Json(with_timeout(ROW_TIMEOUT, counts).await?))
}

/// Marks messages in the inbox of a recipient, and tells its connected devices.
#[utoipa::path(post, path = "/api/v1/recipients/{recipient}/inbox/mark", operation_id = "mark_inbox", tag = "notifications", request_body = NewMark,
    params(
        ("recipient" = String, Path, description = "The id of the recipient."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = MarkedInbox)))]
pub async fn mark_inbox(
    State(state): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    Path(recipient): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    request: Request,
) -> Result<Json<MarkedInbox>, Problem> {
    let tenant = tenant(Query::open(pairs, &["tenant"]), &caller)?;
    let recipient = id_of(recipient)?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let mut errors = Errors::default();
    let asked = ObjectReader::open(value, "", &MARK_FIELDS, &mut errors)
        .and_then(|mut fields| MarkRequest::take(&mut fields));
    let Some(asked) = asked.filter(|_| errors.is_empty()) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    let waiting_max = state.gateway.delay_line(&tenant).await;
    let marked = state.inbox.mark(&tenant, &recipient, &asked, waiting_max);
    let marked = with_timeout(LIST_TIMEOUT, marked).await?;
    Ok(Json(MarkedInbox {
        changed: marked.changed,
        unseen: marked.counts.unseen,
        unread: marked.counts.unread,
    }))
}
