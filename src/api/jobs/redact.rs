//! Job arguments as every reader sees them: without recipients, contents of messages and
//! credentials.

use serde_json::Value;

use crate::cron::Schedule;
use crate::jobs::{JobGroup, redact, secret};
use crate::notify::recipient;

/// Masks secret values in the arguments of a job, and the recipients, contents and credentials in
/// those of the built-in kinds.
pub fn mask_args(kind: &str, args: &mut Value) {
    secret::mask(args);
    recipient::mask_args(kind, args);
    redact::mask_args(kind, args);
}

/// Masks the arguments of a schedule's jobs like those of a job.
pub fn mask_schedule(mut schedule: Schedule) -> Schedule {
    mask_args(&schedule.kind, &mut schedule.args);
    schedule
}

/// Masks the arguments of a group's callback like those of a job.
pub fn mask_group(mut group: JobGroup) -> JobGroup {
    if let Some(callback) = &mut group.callback {
        let kind = callback.get("kind").and_then(Value::as_str);
        let kind = kind.unwrap_or_default().to_owned();
        if let Some(args) = callback.get_mut("args") {
            mask_args(&kind, args);
        }
    }
    group
}
