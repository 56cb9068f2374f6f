//! Tests of the reasons for waits.

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
    let put_off = for_its_time(&job(State::Scheduled)).unwrap().reason;
    assert_eq!(
        put_off,
        "it is scheduled for a later time; its last attempt: 500"
    );
    assert!(for_its_time(&job(State::Ready)).is_none());
}

#[test]
fn a_job_whose_time_is_over_is_late_after_some_seconds() {
    let at = |second| Timestamp::from_second(second).unwrap();
    assert!(!is_overdue(&job(State::Scheduled), at(64)));
    assert!(is_overdue(&job(State::Scheduled), at(66)));
    assert!(!is_overdue(&job(State::Running), at(66)));
    let late = |has_workers| for_promotion(&job(State::Scheduled), has_workers);
    assert_eq!(
        late(false).reason,
        "its time came at 1970-01-01T00:01:00Z, and no worker is live to make it ready; start one"
    );
    assert!(late(true).reason.contains("or clocks differ"));
    assert_eq!(late(true).until, None);
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
        "throttle reindex grants 5 tokens a second, and has none left now"
    );
    assert_eq!(waiting.until.unwrap().as_microsecond(), 1_500_000);
}

#[test]
fn a_store_that_refuses_is_not_said_to_be_silent() {
    let refused = AcquireResponse {
        server_error: Some("OOM: it is out of memory"),
        ..answer(0, 1, Some(Limit::StoreLost))
    };
    let waiting = for_tokens(&job(State::Ready), &refused, true);
    assert_eq!(
        waiting.reason,
        "Redis refuses requests for tokens (OOM: it is out of memory), and throttle reindex \
         follows its knob on_store_loss"
    );
    assert_eq!(waiting.until, None);
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
        "throttle reindex has granted what its windows allow"
    );
    assert_eq!(
        reason(Limit::Tier {
            name: Name::new("all").unwrap()
        }),
        "throttle all above reindex has granted what its windows allow"
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
    let told = "an operator creates it with: flyball throttle set new";
    assert!(waiting.reason.contains(told), "{}", waiting.reason);
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
        "throttle hooks is stopped: it is paused by ann (\"a move\"); resume it with: flyball \
         throttle resume hooks"
    );
    assert_eq!(
        told(&[("rps", "0")], &stopped("")),
        "throttle hooks is stopped: its knob rps is 0, set by ann (\"a move\"); set it with: \
         flyball throttle set hooks rps=10"
    );
    assert_eq!(
        told(&[("rps", "0.000"), ("mode", "auto")], &stopped("")),
        "throttle hooks is stopped: its breaker is open (\"a move\"); it restarts when the load is \
         gone"
    );
    assert_eq!(
        told(&[("rps", "0.000"), ("mode", "manual")], &stopped("")),
        "throttle hooks is stopped: its breaker is open; in mode manual nothing restarts it; give \
         it back with: flyball throttle set hooks mode=auto"
    );
    let lapsed = |rps, more: &[(&str, &str)]| {
        let mut fields = vec![("rps", rps), ("mode", "auto"), ("valid_until", "1")];
        fields.extend(more);
        told(&fields, &stopped(""))
    };
    for text in [lapsed("0.000", &[]), lapsed("5", &[("safe_rps", "0")])] {
        assert!(text.contains("no governor is at work"), "{text}");
    }
    assert!(
        told(&[("rps", "5"), ("concurrency", "0")], &slots(false))
            .starts_with("throttle hooks is stopped: its knob concurrency is 0, set by ann")
    );
    assert!(
        told(&[("rps", "5"), ("key_concurrency", "0")], &slots(true))
            .starts_with("no job with a key of throttle hooks starts: its knob key_concurrency")
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
fn with_tokens_free_a_job_waits_for_its_turn_and_a_worker_or_for_one_to_exist() {
    assert!(
        for_tokens(&job(State::Ready), &answer(1, 0, None), true)
            .reason
            .ends_with("it starts when its turn comes and a worker has a free slot")
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
        "everything has been paused since 1970-01-01T00:00:00Z by alice: the disk is full; end the \
         pause with: flyball resume"
    );
    pause.why = String::new();
    let reason = for_everything(Some(&pause)).reason;
    assert!(reason.ends_with("by alice; end the pause with: flyball resume"));
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
