//! The governor as a part of a process: the policies of the knobs files, and the sources of their
//! signals.

use std::sync::Arc;

use super::faults::Faults;
use super::govern;
use super::knobs::{Policies, policies};
use super::loops::Loops;
use super::roles::Roles;
use super::servers;
use crate::config::{self, Settings};
use crate::governor::Sources;
use crate::jobs::Queue;
use crate::throttle::{KnobsFile, Store};

/// The policies and the sources, before any connection.
pub(super) struct PreparedGovernor {
    /// The policies in the knobs files.
    pub(super) policies: Policies,
    /// The sources of signals; `None` without the role of a governor.
    sources: Option<Sources>,
}

impl PreparedGovernor {
    /// Reads the policies in the knobs files.
    pub(super) fn read(files: &[KnobsFile], faults: &mut Faults) -> Self {
        let todo = "correct the table [governor] or [[signal]]";
        Self {
            policies: faults.take(policies(files), todo).unwrap_or_default(),
            sources: None,
        }
    }

    /// Builds the sources, and checks that they have what the policies name.
    pub(super) fn with_sources(
        self,
        settings: &Settings,
        roles: Roles,
        files: &[KnobsFile],
        faults: &mut Faults,
    ) -> Self {
        let sources = faults
            .take(servers::usual(settings), "correct PROMETHEUS_URL")
            .filter(|_| roles.governor)
            .and_then(|usual| {
                let sources = servers::named(settings, Sources::new(usual));
                faults.take(sources, "correct the server's settings")
            });
        for (throttle, policy) in &self.policies {
            let Some(sources) = &sources else { break };
            let place = place_of(throttle.as_str(), files);
            let checked = sources.check(policy);
            faults.take(
                checked.map_err(|error| config::Error::at(&place, error.to_string())),
                "name a server of the settings",
            );
        }
        Self { sources, ..self }
    }

    /// Starts the loop, if the process has the role.
    pub(super) fn start(
        self,
        queue: &Queue,
        throttles: &Arc<dyn Store>,
        loops: &mut Loops,
    ) -> anyhow::Result<()> {
        let Some(sources) = self.sources else {
            return Ok(());
        };
        // As the leader it would keep those that have policies from governing.
        if self.policies.is_empty() {
            tracing::info!(
                "no knobs file of this process has a [[signal]], so it does not lead the governor"
            );
            return Ok(());
        }
        let governor = govern::governor(sources, queue, throttles, self.policies)?;
        let govern = govern::run(governor, queue.clone(), loops.stop());
        loops.spawn("govern", govern);
        Ok(())
    }
}

/// Returns the path of the knobs file of a throttle.
fn place_of(throttle: &str, files: &[KnobsFile]) -> String {
    let file = files.iter().find(|file| file.name.as_str() == throttle);
    file.map_or_else(
        || format!("throttle {throttle}"),
        |file| file.path.display().to_string(),
    )
}
