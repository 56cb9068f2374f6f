//! The place of the HTTP API in a process whose build has none.

use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::registry::Registry;

use super::faults::Faults;
use super::governing::PreparedGovernor;
use super::loops::Loops;
use super::messaging::{Clients, OpenMessages};
use super::roles::Roles;
use crate::config::Settings;
use crate::jobs::{Kinds, Queue};
use crate::runner::{Config, WorkerMetrics};
use crate::service::DueWork;
use crate::throttle::Store;
use crate::trace::Tracer;

/// No tokens.
pub(super) struct PreparedTokens;

/// No API.
pub(super) struct PreparedApi;

/// No listeners.
pub(super) struct BoundApi;

/// No gateway.
pub(super) struct OpenedApi;

/// No loops.
pub(super) struct StartedApi;

/// No API.
pub(super) struct RunningApi;

/// No throttles.
pub(super) struct ApiSeeds;

/// Reads nothing.
pub(super) async fn tokens(_: &Settings, _: Roles, _: &mut Faults) -> Option<PreparedTokens> {
    Some(PreparedTokens)
}

/// Builds nothing.
pub(super) fn prepare(
    _: Option<PreparedTokens>,
    _: Option<&Clients>,
    _: &Settings,
    _: Roles,
    _: &mut Faults,
) -> Option<PreparedApi> {
    Some(PreparedApi)
}

impl PreparedApi {
    /// Binds nothing.
    pub(super) async fn bind(self, _: &Settings, _: Roles) -> anyhow::Result<BoundApi> {
        Ok(BoundApi)
    }
}

impl BoundApi {
    /// Opens nothing.
    pub(super) fn open(
        self,
        _: &Settings,
        _: (&Queue, &Arc<dyn Store>),
        _: &DueWork,
        _: (&OpenMessages, &PreparedGovernor),
        _: &mut Registry,
    ) -> OpenedApi {
        OpenedApi
    }
}

impl OpenedApi {
    /// Returns no throttles.
    pub(super) fn seeds(&self, _: &Settings, _: Roles) -> ApiSeeds {
        ApiSeeds
    }

    /// Starts nothing.
    pub(super) fn start(
        self,
        _: &Settings,
        _: Roles,
        _: Config,
        _: &WorkerMetrics,
        _: &Kinds,
        _: &mut Loops,
    ) -> StartedApi {
        StartedApi
    }
}

impl StartedApi {
    /// Serves nothing, so there is no address.
    pub(super) async fn serve(
        self,
        _: &Settings,
        _: Kinds,
        _: Registry,
        _: Tracer,
        _: &mut Loops,
    ) -> anyhow::Result<(Option<SocketAddr>, RunningApi)> {
        Ok((None, RunningApi))
    }
}

impl RunningApi {
    /// Tells nobody.
    pub(super) fn drain(&self) {}

    /// Waits for nothing.
    pub(super) async fn send_away(&self) {}
}

impl ApiSeeds {
    /// Creates nothing.
    pub(super) async fn seed(&self, _: &dyn Store) -> anyhow::Result<()> {
        Ok(())
    }
}
