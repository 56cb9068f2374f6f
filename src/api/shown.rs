//! Arguments as readers see them, whatever door they come through: without recipients, contents of messages and credentials.

use serde_json::Value;

use crate::jobs::shown;
use crate::notify::recipient;

/// Masks what is nobody's business in the arguments of a job; those of kinds of one's own stay as they are.
pub fn mask_args(kind: &str, args: &mut Value) {
    recipient::mask_args(kind, args);
    shown::mask_args(kind, args);
}
