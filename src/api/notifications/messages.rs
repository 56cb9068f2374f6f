//! Notifications: send, show, search.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;

use super::accept::{AdmissionState, MessageSender, accept, answer, repeat};
use super::accepted::{AcceptedNotification, HeldMessage, priority_word};
use super::fields::MessageFields;
use super::input;
use super::planned::{GatesAnswer, plan, refuse};
use super::repeat::KEY;
use crate::admission::{AcceptRequest, Acceptance};
use crate::api::clock;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::lagging::read_list;
use crate::api::http::link::{encoded, next_link};
use crate::api::http::metrics::BacklogAnswer;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::enqueue::{enqueue_one, refused, traceparent, warnings};
use crate::api::jobs::input::KEY_BYTES_MAX;
use crate::api::jobs::permissions;
use crate::api::jobs::show::id_of;
use crate::api::jobs::state::JobsState;
use crate::api::tenants::{Foreign, NAME_BYTES_MAX, only};
use crate::jobs::{NewJob, Queue};
use crate::notify::{
    Deliveries, DeliveryState, Notification, NotificationFilter, NotificationPage,
};
use crate::providers::{Channel, Pools};
use crate::recipient::fields::is_gated;
use crate::recipient::postgres::MessageStanding;
use crate::recipient::service::Gates;

/// A new message.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewNotification {
    /// The address: a number, a mailbox, a device token, a chat, a URL; absent if the profile of
    /// `recipient` has it.
    to: Option<String>,
    /// A key that prevents a second message while an unfinished one holds it.
    unique_key: Option<String>,
    #[serde(flatten)]
    fields: MessageFields,
}

/// A message with what holds it: the limits of its tenant, or a gate of its recipient.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NotificationView {
    #[serde(flatten)]
    notification: Notification,
    /// The priority with which it is sent: `critical`, `high`, `normal` or `low`; absent when its
    /// job is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<&'static str>,
    /// The time until which it waits, and the reason; absent if it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldMessage>,
    #[serde(flatten)]
    gates: MessageStanding,
}

/// A page of messages.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Notifications {
    /// The messages, newest first. A page may be short or empty although more follow.
    notifications: Vec<Notification>,
    /// The URL of the next page; also in the Link header. Absent at the end of the search.
    next: Option<String>,
}

/// Accepts a message.
#[utoipa::path(post, path = "/api/v1/notifications", operation_id = "notify", tag = "notifications", request_body = NewNotification,
    responses(
        (status = 202, body = AcceptedNotification, description = "The message was queued.", headers(("Location" = String, description = "The URL of the message's state."))),
        (status = 200, body = AcceptedNotification, description = "Its unique key is taken, and this is the message that holds it; or the request repeats an earlier one, and this is the present state of its message.")))]
pub async fn send(
    State(state): State<Arc<JobsState>>,
    State(pools): State<Arc<Pools>>,
    State(admission): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Problem> {
    let trace = traceparent(request.headers());
    let headers = request.headers().clone();
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let sender = match &caller.tenant {
        Some(tenant) => Some(MessageSender::of(
            &admission,
            tenant,
            &caller.module,
            &headers,
            &value,
        )?),
        // Without a key each of its messages is one of its own.
        None if headers.contains_key(KEY) => Some(MessageSender::without_tenant(
            &caller.module,
            &headers,
            &value,
        )?),
        None => None,
    };
    let read = input::message(value, &state.kinds, &pools);
    let mut job = read.map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    job.traceparent = trace;
    permissions::check(&state, &caller, std::slice::from_ref(&job), false).await?;
    let warnings = warnings(&state, std::iter::once(job.throttle.as_str())).await;
    match sender {
        Some(sender) if caller.tenant.is_some() => accept(&admission, &sender, job, warnings).await,
        keyed => send_for_operators(&state, &admission, &caller, keyed, &job, warnings).await,
    }
}

/// Sends a message that no tenant sends. The limits of tenants do not concern it.
async fn send_for_operators(
    state: &JobsState,
    admission: &Arc<AdmissionState>,
    caller: &Caller,
    keyed: Option<MessageSender<'_>>,
    job: &NewJob,
    warnings: Vec<String>,
) -> Result<Response, Problem> {
    // The gates might refuse the repeat of a message that was accepted.
    if let Some(sender) = &keyed {
        let find = admission.admission.find_request(&sender.digests);
        if let Some(repeated) = with_timeout(ROW_TIMEOUT, find).await? {
            return repeat(admission, sender, repeated).await;
        }
    }
    let is_gated = is_gated(&job.args);
    let is_later = job.run_at.is_some_and(|at| at > clock::now());
    refuse(&admission.gates, "", job, is_later).await?;
    let (id, duplicate) = match &keyed {
        None => {
            let ticket = enqueue_one(state, caller, job).await?;
            (ticket.id, ticket.duplicate)
        }
        Some(sender) => match accept_once(state, admission, caller, sender, job).await? {
            Acceptance::Accepted {
                job_id, duplicate, ..
            } => (job_id, duplicate),
            repeated => return repeat(admission, sender, repeated).await,
        },
    };
    let status = if duplicate {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    let mut accepted = AcceptedNotification::new(id, job, duplicate, warnings);
    if is_gated && !duplicate && !is_later {
        match plan(&admission.gates, id).await {
            GatesAnswer::Goes => {}
            GatesAnswer::Planned(plan) => accepted.plan = Some(*plan),
            GatesAnswer::Refused(problem) => return Err(problem),
            GatesAnswer::Unknown => accepted.warnings.push(GatesAnswer::UNKNOWN.to_owned()),
        }
    }
    Ok(answer(status, accepted))
}

/// Accepts a message of a sender without a tenant, or finds the earlier request with its key.
async fn accept_once(
    state: &JobsState,
    admission: &AdmissionState,
    caller: &Caller,
    sender: &MessageSender<'_>,
    job: &NewJob,
) -> Result<Acceptance, Problem> {
    let request = AcceptRequest {
        tenant: sender.tenant,
        module: sender.module,
        owner: Some(&caller.owner),
        digests: &sender.digests,
        admitted: false,
        job,
    };
    let accept = async {
        let accepted = admission.admission.accept(&request).await;
        accepted.map_err(|error| refused(state, caller, error, false))
    };
    let accepted = with_timeout(ROW_TIMEOUT, accept).await?;
    let is_over = matches!(
        accepted,
        Acceptance::Accepted {
            backlog: Some(_),
            ..
        }
    );
    let over = u64::from(is_over);
    state.metrics.note_backlog(BacklogAnswer::Signalled, over);
    Ok(accepted)
}

/// Searches messages, newest first. A page takes a few tens of milliseconds with any filter.
/// It may therefore be short or empty although more follow: continue while there is a `next`.
#[utoipa::path(get, path = "/api/v1/notifications", operation_id = "list_notifications", tag = "notifications",
    params(
        ("state" = Option<String>, Query, description = "Only messages in this state."),
        ("channel" = Option<String>, Query, description = "Only messages of this channel."),
        ("pool" = Option<String>, Query, description = "Only messages of this pool."),
        ("account" = Option<String>, Query, description = "Only messages whose last attempt used this account."),
        ("tenant" = Option<String>, Query, description = "Only messages of this tenant; for operators."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("cursor" = Option<i64>, Query, description = "Only messages with a smaller id.")),
    responses((status = 200, body = Notifications, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(
        pairs,
        &[
            "state", "channel", "pool", "account", "tenant", "limit", "cursor",
        ],
    );
    let named = query.text("tenant", NAME_BYTES_MAX);
    let owner = only(&caller, named.as_deref());
    let filter = NotificationFilter {
        state: query.choice("state", &DeliveryState::WORDS),
        channel: query.choice("channel", &Channel::WORDS),
        pool: query.text("pool", crate::throttle::name::MAX_BYTES),
        account: query.text("account", KEY_BYTES_MAX),
        tenant: owner.as_ref().ok().copied().flatten().map(str::to_owned),
        before: query.whole("cursor", 1..=i64::MAX),
        limit: query.whole("limit", 1..=PAGE_MAX).unwrap_or(100),
    };
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let wanted = &filter;
    let read = |queue: Queue| async move { Deliveries::new(&queue.pool).page(wanted).await };
    let page = match owner {
        Ok(_) => read_list(&queue, read).await?,
        Err(Foreign) => NotificationPage::default(),
    };
    let next = page
        .next
        .map(|next| next_page(&filter, named.as_deref(), next));
    let headers = next_link(next.as_deref());
    Ok((
        headers,
        Json(Notifications {
            notifications: page.notifications,
            next,
        }),
    ))
}

/// Shows the fate of a message: its state, and every attempt with account, status and reason.
#[utoipa::path(get, path = "/api/v1/notifications/{id}", operation_id = "show_notification", tag = "notifications",
    params(("id" = i64, Path, description = "The number of its job.")),
    responses((status = 200, body = NotificationView)))]
pub async fn show(
    State(deliveries): State<Deliveries>,
    State(admission): State<Arc<AdmissionState>>,
    State(gates): State<Gates>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<NotificationView>, Problem> {
    let id = id_of(&id)?;
    let found = deliveries.find_with_priority(id, caller.tenant.as_deref());
    let found = with_timeout(ROW_TIMEOUT, found).await?;
    let (notification, priority) = found.ok_or_else(|| Problem::notification_not_found(id))?;
    let waiting = match notification.state {
        DeliveryState::Queued => with_timeout(ROW_TIMEOUT, admission.admission.waiting(id)).await?,
        _ => None,
    };
    let standing = match notification.state {
        DeliveryState::Queued | DeliveryState::Collected => {
            with_timeout(ROW_TIMEOUT, gates.standing(id)).await?
        }
        _ => MessageStanding::default(),
    };
    Ok(Json(NotificationView {
        gates: standing,
        priority: priority.map(priority_word),
        notification,
        held: waiting.as_ref().map(HeldMessage::of),
    }))
}

fn next_page(filter: &NotificationFilter, tenant: Option<&str>, cursor: i64) -> String {
    let mut page = format!(
        "/api/v1/notifications?limit={}&cursor={cursor}",
        filter.limit
    );
    let words = [
        ("state", filter.state.map(DeliveryState::as_str)),
        ("channel", filter.channel.map(Channel::as_str)),
        ("pool", filter.pool.as_deref()),
        ("account", filter.account.as_deref()),
        ("tenant", tenant),
    ];
    for (name, word) in words {
        if let Some(word) = word {
            page.push_str(&format!("&{name}={}", encoded(word)));
        }
    }
    page
}
