//! `flyball services`: the supervisor of the private servers, run as a program.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use flyball::stack::{RunningStack, ServerKind, SpawnOptions, Urls, spawn};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{Connection, Executor, PgConnection, Row};
use tempfile::TempDir;

use crate::support::{PROGRAM, database, eventually, redis_prefix, stack};

const NOBODY: [u32; 0] = [];
const SOON: Duration = Duration::from_secs(20);

// === The test support itself ===

#[tokio::test]
async fn each_test_has_a_database_and_a_prefix_of_its_own() {
    let (one, two) = (database().await, database().await);

    sqlx::raw_sql("create table mine (id int)")
        .execute(one.pool())
        .await
        .unwrap();

    sqlx::raw_sql("create table mine (id int)")
        .execute(two.pool())
        .await
        .unwrap();
    let row = sqlx::query("select current_database()")
        .fetch_one(one.pool())
        .await
        .unwrap();
    assert!(one.url().contains(&row.get::<String, _>(0)));
    assert_ne!(redis_prefix(), redis_prefix());
}

// === Starting ===

#[tokio::test]
async fn the_ready_line_is_json_with_urls_that_answer() {
    let dir = dir();
    let mut child = services(dir.path()).spawn().unwrap();

    let line = first_line(&mut child);

    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    let keys: Vec<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        ["database_url", "prometheus_url", "redis_url", "targets_dir"]
    );
    assert_all_answer(&serde_json::from_value(json).unwrap()).await;
    assert!(finish(child).status.success());
}

#[tokio::test]
async fn a_target_file_is_scraped_while_prometheus_runs() {
    let stack = stack().await;
    let Some(targets) = &stack.targets_dir else {
        return;
    };
    let own = stack.prometheus_url.trim_start_matches("http://");
    let file = format!(r#"[{{"targets": ["{own}"], "labels": {{"job": "itself"}}}}]"#);
    fs::write(targets.join("itself.json"), file).unwrap();
    let up = eventually(
        "a scrape of the new target",
        Duration::from_secs(30),
        || async {
            query(&stack.prometheus_url, r#"up{job="itself"}"#)
                .await
                .ok()?
                .first()
                .copied()
        },
    )
    .await;

    assert_eq!(up, 1.0);
}

#[tokio::test]
async fn a_directory_deeper_than_a_socket_path_may_be_long_works() {
    let dir = dir();
    let deep = dir.path().join("a rather \"long\" name/".repeat(12));
    fs::create_dir_all(&deep).unwrap();

    let running = start(&deep);

    assert!(deep.as_os_str().len() > 200);
    assert_all_answer(&running.urls).await;
}

#[tokio::test]
async fn two_run_side_by_side_and_know_nothing_of_each_other() {
    let (one_dir, two_dir) = (dir(), dir());
    let (one, two) = (start(one_dir.path()), start(two_dir.path()));

    execute(&one.urls, "create table mine (id int)").await;

    execute(&two.urls, "create table mine (id int)").await;
    drop(one);
    assert_all_answer(&two.urls).await;
}

#[tokio::test]
async fn a_directory_that_is_in_use_is_refused_and_left_alone() {
    let dir = dir();
    let running = start(dir.path());

    let second = services(dir.path()).stdin(Stdio::null()).output().unwrap();

    assert_eq!(second.status.code(), Some(1));
    let said = stderr(&second);
    assert!(
        said.contains(&format!(
            "is in use by another `flyball services` (process {})",
            running.pid()
        )),
        "{said}"
    );
    assert_all_answer(&running.urls).await;
}

#[tokio::test]
async fn given_urls_replace_the_servers_and_are_passed_on() {
    let (dir, nowhere) = (dir(), dir());
    let mut command = services(dir.path());
    command
        .env("DATABASE_URL", "postgres://someone:secret@db/theirs")
        .env("REDIS_URL", "redis://cache");
    command
        .args(["--prometheus-url", "http://metrics:9090"])
        .arg("--search-path")
        .arg(nowhere.path());
    let mut child = command.spawn().unwrap();

    let urls: Urls = serde_json::from_str(&first_line(&mut child)).unwrap();

    assert_eq!(urls.database_url, "postgres://someone:secret@db/theirs");
    assert_eq!(urls.redis_url, "redis://cache");
    assert_eq!(urls.prometheus_url, "http://metrics:9090");
    assert_eq!(urls.targets_dir, None);
    assert!(pids(dir.path()).is_empty());
    assert!(finish(child).status.success());
}

#[test]
fn servers_that_are_not_installed_end_it_with_69_and_one_line_that_helps() {
    let (dir, nowhere) = (dir(), dir());

    let output = services(dir.path())
        .arg("--search-path")
        .arg(nowhere.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(69));
    let said = stderr(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    for word in [
        "PostgreSQL (15 or newer)",
        "Redis",
        "Prometheus",
        "install",
        "DATABASE_URL",
    ] {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn data_of_another_major_version_are_refused_and_not_touched() {
    let dir = dir();
    let data = dir.path().join("postgres/data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("PG_VERSION"), "9.6\n").unwrap();

    let output = services(dir.path()).stdin(Stdio::null()).output().unwrap();

    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("was created by Postgres 9.6, but the installed Postgres is"),
        "{}",
        stderr(&output)
    );
    assert_eq!(
        fs::read_to_string(data.join("PG_VERSION")).unwrap(),
        "9.6\n"
    );
}

#[test]
fn a_wrong_interval_is_refused_with_what_is_allowed() {
    let output = services(dir().path())
        .args(["--scrape-interval", "5"])
        .stdin(Stdio::null())
        .output()
        .unwrap();

    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("use a whole number and a unit"),
        "{}",
        stderr(&output)
    );
}

// === Stopping ===

#[tokio::test]
async fn closing_its_input_stops_all_servers_and_removes_the_sockets() {
    let dir = dir();
    let running = start(dir.path());
    let (pids, sockets) = (pids(dir.path()), sockets(&running.urls));
    assert!(pids.len() == 3 && sockets.exists());

    drop(running);

    assert_eq!(living(&pids), NOBODY);
    assert!(!sockets.exists());
    let log = fs::read_to_string(dir.path().join("log/postgres.log")).unwrap();
    assert!(
        log.trim_end().ends_with("database system is shut down"),
        "{log}"
    );
}

#[tokio::test]
async fn the_servers_end_with_a_parent_that_was_killed() {
    let dir = dir();
    // The shell holds the only writing end of the supervisor's input, as a program that spawned it would.
    let script = r#"cd "$1" && mkfifo pipe && { "$2" services --dir dir --fsync off <pipe >ready & } && exec 3>pipe && read forever"#;
    let mut parent = Command::new("sh");
    parent
        .args(["-c", script, "sh"])
        .arg(dir.path())
        .arg(&*PROGRAM)
        .stdin(Stdio::piped())
        .stderr(Stdio::null());
    without_urls(&mut parent);
    let mut parent = parent.spawn().unwrap();
    eventually("the ready line", SOON, || async {
        fs::read_to_string(dir.path().join("ready"))
            .ok()
            .filter(|line| line.ends_with('\n'))
    })
    .await;
    let pids = pids(&dir.path().join("dir"));
    assert_eq!(living(&pids).len(), 3);

    parent.kill().unwrap();
    parent.wait().unwrap();

    eventually("the end of the servers", SOON, || async {
        living(&pids).is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn after_a_kill_of_the_supervisor_itself_the_next_start_finds_everything() {
    let dir = dir();
    let running = start(dir.path());
    execute(&running.urls, "create table kept (id int)").await;
    let pids = pids(dir.path());

    signal(running.pid(), Signal::KILL);
    drop(running);
    let running = start(dir.path());

    assert_eq!(living(&pids), NOBODY);
    execute(&running.urls, "insert into kept values (1)").await;
}

#[tokio::test]
async fn a_stale_pid_file_whose_id_is_a_strangers_does_not_stop_postgres() {
    let dir = dir();
    drop(start(dir.path()));
    // A process of the same user, as Postgres would see it, that has nothing to do with it.
    let mut stranger = Command::new("sleep");
    stranger.arg("60");
    let owner = fs::metadata(dir.path().join("postgres")).unwrap();
    if rustix::process::geteuid().is_root() {
        stranger.uid(owner.uid()).gid(owner.gid());
    }
    let mut stranger = stranger.spawn().unwrap();
    let data = dir.path().join("postgres/data");
    fs::write(
        data.join("postmaster.pid"),
        format!("{}\n{}\n1763640000\n5432\n", stranger.id(), data.display()),
    )
    .unwrap();

    let running = start(dir.path());

    assert_all_answer(&running.urls).await;
    assert_eq!(stranger.try_wait().unwrap(), None);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn data_survive_a_restart() {
    // As root: the servers' user must be let into a private directory that holds nothing but ours.
    let dir = dir_with_mode(0o700);
    let running = start(dir.path());
    execute(&running.urls, "create table kept as select 42 as answer").await;
    let _: () = redis_command(&running.urls, &["SET", "kept", "42"]).await;

    drop(running);
    let running = start(dir.path());

    let mut connection = PgConnection::connect(&running.urls.database_url)
        .await
        .unwrap();
    let answer: i32 = sqlx::query_scalar("select answer from kept")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(answer, 42);
    assert_eq!(
        redis_command::<String>(&running.urls, &["GET", "kept"]).await,
        "42"
    );
}

#[tokio::test]
async fn signals_stop_it_in_order() {
    for with in [Signal::INT, Signal::TERM] {
        let dir = dir();
        let mut child = services(dir.path()).spawn().unwrap();
        first_line(&mut child);
        let pids = pids(dir.path());

        signal(child.id(), with);

        // Its input stays open: it is the signal that ends it.
        let status = eventually("the end", SOON, || {
            std::future::ready(child.try_wait().unwrap())
        })
        .await;
        assert!(status.success(), "{status}");
        assert_eq!(living(&pids), NOBODY);
    }
}

#[tokio::test]
async fn an_input_that_closes_while_they_start_stops_them() {
    let dir = dir();
    let child = services(dir.path()).spawn().unwrap();

    let output = finish(child);

    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty());
    assert!(pids(dir.path()).is_empty());
    // What was begun does not stand in the way of the next start.
    assert_all_answer(&start(dir.path()).urls).await;
}

#[tokio::test]
async fn ephemeral_leaves_nothing() {
    let dir = dir();
    let inner = dir.path().join("inner");
    let said = dir.path().join("said");
    let running = spawn(
        &inner,
        &SpawnOptions {
            ephemeral: true,
            said: Some(said),
            ..options()
        },
    )
    .unwrap();

    drop(running);

    assert!(!inner.exists());
}

// === While it runs ===

#[tokio::test]
async fn a_server_can_be_taken_away_and_given_back() {
    let dir = dir();
    let mut running = start(dir.path());

    for part in [
        ServerKind::Postgres,
        ServerKind::Redis,
        ServerKind::Prometheus,
    ] {
        running.stop(part).unwrap();
        assert_eq!(living(&pids(dir.path())).len(), 2, "{part:?}");
        running.start(part).unwrap();
    }

    assert_all_answer(&running.urls).await;
}

#[tokio::test]
async fn a_server_that_is_killed_comes_back_under_the_same_url() {
    let dir = dir();
    let running = start(dir.path());
    let before = pids(dir.path());

    for pid in &before {
        signal(*pid, Signal::KILL);
    }

    eventually("three new servers", SOON, || async {
        let now = pids(dir.path());
        (living(&now).len() == 3 && now.iter().all(|pid| !before.contains(pid))).then_some(())
    })
    .await;
    eventually("their answers", SOON, || async {
        all_answer(&running.urls).await.ok()
    })
    .await;
}

// === Users ===

#[tokio::test]
async fn it_works_as_an_ordinary_user_too() {
    if !rustix::process::geteuid().is_root() {
        // Then all other tests have shown it.
        return;
    }
    let dir = dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The build directory may be below root's home, where nobody else can go.
    let program = dir.path().join("flyball");
    fs::copy(&*PROGRAM, &program).unwrap();
    let mut command = Command::new(&program);
    command
        .arg("services")
        .arg("--dir")
        .arg(dir.path().join("data"))
        .args(["--fsync", "off"])
        .current_dir("/");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .uid(65_534)
        .gid(65_534);
    without_urls(&mut command);
    let mut child = command.spawn().unwrap();

    let urls: Urls = serde_json::from_str(&first_line(&mut child)).unwrap();

    // Root may look into anybody's sockets.
    assert_all_answer(&urls).await;
    assert!(finish(child).status.success());
}

#[tokio::test]
async fn root_keeps_data_elsewhere_if_its_servers_user_cannot_enter_the_directory() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let home = dir_with_mode(0o700);
    fs::write(home.path().join("not ours"), "").unwrap();
    let dir = home.path().join("flyball");
    let said = home.path().join("said");

    let running = spawn(
        &dir,
        &SpawnOptions {
            ephemeral: true,
            said: Some(said.clone()),
            ..options()
        },
    )
    .unwrap();

    assert_all_answer(&running.urls).await;
    let said = fs::read_to_string(said).unwrap();
    let targets = running.urls.targets_dir.clone().unwrap();
    assert!(said.contains("the data is in /var/lib/flyball/"), "{said}");
    assert!(targets.starts_with("/var/lib/flyball"));
    assert_eq!(
        fs::metadata(home.path()).unwrap().permissions().mode() & 0o777,
        0o700
    );
    drop(running);
    assert!(!targets.exists());
}

// === Helpers ===

fn dir() -> TempDir {
    dir_with_mode(0o755)
}

fn dir_with_mode(mode: u32) -> TempDir {
    tempfile::Builder::new()
        .prefix("flyball-services-")
        .permissions(fs::Permissions::from_mode(mode))
        .tempdir()
        .unwrap()
}

fn options() -> SpawnOptions {
    SpawnOptions {
        program: Some(PROGRAM.clone()),
        fsync: false,
        ..SpawnOptions::default()
    }
}

fn start(dir: &Path) -> RunningStack {
    let said = dir.with_extension("said");
    let running = spawn(
        dir,
        &SpawnOptions {
            said: Some(said.clone()),
            ..options()
        },
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let _ = fs::remove_file(said);
    running
}

/// The command itself, all three standard streams piped.
fn services(dir: &Path) -> Command {
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

fn without_urls(command: &mut Command) {
    for name in ["DATABASE_URL", "REDIS_URL", "PROMETHEUS_URL"] {
        command.env_remove(name);
    }
}

/// Reads byte by byte, so that nothing is taken that a later reader wants.
fn first_line(child: &mut Child) -> String {
    let mut line = Vec::new();
    let stdout = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while stdout.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
        if byte[0] == b'\n' {
            return String::from_utf8(line).unwrap();
        }
    }
    let mut said = String::new();
    child
        .stderr
        .as_mut()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    panic!("no line on standard output; standard error: {said}");
}

/// Closes its input and waits for its end.
fn finish(mut child: Child) -> Output {
    drop(child.stdin.take());
    child.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn pids(dir: &Path) -> Vec<u32> {
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

/// Those that still run; a dead child that nobody has waited for does not.
fn living(pids: &[u32]) -> Vec<u32> {
    pids.iter()
        .copied()
        .filter(|pid| !matches!(state_of(*pid).as_str(), "" | "Z"))
        .collect()
}

/// One letter, as `ps` shows it; nothing if there is no such process.
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

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

fn sockets(urls: &Urls) -> PathBuf {
    PathBuf::from(urls.database_url.split_once("?host=").unwrap().1)
}

async fn execute(urls: &Urls, sql: &'static str) {
    let mut connection = PgConnection::connect(&urls.database_url).await.unwrap();
    connection.execute(sql).await.unwrap();
}

async fn redis_command<T: redis::FromRedisValue>(urls: &Urls, words: &[&str]) -> T {
    let client = redis::Client::open(urls.redis_url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd(words[0]);
    command
        .arg(&words[1..])
        .query_async(&mut connection)
        .await
        .unwrap()
}

async fn assert_all_answer(urls: &Urls) {
    all_answer(urls).await.unwrap();
}

async fn all_answer(urls: &Urls) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(&urls.database_url).await?;
    let database: String = sqlx::query_scalar("select current_database()::text")
        .fetch_one(&mut connection)
        .await?;
    anyhow::ensure!(database == "flyball");
    let client = redis::Client::open(urls.redis_url.as_str())?;
    let mut redis = client.get_multiplexed_async_connection().await?;
    anyhow::ensure!(redis::cmd("PING").query_async::<String>(&mut redis).await? == "PONG");
    anyhow::ensure!(query(&urls.prometheus_url, "vector(1)").await? == [1.0]);
    Ok(())
}

/// The values of an instant query.
async fn query(prometheus_url: &str, promql: &str) -> anyhow::Result<Vec<f64>> {
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
