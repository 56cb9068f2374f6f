//! The library as a program uses it: typed handlers, a runner of its own, and the queue for tests.

mod facade;
mod messages;
mod queue;
mod refusal;
mod runner;
mod unique;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::jobs::retry::Policy;
use flyball::jobs::{Context, HandlerError, Issue, Kinds, NewJob, TypedHandler};
use flyball::testing::TestQueue;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::database;

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Letter {
    to: String,
    #[serde(default)]
    copies: u32,
}

/// The number of failures before it sends.
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

/// The same properties in memory and on Postgres.
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
