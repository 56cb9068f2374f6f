//! Messages that go at a time of their recipient's clock.

use flyball::jobs::{Error, NewJob, State};
use flyball::recipient::explain::GateFinding;
use flyball::recipient::gate::{AttemptEnd, MessageGate};
use flyball::recipient::gates::{GateHold, MessagePlan};
use flyball::recipient::local_time::LocalTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::fixture::GatesFixture;

/// Returns the only hold of a message.
fn held(plan: &MessagePlan) -> &GateHold {
    match plan {
        MessagePlan::Held { holds, .. } if holds.len() == 1 => &holds[0],
        other => panic!("held once, not {other:?}"),
    }
}

/// Returns a time of the clock of a zone that comes in so many hours.
fn in_hours(now: Timestamp, hours: i64, zone: &str) -> String {
    let then = now + SignedDuration::from_hours(hours);
    then.in_tz(zone).unwrap().strftime("%H:%M").to_string()
}

fn minute(at: Timestamp) -> Timestamp {
    let seconds = at.as_second().rem_euclid(60);
    Timestamp::from_second(at.as_second() - seconds).unwrap()
}

fn lives_in(zone: &str) -> Value {
    json!({"addresses": {"sms": "+15550111"}, "time_zone": zone})
}

#[tokio::test]
async fn a_message_waits_for_the_clock_of_its_recipient_by_every_interface() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", lives_in("Asia/Kathmandu")).await;
    let now = gates.now().await;
    let time = in_hours(now, 5, "Asia/Kathmandu");
    let goes = minute(now + SignedDuration::from_hours(5));
    let date = goes.in_tz("Asia/Kathmandu").unwrap().date().to_string();
    let by_date = format!("{date}T{time}");
    for (n, (local_time, priority)) in [(&time, "low"), (&by_date, "normal"), (&time, "critical")]
        .into_iter()
        .enumerate()
    {
        let message = json!({
            "recipient": "ada", "local_time": local_time, "priority": priority, "dedup_key": n.to_string(),
        });
        let (id, plan) = gates.planned(message).await;
        let hold = held(&plan);
        assert_eq!(hold.gate, MessageGate::LocalTime);
        assert_eq!(hold.rule, format!("{local_time} Asia/Kathmandu"));
        let late = hold.until.duration_since(goes);
        assert!((0..=1).contains(&late.as_secs()), "{hold:?}, not {goes}");
        assert_eq!(gates.fixture.state(id).await, State::Scheduled);
    }
    // A job is planned in the same way, and what it holds is neither ready nor in an attempt.
    let args = json!({"channel": "sms", "to": "+15550100", "body": "x", "local_time": in_hours(now, 5, "UTC")});
    let job = NewJob::new("notification", args).throttle("own");
    let made = gates.fixture.queue.enqueue(&[job]).await.unwrap();
    let plan = gates.plan(made[0].id).await;
    assert_eq!(minute(held(&plan).until), goes);
    assert_eq!(gates.count("select count(*) from flyball.ready").await, 0);
    let told = "select count(*) from flyball.message_plan p join flyball.scheduled s using (job_id)
        where p.state = 'held' and p.gate = 'local_time' and s.run_at = p.until and p.planned_at = p.until and s.turn >= 0";
    assert_eq!(gates.count(told).await, 4);
    let crowd = "select sum(messages)::bigint from flyball.held_crowd";
    assert_eq!(gates.count(crowd).await, 4, "they are spread together");
}

#[tokio::test]
async fn a_message_waits_for_the_clock_from_its_own_time_on() {
    let gates = GatesFixture::new("").await;
    let now = gates.now().await;
    let mut message = json!({
        "pool": "own", "channel": "sms", "to": "+15550100", "body": "x", "local_time": in_hours(now, 5, "UTC"),
    });
    message["run_at"] = json!((now + SignedDuration::from_hours(10)).to_string());
    let id: i64 = sqlx::query_scalar("select id from flyball.notify_many($1)")
        .bind(json!([message]))
        .fetch_one(gates.fixture.database.pool())
        .await
        .unwrap();
    // It is planned at its own time, and before that forecast.
    let told = gates.gates.explain(id, None).await.unwrap().unwrap();
    let goes = minute(now + SignedDuration::from_hours(5 + 24));
    assert_eq!(told.planned_at.map(minute), Some(goes), "{}", told.sentence);
}

#[tokio::test]
async fn a_recipient_who_moves_gets_it_by_the_new_clock() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", lives_in("UTC")).await;
    let now = gates.now().await;
    let message = json!({"recipient": "ada", "local_time": in_hours(now, 6, "UTC")});
    let (id, plan) = gates.planned(message).await;
    let goes = minute(now + SignedDuration::from_hours(6));
    assert_eq!(minute(held(&plan).until), goes);
    // Two hours to the east it is two hours earlier, and seven hours to the east tomorrow.
    for (zone, hours) in [("Etc/GMT-2", 4), ("Etc/GMT-7", 23), ("UTC", 6)] {
        gates.profile("ada", lives_in(zone)).await;
        assert!(!gates.gates.plan_due().await.unwrap());
        let found = gates.gates.explain(id, None).await.unwrap().unwrap();
        let step = found.gates.iter().find(|step| step.gate == "local_time");
        let step = step.unwrap();
        assert_eq!(step.finding, GateFinding::Waits);
        let then = minute(now + SignedDuration::from_hours(hours));
        assert_eq!(step.until.map(minute), Some(then), "{zone}");
        assert_eq!(found.first_planned_at.map(minute), Some(goes));
        assert!(
            found.sentence.contains("waits for the local time (")
                && found
                    .sentence
                    .ends_with("; the sender set the rule in the message"),
            "{}",
            found.sentence
        );
    }
}

/// Makes a message older by so many hours, with everything that counts from its acceptance.
async fn age(gates: &GatesFixture, id: i64, hours: i32) {
    sqlx::query(
        "update flyball.job set created_at = created_at - make_interval(hours => $2) where id = $1",
    )
    .bind(id)
    .bind(hours)
    .execute(gates.fixture.database.pool())
    .await
    .unwrap();
}

#[tokio::test]
async fn neither_a_retry_nor_a_late_plan_waits_for_the_next_day() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", lives_in("UTC")).await;
    let now = gates.now().await;
    let message = |hours: i64, n: u8| {
        json!({
            "recipient": "ada", "local_time": in_hours(now, hours, "UTC"), "category": "transactional", "valid_for_s": 14400,
            "dedup_key": n.to_string(),
        })
    };
    // An hour ago means tomorrow.
    let (id, plan) = gates.planned(message(-1, 1)).await;
    assert_eq!(held(&plan).gate, MessageGate::LocalTime);
    assert!(matches!(gates.verify(id).await, MessagePlan::Held { .. }));
    // Accepted three hours ago it is an hour late: each attempt goes, and its validity began then.
    age(&gates, id, 3).await;
    for _ in 0..2 {
        let verdict = gates.gates.verify(id).await.unwrap().unwrap();
        assert_eq!(verdict.plan, MessagePlan::Send);
        let left = verdict.deadline.unwrap().duration_since(verdict.now);
        assert!((178..=180).contains(&left.as_mins()), "{left:?}");
        gates.verify(id).await;
        gates.end(id, AttemptEnd::Retried).await;
    }
    // A planner that was away finds it late, and so does one that plans it again.
    let late = gates.send(message(-1, 2)).await;
    age(&gates, late, 3).await;
    assert_eq!(gates.plan(late).await, MessagePlan::Send);
    let (anew, _) = gates.planned(message(-1, 3)).await;
    age(&gates, anew, 3).await;
    gates.profile("ada", lives_in("Etc/UTC")).await;
    assert!(!gates.gates.plan_due().await.unwrap());
    assert_eq!(gates.fixture.state(anew).await, State::Ready);
    // One whose validity has passed since its time ends.
    let over = gates.send(message(-5, 4)).await;
    age(&gates, over, 7).await;
    assert!(matches!(gates.plan(over).await, MessagePlan::Ended { .. }));
}

/// Whoever looks for messages without an account must not end one that waits.
#[tokio::test]
async fn the_deadline_of_the_sender_counts_from_the_hold() {
    let gates = GatesFixture::new("").await;
    let time = in_hours(gates.now().await, 5, "UTC");
    let (id, plan) = gates
        .planned(json!({"local_time": time, "valid_for_s": 60}))
        .await;
    let plain = gates
        .send(json!({"category": "transactional", "valid_for_s": 60}))
        .await;
    let since = "select extract(epoch from flyball.held_until_of(id, args))::float8 from flyball.job where id = $1";
    for (id, until) in [(id, Some(held(&plan).until)), (plain, None)] {
        let found: Option<f64> = sqlx::query_scalar(since)
            .bind(id)
            .fetch_one(gates.fixture.database.pool())
            .await
            .unwrap();
        assert_eq!(found.map(|s| s as i64), until.map(Timestamp::as_second));
    }
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_its_name_and_the_same_in_sql() {
    let gates = GatesFixture::new("").await;
    gates.publish().await;
    let refused = async |more: Value| match gates.try_send_as("", more).await {
        Err(Error::Refused { field, message, .. }) => (field, message),
        other => panic!("refused, not {other:?}"),
    };
    let beside = json!({"category": "product", "digest": "new-comment", "local_time": "09:00"});
    let (field, message) = refused(beside).await;
    assert_eq!(field, "local_time");
    assert_eq!(
        message,
        "must be left out beside digest, which has times of its own"
    );
    let (field, message) = refused(json!({"local_time": "9 o'clock"})).await;
    assert_eq!(field, "local_time");
    let told = format!("must be {}", flyball::recipient::local_time::FORM);
    assert_eq!(message, told);
    assert_eq!(gates.count("select count(*) from flyball.job").await, 0);

    let mut texts: Vec<String> = [
        "",
        "9:00",
        "24:00",
        "00:60",
        "09:00 ",
        "T09:00",
        "2026-12-01",
        "2026-12-01T9:00",
    ]
    .map(str::to_owned)
    .to_vec();
    for year in [1999, 2000, 2026, 2028, 2100, 2999, 3000] {
        for (month, day) in [
            (0, 1),
            (1, 0),
            (1, 31),
            (2, 28),
            (2, 29),
            (4, 30),
            (4, 31),
            (12, 31),
            (12, 32),
            (13, 1),
        ] {
            texts.push(format!("{year}-{month:02}-{day:02}T23:59"));
        }
    }
    for text in texts {
        let by_sql: bool = sqlx::query_scalar("select flyball.is_local_time($1)")
            .bind(&text)
            .fetch_one(gates.fixture.database.pool())
            .await
            .unwrap();
        assert_eq!(by_sql, LocalTime::parse(&text).is_some(), "{text:?}");
    }
}

#[tokio::test]
async fn equal_messages_for_two_times_are_no_duplicates() {
    let gates = GatesFixture::new("").await;
    let now = gates.now().await;
    let tomorrow = now.to_zoned(TimeZone::UTC).date().tomorrow().unwrap();
    let dates = [tomorrow, tomorrow.tomorrow().unwrap()];
    let message = |date: jiff::civil::Date| json!({"local_time": format!("{date}T23:59")});
    for date in dates {
        let (_, plan) = gates.planned(message(date)).await;
        assert_eq!(held(&plan).gate, MessageGate::LocalTime);
    }
    let (_, again) = gates.planned(message(dates[1])).await;
    assert!(
        matches!(
            again,
            MessagePlan::Ended {
                gate: MessageGate::Dedup,
                ..
            }
        ),
        "{again:?}"
    );
}
