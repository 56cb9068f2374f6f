//! The author of a change, and the reason for it.

use crate::jobs;

#[derive(clap::Args)]
pub(super) struct AuditArgs {
    /// Name for the audit log
    #[arg(long, env = "USER", default_value = "cli")]
    pub(super) by: String,
    /// Reason, for the audit log
    #[arg(long, default_value = "")]
    pub(super) why: String,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl AuditArgs {
    /// Returns the signature as the queue takes it.
    pub(super) fn signature(&self) -> jobs::Attribution {
        jobs::Attribution {
            by: self.by.clone(),
            why: self.why.clone(),
            identity: jobs::TokenIdentity::default(),
        }
    }
}
