//! An inbox that a transaction has locked, and a message that cannot be written, delay no other.

use flyball::inbox::Inbox;
use flyball::inbox::postgres::{InboxDelivery, NewInboxMessage};
use serde_json::json;
use sqlx::Executor as _;

use super::fixture::{InboxFixture, SOON, with_jobs};

const LOCK: &str = "select from flyball.inbox_count where recipient = 'ada' for update";

fn message(job_id: i64, recipient: &str, body: &str) -> NewInboxMessage {
    NewInboxMessage {
        job_id,
        recipient: recipient.to_owned(),
        subject: None,
        body: body.to_owned(),
    }
}

#[tokio::test]
async fn a_locked_inbox_delays_the_messages_of_no_other() {
    let (database, ids) = with_jobs(4).await;
    let inbox = Inbox::new(database.pool());
    for (job_id, recipient) in [(ids[0], "ada"), (ids[1], "bob")] {
        let kept = inbox.deliver(message(job_id, recipient, "first")).await;
        assert_eq!(kept.unwrap(), InboxDelivery::Kept);
    }
    let mut transaction = database.pool().begin().await.unwrap();
    transaction.execute(LOCK).await.unwrap();

    let both = async {
        tokio::join!(
            inbox.deliver(message(ids[2], "ada", "second")),
            inbox.deliver(message(ids[3], "bob", "second")),
        )
    };
    let both = tokio::time::timeout(SOON, both).await;
    let (ada, bob) = both.expect("nobody waits for the transaction");
    assert_eq!(
        (ada.unwrap(), bob.unwrap()),
        (InboxDelivery::Locked, InboxDelivery::Kept)
    );
    // Nor are the messages of others kept for longer.
    let old = "update flyball.inbox_message set created_at = now() - interval '91 days' where body = 'first'";
    database.pool().execute(old).await.unwrap();
    let pruned = tokio::time::timeout(SOON, inbox.prune(90)).await;
    assert_eq!(pruned.expect("nor do these").unwrap(), 1);

    transaction.rollback().await.unwrap();
    let ada = inbox.deliver(message(ids[2], "ada", "second")).await;
    assert_eq!(ada.unwrap(), InboxDelivery::Kept);
    assert_eq!(inbox.prune(90).await.unwrap(), 1);
    for recipient in ["ada", "bob"] {
        let counts = inbox.counts("", recipient).await.unwrap();
        assert_eq!((counts.unseen, counts.unread), (1, 1), "{recipient}");
    }
}

/// On one thread both go in one transaction.
#[tokio::test]
async fn messages_that_are_written_together_are_in_the_order_in_which_they_were_sent() {
    let (database, mut ids) = with_jobs(2).await;
    ids.sort_unstable();
    let inbox = Inbox::new(database.pool());
    let (second, first) = tokio::join!(
        inbox.deliver(message(ids[1], "ada", "second")),
        inbox.deliver(message(ids[0], "ada", "first")),
    );
    let kept = InboxDelivery::Kept;
    assert_eq!((first.unwrap(), second.unwrap()), (kept, kept));
    let texts: Vec<String> =
        sqlx::query_scalar("select body from flyball.inbox_message order by id")
            .fetch_all(database.pool())
            .await
            .unwrap();
    assert_eq!(texts, ["first", "second"]);
}

/// On one thread all three go in one transaction.
#[tokio::test]
async fn a_message_that_cannot_be_written_fails_alone() {
    let (database, ids) = with_jobs(3).await;
    let inbox = Inbox::new(database.pool());
    let (one, wrong, other) = tokio::join!(
        inbox.deliver(message(ids[0], "ada", "x")),
        inbox.deliver(message(ids[1], "bob", "\0")),
        inbox.deliver(message(ids[2], "eve", "x")),
    );
    assert!(wrong.is_err(), "{wrong:?}");
    assert_eq!(
        (one.unwrap(), other.unwrap()),
        (InboxDelivery::Kept, InboxDelivery::Kept)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_for_a_locked_inbox_is_delivered_once_it_is_free() {
    let inbox = InboxFixture::start().await;
    let first = inbox.send("acme", "ada", json!({})).await;
    inbox.until(first, "delivered").await;
    let mut transaction = inbox.program.database.pool().begin().await.unwrap();
    transaction.execute(LOCK).await.unwrap();
    let held = inbox.send("acme", "ada", json!({})).await;
    for recipient in ["bob", "eve"] {
        let free = inbox.send("zeta", recipient, json!({})).await;
        inbox.inbox("zeta", recipient, 1).await;
        assert!(free > held);
    }
    transaction.rollback().await.unwrap();
    inbox.until(held, "delivered").await;
    inbox.inbox("acme", "ada", 2).await;
    inbox.program.stop().await;
}
