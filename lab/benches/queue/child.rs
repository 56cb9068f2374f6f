//! The child process of a measured run: it drains the queue in a process of its own, so that its
//! CPU and memory are its own.
//!
//! It prints `ready` on standard output, waits for a line on standard input, and then prints every
//! few milliseconds the number of finished jobs: `n COUNT`. It answers each further line with the
//! delays of the jobs since the line before: `delays P50 P99 MAX`, in milliseconds. When standard
//! input closes, it stops gracefully.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Kinds, Outcome, Queue};
use flyball::postgres::{Access, Pooler};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::redis::RedisStore;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::fill;
use crate::report::quantile;

/// The number of jobs of a runner with the default settings.
pub const DEFAULTS: usize = 0;

/// The argument of a job that holds the time of its enqueue, in microseconds since 1970. The delay
/// of such a job is measured.
pub const ENQUEUED_AT: &str = "at_us";

/// The interval between two reports of the count.
const TELL_EVERY: Duration = Duration::from_millis(5);

/// The parameters of the child.
#[derive(Args, Clone, Debug)]
pub struct DrainArgs {
    /// The queue.
    #[arg(long)]
    pub database_url: String,
    /// The address of a PgBouncer in transaction mode in front of the queue, for all but LISTEN.
    #[arg(long)]
    pub pooler_url: Option<String>,
    /// The throttles.
    #[arg(long)]
    pub redis_url: String,
    /// Jobs per claim of the bare loop; jobs that the runner may run at once, 0 for its defaults.
    #[arg(long)]
    pub batch: usize,
    /// Clients of the bare loop; 0 for the runner.
    #[arg(long)]
    pub clients: usize,
    /// The group of lanes that the bare loop claims from.
    #[arg(long, default_value = "")]
    pub group: String,
}

/// Runs until standard input closes.
pub async fn run(args: DrainArgs) -> anyhow::Result<()> {
    let done = Arc::new(AtomicU64::new(0));
    let mut lines = stdin_lines();
    if args.clients == 0 {
        runner(&args, &mut lines, done).await
    } else {
        floor(&args, &mut lines, done).await
    }
}

/// Drains with the runner: throttles, fences and history.
async fn runner(args: &DrainArgs, lines: &mut Lines, done: Arc<AtomicU64>) -> anyhow::Result<()> {
    let direct = args.database_url.clone();
    let access = match &args.pooler_url {
        Some(url) => Access {
            url: url.clone(),
            pooler: Pooler::Transaction,
            direct_url: Some(direct),
        },
        None => Access::from(direct.as_str()),
    };
    let queue = Queue::connect(access, 10, Duration::from_secs(20)).await?;
    let store = Arc::new(RedisStore::connect(&args.redis_url, "")?);
    say("ready");
    lines.changed().await?;
    let mut kinds = Kinds::default();
    let (counted, delays) = (done.clone(), Arc::new(Mutex::new(Vec::new())));
    let measured = Arc::clone(&delays);
    kinds.register_fn("noop", move |job, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        if let Some(at_us) = job.args[ENQUEUED_AT].as_u64() {
            measured
                .lock()
                .push((now_us().saturating_sub(at_us)) as f64 / 1e3);
        }
        std::future::ready(Outcome::Done)
    });
    let metrics = WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
    let grace = Duration::from_secs(5);
    let config = match args.batch {
        DEFAULTS => Config {
            grace,
            ..Config::default()
        },
        batch => Config {
            concurrency: 4 * batch,
            batch,
            grace,
            ..Config::default()
        },
    };
    let worker = Worker::start(config, queue, store, kinds, metrics).await?;
    report_count(done, lines, &delays).await;
    worker.stop().await;
    Ok(())
}

/// Drains with the bare statements, as fast as a minimal loop can send them.
async fn floor(args: &DrainArgs, lines: &mut Lines, done: Arc<AtomicU64>) -> anyhow::Result<()> {
    let queue = Queue::connect(
        &args.database_url,
        args.clients as u32,
        Duration::from_secs(20),
    )
    .await?;
    let kinds = vec!["noop".to_owned()];
    let worker = NewWorker {
        name: "floor".into(),
        host: "bench".into(),
        pid: 1,
        ttl: Duration::from_secs(3600),
        kinds,
    };
    let worker = queue.register(&worker).await?;
    let ids: Arc<[i64]> = fill::lane_ids(queue.pool.pool(), &args.group).await?.into();
    anyhow::ensure!(
        !ids.is_empty(),
        "there are no lanes in group {:?}",
        args.group
    );
    say("ready");
    lines.changed().await?;
    let stop = CancellationToken::new();
    let mut clients = Vec::new();
    for client in 0..args.clients {
        let (queue, ids, done, stop, batch) = (
            queue.clone(),
            ids.clone(),
            done.clone(),
            stop.clone(),
            args.batch,
        );
        let place = client * ids.len() / args.clients;
        clients.push(tokio::spawn(async move {
            client_loop(&queue, worker, &ids, place, batch, &done, &stop).await
        }));
    }
    report_count(done, lines, &Mutex::default()).await;
    stop.cancel();
    for client in clients {
        client.await??;
    }
    queue.retire(worker).await?;
    Ok(())
}

/// Claims one job from each of as many lanes as fit the batch (the fairest case, and the hardest),
/// then finishes them.
async fn client_loop(
    queue: &Queue,
    worker: i32,
    ids: &[i64],
    mut place: usize,
    batch: usize,
    done: &AtomicU64,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let fence = rand::random::<i64>() & i64::MAX;
    let lanes = batch.min(ids.len());
    while !stop.is_cancelled() {
        let requested: Vec<LaneClaim> = (0..lanes)
            .map(|n| {
                LaneClaim::first(
                    ids[(place + n) % ids.len()],
                    (batch / lanes + usize::from(n < batch % lanes)) as i32,
                )
            })
            .collect();
        place = (place + lanes) % ids.len();
        let claimed = queue.claim(worker, fence, &requested).await?;
        if claimed.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let ends: Vec<Finish> = claimed
            .iter()
            .map(|one| Finish {
                job_id: one.job.id,
                fence,
                ending: Ending::Completed,
            })
            .collect();
        let kept = queue.finish(&ends).await?.len();
        anyhow::ensure!(
            kept == ends.len(),
            "{} of {} ends were refused",
            ends.len() - kept,
            ends.len()
        );
        done.fetch_add(kept as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the time in microseconds since 1970. The clock is that of the whole machine, because
/// another process enqueues.
#[expect(
    clippy::disallowed_methods,
    reason = "it compares two processes of one machine, and no server is asked"
)]
pub fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// Prints the count, and the delays when they are asked for, until standard input closes.
async fn report_count(done: Arc<AtomicU64>, lines: &mut Lines, delays: &Mutex<Vec<f64>>) {
    let mut answer = 0;
    loop {
        tokio::select! {
            closed = lines.changed() => {
                if closed.is_err() {
                    return;
                }
                let delays = std::mem::take(&mut *delays.lock());
                let at = |place| quantile(delays.iter().copied(), place);
                say(&format!("delays {:.3} {:.3} {:.3}", at(0.5), at(0.99), at(1.0)));
            }
            () = tokio::time::sleep(TELL_EVERY) => {
                let now = done.load(Ordering::Relaxed);
                if now != answer {
                    answer = now;
                    say(&format!("n {now}"));
                }
            }
        }
    }
}

type Lines = watch::Receiver<u64>;

/// Counts the lines of standard input.
///
/// The channel closes when standard input does, however the parent died.
fn stdin_lines() -> Lines {
    let (sender, receiver) = watch::channel(0);
    std::thread::spawn(move || {
        for (place, line) in std::io::stdin().lock().lines().enumerate() {
            if line.is_err() || sender.send(place as u64 + 1).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
