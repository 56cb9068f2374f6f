//! The roles of a process.

/// The roles of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// True if the process serves the HTTP API and the dashboard.
    pub api: bool,
    /// True if the process runs jobs.
    pub runner: bool,
    /// True if the process takes part in the election of the governor's leader.
    pub governor: bool,
}

impl Roles {
    /// All roles in one process.
    pub const ALL: Self = Self {
        api: true,
        runner: true,
        governor: true,
    };

    /// Refuses roles that this build does not contain.
    pub(super) fn check(self) -> anyhow::Result<()> {
        for (is_wanted, is_there, role) in [
            (self.api, cfg!(feature = "api"), "api"),
            (self.governor, cfg!(feature = "governor"), "governor"),
        ] {
            anyhow::ensure!(
                is_there || !is_wanted,
                "the role {role} needs the feature {role} of the crate flyball"
            );
        }
        Ok(())
    }
}
