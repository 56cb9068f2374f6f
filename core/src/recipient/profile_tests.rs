use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::recipient::quiet::QuietRule;

fn issues(value: Value) -> Vec<String> {
    let issues = Profile::parse(&value).unwrap_err();
    let line = |issue: &Issue| format!("{} {}", issue.pointer, issue.message);
    issues.iter().map(line).collect()
}

#[test]
fn a_profile_is_read_whole() {
    let profile = Profile::parse(&json!({
        "addresses": {"email": "\"Ada\" <Ada@Example.com>", "sms": "+1 555 0100"},
        "time_zone": "Europe/Berlin",
        "device_time_zone": "Asia/Tokyo",
        "quiet_hours": {
            "push": {"start": "22:00", "end": "08:00", "weekdays": ["fri"], "dates": ["2026-12-25"]},
            "sms": {"all_day": true, "weekdays": ["sat", "sun"]},
            "email": {"dates": ["2026-12-25"]}
        },
        "preferences": {
            "all": {"sms": false},
            "categories": {"marketing": false},
            "templates": {"news": {"email": true, "push": false}}
        }
    }))
    .unwrap();

    let email = &profile.addresses[&Channel::Email];
    assert_eq!(
        (email.name(), email.address(), email.identity()),
        (Some("Ada"), "Ada@example.com", "ada@example.com")
    );
    let zone = |channel| profile.zone_of(channel).unwrap().iana_name().unwrap();
    assert_eq!(
        (zone(Channel::Push), zone(Channel::Email)),
        ("Asia/Tokyo", "Europe/Berlin")
    );
    assert_eq!(profile.preferences.0.len(), 4);
    let is_quiet = |channel, at: &str| {
        let hours = profile.quiet[&channel].clone();
        let at: Timestamp = at.parse().unwrap();
        QuietRule::new(hours, TimeZone::UTC).is_quiet(at)
    };
    // 2026-06-12 is a Friday, 2026-12-25 too.
    assert!(is_quiet(Channel::Push, "2026-06-13T07:00:00Z"));
    assert!(!is_quiet(Channel::Push, "2026-06-14T07:00:00Z"));
    assert!(is_quiet(Channel::Sms, "2026-06-13T12:00:00Z"));
    assert!(is_quiet(Channel::Email, "2026-12-25T12:00:00Z"));
    assert!(!is_quiet(Channel::Email, "2026-12-24T12:00:00Z"));
    assert_eq!(Profile::parse(&json!({})), Ok(Profile::default()));
}

#[test]
fn everything_wrong_is_reported_at_once_and_no_address_is_shown() {
    assert_eq!(
        issues(json!({
            "addresses": {"mail": "ada@example.com", "email": "ada", "sms": 15_550_100},
            "time_zone": "Europe/Berlim",
            "quiet_hours": {
                "push": {"start": "22:00", "end": "22:00"},
                "sms": {"all_day": true},
                "chat": {"start": "24:00", "end": "8:00", "weekdays": ["monday"], "dates": ["25.12."]},
                "email": {"start": "22:00"}
            },
            "preferences": {"categories": {"marketing": "no", "product": {"fax": true, "sms": 1}}},
            "zone": 1
        })),
        [
            "/zone is not a known field; allowed: addresses, time_zone, device_time_zone, quiet_hours, preferences",
            "/time_zone must be the IANA name of a time zone, such as Europe/Berlin, not \"Europe/Berlim\"",
            "/addresses/email must be exactly one mail address, such as ann@example.com or Ann <ann@example.com>; a name with commas, colons or brackets stands in double quotes",
            "/addresses/mail is not a known channel; did you mean \"email\"? allowed: sms, email, push, chat, webhook, inapp",
            "/addresses/sms must be a text of at most 2048 bytes",
            "/quiet_hours/chat/start must be a time of day as HH:MM, from 00:00 to 23:59, not \"24:00\"",
            "/quiet_hours/chat/end must be a time of day as HH:MM, from 00:00 to 23:59, not \"8:00\"",
            "/quiet_hours/chat/weekdays must be a list of mon, tue, wed, thu, fri, sat or sun, not \"monday\"",
            "/quiet_hours/chat/dates must be a list of dates, such as 2026-12-25, not \"25.12.\"",
            "/quiet_hours/email/end is missing: it must be a time of day as HH:MM, from 00:00 to 23:59",
            "/quiet_hours/push/end must differ from start; write all_day for days that are quiet as a whole",
            "/quiet_hours/sms/weekdays must leave a day: to get nothing at all, opt out",
            "/preferences/categories/marketing must be true or false, or one of these for each channel",
            "/preferences/categories/product/fax is not a known channel; allowed: sms, email, push, chat, webhook, inapp",
            "/preferences/categories/product/sms must be true or false",
        ]
    );
}

#[test]
fn hours_without_a_start_or_beside_whole_days_are_refused() {
    let hours = |hours: Value| issues(json!({"quiet_hours": {"push": hours}}));
    assert_eq!(
        hours(json!({"end": "08:00"})),
        [
            "/quiet_hours/push/start is missing: it must be a time of day as HH:MM, from 00:00 to 23:59"
        ]
    );
    assert_eq!(
        hours(json!({"start": "22:00", "end": "08:00", "all_day": true})),
        ["/quiet_hours/push/all_day must be left out beside start and end, or these beside it"]
    );
    assert_eq!(hours(json!({})).len(), 1);
}

#[test]
fn only_names_of_zones_that_are_the_same_on_each_machine_are_taken() {
    for zone in ["Europe/Berlin", "UTC", "Etc/GMT+5", "NZ-CHAT", "EST5EDT"] {
        let read = Profile::parse(&json!({"time_zone": zone}));
        assert!(read.is_ok(), "{zone}: {read:?}");
    }
    for zone in [
        "localtime",
        "posixrules",
        "Factory",
        "Etc/Unknown",
        "posix/Europe/Berlin",
        "right/Europe/Berlin",
        "Pacific/Auckland5",
        "CEST",
    ] {
        for field in ZONE_FIELDS {
            let found = issues(json!({field: zone}));
            assert!(found[0].contains("must be the IANA name"), "{found:?}");
        }
    }
}

#[test]
fn what_cannot_be_read_of_a_profile_leaves_the_rest() {
    let (profile, issues) = Profile::readable(&json!({
        "addresses": {"email": "grüße", "sms": "+15550100"},
        "time_zone": "Mars/Base",
        "device_time_zone": "Asia/Tokyo",
        "quiet_hours": {
            "sms": {"start": "22:00", "end": "08:00", "dates": ["2026-12-25", "25.12."]},
            "email": {"dates": ["25.12."]},
            "push": {"start": "22"}
        },
        "preferences": {"all": {"sms": false, "fax": false}, "categories": {"news": "no", "offers": false}}
    }));
    let at: Vec<&str> = issues.iter().map(|issue| issue.pointer.as_str()).collect();
    assert_eq!(
        at,
        [
            "/time_zone",
            "/addresses/email",
            "/quiet_hours/email/dates",
            "/quiet_hours/push/start",
            "/quiet_hours/sms/dates",
            "/preferences/all/fax",
            "/preferences/categories/news",
        ]
    );
    let channels: Vec<&Channel> = profile.addresses.keys().collect();
    assert_eq!(channels, [&Channel::Sms]);
    assert!(profile.zone.is_none() && profile.device_zone.is_some());
    let quiet = QuietRule::new(profile.quiet[&Channel::Sms].clone(), TimeZone::UTC);
    for at in ["2026-06-13T07:00:00Z", "2026-12-25T12:00:00Z"] {
        assert!(quiet.is_quiet(at.parse().unwrap()), "{at}");
    }
    let unwanted = |channel, category| {
        let choice = profile.preferences.choice(channel, category, None);
        choice.is_some_and(|choice| !choice.wanted)
    };
    assert!(unwanted(Channel::Sms, "news") && unwanted(Channel::Email, "offers"));
}

/// SQL compares the texts of dates, and takes no other form.
#[test]
fn a_quiet_date_has_one_form() {
    let issues = |date: &str| {
        let profile = json!({"quiet_hours": {"sms": {"dates": [date]}}});
        Profile::parse(&profile)
            .err()
            .map_or(0, |issues| issues.len())
    };
    assert_eq!(issues("2026-12-25"), 0);
    for date in [
        "20261225",
        "2026-12-25T10:00",
        "2026-12-25T10:00+02:00[Europe/Berlin]",
        "2026-02-30",
    ] {
        assert_eq!(issues(date), 1, "{date}");
    }
}
