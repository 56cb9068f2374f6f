//! The pools of the settings, validated and with their credentials.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::jobs::WEBHOOKS;
use crate::throttle::{Name, RateLimit};

use super::{Account, Channel, Provider};

/// A pool of accounts at one provider. Its jobs pass through the throttle of the same name; the
/// accounts' buckets are the keys of the throttle `<name>:accounts`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// The name of the pool and of its throttle.
    pub name: String,
    /// The provider of all its accounts.
    pub provider: Provider,
    /// The accounts in their order of rotation; at least one.
    pub accounts: Vec<Limited>,
    /// Lowers the rate of the whole pool while accounts are blocked. Without it, the remaining
    /// accounts take over the blocked accounts' share.
    pub shedding: bool,
    /// The share of each limit that is used: above 0, at most 1.
    pub headroom: f64,
    /// The number of failures within `breaker_window` that opens an account's breaker.
    pub breaker_failures: u32,
    /// The window in which failures are counted.
    pub breaker_window: Duration,
    /// The time that a breaker stays open before one message is sent as a probe.
    pub breaker_cooldown: Duration,
    /// The URL that receives changes of breakers as a signed webhook, if any.
    pub alert_url: Option<String>,
    /// The name of the secret that signs these webhooks, as in the `http` kind.
    pub alert_secret: Option<String>,
    /// Retries a message whose answer was lost after it was written; otherwise it becomes a dead
    /// letter.
    pub retry_ambiguous: bool,
    /// The time that a message may wait before it expires, unless it sets its own.
    pub valid_for: Duration,
    /// Requeues the messages that died for lack of an account as soon as an account is available
    /// again.
    pub requeue_on_recovery: bool,
    /// The timeout of one attempt at one account.
    pub timeout: Duration,
}

/// The name of the built-in pool of the inbox.
pub const INBOX_POOL: &str = "inapp";

/// The time for which a message waits for its place in the inbox, unless it sets its own: it is
/// worth reading late.
const INBOX_VALID_FOR: Duration = Duration::from_secs(30 * 86_400);

/// An account and its rate limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Limited {
    pub account: Account,
    /// The limit, in messages per second.
    pub rps: RateLimit,
}

/// All pools, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pools(pub BTreeMap<String, Pool>);

impl Pool {
    /// Returns the built-in pool of the inbox: one account without a limit.
    pub fn inbox() -> Self {
        let account = Account {
            name: Provider::Inbox.as_str().to_owned(),
            ..Account::default()
        };
        Self {
            name: INBOX_POOL.to_owned(),
            provider: Provider::Inbox,
            accounts: vec![Limited {
                account,
                rps: RateLimit::Unlimited,
            }],
            shedding: true,
            headroom: 1.0,
            breaker_failures: 5,
            breaker_window: Duration::from_secs(30),
            breaker_cooldown: Duration::from_secs(5),
            alert_url: None,
            alert_secret: None,
            retry_ambiguous: true,
            valid_for: INBOX_VALID_FOR,
            requeue_on_recovery: true,
            timeout: Duration::from_secs(10),
        }
    }

    /// Says why no pool of the settings can have this name, if it is taken: its throttle would be
    /// that of jobs other than its messages.
    pub fn why_taken(name: &str) -> Option<&'static str> {
        match name {
            INBOX_POOL => Some("the inbox has a built-in pool of this name"),
            WEBHOOKS => Some("the webhooks of jobs are called through the throttle of this name"),
            Name::DEFAULT => Some("jobs that name no throttle are in the throttle of this name"),
            _ => None,
        }
    }

    /// Returns the channel of the pool's provider.
    pub fn channel(&self) -> Channel {
        self.provider.channel()
    }

    /// Finds an account by name.
    pub fn account(&self, name: &str) -> Option<&Account> {
        self.accounts
            .iter()
            .map(|limited| &limited.account)
            .find(|account| account.name == name)
    }
}

impl Pools {
    /// Adds the built-in pool of the inbox.
    pub fn with_inbox(mut self) -> Self {
        self.0.insert(INBOX_POOL.to_owned(), Pool::inbox());
        self
    }

    /// Finds a pool by name.
    pub fn get(&self, name: &str) -> Option<&Pool> {
        self.0.get(name)
    }

    /// Selects the pool for a message: the pool called `named`, else the first pool by name whose
    /// provider is `named`; without a name, the first pool by name. The pool must carry the
    /// channel.
    pub fn route(&self, channel: Channel, named: Option<&str>) -> Option<&Pool> {
        let carries = |pool: &&Pool| pool.channel() == channel;
        match named {
            Some(name) => self.0.get(name).filter(carries).or_else(|| {
                self.0
                    .values()
                    .filter(carries)
                    .find(|pool| pool.provider.as_str() == name)
            }),
            None => self.0.values().find(carries),
        }
    }
}
