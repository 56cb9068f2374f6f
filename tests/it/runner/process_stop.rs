//! Signals: a process stops gracefully, or at once.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::process::SOON;
use crate::support::eventually;
use crate::support::process::{Gate, Process, ProcessFixture, ignores_hangup};

#[tokio::test]
async fn sigterm_lets_running_jobs_finish_and_claims_nothing_new() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let mut process = fixture.serve();
    let jobs = fixture.enqueue("job", 20).await;
    fixture.target.called(8, SOON).await;

    process.signal(Signal::TERM);
    process.logged("SIGTERM: stopping", SOON).await;
    let late = fixture.enqueue("late", 5).await;
    fixture.target.gate(Gate::Open);

    let status = process.ends(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert_eq!(fixture.ended(&jobs, "completed").await, 8);
    assert_eq!(fixture.ended(&late, "completed").await, 0);
    assert_eq!(fixture.target.calls().len(), 8);
    assert_eq!(fixture.count("select count(*) from flyball.lease").await, 0);
    assert_eq!(
        fixture.count("select count(*) from flyball.ready").await,
        17
    );
    assert_eq!(
        fixture
            .count("select count(*) from flyball.worker where stopped_at is null")
            .await,
        0
    );
}

#[tokio::test]
async fn a_process_that_drains_is_alive_and_not_ready() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let mut process = fixture.serve();
    let url = process.url().await;
    fixture.enqueue("job", 1).await;
    fixture.target.called(1, SOON).await;

    process.signal(Signal::TERM);

    let get = |path: &str| reqwest::get(format!("{url}{path}"));
    let detail = eventually("it is not ready", SOON, || async {
        let answer = get("/readyz").await.ok()?;
        let is_refused = answer.status() == 503;
        let problem: serde_json::Value = answer.json().await.ok()?;
        is_refused.then(|| problem["detail"].to_string())
    })
    .await;
    assert_eq!(detail, "\"the process is stopping\"");
    assert_eq!(get("/healthz").await.unwrap().status(), 200);
    fixture.target.gate(Gate::Open);
    let status = process.ends(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{}", process.log());
}

#[tokio::test]
async fn a_request_that_is_running_when_the_process_stops_gets_its_answer() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let mut process = fixture.serve();
    let url = process.url().await;
    let address = url.trim_start_matches("http://");
    let job = json!({"kind": "http", "args": {"url": format!("{}/slow", fixture.target.url)}});
    let body = job.to_string();
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut begun = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut begun).await.unwrap();

    process.signal(Signal::TERM);
    process.logged("SIGTERM: stopping", SOON).await;
    // Real time: a request may take ten seconds.
    tokio::time::sleep(Duration::from_secs(7)).await;
    stream.write_all(body.as_bytes()).await.unwrap();

    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let status = process.ends(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{}", process.log());
}

#[tokio::test]
async fn jobs_that_do_not_finish_in_the_grace_time_are_given_back_without_using_an_attempt() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let mut process = fixture.serve_with(&[], &[("FLYBALL_GRACE_S", "0.3")]);
    let jobs = fixture.enqueue("job", 3).await;
    fixture.target.called(3, SOON).await;

    process.signal(Signal::INT);

    assert_eq!(process.ends(Duration::from_secs(15)).await.code(), Some(0));
    let untouched: i64 = sqlx::query_scalar(
        "select count(*) from flyball.ready where job_id = any($1) and attempt = 0",
    )
    .bind(&jobs)
    .fetch_one(fixture.pool())
    .await
    .unwrap();
    assert_eq!(untouched, 3);
    assert_eq!(
        fixture.count("select count(*) from flyball.attempt").await,
        0
    );
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let mut process = fixture.serve();
    fixture.enqueue("job", 2).await;
    fixture.target.called(2, SOON).await;
    process.signal(Signal::TERM);
    process.logged("send it again to stop at once", SOON).await;
    // Real time: within a second a further signal counts as the first one.
    tokio::time::sleep(Duration::from_millis(1200)).await;

    process.signal(Signal::TERM);

    let answer = Instant::now();
    assert_eq!(process.ends(Duration::from_secs(2)).await.code(), Some(130));
    process.logged("SIGTERM: stopping at once", SOON).await;
    println!("ended {:?} after the second signal", answer.elapsed());
}

#[tokio::test]
async fn two_signals_at_once_are_one_and_let_running_jobs_finish() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let mut process = fixture.serve();
    let jobs = fixture.enqueue("job", 1).await;
    fixture.target.called(1, SOON).await;

    process.signal(Signal::TERM);
    process.logged("send it again to stop at once", SOON).await;
    process.signal(Signal::INT);
    fixture.target.gate(Gate::Open);

    let status = process.ends(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert_eq!(fixture.ended(&jobs, "completed").await, 1);
}

#[tokio::test]
async fn a_terminal_that_closes_lets_running_jobs_finish() {
    if ignores_hangup() {
        return;
    }
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let mut process = fixture.serve();
    let jobs = fixture.enqueue("job", 1).await;
    fixture.target.called(1, SOON).await;

    process.signal(Signal::HUP);
    process.logged("SIGHUP: stopping", SOON).await;
    fixture.target.gate(Gate::Open);

    let status = process.ends(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert_eq!(fixture.ended(&jobs, "completed").await, 1);
}

#[tokio::test]
async fn a_process_that_was_started_by_nohup_outlives_its_terminal() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let serve = fixture.command();
    let mut command = Command::new("nohup");
    command
        .arg(serve.get_program())
        .arg("serve")
        .current_dir(serve.get_current_dir().expect("its folder"));
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut process = Process::start(command);
    process.worker_started().await;

    process.signal(Signal::HUP);

    let jobs = fixture.enqueue("job", 1).await;
    fixture.until_completed(&jobs, SOON).await;
    assert_eq!(process.ended(), None, "{}", process.log());
}

#[tokio::test]
async fn a_signal_while_it_waits_for_postgres_ends_it() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let mut process = fixture.serve_with(
        &[],
        &[("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nothing")],
    );
    // Nothing is logged while it waits; the signal is handled as soon as the program has started.
    eventually("it has begun", SOON, || async {
        caught(process.pid(), Signal::TERM).then_some(())
    })
    .await;

    process.signal(Signal::TERM);

    assert_eq!(
        process.ends(Duration::from_secs(10)).await.code(),
        Some(0),
        "{}",
        process.log()
    );
}

/// Returns true if the process has a handler for the signal.
fn caught(pid: i32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .map(str::trim)
        .unwrap_or("0");
    u64::from_str_radix(mask, 16).unwrap_or(0) >> (signal.as_raw() - 1) & 1 == 1
}
