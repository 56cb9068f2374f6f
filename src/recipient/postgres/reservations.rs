//! The seconds for which messages wait that a cap holds.

use sqlx::PgConnection;

use super::rows::{StoredList, columns, stored};
use super::statement::query;
use crate::jobs::Error;

pub(super) const RESERVE: &str = "
with forgotten as (
    delete from flyball.cap_reservation where job_id = any($5)
)
insert into flyball.cap_reservation (recipient, list, at_s, job_id)
select * from unnest($1::text[]::uuid[], $2::int[], $3::int[], $4::bigint[])
on conflict do nothing";

/// A reservation: a list, a unix second, and the job that waits for it.
pub(super) type NewReservation = (StoredList, i64, i64);

/// Writes reservations, in place of those that the jobs `had` have.
pub(super) async fn reserve(
    connection: &mut PgConnection,
    rows: &[NewReservation],
    had: &[i64],
) -> Result<(), Error> {
    if rows.is_empty() && had.is_empty() {
        return Ok(());
    }
    let lists: Vec<StoredList> = rows.iter().map(|row| row.0).collect();
    let (recipients, ids) = columns(&lists);
    let seconds: Vec<i32> = rows.iter().map(|row| stored(row.1)).collect();
    let jobs: Vec<i64> = rows.iter().map(|row| row.2).collect();
    query(RESERVE)
        .bind(recipients)
        .bind(ids)
        .bind(seconds)
        .bind(jobs)
        .bind(had)
        .execute(connection)
        .await?;
    Ok(())
}
