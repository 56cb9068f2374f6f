//! Whole worker processes that are killed or paused: their jobs run elsewhere, once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use rustix::process::Signal;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::process::SOON;
use crate::support::eventually;
use crate::support::process::{Gate, House, Process, TTL};

/// Counts jobs as `(accepted, places, distinct)`. A job stands in one place, so all three are the same.
const WHERE: &str = "
with places as (
    select job_id from flyball.ready
    union all select job_id from flyball.scheduled
    union all select job_id from flyball.lease
    union all select job_id from flyball.dead
    union all select job_id from flyball.attempt where outcome in ('completed', 'cancelled')
)
select (select count(*) from flyball.job), (select count(*) from places), (select count(distinct job_id) from places)";

#[tokio::test]
async fn the_jobs_of_a_killed_worker_run_elsewhere_within_its_time_to_live_plus_five_seconds() {
    let house = House::new("rps = -1").await;
    house.target.gate(Gate::ClosedToTheFirst);
    let mut doomed = house.serve();
    let jobs = house.enqueue("job", 8).await;
    house.target.called(8, SOON).await;
    let other = house.serve();
    other.works().await;

    doomed.kill();
    let killed = Instant::now();

    house.target.called(16, TTL + Duration::from_secs(5)).await;
    println!(
        "all 8 jobs ran elsewhere {:?} after the kill",
        killed.elapsed()
    );
    house.until_completed(&jobs, SOON).await;
    assert!(house.target.counts().values().all(|calls| *calls == 2));
    assert_eq!(
        (
            house.ended(&jobs, "lost").await,
            house.ended(&jobs, "completed").await
        ),
        (8, 8)
    );
    eventually(
        "the other looks after all lanes",
        Duration::from_secs(15),
        || async {
            let sql =
                "select count(*) from flyball.shard s join flyball.worker w on w.id = s.worker_id
            where w.pid = $1 and s.expires_at > clock_timestamp()";
            let shards: i64 = sqlx::query_scalar(sql)
                .bind(other.pid())
                .fetch_one(house.pool())
                .await
                .unwrap();
            (shards == 64).then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn what_a_killed_worker_held_of_a_limit_is_free_when_its_word_lapses() {
    let house = House::new("rps = -1\nconcurrency = 1").await;
    house.target.gate(Gate::ClosedToTheFirst);
    let mut doomed = house.serve();
    let first = house.enqueue("job", 1).await;
    house.target.called(1, SOON).await;
    let other = house.serve();
    other.works().await;
    let second = house.enqueue("more", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        house.target.calls().len(),
        1,
        "the other job waits for the one slot"
    );

    doomed.kill();
    house.target.gate(Gate::Open);

    house.until_completed(&[first, second].concat(), SOON).await;
}

#[tokio::test]
async fn jobs_of_a_claim_whose_answer_came_after_a_sleep_are_not_begun() {
    let house = House::new("rps = 0").await;
    let sleeper = house.serve();
    sleeper.works().await;
    let jobs = house.enqueue("job", 4).await;
    // The claim waits in the middle, to see whether these leases will be.
    let mut blocker = PgConnection::connect(&house.database_url).await.unwrap();
    let mut leases = blocker.begin().await.unwrap();
    let sql =
        "insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost)
        select unnest($1::bigint[]), 0, 0, 0, 0, 1, 1";
    sqlx::query(sql)
        .bind(&jobs)
        .execute(&mut *leases)
        .await
        .unwrap();
    house.redis("HSET {}throttle:default:knobs rps -1").await;
    eventually("a claim waits", SOON, || async {
        let sql = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into flyball.lease%'";
        (house.count(sql).await > 0).then_some(())
    })
    .await;
    sleeper.signal(Signal::STOP);
    eventually("it sleeps", SOON, || async {
        sleeps(sleeper.pid()).then_some(())
    })
    .await;
    leases.rollback().await.unwrap();
    let _other = house.serve();
    house.until_completed(&jobs, SOON).await;

    sleeper.signal(Signal::CONT);

    eventually("the sleeper has a fresh identity", SOON, || async {
        let sql = "select count(*) from flyball.worker where pid = $1";
        let identities: i64 = sqlx::query_scalar(sql)
            .bind(sleeper.pid())
            .fetch_one(house.pool())
            .await
            .unwrap();
        (identities == 2).then_some(())
    })
    .await;
    assert_eq!(house.target.counts().len(), 4);
    assert!(
        house.target.counts().values().all(|calls| *calls == 1),
        "{:?}",
        house.target.counts()
    );
}

#[tokio::test]
async fn the_late_answers_of_a_worker_that_slept_past_its_time_to_live_change_nothing() {
    let house = House::new("rps = -1").await;
    house.target.gate(Gate::ClosedToTheFirst);
    let sleeper = house.serve();
    let jobs = house.enqueue("job", 4).await;
    house.target.called(4, SOON).await;
    sleeper.signal(Signal::STOP);
    let other = house.serve();
    house.until_completed(&jobs, SOON).await;
    // More work than the other can take, so that the sleeper would claim in its first moment if it were let.
    house.target.gate(Gate::Closed);
    let more = house.enqueue("more", 20).await;
    house.target.called(8 + 8, SOON).await;

    house.target.gate(Gate::Open);
    sleeper.signal(Signal::CONT);

    let refused = sleeper.says("late results were rejected", SOON).await;
    println!("{refused}");
    house.until_completed(&more, SOON).await;
    assert_eq!(
        (
            house.ended(&jobs, "lost").await,
            house.ended(&jobs, "completed").await
        ),
        (4, 4)
    );
    assert_eq!(house.ended(&more, "completed").await, 20);
    let more_than_once: Vec<_> = house
        .target
        .counts()
        .into_iter()
        .filter(|(path, n)| path.starts_with("more") && *n > 1)
        .collect();
    assert!(more_than_once.is_empty(), "{more_than_once:?}");
    eventually("the sleeper has a fresh identity", SOON, || async {
        let sql = "select count(*) from flyball.worker where pid = $1 and stopped_at is null";
        let alive: i64 = sqlx::query_scalar(sql)
            .bind(sleeper.pid())
            .fetch_one(house.pool())
            .await
            .unwrap();
        (alive == 1).then_some(())
    })
    .await;
    drop(other);
}

#[tokio::test]
async fn no_job_is_lost_or_made_up_when_workers_are_killed_ten_times() {
    let house = House::new("rps = -1").await;
    house.target.delay(Duration::from_millis(100));
    let mut accepted = house.enqueue("job", 500).await;
    // These fail, and those of one attempt die of it or of a kill.
    accepted.extend(
        house
            .enqueue_as(20, |n| NewJob {
                max_attempts: 1,
                ..house.call(&format!("bad-{n}"))
            })
            .await,
    );
    accepted.extend(
        house
            .enqueue_as(200, |n| NewJob {
                max_attempts: 1,
                key: (n % 5).to_string(),
                ..house.call(&format!("once-{n}"))
            })
            .await,
    );
    let later = house
        .enqueue_as(10, |n| NewJob {
            run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
            ..house.call(&format!("later-{n}"))
        })
        .await;
    accepted.extend(&later);
    let mut processes = [house.serve(), house.serve()];

    for (round, later) in later.into_iter().enumerate() {
        let victim = round % 2;
        let pid = processes[victim].pid();
        eventually("the victim holds jobs", SOON, || async {
            let sql = "select count(*) from flyball.lease l join flyball.worker w on w.id = l.worker_id where w.pid = $1";
            let held: i64 = sqlx::query_scalar(sql).bind(pid).fetch_one(house.pool()).await.unwrap();
            (held > 0).then_some(())
        })
        .await;
        processes[victim] = house.serve();
        assert_everything_is_somewhere(&house, accepted.len()).await;
        house.queue.cancel(later).await.unwrap();
        accepted.extend(house.enqueue(&format!("round-{round}"), 30).await);
    }

    eventually("nothing waits or runs any more", Duration::from_secs(60), || async {
        let waiting = house.count("select (select count(*) from flyball.ready) + (select count(*) from flyball.lease) + (select count(*) from flyball.scheduled)").await;
        (waiting == 0).then_some(())
    })
    .await;
    assert_everything_is_somewhere(&house, accepted.len()).await;
    let (completed, cancelled) = (
        house.ended(&accepted, "completed").await,
        house.ended(&accepted, "cancelled").await,
    );
    let (dead, lost) = (
        house.count("select count(*) from flyball.dead").await,
        house.ended(&accepted, "lost").await,
    );
    println!(
        "{} accepted = {completed} completed + {dead} dead + {cancelled} cancelled; {lost} attempts were lost",
        accepted.len()
    );
    assert_eq!(accepted.len() as i64, completed + dead + cancelled);
    assert_eq!(cancelled, 10);
    assert!(dead >= 20 && lost > 0);
}

async fn assert_everything_is_somewhere(house: &House, accepted: usize) {
    let found: (i64, i64, i64) = sqlx::query_as(WHERE).fetch_one(house.pool()).await.unwrap();
    let accepted = accepted as i64;
    assert_eq!(
        found,
        (accepted, accepted, accepted),
        "(accepted, places, distinct)"
    );
}

/// Whether every thread of the process is stopped; they stop one after the other.
pub fn sleeps(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut states = threads.map(|thread| {
        std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default()
    });
    states.all(|status| status.contains("State:\tT"))
}

#[tokio::test]
async fn a_reindex_that_is_killed_ten_times_ends_complete_although_it_has_three_attempts() {
    const ROWS: i64 = 20_000;
    let house = House::new("rps = 1500\nburst = 1\nwindow = 0.1").await;
    sqlx::raw_sql(
        "create table source (id int primary key, title text);
         insert into source select n, 'number ' || n from generate_series(1, 20000) n",
    )
    .execute(house.pool())
    .await
    .unwrap();
    house.settings_file(
        "[reindex.sources.own]\ntables = [\"source\"]\n[reindex.sinks.own]\ntype = \"postgres\"\ntables = [\"sink\"]\n",
    );
    let args = json!({"source": {"name": "own", "table": "source", "key": "id"},
        "sink": {"name": "own", "table": "sink"}, "batch_docs": 100, "concurrency": 2});
    let job = house
        .queue
        .enqueue(&[NewJob {
            max_attempts: 3,
            ..NewJob::new("reindex", args)
        }])
        .await
        .unwrap()[0]
        .id;
    let mut processes: Vec<Process> = vec![house.serve(), house.serve()];
    let mut done = 0;
    let mut cursors = BTreeSet::new();

    for round in 0..10 {
        let (holder, now) = eventually("the reindex came forward", SOON, || async {
            let sql = "select w.pid, c.done from flyball.lease l join flyball.worker w on w.id = l.worker_id
                join flyball.checkpoint c on c.job_id = l.job_id and c.updated_at > l.claimed_at
                where l.job_id = $1 and w.stopped_at is null and c.done > $2";
            sqlx::query_as::<_, (i32, i64)>(sql).bind(job).bind(done).fetch_optional(house.pool()).await.unwrap()
        })
        .await;
        done = now;
        assert!(done < ROWS, "it was done after {round} kills; slow it down");
        cursors.insert(done);
        let victim = processes
            .iter_mut()
            .find(|process| process.pid() == holder)
            .unwrap();
        victim.kill();
        *victim = house.serve();
        // The time to live is another test's subject.
        let sql =
            "update flyball.worker set heartbeat_at = now() - interval '1 hour' where pid = $1";
        sqlx::query(sql)
            .bind(holder)
            .execute(house.pool())
            .await
            .unwrap();
    }

    house.until_completed(&[job], Duration::from_secs(60)).await;
    let missing =
        house.count("select count(*) from source s where not exists (select 1 from sink k where k.id = s.id::text)").await;
    let stored = house.count("select count(*) from sink").await;
    println!("killed at {cursors:?}; {stored} documents stored, {missing} missing");
    assert_eq!(
        (stored, missing, house.ended(&[job], "lost").await),
        (ROWS, 0, 10)
    );
}
