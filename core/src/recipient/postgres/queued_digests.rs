//! Digests whose last message has not gone yet, so that no second one is queued behind it.

use std::collections::HashSet;

use jiff::SignedDuration;
use sqlx::{Row, query};

use super::living::is_ready;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::address::RecipientKey;
use crate::recipient::digest::{DigestType, DigestWindow};

/// The longest time after which such a digest is looked at again.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// The reason that such a digest shows.
pub(super) const QUEUED_RULE: &str = "its last message waits";

// The offset and the limit make Postgres look for one digest and one job at a time, whatever the
// tables held when it planned this.
pub(super) const QUEUED: &str = concat!(
    "
select a.id
from unnest($1::bigint[], $2::text[], $3::text[]::uuid[], $4::text[]) as a(id, type, recipient, key)
where exists (
    select from flyball.message_plan p
    where p.recipient = a.recipient and p.origin = 'digest' and p.digest_type = a.type and p.digest_key = a.key
        and (exists (select from flyball.scheduled s where s.job_id = p.job_id offset 0) or ",
    is_ready!("p.job_id"),
    ")
    offset 0
)"
);

/// An open digest by what tells it apart from others.
pub(super) struct DigestPlace<'a> {
    pub(super) id: i64,
    pub(super) type_name: &'a str,
    pub(super) recipient: &'a RecipientKey,
    pub(super) key: &'a str,
}

/// Returns those of the digests whose last message waits for its pool, or for its next attempt.
pub(super) async fn queued(
    connection: &mut Transaction,
    due: &[DigestPlace<'_>],
) -> Result<HashSet<i64>, Error> {
    let rows = query(QUEUED)
        .bind(due.iter().map(|one| one.id).collect::<Vec<_>>())
        .bind(due.iter().map(|one| one.type_name).collect::<Vec<_>>())
        .bind(
            due.iter()
                .map(|one| one.recipient.to_hex())
                .collect::<Vec<_>>(),
        )
        .bind(due.iter().map(|one| one.key).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    let id = |row: &sqlx::postgres::PgRow| row.try_get("id");
    Ok(rows.iter().map(id).collect::<Result<_, sqlx::Error>>()?)
}

/// Returns the time after which such a digest is looked at again.
pub(super) fn looks_again(kind: &DigestType) -> SignedDuration {
    match &kind.window {
        DigestWindow::Fixed(window) | DigestWindow::Sliding { window, .. } => {
            LOOK_AGAIN.min(*window)
        }
        DigestWindow::Timed(_) => LOOK_AGAIN,
    }
}
