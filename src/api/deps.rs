//! The dependencies from the composition root, and the state of the router made from them. Each
//! route takes the part that it needs.

use std::sync::Arc;

use axum::extract::FromRef;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::OpenApi;

use super::gates::accounts::MessageAccounts;
use super::gateway::state::GatewayState;
use super::health::{Draining, StoresCheck};
use super::http::auth::{AuthToken, Authenticator};
use super::http::gate::Gate;
use super::http::jwt::authenticate::JwtAuth;
use super::http::metrics::HttpMetrics;
use super::http::places::Places;
use super::http::token_metrics::TokenMetrics;
use super::jobs::show::WAIT_SHARES;
use super::jobs::state::JobsState;
use super::journal::Decisions;
use super::notifications::accept::AdmissionState;
use super::notifications::events::{DOUBTED_MAX, WebhookState};
use super::openapi::document::ApiDocument;
use super::stream::events::StreamState;
use super::stream::live::Live;
use super::throttles::state::{CheckKnobs, ThrottlesState};
use super::throttles::wait_queue::WaitQueues;
use crate::admission::{Admission, Batches};
use crate::gateway::service::Gateway;
use crate::jobs::remote::RemoteWorkers;
use crate::jobs::{Kinds, Queue};
use crate::notify::Deliveries;
use crate::providers::pool::AccountPool;
use crate::providers::{DriverClients, Pools};
use crate::recipient::postgres::RecipientProfiles;
use crate::recipient::service::Gates;
use crate::signals::Prometheus;
use crate::throttle::admission::TenantLimits;
use crate::throttle::{ApiLimit, CallerKnobs, Listing, Store};
use crate::trace::Tracer;

/// The dependencies of the API, set by the composition root.
#[derive(Clone)]
pub struct Deps {
    pub queue: Queue,
    pub throttles: Arc<dyn Store>,
    /// The number of throttles beyond which none is made on first use.
    pub throttles_created_max: usize,
    /// The limits of tenants' messages in the settings, reported while Redis is away.
    pub tenant_limits: TenantLimits,
    /// True if a message without an idempotency key that repeats a waiting one is that one.
    pub implicit_idempotency: bool,
    /// The beginning of the types of the problems of admission.
    pub problem_types: String,
    /// The throttles whose keys have metrics of their own.
    pub key_metrics: Arc<[String]>,
    /// The Prometheus that has the metrics of the throttles.
    pub prometheus: Arc<Prometheus>,
    /// The limits of requests in the settings.
    pub api_limits: Arc<[ApiLimit]>,
    /// The check of an edit of knobs.
    pub check_knobs: CheckKnobs,
    /// The handlers of this process, for their checks of arguments.
    pub kinds: Kinds,
    /// The service that hands jobs to workers in other programs.
    pub remote: Arc<dyn RemoteWorkers>,
    /// The pools of accounts, for the state of the accounts.
    pub account_pools: Vec<AccountPool>,
    /// The pools of accounts that send messages.
    pub pools: Arc<Pools>,
    /// The store of the fates of messages.
    pub deliveries: Deliveries,
    /// The gates of recipients.
    pub gates: Gates,
    /// The gateway of channels.
    pub gateway: Gateway,
    /// The tools for reading events of providers.
    pub tools: DriverClients,
    /// The base URL by which clients outside reach us; empty if it is not set.
    pub public_url: String,
    /// The governor's journal.
    pub decisions: Arc<dyn Decisions>,
    /// The last ten minutes and the listeners; filled by [`super::stream::sample::run`].
    pub live: Live,
    /// The accepted tokens; without any, only loopback is served.
    pub tokens: Arc<[AuthToken]>,
    /// The check of JSON Web Tokens, which are accepted beside those.
    pub jwt: Option<Arc<JwtAuth>>,
    /// The metrics of other rooms, e.g. the runner's; the API adds its own.
    pub registry: Arc<Registry>,
    /// The maker of spans for requests that enqueue.
    pub tracer: Tracer,
    /// The token that is cancelled when the process stops: streams end and the listener closes.
    pub cancel: CancellationToken,
    /// The token that is cancelled before that, when running jobs get their time to end.
    pub draining: CancellationToken,
}

/// The state of the router.
#[derive(Clone)]
pub struct ApiState(Arc<ApiParts>);

struct ApiParts {
    jobs: Arc<JobsState>,
    throttles: Arc<ThrottlesState>,
    webhooks: Arc<WebhookState>,
    admission: Arc<AdmissionState>,
    gateway: Arc<GatewayState>,
    auth: Arc<Authenticator>,
    gate: Arc<Gate>,
    queue: Queue,
    remote: Arc<dyn RemoteWorkers>,
    store: Arc<dyn Store>,
    decisions: Arc<dyn Decisions>,
    account_pools: Arc<[AccountPool]>,
    pools: Arc<Pools>,
    deliveries: Deliveries,
    recipients: RecipientProfiles,
    stores: StoresCheck,
    gates: Gates,
    live: Live,
    metrics: HttpMetrics,
    registry: Arc<Registry>,
    tracer: Tracer,
    cancel: CancellationToken,
    draining: Draining,
    document: ApiDocument,
}

impl ApiState {
    /// Combines the parts.
    pub fn new(deps: Deps, declared: OpenApi) -> Self {
        let metrics = HttpMetrics {
            tokens: TokenMetrics::new(deps.key_metrics),
            ..HttpMetrics::default()
        };
        let requires_token = !deps.tokens.is_empty() || deps.jwt.is_some();
        let owners = deps.tokens.iter().map(AuthToken::owner);
        let key_owners = owners.filter(|owner| owner.starts_with("token:"));
        let key_owners = key_owners.map(str::to_owned).collect();
        let auth = Arc::new(Authenticator::new(
            deps.tokens,
            deps.jwt,
            deps.public_url.clone(),
            deps.queue.pool.clone(),
        ));
        let account_pools: Arc<[AccountPool]> = deps.account_pools.into();
        let gate = Arc::new(Gate::new(
            deps.throttles.clone(),
            deps.api_limits,
            metrics.tokens.clone(),
        ));
        Self(Arc::new(ApiParts {
            gateway: Arc::new(GatewayState::new(
                deps.gateway,
                auth.clone(),
                gate.clone(),
                deps.public_url.clone(),
            )),
            jobs: Arc::new(JobsState {
                queue: deps.queue.clone(),
                kinds: deps.kinds,
                throttles: deps.throttles.clone(),
                listing: Listing::default(),
                throttles_created_max: deps.throttles_created_max,
                account_pools: account_pools.clone(),
                metrics: metrics.clone(),
                waits: Places::with(WAIT_SHARES),
                key_owners,
                problem_types: deps.problem_types.clone(),
            }),
            throttles: Arc::new(ThrottlesState {
                throttles: deps.throttles.clone(),
                queue: deps.queue.clone(),
                decisions: deps.decisions.clone(),
                check_knobs: deps.check_knobs,
                pools: deps.pools.clone(),
                live: deps.live.clone(),
                lines: WaitQueues::default(),
                caller_knobs: CallerKnobs::default(),
                throttles_created_max: deps.throttles_created_max,
                prometheus: deps.prometheus,
                tokens: metrics.tokens.clone(),
                cancel: deps.cancel.clone(),
            }),
            webhooks: Arc::new(WebhookState {
                pools: deps.pools.clone(),
                deliveries: deps.deliveries.clone(),
                tools: deps.tools,
                public_url: deps.public_url.clone(),
                doubted: Semaphore::new(DOUBTED_MAX),
            }),
            admission: Arc::new(AdmissionState {
                admission: Admission::new(
                    deps.throttles.clone(),
                    deps.queue.clone(),
                    deps.tenant_limits,
                ),
                implicit_idempotency: deps.implicit_idempotency,
                problem_types: deps.problem_types,
                batches: Batches::new(deps.queue.clone()),
                deliveries: deps.deliveries.clone(),
                gates: deps.gates.clone(),
            }),
            auth,
            gate,
            recipients: RecipientProfiles::new(deps.queue.pool.clone()),
            stores: StoresCheck::new(deps.queue.clone(), deps.throttles.clone()),
            queue: deps.queue,
            remote: deps.remote,
            store: deps.throttles,
            decisions: deps.decisions,
            account_pools,
            pools: deps.pools,
            deliveries: deps.deliveries,
            gates: deps.gates,
            live: deps.live,
            metrics,
            registry: deps.registry,
            tracer: deps.tracer,
            cancel: deps.cancel,
            draining: Draining(deps.draining),
            document: ApiDocument::new(declared, requires_token),
        }))
    }
}

macro_rules! parts {
    ($($part:ty = $field:ident,)*) => {
        $(impl FromRef<ApiState> for $part {
            fn from_ref(state: &ApiState) -> Self {
                state.0.$field.clone()
            }
        })*
    };
}

impl FromRef<ApiState> for MessageAccounts {
    fn from_ref(state: &ApiState) -> Self {
        Self {
            deliveries: state.0.deliveries.clone(),
            pools: state.0.account_pools.clone(),
        }
    }
}

impl FromRef<ApiState> for StreamState {
    fn from_ref(state: &ApiState) -> Self {
        Self {
            live: state.0.live.clone(),
            queue: state.0.queue.clone(),
            cancel: state.0.cancel.clone(),
            auth: state.0.auth.clone(),
        }
    }
}

parts! {
    Arc<JobsState> = jobs,
    Arc<ThrottlesState> = throttles,
    Arc<WebhookState> = webhooks,
    Arc<AdmissionState> = admission,
    Arc<GatewayState> = gateway,
    Arc<Authenticator> = auth,
    Arc<Gate> = gate,
    Queue = queue,
    Arc<dyn RemoteWorkers> = remote,
    Arc<dyn Store> = store,
    Arc<dyn Decisions> = decisions,
    Arc<[AccountPool]> = account_pools,
    Arc<Pools> = pools,
    Deliveries = deliveries,
    RecipientProfiles = recipients,
    StoresCheck = stores,
    Gates = gates,
    Live = live,
    HttpMetrics = metrics,
    Arc<Registry> = registry,
    Tracer = tracer,
    CancellationToken = cancel,
    Draining = draining,
    ApiDocument = document,
}
