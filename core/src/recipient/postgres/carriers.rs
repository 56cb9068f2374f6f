//! The messages in which the items of closed digests went.

use sqlx::{Row, query};

use crate::jobs::Error;
use crate::postgres::Transaction;

/// The most messages of one digest that are looked at.
const SEEN_MAX: i64 = 1000;

// Items that go alone are enqueued in their order, so the place of one among those of its digest is
// that of its message. An erased recipient has no key, and nothing is found of it; a condition on it
// would let the planner take the index of recipients for the row itself.
pub(super) const CARRIERS: &str = "
select p.job_id, p.origin, i.place
from (
    select nullif(h.recipient, '00000000-0000-0000-0000-000000000000') as recipient, h.job_id, h.digest_id, (
        select count(*) from flyball.message_plan b
        where b.recipient = nullif(h.recipient, '00000000-0000-0000-0000-000000000000') and b.job_id < h.job_id and b.digest_id = h.digest_id and b.origin = 'sender'
            and exists (select from flyball.delivery d where d.job_id = b.job_id and d.state = 'collected' offset 0)
    ) as place
    from flyball.message_plan h
    where h.job_id = $1
    limit 1
) i
cross join lateral (
    select h.job_id, h.origin from flyball.message_plan h
    where h.recipient = i.recipient and h.job_id > i.job_id and h.digest_id = i.digest_id and h.origin <> 'sender'
    order by h.recipient, h.job_id limit $2
) p
order by p.job_id";

/// Returns the message in which an item of a closed digest went, or all messages of the digest if
/// that is not known.
pub(super) async fn carriers(connection: &mut Transaction, job_id: i64) -> Result<Vec<i64>, Error> {
    let rows = query(CARRIERS)
        .bind(job_id)
        .bind(SEEN_MAX)
        .fetch_all(connection)
        .await?;
    let mut jobs: Vec<i64> = Vec::with_capacity(rows.len());
    let (mut own, mut all_alone) = (None, true);
    for (nth, row) in (0_i64..).zip(&rows) {
        let job = row.try_get("job_id")?;
        jobs.push(job);
        all_alone &= row.try_get::<&str, _>("origin")? == "item";
        if row.try_get::<i64, _>("place")? == nth {
            own = Some(job);
        }
    }
    Ok(match own.filter(|_| all_alone) {
        Some(own) => vec![own],
        None => jobs,
    })
}

/// Returns the messages that have the items of a closed digest, as the end of a sentence.
pub(super) fn describe_carriers(jobs: &[i64]) -> String {
    match jobs {
        [] => String::new(),
        [one] => format!("; it is in message {one}"),
        [first, .., last] => {
            let number = jobs.len();
            format!("; that is {number} messages, from {first} to {last}")
        }
    }
}
