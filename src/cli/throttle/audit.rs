//! The audit log of changes that the command line makes to throttles.

use serde_json::Value;

use crate::cli::connect;
use crate::cli::output::tell;
use crate::cli::signed::AuditArgs;
use crate::config::Settings;
use crate::throttle::Name;

/// Writes an entry about one key of a throttle.
pub(super) async fn note_key(
    settings: &Settings,
    action: &str,
    throttle: &Name,
    signed: &AuditArgs,
    after: Value,
) {
    let mut entry = crate::api::AuditEntry::now(
        signed.by.clone(),
        action,
        throttle.to_string(),
        signed.why.clone(),
    );
    entry.after = Some(after);
    note_audit(settings, &entry).await;
}

/// Writes an entry of the audit log, which is in Postgres; a failure is only a warning, because a
/// knob must stay turnable while Postgres is away.
pub(super) async fn note_audit(settings: &Settings, entry: &crate::api::AuditEntry) {
    let written = async {
        let queue = connect::queue(settings).await?;
        anyhow::Ok(crate::api::postgres::write_audit(&queue.pool, entry).await?)
    };
    if let Err(error) = written.await {
        tell!(
            "flyball: writing the audit log failed: {}",
            crate::cli::exit::message(&error)
        );
    }
}
