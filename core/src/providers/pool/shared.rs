//! The parts that an account pool and its tasks share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};

use crate::jobs::Quota;
use crate::providers::Pool;
use crate::providers::pool::breaker::Change;
use crate::providers::pool::breakers::STORE_RETRY_PAUSES;
use crate::providers::pool::{AccountView, Breakers, Flow, PoolView, Ring};
use crate::throttle::{Error, Grant, Name, RateLimit, Store, UpstreamRefusal};

/// The maximum number of messages served by one call.
pub(super) const MAX_SERVE_BATCH: usize = 256;

/// The rest of an account whose return cannot be foreseen: it is being probed, or the store is
/// lost.
pub(super) const UNKNOWN_TURN_WAIT: Duration = Duration::from_millis(250);

/// The maximum number of results reported by one call.
pub(super) const MAX_OUTCOMES_REPORTED: usize = 256;

/// The nominal rate of an account without a limit, in messages per second: more than any can send.
/// With a rate of its own, a key that was refused once is open again as soon as its probes have
/// succeeded; without one it stays at sixteen in progress for minutes.
pub(super) const FREE_RPS: f64 = 1e6;

/// An account lent to one message, for one attempt. The caller reports the result with one of the
/// pool's methods.
#[derive(Clone, Debug)]
pub struct AccountLease {
    /// The account's index in the pool.
    pub at: usize,
    /// The message that holds the account.
    pub(super) message: i64,
    /// The tokens taken for the attempt.
    pub(super) grant: Grant,
    /// The cost of one message, in tokens of the accounts' throttle.
    pub(super) cost: f64,
}

/// The answer to a request for an account.
#[derive(Clone, Debug)]
pub enum Checkout {
    /// The account to use.
    Held(AccountLease),
    /// No account for now.
    Wait {
        /// The time until the first one may be asked.
        wait: Duration,
        /// The reason for the wait.
        why: String,
    },
    /// No account is left besides the excluded ones.
    NoAccount,
}

pub(super) struct CheckoutRequest {
    pub(super) message: i64,
    pub(super) excluded: Vec<usize>,
    pub(super) timeout: Duration,
    pub(super) since: Instant,
    pub(super) reply: oneshot::Sender<Checkout>,
}

/// The result of a message that the store watches.
pub(super) struct SendFeedback {
    pub(super) account: usize,
    pub(super) is_success: bool,
    pub(super) cost: f64,
    pub(super) quota: Option<Quota>,
}

pub(super) struct AccountPoolInner {
    pub(super) pool: Pool,
    /// The id in the store, unique for each open pool.
    pub(super) id: String,
    /// The throttle whose keys are the accounts.
    pub(super) accounts: Name,
    pub(super) store: Arc<dyn Store>,
    pub(super) breakers: Breakers,
    /// The limit of each account, in messages per second; a provider may lower it at run time.
    pub(super) limits: Mutex<Vec<RateLimit>>,
    /// The highest limit, in messages per second: a message costs one token at an account with this
    /// limit.
    pub(super) reference: f64,
    /// The factor on each limit, as the bits of a float.
    pub(super) load: AtomicU64,
    pub(super) view: ArcSwap<PoolView>,
    pub(super) changes: mpsc::UnboundedSender<(String, Change)>,
    pub(super) ring: Mutex<Ring>,
    /// The reason for each account's rest.
    pub(super) why: Mutex<Vec<String>>,
    /// The end of each account's rest that the store has not confirmed, in microseconds.
    pub(super) unshared_until_us: Mutex<Vec<i64>>,
    pub(super) begun: Instant,
    /// Wakes the pool's maintenance task.
    pub(super) moved: Arc<tokio::sync::Notify>,
}

impl AccountPoolInner {
    pub(super) fn name(&self, at: usize) -> String {
        self.pool
            .accounts
            .get(at)
            .map_or_else(String::new, |limited| limited.account.name.clone())
    }

    /// Returns the cost of one message at the account, in tokens of the accounts' throttle. It is
    /// inversely proportional to the account's limit, so that each account has its own rate.
    pub(super) fn cost(&self, at: usize) -> f64 {
        let limit = locked(&self.limits)
            .get(at)
            .map_or(RateLimit::Unlimited, |limit| {
                limit.scaled(f64::from_bits(self.load.load(Ordering::Relaxed)))
            });
        (self.reference / effective_limit(limit).max(1e-6)).min(1e9)
    }

    /// Returns the time per message of the whole pool as last observed, in microseconds; 0 if
    /// nothing limits its rate.
    pub(super) fn interval_us(&self) -> f64 {
        let capacity = self.view.load().capacity_rps.filter(|rps| *rps > 0.0);
        capacity.map_or(0.0, |rps| 1e6 / rps)
    }

    pub(super) fn set_load(&self, load: f64) {
        self.load.store(load.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn now_us(&self) -> i64 {
        self.begun.elapsed().as_micros() as i64
    }

    /// Lets an account rest for this long in this process.
    pub(super) fn rest(&self, at: usize, wait: Duration, why: &str) {
        locked(&self.ring).rest(at, self.after_us(wait));
        if let Some(kept) = locked(&self.why).get_mut(at) {
            why.clone_into(kept);
        }
    }

    fn after_us(&self, wait: Duration) -> i64 {
        self.now_us()
            .saturating_add(wait.as_micros().min(1 << 60) as i64)
    }

    /// Returns the end of each account's rest in this process, in microseconds.
    pub(super) fn rests_us(&self) -> Vec<i64> {
        let ring = locked(&self.ring);
        let accounts = 0..self.pool.accounts.len();
        accounts.map(|at| ring.free_at_us(at)).collect()
    }

    /// Ends the rests of accounts that flow by the store, such as one that a person resumed in
    /// another process. `rests_us` were read before `accounts`: a rest that began meanwhile stays,
    /// as does one that the store has not confirmed.
    pub(super) fn end_rests(&self, rests_us: &[i64], accounts: &[AccountView]) {
        let now_us = self.now_us();
        let unshared = locked(&self.unshared_until_us);
        let mut ring = locked(&self.ring);
        for (at, account) in accounts.iter().enumerate() {
            let rest_us = rests_us.get(at).copied().unwrap_or(i64::MIN);
            let is_shared = unshared.get(at).is_none_or(|until_us| *until_us <= now_us);
            if account.state == Flow::Flowing
                && is_shared
                && rest_us > now_us
                && ring.free_at_us(at) == rest_us
            {
                ring.rest(at, now_us);
            }
        }
    }

    pub(super) fn set_unshared(&self, at: usize, until_us: i64) {
        if let Some(kept) = locked(&self.unshared_until_us).get_mut(at) {
            *kept = until_us;
        }
    }

    /// Lets an account rest in this process, reports the refusal to the store, and retries that,
    /// because a briefly slow store must not cost another refusal.
    pub(super) async fn refuse(
        &self,
        at: usize,
        rest: Duration,
        refused: &UpstreamRefusal<'_>,
    ) -> Result<(), Error> {
        self.set_unshared(at, self.after_us(rest));
        self.rest(at, rest, refused.why);
        let mut last = Ok(());
        for pause in STORE_RETRY_PAUSES {
            tokio::time::sleep(pause).await;
            match self.store.refused(&self.accounts, refused).await {
                Ok(_) => {
                    self.set_unshared(at, i64::MIN);
                    return Ok(());
                }
                Err(error) => last = Err(error),
            }
        }
        last
    }

    /// Sends a change of a breaker to the listeners.
    pub(super) fn publish_change(&self, change: Result<Option<Change>, Error>) {
        match change {
            Ok(Some(change)) => {
                self.moved.notify_one();
                let _ = self.changes.send((self.pool.name.clone(), change));
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(pool = %self.pool.name, %error, "reading a breaker failed")
            }
        }
    }

    /// Returns the reason for the rest of the account that returns first.
    pub(super) fn why_rests(&self, until_us: i64, excluded: &[usize]) -> String {
        let ring = locked(&self.ring);
        let first = (0..self.pool.accounts.len())
            .find(|at| !excluded.contains(at) && ring.free_at_us(*at) == until_us);
        let why = first.and_then(|at| locked(&self.why).get(at).cloned());
        why.unwrap_or_default()
    }
}

/// Returns the rate of an account with this limit, in messages per second.
pub(super) fn effective_limit(limit: RateLimit) -> f64 {
    limit.tokens().unwrap_or(FREE_RPS)
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
