//! The seconds for which messages wait that a cap holds.

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
    select * from unnest($1::text[]::uuid[], $2::int[], $3::int[], $4::bigint[]) as a(recipient, list, at_s, job_id)
),
forgotten as (
    delete from flyball.cap_reservation r
    using unnest($5::text[]::uuid[], $6::bigint[]) as a(recipient, job_id)
    where r.recipient = a.recipient and r.job_id = a.job_id and not exists (
        select from wanted w where w.recipient = r.recipient and w.list = r.list and w.at_s = r.at_s and w.job_id = r.job_id)
)
insert into flyball.cap_reservation (recipient, list, at_s, job_id)
select w.recipient, w.list, w.at_s, w.job_id from wanted w
where not exists (
    select from flyball.cap_reservation r where r.recipient = w.recipient and r.list = w.list and r.at_s = w.at_s and r.job_id = w.job_id)";

const COPY_RESERVATIONS: &str =
    "copy flyball.cap_reservation (recipient, list, at_s, job_id) from stdin (format binary)";

/// A reservation: a list, a unix second, and the job that waits for it.
pub(super) type NewReservation = (StoredList, i64, i64);

/// Writes reservations, in place of those that the jobs `had` have, each with its recipient.
pub(super) async fn reserve(
    connection: &mut Transaction,
    rows: &[NewReservation],
    had: &[(RecipientKey, i64)],
) -> Result<(), Error> {
    let having: BTreeSet<i64> = had.iter().map(|one| one.1).collect();
    let (changed, new): (Vec<NewReservation>, Vec<NewReservation>) = match rows.len() < COPIED_MIN {
        true => (rows.to_vec(), Vec::new()),
        false => rows.iter().partition(|row| having.contains(&row.2)),
    };
    let mut copied = CopiedRows::default();
    for ((recipient, list), second, job_id) in &new {
        copied
            .row()
            .key(*recipient)
            .int(*list)
            .int(stored(*second))
            .bigint(*job_id);
    }
    copied.write(connection, COPY_RESERVATIONS).await?;
    if changed.is_empty() && had.is_empty() {
        return Ok(());
    }
    let lists: Vec<StoredList> = changed.iter().map(|row| row.0).collect();
    let (recipients, ids) = columns(&lists);
    let seconds: Vec<i32> = changed.iter().map(|row| stored(row.1)).collect();
    let jobs: Vec<i64> = changed.iter().map(|row| row.2).collect();
    query_unprepared(RESERVE)
        .bind(recipients)
        .bind(ids)
        .bind(seconds)
        .bind(jobs)
        .bind(had.iter().map(|one| one.0.to_hex()).collect::<Vec<_>>())
        .bind(had.iter().map(|one| one.1).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}
