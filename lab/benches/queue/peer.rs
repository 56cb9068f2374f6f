//! One lane beside graphile_worker, by turns on the same Postgres, with commits that wait for the disk
//! and with commits that do not.
//!
//! Flyball keeps its history, fence, throttle and lanes. graphile_worker has none of these and the
//! settings of its own benchmark of speed.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use flyball::stack::as_superuser;
use tokio::process::Command;

use crate::QueueArgs;
use crate::child::DEFAULTS;
use crate::drain::size;
use crate::fill;
use crate::report::{Report, against, count, median, ratio};
use crate::run::{Drainer, Ran, Run, Stretch, run};
use crate::world::{QueueServers, THROTTLE, waiting_commits};

/// The least multiple of the peer's speed that the runner must reach.
const GOAL: f64 = 1.5;

const BATCH: usize = 500;

/// A way to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerMethod {
    /// graphile_worker with so many local queues.
    Peer(usize),
    Floor,
    Tuned,
    Defaults,
}

/// All ways, in the order of a round.
const METHODS: [PeerMethod; 5] = [
    PeerMethod::Peer(1),
    PeerMethod::Peer(4),
    PeerMethod::Floor,
    PeerMethod::Tuned,
    PeerMethod::Defaults,
];

impl PeerMethod {
    fn name(self) -> String {
        match self {
            Self::Peer(1) => "graphile_worker, one local queue".to_owned(),
            Self::Peer(queues) => format!("graphile_worker, {queues} local queues"),
            Self::Floor => "floor x4".to_owned(),
            Self::Tuned => "runner free, tuned".to_owned(),
            Self::Defaults => "runner free, default settings".to_owned(),
        }
    }

    fn queues(self) -> usize {
        match self {
            Self::Peer(queues) => queues,
            Self::Floor | Self::Tuned | Self::Defaults => 1,
        }
    }
}

/// Measures all ways by turns. Commits wait again afterwards, also where it failed.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    let measured = compare(world, cli, report).await;
    waiting_commits(&world.pool, true).await?;
    measured
}

async fn compare(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    let program = cli
        .peer
        .as_deref()
        .context("--peer PROGRAM is missing: `make bench-peer` builds and names it")?;
    world.knobs(THROTTLE, &[("rps", "-1")]).await?;
    let table = report.table(
        "one lane, nothing waiting behind, batch 500",
        &[
            "commits, way",
            "jobs/s",
            "per PG cpu-s",
            "per worker cpu-s",
            "per both",
            "peak MiB",
            "of graphile_worker: wall",
            "cpu",
        ],
    );
    for wait in [true, false] {
        waiting_commits(&world.pool, wait).await?;
        let commits = if wait { "on" } else { "off" };
        let mut seen: BTreeMap<PeerMethod, Vec<Ran>> = BTreeMap::new();
        for _ in 0..cli.rounds() {
            for way in METHODS {
                let ran = once(world, cli, program, way).await?;
                seen.entry(way).or_default().push(ran);
            }
        }
        // The faster of its two ways is what Flyball is compared with.
        let fastest = |figure: fn(&Stretch) -> f64| {
            let peers = seen
                .iter()
                .filter(|(way, _)| matches!(way, PeerMethod::Peer(_)));
            peers
                .map(|(_, rounds)| over(rounds, figure))
                .fold(0.0, f64::max)
        };
        for (way, rounds) in &seen {
            let per_s = over(rounds, Stretch::per_s);
            let per_both_s = over(rounds, Stretch::per_both_s);
            let (wall, cpu) = (
                per_s / fastest(Stretch::per_s),
                per_both_s / fastest(Stretch::per_both_s),
            );
            table.row([
                format!("{commits}, {}", way.name()),
                count(per_s),
                count(over(rounds, Stretch::per_postgres_s)),
                count(over(rounds, Stretch::per_flyball_s)),
                count(per_both_s),
                count(median(rounds.iter().map(|ran| ran.peak_mib))),
                match way {
                    PeerMethod::Tuned | PeerMethod::Defaults => against(wall, GOAL, true),
                    PeerMethod::Peer(_) | PeerMethod::Floor => ratio(wall),
                },
                ratio(cpu),
            ]);
        }
    }
    Ok(())
}

fn over(rounds: &[Ran], figure: fn(&Stretch) -> f64) -> f64 {
    median(rounds.iter().map(|ran| figure(&ran.whole)))
}

async fn once(
    world: &QueueServers,
    cli: &QueueArgs,
    program: &Path,
    way: PeerMethod,
) -> anyhow::Result<Ran> {
    let (warm, measured) = size(BATCH, cli.full);
    let jobs = warm + measured + measured / 4 + 4 * BATCH as u64;
    let url = as_superuser(&world.database_url);
    let (drained, queues) = (url.as_str(), way.queues().to_string());
    let args = ["drain", drained, &queues];
    let ended = format!("select {jobs} - count(*) from graphile_worker._private_jobs");
    let drainer = match way {
        PeerMethod::Peer(_) => {
            let filled = Command::new(program)
                .args(["fill", drained, &jobs.to_string()])
                .status()
                .await
                .with_context(|| format!("cannot start {}", program.display()))?;
            anyhow::ensure!(filled.success(), "{} did not fill", program.display());
            Drainer::Peer {
                program,
                args: &args,
                ended: &ended,
            }
        }
        PeerMethod::Floor | PeerMethod::Tuned | PeerMethod::Defaults => {
            fill::replace(&world.pool, 1, jobs as i64).await?;
            match way {
                PeerMethod::Floor => Drainer::Floor {
                    clients: 4,
                    group: "",
                },
                _ => Drainer::runner(1),
            }
        }
    };
    let batch = match way {
        PeerMethod::Defaults => DEFAULTS,
        _ => BATCH,
    };
    run(
        world,
        Run {
            drainer,
            batch,
            warm,
            measured,
            parts: 1,
            patience: Duration::from_secs(120),
        },
    )
    .await
}
