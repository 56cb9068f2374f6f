//! The way of a message through its gates.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};

use crate::admission::WaitingMessage;
use crate::api::http::caller::Caller;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::show::{found, id_of, why_job_waits};
use crate::api::jobs::state::JobsState;
use crate::api::notifications::accept::AdmissionState;
use crate::api::notifications::accepted::until;
use crate::api::waiting::WaitReason;
use crate::jobs::State as JobState;
use crate::notify::DeliveryState;
use crate::recipient::explain::{GateFinding, GateStep, MessageExplanation};
use crate::recipient::gate::MessageGate;
use crate::recipient::service::Gates;

/// Explains a message: each gate with what it found and by which rule, and what comes after.
#[utoipa::path(get, path = "/api/v1/notifications/{id}/explain", operation_id = "explain_notification", tag = "notifications",
    params(("id" = i64, Path, description = "The number of its job.")),
    responses((status = 200, body = MessageExplanation)))]
pub async fn explain(
    State(gates): State<Gates>,
    State(admission): State<Arc<AdmissionState>>,
    State(jobs): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<MessageExplanation>, Problem> {
    let id = id_of(&id)?;
    let explained = gates.explain(id, caller.tenant.as_deref());
    let found = with_timeout(ROW_TIMEOUT, explained).await?;
    let mut explained = found.ok_or_else(|| {
        Problem::new(
            Code::NotificationNotFound,
            format!("there is no notification {id}; finished ones are kept for a limited time"),
        )
    })?;
    if explained.state == DeliveryState::Queued.as_str() {
        let pause = admission.batches.pause_of(id);
        if let Ok(Some(pause)) = with_timeout(ROW_TIMEOUT, pause).await {
            tell_pause(&mut explained, &pause);
            return Ok(Json(explained));
        }
        match with_timeout(ROW_TIMEOUT, admission.admission.waiting(id)).await {
            Ok(Some(waiting)) => tell_admission(&mut explained, &waiting),
            Ok(None) => {
                if let Some(waiting) = wait_of_job(&jobs, &caller, id).await {
                    tell_wait(&mut explained, &waiting);
                }
            }
            // What the gates know is worth telling without the wait.
            Err(problem) => tracing::warn!(job.id = id, ?problem, "reading a wait failed"),
        }
    }
    Ok(Json(explained))
}

/// Adds to the explanation of a message that its batch is paused, about which the gates know nothing.
pub fn tell_pause(explained: &mut MessageExplanation, pause: &str) {
    explained.sentence = format!("message {} waits: {pause}", explained.id);
    explained.planned_at = None;
}

/// Returns the wait of the job of a message that is ready; `None` if it cannot be read.
async fn wait_of_job(jobs: &JobsState, caller: &Caller, id: i64) -> Option<WaitReason> {
    let detail = found(jobs, caller, id).await.ok()?;
    let sees_all = caller.sees(&detail.summary.throttle);
    let stores = (&jobs.queue, &*jobs.throttles, &jobs.kinds);
    let is_ready = detail.summary.state == JobState::Ready;
    match is_ready {
        true => why_job_waits(stores, &detail, sees_all).await,
        false => None,
    }
}

/// Adds to the explanation of a message what its ready job waits for, about which the gates know
/// nothing: a pause, a throttle, an account, a worker.
pub fn tell_wait(explained: &mut MessageExplanation, waiting: &WaitReason) {
    let is_at_pool = |step: &GateStep| {
        step.gate == MessageGate::Pool.as_str() && step.finding == GateFinding::Waits
    };
    if explained.gates.iter().any(is_at_pool) {
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
pub fn tell_admission(explained: &mut MessageExplanation, waiting: &WaitingMessage) {
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
    use crate::recipient::explain::unplanned;

    fn told(at_pool: bool) -> String {
        let mut gates = unplanned();
        for step in &mut gates {
            if at_pool && step.gate == MessageGate::Pool.as_str() {
                step.finding = GateFinding::Waits;
            }
        }
        let mut explained = MessageExplanation {
            id: 7,
            tenant: String::new(),
            state: "queued".to_owned(),
            sentence: "message 7 is planned next".to_owned(),
            gates,
            first_planned_at: None,
            planned_at: None,
            digest: None,
            forecast: None,
        };
        let waiting = WaitReason {
            reason: "throttle sms is stopped: no account is available".to_owned(),
            until: None,
        };
        tell_wait(&mut explained, &waiting);
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
}
