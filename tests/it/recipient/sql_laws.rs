//! SQL computes the same as the pure functions: caps, keys of lists, and checks of profiles.

use flyball::providers::Channel;
use flyball::recipient::address::RecipientKey;
use flyball::recipient::caps::{CapRule, CapRules};
use flyball::recipient::profile::Profile;
use flyball::recipient::quiet::QuietRule;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::fixture::GatesFixture;

const CASES: usize = 400;

/// 2026-10-24, the day before the clock of Berlin is put back.
const BEGIN_S: i64 = 1_792_800_000;

#[tokio::test]
async fn the_law_of_caps_is_the_same_in_sql() {
    let gates = GatesFixture::new("").await;
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let windows = ["30s", "1h", "1d", "local_day", "90m", "1w"];
    let mut asked = Vec::new();
    let (mut wanted, mut rooms) = (Vec::new(), Vec::new());
    for _ in 0..CASES {
        let count = rand::random_range(1..=3);
        let texts: Vec<(String, String)> = (0..count)
            .map(|n| {
                let window = windows[rand::random_range(0..windows.len())];
                let most = rand::random_range(1..=4);
                (format!("rule_{n}"), format!("{most} per {window}"))
            })
            .collect();
        let parsed = texts.iter().map(|(name, text)| CapRule::parse(name, text));
        let rules = CapRules(parsed.collect::<Option<Vec<_>>>().unwrap());
        let mut times: Vec<i64> = (0..rand::random_range(0..8))
            .map(|_| BEGIN_S + rand::random_range(-100_000..100_000))
            .collect();
        times.sort_unstable();
        let t = BEGIN_S + rand::random_range(-50_000..150_000);
        wanted.push(rules.next(&times, t, &zone));
        rooms.push(rules.plan(&[], &times, t, &zone).rule.is_none());
        let each = rules.0.iter().zip(&texts).map(|(rule, (_, text))| {
            // The sender's own cap is parsed in SQL.
            json!({"text": text, "rule": format!("{} {rule}", rule.name), "most": rule.most})
        });
        asked.push(json!({"rules": each.collect::<Value>(), "times": times, "t": t}));
    }
    let found: Vec<(i64, bool)> = sqlx::query_as(
        "select n.at_s, flyball.cap_has_room(a.rules, a.times, a.t, 'Europe/Berlin')
         from jsonb_array_elements($1) with ordinality as c(value, n)
         cross join lateral (
             select (select jsonb_agg(flyball.sender_cap(r.value ->> 'text') || jsonb_build_object('rule', r.value -> 'rule') order by r.n)
                     from jsonb_array_elements(c.value -> 'rules') with ordinality as r(value, n)) as rules,
                 array(select u.value::bigint from jsonb_array_elements(c.value -> 'times') with ordinality as u(value, n) order by u.n) as times,
                 (c.value ->> 't')::bigint as t
         ) a
         cross join lateral flyball.cap_next(a.rules, a.times, a.t, 'Europe/Berlin') n
         order by c.n",
    )
    .bind(Value::from(asked.clone()))
    .fetch_all(gates.fixture.database.pool())
    .await
    .unwrap();
    assert_eq!(found.len(), CASES);
    for ((asked, found), wanted) in asked.iter().zip(found).zip(wanted.into_iter().zip(rooms)) {
        assert_eq!(found, wanted, "{asked}");
    }
}

#[tokio::test]
async fn quiet_hours_end_at_the_same_time_in_sql() {
    let gates = GatesFixture::new("").await;
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let all = [
        json!({"start": "22:00", "end": "08:00"}),
        json!({"start": "12:15", "end": "13:45", "weekdays": ["sat", "sun"]}),
        json!({"start": "23:00", "end": "02:30", "weekdays": ["sat"], "dates": ["2026-10-26"]}),
        json!({"all_day": true, "weekdays": ["fri", "sun"]}),
        json!({"dates": ["2026-10-24", "2026-10-25"]}),
    ];
    for hours in all {
        let profile = Profile::parse(&json!({"quiet_hours": {"sms": hours}})).unwrap();
        let rule = QuietRule::new(profile.quiet[&Channel::Sms].clone(), zone.clone());
        for _ in 0..20 {
            let second = BEGIN_S + rand::random_range(-100_000..300_000);
            let at = Timestamp::from_second(second).unwrap();
            let end: f64 = sqlx::query_scalar(
                "select extract(epoch from case when flyball.is_quiet($1, a.at at time zone 'Europe/Berlin')
                    then flyball.quiet_end($1, a.at, 'Europe/Berlin') else a.at end)::float8
                 from to_timestamp($2::float8) as a(at)",
            )
            .bind(&hours)
            .bind(second as f64)
            .fetch_one(gates.fixture.database.pool())
            .await
            .unwrap();
            let wanted = rule.next_allowed(at).unwrap().as_second();
            assert_eq!(end as i64, wanted, "{hours} at {at}");
        }
    }
}

#[tokio::test]
async fn lists_have_the_same_keys_in_sql() {
    let gates = GatesFixture::new("").await;
    let key = RecipientKey::from_bytes(*b"0123456789abcdef");
    for (kind, name) in [
        ("category", "security"),
        ("actor", "Jürgen 😀"),
        ("at_most", "1 per 1d"),
    ] {
        let made: String = sqlx::query_scalar(
            "select replace(flyball.list_key($1::text::uuid, $2, $3)::text, '-', '')",
        )
        .bind(key.to_hex())
        .bind(kind)
        .bind(name)
        .fetch_one(gates.fixture.database.pool())
        .await
        .unwrap();
        assert_eq!(made, key.list(kind, name).to_hex(), "{kind} {name}");
    }
}

#[tokio::test]
async fn sql_refuses_the_profiles_that_are_refused_elsewhere() {
    let gates = GatesFixture::new("").await;
    let hours = |more: Value| json!({"quiet_hours": {"sms": more}});
    let profiles = [
        json!({}),
        json!({"addresses": {"sms": "+1 (555) 010-0000", "email": "Ada <ada@example.com>", "push": "abc", "chat": "@news", "webhook": "https://x.example/y"}}),
        json!({"addresses": {"email": "ada@bücher.example"}}),
        json!({"addresses": {"sms": "ada"}}),
        json!({"addresses": {"email": "ada"}}),
        json!({"addresses": {"push": "a b"}}),
        json!({"addresses": {"chat": "a,b"}}),
        json!({"addresses": {"webhook": "ftp://x"}}),
        json!({"addresses": {"sms": ""}}),
        json!({"addresses": {"sms": null}}),
        json!({"addresses": {"fax": "1"}}),
        json!({"addresses": {"inapp": "ada"}}),
        json!({"addresses": {"inapp": null}}),
        json!({"addresses": []}),
        json!({"time_zone": "Europe/Berlin", "device_time_zone": "America/Argentina/Buenos_Aires"}),
        json!({"time_zone": null}),
        json!({"time_zone": "UTC"}),
        json!({"time_zone": "Mars/Base"}),
        json!({"time_zone": ""}),
        json!({"time_zone": 1}),
        json!({"zone": "UTC"}),
        hours(json!({"start": "22:00", "end": "08:00"})),
        hours(
            json!({"start": "22:00", "end": "08:00", "weekdays": ["mon", "sun"], "dates": ["2028-02-29"]}),
        ),
        hours(json!({"all_day": true, "weekdays": ["sat", "sun"]})),
        hours(json!({"dates": ["2026-12-25"]})),
        hours(json!({"start": "22:00", "end": "22:00"})),
        hours(json!({"start": "24:00", "end": "08:00"})),
        hours(json!({"start": "9:00", "end": "08:00"})),
        hours(json!({"start": "22:00"})),
        hours(json!({"end": "22:00"})),
        hours(json!({})),
        hours(json!({"all_day": false})),
        hours(json!({"all_day": true})),
        hours(json!({"all_day": "yes"})),
        hours(json!({"all_day": true, "start": "22:00", "end": "08:00"})),
        hours(
            json!({"all_day": true, "weekdays": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]}),
        ),
        hours(json!({"start": "22:00", "end": "08:00", "weekdays": []})),
        hours(json!({"start": "22:00", "end": "08:00", "weekdays": ["Monday"]})),
        hours(json!({"start": "22:00", "end": "08:00", "weekdays": "mon"})),
        hours(json!({"dates": ["2026-02-29"]})),
        hours(json!({"dates": "2026-12-25"})),
        hours(json!({"dates": []})),
        hours(json!({"from": "22:00"})),
        hours(json!(["22:00"])),
        json!({"preferences": {"all": false, "categories": {"marketing": false, "news": {"sms": true}}, "templates": {"t": true}}}),
        json!({"preferences": {"all": "no"}}),
        json!({"preferences": {"all": {"fax": true}}}),
        json!({"preferences": {"all": {"sms": 1}}}),
        json!({"preferences": {"categories": []}}),
        json!({"preferences": {"categories": {"": true}}}),
        json!({"preferences": {"categories": {"n": null}}}),
        json!({"preferences": {"news": true}}),
        json!({"preferences": true}),
        json!([]),
        json!(null),
    ];
    for profile in profiles {
        let found: Vec<(String, String)> = sqlx::query_as(
            "select p.field, p.problem from flyball.profile_problems($1,
                array['addresses', 'time_zone', 'device_time_zone', 'quiet_hours', 'preferences']) p",
        )
        .bind(&profile)
        .fetch_all(gates.fixture.database.pool())
        .await
        .unwrap();
        let by_rust = Profile::parse(&profile);
        assert_eq!(
            found.is_empty(),
            by_rust.is_ok(),
            "{profile}: {found:?}, {by_rust:?}"
        );
    }
}

#[tokio::test]
async fn many_profiles_are_set_by_sql_or_none_with_every_error() {
    let gates = GatesFixture::new("").await;
    let pool = gates.fixture.database.pool();
    let set = async |recipients: Value| {
        sqlx::query_as::<_, (i64, i64)>(
            "select created, changed from flyball.set_recipients($1, 'ann', 'a test')",
        )
        .bind(recipients)
        .fetch_one(pool)
        .await
    };
    let ada = json!({"id": "ada", "addresses": {"email": "ada@example.com"}});
    let both = json!([ada, {"id": "bob", "time_zone": "UTC"}]);
    assert_eq!(set(both.clone()).await.unwrap(), (2, 0));
    assert_eq!(set(both).await.unwrap(), (0, 0));
    assert_eq!(
        set(json!([{"id": "bob"}, {"id": "eve"}])).await.unwrap(),
        (1, 1)
    );

    let wrong = json!([
        {"id": "new"}, {"id": "ada", "addresses": {"sms": "secret@example.com"}}, {"id": "new"}, "x",
        {"id": "z", "time_zone": "Mars/Base", "quiet_hours": {"sms": {"start": "1"}}},
    ]);
    let error = set(wrong.clone()).await.unwrap_err();
    let from_server = error.as_database_error().unwrap();
    let postgres = from_server.downcast_ref::<sqlx::postgres::PgDatabaseError>();
    assert_eq!(
        postgres.message(),
        "set_recipients: recipients[1].addresses.sms: must be a number in E.164 form, such as +15550100 or whatsapp:+15550100"
    );
    assert_eq!(
        (postgres.table(), postgres.column()),
        (Some("1"), Some("addresses.sms"))
    );
    let lines: Vec<&str> = postgres.detail().unwrap().lines().collect();
    let places: Vec<&str> = lines
        .iter()
        .map(|line| line.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        places,
        [
            "recipients[1].addresses.sms",
            "recipients[2].id",
            "recipients[3]",
            "recipients[4].quiet_hours.sms.end",
            "recipients[4].quiet_hours.sms.start",
            "recipients[4].time_zone",
        ]
    );
    assert!(!format!("{error:?}").contains("secret@"), "{error:?}");
    let listed: i64 = sqlx::query_scalar("select count(*) from flyball.recipient_problems($1)")
        .bind(&wrong)
        .fetch_one(pool)
        .await
        .unwrap();
    assert_eq!(listed, 6);
    assert_eq!(
        gates.count("select count(*) from flyball.recipient").await,
        3
    );
    for bad in [
        json!([]),
        json!({}),
        Value::Null,
        json!(vec![json!({"id": "x"}); 1001]),
    ] {
        assert!(set(bad).await.is_err());
    }
}
