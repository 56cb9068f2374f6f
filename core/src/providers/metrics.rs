//! The metrics of pools. Their labels are pools and accounts, whose names come from the settings.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::pool::{Change, Flow, PoolView};

/// The labels of an attempt to send.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SendLabels {
    pool: String,
    account: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FlowLabels {
    pool: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfChange {
    pool: String,
    account: String,
    state: &'static str,
}

/// The metrics of all pools of a process. Cheap to clone.
#[derive(Clone)]
pub struct PoolMetrics {
    sends: Family<SendLabels, Counter>,
    duration: Family<PoolLabels, Histogram>,
    accounts: Family<FlowLabels, Gauge>,
    capacity: Family<PoolLabels, Gauge<f64, std::sync::atomic::AtomicU64>>,
    changes: Family<OfChange, Counter>,
}

impl PoolMetrics {
    /// Creates and registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            sends: Family::default(),
            duration: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.005, 2.0, 14))
            }),
            accounts: Family::default(),
            capacity: Family::default(),
            changes: Family::default(),
        };
        let help = "Attempts to send a message through an account, by outcome";
        registry.register("flyball_account_sends", help, metrics.sends.clone());
        let help = "Response time of providers, by pool";
        registry.register_with_unit(
            "flyball_provider_response",
            help,
            Unit::Seconds,
            metrics.duration.clone(),
        );
        let help = "Accounts of a pool by state: flowing, blocked, open or probing";
        registry.register("flyball_pool_accounts", help, metrics.accounts.clone());
        let help = "Messages per second that the accounts of a pool can take now; -1 for no limit";
        registry.register("flyball_pool_capacity_rps", help, metrics.capacity.clone());
        let help = "Breaker changes of accounts made by this process, by new state";
        registry.register(
            "flyball_account_breaker_changes",
            help,
            metrics.changes.clone(),
        );
        metrics
    }

    /// Records an attempt at an account and its duration in seconds.
    pub fn sent(&self, pool: &str, account: &str, outcome: &'static str, seconds: f64) {
        self.sends
            .get_or_create(&SendLabels {
                pool: pool.to_owned(),
                account: account.to_owned(),
                outcome,
            })
            .inc();
        self.duration
            .get_or_create(&PoolLabels {
                pool: pool.to_owned(),
            })
            .observe(seconds);
    }

    /// Records the current state of a pool.
    pub fn of_pool(&self, view: &PoolView) {
        for flow in Flow::ALL {
            let count = view
                .accounts
                .iter()
                .filter(|account| account.state == flow)
                .count();
            self.accounts
                .get_or_create(&FlowLabels {
                    pool: view.name.clone(),
                    state: flow.as_str(),
                })
                .set(count as i64);
        }
        self.capacity
            .get_or_create(&PoolLabels {
                pool: view.name.clone(),
            })
            .set(view.capacity_rps.unwrap_or(-1.0));
    }

    /// Records a change of an account's breaker.
    pub fn changed(&self, pool: &str, change: &Change) {
        let (pool, account) = (pool.to_owned(), change.account.clone());
        self.changes
            .get_or_create(&OfChange {
                pool,
                account,
                state: change.to.as_str(),
            })
            .inc();
    }
}
