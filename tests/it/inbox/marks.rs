//! Marks and the publications that tell of them.

use flyball::inbox::Inbox;
use flyball::inbox::request::{MarkRequest, MarkTarget};
use serde_json::{Value, json};
use sqlx::Executor as _;

use crate::support::{Database, database};

/// The publications of a tenant that may wait.
const LINE: i64 = 1000;

/// An inbox of ten messages, without anybody who collects what is published.
async fn filled() -> (Database, Inbox) {
    let database = database().await;
    let fill = "insert into flyball.inbox_message (tenant, recipient, job_id, category, body, data)
        select 'acme', 'ada', n, 'product', 'b', '{}' from generate_series(1, 10) n;
        insert into flyball.inbox_count values ('acme', 'ada', 10, 10)";
    database.pool().execute(fill).await.unwrap();
    let inbox = Inbox::new(database.pool());
    (database, inbox)
}

async fn mark(inbox: &Inbox, ids: &[i64], mark: &'static str, waiting_max: i64) {
    let asked = MarkRequest {
        target: MarkTarget::Ids(ids.to_vec()),
        mark,
    };
    inbox
        .mark("acme", "ada", &asked, waiting_max)
        .await
        .unwrap();
}

/// Returns what waits to be told, without the counts.
async fn told(database: &Database) -> Vec<Value> {
    let sql = "select p.data - '{type,unseen,unread}'::text[] from flyball.publication p where p.channel = '$inbox/ada' order by p.id";
    sqlx::query_scalar(sql)
        .fetch_all(database.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn however_often_an_inbox_is_marked_one_publication_of_it_waits() {
    let (database, inbox) = filled().await;
    for id in 1..=3 {
        mark(&inbox, &[id], "read", LINE).await;
    }
    let all = json!({"as": "read", "ids": ["1", "2", "3"], "all_up_to": null});
    assert_eq!(told(&database).await, [all]);

    for _ in 0..20 {
        mark(&inbox, &[1], "unread", LINE).await;
        mark(&inbox, &[1], "read", LINE).await;
    }
    let several = json!({"as": null, "ids": null, "all_up_to": null});
    assert_eq!(told(&database).await, [several]);
    let counts: (i64, i64) = sqlx::query_as(
        "select (data ->> 'unseen')::bigint, (data ->> 'unread')::bigint from flyball.publication",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert_eq!(counts, (7, 7), "those of the last mark");
}

#[tokio::test]
async fn beyond_the_delay_line_a_mark_is_made_and_not_told() {
    let (database, inbox) = filled().await;
    let flood = "insert into flyball.publication (tenant, channel, data) select 'acme', 'flood', '1' from generate_series(1, 5)";
    database.pool().execute(flood).await.unwrap();
    mark(&inbox, &[1], "read", 5).await;
    assert!(told(&database).await.is_empty());
    let counts = inbox.counts("acme", "ada").await.unwrap();
    assert_eq!((counts.unseen, counts.unread), (9, 9));
    mark(&inbox, &[2], "read", 6).await;
    assert_eq!(told(&database).await.len(), 1);
}

#[tokio::test]
async fn a_mark_in_a_transaction_that_lasts_takes_no_place_of_another() {
    let (database, inbox) = filled().await;
    mark(&inbox, &[1], "read", LINE).await;
    let mut transaction = database.pool().begin().await.unwrap();
    for statement in [
        "select flyball.as_tenant('acme')",
        "select flyball.mark_inbox('ada', 'read', ids => '{2}')",
    ] {
        transaction.execute(statement).await.unwrap();
    }
    // A collector is not held up by the open transaction.
    let moved = database
        .pool()
        .execute("delete from flyball.publication")
        .await
        .unwrap();
    assert_eq!(moved.rows_affected(), 1);
    transaction.commit().await.unwrap();
    assert_eq!(told(&database).await.len(), 1);
}

#[tokio::test]
async fn what_one_text_cannot_say_is_not_named() {
    let (database, _inbox) = filled().await;
    let mut transaction = database.pool().begin().await.unwrap();
    for statement in [
        "select flyball.as_tenant('acme')",
        "select flyball.mark_inbox('ada', 'seen', up_to => 4)",
        "select flyball.mark_inbox('ada', 'read', up_to => 9, up_to_time => now() + interval '1 day')",
        "select flyball.mark_inbox('ada', 'archived', up_to_time => 'infinity')",
    ] {
        transaction.execute(statement).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let several = json!({"as": null, "ids": null, "all_up_to": null});
    assert_eq!(
        told(&database).await,
        [
            json!({"as": "seen", "ids": null, "all_up_to": "4"}),
            several.clone(),
            several
        ]
    );
}
