//! The library as a program uses it: typed handlers, a runner of its own, and the queue for tests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::Runner;
use flyball::cron::{NewSchedule, Overlap};
use flyball::jobs::retry::Policy;
use flyball::jobs::{Context, HandlerError, Issue, Kinds, NewJob, Outcome, State, TypedHandler};
use flyball::testing::{Error, TestQueue, enqueued_in};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{database, eventually, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(30);

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Letter {
    to: String,
    #[serde(default)]
    copies: u32,
}

/// Fails so often before it sends.
#[derive(Clone, Default)]
struct Mail {
    failures: Arc<AtomicUsize>,
    sent: Arc<Mutex<Vec<Letter>>>,
}

impl TypedHandler for Mail {
    type Args = Letter;
    const KIND: &str = "mail";

    async fn run(&self, letter: Letter, context: Context) -> Result<(), HandlerError> {
        if letter.to == "nobody" {
            return Err(HandlerError::dead("there is no such address"));
        }
        if self.failures.load(Ordering::SeqCst) >= context.job.attempt as usize {
            let _: u16 = "not a port".parse()?;
        }
        context.progress(1, Some(1), "sent").await?;
        self.sent.lock().unwrap().push(letter);
        Ok(())
    }

    fn check(&self, letter: &Letter) -> Vec<Issue> {
        if letter.copies <= 3 {
            return Vec::new();
        }
        vec![Issue {
            pointer: "/copies".to_owned(),
            message: format!("is {}; allowed is 0 to 3", letter.copies),
        }]
    }

    fn retry(&self) -> Policy {
        Policy {
            max_attempts: Some(3),
            ..Policy::every(Duration::from_secs(60))
        }
    }
}

fn mail(failures: usize) -> (Mail, Kinds) {
    let mail = Mail {
        failures: Arc::new(failures.into()),
        ..Mail::default()
    };
    let mut kinds = Kinds::default();
    kinds.add(mail.clone());
    (mail, kinds)
}

fn letter(to: &str) -> NewJob {
    Mail::job(&Letter {
        to: to.to_owned(),
        copies: 0,
    })
    .unwrap()
}

#[tokio::test]
async fn a_letter_is_sent_and_one_to_nobody_is_dead() {
    let (mail, kinds) = mail(0);
    let queue = TestQueue::in_memory(kinds);
    queue
        .enqueue(NewJob {
            key: "customer-7".into(),
            ..letter("ada")
        })
        .await
        .unwrap();
    queue.enqueue(letter("nobody")).await.unwrap();
    queue
        .assert_enqueued("mail", json!({"args": {"to": "ada"}, "key": "customer-7"}))
        .await;
    queue
        .refute_enqueued("mail", json!({"args": {"to": "bob"}}))
        .await;

    let report = queue.drain().await.unwrap();

    assert_eq!((report.completed(), report.dead()), (1, 1), "{report}");
    assert_eq!(mail.sent.lock().unwrap()[0].to, "ada");
}

/// The same laws in memory and on Postgres.
async fn both(kinds: impl Fn() -> Kinds, check: impl AsyncFn(TestQueue)) {
    check(TestQueue::in_memory(kinds())).await;
    let database = database().await;
    check(
        TestQueue::on(database.pool().clone(), kinds())
            .await
            .unwrap(),
    )
    .await;
}

#[tokio::test]
async fn a_job_is_asserted_run_and_gone() {
    both(
        || mail(0).1,
        async |queue| {
            queue
                .enqueue(NewJob {
                    key: "customer-7".into(),
                    ..letter("ada")
                })
                .await
                .unwrap();
            queue
                .assert_enqueued("mail", json!({"args": {"to": "ada"}, "key": "customer-7"}))
                .await;
            queue
                .refute_enqueued("mail", json!({"args": {"to": "bob"}}))
                .await;
            assert_eq!(
                queue.enqueued::<Letter>("mail").await.unwrap(),
                [Letter {
                    to: "ada".into(),
                    copies: 0
                }]
            );

            let report = queue.run_due().await.unwrap();

            assert_eq!((report.runs.len(), report.completed()), (1, 1), "{report}");
            assert_eq!(
                (report.runs[0].key.as_str(), &report.runs[0].outcome),
                ("customer-7", &Outcome::Done)
            );
            queue.refute_enqueued("mail", json!({})).await;
            assert!(queue.run_due().await.unwrap().runs.is_empty());
        },
    )
    .await;
}

#[tokio::test]
#[should_panic(
    expected = "no job of the kind mail like {\"key\":\"b\"} waits; these wait: \n  {\"kind\":\"mail\""
)]
async fn an_assertion_that_fails_lists_what_waits() {
    let queue = TestQueue::in_memory(mail(0).1);
    queue.enqueue(letter("ada")).await.unwrap();
    queue.assert_enqueued("mail", json!({"key": "b"})).await;
}

#[tokio::test]
async fn retries_wait_for_their_time_which_can_be_moved() {
    both(
        || mail(1).1,
        async |queue| {
            queue.enqueue(letter("ada")).await.unwrap();

            let first = queue.run_due().await.unwrap();
            assert_eq!(
                (first.failed(), first.runs[0].error()),
                (1, Some("invalid digit found in string")),
                "{first}"
            );
            assert!(
                queue.run_due().await.unwrap().runs.is_empty(),
                "the retry is not due"
            );
            queue.assert_enqueued("mail", json!({})).await;
            queue.advance(Duration::from_secs(55)).await.unwrap();
            assert!(queue.run_due().await.unwrap().runs.is_empty(), "nor now");
            queue.advance(Duration::from_secs(6)).await.unwrap();

            assert_eq!(queue.run_due().await.unwrap().completed(), 1);
        },
    )
    .await;
}

#[tokio::test]
async fn draining_runs_retries_and_scheduled_jobs_to_their_end_by_the_kinds_own_policy() {
    both(
        || mail(9).1,
        async |queue| {
            let later = NewJob {
                run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
                ..letter("ada")
            };
            queue.enqueue(later).await.unwrap();

            let report = queue.drain().await.unwrap();

            let states: Vec<State> = report.runs.iter().map(|run| run.state).collect();
            assert_eq!(
                states,
                [State::Retryable, State::Retryable, State::Dead],
                "the kind allows three attempts: {report}"
            );
            assert!(queue.drain().await.unwrap().runs.is_empty());
        },
    )
    .await;
}

#[tokio::test]
async fn arguments_that_do_not_fit_make_a_job_dead_and_name_the_field() {
    both(
        || mail(0).1,
        async |queue| {
            for args in [
                json!({"to": 7}),
                json!({"copies": 1}),
                json!({"to": "ada", "copies": 4}),
                json!({"to": "nobody"}),
            ] {
                queue.enqueue(NewJob::new("mail", args)).await.unwrap();
            }

            let report = queue.drain().await.unwrap();

            let errors: Vec<&str> = report.runs.iter().filter_map(|run| run.error()).collect();
            assert_eq!(
                errors,
                [
                    "args/to: invalid type: integer `7`, expected a string",
                    "args/to: missing field `to`",
                    "args/copies: is 4; allowed is 0 to 3",
                    "there is no such address",
                ]
            );
            assert_eq!(report.dead(), 4);
        },
    )
    .await;
}

#[tokio::test]
async fn a_job_that_cannot_be_is_refused_by_the_same_field_with_a_database_and_without() {
    let day = Duration::from_secs(86_400);
    let jobs = || {
        [
            (
                "args",
                NewJob::new("mail", json!({"to": "x".repeat(300_000)})),
            ),
            ("args", NewJob::new("mail", json!({"to": ["\0"]}))),
            ("kind", NewJob::new("no-such", json!({}))),
            ("throttle", letter("ada").throttle("two words")),
            ("key", letter("ada").key("k".repeat(513))),
            ("key", letter("ada").key("\0")),
            ("priority", letter("ada").priority(9)),
            ("max_attempts", letter("ada").max_attempts(0)),
            ("unique_key", letter("ada").unique("")),
            ("unique_for", letter("ada").unique_for(day)),
            (
                "unique_for",
                letter("ada").unique("u").unique_for(367 * day),
            ),
            ("cost", letter("ada").cost(-1.0)),
            ("cost", letter("ada").cost(f64::NAN)),
            (
                "run_at",
                letter("ada").run_at("1969-12-31T00:00:00Z".parse().unwrap()),
            ),
            (
                "run_at",
                letter("ada").run_at("9000-01-01T00:00:00Z".parse().unwrap()),
            ),
            ("traceparent", letter("ada").traceparent("00-x")),
            ("timeout", letter("ada").timeout(Duration::ZERO)),
            ("timeout", letter("ada").timeout(Duration::from_nanos(1))),
            ("debounce", letter("ada").debounce(day)),
            (
                "debounce",
                letter("ada").unique("u").unique_for(day).debounce(day),
            ),
            (
                "debounce",
                letter("ada")
                    .unique("u")
                    .run_at("2030-01-01T00:00:00Z".parse().unwrap())
                    .debounce(day),
            ),
            ("debounce", letter("ada").unique("u").debounce(367 * day)),
            ("debounce_max", letter("ada").unique("u").debounce_max(day)),
            (
                "debounce_max",
                letter("ada")
                    .unique("u")
                    .debounce(2 * day)
                    .debounce_max(day),
            ),
            ("replace", letter("ada").replace()),
            (
                "replace",
                letter("ada").unique("u").unique_for(day).replace(),
            ),
        ]
    };
    both(
        || mail(0).1,
        async |queue| {
            for (wanted, job) in jobs() {
                let refused = queue.enqueue(job).await.unwrap_err();

                let Error::Refused { field, message } = refused else {
                    panic!("{wanted}: {refused}")
                };
                assert_eq!(field, wanted, "{message}");
            }
            queue.refute_enqueued("mail", json!({})).await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_job_that_replaces_takes_the_place_of_the_one_that_waits_and_follows_the_one_that_runs() {
    both(
        || mail(1).1,
        async |queue| {
            let first = queue
                .enqueue(letter("ada").unique("u").key("old"))
                .await
                .unwrap();
            assert_eq!(
                queue.enqueue(letter("eve").unique("u")).await.unwrap(),
                first,
                "a plain twin changes nothing"
            );

            let second = queue
                .enqueue(letter("bob").unique("u").replace())
                .await
                .unwrap();

            assert_eq!(second, first);
            queue
                .assert_enqueued(
                    "mail",
                    json!({"args": {"to": "bob"}, "key": "", "unique_key": "u"}),
                )
                .await;
            queue
                .refute_enqueued("mail", json!({"unique_key": "v"}))
                .await;
            assert_eq!(queue.enqueued::<Letter>("mail").await.unwrap().len(), 1);
            assert_eq!(queue.run_due().await.unwrap().failed(), 1);
            assert_eq!(
                queue
                    .enqueue(letter("cleo").unique("u").replace())
                    .await
                    .unwrap(),
                first,
                "it waits for its retry"
            );
            let report = queue.drain().await.unwrap();
            assert_eq!(
                report
                    .runs
                    .iter()
                    .map(|run| run.attempt)
                    .collect::<Vec<_>>(),
                [1, 2],
                "it begins anew: {report}"
            );
            assert_ne!(
                queue
                    .enqueue(letter("dan").unique("u").replace())
                    .await
                    .unwrap(),
                first,
                "the key is free"
            );
        },
    )
    .await;
}

#[tokio::test]
async fn a_job_that_waited_for_long_is_put_off_like_any_other_once_one_is_debounced() {
    both(
        || mail(0).1,
        async |queue| {
            let far_off = letter("ada")
                .unique("u")
                .run_at("2030-01-01T00:00:00Z".parse().unwrap());
            let first = queue.enqueue(far_off).await.unwrap();
            queue.advance(Duration::from_secs(3600)).await.unwrap();

            assert_eq!(
                queue
                    .enqueue(letter("bob").unique("u").debounce(Duration::from_secs(60)))
                    .await
                    .unwrap(),
                first
            );

            assert!(
                queue.run_due().await.unwrap().runs.is_empty(),
                "the hour before it was no row of debounced jobs"
            );
            queue.advance(Duration::from_secs(61)).await.unwrap();
            assert_eq!(queue.run_due().await.unwrap().runs.len(), 1);
        },
    )
    .await;
}

#[tokio::test]
async fn debounced_jobs_become_one_that_waits_for_quiet_but_not_for_ever() {
    let job = |to: &str| {
        letter(to)
            .unique("u")
            .debounce(Duration::from_secs(60))
            .debounce_max(Duration::from_secs(100))
    };
    both(
        || mail(0).1,
        async |queue| {
            let first = queue.enqueue(job("ada")).await.unwrap();
            queue.advance(Duration::from_secs(50)).await.unwrap();
            assert_eq!(queue.enqueue(job("bob")).await.unwrap(), first);
            queue.advance(Duration::from_secs(45)).await.unwrap();
            assert!(
                queue.run_due().await.unwrap().runs.is_empty(),
                "it was put off"
            );

            queue.enqueue(job("cleo")).await.unwrap();
            queue.advance(Duration::from_secs(6)).await.unwrap();

            let report = queue.run_due().await.unwrap();
            assert_eq!(
                (report.runs.len(), &report.runs[0].args["to"]),
                (1, &json!("cleo")),
                "after 100 seconds at the latest"
            );
        },
    )
    .await;
}

#[tokio::test]
#[should_panic(
    expected = "a queue does not store debounce of a job; match its unique_key or its run_at"
)]
async fn what_no_queue_keeps_cannot_be_asserted() {
    let queue = TestQueue::in_memory(mail(0).1);
    queue.refute_enqueued("mail", json!({"debounce": 5})).await;
}

#[tokio::test]
async fn jobs_that_jobs_make_are_run_and_unique_keys_hold() {
    let made = Arc::new(Mutex::new(None::<Arc<TestQueue>>));
    let mut kinds = mail(0).1;
    let there = made.clone();
    kinds.register_typed("newsletter", move |to: Vec<String>, _| {
        let queue = there.lock().unwrap().clone();
        async move {
            for one in to {
                queue
                    .as_ref()
                    .unwrap()
                    .enqueue(NewJob {
                        unique_key: Some(one.clone()),
                        ..letter(&one)
                    })
                    .await?;
            }
            Ok::<(), HandlerError>(())
        }
    });
    let queue = Arc::new(TestQueue::in_memory(kinds));
    *made.lock().unwrap() = Some(queue.clone());
    queue
        .enqueue(NewJob::new("newsletter", json!(["ada", "bob", "ada"])))
        .await
        .unwrap();

    let report = queue.run_due().await.unwrap();

    assert_eq!(
        (report.of("newsletter").len(), report.of("mail").len()),
        (1, 2),
        "{report}"
    );
    let refused = queue
        .enqueue(NewJob::new("no-such", json!({})))
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "kind: \"no-such\" is not a kind of this queue; known kinds: mail, newsletter"
    );
    *made.lock().unwrap() = None;
}

#[tokio::test]
async fn jobs_that_never_end_are_told_instead_of_run_for_ever() {
    let mut kinds = Kinds::default();
    kinds.register_typed("again", |(): (), _| async {
        Err::<(), _>(HandlerError::snooze(Duration::from_secs(3600)))
    });
    kinds.register_typed("throttled", |(): (), _| async {
        Err::<(), _>(HandlerError::throttled(None, "429"))
    });
    let queue = TestQueue::in_memory(kinds);
    queue
        .enqueue(NewJob::new("throttled", Value::Null))
        .await
        .unwrap();
    let once = queue.run_due().await.unwrap();
    assert_eq!((once.runs.len(), once.runs[0].state), (1, State::Ready));

    queue
        .enqueue(NewJob::new("again", Value::Null))
        .await
        .unwrap();
    assert!(matches!(queue.drain().await, Err(Error::Endless(_))));
}

#[tokio::test]
async fn what_a_transaction_enqueues_is_seen_inside_it_and_run_after_it() {
    let database = database().await;
    let queue = TestQueue::on(database.pool().clone(), mail(0).1)
        .await
        .unwrap();
    let mut transaction = database.pool().begin().await.unwrap();
    let enqueue = "select flyball.enqueue('mail', '{\"to\": \"ada\"}', key => 'a')";
    sqlx::query(enqueue)
        .execute(&mut *transaction)
        .await
        .unwrap();

    let inside = enqueued_in(&mut *transaction, "mail").await.unwrap();
    assert_eq!((inside.len(), inside[0].key.as_str()), (1, "a"));
    queue.refute_enqueued("mail", json!({})).await;
    transaction.commit().await.unwrap();

    assert_eq!(queue.run_due().await.unwrap().completed(), 1);
}

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
async fn a_runner_that_cannot_be_is_refused_with_the_reason_before_anything_is_touched() {
    let said = |built: anyhow::Result<Runner>| format!("{:#}", built.err().unwrap());
    let unreachable = || Runner::builder().database_url("postgres://nobody@127.0.0.1:1/none");

    let schedule = NewSchedule::new("nightly", "61 2 * * *", letter("ada"));
    let error = said(unreachable().cron(schedule).build().await);
    assert!(
        error.contains("the schedule \"nightly\"") && error.contains("minute: 61 is out of range"),
        "{error}"
    );
    let error = said(
        unreachable()
            .throttle("mail", [("rsp", json!(1))])
            .build()
            .await,
    );
    assert!(error.contains("rsp"), "{error}");
    let error = said(unreachable().concurrency(0).build().await);
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

// === The façade ===

#[test]
fn the_rooms_that_a_user_sees_are_those_of_the_table_in_the_architecture() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let library = read("src/lib.rs");
    let mut documented = std::collections::BTreeSet::new();
    let mut attribute = "";
    for line in library.lines() {
        match line.strip_prefix("pub mod ") {
            Some(module) => {
                let module = module.trim_end_matches(';').to_owned();
                let expected = ["#[warn(missing_docs)]", "#[doc(hidden)]"];
                assert!(
                    expected.contains(&attribute),
                    "{module} is neither part of the façade nor hidden"
                );
                if attribute == expected[0] {
                    documented.insert(module);
                }
            }
            None => attribute = line.trim(),
        }
    }

    let architecture = read("ARCHITECTURE.md");
    let section = architecture
        .split("### The façade of the library")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let told = section
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    assert_eq!(documented, told);
}
