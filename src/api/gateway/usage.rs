//! The use of channels by tenants, for operators and for each tenant itself.

use std::sync::Arc;

use axum::extract::{Query as Pairs, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::Serialize;

use super::state::GatewayState;
use crate::api::clock;
use crate::api::gates::check::tenant_of;
use crate::api::http::caller::Caller;
use crate::api::http::link::{encoded, next_link};
use crate::api::http::problem::Problem;
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::api::tenants::TenantsQuery;
use crate::gateway::postgres::{ChannelUsage, channel_usage};
use crate::gateway::service::ChannelLimits;

/// The most questions to Redis at a time.
const CONCURRENCY: usize = 16;

/// A page of the use of channels.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ChannelTenants {
    /// The time of this answer.
    at: Timestamp,
    /// The tenants that have used channels, by name, and the operators last.
    tenants: Vec<ChannelTenant>,
    /// The URL of the next page; also in the Link header.
    next: Option<String>,
}

/// The use of channels by one tenant.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ChannelTenant {
    /// The name of the tenant; empty for operators.
    tenant: String,
    /// Open connections over all processes, at their last report.
    connections: i64,
    /// The most connections; `null` without a limit, and while Redis does not answer.
    connections_max: Option<i64>,
    /// Messages within the last second, or within the first window of the throttle `ws:<tenant>` if
    /// that is another; `null` while Redis does not answer.
    messages_used: Option<i64>,
    /// The most messages within that time; `null` as above.
    messages_max: Option<i64>,
    /// Messages since the tenant's first.
    messages: i64,
    /// Messages that wait because the tenant is at its limit, at most 10,000.
    waiting: i64,
    /// The times that it reached its limit.
    limited: i64,
    /// The last time that it did; `null` if it never did.
    limited_at: Option<Timestamp>,
    /// Warnings that its connections got, from the processes of the last hour.
    warnings: i64,
}

/// Lists the use of channels by tenants. A token of a tenant sees its own.
#[utoipa::path(get, path = "/api/v1/channels", operation_id = "list_channel_usage", tag = "channels",
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 200; 50 if absent."),
        ("after" = Option<String>, Query, description = "The cursor: the value of `next`.")),
    responses((status = 200, body = ChannelTenants, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list_channel_usage(
    State(state): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let TenantsQuery {
        tenant,
        limit,
        after,
    } = TenantsQuery::read(pairs)?;
    let only = match (&caller.tenant, &tenant) {
        (None, None) => None,
        _ => Some(tenant_of(&caller, tenant.as_deref())?),
    };
    let gateway = &state.gateway;
    let found = channel_usage(&gateway.db, only.as_deref(), &after, limit);
    let found = with_timeout(LIST_TIMEOUT, found).await?;
    // Nobody comes behind the operators.
    let goes_on = |last: &&ChannelUsage| found.len() as i64 >= limit && !last.tenant.is_empty();
    let last = found.last().filter(goes_on);
    let next = last.map(|last| {
        let after = encoded(&last.tenant);
        format!("/api/v1/channels?limit={limit}&after={after}")
    });
    let looked = stream::iter(found).map(|usage| async move {
        let limits = gateway.channel_limits(&usage.tenant).await;
        view(usage, limits)
    });
    let page = ChannelTenants {
        at: clock::now(),
        tenants: looked.buffered(CONCURRENCY).collect().await,
        next,
    };
    Ok((next_link(page.next.as_deref()), Json(page)))
}

fn view(usage: ChannelUsage, limits: ChannelLimits) -> ChannelTenant {
    ChannelTenant {
        tenant: usage.tenant,
        connections: usage.connections,
        connections_max: limits.connections,
        messages_used: limits.used,
        messages_max: limits.per_second,
        messages: usage.messages,
        waiting: usage.waiting,
        limited: usage.limited,
        limited_at: usage.limited_at,
        warnings: usage.warnings,
    }
}
