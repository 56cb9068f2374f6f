//! Declaring, rejecting, pausing and resuming schedules in SQL and in Rust.

use flyball::cron::{self, NewSchedule, Overlap, RunNowOutcome};
use flyball::jobs::NewJob;
use serde_json::json;
use sqlx::Executor as _;

use super::fixture::{CronFixture, report};

#[tokio::test]
async fn the_rights_that_the_guide_gives_a_planner_are_enough() {
    let fixture = CronFixture::new().await;
    let guide = include_str!("../../../docs/guides/cron.md");
    let grants: String = guide
        .lines()
        .filter(|line| line.starts_with("grant "))
        .collect::<Vec<_>>()
        .join("\n");
    let role = format!("planner_{}", crate::support::unique());
    let output = |sql: String| sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
    let mut connection = fixture.database.superuser().acquire().await.unwrap();
    output(format!(
        "create role {role};\n{}",
        grants.replace("planner", &role)
    ))
    .execute(&mut *connection)
    .await
    .unwrap();
    output(format!("set role {role}"))
        .execute(&mut *connection)
        .await
        .unwrap();

    connection
        .execute("select flyball.schedule('daily', '@daily', 'report')")
        .await
        .unwrap();
    connection
        .execute("select * from flyball.run_schedule('daily')")
        .await
        .unwrap();
    connection
        .execute("select flyball.pause_schedule('daily')")
        .await
        .unwrap();
    connection
        .execute("select flyball.unschedule('daily')")
        .await
        .unwrap();
    let refused = connection
        .execute("select * from flyball.job")
        .await
        .unwrap_err();

    output(format!(
        "reset role; drop owned by {role}; drop role {role}"
    ))
    .execute(&mut *connection)
    .await
    .unwrap();
    assert!(
        refused.to_string().contains("permission denied"),
        "{refused}"
    );
}

#[tokio::test]
async fn declaring_a_schedule_again_keeps_its_time_and_a_persons_pause() {
    let fixture = CronFixture::new().await;
    let daily = report("daily", "@daily");
    assert!(fixture.schedules.set(&daily).await.unwrap());
    fixture
        .run("update flyball.cron set next_at = '2026-01-01T00:00:00Z'")
        .await;

    let other = NewJob {
        timeout_s: Some(7.5),
        ..NewJob::new("report", json!({"of": "other"}))
    };
    let other_args = NewSchedule {
        job: other,
        ..daily.clone()
    };
    assert!(!fixture.schedules.set(&other_args).await.unwrap());
    let stands = fixture.get("daily").await;
    assert_eq!(
        (stands.next_at, &stands.args),
        (
            Some("2026-01-01T00:00:00Z".parse().unwrap()),
            &json!({"of": "other"})
        )
    );
    assert_eq!(stands.timeout_s, Some(7.5));
    let RunNowOutcome::Job(job) = fixture.schedules.run_now("daily").await.unwrap() else {
        panic!("there is one")
    };
    let timeout: f32 = sqlx::query_scalar("select timeout_s from flyball.job where id = $1")
        .bind(job.id)
        .fetch_one(fixture.database.pool())
        .await
        .unwrap();
    assert_eq!(timeout, 7.5, "the job has the schedule's time-out");
    fixture
        .run("truncate flyball.job, flyball.ready, flyball.unique_holder")
        .await;

    assert!(fixture.schedules.pause("daily", true).await.unwrap());
    assert!(!fixture.schedules.pause("daily", true).await.unwrap());
    fixture.schedules.set(&daily).await.unwrap();
    assert!(fixture.get("daily").await.paused);
    fixture.keep(1);
    fixture
        .schedules
        .set(&report("other", "@daily"))
        .await
        .unwrap();
    fixture
        .until("the other one has its time", "other", |one| {
            one.next_at.is_some()
        })
        .await;
    assert_eq!(
        fixture.get("daily").await.next_at,
        None,
        "a paused schedule has no next time"
    );
    fixture.schedules.pause("daily", false).await.unwrap();
    let stands = fixture
        .until("it goes on", "daily", |one| one.next_at.is_some())
        .await;
    assert_eq!(stands.next_at, stands.upcoming.first().copied());
    assert!(
        fixture.occurrences().await.is_empty(),
        "what was missed during the pause is not caught up"
    );

    fixture
        .schedules
        .set(&report("daily", "7 * * * *"))
        .await
        .unwrap();
    assert_ne!(
        fixture.get("daily").await.next_at,
        stands.next_at,
        "another expression has another time"
    );
    assert!(fixture.schedules.delete("daily").await.unwrap());
    assert!(!fixture.schedules.delete("daily").await.unwrap());
    assert_eq!(
        fixture.schedules.run_now("daily").await.unwrap(),
        RunNowOutcome::NotFound
    );
}

#[tokio::test]
async fn sql_refuses_what_cannot_be_a_schedule_by_field() {
    let fixture = CronFixture::new().await;
    for (sql, field, output) in [
        (
            "select flyball.schedule('a b', '@daily', 'report')",
            "name",
            "schedule: name: \"a b\" is not a schedule's name",
        ),
        (
            "select flyball.schedule('a', '* * * *', 'report')",
            "expression",
            "schedule: expression: has 4 fields; allowed: 5 fields",
        ),
        (
            "select flyball.schedule('a', '  ', 'report')",
            "expression",
            "schedule: expression: has 0 fields",
        ),
        (
            "select flyball.schedule('a', '@often', 'report')",
            "expression",
            "schedule: expression: \"@often\" is not known",
        ),
        (
            "select flyball.schedule('a', '61 25 * * *', 'report')",
            "expression",
            "schedule: expression: minute: 61 is out of range; allowed: 0 to 59",
        ),
        (
            "select flyball.schedule('a', null, 'report')",
            "expression",
            "schedule: expression: must be a text",
        ),
        (
            "select flyball.pause_schedule('a', null)",
            "paused",
            "pause_schedule: paused: must be true or false, not null",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', time_zone => 'localtime')",
            "time_zone",
            "schedule: time_zone: \"localtime\" is not",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', time_zone => 'Factory')",
            "time_zone",
            "schedule: time_zone: \"Factory\" is not",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', time_zone => 'Mars')",
            "time_zone",
            "schedule: time_zone: \"Mars\" is not",
        ),
        (
            "select flyball.schedule('a', '@daily', 'repot')",
            "kind",
            "schedule: kind: \"repot\" is not a kind",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', priority => 7)",
            "priority",
            "schedule: priority: is 7",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', catch_up => 'x')",
            "catch_up",
            "schedule: catch_up: \"x\" is not known",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', overlap => 'x')",
            "overlap",
            "schedule: overlap: \"x\" is not known",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', catch_up => 'all')",
            "catch_up",
            "schedule: catch_up: \"all\" runs missed",
        ),
        (
            "select flyball.schedule('a', '@daily', 'report', timeout => '0')",
            "timeout",
            "schedule: timeout: is",
        ),
    ] {
        let (at, message) = fixture.refusal(sql).await;
        assert!(
            at == field && message.starts_with(output),
            "{sql}: {at}: {message}"
        );
    }
    assert!(fixture.schedules.list().await.unwrap().is_empty());
    for fine in [
        "@daily",
        "*/5 0-12/2,23 1,15 JAN-MAR MON#2",
        "0 0 L * 5L",
        "30 1,2 * * * ?",
    ] {
        sqlx::query("select flyball.schedule($1, $1, 'report')")
            .bind(fine)
            .execute(fixture.database.pool())
            .await
            .unwrap_err();
        sqlx::query("select flyball.schedule('fine', $1, 'report')")
            .bind(fine)
            .execute(fixture.database.pool())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_only_a_worker_can_see_stands_beside_the_schedule_as_its_problem() {
    let fixture = CronFixture::new().await;
    for name in ["wrong", "never"] {
        fixture
            .schedules
            .set(&report(name, "@daily"))
            .await
            .unwrap();
    }
    fixture.run("update flyball.cron set expression = case name when 'wrong' then '61 * * * *' else '0 0 30 2 *' end").await;
    fixture
        .schedules
        .set(&report("gone", "* * * * * *").overlap(Overlap::Allow))
        .await
        .unwrap();
    fixture
        .run("update flyball.cron set kind = 'gone' where name = 'gone'")
        .await;

    fixture.keep(1);

    let problem = async |name| {
        fixture
            .until("its problem", name, |one| one.problem.is_some())
            .await
            .problem
            .unwrap()
    };
    assert!(
        problem("wrong")
            .await
            .starts_with("expression: minute: 61 is out of range; allowed: 0 to 59")
    );
    assert_eq!(
        problem("never").await,
        "expression: never comes: no day matches all fields"
    );
    assert!(
        problem("gone")
            .await
            .contains("\"gone\" is not a kind that any worker has registered")
    );

    // A rejected occurrence is reported and not retried; the next one may succeed.
    fixture.run("select flyball.register_kind('gone')").await;
    let cured = fixture
        .until("it is cured", "gone", |one| {
            one.problem.is_none() && one.last_job_id.is_some()
        })
        .await;
    assert!(cured.next_at.is_some());
}

#[tokio::test]
async fn a_schedule_that_is_declared_again_keeps_the_problem_of_its_last_occurrence() {
    let fixture = CronFixture::new().await;
    let daily = report("daily", "@daily");
    fixture.schedules.set(&daily).await.unwrap();
    fixture
        .run("update flyball.cron set next_at = now() + interval '1 hour', problem = 'the lane is full'")
        .await;
    let before = fixture.get("daily").await;

    assert!(!fixture.schedules.set(&daily).await.unwrap());

    let after = fixture.get("daily").await;
    assert_eq!(after.problem.as_deref(), Some("the lane is full"));
    assert_eq!(
        (after.next_at, after.updated_at),
        (before.next_at, before.updated_at)
    );
    // One that is changed begins without it.
    let other = daily.overlap(Overlap::Allow);
    fixture.schedules.set(&other).await.unwrap();
    let changed = fixture.get("daily").await;
    assert!(changed.problem.is_none() && changed.updated_at > before.updated_at);
}

#[tokio::test]
async fn a_schedule_is_paused_and_resumed_by_sql_and_forgets_what_was_wrong_before() {
    let fixture = CronFixture::new().await;
    fixture
        .schedules
        .set(&report("daily", "@daily"))
        .await
        .unwrap();
    fixture
        .run("update flyball.cron set problem = 'time_zone: is not known', next_at = null")
        .await;
    let turn = async |call: &'static str| {
        sqlx::query_scalar::<_, bool>(call)
            .fetch_one(fixture.database.pool())
            .await
            .unwrap()
    };

    assert!(turn("select flyball.pause_schedule('daily')").await);
    assert!(
        turn("select flyball.pause_schedule('daily', true)").await,
        "there is one, which is all that is answered"
    );
    assert!(!turn("select flyball.pause_schedule('nightly')").await);
    let paused = fixture.get("daily").await;
    assert!(turn("select flyball.pause_schedule('daily', false)").await);
    fixture.keep(1);

    assert!(paused.paused);
    let goes_on = fixture
        .until("it goes on", "daily", |one| one.next_at.is_some())
        .await;
    assert_eq!((goes_on.paused, goes_on.problem), (false, None));
}

#[tokio::test]
async fn rust_refuses_a_wrong_schedule_with_everything_that_is_wrong() {
    let fixture = CronFixture::new().await;
    let error = fixture
        .schedules
        .set(&report("a b", "61 * * * *").time_zone("Mars"))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("name: \"a b\" is not a schedule's name"),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("; expression: minute: 61 is out of range"),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("; time_zone: \"Mars\" is not a time zone"),
        "{error}"
    );
    let error = fixture
        .schedules
        .set(&NewSchedule::new(
            "a",
            "@daily",
            NewJob::new("no-such", json!({})),
        ))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, cron::Error::Queue(flyball::jobs::Error::Refused { field, .. }) if field == "kind"),
        "{error}"
    );
}
