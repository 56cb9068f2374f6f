//! Runs one job and reports its end.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::SemaphorePermit;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::attempt_span;
use super::completions::Completion;
use super::ending::ending_of;
use super::metrics::{AttemptLabels, KindLabels};
use super::running::StopReason;
use super::runs::ServedKind;
use super::secrets::reveal;
use super::settle::Difference;
use super::shared::{FinishedRun, WorkerContext, bounded};
use super::slots::MAX_WAIT;
use super::tallies::AttemptOutcome as Tallied;
use crate::input;
use crate::jobs::secret;
use crate::jobs::{Claimed, Context, Ending, Finish, Handler, Job, JobInfo, Outcome, TenantRule};
use crate::throttle::Name;
use crate::trace::OpenSpan;

/// Longest time for which a handler may go on after it was asked to stop, before it is dropped.
/// After a lost lease the limit is at most a tenth of the worker's time to live, because the next
/// worker may begin when that time is over.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Runs a claimed job and reports its end.
///
/// Each job is a task of its own, so the steps that few jobs take are boxed: a task of several
/// kilobytes costs more to allocate and to move than a short job takes.
pub(super) async fn execute(
    shared: Arc<WorkerContext>,
    claimed: Box<Claimed>,
    cancelled: CancellationToken,
) {
    match attempt_span::open(&shared.config.tracer, &claimed.job) {
        // Most jobs belong to no trace.
        None => attempt(shared, claimed, cancelled, None).await,
        Some(open) => {
            let lines = attempt_span::of_lines(&open, &claimed.job);
            let attempt = attempt(shared, claimed, cancelled, Some(Box::new(open)));
            Box::pin(attempt.instrument(lines)).await;
        }
    }
}

async fn attempt(
    shared: Arc<WorkerContext>,
    mut claimed: Box<Claimed>,
    cancelled: CancellationToken,
    span: Option<Box<OpenSpan>>,
) {
    let begun = Instant::now();
    let lane_id = claimed.lane_id;
    let known = shared.runs.get(&claimed.job.kind).cloned();
    let handler = known.as_ref().map(|known| &*known.handler);
    // The handler takes the job itself.
    let info = JobInfo::from(&claimed.job);
    let info = Arc::new(match &span {
        Some(open) => info.traced(open.context, &shared.config.tracer),
        None => info,
    });
    let ran = OnceLock::new();
    // A handler must not keep its permit and its lease for ever, so every panic ends here.
    let outcome = match (claimed.unreadable.take(), handler) {
        (None, _) if claimed.cancelled => Outcome::Cancelled,
        // No worker can read the job, so waiting for another one is useless.
        (Some(error), _) => Outcome::Dead { error },
        (None, Some(handler)) => {
            let run = run(&shared, handler, claimed, info.clone(), &ran, cancelled);
            let caught = AssertUnwindSafe(run).catch_unwind().await;
            let panicked = || Outcome::Retry {
                after: None,
                error: "the handler panicked".to_owned(),
            };
            caught.unwrap_or_else(|_| info.cut_off(panicked()))
        }
        // Claims leave jobs of unknown kinds alone.
        (None, None) => Outcome::HandedBack,
    };
    let handled_from = ran.get().copied();
    let ran = ran
        .get()
        .map(|since: &Instant| (since.elapsed(), outcome.is_refusal()));
    shared.metrics.running.set(shared.slots.taken() as i64);
    if matches!(outcome, Outcome::Done) {
        shared.slots.note_completed();
    }
    let stop = shared.running.end((info.id, info.fence));
    let ending = match outcome {
        Outcome::Done => Ending::Completed,
        other => Box::pin(ending_of(&shared, &info, lane_id, other, stop, handler)).await,
    };
    let attempt = Attempted {
        handled_from,
        ran,
        took: begun.elapsed(),
    };
    account(&shared, &info, lane_id, &ending, known.as_deref(), attempt);
    if let Some(span) = span {
        attempt_span::end(*span, &info, outcome_label(&ending));
    }
    let finish = Finish {
        job_id: info.id,
        fence: info.fence,
        ending,
    };
    // The receiver lives until every sender is dropped, so this can fail only while the process is
    // torn down.
    if let Err(TrySendError::Full(end)) = shared.ends.try_send(FinishedRun { finish, lane_id }) {
        let _ = Box::pin(shared.ends.send(end)).await;
    }
}

/// The duration of an attempt.
pub(super) struct Attempted {
    /// The time at which the handler began, if it did.
    pub(super) handled_from: Option<Instant>,
    /// The time for which it ran, and true if the receiver refused.
    pub(super) ran: Option<(Duration, bool)>,
    /// The time since the claim.
    pub(super) took: Duration,
}

/// Accounts for an attempt that ended: its answer, its cost and its metrics.
pub(super) fn account(
    shared: &WorkerContext,
    info: &JobInfo,
    lane_id: i64,
    ending: &Ending,
    known: Option<&ServedKind>,
    attempt: Attempted,
) {
    let completion = match ending {
        Ending::Completed => Completion::Succeeded,
        _ => Completion::Failed,
    };
    shared
        .answers
        .note(lane_id, info, attempt.handled_from, completion);
    if let Some((ran, is_refused)) = attempt.ran {
        let report = info.attempt_report();
        shared.tallies.end(
            &info.throttle,
            tallied(ending, is_refused),
            report.duration(ran),
            report.refusals,
        );
    }
    let took = attempt.took.as_secs_f64();
    settle(shared, info, attempt.ran.is_some());
    match known {
        Some(known) => {
            known.duration.observe(took);
            known.cost(info.attempt_report().cost.unwrap_or(info.cost));
            if *ending == Ending::Completed {
                known.completed.inc();
            }
        }
        None => shared
            .metrics
            .duration
            .get_or_create(&KindLabels {
                kind: info.kind.clone(),
            })
            .observe(took),
    }
    let outcome = outcome_label(ending);
    shared
        .metrics
        .by_throttle
        .ended(&info.throttle, outcome, took);
    if known.is_none() || *ending != Ending::Completed {
        shared
            .metrics
            .finished
            .get_or_create(&AttemptLabels {
                kind: info.kind.clone(),
                outcome,
            })
            .inc();
    }
}

/// Waits for a slot, decrypts the arguments, and runs the handler; sets `ran` when the handler begins.
async fn run(
    shared: &WorkerContext,
    handler: &dyn Handler,
    mut claimed: Box<Claimed>,
    info: Arc<JobInfo>,
    ran: &OnceLock<Instant>,
    cancelled: CancellationToken,
) -> Outcome {
    // Cancels all work that the handler started once the attempt is over, also after a timeout.
    let _over = cancelled.clone().drop_guard();
    let slot = match shared.slots.try_take() {
        Some(slot) => Some(slot),
        None => Box::pin(wait_for_slot(shared, &cancelled)).await,
    };
    let Some(_slot) = slot else {
        return Outcome::HandedBack;
    };
    shared.metrics.running.set(shared.slots.taken() as i64);
    let job = &mut claimed.job;
    if job.attempt > 1
        && let Some(outcome) = Box::pin(lost_its_last(shared, handler, job)).await
    {
        return outcome;
    }
    let secrets = match secret::has_secrets(&job.args) {
        false => None,
        true => match Box::pin(reveal(shared, job)).await {
            Ok(secrets) => secrets,
            Err(outcome) => return outcome,
        },
    };
    let outcome = handle(shared, handler, claimed, info, ran, cancelled).await;
    match secrets {
        None => outcome,
        Some(secrets) => outcome.without(&secrets),
    }
}

/// Waits for a slot; returns `None` if none became free in time, or the attempt is to stop.
async fn wait_for_slot<'a>(
    shared: &'a WorkerContext,
    cancelled: &CancellationToken,
) -> Option<SemaphorePermit<'a>> {
    tokio::select! {
        biased;
        slot = shared.slots.take(MAX_WAIT) => slot,
        () = cancelled.cancelled() => None,
    }
}

/// Runs the handler, whose arguments are in plain, within its timeout.
async fn handle(
    shared: &WorkerContext,
    handler: &dyn Handler,
    claimed: Box<Claimed>,
    info: Arc<JobInfo>,
    ran: &OnceLock<Instant>,
    cancelled: CancellationToken,
) -> Outcome {
    if let Some(rule) = handler.tenants(&claimed.job.args)
        && let Some(outcome) = Box::pin(refused_to_tenant(shared, rule, claimed.job.id)).await
    {
        return outcome;
    }
    let prepared = match handler.prepare(&claimed.job.args) {
        Ok(prepared) => prepared,
        Err(issues) => {
            return Outcome::Dead {
                error: input::listed("args", &issues),
            };
        }
    };
    if cancelled.is_cancelled() {
        return Outcome::HandedBack;
    }
    let context = Context::new(
        info.clone(),
        cancelled.clone(),
        shared.throttles.clone(),
        shared.checkpoints.clone(),
    );
    let limit = claimed.job.timeout.or_else(|| handler.timeout());
    ran.get_or_init(Instant::now);
    shared.tallies.begin(&info.throttle);
    let mut work = prepared.run(claimed.job, context);
    // A handler that completes at once needs neither timer nor token.
    let first = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
    if let Poll::Ready(ended) = first.await {
        return ended;
    }
    Box::pin(watch(shared, work, limit, &info, &cancelled)).await
}

/// Waits until the handler ends, its time is over, or it was asked to stop and did not.
async fn watch(
    shared: &WorkerContext,
    work: BoxFuture<'_, Outcome>,
    limit: Option<Duration>,
    info: &JobInfo,
    cancelled: &CancellationToken,
) -> Outcome {
    let timed_out = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let ignored = async {
        cancelled.cancelled().await;
        let run = (info.id, info.fence);
        let fenced = shared.running.why(run) == Some(StopReason::Fenced);
        let patience = if fenced {
            STOP_GRACE.min(shared.config.ttl / 10)
        } else {
            STOP_GRACE
        };
        tokio::time::sleep(patience).await;
    };
    tokio::select! {
        biased;
        ended = work => ended,
        () = timed_out => {
            let error = format!("timed out after {} s", limit.unwrap_or_default().as_secs_f64());
            info.cut_off(Outcome::Retry { after: None, error })
        }
        () = ignored => info.cut_off(Outcome::HandedBack),
    }
}

/// Returns the outcome of a job whose last attempt was lost with its worker.
///
/// The rescue of a dead worker's jobs knows the attempts that the job allows but not those of its
/// kind, so the lost attempt may have been the last. A job that came back in another way, for
/// instance by an operator's retry, may run once more: so does one that has used all attempts that it
/// allows itself, because the rescue had made it a dead letter, or a person allowed it fewer since.
pub(super) async fn lost_its_last(
    shared: &WorkerContext,
    handler: &dyn Handler,
    job: &Job,
) -> Option<Outcome> {
    let used = job.attempt - 1;
    let is_sent_by_rescue = used < job.max_attempts;
    if used == 0 || !is_sent_by_rescue || !handler.retry().is_last(used, job.max_attempts) {
        return None;
    }
    match bounded(shared, shared.queue.was_lost(job.id)).await {
        Ok(Some(error)) => Some(Outcome::Dead { error }),
        Ok(None) => None,
        // The job must not run before this is known.
        Err(_) => Some(Outcome::HandedBack),
    }
}

/// Returns the outcome of a job whose tenant may not have such arguments. Entry points other than
/// HTTP do not ask.
async fn refused_to_tenant(
    shared: &WorkerContext,
    rule: TenantRule,
    job_id: i64,
) -> Option<Outcome> {
    let Ok(Some(tenant)) = bounded(shared, shared.queue.tenant_of(job_id)).await else {
        // The job must not run before its tenant is known, nor end because Postgres was away.
        return Some(Outcome::HandedBack);
    };
    let issue = rule.problem(&tenant)?;
    Some(Outcome::Dead {
        error: input::listed("args", std::slice::from_ref(issue)),
    })
}

/// Queues the difference between the charge and the cost of a job: all of the charge if its handler
/// never began, otherwise the difference if the handler reported its cost.
fn settle(shared: &WorkerContext, job: &JobInfo, has_begun: bool) {
    let tokens = if has_begun {
        job.attempt_report()
            .cost
            .map_or(0.0, |cost| cost - job.cost)
    } else {
        -job.cost
    };
    if tokens == 0.0 {
        return;
    }
    let Ok(throttle) = Name::new(job.throttle.clone()) else {
        return;
    };
    let difference = Difference {
        throttle,
        key: job.key.clone(),
        tokens,
    };
    if let Err(error) = shared.differences.try_send(difference) {
        tracing::debug!(job.id, %error, "the real cost of the job is not settled");
    }
}

/// Returns the meaning of an ending for the receiver's health. A refusal remains one if the worker
/// was stopping or its lease was lost.
fn tallied(ending: &Ending, is_refused: bool) -> Tallied {
    match ending {
        _ if is_refused => Tallied::Refused,
        Ending::Completed => Tallied::Completed,
        Ending::Failed { .. } | Ending::Ambiguous { .. } | Ending::Dead { .. } => Tallied::Failed,
        Ending::Throttled { .. }
        | Ending::Snoozed { .. }
        | Ending::Cancelled
        | Ending::HandedBack => Tallied::Otherwise,
    }
}

fn outcome_label(ending: &Ending) -> &'static str {
    match ending {
        Ending::Completed => "completed",
        Ending::Failed { .. } => "failed",
        Ending::Ambiguous { delay: Some(_), .. } => "ambiguous",
        Ending::Throttled { .. } => "throttled",
        Ending::Snoozed { .. } => "snoozed",
        Ending::Dead { .. } | Ending::Ambiguous { delay: None, .. } => "dead",
        Ending::Cancelled => "cancelled",
        Ending::HandedBack => "handed_back",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future of a function with three arguments, in bytes.
    fn size_of_future<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_task_of_a_job_is_small() {
        let bytes = size_of_future(execute);
        assert!(bytes <= 1024, "{bytes} bytes");
    }
}
