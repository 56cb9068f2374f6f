//! Hands the accounts of a pool out to messages. Tokens are taken for many messages with one call: while one call is under way
//! those who ask next are collected, so that the work of the store grows with accounts and not with messages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{mpsc, oneshot};

use super::breaker::{Change, Law, State};
use super::breakers::Probe;
use super::{Breakers, Choice, PoolView, Ring};
use crate::jobs::Quota;
use crate::providers::Pool;
use crate::throttle::{
    Ask, Ended, Error, Grant, Holder, LaneAsk, Limit, MAX_LANES_PER_ASK, Name, Notes, Refund, Refused, Scope, Store,
};

/// Messages that are served by one call at most.
const AT_ONCE: usize = 256;

/// Where all accounts have used their rates, they are asked again after this at the earliest: all whose turn it is by then with one
/// call, however many wait. Their buckets keep the tokens meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(4);

/// How long nobody asks for an account whose turn cannot be foreseen: it is being probed, or the store is lost.
const UNKNOWN_WAIT: Duration = Duration::from_millis(250);

/// The shortest rest of an account that gave less than was wanted, so that nobody asks for it without a pause.
const SHORTEST_REST: Duration = Duration::from_millis(1);

/// How long a message waits that may not be the one that finds out whether an account is back.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(5);

/// The longest that an account is left alone because its provider said so with an error of its own.
const LONGEST_REST: Duration = Duration::from_secs(300);

/// How long a process that asked for accounts is remembered.
const HOLDER_TTL: Duration = Duration::from_secs(10);

/// Ends that are told by one call at most.
const ENDS_AT_ONCE: usize = 256;

/// What an account without a limit is taken to bear, in messages each second: more than any could. With a rate of its own a key that
/// was refused once is open again as soon as its probes have gone well; one without stays at sixteen under way for minutes.
const FREE_RPS: f64 = 1e6;

/// An account that may be used for one message, once. How that went must be said with one of the desk's methods.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its place in the pool.
    pub at: usize,
    /// The message that has it.
    message: i64,
    /// What was taken for it.
    grant: Grant,
    /// What one message costs in tokens of the accounts' throttle.
    cost: f64,
}

/// What somebody who asked for an account got.
#[derive(Clone, Debug)]
pub enum Taken {
    /// This account.
    Held(Held),
    /// None, and for so long.
    Wait {
        /// Until the first may be asked.
        wait: Duration,
        /// What keeps it.
        why: String,
    },
    /// There is none besides those that were left out.
    Nobody,
}

struct Wish {
    message: i64,
    not: Vec<usize>,
    patience: Duration,
    since: Instant,
    reply: oneshot::Sender<Taken>,
}

/// Says how a message ended that the store watches.
struct End {
    account: usize,
    is_success: bool,
    cost: f64,
    quota: Option<Quota>,
}

/// The desk of one pool in one process. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    shared: Arc<Shared>,
    wishes: mpsc::Sender<Wish>,
    ends: mpsc::Sender<End>,
}

pub(super) struct Shared {
    pub(super) pool: Pool,
    /// Unique for this desk.
    id: String,
    /// The throttle whose keys are the accounts.
    pub(super) accounts: Name,
    pub(super) store: Arc<dyn Store>,
    pub(super) breakers: Breakers,
    /// Each account's limit, which its provider may tell while everything runs.
    pub(super) limits: Mutex<Vec<f64>>,
    /// The limit that costs one token.
    pub(super) reference: f64,
    /// What each limit is multiplied by, as the bits of a float.
    load: AtomicU64,
    pub(super) view: ArcSwap<PoolView>,
    changes: mpsc::UnboundedSender<(String, Change)>,
    ring: Mutex<Ring>,
    /// Why each account rests.
    why: Mutex<Vec<String>>,
    begun: Instant,
    /// Wakes whoever looks after the pool.
    pub(super) moved: Arc<tokio::sync::Notify>,
}

impl Desk {
    /// Opens the desk of `pool`, with accounts that all processes share in `store` and breakers in `notes`. Changes of breakers
    /// that this process makes are told to `changes`, with the pool's name. Must be called inside a Tokio runtime.
    pub fn open(
        pool: Pool,
        store: Arc<dyn Store>,
        notes: Arc<dyn Notes>,
        changes: mpsc::UnboundedSender<(String, Change)>,
    ) -> Result<Self, crate::throttle::name::InvalidName> {
        let accounts = Name::new(format!("{}:accounts", pool.name))?;
        let law = Law {
            failures: pool.breaker_failures,
            window_ms: pool.breaker_window.as_millis() as i64,
            cooldown_ms: pool.breaker_cooldown.as_millis() as i64,
        };
        // Before the first look its name is known and nothing of its accounts.
        let view = PoolView {
            name: pool.name.clone(),
            provider: pool.provider.word().to_owned(),
            channel: pool.channel().word().to_owned(),
            shedding: pool.shedding,
            ..PoolView::default()
        };
        let limits: Vec<f64> = pool.accounts.iter().map(|limited| limited.rps).collect();
        let many = limits.len();
        let shared = Arc::new(Shared {
            breakers: Breakers::new(notes, accounts.clone(), law),
            reference: limits.iter().copied().map(bears).fold(0.0, f64::max),
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
        let (wishes, wished) = mpsc::channel(4 * AT_ONCE);
        let (ends, ended) = mpsc::channel(16 * ENDS_AT_ONCE);
        tokio::spawn(serve(shared.clone(), wished));
        tokio::spawn(tell(shared.clone(), ended));
        Ok(Self { shared, wishes, ends })
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// The pool as it was last looked at.
    pub fn view(&self) -> Arc<PoolView> {
        self.shared.view.load_full()
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Asks for the next account in turn besides those in `not` for the message of this number, and waits for it for no longer than
    /// `patience`. An account of which it is to be found out whether it is back does not go to a message that failed there.
    pub async fn take(&self, message: i64, not: &[usize], patience: Duration) -> Taken {
        let (since, mut not, mut is_left_to_others) = (Instant::now(), not.to_vec(), false);
        loop {
            let (reply, answer) = oneshot::channel();
            let wish = Wish { message, not: not.clone(), patience, since, reply };
            let closed = || Taken::Wait { wait: UNKNOWN_WAIT, why: "the process is stopping".to_owned() };
            if self.wishes.send(wish).await.is_err() {
                return closed();
            }
            let held = match answer.await.unwrap_or_else(|_| closed()) {
                Taken::Held(held) if self.is_suspect(&held) => held,
                Taken::Nobody if is_left_to_others => {
                    let why = "another message finds out whether the account is back".to_owned();
                    return Taken::Wait { wait: LEFT_TO_OTHERS, why };
                }
                taken => return taken,
            };
            // The breaker may be open, and this the message that finds out; all others wait for it.
            match self.shared.breakers.probed(&self.shared.name(held.at), message).await {
                Ok(Probe::Another) => {
                    self.unused(&held).await;
                    not.push(held.at);
                    is_left_to_others = true;
                }
                probed => {
                    self.shared.told(probed.map(|probe| match probe {
                        Probe::Goes(change) => change,
                        Probe::Another => None,
                    }));
                    return Taken::Held(held);
                }
            }
        }
    }

    /// The message went through, or failed for reasons that are not the account's.
    pub async fn succeeded(&self, held: &Held, quota: Option<Quota>) {
        if held.grant.watched || quota.is_some() {
            let end = End { account: held.at, is_success: true, cost: held.cost, quota };
            let _ = self.ends.try_send(end);
        }
        let closed = self.shared.breakers.succeeded(&self.shared.name(held.at), held.message).await;
        self.shared.told(closed);
    }

    /// The provider asked the account to slow down: it is blocked for all workers, for as long as was said.
    pub async fn throttled(&self, held: &Held, delay: Option<Duration>, why: &str) {
        let refused = Refused {
            key: &self.shared.name(held.at),
            scope: Scope::Key,
            is_overload: false,
            is_hearsay: false,
            delay,
            jitter: rand::random(),
            why,
        };
        // Where nobody said for how long, the store does, with the next answer.
        self.shared.rest(held.at, delay.unwrap_or(UNKNOWN_WAIT), why);
        let _ = self.shared.refuse(&refused).await;
        self.shared.moved.notify_one();
    }

    /// The message failed at the account: an error of the provider's own, a time-out, a connection that was cut. Where the provider
    /// said how long to stay away and this is not the only message that failed, nobody goes there for so long. Answers whether the
    /// account is known to be away.
    pub async fn failed(&self, held: &Held, why: &str, delay: Option<Duration>) -> bool {
        let name = self.shared.name(held.at);
        let change = self.shared.breakers.failed(&name, held.message, why).await;
        let is_known = change.is_ok();
        if !self.opened(held, change, delay).await {
            self.unjudged(held);
            if let Some(delay) = delay.filter(|_| self.shared.breakers.seen(&name).failed.len() > 1) {
                self.shut(held, delay.min(LONGEST_REST), why).await;
            }
        }
        is_known && self.shared.breakers.seen(&name).state != State::Closed
    }

    /// The account itself was refused. Answers whether it is known to be away, so that this is not the message's own fault.
    pub async fn account_failed(&self, held: &Held, why: &str) -> bool {
        let name = self.shared.name(held.at);
        let change = self.shared.breakers.account_failed(&name, held.message, why).await;
        let is_known = change.is_ok();
        if !self.opened(held, change, None).await {
            self.unjudged(held);
        }
        is_known && self.shared.breakers.seen(&name).state != State::Closed
    }

    /// How the message ended says nothing about the account.
    pub fn unjudged(&self, held: &Held) {
        if held.grant.watched {
            let end = End { account: held.at, is_success: false, cost: held.cost, quota: None };
            let _ = self.ends.try_send(end);
        }
    }

    /// No message was sent with it after all.
    pub async fn unused(&self, held: &Held) {
        let key = self.shared.name(held.at);
        let refund = Refund { key: &key, grant: &held.grant, units: 1, cost: held.cost };
        let _ = self.shared.store.refund_many(&self.shared.accounts, &[refund]).await;
        self.unjudged(held);
    }

    /// Ends an account's block and closes its breaker; answers whether there was something to end.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn resume(&self, account: &str) -> Result<bool, Error> {
        let closed = self.shared.breakers.close(account).await?;
        let resumed = self.shared.store.resume_key(&self.shared.accounts, account).await?;
        if let Some(at) = self.shared.pool.accounts.iter().position(|limited| limited.account.name == account) {
            self.shared.rest(at, Duration::ZERO, "");
        }
        let changed = closed.is_some() || resumed;
        self.shared.told(Ok(closed));
        self.shared.moved.notify_one();
        Ok(changed)
    }

    /// Where the breaker has opened, nobody gets the account before its cooldown is over, and then one message does.
    async fn opened(&self, held: &Held, change: Result<Option<Change>, Error>, delay: Option<Duration>) -> bool {
        let opened = matches!(&change, Ok(Some(change)) if change.to == State::Open);
        if let Ok(Some(change)) = &change
            && opened
        {
            let cooldown = Duration::from_millis(self.shared.breakers.law().cooldown_ms.max(0) as u64);
            let told = delay.unwrap_or_default().min(LONGEST_REST);
            self.shut(held, cooldown.max(told), &change.why).await;
        }
        self.shared.told(change);
        opened
    }

    /// Nobody gets the account for so long, and then one message does.
    async fn shut(&self, held: &Held, delay: Duration, why: &str) {
        let key = self.shared.name(held.at);
        let refused =
            Refused { key: &key, scope: Scope::Key, is_overload: true, is_hearsay: false, delay: Some(delay), jitter: 0.0, why };
        self.shared.rest(held.at, delay, why);
        if let Err(error) = self.shared.refuse(&refused).await {
            tracing::warn!(pool = %self.shared.pool.name, account = %key, %error, "that an account is away could not be told to others");
        }
    }

    /// Something is known against the account, so that this message may be its probe.
    fn is_suspect(&self, held: &Held) -> bool {
        held.grant.watched || self.shared.breakers.seen(&self.shared.name(held.at)).state != State::Closed
    }
}

impl Shared {
    pub(super) fn name(&self, at: usize) -> String {
        self.pool.accounts.get(at).map_or_else(String::new, |limited| limited.account.name.clone())
    }

    /// What one message costs at the account, in tokens of the accounts' throttle: so that each has its own rate.
    fn cost(&self, at: usize) -> f64 {
        let limit = locked(&self.limits).get(at).copied().unwrap_or(-1.0) * f64::from_bits(self.load.load(Ordering::Relaxed));
        (self.reference / bears(limit).max(1e-6)).min(1e9)
    }

    pub(super) fn set_load(&self, load: f64) {
        self.load.store(load.to_bits(), Ordering::Relaxed);
    }

    fn now_us(&self) -> i64 {
        self.begun.elapsed().as_micros() as i64
    }

    /// The account is not asked for this long.
    fn rest(&self, at: usize, wait: Duration, why: &str) {
        let until_us = self.now_us().saturating_add(wait.as_micros().min(1 << 60) as i64);
        locked(&self.ring).rest(at, until_us);
        if let Some(kept) = locked(&self.why).get_mut(at) {
            why.clone_into(kept);
        }
    }

    /// Tells a refusal to all; a store that is slow for a moment must not cost another one.
    async fn refuse(&self, refused: &Refused<'_>) -> Result<(), Error> {
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

    /// Passes a change on.
    fn told(&self, change: Result<Option<Change>, Error>) {
        match change {
            Ok(Some(change)) => {
                self.moved.notify_one();
                let _ = self.changes.send((self.pool.name.clone(), change));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(pool = %self.pool.name, %error, "a breaker could not be reached"),
        }
    }
}

/// Serves wishes until nobody can have any more.
async fn serve(shared: Arc<Shared>, mut wished: mpsc::Receiver<Wish>) {
    let mut waiting: Vec<Wish> = Vec::new();
    let mut next = Next::default();
    loop {
        let more = async {
            match next.at {
                Some(at) => tokio::time::sleep_until(at).await,
                None if waiting.is_empty() => std::future::pending().await,
                None => {}
            }
        };
        let room = AT_ONCE.saturating_sub(waiting.len());
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
            // There was nothing for those before them.
            next.at = Some(until);
            continue;
        }
        // Whoever has gone away shall not take a turn.
        waiting.retain(|wish| !wish.reply.is_closed());
        next = round(&shared, &mut waiting).await;
    }
}

/// When those who still wait are served.
#[derive(Default)]
struct Next {
    at: Option<tokio::time::Instant>,
    /// Until then nobody need be served, not even who comes only now.
    dry_until: Option<tokio::time::Instant>,
}

/// Serves whom it can; answers when to try again for those who still wait.
async fn round(shared: &Shared, waiting: &mut Vec<Wish>) -> Next {
    let now_us = shared.now_us();
    let mut turns: Vec<(usize, Vec<Wish>)> = Vec::new();
    let mut soonest: Option<i64> = None;
    // What all are told who leave no account out, once none is left for them.
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
            Choice::Nobody => drop(wish.reply.send(Taken::Nobody)),
            Choice::Wait { until_us } => {
                let wait = Duration::from_micros((until_us - now_us).max(0) as u64);
                if wish.since.elapsed() + wait > wish.patience {
                    drop(wish.reply.send(Taken::Wait { wait, why: shared.why_rests(until_us, &wish.not) }));
                } else {
                    soonest = Some(soonest.map_or(until_us, |soonest| soonest.min(until_us)));
                    waiting.push(wish);
                }
            }
        }
    }
    if turns.is_empty() {
        let soonest = soonest.map(|at| tokio::time::Instant::from_std(shared.begun + Duration::from_micros(at.max(0) as u64)));
        let dry_until = dry.map(|_| tokio::time::Instant::now() + ASK_EVERY);
        return Next { at: soonest.map(|at| dry_until.map_or(at, |until| at.max(until))), dry_until };
    }
    let lanes = turns.iter().map(|(at, wishes)| LaneAsk {
        key: shared.name(*at),
        want: wishes.len() as u32,
        cost: shared.cost(*at),
        held: 0,
    });
    // As work that is about to begin, so that after a refusal one message goes first. What is under way is counted nowhere else.
    let holder = Holder { id: shared.id.clone(), ttl: HOLDER_TTL, held: 0 };
    let ask = Ask { throttle: shared.accounts.clone(), lanes: lanes.collect(), holder: Some(holder) };
    let answer = shared.store.acquire(&ask).await;
    let max_cost = answer.max_cost;
    let grants = answer.lanes.into_iter().chain(std::iter::repeat_with(Grant::default));
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
            let held =
                Held { at, message: wish.message, grant: Grant { granted: 1, ..grant.clone() }, cost: lane.cost.min(max_cost) };
            if wish.reply.send(Taken::Held(held)).is_err() {
                let refund = Refund { key: &lane.key, grant: &grant, units: 1, cost: lane.cost.min(max_cost) };
                let _ = shared.store.refund_many(&shared.accounts, &[refund]).await;
            }
        }
    }
    Next { at: (!waiting.is_empty()).then(tokio::time::Instant::now), dry_until: None }
}

impl Shared {
    /// Why the account rests that is back first.
    fn why_rests(&self, until_us: i64, not: &[usize]) -> String {
        let ring = locked(&self.ring);
        let first = (0..self.pool.accounts.len()).find(|at| !not.contains(at) && ring.free_at_us(*at) == until_us);
        let why = first.and_then(|at| locked(&self.why).get(at).cloned());
        why.unwrap_or_default()
    }
}

/// What an account of this limit bears, in messages each second.
pub(super) fn bears(limit: f64) -> f64 {
    if limit < 0.0 { FREE_RPS } else { limit }
}

/// How long an account rests that gave fewer tokens than were wanted, and why.
fn rest_of(grant: &Grant) -> (Duration, String) {
    match &grant.limit {
        Some(Limit::Paused { why, .. }) => (grant.wait, why.clone()),
        Some(Limit::Probing { .. }) => {
            (grant.wait.max(UNKNOWN_WAIT), "one message finds out whether more are welcome".to_owned())
        }
        Some(Limit::StoreLost) | None => (UNKNOWN_WAIT, "the throttle store did not answer".to_owned()),
        Some(Limit::Unknown { name } | Limit::Stopped { name, .. }) => {
            (UNKNOWN_WAIT, format!("the throttle {name} lets nothing through"))
        }
        Some(_) => (grant.wait, "the account has used its rate".to_owned()),
    }
}

/// Tells the store how watched messages ended, all that ended meanwhile with one call.
async fn tell(shared: Arc<Shared>, mut ended: mpsc::Receiver<End>) {
    let mut ends = Vec::new();
    while ended.recv_many(&mut ends, ENDS_AT_ONCE).await > 0 {
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
            // What the provider counts in messages, the throttle counts in tokens.
            let quota = end.quota.map(|quota| Quota { remaining: quota.remaining * end.cost, ..quota });
            told.3 = quota.or(told.3);
        }
        let told: Vec<Ended<'_>> = by_account
            .iter()
            .map(|(key, (succeeded, tokens, failed, quota))| Ended {
                key,
                succeeded: *succeeded,
                tokens: *tokens,
                failed: *failed,
                quota: *quota,
                is_hearsay: false,
            })
            .collect();
        if let Err(error) = shared.store.ended(&shared.accounts, &told).await {
            tracing::debug!(pool = %shared.pool.name, %error, "how messages ended could not be told");
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
