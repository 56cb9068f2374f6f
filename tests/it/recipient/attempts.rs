//! The last look at the gates, and what an attempt takes and gives back.

use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::State;
use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::notify::{BeginRequest, Deliveries};
use flyball::providers::{Channel, Recipient};
use flyball::recipient::gate::AttemptEnd;
use flyball::recipient::gates::MessagePlan;
use serde_json::json;

use super::fixture::GatesFixture;

const NEWS: &str = "[categories.news]\ncaps.sms = { per_day = \"3 per 24h\" }\n";

const ONE_A_DAY: &str =
    "[categories.news]\nvalid_for_s = 2592000\ncaps.sms = { per_day = \"1 per 24h\" }\n";

/// Eight clients at once: no window of a rule holds more than its count.
#[tokio::test]
async fn a_cap_holds_however_many_attempts_begin_at_once() {
    let gates = Arc::new(GatesFixture::new(NEWS).await);
    let mut ids = Vec::new();
    for n in 0..40 {
        let message = json!({"category": "news", "dedup_key": n.to_string()});
        ids.push(gates.send(message).await);
    }
    let attempts = ids.chunks(5).map(|chunk| {
        let (gates, chunk) = (gates.clone(), chunk.to_vec());
        // Each has batches of its own, as another process would.
        let own = super::fixture::gates_by(&gates.fixture.queue, NEWS);
        tokio::spawn(async move {
            let mut went = 0;
            for id in chunk {
                let verdict = own.verify(id).await.unwrap().unwrap();
                went += usize::from(verdict.plan == MessagePlan::Send);
            }
            went
        })
    });
    let mut went = 0;
    for attempt in attempts.collect::<Vec<_>>() {
        went += attempt.await.unwrap();
    }
    assert_eq!(went, 3);
    let kept = "select cardinality(sent)::bigint from flyball.cap";
    assert_eq!(gates.count(kept).await, 3);
}

#[tokio::test]
async fn a_retry_takes_no_second_slot_and_what_ended_unsent_gives_its_own_back() {
    let gates = GatesFixture::new(ONE_A_DAY).await;
    let first = gates
        .send(json!({"category": "news", "dedup_key": "1"}))
        .await;
    let second = gates
        .send(json!({"category": "news", "dedup_key": "2"}))
        .await;
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    gates.end(first, AttemptEnd::Retried).await;
    assert_eq!(
        gates.verify(first).await,
        MessagePlan::Send,
        "it has its slot"
    );
    assert!(matches!(
        gates.verify(second).await,
        MessagePlan::Held { .. }
    ));
    gates.end(first, AttemptEnd::Unsent).await;
    assert_eq!(gates.verify(second).await, MessagePlan::Send);
    gates.end(second, AttemptEnd::Accepted).await;
    assert!(matches!(
        gates.verify(first).await,
        MessagePlan::Held { .. }
    ));
}

#[tokio::test]
async fn a_retry_counts_at_the_time_at_which_it_goes() {
    let gates = GatesFixture::new(ONE_A_DAY).await;
    let news = |n: u8| json!({"category": "news", "dedup_key": n.to_string()});
    let (first, second) = (gates.send(news(1)).await, gates.send(news(2)).await);
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    gates.end(first, AttemptEnd::Retried).await;
    let aged = async |hours: i32| {
        for table in [
            "cap set sent = array(select s - $1",
            "message_plan set slot_s = array(select s - $1",
        ] {
            let column = table.split_whitespace().nth(2).unwrap();
            let sql = format!("update flyball.{table} from unnest({column}) as s)");
            sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(hours * 3600)
                .execute(gates.fixture.database.pool())
                .await
                .unwrap();
        }
    };
    aged(23).await;
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    gates.end(first, AttemptEnd::Retried).await;
    aged(23).await;
    assert!(matches!(
        gates.verify(second).await,
        MessagePlan::Held { .. }
    ));
    // A day after its last attempt another one takes its place.
    aged(2).await;
    assert_eq!(gates.verify(second).await, MessagePlan::Send);
    // As if it waited for its next attempt.
    sqlx::query("update flyball.scheduled set turn = 2 where job_id = $1")
        .bind(first)
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    let next = gates.gates.explain(first, None).await.unwrap().unwrap();
    let goes_at = next.forecast.unwrap().goes_at.unwrap();
    let waits_for = goes_at.duration_since(gates.now().await);
    assert!(waits_for.as_hours() >= 23, "{waits_for}");
    assert!(matches!(
        gates.verify(first).await,
        MessagePlan::Held { .. }
    ));
}

#[tokio::test]
async fn a_send_counts_although_its_empty_list_is_pruned_before_it_is_locked() {
    let gates = GatesFixture::new(ONE_A_DAY).await;
    let prunes = "
        create table public.once ();
        insert into public.once default values;
        create function public.prune_once() returns trigger language plpgsql as $$
        begin
            if exists (select from public.once) then
                delete from public.once;
                delete from flyball.cap;
            end if;
            return null;
        end $$;
        create trigger prune_once after insert on flyball.cap for each statement execute function public.prune_once();";
    let pool = gates.fixture.database.pool();
    sqlx::raw_sql(prunes).execute(pool).await.unwrap();
    let id = gates.send(json!({"category": "news"})).await;
    assert_eq!(gates.verify(id).await, MessagePlan::Send);
    let kept = "select cardinality(sent)::bigint from flyball.cap";
    assert_eq!(gates.count(kept).await, 1);
}

#[tokio::test]
async fn a_list_that_an_attempt_has_locked_is_not_pruned() {
    let gates = GatesFixture::new("").await;
    let pool = gates.fixture.database.pool();
    sqlx::raw_sql("insert into flyball.cap values (gen_random_uuid(), 1, '{}')")
        .execute(pool)
        .await
        .unwrap();
    let mut attempt = pool.begin().await.unwrap();
    let takes = "update flyball.cap set sent = array[extract(epoch from now())::int - 1577836800]";
    sqlx::query(takes).execute(&mut *attempt).await.unwrap();

    let mut maintenance = pool.begin().await.unwrap();
    sqlx::raw_sql("set local lock_timeout = '1s'")
        .execute(&mut *maintenance)
        .await
        .unwrap();
    let prune = "select sum(flyball.prune_recipients(part, 1, 1))::bigint from generate_series(0, 15) as part";
    let pruned: i64 = sqlx::query_scalar(prune)
        .fetch_one(&mut *maintenance)
        .await
        .unwrap();
    maintenance.commit().await.unwrap();
    attempt.commit().await.unwrap();

    assert_eq!(pruned, 0);
    assert_eq!(gates.count("select count(*) from flyball.cap").await, 1);
}

#[tokio::test]
async fn what_attempts_hold_is_counted_once_as_a_crowd() {
    let gates = GatesFixture::new("").await;
    let quiet = gates.quiet_today().await;
    gates
        .profile("ada", json!({"addresses": quiet["addresses"]}))
        .await;
    let message = json!({"recipient": "ada", "category": "billing"});
    let (id, plan) = gates.planned(message).await;
    assert_eq!(plan, MessagePlan::Send);
    gates.profile("ada", quiet).await;
    for _ in 0..2 {
        assert!(matches!(gates.verify(id).await, MessagePlan::Held { .. }));
    }
    let counted = "select sum(messages)::bigint from flyball.held_crowd";
    assert_eq!(gates.count(counted).await, 1);
}

#[tokio::test]
async fn a_retry_that_is_planned_anew_keeps_its_slot_or_gives_it_back() {
    let gates = GatesFixture::new(ONE_A_DAY).await;
    let reachable = json!({"addresses": {"sms": "+15550111"}});
    gates.profile("ada", reachable.clone()).await;
    let message = json!({"recipient": "ada", "category": "news"});
    let (id, plan) = gates.planned(message).await;
    assert_eq!(plan, MessagePlan::Send);
    assert_eq!(gates.verify(id).await, MessagePlan::Send);
    gates.end(id, AttemptEnd::Retried).await;
    // As if it had been held, and its recipient changed the profile.
    let unplan = async || {
        sqlx::query(
            "with taken as (delete from flyball.ready returning *)
             insert into flyball.scheduled (job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique, turn)
             select job_id, now(), lane_id, priority, attempt, cost, true, holds_unique, priority - 4 from taken",
        )
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    };
    let slots = "select coalesce(sum(cardinality(sent)), 0)::bigint from flyball.cap";
    unplan().await;
    assert_eq!(gates.plan(id).await, MessagePlan::Send);
    assert_eq!(gates.count(slots).await, 1);
    unplan().await;
    let mut unwanted = reachable;
    unwanted["preferences"] = json!({"all": {"sms": false}});
    gates.profile("ada", unwanted).await;
    assert!(matches!(gates.plan(id).await, MessagePlan::Ended { .. }));
    assert_eq!(gates.count(slots).await, 0);
}

#[tokio::test]
async fn the_window_of_dedup_counts_from_the_time_at_which_a_provider_accepted() {
    let gates = GatesFixture::new("").await;
    let message = || json!({"category": "billing", "dedup_key": "same"});
    let (first, plan) = gates.planned(message()).await;
    assert_eq!(plan, MessagePlan::Send);
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    gates.end(first, AttemptEnd::Accepted).await;
    let aged = |seconds: i32| {
        let pool = gates.fixture.database.pool().clone();
        async move {
            sqlx::query(
                "update flyball.dedup set at_s = $1 - floor(extract(epoch from clock_timestamp()) - 1577836800)::int",
            )
            .bind(seconds)
            .execute(&pool)
            .await
            .unwrap();
        }
    };
    aged(3590).await;
    assert!(matches!(
        gates.planned(message()).await.1,
        MessagePlan::Ended { .. }
    ));
    aged(3600).await;
    assert_eq!(gates.planned(message()).await.1, MessagePlan::Send);
}

/// A dead letter gave its claim back. When it is requeued, it is compared like any other message.
#[tokio::test]
async fn of_equal_messages_that_run_again_one_goes_and_its_window_counts() {
    let gates = GatesFixture::new("").await;
    let message = || json!({"category": "billing", "dedup_key": "same"});
    let mut dead = Vec::new();
    for _ in 0..2 {
        let (id, plan) = gates.planned(message()).await;
        assert_eq!(plan, MessagePlan::Send);
        assert_eq!(gates.verify(id).await, MessagePlan::Send);
        gates.end(id, AttemptEnd::Unsent).await;
        dead.push(id);
    }
    assert_eq!(gates.count("select count(*) from flyball.dedup").await, 0);

    assert_eq!(gates.verify(dead[0]).await, MessagePlan::Send);
    assert_eq!(
        gates.verify(dead[0]).await,
        MessagePlan::Send,
        "its own claim lets it pass"
    );
    assert!(matches!(
        gates.verify(dead[1]).await,
        MessagePlan::Ended { .. }
    ));
    gates.end(dead[0], AttemptEnd::Accepted).await;
    assert!(matches!(
        gates.planned(message()).await.1,
        MessagePlan::Ended { .. }
    ));
    let marked = "select count(*) from flyball.dedup where at_s < 0";
    assert_eq!(gates.count(marked).await, 1);
}

#[tokio::test]
async fn preferences_that_change_after_the_plan_count() {
    let gates = GatesFixture::new("").await;
    let reachable = json!({"addresses": {"sms": "+15550113"}});
    gates.profile("eve", reachable).await;
    let (id, plan) = gates
        .planned(json!({"recipient": "eve", "category": "product"}))
        .await;
    assert_eq!(plan, MessagePlan::Send);
    gates
        .profile(
            "eve",
            json!({"addresses": {"sms": "+15550113"}, "preferences": {"categories": {"product": {"sms": false}}}}),
        )
        .await;
    assert!(matches!(gates.verify(id).await, MessagePlan::Ended { .. }));
}

/// A message that was held for longer than its pool lets messages wait goes, and is tried again.
#[tokio::test]
async fn the_deadline_of_the_pool_counts_from_the_end_of_the_hold() {
    let gates = GatesFixture::new("").await;
    gates.profile("ada", gates.quiet_today().await).await;
    let (id, plan) = gates
        .planned(json!({"recipient": "ada", "category": "billing"}))
        .await;
    assert!(matches!(plan, MessagePlan::Held { .. }), "{plan:?}");
    // The quiet hours took two days, and were over a minute ago.
    for statement in [
        "update flyball.job set created_at = created_at - interval '2 days'",
        "update flyball.recipient set profile = profile - 'quiet_hours'",
        "update flyball.message_plan set until = clock_timestamp() - interval '1 minute'",
    ] {
        sqlx::query(statement)
            .execute(gates.fixture.database.pool())
            .await
            .unwrap();
    }
    let deliveries = Deliveries::new(gates.fixture.queue.pool.clone());
    let hour = Duration::from_secs(3600);
    for attempt in 1..=2 {
        assert_eq!(gates.verify(id).await, MessagePlan::Send);
        gates.end(id, AttemptEnd::Retried).await;
        let request = BeginRequest {
            job_id: id,
            channel: Channel::Sms,
            recipient: Recipient::parse(Channel::Sms, "+15550111").ok(),
        };
        let begun = deliveries.begin(request).await.unwrap();
        assert!(begun.waited < hour, "attempt {attempt}: {begun:?}");
    }
    let expired = deliveries.expire("own", hour, 100).await.unwrap();
    assert_eq!(expired.jobs, 0);
}

#[tokio::test]
async fn a_message_that_ends_while_it_waits_gives_its_slots_back_unless_it_may_have_been_sent() {
    let gates = GatesFixture::new(ONE_A_DAY).await;
    let message = |n: usize| json!({"category": "news", "dedup_key": n.to_string()});
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(gates.send(message(n)).await);
    }
    assert_eq!(gates.verify(ids[0]).await, MessagePlan::Send);
    gates.end(ids[0], AttemptEnd::Retried).await;
    assert_eq!(
        gates.gates.return_slots().await.unwrap(),
        0,
        "it goes again"
    );
    let second = gates.verify(ids[1]).await;
    assert!(matches!(second, MessagePlan::Held { .. }), "{second:?}");

    gates.fixture.queue.cancel(ids[0]).await.unwrap();
    assert_eq!(gates.gates.return_slots().await.unwrap(), 1);
    assert_eq!(gates.gates.return_slots().await.unwrap(), 0, "once");
    assert_eq!(gates.verify(ids[1]).await, MessagePlan::Send);

    // No answer came to its attempt.
    gates.end(ids[1], AttemptEnd::Retried).await;
    sqlx::query(
        "insert into flyball.attempt (job_id, attempt, outcome) values ($1, 1, 'ambiguous')",
    )
    .bind(ids[1])
    .execute(gates.fixture.database.pool())
    .await
    .unwrap();
    gates.fixture.queue.cancel(ids[1]).await.unwrap();
    assert_eq!(gates.gates.return_slots().await.unwrap(), 0);
    let third = gates.verify(ids[2]).await;
    assert!(matches!(third, MessagePlan::Held { .. }), "{third:?}");
}

#[tokio::test]
async fn a_message_of_a_paused_batch_takes_no_slots() {
    let gates = GatesFixture::new(ONE_A_DAY).await;
    let id = gates.send(json!({"category": "news"})).await;
    let pool = gates.fixture.database.pool();
    sqlx::query(
        "with made as (
            insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages)
            values ('', '', 'paused', 'own', 2, 1, '[]') returning id
         )
         insert into flyball.batch_message (job_id, batch_id) select $1, id from made",
    )
    .bind(id)
    .execute(pool)
    .await
    .unwrap();
    let taken = "select coalesce(sum(cardinality(sent)), 0)::bigint from flyball.cap";
    let verdict = gates.gates.verify(id).await.unwrap().unwrap();
    assert_eq!((verdict.plan, verdict.is_paused), (MessagePlan::Send, true));
    assert_eq!(gates.count(taken).await, 0);

    sqlx::query("update flyball.batch set state = 'running'")
        .execute(pool)
        .await
        .unwrap();
    let verdict = gates.gates.verify(id).await.unwrap().unwrap();
    assert_eq!(
        (verdict.plan, verdict.is_paused),
        (MessagePlan::Send, false)
    );
    assert_eq!(gates.count(taken).await, 1);
}

/// A worker that cuts an attempt off while its request is under way settles nothing.
#[tokio::test]
async fn a_message_whose_attempt_was_cut_off_makes_an_equal_one_a_duplicate() {
    let gates = GatesFixture::new("").await;
    let message = || json!({"category": "billing", "dedup_key": "same"});
    let (first, plan) = gates.planned(message()).await;
    assert_eq!(plan, MessagePlan::Send);
    let queue = &gates.fixture.queue;
    let new = NewWorker {
        name: "w".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(60),
        kinds: vec!["notification".to_owned()],
    };
    let worker = queue.register(&new).await.unwrap();
    let lanes = queue.ready_lanes().await.unwrap();
    let claims: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 1))
        .collect();
    let claimed = queue.claim(worker, 7, &claims).await.unwrap();
    assert_eq!(claimed[0].job.id, first);
    assert_eq!(gates.verify(first).await, MessagePlan::Send);
    let ending = Ending::Ambiguous {
        delay: None,
        error: "timed out".to_owned(),
    };
    let cut_off = Finish {
        job_id: first,
        fence: 7,
        ending,
    };
    queue.finish(&[cut_off]).await.unwrap();
    assert_eq!(gates.fixture.state(first).await, State::Dead);

    let (_, equal) = gates.planned(message()).await;
    assert!(matches!(equal, MessagePlan::Ended { .. }), "{equal:?}");
    sqlx::query("update flyball.attempt set finished_at = clock_timestamp() - interval '1 hour'")
        .execute(gates.fixture.database.pool())
        .await
        .unwrap();
    assert_eq!(gates.planned(message()).await.1, MessagePlan::Send);
}
