//! The record of plans: what the gates found for a message, for those who ask.

use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{Row, query};

use super::copy::{COPIED_MIN, CopiedRows};
use super::plans::PlannedMessage;
use super::rows::sql_time;
use crate::jobs::Error;
use crate::postgres::{Transaction, json_or_text};
use crate::recipient::address::RecipientKey;
use crate::recipient::digest::{Arrival, OpenDigest};
use crate::recipient::explain::DigestView;
use crate::recipient::gate::{MessageGate, UnsentReason};
use crate::recipient::gates::{GateHold, MessagePlan};

// The pool's deadline counts from the end of the last hold, so that time stays when the message
// goes, and so do the waits, which explain why it went late.
pub(super) const RECORD_PLANS: &str = "
insert into flyball.message_plan as p
    (job_id, recipient, state, gate, rule, reason, holds, until, planned_at, coalesces, other_job, digest_id, crowd_quarter)
select * from unnest($1::bigint[], $2::text[]::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[], $8::timestamptz[],
    $9::timestamptz[], $10::boolean[], $11::bigint[], $12::bigint[], $13::bigint[])
on conflict (job_id) do update
set recipient = excluded.recipient, state = excluded.state, gate = excluded.gate, rule = excluded.rule, reason = excluded.reason,
    holds = case when excluded.state = 'sending' then p.holds else excluded.holds end,
    until = case when excluded.state = 'sending' and p.until is not null then least(p.until, clock_timestamp()) else excluded.until end,
    since = case when p.state = excluded.state and p.gate = excluded.gate then p.since else clock_timestamp() end,
    planned_at = coalesce(p.planned_at, excluded.planned_at), coalesces = excluded.coalesces,
    other_job = excluded.other_job, digest_id = coalesce(excluded.digest_id, p.digest_id),
    crowd_quarter = coalesce(excluded.crowd_quarter, p.crowd_quarter)";

const COPY_PLANS: &str = "copy flyball.message_plan
    (job_id, recipient, state, gate, rule, reason, holds, until, planned_at, coalesces, other_job, digest_id, crowd_quarter, since) from stdin (format binary)";

/// The rule of a message whose recipient was erased: nothing else ends one without a gate.
const ERASED: &str = "its recipient was erased";

/// A row of a plan.
pub(super) struct PlanRow<'a> {
    pub job_id: i64,
    pub recipient: RecipientKey,
    pub planned: &'a PlannedMessage,
    pub planned_at: Option<Timestamp>,
    pub digest_id: Option<i64>,
    /// The quarter of an hour in whose crowd it is; the recorded one stays if absent.
    pub crowd_quarter: Option<i64>,
    pub now: Timestamp,
    /// True if nothing is recorded of this message yet, and nobody else records it now.
    pub is_new: bool,
}

/// Writes plans, over those that are recorded.
pub(super) async fn write_rows(
    connection: &mut Transaction,
    rows: &[PlanRow<'_>],
) -> Result<(), Error> {
    let (new, known): (Vec<&PlanRow<'_>>, Vec<&PlanRow<'_>>) =
        rows.iter().partition(|row| row.is_new);
    if new.len() < COPIED_MIN {
        return merge_rows(connection, &rows.iter().collect::<Vec<_>>()).await;
    }
    copy_rows(connection, &new).await?;
    merge_rows(connection, &known).await
}

async fn copy_rows(connection: &mut Transaction, rows: &[&PlanRow<'_>]) -> Result<(), Error> {
    let mut copied = CopiedRows::default();
    for row in rows {
        let part = parts_of(&row.planned.plan);
        copied
            .row()
            .bigint(row.job_id)
            .key(row.recipient)
            .text(part.state)
            .text(part.gate)
            .text(&part.rule)
            .text(part.reason)
            .json(&part.holds.to_string())
            .or_null(part.until, CopiedRows::time)
            .or_null(row.planned_at, CopiedRows::time)
            .boolean(part.coalesces)
            .or_null(row.planned.duplicate_of, CopiedRows::bigint)
            .or_null(row.digest_id, CopiedRows::bigint)
            .or_null(row.crowd_quarter, CopiedRows::bigint)
            .time(row.now);
    }
    Ok(copied.write(connection, COPY_PLANS).await?)
}

async fn merge_rows(connection: &mut Transaction, rows: &[&PlanRow<'_>]) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let parts: Vec<PlanParts> = rows.iter().map(|row| parts_of(&row.planned.plan)).collect();
    query(RECORD_PLANS)
        .bind(rows.iter().map(|row| row.job_id).collect::<Vec<_>>())
        .bind(
            rows.iter()
                .map(|row| row.recipient.to_hex())
                .collect::<Vec<_>>(),
        )
        .bind(parts.iter().map(|part| part.state).collect::<Vec<_>>())
        .bind(parts.iter().map(|part| part.gate).collect::<Vec<_>>())
        .bind(
            parts
                .iter()
                .map(|part| part.rule.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(parts.iter().map(|part| part.reason).collect::<Vec<_>>())
        .bind(
            parts
                .iter()
                .map(|part| Json(part.holds.clone()))
                .collect::<Vec<_>>(),
        )
        .bind(
            parts
                .iter()
                .map(|part| part.until.map(sql_time))
                .collect::<Vec<_>>(),
        )
        .bind(
            rows.iter()
                .map(|row| row.planned_at.map(sql_time))
                .collect::<Vec<_>>(),
        )
        .bind(parts.iter().map(|part| part.coalesces).collect::<Vec<_>>())
        .bind(
            rows.iter()
                .map(|row| row.planned.duplicate_of)
                .collect::<Vec<_>>(),
        )
        .bind(rows.iter().map(|row| row.digest_id).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.crowd_quarter).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// The columns of a plan.
struct PlanParts {
    state: &'static str,
    gate: &'static str,
    rule: String,
    reason: &'static str,
    holds: Value,
    until: Option<Timestamp>,
    coalesces: bool,
}

fn parts_of(plan: &MessagePlan) -> PlanParts {
    let parts = |state, gate: &'static str, rule: &str| PlanParts {
        state,
        gate,
        rule: rule.to_owned(),
        reason: "",
        holds: json!([]),
        until: None,
        coalesces: false,
    };
    match plan {
        MessagePlan::Send => parts("sending", "", ""),
        MessagePlan::Held {
            holds, coalesces, ..
        } => {
            let last = holds.last();
            let each = holds.iter().map(|hold| {
                json!({"gate": hold.gate.as_str(), "rule": hold.rule, "until": hold.until.to_string()})
            });
            PlanParts {
                holds: each.collect(),
                until: last.map(|hold| hold.until),
                coalesces: *coalesces,
                ..parts(
                    "held",
                    last.map_or("", |hold| hold.gate.as_str()),
                    last.map_or("", |hold| hold.rule.as_str()),
                )
            }
        }
        MessagePlan::Collected { digest, arrival } => match arrival {
            Arrival::Leads(_) => parts("sending", "", ""),
            Arrival::Joins(open) => PlanParts {
                until: Some(open.closes_at),
                ..parts("collected", MessageGate::Digest.as_str(), digest)
            },
        },
        MessagePlan::Ended { gate, reason, rule } => PlanParts {
            reason: reason.as_str(),
            ..parts("ended", gate.as_str(), rule)
        },
        MessagePlan::Refused { rule, reset_at } => PlanParts {
            reason: UnsentReason::Capped.as_str(),
            until: Some(*reset_at),
            ..parts("ended", MessageGate::Caps.as_str(), rule)
        },
    }
}

/// Returns a plan in the form in which the gates made it.
pub(super) fn recorded_plan(
    row: &PgRow,
    until: Option<Timestamp>,
    digest: Option<&DigestView>,
) -> Result<Option<MessagePlan>, sqlx::Error> {
    let Some(state) = row.try_get::<Option<&str>, _>("state")? else {
        return Ok(None);
    };
    let rule: String = row.try_get("rule")?;
    let reason = row.try_get::<&str, _>("reason")?.parse::<UnsentReason>();
    let gate: &str = row.try_get("gate")?;
    Ok(match state {
        "held" => Some(MessagePlan::Held {
            holds: holds(row),
            reserve_s: 0,
            coalesces: false,
        }),
        "collected" => {
            let closes_at = digest.map(|digest| digest.closes_at).or(until);
            let open = OpenDigest {
                opened_at: digest.map_or(Timestamp::UNIX_EPOCH, |digest| digest.opened_at),
                closes_at: closes_at.unwrap_or(Timestamp::UNIX_EPOCH),
                items: digest.map_or(0, |digest| digest.items),
            };
            Some(MessagePlan::Collected {
                digest: rule,
                arrival: Arrival::Joins(open),
            })
        }
        "ended" => match (gate.parse::<MessageGate>(), reason) {
            (Ok(gate), Ok(reason)) => Some(MessagePlan::Ended { gate, reason, rule }),
            (Err(_), Ok(reason)) if gate.is_empty() => Some(MessagePlan::Ended {
                gate: MessageGate::Deadline,
                reason,
                rule: ERASED.to_owned(),
            }),
            _ => None,
        },
        _ => Some(MessagePlan::Send),
    })
}

/// Returns the waits of the last hold of a message, in their order.
pub(super) fn holds(row: &PgRow) -> Vec<GateHold> {
    let read = |hold: &Value| {
        let text = |name: &str| hold.get(name)?.as_str();
        Some(GateHold {
            gate: text("gate")?.parse().ok()?,
            rule: text("rule")?.to_owned(),
            until: text("until")?.parse().ok()?,
        })
    };
    let stored = json_or_text(row, "holds");
    let holds = stored.as_array().map(Vec::as_slice).unwrap_or_default();
    holds.iter().filter_map(read).collect()
}
