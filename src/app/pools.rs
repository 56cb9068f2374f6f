//! Assembles pools of accounts: their drivers, their accounts, and the loops that maintain them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::inbox::{Inbox, InboxDriver, keep::keep};
use crate::jobs::Queue;
use crate::notify::deliver::{DeliveryServices, PoolHandle};
use crate::notify::{self, Alarms, Deliveries, publish_changes, watch};
use crate::outbound::Guard;
use crate::providers::capture::CAPTURE;
use crate::providers::pool::{AccountPool, Change, maintain};
use crate::providers::{
    Driver, DriverClients, Http, INBOX_POOL, Pool, PoolMetrics, Pools, Provider, build,
};
use crate::recipient::live_rules::LiveRules;
use crate::recipient::service::Gates;
use crate::service::{DueWork, LoopOptions, TaskSupervisor, periodic};
use crate::throttle::{Name, Notes, Store};

/// The time between two reads of the rates of pools.
const CAPACITIES_EVERY: Duration = Duration::from_secs(10);

/// All running pools of a process.
pub(super) struct RunningPools {
    pub(super) pools: Arc<Pools>,
    pub(super) services: DeliveryServices,
    #[cfg(feature = "api")]
    pub(super) tools: DriverClients,
    pub(super) alarms: Alarms,
    inbox: Inbox,
    changes: mpsc::UnboundedReceiver<(String, Change)>,
    store: Arc<dyn Store>,
}

/// The pools of the settings with a driver for each account, before any connection.
pub(super) struct PreparedPools {
    pools: Arc<Pools>,
    #[cfg(feature = "api")]
    tools: DriverClients,
    drivers: BTreeMap<String, Arc<Vec<Box<dyn Driver>>>>,
}

/// Builds the clients of the drivers.
pub(super) fn clients(guard: Guard) -> anyhow::Result<DriverClients> {
    // The operator sets the addresses of providers; those of recipients come with the message and
    // are guarded.
    Ok(DriverClients {
        http: Arc::new(Http::new(Guard::open())?),
        guarded: Arc::new(Http::new(guard)?),
    })
}

/// Builds the drivers. An invalid account, or invalid credentials, are an error that stops the
/// start.
pub(super) fn build(settings: &Settings, tools: DriverClients) -> anyhow::Result<PreparedPools> {
    let pools = Arc::new(settings.pools()?);
    let mut drivers = BTreeMap::new();
    // The driver of the inbox is made with the database.
    let built = |pool: &&Pool| pool.provider != Provider::Inbox;
    for (name, pool) in pools.0.iter().filter(|(_, pool)| built(pool)) {
        let of_pool = pool.accounts.iter().map(|limited| {
            let account = &limited.account;
            if account.option(CAPTURE).is_some() {
                tracing::warn!(
                    pool = name,
                    account = account.name,
                    "nobody gets the messages of this account, because it has capture = true"
                );
            }
            build::build(pool.provider, account, &tools)
                .map_err(|refused| settings.unusable(name, &account.name, &refused))
        });
        drivers.insert(
            name.clone(),
            Arc::new(of_pool.collect::<Result<Vec<_>, _>>()?),
        );
    }
    Ok(PreparedPools {
        pools,
        #[cfg(feature = "api")]
        tools,
        drivers,
    })
}

/// Opens the accounts of pools.
pub(super) fn open(
    built: PreparedPools,
    queue: &Queue,
    (store, notes): (&Arc<dyn Store>, &Arc<dyn Notes>),
    rules: LiveRules,
    registry: &mut Registry,
) -> anyhow::Result<RunningPools> {
    let PreparedPools {
        pools,
        #[cfg(feature = "api")]
        tools,
        mut drivers,
    } = built;
    let metrics = PoolMetrics::register(registry);
    let (tell, changes) = mpsc::unbounded_channel();
    let mut handles = BTreeMap::new();
    let inbox = Inbox::new(&queue.pool);
    let driver: Box<dyn Driver> = Box::new(InboxDriver::new(inbox.clone()));
    drivers.insert(INBOX_POOL.to_owned(), Arc::new(vec![driver]));
    for (name, drivers) in drivers {
        let Some(pool) = pools.get(&name) else {
            continue;
        };
        let accounts = AccountPool::open(pool.clone(), store.clone(), notes.clone(), tell.clone())?;
        handles.insert(name, PoolHandle { accounts, drivers });
    }
    let deliveries = Deliveries::new(&queue.pool);
    deliveries.metrics.register(registry);
    let gates = Gates::new(queue.clone(), rules);
    gates.metrics.register(registry);
    Ok(RunningPools {
        pools,
        services: DeliveryServices {
            handles,
            deliveries,
            gates,
            metrics,
        },
        #[cfg(feature = "api")]
        tools,
        alarms: Alarms::new(queue.clone()),
        inbox,
        changes,
        store: store.clone(),
    })
}

impl RunningPools {
    /// Starts the loops that maintain the pools: in every process those for its own accounts, and
    /// where jobs run those for messages.
    pub(super) fn start(
        self,
        runs_jobs: bool,
        due: DueWork,
        settings: &Settings,
        vital: &TaskSupervisor,
        cancel: &CancellationToken,
    ) -> Vec<JoinHandle<()>> {
        let DeliveryServices {
            handles,
            deliveries,
            gates,
            metrics,
        } = self.services;
        let store = self.store;
        let mut tasks = Vec::new();
        for handle in handles.values() {
            let PoolHandle { accounts, drivers } = handle.clone();
            let kept = maintain(accounts, drivers, metrics.clone(), cancel.child_token());
            tasks.push(vital.spawn("keep pool", cancel.child_token(), kept));
            if runs_jobs {
                let watched = watch(handle.clone(), deliveries.clone(), cancel.child_token());
                tasks.push(vital.spawn("watch pool", cancel.child_token(), watched));
            }
        }
        if runs_jobs {
            let throttles = handles.keys().filter_map(|name| name.parse().ok());
            let throttles = throttles.collect();
            let rates = keep_capacities(throttles, store, &gates, cancel.child_token());
            tasks.push(vital.spawn("keep capacities", cancel.child_token(), rates));
            let planned = gates.run(due, cancel.child_token());
            tasks.push(vital.spawn("plan messages", cancel.child_token(), planned));
            let (days, dead_days) = (settings.retention_days, settings.dead_message_days);
            let kept = notify::maintain(deliveries.clone(), days, dead_days, cancel.child_token());
            tasks.push(vital.spawn("keep deliveries", cancel.child_token(), kept));
            let kept = keep(self.inbox, settings.inbox_days, cancel.child_token());
            tasks.push(vital.spawn("keep inboxes", cancel.child_token(), kept));
        }
        let published = publish_changes(
            handles,
            self.alarms,
            metrics,
            self.changes,
            cancel.child_token(),
        );
        tasks.push(vital.spawn("report changes", cancel.child_token(), published));
        tasks
    }
}

/// Keeps the rates of pools, over which held messages are spread when they become due.
fn keep_capacities(
    throttles: Vec<Name>,
    store: Arc<dyn Store>,
    gates: &Gates,
    cancel: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let (throttles, capacities) = (Arc::new(throttles), gates.capacities.clone());
    let pace = LoopOptions {
        name: "read_capacities",
        every: CAPACITIES_EVERY,
        wake: None,
    };
    async move {
        periodic(pace, cancel, || {
            let (store, throttles) = (store.clone(), throttles.clone());
            let capacities = capacities.clone();
            async move {
                for throttle in throttles.iter() {
                    if let Some(status) = store.status(throttle).await? {
                        let rate = status.effective_rps.tokens().unwrap_or(f64::INFINITY);
                        capacities.write().insert(throttle.to_string(), rate);
                    }
                }
                Ok::<(), crate::throttle::Error>(())
            }
        })
        .await;
    }
}
