use jiff::civil::date;
use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;

fn rules(texts: &[(&str, &str)]) -> CapRules {
    let parse = |(name, text): &(&str, &str)| CapRule::parse(name, text).unwrap();
    CapRules(texts.iter().map(parse).collect())
}

fn rolling(rules: &[(u32, i64)]) -> CapRules {
    let rule = |(most, span_s): &(u32, i64)| CapRule {
        name: format!("{most}/{span_s}"),
        most: *most,
        window: CapWindow::Rolling(*span_s),
    };
    CapRules(rules.iter().map(rule).collect())
}

fn at(second: i64) -> Timestamp {
    time_of(second)
}

fn take(rules: &CapRules, sent: &mut Vec<i64>, second: i64) -> bool {
    rules.take(sent, at(second), &TimeZone::UTC).is_ok()
}

#[test]
fn a_rule_is_read_as_people_write_it() {
    for (text, most, window, shown) in [
        ("1 per 24h", 1, CapWindow::Rolling(DAY), "1 per 1d"),
        ("10 per 90s", 10, CapWindow::Rolling(90), "10 per 90s"),
        ("3 per 1w", 3, CapWindow::Rolling(7 * DAY), "3 per 1w"),
        ("8 per 30d", 8, CapWindow::Rolling(2_592_000), "8 per 30d"),
        ("3 per local_day", 3, CapWindow::LocalDay, "3 per local_day"),
    ] {
        let rule = CapRule::parse("r", text).unwrap();
        assert_eq!((rule.most, rule.window), (most, window), "{text}");
        assert_eq!(rule.to_string(), shown);
    }
    for text in [
        "",
        "1",
        "1 per",
        "1 per 24",
        "1 per h",
        "0 per 1h",
        "1001 per 1h",
        "-1 per 1h",
        "1 per -1h",
        "1 per 0s",
        "1 per 367d",
        "1.5 per 1h",
        "1 per 1.5h",
        "+1 per 1h",
        "1 per day",
        "1 in 24h",
        "1 per 99999999999w",
        "1 per ü",
    ] {
        assert_eq!(CapRule::parse("r", text), None, "{text}");
    }
}

#[test]
fn the_second_of_a_day_goes_when_the_first_is_exactly_a_day_old() {
    let (rules, mut sent) = (rules(&[("per_day", "1 per 1d")]), Vec::new());
    assert!(take(&rules, &mut sent, 1000));
    assert!(!take(&rules, &mut sent, 1000 + DAY - 1));
    let check = rules.check(&sent, at(5000), &TimeZone::UTC).unwrap();
    assert_eq!(
        check,
        CapCheck {
            allowed: false,
            remaining: 0,
            reset_at: at(1000 + DAY),
            rule: "per_day".to_owned()
        }
    );
    assert!(take(&rules, &mut sent, 1000 + DAY));
}

#[test]
fn the_week_refuses_although_the_day_is_free() {
    let rules = rules(&[("per_day", "1 per 1d"), ("per_week", "3 per 1w")]);
    let mut sent = Vec::new();
    for day in 0..3 {
        assert!(take(&rules, &mut sent, day * DAY), "{day}");
    }
    assert!(!take(&rules, &mut sent, 3 * DAY));
    let check = rules.check(&sent, at(3 * DAY), &TimeZone::UTC).unwrap();
    assert_eq!(
        (check.rule.as_str(), check.reset_at),
        ("per_week", at(7 * DAY))
    );
    let each = rules.checks(&sent, &[], at(3 * DAY), &TimeZone::UTC);
    assert_eq!(
        each.iter()
            .map(|check| (check.allowed, check.remaining))
            .collect::<Vec<_>>(),
        [(true, 1), (false, 0)]
    );
}

#[test]
fn a_check_names_the_rule_with_the_fewest_left_and_uses_nothing() {
    let rules = rules(&[("per_hour", "5 per 1h"), ("per_day", "6 per 1d")]);
    let sent = [0, 10, 20, 30];
    let check = rules.check(&sent, at(5000), &TimeZone::UTC).unwrap();
    assert_eq!(
        (
            check.allowed,
            check.remaining,
            check.rule.as_str(),
            check.reset_at
        ),
        (true, 2, "per_day", at(5000))
    );
    assert_eq!(
        CapRules::default().check(&sent, at(0), &TimeZone::UTC),
        None
    );
}

#[test]
fn a_window_is_never_shorter_than_its_rule_by_the_part_of_a_second() {
    let (rules, mut sent) = (rolling(&[(1, 5)]), Vec::new());
    let at = |millis| Timestamp::from_millisecond(millis).unwrap();
    assert!(rules.take(&mut sent, at(10_900), &TimeZone::UTC).is_ok());
    assert!(rules.take(&mut sent, at(15_899), &TimeZone::UTC).is_err());
    assert!(rules.take(&mut sent, at(16_000), &TimeZone::UTC).is_ok());
}

#[test]
fn a_clock_that_steps_back_keeps_the_order_and_gives_nothing_twice() {
    let (rules, mut sent) = (rolling(&[(2, 100)]), Vec::new());
    assert!(take(&rules, &mut sent, 1000));
    assert!(take(&rules, &mut sent, 900));
    assert_eq!(sent, [1000, 1000]);
    assert!(!take(&rules, &mut sent, 950));
    assert!(take(&rules, &mut sent, 1100));
}

#[test]
fn a_slot_given_back_is_one_slot_and_uncovers_none() {
    let (rules, mut sent) = (rolling(&[(2, 100)]), Vec::new());
    for second in [0, 0, 100, 100, 200, 200] {
        assert!(take(&rules, &mut sent, second), "{second}");
        assert!(sent.len() <= rules.keep());
    }
    assert!(!take(&rules, &mut sent, 200));
    give_back(&mut sent, 200);
    assert_eq!(sent, [100, 100, 200]);
    assert!(take(&rules, &mut sent, 200));
    assert!(!take(&rules, &mut sent, 299));
    give_back(&mut sent, 12_345);
    assert_eq!(sent.len(), 4);
}

#[test]
fn a_local_day_ends_at_the_midnight_of_the_recipient() {
    let rules = rules(&[("per_day", "1 per local_day")]);
    for (zone, day, hours) in [
        ("America/New_York", date(2026, 3, 8), 23),
        ("America/New_York", date(2026, 11, 1), 25),
        ("Asia/Kolkata", date(2026, 3, 8), 24),
        // The clock skips the midnight with which this day begins.
        ("Africa/Cairo", date(2026, 4, 24), 23),
        // And goes from the midnight with which this one would end back to 23:00.
        ("Africa/Cairo", date(2026, 10, 29), 25),
        // It was put back from 00:01 to 23:01: the day ends at the first midnight.
        ("America/St_Johns", date(2009, 10, 31), 24),
    ] {
        let zone = TimeZone::get(zone).unwrap();
        let begin = day.to_zoned(zone.clone()).unwrap().timestamp().as_second();
        let mut sent = Vec::new();
        let mut take = |second| rules.take(&mut sent, at(second), &zone).is_ok();
        assert!(take(begin - 1));
        assert!(take(begin), "{day}");
        assert!(!take(begin + hours * 3600 - 1), "{day}");
        assert!(take(begin + hours * 3600), "{day}");
    }
}

#[test]
fn a_week_and_a_local_day_hold_together() {
    let rules = rules(&[("per_day", "1 per local_day"), ("per_week", "2 per 1w")]);
    // The week frees at noon of a day that has had its message.
    let noon = 7 * DAY + DAY / 2;
    let sent = [noon - 7 * DAY, noon - 3600];
    let plan = rules.plan(&sent, &[], noon - 10, &TimeZone::UTC);
    assert_eq!(
        (plan.at_s, plan.rule.unwrap().name.as_str()),
        (8 * DAY, "per_day")
    );
}

#[test]
fn ten_held_messages_get_ten_times() {
    let rules = rolling(&[(2, 100)]);
    let (sent, mut reserved) = ([0, 50], Vec::new());
    for _ in 0..6 {
        let plan = rules.plan(&sent, &reserved, 60, &TimeZone::UTC);
        reserved.push(plan.at_s);
    }
    assert_eq!(reserved, [100, 150, 200, 250, 300, 350]);
}

#[test]
fn a_message_that_may_go_at_once_does_not_queue_behind_one_held_for_another_reason() {
    let rules = rolling(&[(2, 100)]);
    // Held until 1000 by quiet hours.
    let plan = rules.plan(&[], &[1000], 60, &TimeZone::UTC);
    assert_eq!((plan.at_s, plan.rule), (60, None));
    // A third message within the span of both.
    let plan = rules.plan(&[930], &[1000], 940, &TimeZone::UTC);
    assert_eq!(plan.at_s, 1030);
}

#[test]
fn a_message_goes_now_if_all_that_wait_go_a_window_later() {
    let goes = |texts: &[(&str, &str)], sent: &[i64], reserved: &[i64], t| {
        let rules = rules(texts);
        let plan = rules.plan(sent, reserved, t, &TimeZone::UTC);
        (plan.at_s, plan.rule.is_none())
    };
    let hour = [("per_hour", "2 per 1h")];
    assert_eq!(goes(&hour, &[], &[9000, 9000], 5400), (5400, true));
    assert_eq!(goes(&hour, &[5000], &[9000, 9000], 5400), (5400, true));
    // One more would be the third within an hour, on one side or between both.
    assert_eq!(goes(&hour, &[], &[9000, 9000], 5401), (12_600, false));
    assert_eq!(goes(&hour, &[5000], &[8000], 5400), (8600, false));
    let day = [("per_day", "1 per local_day")];
    assert_eq!(goes(&day, &[100], &[2 * DAY], DAY), (DAY, true));
    assert_eq!(goes(&day, &[100], &[2 * DAY], 200), (3 * DAY, false));
}

/// Returns true if no window of any rule holds more than its count.
fn holds(rules: &[(u32, i64)], sent: &[i64]) -> bool {
    let mut sent = sent.to_vec();
    sent.sort_unstable();
    let is_kept = |(most, span_s): &(u32, i64)| {
        sent.windows(*most as usize + 1)
            .all(|window| window[*most as usize] - window[0] >= *span_s)
    };
    rules.iter().all(is_kept)
}

/// One to three rules with counts and spans that rise.
fn rule_sets() -> impl Strategy<Value = Vec<(u32, i64)>> {
    prop::collection::vec((1u32..4, 1i64..60), 1..4).prop_map(|steps| {
        let mut sum = (0, 0);
        let rise = |(most, span_s)| {
            sum = (sum.0 + most, sum.1 + span_s);
            sum
        };
        steps.into_iter().map(rise).collect()
    })
}

/// Messages of one recipient: planned when they come, sent late by up to `late` seconds, and told a
/// new time when they are refused. Returns the times of the sends with the times first told.
fn simulate(rules: &CapRules, pauses: &[i64], late: impl Fn(usize) -> i64) -> Vec<(i64, i64)> {
    let (mut sent, mut log, mut now) = (Vec::new(), Vec::new(), 0);
    // The time of the next attempt, the time first told, the message; and the reservations.
    let mut waiting: Vec<(i64, i64, usize)> = Vec::new();
    let mut reserved: Vec<(usize, i64)> = Vec::new();
    let mut arrivals = pauses.iter().scan(0, |at, pause| {
        *at += pause;
        Some(*at)
    });
    let (mut next, mut count) = (arrivals.next(), 0);
    while next.is_some() || !waiting.is_empty() {
        waiting.sort_unstable();
        let attempt = waiting.first().map(|(at, ..)| *at);
        match (next, attempt) {
            (Some(arrival), attempt) if attempt.is_none_or(|at| arrival < at) => {
                now = arrival.max(now);
                let held: Vec<i64> = reserved.iter().map(|(_, at)| *at).collect();
                let plan = rules.plan(&sent, &held, now, &TimeZone::UTC);
                if plan.rule.is_some() {
                    reserved.push((count, plan.at_s));
                }
                waiting.push((plan.at_s + late(count), plan.at_s, count));
                (next, count) = (arrivals.next(), count + 1);
            }
            _ => {
                let (at, told, message) = waiting.remove(0);
                now = at.max(now);
                match rules.take(&mut sent, time_of(now), &TimeZone::UTC) {
                    Ok(_) => {
                        log.push((now, told));
                        reserved.retain(|(of, _)| *of != message);
                    }
                    Err(plan) => {
                        waiting.push((plan.at_s, told, message));
                        let row = reserved.iter_mut().find(|(of, _)| *of == message);
                        match row {
                            Some((_, at)) => *at = plan.at_s,
                            None => reserved.push((message, plan.at_s)),
                        }
                    }
                }
            }
        }
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_law_equals_counting(
        set in rule_sets(), steps in prop::collection::vec(0i64..20, 1..120)
    ) {
        let rules = rolling(&set);
        let (mut sent, mut all, mut now) = (Vec::new(), Vec::new(), 0i64);
        for step in steps {
            now += step;
            let count = |span_s: i64| all.iter().filter(|at| **at > now - span_s).count();
            let free = set.iter().map(|(most, span_s)| (*most as usize).saturating_sub(count(*span_s)));
            let remaining = free.min().unwrap();
            let check = rules.check(&sent, at(now), &TimeZone::UTC).unwrap();
            prop_assert_eq!(check.remaining as usize, remaining);
            prop_assert_eq!(check.allowed, remaining > 0);
            prop_assert_eq!(take(&rules, &mut sent, now), remaining > 0);
            if remaining > 0 {
                all.push(now);
            }
        }
        prop_assert!(holds(&set, &all));
    }

    #[test]
    fn a_reservation_is_the_earliest_time_that_breaks_no_rule(
        set in rule_sets(), pauses in prop::collection::vec(0i64..30, 1..40)
    ) {
        let rules = rolling(&set);
        let (mut all, mut now) = (Vec::new(), 0);
        for pause in pauses {
            now += pause;
            // All on time: what was planned for a time before now has gone.
            let (sent, reserved): (Vec<i64>, Vec<i64>) = all.iter().partition(|at| **at <= now);
            let plan = rules.plan(&sent, &reserved, now, &TimeZone::UTC).at_s;
            let with = |at: i64| [all.clone(), vec![at]].concat();
            let earliest = (now..).find(|at| holds(&set, &with(*at))).unwrap();
            prop_assert_eq!(plan, earliest);
            all.push(plan);
        }
    }

    #[test]
    fn a_message_goes_at_once_exactly_if_that_breaks_no_rule_beside_what_waits(
        set in rule_sets(), steps in prop::collection::vec(0i64..20, 1..20), reserved in prop::collection::vec(0i64..300, 0..6)
    ) {
        let (rules, mut sent, mut now) = (rolling(&set), Vec::new(), 0);
        for step in steps {
            now += step;
            take(&rules, &mut sent, now);
        }
        let mut reserved: Vec<i64> = reserved.iter().map(|after| now + after).collect();
        reserved.sort_unstable();
        prop_assume!(holds(&set, &[sent.clone(), reserved.clone()].concat()));
        let plan = rules.plan(&sent, &reserved, now, &TimeZone::UTC);
        let with = [sent.clone(), reserved, vec![now]].concat();
        prop_assert_eq!(plan.rule.is_none(), holds(&set, &with));
    }

    #[test]
    fn late_sends_break_no_rule_and_punctual_ones_go_when_first_told(
        set in rule_sets(), pauses in prop::collection::vec(0i64..30, 1..60), late in prop::collection::vec(0i64..16, 60)
    ) {
        let rules = rolling(&set);
        let times = |log: &[(i64, i64)]| log.iter().map(|(at, _)| *at).collect::<Vec<_>>();
        let tardy = simulate(&rules, &pauses, |message| late[message]);
        prop_assert!(tardy.len() == pauses.len() && holds(&set, &times(&tardy)));
        let punctual = simulate(&rules, &pauses, |_| 0);
        prop_assert!(punctual.len() == pauses.len() && holds(&set, &times(&punctual)));
        prop_assert!(punctual.iter().all(|(at, told)| at == told));
    }

    #[test]
    fn with_every_limit_doubled_nothing_is_sent_later(
        set in rule_sets(), pauses in prop::collection::vec(0i64..30, 1..60)
    ) {
        let doubled: Vec<_> = set.iter().map(|(most, span_s)| (2 * most, *span_s)).collect();
        let of = |set: &[(u32, i64)]| simulate(&rolling(set), &pauses, |_| 0);
        let (few, many) = (of(&set), of(&doubled));
        prop_assert_eq!(few.len(), many.len());
        for (n, ((later, _), (sooner, _))) in few.iter().zip(&many).enumerate() {
            prop_assert!(sooner <= later, "message {}", n);
        }
    }
}
