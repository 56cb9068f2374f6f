//! One measured run: processes that drain the queue, and the time and CPU between two marks.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::cpu::{Cpu, resident_mib};
use crate::world::QueueServers;

/// The interval at which the driver checks the counts.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The processes that drain the queue.
#[derive(Clone, Copy, Debug)]
pub enum Drainer<'a> {
    /// Bare statements by concurrent clients in one process, which claim from the lanes of a group.
    Floor {
        clients: usize,
        /// The name of the group of lanes.
        group: &'a str,
    },
    /// The runner in worker processes.
    Runner {
        /// The number of worker processes.
        processes: usize,
        /// The PgBouncer by which they reach Postgres.
        pooler: Option<&'a str>,
    },
    /// The program of another queue that speaks the protocol of these processes.
    Peer {
        program: &'a Path,
        /// The arguments of its process.
        args: &'a [&'a str],
        /// A query for the number of jobs that have ended.
        ended: &'a str,
    },
}

/// The number of jobs whose end is written.
const ENDED: &str = "select count(*) from flyball.attempt";

impl Drainer<'_> {
    /// Returns worker processes that reach Postgres directly.
    pub fn runner(processes: usize) -> Self {
        Self::Runner {
            processes,
            pooler: None,
        }
    }

    fn command(self, world: &QueueServers, batch: usize) -> anyhow::Result<Command> {
        let (clients, group, pooler) = match self {
            Self::Peer { program, args, .. } => {
                let mut command = Command::new(program);
                command.args(args);
                return Ok(command);
            }
            Self::Floor { clients, group } => (clients, group, None),
            Self::Runner { pooler, .. } => (0, "", pooler),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child").args([
            "--batch",
            &batch.to_string(),
            "--clients",
            &clients.to_string(),
            "--group",
            group,
        ]);
        command.args([
            "--database-url",
            &world.database_url,
            "--redis-url",
            &world.redis_url,
        ]);
        if let Some(url) = pooler {
            command.args(["--pooler-url", url]);
        }
        Ok(command)
    }
}

/// A run to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The processes that drain the queue.
    pub drainer: Drainer<'a>,
    /// The jobs per claim; the runner may run four times as many at once.
    pub batch: usize,
    /// The jobs finished before measuring begins.
    pub warm: u64,
    pub measured: u64,
    /// The number of equal parts into which the measured jobs are divided.
    pub parts: u64,
    /// The time limit of the run.
    pub patience: Duration,
}

/// The results of a stretch of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stretch {
    /// The number of jobs that ended.
    pub jobs: f64,
    pub wall_s: f64,
    pub cpu: Cpu,
    /// Bytes that Postgres wrote to its log.
    pub log: f64,
}

impl Stretch {
    /// Returns the jobs per second of the wall clock.
    pub fn per_s(&self) -> f64 {
        self.jobs / self.wall_s
    }

    /// Returns the jobs per CPU-second of Postgres.
    pub fn per_postgres_s(&self) -> f64 {
        self.jobs / self.cpu.postgres_s
    }

    /// Returns the jobs per CPU-second of the draining processes.
    pub fn per_flyball_s(&self) -> f64 {
        self.jobs / self.cpu.flyball_s
    }

    /// Returns the jobs per CPU-second of Postgres and the draining processes together.
    pub fn per_both_s(&self) -> f64 {
        self.jobs / (self.cpu.postgres_s + self.cpu.flyball_s)
    }

    /// Returns the bytes of log per job.
    pub fn log_per_job(&self) -> f64 {
        self.log / self.jobs
    }

    /// Returns the jobs per CPU-second of Redis.
    pub fn per_redis_s(&self) -> f64 {
        self.jobs / self.cpu.redis_s
    }
}

/// The results of a whole run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The measured stretch.
    pub whole: Stretch,
    /// The parts of the measured stretch.
    pub parts: Vec<Stretch>,
    /// The most memory that any draining process held, in MiB.
    pub peak_mib: f64,
    /// The most memory that any draining process held at the end of the measured stretch, in MiB.
    pub resident_mib: f64,
    /// The seconds from the start signal until the first job was done.
    pub first_s: f64,
    /// All jobs that were done until the processes were stopped.
    pub total: f64,
}

/// A process that drains.
pub struct Drain {
    child: Child,
    pub pid: u32,
    ready: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Drain {
    /// Starts a process, which drains once it is [ready](Self::until_ready) and was [told
    /// to](Self::go).
    pub fn start(world: &QueueServers, batch: usize, drainer: Drainer<'_>) -> anyhow::Result<Self> {
        let mut command = drainer.command(world, batch)?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().context("the draining process ended at once")?;
        let stdout = child
            .stdout
            .take()
            .context("the draining process has no standard output")?;
        let (ready, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (is_ready, counted) = (ready.clone(), done.clone());
        let (sender, answers) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match line.split_once(' ') {
                    Some(("n", count)) => {
                        counted.store(count.parse().unwrap_or(0), Ordering::Relaxed);
                    }
                    Some(("delays", figures)) => drop(sender.send(figures.to_owned())),
                    _ => is_ready.store(true, Ordering::Relaxed),
                }
            }
        });
        Ok(Self {
            child,
            pid,
            ready,
            done,
            answers,
        })
    }

    /// Waits until all are ready.
    pub async fn until_ready(drains: &mut [Self], deadline: Instant) -> anyhow::Result<()> {
        until(deadline, "ready", drains, |drains| {
            drains.iter().all(|one| one.ready.load(Ordering::Relaxed))
        })
        .await
    }

    /// Lets it begin.
    pub async fn go(&mut self) -> anyhow::Result<()> {
        self.write("go\n").await
    }

    /// Returns the jobs that its handlers have done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns the milliseconds from the enqueue of a job to the start of its handler since the
    /// last call: median, 99th percentile, most. They are NaN if no job started.
    pub async fn delays(&mut self) -> anyhow::Result<[f64; 3]> {
        self.write("delays\n").await?;
        let answer = tokio::time::timeout(Duration::from_secs(60), self.answers.recv()).await;
        let figures = answer
            .ok()
            .flatten()
            .context("the draining process did not tell its delays within 60 s")?;
        let figures: Result<Vec<f64>, _> = figures.split(' ').map(str::parse).collect();
        figures?
            .try_into()
            .map_err(|figures| anyhow::anyhow!("not three figures: {figures:?}"))
    }

    async fn write(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self
            .child
            .stdin
            .as_mut()
            .context("the draining process has no standard input")?;
        stdin.write_all(line.as_bytes()).await?;
        Ok(stdin.flush().await?)
    }

    /// Closes its standard input and waits until it has stopped gracefully.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = tokio::time::timeout(Duration::from_secs(60), self.child.wait())
            .await
            .context("did not stop within 60 s")??;
        if !status.success() {
            bail!("the draining process ended with {status}");
        }
        Ok(())
    }
}

/// A moment of a run.
struct Snapshot {
    at: Instant,
    cpu: Cpu,
    jobs: f64,
    log: f64,
}

fn between(from: &Snapshot, to: &Snapshot) -> Stretch {
    Stretch {
        jobs: to.jobs - from.jobs,
        wall_s: (to.at - from.at).as_secs_f64(),
        cpu: to.cpu - from.cpu,
        log: to.log - from.log,
    }
}

/// Starts the processes, measures the run, and stops them.
pub async fn run(world: &QueueServers, what: Run<'_>) -> anyhow::Result<Ran> {
    let processes = match what.drainer {
        Drainer::Floor { .. } | Drainer::Peer { .. } => 1,
        Drainer::Runner { processes, .. } => processes,
    };
    let ended = match what.drainer {
        Drainer::Peer { ended, .. } => ended,
        Drainer::Floor { .. } | Drainer::Runner { .. } => ENDED,
    };
    let drains: anyhow::Result<Vec<Drain>> = (0..processes)
        .map(|_| Drain::start(world, what.batch, what.drainer))
        .collect();
    let mut drains = drains?;
    let deadline = Instant::now() + what.patience;
    Drain::until_ready(&mut drains, deadline).await?;
    let begun = Instant::now();
    for one in &mut drains {
        one.go().await?;
    }
    until(deadline, "first job", &mut drains, |drains| {
        total(drains) > 0
    })
    .await?;
    let first_s = begun.elapsed().as_secs_f64();
    let pids: Vec<u32> = drains.iter().map(|one| one.pid).collect();
    let mut marks = Vec::new();
    for part in 0..=what.parts {
        let wanted = what.warm + what.measured * part / what.parts;
        until(deadline, &format!("{wanted} jobs"), &mut drains, |drains| {
            total(drains) >= wanted
        })
        .await?;
        marks.push(mark(world, &pids, &drains, (what.parts == 1).then_some(ended)).await?);
    }
    let memory: Vec<(f64, f64)> = pids.iter().map(|pid| resident_mib(*pid)).collect();
    let done = total(&drains) as f64;
    for one in drains {
        one.stop().await?;
    }
    Ok(Ran {
        whole: between(&marks[0], &marks[marks.len() - 1]),
        parts: marks
            .windows(2)
            .map(|pair| between(&pair[0], &pair[1]))
            .collect(),
        peak_mib: memory.iter().map(|(peak, _)| *peak).fold(0.0, f64::max),
        resident_mib: memory.iter().map(|(_, now)| *now).fold(0.0, f64::max),
        first_s,
        total: done,
    })
}

/// Takes a mark of the run.
///
/// A job counts only when its end is written, so the query `ended` counts ends if they are few
/// enough for that to cost nothing; on a long drain the handlers' own count is close enough.
async fn mark(
    world: &QueueServers,
    pids: &[u32],
    drains: &[Drain],
    ended: Option<&str>,
) -> anyhow::Result<Snapshot> {
    let (at, cpu, handled) = (Instant::now(), world.servers.spent(pids), total(drains));
    let log: f64 =
        sqlx::query_scalar("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8")
            .fetch_one(&world.pool)
            .await?;
    let jobs = match ended {
        Some(query) => {
            let ended: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
                .fetch_one(&world.pool)
                .await?;
            ended as f64
        }
        None => handled as f64,
    };
    Ok(Snapshot { at, cpu, jobs, log })
}

fn total(drains: &[Drain]) -> u64 {
    drains.iter().map(Drain::done).sum()
}

async fn until(
    deadline: Instant,
    what: &str,
    drains: &mut [Drain],
    reached: impl Fn(&[Drain]) -> bool,
) -> anyhow::Result<()> {
    while !reached(drains) {
        if Instant::now() > deadline {
            bail!(
                "stalled: {} jobs done, still waiting for: {what}",
                total(drains)
            );
        }
        for one in drains.iter_mut() {
            if let Some(status) = one.child.try_wait()? {
                bail!(
                    "a draining process ended with {status} after {} jobs",
                    total(drains)
                );
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
