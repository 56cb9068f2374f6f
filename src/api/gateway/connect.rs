//! The opening of a connection: `GET /api/v1/ws`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Query as Pairs, State};
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::response::Response;
use tokio::sync::OwnedSemaphorePermit;

use super::identity::GatewayIdentity;
use super::opened::{self, RETRY_S, close, refused, seat};
use super::publish::named_tenant;
use super::session::{self, Opening};
use super::state::GatewayState;
use super::tickets;
use crate::api::http::caller::Caller;
use crate::api::http::fields::FieldLocation;
use crate::api::http::gate::address;
use crate::api::http::guard;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::tenants::NAME_BYTES_MAX;
use crate::gateway::close::CloseReason;
use crate::gateway::limits::MESSAGE_BYTES;

/// The subprotocol of the gateway.
pub const SUBPROTOCOL: &str = "flyball.v1";

/// The size of the buffer for reads of a connection. Most frames of clients are smaller, and there
/// are many connections.
const READ_BUFFER_BYTES: usize = 1024;

/// The bytes that are collected before a write. Frames that wait together go in few writes.
const WRITE_BUFFER_BYTES: usize = 4096;

/// The most bytes that a connection's unfinished write may hold.
const WRITE_BUFFER_MAX: usize = 512 * 1024;

/// The longest ticket, in bytes.
pub const TICKET_BYTES: usize = 128;

/// The ways in which a connection beyond the limit is refused, with the words for them.
pub const REFUSALS: [(&str, bool); 2] = [("close", true), ("status", false)];

/// Opens a connection for messages of channels, by the subprotocol `flyball.v1`; `/asyncapi.json`
/// describes its frames.
///
/// The credential is the token of the header, a ticket, or the first frame (`refresh`), which must
/// come within ten seconds.
#[utoipa::path(get, path = "/api/v1/ws", operation_id = "open_connection", tag = "channels",
    params(
        ("ticket" = Option<String>, Query, description = "A ticket of POST /api/v1/ws/tickets."),
        ("refuse" = Option<String>, Query, description = "With `close`, a connection that is refused is opened and closed with a code, such as 4100 beyond the limit, because browsers hide the status of a refused one."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators; their own channels if absent.")),
    responses((status = 101, description = "The connection is open; its first frame is `hello`.")))]
pub async fn open_connection(
    State(state): State<Arc<GatewayState>>,
    caller: Option<Extension<Caller>>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    headers: HeaderMap,
    extensions: Extensions,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Problem> {
    let (ticket, closes) = read(&pairs)?;
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(_) if caller.is_none() => return Err(without_credential()),
        Err(refused) => return Err(Problem::new(Code::BadRequest, refused.body_text())),
    };
    let upgrade = bounded(upgrade)?;
    let request = OpeningRequest {
        caller,
        ticket,
        pairs,
        headers,
        extensions,
    };
    let from = address(&request.extensions);
    match opening(&state, request).await {
        Ok((opening, place)) => {
            Ok(upgrade.on_upgrade(move |socket| session::run(state, socket, opening, place, from)))
        }
        // Browsers hide the status of a refused upgrade, so a page can ask for a close code.
        Err((_, Some(reason))) if closes => {
            Ok(upgrade.on_upgrade(move |socket| close(socket, reason)))
        }
        Err((problem, _)) => Err(problem),
    }
}

/// A request to open a connection.
struct OpeningRequest {
    caller: Option<Extension<Caller>>,
    ticket: Option<String>,
    pairs: Vec<(String, String)>,
    headers: HeaderMap,
    extensions: Extensions,
}

/// The refusal of a connection: the problem, and the close code for those that ask for one.
type OpeningRefusal = (Problem, Option<CloseReason>);

/// Admits a connection with its place in this process, or refuses it.
async fn opening(
    state: &GatewayState,
    request: OpeningRequest,
) -> Result<(Opening, OwnedSemaphorePermit), OpeningRefusal> {
    origin_is_allowed(state, &request.headers).map_err(|problem| {
        state.gateway.metrics.refused("forbidden");
        (problem, Some(CloseReason::Forbidden))
    })?;
    let busy = |problem: Problem| (problem, Some(CloseReason::Overloaded));
    let place = opened::place(state).map_err(busy)?;
    let OpeningRequest {
        caller,
        ticket,
        pairs,
        headers,
        extensions,
    } = request;
    let identity = identified(state, caller, ticket, pairs, &headers, &extensions)
        .await
        .map_err(|problem| {
            let reason = reason_of(&problem);
            (problem, reason)
        })?;
    let Some(identity) = identity else {
        let from = address(&extensions);
        opened::open_unknown(state, from).map_err(busy)?;
        let pending = state.pending.admit(from);
        let detail = "too many connections wait for their credential; send it as Authorization: Bearer <token> or with a ticket";
        let full = || busy(refused(state, "pending", detail, RETRY_S));
        return Ok((Opening::Pending(pending.ok_or_else(full)?), place));
    };
    opened::open_known(state, &identity.tenant).map_err(busy)?;
    match seat(state, &identity).await {
        Some(seat) => Ok((Opening::Known(identity, seat), place)),
        None => {
            let detail = "the tenant has as many connections as it may have (knob concurrency of its throttle ws-connections)";
            let problem = Problem::new(Code::TooManyConnections, detail).retry_after(RETRY_S);
            Err((problem, Some(CloseReason::TooManyConnections)))
        }
    }
}

/// Returns the close code that takes the place of a refusal; `None` where the request is wrong.
fn reason_of(problem: &Problem) -> Option<CloseReason> {
    match problem.status() {
        StatusCode::UNAUTHORIZED => Some(CloseReason::Credential),
        StatusCode::FORBIDDEN => Some(CloseReason::Forbidden),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Some(CloseReason::Overloaded)
        }
        _ => None,
    }
}

/// Returns the rights of the client, from the ticket or the token; `None` if the credential
/// is to come as a frame.
pub(super) async fn identified(
    state: &GatewayState,
    caller: Option<Extension<Caller>>,
    ticket: Option<String>,
    pairs: Vec<(String, String)>,
    headers: &HeaderMap,
    extensions: &Extensions,
) -> Result<Option<GatewayIdentity>, Problem> {
    let names_tenant = pairs.iter().any(|(name, _)| name == "tenant");
    if names_tenant && caller.is_none() {
        if ticket.is_none() {
            return Err(without_credential());
        }
        let message = "is for operators who send their token in the Authorization header";
        let place = FieldLocation::Query;
        return Err(Problem::at(Code::InvalidQuery, place, "tenant", message));
    }
    if let Some(ticket) = ticket {
        // One that is valid is accepted whatever others of its address send: behind a proxy they all
        // have the address of the proxy.
        if let Some(identity) = tickets::take(state, &ticket).await? {
            return Ok(Some(identity));
        }
        let detail = "the ticket is unknown, was used, or is older than 30 seconds";
        return Err(not_accepted(state, extensions, detail).await);
    }
    if let Some(Extension(caller)) = caller {
        let tenant = named_tenant(pairs, &["ticket", "refuse", "since"], &caller)?;
        return Ok(Some(GatewayIdentity::of_caller(&caller, &tenant)));
    }
    if headers.contains_key("authorization") {
        let detail = "the token in the Authorization header is not valid for this server";
        return Err(not_accepted(state, extensions, detail).await);
    }
    Ok(None)
}

/// Counts a credential that is not accepted, and returns the refusal.
async fn not_accepted(state: &GatewayState, extensions: &Extensions, detail: &str) -> Problem {
    state.gateway.metrics.refused("credential");
    if state.auth.is_without_tokens() {
        return Problem::new(Code::BadRequest, detail);
    }
    let denied = state.gate.deny(address(extensions)).await;
    denied.unwrap_or_else(|| Problem::new(Code::Unauthorized, detail))
}

/// Returns the refusal of a request without a credential.
pub(super) fn without_credential() -> Problem {
    let detail = "send a token as Authorization: Bearer <token>, or a ticket";
    Problem::new(Code::Unauthorized, detail)
}

fn read(pairs: &[(String, String)]) -> Result<(Option<String>, bool), Problem> {
    let mut query = Query::open(pairs.to_vec(), &["ticket", "refuse", "tenant"]);
    let ticket = query.text("ticket", TICKET_BYTES);
    let closes = query.choice("refuse", &REFUSALS);
    query.text("tenant", NAME_BYTES_MAX);
    match query.errors.is_empty() {
        true => Ok((ticket, closes.unwrap_or(false))),
        false => Err(Problem::fields(Code::InvalidQuery, query.errors)),
    }
}

fn bounded(upgrade: WebSocketUpgrade) -> Result<WebSocketUpgrade, Problem> {
    let offers = |offered: &axum::http::HeaderValue| offered.as_bytes() == SUBPROTOCOL.as_bytes();
    if !upgrade.requested_protocols().any(offers) {
        let detail = format!("offer the subprotocol: Sec-WebSocket-Protocol: {SUBPROTOCOL}");
        return Err(Problem::new(Code::BadRequest, detail));
    }
    Ok(upgrade
        .protocols([SUBPROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(WRITE_BUFFER_MAX)
        .max_message_size(MESSAGE_BYTES)
        .max_frame_size(MESSAGE_BYTES))
}

/// Checks the origin that browsers send: a page of another site could use the session of a browser
/// or a server on its loopback.
fn origin_is_allowed(state: &GatewayState, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get("origin") else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let is_ours = || guard::origin_is_ours(headers).is_ok();
    let named = &state.gateway.limits.origins;
    let is_named = named.iter().any(|one| one == origin)
        || state.public_url.trim_end_matches('/') == origin && !origin.is_empty();
    if is_named || is_ours() {
        return Ok(());
    }
    let detail = "pages of this origin may not connect; name it in the setting ws_origins";
    Err(Problem::new(Code::OriginNotAllowed, detail))
}
