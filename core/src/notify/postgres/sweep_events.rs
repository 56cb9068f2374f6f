//! Applies events that arrived while their message was being recorded.

use sqlx::Row;

use super::deliveries::Deliveries;
use super::events;
use crate::jobs::Error;

/// Most messages that one step of a sweep examines.
const MAX_EVENTS_SWEPT: i64 = 1_000;

/// Overlap of two sweeps, in seconds: transactions that were in flight have ended by then.
const OVERLAP_S: f64 = 60.0;

/// Look-back of a process's first sweep, in seconds.
const FIRST_SWEEP_S: f64 = 3_600.0;

pub(super) const UNMATCHED: &str = "
select pool, provider_id, extract(epoch from received_at)::float8 as received_s, extract(epoch from now())::float8 as now_s
from flyball.delivery_event
where job_id is null and received_at > coalesce(to_timestamp($1::float8), now() - make_interval(secs => $2))
order by received_at
limit $3";

impl Deliveries {
    /// Applies events that arrived while their message was being recorded, so that neither
    /// transaction saw the other. Returns their number. Events that an open transaction holds are
    /// left to the next sweep.
    pub async fn sweep_events(&self) -> Result<u64, Error> {
        let mut since = *self.places.swept_to.lock();
        let mut began = None;
        let mut applied = 0;
        let mut are_all = true;
        loop {
            let rows = sqlx::query(UNMATCHED)
                .bind(since)
                .bind(FIRST_SWEEP_S)
                .bind(MAX_EVENTS_SWEPT)
                .fetch_all(&self.db)
                .await?;
            let Some(last) = rows.last() else { break };
            since = Some(last.try_get("received_s")?);
            if began.is_none() {
                began = Some(last.try_get::<f64, _>("now_s")?);
            }
            let keys = rows
                .iter()
                .map(|row| Ok((row.try_get("pool")?, row.try_get("provider_id")?)));
            let keys: Vec<(String, String)> = keys.collect::<Result<_, sqlx::Error>>()?;
            let (events, is_whole) = events::apply_apart(&self.db, &keys).await?;
            applied += events.unsigned_abs();
            are_all &= is_whole;
            if (rows.len() as i64) < MAX_EVENTS_SWEPT {
                break;
            }
        }
        if let Some(began) = began
            && are_all
        {
            *self.places.swept_to.lock() = Some(began - OVERLAP_S);
        }
        Ok(applied)
    }
}
