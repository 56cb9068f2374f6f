//! Several worker processes, and edits that reach them.

use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::support::eventually;
use crate::support::process::{Process, ProcessFixture};

pub const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn two_processes_share_the_work_and_never_run_one_job_twice() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.delay(Duration::from_millis(10));
    let _processes = [fixture.serve(), fixture.serve()];
    let jobs = fixture
        .enqueue_as(600, |n| NewJob {
            key: (n % 3).to_string(),
            ..fixture.call(&format!("job-{n}"))
        })
        .await;

    fixture.until_completed(&jobs, SOON).await;

    let counts = fixture.target.counts();
    assert_eq!(
        (
            counts.len(),
            counts.values().filter(|calls| **calls > 1).count()
        ),
        (600, 0)
    );
    let workers = fixture
        .count("select count(distinct worker_id) from flyball.attempt")
        .await;
    let least = fixture.count("select min(n) from (select count(*) as n from flyball.attempt group by worker_id) shares").await;
    println!("{workers} workers, the smaller share is {least} of 600");
    assert_eq!(workers, 2);
}

#[tokio::test]
async fn three_processes_start_at_once_on_an_empty_database() {
    let fixture = ProcessFixture::new("rps = -1").await;
    sqlx::raw_sql("drop schema flyball cascade")
        .execute(fixture.pool())
        .await
        .unwrap();

    let processes = [fixture.serve(), fixture.serve(), fixture.serve()];

    for process in &processes {
        process.worker_started().await;
    }
    let jobs = fixture.enqueue("job", 30).await;
    fixture.until_completed(&jobs, SOON).await;
}

#[tokio::test]
async fn a_process_without_the_api_serves_its_metrics_and_nothing_else() {
    let fixture = ProcessFixture::new("rps = 100\nwindow = 0.1").await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap().to_string();
    drop(free);
    let settings = [("FLYBALL_METRICS_LISTEN", at.as_str())];
    let _runner = fixture.serve_with(&["--roles", "runner"], &settings);
    let get = |path: &str| reqwest::get(format!("http://{at}{path}"));
    eventually("the process is ready", SOON, || async {
        let response = get("/readyz").await.ok()?;
        (response.status() == 200).then_some(())
    })
    .await;

    let job = |_| NewJob::new("http", serde_json::json!({"url": "http://127.0.0.1:9/"}));
    fixture.enqueue_as(3, job).await;
    let attempt = "flyball_job_attempts_total{throttle=\"default\",outcome=\"failed\"}";
    let metrics = eventually("attempts are counted", SOON, || async {
        let text = get("/metrics").await.ok()?.text().await.ok()?;
        text.contains(attempt).then_some(text)
    })
    .await;
    assert!(
        metrics.contains("flyball_job_attempt_duration_seconds_count{throttle=\"default\"}"),
        "{metrics}"
    );
    for path in ["/", "/api/v1/jobs", "/openapi.json"] {
        assert_eq!(get(path).await.unwrap().status(), 404, "{path}");
    }
}

#[tokio::test]
async fn a_process_that_waits_for_postgres_is_alive_and_not_ready() {
    let fixture = ProcessFixture::new("rps = 100").await;
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (one, other) = (free(), free());
    let [api, metrics] = [one, other].map(|free| free.local_addr().unwrap().to_string());
    let _process = fixture.serve_with(
        &[],
        &[
            ("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nothing"),
            ("FLYBALL_LISTEN", api.as_str()),
            ("FLYBALL_METRICS_LISTEN", metrics.as_str()),
        ],
    );

    for at in [&api, &metrics] {
        let get = |path: &str| reqwest::get(format!("http://{at}{path}"));
        eventually("it is alive", SOON, || async {
            (get("/healthz").await.ok()?.status() == 200).then_some(())
        })
        .await;
        for path in ["/readyz", "/api/v1/jobs"] {
            let answer = get(path).await.unwrap();
            assert_eq!(answer.status(), 503, "{at}{path}");
            let problem: Value = answer.json().await.unwrap();
            assert_eq!(problem["detail"], "the process is starting");
        }
    }
}

#[tokio::test]
async fn migrations_run_while_a_worker_works() {
    let fixture = ProcessFixture::new("rps = 100\nwindow = 0.1").await;
    let _process = fixture.serve();
    let jobs = fixture.enqueue("job", 300).await;
    fixture.target.called(20, SOON).await;

    for _ in 0..3 {
        let output = fixture.command().arg("migrate").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    assert!(
        fixture.target.calls().len() < 300,
        "it worked while the migrations ran"
    );
    fixture.until_completed(&jobs, SOON).await;
    let counts = fixture.target.counts();
    assert_eq!(counts.len(), jobs.len());
    assert!(counts.values().all(|calls| *calls == 1));
}

#[tokio::test]
async fn a_runner_and_an_api_are_processes_of_their_own() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let _runner = fixture.serve_with(&["--roles", "runner"], &[]);
    let api = fixture.serve_with(&["--roles", "api"], &[]);
    let url = api.url().await;
    let client = reqwest::Client::new();

    let body = json!({"kind": "http", "args": {"url": format!("{}/job", fixture.target.url)}});
    let answer = client
        .post(format!("{url}/api/v1/jobs"))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 201);
    let id = answer.json::<Value>().await.unwrap()["id"]
        .as_i64()
        .unwrap();

    eventually("the job is completed", SOON, || async {
        let job: Value = client
            .get(format!("{url}/api/v1/jobs/{id}"))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        (job["state"] == "completed").then_some(())
    })
    .await;
    let workers: Value = client
        .get(format!("{url}/api/v1/workers"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        workers["workers"].as_array().unwrap().len(),
        1,
        "the API is no worker: {workers}"
    );
}

#[tokio::test]
async fn a_job_of_a_long_transaction_is_claimed_within_three_seconds_of_its_commit() {
    let fixture = ProcessFixture::new("rps = 20\nwindow = 0.1").await;
    let _process = fixture.serve();
    let mut producer = PgConnection::connect(&fixture.database_url).await.unwrap();
    let mut transaction = producer.begin().await.unwrap();
    let url = format!("{}/long", fixture.target.url);
    sqlx::query(
        "select flyball.enqueue('http', jsonb_build_object('url', $1::text), key => 'long')",
    )
    .bind(&url)
    .execute(&mut *transaction)
    .await
    .unwrap();
    // Later jobs of the same throttle overtake it; then nothing happens for a while, so every
    // worker sleeps.
    let others = fixture.enqueue("other", 60).await;
    fixture.until_completed(&others, SOON).await;
    eventually("the dispatcher sleeps", SOON, || async {
        (fixture
            .count("select count(*) from flyball.wakeup where asleep")
            .await
            == 1)
            .then_some(())
    })
    .await;

    transaction.commit().await.unwrap();

    let committed = Instant::now();
    fixture.target.called(61, Duration::from_secs(3)).await;
    println!("claimed {:?} after the commit", committed.elapsed());
}

#[tokio::test]
async fn an_edit_with_redis_cli_acts_within_a_second() {
    let fixture = ProcessFixture::new("rps = 2\nburst = 1\nwindow = 0.3").await;
    let _process = fixture.serve();
    fixture.enqueue("job", 400).await;
    fixture.target.called(2, SOON).await;

    fixture.redis("HSET {}throttle:default:knobs rps 40").await;
    let turned = Instant::now();
    let before = fixture.target.calls().len();

    // A second to notice the change, then forty per second.
    fixture.target.called(before + 40, SOON).await;
    let took = turned.elapsed();
    println!("40 more calls {took:?} after the edit");
    assert!(
        took < Duration::from_millis(2500),
        "forty calls took {took:?}"
    );
}

#[tokio::test]
async fn a_rate_of_zero_stops_and_resuming_gives_no_burst() {
    let fixture = ProcessFixture::new("rps = 40\nburst = 1\nwindow = 1").await;
    let _process = fixture.serve_with(&[], &[("FLYBALL_CONCURRENCY", "64")]);
    fixture.enqueue("job", 1000).await;
    fixture.target.called(20, SOON).await;

    fixture.redis("HSET {}throttle:default:knobs rps 0").await;
    let stopped = Instant::now();
    let looked = stopped + Duration::from_millis(3000);
    // Real time: a second to notice the change, and long enough to fill a bucket, if that were to
    // happen.
    tokio::time::sleep_until(looked.into()).await;
    let after_stop = fixture
        .target
        .between(stopped + Duration::from_secs(1), looked);
    fixture.redis("HSET {}throttle:default:knobs rps 40").await;
    let resumed = Instant::now();
    fixture
        .target
        .called(fixture.target.calls().len() + 40, SOON)
        .await;

    let first = fixture
        .target
        .calls()
        .iter()
        .find(|(_, at)| *at >= resumed)
        .unwrap()
        .1;
    // A busy machine may deliver one of the first calls late, and so nearer to the next ones; a
    // bucket that had filled would be in the half second of each of them.
    let calls = fixture.target.calls();
    let begins = calls.iter().map(|call| call.1).filter(|at| *at >= first);
    let halves = begins.take(5).map(|at| {
        let end = at + Duration::from_millis(500);
        fixture.target.between(at, end)
    });
    let half = halves.min().unwrap();
    println!(
        "{after_stop} calls while stopped; the first {:?} after the edit, {half} in its first half second",
        first - resumed
    );
    assert_eq!(after_stop, 0);
    assert!(first - resumed < Duration::from_secs(1));
    assert!(half <= 22, "{half} calls in half a second at 40 a second");
}

#[tokio::test]
async fn a_process_whose_log_cannot_be_written_works_on() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let mut command = fixture.command();
    command.arg("serve");
    let mut process = Process::start_unheard(command);

    let jobs = fixture.enqueue("job", 20).await;
    fixture.until_completed(&jobs, SOON).await;

    // It logs the signal, and ends in order all the same.
    process.signal(Signal::TERM);
    assert_eq!(process.ends(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn claims_that_keep_failing_between_looks_that_succeed_are_logged_once() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let refuse = "create sequence flyball.refused;
        alter table flyball.lease add constraint refused check (nextval('flyball.refused') < 0)";
    sqlx::raw_sql(refuse).execute(fixture.pool()).await.unwrap();
    let process = fixture.serve();
    let jobs = fixture.enqueue("job", 1).await;
    eventually("six claims have failed", SOON, || async {
        let sql = "select last_value from flyball.refused";
        (fixture.count(sql).await >= 6).then_some(())
    })
    .await;
    sqlx::raw_sql("alter table flyball.lease drop constraint refused")
        .execute(fixture.pool())
        .await
        .unwrap();

    fixture.until_completed(&jobs, SOON).await;

    let log = process.log();
    assert_eq!(
        log.matches("dispatching failed; retrying").count(),
        1,
        "{log}"
    );
}
