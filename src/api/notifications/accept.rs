//! Acceptance of a tenant's message: at once, or to wait for the limits of its tenant.

use std::sync::Arc;

use axum::Json;
use axum::http::header::{LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::accepted::{AcceptedNotification, HeldMessage};
use super::known_usage::KnownUsage;
use super::planned::{GatesAnswer, plan, refuse};
use super::repeat::{digests, prefers_async};
use crate::admission::{
    AcceptRequest, Acceptance, Admission, Batches, Digests, ExcessAnswer, ExcessMessage,
    WaitingMessage,
};
use crate::api::clock;
use crate::api::http::fields::FieldLocation;
use crate::api::http::problem::{AdmissionProblem, Code, Problem, QueuedMessage};
use crate::api::http::timeout::{ROW_TIMEOUT, unanswered, with_timeout};
use crate::jobs::{Error, NewJob};
use crate::notify::Deliveries;
use crate::notify::args::PRIORITIES;
use crate::recipient::fields::is_gated;
use crate::recipient::service::Gates;

/// The most urgent priority, which does not wait.
const CRITICAL: i32 = 0;

/// The dependencies of the routes that accept tenants' messages.
pub struct AdmissionState {
    pub admission: Admission,
    /// True if a message without a key counts as a repeat of an equal waiting one.
    pub implicit_idempotency: bool,
    /// The beginning of the types of the problems of admission.
    pub problem_types: String,
    pub batches: Batches,
    pub deliveries: Deliveries,
    /// The gates of recipients.
    pub gates: Gates,
}

/// The sender of a message, with the request's digests and wishes.
pub struct MessageSender<'a> {
    /// The tenant; empty for a sender without one.
    pub tenant: &'a str,
    pub module: &'a str,
    pub digests: Digests,
    pub prefers_async: bool,
}

impl<'a> MessageSender<'a> {
    /// Reads the sender's wishes from the headers of a request to send one message.
    pub fn of(
        state: &AdmissionState,
        tenant: &'a str,
        module: &'a str,
        headers: &HeaderMap,
        body: &Value,
    ) -> Result<Self, Problem> {
        let is_implicit = state.implicit_idempotency;
        Ok(Self {
            tenant,
            module,
            digests: digests(headers, (tenant, module), "notify", body, is_implicit)?,
            prefers_async: prefers_async(headers),
        })
    }

    /// Reads the key of a request to send one message of a sender without a tenant.
    pub fn without_tenant(
        module: &'a str,
        headers: &HeaderMap,
        body: &Value,
    ) -> Result<Self, Problem> {
        Ok(Self {
            tenant: "",
            module,
            digests: digests(headers, ("", module), "notify", body, false)?,
            prefers_async: false,
        })
    }

    /// Reads the sender's wishes from the headers of a request to send a batch. Without a key every
    /// batch is one of its own.
    pub fn of_batch(
        tenant: &'a str,
        module: &'a str,
        headers: &HeaderMap,
        body: &Value,
    ) -> Result<Self, Problem> {
        Ok(Self {
            tenant,
            module,
            digests: digests(headers, (tenant, module), "notify_many", body, false)?,
            prefers_async: false,
        })
    }
}

/// Accepts a message of a tenant.
pub async fn accept(
    state: &Arc<AdmissionState>,
    sender: &MessageSender<'_>,
    mut job: NewJob,
    mut warnings: Vec<String>,
) -> Result<Response, Problem> {
    let admission = &state.admission;
    let is_gated = is_gated(&job.args);
    if let Some(repeated) = find_repeated(admission, sender, is_gated).await? {
        return repeat(state, sender, repeated).await;
    }
    let is_later = job.run_at.is_some_and(|at| at > clock::now());
    refuse(&state.gates, sender.tenant, &job, is_later).await?;
    let slot = if is_later {
        Slot::None
    } else {
        take(admission, sender, &mut job, &mut warnings).await
    };
    let ExcessAnswer {
        acceptance,
        waiting,
    } = accept_in_time(state, sender, slot, &job, is_later).await?;
    let Acceptance::Accepted {
        job_id,
        duplicate,
        held,
        ..
    } = acceptance
    else {
        slot.give_back(admission, sender).await;
        return repeat(state, sender, acceptance).await;
    };
    let decision = match is_gated && !duplicate && !is_later {
        true => plan(&state.gates, job_id).await,
        false => GatesAnswer::Goes,
    };
    match decision {
        GatesAnswer::Goes => {}
        // It may go, so its slot stays taken.
        GatesAnswer::Unknown => warnings.push(GatesAnswer::UNKNOWN.to_owned()),
        GatesAnswer::Planned(plan) => {
            // The message is admitted when its gates let it go.
            slot.give_back(admission, sender).await;
            let mut accepted = AcceptedNotification::new(job_id, &job, false, warnings);
            accepted.plan = Some(*plan);
            return Ok(answer(StatusCode::ACCEPTED, accepted));
        }
        GatesAnswer::Refused(problem) => {
            slot.give_back(admission, sender).await;
            return Err(problem);
        }
    }
    slot.settle(admission, sender, duplicate, held).await;
    let accepted = AcceptedNotification::new(job_id, &job, duplicate, warnings);
    if duplicate {
        return Ok(answer(StatusCode::OK, accepted));
    }
    if held
        && !is_later
        && let Some(waiting) = place_of(admission, job_id, waiting).await
    {
        return Ok(queued(state, sender, accepted, &waiting));
    }
    let mut response = answer(StatusCode::ACCEPTED, accepted);
    // A message with a slot that need not wait shows that no other one of its module does.
    if slot == Slot::Usual && !held {
        response.extensions_mut().insert(KnownUsage::NoneWaits);
    }
    Ok(response)
}

/// Finds the earlier request that this one repeats, where that cannot wait until it is accepted.
async fn find_repeated(
    admission: &Admission,
    sender: &MessageSender<'_>,
    is_gated: bool,
) -> Result<Option<Acceptance>, Problem> {
    // A message beyond the limit is found to be a repeat when it is accepted. One with gates would
    // be refused by them before that.
    if !is_gated && admission.is_in_excess(sender.tenant) {
        return Ok(None);
    }
    with_timeout(ROW_TIMEOUT, admission.find_request(&sender.digests)).await
}

/// Answers that a message was accepted.
pub fn answer(status: StatusCode, accepted: AcceptedNotification) -> Response {
    let location = [(LOCATION, location(accepted.id))];
    (status, location, Json(accepted)).into_response()
}

/// Returns the place of a message that waits, unless it is known; `None` if the message has been
/// released, or the place cannot be read, which is no failure of a request whose message is
/// accepted.
async fn place_of(
    admission: &Admission,
    job_id: i64,
    known: Option<WaitingMessage>,
) -> Option<WaitingMessage> {
    if known.is_some() {
        return known;
    }
    let waiting = with_timeout(ROW_TIMEOUT, admission.waiting(job_id));
    waiting.await.unwrap_or_default()
}

/// Accepts a message within the timeout of a row. Its slot is given back if it was surely not
/// accepted.
async fn accept_in_time(
    state: &AdmissionState,
    sender: &MessageSender<'_>,
    slot: Slot,
    job: &NewJob,
    is_later: bool,
) -> Result<ExcessAnswer, Problem> {
    let admission = &state.admission;
    let accepting = accept_with(admission, sender, slot, job, is_later);
    match tokio::time::timeout(ROW_TIMEOUT, accepting).await {
        Ok(Ok(accepted)) => Ok(accepted),
        Ok(Err(error)) => {
            if !matches!(error, Error::Lost(_)) {
                slot.give_back(admission, sender).await;
            }
            Err(typed(&state.problem_types, error.into()))
        }
        Err(_) => Err(unanswered(ROW_TIMEOUT)),
    }
}

/// Accepts a message: with a slot by itself, without one together with others of its tenant.
async fn accept_with(
    admission: &Admission,
    sender: &MessageSender<'_>,
    slot: Slot,
    job: &NewJob,
    is_later: bool,
) -> Result<ExcessAnswer, Error> {
    // Another transaction may hold the unique key, and the others would wait for it as well.
    if slot == Slot::None && !is_later && job.unique_key.is_none() {
        let message = ExcessMessage {
            module: sender.module.to_owned(),
            digests: sender.digests.clone(),
            job: job.clone(),
        };
        return admission.accept_excess(sender.tenant, message).await;
    }
    let request = AcceptRequest {
        tenant: sender.tenant,
        module: sender.module,
        owner: None,
        digests: &sender.digests,
        admitted: slot != Slot::None,
        job,
    };
    let acceptance = admission.accept(&request).await?;
    Ok(ExcessAnswer {
        acceptance,
        waiting: None,
    })
}

/// A slot that was taken for a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    None,
    Usual,
    Critical { was_asked: bool },
}

impl Slot {
    /// Gives the slot back if the accepted message does not use it, and counts one beyond the
    /// limit that does.
    async fn settle(
        self,
        admission: &Admission,
        sender: &MessageSender<'_>,
        duplicate: bool,
        held: bool,
    ) {
        match self {
            _ if duplicate => self.give_back(admission, sender).await,
            Self::Critical { was_asked: true } => {
                admission.count(sender.tenant, sender.module, 1).await;
            }
            Self::Usual if held => self.give_back(admission, sender).await,
            _ => {}
        }
    }

    async fn give_back(self, admission: &Admission, sender: &MessageSender<'_>) {
        match self {
            Self::Usual => {
                admission.give_back(sender.tenant, sender.module, 1).await;
            }
            Self::Critical { was_asked: true } => {
                admission.give_back_critical(sender.tenant, 1).await;
            }
            _ => {}
        }
    }
}

/// Takes a slot. A critical message beyond the critical limit gets the priority `high`.
async fn take(
    admission: &Admission,
    sender: &MessageSender<'_>,
    job: &mut NewJob,
    warnings: &mut Vec<String>,
) -> Slot {
    if job.priority == CRITICAL {
        let slots = admission.take_critical(sender.tenant, 1).await;
        if slots.granted > 0 {
            return Slot::Critical {
                was_asked: slots.was_asked,
            };
        }
        let (word, priority) = PRIORITIES[1];
        job.priority = priority;
        if let Some(args) = job.args.as_object_mut() {
            args.insert("priority".to_owned(), word.into());
        }
        warnings.push(format!(
            "tenant {} is at its limit of critical messages, so this one has the priority {word}",
            sender.tenant
        ));
    }
    // It would wait behind the others of its module.
    if admission.is_waiting(sender.tenant, sender.module) {
        return Slot::None;
    }
    let slots = admission.take(sender.tenant, sender.module, 1).await;
    match slots.granted {
        0 => Slot::None,
        _ => Slot::Usual,
    }
}

/// Answers a repeated request with the current state of the first one's message.
pub async fn repeat(
    state: &Arc<AdmissionState>,
    sender: &MessageSender<'_>,
    repeated: Acceptance,
) -> Result<Response, Problem> {
    let Acceptance::Message(job_id) = repeated else {
        return Err(refused_repeat(&repeated));
    };
    let waiting = with_timeout(ROW_TIMEOUT, state.admission.waiting(job_id)).await?;
    let tenant = Some(sender.tenant).filter(|tenant| !tenant.is_empty());
    let found = with_timeout(ROW_TIMEOUT, state.deliveries.find(job_id, tenant)).await?;
    let mut response = match (waiting, found) {
        (Some(waiting), Some(found)) => {
            let accepted = AcceptedNotification::of(&found, waiting.priority);
            queued(state, sender, accepted, &waiting)
        }
        (_, Some(found)) => {
            (StatusCode::OK, [(LOCATION, location(job_id))], Json(found)).into_response()
        }
        (_, None) => {
            let detail =
                format!("notification {job_id} was accepted before and is no longer stored");
            return Err(Problem::new(Code::NotificationNotFound, detail));
        }
    };
    response
        .headers_mut()
        .insert("idempotent-replayed", HeaderValue::from_static("true"));
    Ok(response)
}

/// Returns the refusal of a request that is not a valid repeat of an earlier one.
pub fn refused_repeat(repeated: &Acceptance) -> Problem {
    match repeated {
        Acceptance::Running => {
            let detail =
                "another request with this idempotency key is being handled; try again soon";
            Problem::new(Code::RequestRunning, detail).retry_after(1)
        }
        _ => Problem::at(
            Code::IdempotencyKeyReused,
            FieldLocation::Header,
            "Idempotency-Key",
            "must be another key: this one was used with another body within the last day",
        ),
    }
}

/// Answers that a message was accepted and waits: as 429, or as 202 if the client prefers that.
fn queued(
    state: &AdmissionState,
    sender: &MessageSender<'_>,
    mut accepted: AcceptedNotification,
    waiting: &WaitingMessage,
) -> Response {
    let id = accepted.id;
    let mut response = if sender.prefers_async {
        accepted.held = Some(HeldMessage::of(waiting));
        let mut response = (StatusCode::ACCEPTED, Json(accepted)).into_response();
        response.headers_mut().insert(
            "preference-applied",
            HeaderValue::from_static("respond-async"),
        );
        response
    } else {
        let problem = Problem::new(Code::RateLimitExceeded, waiting.sentence());
        let mut problem = typed(&state.problem_types, problem);
        if let Some(admission) = &mut problem.admission {
            admission.queued = Some(QueuedMessage {
                id,
                priority: accepted.priority,
                warnings: accepted.warnings,
            });
        }
        problem.into_response()
    };
    if let Some(usage) = waiting.usage {
        response.extensions_mut().insert(KnownUsage::Whole(usage));
    }
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from(waiting.wait_s));
    headers.insert("notification-status", HeaderValue::from_static("queued"));
    if let Ok(location) = HeaderValue::try_from(location(id)) {
        headers.insert(LOCATION, location);
    }
    response
}

/// Sets the type of a problem of admission; `problem_types` is the beginning of the types.
pub fn typed(problem_types: &str, mut problem: Problem) -> Problem {
    let name = match problem.code {
        Code::RateLimitExceeded => "rate-limit-exceeded",
        Code::QueueFull => "queue-full",
        Code::BatchLimitExceeded => "batch-limit-exceeded",
        _ => return problem,
    };
    problem.admission = Some(Box::new(AdmissionProblem {
        kind: format!("{problem_types}{name}"),
        queued: None,
    }));
    problem
}

fn location(id: i64) -> String {
    format!("/api/v1/notifications/{id}")
}
