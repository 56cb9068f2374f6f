//! The places of messages that wait until quiet hours end, or a day begins, with many others.

use std::collections::HashMap;

use sqlx::query;

use super::plans::Capacity;
use super::rows::{GateInput, crowd};
use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::crowd::{crowd_quarter, in_crowd};
use crate::recipient::gates::MessagePlan;
use crate::recipient::rules::RecipientRules;

pub(super) const COUNT_CROWD: &str = "
insert into flyball.held_crowd as c (throttle, quarter, messages)
select * from unnest($1::text[], $2::bigint[], $3::bigint[]) as a(throttle, quarter, messages) order by 1, 2
on conflict (throttle, quarter) do update set messages = c.messages + excluded.messages";

/// Counts messages that are held until a quarter of an hour, by pool.
pub(super) async fn count_crowd(
    connection: &mut Transaction,
    more: &HashMap<(String, i64), i64>,
) -> Result<(), Error> {
    if more.is_empty() {
        return Ok(());
    }
    query(COUNT_CROWD)
        .bind(more.keys().map(|key| key.0.clone()).collect::<Vec<_>>())
        .bind(more.keys().map(|key| key.1).collect::<Vec<_>>())
        .bind(more.values().copied().collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// Gives messages that their attempts hold their places in the crowds with which they are released,
/// and counts them there. Returns the quarters of an hour of their releases, by job.
pub(super) async fn spread_out(
    connection: &mut Transaction,
    plans: Vec<(&GateInput, &mut MessagePlan)>,
    rules: &RecipientRules,
    capacity: Capacity<'_>,
) -> Result<HashMap<i64, i64>, Error> {
    let held = plans.into_iter().filter_map(|(input, plan)| {
        let quarter = crowd_quarter(plan)?;
        let place = (input.message.throttle.clone(), quarter);
        Some((input, plan, place))
    });
    let held: Vec<(&GateInput, &mut MessagePlan, (String, i64))> = held.collect();
    let mut places: Vec<(String, i64)> = held.iter().map(|one| one.2.clone()).collect();
    places.sort_unstable();
    places.dedup();
    let mut counts = crowd(connection, &places).await?;
    let mut quarters: HashMap<i64, i64> = HashMap::new();
    let mut more: HashMap<(String, i64), i64> = HashMap::new();
    for (input, plan, place) in held {
        let (throttle, quarter) = (&input.message.throttle, place.1);
        quarters.insert(input.message.job_id, quarter);
        let count = counts.entry(place.clone()).or_default();
        // One that was held before is counted already.
        if input.message.crowd_quarter != Some(quarter) {
            *count += 1;
            *more.entry(place).or_default() += 1;
        }
        let policy = input.policy(rules);
        let spread = rules.release.spread(*count, capacity(throttle));
        in_crowd(plan, &input.candidate(), policy, spread);
    }
    count_crowd(connection, &more).await?;
    Ok(quarters)
}
