//! A Postgres of one test with a streaming replica.
//!
//! The server is the test's own, because a copy of that of the test run would hold the databases of
//! all tests.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use flyball::stack::{RunningStack, as_superuser, find};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tempfile::TempDir;

use super::{eventually, own_server, run};

const SOON: Duration = Duration::from_secs(60);

/// A primary and its replica, which end when dropped.
pub struct StreamingReplica {
    /// The URL of the database on the primary.
    pub primary_url: String,
    /// The URL of the same database on the replica.
    pub url: String,
    _primary: RunningStack,
    program: find::Program,
    owner: Option<u32>,
    child: Option<Child>,
    home: TempDir,
}

impl StreamingReplica {
    /// Starts a server, copies it and starts the copy as its replica.
    pub async fn start() -> Self {
        let running = own_server().await;
        let primary_url = running.urls.database_url.clone();
        let superuser = as_superuser(&primary_url);
        let primary = PgConnectOptions::from_str(&superuser).expect("the superuser's URL");
        let socket = primary.get_socket().expect("a server on a unix socket");
        let found = find::postgres(&find::places(&[]), None).expect("Postgres");
        // A short path, because the name of a socket has room for about a hundred bytes.
        let home = tempfile::Builder::new()
            .prefix("fbr")
            .tempdir_in("/tmp")
            .expect("a directory in /tmp");
        // Postgres refuses to run as root.
        let owner = rustix::process::geteuid().is_root().then(|| {
            std::fs::metadata(socket)
                .expect("the socket's folder")
                .uid()
        });
        if let Some(owner) = owner {
            chown(home.path(), Some(owner), Some(owner)).expect("the owner");
        }
        let mode = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(home.path(), mode).expect("the mode");
        let (before, _) = primary_url.split_once("?host=").expect("a unix socket");
        let url = format!("{before}?host={}", home.path().display());
        let mut replica = Self {
            primary_url: primary_url.clone(),
            url,
            _primary: running,
            program: found.program,
            owner,
            child: None,
            home,
        };
        replica.copy(socket, primary.get_username());
        replica.run().await;
        replica
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    fn as_owner(&self, mut command: Command) -> Command {
        if let Some(owner) = self.owner {
            command.uid(owner).gid(owner);
        }
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    fn copy(&self, socket: &Path, user: &str) {
        let mut command = self.program.sibling("pg_basebackup").command();
        command
            .arg("-D")
            .arg(self.data())
            .arg("-h")
            .arg(socket)
            .args(["-U", user, "-R", "-X", "stream", "-c", "fast", "--no-sync"]);
        let done = self.as_owner(command).output().expect("pg_basebackup");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "pg_basebackup: {said}");
    }

    /// Starts the replica and waits until it answers.
    pub async fn run(&mut self) {
        let mut command = self.program.command();
        command.arg("-D").arg(self.data());
        for setting in [
            "listen_addresses=",
            "port=5432",
            "shared_buffers=16MB",
            "fsync=off",
            "logging_collector=off",
            "max_connections=200",
            "dynamic_shared_memory_type=mmap",
        ] {
            command.args(["-c", setting]);
        }
        let folder = format!("unix_socket_directories={}", self.home.path().display());
        command.args(["-c", &folder]);
        let log = std::fs::File::create(self.home.path().join("log")).expect("the log");
        let mut command = self.as_owner(command);
        command.stdout(Stdio::null()).stderr(log).process_group(0);
        self.child = Some(command.spawn().expect("the replica"));
        let options = PgConnectOptions::from_str(&self.url).expect("the replica's URL");
        let options = options.disable_statement_logging();
        eventually("the replica answers", SOON, || async {
            options.connect().await.ok()?.close().await.ok()
        })
        .await;
    }

    /// Stops the replica at once, like a machine that goes down.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = Pid::from_raw(child.id() as i32).expect("a process id");
            let _ = kill_process(pid, Signal::QUIT);
            let _ = child.wait();
        }
    }

    /// Returns a connection of the superuser to the replica.
    pub async fn superuser(&self) -> PgConnection {
        let options = PgConnectOptions::from_str(&as_superuser(&self.url)).expect("the URL");
        options.connect().await.expect("the replica")
    }

    /// Stops the replay of what the replica receives.
    pub async fn pause(&self) {
        let mut connection = self.superuser().await;
        run(&mut connection, "select pg_wal_replay_pause()").await;
        eventually("the replay is paused", SOON, || async {
            let mut connection = self.superuser().await;
            let state: String = sqlx::query_scalar("select pg_get_wal_replay_pause_state()")
                .fetch_one(&mut connection)
                .await
                .expect("the state");
            (state == "paused").then_some(())
        })
        .await;
    }

    /// Lets the replay go on.
    pub async fn resume(&self) {
        let mut connection = self.superuser().await;
        run(&mut connection, "select pg_wal_replay_resume()").await;
    }

    /// Waits until the replica has everything that the primary has now.
    pub async fn catches_up(&self) {
        let options = PgConnectOptions::from_str(&as_superuser(&self.primary_url))
            .expect("the primary's URL");
        let mut primary = options.connect().await.expect("the primary");
        let at: String = sqlx::query_scalar("select pg_current_wal_lsn()::text")
            .fetch_one(&mut primary)
            .await
            .expect("its position");
        eventually("the replica has caught up", SOON, || async {
            let mut connection = self.superuser().await;
            let sql = "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
            let reached: bool = sqlx::query_scalar(sql)
                .bind(&at)
                .fetch_one(&mut connection)
                .await
                .expect("its position");
            reached.then_some(())
        })
        .await;
    }
}

impl Drop for StreamingReplica {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default();
            let from = log.len().saturating_sub(2_000);
            eprintln!(
                "--- log of the replica:\n{}",
                log.get(from..).unwrap_or(&log)
            );
        }
    }
}
