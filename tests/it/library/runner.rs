//! A program with its own runner: kinds, schedules and settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flyball::Runner;
use flyball::config::Settings;
use flyball::cron::{NewSchedule, Overlap};
use flyball::jobs::{Context, HandlerError, NewJob, State};
use flyball::throttle::{Name, RedisStore, Store};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{letter, mail};
use crate::support::{database, eventually, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_program_runs_its_kinds_and_schedules_until_it_is_told_to_stop() {
    let (stack, database) = (stack().await, database().await);
    let (mail, _) = mail(0);
    let ticks = Arc::new(AtomicUsize::new(0));
    let counted = ticks.clone();
    let runner = Runner::builder()
        .database_url(database.url())
        .redis_url(stack.redis_url.clone())
        .redis_prefix(redis_prefix())
        .settings(|settings| settings.database_connections = 6)
        .concurrency(4)
        .typed(mail.clone())
        .kind("tick", move |_: Value, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<(), HandlerError>(()) }
        })
        .throttle("default", [("rps", json!(100))])
        .cron(
            NewSchedule::new("tick", "* * * * * *", NewJob::new("tick", Value::Null))
                .overlap(Overlap::Allow),
        )
        .build()
        .await
        .unwrap();
    let queue = runner.queue().clone();
    let schedules = runner.schedules();
    let stop = CancellationToken::new();
    let running = tokio::spawn(runner.run_until(stop.clone().cancelled_owned()));

    let id = queue.enqueue(&[letter("ada")]).await.unwrap()[0].id;
    let done = eventually("the letter is sent", SOON, || async {
        queue
            .get(id)
            .await
            .unwrap()
            .filter(|job| job.summary.state == State::Completed)
    })
    .await;
    assert_eq!(
        done.progress.map(|progress| (progress.done, progress.note)),
        Some((1, "sent".to_owned()))
    );
    eventually("the schedule ticks", SOON, || async {
        (ticks.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    assert_eq!(schedules.list().await.unwrap().len(), 1);

    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(mail.sent.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_job_that_names_no_throttle_runs_although_the_program_declares_none() {
    let (stack, database) = (stack().await, database().await);
    let (mail, _) = mail(0);
    let runner = Runner::builder()
        .database_url(database.url())
        .redis_url(stack.redis_url.clone())
        .redis_prefix(redis_prefix())
        .typed(mail)
        .build()
        .await
        .unwrap();

    let id = runner.queue().enqueue(&[letter("ada")]).await.unwrap()[0].id;

    eventually("the letter is sent", SOON, || async {
        let job = runner.queue().get(id).await.unwrap();
        job.filter(|job| job.summary.state == State::Completed)
    })
    .await;
    runner.stop().await;
}

#[tokio::test]
async fn the_knobs_of_a_program_go_before_those_that_flyball_brings() {
    let (stack, database, prefix) = (stack().await, database().await, redis_prefix());
    let folder = tempfile::tempdir().unwrap();
    let runner = Runner::with(Settings::defaults())
        .settings(|settings| settings.knobs_dir = folder.path().display().to_string())
        .database_url(database.url())
        .redis_url(stack.redis_url.clone())
        .redis_prefix(prefix.clone())
        .throttle("default", [("rps", json!(7))])
        .build()
        .await
        .unwrap();

    let store = RedisStore::connect(&stack.redis_url, &prefix).unwrap();
    let name = Name::new("default").unwrap();
    let status = store.status(&name).await.unwrap().unwrap();
    assert_eq!(status.knobs.rps.number(), 7.0);
    runner.stop().await;
}

#[tokio::test]
async fn a_runner_with_a_throttle_starts_while_redis_is_away() {
    let database = database().await;
    let runner = Runner::builder()
        .database_url(database.url())
        .redis_url("redis://127.0.0.1:1")
        .throttle("mail", [("rps", json!(7))])
        .build()
        .await
        .unwrap();

    assert!(runner.queue().ping().await);
    runner.stop().await;
}

#[tokio::test]
async fn a_runner_that_cannot_be_is_refused_with_the_reason_before_anything_is_touched() {
    let reason = |built: anyhow::Result<Runner>| format!("{:#}", built.err().unwrap());
    let unreachable = || Runner::builder().database_url("postgres://nobody@127.0.0.1:1/none");

    let schedule = NewSchedule::new("nightly", "61 2 * * *", letter("ada"));
    let error = reason(unreachable().cron(schedule).build().await);
    assert!(
        error.contains("the schedule \"nightly\"") && error.contains("minute: 61 is out of range"),
        "{error}"
    );
    let error = reason(
        unreachable()
            .throttle("mail", [("rsp", json!(1))])
            .build()
            .await,
    );
    assert!(error.contains("rsp"), "{error}");
    for (knob, value, why) in [
        ("parent", json!("mail"), "is the throttle itself"),
        ("min", json!(2000), "must be at most max 1000"),
    ] {
        let error = reason(
            unreachable()
                .throttle("mail", [(knob, value)])
                .build()
                .await,
        );
        assert!(
            error.contains("the throttle \"mail\"") && error.contains(why),
            "{error}"
        );
    }
    for name in [String::new(), "x".repeat(129), "a\0b".to_owned()] {
        let nothing = |_: Value, _: Context| std::future::ready(());
        let error = reason(unreachable().kind(name, nothing).build().await);
        assert!(
            error.contains("the name of a kind must have 1 to 128 bytes"),
            "{error}"
        );
    }
    let error = reason(unreachable().concurrency(0).build().await);
    assert!(
        error.contains("concurrency: must be a whole number from 1 to 10000, not 0"),
        "{error}"
    );
}

#[tokio::test]
async fn settings_of_a_kind_win_over_its_handler() {
    let (stack, database) = (stack().await, database().await);
    let (mail, _) = mail(9);
    let quick = flyball::config::KindSettings {
        max_attempts: Some(2),
        retry_base_s: Some(0.01),
        retry_max_s: Some(0.01),
        ..flyball::config::KindSettings::default()
    };
    let runner = Runner::builder()
        .database_url(database.url())
        .redis_url(stack.redis_url.clone())
        .redis_prefix(redis_prefix())
        .settings(|settings| settings.kinds = BTreeMap::from([("mail".to_owned(), quick)]))
        .typed(mail)
        .throttle("default", [("rps", json!(100))])
        .build()
        .await
        .unwrap();

    let id = runner.queue().enqueue(&[letter("ada")]).await.unwrap()[0].id;

    let dead = eventually("the letter is dead", SOON, || async {
        runner
            .queue()
            .get(id)
            .await
            .unwrap()
            .filter(|job| job.summary.state == State::Dead)
    })
    .await;
    assert_eq!(
        dead.attempts.len(),
        2,
        "the handler would have tried three times, a minute apart"
    );
    runner.stop().await;
}
