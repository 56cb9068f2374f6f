//! Refusals before anything is accepted: messages over a cap whose category refuses more.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;

use super::messages::GatedMessage;
use super::rows::{StoredList, StoredTimes, cap_times, inputs, reserved, sent};
use super::statement::query;
use crate::jobs::{Error, NewJob};
use crate::postgres::Db;
use crate::recipient::fields::GatedArgs;
use crate::recipient::gates::{GatePolicy, GateRows, MessagePlan, Origin, cap_lists, plan};
use crate::recipient::rules::{OverCap, RecipientRules};

pub(super) const NOW: &str = "select clock_timestamp() as now";

/// Returns the rule that refuses a message, and the time at which there is room.
pub async fn refusal(
    db: &Db,
    tenant: &str,
    job: &NewJob,
    rules: &RecipientRules,
) -> Result<Option<(String, Timestamp)>, Error> {
    let Ok(args) = GatedArgs::parse(&job.args) else {
        return Ok(None);
    };
    let category = rules.category(&args.category);
    let refuses = |over: &OverCap| *over == OverCap::Refuse;
    if !refuses(&category.over_cap) && !refuses(&category.over_actor_cap) {
        return Ok(None);
    }
    let mut transaction = db.begin().await?;
    let row = query(NOW).fetch_one(&mut *transaction).await?;
    let now: SqlTimestamp = sqlx::Row::try_get(&row, "now")?;
    let now = now.to_jiff();
    let message = GatedMessage {
        job_id: 0,
        tenant: tenant.to_owned(),
        module: String::new(),
        priority: job.priority,
        throttle: job.throttle.clone(),
        throttle_key: job.key.clone(),
        args: Some(args),
        accepted_at: now,
        origin: Origin::Sender,
        has_slots: false,
        is_cancelled: false,
        coalesces: false,
        planned_at: None,
    };
    let Some(input) = inputs(&mut transaction, vec![message]).await?.pop() else {
        return Ok(None);
    };
    let candidate = input.candidate();
    let lists = cap_lists(&candidate, rules);
    let keys: Vec<StoredList> = lists.iter().map(|list| input.stored(list)).collect();
    let mut of_sent = sent(&mut transaction, &keys, false).await?;
    let mut of_reserved = reserved(&mut transaction, &keys, &[]).await?;
    let times = keys.iter().map(|key| {
        let times = StoredTimes {
            sent: of_sent.remove(key).unwrap_or_default(),
            reserved: of_reserved.remove(key).unwrap_or_default(),
        };
        (*key, times)
    });
    let times = times.collect();
    let rows = GateRows {
        is_suppressed: input.is_suppressed,
        times: &cap_times(&keys, &times),
        ..GateRows::default()
    };
    let policy = GatePolicy {
        profile: &input.profile,
        defaults: &input.defaults,
        rules,
    };
    match plan(&candidate, policy, &rows, now) {
        MessagePlan::Refused { rule, reset_at } => Ok(Some((rule, reset_at))),
        _ => Ok(None),
    }
}
