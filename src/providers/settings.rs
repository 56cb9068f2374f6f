//! Pools as the settings describe them, after they were checked and their credentials read.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Account, Channel, Provider};

/// A pool of accounts at one provider. Its jobs pass through the throttle of the same name; the accounts' buckets are the keys of
/// the throttle `<name>:accounts`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Its name, which is its throttle's as well.
    pub name: String,
    /// Whose accounts they are.
    pub provider: Provider,
    /// The accounts in the order in which they take turns; at least one.
    pub accounts: Vec<Limited>,
    /// Reduces what the whole pool sends when accounts are blocked. Without it, the others take what the blocked ones leave.
    pub shedding: bool,
    /// The share of each limit that is used, above 0, at most 1.
    pub headroom: f64,
    /// Failures within `window` that open an account's breaker.
    pub breaker_failures: u32,
    /// The span in which failures are counted.
    pub breaker_window: Duration,
    /// How long an open breaker stays so before one message goes as a probe.
    pub breaker_cooldown: Duration,
    /// Where changes of breakers are told, as a signed webhook; `None` for nowhere.
    pub alert_url: Option<String>,
    /// The name of the secret that signs them, as the kind `http` knows it.
    pub alert_secret: Option<String>,
    /// A message that got no answer after it was written is sent again; otherwise it is kept as a dead letter.
    pub retry_ambiguous: bool,
    /// How long a message waits for an account where it does not say so itself.
    pub valid_for: Duration,
    /// Messages that died because no account was there run again when one is.
    pub requeue_on_recovery: bool,
    /// Longest time of one attempt at one account.
    pub timeout: Duration,
}

/// An account and what it may send.
#[derive(Clone, Debug, PartialEq)]
pub struct Limited {
    /// The account.
    pub account: Account,
    /// Messages each second; below 0 for no limit.
    pub rps: f64,
}

/// All pools, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pools(pub BTreeMap<String, Pool>);

impl Pool {
    /// What it carries.
    pub fn channel(&self) -> Channel {
        self.provider.channel()
    }

    /// The account of that name.
    pub fn account(&self, name: &str) -> Option<&Account> {
        self.accounts.iter().map(|limited| &limited.account).find(|account| account.name == name)
    }
}

impl Pools {
    /// The pool of that name.
    pub fn get(&self, name: &str) -> Option<&Pool> {
        self.0.get(name)
    }

    /// The pool for a message: the one named, as a pool or as a provider, else the first by name that carries the channel.
    pub fn route(&self, channel: Channel, named: Option<&str>) -> Option<&Pool> {
        let carries = |pool: &&Pool| pool.channel() == channel;
        match named {
            Some(name) => self
                .0
                .get(name)
                .filter(carries)
                .or_else(|| self.0.values().filter(carries).find(|pool| pool.provider.word() == name)),
            None => self.0.values().find(carries),
        }
    }
}
