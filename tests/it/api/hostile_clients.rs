//! Unauthenticated and hostile clients of the API.

use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Client;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::eventually;
use crate::support::process::{Gate, Process, ProcessFixture};

const SOON: Duration = Duration::from_secs(60);

const POOL: &str = r#"
[pools.mail]
provider = "sendgrid"
from = "news@example.com"
api_key_env = "SENDGRID_API_KEY"

[[pools.mail.accounts]]
name = "main"
"#;

/// A process with this limit of open files.
fn serve_with_files(fixture: &ProcessFixture, files: u32, settings: &[(&str, &str)]) -> Process {
    let usual = fixture.command();
    let mut command = Command::new("sh");
    let set = usual
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    command
        .arg("-c")
        .arg(format!("ulimit -n {files} && exec \"$0\" serve"))
        .arg(usual.get_program())
        .envs(set);
    for (name, _) in usual.get_envs().filter(|(_, value)| value.is_none()) {
        command.env_remove(name);
    }
    command
        .current_dir(usual.get_current_dir().expect("a folder"))
        .envs(settings.iter().copied());
    Process::start(command)
}

// === Connections ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_that_say_nothing_keep_neither_health_nor_jobs_from_working() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let process = serve_with_files(&fixture, 256, &[]);
    let url = process.url().await;
    process.worker_started().await;
    let address = url.trim_start_matches("http://").to_owned();

    let half_open = async |n: usize| {
        let mut stream = TcpStream::connect(&address).await.ok()?;
        stream
            .write_all(format!("GET /healthz HTTP/1.1\r\nx-number: {n}\r\n").as_bytes())
            .await
            .ok()?;
        Some(stream)
    };
    let mut kept = Vec::new();
    for tens in 0..20 {
        kept.extend(join_all((0..50).map(|n| half_open(tens * 50 + n))).await);
        // They keep connecting while health is requested, each time on a new connection.
        let client = Client::builder()
            .timeout(Duration::from_secs(20))
            .build()
            .unwrap();
        let answer = client.get(format!("{url}/healthz")).send().await;
        assert_eq!(
            answer.expect("health answers").status(),
            200,
            "after {} connections",
            (tens + 1) * 50
        );
    }
    let jobs = fixture.enqueue("job", 40).await;
    fixture.until_completed(&jobs, SOON).await;

    assert_eq!(
        fixture.ended(&jobs, "failed").await,
        0,
        "no attempt was used up"
    );
    assert_eq!(fixture.ended(&jobs, "completed").await, 40);
    let metrics = Client::new()
        .get(format!("{url}/metrics"))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let of = |name: &str| -> f64 {
        let line = metrics
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("no {name} in\n{metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(of("flyball_connections_max"), 128.0 + 16.0);
    assert!(of("flyball_connections{state=\"waiting\"}") <= 144.0);
    assert!(of("flyball_connections_refused_total{reason=\"made_room\"}") > 500.0);
    assert!(kept.len() >= 1000);
}

#[tokio::test]
async fn a_connection_that_does_not_finish_its_head_is_closed() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let process = fixture.serve();
    let address = process.url().await.trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: localh")
        .await
        .unwrap();

    let ended = tokio::time::timeout(SOON, async {
        let mut rest = Vec::new();
        while tokio::io::AsyncReadExt::read_buf(&mut stream, &mut rest)
            .await
            .is_ok_and(|read| read > 0)
        {}
    });

    assert!(ended.await.is_ok(), "it was closed");
}

#[tokio::test]
async fn a_head_that_is_larger_than_any_request_needs_is_refused_before_its_end() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let process = fixture.serve();
    let address = process.url().await.trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let begin = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-large: ";
    let rest = "a".repeat(64 * 1024 - begin.len());
    let sent = format!("{begin}{rest}");
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut answer = [0; 12];

    let answered = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer);
    let answered = tokio::time::timeout(SOON, answered).await;

    answered.expect("an answer in time").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shortage_of_our_own_descriptors_uses_no_attempt() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.target.gate(Gate::Closed);
    let process = serve_with_files(
        &fixture,
        80,
        &[
            ("FLYBALL_CONCURRENCY", "100"),
            ("FLYBALL_WORKER_TTL_S", "30"),
        ],
    );
    process.worker_started().await;
    let jobs = fixture.enqueue("job", 100).await;
    process.logged("too many files open", SOON).await;

    fixture.target.gate(Gate::Open);

    fixture.until_completed(&jobs, SOON).await;
    assert_eq!(fixture.ended(&jobs, "failed").await, 0);
    let used: i64 = sqlx::query_scalar(
        "select count(*) from flyball.attempt where job_id = any($1) and outcome = 'snoozed'",
    )
    .bind(&jobs)
    .fetch_one(fixture.pool())
    .await
    .unwrap();
    assert!(used > 0, "some had to wait");
    eventually("the process still serves", SOON, || async {
        let health = reqwest::get(format!("{}/healthz", process.url().await))
            .await
            .ok()?;
        (health.status() == 200).then_some(())
    })
    .await;
}

// === The log ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reason_of_a_request_begins_no_line_of_the_log() {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.settings_file(POOL);
    let process = fixture.serve_with(&[], &[("SENDGRID_API_KEY", "SG.0123456789abcdef")]);
    let url = process.url().await;
    let body = json!({"by": "ann", "why": "paid\n2026-11-20 WARN forged \u{1b}[31m"});

    let resumed = Client::new()
        .post(format!("{url}/api/v1/pools/mail/accounts/main/resume"))
        .json(&body)
        .send()
        .await
        .unwrap();

    assert_eq!(resumed.status(), 200);
    let line = process.logged("a person resumed an account", SOON).await;
    let escaped = r#"by="ann" why="paid\n2026-11-20 WARN forged \u{1b}[31m""#;
    assert!(line.contains(escaped), "{line}");
}
