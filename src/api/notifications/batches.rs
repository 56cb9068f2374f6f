//! Batches of messages: send, show, pause, resume, cancel.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::accept::{AdmissionState, MessageSender, refused_repeat, typed};
use super::batch_input::{BatchBody, Recipients};
use super::fields::MessageFields;
use super::planned::PlannedNotification;
use crate::admission::{
    Acceptance, Batch, BatchAcceptance, BatchRequest, CancelledBatch, INLINE_MAX,
};
use crate::api::clock;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::FieldError;
use crate::api::http::operate::{Reason, signed};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, unanswered, with_timeout};
use crate::api::jobs::enqueue::{traceparent, warnings};
use crate::api::jobs::permissions;
use crate::api::jobs::state::JobsState;
use crate::api::throttles::pause::paused_by_operators;
use crate::jobs::{Error, NewJob};
use crate::notify::args::PRIORITIES;
use crate::providers::Pools;
use crate::recipient::fields::is_gated;

/// A new batch: the fields of a message without `to` and `unique_key`, and its recipients.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewBatch {
    /// The recipients, 1 to 500: addresses, or objects with `to`, or the id of a `recipient` whose
    /// profile has the address, and, if they differ from the batch's, `data`, `key` and
    /// `unique_key`.
    recipients: Vec<Value>,
    /// True to send to the valid recipients although others are invalid; false if absent.
    partial: Option<bool>,
    #[serde(flatten)]
    fields: MessageFields,
}

/// A batch that was accepted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AcceptedBatchOfMessages {
    /// The number of the batch.
    id: i64,
    /// The state: `running`, or `expanding` if its messages are still being enqueued.
    state: &'static str,
    /// The number of recipients that were accepted.
    recipients: usize,
    /// The priority with which it is sent.
    priority: &'static str,
    /// The recipients one by one; only the refused ones if a job enqueues the messages.
    results: Vec<RecipientAnswer>,
    /// Warnings for the sender.
    warnings: Vec<String>,
}

/// The answer for one recipient of a batch.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RecipientAnswer {
    /// The index of the recipient, from 0.
    recipient: usize,
    /// The number of the message's job; `null` if it was refused.
    id: Option<i64>,
    /// The state: `queued` for its pool, `waiting` for the limits of the tenant, `duplicate` if
    /// another message, which is `id`, holds its unique key, `refused`, or what the gates of the
    /// recipient found: `held`, `collected` or `ended`.
    status: &'static str,
    /// The reason of its end, such as `capped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    /// The rule of the gate that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// The time at which it goes, or at which there is room for a `capped` one.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    /// The errors of a refused one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
}

impl RecipientAnswer {
    /// Answers for a message in this state.
    fn of(recipient: usize, id: i64, status: &'static str) -> Self {
        Self {
            recipient,
            id: Some(id),
            status,
            reason: None,
            rule: None,
            at: None,
            errors: Vec::new(),
        }
    }

    /// Answers for a message that does not go now.
    fn planned(recipient: usize, id: i64, plan: &PlannedNotification) -> Self {
        let gate = plan.then.last().or(plan.held_by.as_ref());
        Self {
            reason: plan.reason,
            rule: gate.map(|gate| gate.rule.clone()),
            at: plan.planned_at.or(gate.and_then(|gate| gate.at)),
            ..Self::of(recipient, id, plan.status)
        }
    }

    /// Answers for a recipient that was refused.
    fn refused(recipient: usize, errors: Vec<FieldError>) -> Self {
        Self {
            recipient,
            id: None,
            status: "refused",
            reason: None,
            rule: None,
            at: None,
            errors,
        }
    }
}

/// The state of a batch after a change.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BatchState {
    /// The state: `expanding`, `running`, `paused` or `cancelled`.
    state: String,
}

/// Sends a message to up to 500 recipients, all or none unless `partial` is true. Each counts as
/// one message when it goes to its pool, so a large batch is spread over minutes.
#[utoipa::path(post, path = "/api/v1/notifications/batch", operation_id = "notify_many", tag = "notifications", request_body = NewBatch,
    responses(
        (status = 202, body = AcceptedBatchOfMessages, description = "The batch was accepted.", headers(("Location" = String, description = "The URL of the batch."))),
        (status = 200, body = Batch, description = "The request repeats an earlier one; this is the present state of its batch.")))]
pub async fn send_batch(
    State(state): State<Arc<JobsState>>,
    State(pools): State<Arc<Pools>>,
    State(admission): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Problem> {
    let trace = traceparent(request.headers());
    let headers = request.headers().clone();
    let value = body::json(request, body::BATCH_BYTES_MAX).await?;
    let tenant = caller.tenant.as_deref().unwrap_or_default();
    let sender = MessageSender::of_batch(tenant, &caller.module, &headers, &value)?;
    let read = read(value, &state, &pools).await;
    let read = read.map_err(|problem| typed(&admission.problem_types, problem))?;
    admission.gates.check_digests(&read.jobs)?;
    let found = admission.gates.addressless(tenant, &read.jobs);
    let found = with_timeout(ROW_TIMEOUT, found).await?;
    let Recipients {
        mut jobs,
        places,
        refused,
        ..
    } = read.refuse_addressless(&found)?;
    for job in &mut jobs {
        job.traceparent.clone_from(&trace);
    }
    permissions::check(&state, &caller, &jobs[..1], false).await?;
    let mut warnings = warnings(&state, std::iter::once(jobs[0].throttle.as_str())).await;

    let slots = match tenant {
        "" => None,
        _ => Some(take(&admission, &sender, &mut jobs, &mut warnings).await),
    };
    let wanted = BatchRequest {
        tenant,
        module: &caller.module,
        digests: &sender.digests,
        admitted: slots.map_or(u32::MAX, |slots| slots.granted).min(500),
        jobs: &jobs,
    };
    let accepting = admission.batches.accept(&wanted);
    let accepted = tokio::time::timeout(LIST_TIMEOUT, accepting).await;
    let Ok(accepted) = accepted else {
        return Err(unanswered(LIST_TIMEOUT));
    };
    let (batch_id, used, made) = match accepted {
        Ok(BatchAcceptance::Accepted {
            batch_id,
            used,
            jobs,
        }) => (batch_id, used, jobs),
        Ok(BatchAcceptance::Repeated(repeated)) => {
            settle(&admission, &sender, slots, 0).await;
            return repeat(&admission, &caller, repeated).await;
        }
        Err(error) => {
            if !matches!(error, Error::Lost(_)) {
                settle(&admission, &sender, slots, 0).await;
            }
            return Err(typed(&admission.problem_types, error.into()));
        }
    };
    let plans = plans(&admission, &jobs, &made).await;
    let taken = duplicates(&admission, batch_id, &jobs, &made).await;
    // A held message is admitted when its gates let it go, and a duplicate does not go.
    let first = made.iter().zip(&taken).take(used as usize);
    let unused = first.filter(|(id, is_taken)| **is_taken || plans.contains_key(*id));
    let unused = unused.count() as u32;
    settle(&admission, &sender, slots, used - unused).await;
    let waits = made.len() < jobs.len() || (used as usize) < made.len();
    let answer = |(n, (id, place)): (usize, (&i64, &usize))| match plans.get(id) {
        _ if taken[n] => RecipientAnswer::of(*place, *id, "duplicate"),
        Some(plan) => RecipientAnswer::planned(*place, *id, plan),
        None if n < used as usize => RecipientAnswer::of(*place, *id, "queued"),
        None => RecipientAnswer::of(*place, *id, "waiting"),
    };
    let accepted = made.iter().zip(&places).enumerate().map(answer);
    let refused = refused.into_iter();
    let refused = refused.map(|(place, errors)| RecipientAnswer::refused(place, errors));
    let mut results: Vec<RecipientAnswer> = accepted.chain(refused).collect();
    results.sort_by_key(|one| one.recipient);
    let word = PRIORITIES
        .iter()
        .find(|(_, number)| *number == jobs[0].priority);
    let body = AcceptedBatchOfMessages {
        id: batch_id,
        state: if jobs.len() > INLINE_MAX {
            "expanding"
        } else {
            "running"
        },
        recipients: jobs.len(),
        priority: word.map_or("normal", |(word, _)| word),
        results,
        warnings,
    };
    let location = format!("/api/v1/notifications/batches/{batch_id}");
    let mut response = (StatusCode::ACCEPTED, [(LOCATION, location)], Json(body)).into_response();
    if waits && !tenant.is_empty() {
        response
            .headers_mut()
            .insert("notification-status", HeaderValue::from_static("queued"));
    }
    Ok(response)
}

/// Makes the messages of a batch, on a blocking thread if they are large.
async fn read(
    body: Value,
    state: &Arc<JobsState>,
    pools: &Arc<Pools>,
) -> Result<Recipients, Problem> {
    let batch = BatchBody::open(body)?;
    if batch.bytes <= body::APART_BYTES {
        return batch.read(&state.kinds, pools);
    }
    let (state, pools) = (state.clone(), pools.clone());
    let reading = tokio::task::spawn_blocking(move || batch.read(&state.kinds, &pools));
    let read = reading.await;
    read.map_err(|_| Problem::new(Code::Internal, "the batch could not be read"))?
}

/// Returns the plans of the messages that do not go now, by their jobs, whoever planned them. A
/// planner makes those that cannot be made here.
async fn plans(
    state: &AdmissionState,
    jobs: &[NewJob],
    made: &[i64],
) -> HashMap<i64, PlannedNotification> {
    let is_later = jobs[0].run_at.is_some_and(|at| at > clock::now());
    if is_later || !jobs.iter().any(|job| is_gated(&job.args)) {
        return HashMap::new();
    }
    let plans = tokio::time::timeout(ROW_TIMEOUT, state.gates.plan_accepted(made)).await;
    let plans = plans.map(Result::unwrap_or_default).unwrap_or_default();
    let each = plans.planned.iter().filter_map(|one| {
        let plan = PlannedNotification::of(one).or_else(|| PlannedNotification::refused(one))?;
        Some((one.job_id, plan))
    });
    each.collect()
}

/// Returns for each message of a batch whether it is another recipient's or another batch's, which
/// holds its unique key.
async fn duplicates(
    state: &AdmissionState,
    batch_id: i64,
    jobs: &[NewJob],
    made: &[i64],
) -> Vec<bool> {
    if made.is_empty() || jobs.iter().all(|job| job.unique_key.is_none()) {
        return vec![false; made.len()];
    }
    let others = state.batches.others(batch_id, made);
    // Without an answer they are told as the rest; the batch itself counts them.
    let others = tokio::time::timeout(ROW_TIMEOUT, others).await;
    let others = others.map(Result::unwrap_or_default).unwrap_or_default();
    let mut seen = HashSet::new();
    let is_taken = |id: &i64| others.contains(id) || !seen.insert(*id);
    made.iter().map(is_taken).collect()
}

/// Slots that were taken for a batch.
#[derive(Clone, Copy)]
struct BatchSlots {
    granted: u32,
    is_critical: bool,
    was_asked: bool,
}

/// Takes slots for the messages that are enqueued with the request. If not all critical messages
/// fit, all of them get the priority `high`; those for a later time are judged then.
async fn take(
    state: &AdmissionState,
    sender: &MessageSender<'_>,
    jobs: &mut [NewJob],
    warnings: &mut Vec<String>,
) -> BatchSlots {
    let none = BatchSlots {
        granted: 0,
        is_critical: false,
        was_asked: false,
    };
    let size = jobs.len() as u32;
    let is_later = jobs[0].run_at.is_some_and(|at| at > clock::now());
    if is_later {
        return none;
    }
    let is_inline = jobs.len() <= INLINE_MAX;
    let admission = &state.admission;
    if jobs[0].priority == 0 {
        let slots = admission.take_critical(sender.tenant, size).await;
        if slots.granted == size && !is_inline {
            // They count when they are enqueued and released.
            if slots.was_asked {
                admission.give_back_critical(sender.tenant, size).await;
            }
            return none;
        }
        if slots.granted == size {
            return BatchSlots {
                granted: size,
                is_critical: true,
                was_asked: slots.was_asked,
            };
        }
        admission
            .give_back_critical(sender.tenant, slots.granted)
            .await;
        let (word, priority) = PRIORITIES[1];
        for job in jobs.iter_mut() {
            job.priority = priority;
            if let Some(args) = job.args.as_object_mut() {
                args.insert("priority".to_owned(), word.into());
            }
        }
        warnings.push(format!(
            "tenant {} is at its limit of critical messages, so this batch has the priority {word}",
            sender.tenant
        ));
    }
    if !is_inline {
        return none;
    }
    let slots = admission.take(sender.tenant, sender.module, size).await;
    BatchSlots {
        granted: slots.granted,
        is_critical: false,
        was_asked: slots.was_asked,
    }
}

/// Gives back the slots that were not used, and counts critical messages.
async fn settle(
    state: &AdmissionState,
    sender: &MessageSender<'_>,
    slots: Option<BatchSlots>,
    used: u32,
) {
    let Some(slots) = slots.filter(|slots| slots.was_asked) else {
        return;
    };
    let (admission, left) = (&state.admission, slots.granted.saturating_sub(used));
    if slots.is_critical {
        admission.give_back_critical(sender.tenant, left).await;
        admission.count(sender.tenant, sender.module, used).await;
    } else {
        admission
            .give_back(sender.tenant, sender.module, left)
            .await;
    }
}

async fn repeat(
    state: &AdmissionState,
    caller: &Caller,
    repeated: Acceptance,
) -> Result<Response, Problem> {
    let Acceptance::Batch(id) = repeated else {
        return Err(refused_repeat(&repeated));
    };
    let batch = find(state, caller, id).await?;
    let headers = [
        ("idempotent-replayed", "true".to_owned()),
        ("location", format!("/api/v1/notifications/batches/{id}")),
    ];
    Ok((StatusCode::OK, headers, Json(batch)).into_response())
}

/// Shows a batch: its state, its messages by state, and when the last of them is admitted.
#[utoipa::path(get, path = "/api/v1/notifications/batches/{id}", operation_id = "show_batch", tag = "notifications",
    params(("id" = i64, Path, description = "The number of the batch.")),
    responses((status = 200, body = Batch)))]
pub async fn show_batch(
    State(admission): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Batch>, Problem> {
    Ok(Json(find(&admission, &caller, batch_id(&id)?).await?))
}

async fn find(state: &AdmissionState, caller: &Caller, id: i64) -> Result<Batch, Problem> {
    let find = state
        .admission
        .show_batch(&state.batches, caller.tenant.as_deref(), id);
    let found = with_timeout(ROW_TIMEOUT, find).await?;
    found.ok_or_else(|| not_found(id))
}

/// Pauses a batch: its messages that wait stay where they are until it is resumed.
#[utoipa::path(post, path = "/api/v1/notifications/batches/{id}/pause", operation_id = "pause_batch", tag = "notifications",
    params(("id" = i64, Path, description = "The number of the batch.")), request_body = Reason,
    responses((status = 200, body = BatchState)))]
pub async fn pause_batch(
    State(admission): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<BatchState>, Problem> {
    let id = batch_id(&id)?;
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let pause = admission.batches.pause(id, &signed);
    let state = with_timeout(LIST_TIMEOUT, pause).await?;
    answer(id, state, "paused")
}

/// Resumes a paused batch. A token with a tenant resumes none that operators have paused.
#[utoipa::path(post, path = "/api/v1/notifications/batches/{id}/resume", operation_id = "resume_batch", tag = "notifications",
    params(("id" = i64, Path, description = "The number of the batch.")), request_body = Reason,
    responses((status = 200, body = BatchState)))]
pub async fn resume_batch(
    State(admission): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<BatchState>, Problem> {
    let id = batch_id(&id)?;
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let resume = admission.batches.resume(id, &signed);
    let state = with_timeout(LIST_TIMEOUT, resume).await?;
    if state.as_deref() == Some("paused") {
        return Err(paused_by_operators(&format!("batch {id}")));
    }
    answer(id, state, "resumed")
}

/// Cancels a batch: messages that wait are not sent, and those being sent are asked to stop.
#[utoipa::path(post, path = "/api/v1/notifications/batches/{id}/cancel", operation_id = "cancel_batch", tag = "notifications",
    params(("id" = i64, Path, description = "The number of the batch.")), request_body = Reason,
    responses((status = 200, body = CancelledBatch)))]
pub async fn cancel_batch(
    State(admission): State<Arc<AdmissionState>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<CancelledBatch>, Problem> {
    let id = batch_id(&id)?;
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let cancel = admission.batches.cancel(id, &signed);
    let cancelled = with_timeout(LIST_TIMEOUT, cancel).await?;
    cancelled.map(Json).ok_or_else(|| not_found(id))
}

fn answer(id: i64, state: Option<String>, word: &str) -> Result<Json<BatchState>, Problem> {
    let state = state.ok_or_else(|| not_found(id))?;
    if state == "cancelled" {
        let detail = format!("batch {id} is cancelled and cannot be {word}");
        return Err(Problem::new(Code::WrongState, detail));
    }
    Ok(Json(BatchState { state }))
}

fn batch_id(text: &str) -> Result<i64, Problem> {
    let id = text.parse().ok().filter(|id| *id > 0);
    id.ok_or_else(|| {
        Problem::at(
            Code::InvalidPath,
            crate::api::http::fields::FieldLocation::Path,
            "id",
            "must be the number of a batch",
        )
    })
}

fn not_found(id: i64) -> Problem {
    Problem::new(Code::BatchNotFound, format!("there is no batch {id}"))
}
