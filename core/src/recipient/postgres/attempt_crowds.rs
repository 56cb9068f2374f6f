//! The places of messages that their attempts hold until quiet hours end, or a day begins.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::attempts::GateVerdict;
use super::plan_writes::count_crowd;
use super::plans::Capacity;
use super::rows::{GateInput, crowd};
use crate::jobs::Error;
use crate::recipient::gates::GatePolicy;
use crate::recipient::release::{crowd_quarter, in_crowd};
use crate::recipient::rules::RecipientRules;

/// Gives each such message its place in the crowd with which it is released, and counts it there.
/// Returns the quarters of an hour of their releases, by job.
pub(super) async fn spread_out(
    connection: &mut PgConnection,
    inputs: &[GateInput],
    rules: &RecipientRules,
    capacity: Capacity<'_>,
    verdicts: &mut HashMap<i64, GateVerdict>,
) -> Result<HashMap<i64, i64>, Error> {
    let (mut quarters, mut places) = (HashMap::new(), Vec::new());
    for input in inputs {
        let job_id = input.message.job_id;
        let verdict = verdicts.get(&job_id).filter(|verdict| !verdict.is_paused);
        if let Some(quarter) = verdict.and_then(|verdict| crowd_quarter(&verdict.plan)) {
            quarters.insert(job_id, quarter);
            places.push((input.message.throttle.clone(), quarter));
        }
    }
    if places.is_empty() {
        return Ok(quarters);
    }
    places.sort_unstable();
    places.dedup();
    let mut held = crowd(connection, &places).await?;
    let mut more: HashMap<(String, i64), i64> = HashMap::new();
    for input in inputs {
        let (job_id, throttle) = (input.message.job_id, &input.message.throttle);
        let Some(quarter) = quarters.get(&job_id) else {
            continue;
        };
        let place = (throttle.clone(), *quarter);
        let count = held.entry(place.clone()).or_default();
        // One that was held before is counted already.
        if input.message.crowd_quarter != Some(*quarter) {
            *count += 1;
            *more.entry(place).or_default() += 1;
        }
        let policy = GatePolicy {
            profile: &input.profile,
            defaults: &input.defaults,
            rules,
        };
        if let Some(verdict) = verdicts.get_mut(&job_id) {
            let spread = rules.release.spread(*count, capacity(throttle));
            in_crowd(&mut verdict.plan, &input.candidate(), policy, spread);
        }
    }
    count_crowd(connection, &more).await?;
    Ok(quarters)
}
