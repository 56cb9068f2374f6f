//! The reason for the wait of a job, in one sentence, and its end.

use jiff::Timestamp;
use serde::Serialize;

use crate::admission::WaitingMessage;
use crate::governor::actuator::is_breakers_zero;
use crate::jobs::postgres::{READ_ONLY, READ_ONLY_REMEDY};
use crate::jobs::{JobDetail, Pause, State, Summary};
use crate::throttle::direct_change::is_changed_directly;
use crate::throttle::{
    AcquireResponse, Holder, Limit, MAX_HOLDERS, Mode, Name, RateLimit, Status, no_throttle_of_job,
};

/// The age of a due time from which a scheduled job is late, in seconds.
const OVERDUE_S: f64 = 5.0;

/// The reason for which a job does not run yet.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct WaitReason {
    /// The reason, in one sentence.
    #[schema(example = "throttle reindex grants 5 tokens a second, and has none left now")]
    pub reason: String,
    /// The earliest end of the wait, if it is known.
    pub until: Option<Timestamp>,
}

impl WaitReason {
    /// Creates a reason whose end is not known.
    pub fn without_end(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            until: None,
        }
    }
}

/// Explains the wait of a job with a due time; `None` for jobs in other states.
pub fn for_its_time(job: &Summary) -> Option<WaitReason> {
    let reason = match job.state {
        State::Scheduled => {
            let told = job.last_error.as_deref().map_or_else(String::new, |error| {
                format!("; its last attempt: {}", first_line(error))
            });
            format!("it is scheduled for a later time{told}")
        }
        State::Retryable => {
            let error = job
                .last_error
                .as_deref()
                .map_or_else(String::new, |error| format!(" ({})", first_line(error)));
            format!(
                "attempt {} of {} failed{error} and the next is due later",
                job.attempt, job.max_attempts
            )
        }
        _ => return None,
    };
    Some(WaitReason {
        reason,
        until: job.due_at,
    })
}

/// Returns true if the time of a scheduled job has been over for longer than clocks differ and a
/// worker takes to make it ready.
pub fn is_overdue(job: &Summary, now: Timestamp) -> bool {
    matches!(job.state, State::Scheduled | State::Retryable)
        && job
            .due_at
            .is_some_and(|due| now.duration_since(due).as_secs_f64() > OVERDUE_S)
}

/// Explains the wait of a job whose time is over, and that no worker has made ready.
pub fn for_promotion(job: &Summary, has_workers: bool) -> WaitReason {
    let at = job.due_at.map(|due| format!(" at {due:.0}"));
    let why = match has_workers {
        true => {
            "and no worker has made it ready yet: many jobs are due at once, or clocks differ, \
             which flyball doctor tells"
        }
        false => "and no worker is live to make it ready; start one",
    };
    WaitReason::without_end(format!("its time came{}, {why}", at.unwrap_or_default()))
}

/// Explains the wait of a ready job while Postgres accepts no writes.
pub fn for_writes() -> WaitReason {
    WaitReason::without_end(format!("{READ_ONLY}; {READ_ONLY_REMEDY}"))
}

/// Explains the wait of a job for others; `None` if it waits for none.
pub fn for_others(job: &JobDetail) -> Option<WaitReason> {
    let dead = job.waits_for.iter().find(|one| one.state == State::Dead);
    let shown = dead.or_else(|| job.waits_for.first())?;
    let what = match shown.state {
        State::Dead => format!("job {}, which is dead: requeue it, or discard it", shown.id),
        state => format!("the end of job {}, which is {}", shown.id, state.as_str()),
    };
    let more = match job.waits_for.len() - 1 {
        0 => String::new(),
        more => format!(", and for {more} more"),
    };
    Some(WaitReason {
        reason: format!("it waits for {what}{more}"),
        until: job.summary.due_at,
    })
}

/// Explains the wait of a message for the limits of its tenant, until a time if it is known.
pub fn for_admission(waiting: &WaitingMessage, until: Option<Timestamp>) -> WaitReason {
    WaitReason {
        reason: format!("it {}", waiting.reason()),
        until,
    }
}

/// Explains a running job whose cancellation was requested.
pub fn for_its_handler(job: &JobDetail) -> Option<WaitReason> {
    let cancelling = job.summary.state == State::Running && job.cancelling;
    cancelling.then(|| {
        WaitReason::without_end("its cancellation was requested; its handler has not stopped yet")
    })
}

/// Explains the wait of a ready job while everything is paused; without the pause, the author and
/// the reason are left out.
pub fn for_everything(pause: Option<&Pause>) -> WaitReason {
    let Some(pause) = pause else {
        return WaitReason::without_end("everything is paused");
    };
    let why = if pause.why.is_empty() {
        String::new()
    } else {
        format!(": {}", first_line(&pause.why))
    };
    WaitReason::without_end(format!(
        "everything has been paused since {:.0} by {}{why}; end the pause with: flyball resume",
        pause.since, pause.by
    ))
}

/// Explains the wait of a ready job by the answer that its throttle would give now; `is_served` is
/// true if a live worker serves it.
pub fn for_tokens(job: &Summary, answer: &AcquireResponse, is_served: bool) -> WaitReason {
    let grant = answer.lanes.first();
    if let Some(limit) = grant
        .filter(|grant| grant.granted == 0)
        .and_then(|grant| grant.limit.as_ref())
    {
        let wait = grant.map(|grant| grant.wait).unwrap_or_default();
        let until = match limit {
            Limit::Paused { until_ms, .. } => Timestamp::from_millisecond(*until_ms).ok(),
            Limit::Stopped { .. }
            | Limit::Unknown { .. }
            | Limit::StoreLost
            | Limit::Concurrency { .. }
            | Limit::Holders { .. } => None,
            _ => i64::try_from(wait.as_micros())
                .ok()
                .filter(|_| answer.at_us > 0)
                .and_then(|wait_us| answer.at_us.checked_add(wait_us))
                .and_then(|at_us| Timestamp::from_microsecond(at_us).ok()),
        };
        let reason = match answer.server_error {
            Some(error) if *limit == Limit::StoreLost => format!(
                "Redis refuses requests for tokens ({error}), and throttle {} follows its knob \
                 on_store_loss",
                job.throttle
            ),
            _ => sentence(
                &job.throttle,
                &job.key,
                answer.effective_rps,
                limit,
                grant.is_some_and(|grant| grant.by_windows),
            ),
        };
        return WaitReason { reason, until };
    }
    WaitReason::without_end(if is_served {
        // The jobs before it may take them, and one is free for a moment while a throttle flows.
        "tokens are available; it starts when its turn comes and a worker has a free slot"
    } else {
        "no worker is live; start one"
    })
}

/// Explains the wait of a ready job that has tokens, while no worker that serves it can claim jobs.
pub fn for_claims() -> WaitReason {
    WaitReason::without_end(
        "tokens are available, but the claims of every worker that serves it fail; flyball doctor \
         tells the error",
    )
}

/// Returns the throttle whose knobs may be the whole cause of a limit below `leaf`; `None` for
/// limits with another cause.
pub fn decider<'a>(limit: &'a Limit, leaf: &'a Name) -> Option<&'a Name> {
    match limit {
        Limit::Stopped { name, .. } | Limit::Concurrency { name, .. } => Some(name),
        Limit::Key => Some(leaf),
        _ => None,
    }
}

/// The remedy for a governor that does not write.
const NO_GOVERNOR: &str =
    "no governor is at work: check that a process with the role governor is running";

/// Explains a limit that ends only when someone changes a knob: a pause, or a knob that is 0;
/// `None` for one that ends by itself or says its cause. `status` is that of its [`decider`].
pub fn for_closed(status: &Status, limit: &Limit) -> Option<WaitReason> {
    let (name, knobs) = (&status.name, &status.knobs);
    let (why, by) = (reason_given(status), author(status));
    let zero = |field: &str| {
        if is_breakers_zero(&status.raw, field) {
            return format!("its {}", open_breaker(status, &why, NO_GOVERNOR));
        }
        let set = if by.is_empty() { "" } else { ", set" };
        format!(
            "its knob {field} is 0{set}{by}; set it with: flyball throttle set {name} {field}=10"
        )
    };
    let of_keys = |field: &str| {
        format!(
            "no job with a key of throttle {name} starts: {}",
            zero(field)
        )
    };
    let reason = match limit {
        Limit::Stopped { why, .. } if !why.is_empty() => return None,
        Limit::Stopped { .. } if knobs.paused => format!(
            "throttle {name} is stopped: it is paused{by}; resume it with: flyball throttle resume \
             {name}"
        ),
        Limit::Stopped { .. } if knobs.rps.is_stopped() => {
            format!("throttle {name} is stopped: {}", zero("rps"))
        }
        Limit::Stopped { .. } if knobs.safe_rps.is_stopped() && status.lease_expired => format!(
            "throttle {name} is stopped: its governor's lease has expired, and its knob safe_rps \
             is 0; {NO_GOVERNOR}"
        ),
        Limit::Concurrency { key: false, .. } if knobs.concurrency == Some(0) => {
            format!("throttle {name} is stopped: {}", zero("concurrency"))
        }
        Limit::Concurrency { key: true, .. } if knobs.key_concurrency == Some(0) => {
            of_keys("key_concurrency")
        }
        Limit::Key if knobs.key_rps.is_stopped() => of_keys("key_rps"),
        _ => return None,
    };
    Some(WaitReason::without_end(reason))
}

/// Returns the author of the last change of a throttle's knobs and the reason, such as ` by ann
/// ("load")`; empty if nobody is known.
pub fn author(status: &Status) -> String {
    match status.knobs.by.as_str() {
        "" if is_changed_directly(&status.raw) => " in Redis directly".to_owned(),
        "" => String::new(),
        by => format!(" by {by}{}", reason_given(status)),
    }
}

/// Returns the reason of the last change of a throttle's knobs in brackets; empty if there is none.
fn reason_given(status: &Status) -> String {
    match first_line(&status.knobs.why) {
        why if why.is_empty() => why,
        why => format!(" (\"{why}\")"),
    }
}

/// Describes the stop by a breaker and what ends it; `why` follows the stop, and `gone` is the text
/// for a governor that is not at work. In another mode than auto none restarts the work.
pub fn open_breaker(status: &Status, why: &str, gone: &str) -> String {
    let (name, mode) = (&status.name, status.knobs.mode);
    if mode != Mode::Auto {
        return format!(
            "breaker is open; in mode {} nothing restarts it; give it back with: flyball throttle \
             set {name} mode=auto",
            mode.as_str()
        );
    }
    let restarts = match status.lease_expired {
        true => gone,
        false => "it restarts when the load is gone",
    };
    format!("breaker is open{why}; {restarts}")
}

/// Removes the texts that people and receivers left at a throttle, which may tell about other
/// tenants.
pub fn without_texts(answer: &mut AcquireResponse) {
    for grant in &mut answer.lanes {
        if let Some(Limit::Paused { why, .. } | Limit::Stopped { why, .. }) = &mut grant.limit {
            why.clear();
        }
    }
}

/// Returns a holder without jobs, to peek at the remaining slots of the limits of concurrency.
pub fn anonymous_holder() -> Holder {
    Holder {
        id: String::new(),
        ttl: std::time::Duration::from_secs(1),
        held: 0,
    }
}

/// Describes the limit of a lane in one sentence; `by_windows` is that of its grant.
pub fn sentence(
    throttle: &str,
    key: &str,
    effective_rps: RateLimit,
    limit: &Limit,
    by_windows: bool,
) -> String {
    match limit {
        Limit::Tier { name } if by_windows => {
            format!("throttle {name} above {throttle} has granted what its windows allow")
        }
        Limit::Tier { name } => {
            format!("throttle {name} above {throttle} has no token left for it")
        }
        Limit::Throttle if by_windows || effective_rps.is_unlimited() => {
            format!("throttle {throttle} has granted what its windows allow")
        }
        // Jobs that took the tokens may have ended, and other programs take tokens too.
        Limit::Throttle => format!(
            "throttle {throttle} grants {} tokens a second, and has none left now",
            rate(effective_rps)
        ),
        Limit::Key => format!(
            "key {key:?} of throttle {throttle} is at its rate limit (key_rps or key_windows)"
        ),
        Limit::Learned => {
            format!(
                "key {key:?} of throttle {throttle} is at the rate learned from its server's \
                 answers"
            )
        }
        Limit::Probing { name, key: false } => {
            format!("a server refused throttle {name}; a few jobs go first as probes")
        }
        Limit::Probing { key: true, .. } => {
            format!(
                "its server refused key {key:?} of throttle {throttle}; a few jobs go first as \
                 probes"
            )
        }
        Limit::Paused {
            why,
            name: Some(name),
            ..
        } => {
            format!(
                "throttle {name} is paused because a server refused it: {}",
                first_line(why)
            )
        }
        Limit::Paused { why, .. } if why.is_empty() => {
            format!("key {key:?} of throttle {throttle} is paused")
        }
        Limit::Paused { why, .. } => format!(
            "key {key:?} of throttle {throttle} is paused: {}",
            first_line(why)
        ),
        Limit::Stopped { name, why } if why.is_empty() => {
            format!("throttle {name} is stopped: its rate is 0 or it is paused")
        }
        Limit::Stopped { name, why } => format!("throttle {name} is stopped: {}", first_line(why)),
        Limit::Concurrency { name, key: false } => {
            format!("throttle {name} is at its concurrency limit; it starts when another job ends")
        }
        Limit::Concurrency { name, key: true } => {
            format!(
                "key {key:?} is at the concurrency limit of one key of throttle {name}; it starts \
                 when another of its jobs ends"
            )
        }
        Limit::Unknown { name } => {
            let how =
                format!(" yet; an operator creates it with: flyball throttle set {name} rps=10");
            no_throttle_of_job(name.as_str(), &how)
        }
        Limit::Holders { name } => format!(
            "throttle {name} counts the jobs of at most {MAX_HOLDERS} holders, and all are in use: \
             use one holder name per process, and report 0 jobs when it ends"
        ),
        Limit::StoreLost => {
            format!("Redis does not answer, and throttle {throttle} grants nothing without it")
        }
    }
}

/// Formats a rate without needless digits.
pub fn rate(limit: RateLimit) -> String {
    let Some(rps) = limit.tokens() else {
        return "any number".to_owned();
    };
    let digits = if rps >= 100.0 {
        0
    } else if rps >= 1.0 {
        2
    } else {
        4
    };
    let text = format!("{rps:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

pub(super) fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() > 200 {
        line.chars().take(200).chain(['…']).collect()
    } else {
        line.to_owned()
    }
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
