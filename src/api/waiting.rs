//! The reason for the wait of a job, in one sentence, and its end.

use jiff::Timestamp;
use serde::Serialize;

use crate::admission::WaitingMessage;
use crate::governor::actuator::BREAKERS_ZERO;
use crate::jobs::{JobDetail, Pause, State, Summary};
use crate::throttle::{AcquireResponse, Holder, Limit, MAX_HOLDERS, Name, RateLimit, Status};

/// The reason for which a job does not run yet.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct WaitReason {
    /// The reason, in one sentence.
    #[schema(example = "throttle reindex grants 5 tokens a second, and other jobs go first")]
    pub reason: String,
    /// The earliest end of the wait, if it is known.
    pub until: Option<Timestamp>,
}

/// Explains the wait of a job with a due time; `None` for jobs in other states.
pub fn for_its_time(job: &Summary) -> Option<WaitReason> {
    let reason = match job.state {
        State::Scheduled => "it is scheduled for a later time".to_owned(),
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

/// Explains the wait of a message whose batch is paused.
pub fn for_its_batch(pause: String) -> WaitReason {
    WaitReason {
        reason: pause,
        until: None,
    }
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

/// Explains the wait of a ready job that no live worker serves.
pub fn for_a_worker(remedy: String) -> WaitReason {
    WaitReason {
        reason: remedy,
        until: None,
    }
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
    cancelling.then(|| WaitReason {
        reason: "its cancellation was requested; its handler has not stopped yet".to_owned(),
        until: None,
    })
}

/// Explains the wait of a ready job while everything is paused; without the pause, the author and
/// the reason are left out.
pub fn for_everything(pause: Option<&Pause>) -> WaitReason {
    let Some(pause) = pause else {
        return WaitReason {
            reason: "everything is paused".to_owned(),
            until: None,
        };
    };
    let why = if pause.why.is_empty() {
        String::new()
    } else {
        format!(": {}", first_line(&pause.why))
    };
    WaitReason {
        reason: format!(
            "everything has been paused since {:.0} by {}{why}",
            pause.since, pause.by
        ),
        until: None,
    }
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
        return WaitReason {
            reason: sentence(
                &job.throttle,
                &job.key,
                answer.effective_rps,
                limit,
                grant.is_some_and(|grant| grant.by_windows),
            ),
            until,
        };
    }
    let reason = if is_served {
        "tokens are available; it starts when a worker has a free slot"
    } else {
        "no worker is live; start one"
    };
    WaitReason {
        reason: reason.to_owned(),
        until: None,
    }
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

/// Explains a limit that ends only when someone changes a knob: a pause, or a knob that is 0;
/// `None` for one that ends by itself or says its cause. `status` is that of its [`decider`].
pub fn for_closed(status: &Status, limit: &Limit) -> Option<WaitReason> {
    let (name, knobs) = (&status.name, &status.knobs);
    let why = match first_line(&knobs.why) {
        why if why.is_empty() => why,
        why => format!(" (\"{why}\")"),
    };
    let by = match knobs.by.as_str() {
        "" => String::new(),
        by => format!(" by {by}{why}"),
    };
    let zero = |field: &str| {
        if status
            .raw
            .get(field)
            .is_some_and(|text| text == BREAKERS_ZERO)
        {
            let alone = match status.lease_expired {
                true => ", and no governor is at work to restart it",
                false => "",
            };
            return format!("its breaker is open{why}{alone}");
        }
        let set = if by.is_empty() { "" } else { ", set" };
        format!("its knob {field} is 0{set}{by}")
    };
    let of_keys = |field: &str| {
        format!(
            "no job with a key of throttle {name} starts: {}",
            zero(field)
        )
    };
    let reason = match limit {
        Limit::Stopped { why, .. } if !why.is_empty() => return None,
        Limit::Stopped { .. } if knobs.paused => {
            format!("throttle {name} is stopped: it is paused{by}")
        }
        Limit::Stopped { .. } if knobs.rps.is_stopped() => {
            format!("throttle {name} is stopped: {}", zero("rps"))
        }
        Limit::Concurrency { key: false, .. } if knobs.concurrency == Some(0) => {
            format!("throttle {name} is stopped: {}", zero("concurrency"))
        }
        Limit::Concurrency { key: true, .. } if knobs.key_concurrency == Some(0) => {
            of_keys("key_concurrency")
        }
        Limit::Key if knobs.key_rps.is_stopped() => of_keys("key_rps"),
        _ => return None,
    };
    Some(WaitReason {
        reason,
        until: None,
    })
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
        Limit::Tier { name } if by_windows => format!(
            "throttle {name} above {throttle} has granted what its windows allow; other jobs go \
             first"
        ),
        Limit::Tier { name } => format!(
            "throttle {name} above {throttle} has no token left for it; other jobs go first"
        ),
        Limit::Throttle if by_windows || effective_rps.is_unlimited() => format!(
            "throttle {throttle} has granted what its windows allow, and other jobs go first"
        ),
        Limit::Throttle => format!(
            "throttle {throttle} grants {} tokens a second, and other jobs go first",
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
        Limit::Unknown { name } => format!(
            "there is no throttle {name} yet; create it with: flyball throttle set {name} rps=10"
        ),
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::throttle::Grant;
    use crate::throttle::bucket::UsageCounters;

    fn job(state: State) -> Summary {
        Summary {
            id: 1,
            kind: "http".into(),
            throttle: "reindex".into(),
            key: "acme".into(),
            tenant: String::new(),
            state,
            priority: 1,
            attempt: 2,
            max_attempts: 10,
            cost: 1.0,
            created_at: Timestamp::UNIX_EPOCH,
            due_at: Some(Timestamp::from_second(60).unwrap()),
            ended_at: None,
            last_error: Some("500\nwith a body".into()),
            group: None,
            tags: Vec::new(),
        }
    }

    fn answer(granted: u32, wait_ms: u64, limit: Option<Limit>) -> AcquireResponse {
        let wait = Duration::from_millis(wait_ms);
        let grant = Grant {
            granted,
            wait,
            limit,
            ..Grant::default()
        };
        AcquireResponse {
            lanes: vec![grant],
            effective_rps: RateLimit::PerSecond(5.0),
            at_us: 1_000_000,
            seq: 1,
            ..AcquireResponse::default()
        }
    }

    #[test]
    fn jobs_with_a_due_time_wait_for_it() {
        let waiting = for_its_time(&job(State::Retryable)).unwrap();
        assert_eq!(
            waiting.reason,
            "attempt 2 of 10 failed (500) and the next is due later"
        );
        assert_eq!(waiting.until.unwrap().as_second(), 60);
        assert!(for_its_time(&job(State::Ready)).is_none());
    }

    #[test]
    fn a_throttled_job_waits_until_the_next_token_by_the_stores_clock() {
        let waiting = for_tokens(
            &job(State::Ready),
            &answer(0, 500, Some(Limit::Throttle)),
            true,
        );
        assert_eq!(
            waiting.reason,
            "throttle reindex grants 5 tokens a second, and other jobs go first"
        );
        assert_eq!(waiting.until.unwrap().as_microsecond(), 1_500_000);
    }

    #[test]
    fn a_used_up_window_is_named_and_not_the_rate_beside_it() {
        let reason = |limit| {
            let mut answer = answer(0, 3_000_000, Some(limit));
            answer.lanes[0].by_windows = true;
            for_tokens(&job(State::Ready), &answer, true).reason
        };
        assert_eq!(
            reason(Limit::Throttle),
            "throttle reindex has granted what its windows allow, and other jobs go first"
        );
        assert_eq!(
            reason(Limit::Tier {
                name: Name::new("all").unwrap()
            }),
            "throttle all above reindex has granted what its windows allow; other jobs go first"
        );
    }

    #[test]
    fn a_paused_key_waits_until_its_pause_ends() {
        let limit = Limit::Paused {
            until_ms: 9_000,
            why: "429 from api.example".into(),
            name: None,
        };
        let waiting = for_tokens(&job(State::Ready), &answer(0, 1, Some(limit)), true);
        assert_eq!(
            waiting.reason,
            "key \"acme\" of throttle reindex is paused: 429 from api.example"
        );
        assert_eq!(waiting.until.unwrap().as_second(), 9);
    }

    #[test]
    fn an_unknown_throttle_says_how_to_create_it_and_nobody_knows_when() {
        let limit = Limit::Unknown {
            name: Name::new("new").unwrap(),
        };
        let waiting = for_tokens(&job(State::Ready), &answer(0, 0, Some(limit)), true);
        assert!(waiting.reason.contains("flyball throttle set new"));
        assert_eq!(waiting.until, None);
    }

    #[test]
    fn a_pause_and_each_knob_that_is_0_are_named_with_their_author() {
        let name = Name::new("hooks").unwrap();
        let reason = |fields: &[(&str, &str)], limit: &Limit| {
            let raw = fields.iter().chain(&[("by", "ann"), ("why", "a move")]);
            let raw = raw.map(|(field, text)| ((*field).to_owned(), (*text).to_owned()));
            let status = Status::read(
                name.clone(),
                raw.collect(),
                &UsageCounters::default(),
                1_000_000,
            );
            for_closed(&status, limit).map(|waiting| waiting.reason)
        };
        let stopped = |why: &str| Limit::Stopped {
            name: name.clone(),
            why: why.to_owned(),
        };
        let slots = |key| Limit::Concurrency {
            name: name.clone(),
            key,
        };
        let told = |fields: &[(&str, &str)], limit: &Limit| reason(fields, limit).unwrap();
        assert_eq!(
            told(&[("rps", "5"), ("paused", "1")], &stopped("")),
            "throttle hooks is stopped: it is paused by ann (\"a move\")"
        );
        assert_eq!(
            told(&[("rps", "0")], &stopped("")),
            "throttle hooks is stopped: its knob rps is 0, set by ann (\"a move\")"
        );
        assert_eq!(
            told(&[("rps", "0.000")], &stopped("")),
            "throttle hooks is stopped: its breaker is open (\"a move\")"
        );
        assert!(
            told(&[("rps", "5"), ("concurrency", "0")], &slots(false))
                .starts_with("throttle hooks is stopped: its knob concurrency is 0, set by ann")
        );
        assert!(
            told(&[("rps", "5"), ("key_concurrency", "0")], &slots(true)).starts_with(
                "no job with a key of throttle hooks starts: its knob key_concurrency"
            )
        );
        assert!(
            told(&[("rps", "5"), ("key_rps", "0")], &Limit::Key)
                .starts_with("no job with a key of throttle hooks starts: its knob key_rps is 0")
        );
        // Those that end by themselves, and one that says its cause.
        assert_eq!(reason(&[("rps", "5"), ("key_rps", "1")], &Limit::Key), None);
        assert_eq!(
            reason(&[("rps", "5"), ("concurrency", "2")], &slots(false)),
            None
        );
        assert_eq!(reason(&[("rps", "0")], &stopped("no account")), None);
    }

    #[test]
    fn with_tokens_free_a_job_waits_for_a_worker_or_for_one_to_exist() {
        assert!(
            for_tokens(&job(State::Ready), &answer(1, 0, None), true)
                .reason
                .contains("free slot")
        );
        assert!(
            for_tokens(&job(State::Ready), &answer(1, 0, None), false)
                .reason
                .contains("no worker is live")
        );
    }

    #[test]
    fn while_everything_is_paused_a_job_says_who_did_it_and_why() {
        let mut pause = Pause {
            since: Timestamp::UNIX_EPOCH,
            by: "alice".into(),
            why: "the disk is full".into(),
        };
        assert_eq!(
            for_everything(Some(&pause)).reason,
            "everything has been paused since 1970-01-01T00:00:00Z by alice: the disk is full"
        );
        pause.why = String::new();
        assert!(for_everything(Some(&pause)).reason.ends_with("by alice"));
    }

    #[test]
    fn rates_are_written_without_needless_digits() {
        for (rps, text) in [
            (5.0, "5"),
            (0.25, "0.25"),
            (1.0 / 3.0, "0.3333"),
            (120.46, "120"),
            (100.0, "100"),
            (-1.0, "any number"),
            (0.0, "0"),
        ] {
            assert_eq!(rate(RateLimit::new(rps)), text);
        }
    }
}
