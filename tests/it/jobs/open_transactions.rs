//! Open transactions of producers: the runner waits for none of them.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, LaneClaim};
use flyball::jobs::{CancelAnswer, NewJob, OnceAnswer, Queue, State};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, Row};

use super::fixture::{FENCE, claim_all, end, enqueue_one, http, queue, state, worker};

const HOUR: Duration = Duration::from_secs(3600);

/// Makes two jobs the messages of a running batch; returns its number.
async fn batch_of(queue: &Queue, jobs: Vec<i64>) -> i64 {
    sqlx::query_scalar(
        "with sent as (
            insert into flyball.batch (tenant, module, state, pool, priority, recipients, messages)
            values ('acme', '', 'running', 'p', 2, 2, '[]') returning id
         ),
         members as (
            insert into flyball.batch_message (job_id, batch_id) select unnest($1::bigint[]), id from sent
         )
         select id from sent",
    )
    .bind(jobs)
    .fetch_one(&queue.pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn no_statement_waits_long_for_a_lock_whatever_the_database_has_as_its_default() {
    let (database, first) = queue().await;
    let alter = "do $$ begin execute format('alter database %I set default_transaction_isolation = serializable', current_database()); end $$";
    database.superuser().execute(alter).await.unwrap();
    let queue = Queue::connect(database.url(), 2, Duration::from_secs(20))
        .await
        .unwrap();
    let set = sqlx::query(
        "select current_setting('lock_timeout') as patience, current_setting('transaction_isolation') as isolation",
    )
    .fetch_one(&queue.pool)
    .await
    .unwrap();
    let set: (String, String) = (set.get("patience"), set.get("isolation"));
    assert_eq!(set, ("3s".to_owned(), "read committed".to_owned()));

    let id = enqueue_one(&first, http()).await;
    let mut open = database.pool().begin().await.unwrap();
    sqlx::query("select flyball.cancel($1)")
        .bind(id)
        .execute(&mut *open)
        .await
        .unwrap();
    let error = queue.cancel(id).await.unwrap_err();
    assert!(
        error.was_broken_off() && error.was_locked_out(),
        "{error:?}"
    );
    open.rollback().await.unwrap();
    assert_eq!(queue.cancel(id).await.unwrap(), CancelAnswer::Cancelled);
}

#[tokio::test]
async fn no_end_of_an_attempt_waits_for_a_request_to_cancel_that_is_locked() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, Duration::from_secs(30)).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(enqueue_one(&queue, http()).await);
    }
    assert_eq!(claim_all(&queue, worker, FENCE, 9).await.len(), 3);
    let mut open = database.pool().begin().await.unwrap();
    for id in &ids {
        assert_eq!(queue.cancel(*id).await.unwrap(), CancelAnswer::Requested);
        sqlx::query("select flyball.cancel($1)")
            .bind(id)
            .execute(&mut *open)
            .await
            .unwrap();
    }
    let free: i64 = sqlx::query_scalar(
        "select count(*) from (select from flyball.cancel for update skip locked) f",
    )
    .fetch_one(&queue.pool)
    .await
    .unwrap();
    assert_eq!(free, 3, "a repeated request locks none");
    open.execute("select from flyball.cancel for update")
        .await
        .unwrap();

    let failed = Ending::Failed {
        delay: HOUR,
        error: "boom".into(),
    };
    let kept = queue.finish(&[end(ids[0], FENCE, failed)]).await.unwrap();
    assert_eq!(kept, [ids[0]]);
    queue.put_back(worker, FENCE, &ids[1..2]).await.unwrap();
    assert_eq!(queue.retire(worker).await.unwrap(), 0);

    for id in ids {
        assert_eq!(state(&queue, id).await, State::Cancelled);
    }
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn a_cancellation_is_carried_out_though_its_request_is_locked() {
    let (database, queue) = queue().await;
    let id = enqueue_one(&queue, http()).await;
    sqlx::query("insert into flyball.cancel (job_id) values ($1)")
        .bind(id)
        .execute(&queue.pool)
        .await
        .unwrap();
    let mut open = database.pool().begin().await.unwrap();
    open.execute("select from flyball.cancel for update")
        .await
        .unwrap();

    assert_eq!(queue.carry_out_cancels().await.unwrap(), 1);

    assert_eq!(state(&queue, id).await, State::Cancelled);
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn a_callback_whose_key_an_open_transaction_has_puts_off_the_end_of_its_group_alone() {
    let (database, queue) = queue().await;
    let mut groups: Vec<i64> = Vec::new();
    for callback in [
        json!({"kind": "http", "args": {"url": "http://127.0.0.1/"}, "unique_key": "then"}),
        json!({"kind": "http", "args": {"url": "http://127.0.0.1/"}}),
    ] {
        let created = sqlx::query_scalar("select group_id from flyball.create_group($1)");
        let created = created.bind(callback).fetch_one(database.pool()).await;
        groups.push(created.unwrap());
    }
    let mut open = database.pool().begin().await.unwrap();
    open.execute(
        "select flyball.enqueue('http', '{\"url\": \"http://127.0.0.1/\"}', unique_key => 'then')",
    )
    .await
    .unwrap();

    let mut answers: Vec<String> = Vec::new();
    for group in &groups {
        let sealed = sqlx::query_scalar("select flyball.seal_group($1)").bind(group);
        answers.push(sealed.fetch_one(database.pool()).await.unwrap());
    }

    assert_eq!(answers, ["sealed", "ended"]);
    let problem: String =
        sqlx::query_scalar("select callback_problem from flyball.job_group where id = $1")
            .bind(groups[0])
            .fetch_one(&queue.pool)
            .await
            .unwrap();
    assert!(problem.contains("open transaction"), "{problem}");
    open.rollback().await.unwrap();
    queue
        .pool
        .execute("update flyball.job_group set retry_at = now() where retry_at is not null")
        .await
        .unwrap();
    assert_eq!(queue.settle_groups().await.unwrap(), 1);
}

#[tokio::test]
async fn callbacks_that_all_need_one_locked_key_do_not_hold_up_the_end_of_others() {
    let (database, queue) = queue().await;
    let free: i64 = sqlx::query_scalar("select group_id from flyball.create_group()")
        .fetch_one(database.pool())
        .await
        .unwrap();
    database
        .pool()
        .execute(
            "select count(g.group_id) from generate_series(1, 150) n
             cross join lateral flyball.create_group('{\"kind\": \"http\", \"unique_key\": \"then\"}', n::text) g;
             update flyball.job_group set sealed_at = now(), retry_at = case when callback is not null then now() end",
        )
        .await
        .unwrap();
    sqlx::query("insert into flyball.group_change (group_id) values ($1)")
        .bind(free)
        .execute(&queue.pool)
        .await
        .unwrap();
    let mut open = database.pool().begin().await.unwrap();
    open.execute("select flyball.enqueue('http', unique_key => 'then')")
        .await
        .unwrap();

    let settled = sqlx::query("select ended, more from flyball.settle_groups()")
        .fetch_one(&queue.pool)
        .await
        .unwrap();

    let settled: (i32, bool) = (settled.get("ended"), settled.get("more"));
    assert_eq!(settled, (1, true));
    let refused: i64 = sqlx::query_scalar(
        "select count(*) from flyball.job_group where callback_problem is not null",
    )
    .fetch_one(&queue.pool)
    .await
    .unwrap();
    assert!(
        (1..100).contains(&refused),
        "{refused} were tried in one call"
    );
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn what_a_sweep_finds_locked_is_left_and_the_rest_is_swept() {
    let (database, queue) = queue().await;
    queue
        .pool
        .execute(
            "insert into flyball.pending (tenant, job_id) select t, n from unnest(array['acme', 'zulu']) t, generate_series(1, 3) n",
        )
        .await
        .unwrap();
    let mut open = database.pool().begin().await.unwrap();
    open.execute(
        "delete from flyball.pending where tenant = 'acme' and job_id = 2;
         insert into flyball.tenant_drain (tenant, ended, swept_to) values ('acme', 1, 0)",
    )
    .await
    .unwrap();

    assert_eq!(queue.sweep_pending().await.unwrap(), 5);

    open.rollback().await.unwrap();
    assert_eq!(queue.sweep_pending().await.unwrap(), 1);
}

#[tokio::test]
async fn a_stranger_who_keeps_an_advisory_lock_keeps_no_tenant_from_sending() {
    let (database, queue) = queue().await;
    let mut stranger = database.pool().begin().await.unwrap();
    stranger
        .execute("select pg_advisory_lock(hashtextextended('flyball.pending acme', 0))")
        .await
        .unwrap();

    let mut sender = queue.pool.begin().await.unwrap();
    sender
        .execute(
            "insert into flyball.tenant_limit (tenant, max_pending) values ('acme', 10);
             select flyball.record_pending('notify', 'acme', array[1::bigint, 2], false)",
        )
        .await
        .unwrap();
    sender.commit().await.unwrap();

    let pending: i64 =
        sqlx::query_scalar("select count(*) from flyball.pending where tenant = 'acme'")
            .fetch_one(&queue.pool)
            .await
            .unwrap();
    assert_eq!(pending, 2);
    stranger
        .execute("select pg_advisory_unlock_all()")
        .await
        .unwrap();
}

#[tokio::test]
async fn a_stranger_who_knows_the_key_of_a_request_cannot_have_it_refused_as_running() {
    let (database, queue) = queue().await;
    let (keyed, unkeyed, body) = ([7_u8; 32], [8_u8; 32], [9_u8; 32]);
    let mut stranger = database.pool().begin().await.unwrap();
    // The name that the lock would have without a secret.
    let lock = "select pg_advisory_xact_lock(hashtextextended('flyball.request ' || encode($1, 'hex'), 0))";
    for digest in [&keyed[..], &unkeyed[..]] {
        sqlx::query(lock)
            .bind(digest)
            .execute(&mut *stranger)
            .await
            .unwrap();
    }

    let sender = ("tenant:acme", "web");
    let request = (&keyed[..], &body[..]);
    let enqueued = queue.enqueue_once(sender, &http(), request).await;
    assert!(matches!(enqueued.unwrap(), OnceAnswer::Enqueued(_)));
    let accepted: Vec<String> = sqlx::query_scalar(
        "select answer from flyball.accept_excess('acme', 'web', array[$1::bytea], array[$2::bytea], '{f}',
            array['{\"channel\": \"sms\", \"to\": \"+15550100\", \"body\": \"x\"}'::jsonb], '{p}', '{\"\"}', '{2}', '{null}')",
    )
    .bind(&unkeyed[..])
    .bind(&body[..])
    .fetch_all(&queue.pool)
    .await
    .unwrap();
    assert_eq!(accepted, ["new"]);
    stranger.rollback().await.unwrap();

    // The lock of the request itself is kept until its transaction ends.
    let mut first = database.pool().begin().await.unwrap();
    let find = "select answer from flyball.find_request($1, '', true, true)";
    let new: String = sqlx::query_scalar(find)
        .bind(&body[..])
        .fetch_one(&mut *first)
        .await
        .unwrap();
    let request = (&body[..], &body[..]);
    let repeated = queue.enqueue_once(sender, &http(), request).await;
    assert_eq!(new, "new");
    assert!(matches!(repeated.unwrap(), OnceAnswer::Running));
    first.rollback().await.unwrap();
}

#[tokio::test]
async fn a_lane_that_somebody_adds_just_now_is_named_and_the_others_are_written() {
    let (database, queue) = queue().await;
    let ids = [
        enqueue_one(&queue, http().throttle("one")).await,
        enqueue_one(&queue, http().throttle("two")).await,
    ];
    let mut open = database.pool().begin().await.unwrap();
    sqlx::query(
        "insert into flyball.lane (lane_id, throttle, key) select lane_id, throttle, key from flyball.job where id = $1",
    )
    .bind(ids[0])
    .execute(&mut *open)
    .await
    .unwrap();

    let lanes = queue.ready_lanes().await.unwrap();

    let mut named: Vec<&str> = lanes.iter().map(|lane| lane.throttle.as_str()).collect();
    named.sort_unstable();
    assert_eq!(named, ["one", "two"]);
    let written: Vec<String> = sqlx::query_scalar("select throttle from flyball.lane")
        .fetch_all(&queue.pool)
        .await
        .unwrap();
    assert_eq!(written, ["two"]);
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn requeued_are_all_messages_but_those_whose_key_an_open_transaction_has() {
    let (database, queue) = queue().await;
    for key in ["u0", "u1", "u2"] {
        let job = NewJob {
            unique_key: Some(key.to_owned()),
            ..http()
        };
        enqueue_one(&queue, job).await;
    }
    queue
        .pool
        .execute(
            "with gone as (delete from flyball.ready returning *),
             dead as (
                insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
                select job_id, lane_id, priority, 1, cost, 'no account' from gone
             )
             insert into flyball.delivery (job_id, channel, pool, state, unsent, updated_at)
             select job_id, 'sms', 'p', 'failed', true, now() - interval '1 hour' from gone",
        )
        .await
        .unwrap();
    // The keys that died are free; one of them is taken by somebody who does not commit.
    let digests: Vec<Vec<u8>> =
        sqlx::query_scalar("delete from flyball.unique_holder returning digest")
            .fetch_all(&queue.pool)
            .await
            .unwrap();
    let mut open = database.pool().begin().await.unwrap();
    sqlx::query("insert into flyball.unique_holder (digest, job_id) values ($1, 1)")
        .bind(&digests[0])
        .execute(&mut *open)
        .await
        .unwrap();
    let requeue = async || {
        let row = sqlx::query("select jobs, skipped from flyball.requeue_unsent('p', 10)")
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        (row.get::<i64, _>("jobs"), row.get::<i64, _>("skipped"))
    };

    assert_eq!(requeue().await, (2, 1));
    open.rollback().await.unwrap();
    assert_eq!(requeue().await, (1, 0));
}

#[tokio::test]
async fn a_message_of_a_resumed_batch_that_is_wanted_years_from_now_keeps_its_time() {
    let (_database, queue) = queue().await;
    let far = enqueue_one(&queue, http().run_in(3200 * 24 * HOUR)).await;
    let paused = enqueue_one(&queue, http()).await;
    let batch = batch_of(&queue, vec![far, paused]).await;

    for (change, told) in [
        ("select flyball.pause_batch(null, $1)", "paused"),
        ("select flyball.resume_batch(null, $1)", "running"),
    ] {
        let state: String = sqlx::query_scalar(change)
            .bind(batch)
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        assert_eq!(state, told);
    }

    let due: Vec<i64> =
        sqlx::query_scalar("select job_id from flyball.scheduled where run_at <= now()")
            .fetch_all(&queue.pool)
            .await
            .unwrap();
    assert_eq!(due, [paused]);
}

#[tokio::test]
async fn a_batch_is_cancelled_though_an_open_transaction_has_one_of_its_messages() {
    let (database, queue) = queue().await;
    let held = enqueue_one(&queue, http().run_in(HOUR)).await;
    let other = enqueue_one(&queue, http().run_in(HOUR)).await;
    let batch = batch_of(&queue, vec![held, other]).await;
    let mut open = database.pool().begin().await.unwrap();
    sqlx::query("select from flyball.scheduled where job_id = $1 for update")
        .bind(held)
        .execute(&mut *open)
        .await
        .unwrap();

    let told: (String, i32) =
        sqlx::query_as("select state, cancelled from flyball.cancel_batch(null, $1)")
            .bind(batch)
            .fetch_one(&queue.pool)
            .await
            .unwrap();

    assert_eq!(told, ("cancelled".to_owned(), 1));
    open.rollback().await.unwrap();
}

#[tokio::test]
async fn a_requeued_dead_letter_runs_though_a_cancellation_was_committed_after_its_last_attempt() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, HOUR).await;
    let ids = [
        enqueue_one(&queue, http()).await,
        enqueue_one(&queue, http()).await,
    ];
    claim_all(&queue, worker, FENCE, 2).await;
    let mut open = database.pool().begin().await.unwrap();
    for id in ids {
        let asked: String = sqlx::query_scalar("select flyball.cancel($1)")
            .bind(id)
            .fetch_one(&mut *open)
            .await
            .unwrap();
        assert_eq!(asked, "requested");
    }
    let ends = ids.map(|id| {
        let error = "no".to_owned();
        end(id, FENCE, Ending::Dead { error })
    });
    queue.finish(&ends).await.unwrap();
    open.commit().await.unwrap();

    sqlx::query("select flyball.retry($1)")
        .bind(ids[0])
        .execute(&queue.pool)
        .await
        .unwrap();
    sqlx::query("select * from flyball.requeue_dead(kind => 'http')")
        .execute(&queue.pool)
        .await
        .unwrap();

    let lanes = queue.ready_lanes().await.unwrap();
    let claims: Vec<LaneClaim> = lanes
        .iter()
        .map(|lane| LaneClaim::first(lane.lane_id, 2))
        .collect();
    let claimed = queue.claim(worker, FENCE, &claims).await.unwrap();
    let cancelled: Vec<bool> = claimed.iter().map(|one| one.cancelled).collect();
    assert_eq!(cancelled, [false, false]);
}

#[tokio::test]
async fn no_function_that_others_call_takes_its_path_or_its_texts_from_their_session() {
    let (_database, queue) = queue().await;
    let open: Vec<String> = sqlx::query_scalar(
        "select p.oid::regprocedure::text from pg_proc p
         where p.pronamespace = 'flyball'::regnamespace and (p.prosecdef or p.prorettype = 'trigger'::regtype)
            and not coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp', 'standard_conforming_strings=on']
         order by 1",
    )
    .fetch_all(&queue.pool)
    .await
    .unwrap();
    assert_eq!(open, [""; 0]);
}

#[tokio::test]
async fn a_database_that_grants_no_temporary_tables_is_refused_with_the_remedy() {
    let (database, queue) = queue().await;
    let (role, name): (String, String) =
        sqlx::query_as("select quote_ident(current_user), quote_ident(current_database())")
            .fetch_one(&queue.pool)
            .await
            .unwrap();
    let revoke = format!("revoke temporary on database {name} from public, {role}");
    database
        .superuser()
        .execute(AssertSqlSafe(revoke))
        .await
        .unwrap();

    let refused = queue.migrate().await.unwrap_err().to_string();

    assert!(
        refused.contains(&format!("grant temporary on database {name} to {role}")),
        "{refused}"
    );
}
