//! The obstacles of a throttle besides its rate: a pause of everything, a pause after a refusal, a
//! debt, a throttle above, slots, keys, failures.

use crate::api::waiting::{author, first_line, for_everything, for_writes, open_breaker};
use crate::governor::actuator::{is_breakers_zero, is_stopped_by_breaker};
use crate::governor::explain::{number, seconds, shell_word};
use crate::governor::time::unix_s;
use crate::jobs::{Failing, Pause};
use crate::throttle::{HeldKeys, OverQuotaKey, Status};

/// The facts about a throttle besides its rate.
#[derive(Clone, Copy, Debug)]
pub struct Obstacles<'a> {
    pub status: &'a Status,
    /// True if Postgres accepts no writes.
    pub is_read_only: bool,
    /// The pause of everything, if one is in force.
    pub everything: Option<&'a Pause>,
    /// The nearest throttle above that grants nothing.
    pub above: Option<&'a Status>,
    /// The wait of its jobs for the tokens of a throttle above, its own windows, or the limits of
    /// their keys.
    pub behind: Option<&'a str>,
    /// The throttle whose slots are all in use; `None` if jobs do not wait for slots.
    pub full: Option<&'a Status>,
    /// The keys that hold jobs back; `None` where none does.
    pub held: Option<&'a HeldKeys>,
    /// The failures, if all jobs of the throttle fail.
    pub failing: Option<&'a Failing>,
    /// The current time, in unix seconds.
    pub now: f64,
}

impl Obstacles<'_> {
    /// Places `sentence`, the reason for the rate, after the obstacles that explain more than the
    /// rate does and before the others.
    pub fn around(&self, sentence: &str) -> String {
        let closed = if self.status.knobs.paused {
            Vec::new()
        } else {
            closed(self)
        };
        let held = self
            .held
            .and_then(|held| Some((held.hold_most(), keys(self, held)?)));
        let (first, last) = match held {
            Some((true, keys)) => (Some(keys), None),
            Some((false, keys)) => (None, Some(keys)),
            None => (None, None),
        };
        let unwritable = self
            .is_read_only
            .then(|| format!("No job starts, because {}.", for_writes().reason));
        let before = unwritable
            .into_iter()
            .chain(self.everything.map(everything))
            .chain(closed)
            .chain(self.failing.map(|failing| failures(self, failing)))
            .chain(first);
        let over_quota = self
            .held
            .and_then(|held| over_quota(held.over_quota, held.most_over_quota.as_ref()?));
        before
            .chain([sentence.to_owned()])
            .chain(self.behind.map(|wait| format!("Its jobs wait: {wait}.")))
            .chain(self.full.map(full))
            .chain(without_keys(self.status))
            .chain(last)
            .chain(over_quota)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn everything(pause: &Pause) -> String {
    format!(
        "No job starts, because {}.",
        for_everything(Some(pause)).reason
    )
}

/// Describes slots that are all in use. Under a governor of slots that is the usual state, so it
/// comes after the rate.
fn full(status: &Status) -> String {
    let name = &status.name;
    match status.knobs.concurrency {
        Some(0) if is_breakers_zero(&status.raw, "concurrency") => {
            format!("No job starts, because the knob concurrency of {name} is 0.")
        }
        Some(0) => format!(
            "No job starts, because the knob concurrency of {name} is 0; set it with: flyball \
             throttle set {name} concurrency=10."
        ),
        Some(1) => format!(
            "The only slot of {name} (its knob concurrency) is in use: the next job starts when \
             the running one ends."
        ),
        limit => format!(
            "All {} slots of {name} (its knob concurrency) are in use: the next job starts when a \
             running one ends.",
            limit.unwrap_or_default()
        ),
    }
}

/// Returns the reasons for which no token is granted at all: a refusal, a debt, or a throttle
/// above.
fn closed(requested: &Obstacles) -> Vec<String> {
    let mut all: Vec<String> = own(requested, requested.status).into_iter().collect();
    // The rate is followed by what is wrong with each knob.
    if requested.status.has_missing_parent() {
        all.push("No job starts, because its knob parent is wrong.".to_owned());
    }
    if let Some(above) = requested.above {
        let name = &above.name;
        let why = match own(requested, above) {
            Some(sentence) => sentence,
            None => at_zero(above),
        };
        all.push(format!(
            "No job starts, because the throttle {name} above it grants nothing. {why}"
        ));
    }
    all
}

/// Returns the pause or the knob for which a throttle grants nothing, and the remedy.
fn at_zero(status: &Status) -> String {
    let (name, knobs) = (&status.name, &status.knobs);
    if knobs.paused {
        let by = author(status);
        return format!("It is paused{by}; resume it with: flyball throttle resume {name}.");
    }
    if let Some(why) = knobs.stopped_because(status.at_us) {
        return format!("It is stopped: {}.", first_line(why));
    }
    if is_stopped_by_breaker(&status.raw) {
        let why = format!(": {}", quoted(&knobs.why));
        let gone = "nothing restarts it, because no governor is at work";
        return format!("Its {}.", open_breaker(status, &why, gone));
    }
    if !status.effective_rps.is_stopped() && knobs.concurrency == Some(0) {
        return format!(
            "Its knob concurrency is 0; set it with: flyball throttle set {name} concurrency=10."
        );
    }
    let set = match author(status) {
        by if by.is_empty() || !knobs.rps.is_stopped() => String::new(),
        by => format!(", set{by}"),
    };
    format!("Its rate is 0{set}; set one with: flyball throttle set {name} rps=10.")
}

/// Describes a knob for keys that is 0; `None` if jobs with a key can start.
fn without_keys(status: &Status) -> Option<String> {
    let (name, knobs) = (&status.name, &status.knobs);
    let field = match (knobs.key_rps.is_stopped(), knobs.key_concurrency) {
        (true, _) => "key_rps",
        (false, Some(0)) => "key_concurrency",
        _ => return None,
    };
    Some(format!(
        "No job with a key starts, because the knob {field} of {name} is 0; set it with: flyball \
         throttle set {name} {field}=10."
    ))
}

fn own(requested: &Obstacles, status: &Status) -> Option<String> {
    let name = &status.name;
    if let Some(pause) = &status.refusal {
        return Some(format!(
            "No job starts for another {}, because a server refused {name}: {}; end the pause \
             with: flyball throttle resume {name}.",
            left(requested, pause.until_ms),
            quoted(&pause.why)
        ));
    }
    let until_ms = status.debt_until_ms?;
    Some(format!(
        "No job starts for another {}, because {name} is in debt: its jobs cost more than it had; \
         clear the debt with: flyball throttle resume {name}.",
        left(requested, until_ms)
    ))
}

fn failures(requested: &Obstacles, failing: &Failing) -> String {
    let since = match failing.succeeded_at {
        Some(at) => format!("for {}", seconds((requested.now - unix_s(at)).max(0.0))),
        None => "since its workers started".to_owned(),
    };
    let error = if failing.error.is_empty() {
        String::new()
    } else {
        format!("; the last error: {}", quoted(&failing.error))
    };
    format!(
        "All its jobs fail: {} attempts failed and none has succeeded {since}{error}.",
        failing.failures
    )
}

/// Describes the keys that hold jobs back: their number by cause, and the slowest of them.
fn keys(requested: &Obstacles, held: &HeldKeys) -> Option<String> {
    let slowest = held.slowest.as_ref()?;
    let key = shell_word(&slowest.key);
    let detail = match (slowest.paused_until_ms, slowest.learned_rps) {
        (Some(until_ms), _) if slowest.why.is_empty() => {
            format!("{key}, for {} more", left(requested, until_ms))
        }
        (Some(until_ms), _) => format!(
            "{key}, for {} more, {}",
            left(requested, until_ms),
            quoted(&slowest.why)
        ),
        (None, Some(rps)) if rps >= 0.1 => format!("{key}, {}/s", number(rps)),
        (None, Some(rps)) if rps > 0.0 => format!("{key}, one in {}", seconds(1.0 / rps)),
        (None, _) => key.clone(),
    };
    let counts = [
        (held.paused, "paused"),
        (held.resting, "without quota"),
        (held.learned, "at a learned rate"),
        (held.probing, "on trial"),
    ];
    let parts: Vec<String> = counts
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    let of = match (held.held(), held.keys) {
        (1, 1) => "The only key with waiting jobs is".to_owned(),
        (n, all) if n == all => format!("All {n} keys with waiting jobs are"),
        (n, all) => format!(
            "{n} of {all} keys with waiting jobs {}",
            if n == 1 { "is" } else { "are" }
        ),
    };
    // A person pauses keys too.
    let held_by = match held.paused {
        0 => "held by their server's answers",
        _ => "held back",
    };
    Some(format!(
        "{of} {held_by}: {} (the slowest: {}); free a key with: flyball \
         throttle resume {} --key {key}.",
        parts.join(", "),
        detail,
        requested.status.name
    ))
}

/// Describes the key that asks for the most, compared with its quota.
fn over_quota(keys: u64, most: &OverQuotaKey) -> Option<String> {
    let others = match keys {
        0 => return None,
        1 => String::new(),
        2 => "; one more key asks for more than its quota".to_owned(),
        n => format!("; {} more keys ask for more than their quotas", n - 1),
    };
    let name = if most.key.is_empty() { "''" } else { &most.key };
    Some(format!(
        "Key {name} asks for {} times what its quota of {}/s grants: its backlog grows by {} jobs a \
         minute and will not clear until it asks for less or its server grants more{others}.",
        number(most.ratio()),
        number(most.granted_rps),
        number(most.growth_per_min.round()),
    ))
}

fn left(requested: &Obstacles, until_ms: i64) -> String {
    seconds((until_ms as f64 / 1e3 - requested.now).max(0.0))
}

/// Quotes the first line of a text, shortened.
fn quoted(text: &str) -> String {
    format!("\"{}\"", first_line(text))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::throttle::bucket::UsageCounters;
    use crate::throttle::{KeyState, KnobProblem, Name, RefusalPause};

    const NOW: f64 = 1_700_000_000.0;
    const RATE: &str = "12 rps, set by ann.";

    fn status(name: &str) -> Status {
        status_with(name, &[])
    }

    /// Returns the status of a throttle with a rate of 12 and these knobs.
    fn status_with(name: &str, knobs: &[(&str, &str)]) -> Status {
        let rate = [("rps", "12")];
        let all = rate.iter().chain(knobs);
        let raw = all.map(|(field, text)| ((*field).to_owned(), (*text).to_owned()));
        Status::read(
            Name::new(name).unwrap(),
            raw.collect(),
            &UsageCounters::default(),
            (NOW * 1e6) as i64,
        )
    }

    fn in_ms(seconds: f64) -> i64 {
        ((NOW + seconds) * 1e3) as i64
    }

    fn obstacles_of(status: &Status) -> Obstacles<'_> {
        Obstacles {
            status,
            is_read_only: false,
            everything: None,
            above: None,
            behind: None,
            full: None,
            held: None,
            failing: None,
            now: NOW,
        }
    }

    #[test]
    fn a_throttle_without_obstacles_is_reported_by_its_rate_alone() {
        assert_eq!(obstacles_of(&status("hooks")).around(RATE), RATE);
    }

    #[test]
    fn keys_that_hold_most_of_the_jobs_come_before_the_rate_with_the_slowest_and_the_way_out() {
        let hooks = status("hooks");
        let learned = |rps| KeyState {
            learned_rps: Some(rps),
            ..KeyState::default()
        };
        let paused = KeyState {
            paused_until_ms: Some(in_ms(840.0)),
            why: "answered 429".into(),
            ..KeyState::default()
        };
        let states = [
            ("tenant-3", paused),
            ("tenant-0", learned(0.009)),
            ("tenant-1", learned(2.0)),
        ];
        let held = HeldKeys::of(states.iter().map(|(key, state)| (*key, 100, state)));

        let sentence = Obstacles {
            held: Some(&held),
            ..obstacles_of(&hooks)
        }
        .around(RATE);

        assert_eq!(
            sentence,
            "All 3 keys with waiting jobs are held back: 1 paused, 1 without \
             quota, 1 at a learned rate (the slowest: tenant-3, for 14 min more, \"answered \
             429\"); free a key with: flyball throttle resume hooks --key tenant-3. 12 rps, set by \
             ann."
        );
    }

    #[test]
    fn a_few_keys_that_hold_little_back_come_behind_the_rate() {
        let hooks = status("hooks");
        let (slow, free) = (
            KeyState {
                learned_rps: Some(0.5),
                ..KeyState::default()
            },
            KeyState::default(),
        );
        let held = HeldKeys::of([("a", 1, &slow), ("b", 9, &free)]);

        let sentence = Obstacles {
            held: Some(&held),
            ..obstacles_of(&hooks)
        }
        .around(RATE);

        assert_eq!(
            sentence,
            "12 rps, set by ann. 1 of 2 keys with waiting jobs is held by their server's answers: \
             1 at a learned rate (the slowest: a, 0.5/s); free a key with: flyball throttle resume \
             hooks --key a."
        );
    }

    #[test]
    fn a_refusal_and_a_debt_say_how_long_nothing_goes_and_what_ends_it() {
        let refused = Status {
            refusal: Some(RefusalPause {
                until_ms: in_ms(90.0),
                why: "answered 503\nbody".into(),
            }),
            ..status("hooks")
        };
        assert_eq!(
            obstacles_of(&refused).around(RATE),
            "No job starts for another 90 s, because a server refused hooks: \"answered 503\"; end \
             the pause with: flyball throttle resume hooks. 12 rps, set by ann."
        );

        let indebted = Status {
            debt_until_ms: Some(in_ms(240.0)),
            ..status("hooks")
        };
        assert_eq!(
            obstacles_of(&indebted).around(RATE),
            "No job starts for another 4 min, because hooks is in debt: its jobs cost more than it \
             had; clear the debt with: flyball throttle resume hooks. 12 rps, set by ann."
        );
    }

    #[test]
    fn a_pause_of_everything_comes_first_with_its_author_and_its_end() {
        let hooks = status("hooks");
        let pause = Pause {
            since: Timestamp::UNIX_EPOCH,
            by: "ann".into(),
            why: "the disk is full".into(),
        };
        let sentence = Obstacles {
            everything: Some(&pause),
            ..obstacles_of(&hooks)
        }
        .around(RATE);
        assert_eq!(
            sentence,
            "No job starts, because everything has been paused since 1970-01-01T00:00:00Z by ann: \
             the disk is full; end the pause with: flyball resume. 12 rps, set by ann."
        );
    }

    #[test]
    fn a_database_that_is_read_only_comes_first() {
        let hooks = status("hooks");
        let sentence = Obstacles {
            is_read_only: true,
            ..obstacles_of(&hooks)
        }
        .around(RATE);
        assert!(
            sentence.starts_with("No job starts, because the database is read-only: "),
            "{sentence}"
        );
    }

    #[test]
    fn slots_that_are_all_in_use_are_named_after_the_rate() {
        let sentence = |slots| {
            let mut hooks = status("hooks");
            hooks.knobs.concurrency = Some(slots);
            Obstacles {
                full: Some(&hooks),
                ..obstacles_of(&hooks)
            }
            .around(RATE)
        };
        assert_eq!(
            sentence(5),
            "12 rps, set by ann. All 5 slots of hooks (its knob concurrency) are in use: the next \
             job starts when a running one ends."
        );
        assert_eq!(
            sentence(1),
            "12 rps, set by ann. The only slot of hooks (its knob concurrency) is in use: the next \
             job starts when the running one ends."
        );
        assert_eq!(
            sentence(0),
            "12 rps, set by ann. No job starts, because the knob concurrency of hooks is 0; set it \
             with: flyball throttle set hooks concurrency=10."
        );
    }

    #[test]
    fn jobs_that_wait_for_the_tokens_of_a_throttle_above_say_so_after_the_rate() {
        let below = status("mail/bulk");
        let sentence = Obstacles {
            behind: Some("throttle mail above mail/bulk has no token left for it"),
            ..obstacles_of(&below)
        }
        .around(RATE);
        assert_eq!(
            sentence,
            "12 rps, set by ann. Its jobs wait: throttle mail above mail/bulk has no token left \
             for it."
        );
    }

    #[test]
    fn a_throttle_whose_parent_is_missing_says_so_before_its_rate() {
        let mut below = status("mail/bulk");
        below.problems.push(KnobProblem {
            field: "parent".to_owned(),
            message: "there is no throttle mail, which mail/bulk names as its parent".to_owned(),
        });
        assert_eq!(
            obstacles_of(&below).around(RATE),
            "No job starts, because its knob parent is wrong. 12 rps, set by ann."
        );
    }

    #[test]
    fn a_throttle_below_one_that_is_closed_says_which_and_why() {
        let (below, mut above) = (status("mail/bulk"), status("mail"));
        (above.knobs.paused, above.knobs.by) = (true, "ann".to_owned());
        let sentence = Obstacles {
            above: Some(&above),
            ..obstacles_of(&below)
        }
        .around(RATE);
        assert_eq!(
            sentence,
            "No job starts, because the throttle mail above it grants nothing. It is paused by \
             ann; resume it with: flyball throttle resume mail. 12 rps, set by ann."
        );

        let sentence = |field: &str, text: &str| {
            let author = [("by", "bob"), ("why", "load rose")];
            let fields = [author[0], author[1], ("mode", "auto"), (field, text)];
            let above = status_with("mail", &fields);
            Obstacles {
                above: Some(&above),
                ..obstacles_of(&below)
            }
            .around(RATE)
        };
        for (field, text, told) in [
            ("rps", "0", "rate is 0, set by bob (\"load rose\"); "),
            (
                "rps",
                "0.000",
                "Its breaker is open: \"load rose\"; it restarts",
            ),
            ("concurrency", "0", "Its knob concurrency is 0; set it with"),
            (
                "concurrency",
                "0.000",
                "Its breaker is open: \"load rose\"; it",
            ),
            ("capacity", "0", "It is stopped: "),
        ] {
            let reported = sentence(field, text);
            assert!(reported.contains(told), "{reported}");
        }
    }

    #[test]
    fn knobs_of_keys_that_are_0_are_named() {
        let mut hooks = status("hooks");
        hooks.knobs.key_concurrency = Some(0);
        assert_eq!(
            obstacles_of(&hooks).around(RATE),
            "12 rps, set by ann. No job with a key starts, because the knob key_concurrency of \
             hooks is 0; set it with: flyball throttle set hooks key_concurrency=10."
        );
        hooks.knobs.key_rps = crate::throttle::RateLimit::Stopped;
        assert!(
            obstacles_of(&hooks)
                .around(RATE)
                .contains("the knob key_rps of hooks is 0")
        );
    }

    #[test]
    fn failures_are_reported_with_their_number_the_last_success_and_the_last_error() {
        let hooks = status("hooks");
        let mut failing = Failing {
            failures: 66,
            error: "answered 500: upstream".into(),
            ..Failing::default()
        };
        let sentence = |failing: &Failing| {
            Obstacles {
                failing: Some(failing),
                ..obstacles_of(&hooks)
            }
            .around(RATE)
        };
        assert_eq!(
            sentence(&failing),
            "All its jobs fail: 66 attempts failed and none has succeeded since its workers started; the last error: \"answered \
             500: upstream\". 12 rps, set by ann."
        );
        failing.succeeded_at = Timestamp::from_second(NOW as i64 - 660).ok();
        assert!(
            sentence(&failing).contains("none has succeeded for 11 min"),
            "{}",
            sentence(&failing)
        );
    }
}
