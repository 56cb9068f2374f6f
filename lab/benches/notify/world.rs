//! The private servers of a round, the worker processes, and their settings.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use flyball::jobs::{NewJob, Queue};
use flyball::stack::{RunningStack, ServerKind, SpawnOptions, as_superuser, spawn};
use flyball::throttle::{Change, Name, RedisStore, Store};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sqlx::{Connection, PgConnection, PgPool};

use crate::cpu::Servers;

const PROGRAM: &str = env!("CARGO_BIN_EXE_flyball-lab");

/// The pool of every round.
pub const POOL: &str = "sms";

/// Postgres and Redis of one round, which stop when dropped.
pub struct NotifyServers {
    pub queue: Queue,
    /// The servers' processes.
    pub servers: Servers,
    dir: PathBuf,
    running: RunningStack,
}

/// The settings of the worker processes.
pub struct Set<'a> {
    /// The base URL of the provider.
    pub url: &'a str,
    /// The SIDs of the accounts.
    pub accounts: &'a [String],
    /// The rate of each account, in messages per second; below 0 for no limit.
    pub rps: f64,
    /// Further keys of the pool, in TOML.
    pub more: &'a str,
    /// The most messages in flight.
    pub concurrency: usize,
    pub connections: u32,
}

/// Returns the names of `many` accounts.
pub fn accounts(many: usize) -> Vec<String> {
    (1..=many).map(|n| format!("AC{n:03}")).collect()
}

impl NotifyServers {
    /// Starts servers in `dir`, in place of those of an earlier world, and migrates.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        let options = SpawnOptions {
            program: Some(PathBuf::from(PROGRAM)),
            ephemeral: true,
            stderr: Some(dir.join("services.log")),
            // Servers that are not started take no CPU.
            prometheus_url: Some("http://127.0.0.1:9".to_owned()),
            ..SpawnOptions::default()
        };
        let running = spawn(dir, &options)?;
        let queue = Queue::connect(&running.urls.database_url, 4, Duration::from_secs(20)).await?;
        queue.migrate().await?;
        let first = "select split_part(pg_read_file('postmaster.pid'), chr(10), 1)";
        let mut superuser =
            PgConnection::connect(&as_superuser(&running.urls.database_url)).await?;
        let postmaster: String = sqlx::query_scalar(first).fetch_one(&mut superuser).await?;
        let redis = fs::read_to_string(dir.join("run/redis.pid"))
            .context("reading the process id of Redis")?;
        let servers = Servers {
            postmaster: postmaster.trim().parse()?,
            redis: redis.trim().parse()?,
        };
        Ok(Self {
            queue,
            servers,
            dir: dir.to_path_buf(),
            running,
        })
    }

    /// Restarts Postgres with statistics of statements, and returns a pool of its superuser.
    pub async fn watch(&mut self) -> anyhow::Result<PgPool> {
        let pool = PgPool::connect(&as_superuser(&self.running.urls.database_url)).await?;
        sqlx::query("alter system set shared_preload_libraries = 'pg_stat_statements'")
            .execute(&pool)
            .await?;
        pool.close().await;
        self.running.stop(ServerKind::Postgres)?;
        self.running.start(ServerKind::Postgres)?;
        // Each try takes away a connection that the restart has ended.
        let mut tries = 0;
        while let Err(error) = sqlx::query("select 1").execute(&self.queue.pool).await {
            tries += 1;
            anyhow::ensure!(tries < 100, "the queue did not come back: {error}");
        }
        let pool = PgPool::connect(&as_superuser(&self.running.urls.database_url)).await?;
        for extension in [
            "create extension if not exists pg_stat_statements",
            "create extension if not exists pg_walinspect",
        ] {
            sqlx::query(extension).execute(&pool).await?;
        }
        Ok(pool)
    }

    /// Enqueues messages with the numbers `from` up to `to`, each for a recipient of its own.
    pub async fn enqueue(&self, from: usize, to: usize) -> anyhow::Result<()> {
        let numbers: Vec<usize> = (from..to).collect();
        for some in numbers.chunks(1000) {
            let jobs: Vec<NewJob> = some.iter().map(|number| message(*number)).collect();
            self.queue.enqueue(&jobs).await?;
        }
        Ok(())
    }

    /// Sets the knob for the seconds of its rate that an account may save up, as a person would.
    pub async fn save_up(&self, seconds: f64) -> anyhow::Result<()> {
        let fields = [("rps", "-1".to_owned()), ("key_burst", seconds.to_string())];
        let fields = fields.map(|(knob, text)| (knob.to_owned(), Some(text)));
        let change = Change {
            fields: BTreeMap::from(fields),
            create: true,
            by: "bench".to_owned(),
            ..Change::default()
        };
        self.store()?
            .set(&Name::new(format!("{POOL}:accounts"))?, &change)
            .await?;
        Ok(())
    }

    /// Starts a worker process that only runs jobs.
    pub fn worker(&self, set: &Set<'_>) -> anyhow::Result<WorkerProcess> {
        self.serve("runner", &settings(set)?, &[("BENCH_TOKEN", "token")])
    }

    /// Starts `flyball serve` with these roles, settings and environment variables.
    pub fn serve(
        &self,
        roles: &str,
        settings: &str,
        variables: &[(&str, &str)],
    ) -> anyhow::Result<WorkerProcess> {
        let config = self.dir.join("worker.toml");
        fs::write(&config, settings)?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("worker.log"))?;
        let mut command = Command::new(PROGRAM);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FLYBALL_")) {
            command.env_remove(name);
        }
        command
            .args(["serve", "--roles", roles, "--config"])
            .arg(&config)
            .env("DATABASE_URL", &self.running.urls.database_url)
            .env("REDIS_URL", &self.running.urls.redis_url)
            .envs(variables.iter().copied())
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(WorkerProcess {
            child: command.spawn()?,
            log: self.dir.join("worker.log"),
        })
    }

    /// Runs a command of the product in the folder of the servers, and returns what it printed.
    pub fn run(&self, words: &[&str]) -> anyhow::Result<Vec<u8>> {
        let mut command = Command::new(PROGRAM);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FLYBALL_")) {
            command.env_remove(name);
        }
        let ended = command
            .args(words)
            .env("DATABASE_URL", &self.running.urls.database_url)
            .env("REDIS_URL", &self.running.urls.redis_url)
            .current_dir(&self.dir)
            .stderr(Stdio::inherit())
            .output()?;
        anyhow::ensure!(ended.status.success(), "{words:?}: {}", ended.status);
        Ok(ended.stdout)
    }

    /// Connects to the throttles.
    pub fn store(&self) -> anyhow::Result<RedisStore> {
        Ok(RedisStore::connect(&self.running.urls.redis_url, "")?)
    }

    /// Waits until no message waits or runs.
    pub async fn settled(&self, patience: Duration) -> anyhow::Result<()> {
        let left =
            "select (select count(*) from flyball.lease) + (select count(*) from flyball.ready)
            + (select count(*) from flyball.scheduled)";
        let until = Instant::now() + patience;
        loop {
            let left: i64 = sqlx::query_scalar(left).fetch_one(&self.queue.pool).await?;
            if left == 0 {
                return Ok(());
            }
            anyhow::ensure!(
                Instant::now() < until,
                "{left} messages are not over after {} s",
                patience.as_secs()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Returns unix time in seconds, by the clock of the fake.
#[allow(
    clippy::disallowed_methods,
    reason = "the fake runs in this process, by the same clock"
)]
pub fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Returns unix time in seconds with its fraction, by the clock of Postgres, which is that of this
/// machine.
#[allow(
    clippy::disallowed_methods,
    reason = "Postgres runs on this machine, by the same clock"
)]
pub fn unix_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

/// Returns the recipient of message `number`.
pub fn recipient(number: usize) -> String {
    format!("+1555{number:07}")
}

fn message(number: usize) -> NewJob {
    let args = json!({"channel": "sms", "to": recipient(number), "body": format!("Your code is {number:06}. It is valid for ten minutes.")});
    NewJob::new("notification", args).throttle(POOL)
}

fn settings(set: &Set<'_>) -> anyhow::Result<String> {
    let mut text = format!(
        "concurrency = {}\ndatabase_connections = {}\nlog = \"warn\"\n",
        set.concurrency, set.connections
    );
    write!(
        text,
        "[pools.{POOL}]\nprovider = \"twilio\"\nbase_url = \"{}\"\nrps = {:?}\n",
        set.url, set.rps
    )?;
    write!(
        text,
        "auth_token_env = \"BENCH_TOKEN\"\nfrom = \"+15550100\"\n{}\n",
        set.more
    )?;
    for account in set.accounts {
        write!(
            text,
            "[[pools.{POOL}.accounts]]\nname = \"{account}\"\naccount_sid = \"{account}\"\n"
        )?;
    }
    Ok(text)
}

/// A worker process, killed when dropped.
pub struct WorkerProcess {
    child: Child,
    log: PathBuf,
}

impl WorkerProcess {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error with its log if the process has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            anyhow::bail!("a worker ended with {status}: {log}");
        }
        Ok(())
    }

    /// Stops the process with SIGTERM and waits until it has ended.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)?;
        }
        let until = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait()?.is_none() {
            anyhow::ensure!(Instant::now() < until, "a worker does not stop");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
