//! The seconds at which messages are to go that have a cap.

use std::collections::BTreeSet;

use super::copy::{COPIED_MIN, CopiedRows};
use super::rows::{StoredList, columns, stored};
use super::statement::query_unprepared;
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::address::RecipientKey;

// A row that stays must not be deleted: the insert would have found it before.
pub(super) const RESERVE: &str = "
with wanted as materialized (
    select * from unnest($1::text[]::uuid[], $2::int[], $3::int[], $4::bigint[], $5::boolean[]) as a(recipient, list, at_s, job_id, is_held)
),
forgotten as (
    delete from flyball.cap_reservation r
    using unnest($6::text[]::uuid[], $7::bigint[]) as a(recipient, job_id)
    where r.recipient = a.recipient and r.job_id = a.job_id and not exists (
        select from wanted w
        where w.recipient = r.recipient and w.list = r.list and w.at_s = r.at_s and w.job_id = r.job_id and w.is_held = r.is_held)
)
insert into flyball.cap_reservation (recipient, list, at_s, job_id, is_held)
select w.recipient, w.list, w.at_s, w.job_id, w.is_held from wanted w
where not exists (
    select from flyball.cap_reservation r
    where r.recipient = w.recipient and r.list = w.list and r.at_s = w.at_s and r.job_id = w.job_id and r.is_held = w.is_held)";

const COPY_RESERVATIONS: &str = "copy flyball.cap_reservation (recipient, list, at_s, job_id, is_held) from stdin (format binary)";

/// The second of a list at which a message is to go.
pub(super) struct NewReservation {
    pub list: StoredList,
    /// A unix second.
    pub second: i64,
    pub job_id: i64,
    /// False for a message that goes at once, whose reservation a crash of Postgres may lose.
    pub is_held: bool,
}

/// Writes reservations, in place of those that the jobs `had` have, each with its recipient.
pub(super) async fn reserve(
    connection: &mut Transaction,
    rows: &[NewReservation],
    had: &[(RecipientKey, i64)],
) -> Result<(), Error> {
    let having: BTreeSet<i64> = had.iter().map(|one| one.1).collect();
    let (changed, new): (Vec<&NewReservation>, Vec<&NewReservation>) =
        (rows.iter()).partition(|row| rows.len() < COPIED_MIN || having.contains(&row.job_id));
    let mut copied = CopiedRows::default();
    for row in &new {
        let (recipient, list) = row.list;
        copied
            .row()
            .key(recipient)
            .int(list)
            .int(stored(row.second))
            .bigint(row.job_id)
            .boolean(row.is_held);
    }
    copied.write(connection, COPY_RESERVATIONS).await?;
    if changed.is_empty() && had.is_empty() {
        return Ok(());
    }
    let lists: Vec<StoredList> = changed.iter().map(|row| row.list).collect();
    let (recipients, ids) = columns(&lists);
    let seconds: Vec<i32> = changed.iter().map(|row| stored(row.second)).collect();
    query_unprepared(RESERVE)
        .bind(recipients)
        .bind(ids)
        .bind(seconds)
        .bind(changed.iter().map(|row| row.job_id).collect::<Vec<_>>())
        .bind(changed.iter().map(|row| row.is_held).collect::<Vec<_>>())
        .bind(had.iter().map(|one| one.0.to_hex()).collect::<Vec<_>>())
        .bind(had.iter().map(|one| one.1).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}
