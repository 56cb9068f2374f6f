//! Runs one job and says how it ended.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::answers::Answer;
use super::metrics::{Ended, OfKind};
use super::running::Stop;
use super::settle::Difference;
use super::shared::{End, Shared, bounded};
use super::tallies::Ended as Tallied;
use crate::jobs::postgres::{Claimed, Ending, Finish};
use crate::jobs::retry::Policy;
use crate::jobs::serving::not_served;
use crate::jobs::{About, Context, Handler, Issue, Job, OnAmbiguous, Outcome, Scope};
use crate::throttle::{MAX_PAUSE, Name, Refused};

/// How long a refused job waits that was not told how long, while the throttles cannot be told of it.
const DEFAULT_PAUSE: Duration = Duration::from_secs(5);

/// How long a handler that was told to stop may go on before it is dropped. Where the lease was lost, the next worker may
/// begin when this one's time to live is over, so the wait is a tenth of that at most.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn execute(shared: Arc<Shared>, claimed: Claimed, cancelled: CancellationToken) {
    let begun = Instant::now();
    let Claimed { lane_id, job, unreadable, cancelled: is_unwanted } = claimed;
    let of_run = shared.runs.get(&job.kind).cloned();
    let handler = of_run.as_ref().map(|of_run| &*of_run.handler);
    // What is left of a job once its handler has it.
    let about = Arc::new(About::from(&job));
    let ran = OnceLock::new();
    let lacking = match (&unreadable, handler) {
        (Some(_), _) => None,
        (None, None) => Some(format!("the kind {}", job.kind)),
        // A handler that panics here panics there, where that is told.
        (None, Some(handler)) => std::panic::catch_unwind(AssertUnwindSafe(|| handler.lacks(&job.args))).unwrap_or_default(),
    };
    match lacking {
        Some(_) => shared.strangers.met(&job.throttle, begun),
        None => shared.strangers.served(&job.throttle),
    }
    // Nothing that a handler does may keep its permit and its lease for ever, so every panic ends here.
    let outcome = match (unreadable, handler) {
        (None, _) if is_unwanted => Outcome::Cancelled,
        // No worker can, so there is nobody to wait for.
        (Some(error), _) => Outcome::Dead { error },
        (None, _) if lacking.is_some() => Outcome::Snooze { delay: shared.strangers.wait(job.id, begun) },
        (None, Some(handler)) => {
            let caught = AssertUnwindSafe(run(&shared, handler, job, about.clone(), &ran, cancelled)).catch_unwind().await;
            let panicked = || Outcome::Retry { after: None, error: "the handler panicked".to_owned() };
            caught.unwrap_or_else(|_| cut_off(&about, panicked()))
        }
        (None, None) => Outcome::HandedBack,
    };
    let ran = ran.get().map(|since: &Instant| (since.elapsed(), outcome.is_refusal()));
    let stop = shared.running.end((about.id, about.fence));
    let judged = AssertUnwindSafe(judge(&shared, &about, lane_id, outcome, stop, handler)).catch_unwind().await;
    let mut ending = judged.unwrap_or_else(|_| {
        failed(Policy::default(), &about, None, "the handler panicked when it was asked for its retry policy".to_owned())
    });
    if let (Some(need), Ending::Snoozed { why, .. }) = (&lacking, &mut ending) {
        *why = not_served(need);
        shared.metrics.not_served.get_or_create(&OfKind { kind: about.kind.clone() }).inc();
    }
    match ending {
        Ending::Completed => shared.answers.note(lane_id, &about, Answer::Succeeded),
        _ => shared.answers.note(lane_id, &about, Answer::Failed),
    }
    if let Some((ran, is_refused)) = ran {
        let said = about.said();
        shared.tallies.end(&about.throttle, tallied(&ending, is_refused), said.duration(ran), said.refusals);
    }
    let took = begun.elapsed().as_secs_f64();
    settle(&shared, &about, ran.is_some());
    match &of_run {
        Some(of_run) => {
            of_run.duration.observe(took);
            of_run.cost(about.said().cost.unwrap_or(about.cost));
            if ending == Ending::Completed {
                of_run.completed.inc();
            }
        }
        None => shared.metrics.duration.get_or_create(&OfKind { kind: about.kind.clone() }).observe(took),
    }
    if of_run.is_none() || ending != Ending::Completed {
        shared.metrics.finished.get_or_create(&Ended { kind: about.kind.clone(), outcome: word(&ending) }).inc();
    }
    // The receiver lives until every sender is gone, so this can fail only while the process is being torn down.
    let _ = shared.ends.send(End { finish: Finish { job_id: about.id, fence: about.fence, ending }, lane_id }).await;
}

/// `ran` is set when the handler begins.
async fn run(
    shared: &Shared,
    handler: &dyn Handler,
    job: Job,
    about: Arc<About>,
    ran: &OnceLock<Instant>,
    cancelled: CancellationToken,
) -> Outcome {
    // Whatever the handler has set going hears that the attempt is over, by its time-out too.
    let _over = cancelled.clone().drop_guard();
    if let Some(outcome) = lost_its_last(shared, handler, &job).await {
        return outcome;
    }
    let issues = handler.check(&job.args);
    if !issues.is_empty() {
        return Outcome::Dead { error: listed(&issues) };
    }
    if cancelled.is_cancelled() {
        return Outcome::HandedBack;
    }
    let context = Context::new(about, cancelled.clone(), shared.throttles.clone(), shared.checkpoints.clone());
    let limit = job.timeout.or_else(|| handler.timeout());
    let (run, said) = ((job.id, job.fence), context.job.clone());
    ran.get_or_init(Instant::now);
    shared.tallies.begin(&job.throttle);
    let work = handler.run(job, context);
    let timed_out = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let ignored = async {
        cancelled.cancelled().await;
        let fenced = shared.running.why(run) == Some(Stop::Fenced);
        let patience = if fenced { STOP_PATIENCE.min(shared.config.ttl / 10) } else { STOP_PATIENCE };
        tokio::time::sleep(patience).await;
    };
    tokio::select! {
        // A handler that is done at once needs neither timer nor token.
        biased;
        ended = work => ended,
        () = timed_out => {
            let error = format!("timed out after {} s", limit.unwrap_or_default().as_secs_f64());
            cut_off(&said, Outcome::Retry { after: None, error })
        }
        () = ignored => cut_off(&said, Outcome::HandedBack),
    }
}

/// What becomes of an attempt that did not end by itself: `otherwise`, unless its work was handed over and the job must not run twice.
fn cut_off(job: &About, otherwise: Outcome) -> Outcome {
    match (job.said().handed_over, otherwise) {
        (Some(policy @ OnAmbiguous::Dead), Outcome::Retry { error, .. }) => Outcome::Ambiguous { policy, error },
        (Some(policy @ OnAmbiguous::Dead), _) => {
            Outcome::Ambiguous { policy, error: "it was stopped before an answer came".to_owned() }
        }
        (_, otherwise) => otherwise,
    }
}

/// Whoever gives back what a dead worker held knows how many attempts the job allows, but not how many its kind does: the one
/// that was lost may have been the last. What came back on another way, for instance by a person's hand, may run once more.
async fn lost_its_last(shared: &Shared, handler: &dyn Handler, job: &Job) -> Option<Outcome> {
    let used = job.attempt - 1;
    if used == 0 || !handler.retry().is_last(used, job.max_attempts) {
        return None;
    }
    match bounded(shared, shared.queue.was_lost(job.id)).await {
        Ok(true) => Some(Outcome::Dead { error: "the worker died in the last attempt that was left".to_owned() }),
        Ok(false) => None,
        // It must not run before this is known.
        Err(_) => Some(Outcome::HandedBack),
    }
}

async fn judge(
    shared: &Shared,
    job: &About,
    lane_id: i64,
    outcome: Outcome,
    stop: Option<Stop>,
    handler: Option<&dyn Handler>,
) -> Ending {
    match (outcome, stop) {
        (Outcome::Done, _) => Ending::Completed,
        (Outcome::Dead { error }, _) => Ending::Dead { error },
        (Outcome::Ambiguous { policy: OnAmbiguous::Dead, error }, None | Some(Stop::Draining | Stop::Fenced)) => {
            Ending::Ambiguous { delay: None, error: doubtful(&error) }
        }
        // Told to stop by a person, the job ends here, however its handler put it.
        (_, Some(Stop::Cancelled)) | (Outcome::Cancelled, _) => Ending::Cancelled,
        (Outcome::Throttled { scope, delay, error }, _) => {
            throttled(shared, job, lane_id, (scope, false), delay, (error, stop)).await
        }
        (Outcome::Overloaded { scope, delay, error }, _) => {
            throttled(shared, job, lane_id, (scope, true), delay, (error, stop)).await
        }
        // Where the lease was lost the fence refuses this word. Where it was not (Postgres came back just in time), the job
        // must not stay leased to a worker that no longer runs it.
        (Outcome::HandedBack, _) | (_, Some(Stop::Draining | Stop::Fenced)) => Ending::HandedBack,
        (Outcome::Snooze { delay }, _) => Ending::Snoozed { delay, why: String::new() },
        (Outcome::Ambiguous { error, .. }, _) => {
            let error = doubtful(&error);
            match failed(handler.map(Handler::retry).unwrap_or_default(), job, None, error) {
                Ending::Failed { delay, error } => Ending::Ambiguous { delay: Some(delay), error },
                Ending::Dead { error } => Ending::Ambiguous { delay: None, error },
                other => other,
            }
        }
        (Outcome::Retry { after, error }, _) => failed(handler.map(Handler::retry).unwrap_or_default(), job, after, error),
    }
}

fn failed(policy: Policy, job: &About, after: Option<Duration>, error: String) -> Ending {
    if policy.is_last(job.attempt, job.max_attempts) {
        return Ending::Dead { error };
    }
    Ending::Failed { delay: after.unwrap_or_else(|| policy.delay(job.attempt, rand::random())), error }
}

/// So that it can be told from other failures wherever only the error is shown.
fn doubtful(error: &str) -> String {
    format!("ambiguous: {error}")
}

/// Tells of a refusal, which concerns others as well, also while this worker is stopping; and how that ends for its job.
async fn throttled(
    shared: &Shared,
    job: &About,
    lane_id: i64,
    whom: (Scope, bool),
    delay: Option<Duration>,
    (error, stop): (String, Option<Stop>),
) -> Ending {
    let alone = refused(shared, job, whom, delay, &error).await;
    // From now on it counts how the others of the lane end.
    shared.answers.watch(lane_id, alone.is_none());
    match stop {
        None => Ending::Throttled { alone, error },
        Some(_) => Ending::HandedBack,
    }
}

/// Pauses whom the refusal concerns, for everybody; or answers how long this job alone is to wait, where its throttle wants it so.
/// A store that is away only means that the next job will hear the same answer.
async fn refused(
    shared: &Shared,
    job: &About,
    (scope, is_overload): (Scope, bool),
    delay: Option<Duration>,
    why: &str,
) -> Option<Duration> {
    let throttle = Name::new(job.throttle.clone()).ok()?;
    let delay = delay.map(|delay| delay.min(MAX_PAUSE));
    let is_hearsay = job.said().is_hearsay;
    let refused = Refused { key: &job.key, scope, is_overload, is_hearsay, delay, jitter: rand::random(), why };
    for pause in [Duration::from_millis(20), Duration::from_millis(200), Duration::ZERO] {
        match shared.throttles.refused(&throttle, &refused).await {
            Ok(paused) => return paused.alone,
            // A store that is slow for a moment must not cost another refusal.
            Err(_) if pause > Duration::ZERO => tokio::time::sleep(pause).await,
            Err(error) => tracing::warn!(throttle.name = %throttle, %error, "who was refused could not be paused"),
        }
    }
    // Nobody else knows of it, so at least this job does not come back at once.
    Some(delay.unwrap_or(DEFAULT_PAUSE))
}

/// Sees that what the job was charged too little or too much is settled: all of it where its handler never began, and else if
/// the handler has said what it cost.
fn settle(shared: &Shared, job: &About, has_begun: bool) {
    let tokens = if has_begun { job.said().cost.map_or(0.0, |cost| cost - job.cost) } else { -job.cost };
    let Ok(throttle) = Name::new(job.throttle.clone()) else { return };
    if tokens == 0.0 {
        return;
    }
    let difference = Difference { throttle, key: job.key.clone(), tokens };
    if let Err(error) = shared.differences.try_send(difference) {
        tracing::debug!(job.id, %error, "what the job really cost is not settled");
    }
}

/// What an end says about the other side. A refusal stays one where the worker was stopping or its lease was lost.
fn tallied(ending: &Ending, is_refused: bool) -> Tallied {
    match ending {
        _ if is_refused => Tallied::Refused,
        Ending::Completed => Tallied::Completed,
        Ending::Failed { .. } | Ending::Ambiguous { .. } | Ending::Dead { .. } => Tallied::Failed,
        Ending::Throttled { .. } | Ending::Snoozed { .. } | Ending::Cancelled | Ending::HandedBack => Tallied::Otherwise,
    }
}

fn listed(issues: &[Issue]) -> String {
    let each: Vec<String> = issues.iter().map(|issue| format!("args{}: {}", issue.pointer, issue.message)).collect();
    each.join("; ")
}

fn word(ending: &Ending) -> &'static str {
    match ending {
        Ending::Completed => "completed",
        Ending::Failed { .. } => "failed",
        Ending::Ambiguous { .. } => "ambiguous",
        Ending::Throttled { .. } => "throttled",
        Ending::Snoozed { .. } => "snoozed",
        Ending::Dead { .. } => "dead",
        Ending::Cancelled => "cancelled",
        Ending::HandedBack => "handed_back",
    }
}
