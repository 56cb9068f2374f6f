//! Schedules on a real Postgres: each occurrence becomes a job exactly once, and every door says the same.

use std::process::Command;
use std::time::Duration;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::cron::postgres::STATEMENTS;
use flyball::cron::{
    self, CatchUp, NewSchedule, Overlap, RunNowOutcome, Schedule, Schedules, Timing,
};
use flyball::jobs::{Kinds, NewJob, Queue};
use serde_json::{Value, json};
use sqlx::{Executor as _, SqlSafeStr as _};
use tokio_util::sync::CancellationToken;

use crate::support::{Database, PROGRAM, app_environment, database, eventually};

const SOON: Duration = Duration::from_secs(30);

/// A database with a kind, and the loops of some processes.
struct House {
    database: Database,
    schedules: Schedules,
    cancel: CancellationToken,
}

impl House {
    async fn new() -> Self {
        let database = database().await;
        sqlx::query("select flyball.register_kind('report')")
            .execute(database.pool())
            .await
            .unwrap();
        Self {
            schedules: Schedules::new(database.pool().clone()),
            database,
            cancel: CancellationToken::new(),
        }
    }

    /// As many processes would.
    fn keep(&self, processes: usize) {
        for _ in 0..processes {
            tokio::spawn(cron::run_schedules(
                self.schedules.clone(),
                self.cancel.clone(),
            ));
        }
    }

    async fn run(&self, sql: &'static str) {
        self.database
            .pool()
            .execute(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    async fn get(&self, name: &str) -> Schedule {
        self.schedules.get(name).await.unwrap().unwrap()
    }

    /// Seconds since 1970 for which jobs were made, in order.
    async fn occurrences(&self) -> Vec<i64> {
        let sql = "select extract(epoch from run_at)::bigint from flyball.job order by run_at";
        sqlx::query_scalar(sql)
            .fetch_all(self.database.pool())
            .await
            .unwrap()
    }

    async fn until(&self, what: &str, name: &str, is_so: impl Fn(&Schedule) -> bool) -> Schedule {
        eventually(what, SOON, || async {
            Some(self.get(name).await).filter(&is_so)
        })
        .await
    }

    async fn refusal(&self, sql: &'static str) -> (String, String) {
        let error = self.database.pool().execute(sql).await.unwrap_err();
        let error = error
            .as_database_error()
            .unwrap()
            .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
            .unwrap();
        assert_eq!(
            (error.code(), error.hint()),
            ("22023", Some("No schedule was changed.")),
            "{sql}"
        );
        (
            error.column().unwrap().to_owned(),
            error.message().to_owned(),
        )
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn report(name: &str, expression: &str) -> NewSchedule {
    NewSchedule::new(name, expression, NewJob::new("report", json!({"of": name})))
}

#[tokio::test]
async fn every_statement_of_schedules_can_be_prepared_on_the_migrated_schema() {
    let database = database().await;
    let mut connection = database.pool().acquire().await.unwrap();
    for (name, sql) in STATEMENTS {
        let prepared = connection
            .prepare(sqlx::AssertSqlSafe(*sql).into_sql_str())
            .await;
        assert!(prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

#[tokio::test]
async fn many_processes_make_each_occurrence_exactly_once() {
    let house = House::new().await;
    house
        .schedules
        .set(&report("tick", "* * * * * *").overlap(Overlap::Allow))
        .await
        .unwrap();

    house.keep(6);

    let found = eventually("eight occurrences", SOON, || async {
        Some(house.occurrences().await).filter(|all| all.len() >= 8)
    })
    .await;
    let wanted: Vec<i64> = (found[0]..).take(found.len()).collect();
    assert_eq!(found, wanted, "none is missing and none is there twice");
}

#[tokio::test]
async fn processes_that_die_at_any_moment_neither_lose_an_occurrence_nor_make_it_twice() {
    let house = House::new().await;
    house
        .schedules
        .set(&report("tick", "* * * * * *").overlap(Overlap::Allow))
        .await
        .unwrap();

    // Each lives for a moment, and is broken off wherever it is just then.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        let mut doomed: Vec<_> = (0..4)
            .map(|_| {
                tokio::spawn(cron::run_schedules(
                    house.schedules.clone(),
                    CancellationToken::new(),
                ))
            })
            .collect();
        for one in &mut doomed {
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..4000))).await;
            one.abort();
        }
    }
    house.keep(1);

    let seen = house.get("tick").await.last_at;
    house
        .until("the last one goes on", "tick", |one| one.last_at > seen)
        .await;
    let found = house.occurrences().await;
    let wanted: Vec<i64> = (found[0]..).take(found.len()).collect();
    assert!(found.len() >= 7, "{found:?}");
    assert_eq!(found, wanted, "none is missing and none is there twice");
}

#[tokio::test]
async fn the_rights_that_the_guide_gives_a_planner_are_enough() {
    let house = House::new().await;
    let guide = include_str!("../../../docs/guides/cron.md");
    let grants: String = guide
        .lines()
        .filter(|line| line.starts_with("grant "))
        .collect::<Vec<_>>()
        .join("\n");
    let role = format!("planner_{}", crate::support::unique());
    let said = |sql: String| sqlx::raw_sql(sqlx::AssertSqlSafe(sql));
    let mut connection = house.database.superuser().acquire().await.unwrap();
    said(format!(
        "create role {role};\n{}",
        grants.replace("planner", &role)
    ))
    .execute(&mut *connection)
    .await
    .unwrap();
    said(format!("set role {role}"))
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

    said(format!(
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
async fn a_worker_that_saw_an_older_state_is_not_heard() {
    let house = House::new().await;
    house
        .schedules
        .set(&report("daily", "@daily"))
        .await
        .unwrap();
    house
        .run("update flyball.cron set next_at = '2026-01-01T00:00:00Z'")
        .await;
    let advance = "select count(*) from flyball.advance_schedule('daily', '@daily', 'UTC', '2026-01-01T00:00:00Z',
        array['2026-01-01T00:00:00Z'::timestamptz], '2026-01-02T00:00:00Z', null)";
    let mut heard = Vec::new();
    for _ in 0..2 {
        heard.push(
            sqlx::query_scalar::<_, i64>(advance)
                .fetch_one(house.database.pool())
                .await
                .unwrap(),
        );
    }
    // Nor is an occurrence made again by somebody who moves the schedule back.
    house
        .run("update flyball.cron set next_at = '2026-01-01T00:00:00Z'")
        .await;
    heard.push(
        sqlx::query_scalar(advance)
            .fetch_one(house.database.pool())
            .await
            .unwrap(),
    );

    assert_eq!(heard, [1, 0, 1]);
    assert_eq!(house.occurrences().await.len(), 1);
}

#[tokio::test]
async fn what_was_missed_is_caught_up_as_the_schedule_says() {
    let house = House::new().await;
    for (name, catch_up) in [
        ("one", CatchUp::One),
        ("all", CatchUp::All),
        ("none", CatchUp::None),
    ] {
        let schedule = report(name, "@daily")
            .catch_up(catch_up)
            .overlap(Overlap::Allow);
        house.schedules.set(&schedule).await.unwrap();
    }
    house
        .run(
            "update flyball.cron set next_at = date_trunc('day', now(), 'UTC') - interval '3 days'",
        )
        .await;

    house.keep(2);

    for name in ["one", "all", "none"] {
        house
            .until("the schedule goes on", name, |one| {
                one.next_at == one.upcoming.first().copied()
            })
            .await;
    }
    let sql = "select args ->> 'of', count(*) from flyball.job group by 1 order by 1";
    let made: Vec<(String, i64)> = sqlx::query_as(sql)
        .fetch_all(house.database.pool())
        .await
        .unwrap();
    // Just after midnight today's occurrence is not missed but only late.
    let expected: [&[(String, i64)]; 2] = [
        &[("all".into(), 4), ("one".into(), 1)],
        &[("all".into(), 4), ("none".into(), 1), ("one".into(), 1)],
    ];
    assert!(expected.contains(&made.as_slice()), "{made:?}");
}

#[tokio::test]
async fn while_a_job_is_unfinished_the_next_occurrence_makes_none() {
    let house = House::new().await;
    house
        .schedules
        .set(&report("tick", "* * * * * *"))
        .await
        .unwrap();
    house.keep(2);

    let skipped = house
        .until("an occurrence is skipped", "tick", |one| {
            one.skipped_at.is_some()
        })
        .await;
    assert_eq!(house.occurrences().await.len(), 1);
    let by_hand = house.schedules.run_now("tick").await.unwrap();
    assert!(
        matches!(by_hand, RunNowOutcome::Job(job) if job.duplicate && Some(job.id) == skipped.last_job_id)
    );

    // The job ends, which frees the key, and the schedule goes on.
    house.run("delete from flyball.unique_holder").await;
    house
        .until("another job", "tick", |one| {
            one.last_job_id != skipped.last_job_id
        })
        .await;
}

#[tokio::test]
async fn declaring_a_schedule_again_keeps_its_time_and_a_persons_pause() {
    let house = House::new().await;
    let daily = report("daily", "@daily");
    assert!(house.schedules.set(&daily).await.unwrap());
    house
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
    assert!(!house.schedules.set(&other_args).await.unwrap());
    let stands = house.get("daily").await;
    assert_eq!(
        (stands.next_at, &stands.args),
        (
            Some("2026-01-01T00:00:00Z".parse().unwrap()),
            &json!({"of": "other"})
        )
    );
    assert_eq!(stands.timeout_s, Some(7.5));
    let RunNowOutcome::Job(job) = house.schedules.run_now("daily").await.unwrap() else {
        panic!("there is one")
    };
    let timeout: f32 = sqlx::query_scalar("select timeout_s from flyball.job where id = $1")
        .bind(job.id)
        .fetch_one(house.database.pool())
        .await
        .unwrap();
    assert_eq!(timeout, 7.5, "the job has the schedule's time-out");
    house
        .run("truncate flyball.job, flyball.ready, flyball.unique_holder")
        .await;

    assert!(house.schedules.pause("daily", true).await.unwrap());
    assert!(!house.schedules.pause("daily", true).await.unwrap());
    house.schedules.set(&daily).await.unwrap();
    assert!(house.get("daily").await.paused);
    house.keep(1);
    house
        .schedules
        .set(&report("other", "@daily"))
        .await
        .unwrap();
    house
        .until("the other one has its time", "other", |one| {
            one.next_at.is_some()
        })
        .await;
    assert_eq!(
        house.get("daily").await.next_at,
        None,
        "a paused schedule has no next time"
    );
    house.schedules.pause("daily", false).await.unwrap();
    let stands = house
        .until("it goes on", "daily", |one| one.next_at.is_some())
        .await;
    assert_eq!(stands.next_at, stands.upcoming.first().copied());
    assert!(
        house.occurrences().await.is_empty(),
        "what was missed during the pause is not caught up"
    );

    house
        .schedules
        .set(&report("daily", "@hourly"))
        .await
        .unwrap();
    assert_eq!(
        house.get("daily").await.next_at,
        None,
        "another expression has another time"
    );
    assert!(house.schedules.delete("daily").await.unwrap());
    assert!(!house.schedules.delete("daily").await.unwrap());
    assert_eq!(
        house.schedules.run_now("daily").await.unwrap(),
        RunNowOutcome::NotFound
    );
}

#[tokio::test]
async fn sql_refuses_what_cannot_be_a_schedule_by_field() {
    let house = House::new().await;
    for (sql, field, said) in [
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
        let (at, message) = house.refusal(sql).await;
        assert!(
            at == field && message.starts_with(said),
            "{sql}: {at}: {message}"
        );
    }
    assert!(house.schedules.list().await.unwrap().is_empty());
    for fine in [
        "@daily",
        "*/5 0-12/2,23 1,15 JAN-MAR MON#2",
        "0 0 L * 5L",
        "30 1,2 * * * ?",
    ] {
        sqlx::query("select flyball.schedule($1, $1, 'report')")
            .bind(fine)
            .execute(house.database.pool())
            .await
            .unwrap_err();
        sqlx::query("select flyball.schedule('fine', $1, 'report')")
            .bind(fine)
            .execute(house.database.pool())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_only_a_worker_can_see_stands_beside_the_schedule_as_its_problem() {
    let house = House::new().await;
    for name in ["wrong", "never"] {
        house.schedules.set(&report(name, "@daily")).await.unwrap();
    }
    house.run("update flyball.cron set expression = case name when 'wrong' then '61 * * * *' else '0 0 30 2 *' end").await;
    house
        .schedules
        .set(&report("gone", "* * * * * *").overlap(Overlap::Allow))
        .await
        .unwrap();
    house
        .run("update flyball.cron set kind = 'gone' where name = 'gone'")
        .await;

    house.keep(1);

    let problem = async |name| {
        house
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

    // A refused occurrence is told and not tried again; the next one may fare better.
    house.run("select flyball.register_kind('gone')").await;
    let cured = house
        .until("it is cured", "gone", |one| {
            one.problem.is_none() && one.last_job_id.is_some()
        })
        .await;
    assert!(cured.next_at.is_some());
}

/// Fields of every form, fine and wrong, in each of the six places, and what is wrong or fine as a whole.
fn expressions() -> Vec<String> {
    const FIELDS: &[&str] = &[
        "*",
        "?",
        "0",
        "1",
        "00",
        "007",
        "5",
        "6",
        "7",
        "8",
        "12",
        "13",
        "23",
        "24",
        "31",
        "32",
        "59",
        "60",
        "999999999999",
        "-1",
        "+1",
        "1.5",
        "x",
        "$",
        "\"",
        "ü",
        "*/1",
        "*/2",
        "*/6",
        "*/7",
        "*/11",
        "*/12",
        "*/23",
        "*/24",
        "*/30",
        "*/31",
        "*/59",
        "*/60",
        "*/90",
        "*/0",
        "*/",
        "*/x",
        "*/2/3",
        "/2",
        "x/2",
        "1/2",
        "7/2",
        "5/20",
        "1-5",
        "1-5/2",
        "5-1",
        "1-",
        "-5",
        "1-2-3",
        "5-7",
        "6-0",
        "7-7",
        "1-60",
        "x-5",
        "1,3",
        "1,,3",
        ",",
        "1,",
        "x,,1",
        "1-3,5,*/10",
        "JAN",
        "jan",
        "January",
        "janu",
        "JAN-MAR",
        "mar-jan",
        "sep/2",
        "MON",
        "monday",
        "mon-fri",
        "fri-sun",
        "sun-mon",
        "FRI/2",
        "L",
        "l",
        "1,L",
        "LL",
        "5L",
        "fril",
        "*L",
        "9L",
        "15W",
        "MON#2",
        "1#5",
        "7#1",
        "MON#6",
        "MON#0",
        "MON#",
        "#2",
        "MON#2L",
        "MON#+2",
        "MON#2#3",
        "8#2",
        "MON#1,FRI",
        "?,1",
        "*,1",
        "* *",
    ];
    let mut all: Vec<String> = Vec::new();
    for field in FIELDS {
        for place in 0..6 {
            let parts: Vec<&str> = (0..6)
                .map(|at| if at == place { *field } else { "*" })
                .collect();
            all.push(parts.join(" "));
            all.push(parts[1..].join(" "));
        }
    }
    for months in ["*", "2", "4,6,9,11", "feb-apr", "1"] {
        for days in ["*", "?", "29", "30", "31", "1,31", "*/30", "L", "30,L"] {
            for weekdays in [
                "*", "?", "MON", "MON#1", "MON#2", "MON#5", "5L", "*/6", "1,TUE#5",
            ] {
                all.push(format!("0 0 {days} {months} {weekdays}"));
            }
        }
    }
    let whole = [
        "",
        "  ",
        "*",
        "* * * *",
        "* * * * * * *",
        "@daily",
        "  @yearly ",
        "@hourly",
        "@Daily",
        "@reboot",
        "@every 5m",
        "@",
        "@daily *",
        "\t0  0 * *\n* ",
        "99 99 99 99 99 99",
        "0 0 99 * 99",
        "0 0 1 1 * 2026 *",
    ];
    all.extend(whole.map(str::to_owned));
    all.extend([
        "1,".repeat(128),
        "1,".repeat(129),
        format!("{} * * * *", "0".repeat(200)),
    ]);
    all
}

#[tokio::test]
async fn sql_and_rust_read_the_same_expressions_and_refuse_the_others_in_the_same_words() {
    let database = database().await;
    let all = expressions();
    let by_sql: Vec<Option<String>> =
        sqlx::query_scalar("select flyball.check_expression(e) from unnest($1::text[]) with ordinality as u(e, n) order by n")
            .bind(&all)
            .fetch_all(database.pool())
            .await
            .unwrap();

    let by_rust: Vec<Option<String>> = all
        .iter()
        .map(|text| Timing::new(text, "UTC").err().map(|bad| bad.message))
        .collect();

    let fine = by_rust.iter().filter(|said| said.is_none()).count();
    assert!(
        (200..all.len() - 200).contains(&fine),
        "{fine} of {} are fine",
        all.len()
    );
    for ((text, by_sql), by_rust) in all.iter().zip(by_sql).zip(by_rust) {
        assert_eq!(by_sql, by_rust, "{text:?}");
    }
}

#[tokio::test]
async fn a_full_lane_is_told_as_the_schedules_problem_and_its_next_occurrence_tries_again() {
    let house = House::new().await;
    house.run("insert into flyball.knobs (throttle, fields) values ('hooks', '{\"max_backlog\": \"1\", \"on_backlog\": \"reject\"}')").await;
    house
        .run("select flyball.enqueue('report', throttle => 'hooks')")
        .await;
    let job = NewJob::new("report", json!({})).throttle("hooks");
    house
        .schedules
        .set(&NewSchedule::new("tick", "* * * * * *", job).overlap(Overlap::Allow))
        .await
        .unwrap();

    house.keep(1);

    let full = house
        .until("its problem", "tick", |one| one.problem.is_some())
        .await;
    assert!(
        full.problem
            .as_ref()
            .unwrap()
            .contains("its knob max_backlog allows 1"),
        "{full:?}"
    );
    assert!(full.next_at > full.last_at, "the occurrence is over");
    house.run("delete from flyball.ready").await;
    house
        .until("it makes a job", "tick", |one| one.last_job_id.is_some())
        .await;
}

#[tokio::test]
async fn a_schedule_is_paused_and_resumed_by_sql_and_forgets_what_was_wrong_before() {
    let house = House::new().await;
    house
        .schedules
        .set(&report("daily", "@daily"))
        .await
        .unwrap();
    house
        .run("update flyball.cron set problem = 'time_zone: is not known', next_at = null")
        .await;
    let turn = async |call: &'static str| {
        sqlx::query_scalar::<_, bool>(call)
            .fetch_one(house.database.pool())
            .await
            .unwrap()
    };

    assert!(turn("select flyball.pause_schedule('daily')").await);
    assert!(
        turn("select flyball.pause_schedule('daily', true)").await,
        "there is one, which is all that is answered"
    );
    assert!(!turn("select flyball.pause_schedule('nightly')").await);
    let paused = house.get("daily").await;
    assert!(turn("select flyball.pause_schedule('daily', false)").await);
    house.keep(1);

    assert!(paused.paused);
    let goes_on = house
        .until("it goes on", "daily", |one| one.next_at.is_some())
        .await;
    assert_eq!((goes_on.paused, goes_on.problem), (false, None));
}

#[tokio::test]
async fn rust_refuses_a_wrong_schedule_with_everything_that_is_wrong() {
    let house = House::new().await;
    let error = house
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
    let error = house
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

#[tokio::test]
async fn a_process_serves_schedules_over_http_and_runs_them() {
    let (database, folder) = (database().await, tempfile::tempdir().unwrap());
    let environment = app_environment(&database, folder.path()).await;
    let mut kinds = Kinds::default();
    kinds.register_fn("report", |_, _| async { flyball::jobs::Outcome::Done });
    let app = App::start(
        &Settings::load(None, &environment).unwrap(),
        Roles::ALL,
        kinds,
    )
    .await
    .unwrap();
    let base = format!("http://{}/api/v1/crons", app.address.unwrap());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();

    let body = json!({"expression": "* * * * * *", "time_zone": "Europe/Berlin", "kind": "report", "key": "a", "why": "a test"});
    let made = client
        .put(format!("{base}/tick"))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(made.status(), 201);
    let made: Value = made.json().await.unwrap();
    assert_eq!(
        (
            made["upcoming"].as_array().unwrap().len(),
            &made["catch_up"],
            &made["overlap"]
        ),
        (5, &json!("one"), &json!("skip"))
    );
    assert_eq!(
        client
            .put(format!("{base}/tick"))
            .json(&body)
            .send()
            .await
            .unwrap()
            .status(),
        200
    );

    let show = || async {
        client
            .get(format!("{base}/tick"))
            .send()
            .await
            .unwrap()
            .json::<Value>()
            .await
            .unwrap()
    };
    eventually("it makes a job", SOON, || async {
        show().await["last_job_id"].as_i64()
    })
    .await;
    let ran = client
        .post(format!("{base}/tick/run"))
        .json(&json!({"by": "alice", "why": "now"}))
        .send()
        .await
        .unwrap();
    assert!(
        [200, 201].contains(&ran.status().as_u16()),
        "{}",
        ran.status()
    );
    let pause = client
        .post(format!("{base}/tick/pause"))
        .json(&json!({"by": "bob", "why": "too loud"}));
    let paused: Value = pause.send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&paused["paused"], &paused["next_at"]),
        (&json!(true), &Value::Null)
    );
    let resumed: Value = client
        .post(format!("{base}/tick/resume"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(resumed["paused"], false, "nobody need say why");
    assert_eq!(
        client
            .post(format!("{base}/tick/pause"))
            .json(&json!({"wy": "?"}))
            .send()
            .await
            .unwrap()
            .status(),
        422
    );
    assert_eq!(
        client
            .delete(format!("{base}/tick?wy=x"))
            .send()
            .await
            .unwrap()
            .status(),
        400
    );

    let wrong = json!({"expression": "61 * * * *", "kind": "report"});
    let refused = client
        .put(format!("{base}/tick"))
        .json(&wrong)
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 422);
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(refused["errors"][0]["pointer"], "/expression");
    let all: Value = client
        .get(&base)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(all["crons"][0]["name"], "tick");
    assert_eq!(
        client
            .delete(format!("{base}/tick?by=carol&why=done%20with"))
            .send()
            .await
            .unwrap()
            .status(),
        204
    );
    let gone = client.delete(format!("{base}/tick")).send().await.unwrap();
    assert_eq!(
        (
            gone.status().as_u16(),
            gone.json::<Value>().await.unwrap()["code"].clone()
        ),
        (404, json!("schedule_not_found"))
    );
    let sql = "select concat_ws(' ', action, nullif(actor, 'http'), why) from flyball.audit where subject = 'tick' order by id";
    let audit: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert_eq!(
        audit[..4],
        [
            "cron.set a test",
            "cron.set a test",
            "cron.run alice now",
            "cron.pause bob too loud"
        ]
    );
    assert_eq!(
        (audit[4].trim(), audit[5].as_str()),
        ("cron.resume", "cron.delete carol done with")
    );
    app.stop().await;
}

#[tokio::test]
async fn the_command_line_has_the_same_schedules() {
    let (database, folder) = (database().await, tempfile::tempdir().unwrap());
    let run = |words: &[&str]| {
        let mut command = Command::new(PROGRAM.as_path());
        command
            .args(words)
            .env_clear()
            .env("DATABASE_URL", database.url())
            .env("USER", "tester")
            .current_dir(folder.path());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let set = [
        "cron",
        "set",
        "beat",
        "30 2 * * *",
        "http",
        "--args",
        r#"{"url":"https://example.com/"}"#,
        "--time-zone",
        "Europe/Berlin",
    ];

    let (code, out, err) = run(&set);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("schedule beat is created; next occurrences:\n")
            && out.matches("02:30:00 +0").count() == 5,
        "{out}"
    );
    assert!(run(&set).1.starts_with("schedule beat is changed"));
    let (_, out, _) = run(&["cron", "list"]);
    assert!(
        out.contains("NEXT") && out.contains("beat") && out.contains("Europe/Berlin"),
        "{out}"
    );
    let (_, out, _) = run(&["cron", "next", "beat", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap()["upcoming"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
    assert!(
        run(&["cron", "next", "--expression", "@weekly"])
            .1
            .contains("Sun ")
    );
    assert_eq!(
        run(&["cron", "pause", "beat"]).1,
        "schedule beat is paused\n"
    );
    assert!(
        run(&["cron", "next", "beat"])
            .1
            .starts_with("note: it is paused\n")
    );
    assert_eq!(
        run(&["cron", "resume", "beat"]).1,
        "schedule beat is running\n"
    );
    assert!(run(&["cron", "run", "beat"]).1.starts_with("enqueued job "));
    assert!(
        run(&["cron", "run", "beat"])
            .1
            .contains("is unfinished; no other job was created")
    );
    assert_eq!(
        run(&["cron", "delete", "beat"]).1,
        "schedule beat is deleted\n"
    );

    for (words, code, said) in [
        (
            vec!["cron", "delete", "beat"],
            3,
            "there is no schedule beat",
        ),
        (vec!["cron", "next", "beat"], 3, "there is no schedule beat"),
        (
            vec![
                "cron",
                "set",
                "beat",
                "61 * * * *",
                "http",
                "--args",
                r#"{"url":"https://example.com/"}"#,
            ],
            4,
            "minute: 61 is out of range",
        ),
        (vec!["cron", "set", "beat", "@daily", "http"], 4, "args/url"),
        (
            vec!["cron", "set", "beat", "@daily", "no-such-kind"],
            4,
            "is not a kind",
        ),
        (
            vec!["cron", "next", "--expression", "* *"],
            4,
            "has 2 fields",
        ),
        (
            vec![
                "cron",
                "set",
                "beat",
                "@daily",
                "http",
                "--overlap",
                "maybe",
            ],
            2,
            "skip",
        ),
    ] {
        let (was, _, err) = run(&words);
        assert!(was == code && err.contains(said), "{words:?}: {was} {err}");
    }
    let queue = Queue::connect(database.url(), 2, SOON).await.unwrap();
    let who: Vec<String> = sqlx::query_scalar("select distinct actor from flyball.audit")
        .fetch_all(&queue.pool)
        .await
        .unwrap();
    assert_eq!(who, ["tester"]);
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_says_so_and_stops_no_other() {
    let house = House::new().await;
    house
        .run(r#"select flyball.schedule('args', '@daily', 'report', '{"n": 1e400}')"#)
        .await;
    house
        .run("select flyball.schedule('time', '@daily', 'report')")
        .await;
    house
        .run("update flyball.cron set next_at = '-infinity' where name = 'time'")
        .await;
    house
        .schedules
        .set(&report("good", "* * * * * *").overlap(Overlap::Allow))
        .await
        .unwrap();

    house.keep(1);

    house
        .until("the good one makes jobs", "good", |one| {
            one.last_job_id.is_some()
        })
        .await;
    for (name, reason) in [
        ("args", "args cannot be read: "),
        ("time", "next_at cannot be read: "),
    ] {
        let one = house
            .until("it has a problem", name, |one| one.problem.is_some())
            .await;
        assert!(
            one.problem.as_ref().unwrap().starts_with(reason) && one.next_at.is_none(),
            "{one:?}"
        );
    }
    assert_eq!(
        house.get("args").await.args,
        json!(r#"{"n": 1000"#.to_owned() + &"0".repeat(397) + "}")
    );
    house
        .schedules
        .set(&report("args", "@daily"))
        .await
        .unwrap();
    house
        .until("it is mended", "args", |one| {
            one.problem.is_none() && one.next_at.is_some()
        })
        .await;
}
