//! The secret arguments of a claimed job, decrypted for those who run it.

use super::shared::{WorkerContext, bounded};
use crate::input;
use crate::jobs::secret::{self, SecretTexts};
use crate::jobs::{Issue, Job, Outcome};

/// Replaces the secret arguments of a claimed job by their plain values; returns the texts in them,
/// or `None` for a job without secrets. Otherwise the outcome of a job that cannot be run.
///
/// Arguments that came from SQL in plain are encrypted where they are stored, before anything runs.
pub(super) async fn reveal(
    shared: &WorkerContext,
    job: &mut Job,
) -> Result<Option<SecretTexts>, Outcome> {
    if !secret::has_secrets(&job.args) {
        return Ok(None);
    }
    let queue = &shared.queue;
    let tenant = match bounded(shared, queue.tenant_of(job.id)).await {
        Ok(Some(tenant)) => tenant,
        // The job must not run before its tenant is known, nor end because Postgres was away.
        Ok(None) | Err(_) => return Err(Outcome::HandedBack),
    };
    let keys = queue.secret_keys();
    if secret::first_plain(&job.args).is_some() {
        let mut encrypted = job.args.clone();
        let nonce = crate::jobs::postgres::nonce;
        match keys.encrypt(&job.kind, &tenant, &mut encrypted, nonce) {
            Ok(()) => {
                let stored = queue.store_encrypted_args(job.id, job.fence, &encrypted);
                bounded(shared, stored)
                    .await
                    .map_err(|_| Outcome::HandedBack)?;
            }
            Err(issue) => return Err(dead(&issue)),
        }
    }
    let decrypted = keys.decrypt(&job.kind, &tenant, &mut job.args);
    decrypted.map(Some).map_err(|issue| dead(&issue))
}

fn dead(issue: &Issue) -> Outcome {
    Outcome::Dead {
        error: input::listed("args", std::slice::from_ref(issue)),
    }
}
