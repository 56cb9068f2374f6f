//! The author of a change, and the reason for it.

use crate::jobs;

#[derive(clap::Args)]
pub(super) struct Signed {
    /// Who asks for it
    #[arg(long, env = "USER", default_value = "cli")]
    pub(super) by: String,
    /// Why, for the audit
    #[arg(long, default_value = "")]
    pub(super) why: String,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Signed {
    /// Returns the signature as the queue takes it.
    pub(super) fn signature(&self) -> jobs::Signed {
        jobs::Signed {
            by: self.by.clone(),
            why: self.why.clone(),
            via: jobs::Via::default(),
        }
    }
}
