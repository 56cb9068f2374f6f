//! Refusals by other servers, the quotas that they report, and the state of keys.

use std::time::Duration;

use crate::throttle::scope::Scope;
use crate::throttle::{Name, learned};

/// The longest pause of a key that a person or a handler may request: 30 days.
pub const MAX_PAUSE: Duration = Duration::from_secs(30 * 86_400);

/// The longest pause that a program of a tenant can ask for at a throttle that is not its tenant's,
/// where others may work under the same key: ten minutes with the jitter of a tenth.
pub const SHARED_PAUSE_MAX: Duration = Duration::from_secs(545);

/// The longest stored pause of a key, in milliseconds (31 days).
pub const MAX_PAUSE_MS: u128 = 31 * 86_400_000;

/// The longest time for which a reported quota counts.
const LONGEST_QUOTA: Duration = Duration::from_secs(86_400);

/// The rest of a quota, as a server reported it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// The requests left until the reset.
    pub remaining: f64,
    /// The time until the quota is full again.
    pub reset: Duration,
}

/// A refusal by another server, such as a 429.
#[derive(Clone, Debug, PartialEq)]
pub struct UpstreamRefusal<'a> {
    /// The rate-limit key of the refused job; empty for none.
    pub key: &'a str,
    /// The extent of the refusal.
    pub scope: Scope,
    /// True if the server sheds load regardless of the caller, so that no rate is learned.
    pub is_overload: bool,
    /// True if the server is not trusted: the refusal has no wider scope than the knob
    /// `trust_scope` allows.
    pub is_untrusted: bool,
    /// The stated delay; `None` for back-off.
    pub delay: Option<Duration>,
    /// A random number from 0 to 1, for the jitter.
    pub jitter: f64,
    /// The server's answer, shown to people.
    pub why: &'a str,
}

impl UpstreamRefusal<'_> {
    /// Returns the throttle of the chain (root first) that is paused as a whole; `None` if only the
    /// key is.
    pub(super) fn level<'a>(&self, chain: &'a [Name]) -> Option<&'a Name> {
        match self.scope {
            Scope::Key => None,
            Scope::Throttle => chain.last(),
            Scope::Account => chain.iter().rev().nth(1).or(chain.last()),
        }
    }

    /// Returns the stated delay in microseconds, if any.
    pub(super) fn requested_us(&self) -> Option<f64> {
        self.delay
            .map(|delay| delay.as_micros().min(MAX_PAUSE_MS * 1000) as f64)
    }

    /// Returns the end of the pause, unix milliseconds, after `strikes` refusals in a row; shorter
    /// if a rate `is_known`, and never longer than `most_us`.
    pub(super) fn until_ms(&self, strikes: f64, is_known: bool, most_us: f64, now_us: i64) -> i64 {
        let pause_us = learned::pause_us(self.requested_us(), strikes, is_known, self.jitter);
        ((now_us as f64 + pause_us.min(most_us).floor()) / 1000.0).ceil() as i64
    }
}

impl Quota {
    /// Returns the microseconds until the quota is full again, at least one.
    pub(super) fn reset_us(&self) -> f64 {
        self.reset.as_micros().clamp(1, LONGEST_QUOTA.as_micros()) as f64
    }
}

/// The effect of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalEffect {
    /// The end of the pause, unix milliseconds.
    pub until_ms: i64,
    /// The delay of the refused job itself, if the throttle is naive and no other job is paused.
    pub alone: Option<Duration>,
}

impl RefusalEffect {
    /// Returns the effect of a refusal that pauses no other job.
    pub(super) fn alone(until_ms: i64, now_us: i64) -> Self {
        let delay_us = (until_ms * 1000).saturating_sub(now_us).max(0);
        Self {
            until_ms,
            alone: Some(Duration::from_micros(delay_us as u64)),
        }
    }
}

/// The results of jobs of one key that another server influenced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyOutcomes<'a> {
    /// The rate-limit key; empty for none.
    pub key: &'a str,
    /// The number of jobs that succeeded.
    pub succeeded: u32,
    /// The tokens of the jobs that succeeded.
    pub tokens: f64,
    /// The number of jobs that failed without a refusal, or were granted and never begun.
    pub failed: u32,
    /// The time since the last of them began, which is later than its grant; `None` if it is
    /// unknown.
    pub begun_ago: Option<Duration>,
    /// The quota reported to the last of them.
    pub quota: Option<Quota>,
    /// True if the server is not trusted.
    pub is_untrusted: bool,
}

/// The state of one key of a throttle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyState {
    /// The end of its pause, unix milliseconds; `None` if it is not paused now.
    pub paused_until_ms: Option<i64>,
    /// The reason of the pause.
    pub why: String,
    /// The learned rate in force, in tokens per second, from refusals or from a reported quota.
    pub learned_rps: Option<f64>,
    /// The rate at which it last settled after a refusal, in tokens per second; the learned rate
    /// grows from there.
    pub settled_rps: Option<f64>,
    /// True if its pause after a refusal is over and none of its jobs has succeeded since.
    pub probing: bool,
    /// The number of refusals since its state began. May restart from 0.
    pub refused: f64,
}
