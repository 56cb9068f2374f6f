//! No job is lost or counted twice, whatever fails: accepted = completed + dead + cancelled +
//! waiting, each job once.
//!
//! The short forms run with `make test`. `make soak` runs the long ones, for `FLYBALL_SOAK_S`
//! seconds each (default 300).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use flyball::stack::{SpawnOptions, spawn};
use flyball::throttle::{Change, Name, Store};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::ledger::{Ledger, assert_nothing_is_left_behind};
use crate::support::process::{Gate, Process, ProcessFixture, postmaster};
use crate::support::proxy::Proxy;
use crate::support::{PROGRAM, eventually, patient_store, poll, redis_prefix};

pub const SOON: Duration = Duration::from_secs(90);

/// Returns the duration of a soak.
pub fn soak() -> Duration {
    let seconds = std::env::var("FLYBALL_SOAK_S")
        .ok()
        .and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(300))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_is_accounted_for_once_while_processes_postgres_and_connections_die() {
    storm(Duration::from_secs(14)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes FLYBALL_SOAK_S; make soak runs it"]
async fn soak_every_job_is_accounted_for_once_while_processes_postgres_and_connections_die() {
    storm(soak()).await;
}

/// A fault injected by a storm.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    /// `kill -9` of a process with all roles: it runs jobs, promotes, rescues and perhaps governs.
    Kill,
    /// A process is suspended beyond its time to live and resumes in the belief that it still holds
    /// its jobs.
    Sleep,
    /// Postgres shuts down abruptly and recovers.
    Crash,
    /// Random backends are terminated, in the middle of their work.
    Terminate,
    /// Every connection of one process breaks at once.
    Cut,
}

const BLOWS: [Blow; 5] = [
    Blow::Terminate,
    Blow::Kill,
    Blow::Cut,
    Blow::Sleep,
    Blow::Crash,
];

async fn storm(span: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let options = SpawnOptions {
        program: Some(PROGRAM.clone()),
        fsync: true,
        ..SpawnOptions::default()
    };
    let path = dir.path().to_owned();
    let servers = tokio::task::spawn_blocking(move || spawn(&path, &options).unwrap())
        .await
        .unwrap();
    let urls = &servers.urls;
    let fixture = Arc::new(
        ProcessFixture::on(
            &urls.database_url,
            &urls.redis_url,
            &urls.prometheus_url,
            "",
            "rps = -1",
            None,
        )
        .await,
    );
    fixture.knobs_file("other", "[knobs]\nrps = -1.0\nmode = \"manual\"\n");
    fixture.target.delay(Duration::from_millis(15));
    let data = dir.path().join("postgres/data").display().to_string();
    let proxy = Proxy::start(&urls.database_url).await;
    // One process is behind a proxy that cuts connections by itself, in the middle of answers.
    proxy.budget(200_000);
    let start = |place: usize| {
        let url = if place == 0 {
            &proxy.url
        } else {
            &urls.database_url
        };
        fixture.serve_with(&[], &[("DATABASE_URL", url), ("FLYBALL_GRACE_S", "2")])
    };
    let mut processes: Vec<Process> = (0..3).map(start).collect();
    processes[1].worker_started().await;

    let stop = Arc::new(AtomicBool::new(false));
    let known = Arc::new(Mutex::new(BTreeSet::new()));
    let producer = tokio::spawn(produce(fixture.clone(), stop.clone(), known.clone()));
    let auditor = tokio::spawn(audit(fixture.clone(), stop.clone()));
    let begun = Instant::now();
    // The number of hits of each fault: processes, backends or connections.
    let mut hits: BTreeMap<String, usize> = BTreeMap::new();
    let mut late = 0;
    for blow in BLOWS.into_iter().cycle() {
        let all_hit = hits.len() == BLOWS.len() && hits.values().all(|hit| *hit > 0);
        if begun.elapsed() > span && all_hit || begun.elapsed() > span + SOON {
            break;
        }
        let victim = rand::random_range(0..processes.len());
        let hit = match blow {
            Blow::Kill => {
                let lives = processes[victim].ended().is_none();
                processes[victim].kill();
                late += refusals(&processes[victim]);
                processes[victim] = start(victim);
                usize::from(lives)
            }
            Blow::Sleep => suspend(&fixture, &processes).await,
            Blow::Crash => crash(&fixture, &data, !hits.contains_key("Crash")).await,
            Blow::Terminate => {
                let mut terminated = 0;
                for _ in 0..10 {
                    let sql = "select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
                        where datname = current_database() and pid <> pg_backend_pid() and random() < 0.2";
                    terminated += sqlx::query_scalar::<_, i64>(sql)
                        .fetch_one(fixture.pool())
                        .await
                        .unwrap_or(0) as usize;
                    // Real time: the blow hits for a second.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                terminated
            }
            Blow::Cut => {
                let before = proxy.broken();
                for _ in 0..5 {
                    proxy.cut();
                    // Real time: a cut hits what was connected again after the last one.
                    tokio::time::sleep(Duration::from_millis(150)).await;
                }
                proxy.broken() - before
            }
        };
        *hits.entry(format!("{blow:?}")).or_default() += hit;
        // Real time: between two blows jobs get through.
        tokio::time::sleep(Duration::from_millis(300)).await;
        for (place, process) in processes.iter_mut().enumerate() {
            // A process that fails to start exits with an error and is started again; a working one
            // ends only on request.
            if let Some(status) = process.ended() {
                assert!(
                    !process.log().contains("worker started"),
                    "process {place} ended with {status}:\n{}",
                    process.log()
                );
                println!(
                    "process {place} could not start: {}",
                    process.log().lines().last().unwrap_or_default()
                );
                *process = start(place);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    proxy.budget(0);
    proxy.cut();
    producer.await.unwrap();
    let looks = auditor.await.unwrap();

    let last = Mutex::new(None);
    let settled = poll(SOON, || async {
        let ledger = Ledger::look(fixture.pool()).await;
        *last.lock().unwrap() = ledger;
        ledger.filter(|ledger| ledger.waiting() == 0)
    })
    .await
    .unwrap_or_else(|| panic!("jobs still wait: {:?}", last.lock().unwrap()));
    late += processes.iter().map(refusals).sum::<usize>();
    let lost: i64 = fixture
        .count("select count(*) from flyball.attempt where outcome = 'lost'")
        .await;
    println!(
        "{:?}: hits {hits:?}, {} connections broken, {looks} looks",
        begun.elapsed(),
        proxy.broken()
    );
    println!("{settled:?}; {lost} attempts were lost, late results were rejected {late} times");
    assert!(
        hits.len() == BLOWS.len() && hits.values().all(|hit| *hit > 0),
        "a blow hit nothing: {hits:?}"
    );
    assert!(
        lost > 0 && late > 0,
        "{lost} attempts were lost, late results were rejected {late} times"
    );
    assert!(looks > 0, "nobody looked while it stormed");
    settled.assert_conserved();
    assert_nothing_is_left_behind(fixture.pool()).await;
    let known: Vec<i64> = known.lock().unwrap().iter().copied().collect();
    let kept: i64 = sqlx::query_scalar("select count(*) from flyball.job where id = any($1)")
        .bind(&known)
        .fetch_one(fixture.pool())
        .await
        .unwrap();
    assert_eq!(
        kept as usize,
        known.len(),
        "every job that was promised to a producer is there"
    );
    assert!(
        settled.completed > 100 && settled.dead > 0 && settled.cancelled > 0,
        "{settled:?}"
    );
    for process in &mut processes {
        // One that lost its connection while it started has given up: its supervisor would start it
        // again.
        if let Some(status) = process.ended() {
            let log = process.log();
            assert_eq!(status.code(), Some(69), "{log}");
            assert!(!log.contains("worker started"), "{log}");
            continue;
        }
        process.signal(Signal::TERM);
        assert_eq!(
            process.ends(SOON).await.code(),
            Some(0),
            "{}",
            process.log()
        );
    }
}

/// Suspends a process that holds a job until others have taken over the job. Returns the number of
/// its late results that were rejected; 0 if the process did not know of the job because the answer
/// to its claim was lost.
async fn suspend(fixture: &ProcessFixture, processes: &[Process]) -> usize {
    // Calls wait at the gate, so a running job still runs when its process is suspended.
    fixture.target.gate(Gate::Closed);
    let holds = "select distinct w.pid from flyball.lease l join flyball.worker w on w.id = l.worker_id where w.stopped_at is null";
    let sleeper = eventually("a process holds a job", SOON, || async {
        let pids: Vec<i32> = sqlx::query_scalar(holds)
            .fetch_all(fixture.pool())
            .await
            .ok()?;
        processes
            .iter()
            .find(|process| pids.contains(&process.pid()))
    })
    .await;
    sleeper.signal(Signal::STOP);
    fixture.target.gate(Gate::Open);
    let held = "select count(*) from flyball.lease l join flyball.worker w on w.id = l.worker_id where w.pid = $1";
    eventually("others have taken its jobs", SOON, || async {
        let held: i64 = sqlx::query_scalar(held)
            .bind(sleeper.pid())
            .fetch_one(fixture.pool())
            .await
            .ok()?;
        (held == 0).then_some(())
    })
    .await;
    let before = refusals(sleeper);
    sleeper.signal(Signal::CONT);
    poll(Duration::from_secs(10), || async {
        (refusals(sleeper) > before).then_some(())
    })
    .await;
    refusals(sleeper) - before
}

/// Counts the rejected late results of a process.
fn refusals(process: &Process) -> usize {
    process.log().matches("late results were rejected").count()
}

/// Kills Postgres as a whole the first time. Its supervisor waits longer before each restart, so
/// later crashes kill one backend, after which the server drops all others and recovers by itself.
/// Returns the number of killed processes.
async fn crash(fixture: &ProcessFixture, data: &str, whole: bool) -> usize {
    let data = PathBuf::from(data);
    let mut killed = 0;
    if whole {
        let old = postmaster(&data);
        kill_process(old, Signal::QUIT).unwrap();
        eventually("another Postgres is there", SOON, || async {
            let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
            (text.lines().next()? != old.as_raw_nonzero().to_string()).then_some(())
        })
        .await;
        killed += 1;
    } else {
        let sql = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() limit 1";
        let backend: Result<i32, _> = sqlx::query_scalar(sql).fetch_one(fixture.pool()).await;
        if let Some(backend) = backend.ok().and_then(Pid::from_raw) {
            killed += usize::from(kill_process(backend, Signal::KILL).is_ok());
        }
        // Real time: the server notices the death of a backend a moment later.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eventually("Postgres is back", SOON, || async {
        fixture.queue.ping().await.then_some(())
    })
    .await;
    killed
}

/// Enqueues all kinds of jobs, and cancels some, until stopped. Records the confirmed operations.
async fn produce(
    fixture: Arc<ProcessFixture>,
    stop: Arc<AtomicBool>,
    known: Arc<Mutex<BTreeSet<i64>>>,
) {
    let mut round = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let call = |name: &str, n: usize| NewJob {
            throttle: if n.is_multiple_of(2) {
                "default"
            } else {
                "other"
            }
            .into(),
            key: (n % 13).to_string(),
            ..fixture.call(&format!("{name}-{round}-{n}"))
        };
        let mut jobs: Vec<NewJob> = (0..30).map(|n| call("plain", n)).collect();
        jobs.extend((0..3).map(|n| NewJob {
            max_attempts: 2,
            ..call("bad", n)
        }));
        jobs.extend((0..3).map(|n| NewJob {
            priority: 0,
            ..call("urgent", n)
        }));
        jobs.push(NewJob {
            unique_key: Some(format!("unique-{}", round / 3)),
            ..call("unique", 0)
        });
        // A failed combined operation is retried by itself; an operation with a lost answer may
        // have been carried out.
        if let Ok(enqueued) = fixture.queue.enqueue(&jobs).await {
            let mut known = known.lock().unwrap();
            known.extend(enqueued.iter().map(|one| one.id));
        }
        let now: Option<jiff_sqlx::Timestamp> = sqlx::query_scalar("select now()")
            .fetch_one(fixture.pool())
            .await
            .ok();
        if let Some(now) = now {
            let soon = now.to_jiff() + Duration::from_millis(700);
            let later: Vec<NewJob> = (0..4)
                .map(|n| NewJob {
                    run_at: Some(soon),
                    ..call("later", n)
                })
                .collect();
            if let Ok(enqueued) = fixture.queue.enqueue(&later).await {
                known
                    .lock()
                    .unwrap()
                    .extend(enqueued.iter().map(|one| one.id));
                let _ = fixture.queue.cancel(enqueued[0].id).await;
            }
        }
        let any = {
            let known = known.lock().unwrap();
            known.iter().rev().nth(rand::random_range(0..60)).copied()
        };
        if let Some(any) = any {
            let _ = fixture.queue.cancel(any).await;
        }
        // Real time: the pace of the producer.
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
}

/// Checks the sum continuously: it holds at every instant, not only at the end. Returns the number
/// of answers from Postgres.
async fn audit(fixture: Arc<ProcessFixture>, stop: Arc<AtomicBool>) -> usize {
    let mut looks = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(ledger) = Ledger::look(fixture.pool()).await {
            ledger.assert_conserved();
            looks += 1;
        }
        // Real time: the pace of the looks.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    looks
}

/// Creates the throttles, one of them unlimited.
pub async fn unlimited(throttle: &str) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(patient_store(&redis_prefix()).await);
    let fields = [("rps".to_owned(), Some("-1".to_owned()))].into();
    let change = Change {
        fields,
        by: "test".into(),
        create: true,
        ..Change::default()
    };
    store
        .set(&Name::new(throttle).unwrap(), &change)
        .await
        .unwrap();
    store
}
