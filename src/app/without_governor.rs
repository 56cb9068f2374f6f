//! The place of the governor in a process whose build has none.

use std::sync::Arc;

use super::faults::Faults;
use super::loops::Loops;
use super::roles::Roles;
use crate::config::Settings;
use crate::jobs::Queue;
use crate::throttle::{KnobsFile, Store};

/// No policies and no sources.
pub(super) struct PreparedGovernor;

impl PreparedGovernor {
    /// Reads nothing.
    pub(super) fn read(_: &[KnobsFile], _: &mut Faults) -> Self {
        Self
    }

    /// Builds nothing.
    pub(super) fn with_sources(
        self,
        _: &Settings,
        _: Roles,
        _: &[KnobsFile],
        _: &mut Faults,
    ) -> Self {
        self
    }

    /// Starts nothing.
    pub(super) fn start(self, _: &Queue, _: &Arc<dyn Store>, _: &mut Loops) -> anyhow::Result<()> {
        Ok(())
    }
}
