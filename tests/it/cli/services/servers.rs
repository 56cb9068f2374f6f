//! Private servers under `flyball services`: starting, stopping, and querying them.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use flyball::stack::{RunningStack, SpawnOptions, Urls, spawn};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, Executor, PgConnection};
use tempfile::TempDir;

use crate::support::{PROGRAM, connect_redis};

pub const NOBODY: [u32; 0] = [];

pub const SOON: Duration = Duration::from_secs(60);

pub fn dir() -> TempDir {
    dir_with_mode(0o755)
}

pub fn dir_with_mode(mode: u32) -> TempDir {
    tempfile::Builder::new()
        .prefix("flyball-services-")
        .permissions(fs::Permissions::from_mode(mode))
        .tempdir()
        .unwrap()
}

pub fn options() -> SpawnOptions {
    SpawnOptions {
        program: Some(PROGRAM.clone()),
        fsync: false,
        ..SpawnOptions::default()
    }
}

pub fn start(dir: &Path) -> RunningStack {
    let stderr = dir.with_extension("stderr");
    let running = spawn(
        dir,
        &SpawnOptions {
            stderr: Some(stderr.clone()),
            ..options()
        },
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let _ = fs::remove_file(stderr);
    running
}

/// The command itself, with all three standard streams piped.
pub fn services(dir: &Path) -> Command {
    let mut command = Command::new(&*PROGRAM);
    command
        .arg("services")
        .arg("--dir")
        .arg(dir)
        .args(["--fsync", "off"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    without_urls(&mut command);
    command
}

pub fn without_urls(command: &mut Command) {
    for name in ["DATABASE_URL", "REDIS_URL", "PROMETHEUS_URL"] {
        command.env_remove(name);
    }
}

/// Reads byte by byte, so that no input is lost for a later reader.
pub fn first_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let stdout = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while stdout.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
        if byte[0] == b'\n' {
            return String::from_utf8(line).unwrap();
        }
    }
    let mut stderr = String::new();
    child
        .stderr
        .as_mut()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    panic!("no line on standard output; standard error: {stderr}");
}

/// Closes its input and waits for its exit.
pub fn finish(mut child: Child) -> Output {
    drop(child.stdin.take());
    child.wait_with_output().unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn pids(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir.join("run")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            fs::read_to_string(entry.ok()?.path())
                .ok()?
                .trim()
                .parse()
                .ok()
        })
        .collect()
}

/// Returns those that still run, without dead children that have not been reaped.
pub fn living(pids: &[u32]) -> Vec<u32> {
    pids.iter()
        .copied()
        .filter(|pid| !matches!(state_of(*pid).as_str(), "" | "Z"))
        .collect()
}

/// Returns one letter, as in `ps`; empty if there is no such process.
fn state_of(pid: u32) -> String {
    // Slim containers have no `ps`, and macOS has no /proc.
    if Path::new("/proc/self/stat").exists() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        return stat
            .rsplit_once(") ")
            .map_or(String::new(), |(_, rest)| rest[..1].to_owned());
    }
    let output = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .expect("ps");
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .chars()
        .take(1)
        .collect()
}

pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

pub fn sockets(urls: &Urls) -> PathBuf {
    PathBuf::from(urls.database_url.split_once("?host=").unwrap().1)
}

pub async fn execute(urls: &Urls, sql: &'static str) {
    let mut connection = PgConnection::connect(&urls.database_url).await.unwrap();
    connection.execute(sql).await.unwrap();
}

pub async fn redis_command<T: redis::FromRedisValue>(urls: &Urls, words: &[&str]) -> T {
    let mut connection = connect_redis(&urls.redis_url).await.unwrap();
    let mut command = redis::cmd(words[0]);
    command
        .arg(&words[1..])
        .query_async(&mut connection)
        .await
        .unwrap()
}

pub async fn assert_all_answer(urls: &Urls) {
    all_answer(urls).await.unwrap();
}

pub async fn all_answer(urls: &Urls) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(&urls.database_url).await?;
    let database: String = sqlx::query_scalar("select current_database()::text")
        .fetch_one(&mut connection)
        .await?;
    anyhow::ensure!(database == "flyball");
    let mut redis = connect_redis(&urls.redis_url).await?;
    anyhow::ensure!(redis::cmd("PING").query_async::<String>(&mut redis).await? == "PONG");
    anyhow::ensure!(query(&urls.prometheus_url, "vector(1)").await? == [1.0]);
    Ok(())
}

/// The values of an instant query.
pub async fn query(prometheus_url: &str, promql: &str) -> anyhow::Result<Vec<f64>> {
    let request = reqwest::Client::new()
        .get(format!("{prometheus_url}/api/v1/query"))
        .query(&[("query", promql)]);
    let answer: serde_json::Value = request.send().await?.error_for_status()?.json().await?;
    let samples = answer["data"]["result"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    samples
        .iter()
        .map(|sample| Ok(sample["value"][1].as_str().unwrap_or_default().parse()?))
        .collect()
}
