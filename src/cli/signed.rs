//! The author of a change, and the reason for it.

use serde_json::Value;

use super::output::tell;
use crate::api::AuditEntry;
use crate::api::postgres::write_audit;
use crate::jobs::{self, Queue};

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

    /// Writes an entry of the audit log. A failure is only a warning, because the change itself is
    /// not undone for it.
    pub(super) async fn note(
        &self,
        queue: &Queue,
        action: &str,
        subject: &str,
        after: Option<Value>,
    ) {
        let (by, why) = (self.by.clone(), self.why.clone());
        let mut entry = AuditEntry::now(by, action, subject.to_owned(), why);
        entry.after = after;
        if let Err(error) = write_audit(&queue.pool, &entry).await {
            tell!("flyball: writing the audit log failed: {error}");
        }
    }
}
