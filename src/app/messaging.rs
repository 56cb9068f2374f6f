//! The messages as a part of a process: the pools of accounts that send them, and the rules for
//! their recipients.

use std::sync::Arc;

use anyhow::Context as _;
use prometheus_client::registry::Registry;

use super::faults::Faults;
use super::kinds::guard;
use super::loops::Loops;
use super::pools::{self, PreparedPools, RunningPools};
use super::recipient_rules::{self, RulesFile};
use super::roles::Roles;
use crate::admission::{BATCH, Batches, ExpandBatch};
use crate::config::Settings;
use crate::jobs::{Kinds, Queue};
use crate::notify::{ALERTS, NotificationHandler, recipient::KIND};
use crate::providers::DriverClients;
use crate::providers::pool::{self, AccountPool};
use crate::service::DueWork;
use crate::throttle::{self, Change, Name, Notes, RedisStore, Store};

/// The clients of the drivers. Those of the keys of JSON Web Tokens are among them.
pub(super) type Clients = DriverClients;

/// The pools and the rules, before any connection.
pub(super) struct PreparedMessages {
    /// The pools, with a driver for each account.
    pools: PreparedPools,
    /// The rules for recipients.
    rules: RulesFile,
}

/// The pools and the rules with their connections, before their loops start.
pub(super) struct OpenMessages {
    /// The pools.
    pub(super) pools: RunningPools,
    rules: RulesFile,
}

/// The throttles of messages that are put into Redis.
pub(super) struct MessageSeeds {
    account_pools: Vec<AccountPool>,
    /// True if a pool sends its alarms to a URL.
    has_alerts: bool,
}

/// Builds the clients of the drivers. A fault of the guard is noted with the kinds that share it.
pub(super) fn clients(settings: &Settings, faults: &mut Faults) -> Option<Clients> {
    let clients = pools::clients(guard(settings).ok()?);
    faults.take(clients, "see the error")
}

/// Builds the pools, and reads the rules.
pub(super) fn prepare(
    settings: &Settings,
    clients: Option<Clients>,
    faults: &mut Faults,
) -> Option<PreparedMessages> {
    let pools = clients.and_then(|clients| {
        let pools = pools::build(settings, clients);
        faults.take(pools, "correct the pool's settings")
    });
    let rules = faults.take(
        RulesFile::read(&settings.recipients_file),
        "correct the file of recipients' rules",
    );
    Some(PreparedMessages {
        pools: pools?,
        rules: rules?,
    })
}

impl PreparedMessages {
    /// Opens the accounts, and publishes the rules.
    pub(super) async fn open(
        self,
        queue: &Queue,
        throttles: &Arc<dyn Store>,
        redis: Arc<RedisStore>,
        registry: &mut Registry,
    ) -> anyhow::Result<OpenMessages> {
        let Self { pools, mut rules } = self;
        let notes: Arc<dyn Notes> = redis;
        let pools = pools::open(pools, queue, (throttles, &notes), rules.live(), registry)?;
        rules.open(&queue.pool, registry).await?;
        Ok(OpenMessages { pools, rules })
    }
}

impl OpenMessages {
    /// Adds the kinds that send messages.
    pub(super) fn add_kinds(&self, kinds: &mut Kinds, queue: &Queue, settings: &Settings) {
        let (pools, services) = (self.pools.pools.clone(), self.pools.services.clone());
        kinds.register(
            KIND,
            NotificationHandler::new(pools, Some(services)).serving(settings.serve_pools.clone()),
        );
        kinds.register(BATCH, ExpandBatch::new(Some(Batches::new(queue.clone()))));
    }

    /// Returns the pools of accounts.
    pub(super) fn account_pools(&self) -> Vec<AccountPool> {
        let handles = self.pools.services.handles.values();
        handles.map(|handle| handle.accounts.clone()).collect()
    }

    /// Returns the throttles that messages need.
    pub(super) fn seeds(&self) -> MessageSeeds {
        let mut pools = self.pools.pools.0.values();
        MessageSeeds {
            account_pools: self.account_pools(),
            has_alerts: pools.any(|pool| pool.alert_url.is_some()),
        }
    }

    /// Starts the loops: in every process those of its own accounts and of the rules, and where
    /// jobs run those of messages.
    pub(super) fn start(
        self,
        settings: &Settings,
        roles: Roles,
        queue: &Queue,
        due: &DueWork,
        loops: &mut Loops,
    ) {
        let keep = recipient_rules::run(self.rules, queue.pool.clone(), loops.stop());
        loops.spawn("recipient rules", keep);
        let (vital, cancel) = (&loops.vital, &loops.cancel);
        let runs_jobs = roles.runner;
        let tasks = self
            .pools
            .start(runs_jobs, due.clone(), settings, vital, cancel);
        loops.tasks.extend(tasks);
    }
}

impl MessageSeeds {
    /// Creates the throttles that do not exist.
    pub(super) async fn seed(&self, store: &dyn Store) -> anyhow::Result<()> {
        for accounts in &self.account_pools {
            pool::seed(accounts)
                .await
                .with_context(|| format!("the throttles of pool {}", accounts.pool().name))?;
        }
        if self.has_alerts {
            seed_alerts(store).await?;
        }
        Ok(())
    }
}

/// Creates the throttle of alarms if it does not exist; existing knobs stay.
async fn seed_alerts(store: &dyn Store) -> Result<(), throttle::Error> {
    let Ok(name) = Name::new(ALERTS) else {
        return Ok(());
    };
    let fields = [("rps", "10"), ("key_rps", "2"), ("on_store_loss", "open")];
    let change = Change {
        fields: fields
            .into_iter()
            .map(|(field, text)| (field.to_owned(), Some(text.to_owned())))
            .collect(),
        by: "flyball".to_owned(),
        why: "alerts of pools; adjust it as needed".to_owned(),
        create: true,
        absent_only: true,
        ..Change::default()
    };
    match store.set(&name, &change).await {
        Ok(_) | Err(throttle::Error::Invalid(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
