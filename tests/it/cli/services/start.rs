//! Starting: output, errors, passed-on options, and users.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use flyball::stack::{ServerKind, SpawnOptions, Urls, spawn};
use rustix::process::Signal;
use sqlx::Row;

use super::servers::{
    SOON, all_answer, assert_all_answer, dir, dir_with_mode, execute, finish, first_line, living,
    options, pids, query, services, signal, start, stderr, without_urls,
};
use crate::support::{PROGRAM, database, eventually, redis_prefix, stack};

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
        return crate::support::skip("Prometheus was given from outside");
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
    let stderr = stderr(&second);
    assert!(
        stderr.contains(&format!(
            "is in use by another `flyball services` (process {})",
            running.pid()
        )),
        "{stderr}"
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
    let stderr = stderr(&output);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for word in [
        "PostgreSQL (15 or newer)",
        "Redis",
        "Prometheus",
        "install",
        "DATABASE_URL",
    ] {
        assert!(stderr.contains(word), "{word} is not in: {stderr}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn data_of_another_major_version_are_refused_and_not_touched() {
    let dir = dir();
    let data = dir.path().join("postgres/data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("PG_VERSION"), "9.6\n").unwrap();
    fs::write(dir.path().join("lock"), "1\n").unwrap();

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

#[tokio::test]
async fn it_works_as_an_ordinary_user_too() {
    if !rustix::process::geteuid().is_root() {
        return crate::support::skip("not run by root, so all other tests show it");
    }
    let dir = dir();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // The build directory may be below root's home, which other users cannot enter.
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
    // The process of another test may still hold the copy open for writing, until it begins.
    let mut child = eventually("the copy can be run", Duration::from_secs(60), || {
        let started = match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            started => Some(started.unwrap()),
        };
        std::future::ready(started)
    })
    .await;

    let urls: Urls = serde_json::from_str(&first_line(&mut child)).unwrap();

    // Root may open any user's sockets.
    assert_all_answer(&urls).await;
    assert!(finish(child).status.success());
}

#[tokio::test]
async fn root_keeps_data_elsewhere_if_its_servers_user_cannot_enter_the_directory() {
    if !rustix::process::geteuid().is_root() {
        return crate::support::skip("not run by root");
    }
    let home = dir_with_mode(0o700);
    fs::write(home.path().join("not ours"), "").unwrap();
    let dir = home.path().join("flyball");
    let stderr = home.path().join("stderr");

    let running = spawn(
        &dir,
        &SpawnOptions {
            ephemeral: true,
            stderr: Some(stderr.clone()),
            ..options()
        },
    )
    .unwrap();

    assert_all_answer(&running.urls).await;
    let stderr = fs::read_to_string(stderr).unwrap();
    let targets = running.urls.targets_dir.clone().unwrap();
    assert!(
        stderr.contains("the data is in /var/lib/flyball/"),
        "{stderr}"
    );
    assert!(targets.starts_with("/var/lib/flyball"));
    assert_eq!(
        fs::metadata(home.path()).unwrap().permissions().mode() & 0o777,
        0o700
    );
    drop(running);
    assert!(!targets.exists());
}
