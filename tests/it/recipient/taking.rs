//! A planner takes messages out of the queue first: it meets others who want the same messages.

use std::collections::BTreeSet;
use std::time::Duration;

use flyball::jobs::State;
use flyball::recipient::gates::MessagePlan;
use serde_json::json;
use sqlx::PgConnection;

use super::fixture::{GatesFixture, gates};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(60);

const TAKE: &str = "select job_id from flyball.take_unplanned($1)";

const PUT_BACK: &str = "
insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry, turn)
select j.id, coalesce(h.until, now() + interval '1 day'), j.lane_id, j.priority, j.cost, false,
    flyball.turn_of(j.throttle, j.priority, false)
from flyball.job j left join flyball.message_plan h on h.job_id = j.id where j.id = any($1)";

impl GatesFixture {
    /// Enqueues messages, each to a recipient of its own.
    async fn send_many(&self, messages: usize) -> Vec<i64> {
        let mut ids = Vec::with_capacity(messages);
        for n in 0..messages {
            let message = json!({"category": "billing", "to": format!("+1555010{n:02}")});
            ids.push(self.send(message).await);
        }
        ids
    }

    /// Waits until a session waits for a lock in a statement like this one.
    async fn until_waiting(&self, statement: &str) {
        let waits = "select exists (select from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like $1)";
        let pool = self.fixture.database.pool();
        eventually("a statement waits for a lock", SOON, || async {
            let waits = sqlx::query_scalar(waits).bind(format!("%{statement}%"));
            waits.fetch_one(pool).await.unwrap_or(false).then_some(())
        })
        .await;
    }
}

async fn take(connection: &mut PgConnection, most: i64) -> Vec<i64> {
    let taken = sqlx::query_scalar(TAKE).bind(most);
    taken.fetch_all(connection).await.unwrap()
}

#[tokio::test]
async fn a_message_that_an_open_transaction_holds_is_left_until_it_is_free() {
    let gates = GatesFixture::new("").await;
    let ids = gates.send_many(3).await;
    let mut open = gates.fixture.database.pool().begin().await.unwrap();
    sqlx::query("select from flyball.scheduled where job_id = $1 for update")
        .bind(ids[1])
        .execute(&mut *open)
        .await
        .unwrap();

    // The first look is at all messages, the second at fresh ones, and nobody waits.
    for _ in 0..2 {
        gates.gates.plan_due().await.unwrap();
    }
    assert_eq!(gates.fixture.state(ids[0]).await, State::Ready);
    assert_eq!(gates.fixture.state(ids[1]).await, State::Scheduled);
    assert_eq!(gates.fixture.state(ids[2]).await, State::Ready);

    // Its row has been touched, so it is no fresh one any more.
    open.rollback().await.unwrap();
    gates.gates.plan_due().await.unwrap();
    assert_eq!(gates.fixture.state(ids[1]).await, State::Ready);
}

#[tokio::test]
async fn a_message_whose_caps_an_open_transaction_holds_waits_alone() {
    let rules = "[categories.news]\nover_cap = \"hold\"\ncaps.sms = { per_day = \"1 per 24h\" }\n";
    let gates = GatesFixture::new(rules).await;
    let mut ids = Vec::new();
    for (category, to) in [
        ("transactional", "+15550100"),
        ("news", "+15550101"),
        ("transactional", "+15550102"),
    ] {
        ids.push(gates.send(json!({"category": category, "to": to})).await);
    }
    let capped = ids.remove(1);
    let mut open = gates.fixture.database.pool().begin().await.unwrap();
    sqlx::query("lock table flyball.cap in access exclusive mode")
        .execute(&mut *open)
        .await
        .unwrap();

    gates.gates.plan_due().await.unwrap();

    for id in ids {
        assert_eq!(gates.fixture.state(id).await, State::Ready);
    }
    assert_eq!(gates.fixture.state(capped).await, State::Scheduled);
    open.rollback().await.unwrap();
    while gates.gates.plan_due().await.unwrap() {}
    assert_eq!(gates.fixture.state(capped).await, State::Ready);
}

#[tokio::test]
async fn a_message_whose_cancellation_is_not_committed_is_left_alone() {
    let gates = GatesFixture::new("").await;
    let ids = gates.send_many(2).await;
    let mut open = gates.fixture.database.pool().begin().await.unwrap();
    let state: String = sqlx::query_scalar("select flyball.cancel($1)")
        .bind(ids[0])
        .fetch_one(&mut *open)
        .await
        .unwrap();
    assert_eq!(state, "cancelled");

    for _ in 0..2 {
        gates.gates.plan_due().await.unwrap();
    }
    open.commit().await.unwrap();
    gates.gates.plan_due().await.unwrap();

    assert_eq!(gates.fixture.state(ids[0]).await, State::Cancelled);
    assert_eq!(gates.fixture.state(ids[1]).await, State::Ready);
    assert_eq!(gates.count("select count(*) from flyball.dedup").await, 1);
}

#[tokio::test]
async fn a_message_that_is_cancelled_while_it_is_planned_goes_nowhere() {
    for planner_dies in [true, false] {
        let gates = GatesFixture::new("").await;
        let ids = gates.send_many(1).await;
        let mut planner = gates.fixture.database.pool().begin().await.unwrap();
        assert_eq!(take(&mut planner, 10).await, ids);
        let queue = gates.fixture.queue.clone();
        let id = ids[0];
        let cancelling = tokio::spawn(async move { queue.cancel(id).await });
        gates.until_waiting("flyball.cancel").await;

        if planner_dies {
            planner.rollback().await.unwrap();
        } else {
            // It holds the message for its time.
            let back = sqlx::query(PUT_BACK).bind(&ids);
            back.execute(&mut *planner).await.unwrap();
            planner.commit().await.unwrap();
        }

        cancelling.await.unwrap().unwrap();
        assert_eq!(gates.fixture.state(id).await, State::Cancelled);
        assert!(!gates.gates.plan_due().await.unwrap());
        assert_eq!(gates.count("select count(*) from flyball.ready").await, 0);
        let waiting = "select count(*) from flyball.scheduled";
        assert_eq!(gates.count(waiting).await, 0);
    }
}

#[tokio::test]
async fn planners_take_different_messages_and_do_not_wait_for_each_other() {
    let gates = GatesFixture::new("").await;
    let ids: BTreeSet<i64> = gates.send_many(40).await.into_iter().collect();
    let mut first = gates.fixture.database.pool().begin().await.unwrap();
    let mut second = gates.fixture.database.pool().begin().await.unwrap();

    let mut taken = take(&mut first, 10).await;
    assert_eq!(taken.len(), 10);
    // What the first has is out of reach, and so is the rest of its runs.
    taken.extend(take(&mut second, 50).await);
    first.commit().await.unwrap();
    taken.extend(take(&mut second, 50).await);

    assert_eq!(taken.len(), 40, "each once");
    assert_eq!(taken.into_iter().collect::<BTreeSet<i64>>(), ids);
}

#[tokio::test]
async fn the_most_urgent_messages_are_taken_first() {
    let gates = GatesFixture::new("").await;
    let low = gates
        .send(json!({"category": "billing", "priority": "low"}))
        .await;
    let critical = gates
        .send(json!({"category": "billing", "priority": "critical", "dedup_key": "1"}))
        .await;
    let mut planner = gates.fixture.database.pool().begin().await.unwrap();

    assert_eq!(take(&mut planner, 1).await, [critical]);
    assert_eq!(take(&mut planner, 10).await, [low]);
}

#[tokio::test]
async fn a_new_profile_reaches_a_message_that_is_put_back_meanwhile() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, plan) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    assert!(matches!(plan, MessagePlan::Held { .. }), "{plan:?}");
    // A planner has taken it to plan it again, by the old profile.
    let mut planner = gates.fixture.database.pool().begin().await.unwrap();
    sqlx::query("delete from flyball.scheduled where job_id = $1")
        .bind(id)
        .execute(&mut *planner)
        .await
        .unwrap();
    let pool = gates.fixture.database.pool().clone();
    let changing = tokio::spawn(async move {
        sqlx::query("update flyball.recipient set profile = '{\"addresses\": {\"sms\": \"+15550111\"}}' where id = 'ada'")
            .execute(&pool)
            .await
    });
    gates.until_waiting("update flyball.recipient").await;
    let back = sqlx::query(PUT_BACK).bind([id]);
    back.execute(&mut *planner).await.unwrap();
    planner.commit().await.unwrap();
    changing.await.unwrap().unwrap();

    assert!(!gates.gates.plan_due().await.unwrap());
    assert_eq!(gates.fixture.state(id).await, State::Ready);
}

#[tokio::test]
async fn two_planners_that_open_the_same_digests_count_each_item_once() {
    let fixture = GatesFixture::new("").await;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for n in 0..20 {
        for side in [&mut left, &mut right] {
            let comment = json!({
                "category": "product", "template_id": "comment", "digest": "new-comment", "template": "{{ n }}",
                "data": {"n": side.len()}, "body": null, "to": format!("+15550100{n:02}"),
            });
            side.push(fixture.send(comment).await);
        }
    }
    let other = gates(&fixture.fixture.queue);
    let (left, right) = tokio::join!(fixture.gates.plan_jobs(&left), other.plan_jobs(&right));
    for one in left.unwrap().into_iter().chain(right.unwrap()) {
        let plan = &one.plan;
        assert!(matches!(plan, MessagePlan::Collected { .. }), "{plan:?}");
    }

    let full = "select count(*) from flyball.digest d where d.items = 2 and d.closes_at > d.opened_at and d.last_at >= d.opened_at
        and d.type = 'new-comment' and d.category = 'product' and d.channel = 'sms' and d.address like '+15550100%' and d.throttle = 'own'
        and (select count(*) from flyball.digest_item i where i.digest_id = d.id) = 2";
    assert_eq!(fixture.count(full).await, 20);
    let digests = "select count(*) from flyball.digest";
    assert_eq!(fixture.count(digests).await, 20);
    let recorded =
        "select count(*) from flyball.message_plan p join flyball.digest_item i using (job_id)
        where p.state = 'collected' and p.digest_id = i.digest_id";
    assert_eq!(fixture.count(recorded).await, 40);
}

/// Reservations are read under the lock of their list, and a list without a row has none.
#[tokio::test]
async fn two_planners_at_a_list_without_sends_give_different_times() {
    let rules = "[categories.news]\nover_cap = \"hold\"\nvalid_for_s = 2592000\ncaps.sms = { per_day = \"1 per 24h\" }\n";
    let gates = GatesFixture::new(rules).await;
    let news = |n: u8| json!({"category": "news", "dedup_key": n.to_string()});
    // It has a reservation until its attempt begins.
    assert_eq!(gates.planned(news(0)).await.1, MessagePlan::Send);
    let (first, second) = (gates.send(news(1)).await, gates.send(news(2)).await);
    let mut planner = gates.fixture.database.pool().begin().await.unwrap();
    let plan = "
        with new as (
            insert into flyball.cap (recipient, list, sent) select recipient, list, '{}' from flyball.cap_reservation
        )
        insert into flyball.cap_reservation (recipient, list, at_s, job_id, is_held)
        select recipient, list, at_s + 86400, $1, true from flyball.cap_reservation";
    sqlx::query(plan)
        .bind(first)
        .execute(&mut *planner)
        .await
        .unwrap();
    let other = gates.gates.clone();
    let planning = tokio::spawn(async move { other.plan_jobs(&[second]).await });
    gates.until_waiting("insert into flyball.cap (").await;
    planner.commit().await.unwrap();

    let planned = planning.await.unwrap().unwrap();
    let now = gates.now().await;
    let until = planned[0].plan.planned_at(now).unwrap();
    let wait_s = until.duration_since(now).as_secs();
    assert!((172_700..=172_801).contains(&wait_s), "{wait_s}");
}

#[tokio::test]
async fn messages_are_planned_whatever_advisory_locks_strangers_keep() {
    let gates = GatesFixture::new("").await;
    // The first look is at all messages, the next at fresh ones.
    gates.gates.plan_due().await.unwrap();
    let pool = gates.fixture.database.pool();
    let mut stranger = pool.acquire().await.unwrap();
    sqlx::raw_sql(
        "select pg_advisory_lock(hashtext('flyball.plan'), n) from generate_series(0, 255) n",
    )
    .execute(&mut *stranger)
    .await
    .unwrap();
    let ids = gates.send_many(3).await;
    let mut planner = pool.begin().await.unwrap();
    let fresh = take(&mut planner, 10).await;
    assert!(fresh.is_empty(), "{fresh:?}");
    planner.rollback().await.unwrap();

    gates.gates.plan_due().await.unwrap();

    for id in ids {
        assert_eq!(gates.fixture.state(id).await, State::Ready);
    }
}

/// The request that accepted a message answers with the plan of whoever was faster.
#[tokio::test]
async fn the_plans_of_other_planners_are_read_once_they_are_committed() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let held = gates
        .send(json!({"recipient": "ada", "category": "billing"}))
        .await;
    let goes = gates.send(json!({"category": "billing"})).await;
    let same = gates.send(json!({"category": "billing"})).await;
    while gates.gates.plan_due().await.unwrap() {}

    let mut plans = gates
        .gates
        .plan_accepted(&[held, goes, same])
        .await
        .unwrap();

    assert!(plans.unplanned.is_empty());
    plans.planned.sort_by_key(|one| one.job_id);
    let [first, second, third] = &plans.planned[..] else {
        panic!("{plans:?}");
    };
    assert!(
        matches!(first.plan, MessagePlan::Held { .. }),
        "{:?}",
        first.plan
    );
    assert_eq!(second.plan, MessagePlan::Send);
    assert!(
        matches!(third.plan, MessagePlan::Ended { .. }),
        "{:?}",
        third.plan
    );
    assert_eq!(third.duplicate_of, Some(goes));
}

#[tokio::test]
async fn a_planner_that_has_a_message_is_waited_for_and_its_message_is_planned_if_it_dies() {
    let gates = GatesFixture::new("").await;
    let ids = gates.send_many(1).await;
    let mut planner = gates.fixture.database.pool().begin().await.unwrap();
    assert_eq!(take(&mut planner, 10).await, ids);

    let plans = gates.gates.plan_accepted(&ids).await.unwrap();
    assert_eq!((plans.unplanned, plans.planned.len()), (ids.clone(), 0));

    let again = gates.gates.clone();
    let (waited, ()) = tokio::join!(again.plan_accepted(&ids), async {
        planner.rollback().await.unwrap();
    });
    let waited = waited.unwrap();
    assert!(waited.unplanned.is_empty());
    assert_eq!(waited.planned[0].plan, MessagePlan::Send);
}

/// A producer that replaces several messages may wait for another one of the batch.
#[tokio::test]
async fn a_batch_of_which_a_producer_has_a_message_is_resumed_as_a_whole_when_that_is_free() {
    let gates = GatesFixture::new("").await;
    let ids = gates.send_many(2).await;
    let pool = gates.fixture.database.pool();
    let batch: i64 = sqlx::query_scalar(
        "with made as (
            insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages)
            values ('', '', 'running', 'own', 2, 2, '[]') returning id
         ),
         joined as (insert into flyball.batch_message (job_id, batch_id) select unnest($1::bigint[]), id from made)
         select id from made",
    )
    .bind(&ids)
    .fetch_one(pool)
    .await
    .unwrap();
    let paused = sqlx::query("select flyball.pause_batch(null, $1)").bind(batch);
    paused.execute(pool).await.unwrap();
    let takes = "select flyball.take_waiting($1)";
    let mut producer = pool.begin().await.unwrap();
    let taken = sqlx::query(takes).bind(ids[1]);
    taken.execute(&mut *producer).await.unwrap();

    let resumes = async {
        let resumed = sqlx::query_scalar("select flyball.resume_batch(null, $1)").bind(batch);
        let state: String = resumed.fetch_one(pool).await.unwrap();
        state
    };
    let takes_more = async {
        // Real time: meanwhile the other session looks at both.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let taken = sqlx::query(takes).bind(ids[0]);
        taken.execute(&mut *producer).await.unwrap();
        producer.rollback().await.unwrap();
    };
    let (resumed, ()) = tokio::join!(resumes, takes_more);

    assert_eq!(resumed, "running");
    let aside =
        "select count(*) from flyball.scheduled where run_at > now() + interval '3000 days'";
    assert_eq!(gates.count(aside).await, 0);
}
