//! The rows of lists of sends that have none yet.

use super::rows::{StoredList, columns};
use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::Transaction;

// A list without a row cannot be locked.
pub(super) const NEW_LISTS: &str = "
insert into flyball.cap (recipient, list, sent)
select a.recipient, a.list, '{}'
from unnest($1::text[]::uuid[], $2::int[]) as a(recipient, list)
where not exists (select from flyball.cap c where c.recipient = a.recipient and c.list = a.list)
order by a.recipient, a.list
on conflict do nothing";

/// Creates those of these lists that have no row, so that they can be locked.
pub(super) async fn add_lists(
    connection: &mut Transaction,
    keys: &[StoredList],
) -> Result<(), Error> {
    if keys.is_empty() {
        return Ok(());
    }
    let (recipients, ids) = columns(keys);
    query_unprepared(NEW_LISTS)
        .bind(recipients)
        .bind(ids)
        .execute(connection)
        .await?;
    Ok(())
}
