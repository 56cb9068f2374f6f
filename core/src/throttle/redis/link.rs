//! The connection to one server: every call has a time limit, and fails at once while the server is
//! lost.
//!
//! ```text
//!   connecting ──first PING answered──▶ up ◀──PING answered── lost
//!        └────────error or 1 s─────────▶│                      ▲
//!                                       └──a call fails, or is not answered in time
//! ```
//! While the server is lost, one task probes it with PING; callers never wait for it. A server that
//! refuses writes as a replica answers PING as well: it is probed with ROLE, each time on a new
//! connection, because the name may lead to the new primary while the old connection stays open.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::server_errors::{REPLICA, error_meaning};
use crate::throttle::Error;

/// The pause between two probes of a lost server.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(150);

/// The timeout of a probe and of the first connection.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of failed probes after which the connection is replaced, in case its host has gone
/// away silently.
const PROBES_PER_CONNECTION: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkState {
    Connecting,
    Up,
    Lost,
}

/// A connection whose calls are bounded in time.
pub(super) struct RedisLink {
    inner: Arc<LinkInner>,
}

struct LinkInner {
    client: Client,
    manager: ArcSwap<ConnectionManager>,
    state: watch::Sender<LinkState>,
    why_lost: Mutex<String>,
    /// True from a refusal as a replica until a server says that it is none.
    is_replica: AtomicBool,
    wake: Arc<Notify>,
    /// The password of the URL, which must never be shown.
    secret: Option<String>,
}

/// The time limit of a call.
#[derive(Clone, Copy)]
pub(super) struct CallBound {
    pub(super) time: Duration,
    /// True if the server is lost once it has not answered in time.
    loses: bool,
}

impl CallBound {
    /// Returns the limit of a call for a list, which may take long on a server that answers every
    /// other call: all throttles would stop for it.
    pub(super) fn of_list(time: Duration) -> Self {
        Self { time, loses: false }
    }

    /// Returns the same limit with the time that is left of it.
    pub(super) fn within(self, left: Duration) -> Self {
        Self { time: left, ..self }
    }
}

impl From<Duration> for CallBound {
    fn from(time: Duration) -> Self {
        Self { time, loses: true }
    }
}

/// The reason why a call got no reply.
pub(super) struct CallError {
    /// The reason as text, without a password.
    pub(super) text: String,
    /// The error of the client library; `None` if the call was not made or timed out.
    pub(super) error: Option<RedisError>,
}

impl RedisLink {
    /// Starts to connect in the background.
    pub(super) fn open(client: Client) -> RedisResult<Self> {
        let secret = client
            .get_connection_info()
            .redis_settings()
            .password()
            .map(ToOwned::to_owned);
        let inner = Arc::new(LinkInner {
            manager: ArcSwap::from_pointee(connect(&client)?),
            client,
            state: watch::Sender::new(LinkState::Connecting),
            why_lost: Mutex::default(),
            is_replica: AtomicBool::new(false),
            wake: Arc::new(Notify::new()),
            secret: secret.filter(|secret| !secret.is_empty()),
        });
        tokio::spawn(look(Arc::downgrade(&inner), inner.wake.clone()).boxed());
        Ok(Self { inner })
    }

    /// Returns true if the server is connected and answered last time.
    pub(super) fn is_up(&self) -> bool {
        *self.inner.state.borrow() == LinkState::Up
    }

    /// Waits until the first connection is established or has failed, up to a second.
    pub(super) async fn settled(&self) {
        if *self.inner.state.borrow() == LinkState::Connecting {
            let mut state = self.inner.state.subscribe();
            let connected = state.wait_for(|state| *state != LinkState::Connecting);
            let _ = timeout(PROBE_TIMEOUT, connected).await;
        }
    }

    /// Runs `call` and returns within `bound`, at once if the server is known to be lost.
    pub(super) async fn run<T, F>(
        &self,
        bound: impl Into<CallBound>,
        call: impl FnOnce(ConnectionManager) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let bound = bound.into();
        if !self.is_up() {
            return Err(CallError::new(self.inner.why_lost()));
        }
        let manager = ConnectionManager::clone(&self.inner.manager.load());
        match timeout(bound.time, call(manager)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let text = self.inner.text_of(&error);
                if is_of_read_only(&error) {
                    self.inner.leave_replica();
                }
                if means_lost(&error) {
                    self.inner.lose(text.clone());
                }
                Err(CallError {
                    text,
                    error: Some(error),
                })
            }
            Err(_) => {
                let text = format!("no answer within {} ms", bound.time.as_millis());
                if bound.loses {
                    self.inner.lose(text.clone());
                }
                Err(CallError::new(text))
            }
        }
    }
}

impl CallError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            error: None,
        }
    }
}

impl From<CallError> for Error {
    fn from(failure: CallError) -> Self {
        Self::Lost(failure.text)
    }
}

impl LinkInner {
    fn lose(&self, why: String) {
        *self.why_lost.lock() = why;
        let was = self.state.send_replace(LinkState::Lost);
        if was != LinkState::Lost {
            self.wake.notify_one();
        }
    }

    /// Leaves the connection to a replica, once for all the calls that it refuses.
    fn leave_replica(&self) {
        if !self.is_replica.swap(true, Ordering::SeqCst) {
            tracing::warn!(
                redis.error = REPLICA,
                "Redis has become a replica; a new connection is made"
            );
            self.reconnect();
        }
    }

    fn reconnect(&self) {
        if let Ok(fresh) = connect(&self.client) {
            self.manager.store(Arc::new(fresh));
        }
    }

    /// Asks the server if it can be used; returns the reason if it cannot.
    async fn probe(&self) -> Option<String> {
        let is_replica = self.is_replica.load(Ordering::SeqCst);
        let command = if is_replica { "ROLE" } else { "PING" };
        let mut manager = ConnectionManager::clone(&self.manager.load());
        let question = redis::cmd(command);
        match timeout(PROBE_TIMEOUT, question.query_async::<Value>(&mut manager)).await {
            Ok(Ok(role)) if is_replica && is_of_replica(&role) => Some(REPLICA.to_owned()),
            Ok(Ok(_)) => None,
            // A user may be allowed everything but this; the next write tells.
            Ok(Err(error)) if is_replica && matches!(error.code(), Some("NOPERM" | "ERR")) => None,
            Ok(Err(error)) => Some(self.text_of(&error)),
            Err(_) => Some(format!("no answer to {command}")),
        }
    }

    fn why_lost(&self) -> String {
        let why = self.why_lost.lock();
        if why.is_empty() {
            "not connected yet".to_owned()
        } else {
            why.clone()
        }
    }

    /// Returns the error as text, without the password.
    fn text_of(&self, error: &RedisError) -> String {
        if is_of_read_only(error) {
            return REPLICA.to_owned();
        }
        if let Some(message) = error_meaning(error) {
            return message.to_owned();
        }
        let text = error.to_string();
        self.secret.as_ref().map_or_else(
            || text.clone(),
            |secret| text.replace(secret.as_str(), "***"),
        )
    }
}

impl Drop for LinkInner {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Probes Redis until it answers, then sleeps until a call loses it.
async fn look(inner: Weak<LinkInner>, wake: Arc<Notify>) {
    let mut looks = 0;
    loop {
        let Some(link) = inner.upgrade() else { return };
        if let Some(why) = link.probe().await {
            if looks == 0 {
                tracing::warn!(
                    redis.error = why,
                    "Redis cannot be used; throttles follow on_store_loss"
                );
            }
            looks += 1;
            link.lose(why);
            let is_replica = link.is_replica.load(Ordering::SeqCst);
            if is_replica || looks % PROBES_PER_CONNECTION == 0 {
                link.reconnect();
            }
            drop(link);
            sleep(PROBE_EVERY).await;
        } else {
            if looks > 0 {
                tracing::info!("Redis answers again");
            }
            looks = 0;
            link.is_replica.store(false, Ordering::SeqCst);
            link.state.send_replace(LinkState::Up);
            drop(link);
            wake.notified().await;
        }
    }
}

/// Creates a connection that opens on first use and reopens after it broke, without retries of its
/// own.
fn connect(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(PROBE_TIMEOUT))
        .set_response_timeout(None);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// Returns true for the answer of a replica to ROLE.
fn is_of_replica(answer: &Value) -> bool {
    let Value::Array(parts) = answer else {
        return false;
    };
    matches!(parts.first(), Some(Value::BulkString(role)) if role == b"slave")
}

/// Returns true for the refusal of a write by a replica. Redis 6 tells that of a script within
/// another error.
fn is_of_read_only(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        || error
            .detail()
            .is_some_and(|detail| detail.contains("-READONLY "))
}

/// Returns true unless the server itself answered and merely rejected the call or redirected it.
fn means_lost(error: &RedisError) -> bool {
    if is_of_read_only(error) {
        return true;
    }
    match error.kind() {
        ErrorKind::Server(kind) => {
            matches!(
                kind,
                ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown
            )
        }
        ErrorKind::UnexpectedReturnType
        | ErrorKind::Parse
        | ErrorKind::Client
        | ErrorKind::Extension => false,
        _ => true,
    }
}
