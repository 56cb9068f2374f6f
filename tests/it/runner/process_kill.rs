//! Worker processes that are killed or suspended: their jobs run elsewhere, once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use flyball::throttle::{Name, RedisStore, Store};
use rustix::process::Signal;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::process::SOON;
use crate::support::eventually;
use crate::support::process::{Gate, Process, ProcessFixture, TTL};

/// Counts jobs as `(accepted, places, distinct)`. A job is in one place, so all three are equal.
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
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::ClosedToTheFirst);
    let mut doomed = fixture.serve();
    let jobs = fixture.enqueue("job", 8).await;
    fixture.target.called(8, SOON).await;
    let other = fixture.serve();
    other.worker_started().await;

    doomed.kill();
    let killed = Instant::now();

    fixture
        .target
        .called(16, TTL + Duration::from_secs(5))
        .await;
    println!(
        "all 8 jobs ran elsewhere {:?} after the kill",
        killed.elapsed()
    );
    fixture.until_completed(&jobs, SOON).await;
    let counts = fixture.target.counts();
    assert_eq!(counts.len(), jobs.len());
    assert!(counts.values().all(|calls| *calls == 2));
    assert_eq!(
        (
            fixture.ended(&jobs, "lost").await,
            fixture.ended(&jobs, "completed").await
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
                .fetch_one(fixture.pool())
                .await
                .unwrap();
            (shards == 64).then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn what_a_killed_worker_held_of_a_limit_is_free_when_its_word_lapses() {
    let fixture = ProcessFixture::new("rps = -1\nconcurrency = 1").await;
    fixture.target.gate(Gate::ClosedToTheFirst);
    // Its one slot is in use, so that everything else goes to the other worker.
    let mut doomed = fixture.serve_with(&[], &[("FLYBALL_CONCURRENCY", "1")]);
    let first = fixture.enqueue("job", 1).await;
    fixture.target.called(1, SOON).await;
    let other = fixture.serve();
    other.worker_started().await;
    let second = fixture.enqueue("more", 1).await;
    fixture.markers().await;
    assert_eq!(
        fixture.target.calls().len(),
        1,
        "the other job waits for the one slot"
    );

    doomed.kill();
    fixture.target.gate(Gate::Open);

    fixture
        .until_completed(&[first, second].concat(), SOON)
        .await;
}

#[tokio::test]
async fn jobs_of_a_claim_whose_answer_came_after_a_sleep_are_not_begun() {
    let fixture = ProcessFixture::new("rps = 0").await;
    let sleeper = fixture.serve();
    sleeper.worker_started().await;
    let jobs = fixture.enqueue("job", 4).await;
    // The claim blocks on the uncommitted leases.
    let mut blocker = PgConnection::connect(&fixture.database_url).await.unwrap();
    let mut leases = blocker.begin().await.unwrap();
    let sql =
        "insert into flyball.lease (job_id, fence, worker_id, lane_id, priority, attempt, cost)
        select unnest($1::bigint[]), 0, 0, 0, 0, 1, 1";
    sqlx::query(sql)
        .bind(&jobs)
        .execute(&mut *leases)
        .await
        .unwrap();
    fixture.redis("HSET {}throttle:default:knobs rps -1").await;
    eventually("a claim waits", SOON, || async {
        let sql = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into flyball.lease%'";
        (fixture.count(sql).await > 0).then_some(())
    })
    .await;
    sleeper.signal(Signal::STOP);
    eventually("it sleeps", SOON, || async {
        sleeps(sleeper.pid()).then_some(())
    })
    .await;
    leases.rollback().await.unwrap();
    let _other = fixture.serve();
    fixture.until_completed(&jobs, SOON).await;

    sleeper.signal(Signal::CONT);

    eventually("the sleeper has a fresh identity", SOON, || async {
        let sql = "select count(*) from flyball.worker where pid = $1";
        let identities: i64 = sqlx::query_scalar(sql)
            .bind(sleeper.pid())
            .fetch_one(fixture.pool())
            .await
            .unwrap();
        (identities == 2).then_some(())
    })
    .await;
    assert_eq!(fixture.target.counts().len(), 4);
    assert!(
        fixture.target.counts().values().all(|calls| *calls == 1),
        "{:?}",
        fixture.target.counts()
    );
}

#[tokio::test]
async fn the_late_answers_of_a_worker_that_slept_past_its_time_to_live_change_nothing() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::ClosedToTheFirst);
    let sleeper = fixture.serve();
    let jobs = fixture.enqueue("job", 4).await;
    fixture.target.called(4, SOON).await;
    sleeper.signal(Signal::STOP);
    let other = fixture.serve();
    fixture.until_completed(&jobs, SOON).await;
    // More work than the other process can take, so the suspended one would claim at once if it
    // were allowed to.
    fixture.target.gate(Gate::Closed);
    let more = fixture.enqueue("more", 20).await;
    fixture.target.called(8 + 8, SOON).await;

    fixture.target.gate(Gate::Open);
    sleeper.signal(Signal::CONT);

    let refused = sleeper.logged("late results were rejected", SOON).await;
    println!("{refused}");
    fixture.until_completed(&more, SOON).await;
    assert_eq!(
        (
            fixture.ended(&jobs, "lost").await,
            fixture.ended(&jobs, "completed").await
        ),
        (4, 4)
    );
    assert_eq!(fixture.ended(&more, "completed").await, 20);
    let more_than_once: Vec<_> = fixture
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
            .fetch_one(fixture.pool())
            .await
            .unwrap();
        (alive == 1).then_some(())
    })
    .await;
    drop(other);
}

#[tokio::test]
async fn no_job_is_lost_or_made_up_when_workers_are_killed_ten_times() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.delay(Duration::from_millis(100));
    let mut accepted = fixture.enqueue("job", 500).await;
    // These fail; those with one attempt die of that or of a kill.
    accepted.extend(
        fixture
            .enqueue_as(20, |n| NewJob {
                max_attempts: 1,
                ..fixture.call(&format!("bad-{n}"))
            })
            .await,
    );
    accepted.extend(
        fixture
            .enqueue_as(200, |n| NewJob {
                max_attempts: 1,
                key: (n % 5).to_string(),
                ..fixture.call(&format!("once-{n}"))
            })
            .await,
    );
    let later = fixture
        .enqueue_as(10, |n| NewJob {
            run_at: Some("2030-01-01T00:00:00Z".parse().unwrap()),
            ..fixture.call(&format!("later-{n}"))
        })
        .await;
    accepted.extend(&later);
    let mut processes = [fixture.serve(), fixture.serve()];

    for (round, later) in later.into_iter().enumerate() {
        let victim = round % 2;
        let pid = processes[victim].pid();
        eventually("the victim holds jobs", SOON, || async {
            let sql = "select count(*) from flyball.lease l join flyball.worker w on w.id = l.worker_id where w.pid = $1";
            let held: i64 = sqlx::query_scalar(sql).bind(pid).fetch_one(fixture.pool()).await.unwrap();
            (held > 0).then_some(())
        })
        .await;
        processes[victim] = fixture.serve();
        assert_everything_is_somewhere(&fixture, accepted.len()).await;
        fixture.queue.cancel(later).await.unwrap();
        accepted.extend(fixture.enqueue(&format!("round-{round}"), 30).await);
    }

    eventually("nothing waits or runs any more", Duration::from_secs(60), || async {
        let waiting = fixture.count("select (select count(*) from flyball.ready) + (select count(*) from flyball.lease) + (select count(*) from flyball.scheduled)").await;
        (waiting == 0).then_some(())
    })
    .await;
    assert_everything_is_somewhere(&fixture, accepted.len()).await;
    let (completed, cancelled) = (
        fixture.ended(&accepted, "completed").await,
        fixture.ended(&accepted, "cancelled").await,
    );
    let (dead, lost) = (
        fixture.count("select count(*) from flyball.dead").await,
        fixture.ended(&accepted, "lost").await,
    );
    println!(
        "{} accepted = {completed} completed + {dead} dead + {cancelled} cancelled; {lost} attempts were lost",
        accepted.len()
    );
    assert_eq!(accepted.len() as i64, completed + dead + cancelled);
    assert_eq!(cancelled, 10);
    assert!(dead >= 20 && lost > 0);
}

async fn assert_everything_is_somewhere(fixture: &ProcessFixture, accepted: usize) {
    let found: (i64, i64, i64) = sqlx::query_as(WHERE)
        .fetch_one(fixture.pool())
        .await
        .unwrap();
    let accepted = accepted as i64;
    assert_eq!(
        found,
        (accepted, accepted, accepted),
        "(accepted, places, distinct)"
    );
}

/// Returns true if every thread of the process is stopped; they stop one after the other.
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
    let fixture = ProcessFixture::new("rps = 1500\nburst = 1\nwindow = 0.1").await;
    sqlx::raw_sql(
        "create table public.source (id int primary key, title text);
         insert into public.source select n, 'number ' || n from generate_series(1, 20000) n",
    )
    .execute(fixture.pool())
    .await
    .unwrap();
    fixture.settings_file(
        "[reindex.sources.own]\ntables = [\"source\"]\n[reindex.sinks.own]\ntype = \"postgres\"\ntables = [\"sink\"]\n",
    );
    let args = json!({"source": {"name": "own", "table": "source", "key": "id"},
        "sink": {"name": "own", "table": "sink"}, "batch_docs": 100, "concurrency": 2});
    let job = fixture
        .queue
        .enqueue(&[NewJob {
            max_attempts: 3,
            ..NewJob::new("reindex", args)
        }])
        .await
        .unwrap()[0]
        .id;
    let mut processes: Vec<Process> = vec![fixture.serve(), fixture.serve()];
    let mut done = 0;
    let mut cursors = BTreeSet::new();

    for round in 0..10 {
        done = fixture
            .kill_the_holder(job, done, &mut processes, || fixture.serve())
            .await;
        assert!(done < ROWS, "it was done after {round} kills; slow it down");
        cursors.insert(done);
    }

    fixture
        .until_completed(&[job], Duration::from_secs(60))
        .await;
    let missing =
        fixture.count("select count(*) from public.source s where not exists (select 1 from flyball.sink k where k.id = s.id::text)").await;
    let stored = fixture.count("select count(*) from flyball.sink").await;
    println!("killed at {cursors:?}; {stored} documents stored, {missing} missing");
    assert_eq!(
        (stored, missing, fixture.ended(&[job], "lost").await),
        (ROWS, 0, 10)
    );
}

#[tokio::test]
async fn a_worker_that_is_killed_while_it_admits_messages_leaves_each_in_one_lane() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let limits = [
        ("NOTIFY_RATE_LIMIT_PER_TENANT", "200"),
        ("NOTIFY_RATE_LIMIT_PER_MODULE", "150"),
    ];
    let mut doomed = fixture.serve_with(&[], &limits);
    doomed.worker_started().await;
    // Nobody sends them: the throttle of their pool does not exist.
    let send = "select flyball.as_tenant('acme', 'web');
        select flyball.notify_many(jsonb_agg(jsonb_build_object('pool', 'nowhere', 'channel', 'email', 'to', 'a@b.c')))
        from generate_series(1, 30)";
    let released = async |tenant: &str| -> i64 {
        let sql = "select count(*) from flyball.ready r join flyball.job j on j.id = r.job_id
            where r.lane_id = j.lane_id and j.tenant = $1";
        sqlx::query_scalar(sql)
            .bind(tenant)
            .fetch_one(fixture.pool())
            .await
            .unwrap()
    };
    for round in 1..=10 {
        let mut transaction = fixture.pool().begin().await.unwrap();
        sqlx::raw_sql(send)
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        eventually("some are released", SOON, || async {
            (released("acme").await > (round - 1) * 8 || released("acme").await >= 130)
                .then_some(())
        })
        .await;
        if round % 3 == 0 {
            doomed.kill();
            doomed = fixture.serve_with(&[], &limits);
            doomed.worker_started().await;
        }
    }
    let pages = RedisStore::connect(&fixture.redis_url, &fixture.prefix)
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let limit = Name::new("notify:acme").unwrap();
    eventually("the module has used up its limit", SOON, || async {
        let usage = pages.window_usage(&limit, "web").await.ok()??;
        (usage.key[0].left() == 0.0).then_some(())
    })
    .await;
    // What is admitted after that comes before a message of another tenant.
    for nth in 1..=2 {
        sqlx::raw_sql(
            "select flyball.as_tenant('other', 'web');
             select flyball.notify_many('[{\"pool\": \"nowhere\", \"channel\": \"email\", \"to\": \"a@b.c\"}]')",
        )
        .execute(fixture.pool())
        .await
        .unwrap();
        eventually("the other tenant's message is released", SOON, || async {
            (released("other").await == nth).then_some(())
        })
        .await;
    }

    let now = released("acme").await;

    assert!(now > 0 && now <= 150, "{now} of 300 within a minute");
    let (accepted, places, distinct): (i64, i64, i64) = sqlx::query_as(WHERE)
        .fetch_one(fixture.pool())
        .await
        .unwrap();
    assert_eq!((accepted, places, distinct), (302, 302, 302));
}
