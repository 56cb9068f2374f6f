//! The response times of the lists of the API and the dashboard with a deep queue, over HTTP from a
//! real `flyball serve`.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::process::{Child, Command};

use crate::QueueArgs;
use crate::fill::{self, Group};
use crate::report::{Report, count, median, quantile};
use crate::run::{Drainer, Run, run};
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};

/// The most milliseconds that a list may take.
const GOAL_MS: f64 = 50.0;

const REQUESTS: usize = 40;

/// The paths of the measured lists.
const PATHS: &[&str] = &[
    "/api/v1/throttles",
    "/api/v1/throttles/bench",
    "/api/v1/throttles/bench/lanes",
    "/api/v1/throttles/bench/keys/k77",
    "/api/v1/jobs",
    "/api/v1/jobs?limit=100",
    "/api/v1/jobs?state=ready",
    "/api/v1/jobs?state=running",
    "/api/v1/jobs?state=completed",
    "/api/v1/jobs?state=dead",
    "/api/v1/jobs?state=scheduled",
    "/api/v1/jobs?kind=noop",
    "/api/v1/jobs?kind=http",
    "/api/v1/jobs?throttle=bench",
    "/api/v1/jobs?throttle=nobody",
    "/api/v1/jobs?key=k77",
    "/api/v1/jobs?throttle=bench&key=k77&state=ready",
    "/api/v1/jobs?key=nobody",
    "/api/v1/failures",
    "/api/v1/workers",
    "/metrics",
];

/// Statements that create some jobs of every state, so that no list is empty.
const OTHERS: &[&str] = &[
    "insert into flyball.dead (job_id, lane_id, priority, attempt, cost, error)
     select job_id, lane_id, priority, 10, cost, 'bench' from flyball.ready order by lane_id limit 500",
    "delete from flyball.ready r using flyball.dead d where r.lane_id = d.lane_id and r.job_id = d.job_id",
    "insert into flyball.scheduled (job_id, run_at, lane_id, priority, cost, retry)
     select job_id, now() + interval '1 day', lane_id, priority, cost, false from flyball.ready order by lane_id desc limit 5000",
    "delete from flyball.ready r using flyball.scheduled s where r.lane_id = s.lane_id and r.job_id = s.job_id",
];

pub async fn measure(
    world: &QueueServers,
    cli: &QueueArgs,
    report: Report,
    dir: &Path,
) -> anyhow::Result<()> {
    let (lanes, jobs) = if cli.full {
        (100_000, 5_000_000)
    } else {
        (10_000, 200_000)
    };
    let table = report.table(
        &format!(
            "lists over HTTP with {} jobs in {} lanes, ms",
            count(jobs as f64),
            count(lanes as f64)
        ),
        &["GET", "first", "p50", "max", "goal"],
    );
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    fill::clear(&world.pool).await?;
    fill::add(&world.pool, Group::of(lanes), jobs + 30_000).await?;
    // The history also contains thirty thousand jobs that are done.
    let drainer = Drainer::Floor {
        clients: 2,
        group: "",
    };
    run(
        world,
        Run {
            drainer,
            batch: 500,
            warm: 1_000,
            measured: 29_000,
            parts: 1,
            patience: Duration::from_secs(60),
        },
    )
    .await?;
    for statement in OTHERS {
        sqlx::query(*statement).execute(&world.pool).await?;
    }
    for statement in [
        "vacuum (analyze) flyball.ready",
        "analyze flyball.job",
        "analyze flyball.attempt",
        "analyze flyball.dead",
    ] {
        sqlx::query(statement).execute(&world.pool).await?;
    }
    let mut served = Served::start(world, dir).await?;
    // The process' first scan of the lanes must not delay a measured request, because production
    // runs for days.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for path in PATHS {
        match ask(&served, path).await {
            Ok(times) => {
                let (first, p50, most) = (times[0], median(times.clone()), quantile(times, 1.0));
                let goal = format!(
                    "≤ {GOAL_MS:.0}: {}",
                    if most <= GOAL_MS { "met" } else { "missed" }
                );
                table.row([
                    (*path).to_owned(),
                    format!("{first:.1}"),
                    format!("{p50:.1}"),
                    format!("{most:.1}"),
                    goal,
                ]);
            }
            Err(error) => table.failed(path, &error),
        }
    }
    if cli.verbose {
        eprintln!(
            "{}",
            std::fs::read_to_string(dir.join("serve.log")).unwrap_or_default()
        );
    }
    served.child.start_kill()?;
    served.child.wait().await?;
    Ok(())
}

/// Returns the milliseconds of each request.
///
/// The requests are spread over seconds, so that some of them meet the counts that run once a
/// second.
async fn ask(served: &Served, path: &str) -> anyhow::Result<Vec<f64>> {
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let begun = Instant::now();
        let answer = served
            .client
            .get(format!("{}{path}", served.base))
            .send()
            .await?
            .error_for_status()?;
        answer.bytes().await?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    Ok(times)
}

struct Served {
    child: Child,
    client: reqwest::Client,
    base: String,
}

impl Served {
    async fn start(world: &QueueServers, dir: &Path) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let knobs = dir.join("knobs");
        std::fs::create_dir_all(&knobs)?;
        let log = std::fs::File::create(dir.join("serve.log"))?;
        let child = Command::new(env!("CARGO_BIN_EXE_flyball-lab"))
            .args([
                "serve",
                "--roles",
                "api",
                "--listen",
                &format!("127.0.0.1:{port}"),
            ])
            .envs([
                ("DATABASE_URL", world.database_url.as_str()),
                ("REDIS_URL", world.redis_url.as_str()),
            ])
            .env("FLYBALL_KNOBS_DIR", &knobs)
            .env_remove("FLYBALL_API_TOKEN")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let served = Self {
            child,
            client: reqwest::Client::new(),
            base: format!("http://127.0.0.1:{port}"),
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let answer = served
                .client
                .get(format!("{}/readyz", served.base))
                .send()
                .await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(served);
            }
            if Instant::now() > deadline {
                let output = std::fs::read_to_string(dir.join("serve.log")).unwrap_or_default();
                return Err(anyhow::anyhow!(
                    "{}",
                    output.lines().last().unwrap_or_default()
                ))
                .context("flyball serve did not get ready");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
