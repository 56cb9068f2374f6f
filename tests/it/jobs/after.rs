//! Jobs that run after others: freed once when all have ended, whoever ends them and whenever.

use std::sync::Arc;
use std::time::Duration;

use flyball::jobs::postgres::{Ending, ReleasedJobs, STATEMENTS};
use flyball::jobs::{AfterFailure, Attribution, Client, NewJob, Queue, State};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::Barrier;

use super::fixture::{
    BLOCKED, FENCE, claim_all, count, dead, enqueue_one, finish, http, queue, run, state, worker,
};
use crate::support::eventually;

const SOON: Duration = Duration::from_secs(20);

fn after(jobs: &[i64]) -> NewJob {
    http().key("after").after(jobs.iter().copied())
}

/// Lets the next look at all jobs that are waited for take place at once.
async fn look_at_all(queue: &Queue) -> ReleasedJobs {
    run(
        &queue.pool,
        "update flyball.after_sweep set at = '-infinity'",
    )
    .await;
    queue.release_waiting(&[]).await.unwrap()
}

/// Claims everything and ends one job, which must be among what was claimed.
async fn run_to(queue: &Queue, worker: i32, id: i64, ending: Ending) {
    claim_all(queue, worker, FENCE, 100).await;
    finish(queue, id, ending).await;
}

async fn waits_for(queue: &Queue, id: i64) -> Vec<(i64, State)> {
    let job = queue.get(id).await.unwrap().unwrap();
    let awaited = job.waits_for.iter();
    awaited.map(|one| (one.id, one.state)).collect()
}

#[tokio::test]
async fn a_job_waits_until_all_others_have_ended_and_is_ready_then() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let (first, second) = (
        enqueue_one(&queue, http()).await,
        enqueue_one(&queue, http()).await,
    );
    let waiting = enqueue_one(&queue, after(&[first, second, first])).await;
    let shown = queue.get(waiting).await.unwrap().unwrap();
    assert_eq!(shown.summary.state, State::Scheduled);
    assert_eq!(
        (shown.after, shown.after_failure),
        (vec![first, second], None)
    );
    assert_eq!(shown.summary.due_at, None, "nobody knows when");
    assert_eq!(
        waits_for(&queue, waiting).await,
        [(first, State::Ready), (second, State::Ready)]
    );
    while queue.promote().await.unwrap().jobs > 0 {}

    run_to(&queue, worker, first, Ending::Completed).await;
    let looked = queue.release_waiting(&[first]).await.unwrap();
    assert_eq!((looked.jobs, looked.waiting), (0, true));
    assert_eq!(waits_for(&queue, waiting).await, [(second, State::Running)]);
    finish(
        &queue,
        second,
        Ending::Failed {
            delay: Duration::ZERO,
            error: "again".into(),
        },
    )
    .await;
    assert_eq!(queue.release_waiting(&[second]).await.unwrap().jobs, 0);
    queue.promote().await.unwrap();
    run_to(&queue, worker, second, Ending::Completed).await;

    let released = queue.release_waiting(&[first, second]).await.unwrap();
    assert_eq!(released.jobs, 1);
    assert_eq!(released.lanes.len(), 1);
    assert_eq!(state(&queue, waiting).await, State::Ready);
    assert_eq!(waits_for(&queue, waiting).await, []);
    let after = look_at_all(&queue).await;
    assert_eq!((after.jobs, after.waiting), (0, false));
    assert_eq!(claim_all(&queue, worker, FENCE, 9).await, [waiting]);
}

#[tokio::test]
async fn jobs_that_have_ended_already_are_not_waited_for_and_a_later_time_holds() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let done = enqueue_one(&queue, http()).await;
    run_to(&queue, worker, done, Ending::Completed).await;
    let at_once = enqueue_one(&queue, after(&[done])).await;
    assert_eq!(state(&queue, at_once).await, State::Ready);
    let many = [after(&[done]), http(), after(&[done])];
    for job in queue.enqueue(&many).await.unwrap() {
        assert_eq!(state(&queue, job.id).await, State::Ready);
    }

    let later = jiff::Timestamp::from_second(2_000_000_000).unwrap();
    let open = enqueue_one(&queue, http()).await;
    let held = enqueue_one(&queue, after(&[open]).run_at(later)).await;
    let shown = queue.get(held).await.unwrap().unwrap();
    assert_eq!(shown.summary.due_at, Some(later));
    run_to(&queue, worker, open, Ending::Completed).await;
    assert_eq!(look_at_all(&queue).await.jobs, 1);
    let shown = queue.get(held).await.unwrap().unwrap();
    assert_eq!(
        (shown.summary.state, shown.summary.due_at),
        (State::Scheduled, Some(later))
    );
    run(
        &queue.pool,
        "update flyball.scheduled set run_at = now() - interval '1 second'",
    )
    .await;
    assert_eq!(queue.promote().await.unwrap().jobs, 1);
    assert_eq!(state(&queue, held).await, State::Ready);
}

#[tokio::test]
async fn the_same_job_after_another_by_every_entry_point_waits_the_same() {
    let (database, queue) = queue().await;
    let first = enqueue_one(&queue, http()).await;
    let job = after(&[first])
        .after_failure(AfterFailure::Run)
        .priority(2)
        .cost(2.0);
    let by_columns = queue.enqueue(&[job.clone(), http()]).await.unwrap()[0].id;
    let alone = Client.enqueue(&queue.pool, job.clone()).await.unwrap().id;
    let by_json: i64 = sqlx::query_scalar("select job_id from flyball.enqueue_many($1)")
        .bind(serde_json::json!([job]))
        .fetch_one(database.pool())
        .await
        .unwrap();
    let by_sql: i64 = sqlx::query_scalar(
        "select job_id from flyball.enqueue('http', '{\"url\": \"http://127.0.0.1/\"}', key => 'after', priority => 2, cost => 2,
            after => array[$1::bigint], after_failure => 'run')",
    )
    .bind(first)
    .fetch_one(database.pool())
    .await
    .unwrap();
    let unique = enqueue_one(&queue, job.clone().unique("u")).await;
    let all = [by_columns, alone, by_json, by_sql, unique];
    let rows: Vec<serde_json::Value> = sqlx::query_scalar(
        "select to_jsonb(j) - '{id,created_at,unique_key}'::text[]
            || jsonb_build_object('scheduled', to_jsonb(s) - '{job_id,run_at,holds_unique}'::text[], 'waits', to_jsonb(a) - 'job_id')
         from flyball.job j join flyball.scheduled s on s.job_id = j.id join flyball.job_after a on a.job_id = j.id
         where j.id = any($1) order by j.id",
    )
    .bind(all)
    .fetch_all(database.pool())
    .await
    .unwrap();
    assert_eq!(rows.len(), 5);
    assert!(rows.windows(2).all(|two| two[0] == two[1]), "{rows:#?}");
    assert_eq!(rows[0]["after_failure"], "run");
    queue.cancel(first).await.unwrap();
    let released = look_at_all(&queue).await;
    assert_eq!((released.jobs, released.cancelled.len()), (5, 0));
    for job in all {
        assert_eq!(state(&queue, job).await, State::Ready);
    }
}

#[tokio::test]
async fn a_job_after_one_that_does_not_complete_is_cancelled_or_runs_as_it_says() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let first = enqueue_one(&queue, http()).await;
    let strict = enqueue_one(&queue, after(&[first]).unique("strict")).await;
    let next = enqueue_one(&queue, after(&[strict])).await;
    let last = enqueue_one(&queue, after(&[next])).await;
    let lenient = enqueue_one(&queue, after(&[first]).after_failure(AfterFailure::Run)).await;
    run_to(&queue, worker, first, dead()).await;

    // A dead letter may be requeued, so one waits for it, and the other one does not.
    let released = queue.release_waiting(&[first]).await.unwrap();
    assert_eq!((released.jobs, released.cancelled.len()), (1, 0));
    assert_eq!(state(&queue, lenient).await, State::Ready);
    assert_eq!(waits_for(&queue, strict).await, [(first, State::Dead)]);
    queue.retry(first).await.unwrap();
    look_at_all(&queue).await;
    assert_eq!(waits_for(&queue, strict).await, [(first, State::Ready)]);
    run_to(&queue, worker, first, dead()).await;
    queue.discard(first, &Attribution::default()).await.unwrap();

    // Those that wait for a cancelled one are cancelled in turn.
    let released = queue.release_waiting(&[first]).await.unwrap();
    assert_eq!(released.cancelled, [strict, next, last]);
    for job in [strict, next, last] {
        assert_eq!(state(&queue, job).await, State::Cancelled);
    }
    let shown = queue.get(next).await.unwrap().unwrap();
    assert_eq!(
        shown.summary.last_error.as_deref(),
        Some(format!("job {strict}, after which this one was to run, did not complete").as_str())
    );
    let free = queue.enqueue(&[http().unique("strict")]).await.unwrap();
    assert!(!free[0].duplicate, "its unique key is free");
    assert!(!look_at_all(&queue).await.waiting);

    // Named after its end, it counts the same.
    let late = enqueue_one(&queue, after(&[first])).await;
    let run = enqueue_one(&queue, after(&[first]).after_failure(AfterFailure::Run)).await;
    assert_eq!(state(&queue, run).await, State::Ready);
    assert_eq!(look_at_all(&queue).await.cancelled, [late]);
}

#[tokio::test]
async fn a_requeued_dead_letter_that_completes_frees_who_waits_for_it() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let first = enqueue_one(&queue, http()).await;
    let waiting = enqueue_one(&queue, after(&[first])).await;
    run_to(&queue, worker, first, dead()).await;
    assert_eq!(look_at_all(&queue).await.jobs, 0);
    queue.retry(first).await.unwrap();
    run_to(&queue, worker, first, Ending::Completed).await;
    assert_eq!(look_at_all(&queue).await.jobs, 1);
    assert_eq!(state(&queue, waiting).await, State::Ready);
}

#[tokio::test]
async fn a_waiting_job_is_cancelled_started_moved_and_replaced_like_any_other() {
    let (_database, queue) = queue().await;
    let first = enqueue_one(&queue, http()).await;
    let [cancelled, started, moved, replaced] = [
        enqueue_one(&queue, after(&[first])).await,
        enqueue_one(&queue, after(&[first])).await,
        enqueue_one(&queue, after(&[first])).await,
        enqueue_one(&queue, after(&[first]).unique("u")).await,
    ];
    queue.cancel(cancelled).await.unwrap();
    assert_eq!(state(&queue, cancelled).await, State::Cancelled);
    queue.retry(started).await.unwrap();
    assert_eq!(state(&queue, started).await, State::Ready);
    let later = jiff::Timestamp::from_second(2_000_000_000).unwrap();
    let signed = Attribution::default();
    queue.reschedule(moved, later, &signed).await.unwrap();
    assert_eq!(
        waits_for(&queue, moved).await,
        [(first, State::Ready)],
        "it has another time and still waits"
    );
    let new = queue
        .enqueue(&[http().unique("u").replace()])
        .await
        .unwrap();
    assert_eq!((new[0].id, new[0].replaced), (replaced, true));
    assert_eq!(state(&queue, replaced).await, State::Ready);
    assert_eq!(queue.get(replaced).await.unwrap().unwrap().after, [0; 0]);
    let waits = "select count(*) from flyball.job_after";
    assert_eq!(count(&queue, waits).await, 1);

    queue.cancel(first).await.unwrap();
    assert_eq!(look_at_all(&queue).await.cancelled, [moved]);
    assert_eq!(count(&queue, waits).await, 0);
}

#[tokio::test]
async fn a_job_that_throttles_merge_takes_no_place_while_it_waits() {
    let (_database, queue) = queue().await;
    run(
        &queue.pool,
        "insert into flyball.knobs (throttle, fields) values ('merging', '{\"over_limit\": \"merge\"}')",
    )
    .await;
    let plain = http().throttle("merging").unique("u");
    let first = enqueue_one(&queue, plain.clone()).await;
    let other = enqueue_one(&queue, http()).await;
    let second = queue.enqueue(&[plain.after([other])]).await.unwrap();
    assert_eq!(
        (second[0].id, second[0].duplicate, second[0].replaced),
        (first, true, false)
    );
    assert_eq!(state(&queue, first).await, State::Ready);
    let after_none = "select count(*) from flyball.enqueue('http', throttle => 'merging', unique_key => 'u', after => '{}') e where e.replaced";
    assert_eq!(count(&queue, after_none).await, 1);
}

#[tokio::test]
async fn an_end_while_the_next_one_is_enqueued_is_not_missed_and_a_rolled_back_end_is_none() {
    let (_database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let first = enqueue_one(&queue, http()).await;
    claim_all(&queue, worker, FENCE, 9).await;
    let mut connection = queue.pool.acquire().await.unwrap();
    let mut open = connection.begin().await.unwrap();
    let waiting = Client.enqueue(&mut *open, after(&[first])).await.unwrap();
    // The open transaction holds up no end, and the end sees nothing of it.
    finish(&queue, first, Ending::Completed).await;
    let looked = queue.release_waiting(&[first]).await.unwrap();
    assert_eq!((looked.jobs, looked.waiting), (0, false));
    open.commit().await.unwrap();
    assert_eq!(
        waits_for(&queue, waiting.id).await,
        [(first, State::Completed)]
    );
    assert_eq!(look_at_all(&queue).await.jobs, 1);
    assert_eq!(state(&queue, waiting.id).await, State::Ready);

    let second = enqueue_one(&queue, http()).await;
    let waiting = enqueue_one(&queue, after(&[second])).await;
    let mut open = connection.begin().await.unwrap();
    let cancel = format!("select flyball.cancel({second})");
    open.execute(AssertSqlSafe(cancel)).await.unwrap();
    assert_eq!(look_at_all(&queue).await.cancelled, [0; 0]);
    open.rollback().await.unwrap();
    assert_eq!(look_at_all(&queue).await.cancelled, [0; 0]);
    assert_eq!(state(&queue, waiting).await, State::Scheduled);
    let mut open = connection.begin().await.unwrap();
    Client.enqueue(&mut *open, after(&[second])).await.unwrap();
    open.rollback().await.unwrap();
    assert_eq!(
        count(&queue, "select count(*) from flyball.job_after").await,
        1
    );
}

#[tokio::test]
async fn eight_processes_that_end_jobs_at_once_free_those_that_wait_for_all_of_them_once() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    for _ in 0..10 {
        let jobs = queue.enqueue(&vec![http(); 8]).await.unwrap();
        let jobs: Vec<i64> = jobs.iter().map(|job| job.id).collect();
        let waiting = queue.enqueue(&vec![after(&jobs); 20]).await.unwrap();
        assert_eq!(claim_all(&queue, worker, FENCE, 9).await.len(), 8);
        let barrier = Arc::new(Barrier::new(8));
        let each = jobs.into_iter().map(|job| {
            let (barrier, url) = (barrier.clone(), database.url().to_owned());
            tokio::spawn(async move {
                let queue = Queue::connect(&url, 1, SOON).await.unwrap();
                barrier.wait().await;
                finish(&queue, job, Ending::Completed).await;
                queue.release_waiting(&[job]).await.unwrap().jobs
            })
        });
        let mut released = 0;
        for one in each.collect::<Vec<_>>() {
            released += one.await.unwrap();
        }
        // The look after the last end may have met the locks of another one.
        released += look_at_all(&queue).await.jobs;
        assert_eq!(released, 20);
        for job in &waiting {
            assert_eq!(state(&queue, job.id).await, State::Ready);
        }
        assert_eq!(
            count(&queue, "select count(*) from flyball.job_after").await,
            0
        );
        run(&queue.pool, "delete from flyball.ready").await;
    }
}

#[tokio::test]
async fn a_look_that_dies_half_way_is_taken_again_by_the_next() {
    let (database, queue) = queue().await;
    let first = enqueue_one(&queue, http()).await;
    let waiting = enqueue_one(&queue, after(&[first]).after_failure(AfterFailure::Run)).await;
    queue.cancel(first).await.unwrap();
    let mut doomed = PgConnection::connect(database.url()).await.unwrap();
    let look = format!("begin; select flyball.release_waiting(array[{first}])");
    doomed.execute(AssertSqlSafe(look)).await.unwrap();
    assert_eq!(
        look_at_all(&queue).await.jobs,
        0,
        "what it holds is left to it"
    );
    doomed.execute("rollback").await.unwrap();
    assert_eq!(look_at_all(&queue).await.jobs, 1);
    assert_eq!(state(&queue, waiting).await, State::Ready);
}

#[tokio::test]
async fn thousands_that_wait_for_one_job_are_all_freed_and_the_look_at_all_goes_round() {
    let (_database, queue) = queue().await;
    let first = enqueue_one(&queue, http()).await;
    for _ in 0..5 {
        queue.enqueue(&vec![after(&[first]); 500]).await.unwrap();
    }
    let others = queue.enqueue(&vec![http(); 1_200]).await.unwrap();
    let each: Vec<NewJob> = others.iter().map(|one| after(&[one.id])).collect();
    queue.enqueue(&each).await.unwrap();
    queue.cancel(first).await.unwrap();
    let released = queue.release_waiting(&[first]).await.unwrap();
    assert_eq!(released.cancelled.len(), 2_500);
    let last = others.last().unwrap().id;
    queue.cancel(last).await.unwrap();
    let mut cancelled = 0;
    for _ in 0..3 {
        cancelled += look_at_all(&queue).await.cancelled.len();
    }
    assert_eq!(cancelled, 1);
}

#[tokio::test]
async fn jobs_that_an_open_transaction_holds_hold_up_no_other() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let first = enqueue_one(&queue, http()).await;
    let waiting = queue.enqueue(&vec![after(&[first]); 5_000]).await.unwrap();
    let last = waiting.iter().map(|job| job.id).max().unwrap();
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut open = connection.begin().await.unwrap();
    sqlx::query("select from flyball.scheduled where job_id <> $1 for update")
        .bind(last)
        .execute(&mut *open)
        .await
        .unwrap();

    run_to(&queue, worker, first, Ending::Completed).await;
    let released = queue.release_waiting(&[first]).await.unwrap();

    assert_eq!(released.jobs, 1);
    assert_eq!(state(&queue, last).await, State::Ready);
}

#[tokio::test]
async fn ends_touch_nothing_of_those_that_wait() {
    let (database, queue) = queue().await;
    let worker = worker(&queue, SOON).await;
    let jobs = queue.enqueue(&vec![http(); 3]).await.unwrap();
    let ids: Vec<i64> = jobs.iter().map(|job| job.id).collect();
    enqueue_one(&queue, after(&ids)).await;
    claim_all(&queue, worker, FENCE, 9).await;
    let complete = STATEMENTS.iter().find(|(name, _)| *name == "complete");
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let ended = sqlx::query(complete.unwrap().1)
        .bind(&ids)
        .bind(vec![FENCE; 3])
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(ended.len(), 3);
    let count = "select coalesce(sum(coalesce(idx_scan, 0) + coalesce(seq_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint
        from pg_stat_xact_user_tables where relname in ('job_after', 'after_sweep', 'scheduled')";
    let touched: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(touched, 0);

    // The look that frees it is counted.
    let released: i64 = sqlx::query_scalar("select released from flyball.release_waiting($1)")
        .bind(&ids)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    let touched: i64 = sqlx::query_scalar(count)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    assert!(released == 1 && touched > 0, "{released}, {touched}");
}

#[tokio::test]
async fn a_job_of_a_day_that_is_being_emptied_is_still_waited_for() {
    let (database, queue) = queue().await;
    let first = enqueue_one(&queue, http()).await;
    let waiting = enqueue_one(&queue, after(&[first])).await;
    let mut emptying = PgConnection::connect(database.url()).await.unwrap();
    emptying
        .execute("begin; select flyball.prune_day(flyball.day_of(now()))")
        .await
        .unwrap();
    let end_it = async {
        eventually("all wait for the day", SOON, || async {
            (count(&queue, BLOCKED).await == 3).then_some(())
        })
        .await;
        emptying.execute("commit").await.unwrap();
    };
    let ended = [first];
    let enqueue = "select job_id from flyball.enqueue('http', after => array[$1])";
    let enqueue = sqlx::query_scalar::<_, i64>(enqueue).bind(first);
    let job_state = sqlx::query_scalar::<_, Option<String>>("select flyball.job_state($1)");
    let job_state = job_state.bind(first);

    let (released, named, shown, ()) = tokio::join!(
        queue.release_waiting_for(&ended),
        enqueue.fetch_one(&queue.pool),
        job_state.fetch_one(&queue.pool),
        end_it,
    );

    assert_eq!(released.unwrap().cancelled, Vec::<i64>::new());
    assert_eq!(state(&queue, waiting).await, State::Scheduled);
    assert_eq!(shown.unwrap().as_deref(), Some("ready"));
    assert_eq!(
        waits_for(&queue, named.unwrap()).await,
        [(first, State::Ready)]
    );
}

/// Looks once at what waits for `ended`, for at most so many jobs; returns the cancelled ones.
async fn step(queue: &Queue, ended: &[i64], most: i32) -> Vec<i64> {
    sqlx::query_scalar("select cancelled_jobs from flyball.release_waiting($1, $2)")
        .bind(ended)
        .bind(most)
        .fetch_one(&queue.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_chain_is_cancelled_in_one_step_and_its_jobs_that_run_anyway_go_in_the_next() {
    let (_database, queue) = queue().await;
    let first = enqueue_one(&queue, http()).await;
    let mut chain = vec![first];
    for _ in 0..30 {
        let next = enqueue_one(&queue, after(&chain[chain.len() - 1..])).await;
        chain.push(next);
    }
    let last = chain[30];
    let twice = enqueue_one(&queue, after(&[chain[1], chain[20]])).await;
    let lenient = enqueue_one(&queue, after(&[last]).after_failure(AfterFailure::Run)).await;
    queue.cancel(first).await.unwrap();

    let cancelled = step(&queue, &[first], 20).await;
    assert_eq!(cancelled.len(), 20, "up to its limit");
    let rest = step(&queue, &cancelled, 1_000).await;
    assert_eq!(rest.len(), 11);
    assert!(cancelled.contains(&twice));
    assert_eq!(state(&queue, last).await, State::Cancelled);
    assert_eq!(step(&queue, &rest, 1_000).await, [0; 0]);
    assert_eq!(state(&queue, lenient).await, State::Ready);
    let waits = "select count(*) from flyball.job_after";
    assert_eq!(count(&queue, waits).await, 0);
}
