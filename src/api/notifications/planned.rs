//! The way of a message through the gates of its recipient, when it is accepted.

use jiff::Timestamp;
use serde::Serialize;

use crate::api::http::fields::Errors;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::NewJob;
use crate::recipient::digest::Arrival;
use crate::recipient::fields::is_gated;
use crate::recipient::gate::{MessageGate, UnsentReason};
use crate::recipient::gates::{GateHold, MessagePlan};
use crate::recipient::postgres::PlannedMessage;
use crate::recipient::service::Gates;

/// The plan of a message.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct PlannedNotification {
    /// The status: `held` by a gate, `collected` into a digest, or `ended` unsent.
    pub status: &'static str,
    /// The gate at which it waits first, or at which it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<PlannedGate>,
    /// The time at which it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_at: Option<Timestamp>,
    /// The gates at which it waits after that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<PlannedGate>,
    /// The type of the digest that collects it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The reason of its end, such as `duplicate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The message that it repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<i64>,
}

/// A gate that holds a message.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct PlannedGate {
    /// The gate, such as `quiet_hours`.
    pub gate: &'static str,
    /// The rule, such as `per_day 2 per 1d`.
    pub rule: String,
    /// The end of the wait; absent if the message ended here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

impl PlannedGate {
    fn of(hold: &GateHold) -> Self {
        Self {
            gate: hold.gate.as_str(),
            rule: hold.rule.clone(),
            at: Some(hold.until),
        }
    }
}

impl PlannedNotification {
    /// Returns the end of a message that was accepted with others and is over a cap that refuses;
    /// `None` for any other.
    pub fn refused(planned: &PlannedMessage) -> Option<Self> {
        let MessagePlan::Refused { rule, reset_at } = &planned.plan else {
            return None;
        };
        Some(Self {
            status: "ended",
            held_by: Some(PlannedGate {
                gate: MessageGate::Caps.as_str(),
                rule: rule.clone(),
                at: Some(*reset_at),
            }),
            planned_at: None,
            then: Vec::new(),
            digest: None,
            reason: Some(UnsentReason::Capped.as_str()),
            duplicate_of: None,
        })
    }

    /// Returns the plan for the sender; `None` for a message that goes now.
    pub fn of(planned: &PlannedMessage) -> Option<Self> {
        let plan = |status| Self {
            status,
            held_by: None,
            planned_at: None,
            then: Vec::new(),
            digest: None,
            reason: None,
            duplicate_of: planned.duplicate_of,
        };
        match &planned.plan {
            MessagePlan::Send
            | MessagePlan::Refused { .. }
            | MessagePlan::Collected {
                arrival: Arrival::Leads(_),
                ..
            } => None,
            MessagePlan::Held { holds, .. } => Some(Self {
                held_by: holds.first().map(PlannedGate::of),
                planned_at: holds.last().map(|hold| hold.until),
                then: holds.iter().skip(1).map(PlannedGate::of).collect(),
                ..plan("held")
            }),
            MessagePlan::Collected {
                digest,
                arrival: Arrival::Joins(open),
            } => Some(Self {
                planned_at: Some(open.closes_at),
                digest: Some(digest.clone()),
                ..plan("collected")
            }),
            MessagePlan::Ended { gate, reason, rule } => Some(Self {
                held_by: Some(PlannedGate {
                    gate: gate.as_str(),
                    rule: rule.clone(),
                    at: None,
                }),
                reason: Some(reason.as_str()),
                ..plan("ended")
            }),
        }
    }
}

/// Refuses a message that can never go, or not now, before anything is accepted.
pub async fn refuse(
    gates: &Gates,
    tenant: &str,
    job: &NewJob,
    is_later: bool,
) -> Result<(), Problem> {
    if !is_gated(&job.args) {
        return Ok(());
    }
    gates.check_digests(std::slice::from_ref(job))?;
    refuse_addressless(gates, tenant, job).await?;
    match is_later {
        true => Ok(()),
        false => refuse_capped(gates, tenant, job).await,
    }
}

/// Refuses a message that names no address, and a recipient without one.
async fn refuse_addressless(gates: &Gates, tenant: &str, job: &NewJob) -> Result<(), Problem> {
    let found = gates.addressless(tenant, std::slice::from_ref(job));
    match with_timeout(ROW_TIMEOUT, found).await?.first() {
        Some(found) => {
            let mut errors = Errors::default();
            errors.body("/to", found.problem());
            Err(Problem::fields(Code::InvalidFields, errors))
        }
        None => Ok(()),
    }
}

/// Refuses a message over a cap whose rule refuses, before anything is accepted.
async fn refuse_capped(gates: &Gates, tenant: &str, job: &NewJob) -> Result<(), Problem> {
    let refused = gates.refusal(tenant, job);
    match with_timeout(ROW_TIMEOUT, refused).await? {
        Some((rule, reset_at)) => Err(Problem::capped(rule, reset_at)),
        None => Ok(()),
    }
}

/// The answer of the gates about a message that was accepted.
pub enum GatesAnswer {
    /// It goes now, or waits for the limits of its tenant alone.
    Goes,
    /// It does not go now.
    Planned(Box<PlannedNotification>),
    /// Others took the last room under a cap that refuses, so it ended.
    Refused(Problem),
    /// Nobody knows yet: another process plans it, or the gates could not be asked.
    Unknown,
}

impl GatesAnswer {
    /// The warning to the sender of a message of which nobody knows yet.
    pub const UNKNOWN: &str = "the gates of the recipient have not decided yet, so the message may \
        wait or end at one of them; its state tells";

    fn of(planned: &PlannedMessage) -> Self {
        match &planned.plan {
            MessagePlan::Refused { rule, reset_at } => {
                Self::Refused(Problem::capped(rule.clone(), *reset_at))
            }
            _ => match PlannedNotification::of(planned) {
                Some(plan) => Self::Planned(Box::new(plan)),
                None => Self::Goes,
            },
        }
    }
}

/// Plans a message that was accepted, or waits a little for the process that plans it.
pub async fn plan(gates: &Gates, job_id: i64) -> GatesAnswer {
    let jobs = [job_id];
    let planned = tokio::time::timeout(ROW_TIMEOUT, gates.plan_accepted(&jobs)).await;
    match planned {
        Ok(Ok(plans)) => plans
            .planned
            .first()
            .map_or(GatesAnswer::Unknown, GatesAnswer::of),
        // It was accepted, and a planner makes the plan that could not be made here.
        Ok(Err(error)) => {
            tracing::debug!(job.id = job_id, %error, "a message could not be planned");
            GatesAnswer::Unknown
        }
        Err(_) => GatesAnswer::Unknown,
    }
}
