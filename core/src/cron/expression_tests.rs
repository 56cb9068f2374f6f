use jiff::civil::date;

use super::*;

fn times(text: &str, from: DateTime, count: usize) -> Vec<String> {
    let expression = Expression::parse(text).unwrap();
    let mut found = Vec::new();
    let mut from = from;
    while found.len() < count {
        let at = expression.at_or_after(from).unwrap();
        found.push(at.strftime("%a %Y-%m-%d %H:%M:%S").to_string());
        from = at.checked_add(1.second()).unwrap();
    }
    found
}

#[test]
fn an_expression_names_the_times_that_its_fields_allow() {
    let from = date(2026, 11, 20).at(17, 43, 30, 0);
    for (text, expected) in [
        (
            "* * * * *",
            [
                "Fri 2026-11-20 17:44:00",
                "Fri 2026-11-20 17:45:00",
                "Fri 2026-11-20 17:46:00",
            ],
        ),
        (
            "*/20 * * * *",
            [
                "Fri 2026-11-20 18:00:00",
                "Fri 2026-11-20 18:20:00",
                "Fri 2026-11-20 18:40:00",
            ],
        ),
        (
            "5/20 17 * * *",
            [
                "Fri 2026-11-20 17:45:00",
                "Sat 2026-11-21 17:05:00",
                "Sat 2026-11-21 17:25:00",
            ],
        ),
        (
            "30 2 * * *",
            [
                "Sat 2026-11-21 02:30:00",
                "Sun 2026-11-22 02:30:00",
                "Mon 2026-11-23 02:30:00",
            ],
        ),
        (
            "0 9-17/4 * * MON-FRI",
            [
                "Mon 2026-11-23 09:00:00",
                "Mon 2026-11-23 13:00:00",
                "Mon 2026-11-23 17:00:00",
            ],
        ),
        (
            "*/10 * * * * *",
            [
                "Fri 2026-11-20 17:43:30",
                "Fri 2026-11-20 17:43:40",
                "Fri 2026-11-20 17:43:50",
            ],
        ),
        (
            "15,45 30 8 1 1 ?",
            [
                "Fri 2027-01-01 08:30:15",
                "Fri 2027-01-01 08:30:45",
                "Sat 2028-01-01 08:30:15",
            ],
        ),
        (
            "0 0 L * *",
            [
                "Mon 2026-11-30 00:00:00",
                "Thu 2026-12-31 00:00:00",
                "Sun 2027-01-31 00:00:00",
            ],
        ),
        (
            "0 0 * * MON#2",
            [
                "Mon 2026-12-14 00:00:00",
                "Mon 2027-01-11 00:00:00",
                "Mon 2027-02-08 00:00:00",
            ],
        ),
        (
            "0 0 * * 5L",
            [
                "Fri 2026-11-27 00:00:00",
                "Fri 2026-12-25 00:00:00",
                "Fri 2027-01-29 00:00:00",
            ],
        ),
        (
            "0 0 * * fri-sun",
            [
                "Sat 2026-11-21 00:00:00",
                "Sun 2026-11-22 00:00:00",
                "Fri 2026-11-27 00:00:00",
            ],
        ),
        (
            "0 0 * * 7",
            [
                "Sun 2026-11-22 00:00:00",
                "Sun 2026-11-29 00:00:00",
                "Sun 2026-12-06 00:00:00",
            ],
        ),
        (
            "0 0 29 february *",
            [
                "Tue 2028-02-29 00:00:00",
                "Sun 2032-02-29 00:00:00",
                "Fri 2036-02-29 00:00:00",
            ],
        ),
        (
            "@weekly",
            [
                "Sun 2026-11-22 00:00:00",
                "Sun 2026-11-29 00:00:00",
                "Sun 2026-12-06 00:00:00",
            ],
        ),
        (
            "  @Yearly ".to_ascii_lowercase().as_str(),
            [
                "Fri 2027-01-01 00:00:00",
                "Sat 2028-01-01 00:00:00",
                "Mon 2029-01-01 00:00:00",
            ],
        ),
        (
            "@hourly",
            [
                "Fri 2026-11-20 18:00:00",
                "Fri 2026-11-20 19:00:00",
                "Fri 2026-11-20 20:00:00",
            ],
        ),
    ] {
        assert_eq!(times(text, from, 3), expected, "{text}");
    }
}

#[test]
fn of_two_restricted_day_fields_either_suffices() {
    let from = date(2026, 11, 1).at(0, 0, 0, 0);
    let either = [
        "Fri 2026-11-06 00:00:00",
        "Fri 2026-11-13 00:00:00",
        "Sun 2026-11-15 00:00:00",
        "Fri 2026-11-20 00:00:00",
    ];
    assert_eq!(times("0 0 15 * FRI", from, 4), either);
    // A star restricts nothing, not even with a step, so both fields must agree.
    assert_eq!(
        times("0 0 */2 * FRI", from, 2),
        ["Fri 2026-11-13 00:00:00", "Fri 2026-11-27 00:00:00"]
    );
}

#[test]
fn a_wrong_expression_is_refused_by_field_with_what_was_wrong_and_what_is_allowed() {
    for (text, message) in [
        (
            "61 * * * *",
            "minute: 61 is out of range; allowed: 0 to 59, * for all, lists (1,3), ranges (1-5), steps (*/2)",
        ),
        ("* 24 * * *", "hour: 24 is out of range; allowed: 0 to 23"),
        (
            "* * 0 * *",
            "day of month: 0 is out of range; allowed: 1 to 31, L for the last day",
        ),
        (
            "* * * 13 *",
            "month: 13 is out of range; allowed: 1 to 12 or JAN to DEC",
        ),
        ("* * * foo *", "month: \"foo\" is not a value"),
        (
            "* * * * 8",
            "day of week: 8 is out of range; allowed: 0 to 7 (0 and 7 are Sunday) or SUN to SAT",
        ),
        (
            "99 * * * * *",
            "second: 99 is out of range; allowed: 0 to 59",
        ),
        (
            "*/0 * * * *",
            "minute: the step \"0\" of \"*/0\" is not a whole number from 1 to 59",
        ),
        (
            "*/90 * * * *",
            "minute: the step \"90\" of \"*/90\" is not a whole number from 1 to 59",
        ),
        ("*/x * * * *", "minute: the step \"x\""),
        ("30-10 * * * *", "minute: the range 30-10 runs backwards"),
        ("1,,2 * * * *", "minute: \"1,,2\" has an empty element"),
        ("-1 * * * *", "minute: \"\" is not a value"),
        ("+1 * * * *", "minute: \"+1\" is not a value"),
        ("1.5 * * * *", "minute: \"1.5\" is not a value"),
        (
            "999999999999 * * * *",
            "minute: 999999999999 is out of range",
        ),
        ("* * 15W * *", "day of month: \"15W\" is not a value"),
        (
            "* * * * MON#6",
            "day of week: \"MON#6\" must end with #1 to #5",
        ),
        (
            "* * * *",
            "expression: has 4 fields; allowed: 5 fields (minute, hour",
        ),
        ("", "expression: has 0 fields"),
        ("0 0 1 1 * 2026 *", "expression: has 7 fields"),
        (
            "@reboot",
            "expression: \"@reboot\" is not known; allowed: 5 fields",
        ),
        ("@every 5m", "expression: \"@every 5m\" is not known"),
    ] {
        let error = Expression::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
    assert!(
        Expression::parse(&"1,".repeat(200))
            .unwrap_err()
            .to_string()
            .contains("at most 256")
    );
}

#[test]
fn a_day_that_never_comes_is_not_looked_for_for_ever() {
    let from = date(2026, 11, 20).at(0, 0, 0, 0);
    assert_eq!(
        Expression::parse("0 0 30 2 *").unwrap().at_or_after(from),
        None
    );
    assert_eq!(
        Expression::parse("0 0 31 4,6,9,11 *")
            .unwrap()
            .at_or_after(from),
        None
    );
    assert_eq!(times("0 0 * 2 MON#5", from, 1), ["Mon 2044-02-29 00:00:00"]);
    assert_eq!(
        Expression::parse("* * * * *")
            .unwrap()
            .at_or_after(DateTime::MAX),
        None
    );
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in "[-*/,#LW?0-9a-z@ ]{0,40}") {
        if let Ok(expression) = Expression::parse(&text) {
            let _ = expression.at_or_after(date(2026, 1, 1).at(0, 0, 0, 0));
        }
    }
}
