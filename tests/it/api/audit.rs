//! The audit log and requests that end early.

use std::time::Duration;

use flyball::api::AuditEntry;
use flyball::api::audit::log::note;
use flyball::api::postgres::read_audit;
use flyball::jobs::Queue;

use crate::support::{database, eventually};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_change_is_written_although_the_client_that_made_it_is_gone() {
    let database = database().await;
    let queue = Queue::new(database.pool());
    let (actor, subject) = ("ann".to_owned(), "emails".to_owned());
    let entry = AuditEntry::now(actor, "throttle.set", subject, String::new());

    // As a request is dropped whose connection has closed.
    let dropped = tokio::time::timeout(Duration::ZERO, note(&queue, &entry)).await;

    assert!(dropped.is_err(), "{dropped:?}");
    let written = eventually("the entry", SOON, || async {
        let entries = read_audit(&queue.pool, None, 10).await.ok()?;
        entries.into_iter().find(|one| one.subject == "emails")
    })
    .await;
    assert_eq!(written.actor, "ann");
}
