//! No item is lost, and none goes twice, whatever dies between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::fixture::{GatesFixture, gates_by};

const RULES: &str = "
[digests.new-comment]
template = \"activity-digest\"
category = \"transactional\"
window_s = 1
min_items = 1
max_items = 3
";

/// Takes the messages of closed digests away, as a pool does.
const SENT: &str = "delete from flyball.ready";

/// Producers whose transactions commit or roll back, planners and closers whose backends are
/// killed: what was committed was shown or counted, once.
#[tokio::test]
async fn what_was_committed_is_shown_or_counted_once_although_planners_and_closers_are_killed() {
    run(400, 3, 60).await;
}

/// The same with a million items.
#[tokio::test]
#[ignore = "soak: run by `make soak`"]
async fn soak_no_item_is_lost_by_ten_thousand_kills() {
    run(106_000, 20, 10_000).await;
}

/// Runs transactions of 1 to `most` items each.
async fn run(transactions: usize, most: usize, kills: usize) {
    let gates = Arc::new(GatesFixture::new(RULES).await);
    let pool = gates.fixture.database.pool().clone();
    let (is_over, killed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let committed = Arc::new(AtomicUsize::new(0));
    let producers = (0..4).map(|producer| {
        let (pool, committed) = (pool.clone(), committed.clone());
        tokio::spawn(async move {
            for n in 0..transactions / 4 {
                let mut transaction = pool.begin().await.unwrap();
                let items = 1 + n % most;
                let messages = (0..items).map(|item| json!({
                    "pool": "own", "channel": "sms", "to": format!("+1555010{}", (n + item) % 7), "template": "x",
                    "data": {"tag": format!("{producer}/{n}/{item}")}, "digest": "new-comment", "template_id": "comment",
                }));
                sqlx::query("select count(*) from flyball.notify_many($1)")
                    .bind(messages.collect::<Value>())
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                if n % 10 == 3 {
                    transaction.rollback().await.unwrap();
                } else {
                    transaction.commit().await.unwrap();
                    committed.fetch_add(items, Ordering::Relaxed);
                }
            }
        })
    });
    let producers: Vec<_> = producers.collect();
    let loops = (0..4).map(|n| {
        let own = gates_by(&gates.fixture.queue, RULES);
        let is_over = is_over.clone();
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                // A backend that is killed is an error, and the next round works.
                let _ = match n % 2 {
                    0 => own.plan_due().await,
                    _ => own.close_due().await,
                };
                tokio::task::yield_now().await;
            }
        })
    });
    let loops: Vec<_> = loops.collect();
    let killer = {
        let (pool, is_over, killed) = (
            gates.fixture.database.superuser(),
            is_over.clone(),
            killed.clone(),
        );
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) && killed.load(Ordering::Relaxed) < kills {
                let done: i64 = sqlx::query_scalar(
                    "select count(pg_terminate_backend(pid)) from (
                        select pid from pg_stat_activity
                        where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
                            and (query like '%flyball.digest%' or query like '%flyball.message_plan%' or query like '%flyball.dedup%')
                        order by random() limit 1
                    ) one",
                )
                .fetch_one(&pool)
                .await
                .unwrap();
                killed.fetch_add(done as usize, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        })
    };
    // A digest waits for the message of the one before it.
    let sender = {
        let (pool, is_over) = (pool.clone(), is_over.clone());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let _ = sqlx::query(SENT).execute(&pool).await;
                tokio::task::yield_now().await;
            }
        })
    };
    for producer in producers {
        producer.await.unwrap();
    }
    killer.abort();
    is_over.store(true, Ordering::Relaxed);
    for one in loops {
        one.await.unwrap();
    }
    sender.await.unwrap();
    let killed = killed.load(Ordering::Relaxed);
    assert!(killed > 0, "somebody was killed");
    println!(
        "{} items were committed, {killed} backends killed",
        committed.load(Ordering::Relaxed)
    );
    // What is left is planned and closed in peace.
    let quiet = gates_by(&gates.fixture.queue, RULES);
    loop {
        while quiet.plan_due().await.unwrap() {}
        sqlx::query(SENT).execute(&pool).await.unwrap();
        sqlx::query("update flyball.digest set closes_at = now()")
            .execute(&pool)
            .await
            .unwrap();
        while quiet.close_due().await.unwrap() {}
        if gates.count("select count(*) from flyball.digest").await == 0 {
            break;
        }
    }
    let digests: Vec<Value> = sqlx::query_scalar(
        "select j.args from flyball.message_plan p join flyball.job j on j.id = p.job_id where p.origin = 'digest'",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let (mut shown, mut counted) = (BTreeMap::new(), 0);
    for digest in &digests {
        counted += digest["data"]["totalCount"].as_u64().unwrap() as usize;
        for item in digest["data"]["items"].as_array().unwrap() {
            *shown
                .entry(item["tag"].as_str().unwrap().to_owned())
                .or_insert(0) += 1;
        }
    }
    assert_eq!(
        counted,
        committed.load(Ordering::Relaxed),
        "every committed item is counted once"
    );
    assert!(shown.values().all(|times| *times == 1), "{shown:?}");
    let rolled_back =
        |tag: &String| tag.split('/').nth(1).unwrap().parse::<usize>().unwrap() % 10 == 3;
    assert!(!shown.keys().any(rolled_back));
    assert_eq!(
        gates
            .count("select count(*) from flyball.digest_item")
            .await,
        0
    );
    assert_eq!(
        gates
            .count("select count(*) from flyball.scheduled where turn < 0")
            .await,
        0
    );
}
