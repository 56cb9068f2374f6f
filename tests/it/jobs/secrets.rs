//! Secret arguments at the interfaces of the queue, of groups and of schedules.

use std::time::Duration;

use flyball::cron::{NewSchedule, Schedules};
use flyball::jobs::secret::{KEY_BYTES, MASK};
use flyball::jobs::{Client, Error, NewGroup, NewJob, Queue, SecretKeys};
use serde_json::{Value, json};

use super::fixture::queue;
use crate::support::Database;

fn keys(bytes: &[u8]) -> SecretKeys {
    let texts: Vec<String> = bytes
        .iter()
        .map(|byte| SecretKeys::text_of(&[*byte; KEY_BYTES]))
        .collect();
    SecretKeys::parse(&texts.join(" ")).unwrap()
}

async fn keyed() -> (Database, Queue) {
    let (database, queue) = queue().await;
    for kind in ["charge", "http", "notification"] {
        sqlx::query("select flyball.register_kind($1)")
            .bind(kind)
            .execute(&queue.pool)
            .await
            .unwrap();
    }
    (database, queue.with_secret_keys(keys(&[1])))
}

fn charge() -> NewJob {
    NewJob::new("charge", json!({"card": {"$secret": "4111-1111"}}))
}

/// All arguments that the database holds, as text.
async fn everything(queue: &Queue) -> String {
    let sql = "select coalesce(string_agg(t, ' '), '') from (
        select args::text from flyball.job union all select args::text from flyball.cron
        union all select callback::text from flyball.job_group where callback is not null) a(t)";
    sqlx::query_scalar(sql)
        .fetch_one(&queue.pool)
        .await
        .unwrap()
}

fn refused(error: Error) -> (String, String) {
    match error {
        Error::Refused { field, message, .. } => (field, message),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn no_interface_of_a_program_stores_a_secret_in_plain() {
    let (_database, queue) = keyed().await;
    let bare = Queue::new(queue.pool.clone());
    let (field, message) = refused(bare.enqueue(&[charge()]).await.unwrap_err());
    assert_eq!(field, "args/card");
    assert!(message.contains("FLYBALL_SECRET_KEYS"), "{message}");
    let (field, _) = refused(Client.enqueue(&queue.pool, charge()).await.unwrap_err());
    assert_eq!(field, "args/card");
    let group = NewGroup::then(charge());
    let made = Client.create_group(&queue.pool, &group).await;
    assert_eq!(refused(made.unwrap_err()).0, "callback.args/card");
    let mail = NewJob::new(
        "notification",
        json!({"to": {"$secret": "ada@example.com"}}),
    );
    let (field, message) = refused(queue.enqueue(&[mail]).await.unwrap_err());
    assert_eq!(field, "args/to");
    assert!(message.contains("the kind notification"), "{message}");
    assert_eq!(everything(&queue).await, "");

    let encrypted = charge().encrypted(queue.secret_keys()).unwrap();
    Client.enqueue(&queue.pool, encrypted).await.unwrap();
    queue.enqueue(&[charge(), charge()]).await.unwrap();
    queue
        .enqueue_for("tenant:acme", "", &[charge()])
        .await
        .unwrap();
    let group = NewGroup::then(charge()).jobs(vec![charge()]);
    queue
        .create_group_for("tenant:acme", "", &group)
        .await
        .unwrap();
    let stored = everything(&queue).await;
    assert_eq!(stored.matches("$encrypted").count(), 6, "{stored}");
    assert!(
        !stored.contains("4111") && !stored.contains("$secret"),
        "{stored}"
    );
}

#[tokio::test]
async fn a_group_and_a_schedule_are_shown_without_their_secrets() {
    let (_database, queue) = keyed().await;
    let headers =
        json!({"headers": {"authorization": "Bearer x", "x-a": {"$secret": "4111-1111"}}});
    let callback = NewJob::new("http", headers);
    let group = NewGroup::then(callback)
        .encrypted(queue.secret_keys())
        .unwrap();
    let id = Client.create_group(&queue.pool, &group).await.unwrap().id;
    let shown = queue.group(id, None).await.unwrap().unwrap();
    assert_eq!(
        shown.callback.unwrap()["args"]["headers"],
        json!({"authorization": "***", "x-a": MASK})
    );
    let sql = "select flyball.schedule('nightly', '0 2 * * *', 'charge', $1)";
    sqlx::query(sql)
        .bind(json!({"card": {"$secret": "4111-1111"}}))
        .execute(&queue.pool)
        .await
        .unwrap();
    let shown = Schedules::of(&queue).get("nightly").await.unwrap().unwrap();
    assert_eq!(shown.args, json!({"card": MASK}));
}

#[tokio::test]
async fn a_schedule_declared_again_keeps_what_is_encrypted_until_its_key_is_replaced() {
    let (_database, queue) = keyed().await;
    let declare = async |queue: &Queue, job: NewJob| {
        let schedule = NewSchedule::new("nightly", "0 2 * * *", job);
        Schedules::of(queue).set(&schedule).await.unwrap();
        let sql = "select args from flyball.cron";
        let args: Value = sqlx::query_scalar(sql)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        args
    };
    let first = declare(&queue, charge()).await;
    assert!(!first.to_string().contains("4111"), "{first:?}");
    assert_eq!(declare(&queue, charge()).await, first);

    let other = NewJob::new("charge", json!({"card": {"$secret": "5500-0000"}}));
    assert_ne!(declare(&queue, other).await, first);

    let second = declare(&queue, charge()).await;
    let turned = queue.clone().with_secret_keys(keys(&[2, 1]));
    let third = declare(&turned, charge()).await;
    assert_ne!(third, second);
    let mut args = third;
    keys(&[2]).decrypt("charge", "", &mut args).unwrap();
    assert_eq!(args, json!({"card": "4111-1111"}));
}

#[tokio::test]
async fn a_value_that_is_marked_later_is_encrypted_although_it_is_the_same() {
    let (_database, queue) = keyed().await;
    let schedules = Schedules::of(&queue);
    let plain = NewJob::new("charge", json!({"card": "4111-1111"}));
    for job in [plain, charge()] {
        let schedule = NewSchedule::new("nightly", "0 2 * * *", job);
        schedules.set(&schedule).await.unwrap();
    }

    let stored = everything(&queue).await;
    assert!(
        stored.contains("$encrypted") && !stored.contains("4111"),
        "{stored}"
    );
    let shown = schedules.get("nightly").await.unwrap().unwrap();
    assert_eq!(shown.args, json!({"card": MASK}));
}

#[tokio::test]
async fn keys_that_jobs_to_come_need_are_found() {
    let (_database, queue) = keyed().await;
    let id = queue.secret_keys().ids().next().unwrap().to_owned();
    assert_eq!(queue.needed_keys().await.unwrap(), []);
    let later = charge().run_in(Duration::from_secs(3600));
    queue.enqueue(&[later, charge()]).await.unwrap();
    let schedule = NewSchedule::new("nightly", "0 2 * * *", charge());
    Schedules::of(&queue).set(&schedule).await.unwrap();

    let needed = queue.needed_keys().await.unwrap();

    assert_eq!(needed.len(), 1, "{needed:?}");
    assert_eq!((&needed[0].id, needed[0].values), (&id, 2));
    assert_eq!(needed[0].example, "schedule nightly");
}

#[tokio::test]
async fn a_job_with_a_secret_is_replaced_and_unique_like_any_other() {
    let (_database, queue) = keyed().await;
    let unique = || charge().unique("order-7");
    let first = queue.enqueue(&[unique()]).await.unwrap()[0];
    let again = queue.enqueue(&[unique()]).await.unwrap()[0];
    assert_eq!((again.id, again.duplicate), (first.id, true));
    let next = NewJob::new("charge", json!({"card": {"$secret": "5500-0000"}}));
    let replaced = queue
        .enqueue(&[next.unique("order-7").replace()])
        .await
        .unwrap()[0];
    assert!(replaced.replaced);
    let mut args = queue.get(replaced.id).await.unwrap().unwrap().args;
    queue
        .secret_keys()
        .decrypt("charge", "", &mut args)
        .unwrap();
    assert_eq!(args, json!({"card": "5500-0000"}));
}
