//! The interface of all drivers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{Http, Message, Provider, Sent};
use crate::jobs::{Issue, Quota};

/// A key of an account's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The key. A credential `x` is given as `x_env` or `x_file`.
    pub name: &'static str,
    /// The value is a credential.
    pub is_secret: bool,
    /// The key is mandatory.
    pub is_required: bool,
    /// A description for people.
    pub about: &'static str,
}

/// Builds an entry of a driver's table.
pub(super) const fn field(
    name: &'static str,
    is_secret: bool,
    is_required: bool,
    about: &'static str,
) -> Field {
    Field {
        name,
        is_secret,
        is_required,
        about,
    }
}

/// The HTTP clients that a driver is built with, shared by all drivers of a process.
#[derive(Clone)]
pub struct DriverClients {
    /// The client for addresses from the settings: it may reach private networks.
    pub http: Arc<Http>,
    /// The client for addresses that come with a message: it may not reach private networks.
    pub guarded: Arc<Http>,
}

/// The circumstances of an attempt, besides the message.
#[derive(Clone, Debug)]
pub struct SendContext {
    /// Our clock, in unix seconds: for signatures and tokens, and for servers whose answers lack a
    /// `Date`.
    pub now_s: i64,
    /// The timeout from connecting to the answer.
    pub timeout: Duration,
    /// Cancels the attempt when the worker stops or the job is cancelled.
    pub stop: CancellationToken,
}

/// The outcome of an attempt and the other facts of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderResponse {
    /// The outcome.
    pub sent: Sent,
    /// The status as received: `201`, `4.7.1`; empty without an answer.
    pub status: String,
    /// The remaining quota of the account, if the answer reports it, on success or failure.
    pub quota: Option<Quota>,
    /// The delay that the provider asks for with an error of its own (503), if any.
    pub delay: Option<Duration>,
    /// The duration of this answer says nothing about the provider's load, for instance because it
    /// followed a rejected push.
    pub is_untimed: bool,
}

impl ProviderResponse {
    /// Creates an answer without quota or delay.
    pub fn new(sent: Sent, status: impl Into<String>) -> Self {
        Self {
            sent,
            status: status.into(),
            quota: None,
            delay: None,
            is_untimed: false,
        }
    }
}

/// A client that speaks one provider's wire format for one account. It never retries by itself.
pub trait Driver: Send + Sync + 'static {
    /// Returns the driver's provider.
    fn provider(&self) -> Provider;

    /// Checks a message before it is sent; issues point into the job's arguments (`/to`, `/body`,
    /// `/extra/...`).
    fn check(&self, message: &Message) -> Vec<Issue>;

    /// Makes one attempt to send a message.
    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse>;

    /// Asks the provider for the account's allowed rate, in messages per second; `None` if the
    /// provider does not report one.
    fn quota<'a>(&'a self, context: &'a SendContext) -> BoxFuture<'a, Option<f64>> {
        let _ = context;
        Box::pin(std::future::ready(None))
    }

    /// Sets the maximum number of concurrent requests. A driver with connections of its own opens
    /// and closes them accordingly.
    fn set_concurrency(&self, most: usize) {
        let _ = most;
    }
}
