//! The recorded plans of messages that were just accepted, read without a lock.

use std::collections::HashSet;

use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use super::plan_rows::recorded_plan;
use super::plans::PlannedMessage;
use crate::jobs::Error;
use crate::postgres::Db;
use crate::recipient::gate::MessageGate;
use crate::recipient::gates::MessagePlan;

// A message that goes at once has no plan. One whose plan is due is in the queue until the commit
// of its planner.
pub(super) const PLANS_OF_JOBS: &str = "
select a.job_id, s.job_id is not null as is_unplanned, p.state, p.gate, p.rule, p.reason, p.holds, p.until, p.other_job
from unnest($1::bigint[]) as a(job_id)
left join lateral (select * from flyball.message_plan h where h.job_id = a.job_id limit 1) p on true
left join lateral (
    select h.job_id from flyball.scheduled h where h.job_id = a.job_id and h.turn between -4 and -1 and h.run_at <= now() limit 1
) s on true";

/// Plans of messages, and the messages that have none yet.
#[derive(Debug, Default)]
pub struct RecordedPlans {
    pub planned: Vec<PlannedMessage>,
    pub unplanned: Vec<i64>,
}

impl RecordedPlans {
    /// Adds the plans of messages that had none.
    pub fn add(&mut self, planned: Vec<PlannedMessage>) {
        let known: HashSet<i64> = planned.iter().map(|one| one.job_id).collect();
        self.unplanned.retain(|id| !known.contains(id));
        self.planned.extend(planned);
    }
}

/// Returns the recorded plans of messages that were just accepted.
pub async fn recorded_plans(db: &Db, jobs: &[i64]) -> Result<RecordedPlans, Error> {
    let rows = query(PLANS_OF_JOBS).bind(jobs).fetch_all(db).await?;
    let mut found = RecordedPlans::default();
    for row in &rows {
        let job_id = row.try_get("job_id")?;
        if row.try_get("is_unplanned")? {
            found.unplanned.push(job_id);
            continue;
        }
        found.planned.push(PlannedMessage {
            job_id,
            plan: plan_of(row)?,
            duplicate_of: row.try_get("other_job")?,
        });
    }
    Ok(found)
}

fn plan_of(row: &PgRow) -> Result<MessagePlan, sqlx::Error> {
    let until: Option<SqlTimestamp> = row.try_get("until")?;
    let until = until.map(SqlTimestamp::to_jiff);
    Ok(match (recorded_plan(row, until, None)?, until) {
        // A message that a cap refuses has the time at which there is room; other messages that a
        // cap ends have none.
        (
            Some(MessagePlan::Ended {
                gate: MessageGate::Caps,
                rule,
                ..
            }),
            Some(reset_at),
        ) => MessagePlan::Refused { rule, reset_at },
        (plan, _) => plan.unwrap_or(MessagePlan::Send),
    })
}
