//! The place of the messages in a process whose build has none.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use super::faults::Faults;
use super::loops::Loops;
use super::roles::Roles;
use crate::config::Settings;
use crate::jobs::{Kinds, Queue};
use crate::service::DueWork;
use crate::throttle::{RedisStore, Store};

/// No clients.
pub(super) struct Clients;

/// No pools and no rules.
pub(super) struct PreparedMessages;

/// No pools and no rules.
pub(super) struct OpenMessages;

/// No throttles.
pub(super) struct MessageSeeds;

/// Builds nothing.
pub(super) fn clients(_: &Settings, _: &mut Faults) -> Option<Clients> {
    Some(Clients)
}

/// Builds nothing.
pub(super) fn prepare(
    _: &Settings,
    _: Option<Clients>,
    _: &mut Faults,
) -> Option<PreparedMessages> {
    Some(PreparedMessages)
}

impl PreparedMessages {
    /// Opens nothing.
    pub(super) async fn open(
        self,
        _: &Queue,
        _: &Arc<dyn Store>,
        _: Arc<RedisStore>,
        _: &mut Registry,
    ) -> anyhow::Result<OpenMessages> {
        Ok(OpenMessages)
    }
}

impl OpenMessages {
    /// Adds no kind.
    pub(super) fn add_kinds(&self, _: &mut Kinds, _: &Queue, _: &Settings) {}

    /// Returns no throttles.
    pub(super) fn seeds(&self) -> MessageSeeds {
        MessageSeeds
    }

    /// Starts nothing.
    pub(super) fn start(self, _: &Settings, _: Roles, _: &Queue, _: &DueWork, _: &mut Loops) {}
}

impl MessageSeeds {
    /// Creates nothing.
    pub(super) async fn seed(&self, _: &dyn Store) -> anyhow::Result<()> {
        Ok(())
    }
}
