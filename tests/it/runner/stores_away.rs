//! Processes while a store is unavailable. Each test has its own servers, because it stops them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use flyball::stack::{RunningStack, ServerKind, SpawnOptions, spawn};
use reqwest::{Client, StatusCode};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::{Gate, ProcessFixture, postmaster};
use crate::support::proxy::{Proxy, Way};
use crate::support::{PROGRAM, eventually};

const SOON: Duration = Duration::from_secs(60);

async fn own(knobs: &str) -> (ProcessFixture, RunningStack, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    // Without fsync Postgres acknowledges before writing, so a crash would lose acknowledged
    // commits.
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
    let fixture = ProcessFixture::on(
        &urls.database_url,
        &urls.redis_url,
        &urls.prometheus_url,
        "",
        knobs,
        None,
    )
    .await;
    (fixture, servers, dir)
}

/// The API's response: status, body, seconds of Retry-After.
async fn answer(request: reqwest::RequestBuilder) -> Option<(StatusCode, Value, Option<u64>)> {
    let answer = request.send().await.ok()?;
    let retry = answer
        .headers()
        .get("retry-after")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    Some((
        answer.status(),
        answer.json().await.unwrap_or_default(),
        retry,
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_postgres_crashes_ends_are_kept_and_enqueue_answers_503_and_nothing_is_lost() {
    let (fixture, _servers, dir) = own("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let process = fixture.serve_with(&[], &[("FLYBALL_WORKER_TTL_S", "30")]);
    let url = process.url().await;
    let jobs = fixture.enqueue("job", 60).await;
    fixture.target.called(8, SOON).await;
    let data = dir.path().join("postgres/data").display().to_string();
    let (client, body) = (
        Client::new(),
        json!({"kind": "http", "args": {"url": format!("{}/new", fixture.target.url)}}),
    );

    // Immediate shutdown: no checkpoint, no notice to clients.
    kill_process(postmaster(&PathBuf::from(data)), Signal::QUIT).unwrap();
    let (refusal, retry) = eventually("enqueue is refused for now", SOON, || async {
        let (status, refusal, retry) =
            answer(client.post(format!("{url}/api/v1/jobs")).json(&body)).await?;
        (status == 503).then_some((refusal, retry))
    })
    .await;
    fixture.target.gate(Gate::Open);
    println!(
        "503 {}, Retry-After {retry:?}: {}",
        refusal["code"], refusal["detail"]
    );
    assert!(retry.is_some_and(|seconds| seconds > 0));
    let healthy = client
        .get(format!("{url}/healthz"))
        .send()
        .await
        .unwrap()
        .status();
    assert_eq!(healthy, 200, "the process lives");

    let begun = Instant::now();
    eventually("enqueue works again", SOON, || async {
        let (status, ..) = answer(client.post(format!("{url}/api/v1/jobs")).json(&body)).await?;
        (status == 201).then_some(())
    })
    .await;
    println!("enqueue worked again {:?} later", begun.elapsed());
    let log = process.log();
    assert_eq!(
        log.matches("the queue store did not answer a request")
            .count(),
        1,
        "the requests of one outage are one line: {log}"
    );
    fixture.until_completed(&jobs, SOON).await;
    assert_eq!(
        (
            fixture.ended(&jobs, "completed").await,
            fixture.ended(&jobs, "lost").await
        ),
        (60, 0)
    );
    let mut counts = fixture.target.counts();
    counts.remove("new");
    assert_eq!(
        (
            counts.len(),
            counts.values().filter(|calls| **calls > 1).count()
        ),
        (60, 0),
        "each ran once"
    );
    eventually("nothing is left", SOON, || async {
        let left = fixture.count("select (select count(*) from flyball.ready) + (select count(*) from flyball.lease)").await;
        (left == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_is_obeyed_while_postgres_is_away() {
    let (fixture, mut servers, _dir) = own("rps = -1").await;
    let mut process = fixture.serve_with(&[], &[("FLYBALL_GRACE_S", "2")]);
    fixture.target.gate(Gate::Closed);
    fixture.enqueue("job", 3).await;
    fixture.target.called(3, SOON).await;
    servers.stop(ServerKind::Postgres).unwrap();
    process.logged("dispatching failed", SOON).await;
    fixture.target.gate(Gate::Open);

    process.signal(Signal::TERM);

    let message = Instant::now();
    let status = process.ends(SOON).await;
    println!("ended with {status} {:?} after SIGTERM", message.elapsed());
    assert_eq!(status.code(), Some(0));
    assert!(
        message.elapsed() < Duration::from_secs(2 + 5 + 5 + 3),
        "{}",
        process.log()
    );
    let log = process.log();
    assert_eq!(
        log.matches("writing job results failed").count(),
        1,
        "what keeps failing is logged when it begins: {log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_stops_writes_its_results_if_postgres_is_back_within_the_grace_time() {
    let (fixture, mut servers, _dir) = own("rps = -1").await;
    let times = [("FLYBALL_GRACE_S", "60"), ("FLYBALL_WORKER_TTL_S", "60")];
    let mut process = fixture.serve_with(&[], &times);
    fixture.target.gate(Gate::Closed);
    let jobs = fixture.enqueue("job", 3).await;
    fixture.target.called(3, SOON).await;
    tokio::task::block_in_place(|| servers.stop(ServerKind::Postgres)).unwrap();
    fixture.target.gate(Gate::Open);
    process.logged("writing job results failed", SOON).await;

    process.signal(Signal::TERM);
    process.logged("SIGTERM: stopping", SOON).await;
    // Real time: longer than results are tried again without any grace time.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(process.ended(), None, "{}", process.log());
    tokio::task::block_in_place(|| servers.start(ServerKind::Postgres)).unwrap();

    let status = process.ends(SOON).await;
    assert_eq!(status.code(), Some(0), "{}", process.log());
    fixture.until_completed(&jobs, SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_redis_is_emptied_or_stopped_the_knobs_come_back_and_a_closed_throttle_stops_meanwhile()
 {
    let (fixture, mut servers, _dir) = own("rps = 20\nburst = 1\nwindow = 1\nsafe_rps = 2").await;
    let process = fixture.serve();
    let url = process.url().await;
    let client = Client::new();
    fixture.enqueue("job", 2000).await;
    fixture.target.called(10, SOON).await;
    fixture
        .redis("HSET throttle:default:knobs rps 30 capacity 1000 capacity_reason pool")
        .await;
    eventually("the edit is on record", SOON, || async {
        let sql = "select count(*) from flyball.knobs where throttle = 'default' and fields ->> 'rps' = '30' and not fields ? 'capacity'";
        (fixture.count(sql).await == 1).then_some(())
    })
    .await;

    fixture.redis("FLUSHALL").await;
    let emptied = Instant::now();
    let back = eventually(
        "the knobs come back by themselves",
        Duration::from_secs(6),
        || async {
            fixture
                .status("default")
                .await
                .filter(|status| status.knobs.rps.number() == 30.0)
        },
    )
    .await;
    assert_eq!(
        (
            back.knobs.capacity.number(),
            back.knobs.capacity_reason.as_str()
        ),
        (-1.0, ""),
        "how things were is no knob to come back"
    );
    println!(
        "knobs were back {:?} after FLUSHALL, {}",
        emptied.elapsed(),
        back.knobs.why
    );
    fixture
        .target
        .called(fixture.target.calls().len() + 60, SOON)
        .await;
    let flowing = emptied.elapsed().as_secs_f64();
    let passed = fixture.target.between(emptied, Instant::now()) as f64;
    assert!(
        passed <= 30.0 * flowing + 2.0,
        "{passed} calls in {flowing} s is a burst"
    );

    tokio::task::block_in_place(|| servers.stop(ServerKind::Redis)).unwrap();
    let stopped = Instant::now();
    let (status, message, _) = eventually("it is not ready", SOON, || async {
        let (status, message, retry) = answer(client.get(format!("{url}/readyz"))).await?;
        (status == 503).then_some((status, message, retry))
    })
    .await;
    println!("/readyz {status}: {}", message["detail"]);
    assert!(message["detail"].as_str().unwrap().contains("Redis"));
    let (status, message, _) = answer(client.get(format!("{url}/api/v1/throttles")))
        .await
        .unwrap();
    println!("/api/v1/throttles {status}: {}", message["detail"]);
    assert_eq!(
        (status.as_u16(), message["code"].as_str()),
        (503, Some("throttles_unavailable"))
    );
    let body = json!({"kind": "http", "args": {"url": format!("{}/new", fixture.target.url)}});
    let (status, ..) = answer(client.post(format!("{url}/api/v1/jobs")).json(&body))
        .await
        .unwrap();
    assert_eq!(status, 201, "jobs are accepted without Redis");
    // Real time: a second to notice that Redis is away, and two in which calls would show.
    tokio::time::sleep_until((stopped + Duration::from_secs(3)).into()).await;
    let while_away = fixture
        .target
        .between(stopped + Duration::from_secs(1), Instant::now());

    tokio::task::block_in_place(|| servers.start(ServerKind::Redis)).unwrap();
    let started = Instant::now();
    fixture
        .target
        .called(fixture.target.calls().len() + 20, SOON)
        .await;
    let back = fixture.status("default").await.unwrap().knobs.rps.number();
    println!(
        "{while_away} calls while away; 20 calls {:?} after it came back, at {back} a second",
        started.elapsed()
    );
    assert_eq!((while_away, back), (0, 30.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_starts_while_redis_is_away_takes_jobs_and_seeds_when_it_is_back() {
    let (fixture, mut servers, _dir) = own("rps = -1").await;
    tokio::task::block_in_place(|| servers.stop(ServerKind::Redis)).unwrap();
    let mut process = fixture.serve();
    let url = process.url().await;
    let client = Client::new();

    let (alive, ..) = answer(client.get(format!("{url}/healthz"))).await.unwrap();
    assert_eq!(alive, 200);
    let (status, message, _) = answer(client.get(format!("{url}/readyz"))).await.unwrap();
    assert!(
        status == 503 && message["detail"].as_str().unwrap().contains("Redis"),
        "{message}"
    );
    let body = json!({"kind": "http", "args": {"url": format!("{}/early", fixture.target.url)}});
    let (status, message, _) = answer(client.post(format!("{url}/api/v1/jobs")).json(&body))
        .await
        .unwrap();
    assert_eq!(status, 201, "{message}");
    assert_eq!((fixture.target.calls().len(), process.ended()), (0, None));

    tokio::task::block_in_place(|| servers.start(ServerKind::Redis)).unwrap();

    fixture.target.called(1, SOON).await;
    process.logged("the knobs are seeded", SOON).await;
    assert_eq!(
        fixture.status("default").await.unwrap().knobs.rps.number(),
        -1.0
    );
    eventually("it is ready", SOON, || async {
        let (status, ..) = answer(client.get(format!("{url}/readyz"))).await?;
        (status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_answers_and_takes_no_writes_is_told_by_the_metric_and_the_log() {
    let (fixture, _servers, _dir) = own("rps = -1").await;
    let process = fixture.serve();
    let url = process.url().await;
    let client = Client::new();
    let until = async |value: &str| {
        let line = format!("flyball_throttle_store_unavailable {value}\n");
        eventually(&line, SOON, || async {
            let answer = client.get(format!("{url}/metrics")).send().await.ok()?;
            answer.text().await.ok()?.contains(&line).then_some(())
        })
        .await;
    };
    until("0.0").await;

    fixture.redis("CONFIG SET maxmemory 1").await;

    until("1.0").await;
    let told = process.logged("Redis takes no writes", SOON).await;
    assert!(told.contains("OOM: it is out of memory"), "{told}");
    fixture.redis("CONFIG SET maxmemory 0").await;
    until("0.0").await;
}

#[tokio::test]
async fn a_worker_that_lost_its_heartbeat_does_not_say_that_it_works_while_postgres_hangs() {
    let fixture = ProcessFixture::new("rps = 5").await;
    let proxy = Proxy::start(&fixture.database_url).await;
    let process = fixture.serve_with(&[], &[("DATABASE_URL", &proxy.url)]);
    process.worker_started().await;
    fixture.enqueue("some", 100).await;
    fixture.target.called(1, SOON).await;

    proxy.way(Way::Hung);
    process.logged("stopping all running jobs", SOON).await;
    process.logged("dispatching failed; retrying", SOON).await;
    // Real time: a loop that has not failed for ten seconds is told to work again, and claims in
    // flight fail within three of each other.
    tokio::time::sleep(Duration::from_secs(16)).await;
    let log = process.log();
    assert!(!log.contains("dispatching works again"), "{log}");

    proxy.way(Way::Open);
    process.logged("dispatching works again", SOON).await;
}
