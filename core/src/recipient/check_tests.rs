use proptest::prelude::*;

use super::*;
use crate::providers::Channel;
use crate::recipient::address::RecipientKey;
use crate::recipient::candidate::{Candidate, Origin};
use crate::recipient::caps::CapRules;
use crate::recipient::explain::forecast;
use crate::recipient::gates::{GatePolicy, GateRows, MessagePlan, cap_lists, plan};
use crate::recipient::profile::Profile;
use crate::recipient::rules::RecipientRules;

/// The second from which tests count.
const BEGIN: i64 = 1_800_000_000;

const RULES: &str = "
[categories.news]
valid_for_s = 2592000
caps.push = { per_hour = \"2 per 1h\", per_day = \"3 per 24h\" }
actor_caps = { per_actor = \"1 per 6h\" }
";

fn second(offset: i64) -> Timestamp {
    Timestamp::from_second(BEGIN + offset).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Law L12: a check tells what the gates do with the same rows.
    #[test]
    fn a_check_tells_what_the_plan_of_a_message_does(
        mut first in prop::collection::vec(-90_000_i64..0, 0..5),
        mut other in prop::collection::vec(-90_000_i64..0, 0..3),
        mut waiting in prop::collection::vec(1_i64..90_000, 0..4),
    ) {
        let rules = RecipientRules::parse("test.toml", RULES).unwrap();
        let to = crate::providers::Recipient::parse(Channel::Push, "abc").unwrap();
        let message = Candidate {
            origin: Origin::Sender,
            job: None,
            priority: 2,
            channel: Channel::Push,
            category: "news",
            template: None,
            to: Some(&to),
            recipient: RecipientKey::of_address("acme", &to),
            actor: Some("bob"),
            digest: None,
            at_most: None,
            local: None,
            accepted_at: second(0),
            deadline: None,
            is_cancelled: false,
        };
        for times in [&mut first, &mut other, &mut waiting] {
            times.iter_mut().for_each(|time| *time += BEGIN);
            times.sort_unstable();
        }
        let lists = cap_lists(&message, &rules);
        let times = [
            CapTimes { sent: &first, reserved: &waiting },
            CapTimes { sent: &other, reserved: &[] },
        ];
        let (all, each) = caps(&lists, &times, second(0), &TimeZone::UTC, |_| false);
        prop_assert_eq!(each.len(), 3);
        prop_assert_eq!(all.allowed, all.remaining > Some(0));
        for one in &each {
            prop_assert_eq!(one.check.allowed, one.check.remaining > 0, "{:?}", one);
        }
        prop_assert_eq!(all.allowed, each.iter().all(|one| one.check.allowed));
        let profile = Profile::default();
        let policy = GatePolicy { profile: &profile, defaults: &profile, rules: &rules };
        let rows = GateRows { times: &times, ..GateRows::default() };
        let planned = plan(&message, policy, &rows, second(0));
        let next = forecast(&planned, second(0), false);
        match &planned {
            MessagePlan::Send => prop_assert!(all.allowed && all.reset_at == second(0)),
            MessagePlan::Held { holds, .. } => {
                prop_assert!(!all.allowed);
                prop_assert_eq!(Some(all.reset_at), holds.last().map(|hold| hold.until));
                let rule = &holds.last().unwrap().rule;
                prop_assert!(rule.starts_with(&all.rule), "{} is not {}", rule, all.rule);
            }
            other => prop_assert!(false, "{:?}", other),
        }
        prop_assert_eq!(next.goes_at, Some(all.reset_at));
    }
}

#[test]
fn what_waits_for_tomorrow_leaves_room_today() {
    let rules = "[categories.news]\ncaps.push = { per_hour = \"2 per 1h\", per_day = \"2 per local_day\" }\n";
    let rules = RecipientRules::parse("test.toml", rules).unwrap();
    let lists = [CapList {
        key: RecipientKey::of_subscriber("acme", Channel::Push, "ada"),
        caps: rules.caps("news", Channel::Push),
        over: crate::recipient::rules::OverCap::Hold,
    }];
    let state = |waiting: &[i64]| {
        let times = [CapTimes {
            sent: &[],
            reserved: waiting,
        }];
        let (all, each) = caps(&lists, &times, second(0), &TimeZone::UTC, |_| false);
        let remaining: Vec<u32> = each.iter().map(|one| one.check.remaining).collect();
        (all.allowed, all.remaining, remaining)
    };
    let tomorrow = BEGIN + 86_400;
    assert_eq!(state(&[tomorrow, tomorrow]), (true, Some(2), vec![2, 2]));
    // The second begins at 08:00 UTC.
    let soon = BEGIN + 1800;
    assert_eq!(state(&[soon]), (true, Some(1), vec![1, 1]));
    assert_eq!(state(&[soon, soon]), (false, Some(0), vec![0, 0]));
}

#[test]
fn without_a_cap_nothing_is_counted() {
    let lists = [CapList {
        key: RecipientKey::of_subscriber("acme", Channel::Sms, "ada"),
        caps: CapRules::default(),
        over: crate::recipient::rules::OverCap::Hold,
    }];
    let (all, each) = caps(&lists, &[], second(0), &TimeZone::UTC, |_| false);
    assert!(each.is_empty());
    assert_eq!((all.allowed, all.remaining), (true, None));
}
