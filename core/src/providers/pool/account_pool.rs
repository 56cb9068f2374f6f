//! The assignment of a pool's accounts to messages.
//!
//! Tokens for many messages are taken with one call: requests that arrive during a call are
//! collected for the next, so that the store's load grows with the number of accounts and not of
//! messages.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::breaker::{BreakerSettings, BreakerState, Change};
use super::breakers::ProbeDecision;
use super::outcomes::report_outcomes;
use super::serve::serve;
use super::shared::{
    AccountLease, AccountPoolInner, Checkout, CheckoutRequest, MAX_OUTCOMES_REPORTED,
    MAX_SERVE_BATCH, SendFeedback, UNKNOWN_TURN_WAIT, effective_limit,
};
use super::{Breakers, PoolView, Ring};
use crate::jobs::Quota;
use crate::providers::Pool;
use crate::throttle::{Error, Name, Notes, RateLimit, Refund, Scope, Store, UpstreamRefusal};

/// The wait of a message that may not probe an account because it failed there.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(5);

/// The maximum rest of an account whose provider asked for it with an error of its own.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// The account pool in one process. Cheap to clone.
#[derive(Clone)]
pub struct AccountPool {
    shared: Arc<AccountPoolInner>,
    requests: mpsc::Sender<CheckoutRequest>,
    ends: mpsc::Sender<SendFeedback>,
}

impl AccountPool {
    /// Opens `pool`, with accounts that all processes share in `store` and breakers in
    /// `notes`. Changes of breakers by this process are sent to `changes`, with the pool's name.
    /// Must be called inside a Tokio runtime.
    pub fn open(
        pool: Pool,
        store: Arc<dyn Store>,
        notes: Arc<dyn Notes>,
        changes: mpsc::UnboundedSender<(String, Change)>,
    ) -> Result<Self, crate::throttle::name::InvalidName> {
        let accounts = Name::new(format!("{}:accounts", pool.name))?;
        let law = BreakerSettings {
            failures: pool.breaker_failures,
            window_ms: pool.breaker_window.as_millis() as i64,
            cooldown_ms: pool.breaker_cooldown.as_millis() as i64,
        };
        // Before the first observation only the settings are known, and nothing of the accounts'
        // states.
        let view = PoolView {
            name: pool.name.clone(),
            provider: pool.provider.as_str().to_owned(),
            channel: pool.channel().as_str().to_owned(),
            shedding: pool.shedding,
            ..PoolView::default()
        };
        let limits: Vec<RateLimit> = pool.accounts.iter().map(|limited| limited.rps).collect();
        let many = limits.len();
        let shared = Arc::new(AccountPoolInner {
            breakers: Breakers::new(notes, accounts.clone(), law),
            reference: limits
                .iter()
                .copied()
                .map(effective_limit)
                .fold(0.0, f64::max),
            limits: Mutex::new(limits),
            load: AtomicU64::new(1.0_f64.to_bits()),
            view: ArcSwap::from_pointee(view),
            ring: Mutex::new(Ring::new(many)),
            why: Mutex::new(vec![String::new(); many]),
            unshared_until_us: Mutex::new(vec![i64::MIN; many]),
            begun: Instant::now(),
            moved: Arc::new(tokio::sync::Notify::new()),
            id: format!("pool-{:016x}", rand::random::<u64>()),
            pool,
            accounts,
            store,
            changes,
        });
        let (requests, requested) = mpsc::channel(4 * MAX_SERVE_BATCH);
        let (ends, ended) = mpsc::channel(16 * MAX_OUTCOMES_REPORTED);
        tokio::spawn(serve(shared.clone(), requested).boxed());
        tokio::spawn(report_outcomes(shared.clone(), ended).boxed());
        Ok(Self {
            shared,
            requests,
            ends,
        })
    }

    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Returns the pool as last observed.
    pub fn view(&self) -> Arc<PoolView> {
        self.shared.view.load_full()
    }

    /// Waits until a task of the pool has died of a defect: without it no message gets an account.
    pub(super) async fn died(&self) {
        tokio::select! {
            () = self.requests.closed() => {}
            () = self.ends.closed() => {}
        }
    }

    pub(super) fn shared(&self) -> &Arc<AccountPoolInner> {
        &self.shared
    }

    /// Requests the next account in rotation that is not in `excluded` for the message with this
    /// number, and waits for it for at most `timeout`; if its turn comes later, it learns so at
    /// once. A message that failed at an account does not become its probe.
    pub async fn take(&self, message: i64, excluded: &[usize], timeout: Duration) -> Checkout {
        let (since, mut excluded, mut is_left_to_others) =
            (Instant::now(), excluded.to_vec(), false);
        loop {
            let (reply, answer) = oneshot::channel();
            let request = CheckoutRequest {
                message,
                excluded: excluded.clone(),
                timeout,
                since,
                reply,
            };
            let closed = || Checkout::Wait {
                wait: UNKNOWN_TURN_WAIT,
                why: "the process is stopping".to_owned(),
            };
            if self.requests.send(request).await.is_err() {
                return closed();
            }
            let held = match answer.await.unwrap_or_else(|_| closed()) {
                Checkout::Held(held) if self.is_suspect(&held) => held,
                Checkout::NoAccount if is_left_to_others => {
                    let why = "another message is testing the account".to_owned();
                    return Checkout::Wait {
                        wait: LEFT_TO_OTHERS,
                        why,
                    };
                }
                taken => return taken,
            };
            // The breaker may be open; then this message is the probe and all others wait for its
            // result.
            match self
                .shared
                .breakers
                .probed(&self.shared.name(held.at), message)
                .await
            {
                Ok(ProbeDecision::Another) => {
                    self.unused(&held).await;
                    excluded.push(held.at);
                    is_left_to_others = true;
                }
                probed => {
                    self.shared.publish_change(probed.map(|probe| match probe {
                        ProbeDecision::Goes(change) => change,
                        ProbeDecision::Another => None,
                    }));
                    return Checkout::Held(held);
                }
            }
        }
    }

    /// Reports that the message was sent, or failed for reasons that are not the account's.
    pub async fn succeeded(&self, held: &AccountLease, quota: Option<Quota>) {
        if held.grant.watched || quota.is_some() {
            let end = SendFeedback {
                account: held.at,
                is_success: true,
                cost: held.cost,
                quota,
            };
            let _ = self.ends.try_send(end);
        }
        let closed = self
            .shared
            .breakers
            .succeeded(&self.shared.name(held.at), held.message)
            .await;
        self.shared.publish_change(closed);
    }

    /// Reports that the provider asked the account to slow down: it is blocked for all workers, for
    /// `delay` if given.
    pub async fn throttled(&self, held: &AccountLease, delay: Option<Duration>, why: &str) {
        let refused = UpstreamRefusal {
            key: &self.shared.name(held.at),
            scope: Scope::Key,
            is_overload: false,
            is_untrusted: false,
            delay,
            jitter: rand::random(),
            why,
        };
        let rest = delay.unwrap_or(UNKNOWN_TURN_WAIT);
        let shared = self.shared.refuse(held.at, rest, &refused).await;
        // Without a delay, the store computes one and returns it with the next answer.
        if shared.is_ok() && delay.is_none() {
            self.shared.rest(held.at, Duration::ZERO, why);
        }
        self.shared.moved.notify_one();
    }

    /// Reports that the message failed at the account: an error of the provider's own, a timeout, a
    /// connection that broke. Returns true if the account is known to be unavailable.
    ///
    /// If the provider asked for a `delay` and other messages failed too, the account rests for
    /// that long.
    pub async fn failed(&self, held: &AccountLease, why: &str, delay: Option<Duration>) -> bool {
        let name = self.shared.name(held.at);
        let change = self.shared.breakers.failed(&name, held.message, why).await;
        let is_known = change.is_ok();
        if !self.opened(held, change, delay).await {
            self.unjudged(held);
            if let Some(delay) = delay.filter(|_| self.shared.breakers.seen(&name).failed.len() > 1)
            {
                self.shut(held, delay.min(LONGEST_REST), why).await;
            }
        }
        is_known && self.shared.breakers.seen(&name).state != BreakerState::Closed
    }

    /// Reports that the account itself was refused. Returns true if the account is known to be
    /// unavailable, so that the message is not at fault.
    pub async fn account_failed(&self, held: &AccountLease, why: &str) -> bool {
        let name = self.shared.name(held.at);
        let change = self
            .shared
            .breakers
            .account_failed(&name, held.message, why)
            .await;
        let is_known = change.is_ok();
        if !self.opened(held, change, None).await {
            self.unjudged(held);
        }
        is_known && self.shared.breakers.seen(&name).state != BreakerState::Closed
    }

    /// Reports a result that says nothing about the account.
    pub fn unjudged(&self, held: &AccountLease) {
        if held.grant.watched {
            let end = SendFeedback {
                account: held.at,
                is_success: false,
                cost: held.cost,
                quota: None,
            };
            let _ = self.ends.try_send(end);
        }
    }

    /// Returns an account with which no message was sent, and refunds its tokens.
    pub async fn unused(&self, held: &AccountLease) {
        let key = self.shared.name(held.at);
        let refund = Refund {
            key: &key,
            grant: &held.grant,
            units: 1,
            cost: held.cost,
        };
        let _ = self
            .shared
            .store
            .refund_many(&self.shared.accounts, &[refund])
            .await;
        self.unjudged(held);
    }

    /// Ends an account's block and closes its breaker; returns true if there was anything to end.
    ///
    /// Fails if the store does not answer.
    pub async fn resume(&self, account: &str) -> Result<bool, Error> {
        let closed = self.shared.breakers.close(account).await?;
        let resumed = self
            .shared
            .store
            .resume_key(&self.shared.accounts, account)
            .await?;
        if let Some(at) = self
            .shared
            .pool
            .accounts
            .iter()
            .position(|limited| limited.account.name == account)
        {
            self.shared.set_unshared(at, i64::MIN);
            self.shared.rest(at, Duration::ZERO, "");
        }
        let changed = closed.is_some() || resumed;
        self.shared.publish_change(Ok(closed));
        self.shared.moved.notify_one();
        Ok(changed)
    }

    /// Shuts the account for the cooldown if the breaker has opened, and passes the change on.
    /// Returns true if it has opened.
    async fn opened(
        &self,
        held: &AccountLease,
        change: Result<Option<Change>, Error>,
        delay: Option<Duration>,
    ) -> bool {
        let opened = matches!(&change, Ok(Some(change)) if change.to == BreakerState::Open);
        if let Ok(Some(change)) = &change
            && opened
        {
            let cooldown =
                Duration::from_millis(self.shared.breakers.law().cooldown_ms.max(0) as u64);
            let reported = delay.unwrap_or_default().min(LONGEST_REST);
            self.shut(held, cooldown.max(reported), &change.why).await;
        }
        self.shared.publish_change(change);
        opened
    }

    /// Shuts the account for all workers for `delay`; one message then goes as a probe.
    async fn shut(&self, held: &AccountLease, delay: Duration, why: &str) {
        let key = self.shared.name(held.at);
        let refused = UpstreamRefusal {
            key: &key,
            scope: Scope::Key,
            is_overload: true,
            is_untrusted: false,
            delay: Some(delay),
            jitter: 0.0,
            why,
        };
        if let Err(error) = self.shared.refuse(held.at, delay, &refused).await {
            tracing::warn!(pool = %self.shared.pool.name, account = %key, %error, "sharing an account's unavailability failed");
        }
    }

    /// Returns true if something is known against the account, so that this message may be its
    /// probe.
    fn is_suspect(&self, held: &AccountLease) -> bool {
        held.grant.watched
            || self.shared.breakers.seen(&self.shared.name(held.at)).state != BreakerState::Closed
    }
}
