//! The listeners of a process: one for the API, and one for its metrics alone.

use std::net::SocketAddr;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::roles::Roles;
use crate::api;
use crate::config::Settings;
use crate::service::TaskSupervisor;

/// The variable of the address of the API.
pub(super) const LISTEN: &str = "FLYBALL_LISTEN";

/// The variable of the address of the listener for metrics.
pub(super) const METRICS_LISTEN: &str = "FLYBALL_METRICS_LISTEN";

/// The listeners that the settings and the roles ask for. They answer that the process is starting,
/// until it serves.
pub(super) struct Listeners {
    api: Option<api::StartingServer>,
    metrics: Option<api::StartingServer>,
}

impl Listeners {
    /// Binds the addresses.
    pub(super) async fn bind(
        settings: &Settings,
        roles: Roles,
        has_tokens: bool,
    ) -> anyhow::Result<Self> {
        let api = match roles.api {
            true => Some(starting(LISTEN, &settings.listen, has_tokens).await?),
            false => None,
        };
        let metrics = match settings.metrics_listen.as_str() {
            "" => None,
            address => Some(starting(METRICS_LISTEN, address, has_tokens).await?),
        };
        Ok(Self { api, metrics })
    }

    /// Serves until `cancel` fires; returns the address of the API, and the tasks.
    pub(super) async fn serve(
        self,
        deps: api::Deps,
        connections: api::Connections,
        (vital, cancel): (&TaskSupervisor, &CancellationToken),
    ) -> anyhow::Result<(Option<SocketAddr>, Vec<JoinHandle<()>>)> {
        let (mut address, mut tasks) = (None, Vec::new());
        if let Some(listener) = self.metrics {
            let listener = listener.end().await?;
            let (deps, at) = (deps.clone(), listener.local_addr()?);
            tracing::info!(%at, "metrics are served");
            tasks.push(vital.spawn("metrics", cancel.child_token(), async move {
                if let Err(error) = api::serve_metrics(deps, listener).await {
                    tracing::error!(%error, "the listener for metrics ended");
                }
            }));
        }
        if let Some(listener) = self.api {
            let listener = listener.end().await?;
            address = Some(listener.local_addr()?);
            tasks.push(vital.spawn("api", cancel.child_token(), async move {
                if let Err(error) = api::serve_within(deps, listener, connections).await {
                    tracing::error!(%error, "the HTTP API ended");
                }
            }));
        }
        Ok((address, tasks))
    }
}

async fn starting(
    variable: &'static str,
    address: &str,
    has_tokens: bool,
) -> Result<api::StartingServer, api::ListenError> {
    let listener = api::bind(variable, address, has_tokens).await?;
    Ok(api::StartingServer::on(listener))
}
