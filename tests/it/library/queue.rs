//! The queue for tests: assertions, retry times, and jobs created by jobs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::{
    Client, Context, HandlerError, Job, Kinds, NewGroup, NewJob, OnAmbiguous, Outcome, State,
};
use flyball::testing::{Error, TestQueue, enqueued_in};
use serde_json::{Value, json};

use super::{Letter, both, letter, mail};
use crate::support::database;

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
async fn jobs_that_never_end_are_reported_instead_of_run_for_ever() {
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
async fn a_group_runs_its_callback_in_a_test_on_a_database() {
    let counts = Arc::new(Mutex::new(Vec::new()));
    let mut kinds = mail(0).1;
    let seen = counts.clone();
    kinds.register_fn("report", move |job: Job, _: Context| {
        seen.lock().unwrap().push(job.args["group"].clone());
        async { Outcome::Done }
    });
    let database = database().await;
    let queue = TestQueue::on(database.pool().clone(), kinds).await.unwrap();
    let group = NewGroup::then(NewJob::new("report", json!({}))).jobs(vec![
        letter("ada"),
        letter("bob"),
        letter("nobody").max_attempts(1),
    ]);
    let group = Client.create_group(database.pool(), &group).await.unwrap();

    let report = queue.drain().await.unwrap();

    assert_eq!(report.runs.len(), 4, "{report}");
    assert_eq!(
        *counts.lock().unwrap(),
        [json!({"id": group.id, "name": "", "jobs": 3, "completed": 2, "dead": 1, "cancelled": 0})]
    );
}

#[tokio::test]
async fn work_that_was_handed_over_and_timed_out_goes_the_way_of_its_policy() {
    let over = |policy: OnAmbiguous| {
        move |_: Job, context: Context| async move {
            context.hand_over(policy);
            std::future::pending::<Outcome>().await
        }
    };
    let mut kinds = Kinds::default();
    kinds.register_fn("once", over(OnAmbiguous::Dead));
    kinds.register_fn("twice", over(OnAmbiguous::Retry));
    let queue = TestQueue::in_memory(kinds);
    for kind in ["once", "twice"] {
        // Real time: an attempt takes its timeout.
        let job = NewJob::new(kind, json!({})).timeout(Duration::from_millis(20));
        queue.enqueue(job).await.unwrap();
    }

    let report = queue.run_due().await.unwrap();

    let states: Vec<State> = report.runs.iter().map(|run| run.state).collect();
    assert_eq!(states, [State::Dead, State::Retryable], "{report}");
    let ambiguous = |outcome: &Outcome| matches!(outcome, Outcome::Ambiguous { .. });
    assert!(
        report.runs.iter().all(|run| ambiguous(&run.outcome)),
        "{report}"
    );
}
