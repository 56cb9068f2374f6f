//! Tenants and their modules, with what they may still send and what waits.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, State};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;

use crate::admission::{
    AdmissionUsage, LevelUsage, ModuleLimit, TenantFilter, TenantQueue, TenantUsage,
};
use crate::api::clock;
use crate::api::http::caller::Caller;
use crate::api::http::link::{encoded, next_link};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::api::jobs::input::KEY_BYTES_MAX;
use crate::api::lanes::list::{
    LaneHold, LanePause, ORDERS, Order, after_of, cursor_of, holds, page as lanes_page,
};
use crate::api::notifications::accept::AdmissionState;
use crate::api::throttles::state::ThrottlesState;
use crate::api::throttles::view::since_s;
use crate::jobs::{LaneDepth, LanesAfter};
use crate::notify::TenantFeedback;
use crate::throttle::Name;
use crate::throttle::admission::throttle_of;

/// The longest name of a tenant or a module, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The most tenants of a page, and modules.
pub const LIMIT_MAX: i64 = 200;

/// The query of a list of tenants.
pub struct TenantsQuery {
    /// The only tenant that is wanted.
    pub tenant: Option<String>,
    /// The most tenants of the page.
    pub limit: i64,
    /// The name behind which the page begins; empty for the first page.
    pub after: String,
}

impl TenantsQuery {
    /// Reads the decoded pairs, and refuses them with everything that is wrong.
    pub fn read(pairs: Vec<(String, String)>) -> Result<Self, Problem> {
        let mut query = Query::open(pairs, &["tenant", "limit", "after"]);
        let tenant = query.text("tenant", NAME_BYTES_MAX);
        let limit = query.whole("limit", 1..=LIMIT_MAX).unwrap_or(50);
        let after = query.text("after", NAME_BYTES_MAX).unwrap_or_default();
        if !query.errors.is_empty() {
            return Err(Problem::fields(Code::InvalidQuery, query.errors));
        }
        Ok(Self {
            tenant,
            limit,
            after,
        })
    }
}

/// A page of tenants.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Tenants {
    /// The time of this answer.
    at: Timestamp,
    /// The tenants that have sent messages or have a limit of their own, by name.
    tenants: Vec<TenantView>,
    /// The URL of the next page; also in the Link header.
    next: Option<String>,
}

/// A tenant with what it may still send and what waits.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Tenant)]
pub struct TenantView {
    /// The name of the tenant.
    #[schema(example = "acme")]
    tenant: String,
    /// The throttle in whose lanes its messages wait, one for each module.
    throttle: String,
    /// The state: `paused`, `queue_full` if further messages are refused, `waiting` if messages
    /// wait for the limits, `at_limit` if the next one would, `flowing`, or `unknown` while Redis
    /// does not answer.
    state: &'static str,
    /// The use of the limit of all its modules together; `null` without a limit, and while Redis
    /// does not answer.
    window: Option<MessageWindow>,
    /// The limit of each of its modules; `null` as above.
    per_module: Option<ModuleLimit>,
    /// Messages that wait for the limits, at the last count.
    waiting: i64,
    /// Messages that wait for a time, or for their batch to be resumed, at the last count.
    scheduled: i64,
    /// Seconds for which the oldest waiting message has waited, since it was accepted or since the
    /// time for which it was; `null` where none waits.
    oldest_waiting_s: Option<f64>,
    /// The time of the last count; `null` before the first.
    counted_at: Option<Timestamp>,
    /// Messages that were accepted and have not ended; ended ones are subtracted within half a
    /// minute, or at once where the queue would be full. Counting stops at 20,000.
    pending: i64,
    /// The most that may be pending; `null` for no limit.
    pending_max: Option<i64>,
    /// The fate of its messages within the last 24 hours; `null` if that cannot be read.
    feedback: Option<TenantFeedback>,
}

/// The use of a limit: `used` and `remaining` add up to `limit`, unless critical messages went
/// beyond it.
#[derive(Serialize, utoipa::ToSchema)]
pub struct MessageWindow {
    /// The most messages within any span.
    limit: u64,
    /// The span, in seconds.
    span_s: f64,
    /// Messages within the last span.
    used: u64,
    /// Messages that may be sent now.
    remaining: u64,
    /// The time at which the next slot frees; `null` while one is free.
    next_at: Option<Timestamp>,
    /// The time at which the oldest message that counts leaves the window; `null` if none counts.
    resets_at: Option<Timestamp>,
}

/// A page of the modules of a tenant.
#[derive(Serialize, utoipa::ToSchema)]
pub struct TenantModules {
    /// The tenant.
    tenant: String,
    /// The time of this answer.
    at: Timestamp,
    /// The modules, in the requested order.
    modules: Vec<ModuleView>,
    /// The URL of the next page; also in the Link header.
    next: Option<String>,
}

/// A module with what it may still send and what waits.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Module)]
pub struct ModuleView {
    /// The name of the module.
    #[schema(example = "invoices")]
    module: String,
    /// The state: `paused`, `waiting`, `at_limit`, `flowing` or `unknown`, as of the tenant.
    state: &'static str,
    /// The use of its limit; `null` without a limit, and while Redis does not answer.
    window: Option<MessageWindow>,
    /// Messages that wait for the limits, at the last count.
    waiting: i64,
    /// Seconds for which the oldest of them has waited, since it was accepted or since the time for
    /// which it was; read for this answer, `null` where none waits.
    oldest_waiting_s: Option<f64>,
    /// The time of the last count; `null` before the first.
    counted_at: Option<Timestamp>,
    /// The time at which its next message goes if nothing of its tenant goes before it; `null` if
    /// at once, and while Redis does not answer.
    next_at: Option<Timestamp>,
    /// The pause of the module; `null` if there is none.
    paused: Option<LanePause>,
}

/// Lists the tenants, with the use of their limits. A token of a tenant sees its own.
#[utoipa::path(get, path = "/api/v1/tenants", operation_id = "list_tenants", tag = "notifications",
    params(
        ("tenant" = Option<String>, Query, description = "Only this tenant."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 200; 50 if absent."),
        ("after" = Option<String>, Query, description = "The cursor: the value of `next`.")),
    responses((status = 200, body = Tenants, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list(
    State(state): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let TenantsQuery {
        tenant,
        limit,
        after,
    } = TenantsQuery::read(pairs)?;
    let now = clock::now();
    let found = match only(&caller, tenant.as_deref()) {
        Ok(only) => {
            let wanted = TenantFilter {
                only,
                is_known: caller.tenant.is_some(),
                after: &after,
                limit,
            };
            let tenants = state.admission.tenants(wanted, now.as_second());
            with_timeout(LIST_TIMEOUT, tenants).await?
        }
        Err(Foreign) => Vec::new(),
    };
    let last = found.last().filter(|_| found.len() as i64 >= limit);
    let next = last.map(|(queue, _)| {
        let tenant = encoded(&queue.tenant);
        format!("/api/v1/tenants?limit={limit}&after={tenant}")
    });
    let names: Vec<String> = found
        .iter()
        .map(|(queue, _)| queue.tenant.clone())
        .collect();
    // The list is worth telling without these counts.
    let feedback = with_timeout(ROW_TIMEOUT, state.deliveries.feedback(&names)).await;
    let feedback = feedback.ok();
    let views = found.into_iter().map(|(queue, usage)| {
        let counts = feedback.as_ref();
        let counts = counts.map(|of| of.get(&queue.tenant).copied().unwrap_or_default());
        tenant_view(queue, usage, counts, now)
    });
    let page = Tenants {
        at: now,
        tenants: views.collect(),
        next,
    };
    Ok((next_link(page.next.as_deref()), Json(page)))
}

/// Lists the modules of a tenant, with the use of their limits.
#[utoipa::path(get, path = "/api/v1/tenants/{tenant}/modules", operation_id = "list_modules", tag = "notifications",
    params(
        ("tenant" = String, Path, description = "The tenant."),
        ("order" = Option<String>, Query, description = "`depth`: those with the most waiting messages first, and only those with any; `key`: by name. `key` if absent."),
        ("module" = Option<String>, Query, description = "Only this module."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 200; 50 if absent."),
        ("after" = Option<String>, Query, description = "The cursor: the value of `next`.")),
    responses((status = 200, body = TenantModules, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn modules(
    State(state): State<Arc<AdmissionState>>,
    State(throttles): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(tenant): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(pairs, &["order", "module", "limit", "after"]);
    let order = query.choice("order", &ORDERS).unwrap_or(Order::Key);
    let module = query.text("module", NAME_BYTES_MAX);
    let limit = query.whole("limit", 1..=LIMIT_MAX).unwrap_or(50);
    let after = query.text("after", KEY_BYTES_MAX + 1);
    let after = after_of(order, after, &mut query);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let now = clock::now();
    let (throttle, usage) = known(&state, &caller, &tenant, now).await?;
    let module = module.as_deref();
    let (lanes, next) = lanes_page(&throttles.queue, &throttle, module, &after, limit).await?;
    let names: Vec<String> = lanes.iter().map(|lane| lane.key.clone()).collect();
    let (holds, usages) = tokio::join!(
        holds(&throttles, &throttle, names.clone()),
        state.admission.modules(&tenant, &names, now.as_second())
    );
    let is_paused = usage.is_some_and(|usage| usage.is_paused);
    let views = lanes.into_iter().zip(holds).zip(usages);
    let views = views.map(|((lane, hold), usage)| module_view(lane, hold, usage, is_paused, now));
    let page = TenantModules {
        at: now,
        modules: views.collect(),
        next: next.map(|next| modules_page(&tenant, limit, &next)),
        tenant,
    };
    Ok((next_link(page.next.as_deref()), Json(page)))
}

/// The fault of a query that names a tenant other than the caller's.
pub struct Foreign;

/// Returns the tenant to which a list is limited by the caller and its wish.
pub fn only<'a>(caller: &'a Caller, named: Option<&'a str>) -> Result<Option<&'a str>, Foreign> {
    match (caller.tenant.as_deref(), named) {
        (Some(own), Some(named)) if own != named => Err(Foreign),
        (own, named) => Ok(own.or(named)),
    }
}

/// Returns the throttle of a tenant with its usage, or the refusal of one that is unknown or not
/// the caller's.
async fn known(
    state: &AdmissionState,
    caller: &Caller,
    tenant: &str,
    now: Timestamp,
) -> Result<(Name, Option<TenantUsage>), Problem> {
    let missing = || {
        let detail = "there is no such tenant; GET /api/v1/tenants lists them";
        Problem::new(Code::TenantNotFound, detail)
    };
    let throttle = throttle_of(tenant).ok_or_else(missing)?;
    let only = only(caller, Some(tenant)).map_err(|Foreign| missing())?;
    let wanted = TenantFilter {
        only,
        is_known: caller.tenant.is_some(),
        after: "",
        limit: 1,
    };
    let found = state.admission.tenants(wanted, now.as_second());
    let found = with_timeout(LIST_TIMEOUT, found).await?.into_iter().next();
    let (_, usage) = found.ok_or_else(missing)?;
    Ok((throttle, usage))
}

fn tenant_view(
    queue: TenantQueue,
    usage: Option<TenantUsage>,
    feedback: Option<TenantFeedback>,
    now: Timestamp,
) -> TenantView {
    let window = usage.and_then(|usage| usage.tenant);
    let is_full = queue.pending_max.is_some_and(|max| queue.pending >= max);
    let state = match usage {
        None => "unknown",
        Some(usage) if usage.is_paused => "paused",
        Some(_) if is_full => "queue_full",
        Some(_) if queue.waiting > 0 => "waiting",
        Some(_) => spare(window),
    };
    TenantView {
        throttle: throttle_of(&queue.tenant).map_or_else(String::new, |name| name.to_string()),
        tenant: queue.tenant,
        state,
        window: window.map(|level| MessageWindow::of(&level)),
        per_module: usage.and_then(|usage| usage.per_module),
        waiting: queue.waiting,
        scheduled: queue.scheduled,
        oldest_waiting_s: queue.oldest_waiting_at.map(|at| since_s(at, now)),
        counted_at: queue.counted_at,
        pending: queue.pending,
        pending_max: queue.pending_max,
        feedback,
    }
}

fn module_view(
    lane: LaneDepth,
    hold: LaneHold,
    usage: Option<AdmissionUsage>,
    is_paused: bool,
    now: Timestamp,
) -> ModuleView {
    let window = usage.and_then(|usage| usage.module);
    let state = match usage {
        _ if is_paused || hold.paused.is_some() => "paused",
        None => "unknown",
        Some(_) if lane.oldest_at.is_some() => "waiting",
        Some(_) => spare(window),
    };
    let next_at = usage.filter(|usage| usage.next_at_s() > usage.now_s);
    ModuleView {
        module: lane.key,
        state,
        window: window.map(|level| MessageWindow::of(&level)),
        waiting: lane.depth,
        oldest_waiting_s: lane.oldest_due_at.map(|at| since_s(at, now)),
        counted_at: lane.counted_at,
        next_at: next_at.and_then(|usage| Timestamp::from_second(usage.next_at_s()).ok()),
        paused: hold.paused,
    }
}

/// Returns the state of one for which nothing waits.
fn spare(window: Option<LevelUsage>) -> &'static str {
    match window {
        Some(level) if level.remaining == 0 => "at_limit",
        _ => "flowing",
    }
}

impl MessageWindow {
    fn of(level: &LevelUsage) -> Self {
        let at = |seconds: i64| Timestamp::from_second(seconds).ok();
        Self {
            limit: level.limit,
            span_s: level.span_s,
            used: level.used,
            remaining: level.remaining,
            next_at: at(level.next_at_s).filter(|_| level.remaining == 0),
            resets_at: at(level.resets_at_s).filter(|_| level.used > 0),
        }
    }
}

fn modules_page(tenant: &str, limit: i64, after: &LanesAfter) -> String {
    let (tenant, after) = (encoded(tenant), cursor_of(after));
    format!("/api/v1/tenants/{tenant}/modules?limit={limit}&{after}")
}
