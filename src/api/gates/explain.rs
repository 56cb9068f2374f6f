//! The way of a message through its gates.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use jiff::Timestamp;

use super::accounts::{MessageAccounts, waits_at_pool};
use crate::admission::WaitingMessage;
use crate::api::http::caller::Caller;
use crate::api::http::problem::Problem;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::show::{found, id_of, why_job_waits};
use crate::api::jobs::state::JobsState;
use crate::api::notifications::accept::AdmissionState;
use crate::api::notifications::accepted::until;
use crate::api::waiting::{WaitReason, first_line};
use crate::jobs::{JobDetail, Kinds, Queue, State as JobState, Summary};
use crate::notify::DeliveryState;
use crate::recipient::explain::{GateFinding, MessageExplanation};
use crate::recipient::service::Gates;
use crate::throttle::{Name, Store};

/// Explains a message: each gate with what it found and by which rule, and what comes after.
#[utoipa::path(get, path = "/api/v1/notifications/{id}/explain", operation_id = "explain_notification", tag = "notifications",
    params(("id" = i64, Path, description = "The number of its job.")),
    responses((status = 200, body = MessageExplanation)))]
pub async fn explain(
    State(accounts): State<MessageAccounts>,
    State(gates): State<Gates>,
    State(admission): State<Arc<AdmissionState>>,
    State(jobs): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<MessageExplanation>, Problem> {
    let id = id_of(&id)?;
    let explained = gates.explain(id, caller.tenant.as_deref());
    let answer = with_timeout(ROW_TIMEOUT, explained).await?;
    let mut explained = answer.ok_or_else(|| Problem::notification_not_found(id))?;
    if explained.state == DeliveryState::Queued.as_str() {
        let pause = admission.batches.pause_of(id);
        if let Ok(Some(pause)) = with_timeout(ROW_TIMEOUT, pause).await {
            add_pause(&mut explained, &pause);
            return Ok(Json(explained));
        }
        match with_timeout(ROW_TIMEOUT, admission.admission.waiting(id)).await {
            Ok(Some(waiting)) => add_admission(&mut explained, &waiting),
            Ok(None) => {
                if let Ok(detail) = found(&jobs, &caller, id).await {
                    let stores = (&jobs.queue, &*jobs.throttles, &jobs.kinds);
                    let sees_all = caller.sees(&detail.summary.throttle);
                    add_wait_of_job(&mut explained, stores, &detail, sees_all).await;
                }
            }
            // The knowledge of the gates is worth an answer without the wait.
            Err(problem) => tracing::warn!(job.id = id, ?problem, "reading a wait failed"),
        }
    }
    accounts.add_to(&mut explained, &caller).await;
    Ok(Json(explained))
}

/// Adds to the explanation of a message that its batch is paused, about which the gates know
/// nothing.
pub fn add_pause(explained: &mut MessageExplanation, pause: &str) {
    explained.sentence = format!("message {} waits: {pause}", explained.id);
    explained.planned_at = None;
}

/// Adds to the explanation of a message what its job waits for, about which the gates know nothing:
/// a pause, a throttle, an account, a worker.
pub async fn add_wait_of_job(
    explained: &mut MessageExplanation,
    stores: (&Queue, &dyn Store, &Kinds),
    detail: &JobDetail,
    sees_all: bool,
) {
    let job = &detail.summary;
    let waiting = match job.state {
        JobState::Ready => why_job_waits(stores, detail, sees_all).await,
        JobState::Scheduled | JobState::Retryable => {
            // An attempt found no account and comes again.
            let without = match sees_all && waits_at_pool(explained) {
                true => without_account(stores.1, job).await,
                false => None,
            };
            without.or_else(|| {
                let last = detail.attempts.last()?;
                for_next_attempt(explained, &last.outcome, job.due_at?)
            })
        }
        _ => None,
    };
    if let Some(waiting) = waiting {
        add_wait(explained, &waiting);
    }
}

/// Returns the wait of a message whose pool has no account; `None` if it has one.
async fn without_account(throttles: &dyn Store, job: &Summary) -> Option<WaitReason> {
    let name = Name::new(job.throttle.as_str()).ok()?;
    let status = throttles.status(&name).await.ok()??;
    let why = status.knobs.stopped_because(status.at_us)?;
    Some(WaitReason {
        reason: format!("throttle {name} is stopped: {}", first_line(why)),
        until: job.due_at,
    })
}

/// Returns the wait of a message for its next attempt, after one with this outcome that did not end
/// it; `None` if a gate holds it.
fn for_next_attempt(
    explained: &mut MessageExplanation,
    outcome: &str,
    due: Timestamp,
) -> Option<WaitReason> {
    if !has_passed(explained) {
        return None;
    }
    explained.planned_at = Some(due);
    let why = match outcome {
        "snoozed" => "its recipient, or the accounts of its pool, cannot take it now",
        _ => "its last attempt did not succeed",
    };
    Some(WaitReason {
        reason: format!("{why}, and the next attempt is due at {due:.0}"),
        until: Some(due),
    })
}

/// Returns true if no gate holds a message.
fn has_passed(explained: &MessageExplanation) -> bool {
    let mut findings = explained.gates.iter().map(|step| step.finding);
    waits_at_pool(explained) || findings.all(|finding| finding == GateFinding::Passed)
}

fn add_wait(explained: &mut MessageExplanation, waiting: &WaitReason) {
    if has_passed(explained) {
        explained.sentence = format!(
            "message {} has passed its gates and waits: {}",
            explained.id, waiting.reason
        );
    } else {
        explained.sentence += &format!("; its job waits: {}", waiting.reason);
    }
}

/// Adds to the explanation of a message that it has passed its gates and waits for the limits of
/// its tenant, about which the gates know nothing.
pub fn add_admission(explained: &mut MessageExplanation, waiting: &WaitingMessage) {
    explained.sentence = format!(
        "message {} has passed its gates and {}",
        explained.id,
        waiting.reason()
    );
    explained.planned_at = until(waiting);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipient::explain::{GateStep, unplanned};
    use crate::recipient::gate::MessageGate;

    fn explained(gates: Vec<GateStep>) -> MessageExplanation {
        MessageExplanation {
            id: 7,
            tenant: String::new(),
            state: "queued".to_owned(),
            sentence: "message 7 is planned next".to_owned(),
            gates,
            first_planned_at: None,
            planned_at: None,
            digest: None,
            carried_by: None,
            forecast: None,
        }
    }

    fn told(at_pool: bool) -> String {
        let mut gates = unplanned();
        for step in &mut gates {
            if at_pool && step.gate == MessageGate::Pool.as_str() {
                step.finding = GateFinding::Waits;
            }
        }
        let mut explained = explained(gates);
        let waiting = WaitReason {
            reason: "throttle sms is stopped: no account is available".to_owned(),
            until: None,
        };
        add_wait(&mut explained, &waiting);
        explained.sentence
    }

    #[test]
    fn a_message_behind_its_gates_says_what_its_job_waits_for() {
        assert_eq!(
            told(true),
            "message 7 has passed its gates and waits: throttle sms is stopped: no account is \
             available"
        );
        assert!(told(false).starts_with("message 7 is planned next; its job waits: throttle sms"));
    }

    #[test]
    fn a_message_whose_recipient_rests_says_when_it_is_tried_again() {
        let due: Timestamp = "2026-11-20T09:00:07.25Z".parse().unwrap();
        let mut gates = unplanned();
        for step in &mut gates {
            step.finding = GateFinding::Passed;
        }
        let mut passed = explained(gates);
        let waiting = for_next_attempt(&mut passed, "snoozed", due).unwrap();
        add_wait(&mut passed, &waiting);
        assert_eq!(
            passed.sentence,
            "message 7 has passed its gates and waits: its recipient, or the accounts of its pool, \
             cannot take it now, and the next attempt is due at 2026-11-20T09:00:07Z"
        );
        assert_eq!(passed.planned_at, Some(due));

        let mut held = explained(unplanned());
        assert!(for_next_attempt(&mut held, "snoozed", due).is_none());
        assert!(held.planned_at.is_none());
    }
}
