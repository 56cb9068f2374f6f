//! Large inboxes, retention, and erasing.

use flyball::inbox::postgres::{InboxDelivery, NewInboxMessage};
use flyball::inbox::request::{MARKS, MarkRequest, MarkTarget, PageRequest};
use flyball::inbox::{INBOX_STATEMENTS, Inbox, InboxCounts};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor as _};

use super::fixture::{InboxFixture, counts, with_jobs};
use crate::support::{Database, database};

/// Puts messages into the inbox of one recipient beside those of a thousand others.
async fn fill(messages: i64) -> Database {
    let database = database().await;
    let fill = format!(
        "insert into flyball.inbox_message (tenant, recipient, job_id, category, body, data)
         select 'acme', 'ada', n, 'product', 'b', '{{}}' from generate_series(1, {messages}) n;
         insert into flyball.inbox_count values ('acme', 'ada', {messages}, {messages});
         insert into flyball.inbox_message (tenant, recipient, job_id, category, body, data)
         select 'acme', 'r' || n % 1000, {messages} + n, 'product', 'b', '{{}}' from generate_series(1, 10000) n;
         insert into flyball.inbox_count select 'acme', 'r' || n, 10, 10 from generate_series(0, 999) n;
         analyze flyball.inbox_message; analyze flyball.inbox_count"
    );
    database.pool().execute(AssertSqlSafe(fill)).await.unwrap();
    database
}

/// Returns the plan of a statement with its rows.
async fn plan(database: &Database, statement: &str) -> String {
    let explain = format!("explain (analyze, timing off, summary off, costs off) {statement}");
    let mut connection = database.pool().acquire().await.unwrap();
    connection
        .execute("set enable_seqscan = off")
        .await
        .unwrap();
    let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain))
        .fetch_all(&mut *connection)
        .await
        .unwrap();
    lines.join("\n")
}

#[tokio::test]
async fn a_hundred_thousand_messages_are_counted_by_one_row_and_listed_by_an_index() {
    let database = fill(100_000).await;
    let (_, counting) = INBOX_STATEMENTS
        .iter()
        .find(|(name, _)| *name == "inbox: counts")
        .unwrap();
    let statement = counting.replace("$1", "'acme'").replace("$2", "'ada'");
    let counted = plan(&database, &statement).await;
    assert!(
        counted.contains("Index Scan using inbox_count_pkey") && counted.contains("rows=1 "),
        "{counted}"
    );
    assert!(!counted.contains("inbox_message"), "{counted}");
    for filter in [
        "m.archived_at is null",
        "m.read_at is null and m.archived_at is null",
        "m.seen_at is null and m.archived_at is null",
        "m.archived_at is not null",
    ] {
        for recipient in ["ada", "r7"] {
            // The query of `flyball.inbox_page`.
            let query = format!(
                "select m.* from flyball.inbox_message m where m.tenant = 'acme' and m.recipient = '{recipient}'
                 and m.id < 99000 and {filter} order by m.id desc limit 50"
            );
            let listed = plan(&database, &query).await;
            let mut conditions = listed.lines().filter(|line| line.contains("Index Cond"));
            assert!(
                listed.contains("Index Scan Backward")
                    && listed.contains("Index Cond")
                    && !listed.contains("Sort"),
                "{listed}"
            );
            assert!(conditions.all(|line| line.contains(recipient)), "{listed}");
        }
    }
    let inbox = Inbox::new(database.pool());
    let page = inbox
        .page("acme", "ada", &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(
        (page.messages.len(), page.messages[0].id.as_str()),
        (50, "100000")
    );
    // Marking goes on in steps until all are marked.
    let asked = MarkRequest {
        target: MarkTarget::UpToId(25_000),
        mark: "seen",
    };
    let marked = inbox.mark("acme", "ada", &asked, 1000).await.unwrap();
    let left = InboxCounts {
        unseen: 75_000,
        unread: 100_000,
    };
    assert_eq!((marked.changed, marked.counts), (25_000, left));
    assert_eq!(inbox.counts("acme", "ada").await.unwrap(), left);
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_exact_whatever_happens_at_the_same_time() {
    let (database, ids) = with_jobs(400).await;
    let inbox = Inbox::new(database.pool());
    let write = async |from: usize| {
        for (n, job_id) in ids.iter().enumerate().skip(from).step_by(4) {
            let new = NewInboxMessage {
                job_id: *job_id,
                recipient: format!("r{}", n % 3),
                subject: None,
                body: n.to_string(),
            };
            assert_eq!(inbox.deliver(new).await.unwrap(), InboxDelivery::Kept);
        }
    };
    let mark = async {
        for n in 0..100 {
            let asked = MarkRequest {
                target: MarkTarget::UpToId(1 + 4 * n),
                mark: MARKS[n as usize % MARKS.len()],
            };
            let recipient = format!("r{}", n % 3);
            inbox.mark("", &recipient, &asked, 1000).await.unwrap();
        }
    };
    let maintenance = async {
        for n in 0..30 {
            // Whatever changes messages locks the counts of their inboxes first.
            let old = format!(
                "do $$ begin
                    perform from flyball.inbox_count order by recipient for update;
                    update flyball.inbox_message set created_at = now() - interval '91 days' where id % 30 = {n};
                end $$"
            );
            database.pool().execute(AssertSqlSafe(old)).await.unwrap();
            inbox.prune(90).await.unwrap();
            if n % 10 == 9 {
                let erase = database
                    .pool()
                    .execute("select flyball.delete_recipient('r0')");
                erase.await.unwrap();
            }
        }
    };
    tokio::join!(write(0), write(1), write(2), write(3), mark, maintenance);
    let differences: i64 = sqlx::query_scalar(
        "select count(*) from flyball.inbox_count c
         full join (
            select recipient, count(*) filter (where seen_at is null and archived_at is null) as unseen,
                count(*) filter (where read_at is null and archived_at is null) as unread
            from flyball.inbox_message group by recipient
         ) m on m.recipient = c.recipient
         where c.unseen is distinct from coalesce(m.unseen, 0) or c.unread is distinct from coalesce(m.unread, 0)",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert_eq!(differences, 0);
}

#[tokio::test]
async fn a_page_is_short_before_it_is_too_large_for_a_frame() {
    let database = database().await;
    let fill = "insert into flyball.inbox_message (tenant, recipient, job_id, category, body, data)
        select 'acme', 'ada', n, 'product', repeat('x', 16384), '{}' from generate_series(1, 40) n";
    database.pool().execute(fill).await.unwrap();
    let inbox = Inbox::new(database.pool());
    let (mut before, mut seen, mut pages) = (None, 0, 0);
    loop {
        let asked = PageRequest {
            before,
            limit: 100,
            ..PageRequest::default()
        };
        let page = inbox.page("acme", "ada", &asked).await.unwrap();
        let bytes = serde_json::to_vec(&page.messages).unwrap().len();
        assert!(bytes <= 257 * 1024, "{bytes}");
        seen += page.messages.len();
        pages += 1;
        match page.next {
            Some(next) => before = next.parse().ok(),
            None => break,
        }
    }
    assert_eq!((seen, pages), (40, 3), "all of them, once");
}

#[tokio::test]
async fn messages_whose_time_is_over_go_and_no_longer_count() {
    let database = fill(100).await;
    let old = "update flyball.inbox_message set created_at = now() - interval '91 days' where id <= 40 and recipient = 'ada';
        select * from flyball.mark_inbox_messages('acme', 'ada', 'seen', '{1,2,3}', null, null, 100, null);
        select * from flyball.mark_inbox_messages('acme', 'ada', 'archived', '{4}', null, null, 100, null)";
    database.pool().execute(old).await.unwrap();
    let inbox = Inbox::new(database.pool());
    assert_eq!(inbox.prune(90).await.unwrap(), 40);
    let left = InboxCounts {
        unseen: 60,
        unread: 60,
    };
    assert_eq!(inbox.counts("acme", "ada").await.unwrap(), left);
    assert_eq!(inbox.prune(90).await.unwrap(), 0);
}

/// Returns the frame that resumes an inbox after a message.
fn resumed(last: &Value) -> Value {
    let since = json!({"epoch": last["epoch"], "offset": last["offset"]});
    json!({"type": "subscribe", "channel": "$inbox", "since": since})
}

#[tokio::test(flavor = "multi_thread")]
async fn erasing_a_recipient_erases_its_inbox_and_what_its_channel_keeps() {
    let inbox = InboxFixture::start().await;
    let mut device = inbox.device("acme", "ada").await;
    for recipient in ["ada", "ada", "bob"] {
        inbox.send("acme", recipient, json!({})).await;
    }
    inbox.inbox("acme", "bob", 1).await;
    let messages = inbox.inbox("acme", "ada", 2).await;
    let first = device.next_of("message").await;
    device.next_of("message").await;
    let path = "/api/v1/recipients/ada/inbox/mark";
    let mark = json!({"ids": [messages[0]["id"]], "as": "archived"});
    inbox.ask("acme", Method::POST, path, Some(&mark)).await;
    let last = device.next_of("message").await;
    let (status, erased) = inbox
        .ask("acme", Method::DELETE, "/api/v1/recipients/ada", None)
        .await;
    assert_eq!((status, &erased["inbox"]), (200, &json!(2)));
    let told = device.next_of("gap").await;
    assert_eq!(told["channel"], "$inbox/ada");
    let kept = "select (select count(*) from flyball.inbox_message where recipient = 'ada')
        + (select count(*) from flyball.channel_message where channel = '$inbox/ada')
        + (select count(*) from flyball.publication where channel = '$inbox/ada')
        + (select count(*) from flyball.inbox_count where recipient = 'ada')";
    assert_eq!(inbox.count(kept).await, 0);
    inbox.inbox("acme", "bob", 1).await;

    // A device that was there before cannot recover what is gone, also if it has all of that and must
    // forget it; it gets what is new.
    let mut device = inbox.device("acme", "ada").await;
    for had in [&first, &last] {
        device.send(&resumed(had)).await;
        let answer = device.next_of("subscribed").await;
        assert_eq!(answer["recovered"], json!(false), "{had}");
    }
    inbox.send("acme", "ada", json!({"body": "new"})).await;
    let told = device.next_of("message").await;
    assert_eq!(told["data"]["message"]["body"], "new");
    assert_eq!(counts(&told["data"]), (1, 1));
    device.send(&resumed(&told)).await;
    let answer = device.next_of("subscribed").await;
    assert_eq!(answer["recovered"], json!(true));

    // The name of the channel is forgotten with the next round, and not when it is long unused.
    let named = "select count(*) from flyball.channel where name = '$inbox/ada'";
    assert_eq!(inbox.count(named).await, 1);
    let path = "/api/v1/recipients/ada";
    let (status, _) = inbox.ask("acme", Method::DELETE, path, None).await;
    assert_eq!(status, 200);
    let round = "select f.forgotten from flyball.forget_channels('', '', 1000) f";
    inbox.count(round).await;
    assert_eq!(inbox.count(named).await, 0);
    inbox.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_hears_of_an_erasure_also_if_a_new_message_waited_for_it() {
    let inbox = InboxFixture::start().await;
    let mut device = inbox.device("acme", "ada").await;
    inbox.send("acme", "ada", json!({})).await;
    device.next_of("message").await;
    // A worker that waits for the erasure writes into the inbox as soon as that is done.
    let erase = "do $$ begin
        perform flyball.delete_recipient('ada');
        insert into flyball.inbox_count (tenant, recipient) values ('acme', 'ada');
    end $$";
    let pool = inbox.program.database.pool();
    let mut transaction = pool.begin().await.unwrap();
    for statement in ["select flyball.as_tenant('acme')", erase] {
        transaction.execute(statement).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let told = device.next_of("gap").await;
    assert_eq!(told["channel"], "$inbox/ada");
    inbox.program.stop().await;
}
