//! The live stream: server-sent events.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query as Pairs, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, sse};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, stream};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::filter::StreamFilter;
use super::live::{Live, STREAMS_MAX, StreamEvent, StreamPermit};
use super::of_tenant::{TenantListener, within};
use crate::api::http::auth::Authenticator;
use crate::api::http::caller::Caller;
use crate::api::http::event_stream;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::token_scope::TokenScope;
use crate::api::tenants::{Foreign, NAME_BYTES_MAX, only};
use crate::jobs::Queue;

/// The time after which browsers reconnect.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The dependencies of the stream.
#[derive(Clone)]
pub struct StreamState {
    pub live: Live,
    pub queue: Queue,
    /// The token that is cancelled when the process stops.
    pub cancel: CancellationToken,
    pub auth: Arc<Authenticator>,
}

/// Streams live events: `history` once, then `tick` each second, `decision`, `failure` and `audit`.
/// A tenant gets the ticks of its own throttles, the failures of its own jobs and the changes by
/// its own tokens.
///
/// `throttle`, `tenant`, `job` and `group` leave only what concerns all that are given. Ticks go on
/// in any case, as the sign that the stream lives.
///
/// With `Last-Event-ID` the history holds only the ticks after it. The stream ends when the server
/// stops, when a listener is too slow, and within seconds when its credential is no longer good;
/// clients reconnect with the id of the last tick that they received.
#[utoipa::path(get, path = "/api/v1/stream", operation_id = "stream_events", tag = "stream",
    params(
        ("throttle" = Option<String>, Query, description = "Only this throttle, its decisions, failures and changes."),
        ("tenant" = Option<String>, Query, description = "Only what a token of this tenant gets."),
        ("job" = Option<i64>, Query, description = "Only failures and changes of this job; ticks hold no throttles."),
        ("group" = Option<i64>, Query, description = "Only failures of jobs of this group, and its changes; ticks hold no throttles."),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last received tick.")),
    responses((status = 200, body = String, content_type = "text/event-stream",
        description = "Events `history` ({may_change, may_enqueue, ticks: [Tick]}), `tick` (Tick, id = unix seconds), `decision` (Decision), `failure` (Failure), `audit` (AuditEntry).")))]
pub async fn stream(
    State(state): State<StreamState>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let (filter, tenant) = asked(pairs, &caller)?;
    let place = place(&state.live, &caller)?;
    let after = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok()?.trim().parse().ok());
    let (history, receiver) = state.live.join(after);
    let history = with_permissions(history, &caller);
    let (history, events) = match tenant {
        None => (history, all(receiver, place)),
        Some(tenant) => {
            let history = within(&history, &tenant);
            let listener = TenantListener {
                tenant,
                queue: state.queue,
                receiver,
                place,
            };
            (history, listener.events().boxed())
        }
    };
    let (cancel, auth) = (state.cancel, state.auth);
    // A stream that outlived the cancel token would keep the server from ending.
    let ends = async move {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = auth.lapse(headers) => {}
        }
    };
    let events = stream::once(async { history })
        .chain(events)
        .filter_map(move |event| ready(filter.pass(event)))
        .map(|event| sent(&event))
        .take_until(Box::pin(ends));
    Ok(event_stream::answer(events))
}

/// Reads the filter and the tenant, to whose events the stream is limited by the caller or the
/// query.
fn asked(
    pairs: Vec<(String, String)>,
    caller: &Caller,
) -> Result<(StreamFilter, Option<Arc<str>>), Problem> {
    let mut query = Query::open(pairs, &["throttle", "tenant", "job", "group"]);
    let filter = StreamFilter::read(&mut query);
    let named = query.text("tenant", NAME_BYTES_MAX);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let tenant = only(caller, named.as_deref()).map_err(|Foreign| {
        let detail = format!(
            "token {} is bound to another tenant than the one that is named",
            caller.token_name()
        );
        Problem::new(Code::NotAllowed, detail)
    })?;
    Ok((filter, tenant.map(Arc::from)))
}

/// Takes a place among the live streams, or refuses beyond their limits.
fn place(live: &Live, caller: &Caller) -> Result<StreamPermit, Problem> {
    let tenant = caller.tenant.as_deref();
    let place = live.place(&caller.key, tenant, caller.leave.is_admin());
    place.ok_or_else(|| {
        let detail = format!(
            "the limit of live streams is reached, of this process ({STREAMS_MAX}), of this token \
             or of its tenant; close one or try again"
        );
        Problem::new(Code::TooManyStreams, detail).retry_after(5)
    })
}

/// Returns the events of all tenants.
fn all(
    receiver: broadcast::Receiver<StreamEvent>,
    place: StreamPermit,
) -> BoxStream<'static, StreamEvent> {
    let events = stream::unfold((receiver, place), |(mut receiver, place)| async move {
        match receiver.recv().await {
            Ok(event) => Some((place.filled(event), (receiver, place))),
            // A listener that lags is disconnected; it reconnects with its last id and gets the
            // missed events as history.
            Err(broadcast::error::RecvError::Lagged(_) | broadcast::error::RecvError::Closed) => {
                None
            }
        }
    });
    events.boxed()
}

/// Returns a history with the permissions of the caller, so that a page knows them without Redis.
fn with_permissions(history: StreamEvent, caller: &Caller) -> StreamEvent {
    let may_change = caller.leave.has(TokenScope::OpsWrite);
    let may_enqueue = caller.leave.has(TokenScope::JobsEnqueue);
    let fields = history.data.strip_prefix('{').unwrap_or_default();
    let data = format!("{{\"may_change\":{may_change},\"may_enqueue\":{may_enqueue},{fields}");
    StreamEvent {
        data: data.into(),
        ..history
    }
}

fn sent(event: &StreamEvent) -> sse::Event {
    let sent = sse::Event::default().event(event.name).data(&*event.data);
    let sent = if event.name == "history" {
        sent.retry(RECONNECT_DELAY)
    } else {
        sent
    };
    match event.id {
        Some(id) => sent.id(id.to_string()),
        None => sent,
    }
}
