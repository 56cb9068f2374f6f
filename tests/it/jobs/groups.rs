//! Groups: counts, ends and callbacks, whatever ends the jobs and whatever dies.

use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::postgres::{Ending, Retention, STATEMENTS};
use flyball::jobs::{
    Attribution, Client, GroupFilter, GroupState, JobGroup, NewGroup, NewJob, Queue, SealAnswer,
    State,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::Barrier;

use super::fixture::{
    FENCE, claim_all, dead, enqueue_one, finish, http, queue, run, state, worker,
};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(20);

/// A callback of a kind of its own, so that its jobs can be told from the members.
fn callback() -> NewJob {
    NewJob::new("report", json!({"to": "ada"})).throttle("callbacks")
}

async fn open_group(queue: &Queue) -> i64 {
    run(&queue.pool, "select flyball.register_kind('report')").await;
    let group = NewGroup::then(callback()).name("import");
    let created = Client.create_group(&queue.pool, &group).await.unwrap();
    created.id
}

/// Creates a sealed group of so many jobs; returns its number and theirs.
async fn sealed_group(queue: &Queue, jobs: usize) -> (i64, Vec<i64>) {
    let id = open_group(queue).await;
    let jobs = vec![http().group(id); jobs];
    let ids = queue.enqueue(&jobs).await.unwrap();
    assert_eq!(
        queue.seal_group(id, None).await.unwrap(),
        SealAnswer::Sealed
    );
    (id, ids.iter().map(|one| one.id).collect())
}

async fn group(queue: &Queue, id: i64) -> JobGroup {
    queue.group(id, None).await.unwrap().unwrap()
}

/// The counts of a group: jobs, pending, completed, dead, cancelled.
async fn counts(queue: &Queue, id: i64) -> [i64; 5] {
    let group = group(queue, id).await;
    [
        group.jobs,
        group.pending,
        group.completed,
        group.dead,
        group.cancelled,
    ]
}

/// The arguments of all callbacks that were ever enqueued.
async fn callbacks(queue: &Queue) -> Vec<Value> {
    sqlx::query_scalar("select args from flyball.job where kind = 'report' order by id")
        .fetch_all(&queue.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_callback_goes_once_when_eight_processes_end_the_last_jobs_at_once() {
    let (database, queue) = queue().await;
    for round in 1..=10 {
        let (id, jobs) = sealed_group(&queue, 8).await;
        let worker = worker(&queue, SOON).await;
        assert_eq!(claim_all(&queue, worker, FENCE, 9).await.len(), 8);
        let barrier = Arc::new(Barrier::new(8));
        let each = jobs.into_iter().map(|job| {
            let (barrier, url) = (barrier.clone(), database.url().to_owned());
            tokio::spawn(async move {
                let queue = Queue::connect(&url, 1, SOON).await.unwrap();
                barrier.wait().await;
                finish(&queue, job, Ending::Completed).await;
                queue.settle_groups().await.unwrap();
            })
        });
        for one in each.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        // The settlement of the last end may have met the lock of another one.
        queue.settle_groups().await.unwrap();

        let ended = group(&queue, id).await;
        assert_eq!(ended.state, GroupState::Ended, "{ended:?}");
        assert_eq!(counts(&queue, id).await, [8, 0, 8, 0, 0]);
        assert_eq!(callbacks(&queue).await.len(), round, "one for each group");
        let job = ended.callback_job_id.unwrap();
        let callback = queue.get(job).await.unwrap().unwrap();
        assert_eq!(callback.summary.throttle, "callbacks");
        assert_eq!(callback.summary.group, None);
        run(&queue.pool, "delete from flyball.ready").await;
    }
}

#[tokio::test]
async fn a_callback_gets_the_counts_of_its_group() {
    let (_database, queue) = queue().await;
    let (id, jobs) = sealed_group(&queue, 3).await;
    let worker = worker(&queue, SOON).await;
    claim_all(&queue, worker, FENCE, 9).await;
    finish(&queue, jobs[0], Ending::Completed).await;
    finish(&queue, jobs[1], dead()).await;
    finish(&queue, jobs[2], Ending::Cancelled).await;
    assert!(callbacks(&queue).await.is_empty(), "nobody has settled yet");

    assert_eq!(queue.settle_groups().await.unwrap(), 1);

    let counts =
        json!({"id": id, "name": "import", "jobs": 3, "completed": 1, "dead": 1, "cancelled": 1});
    assert_eq!(
        callbacks(&queue).await,
        [json!({"to": "ada", "group": counts})]
    );
    assert_eq!(queue.settle_groups().await.unwrap(), 0);
}

#[tokio::test]
async fn the_counts_are_in_the_body_of_a_request_and_other_built_in_kinds_get_none() {
    let (database, queue) = queue().await;
    let with = async |args: Value, kind: &str| -> Value {
        sqlx::query_scalar("select flyball.callback_with(jsonb_build_object('kind', $1::text, 'args', $2::jsonb), '{\"id\": 7}') -> 'args'")
            .bind(kind)
            .bind(args)
            .fetch_one(database.pool())
            .await
            .unwrap()
    };
    let group = json!({"id": 7});
    for (kind, args, wanted) in [
        ("own", json!({"a": 1}), json!({"a": 1, "group": group})),
        ("own", json!({"group": "mine"}), json!({"group": "mine"})),
        ("own", json!([1]), json!([1])),
        ("http", json!({"url": "u"}), json!({"url": "u"})),
        (
            "http",
            json!({"method": "post", "url": "u"}),
            json!({"method": "post", "url": "u", "body": {"group": group}}),
        ),
        (
            "http",
            json!({"method": "PUT", "body": {"a": 1}}),
            json!({"method": "PUT", "body": {"a": 1, "group": group}}),
        ),
        (
            "http",
            json!({"method": "POST", "body": "text"}),
            json!({"method": "POST", "body": "text"}),
        ),
        (
            "http",
            json!({"method": "POST", "template": "{{ group.id }}"}),
            json!({"method": "POST", "template": "{{ group.id }}", "data": {"group": group}}),
        ),
        ("notification", json!({"a": 1}), json!({"a": 1})),
    ] {
        assert_eq!(with(args.clone(), kind).await, wanted, "{kind} {args}");
    }
    // The field of a secret is its only one.
    let marked = json!({"$encrypted": "v1.4be1f0a2.x"});
    for (kind, args) in [
        ("own", marked.clone()),
        ("http", json!({"method": "POST", "body": marked})),
        ("http", json!({"template": "t", "data": {"$secret": 1}})),
    ] {
        assert_eq!(with(args.clone(), kind).await, args, "{kind}");
    }
    drop(queue);
}

#[tokio::test]
async fn a_group_is_sealed_with_its_jobs_or_empty_and_ends_in_the_transaction_of_the_seal() {
    let (_database, queue) = queue().await;
    let id = open_group(&queue).await;
    assert_eq!(group(&queue, id).await.state, GroupState::Open);
    let mut connection = queue.pool.acquire().await.unwrap();
    let mut open = connection.begin().await.unwrap();
    let sealed = Client.seal_group(&mut *open, id).await.unwrap();
    assert_eq!(sealed, SealAnswer::Ended, "no job joined");
    open.rollback().await.unwrap();
    assert_eq!(group(&queue, id).await.state, GroupState::Open);
    assert!(callbacks(&queue).await.is_empty());

    for answer in [SealAnswer::Ended, SealAnswer::Already] {
        assert_eq!(queue.seal_group(id, None).await.unwrap(), answer);
    }
    assert_eq!(callbacks(&queue).await.len(), 1);
    assert_eq!(
        queue.seal_group(7_000, None).await.unwrap(),
        SealAnswer::NotFound
    );

    // All at once.
    let whole = NewGroup::then(callback()).jobs(vec![http(), http().unique("a"), http()]);
    let created = Client.create_group(&queue.pool, &whole).await.unwrap();
    assert_eq!(
        (created.jobs.len(), counts(&queue, created.id).await),
        (3, [3, 3, 0, 0, 0])
    );
    assert!(created.jobs.iter().all(|job| !job.duplicate));
    assert_eq!(group(&queue, created.id).await.state, GroupState::Running);
    let first = queue.get(created.jobs[0].id).await.unwrap().unwrap();
    assert_eq!(first.summary.group, Some(created.id));
    let again = Client.create_group(&queue.pool, &whole).await.unwrap();
    assert_eq!(
        (again.jobs[1].duplicate, counts(&queue, again.id).await),
        (true, [2, 2, 0, 0, 0]),
        "the job of another group is not counted twice"
    );
    let none = NewGroup::default().jobs(Vec::new());
    let none = Client.create_group(&queue.pool, &none).await.unwrap();
    assert_eq!(group(&queue, none.id).await.state, GroupState::Ended);
}

#[tokio::test]
async fn a_job_that_is_rolled_back_never_joined_and_an_end_that_is_rolled_back_is_none() {
    let (_database, queue) = queue().await;
    let (id, jobs) = sealed_group(&queue, 1).await;
    let mut connection = queue.pool.acquire().await.unwrap();
    let mut open = connection.begin().await.unwrap();
    let cancel = format!("select flyball.cancel({})", jobs[0]);
    open.execute(AssertSqlSafe(cancel.clone())).await.unwrap();
    assert_eq!(queue.settle_groups().await.unwrap(), 0, "it may come back");
    open.rollback().await.unwrap();
    assert_eq!(queue.settle_groups().await.unwrap(), 0);
    assert_eq!(counts(&queue, id).await, [1, 1, 0, 0, 0]);

    run(&queue.pool, &cancel).await;
    assert_eq!(queue.settle_groups().await.unwrap(), 1);
    assert_eq!(counts(&queue, id).await, [1, 0, 0, 0, 1]);

    let second = open_group(&queue).await;
    let mut open = connection.begin().await.unwrap();
    let job = http().group(second);
    Client.enqueue(&mut *open, job).await.unwrap();
    open.rollback().await.unwrap();
    assert_eq!(
        queue.seal_group(second, None).await.unwrap(),
        SealAnswer::Ended
    );
    assert_eq!(counts(&queue, second).await, [0; 5]);
}

#[tokio::test]
async fn a_seal_waits_for_who_adds_jobs_and_nothing_else_does() {
    let (database, queue) = queue().await;
    let id = open_group(&queue).await;
    let first = enqueue_one(&queue, http().group(id)).await;
    let worker = worker(&queue, SOON).await;
    claim_all(&queue, worker, FENCE, 1).await;
    let mut connection = queue.pool.acquire().await.unwrap();
    let mut open = connection.begin().await.unwrap();
    let job = http().group(id);
    Client.enqueue(&mut *open, job.clone()).await.unwrap();

    // While that transaction is open, jobs join, end and are counted.
    enqueue_one(&queue, job.clone()).await;
    finish(&queue, first, Ending::Completed).await;
    queue.settle_groups().await.unwrap();
    assert_eq!(counts(&queue, id).await, [2, 1, 1, 0, 0]);

    let sealing = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.seal_group(id, None).await.unwrap() })
    };
    eventually("the seal waits", SOON, || async {
        let sql = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%seal_group_of%'";
        let waits: i64 = sqlx::query_scalar(sql)
            .fetch_one(database.pool())
            .await
            .unwrap();
        (waits > 0).then_some(())
    })
    .await;
    open.commit().await.unwrap();
    assert_eq!(sealing.await.unwrap(), SealAnswer::Sealed);
    assert_eq!(counts(&queue, id).await, [3, 2, 1, 0, 0]);
}

#[tokio::test]
async fn dead_discarded_dropped_and_requeued_members_are_counted_as_what_they_are() {
    let (_database, queue) = queue().await;
    let (id, jobs) = sealed_group(&queue, 4).await;
    let worker = worker(&queue, SOON).await;
    let claimed = claim_all(&queue, worker, FENCE, 9).await;
    assert_eq!(claimed.len(), 4);
    let signed = Attribution::default();
    finish(&queue, jobs[0], dead()).await;
    finish(
        &queue,
        jobs[1],
        Ending::Failed {
            delay: Duration::ZERO,
            error: "again".into(),
        },
    )
    .await;
    finish(&queue, jobs[2], Ending::HandedBack).await;
    queue.settle_groups().await.unwrap();
    assert_eq!(counts(&queue, id).await, [4, 3, 0, 1, 0]);

    // A dead letter that is requeued before the end is pending again.
    queue.retry(jobs[0]).await.unwrap();
    assert_eq!(counts(&queue, id).await, [4, 4, 0, 0, 0]);
    claim_all(&queue, worker, FENCE, 9).await;
    finish(&queue, jobs[0], dead()).await;
    queue.discard(jobs[0], &signed).await.unwrap();
    assert_eq!(counts(&queue, id).await, [4, 3, 0, 0, 1]);
    // An outcome that a throttle drops.
    let dropped = format!(
        "with gone as (delete from flyball.lease where job_id = {} returning job_id, attempt)
         insert into flyball.attempt (job_id, attempt, outcome) select job_id, attempt, 'dropped' from gone",
        jobs[2]
    );
    run(&queue.pool, &dropped).await;
    assert_eq!(counts(&queue, id).await, [4, 2, 0, 0, 2]);
    finish(&queue, jobs[3], dead()).await;
    queue.cancel(jobs[1]).await.unwrap();
    assert_eq!(queue.settle_groups().await.unwrap(), 1);
    assert_eq!(counts(&queue, id).await, [4, 0, 0, 1, 3]);
    assert_eq!(callbacks(&queue).await.len(), 1);

    // After the end, the counts follow and the callback does not go again.
    queue.retry(jobs[3]).await.unwrap();
    assert_eq!(counts(&queue, id).await, [4, 1, 0, 0, 3]);
    let claimed = claim_all(&queue, worker, FENCE, 9).await;
    assert!(claimed.contains(&jobs[3]));
    finish(&queue, jobs[3], Ending::Completed).await;
    assert_eq!(queue.settle_groups().await.unwrap(), 0);
    assert_eq!(counts(&queue, id).await, [4, 0, 1, 0, 3]);
    assert_eq!(group(&queue, id).await.state, GroupState::Ended);
    assert_eq!(callbacks(&queue).await.len(), 1);
}

#[tokio::test]
async fn the_last_job_of_a_killed_worker_ends_its_group() {
    let (_database, queue) = queue().await;
    let id = open_group(&queue).await;
    enqueue_one(&queue, http().group(id).max_attempts(1)).await;
    queue.seal_group(id, None).await.unwrap();
    let worker = worker(&queue, SOON).await;
    claim_all(&queue, worker, FENCE, 9).await;
    let dies = "update flyball.worker set heartbeat_at = now() - interval '1 day'";
    run(&queue.pool, dies).await;

    assert_eq!(queue.rescue().await.unwrap().dead.len(), 1);

    assert_eq!(queue.settle_groups().await.unwrap(), 1);
    assert_eq!(counts(&queue, id).await, [1, 0, 0, 1, 0]);
    assert_eq!(callbacks(&queue).await.len(), 1);
}

#[tokio::test]
async fn a_settlement_that_dies_half_way_is_done_again_by_the_next() {
    let (database, queue) = queue().await;
    let (id, jobs) = sealed_group(&queue, 2).await;
    for job in &jobs {
        queue.cancel(*job).await.unwrap();
    }
    let mut doomed = PgConnection::connect(database.url()).await.unwrap();
    doomed
        .execute("begin; select flyball.settle_groups()")
        .await
        .unwrap();
    // What it holds is left to it.
    assert_eq!(queue.settle_groups().await.unwrap(), 0);
    assert_eq!(group(&queue, id).await.state, GroupState::Running);
    doomed.close().await.unwrap();

    eventually("the next one ends it", SOON, || async {
        (queue.settle_groups().await.unwrap() == 1).then_some(())
    })
    .await;
    assert_eq!(counts(&queue, id).await, [2, 0, 0, 0, 2]);
    assert_eq!(callbacks(&queue).await.len(), 1);
}

#[tokio::test]
async fn a_callback_that_is_refused_is_shown_and_tried_again() {
    let (_database, queue) = queue().await;
    let (id, jobs) = sealed_group(&queue, 1).await;
    run(
        &queue.pool,
        "delete from flyball.kind where name = 'report'",
    )
    .await;
    queue.cancel(jobs[0]).await.unwrap();

    assert_eq!(queue.settle_groups().await.unwrap(), 0);
    let waiting = group(&queue, id).await;
    let problem = waiting.callback_problem.unwrap();
    assert!(
        problem
            .starts_with("callback.kind: \"report\" is not a kind that any worker has registered"),
        "{problem}"
    );
    assert_eq!(waiting.state, GroupState::Running);
    assert_eq!(queue.settle_groups().await.unwrap(), 0, "not yet again");

    run(
        &queue.pool,
        "select flyball.register_kind('report'); update flyball.job_group set retry_at = now() - interval '1 second'",
    )
    .await;
    assert_eq!(queue.settle_groups().await.unwrap(), 1);
    let ended = group(&queue, id).await;
    assert_eq!(
        (ended.state, ended.callback_problem),
        (GroupState::Ended, None)
    );
}

#[tokio::test]
async fn a_cancelled_group_ends_when_its_running_jobs_have_stopped() {
    let (_database, queue) = queue().await;
    let id = open_group(&queue).await;
    let running = enqueue_one(&queue, http().group(id)).await;
    let worker = worker(&queue, SOON).await;
    claim_all(&queue, worker, FENCE, 9).await;
    let later = jiff::Timestamp::from_second(2_000_000_000).unwrap();
    let waiting = enqueue_one(&queue, http().group(id).unique("a")).await;
    let scheduled = enqueue_one(&queue, http().group(id).run_at(later)).await;
    let lost = enqueue_one(&queue, http().group(id)).await;
    run(
        &queue.pool,
        &format!("delete from flyball.ready where job_id = {lost}; delete from flyball.job where id = {lost}"),
    )
    .await;

    let signed = Attribution {
        by: "ada".into(),
        why: "wrong file".into(),
        ..Attribution::default()
    };
    let cancelled = queue.cancel_group(id, &signed).await.unwrap().unwrap();

    assert_eq!(
        (cancelled.cancelled, cancelled.requested, cancelled.more),
        (3, 1, false)
    );
    for job in [waiting, scheduled] {
        assert_eq!(state(&queue, job).await, State::Cancelled);
    }
    let group_now = group(&queue, id).await;
    assert!(group_now.sealed_at.is_some() && group_now.cancelled_at.is_some());
    assert_eq!(counts(&queue, id).await, [4, 1, 0, 0, 3]);
    let again = queue.cancel_group(id, &signed).await.unwrap().unwrap();
    assert_eq!((again.cancelled, again.requested), (0, 0));
    assert!(queue.cancel_group(7_000, &signed).await.unwrap().is_none());
    let audited: i64 = sqlx::query_scalar(
        "select count(*) from flyball.audit where action = 'group.cancel' and actor = 'ada' and why = 'wrong file'",
    )
    .fetch_one(&queue.pool)
    .await
    .unwrap();
    assert_eq!(audited, 1, "a call that changes nothing is none");

    finish(
        &queue,
        running,
        Ending::Failed {
            delay: Duration::ZERO,
            error: "stopped".into(),
        },
    )
    .await;
    assert_eq!(queue.settle_groups().await.unwrap(), 1);
    assert_eq!(counts(&queue, id).await, [4, 0, 0, 0, 4]);
    // Its key is free.
    let next = queue.enqueue(&[http().unique("a")]).await.unwrap();
    assert!(!next[0].duplicate);
}

#[tokio::test]
async fn jobs_of_no_group_touch_nothing_of_groups_when_they_end() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let plain: Vec<NewJob> = vec![http(), http().unique("a"), http()];
    let plain = queue.enqueue(&plain).await.unwrap();
    let (_, members) = sealed_group(&queue, 1).await;
    claim_all(&queue, worker, FENCE, 9).await;
    let complete = STATEMENTS.iter().find(|(name, _)| *name == "complete");
    let finish = STATEMENTS.iter().find(|(name, _)| *name == "finish");
    let (complete, finish) = (complete.unwrap().1, finish.unwrap().1);
    let touched = "select coalesce(sum(coalesce(idx_scan, 0) + coalesce(seq_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
        from pg_stat_xact_user_tables where relname like '%group%'";
    for (jobs, is_touched) in [
        (plain.iter().map(|one| one.id).collect::<Vec<_>>(), false),
        (members, true),
    ] {
        // The counters are those of a session.
        let mut connection = PgConnection::connect(database.url()).await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        let (last, first) = jobs.split_last().unwrap();
        let fences = vec![FENCE; first.len()];
        let completed = sqlx::query(complete).bind(first).bind(fences);
        let completed = completed.fetch_all(&mut *transaction).await.unwrap();
        assert_eq!(completed.len(), first.len());
        let died = sqlx::query(finish)
            .bind([*last])
            .bind([FENCE])
            .bind(["dead".to_owned()])
            .bind([None::<f64>])
            .bind([Some("boom".to_owned())]);
        assert_eq!(died.fetch_all(&mut *transaction).await.unwrap().len(), 1);
        let rows: i64 = sqlx::query_scalar(touched)
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(rows > 0, is_touched, "{jobs:?}: {rows}");
    }
    let ids = plain.iter().map(|one| one.id);
    assert!(ids.into_iter().all(|id| id & 1 == 0), "{plain:?}");
}

#[tokio::test]
async fn groups_go_with_the_history_and_open_ones_stay() {
    let (_database, queue) = queue().await;
    let (old, jobs) = sealed_group(&queue, 1).await;
    let worker = worker(&queue, SOON).await;
    claim_all(&queue, worker, FENCE, 9).await;
    finish(&queue, jobs[0], dead()).await;
    queue.settle_groups().await.unwrap();
    let open = open_group(&queue).await;
    let recent = open_group(&queue).await;
    assert_eq!(
        queue.seal_group(recent, None).await.unwrap(),
        SealAnswer::Ended
    );
    run(
        &queue.pool,
        &format!(
            "update flyball.job_group set created_at = now() - interval '9 days';
            update flyball.job_group set ended_at = now() - interval '8 days' where id = {old}"
        ),
    )
    .await;

    queue.maintain(Retention::days(7)).await.unwrap();

    let ten = GroupFilter {
        limit: 10,
        ..GroupFilter::default()
    };
    let all = queue.groups(&ten).await.unwrap();
    let left: Vec<i64> = all.iter().map(|group| group.id).collect();
    assert_eq!(left, [recent, open]);
    let members: i64 = sqlx::query_scalar("select count(*) from flyball.group_member")
        .fetch_one(&queue.pool)
        .await
        .unwrap();
    assert_eq!(members, 0, "its dead letter is only a dead letter now");
    queue.retry(jobs[0]).await.unwrap();
    queue.settle_groups().await.unwrap();
    assert_eq!(state(&queue, jobs[0]).await, State::Ready);
}

#[tokio::test]
async fn an_open_transaction_that_holds_a_group_holds_up_no_other() {
    let (database, queue) = queue().await;
    let (held, _) = sealed_group(&queue, 1).await;
    let changes = format!(
        "insert into flyball.group_change (group_id) select {held} from generate_series(1, 10001)"
    );
    run(&queue.pool, &changes).await;
    let (free, jobs) = sealed_group(&queue, 1).await;
    let worker = worker(&queue, SOON).await;
    claim_all(&queue, worker, FENCE, 9).await;
    finish(&queue, jobs[0], Ending::Completed).await;
    let mut open = PgConnection::connect(database.url()).await.unwrap();
    let hold = format!("begin; select from flyball.job_group where id = {held} for update");
    let hold = sqlx::raw_sql(AssertSqlSafe(hold));
    open.execute(hold).await.unwrap();

    assert_eq!(queue.settle_groups().await.unwrap(), 1);

    assert_eq!(group(&queue, free).await.state, GroupState::Ended);
}
