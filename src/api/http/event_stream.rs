//! Answers that are streams of server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::{Stream, StreamExt as _};

/// The time without an event after which a comment is sent, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Asks proxies to pass each event on at once: nginx collects some kilobytes first, and sends not
/// even the head of the answer until then.
const UNBUFFERED: [(&str, &str); 1] = [("x-accel-buffering", "no")];

/// Answers with events as they come.
pub fn answer(events: impl Stream<Item = sse::Event> + Send + 'static) -> impl IntoResponse {
    let events = Sse::new(events.map(Ok::<_, Infallible>));
    let events = events.keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    (UNBUFFERED, events)
}
