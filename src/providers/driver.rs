//! What every driver can do.

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
    /// It is a credential.
    pub is_secret: bool,
    /// It must be given.
    pub is_required: bool,
    /// What it is, for people.
    pub about: &'static str,
}

/// A key of a driver's table.
pub(super) const fn field(name: &'static str, is_secret: bool, is_required: bool, about: &'static str) -> Field {
    Field { name, is_secret, is_required, about }
}

/// An account's settings that its driver cannot use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {message}")]
pub struct Refused {
    /// The key.
    pub field: String,
    /// What is wrong and what is allowed, without the value of a credential.
    pub message: String,
}

/// What a driver is built with, shared by the drivers of a process.
#[derive(Clone)]
pub struct Tools {
    /// For addresses that whoever runs Flyball has set: it may reach private networks.
    pub http: Arc<Http>,
    /// For addresses that come with a message: it may not.
    pub guarded: Arc<Http>,
}

/// What is said besides the message.
#[derive(Clone, Debug)]
pub struct Told {
    /// Our clock, unix seconds: for signatures and tokens, and for servers that send dates without a `Date`.
    pub now_s: i64,
    /// Longest time from connecting to the answer.
    pub timeout: Duration,
    /// Fires when the worker stops or the job is cancelled.
    pub stop: CancellationToken,
}

/// What became of a message, and what else the answer told.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// What became of it.
    pub sent: Sent,
    /// The status as the wire had it: `201`, `4.7.1`; empty where nothing was answered.
    pub status: String,
    /// What is left of the account's quota, where the answer said so, be it a success or not.
    pub quota: Option<Quota>,
    /// How long the provider asked to stay away with an error of its own (503), where it said so.
    pub delay: Option<Duration>,
    /// How long this answer took says nothing about the provider's load: it came after a rejected push, for instance.
    pub is_untimed: bool,
}

impl Answer {
    /// An answer that told nothing else.
    pub fn new(sent: Sent, status: impl Into<String>) -> Self {
        Self { sent, status: status.into(), quota: None, delay: None, is_untimed: false }
    }
}

/// Speaks one provider's wire format for one account. It never retries by itself.
pub trait Driver: Send + Sync + 'static {
    /// Whose it is.
    fn provider(&self) -> Provider;

    /// What is wrong with a message before it is sent, with pointers into the job's arguments (`/to`, `/body`, `/extra/...`).
    fn check(&self, message: &Message) -> Vec<Issue>;

    /// Sends once.
    fn send<'a>(&'a self, message: &'a Message, told: &'a Told) -> BoxFuture<'a, Answer>;

    /// What the provider itself says that the account may send each second, where it can be asked.
    fn quota<'a>(&'a self, told: &'a Told) -> BoxFuture<'a, Option<f64>> {
        let _ = told;
        Box::pin(std::future::ready(None))
    }

    /// Sets how many requests may be under way at once; a driver with connections of its own opens and closes them by it.
    fn set_concurrency(&self, most: usize) {
        let _ = most;
    }
}
