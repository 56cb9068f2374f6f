//! The lock under which publications are moved and channels are forgotten.

use sqlx::query;

use crate::jobs::Error;
use crate::postgres::Transaction;

// The lock is that of a row, which no other role can take; every role that may connect can take an
// advisory lock and keep it.
pub(super) const LOCK: &str =
    "select m.name from flyball.mutex m where m.name = 'publications' for update skip locked";

/// Takes the lock until the end of the transaction; returns false if somebody else has it.
pub(super) async fn lock(transaction: &mut Transaction) -> Result<bool, Error> {
    Ok(query(LOCK).fetch_optional(transaction).await?.is_some())
}
