//! Refusals before anything is accepted: messages over a cap whose category refuses more.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::query;

use super::explain::Reading;
use super::messages::GatedMessage;
use super::rows::inputs;
use crate::jobs::{Error, NewJob};
use crate::postgres::Db;
use crate::recipient::fields::GatedArgs;
use crate::recipient::gates::{MessagePlan, plan};
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
    let row = query(NOW).fetch_one(&mut transaction).await?;
    let now: SqlTimestamp = sqlx::Row::try_get(&row, "now")?;
    let now = now.to_jiff();
    let message = GatedMessage {
        priority: job.priority,
        ..GatedMessage::without_job(tenant, args, now)
    };
    let Some(input) = inputs(&mut transaction, vec![message]).await?.pop() else {
        return Ok(None);
    };
    let candidate = input.candidate();
    let policy = input.policy(rules);
    let reading = Reading::of(&mut transaction, &input, &candidate, rules).await?;
    transaction.commit().await?;
    match reading.look((0, 0.0), |rows| plan(&candidate, policy, rows, now)) {
        MessagePlan::Refused { rule, reset_at } => Ok(Some((rule, reset_at))),
        _ => Ok(None),
    }
}
