//! The assignment of a pool's accounts to messages.
//!
//! Tokens for many messages are taken with one call: requests that arrive during a call are
//! collected for the next, so that the store's load grows with the number of accounts and not of
//! messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};

use super::breaker::{BreakerSettings, BreakerState, Change};
use super::breakers::ProbeDecision;
use super::{Breakers, Choice, PoolView, Ring};
use crate::jobs::Quota;
use crate::providers::Pool;
use crate::throttle::{
    AcquireRequest, Error, Grant, Holder, KeyOutcomes, LaneRequest, Limit, MAX_LANES_PER_ASK, Name,
    Notes, Refund, Scope, Store, UpstreamRefusal,
};

/// The maximum number of messages served by one call.
const MAX_SERVE_BATCH: usize = 256;

/// The minimum pause before exhausted accounts are asked again. One call then serves all waiting
/// messages whose turn it is; the buckets keep the tokens meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(4);

/// The rest of an account whose return cannot be foreseen: it is being probed, or the store is
/// lost.
const UNKNOWN_TURN_WAIT: Duration = Duration::from_millis(250);

/// The minimum rest of an account that granted less than was requested, so that it is not asked
/// without a pause.
const SHORTEST_REST: Duration = Duration::from_millis(1);

/// The wait of a message that may not probe an account because it failed there.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(5);

/// The maximum rest of an account whose provider asked for it with an error of its own.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// The time after which the store forgets a process that asked for accounts.
const HOLDER_TTL: Duration = Duration::from_secs(10);

/// The maximum number of results reported by one call.
const MAX_OUTCOMES_REPORTED: usize = 256;

/// The nominal rate of an account without a limit, in messages per second: more than any can send.
/// With a rate of its own, a key that was refused once is open again as soon as its probes have
/// succeeded; without one it stays at sixteen in progress for minutes.
const FREE_RPS: f64 = 1e6;

/// An account lent to one message, for one attempt. The caller reports the result with one of the
/// desk's methods.
#[derive(Clone, Debug)]
pub struct AccountLease {
    /// The account's index in the pool.
    pub at: usize,
    /// The message that holds the account.
    message: i64,
    /// The tokens taken for the attempt.
    grant: Grant,
    /// The cost of one message, in tokens of the accounts' throttle.
    cost: f64,
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
    Nobody,
}

struct CheckoutRequest {
    message: i64,
    not: Vec<usize>,
    patience: Duration,
    since: Instant,
    reply: oneshot::Sender<Checkout>,
}

/// The result of a message that the store watches.
struct SendFeedback {
    account: usize,
    is_success: bool,
    cost: f64,
    quota: Option<Quota>,
}

/// The desk of one pool in one process. Cheap to clone.
#[derive(Clone)]
pub struct AccountPool {
    shared: Arc<AccountPoolInner>,
    wishes: mpsc::Sender<CheckoutRequest>,
    ends: mpsc::Sender<SendFeedback>,
}

pub(super) struct AccountPoolInner {
    pub(super) pool: Pool,
    /// The desk's id in the store, unique for each desk.
    id: String,
    /// The throttle whose keys are the accounts.
    pub(super) accounts: Name,
    pub(super) store: Arc<dyn Store>,
    pub(super) breakers: Breakers,
    /// The limit of each account, in messages per second; a provider may lower it at run time.
    pub(super) limits: Mutex<Vec<f64>>,
    /// The highest limit, in messages per second: a message costs one token at an account with this
    /// limit.
    pub(super) reference: f64,
    /// The factor on each limit, as the bits of a float.
    load: AtomicU64,
    pub(super) view: ArcSwap<PoolView>,
    changes: mpsc::UnboundedSender<(String, Change)>,
    ring: Mutex<Ring>,
    /// The reason for each account's rest.
    why: Mutex<Vec<String>>,
    begun: Instant,
    /// Wakes the pool's maintenance task.
    pub(super) moved: Arc<tokio::sync::Notify>,
}

impl AccountPool {
    /// Opens the desk of `pool`, with accounts that all processes share in `store` and breakers in
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
        let limits: Vec<f64> = pool.accounts.iter().map(|limited| limited.rps).collect();
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
            begun: Instant::now(),
            moved: Arc::new(tokio::sync::Notify::new()),
            id: format!("desk-{:016x}", rand::random::<u64>()),
            pool,
            accounts,
            store,
            changes,
        });
        let (wishes, wished) = mpsc::channel(4 * MAX_SERVE_BATCH);
        let (ends, ended) = mpsc::channel(16 * MAX_OUTCOMES_REPORTED);
        tokio::spawn(serve(shared.clone(), wished));
        tokio::spawn(report_outcomes(shared.clone(), ended));
        Ok(Self {
            shared,
            wishes,
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

    pub(super) fn shared(&self) -> &Arc<AccountPoolInner> {
        &self.shared
    }

    /// Requests the next account in rotation that is not in `not` for the message with this number,
    /// and waits for it for at most `patience`. A message that failed at an account does not become
    /// its probe.
    pub async fn take(&self, message: i64, not: &[usize], patience: Duration) -> Checkout {
        let (since, mut not, mut is_left_to_others) = (Instant::now(), not.to_vec(), false);
        loop {
            let (reply, answer) = oneshot::channel();
            let wish = CheckoutRequest {
                message,
                not: not.clone(),
                patience,
                since,
                reply,
            };
            let closed = || Checkout::Wait {
                wait: UNKNOWN_TURN_WAIT,
                why: "the process is stopping".to_owned(),
            };
            if self.wishes.send(wish).await.is_err() {
                return closed();
            }
            let held = match answer.await.unwrap_or_else(|_| closed()) {
                Checkout::Held(held) if self.is_suspect(&held) => held,
                Checkout::Nobody if is_left_to_others => {
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
                    not.push(held.at);
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
            is_hearsay: false,
            delay,
            jitter: rand::random(),
            why,
        };
        // Without a delay, the store computes one and returns it with the next answer.
        self.shared
            .rest(held.at, delay.unwrap_or(UNKNOWN_TURN_WAIT), why);
        let _ = self.shared.refuse(&refused).await;
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
            let told = delay.unwrap_or_default().min(LONGEST_REST);
            self.shut(held, cooldown.max(told), &change.why).await;
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
            is_hearsay: false,
            delay: Some(delay),
            jitter: 0.0,
            why,
        };
        self.shared.rest(held.at, delay, why);
        if let Err(error) = self.shared.refuse(&refused).await {
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

impl AccountPoolInner {
    pub(super) fn name(&self, at: usize) -> String {
        self.pool
            .accounts
            .get(at)
            .map_or_else(String::new, |limited| limited.account.name.clone())
    }

    /// Returns the cost of one message at the account, in tokens of the accounts' throttle. It is
    /// inversely proportional to the account's limit, so that each account has its own rate.
    fn cost(&self, at: usize) -> f64 {
        let limit = locked(&self.limits).get(at).copied().unwrap_or(-1.0)
            * f64::from_bits(self.load.load(Ordering::Relaxed));
        (self.reference / effective_limit(limit).max(1e-6)).min(1e9)
    }

    pub(super) fn set_load(&self, load: f64) {
        self.load.store(load.to_bits(), Ordering::Relaxed);
    }

    fn now_us(&self) -> i64 {
        self.begun.elapsed().as_micros() as i64
    }

    /// Lets an account rest for this long in this process.
    fn rest(&self, at: usize, wait: Duration, why: &str) {
        let until_us = self
            .now_us()
            .saturating_add(wait.as_micros().min(1 << 60) as i64);
        locked(&self.ring).rest(at, until_us);
        if let Some(kept) = locked(&self.why).get_mut(at) {
            why.clone_into(kept);
        }
    }

    /// Reports a refusal to the store and retries, because a briefly slow store must not cost
    /// another refusal.
    async fn refuse(&self, refused: &UpstreamRefusal<'_>) -> Result<(), Error> {
        let mut last = Ok(());
        for pause in [0, 20, 200] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            match self.store.refused(&self.accounts, refused).await {
                Ok(_) => return Ok(()),
                Err(error) => last = Err(error),
            }
        }
        last
    }

    /// Sends a change of a breaker to the listeners.
    fn publish_change(&self, change: Result<Option<Change>, Error>) {
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
}

/// Serves requests until all desks are dropped.
async fn serve(shared: Arc<AccountPoolInner>, mut wished: mpsc::Receiver<CheckoutRequest>) {
    let mut waiting: Vec<CheckoutRequest> = Vec::new();
    let mut next = NextServe::default();
    loop {
        let more = async {
            match next.at {
                Some(at) => tokio::time::sleep_until(at).await,
                None if waiting.is_empty() => std::future::pending().await,
                None => {}
            }
        };
        let room = MAX_SERVE_BATCH.saturating_sub(waiting.len());
        let mut came = Vec::new();
        tokio::select! {
            got = wished.recv_many(&mut came, room.max(1)), if room > 0 => {
                if got == 0 {
                    return;
                }
            }
            () = more => {}
        }
        waiting.append(&mut came);
        if let Some(until) = next.dry_until
            && tokio::time::Instant::now() < until
        {
            // The accounts were exhausted for the requests before these.
            next.at = Some(until);
            continue;
        }
        // A request whose caller has gone must not take a turn.
        waiting.retain(|wish| !wish.reply.is_closed());
        next = round(&shared, &mut waiting).await;
    }
}

/// The time at which the remaining requests are served.
#[derive(Default)]
struct NextServe {
    at: Option<tokio::time::Instant>,
    /// The end of a pause in which no request is served, not even a new one.
    dry_until: Option<tokio::time::Instant>,
}

/// Serves as many requests as possible; returns the time at which to serve the remaining ones.
async fn round(shared: &AccountPoolInner, waiting: &mut Vec<CheckoutRequest>) -> NextServe {
    let now_us = shared.now_us();
    let mut turns: Vec<(usize, Vec<CheckoutRequest>)> = Vec::new();
    let mut soonest: Option<i64> = None;
    // The result for all requests without exclusions, once no account is left for them.
    let mut dry: Option<Choice> = None;
    for wish in std::mem::take(waiting) {
        let choice = match dry.filter(|_| wish.not.is_empty()) {
            Some(dry) => dry,
            None => locked(&shared.ring).next(now_us, &wish.not),
        };
        if wish.not.is_empty() && matches!(choice, Choice::Wait { .. }) {
            dry = Some(choice);
        }
        match choice {
            Choice::Account(at) => match turns.iter().position(|(other, _)| *other == at) {
                Some(place) => turns[place].1.push(wish),
                None if turns.len() < MAX_LANES_PER_ASK => turns.push((at, vec![wish])),
                None => {
                    soonest = Some(now_us);
                    waiting.push(wish);
                }
            },
            Choice::Nobody => drop(wish.reply.send(Checkout::Nobody)),
            Choice::Wait { until_us } => {
                let wait = Duration::from_micros((until_us - now_us).max(0) as u64);
                if wish.since.elapsed() + wait > wish.patience {
                    drop(wish.reply.send(Checkout::Wait {
                        wait,
                        why: shared.why_rests(until_us, &wish.not),
                    }));
                } else {
                    soonest = Some(soonest.map_or(until_us, |soonest| soonest.min(until_us)));
                    waiting.push(wish);
                }
            }
        }
    }
    if turns.is_empty() {
        let soonest = soonest.map(|at| {
            tokio::time::Instant::from_std(shared.begun + Duration::from_micros(at.max(0) as u64))
        });
        let dry_until = dry.map(|_| tokio::time::Instant::now() + ASK_EVERY);
        return NextServe {
            at: soonest.map(|at| dry_until.map_or(at, |until| at.max(until))),
            dry_until,
        };
    }
    let lanes = turns.iter().map(|(at, wishes)| LaneRequest {
        key: shared.name(*at),
        want: wishes.len() as u32,
        cost: shared.cost(*at),
        held: 0,
    });
    // The request counts as new work, so that after a refusal one message goes first. Messages in
    // progress are counted nowhere else.
    let holder = Holder {
        id: shared.id.clone(),
        ttl: HOLDER_TTL,
        held: 0,
    };
    let ask = AcquireRequest {
        throttle: shared.accounts.clone(),
        lanes: lanes.collect(),
        holder: Some(holder),
    };
    let answer = shared.store.acquire(&ask).await;
    let max_cost = answer.max_cost;
    let grants = answer
        .lanes
        .into_iter()
        .chain(std::iter::repeat_with(Grant::default));
    for (((at, wishes), lane), grant) in turns.into_iter().zip(&ask.lanes).zip(grants) {
        if grant.granted < wishes.len() as u32 {
            let (wait, why) = rest_of(&grant);
            shared.rest(at, wait.max(SHORTEST_REST), &why);
        }
        let mut left = grant.granted;
        for wish in wishes {
            if left == 0 {
                waiting.push(wish);
                continue;
            }
            left -= 1;
            let held = AccountLease {
                at,
                message: wish.message,
                grant: Grant {
                    granted: 1,
                    ..grant.clone()
                },
                cost: lane.cost.min(max_cost),
            };
            if wish.reply.send(Checkout::Held(held)).is_err() {
                let refund = Refund {
                    key: &lane.key,
                    grant: &grant,
                    units: 1,
                    cost: lane.cost.min(max_cost),
                };
                let _ = shared.store.refund_many(&shared.accounts, &[refund]).await;
            }
        }
    }
    NextServe {
        at: (!waiting.is_empty()).then(tokio::time::Instant::now),
        dry_until: None,
    }
}

impl AccountPoolInner {
    /// Returns the reason for the rest of the account that returns first.
    fn why_rests(&self, until_us: i64, not: &[usize]) -> String {
        let ring = locked(&self.ring);
        let first = (0..self.pool.accounts.len())
            .find(|at| !not.contains(at) && ring.free_at_us(*at) == until_us);
        let why = first.and_then(|at| locked(&self.why).get(at).cloned());
        why.unwrap_or_default()
    }
}

/// Returns the rate of an account with this limit, in messages per second.
pub(super) fn effective_limit(limit: f64) -> f64 {
    if limit < 0.0 { FREE_RPS } else { limit }
}

/// Returns the rest of an account that granted fewer tokens than requested, and the reason.
fn rest_of(grant: &Grant) -> (Duration, String) {
    match &grant.limit {
        Some(Limit::Paused { why, .. }) => (grant.wait, why.clone()),
        Some(Limit::Probing { .. }) => (
            grant.wait.max(UNKNOWN_TURN_WAIT),
            "one message is testing the account".to_owned(),
        ),
        Some(Limit::StoreLost) | None => (
            UNKNOWN_TURN_WAIT,
            "the throttle store did not answer".to_owned(),
        ),
        Some(Limit::Unknown { name } | Limit::Stopped { name, .. }) => (
            UNKNOWN_TURN_WAIT,
            format!("the throttle {name} grants no tokens"),
        ),
        Some(_) => (grant.wait, "the account is at its rate limit".to_owned()),
    }
}

/// Reports the results of watched messages to the store, in batches.
async fn report_outcomes(shared: Arc<AccountPoolInner>, mut ended: mpsc::Receiver<SendFeedback>) {
    let mut ends = Vec::new();
    while ended.recv_many(&mut ends, MAX_OUTCOMES_REPORTED).await > 0 {
        let mut by_account: std::collections::BTreeMap<String, (u32, f64, u32, Option<Quota>)> =
            std::collections::BTreeMap::new();
        for end in ends.drain(..) {
            let told = by_account.entry(shared.name(end.account)).or_default();
            if end.is_success {
                told.0 += 1;
                told.1 += end.cost;
            } else {
                told.2 += 1;
            }
            // The provider counts messages, the throttle counts tokens.
            let quota = end.quota.map(|quota| Quota {
                remaining: quota.remaining * end.cost,
                ..quota
            });
            told.3 = quota.or(told.3);
        }
        let told: Vec<KeyOutcomes<'_>> = by_account
            .iter()
            .map(|(key, (succeeded, tokens, failed, quota))| KeyOutcomes {
                key,
                succeeded: *succeeded,
                tokens: *tokens,
                failed: *failed,
                quota: *quota,
                is_hearsay: false,
            })
            .collect();
        if let Err(error) = shared.store.ended(&shared.accounts, &told).await {
            tracing::debug!(pool = %shared.pool.name, %error, "reporting message outcomes failed");
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
