//! The events of one channel, for clients that cannot open a WebSocket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, Query as Pairs, State};
use axum::http::header::ALLOW;
use axum::http::{Extensions, HeaderMap, Method};
use axum::response::{IntoResponse, Response, sse};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::connect::{TICKET_BYTES, identified, without_credential};
use super::opened::{self, RETRY_S};
use super::state::GatewayState;
use crate::api::clock;
use crate::api::http::caller::Caller;
use crate::api::http::event_stream;
use crate::api::http::fields::FieldLocation;
use crate::api::http::places::PlacePermit;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::gateway::channel_name::ChannelName;
use crate::gateway::client_frame::{OFFSET_MAX, Since};
use crate::gateway::connection_counts::ConnectionSeat;
use crate::gateway::hub::{BehindReader, Peer};
use crate::gateway::limits::EXPIRY_GRACE;
use crate::gateway::postgres::StoredMessage;
use crate::gateway::reading::MissedPage;
use crate::gateway::server_frame;

/// The time after which clients reconnect.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The longest id of an event, in bytes.
const ID_BYTES: usize = 64;

/// The ids of events, for `/openapi.json`; an empty one counts as absent.
pub const EVENT_ID_PATTERN: &str = "^([0-9]{1,18}:[0-9]{1,15})?$";

/// Streams the messages of a channel as server-sent events.
///
/// The first event is `subscribed`; each `message` has the id `epoch:offset`, and `subscribed` that
/// of the message after which the others follow. With `Last-Event-ID`, or else `since`, everything
/// after that message follows, or the first event says `recovered: false`. A message that is too
/// large to be sent is an event `gap` with its id. A reader that is so slow that messages it missed
/// are no longer kept is disconnected, and so is one whose credential expired 25 seconds ago.
#[utoipa::path(get, path = "/api/v1/channels/{channel}/events", operation_id = "stream_channel", tag = "channels",
    params(
        ("channel" = String, Path, description = "The channel."),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last received message."),
        ("since" = Option<String>, Query, description = "The id of the last received event, for clients that cannot send the header."),
        ("ticket" = Option<String>, Query, description = "A ticket of POST /api/v1/ws/tickets, in place of a token."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators; their own channels if absent.")),
    responses((status = 200, body = String, content_type = "text/event-stream",
        description = "Events `subscribed`, `message` (id = epoch:offset), `gap`, `lag` and `warning`, with the same objects as the frames of a connection.")))]
pub async fn stream_channel(
    State(state): State<Arc<GatewayState>>,
    caller: Option<Extension<Caller>>,
    Path(channel): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    method: Method,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, Problem> {
    if method == Method::HEAD {
        return Ok(without_head());
    }
    let mut query = Query::open(pairs.clone(), &["since", "ticket", "tenant"]);
    let ticket = query.text("ticket", TICKET_BYTES);
    let named = query.text("since", ID_BYTES);
    let since = named.as_deref().and_then(since_of);
    if named.is_some() && since.is_none() {
        query.wrong("since", "must be the id of an event, as 3:17");
    }
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let place = opened::place(&state)?;
    let identity = identified(&state, caller, ticket, pairs, &headers, &extensions).await?;
    let Some(identity) = identity else {
        return Err(without_credential());
    };
    let channel = identity.channel(&channel).map_err(|error| {
        Problem::at(
            Code::InvalidPath,
            FieldLocation::Path,
            "channel",
            error.to_string(),
        )
    })?;
    // Only for who is known: while their tickets are looked up, strangers would hold all of them.
    let Ok(held) = state.streams.clone().try_acquire_owned() else {
        let detail = "the server has as many streams of events as it may have (a quarter of the setting http_connections); open a WebSocket, or try again";
        return Err(opened::refused(&state, "streams", detail, RETRY_S));
    };
    let shared = state
        .tenant_streams
        .take("", Some(&identity.tenant), false)
        .ok_or_else(|| {
            let detail = "the tenant has half of the streams of events that the server may have (a quarter of the setting http_connections); open a WebSocket, or try again";
            opened::refused(&state, "streams", detail, RETRY_S)
        })?;
    opened::open_known(&state, &identity.tenant)?;
    let Some(seat) = opened::seat(&state, &identity).await else {
        let detail = "the tenant has as many connections as it may have (knob concurrency of its throttle ws-connections)";
        return Err(Problem::new(Code::TooManyConnections, detail).retry_after(RETRY_S));
    };
    // Clients without a message may send it empty.
    let last_id = headers.get("last-event-id").filter(|id| !id.is_empty());
    let since = match last_id {
        Some(id) => id.to_str().ok().and_then(since_of),
        None => since,
    };
    let lapses_after = identity.left(clock::now()).map(|left| left + EXPIRY_GRACE);
    let mut session_end = opened::session_end(&state, &identity);
    let reader = ChannelReader::join(
        state,
        &identity.tenant,
        channel,
        (seat, place, held, shared),
    );
    let reader = reader.begin(since).await?;
    let over = {
        let gateway = reader.state.gateway.clone();
        async move {
            let sent_away = async {
                gateway.drain.cancelled().await;
                tokio::time::sleep(gateway.drain_delay()).await;
            };
            let lapsed = async {
                match lapses_after {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sent_away => {}
                () = lapsed => {}
                () = opened::signed_out(&mut session_end) => {}
            }
        }
    };
    let events = stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((event, reader))
    });
    let events = futures_util::StreamExt::take_until(events, Box::pin(over));
    Ok(event_stream::answer(events).into_response())
}

/// Refuses a look at the head alone, which would use up a ticket.
fn without_head() -> Response {
    let detail = "the events of a channel are read with GET; HEAD would use up a ticket";
    (
        [(ALLOW, "GET")],
        Problem::new(Code::MethodNotAllowed, detail),
    )
        .into_response()
}

/// Returns the id of the event of a message.
fn id_of(epoch: i64, offset: i64) -> String {
    format!("{epoch}:{offset}")
}

/// Parses the id of an event: epoch and offset.
fn since_of(id: &str) -> Option<Since> {
    let (epoch, offset) = id.trim().split_once(':')?;
    let offset: i64 = offset.parse().ok()?;
    (0..=OFFSET_MAX).contains(&offset).then_some(Since {
        epoch: epoch.parse().ok()?,
        offset,
    })
}

/// The places of a stream: among the connections of its tenant, those of the process, the streams,
/// and those of its tenant.
type StreamPlaces = (
    ConnectionSeat,
    OwnedSemaphorePermit,
    OwnedSemaphorePermit,
    PlacePermit,
);

/// The reader of one channel; it leaves the hub when dropped.
struct ChannelReader {
    state: Arc<GatewayState>,
    peer: Arc<Peer>,
    channel: ChannelName,
    tenant: String,
    ready: VecDeque<sse::Event>,
    _places: StreamPlaces,
    /// Lets a stopping process wait for this reader.
    _tracked: TaskTrackerToken,
}

impl Drop for ChannelReader {
    fn drop(&mut self) {
        let gateway = &self.state.gateway;
        let subscriptions = self.peer.state().subscriptions.len();
        gateway.hub.leave(&self.peer);
        gateway.metrics.ended(subscriptions, None);
    }
}

impl ChannelReader {
    fn join(
        state: Arc<GatewayState>,
        tenant: &Arc<str>,
        channel: ChannelName,
        places: StreamPlaces,
    ) -> Self {
        let peer = state.gateway.hub.join(tenant);
        let tracked = state.gateway.sessions.token();
        state.gateway.metrics.opened();
        state.gateway.hub.subscribe(&peer, &channel);
        state.gateway.metrics.subscribed(1);
        Self {
            tenant: tenant.to_string(),
            state,
            peer,
            channel,
            ready: VecDeque::new(),
            _places: places,
            _tracked: tracked,
        }
    }

    /// Finds the place in the channel, and makes the first event.
    async fn begin(mut self, since: Option<Since>) -> Result<Self, Problem> {
        let gateway = self.state.gateway.clone();
        let point = gateway.join_point(&self.tenant, &self.channel, since);
        let point = with_timeout(ROW_TIMEOUT, point).await?;
        self.peer.state().join(&self.channel, point.as_ref());
        let answer = server_frame::subscribed(&self.channel, point.as_ref(), None);
        // A client that is cut off before the first message resumes here.
        let id = point.map(|point| id_of(point.position.epoch, point.after()));
        let first = event("subscribed", id.as_deref(), &answer).retry(RECONNECT_DELAY);
        self.ready.push_back(first);
        Ok(self)
    }

    /// Returns the next event; `None` if the reader must go.
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let frame = self.peer.state().outbox.pop();
            if let Some(frame) = frame {
                let messages = self.peer.state().outbox.count_taken();
                self.state.gateway.metrics.delivered(messages);
                return Some(of_frame(&frame));
            }
            let (gaps, behind) = {
                let mut state = self.peer.state();
                (state.take_gaps(), state.behind())
            };
            for (channel, missed) in &gaps {
                self.state.gateway.metrics.dropped(u64::from(*missed));
                let frame = server_frame::gap(channel, *missed);
                self.ready.push_back(event("gap", None, &frame));
            }
            match behind {
                Some(behind) => self.catch_up(&behind).await?,
                None if gaps.is_empty() => self.peer.wake.notified().await,
                None => {}
            }
        }
    }

    /// Reads a page of the history; `None` if a part of it is no longer kept.
    async fn catch_up(&mut self, behind: &BehindReader) -> Option<()> {
        let gateway = self.state.gateway.clone();
        if behind.is_news {
            gateway.metrics.lagged();
            let frame = server_frame::lag(&self.channel);
            self.ready.push_back(event("lag", None, &frame));
        }
        let messages = match gateway.missed(&self.tenant, behind).await {
            MissedPage::Messages(messages) => messages,
            MissedPage::Away => return Some(()),
            MissedPage::Lost => return None,
        };
        gateway.metrics.delivered(messages.len() as u64);
        self.ready.extend(messages.iter().map(of_message));
        let last = messages.last()?.offset;
        self.peer.state().caught_up(behind, last);
        Some(())
    }
}

fn of_message(message: &StoredMessage) -> sse::Event {
    let id = id_of(message.epoch, message.offset);
    let name = match message.data.is_empty() {
        true => "gap",
        false => "message",
    };
    event(name, Some(&id), &server_frame::message(message))
}

/// Returns the event of a frame that waited in an outbox.
fn of_frame(frame: &Bytes) -> sse::Event {
    let FrameHead {
        r#type,
        epoch,
        offset,
    } = FrameHead::of(frame);
    let id = epoch.zip(offset);
    let id = id.map(|(epoch, offset)| format!("{epoch}:{offset}"));
    event(r#type, id.as_deref(), frame)
}

/// The type of a frame, and the place of its message if it has one.
///
/// The data is skipped and not read: Postgres stores deeper nesting and larger numbers than are read
/// here.
#[derive(Deserialize)]
struct FrameHead<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    epoch: Option<&'a str>,
    offset: Option<i64>,
}

impl<'a> FrameHead<'a> {
    fn of(frame: &'a [u8]) -> Self {
        serde_json::from_slice(frame).unwrap_or(Self {
            r#type: "message",
            epoch: None,
            offset: None,
        })
    }
}

fn event(name: &str, id: Option<&str>, frame: &Bytes) -> sse::Event {
    let data = String::from_utf8_lossy(frame);
    let event = sse::Event::default().event(name).data(data);
    match id {
        Some(id) => event.id(id),
        None => event,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::server_frame::Warning;

    #[test]
    fn an_event_has_the_place_of_its_message_whatever_the_data_is() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        let large = format!(r#"{{"n": 1{}}}"#, "0".repeat(400));
        for data in ["1", r#"{"type": "warning", "offset": 1}"#, &deep, &large] {
            let frame = server_frame::message(&StoredMessage {
                seq: 1,
                tenant: "acme".to_owned(),
                channel: ChannelName::stored("orders"),
                epoch: 3,
                offset: 7,
                id: 9,
                data: data.to_owned(),
            });
            let head = FrameHead::of(&frame);
            assert_eq!(
                (head.r#type, head.epoch, head.offset),
                ("message", Some("3"), Some(7)),
                "{data}"
            );
        }
        let warning = server_frame::warning(Warning::RateLimited { wait_s: 1 });
        let head = FrameHead::of(&warning);
        assert_eq!(
            (head.r#type, head.epoch, head.offset),
            ("warning", None, None)
        );
    }

    #[test]
    fn the_id_of_an_event_is_a_place_or_nothing() {
        let wanted = Since {
            epoch: 3,
            offset: 7,
        };
        assert_eq!(since_of(" 3:7 "), Some(wanted));
        for id in [
            "",
            "3",
            "x:1",
            "3:-1",
            "3:9007199254740993",
            "1:9223372036854775807",
        ] {
            assert_eq!(since_of(id), None, "{id}");
        }
    }
}
