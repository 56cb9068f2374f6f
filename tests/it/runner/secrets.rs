//! Secret arguments: at rest, with the handler, in errors, and with workers that lack the key.

use std::sync::Arc;

use flyball::jobs::secret::KEY_BYTES;
use flyball::jobs::{Context, Job, NewJob, Outcome, SecretKeys, State};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use super::fixture::{SOON, WorkerFixture, counter, quick};
use crate::support::eventually;

fn keys(byte: u8) -> SecretKeys {
    SecretKeys::parse(&SecretKeys::text_of(&[byte; KEY_BYTES])).unwrap()
}

/// A fixture whose queue has a key, and the arguments that the handler of the kind `charge` got.
async fn fixture() -> (WorkerFixture, Arc<Mutex<Vec<Value>>>) {
    let mut fixture = WorkerFixture::new().await;
    let queue = fixture.queue.clone();
    fixture.fixture.queue = queue.with_secret_keys(keys(1));
    let got: Arc<Mutex<Vec<Value>>> = Arc::default();
    let log = got.clone();
    fixture.kind("charge", move |job: Job, _: Context| {
        let error = format!("card {} declined", job.args["card"]);
        let is_bad = job.args["bad"] == json!(true);
        log.lock().push(job.args);
        async move {
            match is_bad {
                true => Outcome::Dead { error },
                false => Outcome::Done,
            }
        }
    });
    fixture.register("charge").await;
    (fixture, got)
}

fn charge(args: Value) -> NewJob {
    NewJob::new("charge", args).throttle("fast")
}

async fn at_rest(fixture: &WorkerFixture, id: i64) -> String {
    let read = sqlx::query_scalar("select args::text from flyball.job where id = $1").bind(id);
    read.fetch_one(&fixture.queue.pool).await.unwrap()
}

#[tokio::test]
async fn a_secret_is_encrypted_at_rest_and_only_its_handler_sees_it() {
    let (fixture, got) = fixture().await;
    let job = charge(json!({"card": {"$secret": "4111-1111"}, "bad": true, "order": 7}));
    let id = fixture.enqueue_many(job, 1).await[0];
    let stored = at_rest(&fixture, id).await;
    assert!(stored.contains(r#"{"$encrypted": "v1."#), "{stored}");
    assert!(!stored.contains("4111"), "{stored}");

    let worker = fixture.worker(quick()).await;
    fixture.until(id, State::Dead).await;

    assert_eq!(
        *got.lock(),
        [json!({"card": "4111-1111", "bad": true, "order": 7})]
    );
    let shown = fixture.queue.get(id).await.unwrap().unwrap();
    assert_eq!(
        shown.summary.last_error.as_deref(),
        Some("card \"[secret]\" declined")
    );
    assert_eq!(at_rest(&fixture, id).await, stored);
    let failures = fixture.queue.failures(None, 10).await.unwrap();
    assert!(!format!("{failures:?} {shown:?}").contains("4111"));
    worker.stop().await;
}

#[tokio::test]
async fn a_secret_that_comes_by_sql_in_plain_is_encrypted_before_its_job_runs() {
    let (fixture, got) = fixture().await;
    let sql = "select job_id from flyball.enqueue('charge', $1, throttle => 'fast')";
    let id: i64 = sqlx::query_scalar(sql)
        .bind(json!({"card": {"$secret": "4111-1111"}}))
        .fetch_one(&fixture.queue.pool)
        .await
        .unwrap();

    let worker = fixture.worker(quick()).await;
    fixture.until(id, State::Completed).await;

    assert_eq!(*got.lock(), [json!({"card": "4111-1111"})]);
    let stored = at_rest(&fixture, id).await;
    assert!(
        stored.contains("$encrypted") && !stored.contains("4111"),
        "{stored}"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_job_waits_without_using_an_attempt_until_a_worker_with_its_key_comes() {
    let (mut fixture, got) = fixture().await;
    let (plain_runs, run) = counter(Outcome::Done);
    fixture.kind("noop", run);
    let secret = charge(json!({"card": {"$secret": "4111-1111"}}));
    let id = fixture.enqueue_many(secret, 1).await[0];
    let queue = fixture.queue.clone();
    // A worker of which the key was turned over too early.
    fixture.fixture.queue = queue.clone().with_secret_keys(keys(2));
    let without = fixture.worker(quick()).await;
    fixture.enqueue("noop", "fast", "", 1).await;
    fixture.until_done(1).await;
    assert_eq!(plain_runs.load(std::sync::atomic::Ordering::SeqCst), 1);

    let key = keys(1);
    let need = format!("secret-key {}", key.ids().next().unwrap());
    let unserved = eventually("the job is counted as unserved", SOON, || async {
        queue.unserved().await.unwrap().into_iter().next()
    })
    .await;
    assert_eq!(unserved.needs, std::slice::from_ref(&need));
    assert_eq!(
        unserved.remedy,
        format!("no live worker serves {need}; add that key to FLYBALL_SECRET_KEYS of a worker")
    );

    let text = [2, 1].map(|byte| SecretKeys::text_of(&[byte; KEY_BYTES]));
    let both = SecretKeys::parse(&text.join(",")).unwrap();
    fixture.fixture.queue = queue.with_secret_keys(both);
    let with = fixture.worker(quick()).await;
    fixture.until(id, State::Completed).await;
    assert_eq!(*got.lock(), [json!({"card": "4111-1111"})]);
    let shown = fixture.queue.get(id).await.unwrap().unwrap();
    assert_eq!(shown.attempts.len(), 1);
    with.stop().await;
    without.stop().await;
}

#[tokio::test]
async fn a_secret_moved_into_a_job_of_another_kind_or_tenant_makes_a_dead_letter_that_says_so() {
    let (mut fixture, got) = fixture().await;
    fixture.kind("other", |_: Job, _: Context| async { Outcome::Done });
    fixture.register("other").await;
    let job = charge(json!({"card": {"$secret": "4111-1111"}}));
    let made = fixture
        .queue
        .enqueue_for("tenant:acme", "", std::slice::from_ref(&job))
        .await
        .unwrap();
    let stored: Value = serde_json::from_str(&at_rest(&fixture, made[0].id).await).unwrap();
    let moved = NewJob::new("other", stored.clone()).throttle("fast");
    let of_none = charge(stored);
    let dead = fixture.queue.enqueue(&[moved, of_none]).await.unwrap();

    let worker = fixture.worker(quick()).await;

    fixture.until(made[0].id, State::Completed).await;
    for one in &dead {
        fixture.until(one.id, State::Dead).await;
        let shown = fixture.queue.get(one.id).await.unwrap().unwrap();
        assert_eq!(
            shown.summary.last_error.as_deref(),
            Some(
                "args/card: cannot be decrypted: it was changed, or encrypted for another kind or tenant"
            )
        );
    }
    assert_eq!(got.lock().len(), 1, "the tenant's own job alone ran");
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_tells_which_keys_it_has_and_nothing_else_of_them() {
    let (fixture, _) = fixture().await;
    let worker = fixture
        .start(quick(), fixture.kinds.clone(), &mut Registry::default())
        .await;
    let live = fixture.queue.serving().await.unwrap();
    let own: Vec<&String> = live[0].capabilities.keys().collect();
    let key = keys(1);
    let id = key.ids().next().unwrap();
    assert_eq!(
        own,
        [&"secret-key any".to_owned(), &format!("secret-key {id}")]
    );
    worker.stop().await;
}
