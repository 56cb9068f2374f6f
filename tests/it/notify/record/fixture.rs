//! A store of messages, with attempts and events to write to it.

use std::time::Duration;

use flyball::jobs::{NewJob, Queue};
use flyball::notify::{
    Attempt, BeginRequest, BegunDelivery, Deliveries, DeliveryState, DeliveryUpdate, EventReport,
};
use flyball::providers::{Channel, EventKind, ProviderEvent, Recipient};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor, Row};

use crate::support::{Database, database};

pub const HOUR: Duration = Duration::from_secs(3600);

pub async fn store() -> (Database, Queue, Deliveries) {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, Duration::from_secs(20))
        .await
        .unwrap();
    let deliveries = Deliveries::new(queue.pool.clone());
    (database, queue, deliveries)
}

pub fn args(to: &str) -> Value {
    json!({"channel": "email", "to": to, "body": "hello"})
}

pub fn message(to: &str) -> NewJob {
    NewJob::new("notification", args(to)).throttle("mail")
}

pub async fn enqueue_one(queue: &Queue, job: NewJob) -> i64 {
    queue.enqueue(&[job]).await.unwrap()[0].id
}

pub fn attempt(account: &str, outcome: &'static str, at_ms: i64) -> Attempt {
    Attempt {
        at: Timestamp::from_millisecond(1_700_000_000_000 + at_ms).unwrap(),
        account: account.into(),
        outcome,
        status: "202".into(),
        reason: String::new(),
        took: Duration::from_millis(12),
    }
}

pub fn mail(to: &str) -> Recipient {
    Recipient::parse(Channel::Email, to).unwrap()
}

pub fn sent(job_id: i64, to: &str) -> DeliveryUpdate {
    DeliveryUpdate {
        job_id,
        channel: Channel::Email,
        pool: "mail".into(),
        provider: "sendgrid",
        account: Some("a1".into()),
        state: DeliveryState::Sent,
        provider_id: Some(format!("p{job_id}")),
        recipient: Some(mail(to)),
        category: String::new(),
        attempts: vec![attempt("a1", "accepted", job_id & 0xffff)],
        suppress: None,
        met: None,
    }
}

pub fn event(
    event_id: &str,
    job_id: i64,
    event_type: EventKind,
    recipient: Option<&str>,
) -> ProviderEvent {
    ProviderEvent {
        event_id: event_id.into(),
        provider_id: format!("p{job_id}"),
        event_type,
        recipient: recipient.map(str::to_owned),
        at_s: 1_700_000_000,
        reason: format!("said {}", event_type.as_str()),
    }
}

pub fn notice(events: Vec<ProviderEvent>) -> EventReport {
    EventReport {
        pool: "mail".into(),
        account: "a1".into(),
        channel: Channel::Email,
        events,
    }
}

pub async fn record_events(deliveries: &Deliveries, events: Vec<ProviderEvent>) -> u64 {
    deliveries
        .record_events(notice(events))
        .await
        .unwrap()
        .iter()
        .map(|(_, count)| count)
        .sum()
}

pub async fn begun(deliveries: &Deliveries, job_id: i64, to: &str) -> BegunDelivery {
    deliveries
        .begin(BeginRequest {
            job_id,
            channel: Channel::Email,
            recipient: Some(mail(to)),
        })
        .await
        .unwrap()
}

pub async fn seen(database: &Database, job_id: i64) -> (String, String, i32, Value) {
    let row = sqlx::query(
        "select state, reason, attempt_count, attempts from flyball.notification where job_id = $1",
    )
    .bind(job_id)
    .fetch_one(database.pool())
    .await
    .unwrap();
    (
        row.get("state"),
        row.get("reason"),
        row.get("attempt_count"),
        row.get("attempts"),
    )
}

pub async fn state(database: &Database, job_id: i64) -> String {
    seen(database, job_id).await.0
}

pub async fn tally(database: &Database) -> (i64, i64, i64, i64, i64) {
    sqlx::query_as(
        "select coalesce(sum(accepted), 0)::bigint, coalesce(sum(delivered), 0)::bigint, coalesce(sum(bounced), 0)::bigint,
             coalesce(sum(complained), 0)::bigint, coalesce(sum(unsubscribed), 0)::bigint
         from flyball.account_tally where pool = 'mail' and account = 'a1'",
    )
    .fetch_one(database.pool())
    .await
    .unwrap()
}

pub async fn run(database: &Database, sql: &str) {
    database
        .pool()
        .execute(AssertSqlSafe(sql.to_owned()))
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Moves the enqueueing time of all messages back by `ago`.
pub async fn grow_older(database: &Database, ago: &str) {
    run(
        database,
        &format!("update flyball.job set created_at = created_at - interval '{ago}'"),
    )
    .await;
}
