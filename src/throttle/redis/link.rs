//! The connection to one server: every call is bounded, and while the server is lost calls are answered at once.
//!
//! ```text
//!   connecting ──first PING answered──▶ up ◀──PING answered── lost
//!        └────────error or 1 s─────────▶│                      ▲
//!                                       └──a call fails, or is not answered in time
//! ```
//! While lost, one task asks with PING; callers never wait for it.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::said::said_by;
use crate::throttle::Error;

/// How long the task that looks for a lost server waits between two looks.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(150);

/// How long a look, and the first connection, may take.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// After so many looks in vain the connection is made anew, in case it leads to a host that is gone without a word.
const PROBES_PER_CONNECTION: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Up,
    Lost,
}

/// A bounded connection.
pub(super) struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    manager: ArcSwap<ConnectionManager>,
    state: watch::Sender<State>,
    why_lost: Mutex<String>,
    wake: Arc<Notify>,
    /// A password of the URL, never to be shown.
    secret: Option<String>,
}

/// Why a call was not answered.
pub(super) struct Failure {
    /// In words, without a password.
    pub(super) text: String,
    /// What the library says; none if the call was not made or not answered in time.
    pub(super) error: Option<RedisError>,
}

impl Link {
    /// Starts to connect in the background.
    pub(super) fn open(client: Client) -> RedisResult<Self> {
        let secret = client.get_connection_info().redis_settings().password().map(ToOwned::to_owned);
        let inner = Arc::new(Inner {
            manager: ArcSwap::from_pointee(connect(&client)?),
            client,
            state: watch::Sender::new(State::Connecting),
            why_lost: Mutex::default(),
            wake: Arc::new(Notify::new()),
            secret: secret.filter(|secret| !secret.is_empty()),
        });
        tokio::spawn(look(Arc::downgrade(&inner), inner.wake.clone()));
        Ok(Self { inner })
    }

    /// True if nothing says that the server would not answer.
    pub(super) fn is_up(&self) -> bool {
        *self.inner.state.borrow() == State::Up
    }

    /// Waits until the very first connection stands or is known not to stand, which takes up to a second.
    pub(super) async fn settled(&self) {
        if *self.inner.state.borrow() == State::Connecting {
            let mut state = self.inner.state.subscribe();
            let connected = state.wait_for(|state| *state != State::Connecting);
            let _ = timeout(PROBE_TIMEOUT, connected).await;
        }
    }

    /// Runs `call` and answers within `bound`, at once if the server is known to be lost.
    pub(super) async fn run<T, F>(&self, bound: Duration, call: impl FnOnce(ConnectionManager) -> F) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>>,
    {
        if !self.is_up() {
            return Err(Failure::new(self.inner.why_lost()));
        }
        let manager = ConnectionManager::clone(&self.inner.manager.load());
        match timeout(bound, call(manager)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let text = self.inner.text_of(&error);
                if means_lost(&error) {
                    self.inner.lose(text.clone());
                }
                Err(Failure { text, error: Some(error) })
            }
            Err(_) => {
                let text = format!("no answer within {} ms", bound.as_millis());
                self.inner.lose(text.clone());
                Err(Failure::new(text))
            }
        }
    }
}

impl Failure {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), error: None }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Lost(failure.text)
    }
}

impl Inner {
    fn lose(&self, why: String) {
        *self.why_lost.lock().unwrap_or_else(PoisonError::into_inner) = why;
        let was = self.state.send_replace(State::Lost);
        if was != State::Lost {
            self.wake.notify_one();
        }
    }

    fn why_lost(&self) -> String {
        let why = self.why_lost.lock().unwrap_or_else(PoisonError::into_inner);
        if why.is_empty() { "not connected yet".to_owned() } else { why.clone() }
    }

    /// The error in words, without the password.
    fn text_of(&self, error: &RedisError) -> String {
        if let Some(said) = said_by(error) {
            return said.to_owned();
        }
        let text = error.to_string();
        self.secret.as_ref().map_or_else(|| text.clone(), |secret| text.replace(secret.as_str(), "***"))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Looks for Redis until it answers, then sleeps until somebody loses it.
async fn look(inner: Weak<Inner>, wake: Arc<Notify>) {
    let mut looks = 0;
    loop {
        let Some(link) = inner.upgrade() else { return };
        let mut manager = ConnectionManager::clone(&link.manager.load());
        let why = match timeout(PROBE_TIMEOUT, redis::cmd("PING").query_async::<()>(&mut manager)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(link.text_of(&error)),
            Err(_) => Some("no answer to PING".to_owned()),
        };
        if let Some(why) = why {
            if looks == 0 {
                tracing::warn!(redis.error = why, "redis does not answer; throttles go by their on_store_loss");
            }
            looks += 1;
            link.lose(why);
            if looks % PROBES_PER_CONNECTION == 0
                && let Ok(fresh) = connect(&link.client)
            {
                link.manager.store(Arc::new(fresh));
            }
            drop(link);
            sleep(PROBE_EVERY).await;
        } else {
            if looks > 0 {
                tracing::info!("redis answers again");
            }
            looks = 0;
            link.state.send_replace(State::Up);
            drop(link);
            wake.notified().await;
        }
    }
}

/// A connection that is made when it is first used, and again after it broke, without retries of its own.
fn connect(client: &Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(PROBE_TIMEOUT))
        .set_response_timeout(None);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

/// True unless the server itself answered and merely did not like the call, or knows another that would.
fn means_lost(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => {
            matches!(kind, ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly)
        }
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse | ErrorKind::Client | ErrorKind::Extension => false,
        _ => true,
    }
}
