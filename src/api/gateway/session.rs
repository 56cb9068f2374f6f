//! One connection from its first frame to its last.
//!
//! A single task reads the socket and writes what waits in the outbox. While a write is stuck
//! because the client reads slowly, nothing else of this connection goes on, and its channels fall
//! behind into the history.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::ws::{Message, Utf8Bytes, WebSocket};
use bytes::Bytes;
use futures_util::SinkExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Duration, Instant};

use super::credential::first_credential;
use super::identity::GatewayIdentity;
use super::opened;
use super::pending::PendingPlace;
use super::state::GatewayState;
use crate::api::clock;
use crate::gateway::ask_pace::AskPace;
use crate::gateway::client_frame::{ClientFrame, ClientRequest};
use crate::gateway::close::CloseReason;
use crate::gateway::connection_counts::ConnectionSeat;
use crate::gateway::hub::Peer;
use crate::gateway::limits::{
    CREDENTIAL_WITHIN, EXPIRY_GRACE, EXPIRY_WARNING, PING_EVERY, PONG_WITHIN,
};
use crate::gateway::reading::MissedPage;
use crate::gateway::server_frame::{self, FrameError, Hello, Warning};

/// Frames that are written before the socket is read again.
const WRITTEN_MAX: usize = 64;

/// The begin of a connection.
pub enum Opening {
    /// The credential came with the request.
    Known(GatewayIdentity, ConnectionSeat),
    /// The credential must come as the first frame.
    Pending(PendingPlace),
}

/// The end of a connection.
pub(super) enum Ended {
    /// The client has gone, or closes.
    Gone,
    /// The gateway closes it.
    Close(CloseReason),
}

/// A connection that is open.
pub(super) struct Session {
    socket: WebSocket,
    pub(super) state: Arc<GatewayState>,
    pub(super) identity: GatewayIdentity,
    pub(super) peer: Arc<Peer>,
    ping_at: Instant,
    /// The time by which a sign of life must come; `None` while none is asked for.
    pong_by: Option<Instant>,
    /// The time at which the client is warned of the expiry of its credential.
    warn_at: Option<Instant>,
    /// The time at which the credential's grace is over.
    expires_at: Option<Instant>,
    /// The end of the browser's session from which the credential came.
    pub(super) session_end: Option<BoxFuture<'static, ()>>,
    /// The time at which a stopping process closes the connection.
    leave_at: Option<Instant>,
    /// The time until which nothing is read, because the client published or marked beyond the
    /// limit of its tenant, asks too much, or its tenant sends too many frames. One frame is read
    /// between two such times, so that it still counts as alive.
    held_until: Option<Instant>,
    /// The pace of what it asks, and of all its frames.
    asks: AskPace,
    /// The address of the client, if the listener has recorded it.
    pub(super) address: Option<IpAddr>,
    /// The tokens that were not valid.
    pub(super) wrong_tokens: u32,
}

/// Serves a connection until it ends.
pub async fn run(
    state: Arc<GatewayState>,
    mut socket: WebSocket,
    opening: Opening,
    place: OwnedSemaphorePermit,
    address: Option<IpAddr>,
) {
    let _tracked = state.gateway.sessions.token();
    let (identity, seat) = match opening {
        Opening::Known(identity, seat) => (identity, seat),
        Opening::Pending(pending) => {
            let credential = Box::pin(first_credential(&state, &mut socket, address));
            let known = tokio::select! {
                known = tokio::time::timeout(CREDENTIAL_WITHIN, credential) => known,
                // It is not one of those that are sent away one after the other.
                () = state.gateway.drain.cancelled() => Ok(Err(CloseReason::Restart)),
            };
            drop(pending);
            match known.unwrap_or(Err(CloseReason::Credential)) {
                Ok(identity) => match opened::seat(&state, &identity).await {
                    Some(seat) => (identity, seat),
                    None => return opened::close(socket, CloseReason::TooManyConnections).await,
                },
                Err(reason) => return opened::turn_away(&state, socket, reason).await,
            }
        }
    };
    let metrics = state.gateway.metrics.clone();
    metrics.opened();
    let peer = state.gateway.hub.join(&identity.tenant);
    let session_end = opened::session_end(&state, &identity);
    let mut session = Session {
        socket,
        identity,
        peer: peer.clone(),
        ping_at: Instant::now() + PING_EVERY,
        pong_by: None,
        warn_at: None,
        expires_at: None,
        session_end,
        leave_at: None,
        held_until: None,
        asks: AskPace::default(),
        address,
        wrong_tokens: 0,
        state,
    };
    session.note_expiry();
    let ended = session.serve().await;
    let subscriptions = peer.state().subscriptions.len();
    session.state.gateway.hub.leave(&peer);
    let Session { socket, .. } = session;
    // The place of the tenant is free again before the client is told.
    drop((seat, place));
    match ended {
        Ended::Gone => {
            metrics.ended(subscriptions, None);
            opened::finish(socket).await;
        }
        Ended::Close(reason) => {
            metrics.ended(subscriptions, Some(reason));
            opened::close(socket, reason).await;
        }
    }
}

impl Session {
    async fn serve(&mut self) -> Ended {
        match self.talk().await {
            Ok(()) => Ended::Gone,
            Err(ended) => ended,
        }
    }

    async fn talk(&mut self) -> Result<(), Ended> {
        let (gateway, tenant) = (self.state.gateway.clone(), self.identity.tenant.clone());
        // In a box, so that the task of every connection does not hold its room.
        let per_second = Box::pin(gateway.rate_of(&tenant)).await;
        let hello = self.hello(per_second);
        self.send(hello).await?;
        let drain = self.state.gateway.drain.clone();
        loop {
            self.write().await?;
            let held = self.held_until.filter(|until| *until > Instant::now());
            let deadline = self.deadline(held);
            let is_draining = self.leave_at.is_some();
            tokio::select! {
                biased;
                () = drain.cancelled(), if !is_draining => self.begin_drain(),
                () = tokio::time::sleep_until(deadline) => self.look_at_clock()?,
                // Before the socket, in which a client may always have something.
                () = opened::signed_out(&mut self.session_end) => {
                    return Err(Ended::Close(CloseReason::Credential));
                }
                // A publisher over the limit is not read meanwhile; its frames wait in the network.
                read = self.socket.recv(), if held.is_none() => {
                    let Some(message) = read.transpose().map_err(ended_by)? else { return Ok(()) };
                    let now = Instant::now();
                    let next_at = self.asks.frame(&self.peer.tenant.frames, now.into_std());
                    self.hold(next_at);
                    // A ping of the protocol is no sign of life: it may come amid a message that
                    // never ends.
                    if matches!(message, Message::Text(_) | Message::Binary(_)) {
                        (self.pong_by, self.ping_at) = (None, now + PING_EVERY);
                    }
                    match message {
                        Message::Text(text) => Box::pin(self.take(&text)).await?,
                        Message::Binary(_) => {
                            let words = "frames are JSON in messages of text";
                            self.refuse(FrameError::BadFrame, words, None).await?;
                        }
                        Message::Ping(_) | Message::Pong(_) => {}
                        Message::Close(_) => return Ok(()),
                    }
                }
                () = self.peer.wake.notified() => {}
            }
        }
    }

    fn hello(&self, per_second: f64) -> Bytes {
        let limits = &self.state.gateway.limits;
        server_frame::hello(&Hello {
            session: format!("{:016x}", rand::random::<u64>()),
            resume_window_s: limits.drain.as_secs_f64().ceil().max(1.0) as u64,
            expires_at: self.identity.expires_at,
            messages_per_s: per_second,
        })
    }

    /// Returns the next time at which something is due.
    fn deadline(&self, held: Option<Instant>) -> Instant {
        let times = [
            Some(self.pong_by.unwrap_or(self.ping_at)),
            self.warn_at,
            self.expires_at,
            self.leave_at,
            held,
        ];
        times.into_iter().flatten().min().unwrap_or(self.ping_at)
    }

    fn look_at_clock(&mut self) -> Result<(), Ended> {
        let now = Instant::now();
        let is_over = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_over(self.leave_at) {
            return Err(Ended::Close(CloseReason::Restart));
        }
        if is_over(self.expires_at) {
            return Err(Ended::Close(CloseReason::Credential));
        }
        if is_over(self.pong_by) {
            return Err(Ended::Close(CloseReason::NoPong));
        }
        if is_over(self.warn_at) {
            self.warn_at = None;
            let left = self.expires_at.map_or(Duration::ZERO, |at| {
                at.saturating_duration_since(now + EXPIRY_GRACE)
            });
            self.control(server_frame::warning(Warning::TokenExpires { left }))?;
        }
        if self.pong_by.is_none() && self.ping_at <= now {
            self.pong_by = Some(now + PONG_WITHIN);
            self.ping_at = now + PING_EVERY;
            self.control(server_frame::ping())?;
        }
        Ok(())
    }

    /// Sets the times at which the credential ends.
    pub(super) fn note_expiry(&mut self) {
        let left = self.identity.left(clock::now());
        let now = Instant::now();
        self.expires_at = left.map(|left| now + left + EXPIRY_GRACE);
        // A token that is short-lived anyway is not announced as soon as it comes.
        self.warn_at = left.map(|left| now + left - EXPIRY_WARNING.min(left / 2));
    }

    fn begin_drain(&mut self) {
        let after = self.state.gateway.drain_delay();
        self.leave_at = Some(Instant::now() + after);
        let frame = server_frame::reconnect(after.as_millis() as u64);
        // The close frame says the same.
        let _ = self.peer.state().outbox.push_control(frame);
    }

    fn control(&self, frame: Bytes) -> Result<(), Ended> {
        let has_room = self.peer.state().outbox.push_control(frame);
        has_room
            .then_some(())
            .ok_or(Ended::Close(CloseReason::Slow))
    }

    /// Writes a group of what waits; once nothing does, a page of what a reader that is behind has
    /// missed.
    async fn write(&mut self) -> Result<(), Ended> {
        let mut written = 0;
        while written < WRITTEN_MAX {
            let Some(frame) = self.peer.state().outbox.pop() else {
                break;
            };
            written += 1;
            self.feed(frame).await?;
        }
        if written > 0 {
            self.socket.flush().await.map_err(ended_by)?;
            let messages = self.peer.state().outbox.count_taken();
            self.state.gateway.metrics.delivered(messages);
        }
        let may_have_more = match written < WRITTEN_MAX {
            true => {
                self.send_gaps().await?;
                Box::pin(self.catch_up()).await?
            }
            false => true,
        };
        if may_have_more {
            // The socket is read and the clock is looked at between two groups.
            self.peer.wake.notify_one();
        }
        Ok(())
    }

    /// Tells of dropped messages of channels without history, once there is room again.
    async fn send_gaps(&mut self) -> Result<(), Ended> {
        let gaps = self.peer.state().take_gaps();
        for (channel, missed) in gaps {
            self.state.gateway.metrics.dropped(u64::from(missed));
            self.send(server_frame::gap(&channel, missed)).await?;
        }
        Ok(())
    }

    /// Writes a page of the history for a channel that is behind; returns false if none is.
    async fn catch_up(&mut self) -> Result<bool, Ended> {
        let behind = self.peer.state().behind();
        let Some(behind) = behind else {
            return Ok(false);
        };
        let gateway = self.state.gateway.clone();
        if behind.is_news {
            gateway.metrics.lagged();
            self.send(server_frame::lag(&behind.channel)).await?;
        }
        let messages = match gateway.missed(&self.identity.tenant, &behind).await {
            MissedPage::Messages(messages) => messages,
            MissedPage::Away => return Ok(true),
            MissedPage::Lost => return Err(Ended::Close(CloseReason::Slow)),
        };
        for message in &messages {
            self.feed(server_frame::message(message)).await?;
        }
        self.socket.flush().await.map_err(ended_by)?;
        gateway.metrics.delivered(messages.len() as u64);
        let last = messages.last().map_or(behind.next, |last| last.offset);
        self.peer.state().caught_up(&behind, last);
        Ok(true)
    }

    /// Takes a frame of the client.
    async fn take(&mut self, text: &str) -> Result<(), Ended> {
        let frame = match ClientFrame::parse(text) {
            Ok(frame) => frame,
            Err(bad) => {
                let reference = bad.reference.as_deref();
                return self
                    .refuse(FrameError::BadFrame, &bad.message, reference)
                    .await;
            }
        };
        if frame.request.asks() {
            self.hold_at_pace();
        }
        let reference = frame.reference.as_deref();
        match frame.request {
            ClientRequest::Pong => Ok(()),
            ClientRequest::Refresh { token } => self.refresh(&token, reference).await,
            ClientRequest::InboxList(asked) => self.list_inbox(&asked, reference).await,
            ClientRequest::InboxMark(asked) => self.mark_inbox(&asked, reference).await,
            ClientRequest::Subscribe { channel, since } => {
                match self.named(&channel, reference).await? {
                    Some(channel) => self.subscribe(channel, since, reference).await,
                    None => Ok(()),
                }
            }
            ClientRequest::Unsubscribe { channel } => {
                match self.named(&channel, reference).await? {
                    Some(channel) => self.unsubscribe(&channel, reference).await,
                    None => Ok(()),
                }
            }
            ClientRequest::Publish { channel, data } => {
                match self.named(&channel, reference).await? {
                    Some(channel) => self.publish(&channel, data, reference).await,
                    None => Ok(()),
                }
            }
            ClientRequest::Ack { channel, offset } => {
                match self.named(&channel, reference).await? {
                    Some(channel) => self.acknowledge(&channel, offset, reference).await,
                    None => Ok(()),
                }
            }
        }
    }

    /// Holds the client at the limit of its tenant, if that is reached.
    pub(super) fn hold_at_limit(&mut self) {
        self.hold(self.peer.limited_until());
    }

    /// Holds a client that asks, or is refused, faster than the pace.
    fn hold_at_pace(&mut self) {
        let next_at = self.asks.take(std::time::Instant::now());
        self.hold(next_at);
    }

    /// Reads nothing until a time.
    fn hold(&mut self, until: Option<std::time::Instant>) {
        self.held_until = self.held_until.max(until.map(Instant::from_std));
    }

    pub(super) async fn refuse(
        &mut self,
        code: FrameError,
        words: &str,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        self.hold_at_pace();
        self.send(server_frame::error(code, words, reference)).await
    }

    async fn feed(&mut self, frame: Bytes) -> Result<(), Ended> {
        // Every frame is made as text.
        let text = Utf8Bytes::try_from(frame).map_err(|_| Ended::Close(CloseReason::Protocol))?;
        self.socket
            .feed(Message::Text(text))
            .await
            .map_err(ended_by)
    }

    pub(super) async fn send(&mut self, frame: Bytes) -> Result<(), Ended> {
        self.feed(frame).await?;
        self.socket.flush().await.map_err(ended_by)
    }
}

/// Returns the end that an error of the socket means.
fn ended_by(error: axum::Error) -> Ended {
    use tungstenite::Error as Socket;
    match error.into_inner().downcast_ref::<Socket>() {
        Some(Socket::Capacity(_)) => Ended::Close(CloseReason::TooLarge),
        // The listener gives up on a client that has taken nothing for half a minute.
        Some(Socket::Io(error)) if error.kind() == std::io::ErrorKind::TimedOut => {
            Ended::Close(CloseReason::Slow)
        }
        Some(Socket::Utf8(_)) => Ended::Close(CloseReason::NotUtf8),
        Some(Socket::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => {
            Ended::Gone
        }
        Some(Socket::Protocol(_)) => Ended::Close(CloseReason::Protocol),
        _ => Ended::Gone,
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_client_that_takes_nothing_is_slow_and_one_that_breaks_off_has_gone() {
        let end = |kind: ErrorKind| {
            let error = tungstenite::Error::Io(kind.into());
            ended_by(axum::Error::new(error))
        };
        let slow = end(ErrorKind::TimedOut);
        assert!(matches!(slow, Ended::Close(CloseReason::Slow)));
        assert!(matches!(end(ErrorKind::ConnectionReset), Ended::Gone));
    }
}
