//! Job arguments as every reader sees them: without recipients, contents of messages and
//! credentials.

use serde_json::Value;

use crate::jobs::redact;
use crate::notify::recipient;

/// Masks recipients, contents and credentials in the arguments of a job; the arguments of custom
/// kinds stay unchanged.
pub fn mask_args(kind: &str, args: &mut Value) {
    recipient::mask_args(kind, args);
    redact::mask_args(kind, args);
}
