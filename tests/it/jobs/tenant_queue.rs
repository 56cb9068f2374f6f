//! The queue of a tenant is full at its limit, also for many senders at the same moment.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool};

use super::fixture::BLOCKED;
use crate::support::{Database, database, eventually};

const SOON: Duration = Duration::from_secs(30);

const PENDING: &str = "select count(*) from flyball.pending";

/// Makes a dead letter of each message that is ready.
const DIE: &str = "with gone as (delete from flyball.ready returning *)
    insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
    select g.job_id, j.lane_id, g.priority, 1, g.cost, 'x' from gone g join flyball.job j on j.id = g.job_id";

/// Creates a database in which a thousand messages of the tenant `acme` may be pending.
async fn limited() -> Database {
    let database = database().await;
    sqlx::query("insert into flyball.tenant_limit values ('acme', 1000)")
        .execute(database.pool())
        .await
        .unwrap();
    database
}

async fn number(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(pool)
        .await
        .unwrap_or_else(|error| panic!("{error}: {sql}"))
}

/// Returns the statement that sends one message.
fn one() -> String {
    r#"flyball.accept_message('acme', 'web', null, '', false, false,
        '{"channel": "email", "to": "a@b.c", "body": "x"}', 'mail', '', 2, null, null, null)"#
        .to_owned()
}

/// Returns the statement that sends a batch.
fn batch(recipients: u32) -> String {
    format!(
        "select answer from flyball.accept_batch('acme', 'web', null, '', false, 0, 'mail', 2, null,
            (select jsonb_agg(jsonb_build_object('args', jsonb_build_object('channel', 'email', 'to', n || '@b.c', 'body', 'x'),
                'key', '', 'unique_key', null)) from generate_series(1, {recipients}) n), false)"
    )
}

/// Sends messages one after the other; returns the code of the error that refused one of them, and
/// so all.
async fn send(pool: &PgPool, messages: u32) -> Option<String> {
    let sql = format!(
        "do $$ begin for n in 1..{messages} loop perform {}; end loop; end $$",
        one()
    );
    let sent = sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await;
    let error = sent.err()?;
    let code = error.as_database_error().and_then(|error| error.code());
    Some(code.unwrap_or_default().into_owned())
}

/// None of them sees those of the others before they are committed.
#[tokio::test]
async fn batches_at_the_same_moment_fill_a_queue_to_its_limit_and_no_further() {
    let database = limited().await;
    let pool = database.pool();
    assert_eq!(send(pool, 800).await, None);
    let mut first = pool.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(batch(100)))
        .execute(&mut *first)
        .await
        .unwrap();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let batch = sqlx::query(AssertSqlSafe(batch(100)));
                batch.execute(&pool).await.is_ok()
            })
        })
        .collect();
    eventually("each is through or waits for its turn", SOON, || async {
        let through = others.iter().filter(|other| other.is_finished()).count();
        let waiting = number(pool, BLOCKED).await;
        (through as i64 + waiting == 2).then_some(())
    })
    .await;

    first.commit().await.unwrap();

    let mut accepted = 0;
    for other in others {
        accepted += i32::from(other.await.unwrap());
    }
    assert_eq!((accepted, number(pool, PENDING).await), (1, 1000));
}

#[tokio::test]
async fn the_places_of_a_batch_that_is_not_enqueued_yet_are_counted() {
    let database = limited().await;
    let pool = database.pool();
    assert_eq!(send(pool, 200).await, None);
    sqlx::query(AssertSqlSafe(batch(500)))
        .execute(pool)
        .await
        .unwrap();
    assert_eq!(send(pool, 300).await, None);
    assert_eq!(send(pool, 1).await.as_deref(), Some("53400"));
    assert_eq!(number(pool, PENDING).await, 1000);
    // When its messages are enqueued, they are in these places.
    let enqueued = number(pool, "select flyball.expand_batch(1)::bigint").await;
    assert_eq!((enqueued, number(pool, PENDING).await), (500, 1000));
}

#[tokio::test]
async fn a_message_that_is_committed_after_later_ones_is_counted() {
    let database = limited().await;
    let pool = database.pool();
    assert_eq!(send(pool, 95).await, None);
    let mut late = pool.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(format!("select answer from {}", one())))
        .execute(&mut *late)
        .await
        .unwrap();
    // The bound moves on meanwhile.
    assert_eq!(send(pool, 10).await, None);
    let bound = "select pending from flyball.pending_count";
    assert!(number(pool, bound).await > 0);

    late.commit().await.unwrap();

    let counted =
        "select c.pending + (select count(*) from flyball.pending p where p.job_id > c.counted_to)
        from flyball.pending_count c";
    assert_eq!(
        (number(pool, counted).await, number(pool, PENDING).await),
        (106, 106)
    );
}

/// The queue is counted under a lock near its end, and for many messages at once.
#[tokio::test]
async fn a_sender_that_waits_for_a_unique_key_has_no_place_yet_and_keeps_no_other_from_one() {
    let database = limited().await;
    let pool = database.pool();
    sqlx::query("update flyball.tenant_limit set max_pending = 20")
        .execute(pool)
        .await
        .unwrap();
    let many = |keys: &[&str]| {
        let each = keys.iter().map(|key| {
            let key = match *key {
                "" => String::new(),
                key => format!(r#", "unique_key": "{key}""#),
            };
            format!(r#"{{"kind": "notification", "throttle": "mail"{key}}}"#)
        });
        let all: Vec<String> = each.collect();
        let all = all.join(", ");
        AssertSqlSafe(format!(
            "select flyball.as_tenant('acme', 'web'); select flyball.enqueue_many('[{all}]')"
        ))
    };
    let mut first = pool.begin().await.unwrap();
    sqlx::raw_sql(many(&["k"]))
        .execute(&mut *first)
        .await
        .unwrap();
    let other = tokio::spawn({
        let (pool, many) = (pool.clone(), many(&["", "", "k"]));
        async move { sqlx::raw_sql(many).execute(&pool).await.map(drop) }
    });
    eventually("the other waits for the key", SOON, || async {
        (number(pool, BLOCKED).await == 1).then_some(())
    })
    .await;

    sqlx::raw_sql(many(&["", ""]))
        .execute(&mut *first)
        .await
        .unwrap();
    first.commit().await.unwrap();

    other.await.unwrap().unwrap();
    assert_eq!(number(pool, PENDING).await, 5);
}

#[tokio::test]
async fn a_batch_uses_slots_only_if_no_key_is_taken_behind_the_places_of_those_that_have_one() {
    let database = limited().await;
    let pool = database.pool();
    for (keys, used) in [("{}", 2), ("{1,2}", 2), ("{3}", 0), ("{1,2,3}", 0)] {
        let accept = format!(
            "select used::bigint from flyball.accept_batch('acme', 'm{used}{keys}', null, '', false, 2, 'mail', 2, null,
                (select jsonb_agg(jsonb_build_object('args', '{{}}'::jsonb, 'key', '',
                    'unique_key', case when n = any('{keys}'::int[]) then '{keys}' || n end)) from generate_series(1, 3) n), false)"
        );
        assert_eq!(number(pool, &accept).await, used, "{keys}");
    }
}

#[tokio::test]
async fn a_message_that_is_sent_anew_during_a_sweep_stays_pending() {
    let database = limited().await;
    let pool = database.pool();
    assert_eq!(send(pool, 1).await, None);
    sqlx::query(DIE).execute(pool).await.unwrap();
    // What this transaction sees is as old as that of a long sweep.
    let mut sweep = pool.begin().await.unwrap();
    sqlx::raw_sql("set transaction isolation level repeatable read; select from flyball.dead")
        .execute(&mut *sweep)
        .await
        .unwrap();
    sqlx::query("select flyball.retry(d.job_id) from flyball.dead d")
        .execute(pool)
        .await
        .unwrap();

    // It may fail at this isolation, which leaves the row as well.
    let swept = sqlx::query("select flyball.sweep_pending('acme')")
        .execute(&mut *sweep)
        .await;

    match swept {
        Ok(_) => sweep.commit().await.unwrap(),
        Err(_) => sweep.rollback().await.unwrap(),
    }
    assert_eq!(number(pool, PENDING).await, 1);
}

/// It has the row of its batch meanwhile, for which a cancellation would wait.
#[tokio::test]
async fn an_expansion_waits_for_no_open_transaction_for_long() {
    let database = limited().await;
    let pool = database.pool();
    let keyed = batch(101).replace("'unique_key', null", "'unique_key', 'k' || n");
    sqlx::query(AssertSqlSafe(keyed))
        .execute(pool)
        .await
        .unwrap();
    let expand = "select flyball.expand_batch(1)::bigint";
    let mut open = pool.begin().await.unwrap();
    let one = one().replace("2, null, null, null", "2, null, 'k7', null");
    sqlx::query(AssertSqlSafe(format!("select answer from {one}")))
        .execute(&mut *open)
        .await
        .unwrap();

    let expanding = tokio::time::timeout(SOON, sqlx::query(expand).execute(pool));
    let given_up = expanding.await.expect("it gives up").unwrap_err();

    let code = given_up.as_database_error().and_then(|error| error.code());
    assert_eq!(code.as_deref(), Some("55P03"));
    open.rollback().await.unwrap();
    assert_eq!(number(pool, expand).await, 101);
}

#[tokio::test]
async fn messages_that_are_sent_anew_count_beside_newer_ones() {
    let database = limited().await;
    let pool = database.pool();
    assert_eq!(send(pool, 200).await, None);
    sqlx::query(DIE).execute(pool).await.unwrap();
    let swept = "select flyball.sweep_pending('acme')";
    assert_eq!(number(pool, swept).await, 200);
    assert_eq!(send(pool, 300).await, None);
    let counted = "select pending from flyball.pending_count";
    assert!(number(pool, counted).await > 0, "the bound moved on");
    // A stranger who keeps an advisory lock changes nothing.
    let mut stranger = pool.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('flyball.pending_count acme', 0))")
        .execute(&mut *stranger)
        .await
        .unwrap();

    let anew = "select jobs from flyball.requeue_dead(throttle => 'mail')";
    assert_eq!(number(pool, anew).await, 200);

    assert_eq!(send(pool, 500).await, None);
    assert_eq!(number(pool, PENDING).await, 1000);
    assert_eq!(send(pool, 1).await.as_deref(), Some("53400"));
    stranger.rollback().await.unwrap();
}

#[tokio::test]
async fn a_message_that_was_sent_alone_is_no_part_of_a_batch_that_names_its_unique_key() {
    let database = limited().await;
    let pool = database.pool();
    let alone = one().replace("2, null, null, null", "2, null, 'k2', null");
    sqlx::query(AssertSqlSafe(format!("select answer from {alone}")))
        .execute(pool)
        .await
        .unwrap();
    let keyed = batch(3).replace("'unique_key', null", "'unique_key', 'k' || n");
    sqlx::query(AssertSqlSafe(keyed))
        .execute(pool)
        .await
        .unwrap();

    let cancelled = "select cancelled::bigint from flyball.cancel_batch(null, 1)
        where ended = '{\"duplicate\": 1}'";

    assert_eq!(number(pool, cancelled).await, 2);
    let waiting = "select count(*) from flyball.ready";
    assert_eq!(number(pool, waiting).await, 1);
}
