//! Real `flyball serve` processes, and a loopback server for their `http` jobs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use flyball::jobs::{NewJob, Queue};
use flyball::postgres::Db;
use flyball::throttle::{Name, RedisStore, Status, Store};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;

use super::{
    Database, PROGRAM, connect_redis, database, eventually, poll, redis_prefix, skip, stack,
};

/// The time to live of the workers under test: the minimum.
pub const TTL: Duration = Duration::from_secs(3);

/// The name of the settings file, without `.toml` so that it is not read as a knobs file.
const SETTINGS: &str = "settings";

/// The path of calls that the server neither records nor holds at the gate.
const MARKER: &str = "marker";

/// Returns true, and reports that the calling test is skipped, if this process ignores SIGHUP, as
/// below `nohup`: each process that it starts then ignores it too.
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let is_ignored = ignored.is_none_or(|mask| mask >> (Signal::HUP.as_raw() - 1) & 1 == 1);
    if is_ignored {
        skip("SIGHUP is ignored here, as below nohup");
    }
    is_ignored
}

/// The resources shared by the processes of one test: a database, a Redis prefix, knobs, and an
/// HTTP server.
pub struct ProcessFixture {
    pub database_url: String,
    pub redis_url: String,
    pub prefix: String,
    pub queue: Queue,
    pub target: Target,
    prometheus_url: String,
    knobs: TempDir,
    _database: Option<Database>,
}

impl ProcessFixture {
    /// Creates the resources on the servers of this test run, with these knobs for the throttle
    /// `default`.
    pub async fn new(knobs: &str) -> Self {
        let (database, stack) = (database().await, stack().await);
        let url = database.url().to_owned();
        Self::on(
            &url,
            &stack.redis_url,
            &stack.prometheus_url,
            &redis_prefix(),
            knobs,
            Some(database),
        )
        .await
    }

    /// Creates the resources on the given servers.
    pub async fn on(
        database_url: &str,
        redis_url: &str,
        prometheus_url: &str,
        prefix: &str,
        knobs: &str,
        database: Option<Database>,
    ) -> Self {
        let queue = Queue::connect(database_url, 4, Duration::from_secs(20))
            .await
            .expect("the database");
        queue.migrate().await.expect("the schema");
        let fixture = Self {
            database_url: database_url.to_owned(),
            redis_url: redis_url.to_owned(),
            prefix: prefix.to_owned(),
            queue,
            target: Target::start().await,
            prometheus_url: prometheus_url.to_owned(),
            knobs: tempfile::tempdir().expect("a directory"),
            _database: database,
        };
        fixture.knobs_file("default", &format!("[knobs]\nmode = \"manual\"\n{knobs}\n"));
        fixture
    }

    pub fn knobs_file(&self, throttle: &str, text: &str) {
        std::fs::write(self.knobs.path().join(format!("{throttle}.toml")), text)
            .expect("the knobs file");
    }

    /// Writes the settings file for processes started from now on.
    pub fn settings_file(&self, text: &str) {
        std::fs::write(self.knobs.path().join(SETTINGS), text).expect("the settings file");
    }

    pub fn pool(&self) -> &Db {
        &self.queue.pool
    }

    /// Kills the process that runs a job once its checkpoint is beyond `done`, and starts a
    /// replacement. Returns the checkpoint.
    pub async fn kill_the_holder(
        &self,
        job: i64,
        done: i64,
        processes: &mut [Process],
        serve: impl Fn() -> Process,
    ) -> i64 {
        let (holder, now) = eventually("the job came forward", Duration::from_secs(60), || async {
            let sql = "select w.pid, c.done from flyball.lease l join flyball.worker w on w.id = l.worker_id
                join flyball.checkpoint c on c.job_id = l.job_id and c.updated_at > l.claimed_at
                where l.job_id = $1 and w.stopped_at is null and c.done > $2";
            sqlx::query_as::<_, (i32, i64)>(sql).bind(job).bind(done).fetch_optional(self.pool()).await.unwrap()
        })
        .await;
        let victim = processes
            .iter_mut()
            .find(|process| process.pid() == holder)
            .unwrap();
        victim.kill();
        *victim = serve();
        // The time to live is covered by another test.
        let sql =
            "update flyball.worker set heartbeat_at = now() - interval '1 hour' where pid = $1";
        sqlx::query(sql)
            .bind(holder)
            .execute(self.pool())
            .await
            .unwrap();
        now
    }

    /// Starts a process with all roles and only the test's settings.
    pub fn serve(&self) -> Process {
        self.serve_with(&[], &[])
    }

    /// Starts a process with further arguments and settings.
    pub fn serve_with(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Process {
        let mut command = self.command();
        command
            .arg("serve")
            .args(arguments)
            .envs(settings.iter().copied());
        Process::start(command)
    }

    /// Returns the program's command in the test's environment.
    pub fn command(&self) -> Command {
        self.command_of(&PROGRAM)
    }

    /// Returns the command of a program of this or another version in the test's environment.
    pub fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FLYBALL_")) {
            command.env_remove(name);
        }
        let ttl = TTL.as_secs().to_string();
        let set: BTreeMap<&str, &str> = BTreeMap::from([
            ("DATABASE_URL", self.database_url.as_str()),
            ("REDIS_URL", &self.redis_url),
            ("PROMETHEUS_URL", &self.prometheus_url),
            ("FLYBALL_REDIS_PREFIX", &self.prefix),
            ("FLYBALL_LISTEN", "127.0.0.1:0"),
            ("FLYBALL_WORKER_TTL_S", &ttl),
            ("FLYBALL_ALLOW_PRIVATE_URLS", "true"),
            ("FLYBALL_DATABASE_CONNECTIONS", "5"),
            ("FLYBALL_CONCURRENCY", "8"),
        ]);
        let settings = self.knobs.path().join(SETTINGS);
        if settings.exists() {
            command.env("FLYBALL_CONFIG", settings);
        }
        command
            .envs(set)
            .env("FLYBALL_KNOBS_DIR", self.knobs.path())
            .current_dir(self.knobs.path());
        command
    }

    /// Enqueues jobs that call the server at `/{name}-0`, `/{name}-1` …
    pub async fn enqueue(&self, name: &str, count: usize) -> Vec<i64> {
        self.enqueue_as(count, |n| self.call(&format!("{name}-{n}")))
            .await
    }

    /// Returns a job that calls the server at this path.
    pub fn call(&self, path: &str) -> NewJob {
        NewJob {
            max_attempts: 20,
            ..NewJob::new(
                "http",
                json!({"url": format!("{}/{path}", self.target.url)}),
            )
        }
    }

    pub async fn enqueue_as(&self, count: usize, job: impl Fn(usize) -> NewJob) -> Vec<i64> {
        let jobs: Vec<NewJob> = (0..count).map(job).collect();
        self.queue
            .enqueue(&jobs)
            .await
            .expect("enqueueing")
            .iter()
            .map(|one| one.id)
            .collect()
    }

    /// Sends two jobs of a throttle of their own through the workers, one after the other. A job
    /// that was ready before, and that a worker with a free slot could begin, has begun.
    pub async fn markers(&self) {
        self.redis("HSET {}throttle:markers:knobs rps -1").await;
        for _ in 0..2 {
            let marker = self.enqueue_as(1, |_| self.call(MARKER).throttle("markers"));
            self.until_completed(&marker.await, Duration::from_secs(60))
                .await;
        }
    }

    /// Waits until the governor of a throttle has taken so many more turns.
    pub async fn turns_of_governor(&self, throttle: &str, count: usize) {
        let saved_s = async || -> f64 {
            let sql = "select extract(epoch from updated_at)::float8 from flyball.governor where throttle = $1";
            sqlx::query_scalar(sql)
                .bind(throttle)
                .fetch_one(self.pool())
                .await
                .expect("the governor's state")
        };
        for _ in 0..count {
            let last = saved_s().await;
            eventually(
                "a turn of the governor",
                Duration::from_secs(60),
                || async { (saved_s().await > last).then_some(()) },
            )
            .await;
        }
    }

    /// Returns the number of attempts of these jobs with this outcome.
    pub async fn ended(&self, jobs: &[i64], outcome: &str) -> i64 {
        sqlx::query_scalar("select count(*) from flyball.attempt where job_id = any($1) and outcome = $2::flyball.outcome")
            .bind(jobs)
            .bind(outcome)
            .fetch_one(self.pool())
            .await
            .expect("counting attempts")
    }

    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql)
            .fetch_one(self.pool())
            .await
            .expect(sql)
    }

    /// Waits until all of these jobs are completed.
    pub async fn until_completed(&self, jobs: &[i64], within: Duration) {
        eventually(&format!("{} jobs are completed", jobs.len()), within, || async {
            // A query may fail, because some tests stop Postgres.
            let sql = "select count(distinct job_id) from flyball.attempt where job_id = any($1) and outcome = 'completed'";
            let done: i64 = sqlx::query_scalar(sql).bind(jobs).fetch_one(self.pool()).await.ok()?;
            (done as usize == jobs.len()).then_some(())
        })
        .await;
    }

    /// Returns the status of a throttle in Redis.
    pub async fn status(&self, throttle: &str) -> Option<Status> {
        let store = RedisStore::connect(&self.redis_url, &self.prefix)
            .expect("the store")
            .with_bound(Duration::from_secs(10));
        store
            .status(&Name::new(throttle).expect("a name"))
            .await
            .ok()
            .flatten()
    }

    /// Runs a command in the style of redis-cli; `{}` is replaced by the test's prefix.
    pub async fn redis(&self, command: &str) {
        let words: Vec<String> = command
            .split(' ')
            .map(|word| word.replace("{}", &self.prefix))
            .collect();
        let mut connection = connect_redis(&self.redis_url).await.expect("Redis");
        redis::cmd(&words[0])
            .arg(&words[1..])
            .exec_async(&mut connection)
            .await
            .expect(command);
    }
}

/// A running process; killed when dropped.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub fn start(command: Command) -> Self {
        let mut child = spawn(command);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stderr, kept) = (
            BufReader::new(child.stderr.take().expect("its standard error")),
            lines.clone(),
        );
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                kept.lock().expect("the lines").push(line);
            }
        });
        Self { child, lines }
    }

    /// Starts a process whose standard error is closed at the other end, so that no line of its log
    /// can be written.
    pub fn start_unheard(command: Command) -> Self {
        let mut child = spawn(command);
        drop(child.stderr.take());
        Self {
            child,
            lines: Arc::default(),
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).expect("a process id"), signal).expect("the signal");
    }

    /// Kills the process with SIGKILL and waits until it has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns all lines logged so far.
    pub fn log(&self) -> String {
        self.lines.lock().expect("the lines").join("\n")
    }

    /// Waits until the process has logged a line with this text.
    pub async fn logged(&self, text: &str, within: Duration) -> String {
        self.logged_any(&[text], within).await
    }

    /// Waits until the process has logged a line with one of these texts.
    pub async fn logged_any(&self, texts: &[&str], within: Duration) -> String {
        let matches = |line: &&String| texts.iter().any(|text| line.contains(text));
        let found = poll(within, || async {
            let lines = self.lines.lock().expect("the lines");
            lines.iter().find(matches).cloned()
        });
        found.await.unwrap_or_else(|| {
            panic!(
                "{texts:?} was not logged within {within:?}; the log:\n{}",
                self.log()
            )
        })
    }

    /// Returns the base URL of its API.
    pub async fn url(&self) -> String {
        let line = self
            .logged("dashboard and API at ", Duration::from_secs(30))
            .await;
        line.split("API at ")
            .nth(1)
            .expect("an address")
            .trim()
            .trim_end_matches('/')
            .to_owned()
    }

    /// Waits until its worker has started.
    pub async fn worker_started(&self) {
        self.logged("worker started", Duration::from_secs(30)).await;
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("looking at the process")
    }

    /// Waits until the process has ended by itself.
    pub async fn ends(&mut self, within: Duration) -> ExitStatus {
        let status = poll(within, || std::future::ready(self.ended())).await;
        status
            .unwrap_or_else(|| panic!("it did not end within {within:?}; the log:\n{}", self.log()))
    }
}

fn spawn(mut command: Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program")
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- process {} said:\n{}", self.pid(), self.log());
        }
    }
}

/// A server that records its calls and can hold them at a gate.
pub struct Target {
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    calls: Mutex<Vec<(String, Instant)>>,
    delay: Mutex<Duration>,
    gate: watch::Sender<Gate>,
}

/// The calls that must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Open,
    Closed,
    /// The first call of each path.
    ClosedToTheFirst,
}

impl Target {
    async fn start() -> Self {
        let shared = Arc::new(Shared {
            calls: Mutex::default(),
            delay: Mutex::default(),
            gate: watch::Sender::new(Gate::Open),
        });
        let app = axum::Router::new()
            .route("/{path}", axum::routing::any(answer))
            .with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, shared }
    }

    pub fn gate(&self, gate: Gate) {
        self.shared.gate.send_replace(gate);
    }

    /// Delays every answer by this time.
    pub fn delay(&self, delay: Duration) {
        *self.shared.delay.lock().expect("the delay") = delay;
    }

    /// Returns paths and times of all calls, in order.
    pub fn calls(&self) -> Vec<(String, Instant)> {
        self.shared.calls.lock().expect("the calls").clone()
    }

    /// Returns the number of calls of each path.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (path, _) in self.calls() {
            *counts.entry(path).or_default() += 1;
        }
        counts
    }

    /// Returns the number of calls within the span.
    pub fn between(&self, from: Instant, until: Instant) -> usize {
        self.calls()
            .iter()
            .filter(|(_, at)| (from..until).contains(at))
            .count()
    }

    /// Waits until there are `times` calls in all.
    pub async fn called(&self, times: usize, within: Duration) {
        eventually(&format!("{times} calls"), within, || async {
            (self.calls().len() >= times).then_some(())
        })
        .await;
    }
}

async fn answer(State(shared): State<Arc<Shared>>, UrlPath(path): UrlPath<String>) -> StatusCode {
    if path == MARKER {
        return StatusCode::OK;
    }
    // Prometheus may still look for a process whose port this server has now.
    if path == "metrics" {
        return StatusCode::NOT_FOUND;
    }
    let first = {
        let mut calls = shared.calls.lock().expect("the calls");
        calls.push((path.clone(), Instant::now()));
        calls.iter().filter(|(other, _)| *other == path).count() == 1
    };
    let passes = |gate: &Gate| *gate == Gate::Open || (*gate == Gate::ClosedToTheFirst && !first);
    let _ = shared.gate.subscribe().wait_for(passes).await;
    let delay = *shared.delay.lock().expect("the delay");
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    if path.starts_with("bad") {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::OK
    }
}

/// Returns the process id of the Postgres with this data directory.
pub fn postmaster(data: &Path) -> Pid {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).expect("the pid file");
    let pid = text
        .lines()
        .next()
        .and_then(|line| line.trim().parse().ok())
        .expect("a process id");
    Pid::from_raw(pid).expect("a process id")
}
