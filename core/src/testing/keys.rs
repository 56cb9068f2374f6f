//! The key of secret arguments in tests.

use crate::jobs::SecretKeys;
use crate::jobs::secret::KEY_BYTES;

/// Returns the key, the same in every process.
pub(super) fn test_keys() -> SecretKeys {
    SecretKeys::parse(&SecretKeys::text_of(&[7; KEY_BYTES])).unwrap_or_default()
}
