//! A process is killed between the admission of messages and their pool: each is in one lane, and
//! is delivered once.

use std::collections::BTreeSet;

use flyball::throttle::Name;
use sqlx::{Connection as _, PgConnection};

use super::fixture::{AdmissionFixture, Module, SOON, module};
use crate::support::eventually;
use crate::support::fixture::turn;

/// Messages of a module, and the limit of each.
const MESSAGES: usize = 20;
const LIMIT: u32 = 8;

/// Longer than a busy machine makes a process wait for Redis: the slots of an ask without an answer
/// count as spent.
const PATIENT: &str = "redis_timeout_ms = 10000";

/// A backend that moves messages and waits for a lock.
const BLOCKED: &str = "select pid from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into flyball.ready%' limit 1";

/// Sends messages by SQL, which all wait for their admission.
async fn send(fixture: &AdmissionFixture, by: Module, messages: usize) -> BTreeSet<i64> {
    let mut transaction = fixture.process.pool().begin().await.unwrap();
    sqlx::query("select flyball.as_tenant($1, $2)")
        .bind(by.tenant)
        .bind(by.name)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let to: Vec<String> = (0..messages).map(|n| by.to(n)).collect();
    let sql = "select n.id from flyball.notify_many((select jsonb_agg(jsonb_build_object(
        'pool', 'sms', 'channel', 'sms', 'to', t, 'body', 'x')) from unnest($1::text[]) t)) n";
    let ids: Vec<i64> = sqlx::query_scalar(sql)
        .bind(to)
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    ids.into_iter().collect()
}

/// Returns the number of messages in the lanes of their pool.
async fn released(fixture: &AdmissionFixture) -> i64 {
    let sql = "select count(*) from flyball.ready r join flyball.job j on j.id = r.job_id where r.lane_id = j.lane_id and j.tenant <> ''";
    fixture.process.count(sql).await
}

/// Lets a message of another module be admitted and pass: what may go has gone by then.
async fn let_another_pass(fixture: &AdmissionFixture) -> BTreeSet<i64> {
    let shop = module("shop");
    let ids = send(fixture, shop, 1).await;
    fixture.until_received(shop, 1).await;
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_were_released_by_a_worker_that_died_are_delivered_by_another() {
    let fixture = AdmissionFixture::with_settings(false, PATIENT).await;
    let web = module("web");
    fixture.limit("acme", (100, LIMIT), 600).await;
    let mut doomed = fixture.serve().await;
    // The pool takes nothing, so what is released stays in its lane.
    turn(&*fixture.store, "sms", &[("rps", "0")]).await;
    let mut ids = send(&fixture, web, MESSAGES).await;
    eventually("the first are released", SOON, || async {
        (released(&fixture).await == i64::from(LIMIT)).then_some(())
    })
    .await;

    doomed.kill();
    fixture.forget_processes();
    let _other = fixture.serve().await;
    turn(&*fixture.store, "sms", &[("rps", "-1")]).await;

    fixture.until_received(web, LIMIT as usize).await;
    ids.extend(let_another_pass(&fixture).await);
    assert_eq!(fixture.received_of(web).len(), LIMIT as usize);
    assert_eq!(
        fixture.waiting(web).await,
        (MESSAGES - LIMIT as usize) as i64
    );
    fixture.limit("acme", (100, 50), 600).await;
    fixture.assert_each_is_delivered_once(&ids, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_worker_died_in_its_middle_is_carried_out_or_not_and_nothing_is_lost() {
    for is_carried_out in [true, false] {
        let fixture = AdmissionFixture::with_settings(false, PATIENT).await;
        let web = module("web");
        turn(&*fixture.store, "notify:acme", &[("rps", "0")]).await;
        let mut doomed = fixture.serve().await;
        let mut ids = send(&fixture, web, MESSAGES).await;
        // The release of the first message waits for this row.
        let mut blocker = PgConnection::connect(&fixture.process.database_url)
            .await
            .unwrap();
        let mut rows = blocker.begin().await.unwrap();
        let sql =
            "insert into flyball.ready (lane_id, priority, job_id, attempt, cost, holds_unique)
            select j.lane_id, j.priority, j.id, 1, 1, false from flyball.job j where j.id = $1";
        sqlx::query(sql)
            .bind(ids.first().copied())
            .execute(&mut *rows)
            .await
            .unwrap();
        fixture.limit("acme", (100, LIMIT), 600).await;
        let backend = eventually("the release waits", SOON, || async {
            let pid: Option<i32> = sqlx::query_scalar(BLOCKED)
                .fetch_optional(fixture.process.pool())
                .await
                .unwrap();
            pid
        })
        .await;

        doomed.kill();
        let slots_left = async || {
            let name = Name::new("notify:acme").unwrap();
            let usage = fixture.store.window_usage(&name, web.name).await;
            usage.unwrap().unwrap().key[0].left() as usize
        };
        // Redis may still have an ask of the dead process, which it has surely carried out before
        // it reads a question that is sent after the answer to another one.
        slots_left().await;
        let left = slots_left().await;
        assert!(left < LIMIT as usize, "slots were taken");
        if !is_carried_out {
            sqlx::query("select pg_terminate_backend($1, 10000)")
                .bind(backend)
                .execute(fixture.process.pool())
                .await
                .unwrap();
        }
        rows.rollback().await.unwrap();
        fixture.forget_processes();
        let _other = fixture.serve().await;

        // The slots were taken, so those of a release that was not carried out are lost for a span.
        let went = if is_carried_out { LIMIT as usize } else { left };
        fixture.until_received(web, went).await;
        ids.extend(let_another_pass(&fixture).await);
        assert_eq!(fixture.received_of(web).len(), went);
        assert_eq!(fixture.waiting(web).await, (MESSAGES - went) as i64);
        fixture.limit("acme", (100, 50), 600).await;
        fixture.assert_each_is_delivered_once(&ids, 0).await;
    }
}
