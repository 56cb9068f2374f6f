//! Crowds: held messages of many recipients that one instant lets go.

use jiff::SignedDuration;

use super::candidate::Candidate;
use super::caps::{LOCAL_DAY, noted_at};
use super::gate::MessageGate;
use super::gates::{GateHold, GatePolicy, MessagePlan, quiet_of, released_at};
use super::release::BUCKET_S;

/// Returns the quarter of an hour in which a held message is released with a crowd; `None` if it
/// goes at a time of its own.
pub fn crowd_quarter(plan: &MessagePlan) -> Option<i64> {
    let MessagePlan::Held { holds, .. } = plan else {
        return None;
    };
    let released = holds.iter().rfind(|hold| is_of_crowd(hold))?;
    Some(released.until.as_second().div_euclid(BUCKET_S))
}

/// Moves a message that its attempt holds to its place within the span of its crowd.
pub fn in_crowd(
    plan: &mut MessagePlan,
    message: &Candidate<'_>,
    policy: GatePolicy<'_>,
    spread: SignedDuration,
) {
    let MessagePlan::Held {
        holds, reserve_s, ..
    } = plan
    else {
        return;
    };
    let Some(last) = holds.last_mut().filter(|last| is_of_crowd(last)) else {
        return;
    };
    let (release, quiet) = (&policy.rules.release, quiet_of(message, policy));
    last.until = released_at(message, release, &quiet, last.until, spread);
    *reserve_s = noted_at(last.until);
}

/// Returns true if a hold ends for many recipients at once: at a time of their clock, at the end of
/// quiet hours, or with a day.
fn is_of_crowd(hold: &GateHold) -> bool {
    match hold.gate {
        MessageGate::LocalTime | MessageGate::QuietHours => true,
        MessageGate::Caps => hold.rule.ends_with(LOCAL_DAY),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::providers::{Channel, Recipient};
    use crate::recipient::address::RecipientKey;
    use crate::recipient::candidate::{NORMAL, Origin};
    use crate::recipient::profile::Profile;
    use crate::recipient::rules::defaults;

    #[test]
    fn quiet_hours_and_days_end_for_a_crowd_and_windows_for_one() {
        let quarter = |holds: &[(MessageGate, &str, i64)]| {
            let hold = |(gate, rule, second): &(MessageGate, &str, i64)| GateHold {
                gate: *gate,
                rule: (*rule).to_owned(),
                until: Timestamp::from_second(*second).unwrap(),
            };
            crowd_quarter(&MessagePlan::Held {
                holds: holds.iter().map(hold).collect(),
                reserve_s: 0,
                coalesces: false,
            })
        };
        let quiet = (MessageGate::QuietHours, "22:00-08:00 UTC", 900);
        let day = (MessageGate::Caps, "per_day 1 per local_day", 9000);
        let window = (MessageGate::Caps, "per_day 1 per 1d", 9000);
        let local = (MessageGate::LocalTime, "09:00 UTC", 1800);
        assert_eq!(quarter(&[quiet]), Some(1));
        assert_eq!(quarter(&[local]), Some(2));
        assert_eq!(quarter(&[local, window]), Some(2));
        assert_eq!(quarter(&[day]), Some(10));
        assert_eq!(quarter(&[window]), None);
        assert_eq!(quarter(&[quiet, day]), Some(10));
        assert_eq!(quarter(&[quiet, window]), Some(1));
        assert_eq!(crowd_quarter(&MessagePlan::Send), None);
    }

    #[test]
    fn an_attempt_holds_a_message_until_its_place_in_the_crowd() {
        let to = Recipient::parse(Channel::Push, "abc").unwrap();
        let (profile, rules) = (Profile::default(), defaults());
        let policy = GatePolicy {
            profile: &profile,
            defaults: &profile,
            rules: &rules,
        };
        let wakes: Timestamp = "2026-06-10T06:00:00Z".parse().unwrap();
        let message = Candidate {
            origin: Origin::Sender,
            job: Some(1),
            priority: NORMAL,
            channel: Channel::Push,
            category: "product",
            template: None,
            to: Some(&to),
            recipient: RecipientKey::of_address("acme", &to),
            actor: None,
            digest: None,
            at_most: None,
            local: None,
            accepted_at: wakes,
            deadline: None,
            is_cancelled: false,
        };
        let goes_at = |message: Candidate<'_>, gate| {
            let hold = GateHold {
                gate,
                rule: "per_day 1 per 1d".to_owned(),
                until: wakes,
            };
            let mut plan = MessagePlan::Held {
                holds: vec![hold],
                reserve_s: wakes.as_second(),
                coalesces: false,
            };
            in_crowd(&mut plan, &message, policy, SignedDuration::from_mins(30));
            let at = plan.planned_at(wakes).unwrap();
            let reserved =
                matches!(plan, MessagePlan::Held { reserve_s, .. } if reserve_s == noted_at(at));
            assert!(reserved, "{plan:?}");
            at
        };
        let later = goes_at(message, MessageGate::QuietHours);
        assert!(later > wakes && later.duration_since(wakes) < SignedDuration::from_mins(30));
        assert_eq!(goes_at(message, MessageGate::Caps), wakes, "its own time");
        let urgent = Candidate {
            priority: NORMAL - 1,
            ..message
        };
        assert_eq!(goes_at(urgent, MessageGate::QuietHours), wakes);
        let soon = Candidate {
            deadline: Some(wakes),
            ..message
        };
        assert_eq!(goes_at(soon, MessageGate::QuietHours), wakes);
    }
}
