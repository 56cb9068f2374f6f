//! Workers that share one pool of accounts on a real Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use flyball::providers::pool::{AccountPool, BreakerState, Change, Flow, maintain, seed};
use flyball::providers::{Account, Limited, Pool, PoolMetrics, Provider};
use flyball::throttle::{Name, Notes, RateLimit, RedisStore, Store};
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{eventually, redis_prefix, stack};

pub const SOON: Duration = Duration::from_secs(60);

/// Several workers on one pool.
pub struct Workers {
    pub pools: Vec<AccountPool>,
    pub store: Arc<RedisStore>,
    pub changes: mpsc::UnboundedReceiver<(String, Change)>,
    _stop: DropGuard,
}

pub fn pool(name: &str, accounts: usize, rps: f64, change: impl Fn(&mut Pool)) -> Pool {
    let account = |n: usize| Limited {
        account: Account {
            name: format!("account_{n}"),
            ..Account::default()
        },
        rps: RateLimit::new(rps),
    };
    let mut pool = Pool {
        name: name.to_owned(),
        provider: Provider::Twilio,
        accounts: (1..=accounts).map(account).collect(),
        shedding: true,
        headroom: 1.0,
        breaker_failures: 5,
        breaker_window: Duration::from_secs(60),
        breaker_cooldown: Duration::from_secs(3),
        alert_url: None,
        alert_secret: None,
        retry_ambiguous: true,
        valid_for: Duration::from_secs(3600),
        requeue_on_recovery: false,
        timeout: Duration::from_secs(5),
    };
    change(&mut pool);
    pool
}

pub async fn workers(many: usize, pool: Pool) -> Workers {
    let store = RedisStore::connect(&stack().await.redis_url, &redis_prefix())
        .unwrap()
        .with_bound(Duration::from_secs(20));
    let store = Arc::new(store);
    let (sender, changes) = mpsc::unbounded_channel();
    let stop = CancellationToken::new();
    let metrics = PoolMetrics::register(&mut Registry::default());
    let mut pools = Vec::new();
    for _ in 0..many {
        let (as_store, notes): (Arc<dyn Store>, Arc<dyn Notes>) = (store.clone(), store.clone());
        let account_pool =
            AccountPool::open(pool.clone(), as_store, notes, sender.clone()).unwrap();
        eventually("the throttles", SOON, || async {
            seed(&account_pool).await.ok()
        })
        .await;
        tokio::spawn(maintain(
            account_pool.clone(),
            Arc::default(),
            metrics.clone(),
            stop.clone(),
        ));
        pools.push(account_pool);
    }
    Workers {
        pools,
        store,
        changes,
        _stop: stop.drop_guard(),
    }
}

/// Returns an unused message number.
pub fn next() -> i64 {
    static LAST: AtomicI64 = AtomicI64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

impl Workers {
    /// Returns the account as last seen by this worker.
    pub fn flow(&self, worker: usize, account: usize) -> Flow {
        self.pools[worker]
            .view()
            .accounts
            .get(account - 1)
            .map_or(Flow::Flowing, |account| account.state)
    }

    pub async fn changed(&mut self) -> (BreakerState, BreakerState) {
        let (_, change) = tokio::time::timeout(SOON, self.changes.recv())
            .await
            .expect("a change")
            .unwrap();
        (change.from, change.to)
    }

    /// Returns the capacity reported to the pool's throttle.
    pub async fn capacity(&self) -> Option<f64> {
        let name = Name::new(self.pools[0].pool().name.clone()).unwrap();
        let status = self.store.status(&name).await.unwrap().unwrap();
        status.raw.get("capacity").map(|text| text.parse().unwrap())
    }
}
