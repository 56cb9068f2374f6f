//! Each occurrence becomes a job exactly once, even when processes die.

use std::time::Duration;

use flyball::cron::postgres::STATEMENTS;
use flyball::cron::{self, CatchUp, NewSchedule, Overlap, RunNowOutcome};
use flyball::jobs::NewJob;
use flyball::service::DueWork;
use serde_json::json;
use sqlx::{Executor as _, SqlSafeStr as _};
use tokio_util::sync::CancellationToken;

use super::fixture::{CronFixture, SOON, report};
use crate::support::{database, eventually};

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
    let fixture = CronFixture::new().await;
    fixture
        .schedules
        .set(&report("tick", "* * * * * *").overlap(Overlap::Allow))
        .await
        .unwrap();

    fixture.keep(6);

    let found = eventually("eight occurrences", SOON, || async {
        Some(fixture.occurrences().await).filter(|all| all.len() >= 8)
    })
    .await;
    let wanted: Vec<i64> = (found[0]..).take(found.len()).collect();
    assert_eq!(found, wanted, "none is missing and none is there twice");
}

#[tokio::test]
async fn processes_that_die_at_any_moment_neither_lose_an_occurrence_nor_make_it_twice() {
    let fixture = CronFixture::new().await;
    // On a busy machine all of them may be down for a while; missed occurrences are made up later.
    let schedule = report("tick", "* * * * * *")
        .catch_up(CatchUp::All)
        .overlap(Overlap::Allow);
    fixture.schedules.set(&schedule).await.unwrap();

    // Each process lives briefly and is aborted at an arbitrary point.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        let mut doomed: Vec<_> = (0..4)
            .map(|_| {
                tokio::spawn(cron::run_schedules(
                    fixture.schedules.clone(),
                    DueWork::default(),
                    CancellationToken::new(),
                ))
            })
            .collect();
        for one in &mut doomed {
            // Real time: it is aborted anywhere in its first turn.
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..4000))).await;
            one.abort();
        }
    }
    fixture.keep(1);

    let found = eventually("seven occurrences", SOON, || async {
        Some(fixture.occurrences().await).filter(|all| all.len() >= 7)
    })
    .await;
    let wanted: Vec<i64> = (found[0]..).take(found.len()).collect();
    assert_eq!(found, wanted, "none is missing and none is there twice");
}

#[tokio::test]
async fn a_worker_that_saw_an_older_state_is_not_heard() {
    let fixture = CronFixture::new().await;
    fixture
        .schedules
        .set(&report("daily", "@daily"))
        .await
        .unwrap();
    fixture
        .run("update flyball.cron set next_at = '2026-01-01T00:00:00Z'")
        .await;
    let advance = "select count(*) from flyball.advance_schedule('daily', '@daily', 'UTC', '2026-01-01T00:00:00Z',
        array['2026-01-01T00:00:00Z'::timestamptz], '2026-01-02T00:00:00Z', null)";
    let mut heard = Vec::new();
    for _ in 0..2 {
        heard.push(
            sqlx::query_scalar::<_, i64>(advance)
                .fetch_one(fixture.database.pool())
                .await
                .unwrap(),
        );
    }
    // Moving the schedule back does not repeat an occurrence.
    fixture
        .run("update flyball.cron set next_at = '2026-01-01T00:00:00Z'")
        .await;
    heard.push(
        sqlx::query_scalar(advance)
            .fetch_one(fixture.database.pool())
            .await
            .unwrap(),
    );

    assert_eq!(heard, [1, 0, 1]);
    assert_eq!(fixture.occurrences().await.len(), 1);
}

#[tokio::test]
async fn what_was_missed_is_caught_up_as_the_schedule_says() {
    let fixture = CronFixture::new().await;
    for (name, catch_up) in [
        ("one", CatchUp::One),
        ("all", CatchUp::All),
        ("none", CatchUp::None),
    ] {
        let schedule = report(name, "@daily")
            .catch_up(catch_up)
            .overlap(Overlap::Allow);
        fixture.schedules.set(&schedule).await.unwrap();
    }
    fixture
        .run(
            "update flyball.cron set next_at = date_trunc('day', now(), 'UTC') - interval '3 days'",
        )
        .await;

    fixture.keep(2);

    for name in ["one", "all", "none"] {
        fixture
            .until("the schedule goes on", name, |one| {
                one.next_at == one.upcoming.first().copied()
            })
            .await;
    }
    let sql = "select args ->> 'of', count(*) from flyball.job group by 1 order by 1";
    let made: Vec<(String, i64)> = sqlx::query_as(sql)
        .fetch_all(fixture.database.pool())
        .await
        .unwrap();
    // Just after midnight, today's occurrence is late rather than missed.
    let expected: [&[(String, i64)]; 2] = [
        &[("all".into(), 4), ("one".into(), 1)],
        &[("all".into(), 4), ("none".into(), 1), ("one".into(), 1)],
    ];
    assert!(expected.contains(&made.as_slice()), "{made:?}");
}

#[tokio::test]
async fn while_a_job_is_unfinished_the_next_occurrence_makes_none() {
    let fixture = CronFixture::new().await;
    fixture
        .schedules
        .set(&report("tick", "* * * * * *"))
        .await
        .unwrap();
    fixture.keep(2);

    let skipped = fixture
        .until("an occurrence is skipped", "tick", |one| {
            one.skipped_at.is_some()
        })
        .await;
    assert_eq!(fixture.occurrences().await.len(), 1);
    let by_hand = fixture.schedules.run_now("tick").await.unwrap();
    assert!(
        matches!(by_hand, RunNowOutcome::Job(job) if job.duplicate && Some(job.id) == skipped.last_job_id)
    );

    // The job ends, which frees the key, and the schedule continues.
    fixture.run("delete from flyball.unique_holder").await;
    fixture
        .until("another job", "tick", |one| {
            one.last_job_id != skipped.last_job_id
        })
        .await;
}

#[tokio::test]
async fn a_full_lane_is_reported_as_the_schedules_problem_and_its_next_occurrence_tries_again() {
    let fixture = CronFixture::new().await;
    fixture.run("insert into flyball.knobs (throttle, fields) values ('hooks', '{\"max_backlog\": \"1\", \"on_backlog\": \"reject\"}')").await;
    fixture
        .run("select flyball.enqueue('report', throttle => 'hooks')")
        .await;
    let job = NewJob::new("report", json!({})).throttle("hooks");
    fixture
        .schedules
        .set(&NewSchedule::new("tick", "* * * * * *", job).overlap(Overlap::Allow))
        .await
        .unwrap();

    fixture.keep(1);

    let full = fixture
        .until("its problem", "tick", |one| one.problem.is_some())
        .await;
    assert!(
        full.problem
            .as_ref()
            .unwrap()
            .contains("its knob max_backlog allows 1"),
        "{full:?}"
    );
    assert!(
        full.last_at.is_some() && full.next_at > full.last_at,
        "the occurrence is over: {full:?}"
    );
    assert_eq!(full.last_job_id, None);
    fixture.run("delete from flyball.ready").await;
    fixture
        .until("it makes a job", "tick", |one| one.last_job_id.is_some())
        .await;
}

#[tokio::test]
async fn of_many_missed_occurrences_those_with_room_become_jobs_and_the_rest_is_tried_again() {
    let fixture = CronFixture::new().await;
    fixture.run("insert into flyball.knobs (throttle, fields) values ('hooks', '{\"max_backlog\": \"3\", \"on_backlog\": \"reject\"}')").await;
    let job = NewJob::new("report", json!({})).throttle("hooks");
    let schedule = NewSchedule::new("minutes", "* * * * *", job)
        .catch_up(CatchUp::All)
        .overlap(Overlap::Allow);
    fixture.schedules.set(&schedule).await.unwrap();
    fixture
        .run("update flyball.cron set next_at = date_trunc('minute', now()) - interval '5 minutes'")
        .await;

    fixture.keep(2);

    let full = fixture
        .until("its problem", "minutes", |one| one.problem.is_some())
        .await;
    let problem = full.problem.as_ref().unwrap();
    assert!(
        problem.contains("3 jobs of this lane are ready; its knob max_backlog allows 3"),
        "{problem}"
    );
    let made = fixture.occurrences().await;
    assert_eq!(made.len(), 3, "there was room for so many");
    assert_eq!(
        full.last_at.map(|at| at.as_second()),
        made.last().copied(),
        "the rest has not been handled"
    );
    assert!(full.next_at > full.last_at && full.last_job_id.is_some());

    // The next occurrence comes, and there is room.
    fixture.run("delete from flyball.knobs").await;
    fixture
        .run("update flyball.cron set next_at = date_trunc('minute', now())")
        .await;
    fixture
        .until("the rest is tried again", "minutes", |one| {
            one.problem.is_none() && one.last_at > full.last_at
        })
        .await;
    let found = fixture.occurrences().await;
    let wanted: Vec<i64> = (found[0]..).step_by(60).take(found.len()).collect();
    assert!(found.len() >= 6, "{found:?}");
    assert_eq!(found, wanted, "none is missing and none is there twice");

    // A pause forgets what was refused.
    let pause =
        "select flyball.pause_schedule('minutes'), flyball.pause_schedule('minutes', false)";
    fixture
        .run("update flyball.cron set to_retry = array['2026-01-01T00:00:00Z'::timestamptz]")
        .await;
    fixture.run(pause).await;
    fixture
        .until("it goes on", "minutes", |one| one.next_at.is_some())
        .await;
    let kept: i64 = sqlx::query_scalar("select count(to_retry) from flyball.cron")
        .fetch_one(fixture.database.pool())
        .await
        .unwrap();
    assert_eq!(kept, 0);
}

#[tokio::test]
async fn a_schedule_that_cannot_be_read_says_so_and_stops_no_other() {
    let fixture = CronFixture::new().await;
    fixture
        .run(r#"select flyball.schedule('args', '@daily', 'report', '{"n": 1e400}')"#)
        .await;
    fixture
        .run("select flyball.schedule('time', '@daily', 'report')")
        .await;
    fixture
        .run("update flyball.cron set next_at = '-infinity' where name = 'time'")
        .await;
    fixture
        .schedules
        .set(&report("good", "* * * * * *").overlap(Overlap::Allow))
        .await
        .unwrap();

    fixture.keep(1);

    fixture
        .until("the good one makes jobs", "good", |one| {
            one.last_job_id.is_some()
        })
        .await;
    for (name, reason) in [
        ("args", "args cannot be read: "),
        ("time", "next_at cannot be read: "),
    ] {
        let one = fixture
            .until("it has a problem", name, |one| one.problem.is_some())
            .await;
        assert!(
            one.problem.as_ref().unwrap().starts_with(reason) && one.next_at.is_none(),
            "{one:?}"
        );
    }
    assert_eq!(
        fixture.get("args").await.args,
        json!(r#"{"n": 1000"#.to_owned() + &"0".repeat(397) + "}")
    );
    fixture
        .schedules
        .set(&report("args", "@daily"))
        .await
        .unwrap();
    fixture
        .until("it is mended", "args", |one| {
            one.problem.is_none() && one.next_at.is_some()
        })
        .await;
}

#[tokio::test]
async fn a_schedule_goes_on_after_the_clock_was_ahead_and_is_set_back() {
    let fixture = CronFixture::new().await;
    for name in ["left-alone", "resumed"] {
        fixture
            .schedules
            .set(&report(name, "* * * * * *"))
            .await
            .unwrap();
    }
    fixture
        .run("update flyball.cron set last_at = now() + interval '2 hours', next_at = now() + interval '2 hours 1 second'")
        .await;
    for paused in [true, false] {
        fixture.schedules.pause("resumed", paused).await.unwrap();
    }

    fixture.keep(2);

    for name in ["left-alone", "resumed"] {
        let schedule = fixture
            .until("an occurrence becomes a job", name, |one| {
                one.last_job_id.is_some()
            })
            .await;
        let now = fixture.schedules.now().await.unwrap();
        assert!(schedule.last_at.unwrap() <= now, "{schedule:?}");
    }
}

#[tokio::test]
async fn a_time_zone_that_one_process_does_not_know_costs_no_occurrence() {
    let fixture = CronFixture::new().await;
    fixture
        .schedules
        .set(&report("daily", "@daily"))
        .await
        .unwrap();
    let today: i64 =
        sqlx::query_scalar("select extract(epoch from date_trunc('day', now(), 'UTC'))::bigint")
            .fetch_one(fixture.database.pool())
            .await
            .unwrap();
    fixture
        .run("update flyball.cron set time_zone = 'Mars/Olympus', next_at = date_trunc('day', now(), 'UTC')")
        .await;

    fixture.keep(1);

    let stopped = fixture
        .until("its problem", "daily", |one| one.problem.is_some())
        .await;
    let problem = stopped.problem.unwrap();
    assert!(problem.starts_with("time_zone: "), "{problem}");
    assert!(fixture.occurrences().await.is_empty());

    // The next process that tries it knows the zone.
    fixture
        .run("update flyball.cron set time_zone = 'UTC', retry_at = now()")
        .await;
    fixture
        .until("it goes on", "daily", |one| {
            one.problem.is_none() && one.next_at.is_some()
        })
        .await;
    assert_eq!(fixture.occurrences().await, [today]);
}

#[tokio::test]
async fn a_declaration_after_such_a_time_zone_costs_no_occurrence() {
    let fixture = CronFixture::new().await;
    let daily = report("daily", "@daily");
    fixture.schedules.set(&daily).await.unwrap();
    let today: i64 =
        sqlx::query_scalar("select extract(epoch from date_trunc('day', now(), 'UTC'))::bigint")
            .fetch_one(fixture.database.pool())
            .await
            .unwrap();
    // As a process leaves it that does not know the zone. The next one knows it, and declares its
    // schedules when it starts.
    fixture
        .run(
            "update flyball.cron set next_at = null, problem = 'time_zone: is not known',
                missed_at = date_trunc('day', now(), 'UTC'), retry_at = now() + interval '1 hour'",
        )
        .await;

    fixture.schedules.set(&daily).await.unwrap();

    fixture.keep(1);
    fixture
        .until("it goes on", "daily", |one| one.last_at.is_some())
        .await;
    assert_eq!(fixture.occurrences().await, [today]);
}

#[tokio::test]
async fn an_unfinished_job_of_the_kind_before_counts_for_the_overlap() {
    let fixture = CronFixture::new().await;
    fixture.run("select flyball.register_kind('summary')").await;
    let schedule = report("tick", "@daily");
    fixture.schedules.set(&schedule).await.unwrap();
    let first = fixture.schedules.run_now("tick").await.unwrap();
    let RunNowOutcome::Job(first) = first else {
        panic!("{first:?}");
    };
    let changed = NewSchedule::new("tick", "@daily", NewJob::new("summary", json!({})));
    fixture.schedules.set(&changed).await.unwrap();

    let blocked = fixture.schedules.run_now("tick").await.unwrap();
    assert!(
        matches!(&blocked, RunNowOutcome::Job(job) if job.duplicate && job.id == first.id),
        "{blocked:?}"
    );

    fixture
        .run("select flyball.cancel(id) from flyball.job")
        .await;
    let next = fixture.schedules.run_now("tick").await.unwrap();
    assert!(
        matches!(&next, RunNowOutcome::Job(job) if !job.duplicate && job.id != first.id),
        "{next:?}"
    );
}
