//! Maintains a pool: seeds its throttles, observes its accounts, and publishes its capacity.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::account_pool::AccountPool;
use super::breaker::BreakerState;
use super::shared::{AccountPoolInner, effective_limit};
use super::shedding::AccountCapacity;
use super::{AccountView, Capacity, Flow, PoolView};
use crate::providers::{Driver, PoolMetrics, SendContext, now_s};
use crate::service::{LoopOptions, periodic};
use crate::throttle::KeyState;
use crate::throttle::restored::author;
use crate::throttle::{Change, Error, Knobs, Name, RateLimit, Status};

/// The interval of observations; a change of an account triggers one as well.
const ACCOUNT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The delay of the observation after an account's return, because clocks tick in milliseconds.
const BACK_AFTER: Duration = Duration::from_millis(2);

/// The number of observations after which an unchanged capacity is published again, in case it was
/// removed.
const CAPACITY_REPEAT_ROUNDS: u32 = 10;

/// The interval at which providers are asked for an account's allowed rate.
const QUOTA_EVERY: Duration = Duration::from_secs(600);

/// The maximum number of accounts queried at once.
const QUOTA_CONCURRENCY: usize = 8;

/// The author recorded for the knobs that follow from the settings.
const BY: &str = "pool";

/// The default limit of concurrent streams or connections, for providers without a rate.
const CONCURRENCY: &str = "100";

/// The burst of an account, in seconds of its rate, so that a message which is late by this much
/// costs it nothing. It is half of the usual headroom, so that even a late message does not exceed
/// the rate of its second.
const SAVED_S: &str = "0.01";

/// The concurrency of each driver if the knob sets no limit.
const UNLIMITED: usize = 1000;

/// The share of the nominal rate of an account without a limit below which a rate counts as
/// learned: above it, the rate has only begun to come down.
const LEARNED: f64 = 0.01;

/// Creates the pool's own throttle if it is missing, and creates or updates that of its accounts.
pub async fn seed(pool: &AccountPool) -> Result<(), Error> {
    let shared = pool.shared();
    let headroom = shared.pool.headroom;
    let limits = shared.pool.accounts.iter().map(|limited| limited.rps);
    let whole: Option<f64> = limits.map(RateLimit::tokens).sum();
    let of_pool: &[(&str, String)] = if let Some(whole) = whole {
        &[
            ("rps", number(whole * headroom)),
            ("burst", "0.1".to_owned()),
            ("on_store_loss", "local".to_owned()),
        ]
    } else {
        &[
            ("rps", "-1".to_owned()),
            ("concurrency", CONCURRENCY.to_owned()),
            ("on_store_loss", "local".to_owned()),
        ]
    };
    if let Ok(name) = Name::new(shared.pool.name.as_str()) {
        write(shared, &name, of_pool, true).await?;
    }
    // The costliest message takes a whole second's tokens at the slowest account, so a bucket holds
    // no more than it needs.
    let of_accounts: &[(&str, String)] = &[
        ("rps", "-1".to_owned()),
        ("key_rps", number(shared.reference * headroom)),
        ("key_burst", SAVED_S.to_owned()),
        ("on_store_loss", "local".to_owned()),
    ];
    let before = shared.store.status(&shared.accounts).await?;
    // Values from the settings are updated; a knob that a person has edited stays. A new throttle
    // gets no knobs of a pattern, as the pool's own does not.
    let is_ours = |status: &Status| {
        let text = |field: &str| status.raw.get(field).map_or("", String::as_str);
        author(text("by"), text("why")) == BY
    };
    let absent_only = before.as_ref().is_none_or(|status| !is_ours(status));
    write(shared, &shared.accounts, of_accounts, absent_only).await
}

async fn write(
    shared: &AccountPoolInner,
    throttle: &Name,
    fields: &[(&str, String)],
    absent_only: bool,
) -> Result<(), Error> {
    let knobs: BTreeMap<String, serde_json::Value> = fields
        .iter()
        .map(|(field, text)| {
            let value = text.parse::<f64>().map_or_else(
                |_| serde_json::json!(text),
                |number| serde_json::json!(number),
            );
            ((*field).to_owned(), value)
        })
        .collect();
    let fields = Knobs::check(&knobs).map_err(Error::Invalid)?;
    let why = "from the settings of the pool".to_owned();
    let change = Change {
        fields,
        by: BY.to_owned(),
        why,
        create: true,
        absent_only,
        ..Change::default()
    };
    shared.store.set(throttle, &change).await.map(drop)
}

fn number(number: f64) -> String {
    format!("{number:.6}")
}

/// Maintains the pool until `cancel` fires, or a task of the pool dies. `drivers` are those of its
/// accounts, in the same order.
pub async fn maintain(
    pool: AccountPool,
    drivers: Arc<Vec<Box<dyn Driver>>>,
    metrics: PoolMetrics,
    cancel: CancellationToken,
) {
    let moved = pool.shared().moved.clone();
    let pace = LoopOptions {
        name: "keep pool",
        every: ACCOUNT_CHECK_INTERVAL,
        wake: Some(moved),
    };
    let rounds = std::sync::atomic::AtomicU32::new(0);
    let answer = tokio::sync::Mutex::new(None);
    let looked = periodic(pace, cancel.clone(), || async {
        let round = rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        look(
            pool.shared(),
            &drivers,
            &mut *answer.lock().await,
            round.is_multiple_of(CAPACITY_REPEAT_ROUNDS),
        )
        .await?;
        metrics.of_pool(&pool.view());
        Ok::<(), Error>(())
    });
    // Five hundred answers take a while, so the observations continue meanwhile.
    let pace = LoopOptions {
        name: "ask quotas",
        every: QUOTA_EVERY,
        wake: None,
    };
    let requested = periodic(pace, cancel.clone(), || async {
        ask_quotas(pool.shared(), &drivers, &cancel).await;
        Ok::<(), Error>(())
    });
    tokio::select! {
        _ = async { tokio::join!(looked, requested) } => {}
        () = pool.died() => {
            tracing::error!(pool = %pool.pool().name, "a task of the pool died");
        }
    }
}

/// Observes each account once, for a check from outside: it publishes nothing in the store.
pub async fn observe(pool: &AccountPool) -> Result<Arc<PoolView>, Error> {
    let shared = pool.shared();
    let (capacity, accounts, now_ms) = seen(shared).await?;
    show(shared, &capacity, accounts, now_ms);
    Ok(pool.view())
}

/// Observes each account, and publishes the pool's capacity and view.
async fn look(
    shared: &AccountPoolInner,
    drivers: &[Box<dyn Driver>],
    answer: &mut Option<Capacity>,
    say_again: bool,
) -> Result<(), Error> {
    let rests_us = shared.rests_us();
    let (capacity, accounts, now_ms) = seen(shared).await?;
    shared.end_rests(&rests_us, &accounts);
    shared.set_load(capacity.load);
    if say_again || answer.as_ref() != Some(&capacity) {
        if let Ok(throttle) = Name::new(shared.pool.name.as_str()) {
            shared
                .store
                .set_capacity(&throttle, capacity.rps, &why(&capacity, &accounts))
                .await?;
        }
        *answer = Some(capacity);
    }
    // A change of this knob, by a person or a governor, takes effect within a second.
    if let Ok(throttle) = Name::new(shared.pool.name.as_str())
        && let Some(status) = shared.store.status(&throttle).await?
    {
        share_concurrency(&status, drivers);
    }
    wake_when_back(shared, &accounts, now_ms);
    show(shared, &capacity, accounts, now_ms);
    Ok(())
}

/// Reads the state of each account; returns the capacity of the pool, its accounts, and the time of
/// the store.
async fn seen(shared: &AccountPoolInner) -> Result<(Capacity, Vec<AccountView>, i64), Error> {
    let names: Vec<String> = shared
        .pool
        .accounts
        .iter()
        .map(|limited| limited.account.name.clone())
        .collect();
    let now_ms = shared.breakers.refresh().await?;
    let states = shared.store.look(&shared.accounts, &names).await?;
    let limits = shared.limits.lock().clone();
    let of = |at: usize| account(shared, &names[at], limits[at], states.get(at), now_ms);
    let accounts: Vec<AccountView> = (0..names.len()).map(of).collect();
    let parts: Vec<AccountCapacity> = accounts
        .iter()
        .map(|account| AccountCapacity {
            // This applies to an account without a limit as well: messages beyond its learned rate
            // must wait in their lane, and not in the slots of a process. A rate of 0 is excluded
            // there, because an account that rests by a reported quota returns before a capacity
            // could be published.
            rps: (account.learned_rps.map(RateLimit::new))
                .filter(|rps| !(account.limit_rps.is_unlimited() && rps.is_stopped()))
                .unwrap_or(account.limit_rps),
            is_available: matches!(account.state, Flow::Flowing | Flow::Probing),
        })
        .collect();
    let capacity = Capacity::of(&parts, shared.pool.shedding);
    Ok((capacity, accounts, now_ms))
}

/// Stores the view of the pool.
fn show(shared: &AccountPoolInner, capacity: &Capacity, accounts: Vec<AccountView>, now_ms: i64) {
    let limits = shared.limits.lock().clone();
    let all_available: Vec<AccountCapacity> = limits
        .iter()
        .map(|limit| AccountCapacity {
            rps: limit.scaled(shared.pool.headroom),
            is_available: true,
        })
        .collect();
    let available_at_ms = (capacity.available == 0)
        .then(|| accounts.iter().filter_map(|account| account.until_ms).min())
        .flatten();
    // An account that is being probed is not available yet.
    let is_away = accounts
        .iter()
        .all(|account| account.state != Flow::Flowing);
    let unavailable_at_ms = if is_away {
        Some(now_ms)
    } else {
        shared.view.load().unavailable_at_ms
    };
    shared.view.store(Arc::new(PoolView {
        name: shared.pool.name.clone(),
        provider: shared.pool.provider.as_str().to_owned(),
        channel: shared.pool.channel().as_str().to_owned(),
        shedding: shared.pool.shedding,
        capacity_rps: capacity.rps.tokens(),
        configured_rps: Capacity::of(&all_available, true).rps.tokens(),
        available: capacity.available,
        available_at_ms,
        unavailable_at_ms,
        at_ms: now_ms,
        accounts,
    }));
}

/// Schedules an observation for the end of a block that is shorter than the interval, so that the
/// capacity does not stay low for longer than the block.
fn wake_when_back(shared: &AccountPoolInner, accounts: &[AccountView], now_ms: i64) {
    let available_at_ms = accounts.iter().filter_map(|account| account.until_ms).min();
    if let Some(wait_ms) = available_at_ms
        .map(|at_ms| at_ms.saturating_sub(now_ms))
        .filter(|ms| *ms < ACCOUNT_CHECK_INTERVAL.as_millis() as i64)
    {
        let moved = shared.moved.clone();
        let wake = async move {
            tokio::time::sleep(Duration::from_millis(wait_ms.max(0) as u64) + BACK_AFTER).await;
            moved.notify_one();
        };
        tokio::spawn(wake.boxed());
    }
}

fn account(
    shared: &AccountPoolInner,
    name: &str,
    limit: RateLimit,
    state: Option<&KeyState>,
    now_ms: i64,
) -> AccountView {
    let breaker = shared.breakers.seen(name);
    let paused_until = state
        .and_then(|state| state.paused_until_ms)
        .filter(|until| *until > now_ms);
    // Tokens are scaled so that every account has its own rate; for people they become messages
    // again.
    let messages = |tokens: f64| tokens * effective_limit(limit) / shared.reference.max(1e-6);
    let (flow, until_ms, why) = match breaker.state {
        BreakerState::Open if now_ms < breaker.until_ms => {
            (Flow::Open, Some(breaker.until_ms), breaker.why.clone())
        }
        BreakerState::Open | BreakerState::HalfOpen => (Flow::Probing, None, breaker.why.clone()),
        BreakerState::Closed => match (paused_until, state) {
            (Some(until), state) => (
                Flow::Blocked,
                Some(until),
                state.map(|state| state.why.clone()).unwrap_or_default(),
            ),
            (None, Some(state)) if state.probing => (Flow::Probing, None, state.why.clone()),
            _ => (Flow::Flowing, None, String::new()),
        },
    };
    let limit_rps = limit.scaled(shared.pool.headroom);
    AccountView {
        name: name.to_owned(),
        state: flow,
        until_ms,
        why,
        limit_rps,
        learned_rps: state
            .and_then(|state| state.learned_rps)
            .map(messages)
            .filter(|learned| {
                *learned
                    < limit_rps
                        .tokens()
                        .unwrap_or(LEARNED * effective_limit(limit))
            }),
        refused: state.map_or(0.0, |state| state.refused),
        failures: breaker.failures,
        changed_at_ms: breaker.changed_at_ms,
    }
}

fn why(capacity: &Capacity, accounts: &[AccountView]) -> String {
    let count = |flow: Flow| {
        accounts
            .iter()
            .filter(|account| account.state == flow)
            .count()
    };
    let (blocked, open, all) = (count(Flow::Blocked), count(Flow::Open), accounts.len());
    let slower = accounts
        .iter()
        .filter(|account| account.learned_rps.is_some())
        .count();
    let learned = if slower > 0 {
        format!("; {slower} at a rate learned from refusals")
    } else {
        String::new()
    };
    let available = match capacity.available {
        0 => format!("no account is available: {blocked} blocked, {open} with an open breaker"),
        available if available == all => format!("all {all} accounts are available"),
        available => format!(
            "{available} of {all} accounts are available: {blocked} blocked, {open} with an open breaker"
        ),
    };
    available + &learned
}

/// Shares the knob `concurrency` equally among the drivers.
fn share_concurrency(status: &Status, drivers: &[Box<dyn Driver>]) {
    let drivers_count = drivers.len().max(1);
    let each = status.knobs.concurrency.map_or(UNLIMITED, |most| {
        (most as usize).div_ceil(drivers_count).max(1)
    });
    drivers
        .iter()
        .for_each(|driver| driver.set_concurrency(each));
}

/// Asks the providers for the accounts' allowed rates and adopts those that are below the settings.
async fn ask_quotas(
    shared: &Arc<AccountPoolInner>,
    drivers: &Arc<Vec<Box<dyn Driver>>>,
    cancel: &CancellationToken,
) {
    let ask = |at: usize| {
        let (shared, drivers) = (shared.clone(), drivers.clone());
        let reported = SendContext {
            now_s: now_s(),
            timeout: shared.pool.timeout,
            stop: cancel.clone(),
        };
        async move {
            let Some(rps) = drivers[at]
                .quota(&reported)
                .await
                .filter(|rps| rps.is_finite() && *rps > 0.0)
            else {
                return;
            };
            let configured = shared
                .pool
                .accounts
                .get(at)
                .map_or(RateLimit::Unlimited, |limited| limited.rps);
            let limit = RateLimit::PerSecond(rps).slower(configured);
            if let Some(kept) = shared.limits.lock().get_mut(at) {
                *kept = limit;
            }
        }
    };
    futures_util::stream::iter(0..drivers.len())
        .map(ask)
        .buffer_unordered(QUOTA_CONCURRENCY)
        .collect::<Vec<()>>()
        .await;
}
