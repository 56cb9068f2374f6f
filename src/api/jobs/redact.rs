//! Job arguments as every reader sees them: without recipients, contents of messages and
//! credentials.

use serde_json::Value;

use crate::jobs::{redact, secret};
use crate::notify::recipient;

/// Masks secret values in the arguments of a job, and the recipients, contents and credentials in
/// those of the built-in kinds.
pub fn mask_args(kind: &str, args: &mut Value) {
    secret::mask(args);
    recipient::mask_args(kind, args);
    redact::mask_args(kind, args);
}
