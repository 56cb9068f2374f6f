//! Stopping: by end of input, by signals, by a kill; and the remains for the next start.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use flyball::stack::{SpawnOptions, spawn};
use rustix::process::Signal;
use sqlx::{Connection, PgConnection};

use super::servers::{
    NOBODY, SOON, assert_all_answer, dir, dir_with_mode, execute, finish, first_line, living,
    options, pids, redis_command, services, signal, sockets, start, stderr, without_urls,
};
use crate::support::{PROGRAM, eventually};

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
    // The shell holds the only write end of the supervisor's input, like a program that spawned it.
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
    // An unrelated process of the same user as Postgres.
    let mut unrelated = Command::new("sleep");
    unrelated.arg("60");
    let owner = fs::metadata(dir.path().join("postgres")).unwrap();
    if rustix::process::geteuid().is_root() {
        unrelated.uid(owner.uid()).gid(owner.gid());
    }
    let mut unrelated = unrelated.spawn().unwrap();
    let data = dir.path().join("postgres/data");
    fs::write(
        data.join("postmaster.pid"),
        format!("{}\n{}\n1763640000\n5432\n", unrelated.id(), data.display()),
    )
    .unwrap();

    let running = start(dir.path());

    assert_all_answer(&running.urls).await;
    assert_eq!(unrelated.try_wait().unwrap(), None);
    unrelated.kill().unwrap();
    unrelated.wait().unwrap();
}

#[tokio::test]
async fn data_survive_a_restart() {
    // As root: the servers' user must get access to a private directory that holds only our files.
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

        // Its input stays open, so only the signal ends it.
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
    // The remains of an aborted start do not block the next one.
    assert_all_answer(&start(dir.path()).urls).await;
}

#[test]
fn a_folder_that_never_was_that_of_a_stack_is_left_as_it_is() {
    let dir = dir();
    let rules = dir.path().join("prometheus/rules.yml");
    fs::create_dir(rules.parent().unwrap()).unwrap();
    fs::write(&rules, "groups: []\n").unwrap();

    for more in [&["--wipe"][..], &["--ephemeral"][..], &[][..]] {
        let output = services(dir.path())
            .args(more)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        let told = stderr(&output);
        assert!(
            told.contains("prometheus was not made by `flyball services`"),
            "{more:?}: {told}"
        );
    }

    assert!(rules.exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn ephemeral_leaves_nothing() {
    let dir = dir();
    let inner = dir.path().join("inner");
    let stderr = dir.path().join("stderr");
    let running = spawn(
        &inner,
        &SpawnOptions {
            ephemeral: true,
            stderr: Some(stderr),
            ..options()
        },
    )
    .unwrap();

    drop(running);

    assert!(!inner.exists());
}
