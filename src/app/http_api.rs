//! The HTTP API as a part of a process: its tokens, its listeners, the gateway, and the service for
//! workers in other programs.

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::decisions::JournalReader;
use super::faults::Faults;
use super::governing::PreparedGovernor;
use super::listeners::{LISTEN, Listeners, METRICS_LISTEN};
use super::loops::Loops;
use super::messaging::{Clients, OpenMessages};
use super::roles::Roles;
use super::{api_tokens, descriptors, gateway, remote, servers};
use crate::api;
use crate::config::{ImplicitIdempotency, Settings};
use crate::gateway::service::Gateway;
use crate::jobs::{Kinds, Queue};
use crate::notify::Deliveries;
use crate::providers::Pools;
use crate::providers::pool::AccountPool;
use crate::recipient::service::Gates;
use crate::runner::{Brokers, Config, WorkerMetrics};
use crate::service::DueWork;
use crate::signals::Prometheus;
use crate::throttle::{ApiLimit, Knobs, Store};
use crate::trace::Tracer;

/// The tokens of the settings.
pub(super) struct PreparedTokens {
    tokens: Vec<api::AuthToken>,
    /// The tenants of the tokens, and the one of callers without a tenant.
    tenants: Vec<String>,
}

/// The parts of the API that need no server.
pub(super) struct PreparedApi {
    tokens: PreparedTokens,
    /// The check of JSON Web Tokens, if the settings have one.
    jwt: Option<Arc<api::JwtAuth>>,
    /// The Prometheus that has the metrics of the throttles.
    prometheus: Arc<Prometheus>,
}

/// The API with its listeners, which answer that the process is starting.
pub(super) struct BoundApi {
    prepared: PreparedApi,
    listeners: Listeners,
}

/// The API with all that it serves but the remote workers, before its loops start.
pub(super) struct OpenedApi {
    bound: BoundApi,
    connections: api::Connections,
    queue: Queue,
    throttles: Arc<dyn Store>,
    gateway: Gateway,
    messages: ServedMessages,
    decisions: Arc<JournalReader>,
}

/// The parts of the messages that the API reads.
struct ServedMessages {
    account_pools: Vec<AccountPool>,
    pools: Arc<Pools>,
    deliveries: Deliveries,
    gates: Gates,
    tools: Clients,
}

/// The API with its loops, before it serves.
pub(super) struct StartedApi {
    opened: OpenedApi,
    remote: Arc<Brokers>,
}

/// The API of a running process.
pub(super) struct RunningApi {
    gateway: Gateway,
    draining: CancellationToken,
}

/// The throttles of the API that are put into Redis.
pub(super) struct ApiSeeds {
    tenants: Vec<String>,
    limits: Vec<ApiLimit>,
}

/// Reads the tokens, and checks the addresses of the listeners, which depend on them.
pub(super) async fn tokens(
    settings: &Settings,
    roles: Roles,
    faults: &mut Faults,
) -> Option<PreparedTokens> {
    let found = faults.take(settings.tokens(), "correct the place of the token's secret");
    let has_tokens = settings.jwt.is_some() || found.as_ref().is_none_or(|found| !found.is_empty());
    let metrics = Some(settings.metrics_listen.as_str()).filter(|address| !address.is_empty());
    let listeners = [
        (LISTEN, roles.api.then_some(settings.listen.as_str())),
        (METRICS_LISTEN, metrics),
    ];
    for (variable, address) in listeners {
        if let Some(address) = address {
            let addresses = api::addresses_of(variable, address, has_tokens).await;
            faults.take(addresses, "set a token, or correct the address");
        }
    }
    let found = found?;
    Some(PreparedTokens {
        tokens: found.iter().map(api_tokens::token).collect(),
        tenants: api_tokens::tenants(&found),
    })
}

/// Builds the check of JSON Web Tokens, whose keys come by `clients`. A fault of the Prometheus is
/// noted with the governor's sources.
pub(super) fn prepare(
    tokens: Option<PreparedTokens>,
    clients: Option<&Clients>,
    settings: &Settings,
    roles: Roles,
    faults: &mut Faults,
) -> Option<PreparedApi> {
    let jwt = clients
        .filter(|_| roles.api || !settings.metrics_listen.is_empty())
        .and_then(|clients| {
            let jwt = api_tokens::jwt(settings, clients);
            faults.take(jwt, "correct the place of the secret of [jwt]")
        })
        .flatten();
    Some(PreparedApi {
        tokens: tokens?,
        jwt,
        prometheus: Arc::new(servers::usual(settings).ok()?),
    })
}

impl PreparedApi {
    /// Binds the addresses.
    pub(super) async fn bind(self, settings: &Settings, roles: Roles) -> anyhow::Result<BoundApi> {
        // With either, a caller must prove who it is.
        let has_tokens = !self.tokens.tokens.is_empty() || self.jwt.is_some();
        Ok(BoundApi {
            listeners: Listeners::bind(settings, roles, has_tokens).await?,
            prepared: self,
        })
    }
}

impl BoundApi {
    /// Builds the gateway, and registers the metrics.
    pub(super) fn open(
        self,
        settings: &Settings,
        (queue, throttles): (&Queue, &Arc<dyn Store>),
        due: &DueWork,
        (messages, governor): (&OpenMessages, &PreparedGovernor),
        registry: &mut Registry,
    ) -> OpenedApi {
        let files = descriptors::raise_limit();
        let connections = descriptors::connections(settings.http_connections, files);
        let connections = api::Connections::new(connections);
        connections.register(registry);
        let gateway = Gateway::new(
            queue.clone(),
            throttles.clone(),
            gateway::limits(settings, files),
            api::DEFAULT_TENANT,
            due.clone(),
        );
        gateway.metrics.register(registry);
        let pools = &messages.pools;
        OpenedApi {
            bound: self,
            connections,
            queue: queue.clone(),
            throttles: throttles.clone(),
            gateway,
            messages: ServedMessages {
                account_pools: messages.account_pools(),
                pools: pools.pools.clone(),
                deliveries: pools.services.deliveries.clone(),
                gates: pools.services.gates.clone(),
                tools: pools.tools.clone(),
            },
            decisions: Arc::new(JournalReader::new(queue, throttles, &governor.policies)),
        }
    }
}

impl OpenedApi {
    /// Returns the throttles that the API needs.
    pub(super) fn seeds(&self, settings: &Settings, roles: Roles) -> ApiSeeds {
        ApiSeeds {
            tenants: match roles.api {
                true => self.bound.prepared.tokens.tenants.clone(),
                false => Vec::new(),
            },
            limits: settings.api_limits(),
        }
    }

    /// Starts the loop of the gateway, and with the role that of the remote workers.
    pub(super) fn start(
        self,
        settings: &Settings,
        roles: Roles,
        config: Config,
        metrics: &WorkerMetrics,
        kinds: &Kinds,
        loops: &mut Loops,
    ) -> StartedApi {
        if roles.api || roles.runner {
            let keep = self.gateway.clone().run(loops.stop());
            loops.spawn("gateway", keep);
        }
        let stores = (&self.queue, &self.throttles);
        let remote = remote::brokers(settings, config, stores, metrics, kinds, &loops.cancel);
        if roles.api {
            loops.spawn("remote workers", remote.clone().run());
        }
        StartedApi {
            opened: self,
            remote,
        }
    }
}

impl StartedApi {
    /// Serves on the listeners; returns the address of the API, if the process has the role.
    pub(super) async fn serve(
        self,
        settings: &Settings,
        kinds: Kinds,
        registry: Registry,
        tracer: Tracer,
        loops: &mut Loops,
    ) -> anyhow::Result<(Option<SocketAddr>, RunningApi)> {
        let OpenedApi {
            bound: BoundApi {
                prepared,
                listeners,
            },
            connections,
            queue,
            throttles,
            gateway,
            messages,
            decisions,
        } = self.opened;
        let draining = CancellationToken::new();
        let deps = api::Deps {
            queue,
            throttles,
            throttles_created_max: settings.throttles_created_max,
            tenant_limits: settings.tenant_limits(),
            implicit_idempotency: settings.implicit_idempotency == ImplicitIdempotency::Queued,
            problem_types: settings.problem_types.clone(),
            key_metrics: settings.key_metrics.clone().into(),
            prometheus: prepared.prometheus,
            api_limits: settings.api_limits().into(),
            check_knobs: Knobs::check,
            kinds,
            remote: self.remote,
            account_pools: messages.account_pools,
            pools: messages.pools,
            deliveries: messages.deliveries,
            gates: messages.gates,
            gateway: gateway.clone(),
            tools: messages.tools,
            public_url: settings.public_url.clone(),
            decisions,
            live: api::Live::default(),
            jwt: prepared.jwt,
            tokens: prepared.tokens.tokens.into(),
            registry: Arc::new(registry),
            tracer,
            cancel: loops.stop(),
            draining: draining.clone(),
        };
        let served = listeners.serve(deps, connections, (&loops.vital, &loops.cancel));
        let (address, served) = served.await?;
        loops.tasks.extend(served);
        Ok((address, RunningApi { gateway, draining }))
    }
}

impl RunningApi {
    /// Tells the API that the running jobs get their time to end.
    pub(super) fn drain(&self) {
        self.draining.cancel();
    }

    /// Sends the connections of the gateway away, and waits until they have gone.
    pub(super) async fn send_away(&self) {
        self.gateway.send_away().await;
    }
}

impl ApiSeeds {
    /// Creates the throttles that do not exist, and sets the limits of the settings.
    pub(super) async fn seed(&self, store: &dyn Store) -> anyhow::Result<()> {
        let tenants: Vec<&str> = self.tenants.iter().map(String::as_str).collect();
        api::seed_limits(store, &tenants).await?;
        api::seed_api_limits(store, &tenants, &self.limits).await?;
        Ok(())
    }
}
