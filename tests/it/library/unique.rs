//! Jobs with a unique key in a queue for tests: replaced, debounced, postponed.

use std::time::Duration;

use serde_json::json;

use super::{Letter, both, letter, mail};

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
